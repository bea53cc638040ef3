"""A queue whose consumers pull: its classes, its memory, and the references that it owns; see _pullqueue.pyx.

Ownership. A message's token is a pointer to its item, and owns a reference until the message leaves the queue. A
consumer's memory is freed when no thread can hold its node any more: the thread that finds this leaves the consumer
among the departed, and a visit frees it there.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic

from fairsched.core.memory cimport CACHE_LINE, first_line
from fairsched.core.queue.groups cimport Grouping
from fairsched.core.queue.message cimport Message
from fairsched.core.queue.order.order cimport Kind, order_after
from fairsched.core.queue.queue cimport queue_clear, queue_init
from fairsched.core.queue.state cimport Queue, QueueConsumer, queue_delete, queue_lock, queue_unlock, queue_unref
from fairsched.core.waiting.interest cimport interest_clear
from fairsched.core.waiting.reclaim cimport Garbage, Pin
from fairsched.scheduling._waitingroom cimport WaitingRoom

cdef enum:
    THRESHOLD = 100  # dead entries that a list of consumers keeps

cdef struct QueueMemory:
    Queue queue                  # must be first
    atomic[uintptr_t] departed   # consumers that no thread can hold any more: pushed by any thread, emptied by any


cdef class Alternate:
    cdef object sink              # None: messages are dropped
    cdef bint refused             # it raised for the last message, which was logged
    cdef readonly object undelivered

    cdef int divert(self, object item, uint32_t reason, bint keep) except -1
    cdef int deliver(self, tuple message) except -1
    cdef int deliver_again(self, Py_ssize_t count) except -1


cdef class PullQueue:
    cdef QueueMemory* memory
    cdef set members            # subscriptions whose consumers a thread may still hold
    cdef dict slot_of           # of a fair queue: name -> index
    cdef object key
    cdef Alternate alternate
    cdef object clock
    cdef int64_t ttl            # nanoseconds; -1: none
    cdef bint made
    cdef bint keyed             # keys determine order, replacement or group
    cdef atomic[int64_t] filters  # subscriptions with a filter
    cdef atomic[int64_t] stopped  # threads that wait for room
    cdef WaitingRoom room       # room for those threads
    cdef atomic[uint64_t] named
    cdef object __weakref__

    cdef int64_t now(self) except? -1
    cdef object next_due(self, object deadline)
    cdef int add_slot(self, object name, int64_t quantum) except -1
    cdef void tear_down(self) noexcept


cdef class Listener:
    cdef void heard(self) noexcept


cdef class Subscription:
    cdef PullQueue queue
    cdef QueueConsumer* consumer   # NULL: cancelled. Its memory is valid inside a visit that found the pointer
    cdef object filter
    cdef object on_work
    cdef Listener listener         # of the target that it belongs to
    cdef WaitingRoom room          # made for the first thread that waits
    cdef atomic[int64_t] news
    cdef bint filter_failed        # the filter raised, which was logged
    cdef readonly object name
    cdef readonly object priority
    cdef readonly bint acquires
    cdef object __weakref__

    cdef int open_room(self) except -1
    cdef object next_entry(self)
    cdef bint wait(self, int64_t news, bint closed, object deadline) except -1
    cdef void tell(self) noexcept
    cdef int call_back(self) except -1
    cdef void wake(self) noexcept
    cdef void wake_one(self) noexcept
    cdef void wake_all(self) noexcept
    cdef int listen(self, Listener listener) except -1
    cdef void unlisten(self, Listener listener) noexcept
    cdef bint is_over(self) except -1
    cdef object next_due(self, object deadline)
    cdef bint holds_on(self) except -1
    cdef bint is_desired(self, int64_t now) except -1
    cdef int judge(self, object item) except -1


# The queue's memory ---------------------------------------------------------------------------------------------------


cdef inline QueueMemory* memory_create(Kind kind, uint32_t levels, Grouping grouping) except NULL:
    cdef QueueMemory* memory = <QueueMemory*> malloc(sizeof(QueueMemory))
    if memory == NULL:
        raise MemoryError()
    memory.departed.store(0)
    if not queue_init(&memory.queue, kind, levels, grouping, THRESHOLD):
        queue_clear(&memory.queue)
        free(memory)
        raise MemoryError()
    return memory


cdef inline void memory_close(QueueMemory* memory) noexcept:
    """Refuse messages from now on."""
    memory.queue.closed.store(1)


cdef inline void memory_drop_items(QueueMemory* memory) noexcept:
    """Delete the messages of a closed queue, and release their items, one by one, which needs no memory.

    A finalizer finds a queue that is closed and consistent. O(messages), except those that running calls refer to.
    """
    cdef Queue* q = &memory.queue
    cdef Message* m
    cdef uint64_t token
    while True:
        token = 0
        queue_lock(q)
        m = order_after(&q.order, NULL)
        while m != NULL and token == 0:
            m.references += 1
            token = m.token
            m.token = 0
            queue_delete(q, m)
            following = order_after(&q.order, m)
            queue_unref(q, m)
            m = following
        queue_unlock(q)
        if token == 0:
            return
        item = <object> <PyObject*> <uintptr_t> token
        Py_DECREF(item)
        item = None


cdef inline void memory_free(QueueMemory* memory) noexcept:
    """Free the memory. No thread is inside, and the items were released."""
    interest_clear(&memory.queue.interest)  # disposes of consumers that were retired
    memory_free_departed(memory)
    queue_clear(&memory.queue)
    free(memory)


# Consumers -----------------------------------------------------------------------------------------------------------


cdef inline QueueConsumer* consumer_create() noexcept:
    """Allocate a consumer on a cache line; the pointer that malloc returned is stored before it."""
    cdef void* block = malloc(sizeof(QueueConsumer) + sizeof(void*) + CACHE_LINE)
    cdef uintptr_t address
    if block == NULL:
        return NULL
    address = <uintptr_t> first_line(<char*> block + sizeof(void*))
    (<void**> (address - sizeof(void*)))[0] = block
    return <QueueConsumer*> address


cdef inline void consumer_destroy(QueueConsumer* c) noexcept:
    free((<void**> (<uintptr_t> c - sizeof(void*)))[0])


cdef inline void consumer_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    """Leave a consumer that no thread can hold any more among the departed of its queue."""
    # The domain is the first member of the queue, which is the first member of its memory.
    cdef QueueMemory* memory = <QueueMemory*> pin.reclaim
    cdef QueueConsumer* c = <QueueConsumer*> garbage
    cdef uintptr_t head = memory.departed.load()
    c.next_walker = <QueueConsumer*> head
    while not memory.departed.compare_exchange_weak(head, <uintptr_t> c):
        c.next_walker = <QueueConsumer*> head


cdef inline void memory_free_departed(QueueMemory* memory) noexcept:
    cdef QueueConsumer* c = <QueueConsumer*> memory.departed.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        consumer_destroy(c)
        c = following
