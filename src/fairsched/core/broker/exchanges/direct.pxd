"""Direct exchanges: a message goes along the bindings whose key is one of its keys.

Source: AMQP 0-9-1, section 3.1.3.1.
Thread safety: none; the caller synchronizes. Complexity: O(length of the key) expected, and O(destinations).
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from fairsched.core.broker.exchanges.names cimport (
    NameEntry, Names, names_add, names_clear, names_find, names_init, names_remove,
)
from fairsched.core.broker.exchanges.peers cimport peers_add, peers_remove, peers_route
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, Route

# An exchange's `own` is a table of keys with the first binding of each; a binding's `own` is the entry of its key.

cdef inline bint direct_begin(Exchange* x) noexcept nogil:
    x.own = calloc(1, sizeof(Names))
    if x.own != NULL:
        names_init(<Names*> x.own)
    return x.own != NULL

cdef inline void direct_end(Exchange* x) noexcept nogil:
    names_clear(<Names*> x.own)
    free(x.own)

cdef inline bint direct_add(Binding* b) noexcept nogil:
    cdef Names* keys = <Names*> b.source.own
    cdef NameEntry* entry = names_find(keys, b.key)
    if entry == NULL:
        entry = names_add(keys, b.key, NULL)
    if entry == NULL:
        return False
    b.own = entry
    peers_add(<Binding**> &entry.value, b)
    return True

cdef inline void direct_remove(Binding* b) noexcept nogil:
    cdef NameEntry* entry = <NameEntry*> b.own
    peers_remove(<Binding**> &entry.value, b)
    if entry.value == NULL:
        names_remove(<Names*> b.source.own, entry)

cdef inline void direct_route(Route* r, const Exchange* x) noexcept nogil:
    cdef NameEntry* entry
    cdef int64_t i
    for i in range(r.key_count):
        entry = names_find(<const Names*> x.own, r.keys[i])
        if entry != NULL:
            peers_route(r, <const Binding*> entry.value)
