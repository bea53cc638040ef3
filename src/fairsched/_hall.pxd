"""A pull queue's memory: the engine's queue, the items that its messages own, and its consumers.

Ownership. A message's token is a pointer to its item, and owns a reference until the message leaves the queue. A
consumer's memory is freed when nobody can hold its node any more: whoever finds that leaves it in the morgue, and a
visit buries it.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic

from fairsched.core.atomics cimport CACHE_LINE
from fairsched.core.groups cimport Grouping
from fairsched.core.interest cimport interest_clear
from fairsched.core.message cimport Message
from fairsched.core.order cimport Kind, order_after
from fairsched.core.queue cimport queue_clear, queue_init
from fairsched.core.queuestate cimport (
    Queue, QueueConsumer, queue_delete, queue_lock, queue_unlock, queue_unref,
)
from fairsched.core.reclaim cimport Garbage, Pin

cdef enum:
    THRESHOLD = 100

cdef struct Hall:
    Queue queue                  # must be first
    atomic[uintptr_t] morgue     # consumers that nobody can hold any more: pushed by any thread, emptied by any


cdef inline Hall* hall_create(Kind kind, uint32_t levels, Grouping grouping) except NULL:
    cdef Hall* hall = <Hall*> malloc(sizeof(Hall))
    if hall == NULL:
        raise MemoryError()
    hall.morgue.store(0)
    if not queue_init(&hall.queue, kind, levels, grouping, THRESHOLD):
        queue_clear(&hall.queue)
        free(hall)
        raise MemoryError()
    return hall


cdef inline list hall_take_items(Hall* hall):
    """Take everything out: the items, with their references."""
    cdef list items = []
    cdef Queue* q = &hall.queue
    cdef Message* m
    cdef Message* following
    q.closed.store(1)
    queue_lock(q)
    m = order_after(&q.order, NULL)
    while m != NULL:
        m.references += 1
        if m.token != 0:
            item = <object> <PyObject*> <uintptr_t> m.token
            items.append(item)
            m.token = 0
            Py_DECREF(item)
        queue_delete(q, m)
        following = order_after(&q.order, m)
        queue_unref(q, m)
        m = following
    queue_unlock(q)
    return items


cdef inline void hall_free(Hall* hall) noexcept:
    """Nobody is inside, and the items were taken."""
    interest_clear(&hall.queue.interest)  # disposes of consumers that were retired
    morgue_clear(hall)
    queue_clear(&hall.queue)
    free(hall)


# Consumers -----------------------------------------------------------------------------------------------------------


cdef inline QueueConsumer* consumer_create() noexcept:
    """Memory for a consumer, on a cache line; what malloc returned stands before it."""
    cdef void* block = malloc(sizeof(QueueConsumer) + sizeof(void*) + CACHE_LINE)
    cdef uintptr_t address
    if block == NULL:
        return NULL
    address = (<uintptr_t> block + sizeof(void*) + CACHE_LINE - 1) & ~<uintptr_t> (CACHE_LINE - 1)
    (<void**> (address - sizeof(void*)))[0] = block
    return <QueueConsumer*> address


cdef inline void consumer_destroy(QueueConsumer* c) noexcept:
    free((<void**> (<uintptr_t> c - sizeof(void*)))[0])


cdef inline void consumer_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    """Nobody can hold this consumer any more: leave it in the morgue of its queue."""
    cdef Hall* hall = <Hall*> pin.reclaim  # the domain stands first in the queue, and that in the hall
    cdef QueueConsumer* c = <QueueConsumer*> garbage
    cdef uintptr_t head = hall.morgue.load()
    c.next_walker = <QueueConsumer*> head
    while not hall.morgue.compare_exchange_weak(head, <uintptr_t> c):
        c.next_walker = <QueueConsumer*> head


cdef inline void morgue_clear(Hall* hall) noexcept:
    cdef QueueConsumer* c = <QueueConsumer*> hall.morgue.exchange(0)
    cdef QueueConsumer* following
    while c != NULL:
        following = c.next_walker
        consumer_destroy(c)
        c = following
