"""The work of a consumer: the first message in the order of service that it could take and is not for one above.

A message is for a consumer of a higher priority if that consumer is ready (interested, or notified), could take the
message, and its filter accepts it. The consumer below passes such messages (yields.pxd); if the one above accepts
anything, all of them are for it.

With a question to fill in, filters that have not been asked are asked first: outside, by the owner (question.pxd).
Without one, an unevaluated filter counts as yes for the candidate itself, and as no for consumers that would outrank
it: so a consumer is told rather than none.

Thread safety: any, pinned, without the queue's lock. Complexity: O(messages passed, each once), and for each that the
consumer could take O(consumers of higher priority); one or two loads where no priority is higher.
"""

from libc.stdint cimport uint32_t

from fairsched.core.queue.cursor cimport cursor_begin, cursor_set, cursor_skip_group, cursor_takes
from fairsched.core.queue.groups cimport groups_allow
from fairsched.core.queue.message cimport MESSAGE_AVAILABLE, Message
from fairsched.core.queue.next cimport queue_next_for, queue_stands
from fairsched.core.queue.order.order cimport KIND_FAIR
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, queue_accepts, queue_lock, queue_unlock, queue_unref
from fairsched.core.queue.yields cimport yields_past
from fairsched.core.waiting.node cimport ConsumerNode, READY, node_state
from fairsched.core.waiting.wakeup cimport wakeup_higher
from fairsched.core.waiting.walk cimport (
    LIST_ALL, InterestList, InterestWalk, interestwalk_init, interestwalk_next, interestwalk_resume,
)

cdef enum Work:
    WORK_ASK = -1    # a filter has to be asked first
    WORK_NONE = 0
    WORK_FOUND = 1

cdef struct Question:  # does this consumer's filter accept that message?
    QueueConsumer* consumer   # good until the pin is left
    Message* message          # referenced: queue_drop is due

cdef inline void queue_drop(Queue* q, Message* m) noexcept nogil:
    """Give up a reference."""
    queue_lock(q)
    queue_unref(q, m)
    queue_unlock(q)

cdef inline bint queue_takes(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Whether a message is available, and a consumer could take it, its filter aside.

    If another consumer has its group, that is noted: the message is offered when the group becomes free.
    """
    cdef Queue* q = call.queue
    cdef bint takes = False
    queue_lock(q)
    if m.state == <uint32_t> MESSAGE_AVAILABLE:
        takes = cursor_takes(q, c, m)
        if not takes and not groups_allow(&q.groups, m, c.id):
            cursor_skip_group(q, m)
    queue_unlock(q)
    return takes

cdef inline bint queue_unknown(Call* call, QueueConsumer* c, Message* m, Question* question) noexcept nogil:
    """Whether a consumer's filter has to be asked about a message, which the caller has a reference to."""
    cdef Queue* q = call.queue
    if not c.filtered or call.accepts == NULL or call.accepts(call, c, m) != -1:
        return False
    queue_lock(q)
    m.references += 1
    queue_unlock(q)
    question.consumer = c
    question.message = m
    return True

cdef inline ConsumerNode* work_walk(
    InterestWalk* w, Call* call, InterestList which, QueueConsumer* stand
) noexcept nogil:
    """Begin a walk where another stood, if that is in the list, or at the beginning: the first node, or NULL."""
    if stand != NULL and interestwalk_resume(w, &call.queue.interest, call.pin, which, &stand.node):
        return &stand.node
    interestwalk_init(w, &call.queue.interest, call.pin, which)
    return interestwalk_next(w)

cdef inline bint work_asks_above(
    Call* call, QueueConsumer* below, Message* m, QueueConsumer* stand, Question* question
) noexcept nogil:
    """Find a question to consumers above `below`, beginning at one of them (NULL: at the first)."""
    cdef InterestWalk w
    cdef ConsumerNode* node = work_walk(&w, call, LIST_ALL, stand)
    cdef QueueConsumer* c
    while node != NULL and node.priority > below.node.priority:
        c = <QueueConsumer*> node
        if c.filtered and node.acquires and node_state(node) & READY and queue_takes(call, c, m) and queue_unknown(
            call, c, m, question
        ):
            call.stand.above = c
            call.stand.below = below
            call.stand.offered = m
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint queue_unknown_above(
    Call* call, QueueConsumer* below, Message* m, Question* question
) noexcept nogil:
    """Find the first question to consumers of a higher priority, to decide if a message is for one of them."""
    cdef QueueConsumer* stand = call.stand.above
    if call.accepts == NULL or not wakeup_higher(&call.queue.interest, below.node.priority):
        return False
    if stand != NULL and (call.stand.below != below or call.stand.offered != m):
        stand = NULL
    if stand != NULL and work_asks_above(call, below, m, stand, question):
        return True
    return work_asks_above(call, below, m, NULL, question)

cdef inline QueueConsumer* queue_above(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Return the first consumer of a higher priority that a message is for, or NULL."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    cdef QueueConsumer* above
    if not wakeup_higher(&call.queue.interest, c.node.priority):
        return NULL
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_ALL)
    node = interestwalk_next(&w)
    while node != NULL and node.priority > c.node.priority:
        above = <QueueConsumer*> node
        if node.acquires and node_state(node) & READY and queue_takes(call, above, m) and queue_accepts(
            call, above, m
        ) == 1:
            return above
        node = interestwalk_next(&w)
    return NULL

cdef inline bint work_yield(Call* call, QueueConsumer* c, Message* m, QueueConsumer* above) noexcept nogil:
    """Have a consumer pass a message that is for one above, or check again after a change; False: it cannot."""
    cdef Queue* q = call.queue
    cdef bint can
    queue_lock(q)
    can = not c.gone.load()
    if can and not c.walks:
        cursor_begin(q, c)  # then it walks to the message
    elif can and node_state(&above.node) & READY and m.state == <uint32_t> MESSAGE_AVAILABLE and (
        q.order.kind == KIND_FAIR or queue_stands(call, c, m)
    ):
        above.outranks = True
        can = yields_past(q, c, m)
    queue_unlock(q)
    return can

cdef inline void work_refuse(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """Have a consumer pass an announced message that its filter refuses, if it is next, so as not to ask again."""
    cdef Queue* q = call.queue
    queue_lock(q)
    if c.walks and q.order.kind != KIND_FAIR and queue_stands(call, c, m):
        cursor_set(q, c, m)
    queue_unlock(q)

cdef inline Work queue_work(Call* call, QueueConsumer* c, Message** found, Question* question) noexcept nogil:
    """Find a message that an acquiring consumer may take: WORK_FOUND, referenced, WORK_NONE, or WORK_ASK."""
    cdef bint known = True
    cdef QueueConsumer* above
    cdef Message* m = queue_next_for(call, c, &known)
    while m != NULL:
        found[0] = m
        if question != NULL and not known:
            question.consumer = c
            question.message = m
            return WORK_ASK
        if question != NULL and queue_unknown_above(call, c, m, question):
            queue_drop(call.queue, m)
            return WORK_ASK
        above = queue_above(call, c, m)
        if above == NULL:
            return WORK_FOUND
        known = above.walks and work_yield(call, c, m, above)
        queue_drop(call.queue, m)
        if not known:  # a consumer above takes every message
            return WORK_NONE
        m = queue_next_for(call, c, &known)
    return WORK_NONE
