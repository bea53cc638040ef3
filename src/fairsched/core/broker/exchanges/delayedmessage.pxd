"""Delaying exchanges (x-delayed-message): a message waits as many milliseconds as its header x-delay says.

Then it is routed along the bindings, as by an exchange of the type that the argument x-delayed-type names. A message
without a delay above 0 is routed at once, and so is one with a delay of more than 32 bits. Routing a message only finds
the exchanges that hold it; core/broker/delays.pxd holds it.

A message that is held counts as one that reaches no queue: it is returned if it is mandatory, and goes to the alternate
exchange, if there is one, at once.

Source: rabbitmq-delayed-message-exchange, `rabbit_exchange_type_delayed_message.erl`,
`rabbit_delayed_message_utils.erl`.
Thread safety: none; the caller synchronizes. Complexity: that of the inner type, and O(fields of the headers).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from fairsched.core.amqp.octets cimport Text, text_is, text_of
from fairsched.core.amqp.tables cimport Field, field_integer, field_is_real, field_real, field_text, tables_get
from fairsched.core.broker.errors cimport Refusal, refuse
from fairsched.core.broker.exchanges.growing cimport pointers_add
from fairsched.core.broker.exchanges.reach cimport route_headers
from fairsched.core.broker.exchanges.state cimport Exchange, Route
from fairsched.core.broker.exchanges.textarguments cimport text_argument

cdef enum: DELAY_MOST = 4294967295  # milliseconds

cdef extern from *:
    """
    #define FAIRSCHED_DELAYED_TYPE "x-delayed-type"
    #define FAIRSCHED_DELAY "x-delay"
    """
    const char* DELAYED_TYPE "FAIRSCHED_DELAYED_TYPE"
    const char* DELAY_HEADER "FAIRSCHED_DELAY"

cdef inline bint delayed_check(Refusal* r, Text name, Text vhost, Text arguments) noexcept nogil:
    cdef Text inner
    if not text_argument(arguments, DELAYED_TYPE, &inner):
        return refuse(r, 406, "Invalid argument, 'x-delayed-type' must be an existing exchange type")
    if text_is(inner, "x-delayed-message"):
        return refuse(r, 406, "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'")
    return True

cdef inline bint delay_digits(Text text, int64_t* delay) noexcept nogil:
    """Read an optional sign, and digits; False: the text is something else. Values are clamped above 64 bits."""
    cdef uint32_t first = 1 if text.length and text.data[0] in (b'+', b'-') else 0, at = first
    cdef int64_t value = 0
    while at < text.length and b'0' <= text.data[at] <= b'9':
        value = min(value * 10 + (text.data[at] - <uint8_t> b'0'), <int64_t> DELAY_MOST + 1)
        at += 1
    delay[0] = -value if first and text.data[0] == b'-' else value
    return at > first and at == text.length

cdef inline bint delay_read(Text headers, int64_t* delay) noexcept nogil:
    """Read the header x-delay: an integer, a float, which is truncated, or text with digits; False: there is none.

    A float that is negative or too large becomes a delay of more than 32 bits. The plugin takes no integer of 8 bits
    with a sign.
    """
    cdef Field field
    cdef Text text
    cdef double real
    if not tables_get(headers, text_of(DELAY_HEADER), &field):
        return False
    if field_text(&field, &text):
        return delay_digits(text, delay)
    if field_is_real(&field):
        real = field_real(&field)
        delay[0] = <int64_t> real if 0 <= real <= DELAY_MOST else <int64_t> DELAY_MOST + 1
        return True
    return field.kind != b'b' and field_integer(&field, delay)

cdef inline void delayed_route(Route* r, const Exchange* x) noexcept nogil:
    cdef int64_t delay = 0
    if delay_read(route_headers(r), &delay) and 0 < delay <= <int64_t> DELAY_MOST:
        r.failed = not pointers_add(&r.delays, <void*> x) or r.failed
    else:
        x.inner.route(r, x)
