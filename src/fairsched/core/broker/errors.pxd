"""Errors: RabbitMQ's codes and texts.

`refuse` starts a text, and further parts are appended. A text that is too long is truncated.

Thread safety: pure functions. Complexity: O(octets).
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from fairsched.core.amqp.constants cimport (
    ACCESS_REFUSED, CHANNEL_ERROR, COMMAND_INVALID, CONNECTION_FORCED, FRAME_ERROR, INTERNAL_ERROR, NOT_ALLOWED,
    NOT_FOUND, NOT_IMPLEMENTED, PRECONDITION_FAILED, RESOURCE_ERROR, RESOURCE_LOCKED, SYNTAX_ERROR, UNEXPECTED_FRAME,
)
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, bytes_size, text_equal, text_of
from fairsched.core.amqp.tables cimport (
    Field, bytes_literal, field_describe, field_type, field_value_describe, tables_equivalent, tables_get,
)

cdef enum:
    TEXT_MAX = 1024

cdef struct Refusal:         # the error that a method is answered with
    uint16_t code            # 403, 404, 406: close the channel; 503, 541: close the connection
    uint32_t length
    uint8_t text[TEXT_MAX]   # the explanation, without the name of the code, such as "no exchange 'x' in vhost '/'"

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
    """Return whether an error closes the channel only, rather than the connection."""
    return code in (ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED)

# Explanations ---------------------------------------------------------------------------------------------------------

cdef inline void refusal_text(Refusal* r, Text text) noexcept nogil:
    """Append to the explanation."""
    cdef uint32_t size = min(text.length, <uint32_t> TEXT_MAX - r.length)
    if size:
        memcpy(r.text + r.length, text.data, size)
    r.length += size

cdef inline void refusal_say(Refusal* r, const char* words) noexcept nogil:
    refusal_text(r, text_of(words))

cdef inline void refusal_number(Refusal* r, int64_t number) noexcept nogil:
    cdef char digits[24]
    snprintf(digits, sizeof(digits), "%lld", <long long> number)
    refusal_say(r, digits)

cdef inline void refusal_resource(Refusal* r, bint exchange, Text name, Text vhost) noexcept nogil:
    """Append the description of an exchange or a queue, as RabbitMQ words it."""
    refusal_say(r, "exchange '" if exchange else "queue '")
    refusal_text(r, name)
    refusal_say(r, "' in vhost '")
    refusal_text(r, vhost)
    refusal_say(r, "'")

cdef inline bint text_prints(Text text) noexcept nogil:
    cdef uint32_t i
    for i in range(text.length):
        if text.data[i] < 32 or text.data[i] > 126:
            return False
    return text.length > 0

cdef inline void refusal_quoted(Refusal* r, Text text) noexcept nogil:
    """Append text in double quotes, as Erlang shows it."""
    cdef uint32_t i
    refusal_say(r, "\"")
    for i in range(text.length):
        if text.data[i] == b'"' or text.data[i] == b'\\':
            refusal_say(r, "\\")
        refusal_text(r, Text(text.data + i, 1))
    refusal_say(r, "\"")

cdef inline void refusal_binary(Refusal* r, Text text) noexcept nogil:
    """Append octets as Erlang shows them: <<"like this">>, or as numbers."""
    cdef uint32_t i
    refusal_say(r, "<<")
    if text_prints(text):
        refusal_quoted(r, text)
    else:
        for i in range(text.length):
            refusal_say(r, "," if i else "")
            refusal_number(r, text.data[i])
    refusal_say(r, ">>")

# Refusing: always False -----------------------------------------------------------------------------------------------

cdef inline bint refuse(Refusal* r, uint16_t code, const char* words) noexcept nogil:
    """Begin an explanation."""
    r.code = code
    r.length = 0
    refusal_say(r, words)
    return False

cdef inline bint refuse_name(
    Refusal* r, uint16_t code, const char* words, Text name, const char* more
) noexcept nogil:
    refuse(r, code, words)
    refusal_text(r, name)
    refusal_say(r, more)
    return False

cdef inline bint refuse_number(
    Refusal* r, uint16_t code, const char* words, int64_t number, const char* more
) noexcept nogil:
    refuse(r, code, words)
    refusal_number(r, number)
    refusal_say(r, more)
    return False

cdef inline bint refuse_resource(
    Refusal* r, uint16_t code, const char* words, bint exchange, Text name, Text vhost, const char* more
) noexcept nogil:
    """Explain with the name of an exchange or a queue."""
    refuse(r, code, words)
    refusal_resource(r, exchange, name, vhost)
    refusal_say(r, more)
    return False

cdef inline bint refuse_type(
    Refusal* r, bint exchange, Text name, Text vhost, const char* argument, const Field* found
) noexcept nogil:
    """Explain that an argument has the wrong type."""
    refuse(r, PRECONDITION_FAILED, "invalid type '")
    refusal_say(r, field_type(found))
    refusal_say(r, "' for arg '")
    refusal_say(r, argument)
    refusal_say(r, "' in ")
    refusal_resource(r, exchange, name, vhost)
    return False

cdef inline bint refuse_default(Refusal* r) noexcept nogil:
    return refuse(r, 403, "operation not permitted on the default exchange")

cdef inline bint refuse_missing(Refusal* r, bint exchange, Text name, Text vhost) noexcept nogil:
    return refuse_resource(r, NOT_FOUND, "no ", exchange, name, vhost, "")

cdef inline bint refuse_locked(Refusal* r, Text queue, Text vhost) noexcept nogil:
    """Explain that a queue is exclusive to another connection."""
    return refuse_resource(
        r, RESOURCE_LOCKED, b"cannot obtain exclusive access to locked ", False, queue, vhost,
        b". It could be originally declared on another connection or the exclusive property value does not match that "
        b"of the original declaration."
    )

cdef inline bint refuse_memory(Refusal* r) noexcept nogil:
    return refuse(r, INTERNAL_ERROR, "memory is exhausted")

cdef inline bint refuse_syntax(Refusal* refusal) noexcept nogil:
    return refuse(refusal, SYNTAX_ERROR, b"the arguments of the method are not well formed")

cdef inline bint refuse_unlike(
    Refusal* r, bint exchange, Text name, Text vhost, const char* argument
) noexcept nogil:
    """Begin to explain that a declaration differs from the existing object."""
    refuse(r, PRECONDITION_FAILED, "inequivalent arg '")
    refusal_say(r, argument)
    refusal_say(r, "' for ")
    refusal_resource(r, exchange, name, vhost)
    refusal_say(r, ": received ")
    return False

# Comparing a declaration with the existing object: False and refused if they differ -----------------------------------

cdef inline bint same_word(
    Refusal* r, bint exchange, Text name, Text vhost, const char* argument, const char* current, const char* received
) noexcept nogil:
    if text_equal(text_of(current), text_of(received)):
        return True
    refuse_unlike(r, exchange, name, vhost, argument)
    refusal_say(r, "'")
    refusal_say(r, received)
    refusal_say(r, "' but current is '")
    refusal_say(r, current)
    refusal_say(r, "'")
    return False

cdef inline bint same_flag(
    Refusal* r, bint exchange, Text name, Text vhost, const char* argument, bint current, bint received
) noexcept nogil:
    return same_word(
        r, exchange, name, vhost, argument, "true" if current else "false", "true" if received else "false"
    )

cdef inline void value_describe(Bytes* out, const Field* f) noexcept nogil:
    """Append a value in quotes, or "none" for a void one, as RabbitMQ does."""
    if f.kind == b'V':
        bytes_literal(out, "none")
        return
    bytes_literal(out, "'")
    field_value_describe(out, f)
    bytes_literal(out, "'")

cdef inline bint same_argument(
    Refusal* r, bint exchange, Text name, Text vhost, const char* argument, Text current, Text received
) noexcept nogil:
    """Compare an argument of two declarations."""
    cdef Text wanted = text_of(argument)
    cdef Field old, new
    cdef bint before = tables_get(current, wanted, &old), now = tables_get(received, wanted, &new)
    cdef Bytes out
    if tables_equivalent(current, received, wanted):
        return True
    bytes_init(&out)
    if before and now:
        value_describe(&out, &new)
        bytes_literal(&out, " but current is ")
        value_describe(&out, &old)
    else:
        field_describe(&out, &new if now else NULL)
        bytes_literal(&out, " but current is ")
        field_describe(&out, &old if before else NULL)
    refuse_unlike(r, exchange, name, vhost, argument)
    refusal_text(r, Text(out.data, <uint32_t> bytes_size(&out)))
    bytes_clear(&out)
    return False
