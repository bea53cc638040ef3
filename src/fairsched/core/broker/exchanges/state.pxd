"""The objects of a virtual host's topology: exchanges, their types, bindings, destinations.

A binding consists of a source, a destination, a key and arguments. It is in two lists: that of its source, and that of
its destination. A type of exchange keeps what it needs for routing in `own`, both of the exchange and of the binding.

Thread safety: none; the caller synchronizes. Any number of threads may read while no thread changes the topology.
Complexity: O(length of the name) expected to find by name; O(1) otherwise.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, int64_t

from fairsched.core.amqp.contents cimport Properties
from fairsched.core.amqp.octets cimport Text
from fairsched.core.broker.errors cimport Refusal
from fairsched.core.broker.exchanges.fields cimport Fields
from fairsched.core.broker.exchanges.growing cimport Marks, Numbers, Pointers
from fairsched.core.broker.exchanges.names cimport NameEntry, Names, names_find, names_text
from fairsched.core.broker.exchanges.topictree cimport Walk

cdef struct Exchange
cdef struct Binding

cdef struct Route:           # the routing of one message; its memory is reused for the next
    void** queues            # the result: each queue once
    int64_t count
    bint bcc                 # the header BCC must be removed before delivery
    Pointers found           # the memory of `queues`
    Pointers exchanges       # still to be routed through
    Pointers delays          # exchanges that hold the message for later
    Marks places             # destinations reached so far, by number
    Walk walk                # memory for topic exchanges
    Text* keys               # the routing key, then those of CC and BCC
    int64_t key_count
    int64_t key_room
    const uint8_t* header    # the message's content header
    const Properties* properties
    Fields headers           # the message's headers by name, if `sorted`
    bint sorted
    bint led                 # the current exchange has reached a destination
    bint failed              # memory is exhausted

cdef struct ExchangeType:    # a row of the table in types.pxd. A function that is NULL has nothing to do
    const char* name         # as clients and the journal write it; NULL: the end of the table
    const char* atom         # as RabbitMQ's texts print it: an atom of Erlang
    # Refuse arguments of a new exchange.
    bint (*check)(Refusal* r, Text name, Text vhost, Text arguments) noexcept nogil
    # Allocate `own` of a new exchange. False: memory is exhausted.
    bint (*begin)(Exchange* x) noexcept nogil
    # Free `own` of an exchange without bindings.
    void (*end)(Exchange* x) noexcept nogil
    # Refuse a new binding.
    bint (*check_binding)(Refusal* r, const Exchange* x, Text key, Text arguments) noexcept nogil
    # Prepare routing along a binding. False: memory is exhausted, and nothing is left behind.
    bint (*add)(Binding* b) noexcept nogil
    # Undo `add`.
    void (*remove)(Binding* b) noexcept nogil
    # Call `route_reach` for each destination of a message.
    void (*route)(Route* r, const Exchange* x) noexcept nogil
    const char* inner        # the argument that names the type whose bindings it has; NULL: its own

cdef struct Destination:     # a queue or an exchange, as the end of a binding
    NameEntry* entry         # the name
    void* queue              # NULL: an exchange
    Exchange* exchange       # NULL: a queue
    Binding* first           # bindings that lead here
    uint32_t number          # small and unique among the destinations
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
    Binding* previous        # of the same key, in types that list bindings by key
    Binding* following
    void* own                # the exchange type's
    uint64_t record          # in the journal; 0: none

cdef struct Exchange:
    Destination place        # must be first
    const ExchangeType* type
    const ExchangeType* inner  # the type whose bindings it has; mostly the same
    void* own                # the inner type's
    Text arguments           # its own copy, as declared
    Text alternate           # the name of its alternate exchange; data NULL: none
    bint auto_delete
    bint internal            # publishing to it is refused
    Exchange* older
    Exchange* newer
    Exchange* following      # the next exchange to delete
    bint doomed              # the next `topology_sweep` deletes it
    Binding* oldest          # bindings from here
    Binding* newest
    Names identities         # of those bindings
    uint64_t record          # in the journal; 0: none

# Called after an exchange (the binding is NULL) or a binding was added, and before it is freed: an exchange before its
# bindings. The function may change nothing but `record`.
ctypedef void (*Change)(void* context, Exchange* exchange, Binding* binding) noexcept nogil

cdef struct Topology:
    Text vhost               # its own copy
    ExchangeType* types
    Names exchanges
    Names queues
    Exchange* oldest
    Exchange* newest
    Exchange* doomed         # exchanges to delete, linked by `following`
    Numbers numbers          # of destinations
    Change added             # may be NULL
    Change removed           # may be NULL
    void* context


# Names ----------------------------------------------------------------------------------------------------------------

cdef inline Text destination_name(const Destination* d) noexcept nogil:
    return names_text(d.entry)

cdef inline Text exchange_name(const Exchange* x) noexcept nogil:
    return names_text(x.place.entry)

cdef inline Exchange* exchange_find(const Topology* t, Text name) noexcept nogil:
    """Return the exchange of a name; NULL: there is none."""
    cdef NameEntry* entry = names_find(&t.exchanges, name)
    return <Exchange*> entry.value if entry != NULL else NULL

cdef inline Destination* place_of_queue(const Topology* t, Text name) noexcept nogil:
    """Return the queue of a name as a destination; NULL: there is none."""
    cdef NameEntry* entry = names_find(&t.queues, name)
    return <Destination*> entry.value if entry != NULL else NULL

cdef inline Destination* place_of(const Topology* t, Text name, bint exchange) noexcept nogil:
    """Return the exchange or the queue of a name as a destination; NULL: there is none."""
    cdef Exchange* x
    if not exchange:
        return place_of_queue(t, name)
    x = exchange_find(t, name)
    return &x.place if x != NULL else NULL

cdef inline void* queue_find(const Topology* t, Text name) noexcept nogil:
    """Return the queue of a name; NULL: there is none."""
    cdef Destination* place = place_of_queue(t, name)
    return place.queue if place != NULL else NULL


# Walking: for the journal and the status page -------------------------------------------------------------------------

cdef inline Exchange* exchange_first(const Topology* t) noexcept nogil:
    """Return the oldest exchange; `exchange_next` returns the others in the order of declaration."""
    return t.oldest

cdef inline Exchange* exchange_next(const Exchange* x) noexcept nogil:
    return x.newer

cdef inline Binding* binding_first(const Exchange* source) noexcept nogil:
    """Return the oldest binding of an exchange; `binding_next` returns the others in the order of binding."""
    return source.oldest

cdef inline Binding* binding_next(const Binding* b) noexcept nogil:
    return b.newer

cdef inline bint binding_durable(const Binding* b) noexcept nogil:
    """Return whether a binding survives a restart: its source and its destination do."""
    return b.source.place.durable and b.destination.durable
