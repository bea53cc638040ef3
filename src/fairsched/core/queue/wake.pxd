"""Which consumer a queue notifies: the policy of waiting/wakeup.pxd, applied to messages.

A consumer without a cursor could take whatever is available; if there are no others, nobody is asked anything. One with
a cursor could take a message if it has not gone past it, nor rejected it, nor is it another's by group, and its filter
accepts it. Filters are asked outside, before (question.pxd). One that was not asked counts so that somebody is
told rather than nobody: of who may be told, as though it accepted; of who would outrank that one, as though it did not.
At worst somebody is told in vain, who finds nothing, and passes the work on.

Thread safety: any, pinned, without the queue's lock. Complexity: that of waiting/wakeup.pxd.
"""

from libc.stdint cimport int32_t, uint32_t

from fairsched.core.atomics cimport rarely
from fairsched.core.queue.cursor cimport cursor_takes
from fairsched.core.queue.message cimport MESSAGE_AVAILABLE, MESSAGE_DELETED, Message, message_rejected
from fairsched.core.queue.next cimport queue_next, queue_next_for
from fairsched.core.queue.state cimport (
    OWED_HAND_OVER, OWED_PASS_ON, Call, Owed, Queue, QueueConsumer, queue_accepts, queue_lock, queue_unlock,
    queue_unref,
)
from fairsched.core.waiting.interest cimport MOVED, NO_PRIORITY, NOT_MOVED, interest_highest_notified
from fairsched.core.waiting.node cimport ConsumerNode
from fairsched.core.waiting.wakeup cimport wakeup_notify, wakeup_one, wakeup_outranked, wakeup_possible
from fairsched.core.waiting.walk cimport LIST_NON_ACQUIRING, InterestWalk, interestwalk_init, interestwalk_next

cdef inline void queue_drop(Queue* q, Message* m) noexcept nogil:
    """Give up a reference."""
    queue_lock(q)
    queue_unref(q, m)
    queue_unlock(q)

cdef inline void queue_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """Tell a consumer that was claimed."""
    c.told.fetch_add(1)
    if call.tell != NULL:
        call.tell(call, c)

cdef inline void queue_rest(Call* call) noexcept nogil:
    """Let go of what was offered."""
    if call.work != NULL:
        queue_drop(call.queue, call.work)
        call.work = NULL

cdef inline int queue_interests(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Whether a message is available, and of interest to a consumer, groups aside: 1, 0, or -1: it was not asked."""
    cdef Queue* q = call.queue
    cdef bint interests
    queue_lock(q)
    interests = m.state == <uint32_t> MESSAGE_AVAILABLE and not message_rejected(m, c.id)
    queue_unlock(q)
    return queue_accepts(call, c, m) if interests else 0

cdef inline bint queue_takes(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Whether a message is available, and a consumer could take it, its filter aside."""
    cdef Queue* q = call.queue
    cdef bint takes
    queue_lock(q)
    takes = m.state == <uint32_t> MESSAGE_AVAILABLE and cursor_takes(q, c, m)
    queue_unlock(q)
    return takes

cdef inline bint queue_outranks(Call* call, QueueConsumer* c) noexcept nogil:
    """Whether a consumer of a higher priority is interested in what is offered to another, and has something to take.

    As in the source, that need not be the same: its group may be another's. Only if its filter has said so, of both:
    who is kept asleep by a consumer that wants nothing is told by nobody.
    """
    cdef bint known
    cdef Message* m
    if queue_interests(call, c, call.work) != 1:
        return False
    if queue_takes(call, c, call.work):
        return True
    m = queue_next_for(call, c, &known)
    if m == NULL:
        return False
    queue_drop(call.queue, m)
    return known

cdef inline Message* queue_if_takes(Queue* q, QueueConsumer* c, Message* m) noexcept nogil:
    """A message, referenced, if the consumer could take it; else NULL."""
    cdef bint takes
    queue_lock(q)
    takes = m.state == <uint32_t> MESSAGE_AVAILABLE and cursor_takes(q, c, m)
    if takes:
        m.references += 1
    queue_unlock(q)
    if takes:
        return m
    return NULL

cdef inline bint queue_offer_next(Call* call, QueueConsumer* c) noexcept nogil:
    """Offer a consumer its next message, if what is announced is of interest to it; False: there is none."""
    queue_rest(call)
    if c.node.priority < call.floor or (call.about != NULL and not queue_interests(call, c, call.about)):
        return False
    call.work = queue_next_for(call, c, &call.known)
    call.rank = c.node.priority
    return call.work != NULL

cdef inline bint queue_outranked(Call* call, int32_t priority) noexcept nogil:
    return wakeup_outranked(&call.queue.interest, call.pin, priority, queue_wants, call)

cdef inline bint queue_wants(void* context, ConsumerNode* node) noexcept nogil:
    """Whether a consumer is to be told; or, of one above the last that was asked, whether it outranks that.

    It is if what is announced is of interest to it, and there is something for it to take that nobody above wants. If
    that is not what is announced, another may still be told; if it is, nobody is. queue_rest is due when the walk is
    over. Candidates come by descending priority, so who is above the last is asked because it outranks it.
    """
    cdef Call* call = <Call*> context
    cdef QueueConsumer* c = <QueueConsumer*> node
    if call.work != NULL and node.priority > call.rank:
        return queue_outranks(call, c)
    if not queue_offer_next(call, c):
        return False
    if not queue_outranked(call, node.priority):
        return True
    if call.about == NULL:
        return False
    queue_rest(call)
    call.work = queue_if_takes(call.queue, c, call.about)
    return call.work != NULL and queue_outranked(call, node.priority)

cdef inline bint queue_claim_one(Call* call, Message* about) noexcept nogil:
    """Tell one consumer of work, where cursors matter; False: nobody was told."""
    cdef ConsumerNode* node
    call.about = about
    node = wakeup_one(&call.queue.interest, call.pin, queue_wants, call)
    queue_rest(call)
    if node != NULL:
        queue_tell(call, <QueueConsumer*> node)
    return node != NULL

cdef inline bint queue_claim_any(Call* call) noexcept nogil:
    """Tell one consumer of work that everybody could take; False: nobody was told."""
    cdef ConsumerNode* node = wakeup_one(&call.queue.interest, call.pin, NULL, NULL)
    if node != NULL:
        queue_tell(call, <QueueConsumer*> node)
    return node != NULL

cdef inline bint queue_gone(Queue* q, const Message* m) noexcept nogil:
    """Whether a message, referenced, has left the queue."""
    cdef bint gone
    queue_lock(q)
    gone = m.state == <uint32_t> MESSAGE_DELETED
    queue_unlock(q)
    return gone

cdef inline void queue_tell_browsers(Call* call, Message* m, bint seen) noexcept nogil:
    """Tell every browser that would see a message; `seen`: only those that see requeues.

    Also if somebody has it by now: once that gives it back, a browser that has not looked yet would see it.
    """
    cdef InterestWalk w
    cdef QueueConsumer* c
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_NON_ACQUIRING)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL:
        if (c.sees_requeues or not seen) and not queue_gone(call.queue, m) and queue_accepts(call, c, m) != 0:
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
    """Whether anything is available, for a look after a move. Under the lock, as counting is a release store.

    Either the put had the lock before, and is seen; or it gets it later, and then sees the move when it looks for
    whom to tell. Read without the lock, the counter may lag behind that look.
    """
    cdef bint offers
    queue_lock(q)
    offers = q.available.load() != 0
    queue_unlock(q)
    return offers

cdef inline void queue_pass_on(Call* call) noexcept nogil:
    """Somebody leaves work, or found none that it may take: tell one other that could take some."""
    cdef Queue* q = call.queue
    if not queue_offers(q):  # who makes some available announces it
        return
    if q.walkers.load() != 0:
        queue_claim_one(call, NULL)
    elif queue_has_work(call):
        queue_claim_any(call)

cdef inline void queue_hand_over(Call* call) noexcept nogil:
    """A consumer is not interested any more: as queue_pass_on, but who is notified, and of a higher priority than whom
    the work would go to, hands over itself, when it has found all it may take.
    """
    call.floor = interest_highest_notified(&call.queue.interest, call.pin)
    queue_pass_on(call)
    call.floor = NO_PRIORITY

cdef inline void queue_owe(Call* call, Owed owed) noexcept nogil:
    """Hand over, or pass on: now, or, where filters have to be asked first, when the caller has done so."""
    if call.accepts != NULL:
        call.owed |= owed
    elif owed == OWED_HAND_OVER:
        queue_hand_over(call)
    else:
        queue_pass_on(call)

cdef inline bint queue_announce(Call* call, Message* m) noexcept nogil:
    """A message, referenced, is available, and visible: tell one consumer; False: nobody was told.

    NULL: there was nobody with a cursor, so it has no reference, and may be gone when somebody has come who has one.
    If it is gone before anybody was told, who would have had it has kept others asleep meanwhile: work is passed on.
    """
    if not rarely(call.queue.walkers.load() != 0):
        return wakeup_possible(&call.queue.interest) and queue_claim_any(call)
    if queue_claim_one(call, m):
        return True
    if m != NULL and queue_gone(call.queue, m):
        queue_owe(call, OWED_PASS_ON)
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
    """Announce what was given back; `unblocked`: and its group, which has become free.

    Whoever is told of the message finds the rest of its group, or passes it on. If nobody is, because nobody may have
    that message, or wants it, somebody may still have the rest.
    """
    queue_tell_browsers(call, m, True)
    if not queue_announce(call, m) and unblocked:
        queue_owe(call, OWED_PASS_ON)

cdef inline void queue_give_back(Call* call, Message* m, bint unblocked) noexcept nogil:
    """As queue_announce_back, and give up the reference."""
    queue_announce_back(call, m, unblocked)
    queue_drop(call.queue, m)

cdef inline void queue_consider(Call* call, QueueConsumer* c) noexcept nogil:
    """A consumer has become interested: tell it if there is work for it; a browser always."""
    cdef Queue* q = call.queue
    cdef int moved
    if not c.node.acquires:
        queue_tell(call, c)
        return
    if not queue_offers(q):
        return
    if q.walkers.load() != 0:
        call.about = NULL
        moved = wakeup_notify(&q.interest, call.pin, &c.node, queue_wants, call)
        queue_rest(call)
    else:
        moved = NOT_MOVED
        if queue_has_work(call):
            moved = wakeup_notify(&q.interest, call.pin, &c.node, NULL, NULL)
    if moved == MOVED:
        queue_tell(call, c)
