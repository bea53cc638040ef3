"""Whom a queue tells of what: the policy of wakeup.pxd, asked about messages.

A consumer without a cursor could take whatever is available; if there are no others, nobody is asked anything. One with
a cursor could take a message if it has not gone past it, nor rejected it, nor is it another's by group, and its filter
accepts it. Filters are their owner's to evaluate, outside: `queue_question` names the next one that has to be asked
before the lists are walked in earnest. A filter that was not asked counts as though it accepted: at worst somebody is
told in vain, who finds nothing, and passes the work on.

Thread safety: any, pinned, without the queue's lock. Complexity: that of wakeup.pxd.
"""

from libc.stdint cimport int32_t, uint32_t

from fairsched.core.consumernode cimport ConsumerNode, INTERESTED, NOTIFIED, node_state
from fairsched.core.interest cimport MOVED
from fairsched.core.interestwalk cimport (
    LIST_ALL, LIST_INTERESTED, LIST_NON_ACQUIRING, LIST_NOTIFIED, InterestList, InterestWalk, interestwalk_init,
    interestwalk_next,
)
from fairsched.core.message cimport MESSAGE_AVAILABLE, REASON_EXPIRED, Message, message_expired
from fairsched.core.order cimport order_first
from fairsched.core.queuecursor cimport cursor_match, cursor_seek, cursor_set, cursor_takes
from fairsched.core.queuestate cimport (
    WALK_STEPS, Call, Queue, QueueConsumer, queue_lock, queue_remove, queue_unlock, queue_unref,
)
from fairsched.core.wakeup cimport Wants, wakeup_notify, wakeup_one

cdef struct Question:  # does this consumer's filter accept that message?
    QueueConsumer* consumer   # good until the pin is left
    Message* message          # referenced: queue_drop is due

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

cdef inline int queue_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """What a consumer's filter says: 1, 0, or -1: it has not been asked."""
    if not c.filtered or call.accepts == NULL:
        return True
    return call.accepts(call, c, m)

cdef inline bint queue_wants(void* context, ConsumerNode* node) noexcept nogil:
    """Whether a consumer could take the message that the call is about."""
    cdef Call* call = <Call*> context
    cdef Queue* q = call.queue
    cdef QueueConsumer* c = <QueueConsumer*> node
    cdef bint takes
    queue_lock(q)
    takes = call.work.state == <uint32_t> MESSAGE_AVAILABLE and cursor_takes(q, c, call.work)
    queue_unlock(q)
    return takes and queue_accepts(call, c, call.work) != 0

cdef inline Message* queue_next(Call* call) noexcept nogil:
    """Locked. The next message that anybody could take; what has expired goes."""
    cdef Queue* q = call.queue
    cdef Message* m = order_first(&q.order)
    while m != NULL and message_expired(m, call.now):
        queue_remove(q, call, m, REASON_EXPIRED)
        m = order_first(&q.order)
    return m

cdef inline Message* queue_next_walking(Call* call, QueueConsumer* c, int* steps, bint* known) noexcept nogil:
    """Locked. The next message for a consumer with a cursor; as queue_next_for."""
    cdef Queue* q = call.queue
    cdef Message* m = c.match
    cdef int answer
    if m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE and not message_expired(m, call.now) and (
            not c.node.acquires or cursor_takes(q, c, m)
        ):
            return m
        cursor_match(q, c, NULL)
    m = cursor_seek(q, call, c, steps)
    while m != NULL:
        answer = queue_accepts(call, c, m)
        if answer == -1:
            known[0] = False
            return m
        if answer == 1:
            if c.filtered:
                cursor_match(q, c, m)
            return m
        cursor_set(q, c, m)
        m = cursor_seek(q, call, c, steps)
    return NULL

cdef inline Message* queue_next_for(Call* call, QueueConsumer* c, bint* known) noexcept nogil:
    """The next message for a consumer, referenced; NULL: there is none. `known`: its filter has been asked."""
    cdef Queue* q = call.queue
    cdef Message* m = NULL
    cdef int steps = 0
    known[0] = True
    while m == NULL and steps == 0:
        steps = WALK_STEPS
        queue_lock(q)
        m = queue_next_walking(call, c, &steps, known) if c.walks else queue_next(call)
        if m != NULL:
            m.references += 1
        queue_unlock(q)
    return m

cdef inline bint queue_wants_some(void* context, ConsumerNode* node) noexcept nogil:
    """Whether a consumer could take anything that there is."""
    cdef Call* call = <Call*> context
    cdef bint known
    cdef Message* m = queue_next_for(call, <QueueConsumer*> node, &known)
    if m == NULL:
        return False
    queue_drop(call.queue, m)
    return True

cdef inline void queue_announce(Call* call, Message* m) noexcept nogil:
    """A message is available, and visible: tell one consumer. The caller has a reference if anybody has a cursor."""
    cdef Queue* q = call.queue
    cdef ConsumerNode* node
    if q.walkers.load() == 0:
        node = wakeup_one(&q.interest, call.pin, NULL, NULL)
    else:
        call.work = m
        node = wakeup_one(&q.interest, call.pin, queue_wants, call)
    if node != NULL:
        queue_tell(call, <QueueConsumer*> node)

cdef inline void queue_tell_browsers(Call* call, Message* m, bint seen) noexcept nogil:
    """Tell every browser that would see a message; `seen`: only those that see requeues."""
    cdef InterestWalk w
    cdef QueueConsumer* c
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_NON_ACQUIRING)
    c = <QueueConsumer*> interestwalk_next(&w)
    while c != NULL:
        if (c.sees_requeues or not seen) and queue_accepts(call, c, m) != 0:
            queue_tell(call, c)
        c = <QueueConsumer*> interestwalk_next(&w)

cdef inline bint queue_has_work(Call* call) noexcept nogil:
    cdef Queue* q = call.queue
    cdef bint work
    queue_lock(q)
    work = queue_next(call) != NULL
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
    cdef ConsumerNode* node = NULL
    if not queue_offers(q):  # who makes some available announces it
        return
    if q.walkers.load() != 0:
        node = wakeup_one(&q.interest, call.pin, queue_wants_some, call)
    elif queue_has_work(call):
        node = wakeup_one(&q.interest, call.pin, NULL, NULL)
    if node != NULL:
        queue_tell(call, <QueueConsumer*> node)

cdef inline void queue_consider(Call* call, QueueConsumer* c) noexcept nogil:
    """A consumer has become interested: tell it if there is work for it; a browser always."""
    cdef Queue* q = call.queue
    cdef Wants wants = NULL
    if not c.node.acquires:
        queue_tell(call, c)
        return
    if not queue_offers(q) or not queue_wants_some(call, &c.node):
        return
    if q.walkers.load() != 0:
        wants = queue_wants_some
    if wakeup_notify(&q.interest, call.pin, &c.node, wants, call) == MOVED:
        queue_tell(call, c)

cdef inline bint queue_unknown(Call* call, QueueConsumer* c, Message* about, Question* question) noexcept nogil:
    """Whether this consumer's filter has to be asked: about that message, or, NULL, about the next for it."""
    cdef Message* m = about
    cdef Queue* q = call.queue
    cdef bint known = False
    if not c.filtered or call.accepts == NULL:
        return False
    if about == NULL:
        m = queue_next_for(call, c, &known)
        if m == NULL:
            return False
        if known:
            queue_drop(q, m)
            return False
    else:
        if call.accepts(call, c, m) != -1:
            return False
        queue_lock(q)
        m.references += 1
        queue_unlock(q)
    question.consumer = c
    question.message = m
    return True

cdef inline bint queue_unknown_among(
    Call* call, InterestList which, int32_t above, Message* about, Question* question
) noexcept nogil:
    """The first question about consumers of a list whose priority is above one."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    interestwalk_init(&w, &call.queue.interest, call.pin, which)
    node = interestwalk_next(&w)
    while node != NULL and (node.priority > above or which == LIST_NON_ACQUIRING):
        if (which != LIST_ALL or (node.acquires and node_state(node) & (INTERESTED | NOTIFIED))) and queue_unknown(
            call, <QueueConsumer*> node, about, question
        ):
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint queue_question(Call* call, Message* about, Question* question) noexcept nogil:
    """The next filter to be asked before work is announced (about it), or passed on (NULL); False: none."""
    cdef Queue* q = call.queue
    cdef InterestWalk w
    cdef ConsumerNode* node
    cdef bint wants
    if call.accepts == NULL:
        return False
    call.work = about
    if about != NULL and queue_unknown_among(call, LIST_NON_ACQUIRING, -2147483648, about, question):
        return True
    interestwalk_init(&w, &q.interest, call.pin, LIST_INTERESTED)
    node = interestwalk_next(&w)
    while node != NULL:
        if queue_unknown(call, <QueueConsumer*> node, about, question):
            return True
        wants = queue_wants(call, node) if about != NULL else queue_wants_some(call, node)
        if wants:
            return queue_unknown_among(call, LIST_NOTIFIED, node.priority, about, question)
        node = interestwalk_next(&w)
    return False
