"""Consistent-hash exchanges (x-consistent-hash): a message goes to one destination, chosen by a hash.

A binding's key is the weight of its destination. A message is hashed by its first routing key, or by the header or the
property that the exchange's arguments name.

Source: RabbitMQ, "Consistent Hash Exchange"; buckets.pxd has the hash and the buckets.
Thread safety: none; the caller synchronizes. Complexity: that of buckets.pxd.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free

from fairsched.core.amqp.contents cimport (
    PROPERTY_CORRELATION_ID, PROPERTY_MESSAGE_ID, PROPERTY_TIMESTAMP, contents_has, contents_number, contents_text,
)
from fairsched.core.amqp.octets cimport Text, text_is, text_of
from fairsched.core.amqp.tables cimport Field, tables_get
from fairsched.core.broker.errors cimport Refusal, refusal_binary, refuse, refuse_name
from fairsched.core.broker.exchanges.buckets cimport (
    BUCKETS_MAX, WEIGHT_NO_INTEGER, WEIGHT_OK, WEIGHT_TOO_SMALL, Buckets, Weight, buckets_add, buckets_clear,
    buckets_find, buckets_init, buckets_remove, buckets_total, hash_missing, hash_text, hash_value, weight_read,
)
from fairsched.core.broker.exchanges.reach cimport route_headers, route_reach
from fairsched.core.broker.exchanges.state cimport Binding, Destination, Exchange, Route
from fairsched.core.broker.exchanges.textarguments cimport text_argument, text_argument_check

cdef enum HashedBy:
    HASHED_KEY
    HASHED_HEADER
    HASHED_PROPERTY

cdef struct ConsistentHash:  # an exchange's `own`
    Buckets buckets
    HashedBy hashed_by
    Text hashed              # the name of the header or the property, in the exchange's arguments

cdef inline bint hash_check(Refusal* r, Text name, Text vhost, Text arguments) noexcept nogil:
    cdef Text header, property
    cdef bint hashes
    if not text_argument_check(r, name, vhost, arguments, "hash-header"):
        return False
    if not text_argument_check(r, name, vhost, arguments, "hash-property"):
        return False
    hashes = text_argument(arguments, "hash-header", &header)
    if not text_argument(arguments, "hash-property", &property):
        return True
    if hashes:
        return refuse(r, 406, "hash-header and hash-property are mutually exclusive")
    if text_is(property, "correlation_id") or text_is(property, "message_id") or text_is(property, "timestamp"):
        return True
    return refuse_name(r, 406, "Unsupported property: ", property, "")

cdef inline bint hash_begin(Exchange* x) noexcept nogil:
    cdef ConsistentHash* h = <ConsistentHash*> calloc(1, sizeof(ConsistentHash))
    x.own = h
    if h == NULL:
        return False
    buckets_init(&h.buckets)
    h.hashed_by = HASHED_KEY
    if text_argument(x.arguments, "hash-header", &h.hashed):
        h.hashed_by = HASHED_HEADER
    elif text_argument(x.arguments, "hash-property", &h.hashed):
        h.hashed_by = HASHED_PROPERTY
    return True

cdef inline void hash_end(Exchange* x) noexcept nogil:
    buckets_clear(&(<ConsistentHash*> x.own).buckets)
    free(x.own)

cdef inline bint hash_check_binding(Refusal* r, const Exchange* x, Text key, Text arguments) noexcept nogil:
    """Refuse a binding key that is not a weight."""
    cdef int64_t weight = 0
    cdef Weight found = weight_read(key, &weight)
    if found == WEIGHT_NO_INTEGER:
        refuse(r, 406, "The binding key must be an integer: ")
        refusal_binary(r, key)
        return False
    if found == WEIGHT_TOO_SMALL:
        return refuse(r, 406, "The binding key must be greater than 0")
    if found != WEIGHT_OK:
        return refuse(r, 406, "The binding key must not exceed 10000")
    if weight > BUCKETS_MAX - buckets_total(&(<const ConsistentHash*> x.own).buckets):
        return refuse(r, 406, "there would be more than 2147483647 buckets")
    return True

cdef inline bint hash_add(Binding* b) noexcept nogil:
    cdef int64_t weight = 0
    weight_read(b.key, &weight)
    return buckets_add(&(<ConsistentHash*> b.source.own).buckets, b.destination, weight)

cdef inline void hash_remove(Binding* b) noexcept nogil:
    buckets_remove(&(<ConsistentHash*> b.source.own).buckets, b.destination)

cdef inline uint64_t hash_property(const Route* r, Text name) noexcept nogil:
    cdef char digits[32]
    cdef int property = PROPERTY_CORRELATION_ID
    if text_is(name, "message_id"):
        property = PROPERTY_MESSAGE_ID
    elif text_is(name, "timestamp"):
        property = PROPERTY_TIMESTAMP
    if not contents_has(r.properties, property):
        return hash_missing()
    if property != PROPERTY_TIMESTAMP:
        return hash_text(contents_text(r.header, r.properties, property))
    snprintf(
        digits, sizeof(digits), "%llu", <unsigned long long> contents_number(r.header, r.properties, property, 0)
    )
    return hash_text(text_of(digits))

cdef inline uint64_t hash_message(const Route* r, const ConsistentHash* h) noexcept nogil:
    """Return the hash by which a message's bucket is found."""
    cdef Field field
    if h.hashed_by == HASHED_KEY:
        return hash_text(r.keys[0])
    if h.hashed_by == HASHED_HEADER:
        return hash_value(&field) if tables_get(route_headers(r), h.hashed, &field) else hash_missing()
    return hash_property(r, h.hashed)

cdef inline void hash_route(Route* r, const Exchange* x) noexcept nogil:
    cdef const ConsistentHash* h = <const ConsistentHash*> x.own
    cdef void* found = buckets_find(&h.buckets, hash_message(r, h))
    if found != NULL:
        route_reach(r, <Destination*> found)
