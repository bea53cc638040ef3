"""The traffic of a simulation: pushes of brokers, arriving deliveries and settlements.

A broker with a limited rate takes messages in turn from the queues that have a message and a slot to send it to; one
without a limit pushes everything at once, in the same order.

Thread safety: none; a simulation belongs to one thread. Complexity: O(log sources) each.
"""

from libc.stdint cimport uint32_t

from fairsched.core.simulation.broker cimport broker_mark, broker_settle, queue_next_slot, queue_take, slot_offer
from fairsched.core.simulation.client cimport client_receive
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.link cimport FRAME_DELIVERY, SimFrame, SimLink, simlink_direct, simlink_head
from fairsched.core.simulation.messages cimport NO_MESSAGE
from fairsched.core.simulation.model cimport NO_INDEX, Sim, SimBroker
from fairsched.core.simulation.queue cimport stock_has
from fairsched.core.simulation.sources cimport (
    link_downward, link_of, link_upward, sim_received, sim_send_downward, source_broker, source_downward, source_upward,
)
from fairsched.core.simulation.variate cimport NEVER

cdef inline void broker_send(Sim* s, uint32_t slot, uint32_t message) noexcept nogil:
    """Send a message. Without a delay and with nothing in flight, it arrives immediately."""
    cdef uint32_t link = link_of(s, &s.slots[slot])
    s.messages.records[message].sent = s.now
    if simlink_direct(link_downward(s, link)):
        s.events += 1
        client_receive(s, slot, message)
    else:
        sim_send_downward(s, FRAME_DELIVERY, slot, message)

cdef inline void broker_dispatch(Sim* s, uint32_t index) noexcept nogil:
    """Push all messages that can be sent, or one at a limited rate."""
    cdef SimBroker* broker = &s.brokers[index]
    cdef uint32_t queue, slot, message
    while broker.slot == NO_INDEX and broker.first != NO_INDEX and not s.exhausted:
        queue = broker.first
        broker.first = s.queues[queue].next
        s.queues[queue].listed = 0
        if not stock_has(&s.queues[queue].stock):
            continue
        slot = queue_next_slot(s, &s.queues[queue])
        if slot == NO_INDEX:
            continue
        message = queue_take(s, queue, slot)
        if message == NO_MESSAGE:
            return
        s.slots[slot].coming += 1
        slot_offer(s, slot)
        if broker.gap == 0:
            broker_send(s, slot, message)
        else:
            broker.slot = slot
            broker.message = message
            eventtree_set(&s.calendar, source_broker(s, index), s.now + broker.gap)

cdef inline void broker_pushed(Sim* s, uint32_t index) noexcept nogil:
    """Process an event: a broker has sent a message."""
    cdef SimBroker* broker = &s.brokers[index]
    cdef uint32_t slot = broker.slot
    eventtree_set(&s.calendar, source_broker(s, index), NEVER)
    broker.slot = NO_INDEX
    broker_send(s, slot, broker.message)
    broker_mark(s, index)

cdef inline void link_delivers(Sim* s, uint32_t link) noexcept nogil:
    """Process an event: a delivery reaches a consumer."""
    cdef SimLink* downward = link_downward(s, link)
    cdef SimFrame frame = simlink_head(downward)[0]
    sim_received(s, downward, source_downward(s, link))
    client_receive(s, frame.slot, frame.message)

cdef inline void link_settles(Sim* s, uint32_t link) noexcept nogil:
    """Process an event: a settlement, or the end of a subscription, reaches a broker."""
    cdef SimLink* upward = link_upward(s, link)
    cdef SimFrame frame = simlink_head(upward)[0]
    sim_received(s, upward, source_upward(s, link))
    broker_settle(s, frame.kind, frame.slot, frame.message)
