"""Restores the contents of the journal when a broker starts, and records a clean shutdown.

Messages are restored in the order in which they were put, with their remaining time to live. They are marked as
redelivered if they were delivered before, or if that is unknown because the broker was killed. Records of deleted
queues and exchanges are dropped.

Source: the answers of a RabbitMQ node that was restarted, or killed (tests/integration/broker).
Thread safety: one thread, before other threads know the server. Complexity: O(octets recorded).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from fairsched.core.amqp.contents cimport contents_find
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport (
    Bytes, Reader, Text, bytes_init, bytes_number, reader_number, reader_of, reader_short, text_equal,
)
from fairsched.core.broker.arguments cimport QueueArguments, arguments_read
from fairsched.core.broker.delays cimport held_add
from fairsched.core.broker.durability.journal cimport Journal, JournalRecord, journal_drop
from fairsched.core.broker.durability.keeping cimport (
    RECORD_BINDING, RECORD_CLOSED, RECORD_DELIVERED, RECORD_ENTRY, RECORD_EXCHANGE, RECORD_HELD,
    RECORD_MESSAGE, RECORD_QUEUE, kept_record, record_added, record_put, record_removed, wall_now,
)
from fairsched.core.broker.errors cimport (
    Refusal, refusal_say, refusal_text, refuse, refuse_memory,
)
from fairsched.core.broker.exchanges.bind cimport topology_bind
from fairsched.core.broker.exchanges.delayedmessage cimport DELAY_MOST
from fairsched.core.broker.exchanges.declare cimport exchange_declare
from fairsched.core.broker.exchanges.names cimport NameEntry, Names, names_add, names_clear, names_find, names_init
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, queue_find
from fairsched.core.broker.methods.queue cimport host_add_queue
from fairsched.core.broker.network cimport clock_now
from fairsched.core.broker.payload cimport (
    payload_account, payload_body, payload_create, payload_header, payload_kept, payload_release, payload_retain,
)
from fairsched.core.broker.queues cimport MILLISECOND, brokerqueue_restore, brokerqueue_watch
from fairsched.core.broker.state cimport (
    BrokerQueue, Host, KEPT, Kept, KeptEntry, Payload, Publication, Server,
)
from fairsched.core.chains cimport ChainLink
from fairsched.core.memory cimport array_reserve
from fairsched.core.queue.message cimport Message
from fairsched.core.queue.order.order cimport order_after

cdef struct Recovery:
    Server* server
    Refusal* refusal
    uint64_t id              # of the record being read
    Names queues             # BrokerQueue by the number of its record
    Names contents           # Payload by the number of its record, with a reference, if in several queues
    Names delivered
    bint closed              # the broker closed: no messages but `delivered` were delivered
    int64_t wall
    int64_t now

# Helpers --------------------------------------------------------------------------------------------------------------

cdef inline void* numbered(const Names* names, uint64_t number) noexcept nogil:
    """Return the object of a record; NULL: there is none."""
    cdef NameEntry* entry = names_find(names, Text(<const uint8_t*> &number, sizeof(number)))
    return entry.value if entry != NULL else NULL

cdef inline bint number_add(Recovery* r, Names* names, uint64_t number, void* value) noexcept nogil:
    """Add the object of a record; False: refused, memory is exhausted."""
    if names_add(names, Text(<const uint8_t*> &number, sizeof(number)), value) == NULL:
        return refuse_memory(r.refusal)
    return True

cdef inline bint recovery_drop(Recovery* r, uint64_t id) noexcept nogil:
    """Drop a record whose owner is gone."""
    cdef uint64_t batch = 0
    return journal_drop(r.server.journal, id, &batch) or refuse_memory(r.refusal)

cdef inline bint refuse_record(Recovery* r) noexcept nogil:
    return refuse(r.refusal, 0, b"a record is not well formed")

cdef inline Host* recovery_host(Recovery* r, Text name) noexcept nogil:
    """Return the virtual host of a name; NULL: refused."""
    cdef Host* host = r.server.hosts
    while host != NULL and not text_equal(host.name, name):
        host = host.next
    if host == NULL:
        refuse(r.refusal, 0, b"it has queues or exchanges of the virtual host '")
        refusal_text(r.refusal, name)
        refusal_say(r.refusal, b"', which `vhosts` does not name")
    return host

cdef inline void recovery_added(void* context, Exchange* x, Binding* b) noexcept nogil:
    """Give a new exchange or binding the record being read; called by a topology."""
    cdef Recovery* r = <Recovery*> context
    if b != NULL:
        b.record = r.id
    else:
        x.record = r.id

cdef inline Text reader_rest(Reader* r) noexcept nogil:
    return Text(r.data + r.at, <uint32_t> (r.end - r.at))

# Exchanges, bindings, queues ------------------------------------------------------------------------------------------

cdef inline bint recover_exchange(Recovery* r, Reader* octets) noexcept nogil:
    cdef Text vhost = reader_short(octets), name = reader_short(octets), kind = reader_short(octets)
    cdef bint auto_delete = reader_number(octets, 1), internal = reader_number(octets, 1), created
    cdef Host* host
    if octets.broken:
        return refuse_record(r)
    host = recovery_host(r, vhost)
    return host != NULL and exchange_declare(
        &host.topology, name, kind, False, True, auto_delete, internal, reader_rest(octets), &created, r.refusal
    )

cdef inline bint recover_binding(Recovery* r, Reader* octets) noexcept nogil:
    cdef Text vhost = reader_short(octets), source = reader_short(octets), name = reader_short(octets), key
    cdef bint to_exchange = reader_number(octets, 1), created = False
    cdef Host* host
    key = reader_short(octets)
    if octets.broken:
        return refuse_record(r)
    host = recovery_host(r, vhost)
    if host == NULL:
        return False
    # The source or destination may be gone, since its record is dropped before those of its bindings.
    topology_bind(&host.topology, source, name, to_exchange, False, key, reader_rest(octets), &created, r.refusal)
    return created or recovery_drop(r, r.id)

cdef inline bint recover_queue(Recovery* r, Reader* octets) noexcept nogil:
    cdef Text vhost = reader_short(octets), name = reader_short(octets), table
    cdef bint auto_delete = reader_number(octets, 1)
    cdef QueueArguments arguments
    cdef BrokerQueue* b
    cdef Host* host
    table = reader_rest(octets)
    if octets.broken:
        return refuse_record(r)
    host = recovery_host(r, vhost)
    if host == NULL or not arguments_read(table, name, vhost, False, &arguments, r.refusal):
        return False
    if queue_find(&host.topology, name) != NULL:
        return refuse_record(r)
    b = host_add_queue(host, name, table, &arguments, True)
    if b == NULL:
        return refuse_memory(r.refusal)
    b.auto_delete = auto_delete
    b.record = r.id
    if b.arguments.expires > 0:
        brokerqueue_watch(b)
    return number_add(r, &r.queues, r.id, b)

# Messages -------------------------------------------------------------------------------------------------------------

cdef inline bint bcc_fits(const uint8_t* data, int64_t size) noexcept nogil:
    """Return whether octets are empty or an array that begins with its length, which `payload_bcc` trusts."""
    return size == 0 or (size >= 4 and size - 4 == <int64_t> frames_number(data, 4))

cdef inline Payload* recover_payload(Recovery* r, Reader* octets, Publication* p) noexcept nogil:
    """Read a message, without its queue and expiry; NULL: refused."""
    cdef uint32_t exchange = <uint32_t> reader_number(octets, 1), key = <uint32_t> reader_number(octets, 1)
    cdef int64_t header = reader_number(octets, 4), bcc = reader_number(octets, 4)
    cdef const uint8_t* at = octets.data + octets.at
    cdef int64_t body = octets.end - octets.at - exchange - key - header - bcc
    cdef const uint8_t* content = at + exchange + key
    if octets.broken or body < 0 or not contents_find(content, header, &p.properties) or not bcc_fits(
        content + header, bcc
    ):
        refuse_record(r)
        return NULL
    p.payload = payload_create(
        r.server, Text(at, exchange), Text(at + exchange, key), content, header, &p.properties, body, body + bcc
    )
    if p.payload == NULL:
        refuse_memory(r.refusal)
        return NULL
    if p.payload.persistent != KEPT:
        payload_release(p.payload)
        refuse_record(r)
        return NULL
    p.payload.has_bcc = bcc != 0
    memcpy(payload_body(p.payload), content + header + bcc, <size_t> body)
    memcpy(payload_body(p.payload) + body, content + header, <size_t> bcc)
    payload_account(p.payload, r.server)
    payload_kept(p.payload).content = 0
    p.expiration = -1
    p.mandatory = False
    p.batch = 0
    return p.payload

cdef inline bint recover_put(
    Recovery* r, BrokerQueue* b, const Publication* p, uint64_t record, int64_t expiry
) noexcept nogil:
    """Put a message back into a queue, and release it."""
    cdef int64_t life = -1 if expiry < 0 else max(expiry - r.wall, <int64_t> 0)
    cdef bint redelivered = not r.closed or numbered(&r.delivered, record) != NULL
    return brokerqueue_restore(b, p, life, redelivered, r.now) or refuse_memory(r.refusal)

cdef inline bint recover_message(Recovery* r, Reader* octets) noexcept nogil:
    cdef uint64_t number = reader_number(octets, 8)
    cdef int64_t expiry = <int64_t> reader_number(octets, 8)
    cdef BrokerQueue* b = <BrokerQueue*> numbered(&r.queues, number)
    cdef Publication p
    cdef Kept* k
    if number and b == NULL:
        return recovery_drop(r, r.id)
    if recover_payload(r, octets, &p) == NULL:
        return False
    k = payload_kept(p.payload)
    k.content = r.id
    if number == 0:
        if number_add(r, &r.contents, r.id, p.payload):
            return True
        payload_release(p.payload)
        return False
    k.queue = b
    return recover_put(r, b, &p, r.id, expiry)

cdef inline bint recover_entry(Recovery* r, Reader* octets) noexcept nogil:
    """Restore the entry of a message in one of its queues."""
    cdef uint64_t number = reader_number(octets, 8), content = reader_number(octets, 8)
    cdef int64_t expiry = <int64_t> reader_number(octets, 8), room
    cdef BrokerQueue* b = <BrokerQueue*> numbered(&r.queues, number)
    cdef Publication p
    cdef Kept* k
    if octets.broken:
        return refuse_record(r)
    p.payload = <Payload*> numbered(&r.contents, content)
    if b == NULL or p.payload == NULL:
        return recovery_drop(r, r.id)
    k = payload_kept(p.payload)
    room = k.left.load()  # room of the array, until all entries are restored
    if not array_reserve(<void**> &k.entries, &room, k.count + 1, sizeof(KeptEntry), 2):
        return refuse_memory(r.refusal)
    k.left.store(<uint32_t> room)
    k.entries[k.count] = KeptEntry(b, r.id)
    k.count += 1
    payload_retain(p.payload, 1)
    p.expiration = -1
    contents_find(payload_header(p.payload), p.payload.header_size, &p.properties)
    return recover_put(r, b, &p, r.id, expiry)

cdef inline bint recover_held(Recovery* r, Reader* octets) noexcept nogil:
    """Restore a message that an exchange holds, until the time at which it is due."""
    cdef int64_t due = <int64_t> reader_number(octets, 8), expiration = <int64_t> reader_number(octets, 8)
    cdef Text vhost = reader_short(octets), exchange = reader_short(octets)
    cdef Host* host
    cdef Publication p
    cdef bint done
    if octets.broken:
        return refuse_record(r)
    host = recovery_host(r, vhost)
    if host == NULL or recover_payload(r, octets, &p) == NULL:
        return False
    # A time that has passed stays in the past, so that messages leave in the order in which they were due.
    due = r.now + min(max(due - r.wall, -<int64_t> DELAY_MOST), <int64_t> DELAY_MOST) * MILLISECOND
    done = held_add(r.server, host, exchange, p.payload, due, expiration, r.id)
    payload_release(p.payload)
    return done or refuse_memory(r.refusal)

cdef inline bint recover_content(Recovery* r, Payload* p) noexcept nogil:
    """Release a message whose entries are all restored; drop it if it is in no queue."""
    cdef Kept* k = payload_kept(p)
    cdef bint done = k.count != 0 or recovery_drop(r, k.content)
    k.left.store(k.count)
    payload_release(p)
    return done

cdef inline bint recover_contents(Recovery* r) noexcept nogil:
    cdef ChainLink* link
    cdef uint64_t i
    cdef bint done = True
    for i in range(r.contents.size):
        link = r.contents.first[i]
        while link != NULL:
            done = recover_content(r, <Payload*> (<NameEntry*> link).value) and done
            link = link.next
    return done

# The whole ------------------------------------------------------------------------------------------------------------

cdef inline bint recover_end(Recovery* r, const JournalRecord* record) noexcept nogil:
    """Read a record of the shutdown, and drop it, since the next delivery makes it untrue."""
    if record.kind == RECORD_CLOSED:
        r.closed = True
    elif record.kind == RECORD_DELIVERED and record.size == 8:
        if not number_add(r, &r.delivered, frames_number(record.data, 8), <void*> r):
            return False
    else:
        return True
    return recovery_drop(r, record.id)

cdef inline bint recover_record(Recovery* r, const JournalRecord* record) noexcept nogil:
    cdef Reader octets = reader_of(record.data, record.size)
    r.id = record.id
    if record.kind == RECORD_EXCHANGE:
        return recover_exchange(r, &octets)
    if record.kind == RECORD_BINDING:
        return recover_binding(r, &octets)
    if record.kind == RECORD_QUEUE:
        return recover_queue(r, &octets)
    if record.kind == RECORD_MESSAGE:
        return recover_message(r, &octets)
    if record.kind == RECORD_ENTRY:
        return recover_entry(r, &octets)
    if record.kind == RECORD_HELD:
        return recover_held(r, &octets)
    return record.kind == RECORD_CLOSED or record.kind == RECORD_DELIVERED or refuse_record(r)

cdef inline bint recover_records(Recovery* r, const JournalRecord* records, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if not recover_end(r, &records[i]):
            return False
    for i in range(count):
        if not recover_record(r, &records[i]):
            return False
    return True

cdef inline void hosts_hook(Server* server, Recovery* r) noexcept nogil:
    """Have all topologies report changes to a recovery, or to the journal (NULL)."""
    cdef Host* host = server.hosts
    while host != NULL:
        if r != NULL:
            host.topology.context = <void*> r
            host.topology.added = recovery_added
        else:
            host.topology.context = <void*> host
            host.topology.added = record_added
            host.topology.removed = record_removed
        host = host.next

cdef inline bint server_recover(
    Server* server, const JournalRecord* records, int64_t count, Refusal* refusal
) noexcept nogil:
    """Restore the contents of the records, and record changes from then on; False: refused, the server is unusable."""
    cdef Recovery r
    cdef bint done
    r.server = server
    r.refusal = refusal
    r.closed = False
    r.now = clock_now()
    r.wall = wall_now()
    names_init(&r.queues)
    names_init(&r.contents)
    names_init(&r.delivered)
    hosts_hook(server, &r)
    done = recover_records(&r, records, count)
    done = recover_contents(&r) and done
    hosts_hook(server, NULL)
    names_clear(&r.queues)
    names_clear(&r.contents)
    names_clear(&r.delivered)
    return done

# The end --------------------------------------------------------------------------------------------------------------

cdef inline void delivered_record(Journal* j, uint64_t record) noexcept nogil:
    cdef Bytes out
    bytes_init(&out)
    bytes_number(&out, record, 8)
    record_put(j, RECORD_DELIVERED, &out)

cdef inline void queue_say_delivered(BrokerQueue* b) noexcept nogil:
    cdef Message* m = order_after(&b.queue.order, NULL)
    cdef Payload* p
    while m != NULL:
        p = <Payload*> <uintptr_t> m.token
        if p != NULL and p.persistent == KEPT and (m.redelivered or m.deliveries >= 0):
            delivered_record(b.server.journal, kept_record(payload_kept(p), b))
        m = order_after(&b.queue.order, m)

cdef inline void server_say_closed(Server* server) noexcept nogil:
    """Record which messages were delivered, and the shutdown. No connection and no thread is left."""
    cdef Host* host = server.hosts
    cdef BrokerQueue* b
    cdef Bytes none
    while host != NULL:
        b = host.queues
        while b != NULL:
            if b.record:
                queue_say_delivered(b)
            b = b.next
        host = host.next
    bytes_init(&none)
    record_put(server.journal, RECORD_CLOSED, &none)
