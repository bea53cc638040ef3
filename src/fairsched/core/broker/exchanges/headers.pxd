"""Whether a message's headers match the arguments of a binding of a headers exchange.

Source: AMQP 0-9-1, section 3.1.3.4; RabbitMQ, "Headers Exchange" (x-match any, all, any-with-x, all-with-x), and its
answers for what the documents leave open: a field without a value in the binding asks for presence alone; types need
not be the same; without x-match all have to match; names that begin with x- count only with -with-x, x-match never.
Thread safety: pure functions. Complexity: O(fields of both).
"""

from libc.stdint cimport int64_t

from fairsched.core.amqp.octets cimport Text, text_begins, text_is
from fairsched.core.broker.exchanges.fields cimport Fields, text_compare, values_equal

cdef enum HeadersMode:
    HEADERS_ALL
    HEADERS_ANY
    HEADERS_ALL_WITH_X
    HEADERS_ANY_WITH_X
    HEADERS_INVALID

cdef inline HeadersMode headers_mode(Text text) noexcept nogil:
    """The meaning of an x-match."""
    if text_is(text, "all"):
        return HEADERS_ALL
    if text_is(text, "any"):
        return HEADERS_ANY
    if text_is(text, "all-with-x"):
        return HEADERS_ALL_WITH_X
    return HEADERS_ANY_WITH_X if text_is(text, "any-with-x") else HEADERS_INVALID

cdef inline bint headers_counts(Text name, HeadersMode mode) noexcept nogil:
    """Whether a field of a binding has to be looked for."""
    if not text_begins(name, "x-"):
        return True
    return mode in (HEADERS_ALL_WITH_X, HEADERS_ANY_WITH_X) and not text_is(name, "x-match")

cdef inline bint headers_match(const Fields* pattern, HeadersMode mode, const Fields* data) noexcept nogil:
    """Both sorted by name. Of several fields of a name, the first of the one is held against the first of the other."""
    cdef bint whole = mode in (HEADERS_ALL, HEADERS_ALL_WITH_X)
    cdef int64_t i, at = 0
    cdef int order
    cdef bint found
    for i in range(pattern.count):
        if not headers_counts(pattern.at[i].name, mode):
            continue
        order = 1
        while at < data.count:
            order = text_compare(pattern.at[i].name, data.at[at].name)
            if order <= 0:
                break
            at += 1
        if at == data.count:
            return False
        found = False
        if order == 0:
            found = pattern.at[i].field.kind == b'V' or values_equal(&pattern.at[i].field, &data.at[at].field)
            at += 1
        if found != whole:
            return found
    return whole
