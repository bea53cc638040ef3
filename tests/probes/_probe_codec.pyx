"""The codec of AMQP 0-9-1 for tests: methods read and written, tables, contents, and mutated frames by the million."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fairsched.core.amqp.constants cimport *
from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, PROPERTIES, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP, Content,
    Properties, contents_body_size, contents_find, contents_has, contents_number, contents_rewrite, contents_text,
)
from fairsched.core.amqp.frames cimport (
    FRAME_PART, FRAME_TOO_LONG, FRAME_UNENDED, FRAME_WHOLE, FrameFound, FrameSpan, frames_span,
)
from fairsched.core.amqp.methods cimport *
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_append, bytes_clear, bytes_init, bytes_size, bytes_take,
    reader_of,
)
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, field_bool, field_describe, field_integer, field_real, field_text, fields_equal, table_begin,
    table_array_begin, table_bool, table_copy, table_end, table_int, table_long, table_nested_begin,
    table_text, table_timestamp, tables_equivalent, tables_get, tables_next, tables_valid,
    tables_walk,
)

# Methods --------------------------------------------------------------------------------------------------------------

cdef enum:
    ARGUMENTS = 8

cdef struct Argument:
    uint8_t kind       # 's': a string, 'F': a table, 'n': a number
    Text text
    uint64_t number

cdef struct Arguments:  # of any method, in their order; without those that are reserved
    Argument items[ARGUMENTS]
    int count

cdef inline void add_text(Arguments* a, Text text) noexcept nogil:
    a.items[a.count] = Argument(c's', text, 0)
    a.count += 1

cdef inline void add_table(Arguments* a, Text table) noexcept nogil:
    a.items[a.count] = Argument(c'F', table, 0)
    a.count += 1

cdef inline void add_number(Arguments* a, uint64_t number) noexcept nogil:
    a.items[a.count] = Argument(c'n', Text(NULL, 0), number)
    a.count += 1

cdef union Methods:
    ConnectionStartOk start_ok
    ConnectionTuneOk tune_ok
    Close close
    ExchangeDeclare exchange_declare
    ExchangeDelete exchange_delete
    ExchangeBind exchange_bind
    QueueDeclare queue_declare
    QueueBind queue_bind
    QueuePurge queue_purge
    QueueDelete queue_delete
    BasicQos qos
    BasicConsume consume
    BasicCancel cancel
    BasicPublish publish
    BasicGet get
    BasicSettle settle
    Text text
    bint bit

cdef int read_connection(uint32_t method, Reader* r, Methods* m, Arguments* a) noexcept nogil:
    """1: well formed, 0: not, -1: another method."""
    cdef bint good
    if method == CONNECTION_START_OK:
        good = connection_start_ok_read(r, &m.start_ok)
        add_table(a, m.start_ok.client_properties)
        add_text(a, m.start_ok.mechanism)
        add_text(a, m.start_ok.response)
        add_text(a, m.start_ok.locale)
    elif method == CONNECTION_TUNE_OK:
        good = connection_tune_ok_read(r, &m.tune_ok)
        add_number(a, m.tune_ok.channel_max)
        add_number(a, m.tune_ok.frame_max)
        add_number(a, m.tune_ok.heartbeat)
    elif method == CONNECTION_OPEN:
        good = connection_open_read(r, &m.text)
        add_text(a, m.text)
    elif method == CONNECTION_CLOSE or method == CHANNEL_CLOSE:
        good = close_read(r, &m.close)
        add_number(a, m.close.reply_code)
        add_text(a, m.close.reply_text)
        add_number(a, m.close.method >> 16)
        add_number(a, m.close.method & 0xFFFF)
    elif method == CHANNEL_OPEN:
        good = channel_open_read(r)
    elif method == CHANNEL_FLOW or method == CHANNEL_FLOW_OK:
        good = channel_flow_read(r, &m.bit)
        add_number(a, m.bit)
    elif method == CONFIRM_SELECT:
        good = confirm_select_read(r, &m.bit)
        add_number(a, m.bit)
    else:
        return -1
    return good

cdef int read_topology(uint32_t method, Reader* r, Methods* m, Arguments* a) noexcept nogil:
    cdef bint good
    if method == EXCHANGE_DECLARE:
        good = exchange_declare_read(r, &m.exchange_declare)
        add_text(a, m.exchange_declare.exchange)
        add_text(a, m.exchange_declare.type)
        add_number(a, m.exchange_declare.passive)
        add_number(a, m.exchange_declare.durable)
        add_number(a, m.exchange_declare.auto_delete)
        add_number(a, m.exchange_declare.internal)
        add_number(a, m.exchange_declare.no_wait)
        add_table(a, m.exchange_declare.arguments)
    elif method == EXCHANGE_DELETE:
        good = exchange_delete_read(r, &m.exchange_delete)
        add_text(a, m.exchange_delete.exchange)
        add_number(a, m.exchange_delete.if_unused)
        add_number(a, m.exchange_delete.no_wait)
    elif method == EXCHANGE_BIND or method == EXCHANGE_UNBIND:
        good = exchange_bind_read(r, &m.exchange_bind)
        add_text(a, m.exchange_bind.destination)
        add_text(a, m.exchange_bind.source)
        add_text(a, m.exchange_bind.routing_key)
        add_number(a, m.exchange_bind.no_wait)
        add_table(a, m.exchange_bind.arguments)
    elif method == QUEUE_DECLARE:
        good = queue_declare_read(r, &m.queue_declare)
        add_text(a, m.queue_declare.queue)
        add_number(a, m.queue_declare.passive)
        add_number(a, m.queue_declare.durable)
        add_number(a, m.queue_declare.exclusive)
        add_number(a, m.queue_declare.auto_delete)
        add_number(a, m.queue_declare.no_wait)
        add_table(a, m.queue_declare.arguments)
    elif method == QUEUE_BIND or method == QUEUE_UNBIND:
        good = (queue_bind_read if method == QUEUE_BIND else queue_unbind_read)(r, &m.queue_bind)
        add_text(a, m.queue_bind.queue)
        add_text(a, m.queue_bind.exchange)
        add_text(a, m.queue_bind.routing_key)
        if method == QUEUE_BIND:
            add_number(a, m.queue_bind.no_wait)
        add_table(a, m.queue_bind.arguments)
    elif method == QUEUE_PURGE:
        good = queue_purge_read(r, &m.queue_purge)
        add_text(a, m.queue_purge.queue)
        add_number(a, m.queue_purge.no_wait)
    elif method == QUEUE_DELETE:
        good = queue_delete_read(r, &m.queue_delete)
        add_text(a, m.queue_delete.queue)
        add_number(a, m.queue_delete.if_unused)
        add_number(a, m.queue_delete.if_empty)
        add_number(a, m.queue_delete.no_wait)
    else:
        return -1
    return good

cdef int read_basic(uint32_t method, Reader* r, Methods* m, Arguments* a) noexcept nogil:
    cdef bint good
    if method == BASIC_QOS:
        good = basic_qos_read(r, &m.qos)
        add_number(a, m.qos.prefetch_size)
        add_number(a, m.qos.prefetch_count)
        add_number(a, m.qos.is_global)
    elif method == BASIC_CONSUME:
        good = basic_consume_read(r, &m.consume)
        add_text(a, m.consume.queue)
        add_text(a, m.consume.consumer_tag)
        add_number(a, m.consume.no_local)
        add_number(a, m.consume.no_ack)
        add_number(a, m.consume.exclusive)
        add_number(a, m.consume.no_wait)
        add_table(a, m.consume.arguments)
    elif method == BASIC_CANCEL:
        good = basic_cancel_read(r, &m.cancel)
        add_text(a, m.cancel.consumer_tag)
        add_number(a, m.cancel.no_wait)
    elif method == BASIC_PUBLISH:
        good = basic_publish_read(r, &m.publish)
        add_text(a, m.publish.exchange)
        add_text(a, m.publish.routing_key)
        add_number(a, m.publish.mandatory)
        add_number(a, m.publish.immediate)
    elif method == BASIC_GET:
        good = basic_get_read(r, &m.get)
        add_text(a, m.get.queue)
        add_number(a, m.get.no_ack)
    elif method == BASIC_ACK:
        good = basic_ack_read(r, &m.settle)
        add_number(a, m.settle.delivery_tag)
        add_number(a, m.settle.multiple)
    elif method == BASIC_NACK:
        good = basic_nack_read(r, &m.settle)
        add_number(a, m.settle.delivery_tag)
        add_number(a, m.settle.multiple)
        add_number(a, m.settle.requeue)
    elif method == BASIC_REJECT:
        good = basic_reject_read(r, &m.settle)
        add_number(a, m.settle.delivery_tag)
        add_number(a, m.settle.requeue)
    elif method == BASIC_RECOVER or method == BASIC_RECOVER_ASYNC:
        good = basic_recover_read(r, &m.bit)
        add_number(a, m.bit)
    else:
        return -1
    return good

cdef int read_method(Reader* r, Arguments* a) noexcept nogil:
    """Read the payload of a method frame. 1: well formed, 0: not, -1: no method that a client sends with arguments."""
    cdef Methods m
    cdef uint32_t method = method_of(r)
    cdef int found
    a.count = 0
    found = read_connection(method, r, &m, a)
    if found < 0:
        found = read_topology(method, r, &m, a)
    return read_basic(method, r, &m, a) if found < 0 else found


cdef bytes octets(Text text):
    return PyBytes_FromStringAndSize(<const char*> text.data, text.length)


cdef Text text(bytes found):
    return Text(<const uint8_t*> PyBytes_AS_STRING(found), <uint32_t> PyBytes_GET_SIZE(found))


cdef bytes taken(Bytes* out):
    """What a buffer holds, which is then freed."""
    found = PyBytes_FromStringAndSize(<const char*> out.data + out.begin, bytes_size(out))
    assert not out.failed
    bytes_clear(out)
    return found


def read(bytes payload not None):
    """The arguments of a method: bytes, numbers, and tables as (bytes,); False: not well formed; None: unknown."""
    cdef Arguments a
    cdef Reader r = reader_of(<const uint8_t*> PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    cdef int found = read_method(&r, &a), i
    if found < 1:
        return None if found < 0 else False
    read = []
    for i in range(a.count):
        value = octets(a.items[i].text)
        read.append(a.items[i].number if a.items[i].kind == c'n' else (value,) if a.items[i].kind == c'F' else value)
    return read


cdef Content content(bytes exchange, bytes key, bytes header, bytes body):
    cdef Content c
    c.exchange = <const uint8_t*> PyBytes_AS_STRING(exchange)
    c.exchange_size = PyBytes_GET_SIZE(exchange)
    c.key = <const uint8_t*> PyBytes_AS_STRING(key)
    c.key_size = PyBytes_GET_SIZE(key)
    c.properties = <const uint8_t*> PyBytes_AS_STRING(header) + CONTENT_HEAD
    c.properties_size = PyBytes_GET_SIZE(header) - CONTENT_HEAD
    c.body = <const uint8_t*> PyBytes_AS_STRING(body)
    c.body_size = PyBytes_GET_SIZE(body)
    c.mandatory = False
    return c


def write(uint32_t method, uint32_t channel, *args):
    """A method of a broker's in a frame, with these arguments."""
    cdef Bytes out
    bytes_init(&out)
    if method == CONNECTION_START:
        connection_start_write(&out, text(args[0]), text(args[1]), text(args[2]))
    elif method == CONNECTION_TUNE:
        connection_tune_write(&out, args[0], args[1], args[2])
    elif method == CONNECTION_OPEN_OK:
        connection_open_ok_write(&out)
    elif method == CONNECTION_BLOCKED:
        connection_blocked_write(&out, text(args[0]))
    elif method == CONNECTION_CLOSE:
        connection_close_write(&out, args[0], text(args[1]), args[2])
    elif method == CHANNEL_CLOSE:
        channel_close_write(&out, channel, args[0], text(args[1]), args[2])
    elif method == CHANNEL_OPEN_OK:
        channel_open_ok_write(&out, channel)
    elif method == CHANNEL_FLOW_OK:
        channel_flow_ok_write(&out, channel, args[0])
    elif method == ACCESS_REQUEST_OK:
        access_request_ok_write(&out, channel, args[0])
    elif method == QUEUE_DECLARE_OK:
        queue_declare_ok_write(&out, channel, text(args[0]), args[1], args[2])
    elif method == QUEUE_PURGE_OK:
        queue_purge_ok_write(&out, channel, args[0])
    elif method == QUEUE_DELETE_OK:
        queue_delete_ok_write(&out, channel, args[0])
    elif method == BASIC_CONSUME_OK:
        basic_consume_ok_write(&out, channel, text(args[0]))
    elif method == BASIC_CANCEL_OK:
        basic_cancel_ok_write(&out, channel, text(args[0]))
    elif method == BASIC_CANCEL:
        basic_cancel_write(&out, channel, text(args[0]), args[1])
    elif method == BASIC_GET_EMPTY:
        basic_get_empty_write(&out, channel)
    elif method == BASIC_ACK:
        basic_ack_write(&out, channel, args[0], args[1])
    elif method == BASIC_NACK:
        basic_nack_write(&out, channel, args[0], args[1], args[2])
    else:
        assert not args
        method_write(&out, channel, method)
    return taken(&out)


def write_content(
    uint32_t method, uint32_t channel, int64_t longest, tuple args not None, bytes exchange not None,
    bytes key not None, bytes header not None, bytes body not None, int64_t ahead=0,
):
    """basic.deliver, basic.get-ok or basic.return with a content, in frames; `ahead` octets were taken before."""
    cdef Bytes out
    cdef Content c = content(exchange, key, header, body)
    bytes_init(&out)
    bytes_append(&out, c.body, min(ahead, c.body_size))
    bytes_take(&out, min(ahead, c.body_size))
    if method == BASIC_DELIVER:
        basic_deliver_write(&out, channel, longest, text(args[0]), args[1], args[2], &c)
    elif method == BASIC_GET_OK:
        basic_get_ok_write(&out, channel, longest, args[0], args[1], &c, args[2])
    else:
        basic_return_write(&out, channel, longest, args[0], text(args[1]), &c)
    return taken(&out)


# Frames, contents, tables ---------------------------------------------------------------------------------------------


def span(bytes found not None, int64_t longest):
    """What is at the beginning: a word, kind, channel, payload's size, and the payload if it is whole."""
    cdef FrameSpan f
    cdef FrameFound state = frames_span(
        <const uint8_t*> PyBytes_AS_STRING(found), PyBytes_GET_SIZE(found), longest, &f
    )
    words = {FRAME_WHOLE: "whole", FRAME_PART: "part", FRAME_TOO_LONG: "too long", FRAME_UNENDED: "unended"}
    payload = octets(Text(f.payload, <uint32_t> f.size)) if state == FRAME_WHOLE else None
    return words[state], f.kind, f.channel, f.size, payload


def properties(bytes header not None):
    """The properties of a content header by their number; None: it is none."""
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(header)
    cdef Properties p
    cdef int number
    if not contents_find(at, PyBytes_GET_SIZE(header), &p):
        return None
    found = {}
    for number in range(PROPERTIES):
        if not contents_has(&p, number):
            assert contents_text(at, &p, number).length == 0
        elif number in (PROPERTY_DELIVERY_MODE, PROPERTY_PRIORITY, PROPERTY_TIMESTAMP):
            found[number] = contents_number(at, &p, number, 0)
        else:
            found[number] = octets(contents_text(at, &p, number))
    return found


def rewrite(bytes header not None, uint32_t without, bytes headers=None):
    """A content header without some properties, and with other headers."""
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(header)
    cdef Properties p
    cdef Bytes out
    cdef Text table
    if not contents_find(at, PyBytes_GET_SIZE(header), &p):
        return None
    bytes_init(&out)
    if headers is not None:
        table = text(headers)
    contents_rewrite(&out, at, &p, without, &table if headers is not None else NULL)
    return taken(&out)


cdef object value_of(const Field* f):
    cdef int64_t number
    cdef bint bit
    cdef Text string
    if field_integer(f, &number):
        return number
    if field_bool(f, &bit):
        return bool(bit)
    if field_text(f, &string):
        return octets(string)
    if f.kind in (b'f', b'd'):
        return field_real(f)
    if f.kind in (b'F', b'A'):
        return fields_of(f.value, f.kind == b'F')
    return chr(f.kind), octets(f.value)


cdef list fields_of(Text table, bint named):
    cdef TableWalk w = tables_walk(table, named)
    cdef Text name
    cdef Field field
    found = []
    while tables_next(&w, &name, &field):
        found.append((octets(name), value_of(&field)) if named else value_of(&field))
    assert not w.broken
    return found


def table(bytes found not None):
    """The fields of a table as pairs; None: it is not well formed."""
    return fields_of(text(found), True) if tables_valid(text(found)) else None


def table_value(bytes found not None, bytes name not None):
    """The first value of that name, or None; and what RabbitMQ says of it."""
    cdef Field field
    cdef bint there = tables_get(text(found), text(name), &field)
    cdef Bytes out
    bytes_init(&out)
    field_describe(&out, &field if there else NULL)
    return value_of(&field) if there else None, taken(&out).decode("utf-8", "replace")


def equivalent(bytes current not None, bytes received not None, bytes name not None):
    """Whether an argument is the same in two tables."""
    return bool(tables_equivalent(text(current), text(received), text(name)))


def copied(bytes found not None, without=()):
    """The table written again, without some names, each of which is at most one octet long."""
    cdef Text names[8]
    cdef Bytes out
    cdef int64_t start
    cdef int i
    for i in range(len(without)):
        names[i] = text(without[i])
    bytes_init(&out)
    start = table_begin(&out)
    table_copy(&out, text(found), names, len(without))
    table_end(&out, start)
    return taken(&out)


cdef void write_value(Bytes* out, Text name, value):
    cdef int64_t start
    if isinstance(value, bool):
        table_bool(out, name, value)
    elif isinstance(value, int):
        if -(2**31) <= value < 2**31:
            table_int(out, name, value)
        else:
            table_long(out, name, value)
    elif isinstance(value, bytes):
        table_text(out, name, text(value))
    elif isinstance(value, tuple):
        table_timestamp(out, name, value[0])
    elif isinstance(value, list):
        start = table_array_begin(out, name)
        for one in value:
            write_value(out, Text(NULL, 0), one)
        table_end(out, start)
    elif isinstance(value, dict):
        start = table_nested_begin(out, name)
        for key, one in value.items():
            write_value(out, text(key), one)
        table_end(out, start)


def write_table(dict values not None):
    """A table of bytes, bool, int, timestamps as (seconds,), lists and dicts."""
    cdef Bytes out
    cdef int64_t start
    bytes_init(&out)
    start = table_begin(&out)
    for key, value in values.items():
        write_value(&out, text(key), value)
    table_end(&out, start)
    return taken(&out)


# Mutated frames -------------------------------------------------------------------------------------------------------

cdef struct Fuzz:
    uint64_t state
    uint64_t methods       # that were well formed all the same
    uint64_t refused       # methods that were not
    uint64_t headers       # content headers with properties that were found
    uint64_t tables        # tables walked along to their end
    uint64_t sum           # of all octets looked at, so that nothing is left out

cdef inline uint64_t draw(Fuzz* z) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    z.state = z.state * 6364136223846793005ULL + 1442695040888963407ULL
    return z.state >> 33

cdef inline void look(Fuzz* z, Text found) noexcept nogil:
    cdef uint32_t i
    for i in range(found.length):
        z.sum += found.data[i]

cdef void fuzz_table(Fuzz* z, Text found, bint named, int depth) noexcept nogil:
    """Read every value of a table or an array, valid or not."""
    cdef TableWalk w = tables_walk(found, named)
    cdef Text name
    cdef Field field
    cdef int64_t number
    cdef bint bit
    while tables_next(&w, &name, &field):
        if named:
            look(z, name)
        look(z, field.value)
        if field_integer(&field, &number):
            z.sum += <uint64_t> number
        if field_bool(&field, &bit):
            z.sum += bit
        if fields_equal(&field, &field):
            z.sum += 1
        if field.kind in (b'F', b'A') and depth < 10:
            fuzz_table(z, field.value, field.kind == b'F', depth + 1)
    z.tables += not w.broken

cdef void fuzz_copy(Fuzz* z, Text found, Bytes* out) noexcept nogil:
    """Write a table again, and what is said of its first value."""
    cdef TableWalk w = tables_walk(found)
    cdef Text name
    cdef Field field
    cdef int64_t start
    out.end = out.begin
    start = table_begin(out)
    table_copy(out, found, NULL, 0)
    table_end(out, start)
    if tables_next(&w, &name, &field):
        field_describe(out, &field)
        z.sum += tables_equivalent(found, Text(out.data + out.begin, <uint32_t> bytes_size(out)), name)
    look(z, Text(out.data + out.begin, <uint32_t> bytes_size(out)))

cdef void fuzz_method(Fuzz* z, const FrameSpan* f, Bytes* out) noexcept nogil:
    cdef Arguments a
    cdef Reader r = reader_of(f.payload, f.size)
    cdef int found = read_method(&r, &a), i
    if found < 1:
        z.refused += found == 0
    else:
        z.methods += 1
    for i in range(a.count):
        look(z, a.items[i].text)
        if a.items[i].kind == c'F':
            fuzz_table(z, a.items[i].text, True, 0)
            fuzz_copy(z, a.items[i].text, out)

cdef void fuzz_header(Fuzz* z, const FrameSpan* f, Bytes* out) noexcept nogil:
    cdef Properties p
    cdef Content c
    cdef Text found, empty = Text(<const uint8_t*> b"\0\0\0\0", 4)
    cdef int number
    if not contents_find(f.payload, f.size, &p):
        return
    z.headers += 1
    z.sum += <uint64_t> contents_body_size(f.payload)
    for number in range(PROPERTIES):
        found = contents_text(f.payload, &p, number)
        look(z, found)
        if number == PROPERTY_HEADERS:
            fuzz_table(z, found, True, 0)
            fuzz_copy(z, found, out)
    out.end = out.begin
    contents_rewrite(out, f.payload, &p, <uint32_t> draw(z), &empty if draw(z) & 1 else NULL)
    c.exchange = c.key = NULL
    c.exchange_size = c.key_size = 0
    c.properties = c.body = f.payload + CONTENT_HEAD
    c.properties_size = c.body_size = f.size - CONTENT_HEAD
    basic_deliver_write(out, f.channel, 1 + <int64_t> (draw(z) & 63), empty, 1, False, &c)
    look(z, Text(out.data + out.begin, <uint32_t> bytes_size(out)))

cdef int64_t mutate(Fuzz* z, uint8_t* data, int64_t size) noexcept nogil:
    """Change a frame in one to four places; return its size, which may be less."""
    cdef uint64_t count = 1 + (draw(z) & 3), _i
    cdef int64_t at, other, length
    for _i in range(count):
        at = <int64_t> (draw(z) % <uint64_t> size)
        other = <int64_t> (draw(z) % <uint64_t> size)
        length = min(<int64_t> (draw(z) & 15), size - max(at, other))
        if draw(z) & 1:
            data[at] = <uint8_t> draw(z)
        elif draw(z) & 1:
            data[at] = <uint8_t> (0xFF if draw(z) & 1 else data[at] ^ (1 << (draw(z) & 7)))
        elif draw(z) & 3:
            for length in range(length):
                data[at + length] = data[other + length]
        elif size > 8:
            size = 8 + at % (size - 7)
            data[size - 1] = FRAME_END  # a shorter frame whose lengths lie
    return size

cdef void fuzz_one(Fuzz* z, const uint8_t* seed, int64_t size, Bytes* out) noexcept nogil:
    """Mutate one frame, in a block that is exactly as long, and read all of it."""
    cdef uint8_t* data = <uint8_t*> malloc(size)
    cdef uint8_t* exact
    cdef FrameSpan f
    cdef int64_t whole
    memcpy(data, seed, size)
    whole = mutate(z, data, size)
    exact = <uint8_t*> malloc(whole)
    memcpy(exact, data, whole)
    free(data)
    if draw(z) & 7:  # mostly with a head that tells the truth: what is inside is to be reached
        frames_lengthen(exact, whole)
    if frames_span(exact, whole, 1 << 17, &f) == FRAME_WHOLE:
        if f.kind == FRAME_HEADER:
            fuzz_header(z, &f, out)
        else:
            fuzz_method(z, &f, out)
    free(exact)

cdef inline void frames_lengthen(uint8_t* data, int64_t size) noexcept nogil:
    cdef int i
    for i in range(4):
        data[3 + i] = <uint8_t> ((size - 8) >> 8 * (3 - i))
    data[size - 1] = FRAME_END


def fuzz(list seeds not None, uint64_t seed, uint64_t count):
    """Read `count` mutations of frames, each of at least 8 octets, and say what they were taken for."""
    cdef Fuzz z
    cdef Bytes out
    cdef int64_t total = len(seeds), i
    cdef uint64_t _done
    cdef const uint8_t** frames = <const uint8_t**> calloc(total, sizeof(uint8_t*))
    cdef int64_t* sizes = <int64_t*> calloc(total, sizeof(int64_t))
    for i in range(total):
        frames[i] = <const uint8_t*> PyBytes_AS_STRING(<bytes?> seeds[i])
        sizes[i] = PyBytes_GET_SIZE(seeds[i])
    z.state = seed
    z.methods = z.refused = z.headers = z.tables = z.sum = 0
    bytes_init(&out)
    with nogil:
        for _done in range(count):
            i = <int64_t> (draw(&z) % <uint64_t> total)
            fuzz_one(&z, frames[i], sizes[i], &out)
    bytes_clear(&out)
    free(frames)
    free(sizes)
    return {"methods": z.methods, "refused": z.refused, "headers": z.headers, "tables": z.tables, "sum": z.sum}
