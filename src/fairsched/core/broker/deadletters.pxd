"""Dead letters: messages that leave a queue without an acknowledgement go to the queue's dead-letter exchange.

Publishing them may make further messages leave (if a queue is full): these are appended to the list.

Source: RabbitMQ, "Dead Letter Exchanges"; deathheader.pxd has their headers.
Thread safety: any thread that shares the topology's lock, with lists of its own. Complexity: that of routing, and
O(octets) per letter.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find, contents_text
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, text_of
from fairsched.core.broker.deathheader cimport Death, death_cycle, death_header_write
from fairsched.core.broker.delays cimport message_hold
from fairsched.core.broker.durability.keeping cimport message_keep, message_leave
from fairsched.core.broker.exchanges.routing cimport route_dead_letter
from fairsched.core.broker.exchanges.state cimport Route
from fairsched.core.broker.network cimport clock_wall
from fairsched.core.broker.payload cimport (
    payload_again, payload_bcc, payload_exchange, payload_header, payload_key, payload_release, payload_retain,
)
from fairsched.core.broker.queues cimport brokerqueue_put, brokerqueue_release
from fairsched.core.broker.state cimport BrokerQueue, DeadLetter, DeadLetters, Payload, Publication
from fairsched.core.broker.queuecall cimport DEAD_EXPIRED, DEAD_MAXLEN, DEAD_REJECTED

cdef inline Text dead_reason(uint32_t reason) noexcept nogil:
    if reason == DEAD_EXPIRED:
        return text_of(b"expired")
    if reason == DEAD_REJECTED:
        return text_of(b"rejected")
    return text_of(b"maxlen") if reason == DEAD_MAXLEN else text_of(b"delivery_limit")

cdef inline void death_straighten(Route* route, const DeadLetter* letter, Text headers) noexcept nogil:
    """Remove from a route the queues that would make a letter go in a circle."""
    cdef int64_t i, count = 0
    for i in range(route.count):
        if letter.reason == DEAD_REJECTED or not death_cycle(headers, (<BrokerQueue*> route.queues[i]).name):
            route.queues[count] = route.queues[i]
            count += 1
    route.count = count

cdef inline bint death_put(
    Route* route, const DeadLetter* letter, Payload* p, DeadLetters* dead, int64_t now
) noexcept nogil:
    """Put a letter into the queues of its route; False: the journal could not record it."""
    cdef Publication publication
    cdef int64_t i
    cdef bint recorded
    publication.payload = p
    publication.expiration = -1
    publication.mandatory = False
    publication.batch = 0
    contents_find(payload_header(p), p.header_size, &publication.properties)
    death_straighten(route, letter, contents_text(payload_header(p), &publication.properties, PROPERTY_HEADERS))
    recorded = message_keep(letter.queue.server, p, route.queues, route.count, -1, &publication.batch)
    if route.delays.count:
        recorded = message_hold(letter.queue.server, letter.queue.host, route, &publication) and recorded
    for i in range(route.count):
        payload_retain(p, 1)
        brokerqueue_put(<BrokerQueue*> route.queues[i], &publication, now, dead)
    payload_release(p)
    return recorded

cdef inline Payload* death_payload(const DeadLetter* letter) noexcept nogil:
    """Return the message to publish, with one reference; NULL: memory is exhausted."""
    cdef Payload* old = letter.payload
    cdef BrokerQueue* b = letter.queue
    cdef Text key = Text(payload_key(old), old.key_size)
    cdef Death death = Death(
        b.name, dead_reason(letter.reason), Text(payload_exchange(old), old.exchange_size), key,
        b.arguments.dlk.data != NULL, <uint64_t> clock_wall()
    )
    cdef Properties properties
    cdef Payload* p = NULL
    cdef Bytes header
    bytes_init(&header)
    if contents_find(payload_header(old), old.header_size, &properties):
        death_header_write(&header, payload_header(old), &properties, &death)
        p = payload_again(
            old, b.arguments.dlx, b.arguments.dlk if b.arguments.dlk.data != NULL else key, &header,
            Text(NULL, 0) if b.arguments.dlk.data != NULL else payload_bcc(old), &properties
        )
    bytes_clear(&header)
    return p

cdef inline bint deadletter_publish(
    Route* route, const DeadLetter* letter, DeadLetters* dead, int64_t now
) noexcept nogil:
    """Publish a letter; False: it was not recorded, so the original's record must stay."""
    cdef Payload* p = death_payload(letter)
    cdef Properties properties
    if p == NULL:
        return False
    contents_find(payload_header(p), p.header_size, &properties)
    if route_dead_letter(
        route, &letter.queue.host.topology, letter.queue.arguments.dlx, Text(payload_key(p), p.key_size),
        payload_bcc(p),
        payload_header(p), &properties
    ):
        return death_put(route, letter, p, dead, now)
    payload_release(p)
    return False

cdef inline void deadletters_publish(Route* route, DeadLetters* dead, int64_t now) noexcept nogil:
    """Publish all letters, and those that this produces. The caller has the topology's lock, shared."""
    cdef DeadLetter* letter = dead.first
    while letter != NULL:
        dead.first = letter.next
        if deadletter_publish(route, letter, dead, now):
            message_leave(letter.queue, letter.payload)
        else:
            payload_release(letter.payload)
        brokerqueue_release(letter.queue)
        free(letter)
        letter = dead.first
