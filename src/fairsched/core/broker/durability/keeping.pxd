"""The records that the broker puts into its journal, and when it drops them.

Recorded are durable exchanges, the bindings between recorded objects, durable queues that are not exclusive, and
persistent messages in such queues or held by such exchanges. A message in one such queue is one record; in several, its
content is a record of its own, dropped with the last of them. Records reach the disk in the order in which they were
put, so

    a message is recorded before a queue has it, and dropped after it has left: none is lost, whenever the process ends
    a dead letter is recorded before the message it was is dropped
    a queue is dropped before its messages, an exchange before its bindings: recovery.pxd drops records without an owner

A confirm waits for its message's batch (publishing.pxd), in the order of the channel. The reply to a declaration, a
deletion or tx.commit waits until everything recorded so far is on disk, and everything written to that socket waits
behind it. Acknowledgements do not wait: messages acknowledged within the last batch may be delivered again.

Thread safety: any thread; what is recorded of a topology, with its lock. Complexity: O(octets) to record; a message
that leaves one of n such queues O(n), and O(1) if it is in one.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc

from fairsched.core.amqp.constants cimport RESOURCE_ERROR
from fairsched.core.amqp.frames cimport frames_write
from fairsched.core.amqp.octets cimport (
    Bytes, Text, bytes_append, bytes_clear, bytes_init, bytes_number, bytes_short, text_of,
)
from fairsched.core.broker.durability.journal cimport (
    Journal, journal_drop, journal_fail, journal_is_durable, journal_latest, journal_put,
)
from fairsched.core.broker.errors cimport Refusal, refuse
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, binding_durable, destination_name, exchange_name
from fairsched.core.broker.payload cimport (
    payload_bcc, payload_body, payload_exchange, payload_header, payload_kept, payload_key, payload_release,
)
from fairsched.core.broker.state cimport BrokerConnection, BrokerQueue, Host, KEPT, Kept, KeptEntry, Payload, Server
from fairsched.core.connection.connection cimport connection_notify

cdef extern from *:
    """
    #include <chrono>
    #include <cstdint>
    static inline int64_t fairsched_wall_ms() {
        auto since = std::chrono::system_clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
    }
    """
    int64_t wall_now "fairsched_wall_ms"() noexcept nogil  # milliseconds since 1970

cdef enum RecordKind:
    RECORD_EXCHANGE = 1
    RECORD_BINDING = 2
    RECORD_QUEUE = 3
    RECORD_MESSAGE = 4    # a message with its queue; without a queue, entries follow
    RECORD_ENTRY = 5      # queue and message
    RECORD_DELIVERED = 6  # an entry or message that was delivered; written when the broker closes
    RECORD_CLOSED = 7     # the broker has closed: no other message was delivered
    RECORD_HELD = 8       # a message that an exchange holds until it is due

cdef enum:
    MESSAGE_HEAD = 26    # octets: queue, expiry, sizes of exchange, routing key, content header and BCC
    ENTRY_SIZE = 24      # octets: queue, message, expiry
    BACKLOG_MOST = 67108864  # octets waiting for the disk at which publishers are paused

# Exchanges, bindings, queues: with the topology's lock ----------------------------------------------------------------

cdef inline uint64_t record_put(Journal* j, RecordKind kind, Bytes* octets) noexcept nogil:
    """Put a record, and clear its octets. If memory is exhausted, the journal fails, and nothing is confirmed."""
    cdef Text text = Text(octets.data + octets.begin, <uint32_t> (octets.end - octets.begin))
    cdef uint64_t batch = 0, id = 0
    if not octets.failed:
        id = journal_put(j, <uint8_t> kind, &text, 1, &batch)
    if id == 0:
        journal_fail(j)
    bytes_clear(octets)
    return id

cdef inline void record_drop(Journal* j, uint64_t* record) noexcept nogil:
    cdef uint64_t batch = 0
    if record[0] and not journal_drop(j, record[0], &batch):
        journal_fail(j)
    record[0] = 0

cdef inline bint binding_outlives(const Binding* b) noexcept nogil:
    return binding_durable(b) and (
        b.destination.queue == NULL or (<BrokerQueue*> b.destination.queue).record != 0
    )

cdef inline void record_exchange(Journal* j, Host* host, Exchange* x) noexcept nogil:
    cdef Bytes out
    bytes_init(&out)
    bytes_short(&out, host.name)
    bytes_short(&out, exchange_name(x))
    bytes_short(&out, text_of(x.type.name))
    bytes_number(&out, x.auto_delete, 1)
    bytes_number(&out, x.internal, 1)
    bytes_append(&out, x.arguments.data, x.arguments.length)
    x.record = record_put(j, RECORD_EXCHANGE, &out)

cdef inline void record_binding(Journal* j, Host* host, Binding* b) noexcept nogil:
    cdef Bytes out
    bytes_init(&out)
    bytes_short(&out, host.name)
    bytes_short(&out, exchange_name(b.source))
    bytes_short(&out, destination_name(b.destination))
    bytes_number(&out, b.destination.queue == NULL, 1)
    bytes_short(&out, b.key)
    bytes_append(&out, b.arguments.data, b.arguments.length)
    b.record = record_put(j, RECORD_BINDING, &out)

cdef inline void record_added(void* context, Exchange* x, Binding* b) noexcept nogil:
    """Record a new exchange or binding; called by a topology."""
    cdef Host* host = <Host*> context
    if b == NULL and x.place.durable:
        record_exchange(host.server.journal, host, x)
    elif b != NULL and binding_outlives(b):
        record_binding(host.server.journal, host, b)

cdef inline void record_removed(void* context, Exchange* x, Binding* b) noexcept nogil:
    """Drop the record of an exchange or a binding; called by a topology."""
    cdef Host* host = <Host*> context
    record_drop(host.server.journal, &b.record if b != NULL else &x.record)

cdef inline void queue_record(BrokerQueue* b) noexcept nogil:
    """Record a new queue."""
    cdef Bytes out
    if b.server.journal == NULL or not b.durable or b.exclusive:
        return
    bytes_init(&out)
    bytes_short(&out, b.host.name)
    bytes_short(&out, b.name)
    bytes_number(&out, b.auto_delete, 1)
    bytes_append(&out, b.table.data, b.table.length)
    b.record = record_put(b.server.journal, RECORD_QUEUE, &out)

cdef inline void queue_unrecord(BrokerQueue* b) noexcept nogil:
    """Drop the record of a queue. Its messages keep the number, and drop their own records as they leave."""
    cdef uint64_t record = b.record
    if record:
        record_drop(b.server.journal, &record)

# Messages -------------------------------------------------------------------------------------------------------------

cdef inline uint64_t record_message(
    Journal* j, const Payload* p, uint64_t queue, int64_t expiry, uint64_t* batch
) noexcept nogil:
    """Put a message; 0: memory is exhausted."""
    cdef uint8_t head[MESSAGE_HEAD]
    cdef uint8_t* to = frames_write(&head[0], queue, 8)
    cdef Text parts[6]
    to = frames_write(to, <uint64_t> expiry, 8)
    to = frames_write(to, p.exchange_size, 1)
    to = frames_write(to, p.key_size, 1)
    to = frames_write(to, p.header_size, 4)
    frames_write(to, payload_bcc(p).length, 4)
    parts[0] = Text(&head[0], MESSAGE_HEAD)
    parts[1] = Text(payload_exchange(p), p.exchange_size)
    parts[2] = Text(payload_key(p), p.key_size)
    parts[3] = Text(payload_header(p), p.header_size)
    parts[4] = payload_bcc(p)
    parts[5] = Text(payload_body(p), <uint32_t> p.body_size)
    return journal_put(j, RECORD_MESSAGE, parts, 6, batch)

cdef inline uint64_t record_entry(
    Journal* j, uint64_t queue, uint64_t message, int64_t expiry, uint64_t* batch
) noexcept nogil:
    """Put that a message is in a queue, too; 0: memory is exhausted."""
    cdef uint8_t octets[ENTRY_SIZE]
    cdef Text text = Text(&octets[0], ENTRY_SIZE)
    frames_write(frames_write(frames_write(&octets[0], queue, 8), message, 8), <uint64_t> expiry, 8)
    return journal_put(j, RECORD_ENTRY, &text, 1, batch)

cdef inline uint64_t record_held(
    Journal* j, const Host* host, Text exchange, const Payload* p, int64_t due, int64_t expiration, uint64_t* batch
) noexcept nogil:
    """Put a message that an exchange holds until a time, in milliseconds since 1970; 0: memory is exhausted."""
    cdef Bytes head
    cdef Text parts[6]
    cdef uint64_t id = 0
    bytes_init(&head)
    bytes_number(&head, <uint64_t> due, 8)
    bytes_number(&head, <uint64_t> expiration, 8)
    bytes_short(&head, host.name)
    bytes_short(&head, exchange)
    bytes_number(&head, p.exchange_size, 1)
    bytes_number(&head, p.key_size, 1)
    bytes_number(&head, p.header_size, 4)
    bytes_number(&head, payload_bcc(p).length, 4)
    parts[0] = Text(head.data + head.begin, <uint32_t> (head.end - head.begin))
    parts[1] = Text(payload_exchange(p), p.exchange_size)
    parts[2] = Text(payload_key(p), p.key_size)
    parts[3] = Text(payload_header(p), p.header_size)
    parts[4] = payload_bcc(p)
    parts[5] = Text(payload_body(p), <uint32_t> p.body_size)
    if not head.failed:
        id = journal_put(j, RECORD_HELD, parts, 6, batch)
    bytes_clear(&head)
    return id

cdef inline int64_t expiry_of(const BrokerQueue* b, int64_t expiration) noexcept nogil:
    """The time at which a message expires that comes into a queue now, in milliseconds since 1970; -1: never."""
    cdef int64_t life = b.arguments.message_ttl
    if life < 0 or 0 <= expiration < life:
        life = expiration
    return wall_now() + life if life >= 0 else -1

cdef inline void kept_forget(Journal* j, Kept* k) noexcept nogil:
    """Drop what was recorded of a message that is to be in no queue."""
    cdef uint64_t batch = 0
    cdef uint32_t i
    for i in range(k.count):
        journal_drop(j, k.entries[i].record, &batch)
    if k.content:
        journal_drop(j, k.content, &batch)
    k.content = 0
    k.count = 0

cdef inline bint kept_entries(
    Journal* j, Kept* k, void** queues, int64_t count, int64_t expiration, uint64_t* batch
) noexcept nogil:
    """Record each queue that a message, which is recorded, is in; False: memory is exhausted."""
    cdef BrokerQueue* b
    cdef KeptEntry* entry
    cdef int64_t i
    k.entries = <KeptEntry*> malloc(<size_t> count * sizeof(KeptEntry))
    if k.entries == NULL:
        return False
    for i in range(count):
        b = <BrokerQueue*> queues[i]
        if b.record:
            entry = &k.entries[k.count]
            entry.queue = b
            entry.record = record_entry(j, b.record, k.content, expiry_of(b, expiration), batch)
            if entry.record == 0:
                return False
            k.count += 1
    k.left.store(k.count)
    return True

cdef inline bint message_keep(
    Server* server, Payload* p, void** queues, int64_t count, int64_t expiration, uint64_t* batch
) noexcept nogil:
    """Record a message before its durable queues get it.

    No other thread knows the message yet. The caller has the topology's lock, shared. False: the message could not be
    recorded, and must not be put into any queue.
    """
    cdef Journal* j = server.journal
    cdef Kept* k
    cdef BrokerQueue* b
    cdef int64_t i, found = 0
    cdef bint done
    if p.persistent != KEPT:
        return True
    k = payload_kept(p)
    for i in range(count):
        b = <BrokerQueue*> queues[i]
        if b.record:
            found += 1
            k.queue = b
    if found == 0:
        return True
    if j.failed.load():
        return False
    if found == 1:
        k.content = record_message(j, p, k.queue.record, expiry_of(k.queue, expiration), batch)
        return k.content != 0
    k.content = record_message(j, p, 0, -1, batch)
    done = k.content != 0 and kept_entries(j, k, queues, count, expiration, batch)
    if not done:
        kept_forget(j, k)
    return done

cdef inline uint64_t kept_record(const Kept* k, const BrokerQueue* b) noexcept nogil:
    """Return the record of a message in a queue; 0: there is none."""
    cdef uint32_t i
    if k.entries == NULL:
        return k.content if k.queue == b else 0
    for i in range(k.count):
        if k.entries[i].queue == b:
            return k.entries[i].record
    return 0

cdef inline void kept_leave(const BrokerQueue* b, Kept* k) noexcept nogil:
    """Drop a message's record in a queue, and with the last one the record of its content."""
    cdef Journal* j = b.server.journal
    cdef uint64_t batch = 0, record = kept_record(k, b)
    if record == 0:
        return
    journal_drop(j, record, &batch)
    if k.entries != NULL and k.left.fetch_sub(1) == 1:
        journal_drop(j, k.content, &batch)

cdef inline void message_leave(const BrokerQueue* b, Payload* p) noexcept nogil:
    """Drop the record of a message that has left a queue for good, and release the message."""
    if p.persistent == KEPT:
        kept_leave(b, payload_kept(p))
    payload_release(p)

# Waiting for the disk: the connection's thread ------------------------------------------------------------------------

cdef inline bint refuse_disk(Refusal* refusal) noexcept nogil:
    return refuse(
        refusal, RESOURCE_ERROR,
        b"the broker cannot write to its data directory any more, so nothing durable is taken; its status says why"
    )

cdef inline bint brokerconnection_disk_failed(const BrokerConnection* connection) noexcept nogil:
    """Return whether the journal has failed."""
    return connection.server.journal != NULL and (<BrokerConnection*> connection).server.journal.failed.load() != 0

cdef inline bint brokerconnection_may_change(const BrokerConnection* connection, Refusal* refusal) noexcept nogil:
    """Return whether a declaration or deletion can be recorded; False: refused."""
    return not brokerconnection_disk_failed(connection) or refuse_disk(refusal)

cdef inline void brokerconnection_await(BrokerConnection* connection) noexcept nogil:
    """Pause writing to the socket until everything recorded so far is on disk."""
    if connection.server.journal != NULL:
        connection.awaits = journal_latest(connection.server.journal)

cdef inline bint brokerconnection_awaits(BrokerConnection* connection) noexcept nogil:
    """Return whether writing is paused; then the next batch on disk notifies the connection."""
    cdef Journal* j = connection.server.journal
    if connection.awaits == 0:
        return False
    connection.waits.store(1)  # before the check: the writer reads `waits` after it has published `durable`
    if not journal_is_durable(j, connection.awaits):
        return True
    connection.awaits = 0
    return False

cdef inline bint brokerconnection_output_lost(BrokerConnection* connection) noexcept nogil:
    """Return whether the output depends on a batch that will never be on disk."""
    return (
        connection.awaits != 0 and connection.server.journal.failed.load() != 0 and brokerconnection_awaits(connection)
    )

cdef inline bint brokerconnection_outpaces_disk(BrokerConnection* connection) noexcept nogil:
    """Return whether the connection publishes faster than the disk writes; then the next batch notifies it."""
    cdef Journal* j = connection.server.journal
    if j == NULL or not connection.publishes or j.backlog.load() <= BACKLOG_MOST:
        return False
    connection.waits.store(1)
    return j.backlog.load() > BACKLOG_MOST and j.failed.load() == 0

cdef inline void connections_told(void* context, uint64_t durable) noexcept nogil:
    """Notify connections that the journal has progressed or failed; called by its writer."""
    cdef Server* server = <Server*> context
    cdef BrokerConnection* connection
    server.registry.lock()
    connection = server.first_connection
    while connection != NULL:
        if connection.waits.load():
            connection.waits.store(0)
            connection_notify(&connection.base)
        connection = connection.next
    server.registry.unlock()
