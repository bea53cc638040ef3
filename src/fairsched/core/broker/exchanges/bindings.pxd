"""Bindings: found by destination, key and arguments; added and removed.

Source: AMQP 0-9-1, sections 3.1 and 1.7; RabbitMQ, "Exchange to Exchange Bindings".
Thread safety: none; the caller synchronizes. Complexity: O(octets of key and arguments) expected, and that of the type.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_append, bytes_init, bytes_number
from fairsched.core.broker.exchanges.fields cimport Fields, fields_clear, fields_init, fields_read, fields_write
from fairsched.core.broker.exchanges.names cimport NameEntry, names_add, names_find, names_remove, names_text
from fairsched.core.broker.exchanges.state cimport Binding, Destination, Exchange, Topology

cdef inline bint binding_identity(
    Bytes* out, const Destination* destination, Text key, Text arguments
) noexcept nogil:
    """Write the octets that identify a binding: destination, key, arguments. False: memory is exhausted."""
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
    """Return a binding and write its identity, which the caller clears.

    NULL: there is none, or memory is exhausted (`identity.failed`).
    """
    cdef NameEntry* entry
    bytes_init(identity)
    if not binding_identity(identity, destination, key, arguments):
        identity.failed = True
        return NULL
    entry = names_find(&source.identities, Text(identity.data, <uint32_t> identity.end))
    return <Binding*> entry.value if entry != NULL else NULL

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
    """Add a binding that does not exist yet; NULL: memory is exhausted."""
    cdef Binding* b = <Binding*> calloc(1, sizeof(Binding))
    cdef Text known = Text(identity.data, <uint32_t> identity.end)
    if b == NULL:
        return NULL
    b.source = source
    b.destination = destination
    b.identity = names_add(&source.identities, known, b)
    if b.identity == NULL:
        free(b)
        return NULL
    known = names_text(b.identity)
    b.key = Text(known.data + sizeof(void*) + 1, key.length)
    b.arguments = Text(b.key.data + key.length, <uint32_t> (known.length - sizeof(void*) - 1 - key.length))
    if source.inner.add != NULL and not source.inner.add(b):
        names_remove(&source.identities, b.identity)
        free(b)
        return NULL
    binding_link(b)
    return b

cdef inline void exchange_doom(Topology* t, Exchange* x) noexcept nogil:
    """Have the next `topology_sweep` delete an exchange."""
    if not x.doomed:
        x.doomed = True
        x.following = t.doomed
        t.doomed = x

cdef inline void binding_remove(Topology* t, Binding* b) noexcept nogil:
    """Remove a binding. An auto-delete source is doomed with its last one: the caller calls `topology_sweep`."""
    cdef Exchange* source = b.source
    if t.removed != NULL:
        t.removed(t.context, source, b)
    binding_unlink(b)
    if source.inner.remove != NULL:
        source.inner.remove(b)
    names_remove(&source.identities, b.identity)
    free(b)
    if source.oldest == NULL and source.auto_delete:
        exchange_doom(t, source)
