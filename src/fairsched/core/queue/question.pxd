"""Which filters to evaluate before a consumer is notified, so that none is notified in vain.

Filters are their owner's to evaluate, outside of the queue, since they may be anything. So before a message is
announced, or work is passed on, or a consumer becomes interested, the owner asks here for the next question, goes
outside, comes back with the answer (`call.accepts`), and asks again until there is none. In between, everything may
have changed; then at worst somebody is told in vain.
What is asked is what wake.pxd goes by: of a consumer that may be told, whether it wants what is announced, and
what is next for it; of each that would outrank it, whether it wants that, and, unless that is what it could take,
whether there is anything else for it.

A walk goes on where the last question was found (`call.stand`), if that consumer still stands there; who came before
has been asked. That there is no question is said only after a walk from the beginning: what has changed meanwhile is
met there. The owner keeps the consumers of the stand, and takes out those that are gone when it comes back.

Thread safety: any, pinned, without the queue's lock. Complexity: all questions of a call together O(questions), and
twice waiting/wakeup.pxd's, if nothing changes meanwhile; what does may cost another such walk each time. Answers have
to be found in O(1).
"""

from fairsched.core.queue.message cimport Message
from fairsched.core.queue.next cimport queue_next_for
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, queue_lock, queue_unlock
from fairsched.core.queue.wake cimport (
    queue_drop, queue_interests, queue_offer_next, queue_rest, queue_takes, queue_wants,
)
from fairsched.core.waiting.node cimport ConsumerNode, INTERESTED, NOTIFIED, node_state
from fairsched.core.waiting.walk cimport (
    LIST_ALL, LIST_INTERESTED, LIST_NON_ACQUIRING, InterestList, InterestWalk, interestwalk_init, interestwalk_next,
    interestwalk_resume,
)

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

cdef inline ConsumerNode* question_begin(
    InterestWalk* w, Call* call, InterestList which, QueueConsumer* stand
) noexcept nogil:
    """Begin a walk where another stood, if that is in the list, or at the beginning: the first node, or NULL."""
    if stand != NULL and interestwalk_resume(w, &call.queue.interest, call.pin, which, &stand.node):
        return &stand.node
    interestwalk_init(w, &call.queue.interest, call.pin, which)
    return interestwalk_next(w)

cdef inline bint question_browser(Call* call, Message* about, QueueConsumer* stand, Question* question) noexcept nogil:
    """The first question about a message to browsers, from one on (NULL: all)."""
    cdef InterestWalk w
    cdef ConsumerNode* node = question_begin(&w, call, LIST_NON_ACQUIRING, stand)
    while node != NULL:
        if queue_unknown(call, <QueueConsumer*> node, about, question):
            call.stand.asked = <QueueConsumer*> node
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint question_outranks(Call* call, QueueConsumer* c, Message* work, Question* question) noexcept nogil:
    """Whether a filter has to be asked before it is known whether a consumer outranks who is offered that."""
    return queue_unknown(call, c, work, question) or (
        not queue_takes(call, c, work) and queue_interests(call, c, work) and queue_unknown(call, c, NULL, question)
    )

cdef inline bint question_above(
    Call* call, QueueConsumer* below, Message* work, Message* about, QueueConsumer* stand, Question* question
) noexcept nogil:
    """As queue_unknown_above, from one consumer on (NULL: all)."""
    cdef InterestWalk w
    cdef ConsumerNode* node = question_begin(&w, call, LIST_ALL, stand)
    cdef QueueConsumer* c
    while node != NULL and node.priority > below.node.priority:
        c = <QueueConsumer*> node
        if c.filtered and node.acquires and node_state(node) & (INTERESTED | NOTIFIED) and (
            question_outranks(call, c, work, question)
            or (about != NULL and about != work and question_outranks(call, c, about, question))
        ):
            call.stand.above = c
            call.stand.below = below
            call.stand.offered = work
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint queue_unknown_above(
    Call* call, QueueConsumer* below, Message* work, Message* about, Question* question
) noexcept nogil:
    """The first question to those of a higher priority, before it is known whether they outrank who is offered that.

    That is `work`, and then what is announced, `about`, which may be NULL.
    """
    cdef QueueConsumer* stand = call.stand.above
    if call.accepts == NULL:
        return False
    if stand != NULL and (call.stand.below != below or call.stand.offered != work):
        stand = NULL
    if stand != NULL and question_above(call, below, work, about, stand, question):
        return True
    return question_above(call, below, work, about, NULL, question)

cdef inline bint question_before(Call* call, QueueConsumer* c, bint* wants, Question* question) noexcept nogil:
    """The next filter to be asked before it is known whether a consumer would be told, and that is not outranked."""
    wants[0] = False
    if call.about != NULL and queue_unknown(call, c, call.about, question):
        return True
    if (call.about == NULL or queue_interests(call, c, call.about)) and queue_unknown(call, c, NULL, question):
        return True
    if queue_offer_next(call, c) and queue_unknown_above(call, c, call.work, call.about, question):
        return True
    queue_rest(call)
    wants[0] = queue_wants(call, &c.node)
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
    node = question_begin(&w, call, LIST_INTERESTED, stand)
    while node != NULL and not wants:
        found = question_before(call, <QueueConsumer*> node, &wants, question)
        if found:
            call.stand.asked = <QueueConsumer*> node
            break
        node = interestwalk_next(&w)
    queue_rest(call)
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
    queue_rest(call)
    return found
