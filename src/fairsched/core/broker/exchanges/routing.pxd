"""Find the queues of a message.

Each thread that routes has a `Route` of its own, whose memory is reused from message to message. A message has one
routing key and those in its headers CC and BCC; each is tried, but a consistent-hash exchange takes the first. An
exchange that leads nowhere has the message routed by its alternate exchange; one that leads to another exchange has led
somewhere. No exchange is asked twice, no queue named twice.

Source: AMQP 0-9-1, section 3.1; RabbitMQ, "Sender-selected Distribution", "Alternate Exchanges", "Exchange to Exchange
Bindings", and the answers of a node (tests/integration/broker).
Thread safety: any number of threads may route, each with its own `Route`, while nobody changes the topology.
Complexity: O(octets of keys and headers) and O(destinations); a topic exchange as topics.pxd says; a headers exchange
O(bindings * fields).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free

from fairsched.core.amqp.contents cimport (
    PROPERTY_CORRELATION_ID, PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, PROPERTY_MESSAGE_ID, PROPERTY_TIMESTAMP,
    Properties, contents_has, contents_number, contents_text,
)
from fairsched.core.amqp.octets cimport Text, text_is, text_of
from fairsched.core.amqp.tables cimport Field, TableWalk, field_type, tables_get, tables_next, tables_walk
from fairsched.core.broker.errors cimport (
    Refusal, refusal_say, refuse, refuse_memory, refuse_missing, refuse_number, refuse_resource,
)
from fairsched.core.broker.exchanges.buckets cimport buckets_find, hash_missing, hash_text, hash_value
from fairsched.core.broker.exchanges.exchanges cimport (
    EXCHANGE_DIRECT, EXCHANGE_FANOUT, EXCHANGE_HEADERS, EXCHANGE_TOPIC, HASHED_HEADER, HASHED_KEY, Binding,
    Destination, Exchange, Topology, exchange_find, exchange_name, place_of_queue,
)
from fairsched.core.broker.exchanges.fields cimport Fields, fields_clear, fields_init, fields_read
from fairsched.core.broker.exchanges.growing cimport (
    Marks, Pointers, marks_add, marks_begin, marks_clear, marks_init, pointers_add, pointers_clear, pointers_init,
)
from fairsched.core.broker.exchanges.headers cimport headers_match
from fairsched.core.broker.exchanges.names cimport NameEntry, names_find
from fairsched.core.broker.exchanges.topics cimport TopicNode, Walk, topics_walk, walk_clear, walk_init
from fairsched.core.memory cimport array_reserve

cdef struct Route:
    void** queues            # where the message goes, each queue once
    int64_t count
    bint bcc                 # the header BCC has to be removed from what is delivered
    Pointers found           # the memory of `queues`
    Pointers exchanges       # to be asked
    Marks places             # destinations that were found
    Walk walk
    Text* keys
    int64_t key_count
    int64_t key_room
    const uint8_t* header    # the message's content header
    const Properties* properties
    Fields headers           # its headers, sorted, once `sorted`
    bint sorted
    bint led                 # whether the exchange that is asked has led somewhere
    bint failed              # memory is exhausted

cdef inline void route_init(Route* r) noexcept nogil:
    r.queues = NULL
    r.keys = NULL
    r.count = r.key_count = r.key_room = 0
    r.bcc = r.sorted = r.led = r.failed = False
    r.header = NULL
    r.properties = NULL
    pointers_init(&r.found)
    pointers_init(&r.exchanges)
    marks_init(&r.places)
    walk_init(&r.walk)
    fields_init(&r.headers)

cdef inline void route_clear(Route* r) noexcept nogil:
    pointers_clear(&r.found)
    pointers_clear(&r.exchanges)
    marks_clear(&r.places)
    walk_clear(&r.walk)
    fields_clear(&r.headers)
    free(r.keys)
    route_init(r)


# Keys -----------------------------------------------------------------------------------------------------------------

cdef inline void route_add_key(Route* r, Text key) noexcept nogil:
    if not array_reserve(<void**> &r.keys, &r.key_room, r.key_count + 1, sizeof(Text), 8):
        r.failed = True
        return
    r.keys[r.key_count] = key
    r.key_count += 1

cdef inline Text route_headers(const Route* r) noexcept nogil:
    """The message's headers, a table."""
    return contents_text(r.header, r.properties, PROPERTY_HEADERS)

cdef inline void route_add_array(Route* r, Text array) noexcept nogil:
    """Add the keys in an array, all of its elements that are long strings."""
    cdef TableWalk w = tables_walk(array, False)
    cdef Text name
    cdef Field element
    while tables_next(&w, &name, &element):
        if element.kind == b'S':
            route_add_key(r, element.value)

cdef inline bint route_add_keys(Route* r, const char* name, bint* present, Refusal* refusal) noexcept nogil:
    """Add the keys in a header, which has to be an array."""
    cdef Field field
    present[0] = tables_get(route_headers(r), text_of(name), &field)
    if not present[0]:
        return True
    if field.kind != b'A':
        refuse(refusal, 406, "invalid message: {unacceptable_type_in_header,\"")
        refusal_say(refusal, name)
        refusal_say(refusal, "\",")
        refusal_say(refusal, field_type(&field))
        refusal_say(refusal, "}")
        return False
    route_add_array(r, field.value)
    return True

cdef inline bint route_read_keys(Route* r, Text key, Refusal* refusal) noexcept nogil:
    """Collect the keys of a message that a client publishes; False: it is not as it must be."""
    cdef uint64_t mode = contents_number(r.header, r.properties, PROPERTY_DELIVERY_MODE, 1)
    cdef bint cc
    r.bcc = False
    r.key_count = 0
    route_add_key(r, key)
    if contents_has(r.properties, PROPERTY_HEADERS) and not (
        route_add_keys(r, "CC", &cc, refusal) and route_add_keys(r, "BCC", &r.bcc, refusal)
    ):
        return False
    if mode != 1 and mode != 2:
        return refuse_number(refusal, 406, "invalid message: {delivery_mode_unknown,", <int64_t> mode, "}")
    return True


# Destinations ---------------------------------------------------------------------------------------------------------

cdef inline void route_reach(Route* r, Destination* place) noexcept nogil:
    r.led = True
    if not marks_add(&r.places, place.number):
        return
    if place.exchange != NULL:
        r.failed = not pointers_add(&r.exchanges, place.exchange) or r.failed
    else:
        r.failed = not pointers_add(&r.found, place.queue) or r.failed

cdef inline void route_peers(Route* r, const Binding* b) noexcept nogil:
    while b != NULL:
        route_reach(r, b.destination)
        b = b.following

cdef inline void route_direct(Route* r, const Exchange* x) noexcept nogil:
    cdef NameEntry* entry
    cdef int64_t i
    for i in range(r.key_count):
        entry = names_find(&x.keys, r.keys[i])
        if entry != NULL:
            route_peers(r, <const Binding*> entry.value)

cdef inline void route_fanout(Route* r, const Exchange* x) noexcept nogil:
    cdef const Binding* b = x.oldest
    while b != NULL:
        route_reach(r, b.destination)
        b = b.newer

cdef inline void route_topic(Route* r, const Exchange* x) noexcept nogil:
    cdef int64_t i, node
    for i in range(r.key_count):
        if not topics_walk(&x.topics, r.keys[i], &r.walk):
            r.failed = True
            return
        for node in range(r.walk.nodes.count):
            route_peers(r, <const Binding*> (<TopicNode*> r.walk.nodes.at[node]).bindings)

cdef inline void route_by_headers(Route* r, const Exchange* x) noexcept nogil:
    cdef const Binding* b = x.oldest
    if not r.sorted:
        r.sorted = True
        r.failed = not fields_read(&r.headers, route_headers(r)) or r.failed
    while b != NULL:
        if headers_match(&b.pattern, b.mode, &r.headers):
            route_reach(r, b.destination)
        b = b.newer

cdef inline uint64_t route_hash(const Route* r, const Exchange* x) noexcept nogil:
    """The hash by which a consistent-hash exchange finds a bucket."""
    cdef Field field
    cdef char digits[32]
    cdef int property = PROPERTY_CORRELATION_ID
    if x.hashed_by == HASHED_KEY:
        return hash_text(r.keys[0])
    if x.hashed_by == HASHED_HEADER:
        return hash_value(&field) if tables_get(route_headers(r), x.hashed, &field) else hash_missing()
    if text_is(x.hashed, "message_id"):
        property = PROPERTY_MESSAGE_ID
    elif text_is(x.hashed, "timestamp"):
        property = PROPERTY_TIMESTAMP
    if not contents_has(r.properties, property):
        return hash_missing()
    if property != PROPERTY_TIMESTAMP:
        return hash_text(contents_text(r.header, r.properties, property))
    snprintf(
        digits, sizeof(digits), "%llu", <unsigned long long> contents_number(r.header, r.properties, property, 0)
    )
    return hash_text(text_of(digits))

cdef inline void route_by_hash(Route* r, const Exchange* x) noexcept nogil:
    cdef void* found = buckets_find(&x.buckets, route_hash(r, x))
    if found != NULL:
        route_reach(r, <Destination*> found)

cdef inline void route_ask(Route* r, const Topology* t, const Exchange* x) noexcept nogil:
    """Follow the bindings of an exchange that match, or else its alternate exchange."""
    cdef Exchange* alternate
    r.led = False
    if x.kind == EXCHANGE_DIRECT:
        route_direct(r, x)
    elif x.kind == EXCHANGE_FANOUT:
        route_fanout(r, x)
    elif x.kind == EXCHANGE_TOPIC:
        route_topic(r, x)
    elif x.kind == EXCHANGE_HEADERS:
        route_by_headers(r, x)
    else:
        route_by_hash(r, x)
    if not r.led and x.alternate.data != NULL:
        alternate = exchange_find(t, x.alternate)
        if alternate != NULL:
            route_reach(r, &alternate.place)

cdef inline void route_default(Route* r, const Topology* t) noexcept nogil:
    """Go to the queues that are named like the keys."""
    cdef Destination* place
    cdef int64_t i
    for i in range(r.key_count):
        place = place_of_queue(t, r.keys[i])
        if place != NULL:
            route_reach(r, place)

cdef inline bint route_from(Route* r, const Topology* t, Exchange* x) noexcept nogil:
    """Fill `queues` by the keys, beginning with an exchange. False: memory is exhausted."""
    r.found.count = r.exchanges.count = 0
    r.sorted = False
    r.failed = not marks_begin(&r.places, t.numbers.next) or r.failed
    if not r.failed:
        marks_add(&r.places, x.place.number)
        if exchange_name(x).length == 0:
            route_default(r, t)
        else:
            route_ask(r, t, x)
    while r.exchanges.count and not r.failed:
        r.exchanges.count -= 1
        route_ask(r, t, <Exchange*> r.exchanges.at[r.exchanges.count])
    r.queues = r.found.at
    r.count = r.found.count
    return not r.failed


# Publishing -----------------------------------------------------------------------------------------------------------

cdef inline Exchange* route_exchange(const Topology* t, Text exchange, Refusal* refusal) noexcept nogil:
    """Return the exchange that a client may publish to; NULL: refused (404 no exchange, 403 internal exchange)."""
    cdef Exchange* x = exchange_find(t, exchange)
    if x == NULL:
        refuse_missing(refusal, True, exchange, t.vhost)
        return NULL
    if x.internal:
        refuse_resource(refusal, 403, "cannot publish to internal ", True, exchange, t.vhost, "")
        return NULL
    return x

cdef inline bint route_publish(
    Route* r, const Topology* t, Exchange* x, Text key, const uint8_t* header, const Properties* properties,
    Refusal* refusal
) noexcept nogil:
    """Route what a client publishes.

    `header` is the payload of the content header, `properties` what `contents_find` found in it. False: refused (406 CC
    or BCC is no array, or a delivery mode that is none; 541 memory exhausted). That there is no queue is no refusal.
    """
    r.count = 0
    r.failed = False
    r.header = header
    r.properties = properties
    return route_read_keys(r, key, refusal) and (route_from(r, t, x) or refuse_memory(refusal))

cdef inline bint route_named(Route* r, const Topology* t, Text names) noexcept nogil:
    """Fill `queues` with those of these names, short strings, that exist. False: memory is exhausted."""
    cdef Destination* place
    cdef uint32_t at = 0
    r.found.count = 0
    r.bcc = False
    r.failed = not marks_begin(&r.places, t.numbers.next)
    while at < names.length and not r.failed:
        place = place_of_queue(t, Text(names.data + at + 1, names.data[at]))
        if place != NULL:
            route_reach(r, place)
        at += 1 + names.data[at]
    r.queues = r.found.at
    r.count = r.found.count
    return not r.failed

cdef inline bint route_dead_letter(
    Route* r, const Topology* t, Text exchange, Text key, Text bcc, const uint8_t* header, const Properties* properties
) noexcept nogil:
    """Route a dead letter by its key, those in its header CC, and those that were in BCC; also to an internal exchange.

    Without that exchange there are no queues. False: memory is exhausted.
    """
    cdef Exchange* x = exchange_find(t, exchange)
    cdef Field cc
    r.count = r.key_count = 0
    r.failed = r.bcc = False
    r.header = header
    r.properties = properties
    route_add_key(r, key)
    if tables_get(route_headers(r), text_of("CC"), &cc) and cc.kind == b'A':
        route_add_array(r, cc.value)
    route_add_array(r, bcc)
    return not r.failed and (x == NULL or route_from(r, t, x))
