"""The brokers' side of a simulation: arrivals, deliveries in turn, and settlements.

A queue delivers its messages in turn to the slots with credit; a broker with a limited rate takes messages in turn from
the queues that have a message and a slot to send it to. Both lists are first in, first out: an entry that was served
goes to the tail, and one that cannot be served leaves the list until it can.

Thread safety: none; a simulation belongs to one thread. Complexity: O(1) each, O(log returned) for returned messages;
broker_lose O(messages).
"""

from libc.stdint cimport uint32_t

from fairsched.core.simulation.arrivals cimport arrivals_next
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.link cimport FRAME_CANCEL, FRAME_NACK
from fairsched.core.simulation.messages cimport NO_MESSAGE, messages_give, messages_link, messages_take, messages_unlink
from fairsched.core.simulation.model cimport NO_INDEX, Sim, SimBroker, SimQueue, SimSlot
from fairsched.core.simulation.queue cimport stock_arrive, stock_created, stock_has, stock_return, stock_take_returned
from fairsched.core.simulation.sources cimport source_arrivals, source_broker
from fairsched.core.simulation.variate cimport NEVER

cdef inline void broker_mark(Sim* s, uint32_t index) noexcept nogil:
    """List a broker as able to push, before the clock advances."""
    cdef SimBroker* broker = &s.brokers[index]
    if broker.marked or broker.slot != NO_INDEX:
        return
    broker.marked = 1
    broker.next = NO_INDEX
    if s.first_broker == NO_INDEX:
        s.first_broker = index
    else:
        s.brokers[s.last_broker].next = index
    s.last_broker = index

cdef inline void queue_offer(Sim* s, uint32_t index) noexcept nogil:
    """List a queue with its broker if it has a message and a slot that may want it."""
    cdef SimQueue* queue = &s.queues[index]
    cdef SimBroker* broker = &s.brokers[queue.broker]
    if not queue.listed and queue.first != NO_INDEX and stock_has(&queue.stock):
        queue.listed = 1
        queue.next = NO_INDEX
        if broker.first == NO_INDEX:
            broker.first = index
        else:
            s.queues[broker.last].next = index
        broker.last = index
    if queue.listed:
        broker_mark(s, queue.broker)

cdef inline bint slot_has_credit(const SimSlot* slot) noexcept nogil:
    return slot.attached and (slot.window == 0 or slot.unsettled < slot.window)

cdef inline void slot_offer(Sim* s, uint32_t index) noexcept nogil:
    """List a slot with its queue if it has credit."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimQueue* queue = &s.queues[slot.queue]
    if not slot.listed and slot_has_credit(slot):
        slot.listed = 1
        slot.next = NO_INDEX
        if queue.first == NO_INDEX:
            queue.first = index
        else:
            s.slots[queue.last].next = index
        queue.last = index
    queue_offer(s, slot.queue)

cdef inline uint32_t queue_next_slot(Sim* s, SimQueue* queue) noexcept nogil:
    """Remove the first slot from the list, and return it; NO_INDEX: no slot has credit."""
    cdef uint32_t index
    while queue.first != NO_INDEX:
        index = queue.first
        queue.first = s.slots[index].next
        s.slots[index].listed = 0
        if slot_has_credit(&s.slots[index]):
            return index
    return NO_INDEX

cdef inline uint32_t queue_take(Sim* s, uint32_t queue_index, uint32_t slot_index) noexcept nogil:
    """Move the first message of a queue to a slot's unsettled ones; NO_MESSAGE: memory is exhausted."""
    cdef SimQueue* queue = &s.queues[queue_index]
    cdef SimSlot* slot = &s.slots[slot_index]
    cdef uint32_t message
    if queue.stock.returned:
        message = stock_take_returned(&queue.stock)
        slot.counts.redelivered += 1
    else:
        message = messages_take(&s.messages, queue.stock.fresh, stock_created(&queue.stock, s.now))
        if message == NO_MESSAGE:
            s.exhausted = True
            return NO_MESSAGE
        queue.stock.fresh += 1
    messages_link(&s.messages, &slot.unsettled_first, message)
    slot.unsettled += 1
    return message

cdef inline void queue_arrival(Sim* s, uint32_t index) noexcept nogil:
    """Process an event: a message arrives in a queue."""
    cdef SimQueue* queue = &s.queues[index]
    if not stock_arrive(&queue.stock, s.now):
        s.exhausted = True
    queue.came += 1
    eventtree_set(&s.calendar, source_arrivals(s, index), arrivals_next(&queue.arrivals, s.now, &queue.random))
    queue_offer(s, index)

cdef inline void queue_take_back(Sim* s, uint32_t queue, uint32_t message) noexcept nogil:
    """Return a message to its place in the queue."""
    if not stock_return(&s.queues[queue].stock, s.messages.records[message].sequence, message):
        s.exhausted = True

cdef inline void broker_settle(Sim* s, int kind, uint32_t index, uint32_t message) noexcept nogil:
    """Process a settlement, or the end of a subscription, at the broker."""
    cdef SimSlot* slot = &s.slots[index]
    if kind == FRAME_CANCEL:
        slot.attached = 0
        s.queues[slot.queue].consumers -= 1
        return
    messages_unlink(&s.messages, &slot.unsettled_first, message)
    slot.unsettled -= 1
    if kind == FRAME_NACK:
        queue_take_back(s, slot.queue, message)
    else:
        messages_give(&s.messages, message)
    slot_offer(s, index)

cdef inline void broker_lose(Sim* s, uint32_t index) noexcept nogil:
    """Return the unsettled messages of a slot whose consumer has failed."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimBroker* broker = &s.brokers[s.queues[slot.queue].broker]
    cdef uint32_t message
    if broker.slot == index:
        broker.slot = NO_INDEX
        eventtree_set(&s.calendar, source_broker(s, s.queues[slot.queue].broker), NEVER)
        broker_mark(s, s.queues[slot.queue].broker)
    while slot.unsettled_first != NO_MESSAGE:
        message = slot.unsettled_first
        messages_unlink(&s.messages, &slot.unsettled_first, message)
        queue_take_back(s, slot.queue, message)
    slot.unsettled = slot.coming = 0
    s.queues[slot.queue].consumers -= slot.attached
    slot.attached = 0
    queue_offer(s, slot.queue)
