"""Why something is refused: RabbitMQ's codes and texts.

Thread safety: pure functions. Complexity: O(1).
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.stdio cimport snprintf

from fairsched.core.amqp.constants cimport (
    ACCESS_REFUSED, CHANNEL_ERROR, COMMAND_INVALID, CONNECTION_FORCED, FRAME_ERROR, INTERNAL_ERROR, NOT_ALLOWED,
    NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, RESOURCE_ERROR, RESOURCE_LOCKED, SYNTAX_ERROR, UNEXPECTED_FRAME,
)
from fairsched.core.amqp.octets cimport Text
from fairsched.core.broker.exchanges cimport Refusal, TEXT_MAX

cdef inline const char* code_name(uint32_t code) noexcept nogil:
    if code == ACCESS_REFUSED:
        return b"ACCESS_REFUSED"
    if code == NOT_FOUND:
        return b"NOT_FOUND"
    if code == RESOURCE_LOCKED:
        return b"RESOURCE_LOCKED"
    if code == PRECONDITION_FAILED:
        return b"PRECONDITION_FAILED"
    if code == CONNECTION_FORCED:
        return b"CONNECTION_FORCED"
    if code == FRAME_ERROR:
        return b"FRAME_ERROR"
    if code == SYNTAX_ERROR:
        return b"SYNTAX_ERROR"
    if code == COMMAND_INVALID:
        return b"COMMAND_INVALID"
    if code == CHANNEL_ERROR:
        return b"CHANNEL_ERROR"
    if code == UNEXPECTED_FRAME:
        return b"UNEXPECTED_FRAME"
    if code == RESOURCE_ERROR:
        return b"RESOURCE_ERROR"
    if code == NOT_ALLOWED:
        return b"NOT_ALLOWED"
    return b"NOT_IMPLEMENTED" if code == NOT_IMPLEMENTED else b"INTERNAL_ERROR"

cdef inline bint code_of_channel(uint32_t code) noexcept nogil:
    """Whether an error closes the channel, and not the connection."""
    return code in (ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED)

cdef inline void refusal_cut(Refusal* r, int length) noexcept nogil:
    r.length = <uint32_t> min(max(length, 0), TEXT_MAX - 1)

cdef inline bint refuse(Refusal* r, uint16_t code, const char* text) noexcept nogil:
    """Refuse with a text; always False."""
    r.code = code
    refusal_cut(r, snprintf(<char*> r.text, TEXT_MAX, b"%s", text))
    return False

cdef inline bint refuse_name(Refusal* r, uint16_t code, const char* pattern, Text name) noexcept nogil:
    """… with one name: %.*s."""
    r.code = code
    refusal_cut(r, snprintf(<char*> r.text, TEXT_MAX, pattern, <int> name.length, <const char*> name.data))
    return False

cdef inline bint refuse_names(Refusal* r, uint16_t code, const char* pattern, Text a, Text b) noexcept nogil:
    """… with two."""
    r.code = code
    refusal_cut(r, snprintf(
        <char*> r.text, TEXT_MAX, pattern, <int> a.length, <const char*> a.data, <int> b.length, <const char*> b.data
    ))
    return False

cdef inline bint refuse_number(Refusal* r, uint16_t code, const char* pattern, int64_t number) noexcept nogil:
    """… with a number: %lld."""
    r.code = code
    refusal_cut(r, snprintf(<char*> r.text, TEXT_MAX, pattern, <long long> number))
    return False

cdef inline bint refuse_memory(Refusal* r) noexcept nogil:
    return refuse(r, INTERNAL_ERROR, b"out of memory")
