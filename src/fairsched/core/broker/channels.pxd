"""A channel: the settlement of its deliveries, and how it closes.

When a channel or connection closes, its consumers are removed first, so that they do not receive the returned messages
again; then all unacknowledged messages return to their places, marked as redelivered.

Thread safety: the connection's thread. Complexity: O(deliveries settled).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched.core.amqp.octets cimport bytes_clear, bytes_init, text_free
from fairsched.core.broker.consumers cimport channel_hinder
from fairsched.core.broker.durability.keeping cimport message_leave
from fairsched.core.broker.exchanges.names cimport names_clear, names_init
from fairsched.core.broker.payload cimport payload_release
from fairsched.core.broker.queues cimport brokerqueue_gives_at_once, brokerqueue_release, queuecall_returned
from fairsched.core.broker.state cimport (
    AWAIT_METHOD, BrokerConnection, BrokerQueue, Channel, Consumer, Publication, TxSettlement, Unacked,
)
from fairsched.core.broker.unacked cimport unacked_clear, unacked_find, unacked_init, unacked_remove
from fairsched.core.broker.queuecall cimport (
    DEAD_REJECTED, QueueCall, deadletters_add, queuecall_begin, queuecall_end,
)
from fairsched.core.connection.chain cimport Session
from fairsched.core.connection.session cimport session_close, session_init
from fairsched.core.queue.settle cimport SETTLE_ACK, SETTLE_RELEASE, queue_expire_taken, queue_settle
from fairsched.core.queue.state cimport QueueConsumer

cdef enum SettleVerb:
    VERB_ACK
    VERB_REQUEUE
    VERB_REJECT

cdef struct Settling:  # several deliveries: those of one queue, one after the other, in one QueueCall
    QueueCall call
    BrokerQueue* queue       # of the call, referenced; NULL: no call is open
    bint requeued            # a message was returned, which may have expired

cdef inline void settling_end(Settling* s) noexcept nogil:
    if s.queue != NULL:
        if s.requeued:
            queuecall_returned(&s.call)
        queuecall_end(&s.call)
        brokerqueue_release(s.queue)
        s.queue = NULL

cdef inline void channel_settle(Channel* ch, Settling* s, Unacked* u, SettleVerb verb) noexcept nogil:
    """Settle one delivery. Call settling_end after the last."""
    cdef BrokerQueue* b = u.queue
    cdef Consumer* consumer = u.consumer
    cdef QueueConsumer* c = NULL
    if s.queue != b:
        settling_end(s)
        queuecall_begin(&s.call, b, ch.connection.now, &ch.connection.dead)
        s.queue = b  # with the reference of this delivery
        s.requeued = False
    else:
        brokerqueue_release(b)
    if consumer != NULL:
        consumer.unacked -= 1
        if not consumer.left:
            c = &consumer.base
    if u.counted:
        ch.in_flight -= 1
    unacked_remove(&ch.unacked, u)
    if verb == VERB_REQUEUE:
        s.requeued = True
        if brokerqueue_gives_at_once(b, u.payload):
            queue_expire_taken(&b.queue, u.message, u.holder, u.lease)
        queue_settle(&s.call.base, c, u.message, u.holder, u.lease, SETTLE_RELEASE)
        return
    queue_settle(&s.call.base, c, u.message, u.holder, u.lease, SETTLE_ACK)
    if verb == VERB_ACK:
        b.acked.fetch_add(1)
        message_leave(b, u.payload)
    else:
        deadletters_add(&ch.connection.dead, b, u.payload, DEAD_REJECTED)

cdef inline void channel_settle_all(Channel* ch, uint64_t last, SettleVerb verb) noexcept nogil:
    """Settle all deliveries up to a tag, except those that a transaction has settled."""
    cdef Settling s
    cdef Unacked* u
    cdef uint64_t tag = ch.unacked.base
    s.queue = NULL
    while tag <= last and tag < ch.unacked.high:
        u = unacked_find(&ch.unacked, tag)
        if u != NULL and not u.settled:
            channel_settle(ch, &s, u, verb)
        tag = max(tag + 1, ch.unacked.base)
    settling_end(&s)

cdef inline void channel_relieve(Channel* ch) noexcept nogil:
    """Let consumers pull again after a settlement."""
    if ch.limit and ch.in_flight < ch.limit:
        channel_hinder(ch, False)

cdef inline bint channel_acknowledge(Channel* ch, uint64_t tag, bint multiple, SettleVerb verb) noexcept nogil:
    """Settle a delivery, or all up to it; False: there is no such tag."""
    cdef Settling s
    cdef Unacked* u
    if multiple and tag == 0:  # all deliveries
        tag = ch.unacked.high - 1
    elif unacked_find(&ch.unacked, tag) == NULL:
        return False
    if multiple:
        channel_settle_all(ch, tag, verb)
    else:
        s.queue = NULL
        u = unacked_find(&ch.unacked, tag)
        channel_settle(ch, &s, u, verb)
        settling_end(&s)
    channel_relieve(ch)
    return True

# Its life -------------------------------------------------------------------------------------------------------------

cdef inline void channel_disposed(Session* session) noexcept nogil:
    cdef Channel* ch = <Channel*> session
    ch.connection.server.channels.fetch_sub(1)
    unacked_clear(&ch.unacked)
    text_free(&ch.last_queue)
    text_free(&ch.replies)
    bytes_clear(&ch.transaction)
    bytes_clear(&ch.settlements)
    bytes_clear(&ch.waiting)
    free(ch)

cdef inline Channel* channel_create(BrokerConnection* connection, uint32_t number) noexcept nogil:
    cdef Channel* ch = <Channel*> malloc(sizeof(Channel))
    if ch == NULL:
        return NULL
    memset(<void*> ch, 0, sizeof(Channel))
    session_init(&ch.session, &connection.base, &connection.server.session_actions, ch)
    ch.connection = connection
    ch.number = number
    ch.open = True
    names_init(&ch.tags)
    unacked_init(&ch.unacked)
    bytes_init(&ch.transaction)
    bytes_init(&ch.settlements)
    bytes_init(&ch.waiting)
    connection.server.channels.fetch_add(1)
    return ch

cdef inline void channel_drop_incoming(Channel* ch) noexcept nogil:
    """Drop the message that is being received."""
    if ch.incoming.payload != NULL:
        payload_release(ch.incoming.payload)
        ch.incoming.payload = NULL
    ch.awaited = AWAIT_METHOD

cdef inline void channel_unsettle(Channel* ch) noexcept nogil:
    """Make the deliveries that were settled in a transaction unacknowledged again."""
    cdef int64_t at = ch.settlements.begin
    while at < ch.settlements.end:
        unacked_find(&ch.unacked, (<TxSettlement*> (ch.settlements.data + at)).tag).settled = False
        at += <int64_t> sizeof(TxSettlement)
    bytes_clear(&ch.settlements)
    ch.settled = 0

cdef inline void channel_drop_transaction(Channel* ch) noexcept nogil:
    """Drop the messages and settlements of a transaction."""
    cdef int64_t at = ch.transaction.begin
    cdef Publication* p
    while at < ch.transaction.end:
        p = <Publication*> (ch.transaction.data + at)
        payload_release(p.payload)
        at += <int64_t> sizeof(Publication) + p.names
    bytes_clear(&ch.transaction)
    channel_unsettle(ch)

cdef inline void channel_unconfirm(Channel* ch) noexcept nogil:
    """Remove a channel from the list of those that owe confirms."""
    cdef Channel** link = &ch.connection.confirming
    if not ch.awaits_confirm:
        return
    while link[0] != ch:
        link = &link[0].next_confirm
    link[0] = ch.next_confirm
    ch.awaits_confirm = False

cdef inline void channel_empty(Channel* ch) noexcept nogil:
    """Return the unacknowledged messages of a channel whose consumers have left."""
    channel_drop_incoming(ch)
    channel_drop_transaction(ch)
    channel_unconfirm(ch)
    channel_settle_all(ch, <uint64_t> -1, VERB_REQUEUE)

cdef inline void channel_stop(Channel* ch) noexcept nogil:
    """Remove a channel's consumers and return its messages. The connection disposes of the channel later."""
    cdef Consumer* c = ch.consumers
    ch.open = False
    session_close(&ch.session)
    while c != NULL:
        c.channel = NULL
        c = c.next
    ch.consumers = NULL
    names_clear(&ch.tags)
    channel_empty(ch)

cdef inline Channel* channel_closing() noexcept nogil:
    """Return the stand-in for a channel that the broker has closed, until close-ok comes."""
    return <Channel*> <uintptr_t> 1
