"""Class queue: declare, bind, unbind, purge, delete.

Thread safety: the connection's thread; changes take the topology's lock. Complexity: that of exchanges/bind.pxd;
purge and delete O(messages).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from fairsched.core.amqp.constants cimport (
    ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, QUEUE_BIND_OK, QUEUE_UNBIND_OK, RESOURCE_ERROR,
)
from fairsched.core.amqp.methods cimport (
    QueueBind, QueueDeclare, QueueDelete, QueuePurge, method_write, queue_bind_read, queue_declare_ok_write,
    queue_declare_read, queue_delete_ok_write, queue_delete_read, queue_purge_ok_write, queue_purge_read,
    queue_unbind_read,
)
from fairsched.core.amqp.octets cimport Reader, Text, text_begins, text_copy, text_free, text_is
from fairsched.core.broker.arguments cimport QueueArguments, arguments_agree, arguments_read
from fairsched.core.broker.consumers cimport host_forget, topology_share, topology_unshare
from fairsched.core.broker.durability.keeping cimport queue_record
from fairsched.core.broker.errors cimport (
    Refusal, refuse, refuse_locked, refuse_memory, refuse_missing, refuse_name, refuse_number, refuse_resource,
    refuse_syntax, same_flag,
)
from fairsched.core.broker.exchanges.bind cimport topology_bind, topology_unbind
from fairsched.core.broker.exchanges.exchanges cimport queue_add
from fairsched.core.broker.exchanges.state cimport queue_find
from fairsched.core.broker.generated cimport name_generate
from fairsched.core.broker.linebreaks cimport strip_breaks
from fairsched.core.broker.queues cimport (
    brokerqueue_close, brokerqueue_create, brokerqueue_drop, brokerqueue_purge, brokerqueue_release,
    brokerqueue_retain, brokerqueue_watch,
)
from fairsched.core.broker.state cimport BrokerConnection, BrokerQueue, Channel, Host, Server

# Finding a queue ------------------------------------------------------------------------------------------------------

cdef inline bint queue_name(Channel* ch, Text* name, Refusal* refusal) noexcept nogil:
    """Replace an empty name by that of the queue declared last on the channel; False: refused, there is none."""
    if name.length == 0:
        if ch.last_queue.length == 0:
            return refuse(refusal, NOT_FOUND, b"no previously declared queue")
        name[0] = ch.last_queue
    return True

cdef inline bint queue_locked(const BrokerQueue* b, const BrokerConnection* connection) noexcept nogil:
    """Return whether a queue is exclusive to another connection."""
    return b.exclusive and b.owner != connection

cdef inline bint queue_is_address(Text name) noexcept nogil:
    """Return whether a name is an address of direct reply-to.

    It names no queue: as in RabbitMQ, a declaration only says whether a reply can be delivered there.
    """
    return text_begins(name, b"amq.rabbitmq.reply-to")

cdef inline BrokerQueue* queue_open(Channel* ch, Text* name, Refusal* refusal) noexcept nogil:
    """Return the queue of a name, referenced; NULL: refused."""
    cdef BrokerConnection* connection = ch.connection
    cdef BrokerQueue* b
    if not queue_name(ch, name, refusal):
        return NULL
    if queue_is_address(name[0]):
        refuse_missing(refusal, False, name[0], connection.host.name)
        return NULL
    topology_share(connection)
    b = <BrokerQueue*> queue_find(&connection.host.topology, name[0])
    if b == NULL:
        refuse_missing(refusal, False, name[0], connection.host.name)
    elif queue_locked(b, connection):
        refuse_locked(refusal, name[0], connection.host.name)
        b = NULL
    else:
        brokerqueue_retain(b)
        b.used.store(connection.now)
    topology_unshare(connection)
    return b

# Declaring ------------------------------------------------------------------------------------------------------------

cdef inline bint queue_agrees(
    BrokerConnection* connection, const BrokerQueue* b, const QueueDeclare* m, Refusal* refusal
) noexcept nogil:
    """Refuse a declaration that differs from the queue of its name."""
    cdef Text vhost = connection.host.name
    if (b.owner if b.exclusive else NULL) != (connection if m.exclusive else NULL):
        return refuse_locked(refusal, m.queue, vhost)
    return (
        same_flag(refusal, False, m.queue, vhost, b"durable", b.durable, m.durable)
        and same_flag(refusal, False, m.queue, vhost, b"auto_delete", b.auto_delete, m.auto_delete)
        and arguments_agree(b.table, m.arguments, m.queue, vhost, refusal)
    )

cdef inline BrokerQueue* host_add_queue(
    Host* host, Text name, Text table, const QueueArguments* arguments, bint durable
) noexcept nogil:
    """Make a queue whose name is free; NULL: memory is exhausted. The caller has the topology's lock."""
    cdef BrokerQueue* b = brokerqueue_create(host.server, host, name, table, arguments)
    if b == NULL:
        return NULL
    if not queue_add(&host.topology, b.name, b, durable):
        brokerqueue_release(b)
        return NULL
    b.durable = durable
    b.next = host.queues
    if b.next != NULL:
        b.next.previous = b
    host.queues = b
    return b

cdef inline BrokerQueue* queue_make(
    BrokerConnection* connection, const QueueDeclare* m, const QueueArguments* arguments, Refusal* refusal
) noexcept nogil:
    """Make a queue; NULL: refused. The caller has the topology's lock."""
    cdef BrokerQueue* b
    cdef Server* server = connection.server
    if server.limits.queues > 0 and server.queues.load() >= server.limits.queues:
        refuse_number(refusal, RESOURCE_ERROR, b"the broker has ", server.limits.queues, b" queues, its limit")
        return NULL
    b = host_add_queue(connection.host, m.queue, m.arguments, arguments, m.durable)
    if b == NULL:
        refuse_memory(refusal)
        return NULL
    b.exclusive = m.exclusive
    b.auto_delete = m.auto_delete
    if m.exclusive:
        b.owner = connection
        b.owner_next = connection.exclusive
        if b.owner_next != NULL:
            b.owner_next.owner_previous = b
        connection.exclusive = b
    queue_record(b)
    return b

cdef inline BrokerQueue* queue_obtain(BrokerConnection* connection, QueueDeclare* m, Refusal* refusal) noexcept nogil:
    """Return the declared queue, referenced; it is made if it does not exist. NULL: refused."""
    cdef QueueArguments arguments
    cdef BrokerQueue* b
    cdef Text vhost = connection.host.name
    connection.server.lock.lock()
    b = <BrokerQueue*> queue_find(&connection.host.topology, m.queue)
    if b != NULL:
        if not queue_agrees(connection, b, m, refusal):
            b = NULL
    elif arguments_read(m.arguments, m.queue, vhost, True, &arguments, refusal):
        b = queue_make(connection, m, &arguments, refusal)
    if b != NULL:
        brokerqueue_retain(b)
        b.used.store(connection.now)
    connection.server.lock.unlock()
    if b != NULL and b.arguments.expires > 0:
        brokerqueue_watch(b)
    return b

cdef inline void channel_remember(Channel* ch, Text name) noexcept nogil:
    """Store the name of the queue declared last on a channel."""
    text_free(&ch.last_queue)
    ch.last_queue = text_copy(name)

cdef inline void queue_declare_answer(Channel* ch, BrokerQueue* b, bint no_wait) noexcept nogil:
    channel_remember(ch, b.name)
    if not no_wait:
        queue_declare_ok_write(
            &ch.connection.output, ch.number, b.name, <uint32_t> b.queue.available.load(),
            <uint32_t> b.queue.consumers.load()
        )
    brokerqueue_release(b)

cdef inline bint queue_declare_address(Channel* ch, const QueueDeclare* m, Refusal* refusal) noexcept nogil:
    """Answer the declaration of an address of direct reply-to, passive or not; False: no consumer is behind it."""
    cdef BrokerConnection* connection = ch.connection
    cdef bint lives
    topology_share(connection)
    lives = (
        text_is(m.queue, b"amq.rabbitmq.reply-to") or queue_find(&connection.host.topology, m.queue) != NULL
    )
    topology_unshare(connection)
    if not lives:
        return refuse_missing(refusal, False, m.queue, connection.host.name)
    channel_remember(ch, m.queue)
    if not m.no_wait:
        queue_declare_ok_write(&connection.output, ch.number, m.queue, 0, 1)
    return True

cdef inline bint on_queue_declare(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef QueueDeclare m
    cdef BrokerQueue* b
    cdef uint8_t generated[32]
    cdef uint8_t room[256]
    cdef bint named
    if not queue_declare_read(r, &m):
        return refuse_syntax(refusal)
    strip_breaks(&m.queue, room)
    m.durable = m.durable and not m.exclusive
    if m.passive and m.queue.length == 0:  # only here, not the queue declared last
        return refuse_missing(refusal, False, m.queue, ch.connection.host.name)
    if queue_is_address(m.queue):
        return queue_declare_address(ch, &m, refusal)
    if m.passive:
        b = queue_open(ch, &m.queue, refusal)
    else:
        named = m.queue.length != 0
        if not named:
            m.queue = name_generate(b"amq.gen-", generated)
        elif text_begins(m.queue, b"amq."):  # even if the queue exists, as in RabbitMQ
            return refuse_name(
                refusal, ACCESS_REFUSED, b"queue name '", m.queue, b"' contains reserved prefix 'amq.*'"
            )
        b = queue_obtain(ch.connection, &m, refusal)
    if b == NULL:
        return False
    queue_declare_answer(ch, b, m.no_wait)
    return True

# Binding --------------------------------------------------------------------------------------------------------------

cdef inline bint queue_bind_change(Channel* ch, QueueBind* m, bint binds, Refusal* refusal) noexcept nogil:
    cdef BrokerConnection* connection = ch.connection
    cdef BrokerQueue* b
    cdef uint8_t room[256]
    cdef bint locked, created, done
    strip_breaks(&m.queue, room)
    if m.queue.length == 0 and m.routing_key.length == 0:
        m.routing_key = ch.last_queue
    if not queue_name(ch, &m.queue, refusal):
        return False
    connection.server.lock.lock()
    b = <BrokerQueue*> queue_find(&connection.host.topology, m.queue)
    locked = b != NULL and queue_locked(b, connection)
    if binds:
        done = topology_bind(
            &connection.host.topology, m.exchange, m.queue, False, locked, m.routing_key, m.arguments, &created, refusal
        )
    else:
        done = topology_unbind(
            &connection.host.topology, m.exchange, m.queue, False, locked, m.routing_key, m.arguments, refusal
        )
    connection.server.lock.unlock()
    return done

cdef inline bint on_queue_bind(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef QueueBind m
    if not queue_bind_read(r, &m):
        return refuse_syntax(refusal)
    if not queue_bind_change(ch, &m, True, refusal):
        return False
    if not m.no_wait:
        method_write(&ch.connection.output, ch.number, QUEUE_BIND_OK)
    return True

cdef inline bint on_queue_unbind(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef QueueBind m
    if not queue_unbind_read(r, &m):
        return refuse_syntax(refusal)
    if not queue_bind_change(ch, &m, False, refusal):
        return False
    method_write(&ch.connection.output, ch.number, QUEUE_UNBIND_OK)
    return True

# Purging and deleting -------------------------------------------------------------------------------------------------

cdef inline bint on_queue_purge(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef QueuePurge m
    cdef BrokerQueue* b
    cdef int64_t purged
    if not queue_purge_read(r, &m):
        return refuse_syntax(refusal)
    b = queue_open(ch, &m.queue, refusal)
    if b == NULL:
        return False
    purged = brokerqueue_purge(b, ch.connection.now)
    brokerqueue_release(b)
    if not m.no_wait:
        queue_purge_ok_write(&ch.connection.output, ch.number, <uint32_t> purged)
    return True

cdef inline bint queue_delete_check(
    BrokerConnection* connection, const QueueDelete* m, BrokerQueue* b, Refusal* refusal
) noexcept nogil:
    """Close a queue that may be deleted; False: refused. The caller has the topology's lock."""
    if queue_locked(b, connection):
        return refuse_locked(refusal, m.queue, connection.host.name)
    if brokerqueue_close(b, m.if_unused, m.if_empty):
        return True
    # A queue that is in use and not empty is refused as not empty, as in RabbitMQ.
    if m.if_unused and b.queue.consumers.load() != 0 and not (m.if_empty and b.queue.available.load() != 0):
        return refuse_resource(refusal, PRECONDITION_FAILED, b"", False, m.queue, connection.host.name, b" in use")
    return refuse_resource(refusal, PRECONDITION_FAILED, b"", False, m.queue, connection.host.name, b" not empty")

cdef inline bint on_queue_delete(Channel* ch, Reader* r, Refusal* refusal) noexcept nogil:
    cdef QueueDelete m
    cdef BrokerConnection* connection = ch.connection
    cdef BrokerQueue* b
    cdef uint8_t room[256]
    cdef int64_t purged = 0
    cdef bint done = True
    if not queue_delete_read(r, &m):
        return refuse_syntax(refusal)
    strip_breaks(&m.queue, room)
    if not queue_name(ch, &m.queue, refusal):
        return False
    connection.server.lock.lock()
    b = NULL
    if not queue_is_address(m.queue):
        b = <BrokerQueue*> queue_find(&connection.host.topology, m.queue)
    if b != NULL:
        done = queue_delete_check(connection, &m, b, refusal)
        if done:
            host_forget(b)
    connection.server.lock.unlock()
    if not done:
        return False
    if b != NULL:
        purged = brokerqueue_drop(b, connection.now)
    if not m.no_wait:
        queue_delete_ok_write(&connection.output, ch.number, <uint32_t> purged)
    return True
