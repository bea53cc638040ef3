"""Consumers that pull: a queue, what is put into it, and who may take it; the face of core/queue/queue.pxd.

In this file, in this order. What callers see:

    PullQueue        a queue of messages
    Subscription     a consumer of it
    Entry            what a subscription pulled, to be settled once
    Target           one consumer of several queues

and how it is done:

    Visit            one stay of a thread inside the engine, and what is to be done after it
    putting          how a message comes in, and the wait for room
    membership       how subscriptions join, take over from each other, and leave
    pulling          how entries are made, and what goes back if they cannot be
    settling         what becomes of what was pulled
    Alternate        where messages go that leave unacknowledged
    garbage collection

The queue's memory, and what it owns, is in _pullqueue.pxd.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libcpp.atomic cimport atomic

from fairsched.core.queue.answers cimport (
    Answers, answers_add, answers_clear, answers_find, answers_init, answers_reserve,
)
from fairsched.core.queue.consumercredit cimport consumer_set_credit
from fairsched.core.queue.groups cimport GROUPS_NONE, GROUPS_SHARED, GROUPS_STANDARD
from fairsched.core.queue.members cimport (
    ADMISSION_CLOSED, ADMISSION_EXCLUSIVE_EXISTS, ADMISSION_OTHERS_EXIST, ADMITTED, Admission, consumer_init,
    consumer_is_live, queue_cancel, queue_first_idle, queue_set_credit, queue_set_wish, queue_subscribe,
)
from fairsched.core.queue.message cimport (
    MESSAGE_ACQUIRED, REASON_CLOSED, REASON_DELIVERIES, REASON_EXPIRED, Message, messages_turned,
)
from fairsched.core.queue.order.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, KIND_STANDARD, LEVELS_MAX, order_after,
)
from fairsched.core.queue.overflow cimport (
    OVERFLOW_FLOW, OVERFLOW_NONE, OVERFLOW_REJECT, OVERFLOW_RING, overflow_resumes,
)
from fairsched.core.queue.pull cimport PULL_ASK, queue_pull
from fairsched.core.queue.question cimport queue_question, queue_question_for
from fairsched.core.queue.queue cimport PUT_CLOSED, PUT_DONE, PUT_FULL, PUT_NO_MEMORY, Admittance, Offer, queue_put
from fairsched.core.queue.ring cimport queue_trim
from fairsched.core.queue.settle cimport (
    SETTLE_ACK, SETTLE_REJECT, SETTLE_RELEASE, SETTLE_UNDO, Verdict, queue_release_all, queue_settle, queue_show_again,
    settle_credit,
)
from fairsched.core.queue.state cimport (
    WISH_USER, Call, Pulled, Queue, QueueConsumer, call_init, consumer_desired, queue_lock, queue_unlock,
)
from fairsched.core.queue.time cimport DUE_MOST, queue_due, queue_sweep, queue_unhold
from fairsched.core.queue.wake cimport queue_give_back, queue_offer, queue_offer_rest, queue_pass_on
from fairsched.core.queue.work cimport Question, queue_drop
from fairsched.core.schedule.slots cimport NO_SLOT, slots_add
from fairsched.core.waiting.interest cimport interest_enter, interest_leave
from fairsched.core.waiting.node cimport ConsumerNode, node_retire
from fairsched.core.waiting.reclaim cimport Pin, reclaim_flush
from fairsched.core.waiting.walk cimport (
    LIST_ALL, LIST_INTERESTED, LIST_NON_ACQUIRING, LIST_NOTIFIED, LIST_NOT_INTERESTED, InterestList, InterestWalk,
    interestwalk_init, interestwalk_next,
)
from fairsched.scheduling._numbers cimport as_count, as_credit, as_int64, as_priority, natural
from fairsched.scheduling._waitingroom cimport Seat, WaitingRoom

import logging
import math
import queue
import time
from collections import deque

from fairsched._core import checked_quanta
from fairsched.errors import ExclusiveSubscription, ShutDown

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
ctypedef int (*clear_t)(PyObject*) noexcept

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear
    # With the GIL, or attached: for code that is nogil because headers call it.
    void keep "Py_INCREF"(PyObject* o) noexcept nogil

cdef enum:
    DISPOSAL_ROUNDS = 4  # epochs until a consumer's memory is nobody's

cdef enum:  # of a subscription
    FREE
    TAKEN        # a thread is at it
    PASSED_OVER  # and another would have been

_KINDS = {
    "standard": KIND_STANDARD, "priority": KIND_PRIORITY, "sorted": KIND_SORTED, "last-value": KIND_LAST_VALUE,
    "fair": KIND_FAIR,
}
_OVERFLOWS = {"none": OVERFLOW_NONE, "ring": OVERFLOW_RING, "reject": OVERFLOW_REJECT, "flow": OVERFLOW_FLOW}
_GROUPS = {None: GROUPS_NONE, "standard": GROUPS_STANDARD, "shared": GROUPS_SHARED}
#: What an alternate is told; what left for another reason was to be dropped.
_REASONS = {REASON_EXPIRED: "expired", REASON_DELIVERIES: "delivery_limit", REASON_CLOSED: "closed"}

logger = logging.getLogger("fairsched.queue")


# Options: names, callables and times, checked, with errors that name the value and what is allowed --------------------


cdef inline object choice(dict choices, object value, str what):
    """Look up an option by name."""
    if value is not None and not isinstance(value, str) or value not in choices:
        allowed = ", ".join([repr(name) for name in choices])
        raise ValueError(f"{what} must be one of {allowed}, got {value!r}")
    return choices[value]


cdef inline object check_callable(object value, str what):
    if value is not None and not callable(value):
        raise ValueError(f"{what} must be callable, got {value!r}")
    return value


cdef inline int64_t as_ns(object seconds, str what) except? -1:
    """Convert a time in seconds; never 0, which stands for none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not -9e9 < seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds between -9e9 and 9e9, got {seconds!r}")
    return round(seconds * 1e9) or 1


cdef inline int64_t as_lifetime(object seconds, str what) except -1:
    """Convert a time to live; nanoseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds, 0 or more and below 9e9, got {seconds!r}")
    return round(seconds * 1e9)


cdef inline int64_t clock_ns(object seconds) except? -1:
    """Convert what a clock said."""
    if not -9e9 < seconds < 9e9:  # NaN too
        raise ValueError(f"a clock must return a number of seconds between -9e9 and 9e9, got {seconds!r}")
    return round(seconds * 1e9)


cdef inline int64_t time_after(int64_t now, int64_t span) noexcept:
    """The time so much later; the last there is, if it would come after that."""
    return INT64_MAX if span > INT64_MAX - max(now, <int64_t> 0) else now + span


# What callers see -----------------------------------------------------------------------------------------------------


@cython.final
cdef class PullQueue:
    """PullQueue(kind='standard', *, levels=10, key=None, quanta=None, max_depth=0, max_bytes=0, ...)
    --

    A queue whose consumers pull: a message notifies one interested subscription, which pulls until none is left.

    Parameters
    ----------
    kind : {'standard', 'priority', 'sorted', 'last-value', 'fair'}
        The order of service. standard: first in, first out. priority: by priority, higher first, with `levels` levels.
        sorted: by the text of the key, messages without a key first. last-value: a message replaces the queued one with
        the same key. fair: slots take turns by deficit weighted round robin; the cost of a message is its size, or 1.
    levels : int
        Number of levels of a priority queue: 1 to 256. Priority 4 is the middle level, or the lower of the two middle
        levels.
    key : callable, optional
        Called with an item, returns its key; used if `put` is given no key. None means no key. Keys are compared as
        text (bytes as they are).
    quanta : Mapping[Hashable, int]
        For a fair queue: slot names and quanta.
    max_depth, max_bytes : int
        Maximum number of messages, and of bytes by their sizes, acquired messages included; 0: no limit. A ring keeps
        the newest message, so it exceeds them by that one while all others are acquired.
    overflow : {'none', 'ring', 'reject', 'flow'}
        What happens beyond these limits. none: nothing. ring: the oldest message not acquired is dropped (of the lowest
        level in a priority queue). reject: `put` raises queue.Full. flow: once a message does not fit, `put` waits
        until the queue has shrunk to 80 %.
    ttl : float, optional
        Maximum time that a message stays in the queue, in seconds.
    groups : {None, 'standard', 'shared'}
        Messages with the same key go to the same subscription. standard: for as long as the subscription exists.
        shared: as long as it has an unsettled message of the group; messages without a key form one group.
    live_consumers : int
        Number of subscriptions that are served, in the order in which they joined, whatever their priorities; later
        ones wait to replace them. Browsers do not count, and are always served. 0: all are served.
    max_deliveries : int
        A message that was released this many times goes to the alternate. 0: no limit.
    alternate : PullQueue or callable, optional
        Where messages go that expired, were delivered too often, or were released after `close`: an object with `put`,
        or a callable that takes (item, reason), with the reason 'expired', 'delivery_limit' or 'closed'. Without an
        alternate, they are dropped. If it raises, the exception is logged and the message kept: see `undelivered`.
    nondestructive : bool
        Whether all subscriptions browse, regardless of `acquires`.
    clock : callable, optional
        Returns the time in seconds; `time.monotonic` by default. `get` polls any other clock every millisecond.

    Attributes
    ----------
    undelivered : collections.deque of (item, reason)
        Messages for which the alternate raised an exception, oldest first. They have left the queue and count towards
        no limit. The put, pull, release or expire that made them leave does not fail. `expire` offers them to the
        alternate again. Remove (`popleft`) those that you handle yourself.

    Raises
    ------
    ValueError, OverflowError
        An option is invalid; the message names it and the allowed values.

    Notes
    -----
    A subscription that is notified may take one message and be busy with it for long: with that message, the rest is
    offered to another one that would take some of it. So a message never waits while an interested subscription could
    take it, unless it is for one of higher priority, or one that was notified has not pulled since.
    Complexity: put and pull are O(1); O(log n) for sorted queues and for released messages. With filters, a put tries
    one subscription after another until one accepts, and a pull one message after another, each once: O(refusals), and,
    for each message that would be accepted, O(subscriptions of higher priority). What is for a higher priority is gone
    past once, and again after that subscription was not interested, or found nothing. Memory: 128 bytes per message, in
    addition to the item and its key. Thread safety: every method may be called from any thread. Callbacks run in the
    thread that caused them, without a lock held, so they may use the queue. If a callback raises an Exception, it is
    logged. Any other exception, such as KeyboardInterrupt (the first one, if there are several), is raised by the call
    that ran the callback, after that call has finished its work and all notifications: a put has put its message, an
    entry is settled. The messages that a pull has taken are then returned, and a new subscription is removed again. Any
    exception of `key` or of the clock is raised before anything is changed.

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
        self.memory = memory_create(order, count, grouping)
        q = &self.memory.queue
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
        index = slots_add(&self.memory.queue.order.slots, quantum, False)
        if index == NO_SLOT:
            raise MemoryError()
        self.slot_of[name] = index
        return 0

    def __dealloc__(self):
        if self.memory == NULL:
            return
        memory_close(self.memory)
        memory_drop_items(self.memory)
        memory_free(self.memory)
        self.memory = NULL

    cdef void tear_down(self) noexcept:
        """The queue is garbage: let go of items and subscriptions."""
        if self.memory == NULL:
            return
        memory_close(self.memory)
        subscriptions_end(self)
        memory_drop_items(self.memory)  # whatever their finalizers do

    cdef int64_t now(self) except? -1:
        return clock_ns(self.clock())

    def put(
        self, item, *, priority=4, key=None, slot=None, size=0, ttl=None, not_before=None, block=True, timeout=None
    ):
        """put($self, item, *, priority=4, key=None, slot=None, size=0, ttl=None, not_before=None, ...)
        --

        Append a message; notify browsers and one interested subscription that would take it.

        Parameters
        ----------
        item : object
        priority : int
            The message's priority, in a priority queue.
        key : object, optional
            The message's key, which determines its place, the message it replaces, or its group.
        slot : Hashable, optional
            The message's slot, in a fair queue.
        size : int
            The message's size in bytes, for `max_bytes`, and its cost in a fair queue.
        ttl : float, optional
            Maximum time in the queue, in seconds; the `ttl` of the queue applies as well.
        not_before : float, optional
            Time on the queue's clock before which the message is not delivered; other messages may overtake it.
        block : bool
            Whether to wait for room if overflow is 'flow'.
        timeout : float, optional
            Longest wait in seconds; None: no time-out.

        Raises
        ------
        queue.Full
            The queue is full, and waiting cannot make room, `block` is false, or the time-out passed. Also if the sizes
            of all messages would add up to 2**63 or more.
        ShutDown
            The queue is closed.
        KeyError
            A fair queue has no such slot.
        TypeError
            The time-out is not a number; raised only if the call has to wait.
        ValueError, OverflowError
            Another argument is invalid.

        Notes
        -----
        O(1); O(log n) in a sorted queue; with filters, additionally O(subscriptions that refuse), as in the notes on
        the queue. Callbacks run before `put` returns; the notes on the queue describe the effect of their exceptions.
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
            Name for `lists` and logs; generated by default.
        priority : int
            From -2**31 to 2**31 - 1. A message goes to the interested subscription of the highest priority that would
            take it, and waits for it if it is busy: give it a `credit`, and others get what it cannot take. A pull
            goes past messages that are for subscriptions of higher priority.
        acquires : bool
            False: the subscription browses: it sees each message once, in order, and takes none. A message that
            another subscription has acquired when its turn comes is seen later, if it is released.
        sees_requeues : bool
            Whether a browser sees a message again after it was released or rejected.
        exclusive : bool
            Whether to be the only subscription of the queue.
        filter : callable, optional
            Called with an item, returns whether this subscription is interested in it. Called without a lock held, in
            the thread that puts or pulls, possibly more than once. An Exception counts as no.
        credit : int, optional
            Maximum number of unsettled messages; None: no limit. A subscription without credit left is not interested.
        on_work : callable, optional
            Called with the subscription each time it is notified, in the thread that caused the notification, after the
            same call has notified all other subscriptions.
        interested : bool
            Whether the subscription is ready for work.

        Returns
        -------
        Subscription

        Raises
        ------
        ExclusiveSubscription
            A subscription is exclusive, or this one would be and others exist.
        ShutDown
            The queue is closed.
        ValueError, OverflowError
            An argument is invalid.

        Notes
        -----
        O(1); O(priorities) for the first subscription of a priority. It is notified at once if there is work for it.
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
        return self.memory.queue.depth.load()

    @property
    def available(self):
        """Messages that no subscription has acquired, including those held until later."""
        return self.memory.queue.available.load()

    @property
    def bytes(self):
        """Total size of all messages in the queue."""
        return self.memory.queue.bytes.load()

    @property
    def undelivered(self):
        """Messages that the alternate has not taken: a deque of (item, reason), oldest first."""
        return self.alternate.undelivered

    @property
    def closed(self):
        """Whether the queue was closed."""
        return self.memory.queue.closed.load() != 0

    def lists(self):
        """lists($self)
        --

        The names of all subscriptions by their state, in the order in which the queue considers them.

        Returns
        -------
        dict
            interested: to be notified when there is work; notified: expected to pull; not_interested; and
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
        if self.memory.queue.timed.load() == 0:
            return deadline
        due = queue_due(&self.memory.queue)
        if due == 0:
            return deadline
        moment = math.nextafter(due / 1e9, math.inf)
        return moment if deadline is None or moment < deadline else deadline

    def expire(self):
        """expire($self)
        --

        Remove expired messages, release messages whose `not_before` has passed, and offer the `undelivered` ones to the
        alternate again. Pulls do this for the messages they meet; call this now and then for the rest.

        Returns
        -------
        int
            Number of messages that expired.

        Notes
        -----
        O(messages), in short steps.
        """
        cdef Visit visit
        cdef Message* due[DUE_MOST]
        cdef int64_t count = DUE_MOST, expired, i, now = self.now()
        cdef Py_ssize_t kept = len(self.alternate.undelivered)
        visit_enter_at(&visit, self, now)
        while count == DUE_MOST:
            count = queue_unhold(&self.memory.queue, &visit.call, due)
            for i in range(count):
                visit_ask(&visit, self, due[i])
                queue_offer(&visit.call, due[i], True)
        expired = queue_sweep(&self.memory.queue, &visit.call)
        visit_leave(&visit, self)
        self.alternate.deliver_again(kept)
        return expired

    def close(self):
        """close($self)
        --

        Accept no more messages and subscriptions. Remaining messages can be pulled and settled; released messages go to
        the alternate, if there is one. A waiting `put` raises `ShutDown`; a waiting `get` raises it once there is
        nothing left for it and no message is held until later.

        Returns
        -------
        list of (item, reason)
            The messages that the alternate has not taken: a copy of `undelivered`, which keeps them. A second call does
            nothing more.
        """
        cdef Queue* q = &self.memory.queue
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


cdef class Listener:
    """A waiter that is told of news of several subscriptions."""

    cdef void heard(self) noexcept:
        """There is work, or there will be none: look again. Runs no Python code."""


@cython.final
@cython.no_gc_clear
cdef class Subscription:
    """Subscription()
    --

    A consumer of a `PullQueue`, from `PullQueue.subscribe`.

    A notified subscription pulls until there is nothing left. One thread at a time may pull; entries may be settled
    from any thread.

    Attributes
    ----------
    name : str
    priority : int
    acquires : bool
        False: the subscription browses.

    Notes
    -----
    A subscription exists until it is cancelled, even if this object is no longer referenced. Memory: about 460 bytes in
    the engine, and this object.
    """

    cdef PullQueue queue
    cdef QueueConsumer* consumer   # NULL: cancelled. What it points to is good inside a visit that found it
    cdef object filter
    cdef object on_work
    cdef Listener listener         # told when somebody who waits elsewhere should look again
    cdef WaitingRoom room          # made when somebody waits
    cdef atomic[int64_t] news
    cdef bint filter_failed        # and that was logged
    cdef readonly object name
    cdef readonly object priority
    cdef readonly bint acquires
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        if len(args) != 1 or not isinstance(args[0], PullQueue):  # without a queue, no method would be safe to call
            raise TypeError("subscriptions come from PullQueue.subscribe")
        self.queue = args[0]

    def __dealloc__(self):
        if self.consumer != NULL:  # it has never joined: who has is kept by the queue until the consumer is gone
            consumer_destroy(self.consumer)

    def __init__(self, *args, **kwargs):
        raise TypeError("subscriptions come from PullQueue.subscribe")

    @property
    def interested(self):
        """Whether it can be notified: it is ready for work, has credit, and is among the live consumers. Settable."""
        cdef Visit visit
        cdef bint desired
        visit_enter(&visit, self.queue)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        visit_leave(&visit, self.queue)
        return desired

    @interested.setter
    def interested(self, interested):
        cdef Visit visit
        cdef bint wished = bool(interested)
        visit_enter(&visit, self.queue)
        if wished:
            visit_ask_for(&visit, self.queue, self)
        if self.consumer != NULL:
            queue_set_wish(&visit.call, self.consumer, WISH_USER, wished)
        visit_leave(&visit, self.queue)

    @property
    def credit(self):
        """Messages that it may still pull; None: any number. Settable: the new value counts from now on."""
        cdef Visit visit
        cdef object credit = None
        cdef int64_t left = -1
        visit_enter(&visit, self.queue)
        if self.consumer != NULL and self.consumer.credit.message_limit != 0:
            left = self.consumer.credit.messages
        visit_leave(&visit, self.queue)
        return None if left < 0 else left

    @credit.setter
    def credit(self, credit):
        cdef Visit visit
        cdef int64_t messages = as_credit(credit)
        visit_enter(&visit, self.queue)
        if messages != 0:
            visit_ask_for(&visit, self.queue, self)
        if self.consumer != NULL:
            queue_set_credit(&visit.call, self.consumer, messages)
        visit_leave(&visit, self.queue)

    @property
    def notified_count(self):
        """Number of times that the queue has notified it of work."""
        return self.news.load()

    def pull(self):
        """pull($self)
        --

        Take the next message, without waiting.

        Returns
        -------
        Entry or None
            None: there is no message for this subscription, or it is not interested. It is notified once there is one.

        Notes
        -----
        O(1), plus the cost of the order of service; with a filter, O(messages that it refuses), each once. In a fair
        queue, each pull passes the refused messages again, and once more per slot if messages of several slots are
        refused.
        """
        return pulled(self)

    def pull_many(self, n):
        """pull_many($self, n)
        --

        Take up to `n` messages, without waiting: the same as `n` calls of `pull` that stop when one finds nothing.

        Returns
        -------
        list of Entry

        Raises
        ------
        ValueError
            `n` is not an integer of 0 or more.

        Notes
        -----
        If no subscription has a filter, browses or has rejected a message, and there are no groups, all messages are
        taken in one pass under the queue's lock.
        """
        return pulled_many(self, as_count(n))

    def get(self, timeout=None):
        """get($self, timeout=None)
        --

        Take the next message; wait if there is none.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; None: no time-out.

        Returns
        -------
        Entry

        Raises
        ------
        queue.Empty
            The time-out passed.
        ShutDown
            The queue is closed and has nothing left for this subscription, or the subscription is cancelled.
        TypeError, ValueError
            The time-out is not a number, or negative.

        Notes
        -----
        The GIL is released during the wait, and the main thread handles signals. A message held until later is taken
        when it is due; the call waits for it even in a closed queue.
        """
        cdef int64_t news
        cdef bint waited, closed
        self.open_room()
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            closed = self.queue.memory.queue.closed.load() != 0  # before the look: nothing is put after that
            entry = self.next_entry()
            if entry is not None:
                return entry
            if self.consumer == NULL:
                raise ShutDown("the subscription is cancelled")
            if closed and self.news.load() == news and not self.holds_on():
                raise ShutDown("the queue is closed and has nothing left for this subscription")
            due = self._next_due(deadline)
            if closed and due is None:
                continue  # what was held is another's by now
            with cython.critical_section(self):
                waited = self.wait(news, closed, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef int open_room(self) except -1:
        """Make the room where threads wait. Making it may run Python code, and so others who make one: one counts."""
        cdef WaitingRoom room
        if self.room is None:
            room = WaitingRoom(self.queue.clock)
            with cython.critical_section(self):
                if self.room is None:
                    self.room = room
        return 0

    cdef object next_entry(self):
        """The next entry, for one of several threads that may wait: what it leaves is for another to see to."""
        try:
            entry = pulled(self)
        except BaseException:
            self.wake_one()
            raise
        if entry is not None:
            self.wake_one()
        return entry

    cdef bint wait(self, int64_t news, bint closed, object deadline) except -1:
        """Wait until it is told something newer than `news`, or that; False when the deadline passed before."""
        if self.news.load() != news or self.consumer == NULL or (
            not closed and self.queue.memory.queue.closed.load() != 0
        ):
            return True
        return self.room.wait_once(deadline)

    cdef void tell(self) noexcept:
        """There is work: wake whoever waits."""
        self.news.fetch_add(1)
        self.wake()

    cdef int call_back(self) except -1:
        """Tell its owner. What that raises is logged, unless it is more than an Exception."""
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of subscription %r failed", self.name)
        return 0

    cdef void wake(self) noexcept:
        """Have somebody look again."""
        cdef Listener listener = self.listener
        self.wake_one()
        if listener is not None:
            listener.heard()

    cdef void wake_one(self) noexcept:
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake(1)

    cdef void wake_all(self) noexcept:
        """There will be nothing new: have everybody look again."""
        cdef Listener listener = self.listener
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake_all()
        if listener is not None:
            listener.heard()

    # What a Target needs to wait for several subscriptions at once.

    cdef int listen(self, Listener listener) except -1:
        """Have somebody told when there is work, and when there will be none."""
        cdef bint taken
        with cython.critical_section(self):
            taken = self.listener is not None
            if not taken:
                self.listener = listener
        if taken:
            raise ValueError(f"subscription {self.name!r} belongs to a target already")
        return 0

    cdef void unlisten(self, Listener listener) noexcept:
        """Tell that one no longer."""
        with cython.critical_section(self):
            if self.listener is listener:
                self.listener = None

    @property
    def _clock(self):
        return self.queue.clock

    @property
    def _over(self):
        """Whether nothing new will come: it is cancelled, or its queue is closed and holds nothing until later."""
        return self.consumer == NULL or (self.queue.memory.queue.closed.load() != 0 and not self.holds_on())

    def _next_due(self, deadline):
        """The deadline, or when the next held message is due, if that is before and this consumer would take it."""
        return self.queue.next_due(deadline) if self.holds_on() else deadline

    cdef bint holds_on(self) except -1:
        """Whether the queue holds a message until later that this consumer might take."""
        cdef Visit visit
        cdef bint desired
        cdef Queue* q = &self.queue.memory.queue
        if q.timed.load() == 0 or queue_due(q) == 0:
            return False
        visit_enter_at(&visit, self.queue, 0)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        visit_leave(&visit, self.queue)
        return desired

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

        Leave the queue. Other subscriptions take over its work.

        Parameters
        ----------
        release : bool
            Whether to release all messages that this subscription has pulled but not settled; settling their entries
            then has no effect. Otherwise they may still be settled.

        Notes
        -----
        A second call does nothing. O(1); O(groups) if there are groups; O(messages) with `release`.
        """
        subscription_leave(self, bool(release))

    def __repr__(self):
        state = "" if self.consumer != NULL else ", cancelled"
        return f"<Subscription {self.name!r}, priority {self.priority}{state}>"


@cython.final
@cython.no_gc_clear
cdef class Entry:
    """Entry()
    --

    A message that a subscription pulled, to be settled once with `ack`, `release` or `reject`, from any thread.

    Attributes
    ----------
    item : object
        The item that was put.
    delivery_count : int
        Number of earlier failed deliveries, each ended by a release.
    redelivered : bool
        Whether it was pulled and returned before.
    settled : bool
        Whether it was settled.

    Notes
    -----
    Settling twice is allowed: the first call decides, later calls do nothing and return False. Settling an entry of a
    browser returns its credit and does not affect the message. If an unsettled entry is garbage collected, its message
    stays acquired: `Subscription.cancel(release=True)` releases it.
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
            queue_drop(&self.owner.queue.memory.queue, self.message)

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

        Acknowledge the message: it was processed, and leaves the queue.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        O(1). Safe from any thread; the subscription may have been cancelled.
        """
        return self.settle(SETTLE_ACK)

    def release(self):
        """release($self)
        --

        Return the message to its old place in the queue, and count one failed delivery.

        After `max_deliveries` failed deliveries, the message goes to the queue's alternate, or is dropped without one.
        A message that has expired meanwhile goes there as well; a message superseded by a newer one of its key is
        dropped.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        As for `ack`; O(log of the number of returned messages).
        """
        return self.settle(SETTLE_RELEASE)

    def reject(self):
        """reject($self)
        --

        Return the message for other subscriptions: this one never sees it again. No failed delivery is counted.

        Returns
        -------
        bool
            Whether this call settled the message.

        Notes
        -----
        As for `release`.
        """
        return self.settle(SETTLE_REJECT)

    cdef object settle(self, Verdict verdict):
        cdef Message* message
        cdef int64_t now
        if self.message == NULL:
            return False
        now = visit_now(self.owner.queue)  # before anything is changed: a clock may raise, or settle this very entry
        with cython.critical_section(self):
            message = self.message
            self.message = NULL
        if message == NULL:
            return False
        return settle_message(self, message, verdict, now)

    def __repr__(self):
        # Items may be large or secret: never shown.
        state = "settled" if self.message == NULL else "unsettled"
        return f"<Entry of {self.owner.name if self.owner is not None else None!r}, {state}>"


# Source: Qpid Broker-J's multi-queue consumers. The order is that of core/connection/target.pxd; waiting
# is as in Subscription.get, in one room for all: each subscription calls `heard` when its queue tells it that there is
# work.
#
# Exclusion. Flags and the room are used with the exclusion held (the GIL, or the target's critical section). Nothing is
# held while a queue is used, since that runs filters and callbacks: a thread that finds another at a subscription
# passes over it (one thread at a time pulls for a consumer), and whoever was there has it look again.
#
# Why no message waits while a thread does. A thread reads `news`, looks everywhere, and waits only if `news` is still
# the same. What comes after its look at a queue is announced by that queue, since a look that finds nothing leaves the
# subscription interested; the announcement raises `news` and wakes one. A queue announces only the first of several,
# and expects that who was told goes on until nothing is left: so whoever takes a message wakes the next waiter.


@cython.final
cdef class Target(Listener):
    """Target(subscriptions, *, interested=True)
    --

    One consumer of several queues: takes messages from the queues in turn, and waits for all of them at once.

    Parameters
    ----------
    subscriptions : Iterable[Subscription]
        Subscriptions of the same or different queues, in the order of their turns. They now belong to the target: pull
        only through it.
    interested : bool
        Whether the target wants messages; passed on to all subscriptions.

    Raises
    ------
    ValueError
        There is no subscription, one already belongs to a target, or their queues have different clocks.
    TypeError
        One of them is not a subscription.

    Notes
    -----
    Queues that all have messages are served strictly in turn: q1, q2, …, qk, q1, …. An empty queue is skipped.
    Complexity: at most O(subscriptions) checks per message; one check if all queues have messages. Thread safety: every
    method may be called from any thread. Several threads may share a target; each message goes to one of them.

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
        """Whether the target wants messages. Settable; only a change is passed on to the subscriptions, in order."""
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
            None: no queue has a message for this target, or other threads are taking them right now.
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

        Take a message from the next queue in turn that has one; wait if none has.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; None: no time-out.

        Returns
        -------
        Entry

        Raises
        ------
        queue.Empty
            The time-out passed.
        ShutDown
            All subscriptions are cancelled or their queues closed, and nothing is left for this target.
        TypeError, ValueError
            The time-out is not a number, or negative.

        Notes
        -----
        The GIL is released during the wait, and the main thread handles signals.
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

        Leave all queues. Other subscriptions take over the work; a waiting `get` raises `ShutDown`.

        Parameters
        ----------
        release : bool
            Whether to release all messages that the target has pulled but not settled.

        Notes
        -----
        A second call does nothing. `interested` is False from now on, even if it is set.
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


# Visits: in, asking filters meanwhile, out, and what is to be done then -----------------------------------------------
#
# Exclusion. The engine needs none. Each call is one stay inside it: no Python code runs in there, nothing waits but for
# a few instructions of another thread, and the GIL is held (it costs more to give it up than to be done). What Python
# code has to be run, for filters that the engine asks about, callbacks, and what left the queue, is noted in the visit,
# with references, and run after it. No Python object is made inside either: the collector might run, and finalizers
# with it, and who stays inside holds up the memory of all others.
#
# What callbacks raise. An Exception is logged, where the callback is called. Anything else, as KeyboardInterrupt, is
# noted in the visit: everything is done and everybody told first, and then the first of these is raised. A filter that
# is interrupted has said nothing; no filter is asked any more in that visit, and one consumer is told in addition,
# since a filter that was not asked may hide that somebody has work.


cdef struct Visit:  # one call, and what is to be done after it
    Call call                 # must be first
    PyObject** told           # subscriptions, with a reference each
    Py_ssize_t told_count
    Py_ssize_t told_size
    Answers answers           # their messages are referenced
    PyObject* asked           # who owns the consumers of the call's stand, with a reference each, or NULL
    PyObject* above
    PyObject* error           # what interrupted a callback first, with a reference; NULL: nothing did


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


cdef void visit_keep(uint64_t token) noexcept nogil:
    """Hold what was pulled. With the GIL."""
    keep(<PyObject*> <uintptr_t> token)


cdef int visit_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """The answer of a filter in this visit. O(1) expected."""
    return answers_find(&(<Visit*> call).answers, c.id, m)


cdef int64_t visit_now(PullQueue q) except? -1:
    """The time of the clock, where something depends on it; else 0. The clock may be Python code."""
    return q.now() if q.memory.queue.timed.load() != 0 else 0


cdef int visit_enter(Visit* visit, PullQueue q) except -1:
    """Go inside."""
    visit_enter_at(visit, q, visit_now(q))
    return 0


cdef void visit_enter_at(Visit* visit, PullQueue q, int64_t now) noexcept:
    call_init(&visit.call, &q.memory.queue, now)
    visit.call.tell = visit_tell
    visit.call.keep = visit_keep
    if q.filters.load() != 0:
        visit.call.accepts = visit_accepts
    visit.told = NULL
    visit.told_count = visit.told_size = 0
    answers_init(&visit.answers)
    visit.asked = visit.above = NULL
    visit.error = NULL
    visit.call.pin = interest_enter(&q.memory.queue.interest)


cdef void visit_step_out(Visit* visit) noexcept:
    """Go outside for a while. Who owns the consumers that the questions stand at is kept until the next time.

    The reference may be the last then, so it is given up outside.
    """
    cdef PyObject* asked = visit.asked
    cdef PyObject* above = visit.above
    visit.asked = owner_of(visit.call.stand.asked)
    visit.above = owner_of(visit.call.stand.above)
    interest_leave(visit.call.pin)
    release(asked)
    release(above)


cdef void visit_step_in(Visit* visit, PullQueue q) noexcept:
    """Come back inside: consumers that are gone meanwhile are not looked at."""
    visit.call.pin = interest_enter(&q.memory.queue.interest)
    if visit.asked != NULL and (<Subscription> visit.asked).consumer == NULL:
        visit.call.stand.asked = NULL
    if visit.above != NULL and (<Subscription> visit.above).consumer == NULL:
        visit.call.stand.above = NULL


cdef PyObject* owner_of(QueueConsumer* c) noexcept:
    """A consumer's subscription, with a reference; NULL: there is none."""
    if c == NULL:
        return NULL
    keep(<PyObject*> c.owner)
    return <PyObject*> c.owner


cdef void release(PyObject* o) noexcept:
    if o != NULL:
        Py_DECREF(<object> o)


cdef int visit_leave(Visit* visit, PullQueue q) except -1:
    """Go outside, see to what the visit has left to do, and raise what interrupted that."""
    visit_end(visit, q)
    if visit.error != NULL:
        visit_raise(visit)
    return 0


cdef void visit_end(Visit* visit, PullQueue q) noexcept:
    """Go outside, and see to what the visit has left to do. Afterwards `error` is the caller's to raise."""
    if visit.call.owed != 0 or visit.call.owes_offer or visit.call.back != NULL:
        visit_pay_debts(visit, q)
    interest_leave(visit.call.pin)
    if visit.answers.table != NULL or visit.asked != NULL or visit.above != NULL:
        visit_forget_answers(visit, q)
    if visit.call.removed != NULL or visit.told != NULL or q.stopped.load() != 0 or q.memory.departed.load() != 0:
        visit_follow_up(visit, q)


cdef int visit_raise(Visit* visit) except -1:
    """Raise what was noted."""
    cdef object error = <object> visit.error
    visit.error = NULL
    Py_DECREF(error)
    raise error


cdef void visit_note(Visit* visit, object error) noexcept:
    """Note what is to be raised when everything is done: the first counts."""
    if visit.error == NULL:
        Py_INCREF(error)
        visit.error = <PyObject*> error


cdef void visit_pay_debts(Visit* visit, PullQueue q) noexcept:
    """Tell those whom the engine left to us, because filters have to be asked first."""
    cdef Message* back = visit.call.back
    if back != NULL:
        visit_ask(visit, q, back)
        visit.call.back = NULL
        queue_give_back(&visit.call, back, visit.call.unblocked)
    while visit.call.owed != 0:
        visit_ask(visit, q, NULL)
        visit.call.owed -= 1
        queue_pass_on(&visit.call)
    if visit.call.owes_offer:
        visit.call.remains = True
        visit_ask(visit, q, NULL)
        queue_offer_rest(&visit.call)


cdef void visit_forget_answers(Visit* visit, PullQueue q) noexcept:
    cdef PyObject* asked = visit.asked
    cdef PyObject* above = visit.above
    cdef uint64_t i
    for i in range(visit.answers.size):
        if visit.answers.table[i].message != NULL:
            queue_drop(&q.memory.queue, visit.answers.table[i].message)
    answers_clear(&visit.answers)
    visit.asked = visit.above = NULL
    release(asked)
    release(above)


cdef void visit_follow_up(Visit* visit, PullQueue q) noexcept:
    """Tell who was claimed, let producers go on, pass on what left the queue. Nothing of it stops the rest.

    Everybody is told before anybody is called back, since that may take as long as it likes.
    """
    cdef Message* removed = messages_turned(visit.call.removed)
    cdef Py_ssize_t i
    visit.call.removed = NULL
    for i in range(visit.told_count):
        (<Subscription> visit.told[i]).tell()
    if q.stopped.load() != 0 and (q.memory.queue.closed.load() or has_resumed(&q.memory.queue)):
        with cython.critical_section(q):
            q.room.wake_all()
    if q.memory.departed.load() != 0:
        visit_free_departed(q)
    for i in range(visit.told_count):
        visit_call_back(visit, <Subscription> visit.told[i])
        Py_DECREF(<object> visit.told[i])
    free(visit.told)
    visit.told = NULL
    visit.told_count = visit.told_size = 0
    visit_divert(visit, q, removed)


cdef void visit_call_back(Visit* visit, Subscription subscription) noexcept:
    try:
        subscription.call_back()
    except BaseException as error:
        visit_note(visit, error)


cdef void visit_divert(Visit* visit, PullQueue q, Message* m) noexcept:
    """Hand a chain of what left the queue to the alternate; what an interrupt has left is kept."""
    cdef Message* following
    cdef uint32_t reason
    cdef object item
    cdef bint interrupted = False
    while m != NULL:
        following = m.child
        reason = m.reason
        item = <object> <PyObject*> <uintptr_t> m.token
        m.token = 0
        Py_DECREF(item)  # the message's
        queue_drop(&q.memory.queue, m)
        try:
            q.alternate.divert(item, reason, interrupted)
        except BaseException as error:
            interrupted = True
            visit_note(visit, error)
        m = following


cdef void visit_free_departed(PullQueue q) noexcept:
    """Free the memory of consumers that nobody can hold any more."""
    cdef QueueConsumer* c = <QueueConsumer*> q.memory.departed.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        q.members.discard(<object> c.owner)
        consumer_destroy(c)
        c = following


cdef void visit_ask(Visit* visit, PullQueue q, Message* about) noexcept:
    """Ask all filters that matter before work is announced (about it), or passed on (NULL)."""
    cdef Question question
    while visit_asks(visit) and queue_question(&visit.call, about, &question):
        visit_answer(visit, q, &question)


cdef void visit_ask_for(Visit* visit, PullQueue q, Subscription subscription) noexcept:
    """Ask all filters that matter before a consumer becomes interested."""
    cdef Question question
    while (
        visit_asks(visit) and subscription.consumer != NULL
        and queue_question_for(&visit.call, subscription.consumer, &question)
    ):
        visit_answer(visit, q, &question)


cdef bint visit_asks(Visit* visit) noexcept:
    """Whether filters are asked, still."""
    return visit.call.accepts != NULL and visit.error == NULL


cdef void visit_answer(Visit* visit, PullQueue q, Question* question) noexcept:
    """Ask one filter, outside. If it is interrupted, there is no answer, and `error` is noted."""
    cdef bint room = answers_reserve(&visit.answers)
    cdef Message* m = question.message
    cdef uint64_t consumer = question.consumer.id
    cdef Subscription subscription = <Subscription> question.consumer.owner
    cdef object item = None
    cdef int accepted = -1
    queue_lock(&q.memory.queue)
    if m.state <= <uint32_t> MESSAGE_ACQUIRED and m.token != 0:
        item = <object> <PyObject*> <uintptr_t> m.token
    else:
        accepted = False
    queue_unlock(&q.memory.queue)
    visit_step_out(visit)
    try:
        if not room:
            raise MemoryError()
        if accepted == -1:
            accepted = subscription.judge(item)
    except BaseException as error:
        accepted = -1
        visit_note(visit, error)
        visit.call.owed += 1
    item = subscription = None  # whatever their finalizers do, they do it outside
    visit.call.stand.refused = NULL
    if accepted == -1:
        queue_drop(&q.memory.queue, m)
    else:
        answers_add(&visit.answers, consumer, m, accepted)
        if not accepted:
            visit.call.stand.refuser = consumer
            visit.call.stand.refused = m
    visit_step_in(visit, q)


cdef bint has_resumed(Queue* q) noexcept:
    """Whether who waits for room may go on."""
    return overflow_resumes(&q.overflow, q.depth.load(), q.bytes.load())


# Putting: what is offered, at what time, and the wait for room --------------------------------------------------------


cdef int put_message(
    PullQueue q, object item, object priority, object key, object slot, object size, object ttl, object not_before,
    object block, object timeout
) except -1:
    """Put it, or raise why not."""
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
    if slot is not None or q.slot_of:
        offer.slot = find_slot(q, slot)
    if q.keyed:
        if key is None and q.key is not None:
            key = q.key(item)
        if key is not None:
            data = key_bytes(key)
            offer.key = PyBytes_AS_STRING(data)
            offer.key_length = PyBytes_GET_SIZE(data)
    done = offer_message(q, &offer, item, ttl, not_before)
    if done == PUT_FULL and q.memory.queue.overflow.policy == OVERFLOW_FLOW:
        done = wait_for_room(q, &offer, item, ttl, not_before, block, timeout)
    if done == PUT_FULL:
        raise queue.Full(fullness(q, offer.size))
    if done == PUT_CLOSED:
        raise ShutDown("the queue is closed")
    if done == PUT_NO_MEMORY:
        raise MemoryError()
    return 0


cdef bytes key_bytes(object key):
    """The octets of a key: of its text, or the bytes that it is."""
    if isinstance(key, bytes):
        return key
    return str(key).encode("utf-8", "surrogatepass")


cdef Admittance offer_message(
    PullQueue q, Offer* offer, object item, object ttl, object not_before
) except <Admittance> 0:
    """Put what is offered; the clock is read now."""
    cdef Visit visit
    cdef Message* linked = NULL
    cdef int64_t now = 0
    cdef int64_t life = q.ttl
    cdef Admittance done
    if ttl is not None:
        life = as_lifetime(ttl, "ttl")
        if q.ttl >= 0:
            life = min(life, q.ttl)
    if not_before is not None:
        offer.not_before = as_ns(not_before, "not_before")
    if life >= 0 or not_before is not None or q.memory.queue.timed.load() != 0:
        now = q.now()
    if life >= 0:
        offer.expiry = time_after(now, life) or 1
    visit_enter_at(&visit, q, now)
    Py_INCREF(item)
    if q.filters.load() == 0:
        done = queue_put(&visit.call, offer, NULL)
    else:
        done = queue_put(&visit.call, offer, &linked)
    if done != PUT_DONE:
        Py_DECREF(item)
        interest_leave(visit.call.pin)  # nothing has happened that anybody waits for
        return done
    if linked != NULL:
        visit_ask(&visit, q, linked)
        queue_offer(&visit.call, linked, True)
        queue_trim(&visit.call, visit.call.newest)
    visit_leave(&visit, q)
    return done


cdef uint32_t find_slot(PullQueue q, object slot) except? 0xFFFFFFFF:
    if not q.slot_of:
        raise ValueError(f"only a fair queue has slots, got slot {slot!r}")
    found = q.slot_of.get(slot)
    if found is None:
        raise KeyError(f"no slot is named {slot!r}")
    return found


cdef str fullness(PullQueue q, int64_t size):
    cdef Queue* engine = &q.memory.queue
    return (
        f"a message of {size} bytes does not fit: {engine.depth.load()} messages of at most "
        f"{max(engine.overflow.max_depth, 0) or 'any number'}, {engine.bytes.load()} bytes of at most "
        f"{max(engine.overflow.max_bytes, 0) or '2**63 - 1'}"
    )


cdef Admittance wait_for_room(
    PullQueue q, Offer* offer, object item, object ttl, object not_before, object block, object timeout
) except <Admittance> 0:
    """Put what is offered once there is room for it."""
    cdef Admittance done = PUT_FULL
    cdef bint woken = True
    deadline = q.room.deadline(block, timeout)
    while block and done == PUT_FULL and woken:
        with cython.critical_section(q):
            woken = wait_in_room(q, offer, item, ttl, not_before, deadline, &done)
    return done


cdef bint wait_in_room(
    PullQueue q, Offer* offer, object item, object ttl, object not_before, object deadline, Admittance* done
) except -1:
    """Put it, or wait for room, in one stay: whoever makes room meanwhile sees that somebody waits."""
    cdef Seat* seat = q.room.sit(0, 1)
    cdef bint woken = True
    q.stopped.fetch_add(1)
    try:
        done[0] = offer_message(q, offer, item, ttl, not_before)
        if done[0] == PUT_FULL:
            woken = q.room.wait(seat, deadline)
    finally:
        q.stopped.fetch_sub(1)
        q.room.leave(seat)  # it may have been claimed meanwhile: its permit is under way, and collected
    return woken


# Membership: how subscriptions join, take over from each other, and leave ---------------------------------------------
#
# A subscription's consumer is in the engine's lists from its join until it leaves. Its memory is freed when nobody can
# hold its node any more (see _pullqueue.pxd); until then the queue's `members` keep the subscription.


cdef Subscription subscription_create(
    PullQueue q, object name, int32_t priority, bint acquires, object filter, object on_work
):
    """A subscription with a consumer that nobody knows yet."""
    cdef Subscription subscription = Subscription.__new__(Subscription, q)
    cdef QueueConsumer* c
    subscription.filter = filter
    subscription.on_work = on_work
    subscription.name = f"subscription-{q.named.fetch_add(1) + 1}" if name is None else name
    subscription.priority = priority
    c = consumer_create()
    if c == NULL:
        raise MemoryError()
    consumer_init(c, priority, acquires and not q.memory.queue.nondestructive)
    c.filtered = filter is not None
    c.owner = <void*> <PyObject*> subscription
    c.node.token = <uint64_t> <uintptr_t> c.owner
    subscription.acquires = c.node.acquires
    subscription.consumer = c
    return subscription


cdef int subscription_join(Subscription subscription, int64_t credit, bint interested) except -1:
    """Have a new one join; it is interested only once the filters were asked, where there are any.

    Whoever is interrupted meanwhile does not get the subscription, so it leaves again.
    """
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c = subscription.consumer
    cdef int64_t now = visit_now(q)  # before anything is changed: a clock may raise
    cdef Visit visit, again
    cdef Admission admission
    q.members.add(subscription)
    if subscription.filter is not None:
        q.filters.fetch_add(1)
    if not interested or q.filters.load() != 0:
        c.wishes.fetch_and(~<uint32_t> WISH_USER)
    consumer_set_credit(c, credit)
    visit_enter_at(&visit, q, now)
    admission = queue_subscribe(&visit.call, c)
    if admission != ADMITTED:
        subscription.consumer = NULL
    elif interested and q.filters.load() != 0:
        visit_ask_for(&visit, q, subscription)
        if subscription.consumer != NULL:
            queue_set_wish(&visit.call, subscription.consumer, WISH_USER, True)
    visit_end(&visit, q)
    if admission != ADMITTED:
        refuse(q, subscription, c, admission)
    if visit.error != NULL:
        visit_enter_at(&again, q, now)
        leave(&again, subscription, False)
        if again.error != NULL:
            Py_DECREF(<object> again.error)
        visit_raise(&visit)
    return 0


cdef int refuse(PullQueue q, Subscription subscription, QueueConsumer* c, Admission admission) except -1:
    """Nobody has seen this consumer: it can go at once."""
    if subscription.filter is not None:
        q.filters.fetch_sub(1)
    q.members.discard(subscription)
    consumer_destroy(c)
    if admission == ADMISSION_CLOSED:
        raise ShutDown("the queue is closed")
    others = ", ".join(repr(name) for name in subscription_names(q, LIST_ALL))
    if admission == ADMISSION_EXCLUSIVE_EXISTS:
        raise ExclusiveSubscription(f"the queue has an exclusive subscription: {others}")
    if admission == ADMISSION_OTHERS_EXIST:
        raise ExclusiveSubscription(f"a subscription cannot be exclusive: the queue has others, {others}")
    raise MemoryError()


cdef int subscription_leave(Subscription subscription, bint release) except -1:
    """Cancel one: others take over."""
    cdef Visit visit
    visit_enter(&visit, subscription.queue)
    leave(&visit, subscription, release)
    if visit.error != NULL:
        visit_raise(&visit)
    return 0


cdef void leave(Visit* visit, Subscription subscription, bint release) noexcept:
    """Cancel one in a visit that has begun. Its threads that wait are woken before anybody is called back."""
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c
    ask_next_live(visit, q, subscription)
    with cython.critical_section(subscription):
        c = subscription.consumer
        subscription.consumer = NULL
    visit_step_out(visit)  # the consumer is this call's now
    subscription.wake_all()
    visit_step_in(visit, q)
    if c != NULL:
        queue_cancel(&visit.call, c)
        if subscription.filter is not None:
            q.filters.fetch_sub(1)
        if release:
            queue_release_all(&visit.call, c.id)
        node_retire(visit.call.pin, &c.node, consumer_dispose)
    visit_end(visit, q)
    dispose(q)


cdef void ask_next_live(Visit* visit, PullQueue q, Subscription leaving) noexcept:
    """Ask the filter of the consumer that takes the place of one that leaves."""
    cdef QueueConsumer* c
    if visit.call.accepts == NULL or leaving.consumer == NULL or not consumer_is_live(leaving.consumer):
        return
    c = queue_first_idle(&visit.call)
    if c != NULL:
        visit_ask_for(visit, q, <Subscription> c.owner)


cdef void dispose(PullQueue q) noexcept:
    """Let epochs pass, so that a consumer's memory is freed now, unless others are inside."""
    cdef Pin* pin
    cdef int _i
    for _i in range(DISPOSAL_ROUNDS):
        pin = interest_enter(&q.memory.queue.interest)
        reclaim_flush(pin)
        interest_leave(pin)
    visit_free_departed(q)


cdef void subscriptions_end(PullQueue q) noexcept:
    """The queue is garbage: cancel all, tell nobody."""
    cdef Visit visit
    cdef QueueConsumer* c
    visit_enter_at(&visit, q, 0)
    visit.call.tell = NULL  # who takes another's place would be kept to be told
    for subscription in q.members:
        c = (<Subscription> subscription).consumer
        (<Subscription> subscription).consumer = NULL
        if c != NULL:
            queue_cancel(&visit.call, c)
            node_retire(visit.call.pin, &c.node, consumer_dispose)
    interest_leave(visit.call.pin)


cdef list subscription_names(PullQueue q, InterestList which):
    """The names in a list, in its order. The list is made outside, since that may run Python code."""
    cdef PyObject** found = NULL
    cdef Py_ssize_t i, count = find_members(q, which, &found)
    try:
        if count < 0:
            raise MemoryError()
        return [(<Subscription> found[i]).name for i in range(count)]
    finally:
        for i in range(count):
            Py_DECREF(<object> found[i])
        free(found)


cdef Py_ssize_t find_members(PullQueue q, InterestList which, PyObject*** found) noexcept:
    """The subscriptions in a list, with a reference each; -1: memory is exhausted, and there are none."""
    cdef InterestWalk walk
    cdef ConsumerNode* node
    cdef Py_ssize_t count = 0, size = 0
    cdef PyObject** larger
    cdef Pin* pin = interest_enter(&q.memory.queue.interest)
    interestwalk_init(&walk, &q.memory.queue.interest, pin, which)
    node = interestwalk_next(&walk)
    while node != NULL:
        if count == size:
            size = 2 * size + 8
            larger = <PyObject**> realloc(found[0], size * sizeof(PyObject*))
            if larger == NULL:
                break
            found[0] = larger
        found[0][count] = <PyObject*> (<QueueConsumer*> node).owner
        Py_INCREF(<object> found[0][count])
        count += 1
        node = interestwalk_next(&walk)
    interest_leave(pin)
    if node == NULL:
        return count
    while count > 0:
        count -= 1
        Py_DECREF(<object> found[0][count])
    return -1


# Pulling --------------------------------------------------------------------------------------------------------------
#
# What was pulled goes back if it cannot be handed out: something else is to be raised, or memory is exhausted.


cdef Entry pulled(Subscription subscription):
    """The next entry; None: there is none."""
    cdef Visit visit
    cdef Pulled found
    cdef int64_t taken
    cdef Entry entry = None
    visit_enter(&visit, subscription.queue)
    taken = take(&visit, subscription, 1, &found)
    visit_end(&visit, subscription.queue)
    if taken == 0 and visit.error == NULL:
        return None
    try:
        if visit.error != NULL:
            visit_raise(&visit)
        entry = entry_of(subscription, &found)
    finally:
        if entry is None:
            put_back(subscription, &found, taken, visit.call.now)
    return entry


cdef list pulled_many(Subscription subscription, int64_t n):
    """Up to n entries."""
    cdef list entries = []
    cdef Visit visit
    cdef Pulled* found = NULL
    cdef int64_t taken, i, made = 0
    if n == 0:
        return entries
    visit_enter(&visit, subscription.queue)
    taken = take_many(&visit, subscription, n, &found)
    visit_end(&visit, subscription.queue)
    try:
        if visit.error != NULL:
            visit_raise(&visit)
        if found == NULL:
            raise MemoryError()
        entries = [None] * taken
        while made < taken:
            entries[made] = entry_of(subscription, &found[made])
            made += 1
    finally:
        if made < taken:
            for i in range(made):
                (<Entry> entries[i]).message = NULL
            put_back(subscription, found, taken, visit.call.now)
        free(found)
    return entries


cdef int64_t take(Visit* visit, Subscription subscription, int64_t limit, Pulled* out) noexcept:
    """Pull, and ask the filters that the engine has to know about; 0: nothing, or one was interrupted."""
    cdef Question question
    cdef int64_t taken = PULL_ASK
    while taken == PULL_ASK and visit.error == NULL and subscription.consumer != NULL:
        taken = queue_pull(&visit.call, subscription.consumer, limit, out, &question)
        if taken == PULL_ASK:
            visit_answer(visit, subscription.queue, &question)
    return max(taken, <int64_t> 0)


cdef int64_t take_many(Visit* visit, Subscription subscription, int64_t n, Pulled** found) noexcept:
    """Pull up to n, until there is nothing left; NULL is found when memory is exhausted before the first."""
    cdef int64_t taken = 1, count = 0, size = 0
    cdef Pulled* larger
    while taken > 0 and count < n:
        if count == size:  # one more than there are: the look that finds nothing is part of it
            size = min(n, max(2 * size, subscription.queue.memory.queue.available.load() + 1))
            larger = <Pulled*> realloc(found[0], size * sizeof(Pulled))
            if larger == NULL:
                break
            found[0] = larger
        taken = take(visit, subscription, size - count, found[0] + count)
        count += taken
    return count


cdef Entry entry_of(Subscription subscription, Pulled* pulled):
    """An entry for what was pulled, whose item was kept for it.

    The message is not looked at: making an entry may run a collection, and so others, who take it back.
    """
    cdef Entry entry = Entry.__new__(Entry)
    entry.owner = subscription
    entry.message = pulled.message
    entry.item = <object> <PyObject*> <uintptr_t> pulled.token
    Py_DECREF(entry.item)
    pulled.token = 0
    entry.holder = pulled.holder
    entry.lease = pulled.lease
    entry.delivery_count = max(pulled.deliveries, 0)
    entry.redelivered = pulled.redelivered
    entry.paid = pulled.paid
    return entry


cdef void put_back(Subscription subscription, Pulled* found, int64_t count, int64_t now) noexcept:
    """Undo what was pulled and cannot be handed out, the last first. Something is being raised: that comes first."""
    cdef Visit visit
    cdef Pulled* pulled
    cdef PullQueue q = subscription.queue
    while count > 0:
        count -= 1
        pulled = &found[count]
        visit_enter_at(&visit, q, now)
        settle_inside(
            &visit, subscription, pulled.message, pulled.holder, pulled.lease, pulled.paid, SETTLE_UNDO
        )
        visit_end(&visit, q)
        if visit.error != NULL:
            Py_DECREF(<object> visit.error)
        if pulled.token != 0:
            Py_DECREF(<object> <PyObject*> <uintptr_t> pulled.token)


# Settling -------------------------------------------------------------------------------------------------------------


cdef object settle_message(Entry entry, Message* message, Verdict verdict, int64_t now):
    """Settle what an entry had, in its subscription's name."""
    cdef Visit visit
    cdef bint done
    cdef PullQueue q = entry.owner.queue
    cdef uint64_t token = message.token
    visit_enter_at(&visit, q, now)
    if entry.paid:
        visit_ask_for(&visit, q, entry.owner)
    done = settle_inside(&visit, entry.owner, message, entry.holder, entry.lease, entry.paid, verdict)
    visit_end(&visit, q)
    if done and verdict == SETTLE_ACK and entry.owner.acquires:
        Py_DECREF(<object> <PyObject*> <uintptr_t> token)  # the message's; the entry holds one of its own
    if visit.error != NULL:
        visit_raise(&visit)
    return done


cdef bint settle_inside(
    Visit* visit, Subscription owner, Message* message, uint64_t holder, uint32_t lease, bint paid, Verdict verdict
) noexcept:
    """Settle a message, whose reference is given up; False: it was another's already."""
    cdef QueueConsumer* c = owner.consumer
    if owner.acquires:
        return queue_settle(&visit.call, c, message, holder, lease, verdict)
    if c != NULL and paid:
        settle_credit(&visit.call, c)
    if c != NULL and verdict == SETTLE_UNDO:
        queue_show_again(&visit.call, c, message)
    queue_drop(visit.call.queue, message)
    return True


# The alternate: where messages go that leave unacknowledged, and what it does not take --------------------------------
#
# Whoever has a message leave, by a put, a pull, a release or a look at the clock, is done with it, or never had it: so
# what the alternate raises is not for him. It is logged, and the message is kept.
#
# Exclusion. Each step is one operation of a deque; nothing is held while the alternate runs. A message is in the hands
# of the one thread that calls the alternate with it, and kept whatever that raises.


@cython.final
cdef class Alternate:
    """The destination of messages: an object with `put`, or a callable of (item, reason); None: there is none."""

    def __cinit__(self, sink):
        if sink is not None and not callable(sink) and not callable(getattr(sink, "put", None)):
            raise ValueError(f"alternate must be a queue with put, or callable, got {sink!r}")
        self.sink = sink
        self.undelivered = deque()

    cdef int divert(self, object item, uint32_t reason, bint keep) except -1:
        """Hand over what left the queue, if that is its business; or only keep it: somebody was interrupted."""
        if self.sink is None or reason not in _REASONS:
            return 0
        message = (item, _REASONS[reason])
        if keep:
            self.undelivered.append(message)
        else:
            self.deliver(message)
        return 0

    cdef int deliver(self, tuple message) except -1:
        """Hand one over; it is kept unless that has taken it, whatever it raises."""
        item, reason = message
        try:
            if hasattr(self.sink, "put"):
                self.sink.put(item)
            else:
                self.sink(item, reason)
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
        """Hand over that many of those kept, oldest first, each once."""
        while count > 0:
            try:
                message = self.undelivered.popleft()
            except IndexError:  # somebody else took it
                break
            self.deliver(message)
            count -= 1
        return 0


# Garbage collection ---------------------------------------------------------------------------------------------------
#
# Cython shows the collector a class's Python attributes; the references in the messages are ours to show. Both
# functions are called with every other Python thread stopped or waiting for the GIL.

cdef traverse_t base_traverse = (<PyTypeObject*> PullQueue).tp_traverse
cdef clear_t base_clear = (<PyTypeObject*> PullQueue).tp_clear


@cython.linetrace(False)
@cython.profile(False)
cdef int pullqueue_traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef QueueMemory* memory = (<PullQueue> self).memory
    cdef Message* m = order_after(&memory.queue.order, NULL) if memory != NULL else NULL
    cdef int stop
    while m != NULL:
        if m.token != 0:
            stop = visit(<PyObject*> <uintptr_t> m.token, arg)
            if stop:
                return stop
        m = order_after(&memory.queue.order, m)
    return base_traverse(self, visit, arg)


@cython.linetrace(False)
@cython.profile(False)
cdef int pullqueue_clear(PyObject* self) noexcept:
    (<PullQueue> self).tear_down()
    return base_clear(self)


(<PyTypeObject*> PullQueue).tp_traverse = pullqueue_traverse
(<PyTypeObject*> PullQueue).tp_clear = pullqueue_clear
