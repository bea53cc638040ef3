"""A queue whose consumers pull, its subscriptions and its entries: the Python side of core/queue/queue.pxd.

In this file, in this order. The public classes:

    PullQueue        a queue of messages
    Subscription     a consumer of it
    Entry            a message that a subscription pulled, to be settled once

and their implementation:

    Visit            one stay of a thread inside the engine, and the work left for after it
    putting          how a message comes in, and the wait for room
    membership       how subscriptions join, take over from each other, and leave
    pulling          how entries are made, and which messages go back if they cannot be
    settling         how a pulled message is acknowledged, released or rejected
    Alternate        the destination of messages that leave unacknowledged
    garbage collection

The queue's memory, and the references it owns, is in _pullqueue.pxd; the consumer of several queues in _target.pyx.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc

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
from fairsched.pullqueue._options cimport as_lifetime, as_ns, check_callable, choice, clock_ns, time_after
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
    DISPOSAL_ROUNDS = 4  # epochs until no thread can hold a consumer's memory

_KINDS = {
    "standard": KIND_STANDARD, "priority": KIND_PRIORITY, "sorted": KIND_SORTED, "last-value": KIND_LAST_VALUE,
    "fair": KIND_FAIR,
}
_OVERFLOWS = {"none": OVERFLOW_NONE, "ring": OVERFLOW_RING, "reject": OVERFLOW_REJECT, "flow": OVERFLOW_FLOW}
_GROUPS = {None: GROUPS_NONE, "standard": GROUPS_STANDARD, "shared": GROUPS_SHARED}
#: The reasons that an alternate is told; messages that left for another reason were to be dropped.
_REASONS = {REASON_EXPIRED: "expired", REASON_DELIVERIES: "delivery_limit", REASON_CLOSED: "closed"}

logger = logging.getLogger("fairsched.queue")


# The public classes ---------------------------------------------------------------------------------------------------


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
        """Release items and subscriptions: the queue is garbage."""
        if self.memory == NULL:
            return
        memory_close(self.memory)
        subscriptions_end(self)
        memory_drop_items(self.memory)  # their finalizers find a closed queue

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
        """Return the deadline, or the time at which the next held message is due, if that is earlier."""
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
    """A waiter for several subscriptions, which each of them tells of news."""

    cdef void heard(self) noexcept:
        """Look again: there is work, or there will be none. Runs no Python code."""


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

    def __cinit__(self, *args, **kwargs):
        if len(args) != 1 or not isinstance(args[0], PullQueue):  # without a queue, no method would be safe to call
            raise TypeError("subscriptions come from PullQueue.subscribe")
        self.queue = args[0]

    def __dealloc__(self):
        if self.consumer != NULL:  # never joined: the queue keeps a joined subscription until its consumer is gone
            consumer_destroy(self.consumer)

    def __init__(self, *args, **kwargs):
        raise TypeError("subscriptions come from PullQueue.subscribe")

    @property
    def interested(self):
        """Whether it can be notified: it is ready for work, has credit, and is among the live consumers. Settable."""
        return self.is_desired(visit_now(self.queue))

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
            closed = self.queue.memory.queue.closed.load() != 0  # before the pull: nothing is put after that
            entry = self.next_entry()
            if entry is not None:
                return entry
            if self.consumer == NULL:
                raise ShutDown("the subscription is cancelled")
            if closed and self.news.load() == news and not self.holds_on():
                raise ShutDown("the queue is closed and has nothing left for this subscription")
            due = self.next_due(deadline)
            if closed and due is None:
                continue  # another consumer has taken the held message
            with cython.critical_section(self):
                waited = self.wait(news, closed, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef int open_room(self) except -1:
        """Make the room where threads wait. This may run Python code that makes one, too: the first is kept."""
        cdef WaitingRoom room
        if self.room is None:
            room = WaitingRoom(self.queue.clock)
            with cython.critical_section(self):
                if self.room is None:
                    self.room = room
        return 0

    cdef object next_entry(self):
        """Return the next entry or None, and wake another waiting thread for the messages that are left."""
        try:
            entry = pulled(self)
        except BaseException:
            self.wake_one()
            raise
        if entry is not None:
            self.wake_one()
        return entry

    cdef bint wait(self, int64_t news, bint closed, object deadline) except -1:
        """Wait until `news` or `closed` has another value than this; False when the deadline passed before."""
        if self.news.load() != news or self.consumer == NULL or (
            not closed and self.queue.memory.queue.closed.load() != 0
        ):
            return True
        return self.room.wait_once(deadline)

    cdef void tell(self) noexcept:
        """Count a notification, and wake a waiting thread."""
        self.news.fetch_add(1)
        self.wake()

    cdef int call_back(self) except -1:
        """Call `on_work`. An Exception is logged; any other exception is raised."""
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of subscription %r raised an exception, which is ignored", self.name)
        return 0

    cdef void wake(self) noexcept:
        """Have one waiting thread, and the target if there is one, look again."""
        cdef Listener listener = self.listener
        self.wake_one()
        if listener is not None:
            listener.heard()

    cdef void wake_one(self) noexcept:
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake(1)

    cdef void wake_all(self) noexcept:
        """Have all waiting threads, and the target if there is one, look again: there will be nothing new."""
        cdef Listener listener = self.listener
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake_all()
        if listener is not None:
            listener.heard()

    # For a Target, which waits for several subscriptions at once.

    cdef int listen(self, Listener listener) except -1:
        """Tell this listener from now on when there is work, and when there will be none."""
        cdef bint taken
        with cython.critical_section(self):
            taken = self.listener is not None
            if not taken:
                self.listener = listener
        if taken:
            raise ValueError(f"subscription {self.name!r} belongs to a target already")
        return 0

    cdef void unlisten(self, Listener listener) noexcept:
        """Stop telling this listener."""
        with cython.critical_section(self):
            if self.listener is listener:
                self.listener = None

    cdef bint is_over(self) except -1:
        """Whether nothing new will come: it is cancelled, or its queue is closed and holds nothing until later."""
        return self.consumer == NULL or (self.queue.memory.queue.closed.load() != 0 and not self.holds_on())

    cdef object next_due(self, object deadline):
        """Return the deadline, or an earlier time at which a held message is due that this consumer would take."""
        return self.queue.next_due(deadline) if self.holds_on() else deadline

    cdef bint holds_on(self) except -1:
        """Whether the queue holds a message until later that this consumer might take."""
        cdef Queue* q = &self.queue.memory.queue
        return q.timed.load() != 0 and queue_due(q) != 0 and self.is_desired(0)

    cdef bint is_desired(self, int64_t now) except -1:
        """Whether the consumer may be notified: it wants work, has credit, and is live."""
        cdef Visit visit
        cdef bint desired
        visit_enter_at(&visit, self.queue, now)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        visit_leave(&visit, self.queue)
        return desired

    cdef int judge(self, object item) except -1:
        """Return whether the filter accepts an item."""
        try:
            return bool(self.filter(item))
        except Exception:
            if not self.filter_failed:
                self.filter_failed = True
                logger.exception(
                    "filter of subscription %r raised; treated as no match (further errors are not logged)", self.name
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
    cdef Pulled pulled        # its message is referenced while unsettled, and NULL afterwards
    cdef readonly object item

    def __init__(self):
        raise TypeError("entries come from Subscription.pull")

    def __dealloc__(self):
        if self.pulled.message != NULL:
            queue_drop(&self.owner.queue.memory.queue, self.pulled.message)

    @property
    def delivery_count(self):
        """Number of earlier failed deliveries, each ended by a release."""
        return max(self.pulled.deliveries, 0)

    @property
    def redelivered(self):
        """Whether it was pulled and returned before."""
        return self.pulled.redelivered

    @property
    def settled(self):
        """Whether it was settled."""
        return self.pulled.message == NULL

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
        cdef Pulled pulled = self.pulled
        cdef int64_t now
        if pulled.message == NULL:
            return False
        now = visit_now(self.owner.queue)  # before anything is changed: a clock may raise, or settle this very entry
        with cython.critical_section(self):
            pulled.message = self.pulled.message
            self.pulled.message = NULL
        if pulled.message == NULL:
            return False
        return settle_pulled(self.owner, &pulled, verdict, now)

    def __repr__(self):
        # Items may be large or secret: never shown.
        state = "settled" if self.pulled.message == NULL else "unsettled"
        return f"<Entry of {self.owner.name if self.owner is not None else None!r}, {state}>"


# Visits: in, asking filters meanwhile, out, and the work left for then ------------------------------------------------
#
# Exclusion. The engine needs none. Each call is one stay inside it: no Python code runs there, nothing waits but for a
# few instructions of another thread, and the GIL is held (releasing it costs more than the stay). Python code that has
# to be run, such as filters that the engine asks about, callbacks, and the disposal of messages that left the queue, is
# noted in the visit, with references, and run after it. No Python object is made inside either: that might run the
# collector, and with it finalizers; and a thread that stays inside holds up the memory of all others.
#
# Exceptions of callbacks. An Exception is logged, where the callback is called. Any other one, such as
# KeyboardInterrupt, is noted in the visit: everything is done and all subscriptions are told first, and then the first
# of these exceptions is raised. A filter that is interrupted has given no answer; no filter is asked any more in that
# visit, and one consumer is told in addition, since a filter that was not asked may hide that there is work.


cdef struct Visit:  # one call, and the work left for after it
    Call call                 # must be first
    PyObject** told           # subscriptions, with a reference each
    Py_ssize_t told_count
    Py_ssize_t told_size
    Answers answers           # their messages are referenced
    PyObject* asked           # owners of the consumers of the call's stand, with a reference each, or NULL
    PyObject* above
    PyObject* error           # the first exception that interrupted a callback, with a reference, or NULL


cdef void visit_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """Note a subscription to be told. With the GIL."""
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
    """Take a reference to a pulled item. With the GIL."""
    keep(<PyObject*> <uintptr_t> token)


cdef int visit_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Return the answer of a filter in this visit, or -1. O(1) expected."""
    return answers_find(&(<Visit*> call).answers, c.id, m)


cdef int64_t visit_now(PullQueue q) except? -1:
    """Return the time of the clock, which may be Python code; 0 if nothing depends on the time."""
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
    """Go outside for a while. The owners of the consumers that the questions stand at are kept until the next time.

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
    """Come back inside: consumers that are gone meanwhile are not used."""
    visit.call.pin = interest_enter(&q.memory.queue.interest)
    if visit.asked != NULL and (<Subscription> visit.asked).consumer == NULL:
        visit.call.stand.asked = NULL
    if visit.above != NULL and (<Subscription> visit.above).consumer == NULL:
        visit.call.stand.above = NULL


cdef PyObject* owner_of(QueueConsumer* c) noexcept:
    """Return a consumer's subscription, with a reference, or NULL."""
    if c == NULL:
        return NULL
    keep(<PyObject*> c.owner)
    return <PyObject*> c.owner


cdef void release(PyObject* o) noexcept:
    if o != NULL:
        Py_DECREF(<object> o)


cdef int visit_leave(Visit* visit, PullQueue q) except -1:
    """Go outside, do the work that the visit has left, and raise the exception that interrupted it."""
    visit_end(visit, q)
    if visit.error != NULL:
        visit_raise(visit)
    return 0


cdef void visit_end(Visit* visit, PullQueue q) noexcept:
    """Go outside, and do the work that the visit has left. The caller then raises `error`."""
    if visit.call.owed != 0 or visit.call.owes_offer or visit.call.back != NULL:
        visit_pay_debts(visit, q)
    interest_leave(visit.call.pin)
    if visit.answers.table != NULL or visit.asked != NULL or visit.above != NULL:
        visit_forget_answers(visit, q)
    if visit.call.removed != NULL or visit.told != NULL or q.stopped.load() != 0 or q.memory.departed.load() != 0:
        visit_follow_up(visit, q)


cdef int visit_raise(Visit* visit) except -1:
    """Raise the noted exception."""
    cdef object error = <object> visit.error
    visit.error = NULL
    Py_DECREF(error)
    raise error


cdef void visit_note(Visit* visit, object error) noexcept:
    """Note an exception to be raised when everything is done: the first counts."""
    if visit.error == NULL:
        Py_INCREF(error)
        visit.error = <PyObject*> error


cdef void visit_pay_debts(Visit* visit, PullQueue q) noexcept:
    """Announce the work that the engine could not announce because filters have to be asked first."""
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
    """Tell the claimed subscriptions, wake producers, and divert messages that left. No error stops the rest.

    All subscriptions are told before the first callback, which may take long.
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
    """Hand a chain of messages that left the queue to the alternate; after an interrupt, the rest is kept."""
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
    """Free the memory of consumers that no thread can hold any more."""
    cdef QueueConsumer* c = <QueueConsumer*> q.memory.departed.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        q.members.discard(<object> c.owner)
        consumer_destroy(c)
        c = following


cdef void visit_ask(Visit* visit, PullQueue q, Message* about) noexcept:
    """Ask all filters that matter before a message is announced, or work is passed on (NULL)."""
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
    """Whether this visit asks filters: there are some, and none was interrupted."""
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
    item = subscription = None  # their finalizers run outside
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
    """Whether threads that wait for room may go on."""
    return overflow_resumes(&q.overflow, q.depth.load(), q.bytes.load())


# Putting: the offer, its times, and the wait for room -----------------------------------------------------------------


cdef int put_message(
    PullQueue q, object item, object priority, object key, object slot, object size, object ttl, object not_before,
    object block, object timeout
) except -1:
    """Put a message, or raise the reason why it cannot be put."""
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
    """Return the octets of a key: the key itself if it is bytes, or its text in UTF-8."""
    if isinstance(key, bytes):
        return key
    return str(key).encode("utf-8", "surrogatepass")


cdef Admittance offer_message(
    PullQueue q, Offer* offer, object item, object ttl, object not_before
) except <Admittance> 0:
    """Put an offered message; its times count from now."""
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
        interest_leave(visit.call.pin)  # nothing has changed, so there is no work to follow up
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
    """Put an offered message once there is room for it."""
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
    """Put a message, or wait for room. Seated before the attempt: a thread that makes room sees the waiter."""
    cdef Seat* seat = q.room.sit(0, 1)
    cdef bint woken = True
    q.stopped.fetch_add(1)
    try:
        done[0] = offer_message(q, offer, item, ttl, not_before)
        if done[0] == PUT_FULL:
            woken = q.room.wait(seat, deadline)
    finally:
        q.stopped.fetch_sub(1)
        q.room.leave(seat)  # collects the permit if the seat was claimed meanwhile
    return woken


# Membership: how subscriptions join, take over from each other, and leave ---------------------------------------------
#
# A subscription's consumer is in the engine's lists from its join until it leaves. Its memory is freed when no thread
# can hold its node any more (see _pullqueue.pxd); until then the queue's `members` keep the subscription.


cdef Subscription subscription_create(
    PullQueue q, object name, int32_t priority, bint acquires, object filter, object on_work
):
    """Create a subscription whose consumer is in no list yet."""
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
    """Let a new subscription join; it becomes interested only after the filters, if any, were asked.

    If that is interrupted, the caller does not get the subscription, so it leaves again.
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
    """Destroy a consumer that was not admitted, and raise the reason. No other thread has seen it."""
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
    """Cancel a subscription: others take over."""
    cdef Visit visit
    visit_enter(&visit, subscription.queue)
    leave(&visit, subscription, release)
    if visit.error != NULL:
        visit_raise(&visit)
    return 0


cdef void leave(Visit* visit, Subscription subscription, bint release) noexcept:
    """Cancel a subscription in a visit that has begun. Its waiting threads are woken before any callback runs."""
    cdef PullQueue q = subscription.queue
    cdef QueueConsumer* c
    ask_next_live(visit, q, subscription)
    with cython.critical_section(subscription):
        c = subscription.consumer
        subscription.consumer = NULL
    visit_step_out(visit)  # only this call has the consumer now
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
    """Ask the filter of the consumer that becomes live when this one leaves."""
    cdef QueueConsumer* c
    if visit.call.accepts == NULL or leaving.consumer == NULL or not consumer_is_live(leaving.consumer):
        return
    c = queue_first_idle(&visit.call)
    if c != NULL:
        visit_ask_for(visit, q, <Subscription> c.owner)


cdef void dispose(PullQueue q) noexcept:
    """Let epochs pass, so that a consumer's memory is freed now, unless other threads are inside."""
    cdef Pin* pin
    cdef int _i
    for _i in range(DISPOSAL_ROUNDS):
        pin = interest_enter(&q.memory.queue.interest)
        reclaim_flush(pin)
        interest_leave(pin)
    visit_free_departed(q)


cdef void subscriptions_end(PullQueue q) noexcept:
    """Cancel all subscriptions of a queue that is garbage, without telling any."""
    cdef Visit visit
    cdef QueueConsumer* c
    visit_enter_at(&visit, q, 0)
    visit.call.tell = NULL  # a consumer that becomes live would be noted, with a reference
    for subscription in q.members:
        c = (<Subscription> subscription).consumer
        (<Subscription> subscription).consumer = NULL
        if c != NULL:
            queue_cancel(&visit.call, c)
            node_retire(visit.call.pin, &c.node, consumer_dispose)
    interest_leave(visit.call.pin)


cdef list subscription_names(PullQueue q, InterestList which):
    """Return the names in a list, in its order. They are collected outside, since that may run Python code."""
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
    """Find the subscriptions in a list, with a reference each; -1: memory is exhausted, and none is returned."""
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
# Pulled messages go back if they cannot be handed out: an exception is to be raised, or memory is exhausted.


cdef Entry pulled(Subscription subscription):
    """Return the next entry, or None."""
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
    """Return up to n entries."""
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
                (<Entry> entries[i]).pulled.message = NULL
            put_back(subscription, found, taken, visit.call.now)
        free(found)
    return entries


cdef int64_t take(Visit* visit, Subscription subscription, int64_t limit, Pulled* out) noexcept:
    """Pull, asking the filters whose answers the engine needs; 0: no message, or a filter was interrupted."""
    cdef Question question
    cdef int64_t taken = PULL_ASK
    while taken == PULL_ASK and visit.error == NULL and subscription.consumer != NULL:
        taken = queue_pull(&visit.call, subscription.consumer, limit, out, &question)
        if taken == PULL_ASK:
            visit_answer(visit, subscription.queue, &question)
    return max(taken, <int64_t> 0)


cdef int64_t take_many(Visit* visit, Subscription subscription, int64_t n, Pulled** found) noexcept:
    """Pull up to n messages, until none is left; `found` stays NULL if memory is exhausted before the first."""
    cdef int64_t taken = 1, count = 0, size = 0
    cdef Pulled* larger
    while taken > 0 and count < n:
        if count == size:  # one more than are available, for the pull that finds nothing
            size = min(n, max(2 * size, subscription.queue.memory.queue.available.load() + 1))
            larger = <Pulled*> realloc(found[0], size * sizeof(Pulled))
            if larger == NULL:
                break
            found[0] = larger
        taken = take(visit, subscription, size - count, found[0] + count)
        count += taken
    return count


cdef Entry entry_of(Subscription subscription, Pulled* pulled):
    """Create an entry for a pulled message, and give it the reference to the item.

    The message itself is not read: making an entry may run the collector, and so code that takes the message back.
    """
    cdef Entry entry = Entry.__new__(Entry)
    entry.owner = subscription
    entry.pulled = pulled[0]
    entry.item = <object> <PyObject*> <uintptr_t> pulled.token
    Py_DECREF(entry.item)
    pulled.token = 0
    return entry


cdef void put_back(Subscription subscription, Pulled* found, int64_t count, int64_t now) noexcept:
    """Return pulled messages that cannot be handed out, the last first, while an exception is being raised.

    That exception takes precedence over those of callbacks.
    """
    cdef Visit visit
    cdef Pulled* pulled
    cdef PullQueue q = subscription.queue
    while count > 0:
        count -= 1
        pulled = &found[count]
        visit_enter_at(&visit, q, now)
        settle_inside(&visit, subscription, pulled, SETTLE_UNDO)
        visit_end(&visit, q)
        if visit.error != NULL:
            Py_DECREF(<object> visit.error)
        if pulled.token != 0:
            Py_DECREF(<object> <PyObject*> <uintptr_t> pulled.token)


# Settling -------------------------------------------------------------------------------------------------------------


cdef object settle_pulled(Subscription owner, Pulled* pulled, Verdict verdict, int64_t now):
    """Settle a message that a subscription pulled."""
    cdef Visit visit
    cdef bint done
    cdef PullQueue q = owner.queue
    cdef uint64_t token = pulled.message.token
    visit_enter_at(&visit, q, now)
    if pulled.paid:
        visit_ask_for(&visit, q, owner)
    done = settle_inside(&visit, owner, pulled, verdict)
    visit_end(&visit, q)
    if done and verdict == SETTLE_ACK and owner.acquires:
        Py_DECREF(<object> <PyObject*> <uintptr_t> token)  # the message's; the entry holds one of its own
    if visit.error != NULL:
        visit_raise(&visit)
    return done


cdef bint settle_inside(Visit* visit, Subscription owner, Pulled* pulled, Verdict verdict) noexcept:
    """Settle a message, and give up the reference to it; False if the message has been settled or taken back before."""
    cdef QueueConsumer* c = owner.consumer
    if owner.acquires:
        return queue_settle(&visit.call, c, pulled.message, pulled.holder, pulled.lease, verdict)
    if c != NULL and pulled.paid:
        settle_credit(&visit.call, c)
    if c != NULL and verdict == SETTLE_UNDO:
        queue_show_again(&visit.call, c, pulled.message)
    queue_drop(visit.call.queue, pulled.message)
    return True


# The alternate: the destination of messages that leave unacknowledged -------------------------------------------------
#
# The caller that makes a message leave, by a put, a pull, a release or by the time, is done with the message, or never
# had it: so exceptions of the alternate are not raised there. They are logged, and the message is kept.
#
# Exclusion. Each step is one operation of a deque; nothing is held while the alternate runs. A message belongs to the
# one thread that calls the alternate with it, and is kept whatever that raises.


@cython.final
cdef class Alternate:
    """The destination of messages: an object with `put`, or a callable of (item, reason); None: there is none."""

    def __cinit__(self, sink):
        if sink is not None and not callable(sink) and not callable(getattr(sink, "put", None)):
            raise ValueError(f"alternate must be a queue with put, or callable, got {sink!r}")
        self.sink = sink
        self.undelivered = deque()

    cdef int divert(self, object item, uint32_t reason, bint keep) except -1:
        """Deliver a message that left for a reason in `_REASONS`; `keep`: only keep it, after an interrupt."""
        if self.sink is None or reason not in _REASONS:
            return 0
        message = (item, _REASONS[reason])
        if keep:
            self.undelivered.append(message)
        else:
            self.deliver(message)
        return 0

    cdef int deliver(self, tuple message) except -1:
        """Deliver a message, or keep it if that raises."""
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
                    "the alternate of a queue raised; the message (%s) is kept in undelivered, as later ones will be "
                    "(further errors are not logged until it accepts a message)", reason,
                )
        return 0

    cdef int deliver_again(self, Py_ssize_t count) except -1:
        """Deliver `count` of the kept messages, oldest first, each once."""
        while count > 0:
            try:
                message = self.undelivered.popleft()
            except IndexError:  # another thread took it
                break
            self.deliver(message)
            count -= 1
        return 0


# Garbage collection ---------------------------------------------------------------------------------------------------
#
# Cython's own traverse function shows the collector a class's Python attributes; this one adds the references of the
# messages. Both functions are called with every other Python thread stopped or waiting for the GIL.

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
