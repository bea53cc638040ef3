"""The part of a `Route` that types of exchange use: the message's headers, and the destinations it reaches.

Thread safety: one thread per `Route`. Complexity: O(1) amortised; headers O(fields log fields), once per message.
"""

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, contents_text
from fairsched.core.amqp.octets cimport Text
from fairsched.core.broker.exchanges.fields cimport Fields, fields_read
from fairsched.core.broker.exchanges.growing cimport marks_add, pointers_add
from fairsched.core.broker.exchanges.state cimport Destination, Route

cdef inline Text route_headers(const Route* r) noexcept nogil:
    """Return the message's headers, a table."""
    return contents_text(r.header, r.properties, PROPERTY_HEADERS)

cdef inline const Fields* route_fields(Route* r) noexcept nogil:
    """Return the message's headers in the order of their names."""
    if not r.sorted:
        r.sorted = True
        r.failed = not fields_read(&r.headers, route_headers(r)) or r.failed
    return &r.headers

cdef inline void route_reach(Route* r, Destination* place) noexcept nogil:
    """Add a destination, unless the message has reached it before."""
    r.led = True
    if not marks_add(&r.places, place.number):
        return
    if place.exchange != NULL:
        r.failed = not pointers_add(&r.exchanges, place.exchange) or r.failed
    else:
        r.failed = not pointers_add(&r.found, place.queue) or r.failed
