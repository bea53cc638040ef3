"""The consumers of a channel: subscribing, sending messages, cancelling.

The queue notifies a consumer of work (queuecall.pxd). The connection's thread then pulls as many messages at a time as
fit, or one message if other consumers wait at the same queue, so that messages are distributed in turn.

Thread safety: the connection's thread; consumer_cancelled, a task, too; consumer_dispose by any.
Complexity: O(1) per message, and O(consumers of its channel) when it uses up the channel's prefetch, and at the first
settlement after that; cancelling O(unacknowledged messages of its channel), if it has any.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fairsched.core.amqp.contents cimport Content
from fairsched.core.amqp.methods cimport basic_cancel_write, basic_deliver_write
from fairsched.core.amqp.octets cimport Text, text_free
from fairsched.core.broker.durability.keeping cimport message_leave, queue_unrecord
from fairsched.core.broker.exchanges.exchanges cimport queue_remove as topology_forget
from fairsched.core.broker.exchanges.names cimport names_add, names_remove
from fairsched.core.broker.payload cimport payload_content
from fairsched.core.broker.queues cimport brokerqueue_close, brokerqueue_drop, brokerqueue_release, brokerqueue_retain
from fairsched.core.broker.state cimport BrokerConnection, BrokerQueue, Channel, Consumer, Payload, STATE_OPEN, Unacked
from fairsched.core.broker.unacked cimport unacked_add, unacked_find, unacked_reserve, unacked_skip
from fairsched.core.broker.queuecall cimport QueueCall, queuecall_begin, queuecall_end
from fairsched.core.connection.chain cimport HINDRANCE_HOST, Target, Task
from fairsched.core.connection.connection cimport connection_notify, target_forget, task_init
from fairsched.core.connection.target cimport (
    target_attach, target_close, target_desired, target_detach, target_hinder, target_init, target_resume, target_start,
)
from fairsched.core.memory cimport CACHE_LINE, first_line
from fairsched.core.queue.consumercredit cimport consumer_set_credit
from fairsched.core.queue.members cimport (
    ADMISSION_NO_MEMORY, ADMITTED, Admission, consumer_init, queue_cancel, queue_set_wish, queue_subscribe,
)
from fairsched.core.queue.overflow cimport OVERFLOW_RING
from fairsched.core.queue.pull cimport queue_pull
from fairsched.core.queue.ring cimport queue_trim
from fairsched.core.queue.settle cimport SETTLE_ACK, queue_settle
from fairsched.core.queue.state cimport Pulled, WISH_USER
from fairsched.core.queue.work cimport Question
from fairsched.core.waiting.interest cimport interest_enter, interest_leave
from fairsched.core.waiting.node cimport node_retire
from fairsched.core.waiting.reclaim cimport GRACE, Garbage, Pin, reclaim_flush

cdef enum:
    DELIVERIES = 32          # messages pulled at once
    DELIVERY_OCTETS = 65536  # about so many octets of bodies pulled at once
    HINDRANCE_FULL = HINDRANCE_HOST  # the channel's prefetch is used up

# Sending messages -----------------------------------------------------------------------------------------------------

cdef inline int64_t consumer_limit(const Consumer* c) noexcept nogil:
    """Return the number of messages that a consumer may pull now."""
    cdef BrokerQueue* b = c.queue
    cdef Channel* ch = c.channel
    cdef int64_t depth, left, limit = DELIVERIES
    if b.queue.consumers.load() > 1:
        limit = 1
    else:
        depth = b.queue.depth.load()
        if depth > 0:
            limit = min(limit, 1 + DELIVERY_OCTETS * depth // max(b.queue.bytes.load(), 1))
    if ch.limit:
        left = <int64_t> ch.limit - <int64_t> ch.in_flight
        limit = min(limit, left) if left <= 0 or not c.no_ack else limit
    return limit

cdef inline void consumer_book(Consumer* c, const Pulled* pulled) noexcept nogil:
    """Add deliveries to the unacknowledged ones."""
    cdef Channel* ch = c.channel
    cdef Unacked* u = unacked_add(&ch.unacked)
    brokerqueue_retain(c.queue)
    u.queue = c.queue
    u.message = pulled.message
    u.payload = <Payload*> <uintptr_t> pulled.token
    u.consumer = c
    c.unacked += 1
    u.holder = pulled.holder
    u.lease = pulled.lease
    u.counted = True
    u.settled = False
    u.since = ch.connection.now
    ch.in_flight += 1

cdef inline void consumer_deliver(Consumer* c, QueueCall* call, const Pulled* pulled) noexcept nogil:
    """Send one message."""
    cdef Channel* ch = c.channel
    cdef BrokerConnection* connection = ch.connection
    cdef Payload* p = <Payload*> <uintptr_t> pulled.token
    cdef Content content = payload_content(p)
    basic_deliver_write(
        &connection.output, ch.number, <int64_t> connection.frame_max - 8, Text(c.tag, c.tag_size), ch.unacked.high,
        pulled.redelivered, &content
    )
    if not c.no_ack:
        consumer_book(c, pulled)
        return
    unacked_skip(&ch.unacked)
    queue_settle(&call.base, &c.base, pulled.message, pulled.holder, pulled.lease, SETTLE_ACK)
    message_leave(c.queue, p)

cdef inline bint consumer_pull(void* context, void* consumer) noexcept nogil:
    """Pull messages and send them; False: there were none."""
    cdef Consumer* c = <Consumer*> consumer
    cdef Channel* ch = c.channel
    cdef BrokerQueue* b = c.queue
    cdef Pulled pulled[DELIVERIES]
    cdef Question question
    cdef QueueCall call
    cdef int64_t limit = consumer_limit(c), taken, i
    if limit <= 0 or not unacked_reserve(&ch.unacked, <uint64_t> limit):
        return False
    queuecall_begin(&call, b, ch.connection.now, &ch.connection.dead)
    taken = queue_pull(&call.base, &c.base, limit, pulled, &question)
    for i in range(taken):
        consumer_deliver(c, &call, &pulled[i])
    if taken < limit and b.queue.overflow.policy == OVERFLOW_RING:
        queue_trim(&call.base, <uint64_t> -1)
    queuecall_end(&call)
    if ch.connection.dead.first != NULL:
        connection_notify(&ch.connection.base)  # dead letters are published when nothing is locked
    if taken <= 0:
        return False
    b.delivered.fetch_add(<uint64_t> taken)
    if b.queue.consumers.load() > 1:
        ch.connection.base.yields = True
    if ch.limit and ch.in_flight >= ch.limit:
        channel_hinder(ch, True)
        channel_end_turn(c)
    return True

cdef inline void channel_end_turn(Consumer* c) noexcept nogil:
    """Move a consumer behind the others of its channel: when the prefetch allows, the first is served first."""
    cdef Channel* ch = c.channel
    cdef Consumer* last = c
    while last.next != NULL:
        last = last.next
    if last == c:
        return
    c.next.previous = c.previous
    if c.previous != NULL:
        c.previous.next = c.next
    else:
        ch.consumers = c.next
    last.next = c
    c.previous = last
    c.next = NULL

cdef inline void channel_hinder(Channel* ch, bint full) noexcept nogil:
    """Stop or resume the consumers of a channel whose prefetch is used up, or no longer.

    As in RabbitMQ, consumers without acknowledgements do not count towards the prefetch, but stop as well.
    """
    cdef Consumer* c = ch.consumers
    if ch.full == full:
        return
    ch.full = full
    while c != NULL:
        if full:
            target_hinder(&c.target, HINDRANCE_FULL)
        else:
            target_resume(&c.target, HINDRANCE_FULL)
        c = c.next

cdef inline void consumer_interest(void* context, void* consumer, bint desired) noexcept nogil:
    """Set whether the queue notifies a consumer of messages."""
    cdef Consumer* c = <Consumer*> consumer
    cdef QueueCall call
    if c.left or c.channel == NULL:
        return
    queuecall_begin(&call, c.queue, c.channel.connection.now, &c.channel.connection.dead)
    queue_set_wish(&call.base, &c.base, WISH_USER, desired)
    queuecall_end(&call)

# Memory ---------------------------------------------------------------------------------------------------------------

cdef inline Consumer* consumer_create(
    Channel* ch, BrokerQueue* b, Text tag, int32_t priority, bint exclusive
) noexcept nogil:
    """Make a consumer in its channel, with a reference to its queue but not subscribed; NULL: memory is exhausted."""
    cdef void* block = malloc(sizeof(Consumer) + CACHE_LINE)
    cdef Consumer* c
    if block == NULL:
        return NULL
    c = <Consumer*> first_line(block)
    memset(<void*> c, 0, sizeof(Consumer))
    c.block = block
    c.tag = <uint8_t*> malloc(tag.length + 1)
    c.entry = names_add(&ch.tags, tag, c)
    if c.tag == NULL or c.entry == NULL:
        if c.entry != NULL:
            names_remove(&ch.tags, c.entry)
        free(c.tag)
        free(block)
        return NULL
    memcpy(c.tag, tag.data, tag.length)
    c.tag_size = tag.length
    consumer_init(&c.base, priority, True)
    c.base.exclusive = exclusive
    c.references.store(1)
    c.queue = b
    brokerqueue_retain(b)
    c.channel = ch
    task_init(&c.task, consumer_cancelled, c)
    return c

cdef inline void consumer_unref(Consumer* c) noexcept nogil:
    if c.references.fetch_sub(1) == 1:
        free(c.tag)
        free(c.block)

cdef inline void consumer_disposed(Target* t) noexcept nogil:
    consumer_unref(<Consumer*> t.context)

cdef inline void consumer_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    """Free a consumer whose node no thread can refer to any more."""
    target_forget(&(<Consumer*> garbage).target)

# Subscribing and cancelling -------------------------------------------------------------------------------------------

cdef inline void consumer_list(Consumer* c) noexcept nogil:
    cdef BrokerQueue* b = c.queue
    b.guard.lock()
    c.previous_of_queue = NULL
    c.next_of_queue = b.consumers
    if b.consumers != NULL:
        b.consumers.previous_of_queue = c
    b.consumers = c
    b.guard.unlock()

cdef inline void consumer_unlist(Consumer* c) noexcept nogil:
    cdef BrokerQueue* b = c.queue
    b.guard.lock()
    if c.previous_of_queue != NULL:
        c.previous_of_queue.next_of_queue = c.next_of_queue
    else:
        b.consumers = c.next_of_queue
    if c.next_of_queue != NULL:
        c.next_of_queue.previous_of_queue = c.previous_of_queue
    b.guard.unlock()

cdef inline Admission consumer_join(Consumer* c) noexcept nogil:
    """Subscribe a consumer to its queue; free the consumer if it is not admitted."""
    cdef Channel* ch = c.channel
    cdef QueueCall call
    cdef Admission admission = ADMISSION_NO_MEMORY
    target_init(&c.target, &ch.session, &ch.connection.server.target_actions, c)
    if ch.full:
        target_hinder(&c.target, HINDRANCE_FULL)
    target_start(&c.target)
    if target_attach(&c.target, c):
        if not target_desired(&c.target):
            c.base.wishes.fetch_and(~<uint32_t> WISH_USER)
        if c.prefetch and not c.no_ack:
            consumer_set_credit(&c.base, c.prefetch)
        consumer_list(c)
        queuecall_begin(&call, c.queue, ch.connection.now, &ch.connection.dead)
        admission = queue_subscribe(&call.base, &c.base)
        queuecall_end(&call)
        if admission == ADMITTED:
            return admission
        consumer_unlist(c)
        target_detach(&c.target, c)
        target_forget(&c.target)
    c.left = True
    names_remove(&ch.tags, c.entry)
    target_close(&c.target)
    brokerqueue_release(c.queue)
    return admission

cdef inline void consumer_leave(void* context, void* consumer) noexcept nogil:
    """Remove a consumer whose target has closed from its queue; delete the queue if it is auto-delete and unused."""
    cdef Consumer* c = <Consumer*> consumer
    cdef BrokerQueue* b = c.queue
    cdef BrokerConnection* connection = <BrokerConnection*> c.target.session.connection
    cdef QueueCall call
    cdef Pin* pin
    cdef int _i
    if c.left:
        return
    c.left = True
    consumer_unlist(c)
    queuecall_begin(&call, b, connection.now, &connection.dead)
    queue_cancel(&call.base, &c.base)
    node_retire(call.base.pin, &c.base.node, consumer_dispose)
    queuecall_end(&call)
    for _i in range(GRACE + 1):
        pin = interest_enter(&b.queue.interest)
        reclaim_flush(pin)
        interest_leave(pin)
    b.used.store(connection.now)
    if b.auto_delete:
        queue_delete_unused(connection, b)
    brokerqueue_release(b)

cdef inline void topology_unshare(BrokerConnection* connection) noexcept nogil:
    """Release the topology's lock if this connection has it."""
    if connection.shares:
        connection.shares = False
        connection.server.lock.unshare()

cdef inline void topology_share(BrokerConnection* connection) noexcept nogil:
    if not connection.shares:
        connection.server.lock.share()
        connection.shares = True

cdef inline void queue_disown(BrokerQueue* b) noexcept nogil:
    """Remove a queue from its owner's exclusive queues. The caller has the topology's lock."""
    if b.owner == NULL:
        return
    if b.owner_previous != NULL:
        b.owner_previous.owner_next = b.owner_next
    else:
        b.owner.exclusive = b.owner_next
    if b.owner_next != NULL:
        b.owner_next.owner_previous = b.owner_previous
    b.owner = NULL

cdef inline void host_forget(BrokerQueue* b) noexcept nogil:
    """Remove a closed queue from the topology. The caller has its lock."""
    queue_disown(b)
    if b.previous != NULL:
        b.previous.next = b.next
    else:
        b.host.queues = b.next
    if b.next != NULL:
        b.next.previous = b.previous
    b.next = b.previous = NULL
    queue_unrecord(b)
    topology_forget(&b.host.topology, b.name)

cdef inline void queue_delete_unused(BrokerConnection* connection, BrokerQueue* b) noexcept nogil:
    """Delete a queue if it has no consumers."""
    cdef bint goes
    topology_unshare(connection)
    connection.server.lock.lock()
    goes = not b.queue.closed.load() and brokerqueue_close(b, True, False)
    if goes:
        host_forget(b)
    connection.server.lock.unlock()
    if goes:
        brokerqueue_drop(b, connection.now)

cdef inline void channel_unlink_consumer(Consumer* c) noexcept nogil:
    """Remove a consumer from its channel and from the channel's unacknowledged deliveries."""
    cdef Channel* ch = c.channel
    cdef uint64_t tag = ch.unacked.base
    cdef Unacked* u
    names_remove(&ch.tags, c.entry)
    if c.previous != NULL:
        c.previous.next = c.next
    else:
        ch.consumers = c.next
    if c.next != NULL:
        c.next.previous = c.previous
    while c.unacked and tag < ch.unacked.high:
        u = unacked_find(&ch.unacked, tag)
        if u != NULL and u.consumer == c:
            u.consumer = NULL
            c.unacked -= 1
        tag += 1

cdef inline void channel_cancel(Consumer* c) noexcept nogil:
    """Cancel a consumer of an open channel."""
    if c.replies:
        text_free(&c.channel.replies)
    channel_unlink_consumer(c)
    target_close(&c.target)
    c.channel = NULL

cdef inline void consumer_cancelled(Task* task) noexcept nogil:
    """Cancel a consumer whose queue was deleted. A client with the capability is sent basic.cancel."""
    cdef Consumer* c = <Consumer*> task.context
    cdef Channel* ch = c.channel
    if ch != NULL and not c.left and ch.open and ch.connection.state == STATE_OPEN:
        if ch.connection.cancel_notify:
            basic_cancel_write(&ch.connection.output, ch.number, Text(c.tag, c.tag_size), True)
        channel_cancel(c)
    consumer_unref(c)
