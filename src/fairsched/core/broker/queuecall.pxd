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

cdef enum:  # reasons why a message leaves a queue
    DEAD_NONE = 0
    DEAD_EXPIRED = 1
    DEAD_REJECTED = 2
    DEAD_MAXLEN = 3
    DEAD_DELIVERY_LIMIT = 4

cdef struct QueueCall:
    Call base                # must be first
    BrokerQueue* queue
    DeadLetters* dead

cdef inline void queuecall_tell(Call* call, QueueConsumer* c) noexcept nogil:
    target_notify(&(<Consumer*> c).target)

cdef inline void queuecall_begin(QueueCall* call, BrokerQueue* queue, int64_t now, DeadLetters* dead) noexcept nogil:
    call_init(&call.base, &queue.queue, now)
    call.base.tell = queuecall_tell
    call.queue = queue
    call.dead = dead
    call.base.pin = interest_enter(&queue.queue.interest)

cdef inline void deadletters_init(DeadLetters* dead) noexcept nogil:
    dead.first = NULL
    dead.last = NULL

cdef inline void deadletters_add(DeadLetters* dead, BrokerQueue* queue, Payload* p, uint32_t reason) noexcept nogil:
    """Take over a reference to a message that has left a queue."""
    cdef DeadLetter* letter
    if queue.arguments.dlx.data == NULL or reason == DEAD_NONE:
        message_leave(queue, p)
        return
    letter = <DeadLetter*> malloc(sizeof(DeadLetter))
    if letter == NULL:  # memory is exhausted: the letter is lost, but its record stays for the next start
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

cdef inline uint32_t queuecall_reason(const Message* m) noexcept nogil:
    if m.reason == <uint32_t> REASON_EXPIRED:
        return DEAD_EXPIRED
    if m.reason == <uint32_t> REASON_OVERFLOW:
        return DEAD_MAXLEN
    return DEAD_DELIVERY_LIMIT if m.reason == <uint32_t> REASON_DELIVERIES else DEAD_NONE

cdef inline void queuecall_collect(QueueCall* call) noexcept nogil:
    """Collect the messages that have left the queue. The chain begins with the last one."""
    cdef Message* m = messages_turned(call.base.removed)
    call.base.removed = m
    while m != NULL:
        if m.token != 0:
            deadletters_add(call.dead, call.queue, <Payload*> <uintptr_t> m.token, queuecall_reason(m))
            m.token = 0
        m = m.child
    queue_forget(&call.queue.queue, &call.base)

cdef inline void queuecall_end(QueueCall* call) noexcept nogil:
    interest_leave(call.base.pin)
    if call.base.removed != NULL:
        queuecall_collect(call)
