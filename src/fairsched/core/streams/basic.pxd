"""A message of a stream as RabbitMQ delivers it over AMQP 0-9-1: a basic.deliver and a content header.

RabbitMQ converts each message when it is read, before 3.13 (`old`) in another way than since. What neither can deliver
over AMQP 0-9-1 has to become something here: see `headers`; short strings that are too long are cut.

Source: RabbitMQ, rabbit_msg_record and rabbit_stream_queue (3.10), mc_amqp and mc_amqpl (4.3); AMQP 0-9-1, 4.2.6.1.
Thread safety: one writer at a time. Complexity: O(octets).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, strlen

from fairsched.core.amqp.constants cimport BASIC_DELIVER, CLASS_BASIC
from fairsched.core.amqp.contents cimport (
    PROPERTY_APP_ID, PROPERTY_CONTENT_ENCODING, PROPERTY_CONTENT_TYPE, PROPERTY_CORRELATION_ID, PROPERTY_DELIVERY_MODE,
    PROPERTY_EXPIRATION, PROPERTY_HEADERS, PROPERTY_MESSAGE_ID, PROPERTY_PRIORITY, PROPERTY_REPLY_TO,
    PROPERTY_TIMESTAMP, PROPERTY_TYPE, PROPERTY_USER_ID, contents_flag,
)
from fairsched.core.amqp.octets cimport (
    SHORT_MAX, Bytes, Reader, Text, bytes_number, bytes_put, bytes_short, bytes_size, text_begins, text_is, text_of,
)
from fairsched.core.amqp.tables cimport (
    table_array_begin, table_begin, table_end, table_long, table_name, table_put, table_text,
)
from fairsched.core.streams.headers cimport (
    UUID_TEXT, Headers, headers_add, headers_begin, headers_collected, headers_write, uuid_write,
)
from fairsched.core.streams.sections cimport Sections, list_item, map_item
from fairsched.core.streams.values cimport (
    KIND_ARRAY, KIND_BINARY, KIND_BOOL, KIND_LIST, KIND_MAP, KIND_SYMBOL, KIND_TEXT, KIND_TIMESTAMP, KIND_UBYTE,
    KIND_UINT, KIND_ULONG, KIND_UUID, ArrayItems, Value, array_items, array_next, value_bool, value_is_text,
    value_items, value_kind, value_next, value_number, value_text,
)

cdef enum:  # places in the list of properties
    ITEM_MESSAGE_ID = 0
    ITEM_USER_ID = 1
    ITEM_REPLY_TO = 4
    ITEM_CORRELATION_ID = 5
    ITEM_CONTENT_TYPE = 6
    ITEM_CONTENT_ENCODING = 7
    ITEM_CREATION_TIME = 9
    ITEM_GROUP_ID = 10

cdef enum:  # places in the list of the header
    ITEM_DURABLE = 0
    ITEM_PRIORITY = 1
    ITEM_TTL = 2

cdef enum:
    LONGEST_BASE64 = 256   # characters that RabbitMQ 3.10 makes of a binary identifier

cdef struct Record:  # what a message is converted with
    const uint8_t* data
    int64_t size
    Sections sections
    int64_t offset
    Text stream
    bint old             # as RabbitMQ before 3.13


# Where it came from ---------------------------------------------------------------------------------------------------

cdef inline void basic_path(const Record* r, Text* exchange, Text* key) noexcept nogil:
    """Find exchange and routing key; without any, as though the stream's name was published to directly."""
    cdef Value all = r.sections.annotations
    cdef Reader items
    cdef Value name, v
    cdef bint keyed = False
    exchange[0] = Text(NULL, 0)
    key[0] = r.stream
    if value_kind(&all) != KIND_MAP:
        return
    items = value_items(&all)
    while items.at < items.end and value_next(&items, &name) and value_next(&items, &v):
        if value_kind(&name) != KIND_SYMBOL:
            continue
        if value_kind(&v) == KIND_TEXT and text_is(value_text(&name), b"x-exchange"):
            if not r.old or exchange.data == NULL:
                exchange[0] = value_text(&v)
        elif value_kind(&v) == KIND_TEXT and text_is(value_text(&name), b"x-routing-key"):
            if not r.old or not keyed:
                key[0] = value_text(&v)
                keyed = True
        elif not r.old and not keyed and value_kind(&v) == KIND_LIST and text_is(value_text(&name), b"x-cc"):
            v = list_item(&v, 0)
            if value_is_text(&v):
                key[0] = value_text(&v)

cdef inline void basic_deliver(const Record* r, Bytes* out) noexcept nogil:
    """Append the payload of a basic.deliver."""
    cdef Text exchange, key
    basic_path(r, &exchange, &key)
    bytes_number(out, BASIC_DELIVER, 4)
    bytes_short(out, r.stream)  # the consumer tag
    bytes_number(out, 0, 8)
    bytes_number(out, 0, 1)
    bytes_short(out, exchange)
    bytes_short(out, key)


# Headers --------------------------------------------------------------------------------------------------------------

cdef inline void deaths_add(Headers* h, const Value* deaths) noexcept nogil:
    """Collect the header x-death that RabbitMQ makes of its annotation."""
    cdef ArrayItems each = array_items(deaths)
    cdef Text unnamed = Text(NULL, 0)
    cdef Bytes* out = &h.octets
    cdef int64_t begin = bytes_size(out), start = table_array_begin(out, text_of(b"x-death")), table
    cdef Value death
    while array_next(&each, &death):
        if value_kind(&death) == KIND_MAP:
            table_name(out, unnamed, c'F')
            table = table_begin(out)
            death_put(out, &death)
            table_end(out, table)
    table_end(out, start)
    headers_collected(h, begin)

cdef inline void death_text(Bytes* out, const char* name, const Value* death, const char* key) noexcept nogil:
    cdef Value v = map_item(death, text_of(key))
    if value_is_text(&v):
        table_text(out, text_of(name), value_text(&v))

cdef inline void death_put(Bytes* out, const Value* death) noexcept nogil:
    cdef Value v = map_item(death, text_of(b"ttl"))
    cdef Text unnamed = Text(NULL, 0)
    cdef ArrayItems keys
    cdef char digits[24]
    cdef int64_t start
    if value_kind(&v) == KIND_UINT:
        snprintf(digits, sizeof(digits), "%lld", <long long> value_number(&v))
        table_text(out, text_of(b"original-expiration"), text_of(digits))
    v = map_item(death, text_of(b"count"))
    if value_kind(&v) == KIND_ULONG:
        table_long(out, text_of(b"count"), value_number(&v))
    death_text(out, b"reason", death, b"reason")
    death_text(out, b"queue", death, b"queue")
    v = map_item(death, text_of(b"first-time"))
    if value_kind(&v) == KIND_TIMESTAMP:
        table_put(out, text_of(b"time"), c'T', <uint64_t> (value_number(&v) // 1000), 8)
    death_text(out, b"exchange", death, b"exchange")
    v = map_item(death, text_of(b"routing-keys"))
    if value_kind(&v) == KIND_ARRAY:
        start = table_array_begin(out, text_of(b"routing-keys"))
        keys = array_items(&v)
        while array_next(&keys, &v):
            if value_is_text(&v):
                table_text(out, unnamed, value_text(&v))
        table_end(out, start)

cdef inline bint is_internal(Text name) noexcept nogil:
    """Whether RabbitMQ keeps an annotation to itself."""
    return text_begins(name, b"x-basic-") or text_is(name, b"x-routing-key") or text_is(name, b"x-exchange") or (
        text_is(name, b"x-death")
    )

cdef inline void headers_of_annotations(const Record* r, Headers* h) noexcept nogil:
    """Collect the headers that RabbitMQ makes of annotations: of those that begin with x-."""
    cdef Value all = r.sections.annotations
    cdef Reader items
    cdef Value name, v
    cdef Text key
    cdef int64_t begin
    if r.old or value_kind(&all) != KIND_MAP:
        return
    items = value_items(&all)
    while items.at < items.end and value_next(&items, &name) and value_next(&items, &v):
        if value_kind(&name) != KIND_SYMBOL:
            continue
        key = value_text(&name)
        if text_is(key, b"x-cc"):
            headers_add(h, text_of(b"CC"), &v, False)
        elif text_is(key, b"x-opt-rabbitmq-received-time") and value_kind(&v) == KIND_TIMESTAMP:
            begin = bytes_size(&h.octets)
            table_long(&h.octets, text_of(b"timestamp_in_ms"), value_number(&v))
            headers_collected(h, begin)
        elif text_is(key, b"x-opt-deaths"):
            if value_kind(&v) == KIND_ARRAY:
                deaths_add(h, &v)
        elif text_begins(key, b"x-") and key.length <= SHORT_MAX and not is_internal(key):
            headers_add(h, key, &v, False)

cdef inline void header_text(Headers* h, const char* name, Text value) noexcept nogil:
    cdef int64_t begin = bytes_size(&h.octets)
    table_text(&h.octets, text_of(name), value)
    headers_collected(h, begin)

cdef inline bint id_too_long(const Value* v, bint old) noexcept nogil:
    """Whether an identifier is no property, and so becomes a header."""
    if value_kind(v) == KIND_BINARY:
        return not old or (v.size + 2) // 3 * 4 > LONGEST_BASE64
    return value_kind(v) == KIND_TEXT and v.size > SHORT_MAX + old

cdef inline void header_of_id(
    const Record* r, Headers* h, const Value* v, const char* name, const char* type
) noexcept nogil:
    """Collect the header of an identifier: the value that is no property, or its type (before 3.13)."""
    if id_too_long(v, r.old):
        if r.old or value_kind(v) == KIND_TEXT:
            header_text(h, name, value_text(v))
        else:
            headers_add(h, text_of(name), v, True)
    elif r.old and value_kind(v) == KIND_UUID:
        header_text(h, type, text_of(b"uuid"))
    elif r.old and value_kind(v) == KIND_ULONG:
        header_text(h, type, text_of(b"ulong"))
    elif r.old and value_kind(v) == KIND_BINARY:
        header_text(h, type, text_of(b"binary"))

cdef inline void headers_of_properties(const Record* r, Headers* h) noexcept nogil:
    """Collect the headers that publishers wrote: the application properties."""
    cdef Value all = r.sections.application
    cdef Reader items
    cdef Value name, v
    cdef Text key
    cdef bint numbered = False
    if value_kind(&all) != KIND_MAP:
        return
    items = value_items(&all)
    while items.at < items.end and value_next(&items, &name) and value_next(&items, &v):
        key = value_text(&name)
        if r.old:
            if not numbered and text_is(key, b"x-stream-offset"):
                numbered = True
                continue  # the broker overwrites the first one
            if text_is(key, b"x-basic-type") or text_is(key, b"x-basic-app-id"):
                continue
        if value_kind(&name) == KIND_TEXT and key.length <= SHORT_MAX:
            headers_add(h, key, &v, r.old)

cdef inline void basic_headers(const Record* r, Headers* h) noexcept nogil:
    """Collect all headers: of several with the same name, the first is the one that counts."""
    cdef Value correlation = list_item(&r.sections.properties, ITEM_CORRELATION_ID)
    cdef Value message = list_item(&r.sections.properties, ITEM_MESSAGE_ID)
    headers_begin(h)
    table_long(&h.octets, text_of(b"x-stream-offset"), r.offset)
    headers_collected(h, 0)
    headers_of_annotations(r, h)
    header_of_id(r, h, &correlation, b"x-correlation-id", b"x-correlation-id-type")
    header_of_id(r, h, &message, b"x-message-id", b"x-message-id-type")
    headers_of_properties(r, h)


# Properties -----------------------------------------------------------------------------------------------------------

cdef inline uint32_t put_short(Bytes* out, const Value* v, int number) noexcept nogil:
    """Append a property that is text; return its flag, or 0 if there is none."""
    if not value_is_text(v):
        return 0
    bytes_short(out, value_text(v))
    return contents_flag(number)

cdef inline int base64_write(char* to, const uint8_t* octets, int64_t size) noexcept nogil:
    """Write octets as base64; return the number of characters."""
    cdef const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef int64_t i
    cdef uint32_t three
    cdef char* begin = to
    for i in range(0, size, 3):
        three = octets[i] << 16
        three |= octets[i + 1] << 8 if i + 1 < size else 0
        three |= octets[i + 2] if i + 2 < size else 0
        to[0] = digits[three >> 18]
        to[1] = digits[three >> 12 & 63]
        to[2] = digits[three >> 6 & 63] if i + 1 < size else c'='
        to[3] = digits[three & 63] if i + 2 < size else c'='
        to += 4
    return <int> (to - begin)

cdef inline uint32_t put_id(const Record* r, Bytes* out, const Value* v, int number) noexcept nogil:
    """Append an identifier; return its flag, or 0 if there is none or it is a header."""
    cdef char text[LONGEST_BASE64]
    cdef int length
    if id_too_long(v, r.old):
        return 0
    if value_kind(v) == KIND_UUID:
        length = 0
        if not r.old:
            memcpy(text, <const char*> b"urn:uuid:", 9)
            length = 9
        length = <int> (uuid_write(text + length, v.data) - text)
    elif value_kind(v) == KIND_ULONG:
        length = snprintf(text, sizeof(text), "%llu", <unsigned long long> value_number(v))
    elif value_kind(v) == KIND_BINARY:
        length = base64_write(text, v.data, v.size)
    else:
        return put_short(out, v, number)
    bytes_short(out, Text(<const uint8_t*> text, <uint32_t> length))
    return contents_flag(number)

cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    return c - c'a' + 10 if c'a' <= c <= c'f' else -1

cdef inline int percent_decode(const uint8_t* at, int64_t size, uint8_t* to) noexcept nogil:
    """Decode a part of a URI; return the number of octets, or -1 if it is malformed."""
    cdef int count = 0
    cdef int64_t i = 0
    while i < size:
        to[count] = at[i]
        if at[i] == c'%':
            if i + 2 >= size or hex_digit(at[i + 1]) < 0 or hex_digit(at[i + 2]) < 0:
                return -1
            to[count] = <uint8_t> (hex_digit(at[i + 1]) << 4 | hex_digit(at[i + 2]))
            i += 2
        count += 1
        i += 1
    return count

cdef inline uint32_t put_reply_to(const Record* r, Bytes* out, const Value* v) noexcept nogil:
    """Append where to reply: since 3.13 the name of a queue, which its address has."""
    cdef uint8_t name[SHORT_MAX]
    cdef int length
    if r.old:
        return put_short(out, v, PROPERTY_REPLY_TO)
    if value_kind(v) != KIND_TEXT or v.size > SHORT_MAX:
        return 0
    if not text_begins(value_text(v), b"/queues/"):
        return put_short(out, v, PROPERTY_REPLY_TO)
    length = percent_decode(v.data + 8, v.size - 8, name)
    if length < 0:
        return 0
    bytes_short(out, Text(<const uint8_t*> name, <uint32_t> length))
    return contents_flag(PROPERTY_REPLY_TO)

cdef inline bint is_whole_text(const uint8_t* at, int64_t size) noexcept nogil:
    """Whether octets are UTF-8 without NUL, as Erlang sees it."""
    cdef int64_t i = 0, more, k
    cdef uint32_t c, least
    while i < size:
        c = at[i]
        if c == 0 or 0x80 <= c < 0xC2 or c > 0xF4:
            return False
        more = 0 if c < 0x80 else 1 if c < 0xE0 else 2 if c < 0xF0 else 3
        least = 0 if more == 0 else 0x80 if more == 1 else 0x800 if more == 2 else 0x10000
        if more:
            c &= 0x3F >> more
        if i + more >= size:
            return False
        for k in range(1, more + 1):
            if at[i + k] & 0xC0 != 0x80:
                return False
            c = c << 6 | at[i + k] & 0x3F
        if c < least or 0xD800 <= c < 0xE000 or c > 0x10FFFF:
            return False
        i += 1 + more
    return True

cdef inline uint32_t put_user(const Record* r, Bytes* out, const Value* v) noexcept nogil:
    if not r.old and (v.size > SHORT_MAX or not value_is_text(v) or not is_whole_text(v.data, v.size)):
        return 0
    return put_short(out, v, PROPERTY_USER_ID)

cdef inline uint32_t put_expiration(const Record* r, Bytes* out) noexcept nogil:
    """Append the time to live: of the header, or else as AMQP 0-9-1 had it, which 3.13 reads as a number."""
    cdef Value v = list_item(&r.sections.header, ITEM_TTL)
    cdef char digits[24]
    if value_kind(&v) == KIND_UINT:
        snprintf(digits, sizeof(digits), "%lld", <long long> value_number(&v))
        bytes_short(out, text_of(digits))
        return contents_flag(PROPERTY_EXPIRATION)
    v = map_item(&r.sections.annotations, text_of(b"x-basic-expiration"))
    if not r.old and value_is_text(&v):
        while v.size > 1 and v.data[0] == c'0':
            v.data += 1
            v.size -= 1
    return put_short(out, &v, PROPERTY_EXPIRATION)

cdef inline uint32_t put_octet(Bytes* out, const Value* v, int number) noexcept nogil:
    if value_kind(v) != KIND_UBYTE:
        return 0
    bytes_number(out, <uint64_t> value_number(v), 1)
    return contents_flag(number)

cdef inline uint32_t put_delivery_mode(const Record* r, Bytes* out) noexcept nogil:
    cdef Value v = list_item(&r.sections.header, ITEM_DURABLE)
    if value_kind(&v) == KIND_BOOL:
        bytes_number(out, 2 if value_bool(&v) else 1, 1)
        return contents_flag(PROPERTY_DELIVERY_MODE)
    v = map_item(&r.sections.annotations, text_of(b"x-basic-delivery-mode"))
    return put_octet(out, &v, PROPERTY_DELIVERY_MODE)

cdef inline uint32_t put_priority(const Record* r, Bytes* out) noexcept nogil:
    cdef Value v = list_item(&r.sections.header, ITEM_PRIORITY)
    if value_kind(&v) != KIND_UBYTE:
        v = map_item(&r.sections.annotations, text_of(b"x-basic-priority"))
    return put_octet(out, &v, PROPERTY_PRIORITY)

cdef inline uint32_t put_time(Bytes* out, const Value* v) noexcept nogil:
    if value_kind(v) != KIND_TIMESTAMP:
        return 0
    bytes_number(out, <uint64_t> (value_number(v) // 1000), 8)
    return contents_flag(PROPERTY_TIMESTAMP)

cdef inline uint32_t put_type(const Record* r, Bytes* out) noexcept nogil:
    cdef Value v
    if r.sections.data == 0:  # the body is encoded as AMQP 1.0 has it
        bytes_short(out, text_of(b"amqp-1.0"))
        return contents_flag(PROPERTY_TYPE)
    v = map_item(&r.sections.application if r.old else &r.sections.annotations, text_of(b"x-basic-type"))
    return put_short(out, &v, PROPERTY_TYPE)

cdef inline uint32_t put_application(const Record* r, Bytes* out) noexcept nogil:
    cdef Value v
    if r.old:
        v = map_item(&r.sections.application, text_of(b"x-basic-app-id"))
    else:
        v = list_item(&r.sections.properties, ITEM_GROUP_ID)
        if value_kind(&v) != KIND_TEXT or v.size > SHORT_MAX:
            return 0
    return put_short(out, &v, PROPERTY_APP_ID)

cdef inline void basic_content(const Record* r, Headers* h, int64_t body_size, Bytes* out) noexcept nogil:
    """Append the payload of a content header."""
    cdef int64_t at
    cdef uint32_t flags = contents_flag(PROPERTY_HEADERS)
    cdef Value each[8]
    cdef int i
    cdef const int* places = [
        ITEM_CONTENT_TYPE, ITEM_CONTENT_ENCODING, ITEM_CORRELATION_ID, ITEM_REPLY_TO, ITEM_MESSAGE_ID,
        ITEM_CREATION_TIME, ITEM_USER_ID,
    ]
    for i in range(7):
        each[i] = list_item(&r.sections.properties, places[i])
    bytes_number(out, <uint64_t> CLASS_BASIC << 16, 4)
    bytes_number(out, <uint64_t> body_size, 8)
    at = bytes_size(out)
    bytes_number(out, 0, 2)
    flags |= put_short(out, &each[0], PROPERTY_CONTENT_TYPE)
    flags |= put_short(out, &each[1], PROPERTY_CONTENT_ENCODING)
    basic_headers(r, h)
    headers_write(h, out, not r.old)
    flags |= put_delivery_mode(r, out)
    flags |= put_priority(r, out)
    flags |= put_id(r, out, &each[2], PROPERTY_CORRELATION_ID)
    flags |= put_reply_to(r, out, &each[3])
    flags |= put_expiration(r, out)
    flags |= put_id(r, out, &each[4], PROPERTY_MESSAGE_ID)
    flags |= put_time(out, &each[5])
    flags |= put_type(r, out)
    flags |= put_user(r, out, &each[6])
    flags |= put_application(r, out)
    bytes_put(out, at, flags, 2)
