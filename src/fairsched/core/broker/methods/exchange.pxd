"""Class exchange: declare, delete, bind, unbind.

Thread safety: the connection's thread; changes take the topology's lock. Complexity: that of exchanges/declare.pxd
and bind.pxd.
"""

from fairsched.core.amqp.constants cimport (
    EXCHANGE_BIND_OK, EXCHANGE_DECLARE_OK, EXCHANGE_DELETE_OK, EXCHANGE_UNBIND_OK,
)
from fairsched.core.amqp.methods cimport (
    ExchangeBind, ExchangeDeclare, ExchangeDelete, exchange_bind_read, exchange_declare_read, exchange_delete_read,
    method_write,
)
from fairsched.core.amqp.octets cimport Reader
from fairsched.core.broker.errors cimport Refusal, refuse_syntax
from fairsched.core.broker.exchanges.bind cimport topology_bind, topology_unbind
from fairsched.core.broker.exchanges.declare cimport exchange_declare, exchange_delete
from fairsched.core.broker.state cimport BrokerConnection, Channel

cdef inline bint on_exchange_declare(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ExchangeDeclare m
    cdef BrokerConnection* connection = ch.connection
    cdef bint created, done
    if not exchange_declare_read(r, &m):
        return refuse_syntax(refusal)
    connection.server.lock.lock()
    done = exchange_declare(
        &connection.host.topology, m.exchange, m.type, m.passive, m.durable, m.auto_delete, m.internal, m.arguments,
        &created, refusal
    )
    connection.server.lock.unlock()
    if done and not m.no_wait:
        method_write(&connection.output, ch.number, EXCHANGE_DECLARE_OK)
    return done

cdef inline bint on_exchange_delete(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ExchangeDelete m
    cdef BrokerConnection* connection = ch.connection
    cdef bint done
    if not exchange_delete_read(r, &m):
        return refuse_syntax(refusal)
    connection.server.lock.lock()
    done = exchange_delete(&connection.host.topology, m.exchange, m.if_unused, refusal)
    connection.server.lock.unlock()
    if done and not m.no_wait:
        method_write(&connection.output, ch.number, EXCHANGE_DELETE_OK)
    return done

cdef inline bint on_exchange_bind(Channel* ch, Reader* r, bint binds, Refusal* refusal) noexcept nogil:
    """Carry out exchange.bind or exchange.unbind."""
    cdef ExchangeBind m
    cdef BrokerConnection* connection = ch.connection
    cdef bint created, done
    if not exchange_bind_read(r, &m):
        return refuse_syntax(refusal)
    connection.server.lock.lock()
    if binds:
        done = topology_bind(
            &connection.host.topology, m.source, m.destination, True, False, m.routing_key, m.arguments, &created,
            refusal
        )
    else:
        done = topology_unbind(
            &connection.host.topology, m.source, m.destination, True, False, m.routing_key, m.arguments, refusal
        )
    connection.server.lock.unlock()
    if done and not m.no_wait:
        method_write(&connection.output, ch.number, EXCHANGE_BIND_OK if binds else EXCHANGE_UNBIND_OK)
    return done
