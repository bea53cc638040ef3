"""Which filters have to be asked before somebody is told, so that nobody is told in vain.

Filters are their owner's to evaluate, outside of the queue, since they may be anything. So before a message is
announced, or work is passed on, or a consumer becomes interested, the owner asks here for the next question, goes
outside, comes back with the answer (`call.accepts`), and asks again until there is none. In between, everything may
have changed; then at worst somebody is told in vain.

Thread safety: any, pinned, without the queue's lock. Complexity: that of wakeup.pxd, for each question.
"""

from libc.stdint cimport int32_t

from fairsched.core.consumernode cimport ConsumerNode, INTERESTED, NOTIFIED, node_state
from fairsched.core.interestwalk cimport (
    LIST_ALL, LIST_INTERESTED, LIST_NON_ACQUIRING, InterestList, InterestWalk, interestwalk_init, interestwalk_next,
)
from fairsched.core.message cimport Message
from fairsched.core.queuenext cimport queue_next_for
from fairsched.core.queuestate cimport Call, Queue, QueueConsumer, queue_lock, queue_unlock
from fairsched.core.queuewake cimport queue_drop, queue_interests, queue_offer_next, queue_rest, queue_wants

cdef struct Question:  # does this consumer's filter accept that message?
    QueueConsumer* consumer   # good until the pin is left
    Message* message          # referenced: queue_drop is due

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

cdef inline bint question_before(Call* call, ConsumerNode* node, bint* wants, Question* question) noexcept nogil:
    """The next filter to be asked before it is known whether a consumer would be told, and that is not outranked."""
    cdef QueueConsumer* c = <QueueConsumer*> node
    wants[0] = False
    if call.about != NULL and (queue_unknown(call, c, call.about, question)):
        return True
    if (call.about == NULL or queue_interests(call, c, call.about)) and queue_unknown(call, c, NULL, question):
        return True
    if queue_offer_next(call, c) and queue_unknown_among(call, LIST_ALL, node.priority, call.work, question):
        return True
    if call.about != NULL and queue_unknown_among(call, LIST_ALL, node.priority, call.about, question):
        return True
    queue_rest(call)
    wants[0] = queue_wants(call, node)
    return False

cdef inline bint queue_question(Call* call, Message* about, Question* question) noexcept nogil:
    """The next filter to be asked before work is announced (about it), or passed on (NULL); False: none."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    cdef bint found, wants = False
    if call.accepts == NULL:
        return False
    if about != NULL and queue_unknown_among(call, LIST_NON_ACQUIRING, 0, about, question):
        return True
    call.about = about
    interestwalk_init(&w, &call.queue.interest, call.pin, LIST_INTERESTED)
    node = interestwalk_next(&w)
    found = False
    while node != NULL and not found and not wants:
        found = question_before(call, node, &wants, question)
        node = interestwalk_next(&w)
    queue_rest(call)
    return found

cdef inline bint queue_question_for(Call* call, QueueConsumer* c, Question* question) noexcept nogil:
    """The next filter to be asked before a consumer becomes interested; False: none."""
    cdef bint found, wants
    if call.accepts == NULL or not c.node.acquires:
        return False
    call.about = NULL
    found = question_before(call, &c.node, &wants, question)
    queue_rest(call)
    return found
