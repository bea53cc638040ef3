"""Consumers that pull: a queue, what is put into it, and who may take it; the face of core/queue.pxd.

How a thread is inside the engine is in _visit.pyx, how a message comes in _putting.pyx, who consumes in
_membership.pyx and _subscription.pyx, what becomes of what they pulled in _entry.pyx, and of what nobody takes in
_alternate.pyx; the memory in _hall.pxd.
"""

cimport cython
from cpython.object cimport PyObject, visitproc
from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t

from fairsched._alternate cimport Alternate
from fairsched._hall cimport Hall, hall_create, hall_free, hall_take_items
from fairsched._membership cimport (
    subscription_create, subscription_join, subscription_names, subscriptions_end,
)
from fairsched._numbers cimport as_credit, as_priority, natural
from fairsched._options cimport as_lifetime, check_callable, choice, clock_ns
from fairsched._putting cimport put_message
from fairsched._subscription cimport Subscription
from fairsched._visit cimport Visit, visit_ask, visit_enter_at, visit_leave
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.groups cimport GROUPS_NONE, GROUPS_SHARED, GROUPS_STANDARD
from fairsched.core.interestwalk cimport (
    LIST_INTERESTED, LIST_NON_ACQUIRING, LIST_NOTIFIED, LIST_NOT_INTERESTED,
)
from fairsched.core.message cimport Message
from fairsched.core.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, KIND_STANDARD, LEVELS_MAX, order_after,
)
from fairsched.core.overflow cimport OVERFLOW_FLOW, OVERFLOW_NONE, OVERFLOW_REJECT, OVERFLOW_RING
from fairsched.core.queuestate cimport Queue, queue_lock, queue_unlock
from fairsched.core.queuetime cimport queue_due, queue_sweep, queue_unhold
from fairsched.core.queuewake cimport queue_offer
from fairsched.core.slots cimport NO_SLOT, slots_add

import math
import time

from fairsched._core import checked_quanta

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
ctypedef int (*clear_t)(PyObject*) noexcept

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear

_KINDS = {
    "standard": KIND_STANDARD, "priority": KIND_PRIORITY, "sorted": KIND_SORTED, "last-value": KIND_LAST_VALUE,
    "fair": KIND_FAIR,
}
_OVERFLOWS = {"none": OVERFLOW_NONE, "ring": OVERFLOW_RING, "reject": OVERFLOW_REJECT, "flow": OVERFLOW_FLOW}
_GROUPS = {None: GROUPS_NONE, "standard": GROUPS_STANDARD, "shared": GROUPS_SHARED}


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
    Complexity: put and pull O(1); sorted queues, and messages that come back, O(log n). With filters, a put asks one
    subscription after another until one accepts, and a pull one message after another, each once: O(what is refused),
    and, for each subscription that would accept, O(subscriptions of higher priority). Memory: 192 bytes a message,
    beyond the item and its key.
    Thread safety: every method may be called from any thread. Callbacks run in the thread that caused them, with
    nothing locked: they may use the queue.
    What a callback raises is logged, if it is an Exception. Anything else, as KeyboardInterrupt, is raised by the call
    that called back, the first of several, once that call has done all it had to do and everybody was told: a put has
    put its message, an entry is settled. What a pull has taken then goes back, and a new subscription leaves again.
    What `key` and the clock raise, whatever it is, is raised before anything is changed.

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

    def __cinit__(
        self, kind="standard", *, levels=10, key=None, quanta=None, max_depth=0, max_bytes=0, overflow="none", ttl=None,
        groups=None, live_consumers=0, max_deliveries=0, alternate=None, nondestructive=False, clock=None,
    ):
        cdef Queue* q
        cdef bint browsed = bool(nondestructive)
        cdef int64_t depth, size, live, deliveries
        order = choice(_KINDS, kind, "kind")
        policy = choice(_OVERFLOWS, overflow, "overflow")
        grouping = choice(_GROUPS, groups, "groups")
        count = natural(levels, "levels")
        if not 1 <= count <= LEVELS_MAX:
            raise ValueError(f"levels must be from 1 to {LEVELS_MAX}, got {levels!r}")
        depth, size = natural(max_depth, "max_depth"), natural(max_bytes, "max_bytes")
        live, deliveries = natural(live_consumers, "live_consumers"), natural(max_deliveries, "max_deliveries")
        self.members = set()
        self.ttl = -1 if ttl is None else as_lifetime(ttl, "ttl")
        self.key = check_callable(key, "key")
        self.clock = time.monotonic if check_callable(clock, "clock") is None else clock
        self.alternate = Alternate(alternate)
        if (quanta is not None) != (order == KIND_FAIR) or (quanta is not None and not quanta):
            raise ValueError(f"quanta are what a fair queue needs, and no other has: got {quanta!r} for kind {kind!r}")
        pairs = [] if quanta is None else checked_quanta(quanta)
        self.keyed = grouping != GROUPS_NONE or order in (KIND_SORTED, KIND_LAST_VALUE)
        self.room = WaitingRoom(clock)
        self.slot_of = {}
        self.hall = hall_create(order, count, grouping)
        q = &self.hall.queue
        q.overflow.policy = policy
        q.overflow.max_depth = depth or -1
        q.overflow.max_bytes = size or -1
        q.live_limit = min(live, <int64_t> 0xFFFFFFFF)
        q.max_deliveries = deliveries
        q.nondestructive = browsed
        for name, quantum in pairs:
            self.add_slot(name, quantum)

    def __init__(self, *args, **kwargs):
        if self.made:
            raise TypeError("a PullQueue is set up once")
        self.made = True

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
        items = hall_take_items(self.hall)
        hall_free(self.hall)
        self.hall = NULL
        items.clear()

    cdef void tear_down(self) noexcept:
        """The queue is garbage: let go of items and subscriptions."""
        cdef list items
        if self.hall == NULL:
            return
        items = hall_take_items(self.hall)
        subscriptions_end(self)
        items.clear()  # whatever their finalizers do

    cdef int64_t now(self) except? -1:
        return clock_ns(self.clock())

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
            There is no room, and none is made by waiting; or that was not wanted, or took too long. Also if the sizes
            of all messages would add up to 2**63 or more.
        ShutDown
            The queue is closed.
        KeyError
            A fair queue has no such slot.
        TypeError
            The time-out, where it is needed, is no number.
        ValueError, OverflowError
            Another argument is not as described.

        Notes
        -----
        O(1); O(log n) in a sorted queue; with filters, O(subscriptions that refuse) besides, as in the notes on the
        queue. Callbacks run before it returns. What one raises, the notes on the queue describe.
        """
        put_message(self, item, priority, key, slot, size, ttl, not_before, block, timeout)

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
            thread that puts or pulls, perhaps more than once. If it raises an Exception, that means no.
        credit : int, optional
            How many messages it may have unsettled; None: any number. Without credit left it is not interested.
        on_work : callable, optional
            Called with the subscription each time it is notified, in the thread that caused that, when all others that
            are notified by the same call have been told.
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
        cdef int64_t messages = as_credit(credit)
        cdef int32_t rank = as_priority(priority)
        cdef bint requeues = bool(sees_requeues), alone = bool(exclusive), wanting = bool(interested)
        cdef Subscription subscription = subscription_create(
            self, name, rank, bool(acquires), check_callable(filter, "filter"), check_callable(on_work, "on_work")
        )
        subscription.consumer.sees_requeues = requeues
        subscription.consumer.exclusive = alone
        subscription_join(subscription, messages, wanting)
        return subscription

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
    def undelivered(self):
        """What the alternate has not taken: a deque of (item, reason), oldest first."""
        return self.alternate.undelivered

    @property
    def closed(self):
        """Whether the queue was closed."""
        return self.hall.queue.closed.load() != 0

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
            "interested": subscription_names(self, LIST_INTERESTED),
            "notified": subscription_names(self, LIST_NOTIFIED),
            "not_interested": subscription_names(self, LIST_NOT_INTERESTED),
            "non_acquiring": subscription_names(self, LIST_NON_ACQUIRING),
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
        cdef int64_t expired, now = self.now()
        cdef Py_ssize_t kept = len(self.alternate.undelivered)
        visit_enter_at(&visit, self, now)
        due = queue_unhold(&self.hall.queue, &visit.call)
        expired = queue_sweep(&self.hall.queue, &visit.call)
        while due != NULL:
            following = due.due
            visit_ask(&visit, self, due)
            queue_offer(&visit.call, due, True)
            due = following
        visit_leave(&visit, self)
        self.alternate.deliver_again(kept)
        return expired

    def close(self):
        """close($self)
        --

        Take no more messages and subscriptions. What is there may be pulled and settled; what is released goes to the
        alternate, if there is one. Whoever waits in `put` gets `ShutDown`, in `get` once there is nothing left for it,
        and no message is held until later.

        Returns
        -------
        list of (item, reason)
            What the alternate has not taken: a copy of `undelivered`, where it stays. Closing twice does nothing more.
        """
        cdef Queue* q = &self.hall.queue
        queue_lock(q)
        q.closed.store(1)
        q.drains = self.alternate.sink is not None
        queue_unlock(q)
        with cython.critical_section(self):
            self.room.wake_all()
        for subscription in list(self.members):
            (<Subscription> subscription).wake_all()
        return list(self.alternate.undelivered)

    def __repr__(self):
        return f"<PullQueue, {self.depth} messages, {self.available} available>"


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
