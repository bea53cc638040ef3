"""A queue of the broker: its memory, putting messages into it, and its deletion.

Thread safety: any thread that has a reference and does not hold `guard`; functions that need the topology's lock say
so.
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
from fairsched.core.broker.arguments cimport (
    DROP_HEAD, FAIR_WEIGHT_MAX, QueueArguments, REJECT_PUBLISH_DLX, arguments_move,
)
from fairsched.core.broker.durability.keeping cimport message_leave
from fairsched.core.broker.exchanges.names cimport NameEntry, names_add, names_clear, names_find, names_init
from fairsched.core.broker.keys cimport KEY_ROOM, key_of
from fairsched.core.broker.network cimport clock_now
from fairsched.core.broker.payload cimport payload_header, payload_key, payload_release
from fairsched.core.broker.state cimport (
    BrokerQueue, Consumer, DeadLetters, Guard, Host, Payload, Publication, Server,
)
from fairsched.core.broker.queuecall cimport (
    DEAD_EXPIRED, DEAD_MAXLEN, QueueCall, deadletters_add, queuecall_begin, queuecall_end,
)
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
    QUEUE_THRESHOLD = 100        # dead entries kept in a list of consumers
    FAIR_KEYS_MAX = 65536        # messages of further keys share the slot of those without a key

cdef enum: MILLISECOND = 1000000
cdef enum: LIFE_AT_ONCE = 10000000  # nanoseconds to deliver a message with a TTL of 0

# Memory ---------------------------------------------------------------------------------------------------------------

cdef inline void brokerqueue_limit(BrokerQueue* b) noexcept nogil:
    """Set the limits that the arguments give."""
    cdef QueueArguments* a = &b.arguments
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

cdef inline uint32_t brokerqueue_levels(const QueueArguments* a) noexcept nogil:
    return <uint32_t> (a.max_priority + 1) if a.kind == <uint32_t> KIND_PRIORITY else 1

cdef inline BrokerQueue* brokerqueue_create(
    Server* server, Host* host, Text name, Text table, const QueueArguments* arguments
) noexcept nogil:
    """Make a queue with one reference, which is in no topology yet; NULL: memory is exhausted.

    The texts of `arguments` point into `table`; those of the queue, into its copy.
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
    arguments_move(&b.arguments, table, b.table)
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

cdef inline void brokerqueue_destroy(BrokerQueue* b) noexcept nogil:
    """Free a queue that has no references and no delivered messages."""
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
    """Make the slot of a key; NULL: memory is exhausted. With `guard`, or before other threads know the queue."""
    cdef uint32_t slot
    queue_lock(&b.queue)
    slot = slots_add(&b.queue.order.slots, weight, False)
    queue_unlock(&b.queue)
    return names_add(&b.slots, key, <void*> <uintptr_t> slot) if slot != NO_SLOT else NULL

cdef inline int64_t weight_of(Text weights, Text key) noexcept nogil:
    """Return the weight of a key in a table of weights; 1 if it is missing."""
    cdef Field f
    cdef int64_t weight
    if not tables_get(weights, key, &f) or not field_integer(&f, &weight):
        return 1
    return weight if 1 <= weight <= FAIR_WEIGHT_MAX else 1

cdef inline uint32_t brokerqueue_slot(BrokerQueue* b, const Publication* p) noexcept nogil:
    """Return the slot of a message; it is made for the first message of a key."""
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
    """Return the time to live of a message in milliseconds; -1: unlimited."""
    if b.arguments.message_ttl < 0 or (0 <= p.expiration < b.arguments.message_ttl):
        return p.expiration
    return b.arguments.message_ttl

cdef inline bint brokerqueue_gives_at_once(const BrokerQueue* b, Payload* p) noexcept nogil:
    """Return whether a message's time to live is 0: a consumer gets it at once, or it expires."""
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
    for i in range(text.length):  # checked at publication: an optional sign, and digits
        if b'1' <= text.data[i] <= b'9':
            return False
    return text.length > 0

cdef inline void timed_push(Server* server, BrokerQueue* b) noexcept nogil:
    """Add a queue, with a reference, to the list of queues with timers."""
    cdef uintptr_t head = server.timed.load()
    b.next_timed = <BrokerQueue*> head
    while not server.timed.compare_exchange_weak(head, <uintptr_t> b):
        b.next_timed = <BrokerQueue*> head

cdef inline void brokerqueue_watch(BrokerQueue* b) noexcept nogil:
    """Have the timer thread look after a queue."""
    cdef Server* server = b.server
    if b.listed.load() or b.listed.exchange(1):
        return
    brokerqueue_retain(b)
    timed_push(server, b)
    server.poller.ring()  # the waiting thread computes its timeout again

cdef inline void brokerqueue_offer(
    BrokerQueue* b, const Publication* p, int64_t now, Offer* offer, uint8_t* room
) noexcept nogil:
    """Fill in an offer for core/queue. `expiry` is for messages that have none; `room` holds the key."""
    cdef Text key
    offer.token = <uint64_t> <uintptr_t> p.payload
    offer.size = p.payload.body_size
    offer.priority = 0
    offer.expiry = offer.not_before = 0
    offer.key = NULL
    offer.key_length = 0
    offer.slot = 0
    if b.arguments.kind == <uint32_t> KIND_PRIORITY:  # the middle priority of core/queue is 4
        offer.priority = min(
            <int64_t> contents_number(payload_header(p.payload), &p.properties, PROPERTY_PRIORITY, 0),
            b.arguments.max_priority
        ) + (5 - (b.arguments.max_priority + 2) // 2)
    elif b.arguments.kind == <uint32_t> KIND_FAIR:
        offer.slot = brokerqueue_slot(b, p)
        offer.size = 0  # all messages cost the same
    elif b.arguments.kind == <uint32_t> KIND_SORTED or b.arguments.kind == <uint32_t> KIND_LAST_VALUE:
        key = key_of(p, b.arguments.key, b.arguments.kind == <uint32_t> KIND_SORTED, room)
        offer.key = <const char*> key.data
        offer.key_length = key.length

cdef inline bint brokerqueue_put(
    BrokerQueue* b, const Publication* p, int64_t now, DeadLetters* dead
) noexcept nogil:
    """Put a message, and take over a reference; False: the queue refuses it, and the publisher must be told."""
    cdef QueueCall call
    cdef Offer offer
    cdef uint8_t room[KEY_ROOM]
    cdef Admittance done
    cdef int64_t life = brokerqueue_life(b, p)
    cdef bint wanted
    brokerqueue_offer(b, p, now, &offer, &room[0])
    queuecall_begin(&call, b, now, dead)
    wanted = life == 0 and queue_wanted(&call.base)
    if life == 0 and not wanted and b.queue.available.load() == 0:
        queuecall_end(&call)
        deadletters_add(dead, b, p.payload, DEAD_EXPIRED)
        return True
    if life >= 0:  # as in RabbitMQ, a message expires only at the head
        offer.expiry = now + (LIFE_AT_ONCE if wanted else life * MILLISECOND)
        brokerqueue_watch(b)
    done = queue_put(&call.base, &offer, NULL)
    queuecall_end(&call)
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
    return done == PUT_CLOSED  # as if the queue were deleted after this message

cdef inline bint brokerqueue_restore(
    BrokerQueue* b, const Publication* p, int64_t life, bint redelivered, int64_t now
) noexcept nogil:
    """Put a message from the journal back into its queue, whatever the queue's limits.

    Called before other threads know the queue. `life` is the time to live in milliseconds; -1: unlimited. Takes over a
    reference. False: memory is exhausted.
    """
    cdef QueueCall call
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
    queuecall_begin(&call, b, now, &none)
    done = queue_put(&call.base, &offer, &m) == PUT_DONE
    if m != NULL:
        queue_lock(&b.queue)
        m.redelivered = redelivered
        queue_unref(&b.queue, m)
        queue_unlock(&b.queue)
    queuecall_end(&call)
    brokerqueue_limit(b)
    if not done:
        payload_release(p.payload)
    return done

# Housekeeping ---------------------------------------------------------------------------------------------------------

cdef inline void queuecall_expire(QueueCall* call) noexcept nogil:
    """Remove expired messages from the head of the queue, as RabbitMQ does."""
    cdef Queue* q = call.base.queue
    if q.timed.load() == 0:
        return
    if q.order.kind == KIND_FAIR:
        queue_sweep(q, &call.base)
        return
    queue_lock(q)
    queue_next(&call.base, False)
    queue_unlock(q)

cdef inline void queuecall_returned(QueueCall* call) noexcept nogil:
    """Drop messages above the limits, then expired ones, after messages were returned."""
    queue_lock(call.base.queue)
    queue_ring(call.base.queue, &call.base, <uint64_t> -1)
    queue_unlock(call.base.queue)
    queuecall_expire(call)

cdef inline void brokerqueue_expire(BrokerQueue* b, int64_t now, DeadLetters* dead) noexcept nogil:
    """Remove expired messages."""
    cdef QueueCall call
    queuecall_begin(&call, b, now, dead)
    queuecall_expire(&call)
    queuecall_end(&call)

cdef inline int64_t brokerqueue_purge(BrokerQueue* b, int64_t now) noexcept nogil:
    """Remove all messages that are not delivered, and return their number."""
    cdef QueueCall call
    cdef DeadLetters none
    cdef Queue* q = &b.queue
    cdef QueueWalk w
    cdef Message* m
    cdef int64_t purged = 0
    none.first = NULL
    queuecall_begin(&call, b, now, &none)
    m = queuewalk_begin(&w, q)
    while m != NULL:
        if m.state == <uint32_t> MESSAGE_AVAILABLE or m.state == <uint32_t> MESSAGE_HELD:
            queue_remove(q, &call.base, m, REASON_CLOSED)
            purged += 1
        m = queuewalk_next(&w, m)
    queuewalk_end(&w)
    queuecall_end(&call)
    return purged

cdef inline bint brokerqueue_close(BrokerQueue* b, bint if_unused, bint if_empty) noexcept nogil:
    """Close a queue to messages and consumers; False: it is in use or not empty, and stays open."""
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
    """Delete a queue that is closed and no longer in the topology, and return the number of its messages.

    The threads of their connections notify its consumers. The topology's reference is released.
    """
    cdef Consumer* c
    cdef int64_t purged
    b.guard.lock()
    c = b.consumers
    while c != NULL:
        c.references.fetch_add(1)  # for the task
        if not connection_submit(c.target.session.connection, &c.task):
            c.references.fetch_sub(1)
        c = c.next_of_queue
    b.guard.unlock()
    purged = brokerqueue_purge(b, now)
    brokerqueue_release(b)
    return purged
