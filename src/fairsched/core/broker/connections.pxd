"""A client's connection: its frames, errors and alarms, and the reading and writing of a pass.

A pass reads once, processes all complete frames, then publishes dead letters and confirms published messages
(core/connection then serves consumers, and writes everything in one call). An error closes the channel or the
connection, depending on its code: unacknowledged messages are returned first, then the client is informed, and
everything it sends except its reply is ignored.

Thread safety: the connection's thread. Complexity: O(octets).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset

from fairsched.core.amqp.constants cimport (
    ACCESS_REQUEST, BASIC_ACK, BASIC_CANCEL, BASIC_CANCEL_OK, BASIC_CONSUME, BASIC_GET, BASIC_NACK, BASIC_PUBLISH,
    BASIC_QOS, BASIC_RECOVER, BASIC_RECOVER_ASYNC, BASIC_REJECT, CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CHANNEL_ERROR,
    CHANNEL_FLOW, CHANNEL_FLOW_OK, CHANNEL_OPEN, CLASS_BASIC, COMMAND_INVALID, CONFIRM_SELECT, CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK, CONNECTION_FORCED, CONNECTION_OPEN, CONNECTION_START_OK, CONNECTION_TUNE_OK,
    CONNECTION_UNBLOCKED, CONNECTION_UPDATE_SECRET, CONNECTION_UPDATE_SECRET_OK, EXCHANGE_BIND, EXCHANGE_DECLARE,
    EXCHANGE_DELETE, EXCHANGE_UNBIND, FRAME_BODY, FRAME_ERROR, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD,
    NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED, QUEUE_BIND, QUEUE_DECLARE, QUEUE_DELETE, QUEUE_PURGE,
    QUEUE_UNBIND, TX_COMMIT, TX_ROLLBACK, TX_SELECT, UNEXPECTED_FRAME,
)
from fairsched.core.amqp.contents cimport contents_body_size, contents_find
from fairsched.core.amqp.frames cimport (
    FRAME_PART, FRAME_TOO_LONG, FRAME_WHOLE, FrameFound, FrameSpan, frames_number, frames_span,
)
from fairsched.core.amqp.methods cimport (
    BasicPublish, Close, ExchangeDeclare, QueueDeclare, access_request_ok_write, basic_publish_read,
    channel_close_write, channel_flow_ok_write, channel_flow_read, channel_open_ok_write, channel_open_read,
    close_read, connection_blocked_write, connection_close_write, exchange_declare_read, method_of, method_write,
    queue_declare_read,
)
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_add, bytes_append, bytes_clear, bytes_room, bytes_size, bytes_take, reader_of, text_of,
)
from fairsched.core.broker.channels cimport channel_closing, channel_create, channel_stop
from fairsched.core.broker.consumers cimport host_forget, topology_share, topology_unshare
from fairsched.core.broker.deadletters cimport deadletters_publish
from fairsched.core.broker.durability.keeping cimport (
    brokerconnection_await, brokerconnection_awaits, brokerconnection_disk_failed, brokerconnection_may_change,
    brokerconnection_outpaces_disk, brokerconnection_output_lost,
)
from fairsched.core.broker.errors cimport (
    Refusal, code_name, code_of_channel, refusal_number, refusal_say, refuse, refuse_memory, refuse_number,
    refuse_syntax,
)
from fairsched.core.broker.handshake cimport (
    PROTOCOL_SIZE, SECOND, handshake_begin, on_connection_open, on_start_ok, on_tune_ok,
)
from fairsched.core.broker.methods.basic cimport (
    on_basic_ack, on_basic_cancel, on_basic_consume, on_basic_get, on_basic_nack, on_basic_qos, on_basic_recover,
    on_basic_reject, on_confirm_select, on_tx_end, on_tx_select,
)
from fairsched.core.broker.methods.exchange cimport on_exchange_bind, on_exchange_declare, on_exchange_delete
from fairsched.core.broker.methods.queue cimport (
    on_queue_bind, on_queue_declare, on_queue_delete, on_queue_purge, on_queue_unbind,
)
from fairsched.core.broker.network cimport clock_now
from fairsched.core.broker.payload cimport (
    payload_account, payload_body, payload_create, payload_resize,
)
from fairsched.core.broker.poller cimport EVENT_END, EVENT_READ, poller_read, poller_write
from fairsched.core.broker.publishing cimport channel_publish, confirm_due, confirms_write
from fairsched.core.broker.queues cimport brokerqueue_close, brokerqueue_drop
from fairsched.core.broker.replies cimport replies_address
from fairsched.core.broker.state cimport (
    ALARM_CLOSE, ALARM_DEAD, ALARM_HEARTBEAT, ALARM_STOP, ALARM_TIMEOUT, AWAIT_BODY, AWAIT_HEADER, AWAIT_METHOD,
    BrokerConnection, BrokerQueue, Channel, Payload, STATE_CLOSING, STATE_GONE, STATE_HEADER, STATE_LOGIN, STATE_OPEN,
    STATE_OPENING, STATE_START, STATE_TUNE, Unacked,
)
from fairsched.core.broker.unacked cimport unacked_find
from fairsched.core.connection.chain cimport Connection, Session
from fairsched.core.connection.connection cimport connection_close, connection_flush, connection_notify, connection_step

cdef enum:
    READ_LEAST = 4096
    READ_MOST = 65536
    BODY_ROOM = 131072           # octets of a body that are allocated before they arrive
    FRAME_BEFORE_TUNE = 4096
    OUTPUT_MOST = 8388608        # unread octets of replies at which a connection is no longer served
    ANSWER_SECONDS = 5           # time to wait for close-ok or the end of the socket
    CATCH_UP = 64                # targets that are served before a reply
    CATCH_UP_CANCELLED = 4096    # the same, before one of them is cancelled

# Errors ---------------------------------------------------------------------------------------------------------------

cdef inline Text refusal_reply(const Refusal* refusal, char* room, size_t size) noexcept nogil:
    """Return the text for the client: name of the code and explanation, which may contain zeros."""
    cdef int length = snprintf(room, size, b"%s - ", code_name(refusal.code))
    cdef size_t more = min(<size_t> refusal.length, size - <size_t> length)
    memcpy(room + length, refusal.text, more)
    return Text(<const uint8_t*> room, <uint32_t> (length + more))

cdef inline void brokerconnection_tear_down(BrokerConnection* connection) noexcept nogil:
    """Close a connection's channels, return their messages, and delete its exclusive queues."""
    cdef Channel* ch
    cdef BrokerQueue* chain = NULL
    cdef BrokerQueue* b
    cdef uint32_t i
    for i in range(connection.room):
        ch = connection.channels[i]
        connection.channels[i] = NULL
        if ch != NULL and ch != channel_closing():
            channel_stop(ch)
    topology_unshare(connection)
    connection.server.lock.lock()
    while connection.exclusive != NULL:
        b = connection.exclusive
        brokerqueue_close(b, False, False)
        host_forget(b)
        b.owner_next = chain
        chain = b
    connection.server.lock.unlock()
    while chain != NULL:
        b = chain
        chain = b.owner_next
        brokerqueue_drop(b, connection.now)

cdef inline void brokerconnection_leave(BrokerConnection* connection) noexcept nogil:
    """Stop reading; pending output is still written."""
    connection.state = STATE_GONE
    if not brokerconnection_awaits(connection):
        connection_close(&connection.base)

cdef inline void brokerconnection_lose(BrokerConnection* connection) noexcept nogil:
    """Give up a socket that has failed."""
    connection.lost = True
    connection.awaits = 0
    bytes_clear(&connection.output)
    brokerconnection_leave(connection)

cdef inline void brokerconnection_fail(
    BrokerConnection* connection, const Refusal* refusal, uint32_t method
) noexcept nogil:
    """Close the connection with an error."""
    cdef char room[1200]
    cdef Text reply = refusal_reply(refusal, room, sizeof(room))
    confirms_write(connection)
    brokerconnection_tear_down(connection)
    if connection.state == STATE_HEADER or connection.state == STATE_START:
        brokerconnection_leave(connection)
        return
    connection_close_write(&connection.output, refusal.code, reply, method)
    connection.state = STATE_CLOSING
    connection.deadline.store(connection.now + <int64_t> ANSWER_SECONDS * SECOND)

cdef inline void channel_fail(Channel* ch, const Refusal* refusal, uint32_t method) noexcept nogil:
    """Close a channel with an error."""
    cdef char room[1200]
    cdef Text reply = refusal_reply(refusal, room, sizeof(room))
    cdef BrokerConnection* connection = ch.connection
    confirm_due(ch)
    topology_unshare(connection)
    connection.channels[ch.number] = channel_closing()
    channel_stop(ch)
    channel_close_write(&connection.output, ch.number, refusal.code, reply, method)

cdef inline void fail(
    BrokerConnection* connection, Channel* ch, const Refusal* refusal, uint32_t method
) noexcept nogil:
    """Close the channel or the connection, as the code of a refusal says."""
    if ch != NULL and code_of_channel(refusal.code):
        channel_fail(ch, refusal, method)
    else:
        brokerconnection_fail(connection, refusal, method)

cdef inline void dead_publish(BrokerConnection* connection) noexcept nogil:
    """Publish dead letters."""
    if connection.dead.first != NULL:
        topology_share(connection)
        deadletters_publish(&connection.route, &connection.dead, connection.now)

# Publishing: method, header, body -------------------------------------------------------------------------------------

cdef inline void brokerconnection_block(BrokerConnection* connection) noexcept nogil:
    """Pause reading: the broker is low on memory, and this connection has started to publish."""
    connection.paused = True
    if connection.blocked_notify:
        connection_blocked_write(&connection.output, text_of(b"low on memory"))

cdef inline void brokerconnection_unblock(BrokerConnection* connection) noexcept nogil:
    """Resume reading."""
    connection.paused = False
    connection.events.fetch_or(EVENT_READ)
    if connection.blocked_notify and connection.state == STATE_OPEN:
        method_write(&connection.output, 0, CONNECTION_UNBLOCKED)

cdef inline bint on_basic_publish(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    """Start a message; its header follows."""
    cdef BasicPublish m
    if not basic_publish_read(r, &m):
        return refuse_syntax(refusal)
    if m.immediate:
        return refuse(refusal, NOT_IMPLEMENTED, b"immediate=true")
    memcpy(ch.names, m.exchange.data, m.exchange.length)
    ch.exchange = Text(&ch.names[0], m.exchange.length)
    memcpy(ch.names + m.exchange.length, m.routing_key.data, m.routing_key.length)
    ch.key = Text(&ch.names[m.exchange.length], m.routing_key.length)
    ch.mandatory = m.mandatory
    ch.awaited = AWAIT_HEADER
    ch.connection.publishes = True
    if ch.connection.server.short_of_memory.load():
        brokerconnection_block(ch.connection)
    return True

cdef inline bint on_complete(Channel* ch, Refusal* refusal) noexcept nogil:
    """Publish a message that is complete."""
    ch.awaited = AWAIT_METHOD
    payload_account(ch.incoming.payload, ch.connection.server)
    return channel_publish(ch, refusal)

cdef inline bint on_header(Channel* ch, const FrameSpan* f, Refusal* refusal) noexcept nogil:
    cdef int64_t size, most = ch.connection.server.limits.message_size
    cdef Bytes header
    cdef const uint8_t* payload = f.payload
    cdef int64_t length = f.size
    if f.size >= 2 and frames_number(f.payload, 2) != CLASS_BASIC:
        return refuse_number(
            refusal, UNEXPECTED_FRAME, b"expected content header for class 60, got one for class ",
            <int64_t> frames_number(f.payload, 2), b" instead"
        )
    if not contents_find(f.payload, f.size, &ch.incoming.properties):
        return refuse(refusal, FRAME_ERROR, b"cannot decode the content header")
    size = contents_body_size(f.payload)
    if size < 0 or size > most:
        ch.awaited = AWAIT_METHOD
        return refuse_number(
            refusal, PRECONDITION_FAILED, b"message size ", size, b" is larger than configured max size"
        )
    if not replies_address(ch, f.payload, f.size, &ch.incoming.properties, &header, refusal):
        bytes_clear(&header)
        ch.awaited = AWAIT_METHOD
        return False
    ch.room = min(size, <int64_t> BODY_ROOM)
    ch.received = 0
    if bytes_size(&header):
        payload = header.data
        length = bytes_size(&header)
        contents_find(payload, length, &ch.incoming.properties)
    ch.incoming.payload = payload_create(
        ch.connection.server, ch.exchange, ch.key, payload, length, &ch.incoming.properties, size, ch.room
    )
    bytes_clear(&header)
    if ch.incoming.payload == NULL:
        return refuse_memory(refusal)
    ch.awaited = AWAIT_BODY
    return True if size else on_complete(ch, refusal)

cdef inline bint on_body(Channel* ch, const FrameSpan* f, Refusal* refusal) noexcept nogil:
    cdef Payload* p = ch.incoming.payload
    cdef int64_t size = p.body_size
    if f.size > size - ch.received:
        return refuse(refusal, FRAME_ERROR, b"the body is longer than the content header says")
    if ch.received + f.size > ch.room:
        while ch.room < ch.received + f.size:
            ch.room = min(2 * ch.room, size)
        p = payload_resize(p, ch.room)
        if p == NULL:
            return refuse_memory(refusal)
        ch.incoming.payload = p
    memcpy(payload_body(p) + ch.received, f.payload, <size_t> f.size)
    ch.received += f.size
    return True if ch.received < size else on_complete(ch, refusal)

# Methods of a channel -------------------------------------------------------------------------------------------------

cdef inline bint on_channel_flow(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef bint active
    if not channel_flow_read(r, &active):
        return refuse_syntax(refusal)
    if not active:
        return refuse(refusal, NOT_IMPLEMENTED, b"active=false")
    channel_flow_ok_write(&ch.connection.output, ch.number, True)
    return True

cdef inline void brokerconnection_forget_channel(BrokerConnection* connection, uint32_t number) noexcept nogil:
    """Free the number of a channel."""
    connection.channels[number] = NULL
    connection.channel_count -= 1

cdef inline bint on_channel_close(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef Close m
    cdef BrokerConnection* connection = ch.connection
    if not close_read(r, &m):
        return refuse_syntax(refusal)
    confirm_due(ch)
    channel_stop(ch)
    brokerconnection_forget_channel(connection, ch.number)
    method_write(&connection.output, ch.number, CHANNEL_CLOSE_OK)
    return True

cdef inline void brokerconnection_catch_up(BrokerConnection* connection, int most, bint in_turn) noexcept nogil:
    """Deliver messages that earlier frames have made possible, for up to `most` targets, before a reply.

    A client that acknowledges and then sends a method with a reply receives the next messages first, as from RabbitMQ.
    `in_turn`: one message at a time if the queue has several consumers.
    """
    cdef Connection* c = &connection.base
    cdef int steps = 0
    dead_publish(connection)
    topology_unshare(connection)
    while steps < most and not c.blocked and not (in_turn and c.yields) and connection_flush(c) and connection_step(c):
        steps += 1
    dead_publish(connection)
    topology_unshare(connection)

cdef inline bint channel_method(
    Channel* ch, uint32_t method, Reader* r, Refusal* refusal
) noexcept nogil:
    """Carry out a method; False: refused."""
    if method == BASIC_PUBLISH:
        return on_basic_publish(ch, r, refusal)
    if method == BASIC_ACK:
        return on_basic_ack(ch, r, refusal)
    if method == BASIC_NACK:
        return on_basic_nack(ch, r, refusal)
    if method == BASIC_REJECT:
        return on_basic_reject(ch, r, refusal)
    if method == BASIC_CANCEL:  # earlier messages are still for this consumer, even if others wait
        brokerconnection_catch_up(ch.connection, CATCH_UP_CANCELLED, False)
        return on_basic_cancel(ch, r, refusal)
    brokerconnection_catch_up(ch.connection, CATCH_UP, True)
    if method == BASIC_GET:
        return on_basic_get(ch, r, refusal)
    if method == BASIC_CONSUME:
        return on_basic_consume(ch, r, refusal)
    if method == BASIC_QOS:
        return on_basic_qos(ch, r, refusal)
    if method == BASIC_RECOVER or method == BASIC_RECOVER_ASYNC:
        return on_basic_recover(ch, r, method == BASIC_RECOVER, refusal)
    if method == QUEUE_DECLARE:
        return on_queue_declare(ch, r, refusal)
    if method == QUEUE_BIND:
        return on_queue_bind(ch, r, refusal)
    if method == QUEUE_UNBIND:
        return on_queue_unbind(ch, r, refusal)
    if method == QUEUE_PURGE:
        return on_queue_purge(ch, r, refusal)
    if method == QUEUE_DELETE:
        return on_queue_delete(ch, r, refusal)
    if method == EXCHANGE_DECLARE:
        return on_exchange_declare(ch, r, refusal)
    if method == EXCHANGE_DELETE:
        return on_exchange_delete(ch, r, refusal)
    if method == EXCHANGE_BIND or method == EXCHANGE_UNBIND:
        return on_exchange_bind(ch, r, method == EXCHANGE_BIND, refusal)
    if method == CONFIRM_SELECT:
        return on_confirm_select(ch, r, refusal)
    if method == TX_SELECT:
        return on_tx_select(ch, r, refusal)
    if method == TX_COMMIT or method == TX_ROLLBACK:
        return on_tx_end(ch, r, method == TX_COMMIT, refusal)
    if method == CHANNEL_CLOSE:
        return on_channel_close(ch, r, refusal)
    if method == CHANNEL_FLOW:
        return on_channel_flow(ch, r, refusal)
    if method == ACCESS_REQUEST:
        access_request_ok_write(&ch.connection.output, ch.number, 1)
        return True
    if method == CHANNEL_FLOW_OK or method == CHANNEL_CLOSE_OK or method == BASIC_CANCEL_OK:
        return True
    if method == CHANNEL_OPEN:
        return refuse(refusal, CHANNEL_ERROR, b"second 'channel.open' seen")
    if r.broken:
        return refuse_syntax(refusal)
    return refuse_number(refusal, COMMAND_INVALID, b"unknown method ", method, b"")

cdef inline bint method_changes(uint32_t method) noexcept nogil:
    """Return whether the reply confirms a change that may be durable: exchange, queue, tx.commit."""
    return method >> 16 == QUEUE_DECLARE >> 16 or method >> 16 == EXCHANGE_DECLARE >> 16 or method == TX_COMMIT

cdef inline bint method_asks(uint32_t method, Reader r) noexcept nogil:
    """Return whether a method is a passive declaration, which changes nothing."""
    cdef QueueDeclare queue
    cdef ExchangeDeclare exchange
    if method == QUEUE_DECLARE:
        return queue_declare_read(&r, &queue) and queue.passive
    return method == EXCHANGE_DECLARE and exchange_declare_read(&r, &exchange) and exchange.passive

cdef inline void channel_frame(Channel* ch, const FrameSpan* f) noexcept nogil:
    """Process a frame of an open channel."""
    cdef BrokerConnection* connection = ch.connection
    cdef Refusal refusal
    cdef Reader r
    cdef uint32_t method = BASIC_PUBLISH
    cdef bint done
    if f.kind == FRAME_METHOD:
        r = reader_of(f.payload, f.size)
        method = method_of(&r)
        if ch.awaited != AWAIT_METHOD:
            done = refuse(
                &refusal, UNEXPECTED_FRAME,
                b"expected content header for class 60, got non content header frame instead"
                if ch.awaited == AWAIT_HEADER else
                b"expected content body, got non content body frame instead"
            )
        elif method_changes(method) and not (brokerconnection_disk_failed(connection) and method_asks(method, r)):
            done = (
                brokerconnection_may_change(connection, &refusal) and channel_method(ch, method, &r, &refusal)
                and brokerconnection_may_change(connection, &refusal)
            )
            if done:
                brokerconnection_await(connection)
        else:
            done = channel_method(ch, method, &r, &refusal)
    elif f.kind == FRAME_HEADER and ch.awaited == AWAIT_HEADER:
        done = on_header(ch, f, &refusal)
    elif f.kind == FRAME_BODY and ch.awaited == AWAIT_BODY:
        done = on_body(ch, f, &refusal)
    elif ch.awaited == AWAIT_METHOD:
        method = 0
        done = refuse(&refusal, UNEXPECTED_FRAME, b"expected method frame, got non method frame instead")
    else:
        done = refuse(
            &refusal, UNEXPECTED_FRAME, b"expected content header for class 60, got non content header frame instead"
            if ch.awaited == AWAIT_HEADER else b"expected content body, got non content body frame instead"
        )
    if not done:
        fail(connection, ch, &refusal, method)

# Frames of a connection -----------------------------------------------------------------------------------------------

cdef inline bint brokerconnection_room(BrokerConnection* connection, uint32_t number) noexcept nogil:
    """Make room for a channel of a number; False: memory is exhausted."""
    cdef uint32_t room = max(connection.room, <uint32_t> 8)
    cdef Channel** channels
    if number < connection.room:
        return True
    while room <= number:
        room *= 2
    channels = <Channel**> realloc(connection.channels, room * sizeof(Channel*))
    if channels == NULL:
        return False
    memset(channels + connection.room, 0, (room - connection.room) * sizeof(Channel*))
    connection.channels = channels
    connection.room = room
    return True

cdef inline void brokerconnection_open_channel(BrokerConnection* connection, const FrameSpan* f) noexcept nogil:
    """Process a frame of a channel that is not open: it must be channel.open."""
    cdef Refusal refusal
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    cdef bint done = False
    if method == CHANNEL_CLOSE or method == CHANNEL_CLOSE_OK:
        if method == CHANNEL_CLOSE:
            method_write(&connection.output, f.channel, CHANNEL_CLOSE_OK)
        return
    if method != CHANNEL_OPEN:
        refuse(&refusal, CHANNEL_ERROR, b"expected 'channel.open'")
    elif not channel_open_read(&r):
        refuse_syntax(&refusal)
    elif connection.channel_count >= connection.channel_max:
        refuse_number(&refusal, NOT_ALLOWED, b"number of channels opened (", connection.channel_count, b")")
        refusal_say(&refusal, b" has reached the negotiated channel_max (")
        refusal_number(&refusal, connection.channel_max)
        refusal_say(&refusal, b")")
    elif not brokerconnection_room(connection, f.channel):
        refuse_memory(&refusal)
    else:
        connection.channels[f.channel] = channel_create(connection, f.channel)
        done = connection.channels[f.channel] != NULL or refuse_memory(&refusal)
    if done:
        connection.channel_count += 1
        channel_open_ok_write(&connection.output, f.channel)
    else:
        brokerconnection_fail(connection, &refusal, method)

cdef inline void brokerconnection_closing_channel(BrokerConnection* connection, const FrameSpan* f) noexcept nogil:
    """Process a frame of a channel that the broker has closed."""
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    if method == CHANNEL_CLOSE:
        method_write(&connection.output, f.channel, CHANNEL_CLOSE_OK)
    if method == CHANNEL_CLOSE or method == CHANNEL_CLOSE_OK:
        brokerconnection_forget_channel(connection, f.channel)

cdef inline void brokerconnection_close(BrokerConnection* connection) noexcept nogil:
    """Reply to connection.close; the client closes the socket when it has the reply.

    Until then the broker reads and discards input. Some clients send messages after connection.close, and closing a
    socket with unread input resets it, so that the client would lose the reply.
    """
    confirms_write(connection)
    brokerconnection_tear_down(connection)
    method_write(&connection.output, 0, CONNECTION_CLOSE_OK)
    connection.state = STATE_CLOSING
    connection.deadline.store(connection.now + <int64_t> ANSWER_SECONDS * SECOND)

cdef inline bint connection_method(
    BrokerConnection* connection, uint32_t method, Reader* r, Refusal* refusal
) noexcept nogil:
    """Carry out a method of the connection itself; False: refused."""
    if method == CONNECTION_CLOSE:
        brokerconnection_close(connection)
        return True
    if method == CONNECTION_START_OK and connection.state == STATE_START:
        return on_start_ok(connection, r, refusal)
    if method == CONNECTION_TUNE_OK and connection.state == STATE_TUNE:
        return on_tune_ok(connection, r, refusal)
    if method == CONNECTION_OPEN and connection.state == STATE_OPENING:
        return on_connection_open(connection, r, refusal)
    if method == CONNECTION_UPDATE_SECRET and connection.state == STATE_OPEN:
        method_write(&connection.output, 0, CONNECTION_UPDATE_SECRET_OK)
        return True
    return refuse_number(refusal, COMMAND_INVALID, b"unexpected method ", method, b" on channel 0")

cdef inline void connection_frame(BrokerConnection* connection, const FrameSpan* f) noexcept nogil:
    """Process a frame of channel 0."""
    cdef Refusal refusal
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    if connection.state == STATE_CLOSING:
        if method == CONNECTION_CLOSE:
            method_write(&connection.output, 0, CONNECTION_CLOSE_OK)
        if method == CONNECTION_CLOSE or method == CONNECTION_CLOSE_OK:
            brokerconnection_leave(connection)
        return
    topology_unshare(connection)
    if f.kind != FRAME_METHOD:
        refuse(&refusal, COMMAND_INVALID, b"unexpected frame on channel 0")
        brokerconnection_fail(connection, &refusal, 0)
    elif not connection_method(connection, method, &r, &refusal):
        brokerconnection_fail(connection, &refusal, method)

cdef inline void brokerconnection_frame(
    BrokerConnection* connection, const FrameSpan* f
) noexcept nogil:
    cdef Channel* ch
    cdef Refusal refusal
    if f.kind == FRAME_HEARTBEAT:
        return
    if f.kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
        if connection.state != STATE_CLOSING:
            refuse_number(&refusal, FRAME_ERROR, b"unknown frame type ", f.kind, b"")
            brokerconnection_fail(connection, &refusal, 0)
    elif f.channel == 0:
        connection_frame(connection, f)
    elif connection.state == STATE_OPEN:
        ch = connection.channels[f.channel] if f.channel < connection.room else NULL
        if ch == NULL:
            brokerconnection_open_channel(connection, f)
        elif ch == channel_closing():
            brokerconnection_closing_channel(connection, f)
        else:
            channel_frame(ch, f)
    elif connection.state != STATE_CLOSING:
        refuse(&refusal, COMMAND_INVALID, b"the connection is not open yet")
        brokerconnection_fail(connection, &refusal, 0)

cdef inline void brokerconnection_refuse_frame(
    BrokerConnection* connection, FrameFound found, const FrameSpan* f
) noexcept nogil:
    """Refuse octets that are not a frame; the following octets cannot be parsed either."""
    cdef Refusal refusal
    if connection.state == STATE_CLOSING:
        # A client that still sends has not read the refusal, and closing a socket with unread input resets it. So
        # discard the input until close-ok, the end of the connection or the deadline.
        bytes_clear(&connection.input)
        return
    if found == FRAME_TOO_LONG:
        refuse_number(
            &refusal, FRAME_ERROR, b"the payload of a frame has ", f.size, b" octets, more than was agreed"
        )
    else:
        refuse(&refusal, FRAME_ERROR, b"a frame does not end with 206")
    brokerconnection_fail(connection, &refusal, 0)
    bytes_clear(&connection.input)

cdef inline bint brokerconnection_reads(const BrokerConnection* connection) noexcept nogil:
    """Return whether frames of a connection are processed."""
    return connection.state != STATE_GONE and connection.state != STATE_LOGIN and not connection.paused

cdef inline bint brokerconnection_holds(BrokerConnection* connection) noexcept nogil:
    """Return whether to pause: the client has too much to read, or the disk is behind.

    `brokerconnection_write` resumes.
    """
    connection.held = bytes_size(&connection.output) >= OUTPUT_MOST or brokerconnection_outpaces_disk(connection)
    return connection.held

cdef inline void brokerconnection_parse(
    BrokerConnection* connection
) noexcept nogil:
    """Process all complete frames."""
    cdef FrameSpan f
    cdef FrameFound found
    cdef int64_t longest
    if connection.state == STATE_HEADER:
        if bytes_size(&connection.input) < PROTOCOL_SIZE:
            return
        if not handshake_begin(connection, connection.input.data + connection.input.begin):
            brokerconnection_leave(connection)
            return
        bytes_take(&connection.input, PROTOCOL_SIZE)
    while brokerconnection_reads(connection):
        # The limit is applied to the payload, although frame_max is for the whole frame, as in RabbitMQ.
        longest = connection.frame_max if connection.frame_max else <int64_t> FRAME_BEFORE_TUNE
        found = frames_span(
            connection.input.data + connection.input.begin, bytes_size(&connection.input), longest, &f
        )
        if found == FRAME_PART:
            return
        if found != FRAME_WHOLE:
            brokerconnection_refuse_frame(connection, found, &f)
            return
        brokerconnection_frame(connection, &f)
        bytes_take(&connection.input, f.whole)

# A pass ---------------------------------------------------------------------------------------------------------------

cdef inline void brokerconnection_settle_up(BrokerConnection* connection) noexcept nogil:
    """Publish dead letters, and confirm published messages."""
    dead_publish(connection)
    topology_unshare(connection)
    if connection.confirming != NULL:
        confirms_write(connection)

cdef inline bint channel_overdue(Channel* ch, int64_t now, Refusal* refusal) noexcept nogil:
    """Return whether a delivery has waited too long for its acknowledgement, and write the refusal."""
    cdef int64_t otherwise = ch.connection.server.limits.ack_timeout, limit
    cdef uint64_t tag
    cdef Unacked* u
    for tag in range(ch.unacked.base, ch.unacked.high):
        u = unacked_find(&ch.unacked, tag)
        if u == NULL or not u.counted or u.settled:
            continue
        limit = u.queue.arguments.consumer_timeout * 1000000 if u.queue.arguments.consumer_timeout > 0 else otherwise
        if limit > 0 and now - u.since > limit:
            refuse_number(
                refusal, PRECONDITION_FAILED, b"delivery acknowledgement on channel ", ch.number,
                b" timed out. Timeout value used: "
            )
            refusal_number(refusal, limit // 1000000)
            refusal_say(
                refusal, b" ms. This timeout value can be configured, see consumers doc guide to learn more"
            )
            return True
    return False

cdef inline void brokerconnection_check_overdue(BrokerConnection* connection) noexcept nogil:
    cdef Refusal refusal
    cdef Session* session = connection.base.sessions  # of open channels only: their numbers have gaps
    cdef Session* following
    while session != NULL:
        following = session.following
        if channel_overdue(<Channel*> session, connection.now, &refusal):
            channel_fail(<Channel*> session, &refusal, 0)
        session = following

cdef inline void brokerconnection_handle_alarms(BrokerConnection* connection, uint32_t alarms) noexcept nogil:
    """Handle alarms set by other threads."""
    cdef Refusal refusal
    cdef const uint8_t* heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    if alarms & ALARM_DEAD:
        brokerconnection_lose(connection)
        return
    if alarms & (ALARM_STOP | ALARM_CLOSE) and connection.state != STATE_CLOSING and connection.state != STATE_GONE:
        if connection.state != STATE_OPEN:
            brokerconnection_leave(connection)
            return
        if alarms & ALARM_STOP:
            refuse(&refusal, CONNECTION_FORCED, b"broker forced connection closure with reason 'shutdown'")
        else:
            refuse(&refusal, CONNECTION_FORCED, b"closed by the operator")
        brokerconnection_fail(connection, &refusal, 0)
    if alarms & ALARM_HEARTBEAT and connection.state == STATE_OPEN:
        bytes_append(&connection.output, heartbeat, 8)
    if alarms & ALARM_TIMEOUT and connection.state == STATE_OPEN:
        brokerconnection_check_overdue(connection)

cdef inline bint brokerconnection_read(
    BrokerConnection* connection
) noexcept nogil:
    """Read once; True: there may be more."""
    cdef uint32_t events = connection.events.exchange(0)
    cdef int64_t got
    cdef uint8_t* room
    cdef bint more = False
    if not events & (EVENT_READ | EVENT_END):
        return False
    room = bytes_room(&connection.input, connection.reads)
    if room == NULL:
        brokerconnection_lose(connection)
        return False
    got = poller_read(connection.server.poller, connection.fd, room, connection.reads)
    if got < 0:
        brokerconnection_lose(connection)
        return False
    if got > 0:
        bytes_add(&connection.input, got)
        connection.heard.store(connection.now)
        more = got == connection.reads or events & EVENT_END != 0
        if got == connection.reads:
            connection.reads = min(2 * connection.reads, <int64_t> READ_MOST)
        elif got < connection.reads // 4:
            connection.reads = max(connection.reads // 2, <int64_t> READ_LEAST)
    elif events & EVENT_END:
        more = True  # the end of the connection is still to be read
    if more:
        connection.events.fetch_or(events)
    brokerconnection_parse(connection)
    return more and brokerconnection_reads(connection) and not connection.held

cdef inline void brokerconnection_resume(BrokerConnection* connection) noexcept nogil:
    """Resume after the journal has progressed or failed: send or drop what waited for it."""
    if brokerconnection_output_lost(connection):
        brokerconnection_lose(connection)
    elif connection.state == STATE_GONE and not brokerconnection_awaits(connection):
        connection_close(&connection.base)

cdef inline bint brokerconnection_work(
    BrokerConnection* connection
) noexcept nogil:
    """Carry out the first part of a pass; True: there may be more to read."""
    cdef uint32_t alarms = connection.alarms.exchange(0)
    cdef bint more = False
    connection.now = clock_now()
    if alarms:
        brokerconnection_handle_alarms(connection, alarms)
    if connection.awaits or connection.state == STATE_GONE:
        brokerconnection_resume(connection)
    if connection.paused and (not connection.server.short_of_memory.load() or connection.state != STATE_OPEN):
        brokerconnection_unblock(connection)
    if brokerconnection_reads(connection) and not brokerconnection_holds(connection):
        more = brokerconnection_read(connection)
    brokerconnection_settle_up(connection)
    if connection.output.failed:
        brokerconnection_lose(connection)
    return more

cdef inline int64_t brokerconnection_buffered(void* context) noexcept nogil:
    return bytes_size(&(<BrokerConnection*> context).output)

cdef inline void brokerconnection_write(void* context) noexcept nogil:
    """Write as much output as the socket takes."""
    cdef BrokerConnection* connection = <BrokerConnection*> context
    cdef Bytes* out = &connection.output
    cdef int64_t sent = 1
    if brokerconnection_awaits(connection):
        return
    while bytes_size(out) > 0 and sent > 0 and not connection.lost:
        sent = poller_write(connection.server.poller, connection.fd, out.data + out.begin, bytes_size(out))
        if sent > 0:
            bytes_take(out, sent)
            connection.spoken.store(connection.now)
    if sent < 0:
        brokerconnection_lose(connection)
    elif connection.held and bytes_size(out) < OUTPUT_MOST and not brokerconnection_outpaces_disk(connection):
        connection.held = False
        connection.events.fetch_or(EVENT_READ)  # read the frames that came meanwhile
        connection_notify(&connection.base)
