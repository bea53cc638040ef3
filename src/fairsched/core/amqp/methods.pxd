"""The methods of AMQP 0-9-1 for a broker, which reads those of a client and writes its own.

`NAME_read` reads the arguments of a method, which follow its four-octet id (`method_of`), without copying strings and
tables; it returns False unless they are well formed and nothing follows them. `NAME_write` appends a complete frame
and, if the method has a content, the frames of the content; `method_write` writes a method without arguments.

Source: AMQP 0-9-1, sections 1.4 and 1.8, as RabbitMQ's errata have it; RabbitMQ's extensions (basic.nack,
confirm.select, exchange.bind, exchange.unbind, connection.blocked).
Thread safety: none; the caller synchronizes. Complexity: O(octets).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fairsched.core.amqp.ackledger cimport VERDICT_ACK, VERDICT_REJECT, VERDICT_REQUEUE, Frame
from fairsched.core.amqp.constants cimport (
    ACCESS_REQUEST_OK, BASIC_CANCEL, BASIC_CANCEL_OK, BASIC_CONSUME_OK, BASIC_DELIVER, BASIC_GET_EMPTY, BASIC_GET_OK,
    BASIC_RETURN, CHANNEL_CLOSE, CHANNEL_FLOW_OK, CHANNEL_OPEN_OK, CONNECTION_BLOCKED, CONNECTION_CLOSE,
    CONNECTION_OPEN_OK, CONNECTION_START, CONNECTION_TUNE, FRAME_END, FRAME_HEAD, FRAME_METHOD,
    QUEUE_DECLARE_OK, QUEUE_DELETE_OK, QUEUE_PURGE_OK,
)
from fairsched.core.amqp.contents cimport Content, contents_size, contents_write
from fairsched.core.amqp.frames cimport frames_head, frames_text, frames_write
from fairsched.core.amqp.octets cimport (
    SHORT_MAX, Bytes, Reader, Text, bytes_add, bytes_append, bytes_long, bytes_number, bytes_put, bytes_room,
    bytes_short, bytes_size, reader_done, reader_long, reader_number, reader_short,
)
from fairsched.core.amqp.settlements cimport SETTLEMENT_SIZE, settlements_write
from fairsched.core.amqp.tables cimport reader_table


# Sent by clients: class connection ------------------------------------------------------------------------------------

cdef struct ConnectionStartOk:
    Text client_properties   # a table, from its length on; so are all tables here
    Text mechanism
    Text response
    Text locale

cdef struct ConnectionTuneOk:
    uint32_t channel_max
    uint32_t frame_max
    uint32_t heartbeat

cdef struct Close:           # of a connection or a channel
    uint32_t reply_code
    Text reply_text
    uint32_t method          # that it is about: class << 16 | method, or 0

cdef inline uint32_t method_of(Reader* r) noexcept nogil:
    """Read which method it is: class << 16 | method; 0: it is cut short."""
    return <uint32_t> reader_number(r, 4)

cdef inline bint connection_start_ok_read(Reader* r, ConnectionStartOk* m) noexcept nogil:
    m.client_properties = reader_table(r)
    m.mechanism = reader_short(r)
    m.response = reader_long(r)
    m.locale = reader_short(r)
    return reader_done(r)

cdef inline bint connection_tune_ok_read(Reader* r, ConnectionTuneOk* m) noexcept nogil:
    m.channel_max = <uint32_t> reader_number(r, 2)
    m.frame_max = <uint32_t> reader_number(r, 4)
    m.heartbeat = <uint32_t> reader_number(r, 2)
    return reader_done(r)

cdef inline bint connection_open_read(Reader* r, Text* virtual_host) noexcept nogil:
    virtual_host[0] = reader_short(r)
    reader_short(r)  # reserved: capabilities
    reader_number(r, 1)  # reserved: insist
    return reader_done(r)

cdef inline bint close_read(Reader* r, Close* m) noexcept nogil:
    """Read connection.close or channel.close."""
    m.reply_code = <uint32_t> reader_number(r, 2)
    m.reply_text = reader_short(r)
    m.method = <uint32_t> reader_number(r, 4)
    return reader_done(r)


# Sent by clients: classes channel and access --------------------------------------------------------------------------

cdef inline bint channel_open_read(Reader* r) noexcept nogil:
    reader_short(r)  # reserved: out-of-band
    return reader_done(r)

cdef inline bint channel_flow_read(Reader* r, bint* active) noexcept nogil:
    """Read channel.flow or channel.flow-ok."""
    active[0] = reader_number(r, 1) & 1
    return reader_done(r)


# Sent by clients: class exchange --------------------------------------------------------------------------------------

cdef struct ExchangeDeclare:
    Text exchange
    Text type
    bint passive
    bint durable
    bint auto_delete
    bint internal
    bint no_wait
    Text arguments

cdef struct ExchangeDelete:
    Text exchange
    bint if_unused
    bint no_wait

cdef struct ExchangeBind:    # and unbind
    Text destination
    Text source
    Text routing_key
    bint no_wait
    Text arguments

cdef inline bint exchange_declare_read(Reader* r, ExchangeDeclare* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)  # reserved: ticket; so in all methods below
    m.exchange = reader_short(r)
    m.type = reader_short(r)
    bits = reader_number(r, 1)
    m.passive = bits & 1
    m.durable = bits >> 1 & 1
    m.auto_delete = bits >> 2 & 1
    m.internal = bits >> 3 & 1
    m.no_wait = bits >> 4 & 1
    m.arguments = reader_table(r)
    return reader_done(r)

cdef inline bint exchange_delete_read(Reader* r, ExchangeDelete* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)
    m.exchange = reader_short(r)
    bits = reader_number(r, 1)
    m.if_unused = bits & 1
    m.no_wait = bits >> 1 & 1
    return reader_done(r)

cdef inline bint exchange_bind_read(Reader* r, ExchangeBind* m) noexcept nogil:
    """Read exchange.bind or exchange.unbind."""
    reader_number(r, 2)
    m.destination = reader_short(r)
    m.source = reader_short(r)
    m.routing_key = reader_short(r)
    m.no_wait = reader_number(r, 1) & 1
    m.arguments = reader_table(r)
    return reader_done(r)


# Sent by clients: class queue -----------------------------------------------------------------------------------------

cdef struct QueueDeclare:
    Text queue
    bint passive
    bint durable
    bint exclusive
    bint auto_delete
    bint no_wait
    Text arguments

cdef struct QueueBind:       # and unbind, which is always answered
    Text queue
    Text exchange
    Text routing_key
    bint no_wait
    Text arguments

cdef struct QueuePurge:
    Text queue
    bint no_wait

cdef struct QueueDelete:
    Text queue
    bint if_unused
    bint if_empty
    bint no_wait

cdef inline bint queue_declare_read(Reader* r, QueueDeclare* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)
    m.queue = reader_short(r)
    bits = reader_number(r, 1)
    m.passive = bits & 1
    m.durable = bits >> 1 & 1
    m.exclusive = bits >> 2 & 1
    m.auto_delete = bits >> 3 & 1
    m.no_wait = bits >> 4 & 1
    m.arguments = reader_table(r)
    return reader_done(r)

cdef inline bint queue_bind_read(Reader* r, QueueBind* m) noexcept nogil:
    reader_number(r, 2)
    m.queue = reader_short(r)
    m.exchange = reader_short(r)
    m.routing_key = reader_short(r)
    m.no_wait = reader_number(r, 1) & 1
    m.arguments = reader_table(r)
    return reader_done(r)

cdef inline bint queue_unbind_read(Reader* r, QueueBind* m) noexcept nogil:
    reader_number(r, 2)
    m.queue = reader_short(r)
    m.exchange = reader_short(r)
    m.routing_key = reader_short(r)
    m.no_wait = False
    m.arguments = reader_table(r)
    return reader_done(r)

cdef inline bint queue_purge_read(Reader* r, QueuePurge* m) noexcept nogil:
    reader_number(r, 2)
    m.queue = reader_short(r)
    m.no_wait = reader_number(r, 1) & 1
    return reader_done(r)

cdef inline bint queue_delete_read(Reader* r, QueueDelete* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)
    m.queue = reader_short(r)
    bits = reader_number(r, 1)
    m.if_unused = bits & 1
    m.if_empty = bits >> 1 & 1
    m.no_wait = bits >> 2 & 1
    return reader_done(r)


# Sent by clients: class basic -----------------------------------------------------------------------------------------

cdef struct BasicQos:
    uint32_t prefetch_size
    uint32_t prefetch_count
    bint is_global           # `global` is a word of Cython's

cdef struct BasicConsume:
    Text queue
    Text consumer_tag
    bint no_local
    bint no_ack
    bint exclusive
    bint no_wait
    Text arguments

cdef struct BasicCancel:
    Text consumer_tag
    bint no_wait

cdef struct BasicPublish:
    Text exchange
    Text routing_key
    bint mandatory
    bint immediate

cdef struct BasicGet:
    Text queue
    bint no_ack

cdef struct BasicSettle:     # ack, nack and reject
    uint64_t delivery_tag
    bint multiple
    bint requeue

cdef inline bint basic_qos_read(Reader* r, BasicQos* m) noexcept nogil:
    m.prefetch_size = <uint32_t> reader_number(r, 4)
    m.prefetch_count = <uint32_t> reader_number(r, 2)
    m.is_global = reader_number(r, 1) & 1
    return reader_done(r)

cdef inline bint basic_consume_read(Reader* r, BasicConsume* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)
    m.queue = reader_short(r)
    m.consumer_tag = reader_short(r)
    bits = reader_number(r, 1)
    m.no_local = bits & 1
    m.no_ack = bits >> 1 & 1
    m.exclusive = bits >> 2 & 1
    m.no_wait = bits >> 3 & 1
    m.arguments = reader_table(r)
    return reader_done(r)

cdef inline bint basic_cancel_read(Reader* r, BasicCancel* m) noexcept nogil:
    m.consumer_tag = reader_short(r)
    m.no_wait = reader_number(r, 1) & 1
    return reader_done(r)

cdef inline bint basic_publish_read(Reader* r, BasicPublish* m) noexcept nogil:
    cdef uint64_t bits
    reader_number(r, 2)
    m.exchange = reader_short(r)
    m.routing_key = reader_short(r)
    bits = reader_number(r, 1)
    m.mandatory = bits & 1
    m.immediate = bits >> 1 & 1
    return reader_done(r)

cdef inline bint basic_get_read(Reader* r, BasicGet* m) noexcept nogil:
    reader_number(r, 2)
    m.queue = reader_short(r)
    m.no_ack = reader_number(r, 1) & 1
    return reader_done(r)

cdef inline bint basic_ack_read(Reader* r, BasicSettle* m) noexcept nogil:
    m.delivery_tag = reader_number(r, 8)
    m.multiple = reader_number(r, 1) & 1
    m.requeue = False
    return reader_done(r)

cdef inline bint basic_nack_read(Reader* r, BasicSettle* m) noexcept nogil:
    cdef uint64_t bits
    m.delivery_tag = reader_number(r, 8)
    bits = reader_number(r, 1)
    m.multiple = bits & 1
    m.requeue = bits >> 1 & 1
    return reader_done(r)

cdef inline bint basic_reject_read(Reader* r, BasicSettle* m) noexcept nogil:
    m.delivery_tag = reader_number(r, 8)
    m.multiple = False
    m.requeue = reader_number(r, 1) & 1
    return reader_done(r)

cdef inline bint basic_recover_read(Reader* r, bint* requeue) noexcept nogil:
    """Read basic.recover or basic.recover-async."""
    requeue[0] = reader_number(r, 1) & 1
    return reader_done(r)


# Sent by clients: class confirm ---------------------------------------------------------------------------------------

cdef inline bint confirm_select_read(Reader* r, bint* no_wait) noexcept nogil:
    no_wait[0] = reader_number(r, 1) & 1
    return reader_done(r)


# Sent by brokers: any method ------------------------------------------------------------------------------------------

cdef inline int64_t method_begin(Bytes* out, uint32_t channel, uint32_t method) noexcept nogil:
    """Begin a frame with a method; return where, for `method_end`. Nothing may be taken from `out` in between."""
    cdef int64_t start = bytes_size(out)
    cdef uint8_t* to = bytes_room(out, FRAME_HEAD + 4)
    if to != NULL:
        frames_write(frames_head(to, FRAME_METHOD, channel, 0), method, 4)
        bytes_add(out, FRAME_HEAD + 4)
    return start

cdef inline void method_end(Bytes* out, int64_t start) noexcept nogil:
    """End a frame, whose length is known now."""
    bytes_put(out, start + 3, <uint64_t> (bytes_size(out) - start - FRAME_HEAD), 4)
    bytes_number(out, FRAME_END, 1)

cdef inline void method_write(Bytes* out, uint32_t channel, uint32_t method) noexcept nogil:
    """Write a method that has no arguments."""
    method_end(out, method_begin(out, channel, method))

cdef inline void method_write_number(
    Bytes* out, uint32_t channel, uint32_t method, uint64_t number, int octets
) noexcept nogil:
    """Write a method whose only argument is a number."""
    cdef int64_t start = method_begin(out, channel, method)
    bytes_number(out, number, octets)
    method_end(out, start)

cdef inline void method_write_short(Bytes* out, uint32_t channel, uint32_t method, Text argument) noexcept nogil:
    """Write a method whose only argument is a short string."""
    cdef int64_t start = method_begin(out, channel, method)
    bytes_short(out, argument)
    method_end(out, start)


# Sent by brokers: classes connection, channel and access --------------------------------------------------------------

cdef inline void connection_start_write(
    Bytes* out, Text server_properties, Text mechanisms, Text locales
) noexcept nogil:
    """Write connection.start; the properties are a table, from its length on."""
    cdef int64_t start = method_begin(out, 0, CONNECTION_START)
    bytes_number(out, 9, 2)  # the version of the protocol: 0-9
    bytes_append(out, server_properties.data, server_properties.length)
    bytes_long(out, mechanisms)
    bytes_long(out, locales)
    method_end(out, start)

cdef inline void connection_tune_write(
    Bytes* out, uint32_t channel_max, uint32_t frame_max, uint32_t heartbeat
) noexcept nogil:
    cdef int64_t start = method_begin(out, 0, CONNECTION_TUNE)
    bytes_number(out, channel_max, 2)
    bytes_number(out, frame_max, 4)
    bytes_number(out, heartbeat, 2)
    method_end(out, start)

cdef inline void connection_open_ok_write(Bytes* out) noexcept nogil:
    method_write_number(out, 0, CONNECTION_OPEN_OK, 0, 1)  # reserved: known hosts

cdef inline void connection_blocked_write(Bytes* out, Text reason) noexcept nogil:
    method_write_short(out, 0, CONNECTION_BLOCKED, reason)

cdef inline void reply_write(Bytes* out, uint32_t code, Text text) noexcept nogil:
    """Append a reply code and text; as with RabbitMQ, a text that is too long ends with three dots."""
    bytes_number(out, code, 2)
    if text.length <= SHORT_MAX:
        bytes_short(out, text)
        return
    bytes_number(out, SHORT_MAX, 1)
    bytes_append(out, text.data, SHORT_MAX - 3)
    bytes_append(out, b"...", 3)

cdef inline void close_write(
    Bytes* out, uint32_t channel, uint32_t kind, uint32_t code, Text text, uint32_t method
) noexcept nogil:
    cdef int64_t start = method_begin(out, channel, kind)
    reply_write(out, code, text)
    bytes_number(out, method, 4)
    method_end(out, start)

cdef inline void connection_close_write(Bytes* out, uint32_t code, Text text, uint32_t method) noexcept nogil:
    """Write connection.close; `method` is what it is about, or 0."""
    close_write(out, 0, CONNECTION_CLOSE, code, text, method)

cdef inline void channel_close_write(
    Bytes* out, uint32_t channel, uint32_t code, Text text, uint32_t method
) noexcept nogil:
    """Write channel.close; `method` is what it is about, or 0."""
    close_write(out, channel, CHANNEL_CLOSE, code, text, method)

cdef inline void channel_open_ok_write(Bytes* out, uint32_t channel) noexcept nogil:
    method_write_number(out, channel, CHANNEL_OPEN_OK, 0, 4)  # reserved: a long string

cdef inline void channel_flow_ok_write(Bytes* out, uint32_t channel, bint active) noexcept nogil:
    method_write_number(out, channel, CHANNEL_FLOW_OK, active, 1)

cdef inline void access_request_ok_write(Bytes* out, uint32_t channel, uint32_t ticket) noexcept nogil:
    method_write_number(out, channel, ACCESS_REQUEST_OK, ticket, 2)


# Sent by brokers: class queue -----------------------------------------------------------------------------------------

cdef inline void queue_declare_ok_write(
    Bytes* out, uint32_t channel, Text queue, uint32_t message_count, uint32_t consumer_count
) noexcept nogil:
    cdef int64_t start = method_begin(out, channel, QUEUE_DECLARE_OK)
    bytes_short(out, queue)
    bytes_number(out, message_count, 4)
    bytes_number(out, consumer_count, 4)
    method_end(out, start)

cdef inline void queue_purge_ok_write(Bytes* out, uint32_t channel, uint32_t message_count) noexcept nogil:
    method_write_number(out, channel, QUEUE_PURGE_OK, message_count, 4)

cdef inline void queue_delete_ok_write(Bytes* out, uint32_t channel, uint32_t message_count) noexcept nogil:
    method_write_number(out, channel, QUEUE_DELETE_OK, message_count, 4)


# Sent by brokers: class basic -----------------------------------------------------------------------------------------

cdef inline void basic_consume_ok_write(Bytes* out, uint32_t channel, Text consumer_tag) noexcept nogil:
    method_write_short(out, channel, BASIC_CONSUME_OK, consumer_tag)

cdef inline void basic_cancel_ok_write(Bytes* out, uint32_t channel, Text consumer_tag) noexcept nogil:
    method_write_short(out, channel, BASIC_CANCEL_OK, consumer_tag)

cdef inline void basic_cancel_write(Bytes* out, uint32_t channel, Text consumer_tag, bint no_wait) noexcept nogil:
    """Write the broker's own basic.cancel: the queue is gone, or the consumer lost it."""
    cdef int64_t start = method_begin(out, channel, BASIC_CANCEL)
    bytes_short(out, consumer_tag)
    bytes_number(out, no_wait, 1)
    method_end(out, start)

cdef inline void basic_get_empty_write(Bytes* out, uint32_t channel) noexcept nogil:
    method_write_number(out, channel, BASIC_GET_EMPTY, 0, 1)  # reserved: cluster id

cdef inline void settle_write(
    Bytes* out, uint32_t channel, uint64_t delivery_tag, int64_t verdict, bint multiple
) noexcept nogil:
    cdef Frame settlement = Frame(delivery_tag, verdict, multiple)
    cdef uint8_t* to = bytes_room(out, SETTLEMENT_SIZE)
    if to != NULL:
        settlements_write(to, channel, &settlement)
        bytes_add(out, SETTLEMENT_SIZE)

cdef inline void basic_ack_write(Bytes* out, uint32_t channel, uint64_t delivery_tag, bint multiple) noexcept nogil:
    """Confirm messages."""
    settle_write(out, channel, delivery_tag, VERDICT_ACK, multiple)

cdef inline void basic_nack_write(
    Bytes* out, uint32_t channel, uint64_t delivery_tag, bint multiple, bint requeue
) noexcept nogil:
    """Refuse to confirm messages."""
    settle_write(out, channel, delivery_tag, VERDICT_REQUEUE if requeue else VERDICT_REJECT, multiple)


# Sent by brokers: methods with a content ------------------------------------------------------------------------------

cdef inline void basic_deliver_write(
    Bytes* out, uint32_t channel, int64_t longest, Text consumer_tag, uint64_t delivery_tag, bint redelivered,
    const Content* c,
) noexcept nogil:
    """Write a delivery, in frames whose payloads have at most `longest` octets."""
    cdef int64_t payload = 16 + consumer_tag.length + c.exchange_size + c.key_size
    cdef int64_t size = FRAME_HEAD + payload + 1 + contents_size(c, longest)
    cdef uint8_t* to = bytes_room(out, size)
    if to == NULL:
        return
    to = frames_write(frames_head(to, FRAME_METHOD, channel, payload), BASIC_DELIVER, 4)
    to = frames_write(frames_text(to, consumer_tag.data, consumer_tag.length), delivery_tag, 8)
    to[0] = redelivered
    to = frames_text(frames_text(to + 1, c.exchange, c.exchange_size), c.key, c.key_size)
    to[0] = FRAME_END
    contents_write(c, channel, longest, to + 1)
    bytes_add(out, size)

cdef inline void content_append(Bytes* out, uint32_t channel, int64_t longest, const Content* c) noexcept nogil:
    """Append the frames of a content."""
    cdef int64_t size = contents_size(c, longest)
    cdef uint8_t* to = bytes_room(out, size)
    if to != NULL:
        contents_write(c, channel, longest, to)
        bytes_add(out, size)

cdef inline void basic_get_ok_write(
    Bytes* out, uint32_t channel, int64_t longest, uint64_t delivery_tag, bint redelivered, const Content* c,
    uint32_t message_count,
) noexcept nogil:
    """Write basic.get-ok and the message; `message_count` is what the queue has beside it."""
    cdef int64_t start = method_begin(out, channel, BASIC_GET_OK)
    bytes_number(out, delivery_tag, 8)
    bytes_number(out, redelivered, 1)
    bytes_short(out, Text(c.exchange, <uint32_t> c.exchange_size))
    bytes_short(out, Text(c.key, <uint32_t> c.key_size))
    bytes_number(out, message_count, 4)
    method_end(out, start)
    content_append(out, channel, longest, c)

cdef inline void basic_return_write(
    Bytes* out, uint32_t channel, int64_t longest, uint32_t code, Text text, const Content* c
) noexcept nogil:
    """Write basic.return and the message."""
    cdef int64_t start = method_begin(out, channel, BASIC_RETURN)
    reply_write(out, code, text)
    bytes_short(out, Text(c.exchange, <uint32_t> c.exchange_size))
    bytes_short(out, Text(c.key, <uint32_t> c.key_size))
    method_end(out, start)
    content_append(out, channel, longest, c)
