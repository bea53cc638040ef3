"""What a consumer's look into a fair queue finds, and what the turns lead to that are granted to it then."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from fairsched.core.queue.groups cimport GROUPS_SHARED, groups_assign
from fairsched.core.queue.message cimport Message, message_reject
from fairsched.core.queue.order.order cimport KIND_FAIR
from fairsched.core.queue.queue cimport Offer, queue_clear, queue_init, queue_put
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, call_init
from fairsched.core.queue.turn cimport turn_look, turn_reach, turn_wanted
from fairsched.core.schedule.slots cimport slots_activate, slots_add, slots_first
from fairsched.core.waiting.interest cimport interest_enter, interest_leave

cdef enum Standing:  # of a message
    WANTED
    REJECTED
    FOREIGN  # as its group is

cdef enum:
    CONSUMER = 1
    ANOTHER = 2


cdef int put(Call* call, uint32_t slot, int64_t cost, int standing) except -1:
    cdef Offer offer
    cdef Message* m
    offer.token = 1
    offer.size = cost
    offer.priority = offer.expiry = offer.not_before = 0
    offer.key = b"mine" if standing != FOREIGN else b"not mine"
    offer.key_length = 4 if standing != FOREIGN else 8
    offer.slot = slot
    queue_put(call, &offer, NULL)
    m = call.queue.order.levels[0].tail
    if standing == FOREIGN:
        groups_assign(&call.queue.groups, m, ANOTHER)
    elif standing == REJECTED:
        message_reject(m, CONSUMER)
    return 0


cdef list state_of(Queue* q):
    """The active slots in their order: number, deficit, and whether its turn has begun."""
    cdef uint32_t _i, index = q.order.slots.active_tail
    slots = []
    for _i in range(q.order.slots.active_count):
        index = q.order.slots.slots[index].next
        slot = &q.order.slots.slots[index]
        slots.append((index, slot.deficit, bool(slot.granted)))
    return slots


def look_and_reach(slots, bint granted):
    """What the look finds, and what the turns reach.

    Parameters
    ----------
    slots : list of (quantum, deficit, messages)
        In the order of the active list; messages: (cost, standing). One without messages is in debt.
    granted : bool
        Whether the turn of the first has begun.

    Returns
    -------
    tuple
        The number of the slot whose message was found, or None; the cost of that message; the slots before the look,
        after it, and when the turn has come; and whether it has come to the message found.
    """
    cdef Queue* q = <Queue*> calloc(1, sizeof(Queue))
    cdef QueueConsumer* c = <QueueConsumer*> calloc(1, sizeof(QueueConsumer))
    cdef Call call
    cdef Message* found
    cdef uint32_t index
    cdef bint known = True, reached = False
    if q == NULL or c == NULL or not queue_init(q, KIND_FAIR, 1, GROUPS_SHARED, 100):
        raise MemoryError
    c.id = CONSUMER
    c.walks = True
    call_init(&call, q, 0)
    call.pin = interest_enter(&q.interest)
    for quantum, deficit, messages in slots:
        index = slots_add(&q.order.slots, quantum, False)
        if not messages:
            slots_activate(&q.order.slots, index)
        for cost, standing in messages:
            put(&call, index, cost, standing)
        q.order.slots.slots[index].deficit = deficit
    if granted:
        q.order.slots.slots[slots_first(&q.order.slots)].granted = 1
    before = state_of(q)
    found = turn_look(&call, c, &known)
    between = state_of(q)
    if found != NULL:
        turn_reach(&call, c)
        index = slots_first(&q.order.slots)
        reached = turn_wanted(&call, c, &q.order.slots.slots[index], &known) == found
    result = (
        found.slot if found != NULL else None, found.size if found != NULL else None, before, between, state_of(q),
        reached,
    )
    interest_leave(call.pin)
    queue_clear(q)
    free(q)
    free(c)
    return result
