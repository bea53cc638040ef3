"""The memory of messages: one reference-counted block each, in any number of queues.

Thread safety: the counter is atomic; everything else is written before other threads know the message.
Complexity: O(1), and O(octets) to create one.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, Content, PROPERTY_DELIVERY_MODE, Properties, contents_find, contents_number,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport Bytes, Text
from fairsched.core.broker.state cimport KEPT, Kept, PERSISTENT, Payload, Server

cdef inline uint8_t* payload_exchange(const Payload* p) noexcept nogil:
    return <uint8_t*> (p + 1)

cdef inline uint8_t* payload_key(const Payload* p) noexcept nogil:
    return payload_exchange(p) + p.exchange_size

cdef inline uint8_t* payload_header(const Payload* p) noexcept nogil:
    return payload_key(p) + p.key_size

cdef inline uint8_t* payload_body(const Payload* p) noexcept nogil:
    return payload_header(p) + p.header_size

cdef inline Text payload_bcc(const Payload* p) noexcept nogil:
    """Return the keys of the header BCC: an array, which begins with its length, or nothing."""
    cdef const uint8_t* data = payload_body(p) + p.body_size
    return Text(data, 4 + <uint32_t> frames_number(data, 4)) if p.has_bcc else Text(NULL, 0)

cdef inline int64_t payload_size(const Payload* p, int64_t body) noexcept nogil:
    """Return the octets of memory that a message takes, with `body` octets of its body."""
    return <int64_t> sizeof(Payload) + p.exchange_size + p.key_size + p.header_size + body + payload_bcc(p).length

cdef inline Kept* payload_kept(const Payload* p) noexcept nogil:
    """Return the block before a message that is `KEPT`."""
    return <Kept*> p - 1

cdef inline void* payload_block(const Payload* p) noexcept nogil:
    return <void*> payload_kept(p) if p.persistent == KEPT else <void*> p

cdef inline Payload* payload_create(
    Server* server, Text exchange, Text key, const uint8_t* header, int64_t header_size, const Properties* properties,
    int64_t body_size, int64_t room
) noexcept nogil:
    """Make a message without its body, and with room for `room` octets of it; NULL: memory is exhausted."""
    cdef bint persistent = contents_number(header, properties, PROPERTY_DELIVERY_MODE, 1) == 2
    cdef size_t before = sizeof(Kept) if persistent and server.journal != NULL else 0
    cdef void* block = malloc(
        before + sizeof(Payload) + exchange.length + key.length + <size_t> header_size + <size_t> room
    )
    cdef Payload* p = <Payload*> (<uint8_t*> block + before)
    if block == NULL:
        return NULL
    if before:
        memset(block, 0, before)
    p.references.store(1)
    p.exchange_size = <uint8_t> exchange.length
    p.key_size = <uint8_t> key.length
    p.header_size = <uint32_t> header_size
    p.has_bcc = False
    p.body_size = <uint32_t> body_size
    p.persistent = KEPT if before else PERSISTENT if persistent else 0
    p.server = NULL
    if exchange.length:
        memcpy(payload_exchange(p), exchange.data, exchange.length)
    if key.length:
        memcpy(payload_key(p), key.data, key.length)
    memcpy(payload_header(p), header, <size_t> header_size)
    return p

cdef inline Payload* payload_resize(Payload* p, int64_t room) noexcept nogil:
    """Make room for `room` octets of the body; NULL: memory is exhausted. No other thread may know the message."""
    cdef size_t before = sizeof(Kept) if p.persistent == KEPT else 0
    cdef void* block = realloc(payload_block(p), before + <size_t> payload_size(p, room))
    return <Payload*> (<uint8_t*> block + before) if block != NULL else NULL

cdef inline void payload_account(Payload* p, Server* server) noexcept nogil:
    """Count a complete message in its server's memory."""
    p.server = server
    server.payloads.fetch_add(1)
    server.memory.fetch_add(payload_size(p, p.body_size))

cdef inline Payload* payload_again(
    const Payload* old, Text exchange, Text key, const Bytes* header, Text bcc, Properties* properties
) noexcept nogil:
    """Copy a message with another content header, and read and count that; NULL: memory is exhausted."""
    cdef int64_t size = header.end - header.begin
    cdef Payload* p
    if header.failed or not contents_find(header.data + header.begin, size, properties):
        return NULL
    p = payload_create(
        old.server, exchange, key, header.data + header.begin, size, properties, old.body_size,
        old.body_size + bcc.length
    )
    if p == NULL:
        return NULL
    memcpy(payload_body(p), payload_body(old), <size_t> old.body_size)
    p.has_bcc = bcc.length != 0
    if bcc.length:
        memcpy(payload_body(p) + p.body_size, bcc.data, bcc.length)
    payload_account(p, old.server)
    return p

cdef inline void payload_retain(Payload* p, uint32_t count) noexcept nogil:
    p.references.fetch_add(count)

cdef inline void payload_release(Payload* p) noexcept nogil:
    # With the only reference, no atomic decrement is needed: no other thread can add one.
    if p.references.load() != 1 and p.references.fetch_sub(1) != 1:
        return
    if p.server != NULL:
        p.server.payloads.fetch_sub(1)
        p.server.memory.fetch_sub(payload_size(p, p.body_size))
    if p.persistent == KEPT:
        free(payload_kept(p).entries)
    free(payload_block(p))

cdef inline Content payload_content(const Payload* p) noexcept nogil:
    """Return a message in the form that the codec writes."""
    cdef Content c
    c.exchange = payload_exchange(p)
    c.exchange_size = p.exchange_size
    c.key = payload_key(p)
    c.key_size = p.key_size
    c.properties = payload_header(p) + CONTENT_HEAD
    c.properties_size = p.header_size - CONTENT_HEAD
    c.body = payload_body(p)
    c.body_size = p.body_size
    c.mandatory = False
    return c
