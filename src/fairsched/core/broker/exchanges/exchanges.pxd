"""Exchanges and queues of a virtual host: added and removed, with their bindings.

A `Topology` owns its exchanges and bindings. Of a queue it knows the name, whether the queue is durable, and an address
that routing returns.

Source: AMQP 0-9-1, section 3.1; RabbitMQ, "Alternate Exchanges".
Thread safety: none; the caller synchronizes. Any number of threads may route while no thread changes the topology.
Complexity: O(length of the names) expected; to remove also O(bindings).
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from fairsched.core.amqp.octets cimport Text, text_copy, text_of
from fairsched.core.broker.exchanges.bindings cimport binding_remove, exchange_doom
from fairsched.core.broker.exchanges.growing cimport numbers_clear, numbers_give, numbers_take
from fairsched.core.broker.exchanges.names cimport NameEntry, names_add, names_clear, names_remove
from fairsched.core.broker.exchanges.state cimport Destination, Exchange, ExchangeType, Topology, place_of_queue
from fairsched.core.broker.exchanges.textarguments cimport text_argument
from fairsched.core.broker.exchanges.types cimport exchange_inner, exchange_type, exchange_types
from fairsched.core.chains cimport ChainLink, chains_clear


# Exchanges ------------------------------------------------------------------------------------------------------------

cdef inline void exchange_free(Exchange* x) noexcept nogil:
    """Free an exchange that has no bindings and that nothing refers to."""
    if x.inner.end != NULL and x.own != NULL:
        x.inner.end(x)
    names_clear(&x.identities)
    free(<void*> x.arguments.data)
    free(x)

cdef inline void exchange_link(Topology* t, Exchange* x) noexcept nogil:
    x.older = t.newest
    if x.older != NULL:
        x.older.newer = x
    else:
        t.oldest = x
    t.newest = x

cdef inline void exchange_unlink(Topology* t, Exchange* x) noexcept nogil:
    if x.older != NULL:
        x.older.newer = x.newer
    else:
        t.oldest = x.newer
    if x.newer != NULL:
        x.newer.older = x.older
    else:
        t.newest = x.older

cdef inline Exchange* exchange_make(
    Topology* t, Text name, const ExchangeType* type, bint durable, bint auto_delete, bint internal, Text arguments
) noexcept nogil:
    """Add an exchange whose name is free; NULL: memory is exhausted."""
    cdef Exchange* x = <Exchange*> calloc(1, sizeof(Exchange))
    if x == NULL:
        return NULL
    x.place.exchange = x
    x.place.durable = durable
    x.type = type
    x.inner = exchange_inner(t, type, arguments)
    x.auto_delete = auto_delete
    x.internal = internal
    x.arguments = text_copy(arguments)
    if (
        x.arguments.data == NULL or (x.inner.begin != NULL and not x.inner.begin(x))
        or not numbers_take(&t.numbers, &x.place.number)
    ):
        exchange_free(x)
        return NULL
    x.place.entry = names_add(&t.exchanges, name, x)
    if x.place.entry == NULL:
        numbers_give(&t.numbers, x.place.number)
        exchange_free(x)
        return NULL
    if not text_argument(x.arguments, "alternate-exchange", &x.alternate):
        x.alternate = Text(NULL, 0)
    exchange_link(t, x)
    return x

cdef inline void topology_sweep(Topology* t) noexcept nogil:
    """Delete the doomed exchanges with all bindings from and to them, and the exchanges that this dooms."""
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


# Queues ---------------------------------------------------------------------------------------------------------------

cdef inline bint queue_add(Topology* t, Text name, void* queue, bint durable) noexcept nogil:
    """Add a queue whose name is free. The name is copied. False: memory is exhausted."""
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
    """Remove a queue, its bindings, and the auto-delete exchanges that lose their last binding."""
    cdef Destination* place = place_of_queue(t, name)
    if place == NULL:
        return
    while place.first != NULL:
        binding_remove(t, place.first)
    topology_sweep(t)
    names_remove(&t.queues, place.entry)
    numbers_give(&t.numbers, place.number)
    free(place)


# The whole ------------------------------------------------------------------------------------------------------------

cdef inline bint topology_predeclare(
    Topology* t, const char* name, const char* type, bint internal=False
) noexcept nogil:
    return exchange_make(
        t, text_of(name), exchange_type(t, text_of(type)), True, False, internal, Text(NULL, 0)
    ) != NULL

cdef inline bint topology_init(Topology* t, Text vhost) noexcept nogil:
    """Declare the exchanges that RabbitMQ declares in advance; False: memory is exhausted, call `topology_clear`."""
    memset(t, 0, sizeof(Topology))
    t.vhost = text_copy(vhost)
    t.types = exchange_types()
    return (
        t.vhost.data != NULL and t.types != NULL
        and topology_predeclare(t, "", "direct")
        and topology_predeclare(t, "amq.direct", "direct")
        and topology_predeclare(t, "amq.fanout", "fanout")
        and topology_predeclare(t, "amq.headers", "headers")
        and topology_predeclare(t, "amq.match", "headers")
        and topology_predeclare(t, "amq.rabbitmq.trace", "topic", True)
        and topology_predeclare(t, "amq.topic", "topic")
    )

cdef inline void place_dispose(ChainLink* link) noexcept nogil:
    free((<NameEntry*> link).value)
    free(link)

cdef inline void topology_clear(Topology* t) noexcept nogil:
    """Free everything but the queues, without calling `removed`."""
    t.removed = NULL
    while t.oldest != NULL:
        exchange_doom(t, t.oldest)
        topology_sweep(t)
    chains_clear(&t.queues, place_dispose)
    names_clear(&t.exchanges)
    numbers_clear(&t.numbers)
    free(t.types)
    free(<void*> t.vhost.data)
