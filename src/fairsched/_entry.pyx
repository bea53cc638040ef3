"""What a subscription pulled: a message that is its own until it is settled, once."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from fairsched._pullqueue cimport PullQueue
from fairsched._subscription cimport Subscription
from fairsched._visit cimport Visit, visit_ask_for, visit_end, visit_enter_at, visit_now, visit_raise
from fairsched.core.message cimport Message
from fairsched.core.queuesettle cimport (
    SETTLE_ACK, SETTLE_REJECT, SETTLE_RELEASE, SETTLE_UNDO, Verdict, queue_settle, queue_show_again, settle_credit,
)
from fairsched.core.queuestate cimport Pulled, QueueConsumer
from fairsched.core.queuewake cimport queue_drop


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
