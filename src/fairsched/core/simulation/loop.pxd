"""The event loop of a simulation: discrete events with a virtual clock, on the engine's own schedule and CoDel.

At each time, all events are processed first, in the order of their sources (sources.pxd); then the brokers push; then
idle workers take messages. So a worker that becomes idle sees whatever arrives or is settled at the same time. A
message with a handler time of 0 repeats these steps at the same time.

Figures: counters run from the start; their values at the end of the warm-up are stored, and histograms start then. The
timeline has rows of counters at regular intervals; when it is full, every second row is dropped and the interval
doubles. So memory does not grow with simulated time.

Thread safety: none; a simulation belongs to one thread. Complexity: O(log sources) per event, and O(queues + slots +
workers) per row of the timeline.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from fairsched.core.delay.histogram cimport histogram_clear
from fairsched.core.simulation.broker cimport queue_arrival
from fairsched.core.simulation.changes cimport queue_start, sim_change
from fairsched.core.simulation.client cimport client_finish, client_patience, client_work
from fairsched.core.simulation.eventtree cimport eventtree_first
from fairsched.core.simulation.model cimport FRAME_COLUMNS, NO_INDEX, Sim, SimConsumer, SimSlot
from fairsched.core.simulation.queue cimport stock_ready
from fairsched.core.simulation.traffic cimport broker_dispatch, broker_pushed, link_delivers, link_settles
from fairsched.core.simulation.variate cimport NEVER

cdef inline void sim_event(Sim* s, uint32_t source) noexcept nogil:
    """Process one event."""
    s.events += 1
    if source == 0:
        sim_change(s)
        return
    source -= 1
    if source < s.queue_count:
        queue_arrival(s, source)
        return
    source -= s.queue_count
    if source < s.link_count:
        link_settles(s, source)
        return
    source -= s.link_count
    if source < s.worker_count:
        client_finish(s, source)
        return
    source -= s.worker_count
    if source < s.link_count:
        link_delivers(s, source)
        return
    source -= s.link_count
    if source < s.broker_count:
        broker_pushed(s, source)
        return
    client_patience(s, source - s.broker_count)

cdef inline void sim_book_work(Sim* s) noexcept nogil:
    """Update the busy time of all slots."""
    cdef uint32_t number
    for number in range(s.worker_count):
        if s.workers[number].busy_from != NEVER:
            s.slots[s.workers[number].slot].counts.busy += s.now - s.workers[number].busy_from
            s.workers[number].busy_from = s.now

cdef inline void sim_count_from_now(Sim* s) noexcept nogil:
    """Store the counters and clear the histograms, at the end of the warm-up."""
    cdef uint32_t index
    cdef SimSlot* slot
    sim_book_work(s)
    for index in range(s.slot_count):
        slot = &s.slots[index]
        slot.before = slot.counts
        slot.most_returns = 0
        histogram_clear(&slot.wait)
        histogram_clear(&slot.latency)
        histogram_clear(&slot.age)
        histogram_clear(&slot.total)
    for index in range(s.consumer_count):
        s.consumers[index].was_present = 0
        s.consumers[index].joined = s.now
    for index in range(s.queue_count):
        s.queues[index].came = 0
    s.counted_from = NEVER

cdef inline int64_t frame_size(const Sim* s) noexcept nogil:
    """Return the number of figures in a row of the timeline."""
    return s.queue_count + FRAME_COLUMNS * <int64_t> s.slot_count

cdef inline void frames_thin(Sim* s) noexcept nogil:
    """Drop every second row."""
    cdef int64_t size = frame_size(s)
    cdef int64_t i
    s.frame_count //= 2
    s.frame_gap *= 2
    for i in range(s.frame_count):
        memcpy(s.frames + i * size, s.frames + (2 * i + 1) * size, size * sizeof(int64_t))
    s.frame_next = (s.frame_count + 1) * s.frame_gap

cdef inline void sim_frame(Sim* s) noexcept nogil:
    """Write a row of the timeline."""
    cdef int64_t* row
    cdef uint32_t index
    cdef SimSlot* slot
    cdef SimConsumer* consumer
    if s.frame_count == s.frame_room:
        frames_thin(s)
        if s.frame_next > s.now:
            return
    row = s.frames + s.frame_count * frame_size(s)
    sim_book_work(s)
    for index in range(s.queue_count):
        row[index] = stock_ready(&s.queues[index].stock)
    row += s.queue_count
    for index in range(s.slot_count):
        slot = &s.slots[index]
        consumer = &s.consumers[slot.consumer]
        row[0] = slot.counts.served
        row[1] = slot.counts.returned
        row[2] = slot.counts.waited
        row[3] = slot.counts.busy
        row[4] = 0
        if consumer.present:
            row[4] = <int64_t> (
                consumer.table.slots[index - consumer.first_slot].pushed
                - consumer.table.slots[index - consumer.first_slot].served
            )
        row += FRAME_COLUMNS
    s.frame_count += 1
    s.frame_next += s.frame_gap

cdef inline void sim_advance(Sim* s, int64_t time) noexcept nogil:
    """Advance the clock; on the way, end the warm-up and write rows of the timeline."""
    while s.counted_from < time or s.frame_next < time:
        if s.counted_from <= s.frame_next:
            s.now = s.counted_from
            sim_count_from_now(s)
        else:
            s.now = s.frame_next
            sim_frame(s)
    s.now = time

cdef inline void sim_settle_down(Sim* s) noexcept nogil:
    """Finish the current time after its events: brokers push, then workers start."""
    cdef uint32_t index
    if s.first_broker != NO_INDEX:
        index = s.first_broker
        s.first_broker = s.brokers[index].next
        s.brokers[index].marked = 0
        broker_dispatch(s, index)
    else:
        index = s.first_consumer
        s.first_consumer = s.consumers[index].next
        s.consumers[index].marked = 0
        client_work(s, index)

cdef inline void sim_start(Sim* s) noexcept nogil:
    """Schedule the first events."""
    cdef uint32_t index
    for index in range(s.queue_count):
        s.queues[index].came = 0 if s.queues[index].stock.endless else s.queues[index].stock.depth
        queue_start(s, index)
    if s.counted_from == 0:
        s.counted_from = NEVER

cdef inline void sim_finish(Sim* s) noexcept nogil:
    """Advance the clock to the end, if there is one, since no events are left."""
    if s.end >= NEVER:
        s.end = s.now
    sim_advance(s, s.end)
    if s.frame_next == s.end:
        sim_frame(s)
    sim_book_work(s)

cdef inline bint sim_run(Sim* s, int64_t steps) noexcept nogil:
    """Process at most `steps` events; True: the simulation has ended, or memory is exhausted."""
    cdef uint32_t source
    cdef int64_t time
    while s.handled < s.limit and not s.exhausted:
        source = eventtree_first(&s.calendar)
        time = s.calendar.times[source]
        if time > s.now:
            if s.first_broker != NO_INDEX or s.first_consumer != NO_INDEX:
                sim_settle_down(s)
                continue
            if time > s.end or time >= NEVER:
                sim_finish(s)
                return True
            if steps <= 0:
                return False
            sim_advance(s, time)
        sim_event(s, source)
        steps -= 1
    sim_book_work(s)
    return True
