"""How a message comes into a pull queue: what is offered, at what time, and the wait for room."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

from fairsched._numbers cimport as_int64, natural
from fairsched._options cimport as_lifetime, as_ns, time_after
from fairsched._pullqueue cimport PullQueue
from fairsched._visit cimport Visit, visit_ask, visit_enter_at, visit_leave
from fairsched._waitingroom cimport Seat
from fairsched.core.interest cimport interest_leave
from fairsched.core.message cimport Message
from fairsched.core.overflow cimport OVERFLOW_FLOW
from fairsched.core.queue cimport (
    PUT_CLOSED, PUT_DONE, PUT_FULL, PUT_NO_MEMORY, Admittance, Offer, queue_put,
)
from fairsched.core.queuering cimport queue_trim
from fairsched.core.queuestate cimport Queue
from fairsched.core.queuewake cimport queue_offer

import queue

from fairsched.errors import ShutDown


cdef int put_message(
    PullQueue q, object item, object priority, object key, object slot, object size, object ttl, object not_before,
    object block, object timeout
) except -1:
    """Put it, or raise why not."""
    cdef Offer offer
    cdef bytes data = None
    cdef Admittance done
    offer.token = <uint64_t> <uintptr_t> <PyObject*> item
    offer.priority = as_int64(priority, "priority", "an integer") if priority is not 4 else 4
    offer.size = 0 if size is 0 else natural(size, "size")
    offer.expiry = offer.not_before = 0
    offer.slot = 0
    offer.key = NULL
    offer.key_length = 0
    if slot is not None or q.slot_of:
        offer.slot = find_slot(q, slot)
    if q.keyed:
        if key is None and q.key is not None:
            key = q.key(item)
        if key is not None:
            data = key_bytes(key)
            offer.key = PyBytes_AS_STRING(data)
            offer.key_length = PyBytes_GET_SIZE(data)
    done = offer_message(q, &offer, item, ttl, not_before)
    if done == PUT_FULL and q.hall.queue.overflow.policy == OVERFLOW_FLOW:
        done = wait_for_room(q, &offer, item, ttl, not_before, block, timeout)
    if done == PUT_FULL:
        raise queue.Full(fullness(q, offer.size))
    if done == PUT_CLOSED:
        raise ShutDown("the queue is closed")
    if done == PUT_NO_MEMORY:
        raise MemoryError()
    return 0


cdef bytes key_bytes(object key):
    """What stands for a key: its text, or the bytes that it is."""
    if isinstance(key, bytes):
        return key
    return str(key).encode("utf-8", "surrogatepass")


cdef Admittance offer_message(
    PullQueue q, Offer* offer, object item, object ttl, object not_before
) except <Admittance> 0:
    """Put what is offered; the clock is read now."""
    cdef Visit visit
    cdef Message* linked = NULL
    cdef int64_t now = 0
    cdef int64_t life = q.ttl
    cdef Admittance done
    if ttl is not None:
        life = as_lifetime(ttl, "ttl")
        if q.ttl >= 0:
            life = min(life, q.ttl)
    if not_before is not None:
        offer.not_before = as_ns(not_before, "not_before")
    if life >= 0 or not_before is not None or q.hall.queue.timed.load() != 0:
        now = q.now()
    if life >= 0:
        offer.expiry = time_after(now, life) or 1
    visit_enter_at(&visit, q, now)
    Py_INCREF(item)
    if q.filters.load() == 0:
        done = queue_put(&visit.call, offer, NULL)
    else:
        done = queue_put(&visit.call, offer, &linked)
    if done != PUT_DONE:
        Py_DECREF(item)
        interest_leave(visit.call.pin)  # nothing has happened that anybody waits for
        return done
    if linked != NULL:
        visit_ask(&visit, q, linked)
        queue_offer(&visit.call, linked, True)
        queue_trim(&visit.call, visit.call.newest)
    visit_leave(&visit, q)
    return done


cdef uint32_t find_slot(PullQueue q, object slot) except? 0xFFFFFFFF:
    if not q.slot_of:
        raise ValueError(f"only a fair queue has slots, got slot {slot!r}")
    found = q.slot_of.get(slot)
    if found is None:
        raise KeyError(f"no slot is named {slot!r}")
    return found


cdef str fullness(PullQueue q, int64_t size):
    cdef Queue* engine = &q.hall.queue
    return (
        f"a message of {size} bytes does not fit: {engine.depth.load()} messages of at most "
        f"{max(engine.overflow.max_depth, 0) or 'any number'}, {engine.bytes.load()} bytes of at most "
        f"{max(engine.overflow.max_bytes, 0) or '2**63 - 1'}"
    )


cdef Admittance wait_for_room(
    PullQueue q, Offer* offer, object item, object ttl, object not_before, object block, object timeout
) except <Admittance> 0:
    """Put what is offered once there is room for it."""
    cdef Admittance done = PUT_FULL
    cdef bint woken = True
    deadline = q.room.deadline(block, timeout)
    while block and done == PUT_FULL and woken:
        with cython.critical_section(q):
            woken = wait_in_room(q, offer, item, ttl, not_before, deadline, &done)
    return done


cdef bint wait_in_room(
    PullQueue q, Offer* offer, object item, object ttl, object not_before, object deadline, Admittance* done
) except -1:
    """Put it, or wait for room, in one stay: whoever makes room meanwhile sees that somebody waits."""
    cdef Seat* seat = q.room.sit(0, 1)
    cdef bint woken = True
    q.stopped.fetch_add(1)
    try:
        done[0] = offer_message(q, offer, item, ttl, not_before)
        if done[0] == PUT_FULL:
            woken = q.room.wait(seat, deadline)
    finally:
        q.stopped.fetch_sub(1)
        q.room.leave(seat)  # it may have been claimed meanwhile: its permit is under way, and collected
    return woken
