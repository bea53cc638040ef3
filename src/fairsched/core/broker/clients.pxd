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
    client_await, client_awaits, client_deceived, client_disk_failed, client_may_change, client_outruns,
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
    CLIENT_CLOSING, CLIENT_GONE, CLIENT_HEADER, CLIENT_LOGIN, CLIENT_OPEN, CLIENT_OPENING, CLIENT_START,
    CLIENT_TUNE, BrokerQueue, Channel, Client, Payload, Unacked,
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

cdef inline void client_tear_down(Client* client) noexcept nogil:
    """Close a connection's channels, return their messages, and delete its exclusive queues."""
    cdef Channel* ch
    cdef BrokerQueue* chain = NULL
    cdef BrokerQueue* b
    cdef uint32_t i
    for i in range(client.room):
        ch = client.channels[i]
        client.channels[i] = NULL
        if ch != NULL and ch != channel_closing():
            channel_stop(ch)
    topology_unshare(client)
    client.server.lock.lock()
    while client.exclusive != NULL:
        b = client.exclusive
        brokerqueue_close(b, False, False)
        host_forget(b)
        b.owner_next = chain
        chain = b
    client.server.lock.unlock()
    while chain != NULL:
        b = chain
        chain = b.owner_next
        brokerqueue_drop(b, client.now)

cdef inline void client_leave(Client* client) noexcept nogil:
    """Stop reading; pending output is still written."""
    client.state = CLIENT_GONE
    if not client_awaits(client):
        connection_close(&client.connection)

cdef inline void client_lose(Client* client) noexcept nogil:
    """Give up a socket that has failed."""
    client.lost = True
    client.awaits = 0
    bytes_clear(&client.output)
    client_leave(client)

cdef inline void client_fail(Client* client, const Refusal* refusal, uint32_t method) noexcept nogil:
    """Close the connection with an error."""
    cdef char room[1200]
    cdef Text reply = refusal_reply(refusal, room, sizeof(room))
    confirms_write(client)
    client_tear_down(client)
    if client.state == CLIENT_HEADER or client.state == CLIENT_START:
        client_leave(client)
        return
    connection_close_write(&client.output, refusal.code, reply, method)
    client.state = CLIENT_CLOSING
    client.deadline.store(client.now + <int64_t> ANSWER_SECONDS * SECOND)

cdef inline void channel_fail(Channel* ch, const Refusal* refusal, uint32_t method) noexcept nogil:
    """Close a channel with an error."""
    cdef char room[1200]
    cdef Text reply = refusal_reply(refusal, room, sizeof(room))
    cdef Client* client = ch.client
    confirm_due(ch)
    topology_unshare(client)
    client.channels[ch.number] = channel_closing()
    channel_stop(ch)
    channel_close_write(&client.output, ch.number, refusal.code, reply, method)

cdef inline void fail(Client* client, Channel* ch, const Refusal* refusal, uint32_t method) noexcept nogil:
    """Close the channel or the connection, as the code of a refusal says."""
    if ch != NULL and code_of_channel(refusal.code):
        channel_fail(ch, refusal, method)
    else:
        client_fail(client, refusal, method)

cdef inline void dead_publish(Client* client) noexcept nogil:
    """Publish dead letters."""
    if client.dead.first != NULL:
        topology_share(client)
        deadletters_publish(&client.route, &client.dead, client.now)

# Publishing: method, header, body -------------------------------------------------------------------------------------

cdef inline void client_block(Client* client) noexcept nogil:
    """Pause reading: the broker is low on memory, and this connection has started to publish."""
    client.paused = True
    if client.blocked_notify:
        connection_blocked_write(&client.output, text_of(b"low on memory"))

cdef inline void client_unblock(Client* client) noexcept nogil:
    """Resume reading."""
    client.paused = False
    client.events.fetch_or(EVENT_READ)
    if client.blocked_notify and client.state == CLIENT_OPEN:
        method_write(&client.output, 0, CONNECTION_UNBLOCKED)

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
    ch.client.publishes = True
    if ch.client.server.short_of_memory.load():
        client_block(ch.client)
    return True

cdef inline bint on_complete(Channel* ch, Refusal* refusal) noexcept nogil:
    """Publish a message that is complete."""
    ch.awaited = AWAIT_METHOD
    payload_account(ch.incoming.payload, ch.client.server)
    return channel_publish(ch, refusal)

cdef inline bint on_header(Channel* ch, const FrameSpan* f, Refusal* refusal) noexcept nogil:
    cdef int64_t size, most = ch.client.server.limits.message_size
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
        ch.client.server, ch.exchange, ch.key, payload, length, &ch.incoming.properties, size, ch.room
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
    channel_flow_ok_write(&ch.client.output, ch.number, True)
    return True

cdef inline void client_forget_channel(Client* client, uint32_t number) noexcept nogil:
    """Free the number of a channel."""
    client.channels[number] = NULL
    client.channel_count -= 1

cdef inline bint on_channel_close(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef Close m
    cdef Client* client = ch.client
    if not close_read(r, &m):
        return refuse_syntax(refusal)
    confirm_due(ch)
    channel_stop(ch)
    client_forget_channel(client, ch.number)
    method_write(&client.output, ch.number, CHANNEL_CLOSE_OK)
    return True

cdef inline void client_catch_up(Client* client, int most, bint in_turn) noexcept nogil:
    """Deliver messages that earlier frames have made possible, for up to `most` targets, before a reply.

    A client that acknowledges and then sends a method with a reply receives the next messages first, as from RabbitMQ.
    `in_turn`: one message at a time if the queue has several consumers.
    """
    cdef Connection* c = &client.connection
    cdef int steps = 0
    dead_publish(client)
    topology_unshare(client)
    while steps < most and not c.blocked and not (in_turn and c.yields) and connection_flush(c) and connection_step(c):
        steps += 1
    dead_publish(client)
    topology_unshare(client)

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
        client_catch_up(ch.client, CATCH_UP_CANCELLED, False)
        return on_basic_cancel(ch, r, refusal)
    client_catch_up(ch.client, CATCH_UP, True)
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
        access_request_ok_write(&ch.client.output, ch.number, 1)
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
    cdef Client* client = ch.client
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
        elif method_changes(method) and not (client_disk_failed(client) and method_asks(method, r)):
            done = (
                client_may_change(client, &refusal) and channel_method(ch, method, &r, &refusal)
                and client_may_change(client, &refusal)
            )
            if done:
                client_await(client)
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
        fail(client, ch, &refusal, method)

# Frames of a connection -----------------------------------------------------------------------------------------------

cdef inline bint client_room(Client* client, uint32_t number) noexcept nogil:
    """Make room for a channel of a number; False: memory is exhausted."""
    cdef uint32_t room = max(client.room, <uint32_t> 8)
    cdef Channel** channels
    if number < client.room:
        return True
    while room <= number:
        room *= 2
    channels = <Channel**> realloc(client.channels, room * sizeof(Channel*))
    if channels == NULL:
        return False
    memset(channels + client.room, 0, (room - client.room) * sizeof(Channel*))
    client.channels = channels
    client.room = room
    return True

cdef inline void client_open_channel(Client* client, const FrameSpan* f) noexcept nogil:
    """Process a frame of a channel that is not open: it must be channel.open."""
    cdef Refusal refusal
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    cdef bint done = False
    if method == CHANNEL_CLOSE or method == CHANNEL_CLOSE_OK:
        if method == CHANNEL_CLOSE:
            method_write(&client.output, f.channel, CHANNEL_CLOSE_OK)
        return
    if method != CHANNEL_OPEN:
        refuse(&refusal, CHANNEL_ERROR, b"expected 'channel.open'")
    elif not channel_open_read(&r):
        refuse_syntax(&refusal)
    elif client.channel_count >= client.channel_max:
        refuse_number(&refusal, NOT_ALLOWED, b"number of channels opened (", client.channel_count, b")")
        refusal_say(&refusal, b" has reached the negotiated channel_max (")
        refusal_number(&refusal, client.channel_max)
        refusal_say(&refusal, b")")
    elif not client_room(client, f.channel):
        refuse_memory(&refusal)
    else:
        client.channels[f.channel] = channel_create(client, f.channel)
        done = client.channels[f.channel] != NULL or refuse_memory(&refusal)
    if done:
        client.channel_count += 1
        channel_open_ok_write(&client.output, f.channel)
    else:
        client_fail(client, &refusal, method)

cdef inline void client_closing_channel(Client* client, const FrameSpan* f) noexcept nogil:
    """Process a frame of a channel that the broker has closed."""
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    if method == CHANNEL_CLOSE:
        method_write(&client.output, f.channel, CHANNEL_CLOSE_OK)
    if method == CHANNEL_CLOSE or method == CHANNEL_CLOSE_OK:
        client_forget_channel(client, f.channel)

cdef inline void client_close(Client* client) noexcept nogil:
    """Reply to connection.close; the client closes the socket when it has the reply.

    Until then the broker reads and discards input. Some clients send messages after connection.close, and closing a
    socket with unread input resets it, so that the client would lose the reply.
    """
    confirms_write(client)
    client_tear_down(client)
    method_write(&client.output, 0, CONNECTION_CLOSE_OK)
    client.state = CLIENT_CLOSING
    client.deadline.store(client.now + <int64_t> ANSWER_SECONDS * SECOND)

cdef inline bint connection_method(Client* client, uint32_t method, Reader* r, Refusal* refusal) noexcept nogil:
    """Carry out a method of the connection itself; False: refused."""
    if method == CONNECTION_CLOSE:
        client_close(client)
        return True
    if method == CONNECTION_START_OK and client.state == CLIENT_START:
        return on_start_ok(client, r, refusal)
    if method == CONNECTION_TUNE_OK and client.state == CLIENT_TUNE:
        return on_tune_ok(client, r, refusal)
    if method == CONNECTION_OPEN and client.state == CLIENT_OPENING:
        return on_connection_open(client, r, refusal)
    if method == CONNECTION_UPDATE_SECRET and client.state == CLIENT_OPEN:
        method_write(&client.output, 0, CONNECTION_UPDATE_SECRET_OK)
        return True
    return refuse_number(refusal, COMMAND_INVALID, b"unexpected method ", method, b" on channel 0")

cdef inline void connection_frame(Client* client, const FrameSpan* f) noexcept nogil:
    """Process a frame of channel 0."""
    cdef Refusal refusal
    cdef Reader r = reader_of(f.payload, f.size)
    cdef uint32_t method = method_of(&r) if f.kind == FRAME_METHOD else 0
    if client.state == CLIENT_CLOSING:
        if method == CONNECTION_CLOSE:
            method_write(&client.output, 0, CONNECTION_CLOSE_OK)
        if method == CONNECTION_CLOSE or method == CONNECTION_CLOSE_OK:
            client_leave(client)
        return
    topology_unshare(client)
    if f.kind != FRAME_METHOD:
        refuse(&refusal, COMMAND_INVALID, b"unexpected frame on channel 0")
        client_fail(client, &refusal, 0)
    elif not connection_method(client, method, &r, &refusal):
        client_fail(client, &refusal, method)

cdef inline void client_frame(
    Client* client, const FrameSpan* f
) noexcept nogil:
    cdef Channel* ch
    cdef Refusal refusal
    if f.kind == FRAME_HEARTBEAT:
        return
    if f.kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
        if client.state != CLIENT_CLOSING:
            refuse_number(&refusal, FRAME_ERROR, b"unknown frame type ", f.kind, b"")
            client_fail(client, &refusal, 0)
    elif f.channel == 0:
        connection_frame(client, f)
    elif client.state == CLIENT_OPEN:
        ch = client.channels[f.channel] if f.channel < client.room else NULL
        if ch == NULL:
            client_open_channel(client, f)
        elif ch == channel_closing():
            client_closing_channel(client, f)
        else:
            channel_frame(ch, f)
    elif client.state != CLIENT_CLOSING:
        refuse(&refusal, COMMAND_INVALID, b"the connection is not open yet")
        client_fail(client, &refusal, 0)

cdef inline void client_refuse_frame(Client* client, FrameFound found, const FrameSpan* f) noexcept nogil:
    """Refuse octets that are not a frame; the following octets cannot be parsed either."""
    cdef Refusal refusal
    if client.state == CLIENT_CLOSING:
        # A client that still sends has not read the refusal, and closing a socket with unread input resets it. So
        # discard the input until close-ok, the end of the connection or the deadline.
        bytes_clear(&client.input)
        return
    if found == FRAME_TOO_LONG:
        refuse_number(
            &refusal, FRAME_ERROR, b"the payload of a frame has ", f.size, b" octets, more than was agreed"
        )
    else:
        refuse(&refusal, FRAME_ERROR, b"a frame does not end with 206")
    client_fail(client, &refusal, 0)
    bytes_clear(&client.input)

cdef inline bint client_reads(const Client* client) noexcept nogil:
    """Return whether frames of a connection are processed."""
    return client.state != CLIENT_GONE and client.state != CLIENT_LOGIN and not client.paused

cdef inline bint client_holds(Client* client) noexcept nogil:
    """Return whether to pause: the client has too much to read, or the disk is behind. `client_write` resumes."""
    client.held = bytes_size(&client.output) >= OUTPUT_MOST or client_outruns(client)
    return client.held

cdef inline void client_parse(
    Client* client
) noexcept nogil:
    """Process all complete frames."""
    cdef FrameSpan f
    cdef FrameFound found
    cdef int64_t longest
    if client.state == CLIENT_HEADER:
        if bytes_size(&client.input) < PROTOCOL_SIZE:
            return
        if not handshake_begin(client, client.input.data + client.input.begin):
            client_leave(client)
            return
        bytes_take(&client.input, PROTOCOL_SIZE)
    while client_reads(client):
        # The limit is applied to the payload, although frame_max is for the whole frame, as in RabbitMQ.
        longest = client.frame_max if client.frame_max else <int64_t> FRAME_BEFORE_TUNE
        found = frames_span(
            client.input.data + client.input.begin, bytes_size(&client.input), longest, &f
        )
        if found == FRAME_PART:
            return
        if found != FRAME_WHOLE:
            client_refuse_frame(client, found, &f)
            return
        client_frame(client, &f)
        bytes_take(&client.input, f.whole)

# A pass ---------------------------------------------------------------------------------------------------------------

cdef inline void client_settle_up(Client* client) noexcept nogil:
    """Publish dead letters, and confirm published messages."""
    dead_publish(client)
    topology_unshare(client)
    if client.confirming != NULL:
        confirms_write(client)

cdef inline bint channel_overdue(Channel* ch, int64_t now, Refusal* refusal) noexcept nogil:
    """Return whether a delivery has waited too long for its acknowledgement, and write the refusal."""
    cdef int64_t otherwise = ch.client.server.limits.ack_timeout, limit
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

cdef inline void client_check_overdue(Client* client) noexcept nogil:
    cdef Refusal refusal
    cdef Session* session = client.connection.sessions  # of open channels only: their numbers have gaps
    cdef Session* following
    while session != NULL:
        following = session.following
        if channel_overdue(<Channel*> session, client.now, &refusal):
            channel_fail(<Channel*> session, &refusal, 0)
        session = following

cdef inline void client_heed(Client* client, uint32_t alarms) noexcept nogil:
    """Handle alarms set by other threads."""
    cdef Refusal refusal
    cdef const uint8_t* heartbeat = b"\x08\x00\x00\x00\x00\x00\x00\xce"
    if alarms & ALARM_DEAD:
        client_lose(client)
        return
    if alarms & (ALARM_STOP | ALARM_CLOSE) and client.state != CLIENT_CLOSING and client.state != CLIENT_GONE:
        if client.state != CLIENT_OPEN:
            client_leave(client)
            return
        if alarms & ALARM_STOP:
            refuse(&refusal, CONNECTION_FORCED, b"broker forced connection closure with reason 'shutdown'")
        else:
            refuse(&refusal, CONNECTION_FORCED, b"closed by the operator")
        client_fail(client, &refusal, 0)
    if alarms & ALARM_HEARTBEAT and client.state == CLIENT_OPEN:
        bytes_append(&client.output, heartbeat, 8)
    if alarms & ALARM_TIMEOUT and client.state == CLIENT_OPEN:
        client_check_overdue(client)

cdef inline bint client_read(
    Client* client
) noexcept nogil:
    """Read once; True: there may be more."""
    cdef uint32_t events = client.events.exchange(0)
    cdef int64_t got
    cdef uint8_t* room
    cdef bint more = False
    if not events & (EVENT_READ | EVENT_END):
        return False
    room = bytes_room(&client.input, client.reads)
    if room == NULL:
        client_lose(client)
        return False
    got = poller_read(client.server.poller, client.fd, room, client.reads)
    if got < 0:
        client_lose(client)
        return False
    if got > 0:
        bytes_add(&client.input, got)
        client.heard.store(client.now)
        more = got == client.reads or events & EVENT_END != 0
        if got == client.reads:
            client.reads = min(2 * client.reads, <int64_t> READ_MOST)
        elif got < client.reads // 4:
            client.reads = max(client.reads // 2, <int64_t> READ_LEAST)
    elif events & EVENT_END:
        more = True  # the end of the connection is still to be read
    if more:
        client.events.fetch_or(events)
    client_parse(client)
    return more and client_reads(client) and not client.held

cdef inline void client_go_on(Client* client) noexcept nogil:
    """Go on after the journal has progressed or failed: send or drop what waited for it."""
    if client_deceived(client):
        client_lose(client)
    elif client.state == CLIENT_GONE and not client_awaits(client):
        connection_close(&client.connection)

cdef inline bint client_work(
    Client* client
) noexcept nogil:
    """Carry out the first part of a pass; True: there may be more to read."""
    cdef uint32_t alarms = client.alarms.exchange(0)
    cdef bint more = False
    client.now = clock_now()
    if alarms:
        client_heed(client, alarms)
    if client.awaits or client.state == CLIENT_GONE:
        client_go_on(client)
    if client.paused and (not client.server.short_of_memory.load() or client.state != CLIENT_OPEN):
        client_unblock(client)
    if client_reads(client) and not client_holds(client):
        more = client_read(client)
    client_settle_up(client)
    if client.output.failed:
        client_lose(client)
    return more

cdef inline int64_t client_buffered(void* context) noexcept nogil:
    return bytes_size(&(<Client*> context).output)

cdef inline void client_write(void* context) noexcept nogil:
    """Write as much output as the socket takes."""
    cdef Client* client = <Client*> context
    cdef Bytes* out = &client.output
    cdef int64_t sent = 1
    if client_awaits(client):
        return
    while bytes_size(out) > 0 and sent > 0 and not client.lost:
        sent = poller_write(client.server.poller, client.fd, out.data + out.begin, bytes_size(out))
        if sent > 0:
            bytes_take(out, sent)
            client.spoken.store(client.now)
    if sent < 0:
        client_lose(client)
    elif client.held and bytes_size(out) < OUTPUT_MOST and not client_outruns(client):
        client.held = False
        client.events.fetch_or(EVENT_READ)  # read the frames that came meanwhile
        connection_notify(&client.connection)
