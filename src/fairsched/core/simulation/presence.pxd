"""Consumers that join, leave and fail during a simulation.

The broker knows at once of a consumer that joins. A consumer that leaves returns the messages it has not started, which
takes the delay of the link, and messages that arrive in the meantime; its workers finish. A consumer that fails loses
everything in flight in both directions, including acknowledgements, and the broker knows at once: all unsettled
messages return to their places, and those already handled are handled again.

Thread safety: none; a simulation belongs to one thread. Complexity: O(slots + messages).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.delay.codel cimport codel_reset
from fairsched.core.schedule.anticipation cimport anticipation_set
from fairsched.core.schedule.slots cimport NO_SLOT, slots_add, slots_clear, slots_unlink_head
from fairsched.core.simulation.broker cimport broker_lose, queue_take, slot_has_credit, slot_offer
from fairsched.core.simulation.client cimport client_buffer, client_depart, worker_rest
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.link cimport FRAME_CANCEL, FRAME_NACK
from fairsched.core.simulation.messages cimport NO_MESSAGE, SimMessage
from fairsched.core.simulation.model cimport NO_INDEX, Sim, SimConsumer, SimSlot
from fairsched.core.simulation.queue cimport stock_has
from fairsched.core.simulation.sources cimport link_downward, link_of, sim_cut, sim_send_upward, source_patience
from fairsched.core.simulation.variate cimport NEVER

cdef inline void client_fill(Sim* s, uint32_t index) noexcept nogil:
    """Fill a window, as if the messages had been sent one delay earlier."""
    cdef SimSlot* slot = &s.slots[index]
    cdef int64_t delay = link_downward(s, link_of(s, slot)).delay
    cdef uint32_t message
    cdef SimMessage* record
    while slot_has_credit(slot) and stock_has(&s.queues[slot.queue].stock):
        message = queue_take(s, slot.queue, index)
        if message == NO_MESSAGE:
            return
        record = &s.messages.records[message]
        record.sent = s.now - delay
        record.created = min(record.created, record.sent)
        client_buffer(s, index, message)

cdef inline void client_subscribe(Sim* s, SimConsumer* consumer, uint32_t index) noexcept nogil:
    """Attach a slot to its queue."""
    cdef SimSlot* slot = &s.slots[index]
    if slots_add(&consumer.table, slot.quantum, False) == NO_SLOT:
        s.exhausted = True
        return
    codel_reset(&slot.law)
    slot.attached = 1
    s.queues[slot.queue].consumers += 1
    if consumer.full:
        client_fill(s, index)

cdef inline void client_join(Sim* s, uint32_t number) noexcept nogil:
    """Subscribe a consumer to all its queues."""
    cdef SimConsumer* consumer = &s.consumers[number]
    cdef uint32_t index
    consumer.present = 1
    consumer.leaving = 0
    consumer.joined = s.now
    anticipation_set(&consumer.table, consumer.patience)
    for index in range(consumer.first_slot, consumer.first_slot + consumer.slots):
        client_subscribe(s, consumer, index)
    for index in range(consumer.first_slot, consumer.first_slot + consumer.slots):
        slot_offer(s, index)

cdef inline void client_leave(Sim* s, uint32_t number) noexcept nogil:
    """Cancel a consumer's subscriptions, and return the messages that no worker has started."""
    cdef SimConsumer* consumer = &s.consumers[number]
    cdef uint32_t local
    cdef uint64_t token
    consumer.leaving = 1
    eventtree_set(&s.calendar, source_patience(s, number), NEVER)
    for local in range(consumer.slots):
        sim_send_upward(s, FRAME_CANCEL, consumer.first_slot + local, NO_MESSAGE)
        while consumer.table.slots[local].head != NULL:
            token = slots_unlink_head(&consumer.table, &consumer.table.slots[local])
            sim_send_upward(s, FRAME_NACK, consumer.first_slot + local, <uint32_t> token)
    client_depart(s, consumer)

cdef inline void client_fail(Sim* s, uint32_t number) noexcept nogil:
    """Fail a consumer: its messages in flight and in progress are lost."""
    cdef SimConsumer* consumer = &s.consumers[number]
    cdef uint32_t index
    for index in range(number * s.broker_count, (number + 1) * s.broker_count):
        sim_cut(s, index)
    for index in range(consumer.first_worker, consumer.first_worker + consumer.workers):
        if s.workers[index].busy_from != NEVER:
            worker_rest(s, index)
    eventtree_set(&s.calendar, source_patience(s, number), NEVER)
    client_depart(s, consumer)
    for index in range(consumer.first_slot, consumer.first_slot + consumer.slots):
        broker_lose(s, index)
