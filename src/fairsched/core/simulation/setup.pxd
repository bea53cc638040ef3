"""Allocate and free a simulation's arrays; the caller fills them.

Thread safety: none; a simulation belongs to one thread. Complexity: O(size).
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from fairsched.core.delay.histogram cimport histogram_clear, histogram_init
from fairsched.core.schedule.slots cimport slots_clear, slots_init
from fairsched.core.simulation.eventtree cimport eventtree_build, eventtree_clear, eventtree_init, eventtree_set
from fairsched.core.simulation.link cimport simlink_clear, simlink_init
from fairsched.core.simulation.link cimport SimLink
from fairsched.core.simulation.messages cimport NO_MESSAGE, messages_clear, messages_init
from fairsched.core.simulation.model cimport (
    FRAME_COLUMNS, NO_INDEX, RECORD_COLUMNS, Sim, SimBroker, SimChange, SimConsumer, SimQueue, SimSlot, SimWorker,
)
from fairsched.core.simulation.queue cimport stock_clear, stock_init
from fairsched.core.simulation.sources cimport source_count
from fairsched.core.simulation.variate cimport NEVER

cdef inline void sim_init(Sim* s) noexcept nogil:
    """Make a simulation empty, so that it may be cleared."""
    s.queues = NULL
    s.slots = NULL
    s.workers = NULL
    s.consumers = NULL
    s.brokers = NULL
    s.links = NULL
    s.changes = NULL
    s.records = NULL
    s.frames = NULL
    s.queue_count = s.slot_count = s.worker_count = s.consumer_count = s.broker_count = s.link_count = 0
    s.change_count = s.change_next = 0
    s.now = s.handled = s.events = 0
    s.end = s.limit = s.counted_from = NEVER
    s.exhausted = False
    s.first_broker = s.last_broker = s.first_consumer = s.last_consumer = NO_INDEX
    s.record_count = s.record_room = s.frame_count = s.frame_room = 0
    s.frame_gap = s.frame_next = NEVER
    eventtree_init(&s.calendar)
    messages_init(&s.messages)

cdef inline void slot_init(SimSlot* slot) noexcept nogil:
    slot.unsettled_first = NO_MESSAGE
    slot.next = NO_INDEX
    histogram_init(&slot.wait)
    histogram_init(&slot.latency)
    histogram_init(&slot.age)
    histogram_init(&slot.total)

cdef inline void sim_init_parts(Sim* s) noexcept nogil:
    """Give every part its empty state; calloc has zeroed the memory."""
    cdef uint32_t i
    for i in range(s.queue_count):
        s.queues[i].first = s.queues[i].last = s.queues[i].next = NO_INDEX
        stock_init(&s.queues[i].stock, 0, False)
    for i in range(s.slot_count):
        slot_init(&s.slots[i])
    for i in range(s.worker_count):
        s.workers[i].busy_from = NEVER
        s.workers[i].next = NO_INDEX
    for i in range(s.consumer_count):
        slots_init(&s.consumers[i].table)
        s.consumers[i].idle = NO_INDEX
    for i in range(s.broker_count):
        s.brokers[i].first = s.brokers[i].last = s.brokers[i].slot = NO_INDEX
    for i in range(2 * s.link_count):
        simlink_init(&s.links[i], 0)

cdef inline bint sim_allocate(Sim* s) noexcept nogil:
    """Allocate the arrays by the counts; False: memory is exhausted."""
    s.link_count = s.consumer_count * s.broker_count
    s.queues = <SimQueue*> calloc(s.queue_count, sizeof(SimQueue))
    s.slots = <SimSlot*> calloc(s.slot_count, sizeof(SimSlot))
    s.workers = <SimWorker*> calloc(s.worker_count, sizeof(SimWorker))
    s.consumers = <SimConsumer*> calloc(s.consumer_count, sizeof(SimConsumer))
    s.brokers = <SimBroker*> calloc(s.broker_count, sizeof(SimBroker))
    s.links = <SimLink*> calloc(2 * <size_t> s.link_count, sizeof(SimLink))
    s.changes = <SimChange*> calloc(s.change_count, sizeof(SimChange))
    s.records = <int64_t*> calloc(RECORD_COLUMNS * <size_t> s.record_room + 1, sizeof(int64_t))
    s.frames = <int64_t*> calloc(
        <size_t> s.frame_room * (s.queue_count + FRAME_COLUMNS * <size_t> s.slot_count) + 1, sizeof(int64_t)
    )
    if (
        s.queues == NULL or s.slots == NULL or s.workers == NULL or s.consumers == NULL or s.brokers == NULL
        or s.links == NULL or s.changes == NULL or s.records == NULL or s.frames == NULL
    ):
        return False
    sim_init_parts(s)
    return eventtree_build(&s.calendar, source_count(s))

cdef inline void sim_clear(Sim* s) noexcept nogil:
    """Free everything."""
    cdef uint32_t i
    for i in range(s.queue_count if s.queues != NULL else 0):
        stock_clear(&s.queues[i].stock)
    for i in range(s.slot_count if s.slots != NULL else 0):
        histogram_clear(&s.slots[i].wait)
        histogram_clear(&s.slots[i].latency)
        histogram_clear(&s.slots[i].age)
        histogram_clear(&s.slots[i].total)
    for i in range(s.consumer_count if s.consumers != NULL else 0):
        slots_clear(&s.consumers[i].table)
    for i in range(2 * s.link_count if s.links != NULL else 0):
        simlink_clear(&s.links[i])
    free(s.queues)
    free(s.slots)
    free(s.workers)
    free(s.consumers)
    free(s.brokers)
    free(s.links)
    free(s.changes)
    free(s.records)
    free(s.frames)
    eventtree_clear(&s.calendar)
    messages_clear(&s.messages)
    sim_init(s)
