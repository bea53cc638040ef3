"""A queue of the broker: its memory, putting messages into it, and its deletion.

Thread safety: any thread that holds a reference, outside of `guard`; what needs the topology's lock says so.
Complexity: put O(1), besides the order of the queue; purge and drop O(messages).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched.core.amqp.contents cimport (
    PROPERTY_EXPIRATION, PROPERTY_PRIORITY, Properties, contents_find, contents_number, contents_text,
)
from fairsched.core.amqp.octets cimport Text, text_copy, text_free
from fairsched.core.amqp.tables cimport Field, field_integer, tables_get
from fairsched.core.broker.durability.keeping cimport message_leave
from fairsched.core.broker.exchanges.names cimport NameEntry, names_add, names_clear, names_find, names_init
from fairsched.core.broker.keys cimport KEY_ROOM, key_of
from fairsched.core.broker.network cimport clock_now
from fairsched.core.broker.payload cimport payload_header, payload_key, payload_release
from fairsched.core.broker.state cimport (
    Arguments, BrokerQueue, Consumer, DROP_HEAD, DeadLetters, FAIR_WEIGHT_MAX, Guard, Host, Payload, Publication,
    REJECT_PUBLISH_DLX, Server,
)
from fairsched.core.broker.visit cimport DEAD_EXPIRED, DEAD_MAXLEN, Visit, deadletters_add, visit_begin, visit_end
from fairsched.core.connection.connection cimport connection_submit
from fairsched.core.queue.groups cimport GROUPS_NONE
from fairsched.core.queue.members cimport consumer_init
from fairsched.core.queue.message cimport (
    MESSAGE_AVAILABLE, MESSAGE_HELD, Message, REASON_CLOSED,
)
from fairsched.core.queue.next cimport queue_next
from fairsched.core.queue.order.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, Kind, order_after,
)
from fairsched.core.queue.overflow cimport OVERFLOW_NONE, OVERFLOW_REJECT, OVERFLOW_RING
from fairsched.core.queue.queue cimport (
    Admittance, Offer, PUT_CLOSED, PUT_DONE, PUT_FULL, queue_clear, queue_init, queue_put, queue_wanted,
)
from fairsched.core.queue.ring cimport queue_ring
from fairsched.core.queue.state cimport (
    Queue, QueueWalk, queue_lock, queue_remove, queue_unlock, queue_unref, queuewalk_begin,
    queuewalk_end, queuewalk_next,
)
from fairsched.core.queue.time cimport queue_sweep
from fairsched.core.schedule.slots cimport NO_SLOT, slots_add

cdef enum:
    QUEUE_THRESHOLD = 100        # dead entries that a list of consumers keeps
    FAIR_KEYS_MAX = 65536        # further ones share a slot with messages that have no key

cdef enum: MILLISECOND = 1000000
cdef enum: LIFE_AT_ONCE = 10000000  # nanoseconds that a consumer has for what is to be delivered at once or never

# Memory ---------------------------------------------------------------------------------------------------------------

cdef inline void brokerqueue_limit(BrokerQueue* b) noexcept nogil:
    """Set the limits that the arguments ask for."""
    cdef Arguments* a = &b.arguments
    cdef Queue* q = &b.queue
    q.overflow.max_depth = a.max_length
    q.overflow.max_bytes = a.max_bytes
    q.overflow.ready = q.overflow.patient = q.expires_next = True
    if a.max_length >= 0 or a.max_bytes >= 0:
        q.overflow.policy = OVERFLOW_RING if a.overflow == DROP_HEAD else OVERFLOW_REJECT
    if a.delivery_limit >= 0:
        q.max_deliveries = a.delivery_limit + 1
    if a.single_active:
        q.live_limit = 1
        q.live_by_priority = True

cdef inline uint32_t brokerqueue_levels(const Arguments* a) noexcept nogil:
    return <uint32_t> (a.max_priority + 1) if a.kind == <uint32_t> KIND_PRIORITY else 1

cdef inline BrokerQueue* brokerqueue_create(
    Server* server, Host* host, Text name, Text table, const Arguments* arguments
) noexcept nogil:
    """A queue that nobody knows, with one reference; NULL when memory is exhausted.

    The texts of `arguments` are in `table`; those of the queue, in its copy of it.
    """
    cdef BrokerQueue* b = <BrokerQueue*> malloc(sizeof(BrokerQueue))
    cdef bint made
    if b == NULL:
        return NULL
    memset(<void*> b, 0, sizeof(BrokerQueue))
    b.arguments = arguments[0]
    made = queue_init(
        &b.queue, <Kind> arguments.kind, brokerqueue_levels(arguments), GROUPS_NONE, QUEUE_THRESHOLD
    )
    b.references.store(1)
    b.server = server
    b.host = host
    b.name = text_copy(name)
    b.table = text_copy(table)
    b.guard = new Guard()
    names_init(&b.slots)
    server.queues.fetch_add(1)
    if not made or b.name.data == NULL or b.table.data == NULL:
        brokerqueue_destroy(b)
        return NULL
    arguments_rebase(&b.arguments, table, b.table)
    brokerqueue_limit(b)
    consumer_init(&b.getter, 0, True)
    b.queue.ids += 1
    b.getter.id = b.queue.ids
    b.used.store(clock_now())
    # Messages without a key have a slot, too.
    if arguments.kind == <uint32_t> KIND_FAIR and brokerqueue_slot_add(b, Text(NULL, 0), 1) == NULL:
        brokerqueue_destroy(b)
        return NULL
    return b

cdef inline void text_rebase(Text* text, Text old, Text new_) noexcept nogil:
    if text.data != NULL:
        text.data = new_.data + (text.data - old.data)

cdef inline void arguments_rebase(Arguments* a, Text old, Text new_) noexcept nogil:
    """Have the texts be in a copy of the table."""
    text_rebase(&a.dlx, old, new_)
    text_rebase(&a.dlk, old, new_)
    text_rebase(&a.key, old, new_)
    text_rebase(&a.fair_key, old, new_)
    text_rebase(&a.weights, old, new_)

cdef inline void brokerqueue_destroy(BrokerQueue* b) noexcept nogil:
    """Free it. Nobody knows it, and nobody has a message of it."""
    cdef Message* m
    b.queue.closed.store(1)
    if b.queue.order.levels != NULL:
        m = order_after(&b.queue.order, NULL)
        while m != NULL:
            if m.token != 0:
                payload_release(<Payload*> <uintptr_t> m.token)
            m = order_after(&b.queue.order, m)
    queue_clear(&b.queue)
    b.server.queues.fetch_sub(1)
    text_free(&b.name)
    text_free(&b.table)
    del b.guard
    names_clear(&b.slots)
    free(b)

cdef inline void brokerqueue_retain(BrokerQueue* b) noexcept nogil:
    b.references.fetch_add(1)

cdef inline void brokerqueue_release(BrokerQueue* b) noexcept nogil:
    if b.references.fetch_sub(1) == 1:
        brokerqueue_destroy(b)

# Putting --------------------------------------------------------------------------------------------------------------

cdef inline NameEntry* brokerqueue_slot_add(BrokerQueue* b, Text key, int64_t weight) noexcept nogil:
    """Guarded, or before others know it. Give a key its slot; NULL: memory is exhausted."""
    cdef uint32_t slot
    queue_lock(&b.queue)
    slot = slots_add(&b.queue.order.slots, weight, False)
    queue_unlock(&b.queue)
    return names_add(&b.slots, key, <void*> <uintptr_t> slot) if slot != NO_SLOT else NULL

cdef inline int64_t weight_of(Text weights, Text key) noexcept nogil:
    """The weight of a key in a table of weights; 1: it has none there."""
    cdef Field f
    cdef int64_t weight
    if not tables_get(weights, key, &f) or not field_integer(&f, &weight):
        return 1
    return weight if 1 <= weight <= FAIR_WEIGHT_MAX else 1

cdef inline uint32_t brokerqueue_slot(BrokerQueue* b, const Publication* p) noexcept nogil:
    """The slot that a message is served in, made for the first of its key."""
    cdef Text key
    cdef NameEntry* entry
    cdef uint8_t room[KEY_ROOM]
    if b.arguments.fair_key.length == 0:
        key = Text(payload_key(p.payload), p.payload.key_size)
    else:
        key = key_of(p, b.arguments.fair_key, False, &room[0])
    b.guard.lock()
    entry = names_find(&b.slots, key)
    if entry == NULL and b.slots.count < FAIR_KEYS_MAX:
        entry = brokerqueue_slot_add(b, key, weight_of(b.arguments.weights, key))
    b.guard.unlock()
    return <uint32_t> <uintptr_t> entry.value if entry != NULL else 0

cdef inline int64_t brokerqueue_life(const BrokerQueue* b, const Publication* p) noexcept nogil:
    """Milliseconds that a message is to live; -1: for ever."""
    if b.arguments.message_ttl < 0 or (0 <= p.expiration < b.arguments.message_ttl):
        return p.expiration
    return b.arguments.message_ttl

cdef inline bint brokerqueue_gives_at_once(const BrokerQueue* b, Payload* p) noexcept nogil:
    """Whether a message of a queue has a time to live of 0: it goes to a consumer at once, or expires."""
    cdef const uint8_t* header = payload_header(p)
    cdef Properties properties
    cdef Text text
    cdef uint32_t i
    if b.arguments.message_ttl == 0:
        return True
    if b.queue.timed.load() == 0:
        return False
    contents_find(header, p.header_size, &properties)
    text = contents_text(header, &properties, PROPERTY_EXPIRATION)
    for i in range(text.length):  # it was checked when it was published: a sign and digits
        if b'1' <= text.data[i] <= b'9':
            return False
    return text.length > 0

cdef inline void timed_push(Server* server, BrokerQueue* b) noexcept nogil:
    """Put a queue, with a reference, among those that time concerns."""
    cdef uintptr_t head = server.timed.load()
    b.next_timed = <BrokerQueue*> head
    while not server.timed.compare_exchange_weak(head, <uintptr_t> b):
        b.next_timed = <BrokerQueue*> head

cdef inline void brokerqueue_watch(BrokerQueue* b) noexcept nogil:
    """Have time looked after."""
    cdef Server* server = b.server
    if b.listed.load() or b.listed.exchange(1):
        return
    brokerqueue_retain(b)
    timed_push(server, b)
    server.poller.ring()  # who waits there does not know yet

cdef inline void brokerqueue_offer(
    BrokerQueue* b, const Publication* p, int64_t now, Offer* offer, uint8_t* room
) noexcept nogil:
    """Fill in what core/queue is given; `expiry` is that of messages that have none, `room` is for the key."""
    cdef Text key
    offer.token = <uint64_t> <uintptr_t> p.payload
    offer.size = p.payload.body_size
    offer.priority = 0
    offer.expiry = offer.not_before = 0
    offer.key = NULL
    offer.key_length = 0
    offer.slot = 0
    if b.arguments.kind == <uint32_t> KIND_PRIORITY:  # core/queue has the middle at 4
        offer.priority = min(
            <int64_t> contents_number(payload_header(p.payload), &p.properties, PROPERTY_PRIORITY, 0),
            b.arguments.max_priority
        ) + (5 - (b.arguments.max_priority + 2) // 2)
    elif b.arguments.kind == <uint32_t> KIND_FAIR:
        offer.slot = brokerqueue_slot(b, p)
        offer.size = 0  # each message costs as much as any other
    elif b.arguments.kind == <uint32_t> KIND_SORTED or b.arguments.kind == <uint32_t> KIND_LAST_VALUE:
        key = key_of(p, b.arguments.key, b.arguments.kind == <uint32_t> KIND_SORTED, room)
        offer.key = <const char*> key.data
        offer.key_length = key.length

cdef inline bint brokerqueue_put(
    BrokerQueue* b, const Publication* p, int64_t now, DeadLetters* dead
) noexcept nogil:
    """Put a message, with a reference to it; False: the queue refuses it, and the publisher is to be told."""
    cdef Visit v
    cdef Offer offer
    cdef uint8_t room[KEY_ROOM]
    cdef Admittance done
    cdef int64_t life = brokerqueue_life(b, p)
    cdef bint wanted
    brokerqueue_offer(b, p, now, &offer, &room[0])
    visit_begin(&v, b, now, dead)
    wanted = life == 0 and queue_wanted(&v.call)
    if life == 0 and not wanted and b.queue.available.load() == 0:
        visit_end(&v)
        deadletters_add(dead, b, p.payload, DEAD_EXPIRED)
        return True
    if life >= 0:  # as with RabbitMQ, what is behind others does not expire before it is the first one
        offer.expiry = now + (LIFE_AT_ONCE if wanted else life * MILLISECOND)
        brokerqueue_watch(b)
    done = queue_put(&v.call, &offer, NULL)
    visit_end(&v)
    if done == PUT_DONE:
        b.published.fetch_add(1)
        return True
    if done == PUT_FULL and b.arguments.overflow == DROP_HEAD:
        deadletters_add(dead, b, p.payload, DEAD_MAXLEN)
        return True
    if done == PUT_FULL and b.arguments.overflow == REJECT_PUBLISH_DLX:
        deadletters_add(dead, b, p.payload, DEAD_MAXLEN)
    else:
        message_leave(b, p.payload)
    return done == PUT_CLOSED  # as though it had come before the queue was deleted

cdef inline bint brokerqueue_restore(
    BrokerQueue* b, const Publication* p, int64_t life, bint redelivered, int64_t now
) noexcept nogil:
    """Put a message back that was here before the process ended, whatever the queue's limits; before others know it.

    `life`: milliseconds that are left; -1: it does not expire. The reference is given up. False: memory is exhausted.
    """
    cdef Visit v
    cdef Offer offer
    cdef uint8_t room[KEY_ROOM]
    cdef DeadLetters none
    cdef Message* m = NULL
    cdef bint done
    none.first = NULL
    brokerqueue_offer(b, p, now, &offer, &room[0])
    if life >= 0:
        offer.expiry = now + life * MILLISECOND
        brokerqueue_watch(b)
    b.queue.overflow.policy = OVERFLOW_NONE
    visit_begin(&v, b, now, &none)
    done = queue_put(&v.call, &offer, &m) == PUT_DONE
    if m != NULL:
        queue_lock(&b.queue)
        m.redelivered = redelivered
        queue_unref(&b.queue, m)
        queue_unlock(&b.queue)
    visit_end(&v)
    brokerqueue_limit(b)
    if not done:
        payload_release(p.payload)
    return done

# Housekeeping ---------------------------------------------------------------------------------------------------------

cdef inline void visit_expire(Visit* v) noexcept nogil:
    """Have what has expired leave: as with RabbitMQ, when nothing that lives is before it."""
    cdef Queue* q = v.call.queue
    if q.timed.load() == 0:
        return
    if q.order.kind == KIND_FAIR:
        queue_sweep(q, &v.call)
        return
    queue_lock(q)
    queue_next(&v.call, False)
    queue_unlock(q)

cdef inline void visit_returned(Visit* v) noexcept nogil:
    """Once all messages are back: drop what does not fit, then what has expired."""
    queue_lock(v.call.queue)
    queue_ring(v.call.queue, &v.call, <uint64_t> -1)
    queue_unlock(v.call.queue)
    visit_expire(v)

cdef inline void brokerqueue_expire(BrokerQueue* b, int64_t now, DeadLetters* dead) noexcept nogil:
    """Have what has expired leave."""
    cdef Visit v
    visit_begin(&v, b, now, dead)
    visit_expire(&v)
    visit_end(&v)

cdef inline int64_t brokerqueue_purge(BrokerQueue* b, int64_t now) noexcept nogil:
    """Remove all messages that nobody has; how many."""
    cdef Visit v
    cdef DeadLetters none
    cdef Queue* q = &b.queue
    cdef QueueWalk w
    cdef Message* m
    cdef int64_t purged = 0
    none.first = NULL
    visit_begin(&v, b, now, &none)
    m = queuewalk_begin(&w, q)
    while m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE or m.state == <uint32_t> MESSAGE_HELD:
            queue_remove(q, &v.call, m, REASON_CLOSED)
            purged += 1
        m = queuewalk_next(&w, m)
    queuewalk_end(&w)
    visit_end(&v)
    return purged

cdef inline bint brokerqueue_close(BrokerQueue* b, bint if_unused, bint if_empty) noexcept nogil:
    """Take no more messages and consumers; False: it is not so, and goes on."""
    cdef Queue* q = &b.queue
    cdef bint closes
    queue_lock(q)
    closes = not (if_unused and q.consumers.load() != 0) and not (if_empty and q.available.load() != 0)
    if closes:
        q.closed.store(1)
        q.drains = True
    queue_unlock(q)
    return closes

cdef inline int64_t brokerqueue_drop(BrokerQueue* b, int64_t now) noexcept nogil:
    """A queue that was closed, and is not in the topology any more, goes, with what is in it; how many messages.

    Its consumers are told by their connections' threads. The reference of the topology is given up.
    """
    cdef Consumer* c
    cdef int64_t purged
    b.guard.lock()
    c = b.consumers
    while c != NULL:
        c.references.fetch_add(1)  # of the task
        if not connection_submit(c.target.session.connection, &c.task):
            c.references.fetch_sub(1)
        c = c.next_of_queue
    b.guard.unlock()
    purged = brokerqueue_purge(b, now)
    brokerqueue_release(b)
    return purged
