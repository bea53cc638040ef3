"""Declare, delete, bind and unbind by name, as RabbitMQ answers: with its codes, texts and order of checks.

A refusal is written to a `Refusal`. Tables of arguments begin with their length and are well formed; a Text of length 0
is an empty table.

Source: AMQP 0-9-1, sections 3.1 and 1.7; the answers of RabbitMQ (tests/integration/broker).
Thread safety: none; the caller synchronizes. Complexity: that of exchanges.pxd and bindings.pxd.
"""

from libc.stdint cimport uint8_t

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, text_begins
from fairsched.core.broker.errors cimport (
    Refusal, refuse, refuse_locked, refuse_memory, refuse_missing, refuse_name, refuse_resource, same_argument,
    same_flag, same_word,
)
from fairsched.core.broker.exchanges.bindings cimport binding_find, binding_make, binding_remove, exchange_doom
from fairsched.core.broker.exchanges.exchanges cimport exchange_make, topology_sweep
from fairsched.core.broker.exchanges.state cimport (
    Binding, Destination, Exchange, ExchangeType, Topology, exchange_find, exchange_name, place_of,
)
from fairsched.core.broker.exchanges.textarguments cimport text_argument_check
from fairsched.core.broker.exchanges.types cimport exchange_type
from fairsched.core.broker.linebreaks cimport strip_breaks

cdef inline bint refuse_default(Refusal* r) noexcept nogil:
    return refuse(r, 403, "operation not permitted on the default exchange")


# Exchanges ------------------------------------------------------------------------------------------------------------

cdef inline bint exchange_same(
    Refusal* r, const Topology* t, const Exchange* x, const ExchangeType* type, bint durable, bint auto_delete,
    bint internal, Text arguments
) noexcept nogil:
    """Refuse a declaration that differs from the exchange of its name."""
    cdef Text name = exchange_name(x)
    return (
        same_word(r, True, name, t.vhost, "type", x.type.atom, type.atom)
        and same_flag(r, True, name, t.vhost, "durable", x.place.durable, durable)
        and same_flag(r, True, name, t.vhost, "auto_delete", x.auto_delete, auto_delete)
        and same_flag(r, True, name, t.vhost, "internal", x.internal, internal)
        and same_argument(r, True, name, t.vhost, "alternate-exchange", x.arguments, arguments)
    )

cdef inline bint exchange_check(
    Refusal* r, const Topology* t, Text name, const ExchangeType* type, Text arguments
) noexcept nogil:
    """Refuse a new exchange by its name or its arguments."""
    if text_begins(name, "amq."):
        return refuse_name(r, 403, "exchange name '", name, "' contains reserved prefix 'amq.*'")
    if not text_argument_check(r, name, t.vhost, arguments, "alternate-exchange"):
        return False
    return type.check == NULL or type.check(r, name, t.vhost, arguments)

cdef inline bint exchange_declare(
    Topology* t, Text name, Text kind, bint passive, bint durable, bint auto_delete, bint internal, Text arguments,
    bint* created, Refusal* refusal
) noexcept nogil:
    """Declare an exchange of the type that is named `kind`.

    False: refused, with one of these codes

    - 403: the default exchange, or a reserved prefix
    - 404: passive, and there is no exchange of this name
    - 406: an exchange of this name differs, or an argument is invalid
    - 503: no such type
    - 541: memory is exhausted
    """
    cdef const ExchangeType* type = exchange_type(t, kind)
    cdef Exchange* found
    cdef uint8_t room[256]
    created[0] = False
    if not passive and type == NULL:
        return refuse_name(refusal, 503, "unknown exchange type '", kind, "'")
    strip_breaks(&name, room)
    if name.length == 0:
        return refuse_default(refusal)
    found = exchange_find(t, name)
    if passive:
        return found != NULL or refuse_missing(refusal, True, name, t.vhost)
    if found != NULL:
        return exchange_same(refusal, t, found, type, durable, auto_delete, internal, arguments)
    if not exchange_check(refusal, t, name, type, arguments):
        return False
    found = exchange_make(t, name, type, durable, auto_delete, internal, arguments)
    if found == NULL:
        return refuse_memory(refusal)
    if t.added != NULL:
        t.added(t.context, found, NULL)
    created[0] = True
    return True

cdef inline bint exchange_delete(Topology* t, Text name, bint if_unused, Refusal* refusal) noexcept nogil:
    """Delete an exchange, its bindings, and the auto-delete exchanges that lose their last binding.

    Deleting an exchange that does not exist is no error. False: refused, with one of these codes

    - 403: the default exchange, or one of amq.*
    - 406: in use
    """
    cdef Exchange* x
    cdef uint8_t room[256]
    strip_breaks(&name, room)
    if name.length == 0:
        return refuse_default(refusal)
    if text_begins(name, "amq."):
        return refuse_resource(refusal, 403, "deletion of system ", True, name, t.vhost, " not allowed")
    x = exchange_find(t, name)
    if x == NULL:
        return True
    if if_unused and x.oldest != NULL:
        return refuse_resource(refusal, 406, "", True, name, t.vhost, " in use")
    exchange_doom(t, x)
    topology_sweep(t)
    return True


# Bindings -------------------------------------------------------------------------------------------------------------

cdef inline bint topology_bind(
    Topology* t, Text source, Text destination, bint to_exchange, bint locked, Text key, Text arguments, bint* created,
    Refusal* refusal
) noexcept nogil:
    """Bind a queue or an exchange. Binding twice is no error.

    False: refused, in this order, which is RabbitMQ's

    - 403: the default exchange
    - 404: no such exchange or queue
    - 406: the type of exchange does not accept such a binding
    - 405: the queue is `locked`
    - 541: memory is exhausted
    """
    cdef uint8_t room[2][256]
    cdef Exchange* x
    cdef Destination* place
    cdef Binding* made = NULL
    cdef Bytes identity
    created[0] = False
    strip_breaks(&source, room[0])
    strip_breaks(&destination, room[1])
    if source.length == 0 or (to_exchange and destination.length == 0):
        return refuse_default(refusal)
    x = exchange_find(t, source)
    place = place_of(t, destination, to_exchange)
    if x == NULL:
        return refuse_missing(refusal, True, source, t.vhost)
    if place == NULL:
        return refuse_missing(refusal, to_exchange, destination, t.vhost)
    if x.type.check_binding != NULL and not x.type.check_binding(refusal, x, key, arguments):
        return False
    if locked:
        return refuse_locked(refusal, destination, t.vhost)
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
    """Remove a binding, and an auto-delete exchange that loses its last one.

    Removing a binding that does not exist is no error. False: refused, with one of these codes

    - 403: the default exchange
    - 405: the binding exists and the queue is `locked`
    - 541: memory is exhausted
    """
    cdef uint8_t room[2][256]
    cdef Exchange* x
    cdef Destination* place
    cdef Binding* found
    cdef Bytes identity
    cdef bint failed
    strip_breaks(&source, room[0])
    strip_breaks(&destination, room[1])
    if source.length == 0 or (to_exchange and destination.length == 0):
        return refuse_default(refusal)
    x = exchange_find(t, source)
    place = place_of(t, destination, to_exchange)
    if x == NULL or place == NULL:
        return True
    found = binding_find(x, place, key, arguments, &identity)
    failed = identity.failed
    bytes_clear(&identity)
    if failed:
        return refuse_memory(refusal)
    if found != NULL and locked:
        return refuse_locked(refusal, destination, t.vhost)
    if found != NULL:
        binding_remove(t, found)
        topology_sweep(t)
    return True
