"""The lane of each message: its tenant's bucket, or the lane that a hot tenant has for itself."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t

from fairsched.core.hashing.jump cimport jump_bucket
from fairsched.core.hashing.xxh64 cimport xxh64

from fairsched.config.lanes import octets

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object d, object key) except? NULL
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL

cdef enum:
    #: Messages among which a tenant's share is looked for.
    LATEST = 2048
    #: Of these, so many make a tenant hot: 1/64.
    MANY = 32
    #: With fewer than this, a hot tenant leaves its place to another; half, so that two do not take turns.
    FEW = 16
    #: No more tenants are hot at a time.
    MOST_HOT = 64

cdef double RECENT = 10.0      # seconds that a message counts
cdef double FORGOTTEN = 300.0  # seconds without a message after which a tenant is not hot any more


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class _Tenant:
    """A tenant that is hot, or has a message among the latest."""

    cdef object name     # str, or bytes that are no text
    cdef object tenant   # as it came, if that is str, bytes, a number or None: weights are given for such
    cdef str bucket
    cdef str own         # the tenant's own lane; None: it is not hot
    cdef bint opened     # whether messages may go to it
    cdef bint opening    # whether it is not known yet if they may
    cdef int count       # of the tenant's messages among the latest
    cdef double last     # time of the last one


cdef inline object kept(tenant, name):
    """Return what a tenant is called in announcements; its methods run no Python code."""
    if tenant is None or type(tenant) is int or type(tenant) is bytes or type(tenant) is float or type(tenant) is bool:
        return tenant
    return name


cdef object name_of(tenant):
    """Return what identifies a tenant, as str or bytes exactly: looking it up runs no Python code."""
    cdef bytes encoded
    if type(tenant) is str:
        return tenant
    encoded = octets(tenant)
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded


@cython.final
cdef class Placement:
    """Placement(lanes)
    --

    Says to which lane each message goes, from the tenants of the messages before it.

    Parameters
    ----------
    lanes : Lanes
        The lanes of one name.

    Notes
    -----
    A tenant is hot once 32 of the latest 2048 messages are its own, counting the messages of the last ten seconds only.
    At most 64 tenants are hot: another one takes the place of the one that was silent longest, if that one has fewer
    than 16 messages among the latest. A tenant without a message for five
    minutes is not hot any more: for workers, a lane is idle after ten. With
    ``ordered=True`` no tenant is hot.

    A hot tenant's messages go to its own lane as soon as `opened` says that the lane exists; until then to its bucket.

    Tenants with the same lane of their own are one tenant, such as ``"a"`` and ``b"a"``.

    Every method is atomic and safe from any thread. Complexity: O(length of the tenant's name) per message. Memory:
    2048 tenants and 64 at most, however many there are.
    """

    cdef readonly object lanes
    cdef list buckets
    cdef bint spreads            # whether tenants have lanes of their own
    cdef dict known              # str or bytes -> _Tenant
    cdef list window             # the latest messages, as _Tenant; a ring
    cdef double times[LATEST]
    cdef int first, held
    cdef list hot                # of _Tenant
    cdef list fresh              # those of `hot` that `take_fresh` has not returned
    #: Number of hot tenants whose lanes are being opened.
    cdef readonly int opening
    cdef double now

    def __cinit__(self, lanes not None):
        self.lanes = lanes
        self.buckets = lanes.bucket_names
        self.spreads = not lanes.ordered
        self.known = {}
        self.window = [None] * LATEST
        self.hot = []
        self.fresh = []
        self.now = -INFINITY

    def place(self, tenant, double now):
        """place($self, tenant, now)
        --

        Return the lane of a message, which counts from now on.

        Parameters
        ----------
        tenant : object
            The message's tenant, as `Lanes.bucket_of` takes it.
        now : float
            The time in seconds, of a monotonic clock. A time before the last one is taken as that one.

        Returns
        -------
        str
            The name of a queue.
        """
        cdef object name = name_of(tenant)
        cdef _Tenant one
        cdef bint due
        cdef str lane
        with cython.critical_section(self):
            self.advance(now)
            one = self.counted(name, tenant)
            due = self.is_due(one)
            lane = one.own if one.opened else one.bucket
        if due:
            self.heat(one)
        return lane

    def place_many(self, tenants, double now):
        """place_many($self, tenants, now)
        --

        Return the lanes of many messages, all of which count before the first is placed.

        Parameters
        ----------
        tenants : iterable
            The tenant of each message.
        now : float
            As for `place`.

        Returns
        -------
        list of str
            The name of a queue for each message.

        Notes
        -----
        Tenants that become hot by these messages are still placed in their buckets. To place them in their own lanes,
        declare and announce what `take_fresh` returns, call `opened` for each, and take the result of `lanes_of`.
        """
        cdef list names = [(name_of(tenant), tenant) for tenant in tenants], found = [], due = []
        cdef _Tenant one
        with cython.critical_section(self):
            self.advance(now)
            for name, tenant in names:
                found.append(self.counted(name, tenant))
            for one in found:
                if self.is_due(one):
                    due.append(one)
        for one in due:
            self.heat(one)
        return [one.own if one.opened else one.bucket for one in found]

    def lanes_of(self, tenants):
        """lanes_of($self, tenants)
        --

        Return the lanes in which messages of tenants are placed, without counting them; to be called after a wait for
        lanes that are being opened: for these tenants, `is_opening` is False from now on.

        Parameters
        ----------
        tenants : iterable
            The tenant of each message.

        Returns
        -------
        list of str
            The name of a queue for each.
        """
        cdef list found = []
        cdef str lane
        for name in [name_of(tenant) for tenant in tenants]:
            with cython.critical_section(self):
                one = self.known.get(name)
                lane = None
                if one is not None:
                    lane = (<_Tenant> one).own if (<_Tenant> one).opened else (<_Tenant> one).bucket
                    self.end_opening(<_Tenant> one)
            found.append(self.bucket(name) if lane is None else lane)
        return found

    def take_fresh(self):
        """take_fresh($self)
        --

        Return the tenants that have become hot since the last call.

        Returns
        -------
        list of (object, str)
            The tenant, as `place` got it or as text, and its own lane, which has to be declared and announced before
            `opened` is called.
        """
        cdef list fresh = [], found
        with cython.critical_section(self):
            found, self.fresh = self.fresh, fresh
        return [((<_Tenant> one).tenant, (<_Tenant> one).own) for one in found if (<_Tenant> one).own is not None]

    def is_opening(self, tenant):
        """is_opening($self, tenant)
        --

        Whether a tenant is hot, and it is not known yet whether its own lane can be used.

        Parameters
        ----------
        tenant : object
            As for `place`.

        Returns
        -------
        bool
            True: its messages should wait, for they belong in its own lane.
        """
        cdef object name = name_of(tenant)
        cdef PyObject* there
        with cython.critical_section(self):
            there = PyDict_GetItemWithError(self.known, name)
            return there != NULL and (<_Tenant> there).opening

    def opened(self, str lane not None):
        """opened($self, lane)
        --

        Place messages in a hot tenant's own lane from now on.

        Parameters
        ----------
        lane : str
            Name of the lane, as `take_fresh` returned it.

        Returns
        -------
        bool
            False: the tenant is not hot any more.
        """
        return self.set_opened(lane, True)

    def closed(self, str lane not None):
        """closed($self, lane)
        --

        Place messages of a hot tenant in its bucket until its own lane is opened again.

        Parameters
        ----------
        lane : str
            Name of the lane.

        Returns
        -------
        bool
            False: the tenant is not hot any more.
        """
        return self.set_opened(lane, False)

    def active(self, double now, double seconds=RECENT):
        """active($self, now, seconds=10.0)
        --

        Return the open lanes of hot tenants that had a message within the last `seconds`.

        Parameters
        ----------
        now : float
            As for `place`.
        seconds : float
            How long ago the message may be.

        Returns
        -------
        list of (object, str)
            As `take_fresh` returns it.
        """
        cdef list found = []
        cdef list lanes = []
        cdef list hot
        cdef _Tenant one
        with cython.critical_section(self):
            hot = self.hot
            for one in hot:
                if one.opened and one.last >= now - seconds:
                    found.append(one)
        for one in found:
            own = one.own
            if own is not None:
                lanes.append((one.tenant, own))
        return lanes

    @property
    def has_fresh(self):
        """Whether `take_fresh` may return something."""
        return len(self.fresh) > 0

    @property
    def known_tenants(self):
        """Number of tenants that are remembered."""
        return len(self.known)

    # Atomic parts: nothing in them can run Python ---------------------------------------------------------------------

    cdef int advance(self, double now) except -1:
        """Set the time; messages of long ago do not count any more."""
        if now > self.now:
            self.now = now
        while self.held and self.times[self.first] < self.now - RECENT:
            self.drop()
        return 0

    cdef _Tenant counted(self, name, tenant):
        """Count a message, and return its tenant."""
        cdef PyObject* there = PyDict_GetItemWithError(self.known, name)
        cdef _Tenant one
        cdef int at
        if there != NULL:
            one = <_Tenant> there
            if one.own is not None and self.now - one.last > FORGOTTEN:
                self.cool(one)
                self.known[name] = one
        else:
            one = _Tenant.__new__(_Tenant)
            one.name = name
            one.tenant = kept(tenant, name)
            one.bucket = self.bucket(name)
            self.known[name] = one
        one.count += 1
        one.last = self.now
        if self.held == LATEST:
            self.drop()
        at = (self.first + self.held) & (LATEST - 1)
        self.window[at] = one
        self.times[at] = self.now
        self.held += 1
        return one

    cdef int drop(self) except -1:
        """Count the oldest of the latest messages no more."""
        cdef _Tenant one = <_Tenant> self.window[self.first]
        self.window[self.first] = None
        self.first = (self.first + 1) & (LATEST - 1)
        self.held -= 1
        one.count -= 1
        if one.count == 0 and one.own is None:
            del self.known[one.name]
        return 0

    cdef bint is_due(self, _Tenant one):
        """Whether a tenant should be hot and is not, and there is a place for it."""
        cdef _Tenant idle
        if one.count < MANY or one.own is not None or not self.spreads:
            return False
        if len(self.hot) < MOST_HOT:
            return True
        idle = self.idle()
        return idle.count < FEW

    cdef _Tenant idle(self):
        """Return the hot tenant that was silent longest."""
        cdef _Tenant one, found = <_Tenant> self.hot[0]
        cdef int i
        for i in range(1, <int> len(self.hot)):
            one = <_Tenant> self.hot[i]
            if one.last < found.last:
                found = one
        return found

    cdef int cool(self, _Tenant one) except -1:
        """Let a tenant be hot no more."""
        cdef int i
        for i in range(<int> len(self.hot)):
            if <PyObject*> self.hot[i] == <PyObject*> one:
                del self.hot[i]
                break
        one.own = None
        one.opened = False
        self.end_opening(one)
        if one.count == 0:
            del self.known[one.name]
        return 0

    cdef str bucket(self, name):
        cdef const uint8_t* at
        cdef Py_ssize_t size
        cdef bytes encoded
        if type(name) is str and name.isascii():
            at = <const uint8_t*> PyUnicode_AsUTF8AndSize(name, &size)
            return <str> self.buckets[jump_bucket(xxh64(at, size, 0), len(self.buckets))]
        encoded = name if type(name) is bytes else (<str> name).encode("utf-8", "surrogatepass")
        at = <const uint8_t*> PyBytes_AS_STRING(encoded)
        return <str> self.buckets[jump_bucket(xxh64(at, PyBytes_GET_SIZE(encoded), 0), len(self.buckets))]

    # Other parts ------------------------------------------------------------------------------------------------------

    cdef int heat(self, _Tenant one) except -1:
        """Make a tenant hot, if it still is to be: another thread may have been faster."""
        cdef str own
        if one.own is not None:
            return 0
        own = self.lanes.own_lane_of(one.name)  # Python code: other threads may run meanwhile
        with cython.critical_section(self):
            if not self.is_due(one):
                return 0
            if len(self.hot) >= MOST_HOT:
                self.cool(self.idle())
            self.hot.append(one)
            self.fresh.append(one)
            one.own = own
            one.opening = True
            self.opening += 1
        return 0

    cdef bint set_opened(self, str lane, bint opened):
        cdef _Tenant one
        cdef int i
        with cython.critical_section(self):
            for i in range(<int> len(self.hot)):
                one = <_Tenant> self.hot[i]
                if one.own == lane:
                    one.opened = opened
                    self.end_opening(one)
                    return True
        return False

    cdef void end_opening(self, _Tenant one) noexcept:
        self.opening -= one.opening
        one.opening = False
