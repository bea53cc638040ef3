"""Declare and delete exchanges by name, as RabbitMQ answers: with its codes, texts and order of checks.

A refusal is written to a `Refusal`. Tables of arguments begin with their length and are well formed; a Text of length 0
is an empty table.

Source: AMQP 0-9-1, section 3.1; the answers of RabbitMQ (tests/integration/broker).
Thread safety: none; the caller synchronizes. Complexity: that of exchanges.pxd.
"""

from libc.stdint cimport uint8_t

from fairsched.core.amqp.octets cimport Text, text_begins
from fairsched.core.broker.errors cimport (
    Refusal, refuse_default, refuse_memory, refuse_missing, refuse_name, refuse_resource, same_argument, same_flag,
    same_word,
)
from fairsched.core.broker.exchanges.bindings cimport exchange_doom
from fairsched.core.broker.exchanges.exchanges cimport exchange_make, topology_sweep
from fairsched.core.broker.exchanges.state cimport Exchange, ExchangeType, Topology, exchange_find, exchange_name
from fairsched.core.broker.exchanges.textarguments cimport text_argument, text_argument_check
from fairsched.core.broker.exchanges.types cimport exchange_inner, exchange_type
from fairsched.core.broker.linebreaks cimport strip_breaks

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

cdef inline bint exchange_check_inner(
    Refusal* r, const Topology* t, Text name, const ExchangeType* type, Text arguments
) noexcept nogil:
    """Refuse a new exchange by the type whose bindings it is to have, and that type's arguments."""
    cdef const ExchangeType* inner = exchange_inner(t, type, arguments)
    cdef Text kind
    if inner == NULL:
        text_argument(arguments, type.inner, &kind)
        return refuse_name(r, 503, "unknown exchange type '", kind, "'")
    return inner == type or inner.check == NULL or inner.check(r, name, t.vhost, arguments)

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
    if not exchange_check(refusal, t, name, type, arguments) or not exchange_check_inner(
        refusal, t, name, type, arguments
    ):
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
