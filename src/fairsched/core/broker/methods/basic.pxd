"""Class basic, without publishing: qos, consume, cancel, get, ack, nack, reject, recover; classes tx and confirm.

Thread safety: the connection's thread. Complexity: O(1), or O(deliveries settled).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from fairsched.core.amqp.constants cimport (
    ACCESS_REFUSED, BASIC_QOS_OK, BASIC_RECOVER_OK, CONFIRM_SELECT_OK, NOT_ALLOWED, NOT_IMPLEMENTED,
    PRECONDITION_FAILED, TX_COMMIT_OK, TX_ROLLBACK_OK, TX_SELECT_OK,
)
from fairsched.core.amqp.contents cimport Content
from fairsched.core.amqp.methods cimport (
    BasicCancel, BasicConsume, BasicGet, BasicQos, BasicSettle, basic_ack_read, basic_cancel_ok_write,
    basic_cancel_read, basic_consume_ok_write, basic_consume_read, basic_get_empty_write, basic_get_ok_write,
    basic_get_read, basic_nack_read, basic_qos_read, basic_recover_read, basic_reject_read, confirm_select_read,
    method_write,
)
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_append, bytes_clear, reader_done,
)
from fairsched.core.broker.arguments cimport consume_arguments_read
from fairsched.core.broker.channels cimport (
    SettleVerb, Settling, VERB_ACK, VERB_REJECT, VERB_REQUEUE, channel_acknowledge, channel_drop_transaction,
    channel_relieve, channel_settle, channel_settle_all, settling_end,
)
from fairsched.core.broker.consumers cimport (
    channel_cancel, channel_hinder, consumer_create, consumer_join, queue_delete_unused, topology_share,
)
from fairsched.core.broker.durability.keeping cimport message_leave
from fairsched.core.broker.errors cimport (
    Refusal, refuse, refuse_memory, refuse_missing, refuse_name, refuse_number, refuse_resource, refuse_syntax,
)
from fairsched.core.broker.exchanges.names cimport NameEntry, names_find
from fairsched.core.broker.exchanges.routing cimport route_named
from fairsched.core.broker.generated cimport name_generate
from fairsched.core.broker.methods.queue cimport queue_open
from fairsched.core.broker.payload cimport payload_content, payload_release
from fairsched.core.broker.publishing cimport publication_deliver
from fairsched.core.broker.queues cimport brokerqueue_release, queuecall_expire
from fairsched.core.broker.replies cimport replies_named, replies_open
from fairsched.core.broker.state cimport (
    BrokerConnection, BrokerQueue, Channel, Consumer, Payload, Publication, TxSettlement, Unacked,
)
from fairsched.core.broker.unacked cimport unacked_add, unacked_find, unacked_reserve, unacked_skip
from fairsched.core.broker.queuecall cimport QueueCall, queuecall_begin, queuecall_end
from fairsched.core.queue.members cimport (
    ADMISSION_CLOSED, ADMISSION_NO_MEMORY, ADMITTED, Admission,
)
from fairsched.core.queue.pull cimport queue_take
from fairsched.core.queue.settle cimport SETTLE_ACK, queue_settle
from fairsched.core.queue.state cimport Pulled

# Consumers ------------------------------------------------------------------------------------------------------------

cdef inline bint on_basic_qos(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicQos m
    if not basic_qos_read(r, &m):
        return refuse_syntax(refusal)
    if m.prefetch_size != 0:
        return refuse_number(refusal, NOT_IMPLEMENTED, b"prefetch_size!=0 (", m.prefetch_size, b")")
    if m.is_global:
        ch.limit = m.prefetch_count
        channel_hinder(ch, ch.limit != 0 and ch.in_flight >= ch.limit)
    else:
        ch.prefetch = m.prefetch_count
    method_write(&ch.connection.output, ch.number, BASIC_QOS_OK)
    return True

cdef inline Consumer* channel_find_consumer(Channel* ch, Text tag) noexcept nogil:
    cdef NameEntry* entry = names_find(&ch.tags, tag)
    return <Consumer*> entry.value if entry != NULL else NULL

cdef inline bint refuse_exclusive(Refusal* refusal, Text queue, Text vhost) noexcept nogil:
    return refuse_resource(refusal, ACCESS_REFUSED, b"", False, queue, vhost, b" in exclusive use")

cdef inline bint consume_start(
    Channel* ch, BrokerQueue* b, const BasicConsume* m, Refusal* refusal
) noexcept nogil:
    """Create a consumer and subscribe it; False: refused."""
    cdef int32_t priority
    cdef Consumer* c
    cdef Admission admission
    if not consume_arguments_read(m.arguments, b.name, b.host.name, b.arguments.type, &priority, refusal):
        return False
    if m.exclusive and b.arguments.single_active:
        return refuse_exclusive(refusal, b.name, ch.connection.host.name)
    c = consumer_create(ch, b, m.consumer_tag, priority, m.exclusive)
    if c == NULL:
        return refuse_memory(refusal)
    c.no_ack = m.no_ack
    c.prefetch = ch.prefetch
    c.replies = replies_named(m.queue)
    admission = consumer_join(c)
    if admission == ADMITTED:
        c.next = ch.consumers
        if ch.consumers != NULL:
            ch.consumers.previous = c
        ch.consumers = c
        return True
    if admission == ADMISSION_NO_MEMORY:
        return refuse_memory(refusal)
    if admission == ADMISSION_CLOSED:
        return refuse_missing(refusal, False, b.name, ch.connection.host.name)
    return refuse_exclusive(refusal, b.name, ch.connection.host.name)

cdef inline bint on_basic_consume(
    Channel* ch, Reader* r, Refusal* refusal
) noexcept nogil:
    cdef BasicConsume m
    cdef BrokerQueue* b
    cdef uint8_t generated[32]
    cdef bint done
    if not basic_consume_read(r, &m):
        return refuse_syntax(refusal)
    if m.consumer_tag.length == 0:
        m.consumer_tag = name_generate(b"amq.ctag-", generated)
    elif channel_find_consumer(ch, m.consumer_tag) != NULL:
        return refuse_name(refusal, NOT_ALLOWED, b"attempt to reuse consumer tag '", m.consumer_tag, b"'")
    b = replies_open(ch, &m, refusal) if replies_named(m.queue) else queue_open(ch, &m.queue, refusal)
    if b == NULL:
        return False
    done = consume_start(ch, b, &m, refusal)
    if not done and replies_named(m.queue):
        queue_delete_unused(ch.connection, b)  # memory is exhausted: nobody else can know this queue
    brokerqueue_release(b)
    if done and not m.no_wait:
        basic_consume_ok_write(&ch.connection.output, ch.number, m.consumer_tag)
    return done

cdef inline bint on_basic_cancel(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicCancel m
    cdef Consumer* c
    if not basic_cancel_read(r, &m):
        return refuse_syntax(refusal)
    c = channel_find_consumer(ch, m.consumer_tag)
    if c != NULL:
        channel_cancel(c)
    if not m.no_wait:
        basic_cancel_ok_write(&ch.connection.output, ch.number, m.consumer_tag)
    return True

# Get ------------------------------------------------------------------------------------------------------------------

cdef inline void get_send(
    Channel* ch, BrokerQueue* b, QueueCall* call, const Pulled* pulled, bint no_ack
) noexcept nogil:
    """Send the message taken. The caller has reserved room for the tag."""
    cdef Payload* p = <Payload*> <uintptr_t> pulled.token
    cdef Content content = payload_content(p)
    cdef Unacked* u
    basic_get_ok_write(
        &ch.connection.output, ch.number, <int64_t> ch.connection.frame_max - 8, ch.unacked.high, pulled.redelivered,
        &content,
        <uint32_t> b.queue.available.load()
    )
    b.delivered.fetch_add(1)
    if no_ack:
        unacked_skip(&ch.unacked)
        queue_settle(&call.base, NULL, pulled.message, pulled.holder, pulled.lease, SETTLE_ACK)
        message_leave(b, p)
        return
    u = unacked_add(&ch.unacked)
    b.references.fetch_add(1)
    u.queue = b
    u.message = pulled.message
    u.payload = p
    u.consumer = NULL
    u.holder = pulled.holder
    u.lease = pulled.lease
    u.counted = u.settled = False
    u.since = ch.connection.now

cdef inline bint on_basic_get(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicGet m
    cdef BrokerQueue* b
    cdef QueueCall call
    cdef Pulled pulled
    cdef bint there
    if not basic_get_read(r, &m):
        return refuse_syntax(refusal)
    b = queue_open(ch, &m.queue, refusal)
    if b == NULL:
        return False
    if not unacked_reserve(&ch.unacked, 1):
        brokerqueue_release(b)
        return refuse_memory(refusal)
    queuecall_begin(&call, b, ch.connection.now, &ch.connection.dead)
    there = queue_take(&call.base, &b.getter, &pulled)
    if there:
        queuecall_expire(&call)  # expired messages behind this one do not count
        get_send(ch, b, &call, &pulled, m.no_ack)
    queuecall_end(&call)
    brokerqueue_release(b)
    if not there:
        basic_get_empty_write(&ch.connection.output, ch.number)
    return True

# Settling -------------------------------------------------------------------------------------------------------------

cdef inline bint settle_now(Channel* ch, uint64_t tag, bint multiple, SettleVerb verb, Refusal* refusal) noexcept nogil:
    if not channel_acknowledge(ch, tag, multiple, verb):
        return refuse_number(refusal, PRECONDITION_FAILED, b"unknown delivery tag ", <int64_t> tag, b"")
    return True

cdef inline bint settle_later(
    Channel* ch, uint64_t tag, bint multiple, SettleVerb verb, Refusal* refusal
) noexcept nogil:
    """Keep settlements until the transaction is committed; each delivery so far at most once."""
    cdef uint64_t first = tag, last = tag
    cdef TxSettlement s
    cdef Unacked* u = unacked_find(&ch.unacked, tag)
    if multiple:
        first = max(ch.unacked.base, ch.settled)
        if tag == 0:
            last = ch.unacked.high - 1
    if not (multiple and tag == 0) and (u == NULL or u.settled):
        return refuse_number(refusal, PRECONDITION_FAILED, b"unknown delivery tag ", <int64_t> tag, b"")
    for tag in range(first, last + 1):
        u = unacked_find(&ch.unacked, tag)
        if u == NULL or u.settled:
            continue
        s = TxSettlement(tag, <uint32_t> verb)
        bytes_append(&ch.settlements, <const uint8_t*> &s, sizeof(TxSettlement))
        if ch.settlements.failed:
            return refuse_memory(refusal)
        u.settled = True
    if multiple:
        ch.settled = last + 1
    return True

cdef inline bint settle(Channel* ch, const BasicSettle* m, SettleVerb verb, Refusal* refusal) noexcept nogil:
    if ch.transactional:
        return settle_later(ch, m.delivery_tag, m.multiple, verb, refusal)
    return settle_now(ch, m.delivery_tag, m.multiple, verb, refusal)

cdef inline bint on_basic_ack(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicSettle m
    if not basic_ack_read(r, &m):
        return refuse_syntax(refusal)
    return settle(ch, &m, VERB_ACK, refusal)

cdef inline bint on_basic_nack(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicSettle m
    if not basic_nack_read(r, &m):
        return refuse_syntax(refusal)
    return settle(ch, &m, VERB_REQUEUE if m.requeue else VERB_REJECT, refusal)

cdef inline bint on_basic_reject(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef BasicSettle m
    if not basic_reject_read(r, &m):
        return refuse_syntax(refusal)
    return settle(ch, &m, VERB_REQUEUE if m.requeue else VERB_REJECT, refusal)

cdef inline bint on_basic_recover(Channel* ch, Reader* r, bint answered, Refusal* refusal) noexcept nogil:
    """Carry out basic.recover, or basic.recover-async, which has no reply."""
    cdef bint requeue
    if not basic_recover_read(r, &requeue):
        return refuse_syntax(refusal)
    if not requeue:
        return refuse(refusal, NOT_IMPLEMENTED, b"requeue=false")
    channel_settle_all(ch, <uint64_t> -1, VERB_REQUEUE)
    channel_relieve(ch)
    if answered:
        method_write(&ch.connection.output, ch.number, BASIC_RECOVER_OK)
    return True

# Confirms and transactions --------------------------------------------------------------------------------------------

cdef inline bint on_confirm_select(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef bint no_wait
    if not confirm_select_read(r, &no_wait):
        return refuse_syntax(refusal)
    if ch.transactional:
        return refuse(refusal, PRECONDITION_FAILED, b"cannot switch from tx to confirm mode")
    ch.confirms = True
    if not no_wait:
        method_write(&ch.connection.output, ch.number, CONFIRM_SELECT_OK)
    return True

cdef inline bint on_tx_select(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    if not reader_done(r):
        return refuse_syntax(refusal)
    if ch.confirms:
        return refuse(refusal, PRECONDITION_FAILED, b"cannot switch from confirm to tx mode")
    ch.transactional = True
    method_write(&ch.connection.output, ch.number, TX_SELECT_OK)
    return True

cdef inline void transaction_publish_all(Channel* ch, Refusal* refusal) noexcept nogil:
    """Put the transaction's messages into the queues found at publication that still exist."""
    cdef BrokerConnection* connection = ch.connection
    cdef Bytes kept = ch.transaction
    cdef Publication* p
    cdef int64_t at = kept.begin
    cdef bint taken
    ch.transaction.data = NULL
    ch.transaction.begin = ch.transaction.end = ch.transaction.room = 0
    while at < kept.end:
        p = <Publication*> (kept.data + at)
        at += <int64_t> sizeof(Publication) + p.names
        topology_share(connection)
        if route_named(&connection.route, &connection.host.topology, Text(<uint8_t*> (p + 1), <uint32_t> p.names)):
            publication_deliver(ch, p, &taken, refusal)
        else:
            payload_release(p.payload)
    bytes_clear(&kept)

cdef inline void transaction_settle_all(Channel* ch) noexcept nogil:
    cdef Bytes kept = ch.settlements
    cdef int64_t at = kept.begin
    cdef TxSettlement* s
    cdef Settling settling
    settling.queue = NULL
    ch.settlements.data = NULL
    ch.settlements.begin = ch.settlements.end = ch.settlements.room = 0
    ch.settled = 0
    while at < kept.end:
        s = <TxSettlement*> (kept.data + at)
        channel_settle(ch, &settling, unacked_find(&ch.unacked, s.tag), <SettleVerb> s.verdict)
        at += <int64_t> sizeof(TxSettlement)
    settling_end(&settling)
    channel_relieve(ch)
    bytes_clear(&kept)

cdef inline bint on_tx_end(Channel* ch, Reader* r, bint commits, Refusal* refusal) noexcept nogil:
    """Carry out tx.commit or tx.rollback."""
    if not reader_done(r):
        return refuse_syntax(refusal)
    if not ch.transactional:
        return refuse(refusal, PRECONDITION_FAILED, b"channel is not transactional")
    if commits:
        transaction_publish_all(ch, refusal)
        transaction_settle_all(ch)
    else:
        channel_drop_transaction(ch)
    method_write(&ch.connection.output, ch.number, TX_COMMIT_OK if commits else TX_ROLLBACK_OK)
    return True
