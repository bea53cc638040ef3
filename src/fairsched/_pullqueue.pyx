"""Consumers that pull: one queue, its subscriptions, and what they pull; the face of core/queue.pxd.

Exclusion. The engine needs none. Each call is one stay inside it (a `Visit`): no Python code runs in there, nothing
waits but for a few instructions of another thread, and the GIL is held (it costs more to give it up than to be done).
What Python code has to be run, for filters that the engine asks about, callbacks, and what left the queue, is noted in
the visit, with references, and run after it.

Ownership. A message's token is a pointer to its item, and owns a reference until the message leaves the queue. A
consumer's memory is freed when nobody can hold its node any more; until then `members` keeps its subscription.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libcpp.atomic cimport atomic

from fairsched._numbers cimport as_count, as_int64, as_priority
from fairsched._waitingroom cimport Seat, WaitingRoom
from fairsched.core.atomics cimport CACHE_LINE
from fairsched.core.consumernode cimport ConsumerNode, node_retire
from fairsched.core.groups cimport GROUPS_NONE, GROUPS_SHARED, GROUPS_STANDARD, Grouping
from fairsched.core.interest cimport interest_clear, interest_enter, interest_leave
from fairsched.core.interestwalk cimport (
    LIST_ALL, LIST_INTERESTED, LIST_NON_ACQUIRING, LIST_NOTIFIED, LIST_NOT_INTERESTED, InterestList, InterestWalk,
    interestwalk_init, interestwalk_next,
)
from fairsched.core.message cimport (
    MESSAGE_ACQUIRED, REASON_CLOSED, REASON_DELIVERIES, REASON_EXPIRED, Message,
)
from fairsched.core.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, KIND_STANDARD, LEVELS_MAX, Kind, order_after,
)
from fairsched.core.overflow cimport OVERFLOW_FLOW, OVERFLOW_NONE, OVERFLOW_REJECT, OVERFLOW_RING, overflow_resumes
from fairsched.core.queue cimport (
    PUT_CLOSED, PUT_DONE, PUT_FULL, PUT_NO_MEMORY, Admittance, Offer, queue_clear, queue_init, queue_put,
)
from fairsched.core.queuecredit cimport consumer_paid, consumer_set_credit
from fairsched.core.queuemembers cimport (
    ADMISSION_CLOSED, ADMISSION_EXCLUSIVE_EXISTS, ADMISSION_OTHERS_EXIST, ADMITTED, Admission, consumer_init,
    consumer_is_live, queue_cancel, queue_first_idle, queue_set_credit, queue_set_wish, queue_subscribe,
)
from fairsched.core.queuepull cimport PULL_ASK, queue_pull
from fairsched.core.queuequestion cimport Question, queue_question, queue_question_for
from fairsched.core.queuering cimport queue_trim
from fairsched.core.queuesettle cimport (
    SETTLE_ACK, SETTLE_REJECT, SETTLE_RELEASE, Verdict, queue_release_all, queue_settle, settle_credit,
)
from fairsched.core.queuestate cimport (
    OWED_HAND_OVER, OWED_PASS_ON, WISH_USER, Call, Queue, QueueConsumer, call_init, consumer_desired,
    queue_delete, queue_forget, queue_lock,
    queue_unlock, queue_unref,
)
from fairsched.core.queuetime cimport queue_due, queue_sweep, queue_unhold
from fairsched.core.queuewake cimport queue_drop, queue_give_back, queue_hand_over, queue_offer, queue_pass_on
from fairsched.core.reclaim cimport Garbage, Pin, reclaim_flush
from fairsched.core.slots cimport NO_SLOT, slots_add

import logging
import math
import queue
import time
from collections import deque

from fairsched._core import checked_quanta
from fairsched.errors import ExistingConsumerPreventsExclusive, ExistingExclusiveConsumer, ShutDown

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
ctypedef int (*clear_t)(PyObject*) noexcept

cdef extern from "Python.h":
    # With the GIL, or attached: for code that is nogil because headers call it.
    void keep "Py_INCREF"(PyObject* o) noexcept nogil
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear

cdef enum:
    THRESHOLD = 100
    DISPOSAL_ROUNDS = 4  # epochs until a consumer's memory is nobody's

cdef struct Hall:   # a queue's memory
    Queue queue                  # must be first
    atomic[uintptr_t] morgue     # consumers that nobody can hold any more: pushed by any thread, emptied by any

cdef struct Answer:
    uint64_t consumer
    Message* message   # referenced
    int accepted

cdef struct Visit:  # one call, and what is to be done after it
    Call call                 # must be first
    PyObject** told           # subscriptions, with a reference each
    Py_ssize_t told_count
    Py_ssize_t told_size
    Answer* answers
    Py_ssize_t answer_count

_KINDS = {
    "standard": KIND_STANDARD, "priority": KIND_PRIORITY, "sorted": KIND_SORTED, "last-value": KIND_LAST_VALUE,
    "fair": KIND_FAIR,
}
_OVERFLOWS = {"none": OVERFLOW_NONE, "ring": OVERFLOW_RING, "reject": OVERFLOW_REJECT, "flow": OVERFLOW_FLOW}
_GROUPS = {None: GROUPS_NONE, "standard": GROUPS_STANDARD, "shared": GROUPS_SHARED}
#: What an alternate is told; what left for another reason was to be dropped.
_REASONS = {REASON_EXPIRED: "expired", REASON_DELIVERIES: "delivery_limit", REASON_CLOSED: "closed"}

_PAST = -math.inf  # a deadline: wait for nothing but what is under way

logger = logging.getLogger("fairsched.queue")


cdef object choice(dict choices, object value, str what):
    """Look up an option by name."""
    if value is not None and not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(name) for name in choices)
        raise ValueError(f"{what} must be one of {allowed}, got {value!r}")
    return choices[value]


cdef int64_t natural(object value, str what) except -1:
    """Convert an integer of 0 or more."""
    cdef int64_t number = as_int64(value, what, "an integer of 0 or more")
    if number < 0:
        raise ValueError(f"{what} must be an integer of 0 or more, got {value!r}")
    return number


cdef object check_callable(object value, str what):
    if value is not None and not callable(value):
        raise ValueError(f"{what} must be callable, got {value!r}")
    return value


cdef int64_t as_ns(object seconds, str what) except? -1:
    """Convert a time in seconds; never 0, which stands for none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not -9e9 < seconds < 9e9:
        raise ValueError(f"{what} must be a finite number of seconds, got {seconds!r}")
    return round(seconds * 1e9) or 1


cdef int64_t as_lifetime(object seconds, str what) except -1:
    """Convert a time to live; nanoseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds, 0 or more, got {seconds!r}")
    return round(seconds * 1e9)


cdef bytes key_bytes(object key):
    """What stands for a key: its text, or the bytes that it is."""
    if isinstance(key, bytes):
        return key
    return str(key).encode("utf-8", "surrogatepass")


cdef void consumer_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    """Nobody can hold this consumer any more: leave it in the morgue of its queue."""
    cdef Hall* hall = <Hall*> pin.reclaim  # the domain stands first in the queue, and that in the hall
    cdef QueueConsumer* c = <QueueConsumer*> garbage
    cdef uintptr_t head = hall.morgue.load()
    c.next_walker = <QueueConsumer*> head
    while not hall.morgue.compare_exchange_weak(head, <uintptr_t> c):
        c.next_walker = <QueueConsumer*> head


cdef void visit_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """Note whom to tell. With the GIL."""
    cdef Visit* visit = <Visit*> call
    cdef Py_ssize_t size
    cdef PyObject** larger
    if visit.told_count == visit.told_size:
        size = 2 * visit.told_size + 8
        larger = <PyObject**> realloc(visit.told, size * sizeof(PyObject*))
        if larger == NULL:
            return
        visit.told = larger
        visit.told_size = size
    keep(<PyObject*> c.owner)
    visit.told[visit.told_count] = <PyObject*> c.owner
    visit.told_count += 1


cdef int visit_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """What a filter has said in this visit."""
    cdef Visit* visit = <Visit*> call
    cdef Py_ssize_t i
    for i in range(visit.answer_count):
        if visit.answers[i].message == m and visit.answers[i].consumer == c.id:
            return visit.answers[i].accepted
    return -1


cdef QueueConsumer* consumer_create() noexcept:
    """Memory for a consumer, on a cache line; what malloc returned stands before it."""
    cdef void* block = malloc(sizeof(QueueConsumer) + sizeof(void*) + CACHE_LINE)
    cdef uintptr_t address
    if block == NULL:
        return NULL
    address = (<uintptr_t> block + sizeof(void*) + CACHE_LINE - 1) & ~<uintptr_t> (CACHE_LINE - 1)
    (<void**> (address - sizeof(void*)))[0] = block
    return <QueueConsumer*> address


cdef void consumer_destroy(QueueConsumer* c) noexcept:
    free((<void**> (<uintptr_t> c - sizeof(void*)))[0])


@cython.final
@cython.no_gc_clear
cdef class Entry:
    """Entry()
    --

    A message that a subscription pulled, to be settled once: by `ack`, `release` or `reject`, from any thread.

    Attributes
    ----------
    item : object
        What was put.
    delivery_count : int
        Earlier deliveries that failed, each by a release.
    redelivered : bool
        Whether it was pulled, and came back, before.
    settled : bool
        Whether it was settled.

    Notes
    -----
    Settling twice is allowed: the first call decides, later ones do nothing and return False. What a browser pulled was
    only looked at: settling it gives its credit back, and does nothing to the message.
    An entry that is dropped unsettled leaves its message acquired: `Subscription.cancel(release=True)` gives it back.
    """

    cdef Subscription owner
    cdef Message* message     # referenced while unsettled
    cdef uint64_t holder
    cdef uint32_t lease
    cdef bint paid            # a browser's: it took its subscription's credit
    cdef readonly object item
    cdef readonly int delivery_count
    cdef readonly bint redelivered

    def __init__(self):
        raise TypeError("entries come from Subscription.pull")

    def __dealloc__(self):
        if self.message != NULL:
            queue_drop(&self.owner.queue.hall.queue, self.message)

    @property
    def settled(self):
        """Whether it was settled."""
        return self.message == NULL

    @property
    def subscription(self):
        """The subscription that pulled it."""
        return self.owner

    def ack(self):
        """ack($self)
        --

        Say that the message was processed; it leaves the queue.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        O(1). Safe from any thread; the subscription may have been cancelled.
        """
        return self.settle(SETTLE_ACK)

    def release(self):
        """release($self)
        --

        Give the message back: it stands where it stood, and counts one failed delivery.

        After `max_deliveries` of these it goes to the queue's alternate, or is dropped. One that has expired meanwhile
        goes there as well; one that a newer message of its key has superseded is dropped.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        As `ack`; O(log messages that came back).
        """
        return self.settle(SETTLE_RELEASE)

    def reject(self):
        """reject($self)
        --

        Give the message back, for others: this subscription never sees it again. No failed delivery is counted.

        Returns
        -------
        bool
            Whether this call settled it.

        Notes
        -----
        As `release`.
        """
        return self.settle(SETTLE_REJECT)

    cdef object settle(self, Verdict verdict):
        cdef Message* message
        with cython.critical_section(self):
            message = self.message
            self.message = NULL
        if message == NULL:
            return False
        return self.owner.queue.settle(self, message, verdict)

    def __repr__(self):
        # Items may be large or secret: never shown.
        state = "settled" if self.message == NULL else "unsettled"
        return f"<Entry of {self.owner.name!r}, {state}>"


@cython.final
@cython.no_gc_clear
cdef class Subscription:
    """Subscription()
    --

    A consumer of a `PullQueue`, from `PullQueue.subscribe`.

    Who is notified pulls until there is nothing left. One thread at a time pulls; entries may be settled by any.

    Attributes
    ----------
    name : str
    priority : int
    acquires : bool
        False: it browses.

    Notes
    -----
    A subscription stays until it is cancelled, whether or not somebody keeps this object.
    Memory: about 460 bytes in the engine, and this object.
    """

    cdef PullQueue queue
    cdef QueueConsumer* consumer   # NULL: cancelled. What it points to is good inside a visit that found it
    cdef uint64_t number
    cdef object filter
    cdef object on_work
    cdef object listener           # called when somebody who waits elsewhere should look again
    cdef WaitingRoom room          # made when somebody waits
    cdef atomic[int64_t] news
    cdef bint filter_failed        # and that was logged
    cdef readonly object name
    cdef readonly object priority
    cdef readonly bint acquires
    cdef object __weakref__

    def __init__(self):
        raise TypeError("subscriptions come from PullQueue.subscribe")

    @property
    def interested(self):
        """Whether the queue counts on it: it wants to, has credit, and is among the live consumers. Settable."""
        cdef Visit visit
        cdef bint desired
        self.queue.enter(&visit)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        self.queue.leave(&visit)
        return desired

    @interested.setter
    def interested(self, interested):
        cdef Visit visit
        cdef bint wished = bool(interested)
        self.queue.enter(&visit)
        try:
            if wished:
                self.queue.ask_for(&visit, self)
        except BaseException:
            self.queue.leave(&visit)
            raise
        if self.consumer != NULL:
            queue_set_wish(&visit.call, self.consumer, WISH_USER, wished)
        self.queue.leave(&visit)

    @property
    def credit(self):
        """How many messages it may still pull; None: any number. Set it, and it is so many from now on."""
        cdef Visit visit
        cdef object credit = None
        cdef int64_t left = -1
        self.queue.enter(&visit)
        if self.consumer != NULL and self.consumer.credit.message_limit != 0:
            left = self.consumer.credit.messages
        self.queue.leave(&visit)
        return None if left < 0 else left

    @credit.setter
    def credit(self, credit):
        cdef Visit visit
        cdef int64_t messages = as_credit(credit)
        self.queue.enter(&visit)
        try:
            if messages != 0:
                self.queue.ask_for(&visit, self)
        except BaseException:
            self.queue.leave(&visit)
            raise
        if self.consumer != NULL:
            queue_set_credit(&visit.call, self.consumer, messages)
        self.queue.leave(&visit)

    @property
    def notified_count(self):
        """How often the queue has told it that there is work."""
        return self.news.load()

    def pull(self):
        """pull($self)
        --

        Take the next message, without waiting.

        Returns
        -------
        Entry or None
            None: there is nothing for this subscription, or it is not interested. It is told when there is.

        Notes
        -----
        O(1), besides the order of service; with a filter, O(messages that it refuses), each once.
        """
        return self.queue.pull(self)

    def pull_many(self, n):
        """pull_many($self, n)
        --

        Take up to `n` messages, without waiting: as so many calls of `pull`, until one finds nothing.

        Returns
        -------
        list of Entry

        Raises
        ------
        ValueError
            `n` is not an integer of 0 or more.

        Notes
        -----
        Where nobody has a filter, browses, or rejected something, and there are no groups, it is one look at the
        consumers, and one stay under the queue's lock, for all.
        """
        return self.queue.pull_many(self, as_count(n))

    def get(self, timeout=None):
        """get($self, timeout=None)
        --

        Take the next message, and wait for it if there is none.

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
            The queue is closed, and has nothing left for this subscription; or that is cancelled.
        ValueError
            The time-out is negative.

        Notes
        -----
        The GIL is given up while the thread waits. The main thread notices signals meanwhile. A message that is held is
        taken when it is due.
        """
        cdef int64_t news
        cdef bint waited
        if self.room is None:
            with cython.critical_section(self):
                if self.room is None:
                    self.room = WaitingRoom(self.queue.clock)
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            entry = self.queue.pull(self)
            if entry is not None:
                return entry
            if self.consumer == NULL:
                raise ShutDown("the subscription is cancelled")
            if self.queue.closed:
                raise ShutDown("the queue is closed and has nothing left for this subscription")
            due = self.queue.next_due(deadline)
            with cython.critical_section(self):
                waited = self.wait(news, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef bint wait(self, int64_t news, object deadline) except -1:
        """Wait until it is told something newer than `news`; False when the deadline passed before."""
        cdef Seat* seat
        if self.news.load() != news or self.consumer == NULL or self.queue.closed:
            return True
        seat = self.room.sit(0, 1)
        try:
            return self.room.wait(seat, deadline)
        finally:
            self.room.leave(seat)

    cdef int tell(self) except -1:
        """There is work: wake whoever waits, and call back."""
        self.news.fetch_add(1)
        self.wake()
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of subscription %r failed", self.name)
        return 0

    cdef void wake(self) noexcept:
        cdef object listener = self.listener
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake(1)
        if listener is not None:
            listener()

    # What a Target needs to wait for several subscriptions at once.

    def _listen(self, listener):
        """Have `listener()` called when there is work, and when there will be none; None: no longer."""
        with cython.critical_section(self):
            if listener is not None and self.listener is not None:
                raise ValueError(f"subscription {self.name!r} belongs to a target already")
            self.listener = listener

    @property
    def _clock(self):
        return self.queue.clock

    @property
    def _over(self):
        """Whether nothing new will come: it is cancelled, or its queue is closed."""
        return self.consumer == NULL or self.queue.closed

    def _next_due(self, deadline):
        """The deadline, or when the next held message is due, if that is before."""
        return self.queue.next_due(deadline)

    cdef int judge(self, object item) except -1:
        """Whether the filter accepts an item."""
        try:
            return bool(self.filter(item))
        except Exception:
            if not self.filter_failed:
                self.filter_failed = True
                logger.exception(
                    "the filter of subscription %r failed: that means no, and is not logged again", self.name
                )
            return False

    def cancel(self, release=False):
        """cancel($self, release=False)
        --

        Leave the queue. Others take over what there is to do.

        Parameters
        ----------
        release : bool
            Whether to release all messages that this subscription has pulled and not settled: their entries settle
            nothing any more. Otherwise they may still be settled.

        Notes
        -----
        Cancelling twice does nothing. O(1); O(groups) where there are groups, O(messages) with `release`.
        """
        self.queue.cancel(self, bool(release))

    def __repr__(self):
        state = "" if self.consumer != NULL else ", cancelled"
        return f"<Subscription {self.name!r}, priority {self.priority}{state}>"


cdef int64_t as_credit(object credit) except? -2:
    """Convert a credit; -1: no limit."""
    return -1 if credit is None else natural(credit, "credit")


@cython.final
cdef class PullQueue:
    """PullQueue(kind='standard', *, levels=10, key=None, quanta=None, max_depth=0, max_bytes=0, ...)
    --

    A queue whose consumers pull: a message notifies one interested subscription, which pulls until nothing is left.

    Parameters
    ----------
    kind : {'standard', 'priority', 'sorted', 'last-value', 'fair'}
        The order of service. standard: first in, first out. priority: `levels` of it, the higher first. sorted: by the
        text of the key, messages without one first. last-value: a message replaces the one with its key. fair: slots
        take turns by deficit weighted round robin, each message at the cost of its size, or 1.
    levels : int
        Of a priority queue: 1 to 256. Priority 4 is the middle one, or the lower of two.
    key : callable, optional
        Takes an item, returns its key, where `put` names none; None is no key. Keys count as text (bytes as they are).
    quanta : Mapping[Hashable, int]
        Of a fair queue: slot names and quanta.
    max_depth, max_bytes : int
        Most messages, and most bytes by their sizes, acquired ones included; 0: no limit.
    overflow : {'none', 'ring', 'reject', 'flow'}
        What happens beyond these limits. none: nothing. ring: the oldest message that nobody has is dropped (of the
        lowest level, in a priority queue). reject: `put` raises queue.Full. flow: once a message does not fit, `put`
        waits until the queue is down to 80 %.
    ttl : float, optional
        Longest life of a message in the queue, in seconds.
    groups : {None, 'standard', 'shared'}
        Messages with the same key go to the same subscription: standard: for as long as that lives; shared: as long as
        it has one of them unsettled, and messages without a key are one group.
    live_consumers : int
        So many subscriptions are served, in the order they came; further ones wait to take their places. 0: all are.
    max_deliveries : int
        A message that was released so often goes to the alternate. 0: no limit.
    alternate : PullQueue or callable, optional
        Where messages go that expired, were delivered too often, or were released after `close`: something with `put`,
        or a callable that takes (item, reason), the reason being 'expired', 'delivery_limit' or 'closed'. Without it
        they are dropped. What it raises is logged, and the message kept: see `undelivered`.
    nondestructive : bool
        All subscriptions browse, whatever they ask for.
    clock : callable, optional
        Returns seconds; `time.monotonic` by default. `get` looks at a clock of the caller's own every millisecond.

    Attributes
    ----------
    undelivered : collections.deque of (item, reason)
        What the alternate raised an exception for, oldest first. It has left the queue, and counts for no limit. Who
        caused it to leave, by a put, pull, release or expire, is done and is told nothing. `expire` offers it to the
        alternate again. Take from it (`popleft`) what you see to yourself.

    Raises
    ------
    ValueError, OverflowError
        An option is not as described; the message says which, and what is allowed.

    Notes
    -----
    Complexity: put and pull O(1); sorted queues, and messages that come back, O(log n). Memory: 192 bytes a message,
    beyond the item and its key.
    Thread safety: every method may be called from any thread. Callbacks run in the thread that caused them, with
    nothing locked: they may use the queue.

    Examples
    --------
    >>> jobs = PullQueue()
    >>> worker = jobs.subscribe("worker")
    >>> for job in range(3):
    ...     jobs.put(job)
    >>> worker.notified_count
    1
    >>> while (entry := worker.pull()) is not None:
    ...     print(entry.item, entry.ack())
    0 True
    1 True
    2 True
    """

    cdef Hall* hall
    cdef set members            # subscriptions whose consumers may still be held by somebody
    cdef dict slot_of           # of a fair queue: name -> index
    cdef object key
    cdef object alternate
    cdef bint refused           # what the alternate was given last, and that was logged
    cdef readonly object undelivered
    cdef object clock
    cdef int64_t ttl            # nanoseconds; -1: none
    cdef bint keyed             # keys mean something
    cdef int64_t filters        # subscriptions with a filter
    cdef int64_t stopped        # threads that wait for room
    cdef WaitingRoom room       # where they wait
    cdef uint64_t named
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self.members = set()
        self.undelivered = deque()

    def __init__(
        self, kind="standard", *, levels=10, key=None, quanta=None, max_depth=0, max_bytes=0, overflow="none", ttl=None,
        groups=None, live_consumers=0, max_deliveries=0, alternate=None, nondestructive=False, clock=None,
    ):
        if self.hall != NULL:
            raise TypeError("a PullQueue is set up once")
        order = choice(_KINDS, kind, "kind")
        policy = choice(_OVERFLOWS, overflow, "overflow")
        grouping = choice(_GROUPS, groups, "groups")
        count = natural(levels, "levels")
        if not 1 <= count <= LEVELS_MAX:
            raise ValueError(f"levels must be from 1 to {LEVELS_MAX}, got {levels!r}")
        limits = natural(max_depth, "max_depth"), natural(max_bytes, "max_bytes")
        live, deliveries = natural(live_consumers, "live_consumers"), natural(max_deliveries, "max_deliveries")
        self.ttl = -1 if ttl is None else as_lifetime(ttl, "ttl")
        self.key = check_callable(key, "key")
        self.clock = time.monotonic if check_callable(clock, "clock") is None else clock
        if alternate is not None and not callable(alternate) and not callable(getattr(alternate, "put", None)):
            raise ValueError(f"alternate must be a queue with put, or callable, got {alternate!r}")
        self.alternate = alternate
        if (quanta is not None) != (order == KIND_FAIR) or (quanta is not None and not quanta):
            raise ValueError(f"quanta are what a fair queue needs, and no other has: got {quanta!r} for kind {kind!r}")
        pairs = [] if quanta is None else checked_quanta(quanta)
        self.keyed = grouping != GROUPS_NONE or order in (KIND_SORTED, KIND_LAST_VALUE)
        self.room = WaitingRoom(clock)
        self.build(order, count, grouping)
        self.hall.queue.overflow.policy = policy
        self.hall.queue.overflow.max_depth = limits[0] or -1
        self.hall.queue.overflow.max_bytes = limits[1] or -1
        self.hall.queue.live_limit = min(live, 0xFFFFFFFF)
        self.hall.queue.max_deliveries = deliveries
        self.hall.queue.nondestructive = bool(nondestructive)
        self.slot_of = {}
        for name, quantum in pairs:
            self.add_slot(name, quantum)

    cdef int build(self, Kind kind, uint32_t levels, Grouping grouping) except -1:
        self.hall = <Hall*> malloc(sizeof(Hall))
        if self.hall == NULL:
            raise MemoryError()
        self.hall.morgue.store(0)
        if not queue_init(&self.hall.queue, kind, levels, grouping, THRESHOLD):
            queue_clear(&self.hall.queue)
            free(self.hall)
            self.hall = NULL
            raise MemoryError()
        return 0

    cdef int add_slot(self, object name, int64_t quantum) except -1:
        cdef uint32_t index
        hash(name)
        index = slots_add(&self.hall.queue.order.slots, quantum, False)
        if index == NO_SLOT:
            raise MemoryError()
        self.slot_of[name] = index
        return 0

    def __dealloc__(self):
        cdef list items
        if self.hall == NULL:
            return
        items = drop_items(&self.hall.queue)
        interest_clear(&self.hall.queue.interest)  # disposes of consumers that were retired
        free_morgue(self.hall)
        queue_clear(&self.hall.queue)
        free(self.hall)
        self.hall = NULL
        items.clear()

    # -- visits -------------------------------------------------------------------------------------------------------

    cdef int enter(self, Visit* visit) except -1:
        """Go inside; the clock is read where something depends on it."""
        cdef int64_t now = 0
        if self.hall.queue.timed.load() != 0:
            now = self.now()
        self.enter_at(visit, now)
        return 0

    cdef void enter_at(self, Visit* visit, int64_t now) noexcept:
        call_init(&visit.call, &self.hall.queue, now)
        visit.call.tell = visit_tell
        if self.filters != 0:
            visit.call.accepts = visit_accepts
        visit.told = NULL
        visit.told_count = visit.told_size = 0
        visit.answers = NULL
        visit.answer_count = 0
        visit.call.pin = interest_enter(&self.hall.queue.interest)

    cdef int64_t now(self) except? -1:
        return round(self.clock() * 1e9)

    cdef int leave(self, Visit* visit) except -1:
        """Go outside, and see to what the visit has left to do."""
        try:
            if visit.call.owed != 0 or visit.call.back != NULL:
                self.pay_debts(visit)
        finally:
            self.go(visit)
        return 0

    cdef int pay_debts(self, Visit* visit) except -1:
        """Tell those whom the engine left to us, because filters have to be asked first."""
        cdef Message* back
        cdef uint32_t owed = visit.call.owed
        visit.call.owed = 0
        try:
            if visit.call.back != NULL:
                self.ask(visit, visit.call.back)
        finally:
            if visit.call.back != NULL:
                back = visit.call.back
                visit.call.back = NULL
                queue_give_back(&visit.call, back)
            try:
                self.ask(visit, NULL)
            finally:
                if owed & OWED_PASS_ON:
                    queue_pass_on(&visit.call)
                if owed & OWED_HAND_OVER:
                    queue_hand_over(&visit.call)
        return 0

    cdef int go(self, Visit* visit) except -1:
        """Go outside, all told."""
        interest_leave(visit.call.pin)
        if visit.answers != NULL:
            self.forget_answers(visit)
        if visit.call.removed != NULL or visit.told != NULL or self.stopped != 0 or self.hall.morgue.load() != 0:
            self.follow_up(visit)
        return 0

    cdef void forget_answers(self, Visit* visit) noexcept:
        cdef Py_ssize_t i
        for i in range(visit.answer_count):
            queue_drop(&self.hall.queue, visit.answers[i].message)
        free(visit.answers)
        visit.answers = NULL
        visit.answer_count = 0

    cdef int follow_up(self, Visit* visit) except -1:
        """Tell who was claimed, pass on what left the queue, let producers go on. Nothing of it stops the rest."""
        cdef Queue* q = &self.hall.queue
        cdef Py_ssize_t i
        cdef list told = []
        cdef list removed = take_removed(visit)
        for i in range(visit.told_count):
            told.append(<object> visit.told[i])
            Py_DECREF(<object> visit.told[i])
        free(visit.told)
        visit.told = NULL
        visit.told_count = 0
        queue_forget(q, &visit.call)
        if self.hall.morgue.load() != 0:
            self.bury()
        if self.stopped != 0 and (self.closed or overflow_resumes(&q.overflow, q.depth.load(), q.bytes.load())):
            with cython.critical_section(self):
                self.room.wake_all()
        try:
            for subscription in told:
                (<Subscription> subscription).tell()
        finally:
            if self.alternate is not None:
                self.divert(removed)
        return 0

    cdef int divert(self, list removed) except -1:
        """Hand messages that have left the queue to the alternate."""
        cdef list messages = [(item, _REASONS[reason]) for item, reason in removed if reason in _REASONS]
        cdef Py_ssize_t i = 0
        try:
            while i < len(messages):
                i += 1
                self.deliver(messages[i - 1])
        finally:
            self.undelivered.extend(messages[i:])  # what an interrupt has left
        return 0

    cdef int deliver(self, tuple message) except -1:
        """Hand one to the alternate; it is kept unless that has taken it, whatever it raises."""
        item, reason = message
        try:
            if hasattr(self.alternate, "put"):
                self.alternate.put(item)
            else:
                self.alternate(item, reason)
            self.refused = False
        except BaseException as error:
            self.undelivered.append(message)
            if not isinstance(error, Exception):
                raise
            if not self.refused:
                self.refused = True
                logger.exception(
                    "the alternate of a queue failed: a message (%s) is kept in undelivered, as others will be, and "
                    "that is not logged again until it takes one", reason,
                )
        return 0

    cdef int deliver_again(self, Py_ssize_t count) except -1:
        """Hand that many of those kept to the alternate, oldest first, each once."""
        while count > 0:
            try:
                message = self.undelivered.popleft()
            except IndexError:  # somebody else took it
                break
            self.deliver(message)
            count -= 1
        return 0

    cdef void bury(self) noexcept:
        """Free the memory of consumers that nobody can hold any more."""
        cdef QueueConsumer* c = <QueueConsumer*> self.hall.morgue.exchange(0)
        cdef QueueConsumer* following
        while c != NULL:
            following = c.next_walker
            self.members.discard(<object> c.owner)
            consumer_destroy(c)
            c = following

    cdef int ask(self, Visit* visit, Message* about) except -1:
        """Ask all filters that matter before work is announced (about it), or passed on (NULL)."""
        cdef Question question
        while visit.call.accepts != NULL and queue_question(&visit.call, about, &question):
            self.answer(visit, &question)
        return 0

    cdef int ask_for(self, Visit* visit, Subscription subscription) except -1:
        """Ask all filters that matter before a consumer becomes interested."""
        cdef Question question
        while (
            visit.call.accepts != NULL and subscription.consumer != NULL
            and queue_question_for(&visit.call, subscription.consumer, &question)
        ):
            self.answer(visit, &question)
        return 0

    cdef int answer(self, Visit* visit, Question* question) except -1:
        """Ask one filter, outside."""
        cdef Queue* q = &self.hall.queue
        cdef Answer* larger = <Answer*> realloc(visit.answers, (visit.answer_count + 1) * sizeof(Answer))
        cdef Subscription subscription
        cdef object item = None
        cdef bint there
        if larger != NULL:
            visit.answers = larger
            visit.answers[visit.answer_count].consumer = question.consumer.id
            visit.answers[visit.answer_count].message = question.message
            visit.answers[visit.answer_count].accepted = False
            visit.answer_count += 1
        subscription = <Subscription> question.consumer.owner
        queue_lock(q)
        there = question.message.state <= <uint32_t> MESSAGE_ACQUIRED and question.message.token != 0
        if there:
            item = <object> <PyObject*> <uintptr_t> question.message.token
        queue_unlock(q)
        interest_leave(visit.call.pin)
        try:
            if larger == NULL:
                queue_drop(q, question.message)
                raise MemoryError()
            if there:
                visit.answers[visit.answer_count - 1].accepted = subscription.judge(item)
        finally:
            visit.call.pin = interest_enter(&q.interest)
        return 0

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(
        self, item, *, priority=4, key=None, slot=None, size=0, ttl=None, not_before=None, block=True, timeout=None
    ):
        """put($self, item, *, priority=4, key=None, slot=None, size=0, ttl=None, not_before=None, ...)
        --

        Append a message, and notify one interested subscription that would take it, and browsers.

        Parameters
        ----------
        item : object
        priority : int
            Its priority, in a priority queue.
        key : object, optional
            Its key: what it is sorted by, what it replaces, or its group.
        slot : Hashable, optional
            Its slot, in a fair queue.
        size : int
            Its size in bytes: for `max_bytes`, and as its cost in a fair queue.
        ttl : float, optional
            Longest life in the queue, in seconds; the queue's own counts as well.
        not_before : float, optional
            The time by the queue's clock until which it is held; others may overtake it.
        block : bool
            Whether to wait for room, when overflow is 'flow'.
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.

        Raises
        ------
        queue.Full
            There is no room, and none is made by waiting; or that was not wanted, or took too long.
        ShutDown
            The queue is closed.
        KeyError
            A fair queue has no such slot.
        ValueError, OverflowError
            An argument is not as described.

        Notes
        -----
        O(1); O(log n) in a sorted queue. Callbacks run before it returns; if one raises, that is logged.
        """
        cdef Offer offer
        cdef bytes data = None
        cdef Admittance done
        offer.token = <uint64_t> <uintptr_t> <PyObject*> item
        offer.priority = as_int64(priority, "priority", "an integer") if priority is not 4 else 4
        offer.size = 0 if size is 0 else natural(size, "size")
        offer.expiry = offer.not_before = 0
        offer.slot = 0
        offer.key = NULL
        offer.key_length = 0
        if slot is not None or self.slot_of:
            offer.slot = self.find_slot(slot)
        if self.keyed:
            if key is None and self.key is not None:
                key = self.key(item)
            if key is not None:
                data = key_bytes(key)
                offer.key = PyBytes_AS_STRING(data)
                offer.key_length = PyBytes_GET_SIZE(data)
        done = self.offer(&offer, item, ttl, not_before)
        if done == PUT_FULL and self.hall.queue.overflow.policy == OVERFLOW_FLOW:
            done = self.wait_for_room(&offer, item, ttl, not_before, block, timeout)
        if done == PUT_FULL:
            raise queue.Full(self.fullness(offer.size))
        if done == PUT_CLOSED:
            raise ShutDown("the queue is closed")
        if done == PUT_NO_MEMORY:
            raise MemoryError()

    cdef Admittance offer(self, Offer* offer, object item, object ttl, object not_before) except <Admittance> 0:
        """Put what is offered; the clock is read now."""
        cdef Visit visit
        cdef Message* linked = NULL
        cdef int64_t now = 0
        cdef int64_t life = self.ttl
        cdef Admittance done
        if ttl is not None:
            life = as_lifetime(ttl, "ttl")
            if self.ttl >= 0:
                life = min(life, self.ttl)
        if not_before is not None:
            offer.not_before = as_ns(not_before, "not_before")
        if life >= 0 or not_before is not None or self.hall.queue.timed.load() != 0:
            now = self.now()
        if life >= 0:
            offer.expiry = (now + life) or 1
        self.enter_at(&visit, now)
        Py_INCREF(item)
        if self.filters == 0:
            done = queue_put(&visit.call, offer, NULL)
        else:
            done = queue_put(&visit.call, offer, &linked)
        if done != PUT_DONE:
            Py_DECREF(item)
            interest_leave(visit.call.pin)  # nothing has happened that anybody waits for
            return done
        try:
            if linked != NULL:
                self.offer_linked(&visit, linked)
        finally:
            if linked != NULL:
                queue_trim(&visit.call, visit.call.newest)
            self.leave(&visit)
        return done

    cdef int offer_linked(self, Visit* visit, Message* linked) except -1:
        """Ask the filters about a message that is linked, and announce it."""
        try:
            self.ask(visit, linked)
        finally:
            queue_offer(&visit.call, linked, True)
        return 0

    cdef uint32_t find_slot(self, object slot) except? 0xFFFFFFFF:
        if not self.slot_of:
            raise ValueError(f"only a fair queue has slots, got slot {slot!r}")
        found = self.slot_of.get(slot)
        if found is None:
            raise KeyError(f"no slot is named {slot!r}")
        return found

    cdef str fullness(self, int64_t size):
        cdef Queue* q = &self.hall.queue
        return (
            f"a message of {size} bytes does not fit: {q.depth.load()} messages of at most "
            f"{max(q.overflow.max_depth, 0) or 'any number'}, {q.bytes.load()} bytes of at most "
            f"{max(q.overflow.max_bytes, 0) or 'any number'}"
        )

    cdef Admittance wait_for_room(
        self, Offer* offer, object item, object ttl, object not_before, object block, object timeout
    ) except <Admittance> 0:
        """Put what is offered once there is room for it."""
        cdef Admittance done = PUT_FULL
        cdef Seat* seat
        cdef bint woken = True, waited
        deadline = self.room.deadline(block, timeout)
        while block and done == PUT_FULL and woken:
            with cython.critical_section(self):
                seat = self.room.sit(0, 1)
                self.stopped += 1
                waited = False
                try:  # whoever makes room from now on sees that somebody waits
                    done = self.offer(offer, item, ttl, not_before)
                    if done == PUT_FULL:
                        waited = True
                        woken = self.room.wait(seat, deadline)
                finally:
                    self.stopped -= 1
                    if not waited:  # it may have been claimed meanwhile: its permit is under way
                        self.room.wait(seat, _PAST)
                    self.room.leave(seat)
        return done

    # -- pulling and settling -----------------------------------------------------------------------------------------

    cdef Entry pull(self, Subscription subscription):
        cdef Visit visit
        cdef Message* message = NULL
        self.enter(&visit)
        try:
            self.take(&visit, subscription, 1, &message)
            entry = None if message == NULL else self.entry_of(subscription, message)
        finally:
            self.leave(&visit)
        return entry

    cdef list pull_many(self, Subscription subscription, int64_t n):
        """Up to n entries."""
        cdef list entries = []
        cdef Visit visit
        cdef Message** messages
        cdef int64_t taken = 1, i, size = min(n, max(self.hall.queue.available.load(), 1))
        if n == 0:
            return entries
        messages = <Message**> malloc(size * sizeof(Message*))
        if messages == NULL:
            raise MemoryError()
        self.enter(&visit)
        try:
            while taken > 0 and len(entries) < n:
                # One more than there are: the look that finds nothing is part of it.
                taken = self.take(&visit, subscription, min(size, n - len(entries)), messages)
                for i in range(taken):
                    entries.append(self.entry_of(subscription, messages[i]))
        finally:
            free(messages)
            self.leave(&visit)
        return entries

    cdef int64_t take(self, Visit* visit, Subscription subscription, int64_t limit, Message** out) except -1:
        """Pull, and ask the filters that the engine has to know about."""
        cdef Question question
        cdef int64_t taken = PULL_ASK
        while taken == PULL_ASK:
            if subscription.consumer == NULL:
                return 0
            taken = queue_pull(&visit.call, subscription.consumer, limit, out, &question)
            if taken == PULL_ASK:
                self.answer(visit, &question)
        return taken

    cdef Entry entry_of(self, Subscription subscription, Message* message):
        """An entry for a message that was pulled, inside the visit."""
        cdef Entry entry = Entry.__new__(Entry)
        entry.owner = subscription
        entry.message = message
        entry.item = <object> <PyObject*> <uintptr_t> message.token
        entry.holder = message.holder
        entry.lease = message.lease
        entry.delivery_count = max(message.deliveries, 0)
        entry.redelivered = message.redelivered
        entry.paid = subscription.consumer != NULL and consumer_paid(subscription.consumer)
        return entry

    cdef object settle(self, Entry entry, Message* message, Verdict verdict):
        cdef Visit visit
        cdef QueueConsumer* c
        cdef bint settled = True
        cdef uint64_t token = message.token
        self.enter(&visit)
        try:
            if entry.paid:
                self.ask_for(&visit, entry.owner)
        finally:
            c = entry.owner.consumer
            if entry.owner.acquires:
                settled = queue_settle(&visit.call, c, message, entry.holder, entry.lease, verdict)
            else:
                if c != NULL and entry.paid:
                    settle_credit(&visit.call, c, message.size)
                queue_drop(&self.hall.queue, message)
            self.leave(&visit)
        if settled and verdict == SETTLE_ACK and entry.owner.acquires:
            Py_DECREF(<object> <PyObject*> <uintptr_t> token)  # the message's; the entry holds one of its own
        return settled

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(
        self, name=None, *, priority=0, acquires=True, sees_requeues=False, exclusive=False, filter=None, credit=None,
        on_work=None, interested=True,
    ):
        """subscribe($self, name=None, *, priority=0, acquires=True, sees_requeues=False, exclusive=False, ...)
        --

        Add a consumer.

        Parameters
        ----------
        name : str, optional
            For `lists` and logs; one is made up.
        priority : int
            -2**31 to 2**31 - 1. A message is for the highest that is interested and would take it.
        acquires : bool
            False: it browses: it sees each message once, in order, and takes none.
        sees_requeues : bool
            Whether a browser sees a message again that was released, or rejected.
        exclusive : bool
            Be the only subscription while it lasts.
        filter : callable, optional
            Takes an item, returns whether this subscription is interested in it. Called with nothing locked, in the
            thread that puts or pulls, perhaps more than once. If it raises, that means no.
        credit : int, optional
            How many messages it may have unsettled; None: any number. Without credit left it is not interested.
        on_work : callable, optional
            Called with the subscription each time it is notified, in the thread that caused that. What it raises is
            logged.
        interested : bool
            Whether it is ready for work.

        Returns
        -------
        Subscription

        Raises
        ------
        ExistingExclusiveConsumer, ExistingConsumerPreventsExclusive
            Somebody wants to be alone.
        ShutDown
            The queue is closed.
        ValueError, OverflowError
            An argument is not as described.

        Notes
        -----
        O(1), O(priorities) for the first of a priority. It is notified at once if there is work for it.
        """
        cdef Subscription subscription = Subscription.__new__(Subscription)
        cdef QueueConsumer* c
        cdef int64_t messages = as_credit(credit)
        cdef Admission admission
        cdef int32_t rank = as_priority(priority)
        subscription.filter = check_callable(filter, "filter")
        subscription.on_work = check_callable(on_work, "on_work")
        subscription.queue = self
        self.named += 1
        subscription.name = f"subscription-{self.named}" if name is None else name
        subscription.priority = rank
        c = consumer_create()
        if c == NULL:
            raise MemoryError()
        consumer_init(c, rank, bool(acquires) and not self.hall.queue.nondestructive)
        c.sees_requeues = bool(sees_requeues)
        c.exclusive = bool(exclusive)
        c.filtered = filter is not None
        c.owner = <void*> <PyObject*> subscription
        c.node.token = <uint64_t> <uintptr_t> c.owner
        if filter is not None:
            self.filters += 1
        if not interested or self.filters != 0:
            c.wishes.fetch_and(~<uint32_t> WISH_USER)
        consumer_set_credit(c, messages)
        subscription.acquires = c.node.acquires
        subscription.consumer = c
        self.members.add(subscription)
        admission = self.admit(subscription, c)
        if admission != ADMITTED:
            self.refuse(subscription, c, admission)
        if interested and self.filters != 0:
            subscription.interested = True  # which asks the filters before it is told of anything
        return subscription

    cdef Admission admit(self, Subscription subscription, QueueConsumer* c) except <Admission> 0:
        cdef Visit visit
        cdef Admission admission
        self.enter(&visit)
        admission = queue_subscribe(&visit.call, c)
        if admission != ADMITTED:
            subscription.consumer = NULL
        self.leave(&visit)
        return admission

    cdef int refuse(self, Subscription subscription, QueueConsumer* c, Admission admission) except -1:
        """Nobody has seen this consumer: it can go at once."""
        others = ", ".join(repr(name) for name in self.names(LIST_ALL))
        if subscription.filter is not None:
            self.filters -= 1
        self.members.discard(subscription)
        consumer_destroy(c)
        if admission == ADMISSION_CLOSED:
            raise ShutDown("the queue is closed")
        if admission == ADMISSION_EXCLUSIVE_EXISTS:
            raise ExistingExclusiveConsumer(f"the queue has an exclusive subscription: {others}")
        if admission == ADMISSION_OTHERS_EXIST:
            raise ExistingConsumerPreventsExclusive(
                f"a subscription cannot be exclusive: the queue has others, {others}"
            )
        raise MemoryError()

    cdef int cancel(self, Subscription subscription, bint release) except -1:
        cdef Visit visit
        cdef QueueConsumer* c
        self.enter(&visit)
        try:
            self.ask_next_live(&visit, subscription)
        finally:
            with cython.critical_section(subscription):
                c = subscription.consumer
                subscription.consumer = NULL
            if c != NULL:
                queue_cancel(&visit.call, c)
                if subscription.filter is not None:
                    self.filters -= 1
                if release:
                    queue_release_all(&visit.call, c.id)
                node_retire(visit.call.pin, &c.node, consumer_dispose)
            self.leave(&visit)
        subscription.wake()
        self.dispose()
        return 0

    cdef int ask_next_live(self, Visit* visit, Subscription leaving) except -1:
        """Ask the filter of the consumer that takes the place of one that leaves."""
        cdef QueueConsumer* c
        if visit.call.accepts == NULL or leaving.consumer == NULL or not consumer_is_live(leaving.consumer):
            return 0
        c = queue_first_idle(&visit.call)
        if c != NULL:
            self.ask_for(visit, <Subscription> c.owner)
        return 0

    cdef int dispose(self) except -1:
        """Let epochs pass, so that a consumer's memory is freed now, unless others are inside."""
        cdef Pin* pin
        cdef int _i
        for _i in range(DISPOSAL_ROUNDS):
            pin = interest_enter(&self.hall.queue.interest)
            reclaim_flush(pin)
            interest_leave(pin)
        self.bury()
        return 0

    cdef void tear_down(self) noexcept:
        """The queue is garbage: let go of items and subscriptions."""
        cdef Visit visit
        cdef QueueConsumer* c
        cdef list items
        if self.hall == NULL:
            return
        items = drop_items(&self.hall.queue)
        self.enter_at(&visit, 0)
        for subscription in self.members:
            c = (<Subscription> subscription).consumer
            (<Subscription> subscription).consumer = NULL
            if c != NULL:
                queue_cancel(&visit.call, c)
                node_retire(visit.call.pin, &c.node, consumer_dispose)
        interest_leave(visit.call.pin)
        items.clear()  # whatever their finalizers do

    # -- the rest -----------------------------------------------------------------------------------------------------

    @property
    def depth(self):
        """Messages in the queue, acquired ones included."""
        return self.hall.queue.depth.load()

    @property
    def available(self):
        """Messages that nobody has acquired, held ones included."""
        return self.hall.queue.available.load()

    @property
    def bytes(self):
        """The sizes of all messages in the queue together."""
        return self.hall.queue.bytes.load()

    @property
    def closed(self):
        """Whether the queue was closed."""
        return self.hall.queue.closed.load() != 0

    cdef list names(self, InterestList which):
        cdef InterestWalk walk
        cdef ConsumerNode* node
        cdef Pin* pin = interest_enter(&self.hall.queue.interest)
        cdef list found = []
        interestwalk_init(&walk, &self.hall.queue.interest, pin, which)
        node = interestwalk_next(&walk)
        while node != NULL:
            found.append((<Subscription> (<QueueConsumer*> node).owner).name)
            node = interestwalk_next(&walk)
        interest_leave(pin)
        return found

    def lists(self):
        """lists($self)
        --

        The names of all subscriptions, by what the queue thinks of them, in the order it goes by.

        Returns
        -------
        dict
            interested: is to be notified when there is work; notified: is expected to pull; not_interested; and
            non_acquiring: browsers. O(subscriptions).
        """
        return {
            "interested": self.names(LIST_INTERESTED),
            "notified": self.names(LIST_NOTIFIED),
            "not_interested": self.names(LIST_NOT_INTERESTED),
            "non_acquiring": self.names(LIST_NON_ACQUIRING),
        }

    cdef object next_due(self, object deadline):
        """The deadline, or when the next held message is due, if that is before."""
        cdef int64_t due
        if self.hall.queue.timed.load() == 0:
            return deadline
        due = queue_due(&self.hall.queue)
        if due == 0:
            return deadline
        moment = math.nextafter(due / 1e9, math.inf)
        return moment if deadline is None or moment < deadline else deadline

    def expire(self):
        """expire($self)
        --

        Remove what has expired, let go of what was held until now, and offer the alternate again what is `undelivered`.
        Pulls see to what they meet; this, called at times, sees to the rest.

        Returns
        -------
        int
            How many messages expired.

        Notes
        -----
        O(messages), in short steps.
        """
        cdef Visit visit
        cdef Message* due
        cdef Message* following
        cdef int64_t expired
        cdef Py_ssize_t kept = len(self.undelivered)
        self.enter_at(&visit, self.now())
        due = queue_unhold(&self.hall.queue, &visit.call)
        expired = queue_sweep(&self.hall.queue, &visit.call)
        try:
            while due != NULL:
                following = due.due
                if visit.call.accepts != NULL:
                    self.ask(&visit, due)
                queue_offer(&visit.call, due, True)
                due = following
        finally:
            while due != NULL:  # a filter was interrupted
                following = due.due
                queue_offer(&visit.call, due, True)
                due = following
            self.leave(&visit)
        self.deliver_again(kept)
        return expired

    def close(self):
        """close($self)
        --

        Take no more messages and subscriptions. What is there may be pulled and settled; what is released goes to the
        alternate, if there is one. Whoever waits in `put` gets `ShutDown`, in `get` once there is nothing left for it.

        Returns
        -------
        list of (item, reason)
            What the alternate has not taken: a copy of `undelivered`, where it stays. Closing twice does nothing more.
        """
        cdef Queue* q = &self.hall.queue
        queue_lock(q)
        q.closed.store(1)
        q.drains = self.alternate is not None
        queue_unlock(q)
        with cython.critical_section(self):
            self.room.wake_all()
        for subscription in list(self.members):
            (<Subscription> subscription).news.fetch_add(0)
            (<Subscription> subscription).wake()
        return list(self.undelivered)

    def __repr__(self):
        return f"<PullQueue, {self.depth} messages, {self.available} available>"


cdef list take_removed(Visit* visit):
    """The items, with their references, of what left the queue in a visit, oldest first; and why it did."""
    cdef list removed = []
    cdef Message* m = visit.call.removed
    while m != NULL:
        item = <object> <PyObject*> <uintptr_t> m.token
        removed.append((item, m.reason))
        m.token = 0
        Py_DECREF(item)
        m = m.child
    removed.reverse()
    return removed


cdef list drop_items(Queue* q):
    """Take everything out: the items, with their references."""
    cdef list items = []
    cdef Message* m
    cdef Message* following
    q.closed.store(1)
    queue_lock(q)
    m = order_after(&q.order, NULL)
    while m != NULL:
        m.references += 1
        if m.token != 0:
            item = <object> <PyObject*> <uintptr_t> m.token
            items.append(item)
            m.token = 0
            Py_DECREF(item)
        queue_delete(q, m)
        following = order_after(&q.order, m)
        queue_unref(q, m)
        m = following
    queue_unlock(q)
    return items


cdef void free_morgue(Hall* hall) noexcept:
    cdef QueueConsumer* c = <QueueConsumer*> hall.morgue.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        consumer_destroy(c)
        c = following


# ---------------------------------------------------------------------------------------------------------------------
# Garbage collection. Cython shows the collector a class's Python attributes; the references in the messages are ours to
# show. Both functions are called with every other Python thread stopped or waiting for the GIL.

cdef traverse_t base_traverse = (<PyTypeObject*> PullQueue).tp_traverse
cdef clear_t base_clear = (<PyTypeObject*> PullQueue).tp_clear


@cython.linetrace(False)
@cython.profile(False)
cdef int pullqueue_traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef Hall* hall = (<PullQueue> self).hall
    cdef Message* m = order_after(&hall.queue.order, NULL) if hall != NULL else NULL
    cdef int stop
    while m != NULL:
        if m.token != 0:
            stop = visit(<PyObject*> <uintptr_t> m.token, arg)
            if stop:
                return stop
        m = order_after(&hall.queue.order, m)
    return base_traverse(self, visit, arg)


@cython.linetrace(False)
@cython.profile(False)
cdef int pullqueue_clear(PyObject* self) noexcept:
    (<PullQueue> self).tear_down()
    return base_clear(self)


(<PyTypeObject*> PullQueue).tp_traverse = pullqueue_traverse
(<PyTypeObject*> PullQueue).tp_clear = pullqueue_clear
