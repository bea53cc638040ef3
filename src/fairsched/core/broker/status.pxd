"""The status of queues and consumers, copied row by row, so that it can be shown without a lock.

A row is a struct, followed by the texts whose lengths it has. The figures are not all from the same moment.

Thread safety: any thread. Complexity: O(queues), O(consumers).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport strlen

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_append
from fairsched.core.broker.state cimport BrokerConnection, BrokerQueue, Channel, Consumer, Host, Server
from fairsched.core.waiting.node cimport node_state

cdef struct QueueRow:
    uint32_t vhost     # lengths, in the order of the texts
    uint32_t name
    uint32_t durable
    uint32_t exclusive
    int64_t ready
    int64_t depth
    int64_t octets
    int64_t consumers
    uint64_t published
    uint64_t delivered
    uint64_t acked

cdef struct ConsumerRow:
    uint32_t vhost     # lengths, in the order of the texts
    uint32_t queue
    uint32_t tag
    uint32_t peer
    uint32_t channel
    uint32_t prefetch
    uint32_t state     # of core/waiting/node.pxd
    int32_t priority
    uint32_t no_ack

cdef inline void status_text(Bytes* out, Text text) noexcept nogil:
    bytes_append(out, text.data, text.length)

cdef inline void status_queue(BrokerQueue* b, Bytes* out) noexcept nogil:
    cdef QueueRow row
    row.vhost = b.host.name.length
    row.name = b.name.length
    row.durable = b.durable
    row.exclusive = b.exclusive
    row.ready = b.queue.available.load()
    row.depth = b.queue.depth.load()
    row.octets = b.queue.bytes.load()
    row.consumers = b.queue.consumers.load()
    row.published = b.published.load()
    row.delivered = b.delivered.load()
    row.acked = b.acked.load()
    bytes_append(out, <const uint8_t*> &row, sizeof(row))
    status_text(out, b.host.name)
    status_text(out, b.name)

cdef inline void status_consumer(Consumer* c, Bytes* out) noexcept nogil:
    """Append the row of a consumer. While its queue lists it, its channel and connection exist."""
    cdef Channel* ch = <Channel*> c.target.session
    cdef BrokerConnection* connection = <BrokerConnection*> c.target.session.connection
    cdef BrokerQueue* b = c.queue
    cdef ConsumerRow row
    row.vhost = b.host.name.length
    row.queue = b.name.length
    row.tag = c.tag_size
    row.peer = <uint32_t> strlen(connection.peer)
    row.channel = ch.number
    row.prefetch = c.prefetch
    row.state = node_state(&c.base.node)
    row.priority = c.base.node.priority
    row.no_ack = c.no_ack
    bytes_append(out, <const uint8_t*> &row, sizeof(row))
    status_text(out, b.host.name)
    status_text(out, b.name)
    status_text(out, Text(c.tag, c.tag_size))
    status_text(out, Text(<const uint8_t*> connection.peer, row.peer))

cdef inline void status_consumers_of(BrokerQueue* b, Bytes* out) noexcept nogil:
    cdef Consumer* c
    b.guard.lock()
    c = b.consumers
    while c != NULL:
        status_consumer(c, out)
        c = c.next_of_queue
    b.guard.unlock()

cdef inline void status_write(Server* server, bint consumers, Bytes* out) noexcept nogil:
    """Append the rows of all queues, or of all consumers."""
    cdef Host* host = server.hosts
    cdef BrokerQueue* b
    server.lock.share()
    while host != NULL:
        b = host.queues
        while b != NULL:
            if consumers:
                status_consumers_of(b, out)
            else:
                status_queue(b, out)
            b = b.next
        host = host.next
    server.lock.unshare()
