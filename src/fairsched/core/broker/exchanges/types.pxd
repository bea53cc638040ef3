"""The table of exchange types. A new type is a file of its own and a row here.

Source: AMQP 0-9-1, section 3.1.3; RabbitMQ, "Consistent Hash Exchange"; the plugin
rabbitmq-delayed-message-exchange.
Thread safety: the table does not change. Complexity: O(types).
"""

from libc.stdlib cimport malloc

from fairsched.core.amqp.octets cimport Text, text_is
from fairsched.core.broker.exchanges.consistenthash cimport (
    hash_add, hash_begin, hash_check, hash_check_binding, hash_end, hash_remove, hash_route,
)
from fairsched.core.broker.exchanges.delayedmessage cimport DELAYED_TYPE, delayed_check, delayed_route
from fairsched.core.broker.exchanges.direct cimport direct_add, direct_begin, direct_end, direct_remove, direct_route
from fairsched.core.broker.exchanges.fanout cimport fanout_route
from fairsched.core.broker.exchanges.headers cimport headers_add, headers_check_binding, headers_remove, headers_route
from fairsched.core.broker.exchanges.state cimport ExchangeType, Topology
from fairsched.core.broker.exchanges.textarguments cimport text_argument
from fairsched.core.broker.exchanges.topic cimport topic_add, topic_begin, topic_end, topic_remove, topic_route

cdef enum: ROWS = 7

cdef inline ExchangeType* exchange_types() noexcept nogil:
    """Return the table, to be freed by the caller; NULL: memory is exhausted."""
    cdef ExchangeType* rows = <ExchangeType*> malloc(ROWS * sizeof(ExchangeType))
    if rows == NULL:
        return NULL
    rows[0:ROWS] = [
        # name, atom, check, begin, end, check_binding, add, remove, route, inner
        ExchangeType(
            "direct", "direct", NULL, direct_begin, direct_end, NULL, direct_add, direct_remove, direct_route,
            NULL
        ),
        ExchangeType("fanout", "fanout", NULL, NULL, NULL, NULL, NULL, NULL, fanout_route, NULL),
        ExchangeType("topic", "topic", NULL, topic_begin, topic_end, NULL, topic_add, topic_remove, topic_route, NULL),
        ExchangeType(
            "headers", "headers", NULL, NULL, NULL, headers_check_binding, headers_add, headers_remove, headers_route,
            NULL
        ),
        ExchangeType(
            "x-consistent-hash", "'x-consistent-hash'", hash_check, hash_begin, hash_end, hash_check_binding, hash_add,
            hash_remove, hash_route, NULL
        ),
        ExchangeType(
            "x-delayed-message", "'x-delayed-message'", delayed_check, NULL, NULL, NULL, NULL, NULL, delayed_route,
            DELAYED_TYPE
        ),
        ExchangeType(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    ]
    return rows

cdef inline const ExchangeType* exchange_type(const Topology* t, Text name) noexcept nogil:
    """Return the row of a name; NULL: there is no such type."""
    cdef const ExchangeType* row = t.types
    while row.name != NULL and not text_is(name, row.name):
        row += 1
    return row if row.name != NULL else NULL

cdef inline const ExchangeType* exchange_inner(
    const Topology* t, const ExchangeType* type, Text arguments
) noexcept nogil:
    """Return the type whose bindings an exchange has; NULL: its arguments name no type."""
    cdef Text name
    if type.inner == NULL:
        return type
    return exchange_type(t, name) if text_argument(arguments, type.inner, &name) else NULL
