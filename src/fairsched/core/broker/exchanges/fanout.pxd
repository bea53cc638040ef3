"""Fanout exchanges: a message goes along all bindings.

Source: AMQP 0-9-1, section 3.1.3.2.
Thread safety: none; the caller synchronizes. Complexity: O(bindings).
"""

from fairsched.core.broker.exchanges.reach cimport route_reach
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, Route

cdef inline void fanout_route(Route* r, const Exchange* x) noexcept nogil:
    cdef const Binding* b = x.oldest
    while b != NULL:
        route_reach(r, b.destination)
        b = b.newer
