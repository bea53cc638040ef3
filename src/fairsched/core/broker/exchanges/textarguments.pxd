"""Arguments of exchanges that are long strings.

Source: RabbitMQ's answers. Thread safety: pure functions. Complexity: O(fields).
"""

from fairsched.core.amqp.octets cimport Text, text_of
from fairsched.core.amqp.tables cimport Field, field_text, tables_get
from fairsched.core.broker.errors cimport Refusal, refuse_type

cdef inline bint text_argument(Text arguments, const char* name, Text* value) noexcept nogil:
    """Read an argument; False: it is missing or not a long string."""
    cdef Field field
    return tables_get(arguments, text_of(name), &field) and field_text(&field, value)

cdef inline bint text_argument_check(
    Refusal* r, Text exchange, Text vhost, Text arguments, const char* name
) noexcept nogil:
    """Refuse an argument that is present but not a long string."""
    cdef Field field
    if not tables_get(arguments, text_of(name), &field) or field.kind == b'S':
        return True
    return refuse_type(r, True, exchange, vhost, name, &field)
