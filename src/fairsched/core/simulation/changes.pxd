"""Changes during a simulation at given times: consumers, links, services, windows, rates, arrivals.

Thread safety: none; a simulation belongs to one thread. Complexity: O(1), except joining, leaving and failing.
"""

from libc.stdint cimport uint32_t

from fairsched.core.schedule.dwrr cimport dwrr_set_quantum
from fairsched.core.simulation.arrivals cimport arrivals_next, arrivals_start
from fairsched.core.simulation.broker cimport slot_offer
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.model cimport (
    CHANGE_ARRIVALS, CHANGE_DELAY, CHANGE_FAIL, CHANGE_GAP, CHANGE_JOIN, CHANGE_LEAVE, CHANGE_QUANTUM, CHANGE_SERVICE,
    CHANGE_WINDOW, Sim, SimChange, SimConsumer, SimQueue, SimSlot,
)
from fairsched.core.simulation.presence cimport client_fail, client_join, client_leave
from fairsched.core.simulation.sources cimport link_downward, link_upward, source_arrivals
from fairsched.core.simulation.variate cimport NEVER

cdef inline void queue_start(Sim* s, uint32_t index) noexcept nogil:
    """Start a queue's arrival process."""
    cdef SimQueue* queue = &s.queues[index]
    arrivals_start(&queue.arrivals, s.now, &queue.random)
    eventtree_set(&s.calendar, source_arrivals(s, index), arrivals_next(&queue.arrivals, s.now, &queue.random))

cdef inline void slot_set_quantum(Sim* s, uint32_t index, const SimChange* change) noexcept nogil:
    cdef SimSlot* slot = &s.slots[index]
    cdef SimConsumer* consumer = &s.consumers[slot.consumer]
    slot.quantum = change.amount
    if consumer.present:
        dwrr_set_quantum(&consumer.table, index - consumer.first_slot, change.amount)

cdef inline void change_apply(Sim* s, const SimChange* change) noexcept nogil:
    cdef uint32_t target = change.target
    if change.kind == CHANGE_JOIN:
        client_join(s, target)
    elif change.kind == CHANGE_LEAVE:
        client_leave(s, target)
    elif change.kind == CHANGE_FAIL:
        client_fail(s, target)
    elif change.kind == CHANGE_DELAY:
        link_upward(s, target).delay = link_downward(s, target).delay = change.amount
    elif change.kind == CHANGE_SERVICE:
        s.slots[target].service = change.service
    elif change.kind == CHANGE_WINDOW:
        s.slots[target].window = change.amount
        slot_offer(s, target)
    elif change.kind == CHANGE_QUANTUM:
        slot_set_quantum(s, target, change)
    elif change.kind == CHANGE_GAP:
        s.brokers[target].gap = change.amount
    elif change.kind == CHANGE_ARRIVALS:
        s.queues[target].arrivals = change.arrivals
        queue_start(s, target)

cdef inline void sim_change(Sim* s) noexcept nogil:
    """Process an event: the next change of the list."""
    change_apply(s, &s.changes[s.change_next])
    s.change_next += 1
    eventtree_set(
        &s.calendar, 0, s.changes[s.change_next].time if s.change_next < s.change_count else NEVER
    )
