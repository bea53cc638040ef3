"""Headers exchanges: a message goes along the bindings whose arguments its headers match.

A binding's x-match says how many of its arguments must match: `all` (the default) or `any`. Arguments whose names begin
with x- count only with `all-with-x` and `any-with-x`, and x-match itself never. An argument without a value asks only
that the header is present. The types of the two values may differ.

Source: AMQP 0-9-1, section 3.1.3.4; RabbitMQ, "Headers Exchange", and its answers where the documents are silent.
Thread safety: none; the caller synchronizes. Complexity: O(bindings * fields).
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, text_begins, text_is, text_of
from fairsched.core.amqp.tables cimport Field, field_type, field_value_describe, tables_get
from fairsched.core.broker.errors cimport Refusal, refusal_binary, refusal_say, refusal_text, refuse
from fairsched.core.broker.exchanges.fields cimport (
    Fields, fields_clear, fields_init, fields_read, text_compare, values_equal,
)
from fairsched.core.broker.exchanges.reach cimport route_fields, route_reach
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, Route

cdef enum HeadersMode:
    HEADERS_ALL
    HEADERS_ANY
    HEADERS_ALL_WITH_X
    HEADERS_ANY_WITH_X
    HEADERS_INVALID

cdef struct HeadersPattern:  # a binding's `own`
    HeadersMode mode
    Fields fields            # the arguments in the order of their names

cdef inline HeadersMode headers_mode(Text text) noexcept nogil:
    """Return the meaning of an x-match."""
    if text_is(text, "all"):
        return HEADERS_ALL
    if text_is(text, "any"):
        return HEADERS_ANY
    if text_is(text, "all-with-x"):
        return HEADERS_ALL_WITH_X
    return HEADERS_ANY_WITH_X if text_is(text, "any-with-x") else HEADERS_INVALID

cdef inline bint headers_check_binding(Refusal* r, const Exchange* x, Text key, Text arguments) noexcept nogil:
    """Refuse an x-match that is not one of the four modes."""
    cdef Field field
    cdef Bytes value
    if not tables_get(arguments, text_of("x-match"), &field):
        return True
    if field.kind == b'S' and headers_mode(field.value) != HEADERS_INVALID:
        return True
    if field.kind == b'S':
        refuse(r, 406, "Invalid x-match field value ")
        refusal_binary(r, field.value)
        refusal_say(r, "; expected all, any, all-with-x, or any-with-x")
        return False
    bytes_init(&value)
    field_value_describe(&value, &field)
    refuse(r, 406, "Invalid x-match field type ")
    refusal_say(r, field_type(&field))
    refusal_say(r, " (value ")
    refusal_text(r, Text(value.data, <uint32_t> value.end))
    refusal_say(r, "); expected longstr")
    bytes_clear(&value)
    return False

cdef inline bint headers_add(Binding* b) noexcept nogil:
    cdef HeadersPattern* pattern = <HeadersPattern*> calloc(1, sizeof(HeadersPattern))
    cdef Field field
    if pattern == NULL:
        return False
    pattern.mode = headers_mode(field.value) if tables_get(b.arguments, text_of("x-match"), &field) else HEADERS_ALL
    fields_init(&pattern.fields)
    b.own = pattern
    if fields_read(&pattern.fields, b.arguments):
        return True
    headers_remove(b)
    return False

cdef inline void headers_remove(Binding* b) noexcept nogil:
    fields_clear(&(<HeadersPattern*> b.own).fields)
    free(b.own)

cdef inline bint headers_counts(Text name, HeadersMode mode) noexcept nogil:
    """Return whether a message has to match the argument of this name."""
    if not text_begins(name, "x-"):
        return True
    return mode in (HEADERS_ALL_WITH_X, HEADERS_ANY_WITH_X) and not text_is(name, "x-match")

cdef inline bint headers_match(const HeadersPattern* pattern, const Fields* headers) noexcept nogil:
    """Return whether headers match a pattern. If a name occurs twice, the first of each side are compared."""
    cdef const Fields* wanted = &pattern.fields
    cdef bint whole = pattern.mode in (HEADERS_ALL, HEADERS_ALL_WITH_X)
    cdef int64_t i, at = 0
    cdef int order
    cdef bint found
    for i in range(wanted.count):
        if not headers_counts(wanted.at[i].name, pattern.mode):
            continue
        order = 1
        while at < headers.count:
            order = text_compare(wanted.at[i].name, headers.at[at].name)
            if order <= 0:
                break
            at += 1
        if at == headers.count:
            return False
        found = False
        if order == 0:
            found = wanted.at[i].field.kind == b'V' or values_equal(&wanted.at[i].field, &headers.at[at].field)
            at += 1
        if found != whole:
            return found
    return whole

cdef inline void headers_route(Route* r, const Exchange* x) noexcept nogil:
    cdef const Fields* headers = route_fields(r)
    cdef const Binding* b = x.oldest
    while b != NULL:
        if headers_match(<const HeadersPattern*> b.own, headers):
            route_reach(r, b.destination)
        b = b.newer
