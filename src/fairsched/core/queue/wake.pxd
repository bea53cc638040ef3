"""The consumer that a queue notifies: at most one for each message that becomes available, of the highest priority, the
one that has waited longest. Source: Qpid Broker-J's AbstractQueue.

A consumer without a cursor could take any available message. If there are no others, no filter is asked, and
waiting/wakeup.pxd decides. Otherwise an announced message is for the first interested consumer that could take it,
unless it is for one above (work.pxd); and work that is passed on is for the first consumer that may take any of it.

Why no message waits beside a sleeping consumer that could take it, even if the notified consumer takes one and does not
come back:
1. A consumer that was notified, and has not pulled since, is awaited (its node is NOTIFIED). It counts for the messages
   that it could take, as though each awaited consumer took one of them. A consumer that has got a message since
   (SERVED) counts for nothing.
2. So an awaited consumer that has acquired a message offers the rest, once (queue_offer_rest): to the first consumer
   that may take some of it, unless enough consumers that could are awaited.
3. A consumer that finds nothing, or is not interested any more, passes work on; and the consumer told then is awaited.
So as long as there is work for a sleeping consumer, another one is awaited, or about to offer it, or above, and the
work is for that one.
   While a message is for a busy consumer above, it waits for that consumer; but only that message. Different from the
   source, a hand-over does not stop at the priority of the notified consumer, which may be busy as well.
   A consumer is counted in `awaited` after its move, and out of it before it offers or passes on. If the count lags
   behind, a consumer is told in vain; or it includes one that has just pulled, which then offers the rest itself.
   In a pull between Notified and its last check a consumer is interested, and may be claimed; either it has not checked
   yet, or it is NOTIFIED at the end of the pull, and offers the rest (pull.pxd).

Thread safety: any, pinned, without the queue's lock. Complexity: O(1) where no consumer has a cursor; else
O(interested), and their checks (work.pxd). queue_offer_rest once for each notification.
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.atomics cimport rarely
from fairsched.core.queue.late cimport late_find
from fairsched.core.queue.message cimport MESSAGE_DELETED, Message
from fairsched.core.queue.next cimport queue_next
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, queue_accepts, queue_lock, queue_unlock
from fairsched.core.queue.work cimport WORK_NONE, queue_above, queue_drop, queue_takes, queue_work, work_refuse
from fairsched.core.queue.yields cimport yields_recall
from fairsched.core.waiting.interest cimport MOVED, interest_move, interest_notify
from fairsched.core.waiting.node cimport (
    ConsumerNode, NON_ACQUIRING, NOTIFIED, NOT_INTERESTED, READY, SERVED, node_state,
)
from fairsched.core.waiting.wakeup cimport OUTRANKED, wakeup_notify, wakeup_one, wakeup_possible
from fairsched.core.waiting.walk cimport (
    LIST_INTERESTED, LIST_NON_ACQUIRING, LIST_NOTIFIED, InterestWalk, interestwalk_init, interestwalk_next,
)

cdef inline void queue_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """Tell a consumer that was claimed, or a browser."""
    c.told.fetch_add(1)
    if call.tell != NULL:
        call.tell(call, c)

cdef inline void queue_claimed(Call* call, QueueConsumer* c) noexcept nogil:
    """Count a claimed consumer as awaited, and tell it."""
    call.queue.awaited.fetch_add(1)
    queue_tell(call, c)

cdef inline bint queue_move(Call* call, QueueConsumer* c, uint32_t allowed, uint32_t target) noexcept nogil:
    """Move a consumer, which is not awaited any more; False: it is in none of those states."""
    cdef uint32_t state
    if interest_move(&call.queue.interest, call.pin, &c.node, allowed, target, &state) != MOVED:
        return False
    if state == <uint32_t> NOTIFIED:
        call.queue.awaited.fetch_sub(1)
        call.was_told = True
    return True

cdef inline void queue_recall(Call* call, QueueConsumer* c) noexcept nogil:
    """A consumer is not ready any more, or has found nothing: what others have gone past for it may be theirs."""
    if call.queue.walkers.load() != 0:
        queue_lock(call.queue)
        yields_recall(call.queue, c)
        queue_unlock(call.queue)

cdef inline bint queue_withdraw(Call* call, QueueConsumer* c) noexcept nogil:
    """Have a consumer be not interested; False: it was not. Others may have to do its work."""
    if not queue_move(call, c, READY | NON_ACQUIRING, NOT_INTERESTED):
        return False
    call.was_told = False  # it hands over anyway
    queue_recall(call, c)
    return True

cdef inline bint queue_covers(Call* call, QueueConsumer* c, Message* m, bint* certain) noexcept nogil:
    """Whether an awaited consumer could take a message; `certain`: it was notified of that."""
    certain[0] = c.filtered and c.told_of.load() == m.sequence
    return certain[0] or (not c.filtered and queue_takes(call, c, m))

cdef inline bint queue_covered(Call* call, Message* m) noexcept nogil:
    """Whether as many are awaited that could take a message as there are messages, or one that was notified of it."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    cdef int64_t left = call.queue.available.load()
    cdef bint certain
    if call.queue.awaited.load() <= 0:
        return False
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_NOTIFIED)
    node = interestwalk_next(&w)
    while node != NULL:
        if node_state(node) == <uint32_t> NOTIFIED and queue_covers(call, <QueueConsumer*> node, m, &certain):
            left -= 1
            if certain or left <= 0:
                return True
        node = interestwalk_next(&w)
    return False

cdef inline int queue_wants(Call* call, QueueConsumer* c) noexcept nogil:
    """Whether an interested consumer is to be told: 1, 0, or OUTRANKED, and then none of those after it is."""
    cdef Message* m = call.about
    cdef bint wants
    if m == NULL:
        if queue_work(call, c, &m, NULL) == WORK_NONE:
            return False
        wants = not call.remains or not queue_covered(call, m)
        call.cause = m.sequence
        queue_drop(call.queue, m)
        return wants
    if not queue_takes(call, c, m):
        return False
    if queue_accepts(call, c, m) == 0:
        work_refuse(call, c, m)
        return False
    call.cause = m.sequence
    return <int> OUTRANKED if queue_above(call, c, m) != NULL else 1

cdef inline bint queue_claim(Call* call, QueueConsumer* c) noexcept nogil:
    """Tell a consumer that queue_wants was asked about, if it is interested."""
    if interest_notify(&call.queue.interest, call.pin, &c.node) != MOVED:
        return False
    c.told_of.store(call.cause)
    queue_claimed(call, c)
    return True

cdef inline bint queue_claim_one(Call* call, Message* about) noexcept nogil:
    """Tell one consumer of work, where cursors matter; False: none was told."""
    cdef InterestWalk w
    cdef QueueConsumer* c
    cdef int wants = 0
    call.about = about
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_INTERESTED)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL and wants != OUTRANKED:
        wants = queue_wants(call, c)
        if wants == 1 and queue_claim(call, c):
            return True
        c = <QueueConsumer*> interestwalk_next(&w)
    return False

cdef inline bint queue_claim_any(Call* call) noexcept nogil:
    """Tell one consumer of work that every consumer could take; False: none was told."""
    cdef ConsumerNode* node = wakeup_one(&call.queue.interest, call.pin, NULL, NULL)
    if node != NULL:
        queue_claimed(call, <QueueConsumer*> node)
    return node != NULL

cdef inline bint queue_gone(Queue* q, const Message* m) noexcept nogil:
    """Whether a message, referenced, has left the queue."""
    cdef bint gone
    queue_lock(q)
    gone = m.state == <uint32_t> MESSAGE_DELETED
    queue_unlock(q)
    return gone

cdef inline bint queue_is_late(Queue* q, QueueConsumer* c, Message* m) noexcept nogil:
    """Whether a browser is to see a message behind its cursor."""
    cdef bint late
    queue_lock(q)
    late = late_find(&c.late, m) != NULL
    queue_unlock(q)
    return late

cdef inline void queue_tell_browsers(Call* call, Message* m, bint seen) noexcept nogil:
    """Tell every browser that would see a message; `seen`: only those that see requeues, or have missed it.

    Also if a consumer has acquired it by now: once it is given back, a browser that has not passed it would see it.
    """
    cdef InterestWalk w
    cdef QueueConsumer* c
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_NON_ACQUIRING)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL:
        if (c.sees_requeues or not seen or queue_is_late(call.queue, c, m)) and not queue_gone(
            call.queue, m
        ) and queue_accepts(call, c, m) != 0:
            queue_tell(call, c)
        c = <QueueConsumer*> interestwalk_next(&w)

cdef inline bint queue_has_work(Call* call) noexcept nogil:
    cdef Queue* q = call.queue
    cdef bint work
    queue_lock(q)
    work = queue_next(call, False) != NULL
    queue_unlock(q)
    return work

cdef inline bint queue_offers(Queue* q) noexcept nogil:
    """Whether anything is available, for a check after a move. Under the lock, as counting is a release store.

    Either the put had the lock before, and is seen; or it gets it later, and then sees the move when it seeks a
    consumer to tell. Read without the lock, the counter may lag behind that search.
    """
    cdef bint offers
    queue_lock(q)
    offers = q.available.load() != 0
    queue_unlock(q)
    return offers

cdef inline void queue_pass_on(Call* call) noexcept nogil:
    """Tell another consumer of work that one leaves, or may not take."""
    cdef Queue* q = call.queue
    if not queue_offers(q):  # a thread that makes a message available announces it
        return
    if q.walkers.load() != 0:
        queue_claim_one(call, NULL)
    elif queue_has_work(call):
        queue_claim_any(call)

cdef inline void queue_owe(Call* call) noexcept nogil:
    """Pass work on: now, or, where filters have to be asked first, when the caller has done so."""
    if call.accepts != NULL:
        call.owed += 1
    else:
        queue_pass_on(call)

cdef inline void queue_offer_rest(Call* call) noexcept nogil:
    """Tell another consumer of the rest after an awaited one has acquired a message, unless enough are awaited."""
    cdef Queue* q = call.queue
    if q.walkers.load() != 0:
        call.remains = True
        queue_claim_one(call, NULL)
        call.remains = False
    elif q.awaited.load() < q.available.load() and queue_has_work(call):
        queue_claim_any(call)

cdef inline void queue_owe_rest(Call* call) noexcept nogil:
    """Offer the rest, now or later as in queue_owe, if there is any, and an interested consumer."""
    if call.queue.available.load() <= 0 or not wakeup_possible(&call.queue.interest):
        return
    if call.accepts != NULL:
        call.owes_offer = True
    else:
        queue_offer_rest(call)

cdef inline void queue_served(Call* call, QueueConsumer* c) noexcept nogil:
    """Move a consumer that has acquired a message, and is still interested, to the tail of the notified ones."""
    queue_move(call, c, READY, SERVED)
    if call.was_told:
        call.was_told = False
        queue_owe_rest(call)

cdef inline bint queue_announce(Call* call, Message* m) noexcept nogil:
    """Tell one consumer of a message that is available, visible and referenced; False: none was told.

    NULL: no consumer had a cursor, so the message has no reference, and may be gone when a consumer with a cursor has
    joined. If it is gone before a consumer was told, others may have stayed asleep because of it: work is passed on.
    """
    if not rarely(call.queue.walkers.load() != 0):
        return wakeup_possible(&call.queue.interest) and queue_claim_any(call)
    if queue_claim_one(call, m):
        return True
    if m != NULL and queue_gone(call.queue, m):
        queue_owe(call)
    return False

cdef inline void queue_offer(Call* call, Message* m, bint watched) noexcept nogil:
    """Announce a new message; `watched`: the call has a reference, which is given up."""
    if not watched:
        queue_announce(call, NULL)
        return
    queue_tell_browsers(call, m, False)
    queue_announce(call, m)
    queue_drop(call.queue, m)

cdef inline void queue_announce_back(Call* call, Message* m, bint unblocked) noexcept nogil:
    """Announce a message that was given back; `unblocked`: also its group, which has become free.

    A consumer that is told of the message finds the rest of its group, or passes it on. If none is told, because none
    may have that message, or wants it, another consumer may still take the rest.
    """
    queue_tell_browsers(call, m, True)
    if not queue_announce(call, m) and unblocked:
        queue_owe(call)

cdef inline void queue_give_back(Call* call, Message* m, bint unblocked) noexcept nogil:
    """Announce a message that was given back, and give up the reference."""
    queue_announce_back(call, m, unblocked)
    queue_drop(call.queue, m)

cdef inline void queue_consider(Call* call, QueueConsumer* c) noexcept nogil:
    """Tell a consumer that has become interested if there is work for it; tell a browser always."""
    cdef Queue* q = call.queue
    if not c.node.acquires:
        queue_tell(call, c)
    elif not queue_offers(q):
        return
    elif q.walkers.load() != 0:
        call.about = NULL
        if queue_wants(call, c) == 1:
            queue_claim(call, c)
    elif queue_has_work(call) and wakeup_notify(&q.interest, call.pin, &c.node, NULL, NULL) == MOVED:
        queue_claimed(call, c)
