"""The model of a simulation: brokers with queues, consumers with slots and workers, and the links between them.

A slot is one consumer's share of one queue: window, CoDel and figures. A consumer's slots are adjacent, numbered as in
its scheduling table, which is the engine's (schedule/dwrr.pxd). The caller allocates the arrays before the run
(setup.pxd).

Thread safety: none; a simulation belongs to one thread. Complexity: O(1) each.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from fairsched.core.delay.codel cimport CodelParams, CodelVars
from fairsched.core.delay.histogram cimport Histogram
from fairsched.core.schedule.slots cimport SlotTable
from fairsched.core.simulation.arrivals cimport Arrivals
from fairsched.core.simulation.eventtree cimport EventTree
from fairsched.core.simulation.link cimport SimLink
from fairsched.core.simulation.messages cimport SimMessages
from fairsched.core.simulation.queue cimport SimStock
from fairsched.core.simulation.variate cimport Variate
from fairsched.core.simulation.xoshiro cimport Xoshiro

cdef enum:
    NO_INDEX = 0xFFFFFFFF  # no slot, queue, worker, consumer or broker

cdef enum SimChangeKind:
    CHANGE_JOIN      # of consumer `target`
    CHANGE_LEAVE
    CHANGE_FAIL
    CHANGE_DELAY     # of link `target`, both ways, to `amount`
    CHANGE_SERVICE   # of slot `target`
    CHANGE_WINDOW    # of slot `target`, to `amount`
    CHANGE_QUANTUM
    CHANGE_GAP       # of broker `target`, to `amount`
    CHANGE_ARRIVALS  # of queue `target`

cdef enum:
    # Columns of a record of a handled message; and of a row of the timeline, per slot, after the depths of the queues.
    RECORD_COLUMNS = 9
    FRAME_COLUMNS = 5

cdef struct SimCounts:
    int64_t served        # messages handled
    int64_t repeated      # of those, messages that a failed consumer had handled before
    int64_t returned      # returned by CoDel
    int64_t redelivered   # sent again by the broker
    int64_t busy          # nanoseconds of completed services
    int64_t waited        # nanoseconds that started messages had waited at the consumer

cdef struct SimQueue:
    SimStock stock
    Arrivals arrivals
    Xoshiro random
    int64_t came        # messages that arrived since counting began, and those present then
    int64_t cost        # of each message, in units of the quanta
    uint32_t broker
    uint32_t first      # list of slots with credit
    uint32_t last
    uint32_t next       # next in the broker's list
    uint32_t consumers  # number of attached slots
    uint8_t listed

cdef struct SimSlot:
    uint32_t queue
    uint32_t consumer
    uint32_t next       # next in the queue's list
    uint32_t unsettled_first
    int64_t quantum
    int64_t window      # 0: unlimited
    int64_t unsettled   # at the broker
    int64_t coming      # in flight, or being sent
    uint8_t listed
    uint8_t attached
    Variate service
    Xoshiro random
    CodelVars law
    SimCounts counts
    SimCounts before    # when counting began
    int64_t most_returns  # of one message, since counting began
    Histogram wait      # arrived at the consumer to started
    Histogram latency   # sent to started
    Histogram age       # created to started
    Histogram total     # created to handled

cdef struct SimWorker:
    uint32_t consumer
    uint32_t slot       # of the current message
    uint32_t message
    uint32_t next       # next idle worker
    int64_t busy_from   # start of the service, or of counting; NEVER: idle

cdef struct SimConsumer:
    SlotTable table
    CodelParams law
    uint32_t first_slot
    uint32_t slots
    uint32_t first_worker
    uint32_t workers
    uint32_t idle        # first idle worker
    uint32_t next        # in the list of marked consumers
    uint8_t marked       # in that list
    uint8_t present
    uint8_t leaving
    uint8_t sheds        # uses CoDel
    uint8_t sheds_alone  # also messages of queues that have no other consumer
    uint8_t dead_letters  # returned messages leave the queue
    uint8_t holds
    uint8_t full         # joins with full windows
    int64_t budget       # returns of one message, at most
    int64_t patience     # longest wait for a slot in its turn; 0: do not wait
    int64_t joined       # time of joining, or of the start of counting
    int64_t was_present  # nanoseconds of presence before `joined`

cdef struct SimBroker:
    int64_t gap          # nanoseconds for each message; 0: none
    uint32_t first       # list of queues that can send
    uint32_t last
    uint32_t next        # in the list of marked brokers
    uint32_t message     # being pushed
    uint32_t slot        # destination of `message`; NO_INDEX: none is being pushed
    uint8_t marked

cdef struct SimChange:
    int64_t time
    int kind
    uint32_t target
    int64_t amount
    Variate service
    Arrivals arrivals

cdef struct Sim:
    int64_t now
    int64_t end
    int64_t limit        # number of handled messages at which to stop
    int64_t handled
    int64_t events
    int64_t counted_from  # NEVER once reached
    bint exhausted       # memory is exhausted
    EventTree calendar
    SimMessages messages
    SimQueue* queues
    SimSlot* slots
    SimWorker* workers
    SimConsumer* consumers
    SimBroker* brokers
    SimLink* links       # towards brokers, then towards consumers; by consumer and broker
    SimChange* changes
    uint32_t queue_count
    uint32_t slot_count
    uint32_t worker_count
    uint32_t consumer_count
    uint32_t broker_count
    uint32_t link_count  # of each direction
    uint32_t change_count
    uint32_t change_next
    uint32_t first_broker  # marked brokers, visited before the clock advances
    uint32_t last_broker
    uint32_t first_consumer
    uint32_t last_consumer
    int64_t* records     # columns of `record_room`
    int64_t record_count
    int64_t record_room
    int64_t* frames      # rows of the timeline
    int64_t frame_count
    int64_t frame_room
    int64_t frame_gap    # nanoseconds between two rows
    int64_t frame_next
