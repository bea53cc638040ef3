"""The numbers of a simulation's event sources, and sending over links.

Their order is the order of events at the same time: changes, arrivals by queue, links to brokers, workers, links to
consumers, brokers that push, consumers whose patience ends. Events that free a resource come before those that use it.

Thread safety: none; a simulation belongs to one thread. Complexity: O(log sources).
"""

from libc.stdint cimport uint32_t

from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.link cimport SimLink, simlink_cut, simlink_empty, simlink_head, simlink_send
from fairsched.core.simulation.model cimport Sim, SimSlot
from fairsched.core.simulation.variate cimport NEVER

cdef inline uint32_t source_arrivals(const Sim* s, uint32_t queue) noexcept nogil:
    return 1 + queue

cdef inline uint32_t source_upward(const Sim* s, uint32_t link) noexcept nogil:
    return 1 + s.queue_count + link

cdef inline uint32_t source_worker(const Sim* s, uint32_t worker) noexcept nogil:
    return 1 + s.queue_count + s.link_count + worker

cdef inline uint32_t source_downward(const Sim* s, uint32_t link) noexcept nogil:
    return 1 + s.queue_count + s.link_count + s.worker_count + link

cdef inline uint32_t source_broker(const Sim* s, uint32_t broker) noexcept nogil:
    return 1 + s.queue_count + 2 * s.link_count + s.worker_count + broker

cdef inline uint32_t source_patience(const Sim* s, uint32_t consumer) noexcept nogil:
    return 1 + s.queue_count + 2 * s.link_count + s.worker_count + s.broker_count + consumer

cdef inline uint32_t source_count(const Sim* s) noexcept nogil:
    return source_patience(s, s.consumer_count)

cdef inline SimLink* link_upward(Sim* s, uint32_t link) noexcept nogil:
    return &s.links[link]

cdef inline SimLink* link_downward(Sim* s, uint32_t link) noexcept nogil:
    return &s.links[s.link_count + link]

cdef inline uint32_t link_of(const Sim* s, const SimSlot* slot) noexcept nogil:
    """Return the link between a slot's consumer and its queue's broker."""
    return slot.consumer * s.broker_count + s.queues[slot.queue].broker

cdef inline void sim_send(
    Sim* s, SimLink* link, uint32_t source, int kind, uint32_t slot, uint32_t message
) noexcept nogil:
    """Send a frame over a link, and schedule its arrival."""
    cdef bint first = simlink_empty(link)
    if not simlink_send(link, s.now, kind, slot, message):
        s.exhausted = True
    elif first:
        eventtree_set(&s.calendar, source, link.last)

cdef inline void sim_send_upward(Sim* s, int kind, uint32_t slot, uint32_t message) noexcept nogil:
    """Send a frame from a slot to its queue."""
    cdef uint32_t link = link_of(s, &s.slots[slot])
    sim_send(s, link_upward(s, link), source_upward(s, link), kind, slot, message)

cdef inline void sim_send_downward(Sim* s, int kind, uint32_t slot, uint32_t message) noexcept nogil:
    """Send a frame from a queue to a slot."""
    cdef uint32_t link = link_of(s, &s.slots[slot])
    sim_send(s, link_downward(s, link), source_downward(s, link), kind, slot, message)

cdef inline void sim_received(Sim* s, SimLink* link, uint32_t source) noexcept nogil:
    """Remove the first frame of a link, and schedule the next."""
    link.head += 1
    eventtree_set(&s.calendar, source, NEVER if simlink_empty(link) else simlink_head(link).time)

cdef inline void sim_cut(Sim* s, uint32_t link) noexcept nogil:
    """Lose all frames in flight, in both directions."""
    simlink_cut(link_upward(s, link))
    simlink_cut(link_downward(s, link))
    eventtree_set(&s.calendar, source_upward(s, link), NEVER)
    eventtree_set(&s.calendar, source_downward(s, link), NEVER)
