"""Exchanges and routing of the broker, from Python."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find, contents_text
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init
from fairsched.core.broker.deathheader cimport Death, death_cycle, death_header_write
from fairsched.core.broker.errors cimport Refusal
from fairsched.core.broker.exchanges.consistenthash cimport ConsistentHash
from fairsched.core.broker.exchanges.bind cimport topology_bind, topology_unbind
from fairsched.core.broker.exchanges.declare cimport exchange_declare, exchange_delete
from fairsched.core.broker.exchanges.exchanges cimport queue_add, queue_remove, topology_clear, topology_init
from fairsched.core.broker.exchanges.names cimport Names
from fairsched.core.broker.exchanges.routing cimport (
    route_clear, route_dead_letter, route_exchange, route_init, route_publish,
)
from fairsched.core.broker.exchanges.state cimport (
    Binding, Exchange, Route, Topology, binding_durable, binding_first, binding_next, destination_name, exchange_first,
    exchange_name, exchange_next, queue_find,
)
from fairsched.core.broker.exchanges.topictree cimport TopicNode, Topics

cdef extern from "Python.h":
    char* PyBytes_AS_STRING(object o) noexcept
    Py_ssize_t PyBytes_GET_SIZE(object o) noexcept


cdef Text text(bytes given) noexcept:
    return Text(<const uint8_t*> PyBytes_AS_STRING(given), <uint32_t> PyBytes_GET_SIZE(given))


cdef bytes taken(Text given):
    return given.data[:given.length] if given.length else b""


class Refused(Exception):
    """Code and explanation."""


cdef void forget(void* context, Exchange* exchange, Binding* binding) noexcept nogil:
    with gil:
        (<ProbeTopology> context).gone.append(described(exchange) if binding == NULL else bound(binding))


cdef tuple described(const Exchange* x):
    return (
        taken(exchange_name(x)), (<bytes> x.type.name), bool(x.place.durable), bool(x.auto_delete),
        bool(x.internal), taken(x.arguments),
    )


cdef tuple bound(const Binding* b):
    return (
        taken(exchange_name(b.source)), taken(destination_name(b.destination)), b.destination.exchange != NULL,
        taken(b.key), taken(b.arguments), bool(binding_durable(b)),
    )


cdef class ProbeTopology:
    """A virtual host. Queues are numbers, from 1 on; all names are bytes."""

    cdef Topology topology
    cdef Route route
    cdef dict names
    cdef readonly list gone

    def __cinit__(self, bytes vhost=b"/"):
        self.names = {}
        self.gone = []
        route_init(&self.route)
        if not topology_init(&self.topology, text(vhost)):
            raise MemoryError
        self.topology.context = <void*> self
        self.topology.removed = forget

    def __dealloc__(self):
        topology_clear(&self.topology)
        route_clear(&self.route)

    cdef object answer(self, bint done, const Refusal* refusal, bint created):
        if not done:
            raise Refused(refusal.code, refusal.text[:refusal.length])
        return bool(created)

    def declare(
        self, bytes name, bytes kind, *, bint passive=False, bint durable=False, bint auto_delete=False,
        bint internal=False, bytes arguments=b"",
    ):
        cdef Refusal refusal
        cdef bint created = False
        cdef bint done = exchange_declare(
            &self.topology, text(name), text(kind), passive, durable, auto_delete, internal, text(arguments), &created,
            &refusal,
        )
        return self.answer(done, &refusal, created)

    def delete(self, bytes name, bint if_unused=False):
        cdef Refusal refusal
        self.answer(exchange_delete(&self.topology, text(name), if_unused, &refusal), &refusal, False)

    def add_queue(self, bytes name, bint durable=False):
        number = max(self.names, default=0) + 1
        assert queue_find(&self.topology, text(name)) == NULL
        if not queue_add(&self.topology, text(name), <void*> <uintptr_t> number, durable):
            raise MemoryError
        self.names[number] = name
        assert queue_find(&self.topology, text(name)) == <void*> <uintptr_t> number

    def remove_queue(self, bytes name):
        del self.names[<uintptr_t> queue_find(&self.topology, text(name))]
        queue_remove(&self.topology, text(name))

    def bind(self, bytes source, bytes destination, bytes key=b"", bytes arguments=b"", *, bint to_exchange=False):
        cdef Refusal refusal
        cdef bint created = False
        cdef bint done = topology_bind(
            &self.topology, text(source), text(destination), to_exchange, False, text(key), text(arguments), &created,
            &refusal
        )
        return self.answer(done, &refusal, created)

    def unbind(self, bytes source, bytes destination, bytes key=b"", bytes arguments=b"", *, bint to_exchange=False):
        cdef Refusal refusal
        cdef bint done = topology_unbind(
            &self.topology, text(source), text(destination), to_exchange, False, text(key), text(arguments), &refusal
        )
        self.answer(done, &refusal, False)

    cdef list found(self):
        return [self.names[<uintptr_t> self.route.queues[i]] for i in range(self.route.count)]

    def publish(self, bytes exchange, bytes key, bytes header):
        """Where a message goes, whose content header has that payload, and whether BCC has to be removed."""
        cdef Properties properties
        cdef Refusal refusal
        if not contents_find(<const uint8_t*> PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header), &properties):
            raise ValueError("no content header")
        cdef Exchange* x = route_exchange(&self.topology, text(exchange), &refusal)
        self.answer(
            x != NULL and route_publish(
                &self.route, &self.topology, x, text(key), <const uint8_t*> PyBytes_AS_STRING(header), &properties,
                &refusal,
            ),
            &refusal, False,
        )
        return self.found(), bool(self.route.bcc)

    def dead_letter(self, bytes exchange, bytes key, bytes bcc, bytes header):
        """Where a dead letter goes; `bcc` is an array."""
        cdef Properties properties
        if not contents_find(<const uint8_t*> PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header), &properties):
            raise ValueError("no content header")
        if not route_dead_letter(
            &self.route, &self.topology, text(exchange), text(key), text(bcc),
            <const uint8_t*> PyBytes_AS_STRING(header), &properties,
        ):
            raise MemoryError
        return self.found()

    @property
    def exchanges(self):
        """Name, type, durable, auto-delete, internal, arguments; oldest first."""
        cdef Exchange* x = exchange_first(&self.topology)
        found = []
        while x != NULL:
            found.append(described(x))
            x = exchange_next(x)
        return found

    @property
    def bindings(self):
        """Source, destination, whether that is an exchange, key, arguments, durable; of each source oldest first."""
        cdef Exchange* x = exchange_first(&self.topology)
        cdef Binding* b
        found = []
        while x != NULL:
            b = binding_first(x)
            while b != NULL:
                found.append(bound(b))
                b = binding_next(b)
            x = exchange_next(x)
        return found

    @property
    def nodes(self):
        """Names in all tables, which must be none but the exchanges' once nothing is bound."""
        cdef Exchange* x = exchange_first(&self.topology)
        cdef TopicNode* root
        count = 0
        while x != NULL:
            count += x.identities.count
            if x.type.name == b"direct":
                count += (<Names*> x.own).count
            elif x.type.name == b"topic":
                root = &(<Topics*> x.own).root
                count += root.words.count + (root.star != NULL) + (root.hash != NULL)
            elif x.type.name == b"x-consistent-hash":
                count += (<ConsistentHash*> x.own).buckets.count
            x = exchange_next(x)
        return count


def dead_letter_header(
    bytes header, *, bytes queue, bytes reason, bytes exchange, bytes key, bint rekeyed=False, uint64_t time=0
):
    """The content header of a dead letter."""
    cdef Death death = Death(text(queue), text(reason), text(exchange), text(key), rekeyed, time)
    cdef Properties properties
    cdef Bytes out
    if not contents_find(<const uint8_t*> PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header), &properties):
        raise ValueError("no content header")
    bytes_init(&out)
    death_header_write(&out, <const uint8_t*> PyBytes_AS_STRING(header), &properties, &death)
    found = out.data[:out.end]
    bytes_clear(&out)
    return found


def goes_in_a_circle(bytes header, bytes queue):
    """Whether a dead letter must not go to a queue."""
    cdef Properties properties
    if not contents_find(<const uint8_t*> PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header), &properties):
        raise ValueError("no content header")
    headers = contents_text(<const uint8_t*> PyBytes_AS_STRING(header), &properties, PROPERTY_HEADERS)
    return bool(death_cycle(headers, text(queue)))
