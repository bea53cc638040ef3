"""The consumers' side of a simulation: buffers, the fair order, CoDel, and the workers.

The schedule is the engine's (schedule/dwrr.pxd), and so is CoDel (delay/codel.pxd), which decides about each message
taken until one is not returned. The cost of a returned message is refunded, since it was not served.

Thread safety: none; a simulation belongs to one thread. Complexity: O(1) and O(log sources) each; leaving and failing
O(messages).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fairsched.core.delay.codel cimport codel_should_return, codel_spare
from fairsched.core.delay.histogram cimport histogram_add
from fairsched.core.schedule.anticipation cimport anticipation_end_wait, anticipation_left
from fairsched.core.schedule.dwrr cimport dwrr_hold, dwrr_pop, dwrr_push, dwrr_settle, dwrr_turn
from fairsched.core.schedule.slots cimport (
    AWAITED_SLOT, HELD, NOT_AWAITED, NOT_HELD, Slot, SlotTable, slots_clear, slots_first,
)
from fairsched.core.simulation.broker cimport broker_settle
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.link cimport FRAME_ACK, FRAME_NACK, FRAME_REJECT, simlink_direct
from fairsched.core.simulation.messages cimport NO_MESSAGE, SimMessage
from fairsched.core.simulation.model cimport NO_INDEX, RECORD_COLUMNS, Sim, SimConsumer, SimSlot, SimWorker
from fairsched.core.simulation.queue cimport stock_has
from fairsched.core.simulation.sources cimport link_of, link_upward, sim_send_upward, source_patience, source_worker
from fairsched.core.simulation.variate cimport NEVER, variate_draw

cdef inline void consumer_mark(Sim* s, uint32_t index) noexcept nogil:
    """List a consumer that may have work, before the clock advances."""
    cdef SimConsumer* consumer = &s.consumers[index]
    if consumer.marked or consumer.idle == NO_INDEX:
        return
    consumer.marked = 1
    consumer.next = NO_INDEX
    if s.first_consumer == NO_INDEX:
        s.first_consumer = index
    else:
        s.consumers[s.last_consumer].next = index
    s.last_consumer = index

cdef inline void client_buffer(Sim* s, uint32_t index, uint32_t message) noexcept nogil:
    """Add an arrived message to the schedule."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimConsumer* consumer = &s.consumers[slot.consumer]
    cdef SimMessage* record = &s.messages.records[message]
    record.arrived = s.now
    record.ahead = <uint32_t> consumer.table.queued
    if not dwrr_push(&consumer.table, index - consumer.first_slot, message, s.queues[slot.queue].cost):
        s.exhausted = True
    consumer_mark(s, slot.consumer)

cdef inline void client_return(Sim* s, uint32_t index, uint32_t message, int kind) noexcept nogil:
    """Return a message to the broker."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimMessage* record = &s.messages.records[message]
    record.returns += 1
    slot.counts.returned += 1
    if record.returns > slot.most_returns:
        slot.most_returns = record.returns
    sim_send_upward(s, kind, index, message)

cdef inline void client_receive(Sim* s, uint32_t index, uint32_t message) noexcept nogil:
    """Receive a delivery at a slot."""
    cdef SimSlot* slot = &s.slots[index]
    slot.coming -= 1
    if s.consumers[slot.consumer].leaving:
        sim_send_upward(s, FRAME_NACK, index, message)
    else:
        client_buffer(s, index, message)

cdef inline bint client_sheds(Sim* s, SimConsumer* consumer, uint32_t index, uint32_t message) noexcept nogil:
    """Return whether CoDel returns a message just taken."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimMessage* record = &s.messages.records[message]
    cdef const Slot* place = &consumer.table.slots[index - consumer.first_slot]
    if not consumer.sheds_alone and s.queues[slot.queue].consumers <= 1:
        return False
    if not codel_should_return(
        &slot.law, &consumer.law, record.arrived, s.now, <int64_t> (place.pushed - place.served)
    ):
        return False
    if record.returns >= consumer.budget:
        codel_spare(&slot.law, &consumer.law)
        return False
    return True

cdef inline bint client_waits(Sim* s, uint32_t number) noexcept nogil:
    """Start or continue to wait for the slot whose turn it is; False: the longest wait is over."""
    cdef int64_t left = anticipation_left(&s.consumers[number].table, s.now)
    eventtree_set(&s.calendar, source_patience(s, number), s.now + left if left else NEVER)
    return left > 0

cdef inline void client_stops_waiting(Sim* s, uint32_t number) noexcept nogil:
    """Count the time of a wait that has ended with a message."""
    cdef SlotTable* table = &s.consumers[number].table
    if table.awaited_since != NOT_AWAITED and table.active_count and table.slots[slots_first(table)].head != NULL:
        anticipation_end_wait(table, s.now)
        eventtree_set(&s.calendar, source_patience(s, number), NEVER)

cdef inline void client_patience(Sim* s, uint32_t number) noexcept nogil:
    """Process an event: a consumer has waited long enough for a slot."""
    eventtree_set(&s.calendar, source_patience(s, number), NEVER)
    consumer_mark(s, number)

cdef inline void client_hold(Sim* s, SimConsumer* consumer, uint32_t local) noexcept nogil:
    """Hold the slot that is served next if more messages are at the broker or in flight."""
    cdef SimSlot* slot = &s.slots[consumer.first_slot + local]
    cdef int state = HELD if slot.coming > 0 or stock_has(&s.queues[slot.queue].stock) else NOT_HELD
    if consumer.table.slots[local].held != state:
        dwrr_hold(&consumer.table, local, state)

cdef inline uint32_t client_take(Sim* s, uint32_t number, uint32_t* index) noexcept nogil:
    """Take the next message to handle; NO_MESSAGE: there is none, or the consumer waits for a slot."""
    cdef SimConsumer* consumer = &s.consumers[number]
    cdef uint32_t local
    cdef uint64_t token = 0
    while consumer.table.queued:
        local = dwrr_turn(&consumer.table)
        if local == AWAITED_SLOT:
            if client_waits(s, number):
                return NO_MESSAGE
            continue
        index[0] = consumer.first_slot + local
        if consumer.holds:
            client_hold(s, consumer, local)
        dwrr_pop(&consumer.table, &token)
        if not consumer.sheds or not client_sheds(s, consumer, index[0], <uint32_t> token):
            return <uint32_t> token
        dwrr_settle(&consumer.table, local, -s.queues[s.slots[index[0]].queue].cost)
        client_return(s, index[0], <uint32_t> token, FRAME_REJECT if consumer.dead_letters else FRAME_NACK)
    return NO_MESSAGE

cdef inline void client_start(Sim* s, SimConsumer* consumer, uint32_t index, uint32_t message) noexcept nogil:
    """Start a message on an idle worker."""
    cdef SimSlot* slot = &s.slots[index]
    cdef SimMessage* record = &s.messages.records[message]
    cdef uint32_t number = consumer.idle
    cdef SimWorker* worker = &s.workers[number]
    consumer.idle = worker.next
    worker.slot = index
    worker.message = message
    worker.busy_from = s.now
    record.started = s.now
    slot.counts.waited += s.now - record.arrived
    if not (
        histogram_add(&slot.wait, s.now - record.arrived)
        and histogram_add(&slot.latency, s.now - record.sent)
        and histogram_add(&slot.age, s.now - record.created)
    ):
        s.exhausted = True
    eventtree_set(&s.calendar, source_worker(s, number), s.now + variate_draw(&slot.service, &slot.random))

cdef inline void client_work(Sim* s, uint32_t number) noexcept nogil:
    """Start messages on all idle workers."""
    cdef SimConsumer* consumer = &s.consumers[number]
    cdef uint32_t index = NO_INDEX
    cdef uint32_t message
    client_stops_waiting(s, number)
    while consumer.idle != NO_INDEX and consumer.present and not consumer.leaving and not s.exhausted:
        message = client_take(s, number, &index)
        if message == NO_MESSAGE:
            return
        client_start(s, consumer, index, message)

cdef inline void sim_record(Sim* s, const SimWorker* worker) noexcept nogil:
    """Store the history of a handled message, if it is one of the first."""
    cdef int64_t* row = s.records + RECORD_COLUMNS * s.record_count
    cdef const SimMessage* record = &s.messages.records[worker.message]
    row[0] = worker.slot
    row[1] = record.sequence
    row[2] = record.created
    row[3] = record.sent
    row[4] = record.arrived
    row[5] = record.ahead
    row[6] = record.started
    row[7] = s.now
    row[8] = record.returns
    s.record_count += 1

cdef inline void worker_rest(Sim* s, uint32_t number) noexcept nogil:
    """Make a worker idle."""
    cdef SimWorker* worker = &s.workers[number]
    cdef SimConsumer* consumer = &s.consumers[worker.consumer]
    s.slots[worker.slot].counts.busy += s.now - worker.busy_from
    worker.busy_from = NEVER
    worker.next = consumer.idle
    consumer.idle = number
    eventtree_set(&s.calendar, source_worker(s, number), NEVER)

cdef inline void client_depart(Sim* s, SimConsumer* consumer) noexcept nogil:
    """End the presence of a consumer, if none of its workers is busy."""
    cdef uint32_t number
    for number in range(consumer.first_worker, consumer.first_worker + consumer.workers):
        if s.workers[number].busy_from != NEVER:
            return
    consumer.was_present += s.now - consumer.joined
    consumer.present = 0
    slots_clear(&consumer.table)

cdef inline void client_acknowledge(Sim* s, uint32_t slot, uint32_t message) noexcept nogil:
    """Acknowledge a message. Without a delay and with nothing in flight, the broker gets it immediately."""
    if simlink_direct(link_upward(s, link_of(s, &s.slots[slot]))):
        s.events += 1
        broker_settle(s, FRAME_ACK, slot, message)
    else:
        sim_send_upward(s, FRAME_ACK, slot, message)

cdef inline void client_finish(Sim* s, uint32_t number) noexcept nogil:
    """Process an event: a worker has handled its message."""
    cdef SimWorker* worker = &s.workers[number]
    cdef SimSlot* slot = &s.slots[worker.slot]
    cdef SimMessage* record = &s.messages.records[worker.message]
    worker_rest(s, number)
    slot.counts.served += 1
    slot.counts.repeated += record.handled
    record.handled = 1
    s.handled += 1
    if not histogram_add(&slot.total, s.now - record.created):
        s.exhausted = True
    if s.record_count < s.record_room:
        sim_record(s, worker)
    client_acknowledge(s, worker.slot, worker.message)
    if s.consumers[worker.consumer].leaving:
        client_depart(s, &s.consumers[worker.consumer])
    consumer_mark(s, worker.consumer)
