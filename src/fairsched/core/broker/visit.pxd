"""One call of the broker into a queue, and what happens to the messages that left the queue in it.

A notified consumer notifies its target, so that its connection runs. A message that left the queue without an
acknowledgement becomes a dead letter if the queue has a dead-letter exchange, and is published when no lock is held
(deadletters.pxd); otherwise its memory is freed.

Thread safety: any thread, with a `DeadLetters` of its own. Complexity: O(1) and O(messages that left).
"""

from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport malloc

from fairsched.core.broker.durability.keeping cimport message_leave
from fairsched.core.broker.payload cimport payload_release
from fairsched.core.broker.state cimport BrokerQueue, Consumer, DeadLetter, DeadLetters, Payload
from fairsched.core.connection.connection cimport target_notify
from fairsched.core.queue.message cimport (
    REASON_DELIVERIES, REASON_EXPIRED, REASON_OVERFLOW, Message, messages_turned,
)
from fairsched.core.queue.state cimport Call, QueueConsumer, call_init, queue_forget
from fairsched.core.waiting.interest cimport interest_enter, interest_leave

cdef enum:  # why a message left
    DEAD_NONE = 0
    DEAD_EXPIRED = 1
    DEAD_REJECTED = 2
    DEAD_MAXLEN = 3
    DEAD_DELIVERY_LIMIT = 4

cdef struct Visit:
    Call call                # must be first
    BrokerQueue* queue
    DeadLetters* dead

cdef inline void visit_tell(Call* call, QueueConsumer* c) noexcept nogil:
    target_notify(&(<Consumer*> c).target)

cdef inline void visit_begin(Visit* v, BrokerQueue* queue, int64_t now, DeadLetters* dead) noexcept nogil:
    call_init(&v.call, &queue.queue, now)
    v.call.tell = visit_tell
    v.queue = queue
    v.dead = dead
    v.call.pin = interest_enter(&queue.queue.interest)

cdef inline void deadletters_init(DeadLetters* dead) noexcept nogil:
    dead.first = NULL
    dead.last = NULL

cdef inline void deadletters_add(DeadLetters* dead, BrokerQueue* queue, Payload* p, uint32_t reason) noexcept nogil:
    """Take over a reference to a message that has left a queue."""
    cdef DeadLetter* letter
    if not queue.arguments.has_dlx or reason == DEAD_NONE:
        message_leave(queue, p)
        return
    letter = <DeadLetter*> malloc(sizeof(DeadLetter))
    if letter == NULL:  # memory is exhausted: it goes to nobody, but its record stays, to be found at the next start
        payload_release(p)
        return
    queue.references.fetch_add(1)
    letter.payload = p
    letter.queue = queue
    letter.reason = reason
    letter.next = NULL
    if dead.first == NULL:
        dead.first = letter
    else:
        dead.last[0] = letter
    dead.last = &letter.next

cdef inline uint32_t visit_reason(const Message* m) noexcept nogil:
    if m.reason == <uint32_t> REASON_EXPIRED:
        return DEAD_EXPIRED
    if m.reason == <uint32_t> REASON_OVERFLOW:
        return DEAD_MAXLEN
    return DEAD_DELIVERY_LIMIT if m.reason == <uint32_t> REASON_DELIVERIES else DEAD_NONE

cdef inline void visit_collect(Visit* v) noexcept nogil:
    """See to what has left the queue; the chain has what left last in front."""
    cdef Message* m = messages_turned(v.call.removed)
    v.call.removed = m
    while m != NULL:
        if m.token != 0:
            deadletters_add(v.dead, v.queue, <Payload*> <uintptr_t> m.token, visit_reason(m))
            m.token = 0
        m = m.child
    queue_forget(&v.queue.queue, &v.call)

cdef inline void visit_end(Visit* v) noexcept nogil:
    interest_leave(v.call.pin)
    if v.call.removed != NULL:
        visit_collect(v)
