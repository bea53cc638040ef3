"""One consumer of several queues: their subscriptions in turn, one message each, and one place to wait for all of them.

Source: seed 001, and Qpid Broker-J's multi-queue consumers. The order is that of core/target.pxd; waiting is as in
Subscription.get, in one room for all: each subscription calls `heard` when its queue tells it that there is work.

Exclusion. Flags and the room are used with the exclusion held (the GIL, or the target's critical section). Nothing is
held while a queue is used, since that runs filters and callbacks: a thread that finds another at a subscription passes
over it (one thread at a time pulls for a consumer), and whoever was there has it look again.

Why no message waits while a thread does. A thread reads `news`, looks everywhere, and waits only if `news` is still the
same. What comes after its look at a queue is announced by that queue, since a look that finds nothing leaves the
subscription interested; the announcement raises `news` and wakes one. A queue announces only the first of several, and
expects that who was told goes on until nothing is left: so whoever takes a message wakes the next waiter.
"""

cimport cython
from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic

from fairsched._numbers cimport as_count
from fairsched._subscription cimport Listener, Subscription
from fairsched._waitingroom cimport WaitingRoom

import queue

from fairsched.errors import ShutDown

cdef enum:  # of a subscription
    FREE
    TAKEN        # a thread is at it
    PASSED_OVER  # and another would have been


@cython.final
cdef class Target(Listener):
    """Target(subscriptions, *, interested=True)
    --

    One consumer of several queues: takes a message of each in turn, and waits for all of them at once.

    Parameters
    ----------
    subscriptions : Iterable[Subscription]
        Subscriptions of different queues, or of the same, in the order of their turns. They belong to the target from
        now on: pull through it.
    interested : bool
        Whether it wants messages, which all subscriptions are told.

    Raises
    ------
    ValueError
        There is no subscription, one belongs to a target already, or their queues have different clocks.
    TypeError
        Something else than a subscription is among them.

    Notes
    -----
    Queues that all have messages are served strictly in turn: q1, q2, …, qk, q1, …. A queue that has none is passed
    over.
    Complexity: O(subscriptions) looks for a message at most; one, where all have some.
    Thread safety: every method may be called from any thread. Several threads may share a target; each message goes to
    one.

    Examples
    --------
    >>> red, blue = PullQueue(), PullQueue()
    >>> target = Target([red.subscribe(), blue.subscribe()])
    >>> for number in range(2):
    ...     red.put(f"red {number}")
    ...     blue.put(f"blue {number}")
    >>> [entry.item for entry in target.pull_many(4)]
    ['red 0', 'blue 0', 'red 1', 'blue 1']
    """

    cdef readonly tuple subscriptions
    cdef WaitingRoom room
    cdef atomic[int64_t] news
    cdef bytearray busy         # by subscription: FREE, TAKEN or PASSED_OVER
    cdef Py_ssize_t cursor      # whose turn it is
    cdef object desired         # True or False: what was set last
    cdef object told            # what the subscriptions were told; None: nobody knows
    cdef bint telling           # a thread tells them
    cdef bint cancelled
    cdef object __weakref__

    def __cinit__(self, subscriptions, *, interested=True):
        members = tuple(subscriptions)
        if not members:
            raise ValueError("a target needs at least one subscription, got none")
        for member in members:
            if not isinstance(member, Subscription):
                raise TypeError(f"a target is made of subscriptions, got {member!r}")
        clock = members[0]._clock
        if any(member._clock is not clock for member in members):
            raise ValueError("the queues of a target must have the same clock")
        self.room = WaitingRoom(clock)
        self.busy = bytearray(len(members))
        self.subscriptions = members
        self.claim()
        try:
            self.interested = interested
        except BaseException:
            self.give_up(len(members))
            raise

    cdef int claim(self) except -1:
        """Listen to all, or to none."""
        cdef Py_ssize_t claimed = 0
        try:
            for member in self.subscriptions:
                (<Subscription> member).listen(self)
                claimed += 1
        except BaseException:
            self.give_up(claimed)
            raise
        return 0

    cdef void give_up(self, Py_ssize_t claimed) noexcept:
        """Listen no longer to the first so many: others may have them."""
        cdef Py_ssize_t i
        for i in range(claimed):
            (<Subscription> self.subscriptions[i]).unlisten(self)

    cdef void heard(self) noexcept:
        """A subscription has news."""
        self.news.fetch_add(1)
        self.wake()

    cdef void wake(self) noexcept:
        """Have one of the threads that wait look."""
        with cython.critical_section(self):
            self.room.wake(1)

    # -- interest -----------------------------------------------------------------------------------------------------

    @property
    def interested(self):
        """Whether it wants messages. Settable; only a change is passed on to the subscriptions, in their order."""
        return self.desired

    @interested.setter
    def interested(self, interested):
        cdef bint wished = bool(interested)
        with cython.critical_section(self):
            self.desired = wished and not self.cancelled
            if self.telling:  # that thread, or that call further out, sees it
                return
            self.telling = True
        self.tell()

    cdef bint is_to_tell(self, bint failed) noexcept:
        """Whether the subscriptions do not know yet; else nobody is telling them any more.

        A function of its own: Cython leaks a reference where a `break` leaves a critical section.
        """
        with cython.critical_section(self):
            if self.told is not self.desired:
                return True
            if failed:  # one may not know
                self.told = None
            self.telling = False
            return False

    cdef int tell(self) except -1:
        """Tell the subscriptions what they do not know yet: all of them, whatever one raises. Then raise the first."""
        cdef object desired, first = None
        while self.is_to_tell(first is not None):
            desired = self.desired
            for member in self.subscriptions:
                try:
                    member.interested = desired
                except BaseException as error:
                    first = error if first is None else first
            self.told = desired
        if first is not None:
            raise first
        return 0

    # -- pulling ------------------------------------------------------------------------------------------------------

    def pull(self):
        """pull($self)
        --

        Take a message from the next queue in turn that has one, without waiting.

        Returns
        -------
        Entry or None
            None: no queue has any for this target, or other threads are just taking what there is.
        """
        return self.next_entry()

    def pull_many(self, n):
        """pull_many($self, n)
        --

        Take up to `n` messages, one from each queue in turn, without waiting.

        Returns
        -------
        list of Entry

        Raises
        ------
        ValueError
            `n` is not an integer of 0 or more.
        """
        cdef int64_t left = as_count(n)
        cdef list entries = []
        while left > 0:
            entry = self.next_entry()
            if entry is None:
                break
            entries.append(entry)
            left -= 1
        return entries

    def get(self, timeout=None):
        """get($self, timeout=None)
        --

        Take a message from the next queue in turn that has one, and wait for it if none has.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.

        Returns
        -------
        Entry

        Raises
        ------
        queue.Empty
            It took too long.
        ShutDown
            All subscriptions are cancelled, or their queues closed, and nothing is left for this target.
        TypeError, ValueError
            The time-out is no number, or negative.

        Notes
        -----
        The GIL is given up while the thread waits. The main thread notices signals meanwhile.
        """
        cdef int64_t news
        cdef bint waited, over
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            over = all([member._over for member in self.subscriptions])
            try:
                entry = self.next_entry()
            except BaseException:
                self.wake()  # what this thread was woken for is for another to see to
                raise
            if entry is not None:
                return entry
            if over and self.news.load() == news:
                self.wake()  # the next finds the same
                raise ShutDown("the subscriptions of the target are cancelled, or their queues closed and empty")
            due = deadline
            for member in self.subscriptions:
                due = member._next_due(due)
            if not over and all([member._over for member in self.subscriptions]):
                continue  # what was held is another's by now, and nothing else will come
            with cython.critical_section(self):
                waited = self.wait(news, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef bint wait(self, int64_t news, object deadline) except -1:
        """Wait until a subscription is told something newer than `news`; False when the deadline passed before."""
        if self.news.load() != news:
            return True
        return self.room.wait_once(deadline)

    cdef object next_entry(self):
        """Take a message from the next in turn that has one; each is tried once."""
        cdef Py_ssize_t count = len(self.subscriptions), first = self.cursor, i, at
        for i in range(count):
            at = (first + i) % count
            if not self.enter(at, count):
                continue
            try:
                entry = self.subscriptions[at].pull()
            finally:
                self.leave(at)
            if entry is not None:
                self.wake()
                return entry
        return None

    cdef bint enter(self, Py_ssize_t at, Py_ssize_t count) except -1:
        """Have a subscription to oneself, whose turn is over with that; False when another thread has it."""
        with cython.critical_section(self):
            if self.busy[at] != FREE:
                self.busy[at] = PASSED_OVER
                return False
            self.busy[at] = TAKEN
            self.cursor = (at + 1) % count
        return True

    cdef int leave(self, Py_ssize_t at) except -1:
        """Let others have a subscription; who passed over it looks again."""
        with cython.critical_section(self):
            passed_over = self.busy[at] == PASSED_OVER
            self.busy[at] = FREE
            if passed_over:
                self.news.fetch_add(1)
                self.room.wake(1)
        return 0

    def cancel(self, release=False):
        """cancel($self, release=False)
        --

        Leave all queues. Others take over what there is to do; who waits in `get` gets `ShutDown`.

        Parameters
        ----------
        release : bool
            Whether to release all messages that the target has pulled and not settled.

        Notes
        -----
        Cancelling twice does nothing. From now on `interested` is False, whatever is set.
        """
        cdef bint releases = bool(release)
        cdef object first = None
        self.cancelled = True
        try:
            self.interested = False
        except BaseException as error:
            first = error
        for member in self.subscriptions:
            try:
                member.cancel(releases)
            except BaseException as error:
                first = error if first is None else first
        if first is not None:
            raise first

    def __repr__(self):
        state = ", cancelled" if self.cancelled else "" if self.desired else ", not interested"
        return f"<Target of {len(self.subscriptions)} subscriptions{state}>"
