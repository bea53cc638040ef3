"""Bind and unbind queues and exchanges by name, as RabbitMQ answers: with its codes, texts and order of checks.

A refusal is written to a `Refusal`. Tables of arguments begin with their length and are well formed; a Text of length 0
is an empty table.

Source: AMQP 0-9-1, sections 3.1 and 1.7; the answers of RabbitMQ (tests/integration/broker).
Thread safety: none; the caller synchronizes. Complexity: that of bindings.pxd.
"""

from libc.stdint cimport uint8_t

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear
from fairsched.core.broker.errors cimport Refusal, refuse_default, refuse_locked, refuse_memory, refuse_missing
from fairsched.core.broker.exchanges.bindings cimport binding_find, binding_make, binding_remove
from fairsched.core.broker.exchanges.exchanges cimport topology_sweep
from fairsched.core.broker.exchanges.state cimport Binding, Destination, Exchange, Topology, exchange_find, place_of
from fairsched.core.broker.linebreaks cimport strip_breaks

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
    if x.inner.check_binding != NULL and not x.inner.check_binding(refusal, x, key, arguments):
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
