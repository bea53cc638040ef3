"""Exchanges, bindings and the queues of one virtual host, by name.

A `Topology` owns its exchanges and bindings. Queues are somebody else's: it knows of each its name, whether it is
durable, and an address that routing returns. What is asked of it by name is answered as RabbitMQ answers; what is
refused, with RabbitMQ's code and explanation in a `Refusal`. Tables of arguments begin with their length and are well
formed; a Text of length 0 is an empty one.

A binding is one of source, destination, key and arguments. What is bound from stands in the source's list, what is
bound to in the destination's; of a direct exchange those of one key are peers, of a topic exchange those of one node.

Source: AMQP 0-9-1, sections 3.1 and 1.7; RabbitMQ, "Alternate Exchanges", "Exchange to Exchange Bindings", "Consistent
Hash Exchange", and the answers of a node (tests/integration/broker).
Thread safety: none; the caller synchronizes: any number may route while nobody changes.
Complexity: O(length of the names) expected, and what is said at each function.
"""


from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from fairsched.core.amqp.octets cimport (
    Bytes, Text, bytes_append, bytes_clear, bytes_init, bytes_number, text_begins, text_copy, text_is, text_of,
)
from fairsched.core.amqp.tables cimport Field, field_type, field_value_describe, tables_get
from fairsched.core.broker.errors cimport (
    Refusal, refusal_binary, refusal_resource, refusal_say, refusal_text, refuse, refuse_locked, refuse_memory,
    refuse_missing, refuse_name, refuse_resource, same_argument, same_flag, same_word,
)
from fairsched.core.broker.exchanges.buckets cimport (
    BUCKETS_MAX, WEIGHT_NO_INTEGER, WEIGHT_OK, WEIGHT_TOO_SMALL, Buckets, Weight, buckets_add, buckets_clear,
    buckets_remove, buckets_total, weight_read,
)
from fairsched.core.broker.exchanges.fields cimport Fields, fields_clear, fields_init, fields_read, fields_write
from fairsched.core.broker.exchanges.growing cimport Numbers, numbers_clear, numbers_give, numbers_take
from fairsched.core.broker.exchanges.headers cimport HEADERS_ALL, HEADERS_INVALID, HeadersMode, headers_mode
from fairsched.core.broker.exchanges.names cimport (
    NameEntry, Names, names_add, names_clear, names_find, names_remove, names_text,
)
from fairsched.core.broker.exchanges.topics cimport (
    TopicNode, Topics, topics_clear, topics_init, topics_obtain, topics_release,
)
from fairsched.core.chains cimport ChainLink, chains_clear

cdef enum ExchangeType:
    EXCHANGE_DIRECT
    EXCHANGE_FANOUT
    EXCHANGE_TOPIC
    EXCHANGE_HEADERS
    EXCHANGE_HASH            # x-consistent-hash
    EXCHANGE_TYPES           # so many: no such type

cdef enum HashedBy:
    HASHED_KEY
    HASHED_HEADER
    HASHED_PROPERTY

cdef struct Exchange
cdef struct Binding

cdef struct Destination:     # a queue or an exchange, as where bindings lead
    NameEntry* entry         # with its name
    void* queue              # NULL: an exchange
    Exchange* exchange       # NULL: a queue
    Binding* first           # bindings that lead here
    uint32_t number          # small; one of its own while it lives
    bint durable

cdef struct Binding:
    Exchange* source
    Destination* destination
    Text key
    Text arguments           # the fields in the order of their names
    NameEntry* identity      # among those of the source
    Binding* older           # of the source
    Binding* newer
    Binding* before          # of the destination
    Binding* after
    Binding* previous        # peers
    Binding* following
    NameEntry* keyed         # of a direct exchange: where the peers begin
    TopicNode* node          # of a topic exchange: where the peers begin
    Fields pattern           # of a headers exchange
    HeadersMode mode
    uint64_t record          # in the journal; 0: none. So in exchanges

cdef struct Exchange:
    Destination place        # must be first
    Text arguments           # as declared: its own copy
    Text alternate           # the name of its alternate exchange; data NULL: none
    ExchangeType kind
    bint auto_delete
    bint internal            # publishing to it is refused
    bint predeclared
    Exchange* older
    Exchange* newer
    Exchange* following      # of those that go
    bint goes
    Binding* oldest          # bindings from here
    Binding* newest
    Names identities         # of those
    Names keys               # direct: the first of the peers
    Topics topics
    Buckets buckets
    HashedBy hashed_by
    Text hashed              # the name of the header or the property
    uint64_t record

# Called for each exchange (the binding is NULL) and for each binding that comes or goes: when it is there, and before
# it is freed, an exchange before its bindings. It may change nothing but `record`.
ctypedef void (*Change)(void* context, Exchange* exchange, Binding* binding) noexcept nogil

cdef struct Topology:
    Text vhost               # its own copy
    Names exchanges
    Names queues
    Exchange* oldest
    Exchange* newest
    Exchange* doomed         # that go, linked by `following`
    Numbers numbers          # of destinations
    Change added             # may be NULL, as may be:
    Change removed
    void* context


cdef inline bint refuse_default(Refusal* r) noexcept nogil:
    return refuse(r, 403, "operation not permitted on the default exchange")


# Names and copies -----------------------------------------------------------------------------------------------------

cdef struct Name:            # without line ends, which RabbitMQ removes from names
    uint8_t room[256]
    Text text

cdef inline void name_strip(Name* name, Text given) noexcept nogil:
    cdef uint32_t i, length = 0
    for i in range(given.length):
        if length < 255 and given.data[i] != b'\r' and given.data[i] != b'\n':
            name.room[length] = given.data[i]
            length += 1
    name.text = Text(&name.room[0], length)

cdef inline Text destination_name(const Destination* d) noexcept nogil:
    return names_text(d.entry)

cdef inline Text exchange_name(const Exchange* x) noexcept nogil:
    return names_text(x.place.entry)

cdef inline const char* exchange_type_name(ExchangeType kind) noexcept nogil:
    if kind == EXCHANGE_DIRECT:
        return b"direct"
    if kind == EXCHANGE_FANOUT:
        return b"fanout"
    if kind == EXCHANGE_TOPIC:
        return b"topic"
    return b"headers" if kind == EXCHANGE_HEADERS else b"x-consistent-hash"

cdef inline const char* exchange_type_atom(ExchangeType kind) noexcept nogil:
    """The name as RabbitMQ's explanations have it: an atom of Erlang."""
    if kind == EXCHANGE_HASH:
        return b"'x-consistent-hash'"
    return exchange_type_name(kind)

cdef inline ExchangeType exchange_type(Text name) noexcept nogil:
    cdef int kind
    for kind in range(EXCHANGE_TYPES):
        if text_is(name, exchange_type_name(<ExchangeType> kind)):
            return <ExchangeType> kind
    return EXCHANGE_TYPES


# Looking at everything: for the journal and the status page -----------------------------------------------------------

cdef inline Exchange* exchange_find(const Topology* t, Text name) noexcept nogil:
    """The exchange of that name; NULL: there is none."""
    cdef NameEntry* entry = names_find(&t.exchanges, name)
    return <Exchange*> entry.value if entry != NULL else NULL

cdef inline Destination* place_of_queue(const Topology* t, Text name) noexcept nogil:
    cdef NameEntry* entry = names_find(&t.queues, name)
    return <Destination*> entry.value if entry != NULL else NULL

cdef inline void* queue_find(const Topology* t, Text name) noexcept nogil:
    """The queue of that name; NULL: there is none."""
    cdef Destination* place = place_of_queue(t, name)
    return place.queue if place != NULL else NULL

cdef inline Exchange* exchange_first(const Topology* t) noexcept nogil:
    """The oldest exchange; `exchange_next` goes on, in the order of declaration."""
    return t.oldest

cdef inline Exchange* exchange_next(const Exchange* x) noexcept nogil:
    return x.newer

cdef inline Binding* binding_first(const Exchange* source) noexcept nogil:
    """The oldest binding of an exchange; `binding_next` goes on, in the order of binding."""
    return source.oldest

cdef inline Binding* binding_next(const Binding* b) noexcept nogil:
    return b.newer

cdef inline bint binding_durable(const Binding* b) noexcept nogil:
    """Whether it survives a restart: source and destination do."""
    return b.source.place.durable and b.destination.durable


# Bindings -------------------------------------------------------------------------------------------------------------

cdef inline bint binding_identity(
    Bytes* out, const Destination* destination, Text key, Text arguments
) noexcept nogil:
    """Write what a binding is known by: destination, key, arguments. False: memory is exhausted."""
    cdef Fields fields
    cdef bint done
    fields_init(&fields)
    bytes_append(out, <const uint8_t*> &destination, sizeof(void*))
    bytes_number(out, key.length, 1)
    bytes_append(out, key.data, key.length)
    done = fields_read(&fields, arguments)
    if done:
        fields_write(out, &fields)
    fields_clear(&fields)
    return done and not out.failed

cdef inline Binding* binding_find(
    Exchange* source, const Destination* destination, Text key, Text arguments, Bytes* identity
) noexcept nogil:
    """The binding of these, NULL: there is none; `identity` is what it is known by, unless that has failed."""
    cdef NameEntry* entry
    bytes_init(identity)
    if not binding_identity(identity, destination, key, arguments):
        identity.failed = True
        return NULL
    entry = names_find(&source.identities, Text(identity.data, <uint32_t> identity.end))
    return <Binding*> entry.value if entry != NULL else NULL

cdef inline void peers_add(Binding** first, Binding* b) noexcept nogil:
    b.previous = NULL
    b.following = first[0]
    if first[0] != NULL:
        first[0].previous = b
    first[0] = b

cdef inline void peers_remove(Binding** first, Binding* b) noexcept nogil:
    if b.previous != NULL:
        b.previous.following = b.following
    else:
        first[0] = b.following
    if b.following != NULL:
        b.following.previous = b.previous

cdef inline bint binding_place(Binding* b) noexcept nogil:
    """Have the exchange's type know of it; False: memory is exhausted."""
    cdef Exchange* x = b.source
    cdef Field field
    cdef int64_t weight = 0
    if x.kind == EXCHANGE_DIRECT:
        b.keyed = names_find(&x.keys, b.key)
        if b.keyed == NULL:
            b.keyed = names_add(&x.keys, b.key, NULL)
        if b.keyed != NULL:
            peers_add(<Binding**> &b.keyed.value, b)
        return b.keyed != NULL
    if x.kind == EXCHANGE_TOPIC:
        b.node = topics_obtain(&x.topics, b.key)
        if b.node != NULL:
            peers_add(<Binding**> &b.node.bindings, b)
        return b.node != NULL
    if x.kind == EXCHANGE_HEADERS:
        b.mode = headers_mode(field.value) if tables_get(b.arguments, text_of("x-match"), &field) else HEADERS_ALL
        return fields_read(&b.pattern, b.arguments)
    if x.kind == EXCHANGE_HASH:
        weight_read(b.key, &weight)
        return buckets_add(&x.buckets, b.destination, weight)
    return True

cdef inline void binding_displace(Binding* b) noexcept nogil:
    """Have the exchange's type forget it."""
    cdef Exchange* x = b.source
    if x.kind == EXCHANGE_DIRECT and b.keyed != NULL:
        peers_remove(<Binding**> &b.keyed.value, b)
        if b.keyed.value == NULL:
            names_remove(&x.keys, b.keyed)
    if x.kind == EXCHANGE_TOPIC and b.node != NULL:
        peers_remove(<Binding**> &b.node.bindings, b)
        topics_release(&x.topics, b.node)
    if x.kind == EXCHANGE_HASH:
        buckets_remove(&x.buckets, b.destination)
    fields_clear(&b.pattern)

cdef inline void binding_link(Binding* b) noexcept nogil:
    b.older = b.source.newest
    if b.older != NULL:
        b.older.newer = b
    else:
        b.source.oldest = b
    b.source.newest = b
    b.after = b.destination.first
    if b.after != NULL:
        b.after.before = b
    b.destination.first = b

cdef inline void binding_unlink(Binding* b) noexcept nogil:
    if b.older != NULL:
        b.older.newer = b.newer
    else:
        b.source.oldest = b.newer
    if b.newer != NULL:
        b.newer.older = b.older
    else:
        b.source.newest = b.older
    if b.before != NULL:
        b.before.after = b.after
    else:
        b.destination.first = b.after
    if b.after != NULL:
        b.after.before = b.before

cdef inline Binding* binding_make(Exchange* source, Destination* destination, Text key, Bytes* identity) noexcept nogil:
    """Make a binding that is not there; NULL: memory is exhausted."""
    cdef Binding* b = <Binding*> calloc(1, sizeof(Binding))
    cdef Text known = Text(identity.data, <uint32_t> identity.end)
    if b == NULL:
        return NULL
    b.source = source
    b.destination = destination
    fields_init(&b.pattern)
    b.identity = names_add(&source.identities, known, b)
    if b.identity == NULL:
        free(b)
        return NULL
    known = names_text(b.identity)
    b.key = Text(known.data + sizeof(void*) + 1, key.length)
    b.arguments = Text(b.key.data + key.length, <uint32_t> (known.length - sizeof(void*) - 1 - key.length))
    if not binding_place(b):
        fields_clear(&b.pattern)
        names_remove(&source.identities, b.identity)
        free(b)
        return NULL
    binding_link(b)
    return b

cdef inline void exchange_doom(Topology* t, Exchange* x) noexcept nogil:
    """Have an exchange go in the next `topology_sweep`."""
    if not x.goes:
        x.goes = True
        x.following = t.doomed
        t.doomed = x

cdef inline void binding_remove(Topology* t, Binding* b) noexcept nogil:
    """Remove a binding. A source that has to go with its last one is doomed: `topology_sweep` ends it."""
    cdef Exchange* source = b.source
    if t.removed != NULL:
        t.removed(t.context, source, b)
    binding_unlink(b)
    binding_displace(b)
    names_remove(&source.identities, b.identity)
    free(b)
    if source.oldest == NULL and source.auto_delete:
        exchange_doom(t, source)


# Exchanges come and go ------------------------------------------------------------------------------------------------

cdef inline void exchange_free(Exchange* x) noexcept nogil:
    """Free an exchange without bindings, which nobody knows."""
    names_clear(&x.identities)
    names_clear(&x.keys)
    topics_clear(&x.topics)
    buckets_clear(&x.buckets)
    free(<void*> x.arguments.data)
    free(x)

cdef inline void exchange_unlink(Topology* t, Exchange* x) noexcept nogil:
    if x.older != NULL:
        x.older.newer = x.newer
    else:
        t.oldest = x.newer
    if x.newer != NULL:
        x.newer.older = x.older
    else:
        t.newest = x.older

cdef inline void topology_sweep(Topology* t) noexcept nogil:
    """End the exchanges that have to go, with the bindings that lead to them, and those that therefore have to go."""
    cdef Exchange* x = t.doomed
    while x != NULL:
        t.doomed = x.following
        if t.removed != NULL:
            t.removed(t.context, x, NULL)
        while x.oldest != NULL:
            binding_remove(t, x.oldest)
        while x.place.first != NULL:
            binding_remove(t, x.place.first)
        exchange_unlink(t, x)
        names_remove(&t.exchanges, x.place.entry)
        numbers_give(&t.numbers, x.place.number)
        exchange_free(x)
        x = t.doomed

cdef inline Exchange* exchange_make(
    Topology* t, Text name, ExchangeType kind, bint durable, bint auto_delete, bint internal, Text arguments
) noexcept nogil:
    """Make an exchange whose name is free; NULL: memory is exhausted."""
    cdef Exchange* x = <Exchange*> calloc(1, sizeof(Exchange))
    if x == NULL:
        return NULL
    topics_init(&x.topics)
    x.place.exchange = x
    x.place.durable = durable
    x.kind = kind
    x.auto_delete = auto_delete
    x.internal = internal
    x.arguments = text_copy(arguments)
    if x.arguments.data == NULL or not numbers_take(&t.numbers, &x.place.number):
        exchange_free(x)
        return NULL
    x.place.entry = names_add(&t.exchanges, name, x)
    if x.place.entry == NULL:
        numbers_give(&t.numbers, x.place.number)
        exchange_free(x)
        return NULL
    exchange_understand(x)
    x.older = t.newest
    if x.older != NULL:
        x.older.newer = x
    else:
        t.oldest = x
    t.newest = x
    return x

cdef inline bint argument_text(Text arguments, const char* name, Text* value) noexcept nogil:
    """Read an argument that is a long string; False: it is missing."""
    cdef Field field
    if not tables_get(arguments, text_of(name), &field) or field.kind != b'S':
        return False
    value[0] = field.value
    return True

cdef inline void exchange_understand(Exchange* x) noexcept nogil:
    """Take from the arguments what routing needs."""
    if not argument_text(x.arguments, "alternate-exchange", &x.alternate):
        x.alternate = Text(NULL, 0)
    if x.kind != EXCHANGE_HASH:
        return
    if argument_text(x.arguments, "hash-header", &x.hashed):
        x.hashed_by = HASHED_HEADER
    elif argument_text(x.arguments, "hash-property", &x.hashed):
        x.hashed_by = HASHED_PROPERTY


# Declaring ------------------------------------------------------------------------------------------------------------

cdef inline bint argument_check(
    Refusal* r, bint exchange, Text name, Text vhost, Text arguments, const char* argument
) noexcept nogil:
    """Refuse an argument that is there and no long string."""
    cdef Field field
    if not tables_get(arguments, text_of(argument), &field) or field.kind == b'S':
        return True
    refuse(r, 406, "invalid type '")
    refusal_say(r, field_type(&field))
    refusal_say(r, "' for arg '")
    refusal_say(r, argument)
    refusal_say(r, "' in ")
    refusal_resource(r, exchange, name, vhost)
    return False

cdef inline bint hash_check(Refusal* r, const Topology* t, Text name, Text arguments) noexcept nogil:
    """Refuse arguments of a consistent-hash exchange."""
    cdef Text header, property
    cdef bint hashes
    if not argument_check(r, True, name, t.vhost, arguments, "hash-header"):
        return False
    if not argument_check(r, True, name, t.vhost, arguments, "hash-property"):
        return False
    hashes = argument_text(arguments, "hash-header", &header)
    if not argument_text(arguments, "hash-property", &property):
        return True
    if hashes:
        return refuse(r, 406, "hash-header and hash-property are mutually exclusive")
    if text_is(property, "correlation_id") or text_is(property, "message_id") or text_is(property, "timestamp"):
        return True
    return refuse_name(r, 406, "Unsupported property: ", property, "")

cdef inline bint exchange_same(
    Refusal* r, const Topology* t, const Exchange* x, ExchangeType kind, bint durable, bint auto_delete, bint internal,
    Text arguments
) noexcept nogil:
    """Whether an exchange that is there is like this."""
    cdef Text name = exchange_name(x)
    return (
        same_word(r, True, name, t.vhost, "type", exchange_type_atom(x.kind), exchange_type_atom(kind))
        and same_flag(r, True, name, t.vhost, "durable", x.place.durable, durable)
        and same_flag(r, True, name, t.vhost, "auto_delete", x.auto_delete, auto_delete)
        and same_flag(r, True, name, t.vhost, "internal", x.internal, internal)
        and same_argument(r, True, name, t.vhost, "alternate-exchange", x.arguments, arguments)
    )

cdef inline bint exchange_check(
    Refusal* r, const Topology* t, Text name, ExchangeType kind, Text arguments
) noexcept nogil:
    """Refuse a new exchange."""
    if text_begins(name, "amq."):
        return refuse_name(r, 403, "exchange name '", name, "' contains reserved prefix 'amq.*'")
    if not argument_check(r, True, name, t.vhost, arguments, "alternate-exchange"):
        return False
    return kind != EXCHANGE_HASH or hash_check(r, t, name, arguments)

cdef inline bint exchange_declare(
    Topology* t, Text name, Text kind, bint passive, bint durable, bint auto_delete, bint internal, Text arguments,
    bint* created, Refusal* refusal
) noexcept nogil:
    """Declare an exchange.

    False: refused (403 default exchange or reserved prefix, 404 passive and not there, 406 not like the one that is
    there or a bad argument, 503 unknown type, 541 memory exhausted).
    """
    cdef ExchangeType known = exchange_type(kind)
    cdef Exchange* found
    cdef Name stripped
    created[0] = False
    if not passive and known == EXCHANGE_TYPES:
        return refuse_name(refusal, 503, "unknown exchange type '", kind, "'")
    name_strip(&stripped, name)
    if stripped.text.length == 0:
        return refuse_default(refusal)
    found = exchange_find(t, stripped.text)
    if passive:
        return found != NULL or refuse_missing(refusal, True, stripped.text, t.vhost)
    if found != NULL:
        return exchange_same(refusal, t, found, known, durable, auto_delete, internal, arguments)
    if not exchange_check(refusal, t, stripped.text, known, arguments):
        return False
    found = exchange_make(t, stripped.text, known, durable, auto_delete, internal, arguments)
    if found == NULL:
        return refuse_memory(refusal)
    if t.added != NULL:
        t.added(t.context, found, NULL)
    created[0] = True
    return True

cdef inline bint exchange_delete(Topology* t, Text name, bint if_unused, Refusal* refusal) noexcept nogil:
    """Delete an exchange with its bindings, and exchanges that have to go with their last one. O(bindings).

    It is no error that there is none. False: refused (403 default exchange or amq.*, 406 in use).
    """
    cdef Exchange* x
    cdef Name stripped
    name_strip(&stripped, name)
    if stripped.text.length == 0:
        return refuse_default(refusal)
    if text_begins(stripped.text, "amq."):
        return refuse_resource(refusal, 403, "deletion of system ", True, stripped.text, t.vhost, " not allowed")
    x = exchange_find(t, stripped.text)
    if x == NULL:
        return True
    if if_unused and x.oldest != NULL:
        return refuse_resource(refusal, 406, "", True, stripped.text, t.vhost, " in use")
    exchange_doom(t, x)
    topology_sweep(t)
    return True


# Queues ---------------------------------------------------------------------------------------------------------------

cdef inline bint queue_add(Topology* t, Text name, void* queue, bint durable) noexcept nogil:
    """Make a queue known, whose name is free. The name is copied. False: memory is exhausted."""
    cdef Destination* place = <Destination*> calloc(1, sizeof(Destination))
    if place == NULL:
        return False
    place.queue = queue
    place.durable = durable
    if not numbers_take(&t.numbers, &place.number):
        free(place)
        return False
    place.entry = names_add(&t.queues, name, place)
    if place.entry == NULL:
        numbers_give(&t.numbers, place.number)
        free(place)
        return False
    return True

cdef inline void queue_remove(Topology* t, Text name) noexcept nogil:
    """Forget a queue, its bindings, and exchanges that have to go with their last one. O(bindings)."""
    cdef Destination* place = place_of_queue(t, name)
    if place == NULL:
        return
    while place.first != NULL:
        binding_remove(t, place.first)
    topology_sweep(t)
    names_remove(&t.queues, place.entry)
    numbers_give(&t.numbers, place.number)
    free(place)


# Binding --------------------------------------------------------------------------------------------------------------

cdef inline bint weight_check(Refusal* r, const Exchange* x, Text key) noexcept nogil:
    """Refuse a binding key of a consistent-hash exchange."""
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
    if weight > BUCKETS_MAX - buckets_total(&x.buckets):
        return refuse(r, 406, "there would be more than 2147483647 buckets")
    return True

cdef inline bint match_check(Refusal* r, Text arguments) noexcept nogil:
    """Refuse the arguments of a binding of a headers exchange."""
    cdef Field field
    cdef Bytes value
    if not tables_get(arguments, text_of("x-match"), &field):
        return True
    if field.kind == b'S' and headers_mode(field.value) != HEADERS_INVALID:
        return True
    if field.kind == b'S':
        refuse(r, 406, "Invalid x-match field value ")
        refusal_binary(r, field.value)
        refusal_say(r, "; expected all, any, all-with-x, or any-with-x")
        return False
    bytes_init(&value)
    field_value_describe(&value, &field)
    refuse(r, 406, "Invalid x-match field type ")
    refusal_say(r, field_type(&field))
    refusal_say(r, " (value ")
    refusal_text(r, Text(value.data, <uint32_t> value.end))
    refusal_say(r, "); expected longstr")
    bytes_clear(&value)
    return False

cdef inline Destination* topology_place(const Topology* t, Text name, bint exchange) noexcept nogil:
    """The queue or the exchange of a name as a destination; NULL: there is none."""
    cdef Exchange* x
    if not exchange:
        return place_of_queue(t, name)
    x = exchange_find(t, name)
    return &x.place if x != NULL else NULL

cdef inline bint topology_bind(
    Topology* t, Text source, Text destination, bint to_exchange, bint locked, Text key, Text arguments, bint* created,
    Refusal* refusal
) noexcept nogil:
    """Bind a queue or an exchange. The same binding once more is no error. O(arguments).

    False: refused (403 default exchange, 404 no exchange or queue, 406 this type of exchange takes no such binding, 405
    the queue is `locked`, 541 memory exhausted), in this order, which is RabbitMQ's.
    """
    cdef Name from_name, to_name
    cdef Exchange* x
    cdef Destination* place
    cdef Binding* made = NULL
    cdef Bytes identity
    created[0] = False
    name_strip(&from_name, source)
    name_strip(&to_name, destination)
    if from_name.text.length == 0 or (to_exchange and to_name.text.length == 0):
        return refuse_default(refusal)
    x = exchange_find(t, from_name.text)
    place = topology_place(t, to_name.text, to_exchange)
    if x == NULL:
        return refuse_missing(refusal, True, from_name.text, t.vhost)
    if place == NULL:
        return refuse_missing(refusal, to_exchange, to_name.text, t.vhost)
    if x.kind == EXCHANGE_HASH and not weight_check(refusal, x, key):
        return False
    if x.kind == EXCHANGE_HEADERS and not match_check(refusal, arguments):
        return False
    if locked:
        return refuse_locked(refusal, to_name.text, t.vhost)
    if binding_find(x, place, key, arguments, &identity) != NULL:
        bytes_clear(&identity)
        return True
    if not identity.failed:
        made = binding_make(x, place, key, &identity)
    bytes_clear(&identity)
    if made == NULL:
        return refuse_memory(refusal)
    if t.added != NULL:
        t.added(t.context, x, made)
    created[0] = True
    return True

cdef inline bint topology_unbind(
    Topology* t, Text source, Text destination, bint to_exchange, bint locked, Text key, Text arguments,
    Refusal* refusal
) noexcept nogil:
    """Remove a binding, and an exchange that has to go with its last one. It is no error that there is none.

    False: refused (403 default exchange, 405 there is one and the queue is `locked`, 541 memory exhausted).
    """
    cdef Name from_name, to_name
    cdef Exchange* x
    cdef Destination* place
    cdef Binding* found
    cdef Bytes identity
    cdef bint failed
    name_strip(&from_name, source)
    name_strip(&to_name, destination)
    if from_name.text.length == 0 or (to_exchange and to_name.text.length == 0):
        return refuse_default(refusal)
    x = exchange_find(t, from_name.text)
    place = topology_place(t, to_name.text, to_exchange)
    if x == NULL or place == NULL:
        return True
    found = binding_find(x, place, key, arguments, &identity)
    failed = identity.failed
    bytes_clear(&identity)
    if failed:
        return refuse_memory(refusal)
    if found != NULL and locked:
        return refuse_locked(refusal, to_name.text, t.vhost)
    if found != NULL:
        binding_remove(t, found)
        topology_sweep(t)
    return True


# The whole ------------------------------------------------------------------------------------------------------------

cdef inline bint topology_predeclare(
    Topology* t, const char* name, ExchangeType kind, bint internal
) noexcept nogil:
    cdef Exchange* x = exchange_make(t, text_of(name), kind, True, False, internal, Text(NULL, 0))
    if x != NULL:
        x.predeclared = True
    return x != NULL

cdef inline bint topology_init(Topology* t, Text vhost) noexcept nogil:
    """Begin with the exchanges that RabbitMQ declares in advance. False: memory exhausted; then clear it."""
    memset(t, 0, sizeof(Topology))
    t.vhost = text_copy(vhost)
    return (
        t.vhost.data != NULL
        and topology_predeclare(t, "", EXCHANGE_DIRECT, False)
        and topology_predeclare(t, "amq.direct", EXCHANGE_DIRECT, False)
        and topology_predeclare(t, "amq.fanout", EXCHANGE_FANOUT, False)
        and topology_predeclare(t, "amq.headers", EXCHANGE_HEADERS, False)
        and topology_predeclare(t, "amq.match", EXCHANGE_HEADERS, False)
        and topology_predeclare(t, "amq.rabbitmq.trace", EXCHANGE_TOPIC, True)
        and topology_predeclare(t, "amq.topic", EXCHANGE_TOPIC, False)
    )

cdef inline void place_dispose(ChainLink* link) noexcept nogil:
    free((<NameEntry*> link).value)
    free(link)

cdef inline void topology_clear(Topology* t) noexcept nogil:
    """Free everything but queues, without telling anybody."""
    t.removed = NULL
    while t.oldest != NULL:
        exchange_doom(t, t.oldest)
        topology_sweep(t)
    chains_clear(&t.queues, place_dispose)
    names_clear(&t.exchanges)
    numbers_clear(&t.numbers)
    free(<void*> t.vhost.data)
