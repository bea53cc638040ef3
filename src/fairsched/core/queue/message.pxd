"""One message of a queue, and the memory of many.

States. AVAILABLE and HELD (not deliverable before its time) both count as available. ACQUIRED is one consumer's, until
it settles. DELETED has left the queue; its memory stays linked while it is referenced (`references`: by cursors, and by
the consumer that acquired it), so that a walk can continue from it.

The consumer that acquired a message holds a lease. Settling names the lease, so that a settlement does nothing if the
message was taken back meanwhile, and perhaps given to another consumer.

Thread safety: none; everything but key and token, which are fixed, is read and written under the queue's lock.
Complexity: O(1), except that one call in MESSAGES_MAX allocates a chunk.
Memory: 128 bytes a message, 192 in a sorted queue, and its key.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fairsched.core.atomics cimport rarely
from fairsched.core.memory cimport CACHE_LINE, first_line, prefetch

cdef enum MessageState:
    MESSAGE_AVAILABLE
    MESSAGE_HELD
    MESSAGE_ACQUIRED
    MESSAGE_DELETED

cdef enum Reason:  # why a message left the queue without having been acknowledged
    REASON_EXPIRED
    REASON_OVERFLOW
    REASON_SUPERSEDED
    REASON_DELIVERIES
    REASON_CLOSED

cdef enum HeapPlace:
    HEAP_NONE
    HEAP_RETURNED
    HEAP_HELD

cdef enum: NO_EPOCH = 18446744073709551615  # of no consumer

cdef enum:
    MESSAGES_MIN = 32
    MESSAGES_MAX = 4096
    MESSAGES_RETAIN = 16384  # an empty pool larger than this gives its memory back
    MESSAGE_LINES = 128      # bytes of a message without the third line

cdef extern from *:
    """
    #include <cstddef>
    #include <cstdint>

    namespace fairsched {

    struct Message;

    struct MessageKey {  // the bytes follow
        uint64_t hash;
        uint64_t length;
    };

    struct Rejection {
        Rejection* next;
        uint64_t consumer;
        uint64_t epoch;  // 0: for good; else while that is the consumer's epoch: yields.pxd
    };

    struct Late {  // a browser is to see that message, though it has gone past its place: late.pxd
        Late* child;  // in the heap of its browser
        Late* sibling;
        Late* before;
        Late* next;   // of the same message
        Late** root;  // the heap
        Message* message;
    };

    struct Message {
        // The line that first in, first out touches.
        Message* next;           // in its level, in the order of service (of arrival, if fair); or in the pool
        Message* prev;
        uint64_t token;
        uint64_t sequence;       // of arrival, from 1
        int64_t size;
        union {
            uint64_t holder;     // the consumer that has it: see message_holder
            Message* before;     // while it is in a heap, and so not acquired
        };
        uint32_t references;
        uint32_t lease;          // acquisitions so far
        uint8_t state;
        uint8_t level;           // 0 is served first
        uint8_t heap;            // HeapPlace
        uint8_t reason;
        uint8_t passed;          // the front of its level has gone past it
        uint8_t redelivered;
        uint8_t paid;            // whether it took credit of its holder
        uint8_t superseded : 1;  // a newer message has its key
        uint8_t sorted : 1;      // it has the third line
        // The line of what comes back, waits or expires.
        Message* child;          // in a heap (heap.pxd); the next of those removed in one call
        Message* sibling;
        int64_t expiry;          // nanoseconds; 0: never
        int64_t not_before;      // nanoseconds; 0: at once
        MessageKey* key;         // null: none
        Rejection* rejections;
        Late* late;              // of browsers that are to see it behind their cursors
        int32_t deliveries;      // failed so far; -1: never acquired
        uint32_t slot;           // in a fair queue
        // The line that only messages of a sorted queue have: their place in a tree (order/tree.pxd).
        Message* left;
        Message* right;
        uint32_t weight;
        char padding[44];
    };

    static_assert(offsetof(Message, left) == 128 && sizeof(Message) == 192, "messages are whole cache lines");

    }  // namespace fairsched
    """
    cdef struct MessageKey "fairsched::MessageKey":
        uint64_t hash
        uint64_t length

    cdef struct Rejection "fairsched::Rejection":
        Rejection* next
        uint64_t consumer
        uint64_t epoch

    cdef struct Message "fairsched::Message"

    cdef struct Late "fairsched::Late":
        Late* child
        Late* sibling
        Late* before
        Late* next
        Late** root
        Message* message

    cdef struct Message "fairsched::Message":
        Message* next
        Message* prev
        uint64_t token
        uint64_t sequence
        int64_t size
        uint64_t holder
        Message* before
        uint32_t references
        uint32_t lease
        uint8_t state
        uint8_t level
        uint8_t heap
        uint8_t reason
        uint8_t passed
        uint8_t redelivered
        uint8_t paid
        uint8_t superseded
        uint8_t sorted
        Message* child
        Message* sibling
        int64_t expiry
        int64_t not_before
        MessageKey* key
        Rejection* rejections
        Late* late
        int32_t deliveries
        uint32_t slot
        Message* left
        Message* right
        uint32_t weight

cdef struct MessageChunk:
    MessageChunk* next
    void* block

cdef struct MessagePool:
    Message* free
    MessageChunk* chunks
    int64_t capacity
    int64_t used
    bint sorted              # messages have the third line

cdef inline void messagepool_init(MessagePool* pool, bint sorted_) noexcept nogil:
    pool.free = NULL
    pool.chunks = NULL
    pool.capacity = pool.used = 0
    pool.sorted = sorted_

cdef inline void messagepool_clear(MessagePool* pool) noexcept nogil:
    """Free every chunk; messages handed out are gone too."""
    cdef MessageChunk* chunk = pool.chunks
    cdef MessageChunk* following
    while chunk != NULL:
        following = chunk.next
        free(chunk.block)
        chunk = following
    messagepool_init(pool, pool.sorted)

cdef inline bint messagepool_grow(MessagePool* pool) noexcept nogil:
    """Add a chunk as large as all before it; False when memory is exhausted."""
    cdef int64_t size = min(max(pool.capacity, <int64_t> MESSAGES_MIN), <int64_t> MESSAGES_MAX), _i
    cdef size_t stride = sizeof(Message) if pool.sorted else <size_t> MESSAGE_LINES
    cdef void* block = malloc(<size_t> (size + 1) * stride + CACHE_LINE)
    cdef MessageChunk* chunk
    cdef Message* m
    cdef char* at
    if block == NULL:
        return False
    chunk = <MessageChunk*> first_line(block)
    chunk.block = block
    chunk.next = pool.chunks
    pool.chunks = chunk
    at = <char*> chunk + <size_t> size * stride  # in front of the messages is room for one more: the chunk
    for _i in range(size):
        m = <Message*> at
        m.next = pool.free
        pool.free = m
        at -= stride
    pool.capacity += size
    return True

cdef inline Message* messagepool_take(MessagePool* pool) noexcept nogil:
    """A message that was never acquired, has no key, and stands nowhere; NULL when memory is exhausted."""
    cdef Message* m = pool.free
    if rarely(m == NULL):
        if not messagepool_grow(pool):
            return NULL
        m = pool.free
    pool.free = m.next
    prefetch(pool.free)  # the next put writes there
    pool.used += 1
    # The caller that links the message writes the links; queue_create writes the other missing fields.
    m.state = MESSAGE_AVAILABLE
    m.references = m.lease = 0
    m.holder = 0
    m.key = NULL
    m.rejections = NULL
    m.late = NULL
    m.deliveries = -1
    m.heap = HEAP_NONE
    m.passed = m.redelivered = m.superseded = m.sorted = False
    return m

cdef inline void message_strip(Message* m) noexcept nogil:
    """Free what a message has besides its own memory."""
    cdef Rejection* rejection = m.rejections
    while rejection != NULL:
        m.rejections = rejection.next
        free(rejection)
        rejection = m.rejections
    free(m.key)

cdef inline void messagepool_give(MessagePool* pool, Message* m) noexcept nogil:
    """Take back a message that stands nowhere."""
    if rarely(m.key != NULL or m.rejections != NULL):
        message_strip(m)
    m.next = pool.free
    pool.free = m
    pool.used -= 1
    if rarely(pool.used == 0 and pool.capacity > MESSAGES_RETAIN):
        messagepool_clear(pool)

cdef inline MessageKey* messagekey_create(const char* data, uint64_t length, uint64_t hash) noexcept nogil:
    """A copy; NULL when memory is exhausted."""
    cdef MessageKey* key = <MessageKey*> malloc(sizeof(MessageKey) + length)
    if key != NULL:
        key.hash = hash
        key.length = length
        memcpy(key + 1, data, length)
    return key

cdef inline bint messagekey_equal(const MessageKey* a, const MessageKey* b) noexcept nogil:
    return a.hash == b.hash and a.length == b.length and memcmp(a + 1, b + 1, a.length) == 0

cdef inline int messagekey_compare(const MessageKey* a, const MessageKey* b) noexcept nogil:
    """Below, at or above zero; a missing key comes first."""
    cdef int difference
    if a == NULL or b == NULL:
        return <int> (a != NULL) - <int> (b != NULL)
    difference = memcmp(a + 1, b + 1, min(a.length, b.length))
    if difference == 0:
        difference = <int> (a.length > b.length) - <int> (a.length < b.length)
    return difference

cdef inline bint message_before(const Message* a, const Message* b) noexcept nogil:
    """Whether `a` is served before `b`, other things being equal. Only a sorted queue's messages differ by key."""
    cdef int difference
    if a.level != b.level:
        return a.level < b.level
    if a.sorted:
        difference = messagekey_compare(a.key, b.key)
        if difference != 0:
            return difference < 0
    return a.sequence < b.sequence

cdef inline Message* messages_turned(Message* m) noexcept nogil:
    """Turn round a chain of what left the queue, which has what left last in front."""
    cdef Message* turned = NULL
    cdef Message* following
    while m != NULL:
        following = m.child
        m.child = turned
        turned = m
        m = following
    return turned

cdef inline bint message_taken(const Message* m) noexcept nogil:
    return m.state == <uint32_t> MESSAGE_ACQUIRED

cdef inline uint64_t message_holder(const Message* m) noexcept nogil:
    """Return the consumer that has it, or had it when it left; 0: none, it was given back or never acquired."""
    return m.holder if m.heap == <uint8_t> HEAP_NONE else 0

cdef inline bint message_rejected(const Message* m, uint64_t consumer, uint64_t epoch) noexcept nogil:
    """Whether that consumer has rejected it, or yields it in this epoch. O(rejections)."""
    cdef const Rejection* rejection = m.rejections
    while rejection != NULL:
        if rejection.consumer == consumer and (rejection.epoch == 0 or rejection.epoch == epoch):
            return True
        rejection = rejection.next
    return False

cdef inline bint message_note(Message* m, uint64_t consumer, uint64_t epoch) noexcept nogil:
    """Note that a consumer is not to see it in this epoch; 0: ever. False when memory is exhausted."""
    cdef Rejection* rejection = m.rejections
    while rejection != NULL and (rejection.consumer != consumer or rejection.epoch == 0):
        rejection = rejection.next
    if rejection == NULL:
        rejection = <Rejection*> malloc(sizeof(Rejection))
        if rejection == NULL:
            return False
        rejection.consumer = consumer
        rejection.next = m.rejections
        m.rejections = rejection
    rejection.epoch = epoch
    return True

cdef inline bint message_reject(Message* m, uint64_t consumer) noexcept nogil:
    """Note that a consumer does not want to see it again; False when memory is exhausted."""
    return message_note(m, consumer, 0)

cdef inline void message_unyield(Message* m) noexcept nogil:
    """Void the notes of consumers that yielded a message that comes back: they check it again. O(rejections)."""
    cdef Rejection* rejection = m.rejections
    while rejection != NULL:
        if rejection.epoch != 0:
            rejection.epoch = NO_EPOCH
        rejection = rejection.next

cdef inline void message_unreject(Message* m, uint64_t consumer) noexcept nogil:
    """Remove the notes of a consumer that is gone. O(rejections)."""
    cdef Rejection** link = &m.rejections
    cdef Rejection* rejection = link[0]
    while rejection != NULL:
        if rejection.consumer == consumer:
            link[0] = rejection.next
            free(rejection)
        else:
            link = &rejection.next
        rejection = link[0]

cdef inline bint message_expired(const Message* m, int64_t now) noexcept nogil:
    return m.expiry != 0 and now > m.expiry

cdef inline bint message_held(const Message* m, int64_t now) noexcept nogil:
    return m.not_before != 0 and m.not_before >= now
