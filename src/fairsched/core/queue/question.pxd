"""The filters to evaluate before a consumer is notified, so that none is notified in vain.

The queue's owner evaluates the filters, outside of the queue, since they may run any code. Before a message is
announced, work is passed on, or a consumer becomes interested, the owner asks here for the next question, goes outside,
comes back with the answer (`call.accepts`), and asks again until there is no question. In between, everything may have
changed; then at worst a consumer is told in vain.
The questions are those that wake.pxd and work.pxd decide by: does a consumer that may be told want the announced
message, or the one that is next for it; and does each consumer above that could take that message want it.

A walk continues where the last question was found (`call.stand`), if that consumer still stands there; the consumers
before it have been asked. The answer "no question" comes only after a walk from the beginning, which meets all that has
changed meanwhile. The owner keeps the consumers of the stand, and removes those that are gone when it comes back.

Thread safety: any, pinned, without the queue's lock. Complexity: all questions of a call together O(questions), and
twice wake.pxd's, if nothing changes meanwhile; what does may cost another such walk each time. Answers have to be found
in O(1).
"""

from fairsched.core.queue.message cimport Message
from fairsched.core.queue.state cimport Call, QueueConsumer, queue_accepts
from fairsched.core.queue.wake cimport queue_wants
from fairsched.core.queue.work cimport (
    Question, WORK_ASK, WORK_FOUND, Work, queue_drop, queue_takes, queue_unknown, queue_unknown_above, queue_work,
    work_walk,
)
from fairsched.core.waiting.node cimport ConsumerNode
from fairsched.core.waiting.walk cimport LIST_INTERESTED, LIST_NON_ACQUIRING, InterestWalk, interestwalk_next

cdef inline bint question_browser(Call* call, Message* about, QueueConsumer* stand, Question* question) noexcept nogil:
    """The first question about a message to browsers, from one on (NULL: all)."""
    cdef InterestWalk w
    cdef ConsumerNode* node = work_walk(&w, call, LIST_NON_ACQUIRING, stand)
    while node != NULL:
        if queue_unknown(call, <QueueConsumer*> node, about, question):
            call.stand.asked = <QueueConsumer*> node
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint question_before(Call* call, QueueConsumer* c, bint* wants, Question* question) noexcept nogil:
    """The next filter to be asked before it is known whether a consumer would be told."""
    cdef Message* m = call.about
    cdef Work work
    wants[0] = False
    if m == NULL:
        work = queue_work(call, c, &m, question)
        if work == WORK_ASK:
            return True
        if work == WORK_FOUND:
            queue_drop(call.queue, m)
    elif not queue_takes(call, c, m):
        return False
    elif queue_unknown(call, c, m, question):
        return True
    elif queue_accepts(call, c, m) and queue_unknown_above(call, c, m, question):
        return True
    wants[0] = queue_wants(call, c) != 0
    return False

cdef inline bint question_walk(Call* call, QueueConsumer* stand, Question* question) noexcept nogil:
    """The next filter to be asked before work is announced or passed on, from one consumer on (NULL: all)."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    cdef bint found = False, wants = False
    if call.about != NULL and (stand == NULL or not stand.node.acquires):
        if question_browser(call, call.about, stand, question):
            return True
        stand = NULL
    node = work_walk(&w, call, LIST_INTERESTED, stand)
    while node != NULL and not wants:
        found = question_before(call, <QueueConsumer*> node, &wants, question)
        if found:
            call.stand.asked = <QueueConsumer*> node
            break
        node = interestwalk_next(&w)
    return found

cdef inline bint queue_question(Call* call, Message* about, Question* question) noexcept nogil:
    """The next filter to be asked before work is announced (about it), or passed on (NULL); False: none."""
    cdef QueueConsumer* stand = call.stand.asked
    if call.accepts == NULL:
        return False
    if stand != NULL and call.stand.about != about:
        stand = NULL
    call.about = call.stand.about = about
    if stand != NULL and question_walk(call, stand, question):
        return True
    return question_walk(call, NULL, question)

cdef inline bint queue_question_for(Call* call, QueueConsumer* c, Question* question) noexcept nogil:
    """The next filter to be asked before a consumer becomes interested; False: none."""
    cdef bint found, wants
    if call.accepts == NULL or not c.node.acquires:
        return False
    call.about = NULL
    found = question_before(call, c, &wants, question)
    return found
