"""Find the queues of a message.

Each thread that routes has its own `Route`, whose memory is reused from message to message. A message has one routing
key and those in its headers CC and BCC. An exchange that reaches no destination passes the message to its alternate
exchange. A message passes through each exchange once, and each queue is found once.

Source: AMQP 0-9-1, section 3.1; RabbitMQ, "Sender-selected Distribution", "Alternate Exchanges", "Exchange to Exchange
Bindings", and the answers of a node (tests/integration/broker).
Thread safety: any number of threads may route, each with its own `Route`, while no thread changes the topology.
Complexity: O(octets of keys and headers) and O(destinations), and that of the types of exchange.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from fairsched.core.amqp.contents cimport (
    PROPERTY_DELIVERY_MODE, PROPERTY_HEADERS, Properties, contents_has, contents_number,
)
from fairsched.core.amqp.octets cimport Text, text_of
from fairsched.core.amqp.tables cimport Field, TableWalk, field_type, tables_get, tables_next, tables_walk
from fairsched.core.broker.errors cimport (
    Refusal, refusal_say, refuse, refuse_memory, refuse_missing, refuse_number, refuse_resource,
)
from fairsched.core.broker.exchanges.fields cimport fields_clear, fields_init
from fairsched.core.broker.exchanges.growing cimport (
    marks_add, marks_begin, marks_clear, marks_init, pointers_clear, pointers_init,
)
from fairsched.core.broker.exchanges.reach cimport route_headers, route_reach
from fairsched.core.broker.exchanges.state cimport (
    Destination, Exchange, Route, Topology, exchange_find, exchange_name, place_of_queue,
)
from fairsched.core.broker.exchanges.topictree cimport walk_clear, walk_init
from fairsched.core.memory cimport array_reserve

cdef inline void route_init(Route* r) noexcept nogil:
    r.queues = NULL
    r.keys = NULL
    r.count = r.key_count = r.key_room = 0
    r.bcc = r.sorted = r.led = r.failed = False
    r.header = NULL
    r.properties = NULL
    pointers_init(&r.found)
    pointers_init(&r.exchanges)
    pointers_init(&r.delays)
    marks_init(&r.places)
    walk_init(&r.walk)
    fields_init(&r.headers)

cdef inline void route_clear(Route* r) noexcept nogil:
    pointers_clear(&r.found)
    pointers_clear(&r.exchanges)
    pointers_clear(&r.delays)
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

cdef inline void route_add_array(Route* r, Text array) noexcept nogil:
    """Add the long strings of an array as keys."""
    cdef TableWalk w = tables_walk(array, False)
    cdef Text name
    cdef Field element
    while tables_next(&w, &name, &element):
        if element.kind == b'S':
            route_add_key(r, element.value)

cdef inline bint route_add_keys(Route* r, const char* name, bint* present, Refusal* refusal) noexcept nogil:
    """Add the keys in a header; False: the header is not an array."""
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
    """Collect the keys of a message that a client publishes; False: the message is invalid."""
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


# Exchanges ------------------------------------------------------------------------------------------------------------

cdef inline void route_through(Route* r, const Topology* t, const Exchange* x) noexcept nogil:
    """Route through an exchange. If that reaches no destination, its alternate exchange is next."""
    cdef Exchange* alternate
    r.led = False
    x.type.route(r, x)
    if not r.led and x.alternate.data != NULL:
        alternate = exchange_find(t, x.alternate)
        if alternate != NULL:
            route_reach(r, &alternate.place)

cdef inline void route_default(Route* r, const Topology* t) noexcept nogil:
    """Route through the default exchange: to the queues that have the keys as names."""
    cdef Destination* place
    cdef int64_t i
    for i in range(r.key_count):
        place = place_of_queue(t, r.keys[i])
        if place != NULL:
            route_reach(r, place)

cdef inline bint route_from(Route* r, const Topology* t, Exchange* x) noexcept nogil:
    """Route by the keys, beginning with an exchange. False: memory is exhausted."""
    r.found.count = r.exchanges.count = r.delays.count = 0
    r.sorted = False
    r.failed = not marks_begin(&r.places, t.numbers.next) or r.failed
    if not r.failed:
        marks_add(&r.places, x.place.number)
        if exchange_name(x).length == 0:
            route_default(r, t)
        else:
            route_through(r, t, x)
    while r.exchanges.count and not r.failed:
        r.exchanges.count -= 1
        route_through(r, t, <Exchange*> r.exchanges.at[r.exchanges.count])
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
    """Route a message that a client publishes.

    `header` is the payload of the content header, and `contents_find` has filled `properties` from it. A message that
    reaches no queue is not refused. False: refused, with one of these codes

    - 406: CC or BCC is not an array, or the delivery mode is unknown
    - 541: memory is exhausted
    """
    r.count = 0
    r.failed = False
    r.header = header
    r.properties = properties
    return route_read_keys(r, key, refusal) and (route_from(r, t, x) or refuse_memory(refusal))

cdef inline bint route_named(Route* r, const Topology* t, Text names) noexcept nogil:
    """Find the queues of these names, which are short strings; False: memory is exhausted."""
    cdef Destination* place
    cdef uint32_t at = 0
    r.found.count = r.delays.count = 0
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
    """Route a dead letter by its key, the keys in its header CC, and those that were in its header BCC.

    The exchange may be internal. If it does not exist, no queue is found. False: memory is exhausted.
    """
    cdef Exchange* x = exchange_find(t, exchange)
    cdef Field cc
    r.count = r.key_count = r.delays.count = 0
    r.failed = r.bcc = False
    r.header = header
    r.properties = properties
    route_add_key(r, key)
    if tables_get(route_headers(r), text_of("CC"), &cc) and cc.kind == b'A':
        route_add_array(r, cc.value)
    route_add_array(r, bcc)
    return not r.failed and (x == NULL or route_from(r, t, x))
