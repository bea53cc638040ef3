"""Lists of the bindings of one key, for types of exchange that find bindings by key.

Thread safety: none; the caller synchronizes. Complexity: O(1); routing O(bindings of the key).
"""

from fairsched.core.broker.exchanges.reach cimport route_reach
from fairsched.core.broker.exchanges.state cimport Binding, Route

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

cdef inline void peers_route(Route* r, const Binding* first) noexcept nogil:
    while first != NULL:
        route_reach(r, first.destination)
        first = first.following
