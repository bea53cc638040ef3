"""Messages that exchanges of type x-delayed-message hold until they are due.

A heap for the whole server, the first due first. The thread that waits for sockets publishes what is due: the header
x-delay is negated, and the message routed from the exchange that held it, by the bindings that this has by then. If the
exchange is gone, the message is dropped.

A persistent message that a durable exchange holds is in the journal, with the time at which it is due. It is recorded
in its queues before that record is dropped, so it may be delivered twice after a kill, but is not lost.

Source: rabbitmq-delayed-message-exchange, `rabbit_delayed_message.erl`.
Thread safety: `message_hold` with the topology's lock, shared; `delays_publish` by the ticking thread.
Complexity: O(log n) and O(octets) for each of n messages.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find, contents_rewrite, contents_text
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, text_is
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, table_begin, table_end, table_field, table_int, table_long, tables_next, tables_walk,
)
from fairsched.core.broker.durability.journal cimport journal_drop
from fairsched.core.broker.durability.keeping cimport message_keep, record_held, wall_now
from fairsched.core.broker.exchanges.delayedmessage cimport DELAY_HEADER, delay_read
from fairsched.core.broker.exchanges.routing cimport route_dead_letter
from fairsched.core.broker.exchanges.state cimport Exchange, Route, exchange_name
from fairsched.core.broker.network cimport clock_now
from fairsched.core.broker.payload cimport (
    payload_again, payload_bcc, payload_exchange, payload_header, payload_key, payload_release, payload_retain,
)
from fairsched.core.broker.queues cimport MILLISECOND, brokerqueue_put
from fairsched.core.broker.state cimport (
    BrokerQueue, DeadLetters, Held, HeldEntry, Host, KEPT, Payload, Publication, Server,
)
from fairsched.core.memory cimport array_reserve

cdef enum: DUE_AT_ONCE = 4096  # messages published by one call

# The heap: with `delays` ----------------------------------------------------------------------------------------------

cdef inline bint held_before(const HeldEntry* a, const HeldEntry* b) noexcept nogil:
    return a.due < b.due or (a.due == b.due and a.number < b.number)

cdef inline void heap_rise(HeldEntry* heap, int64_t at) noexcept nogil:
    cdef HeldEntry moved = heap[at]
    while at and held_before(&moved, &heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = moved

cdef inline void heap_sink(HeldEntry* heap, int64_t count) noexcept nogil:
    cdef HeldEntry moved = heap[0]
    cdef int64_t at = 0, child = 1
    while child < count:
        if child + 1 < count and held_before(&heap[child + 1], &heap[child]):
            child += 1
        if not held_before(&heap[child], &moved):
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = moved

cdef inline void heap_note(Server* server) noexcept nogil:
    server.held_due.store(server.held[0].due if server.held_count else INT64_MAX)

cdef inline bint heap_push(Server* server, Held* held, int64_t due) noexcept nogil:
    """Add a message; False: memory is exhausted."""
    if not array_reserve(
        <void**> &server.held, &server.held_room, server.held_count + 1, sizeof(HeldEntry), 64
    ):
        return False
    server.held_number += 1
    server.held[server.held_count] = HeldEntry(due, server.held_number, held)
    heap_rise(server.held, server.held_count)
    server.held_count += 1
    heap_note(server)
    return True

cdef inline Held* heap_pop(Server* server, int64_t now) noexcept nogil:
    """Remove and return the first message; NULL: none is due."""
    cdef Held* found
    if server.held_count == 0 or server.held[0].due > now:
        return NULL
    found = server.held[0].held
    server.held_count -= 1
    server.held[0] = server.held[server.held_count]
    heap_sink(server.held, server.held_count)
    heap_note(server)
    return found

# Holding --------------------------------------------------------------------------------------------------------------

cdef inline Text held_exchange(const Held* held) noexcept nogil:
    return Text(<const uint8_t*> (held + 1), held.exchange_size)

cdef inline void held_free(Held* held) noexcept nogil:
    payload_release(held.payload)
    free(held)

cdef inline bint held_add(
    Server* server, Host* host, Text exchange, Payload* p, int64_t due, int64_t expiration, uint64_t record
) noexcept nogil:
    """Hold a message, with a reference of its own, until a time in nanoseconds; False: memory is exhausted."""
    cdef Held* held = <Held*> malloc(sizeof(Held) + exchange.length)
    cdef bint done, rings
    if held == NULL:
        return False
    held[0] = Held(host, p, expiration, record, exchange.length)
    memcpy(<void*> (held + 1), exchange.data, exchange.length)
    payload_retain(p, 1)
    server.delays.lock()
    rings = due < server.held_due.load()
    done = heap_push(server, held, due)
    server.delays.unlock()
    if not done:
        held_free(held)
    elif rings:
        server.poller.ring()  # the waiting thread computes its timeout again
    return done

cdef inline bint exchange_hold(
    Server* server, Host* host, const Exchange* x, const Publication* p, int64_t delay, uint64_t* batch
) noexcept nogil:
    """Hold a message for milliseconds, recorded if it is to survive a restart; False: it is not held."""
    cdef uint64_t record = 0, dropped = 0
    if p.payload.persistent == KEPT and x.record:
        if server.journal.failed.load():
            return False
        record = record_held(
            server.journal, host, exchange_name(x), p.payload, wall_now() + delay, p.expiration, batch
        )
        if record == 0:
            return False
    if held_add(
        server, host, exchange_name(x), p.payload, clock_now() + delay * MILLISECOND, p.expiration, record
    ):
        return True
    if record:
        journal_drop(server.journal, record, &dropped)
    return False

cdef inline bint message_hold(Server* server, Host* host, const Route* route, Publication* p) noexcept nogil:
    """Have the exchanges of a route that delay a message hold it; False: one of them cannot."""
    cdef Text headers = contents_text(payload_header(p.payload), &p.properties, PROPERTY_HEADERS)
    cdef int64_t delay = 0, i
    cdef bint done = True
    delay_read(headers, &delay)
    for i in range(route.delays.count):
        done = exchange_hold(server, host, <const Exchange*> route.delays.at[i], p, delay, &p.batch) and done
    return done

# What is due: the ticking thread --------------------------------------------------------------------------------------

cdef inline void delay_negate(Bytes* out, Text headers) noexcept nogil:
    """Append a table of headers with a negative x-delay, by which receivers recognize what was delayed."""
    cdef int64_t begin = table_begin(out), delay = 0
    cdef TableWalk w = tables_walk(headers)
    cdef Text name
    cdef Field field
    delay_read(headers, &delay)
    while tables_next(&w, &name, &field):
        if not text_is(name, DELAY_HEADER):
            table_field(out, name, &field)
        elif delay <= 2147483647:
            table_int(out, name, -delay)
        else:
            table_long(out, name, -delay)
    table_end(out, begin)

cdef inline Payload* held_payload(const Held* held, Properties* properties) noexcept nogil:
    """Return the message to publish, with one reference; NULL: memory is exhausted."""
    cdef Payload* old = held.payload
    cdef const uint8_t* header = payload_header(old)
    cdef Payload* p = NULL
    cdef Bytes table, written
    cdef Text headers
    bytes_init(&table)
    bytes_init(&written)
    if contents_find(header, old.header_size, properties):
        delay_negate(&table, contents_text(header, properties, PROPERTY_HEADERS))
        headers = Text(table.data, <uint32_t> table.end)
        if not table.failed:
            contents_rewrite(&written, header, properties, 0, &headers)
            p = payload_again(
                old, Text(payload_exchange(old), old.exchange_size), Text(payload_key(old), old.key_size), &written,
                payload_bcc(old), properties
            )
    bytes_clear(&table)
    bytes_clear(&written)
    return p

cdef inline bint held_put(
    Server* server, Route* route, const Held* held, DeadLetters* dead, int64_t now
) noexcept nogil:
    """Put a message into the queues that it is routed to; False: it could not be."""
    cdef Publication p
    cdef int64_t i
    cdef bint done
    p.payload = held_payload(held, &p.properties)
    if p.payload == NULL:
        return False
    p.expiration = held.expiration
    p.mandatory = False
    p.batch = 0
    done = route_dead_letter(
        route, &held.host.topology, held_exchange(held), Text(payload_key(p.payload), p.payload.key_size),
        payload_bcc(p.payload), payload_header(p.payload), &p.properties
    ) and message_keep(server, p.payload, route.queues, route.count, p.expiration, &p.batch)
    if done:
        for i in range(route.count):
            payload_retain(p.payload, 1)
            brokerqueue_put(<BrokerQueue*> route.queues[i], &p, now, dead)
    payload_release(p.payload)
    return done

cdef inline void held_publish(Server* server, Route* route, Held* held, DeadLetters* dead, int64_t now) noexcept nogil:
    """Publish a message that is due, and drop its record. If it cannot be recorded again, that stays for a restart."""
    cdef uint64_t batch = 0
    if held_put(server, route, held, dead, now) and held.record:
        journal_drop(server.journal, held.record, &batch)
    held_free(held)

cdef inline bint delays_publish(Server* server, Route* route, DeadLetters* dead, int64_t now) noexcept nogil:
    """Publish messages that are due; return whether more are. The caller publishes `dead`."""
    cdef Held* held
    cdef int _count
    server.lock.share()
    for _count in range(DUE_AT_ONCE):
        server.delays.lock()
        held = heap_pop(server, now)
        server.delays.unlock()
        if held == NULL:
            break
        held_publish(server, route, held, dead, now)
    server.lock.unshare()
    return server.held_due.load() <= now

cdef inline void delays_clear(Server* server) noexcept nogil:
    """Release all messages; no other thread is left."""
    cdef int64_t i
    for i in range(server.held_count):
        held_free(server.held[i].held)
    free(server.held)
    server.held_count = 0
