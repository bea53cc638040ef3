"""The objects of the broker: server, virtual hosts, queues, connections, channels, consumers, messages.

Access. An I/O thread in a connection's pass has exclusive access to that connection, its channels, their consumers and
tables of unacknowledged messages (connection/scheduler.pxd has the proof): fields marked "own".

  field                             written by              read by             order
  Server.topologies, .hosts         under `lock`            under `lock`        exclusive to change, shared to route
  BrokerQueue.owner_next, _previous under `lock`            under `lock`        exclusive
  BrokerQueue.consumers, …_of_queue under `guard`           under `guard`
  Server.clients, Client.next, …    under `registry`        under `registry`
  Server.timed, next_timed          any                     the one that ticks  compare-and-swap, exchange
  Server.graveyard                  any                     the poller          compare-and-swap, exchange
  Client.events, .alarms            the poller              own                 read-modify-writes, seq_cst
  Client.heard, .spoken             own                     the poller          relaxed: some recent time
  Client.waits                      own; the journal clears own                 exchange, seq_cst
  references, counters              any                     any                 read-modify-writes, seq_cst
  everything else in Client, Channel, Consumer               own                 own

Order of locks: `lock` (topology), then a queue's `guard`, then `registry`, then what core/queue and core/connection
lock inside. Nobody waits for `lock` inside a pin of a queue. A thread that has `lock` shared does not ask for it again.

Lifetime.
  Payload        counted: by each queue it is in, and by whoever handles it.
  BrokerQueue    counted: by the topology, by each consumer, by each unacknowledged message, by each dead letter that
                 came from it, by the list of queues that time concerns, and by who works with it.
  Consumer       counted: by its target (until the connection disposes of that, which is after the queue has retired the
                 node) and by its task, while that is submitted.
  Channel        its session's: disposed of by the connection when it has closed and has no target.
  Client         its connection's. What was disposed of is freed by the poller before its next wait: no event of a wait
                 that has ended can name it, since its socket was closed before.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic

from fairsched.core.amqp.contents cimport Properties
from fairsched.core.amqp.octets cimport Bytes, Text
from fairsched.core.broker.durability.journal cimport Journal
from fairsched.core.broker.exchanges.exchanges cimport Topology
from fairsched.core.broker.exchanges.names cimport NameEntry, Names
from fairsched.core.broker.exchanges.routing cimport Route
from fairsched.core.broker.poller cimport Poller
from fairsched.core.connection.chain cimport (
    Connection, ConnectionActions, Session, SessionActions, Target, TargetActions, Task,
)
from fairsched.core.connection.scheduler cimport Scheduler
from fairsched.core.queue.message cimport Message
from fairsched.core.queue.state cimport Queue, QueueConsumer
from fairsched.core.waiting.parking cimport Parking

cdef extern from *:
    """
    #include <mutex>
    #include <shared_mutex>

    namespace fairsched {

    class Guard {
        std::mutex mutex;

    public:
        void lock() { mutex.lock(); }
        void unlock() { mutex.unlock(); }
    };

    class SharedGuard {
        std::shared_mutex mutex;

    public:
        void lock() { mutex.lock(); }
        void unlock() { mutex.unlock(); }
        void share() { mutex.lock_shared(); }
        void unshare() { mutex.unlock_shared(); }
    };

    }  // namespace fairsched
    """
    cdef cppclass Guard "fairsched::Guard":
        Guard() nogil
        void lock() noexcept nogil
        void unlock() noexcept nogil

    cdef cppclass SharedGuard "fairsched::SharedGuard":
        SharedGuard() nogil
        void lock() noexcept nogil
        void unlock() noexcept nogil
        void share() noexcept nogil
        void unshare() noexcept nogil

cdef struct Server
cdef struct Host
cdef struct Client
cdef struct Channel
cdef struct Consumer
cdef struct BrokerQueue

# Messages -------------------------------------------------------------------------------------------------------------

cdef enum:  # Payload.persistent
    PERSISTENT = 1
    KEPT = 2             # and a `Kept` stands before it

cdef struct KeptEntry:
    BrokerQueue* queue
    uint64_t record

cdef struct Kept:  # where a message stands in the journal (keeping.pxd); written before others know the message
    uint64_t content         # its record; 0: none
    KeptEntry* entries       # of each queue that outlives the process; NULL: there is one, of the same record
    BrokerQueue* queue       # that one
    uint32_t count
    atomic[uint32_t] left    # of the entries, those that are still in the journal

# A message, whatever queues it is in; exchange, routing key, content header, body and BCC follow. The bar is 300 octets
# for one of 100 in a queue, Message included: each field here is in every one.
cdef struct Payload:
    Server* server           # whose memory it counts in
    atomic[uint32_t] references
    uint32_t header_size     # of the payload of the content header
    uint32_t body_size
    uint8_t exchange_size
    uint8_t key_size
    uint8_t persistent
    uint8_t has_bcc          # an array that was the header BCC follows

cdef struct Publication:  # a message as it was published, with what is read in its header
    Payload* payload
    Properties properties
    int64_t expiration       # milliseconds; -1: none
    bint mandatory
    uint64_t batch           # of the journal, with which it is on disk; 0: it need not be
    int64_t names            # in a transaction: octets that follow, with the names of its queues; a multiple of 8

# Queues ---------------------------------------------------------------------------------------------------------------

cdef enum Overflows:
    DROP_HEAD
    REJECT_PUBLISH
    REJECT_PUBLISH_DLX

cdef enum:
    FAIR_WEIGHT_MAX = 1000000

cdef struct Arguments:  # what x-arguments of a queue say; texts are in the queue's copy of them
    int64_t max_length           # -1: none; so below
    int64_t max_bytes
    int64_t message_ttl          # milliseconds
    int64_t expires              # milliseconds
    int64_t max_priority
    int64_t delivery_limit
    int64_t consumer_timeout     # milliseconds
    bint single_active
    bint has_dlx
    bint has_dlk
    Overflows overflow
    uint32_t kind                # a Kind of core/queue/order/order.pxd
    Text dlx
    Text dlk
    Text key                     # the header that is sorted by, or of which the last value counts
    Text fair_key                # the header that names the slot
    Text weights                 # a table, from its length on

cdef struct BrokerQueue:
    Queue queue                  # must be first
    atomic[int64_t] references
    Server* server
    Host* host
    Text name                    # its own copy, as are:
    Text table                   # its arguments, as declared: a table from its length on
    Arguments arguments
    bint durable
    bint exclusive
    bint auto_delete
    uint64_t record              # in the journal; 0: it does not outlive the process
    Client* owner                # the connection whose it is, if exclusive: there as long as the topology has it
    BrokerQueue* owner_next      # of the same owner
    BrokerQueue* owner_previous
    BrokerQueue* next            # of its virtual host
    BrokerQueue* previous
    Guard* guard
    Consumer* consumers
    Names slots                  # of a fair queue: from its keys to its slots; under `guard`
    QueueConsumer getter         # in whose name basic.get takes
    atomic[int64_t] used         # when it was used last: for x-expires
    atomic[uint32_t] listed      # among those that time concerns
    BrokerQueue* next_timed
    atomic[uint64_t] published
    atomic[uint64_t] delivered
    atomic[uint64_t] acked

cdef struct DeadLetter:  # left a queue otherwise than by being acknowledged
    DeadLetter* next
    Payload* payload
    BrokerQueue* queue
    uint32_t reason              # DEAD_…

cdef struct DeadLetters:  # to be published when nothing is locked
    DeadLetter* first
    DeadLetter** last            # NULL: there was none yet

# Consumers ------------------------------------------------------------------------------------------------------------

cdef struct Consumer:
    QueueConsumer base           # must be first
    Target target
    Task task                    # its queue is gone
    atomic[uint32_t] references
    void* block
    BrokerQueue* queue
    Channel* channel             # own; NULL: it has left that
    uint8_t* tag
    uint32_t tag_size
    NameEntry* entry             # among the tags of its channel
    bint no_ack
    bint left                    # the queue
    bint replies                 # it gets answers to what its channel asks
    uint32_t unacked             # own: deliveries in doubt that name it
    uint32_t prefetch
    Consumer* next               # of its channel
    Consumer* previous
    Consumer* next_of_queue
    Consumer* previous_of_queue

# Channels -------------------------------------------------------------------------------------------------------------

cdef struct Unacked:  # one delivery
    BrokerQueue* queue           # NULL: settled
    Message* message
    Payload* payload
    Consumer* consumer           # NULL: basic.get, or it is gone
    uint64_t holder
    uint32_t lease
    uint8_t counted              # in the channel's prefetch
    uint8_t settled              # in a transaction, which is not committed yet
    int64_t since                # nanoseconds

cdef struct UnackedTable:
    Unacked* entries             # by delivery tag & (capacity - 1)
    uint64_t capacity
    uint64_t base                # the oldest that may be outstanding
    uint64_t high                # one past the newest
    uint64_t count

cdef enum Awaited:
    AWAIT_METHOD
    AWAIT_HEADER
    AWAIT_BODY

cdef struct TxSettlement:
    uint64_t tag
    uint32_t verdict             # a SettleVerb

cdef struct ConfirmRun:
    uint64_t last                # up to this message
    uint64_t batch               # the batch of the journal that all of them are on disk with
    bint refused                 # the last is refused; the others of the run are another run

cdef struct Channel:
    Session session              # must be first
    Client* client
    uint32_t number
    bint open
    Consumer* consumers
    Names tags                   # of those: from tags to consumers
    UnackedTable unacked
    uint32_t prefetch            # of consumers to come
    uint32_t limit               # of the channel; 0: none
    uint32_t in_flight           # of those counted
    bint full                    # the limit is reached: consumers that acknowledge are hindered
    Text last_queue              # its own copy, as is:
    Text replies                 # the name of the queue of its answers, while it consumes them
    # What is being published:
    Awaited awaited
    Publication incoming
    int64_t received             # octets of the body
    int64_t room                 # octets of the body that there is room for
    uint8_t names[512]           # exchange and routing key
    Text exchange
    Text key
    bint mandatory
    # Confirms and transactions:
    bint confirms
    bint transactional
    uint64_t sequence            # of the last message published
    uint64_t confirmed           # the last that was confirmed or refused
    Bytes waiting                # ConfirmRun after ConfirmRun: what the disk is awaited for
    bint awaits_confirm          # in the client's list
    Channel* next_confirm
    Bytes transaction            # Publication after Publication, each with the names of its queues
    Bytes settlements            # TxSettlement after TxSettlement
    uint64_t settled             # all deliveries before this tag are settled in the transaction, or for good

# Connections ----------------------------------------------------------------------------------------------------------

cdef enum ClientState:
    CLIENT_HEADER        # the protocol header is awaited
    CLIENT_START         # start-ok is
    CLIENT_LOGIN         # the password is being checked
    CLIENT_TUNE          # tune-ok is awaited
    CLIENT_OPENING       # connection.open is
    CLIENT_OPEN
    CLIENT_CLOSING       # connection.close was sent: everything but close-ok is ignored
    CLIENT_GONE          # nothing is read or written any more

cdef enum:  # Client.alarms
    ALARM_HEARTBEAT = 1  # one is due
    ALARM_DEAD = 2       # nothing was heard, or it took too long to log in
    ALARM_STOP = 4       # the broker stops
    ALARM_MEMORY = 8     # the memory alarm has changed
    ALARM_TIMEOUT = 16   # a delivery may have waited too long for its acknowledgement
    ALARM_CLOSE = 32     # the operator closes it

cdef struct Client:
    Connection connection        # must be first
    Server* server
    uint64_t number
    int fd
    bint local
    char peer[64]
    ClientState state
    atomic[uint32_t] events      # EVENT_…, as reported
    atomic[uint32_t] alarms
    atomic[int64_t] heard        # nanoseconds
    atomic[int64_t] spoken
    atomic[int64_t] heartbeat    # nanoseconds; 0: none
    atomic[uint32_t] opened      # it is through the handshake
    Bytes input
    Bytes output
    uint64_t awaits              # the batch of the journal before which nothing is written to the socket; 0: none
    atomic[uint32_t] waits       # it is to be notified when the next batch is on disk
    atomic[int64_t] deadline     # of what is awaited next, or 0
    bint lost                    # the socket takes nothing any more
    int64_t reads                # octets to read at once
    uint32_t frame_max
    uint32_t channel_max
    Host* host
    Text user                    # its own copy
    bint cancel_notify           # capabilities
    bint blocked_notify
    bint close_notify
    bint nacks
    bint publishes
    bint paused                  # nothing is read: memory is short
    bint held                    # it has more to read than may be kept for it: nothing is done for it meanwhile
    Channel** channels           # by number
    uint32_t room
    uint32_t channel_count       # those that are open, or that the broker has closed and the client has not yet
    Channel* confirming
    Route route
    bint shares                  # it has the topology's lock, shared
    int64_t now                  # nanoseconds, of this pass
    DeadLetters dead
    BrokerQueue* exclusive       # queues that go with it
    Task login
    Text password                # its own copy, as long as it is being checked
    bint admitted
    bint plain                   # the mechanism: PLAIN, or AMQPLAIN
    bint tls                     # it began TLS, which is not spoken: its place among the logins is for the log only
    Client* next_login
    Client* next
    Client* previous
    uintptr_t buried             # the next in the graveyard

# The server -----------------------------------------------------------------------------------------------------------

cdef struct Host:  # a virtual host
    Server* server
    Text name
    Topology topology
    BrokerQueue* queues          # under `lock`
    Host* next

cdef struct Limits:
    int64_t connections
    int64_t queues
    uint32_t channel_max
    uint32_t frame_max
    uint32_t heartbeat           # seconds
    int64_t message_size         # octets
    atomic[int64_t] memory       # octets of messages beyond which publishers are stopped; 0: no limit; changes any time
    int64_t handshake            # nanoseconds
    int64_t ack_timeout          # nanoseconds; 0: none

cdef struct Server:
    Scheduler scheduler
    ConnectionActions connection_actions  # what core/connection calls
    SessionActions session_actions
    TargetActions target_actions
    Poller* poller
    int listening
    int spare                    # a descriptor in reserve: core/broker/network.pxd, socket_turn_away
    int port
    Limits limits
    SharedGuard* lock
    Journal* journal             # NULL: nothing outlives the process
    Host* hosts
    Guard* registry
    Client* clients
    atomic[uintptr_t] timed      # queues that time concerns
    atomic[uintptr_t] graveyard
    atomic[int64_t] connections
    atomic[int64_t] channels
    atomic[int64_t] queues
    atomic[int64_t] payloads
    atomic[int64_t] memory       # octets of payloads
    int64_t memory_peak          # of the one that ticks: the most since the heap was trimmed
    atomic[uint32_t] short_of_memory
    atomic[uint32_t] stopping
    atomic[uint64_t] numbers
    Route route                  # of the one that ticks, as are:
    DeadLetters dead
    int64_t tick_due
    int64_t survey_due
    Client* logins               # under `registry`: whose passwords are to be checked
    Client** last_login
    Parking* arrived             # somebody logs in
    Bytes properties             # server-properties: a table
    Text mechanisms
