"""Publishing: a message is routed, put into its queues or returned, and confirmed.

Routing takes the topology's lock in shared mode; a connection keeps it while it reads messages, and releases it before
anything else. Confirms are written together for all messages read (`confirms_write`); a basic.nack is sent at its place
among them. Messages that must be on disk first, and those published after them, wait in `Channel.waiting`: journal
batches ascend there, so the messages that may be confirmed are always at the front.

Thread safety: the connection's thread. Complexity: that of routing, and O(1) per queue.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.core.amqp.constants cimport INTERNAL_ERROR, NO_ROUTE, PRECONDITION_FAILED
from fairsched.core.amqp.contents cimport (
    Content, PROPERTY_EXPIRATION, PROPERTY_HEADERS, PROPERTY_USER_ID, Properties, contents_has, contents_rewrite,
    contents_text,
)
from fairsched.core.amqp.methods cimport basic_ack_write, basic_nack_write, basic_return_write
from fairsched.core.amqp.octets cimport (
    Bytes, Text, bytes_add, bytes_append, bytes_clear, bytes_init, bytes_number, bytes_room, bytes_short, bytes_size,
    bytes_take, text_begins, text_equal, text_of,
)
from fairsched.core.amqp.tables cimport Field, table_begin, table_copy, table_end, tables_finite, tables_get
from fairsched.core.broker.arguments cimport TIME_MAX
from fairsched.core.broker.consumers cimport topology_share
from fairsched.core.broker.delays cimport message_hold
from fairsched.core.broker.durability.journal cimport Journal, journal_is_durable
from fairsched.core.broker.durability.keeping cimport brokerconnection_disk_failed, message_keep, refuse_disk
from fairsched.core.broker.errors cimport (
    Refusal, refusal_quoted, refusal_say, refusal_text, refuse, refuse_memory, refuse_name,
)
from fairsched.core.broker.exchanges.routing cimport route_exchange, route_publish
from fairsched.core.broker.exchanges.state cimport Exchange, Route
from fairsched.core.broker.payload cimport (
    payload_again, payload_content, payload_exchange, payload_header, payload_key, payload_release, payload_retain,
)
from fairsched.core.broker.queues cimport brokerqueue_put
from fairsched.core.broker.state cimport BrokerConnection, BrokerQueue, Channel, ConfirmRun, Payload, Publication

cdef inline bint refuse_expiration(Refusal* refusal, Text text, const char* why, Text what) noexcept nogil:
    refuse_name(refusal, PRECONDITION_FAILED, b"invalid expiration '", text, b"': ")
    refusal_say(refusal, why)
    refusal_text(refusal, what)
    refusal_say(refusal, b"}" if what.length else b"")
    return False

cdef inline bint expiration_read(Text text, int64_t* milliseconds, Refusal* refusal) noexcept nogil:
    """Read a time to live: an optional sign, and digits; False: refused."""
    cdef uint32_t first = 1 if text.length and text.data[0] in (b'+', b'-') else 0, at = first
    cdef int64_t value = 0
    while at < text.length and b'0' <= text.data[at] <= b'9':
        value = min(value * 10 + (text.data[at] - <uint8_t> b'0'), <int64_t> TIME_MAX + 1)
        at += 1
    if at == first:
        return refuse_expiration(refusal, text, b"no_integer", Text(NULL, 0))
    if at < text.length:
        refuse_name(refusal, PRECONDITION_FAILED, b"invalid expiration '", text, b"': {leftover_string,")
        refusal_quoted(refusal, Text(text.data + at, text.length - at))
        refusal_say(refusal, b"}")
        return False
    if value and text.data[0] == b'-':
        return refuse_expiration(refusal, text, b"{value_negative,", text)
    if value > TIME_MAX:
        return refuse_expiration(refusal, text, b"{value_too_large,", Text(text.data + first, text.length - first))
    milliseconds[0] = value
    return True

cdef inline bint publication_check(Channel* ch, Publication* p, Refusal* refusal) noexcept nogil:
    """Read and check the properties that the broker uses."""
    cdef const uint8_t* header = payload_header(p.payload)
    cdef Text text
    p.expiration = -1
    p.batch = 0
    if contents_has(&p.properties, PROPERTY_HEADERS) and not tables_finite(
        contents_text(header, &p.properties, PROPERTY_HEADERS), True
    ):
        return refuse(refusal, INTERNAL_ERROR, b"a header is NaN or infinite")
    if contents_has(&p.properties, PROPERTY_USER_ID):
        text = contents_text(header, &p.properties, PROPERTY_USER_ID)
        if not text_equal(text, ch.connection.user):
            refuse_name(
                refusal, PRECONDITION_FAILED, b"user_id property set to '", text, b"' but authenticated user was '"
            )
            refusal_text(refusal, ch.connection.user)
            refusal_say(refusal, b"'")
            return False
    if contents_has(&p.properties, PROPERTY_EXPIRATION):
        text = contents_text(header, &p.properties, PROPERTY_EXPIRATION)
        return expiration_read(text, &p.expiration, refusal)
    return True

cdef inline bint publication_put(BrokerConnection* connection, Publication* p) noexcept nogil:
    """Put a message into the queues of its route, and release it; False: one of them refuses it."""
    cdef int64_t i
    cdef bint taken = True
    if connection.route.count == 0:
        payload_release(p.payload)
        return True
    if connection.route.count > 1:
        payload_retain(p.payload, <uint32_t> (connection.route.count - 1))
    for i in range(connection.route.count):
        if not brokerqueue_put(<BrokerQueue*> connection.route.queues[i], p, connection.now, &connection.dead):
            taken = False
    return taken

cdef inline void publication_return(Channel* ch, const Payload* p) noexcept nogil:
    """Send basic.return for a message that has no queue."""
    cdef Content content = payload_content(p)
    basic_return_write(
        &ch.connection.output, ch.number, <int64_t> ch.connection.frame_max - 8, NO_ROUTE, text_of(b"NO_ROUTE"),
        &content
    )

cdef inline bint publication_answers(const Payload* p) noexcept nogil:
    """Return whether a message is a direct reply; RabbitMQ delivers it to no queue, and so returns it too."""
    return p.exchange_size == 0 and text_begins(Text(payload_key(p), p.key_size), b"amq.rabbitmq.reply-to.")

cdef inline bint publication_hide(Publication* p) noexcept nogil:
    """Remove the header BCC from a message. Its keys are kept, since dead letters are routed by them."""
    cdef Payload* old = p.payload
    cdef const uint8_t* header = payload_header(old)
    cdef Text bcc = text_of(b"BCC"), headers = contents_text(header, &p.properties, PROPERTY_HEADERS)
    cdef Properties properties
    cdef Bytes table, written
    cdef Field field
    cdef int64_t begin
    tables_get(headers, bcc, &field)
    bytes_init(&table)
    bytes_init(&written)
    begin = table_begin(&table)
    table_copy(&table, headers, &bcc, 1)
    table_end(&table, begin)
    headers = Text(table.data, <uint32_t> table.end)
    if not table.failed:
        contents_rewrite(&written, header, &p.properties, 0, &headers)
        p.payload = payload_again(
            old, Text(payload_exchange(old), old.exchange_size), Text(payload_key(old), old.key_size), &written,
            field.value, &properties
        )
    else:
        p.payload = NULL
    bytes_clear(&table)
    bytes_clear(&written)
    payload_release(old)
    p.properties = properties
    return p.payload != NULL

cdef inline bint publication_hold(Channel* ch, Publication* p) noexcept nogil:
    """Have exchanges that delay a message hold it, in a transaction too; False: one of them cannot."""
    cdef Route* route = &ch.connection.route
    if route.bcc and not publication_hide(p):
        return False
    route.bcc = False
    return message_hold(ch.connection.server, ch.connection.host, route, p)

cdef inline bint publication_route(Channel* ch, Publication* p, Refusal* refusal) noexcept nogil:
    """Check a message in RabbitMQ's order, and find its queues; False: refused, and the message is released."""
    cdef BrokerConnection* connection = ch.connection
    cdef Payload* payload = p.payload
    cdef Exchange* x
    topology_share(connection)
    x = route_exchange(
        &connection.host.topology, Text(payload_exchange(payload), payload.exchange_size), refusal
    )
    if x != NULL and publication_check(ch, p, refusal) and route_publish(
        &connection.route, &connection.host.topology, x, Text(payload_key(payload), payload.key_size),
        payload_header(payload),
        &p.properties, refusal
    ):
        return True
    payload_release(payload)
    return False

cdef inline bint publication_deliver(Channel* ch, Publication* p, bint* taken, Refusal* refusal) noexcept nogil:
    """Put a message into the queues found, and release it; False: refused."""
    cdef BrokerConnection* connection = ch.connection
    if connection.route.bcc and not publication_hide(p):
        return refuse_memory(refusal)
    if p.mandatory and (connection.route.count == 0 or connection.route.count == 1 and publication_answers(p.payload)):
        publication_return(ch, p.payload)
    if not message_keep(
        connection.server, p.payload, connection.route.queues, connection.route.count, p.expiration, &p.batch
    ):
        payload_release(p.payload)
        taken[0] = False
        return ch.confirms or refuse_disk(refusal)
    taken[0] = publication_put(connection, p)
    return True

# Confirms -------------------------------------------------------------------------------------------------------------

cdef inline void confirm_flush(Channel* ch, uint64_t last) noexcept nogil:
    """Confirm the messages up to a number that were neither confirmed nor refused."""
    if ch.confirmed < last:
        basic_ack_write(&ch.connection.output, ch.number, last, last - ch.confirmed > 1)
        ch.confirmed = last

cdef inline void confirm_refuse(Channel* ch, uint64_t last, bint multiple) noexcept nogil:
    """Refuse the last message, or all unconfirmed ones."""
    basic_nack_write(&ch.connection.output, ch.number, last, multiple, False)
    ch.confirmed = last

cdef inline void confirm_note(Channel* ch, bint taken, uint64_t batch) noexcept nogil:
    """Note that the next message was accepted or refused."""
    ch.sequence += 1
    if batch or bytes_size(&ch.waiting):
        confirm_later(ch, taken, batch)
    elif not taken:
        confirm_flush(ch, ch.sequence - 1)
        confirm_refuse(ch, ch.sequence, False)
        return
    if not ch.awaits_confirm:
        ch.awaits_confirm = True
        ch.next_confirm = ch.connection.confirming
        ch.connection.confirming = ch

cdef inline void confirm_later(Channel* ch, bint taken, uint64_t batch) noexcept nogil:
    """Append a message to those that wait for the disk. Confirms are in order, so transient messages wait as well."""
    cdef ConfirmRun run = ConfirmRun(ch.sequence, batch, not taken)
    cdef ConfirmRun* before
    if bytes_size(&ch.waiting):
        before = <ConfirmRun*> (ch.waiting.data + ch.waiting.end - sizeof(ConfirmRun))
        if taken and not before.refused and before.batch >= batch:
            before.last = ch.sequence
            return
        run.batch = max(batch, before.batch)
    bytes_append(&ch.waiting, <const uint8_t*> &run, sizeof(ConfirmRun))
    if ch.waiting.failed:  # the list of messages to confirm is lost
        ch.connection.output.failed = True

cdef inline bint confirm_run(Channel* ch, const ConfirmRun* run, Journal* j) noexcept nogil:
    """Confirm or refuse a run; False: it waits for the disk."""
    cdef bint failed = j.failed.load() != 0
    if not journal_is_durable(j, run.batch):
        if failed:
            confirm_refuse(ch, run.last, run.last - ch.confirmed > 1)
        return failed
    if run.refused:
        confirm_flush(ch, run.last - 1)
        confirm_refuse(ch, run.last, False)
    else:
        confirm_flush(ch, run.last)
    return True

cdef inline void confirm_due(Channel* ch) noexcept nogil:
    """Confirm all accepted messages of a channel that do not wait for the disk."""
    cdef Journal* j = ch.connection.server.journal
    if bytes_size(&ch.waiting) == 0:
        confirm_flush(ch, ch.sequence)
        return
    while bytes_size(&ch.waiting) and confirm_run(ch, <ConfirmRun*> (ch.waiting.data + ch.waiting.begin), j):
        bytes_take(&ch.waiting, sizeof(ConfirmRun))

cdef inline void confirms_due(BrokerConnection* connection) noexcept nogil:
    """Confirm the messages of all channels. Channels that wait for the disk stay in the list."""
    cdef Channel** link = &connection.confirming
    cdef Channel* ch = link[0]
    while ch != NULL:
        confirm_due(ch)
        if bytes_size(&ch.waiting):
            link = &ch.next_confirm
        else:
            ch.awaits_confirm = False
            link[0] = ch.next_confirm
        ch = link[0]

cdef inline void confirms_write(BrokerConnection* connection) noexcept nogil:
    """Confirm messages accepted since the last call, and have the journal notify the connection if some wait."""
    confirms_due(connection)
    if connection.confirming != NULL:
        connection.waits.store(1)
        confirms_due(connection)  # the journal may have progressed meanwhile

# Incoming messages ----------------------------------------------------------------------------------------------------

cdef inline bint channel_publish(Channel* ch, Refusal* refusal) noexcept nogil:
    """Publish a complete message; False: refused."""
    cdef Publication p = ch.incoming
    cdef bint taken = True
    ch.incoming.payload = NULL
    p.mandatory = ch.mandatory
    if not publication_route(ch, &p, refusal):
        return False
    if ch.connection.route.delays.count and not publication_hold(ch, &p):
        payload_release(p.payload)
        if not ch.confirms:
            return refuse_disk(refusal) if brokerconnection_disk_failed(ch.connection) else refuse_memory(refusal)
        confirm_note(ch, False, 0)
        return True
    if ch.transactional:
        return transaction_publish(ch, &p, refusal)
    if not publication_deliver(ch, &p, &taken, refusal):
        return False
    if ch.confirms:
        confirm_note(ch, taken, p.batch)
    return True

cdef inline void publication_names(const Route* r, const Payload* p, Bytes* names) noexcept nogil:
    """Append the names of the queues found, for `route_named`.

    With the default exchange these are the keys, since the queue may be declared later.
    """
    cdef int64_t i
    if p.exchange_size:
        for i in range(r.count):
            bytes_short(names, (<BrokerQueue*> r.queues[i]).name)
    else:
        for i in range(r.key_count):
            if r.keys[i].length < 256:
                bytes_short(names, r.keys[i])
    while bytes_size(names) % 8:
        bytes_number(names, 0, 1)  # an empty name, which no queue has

cdef inline bint transaction_keep(Channel* ch, Publication* p, const Bytes* names) noexcept nogil:
    """Append a message to its transaction; False: memory is exhausted."""
    cdef uint8_t* room
    p.names = bytes_size(names)
    room = bytes_room(&ch.transaction, <int64_t> sizeof(Publication) + p.names)
    if room == NULL:
        return False
    memcpy(room, p, sizeof(Publication))
    memcpy(room + sizeof(Publication), names.data, <size_t> p.names)
    bytes_add(&ch.transaction, <int64_t> sizeof(Publication) + p.names)
    return True

cdef inline bint transaction_publish(Channel* ch, Publication* p, Refusal* refusal) noexcept nogil:
    """Keep a message and the names of its queues until the transaction is committed."""
    cdef Bytes names
    cdef bint kept
    bytes_init(&names)
    publication_names(&ch.connection.route, p.payload, &names)
    if ch.connection.route.bcc and not publication_hide(p):
        bytes_clear(&names)
        return refuse_memory(refusal)
    kept = not names.failed and transaction_keep(ch, p, &names)
    bytes_clear(&names)
    if kept:
        return True
    payload_release(p.payload)
    return refuse_memory(refusal)
