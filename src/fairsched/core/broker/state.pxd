"""The objects of the broker: server, virtual hosts, queues, connections, channels, consumers, messages.

Access. An I/O thread in a connection's pass has exclusive access to that connection, its channels, their consumers and
tables of unacknowledged messages (connection/scheduler.pxd has the proof): fields marked "own".

  field                                      written by        read by             order
  Server.topologies, .hosts                  under `lock`      under `lock`        exclusive to change, shared to route
  BrokerQueue.owner_next, _previous          under `lock`      under `lock`        exclusive
  BrokerQueue.consumers, …_of_queue          under `guard`     under `guard`
  Server.first_connection                    under `registry`  under `registry`
  BrokerConnection.next, .previous           under `registry`  under `registry`
  Server.timed, next_timed                   any               the ticking thread  compare-and-swap, exchange
  Server.held, .held_…                       under `delays`    under `delays`
  Server.held_due                            under `delays`    any                 seq_cst
  Server.graveyard                           any               the poller          compare-and-swap, exchange
  BrokerConnection.events, .alarms           the poller        own                 read-modify-writes, seq_cst
  BrokerConnection.heard, .spoken            own               the poller          relaxed: some recent time
  BrokerConnection.waits                     own; the journal  own                 exchange, seq_cst
  references, counters                       any               any                 read-modify-writes, seq_cst
  all else of connection, channel, consumer  own               own

Order of locks: `lock` (topology), then a queue's `guard` or `delays`, then `registry`, then what core/queue and
core/connection lock inside. No thread waits for `lock` inside a pin of a queue. A thread that has `lock` shared does
not take it again.

Lifetime.
  Payload        counted: by each queue it is in, each exchange that holds it, and each thread that handles it.
  BrokerQueue    counted: by the topology, each consumer, each unacknowledged message, each dead letter from it, by the
                 list of queues with timers, and each thread that works with it.
  Consumer       counted: by its target (until the connection disposes of that, which is after the queue has retired the
                 node) and by its task, while that is submitted.
  Channel        belongs to its session: the connection disposes of it when it has closed and has no target.
  BrokerConnection  one client's connection; belongs to its base in core/connection. After its disposal the poller
                 frees it before the next wait: no event can refer to it, since its socket was closed before that wait.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp.atomic cimport atomic

from fairsched.core.amqp.contents cimport Properties
from fairsched.core.amqp.octets cimport Bytes, Text
from fairsched.core.broker.arguments cimport QueueArguments
from fairsched.core.broker.durability.journal cimport Journal
from fairsched.core.broker.exchanges.names cimport NameEntry, Names
from fairsched.core.broker.exchanges.state cimport Route, Topology
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
cdef struct BrokerConnection
cdef struct Channel
cdef struct Consumer
cdef struct BrokerQueue

# Messages -------------------------------------------------------------------------------------------------------------

cdef enum:  # Payload.persistent
    PERSISTENT = 1
    KEPT = 2             # persistent, and preceded by a `Kept`

cdef struct KeptEntry:
    BrokerQueue* queue
    uint64_t record

cdef struct Kept:  # the records of a message (keeping.pxd); written before other threads know the message
    uint64_t content         # the record of the message; 0: none
    KeptEntry* entries       # one for each durable queue; NULL: there is one queue, with the same record
    BrokerQueue* queue       # that queue
    uint32_t count
    atomic[uint32_t] left    # number of entries that are still in the journal

# A message, in any number of queues. Exchange, routing key, content header, body and BCC follow. Add no field without
# need: a message of 100 octets must take at most 300 octets in a queue, its Message included.
cdef struct Payload:
    Server* server           # counts its memory
    atomic[uint32_t] references
    uint32_t header_size     # of the payload of the content header
    uint32_t body_size
    uint8_t exchange_size
    uint8_t key_size
    uint8_t persistent
    uint8_t has_bcc          # the array of the header BCC follows

cdef struct Publication:  # a message being published, with the properties of its header
    Payload* payload
    Properties properties
    int64_t expiration       # milliseconds; -1: none
    bint mandatory
    uint64_t batch           # of the journal, that must be on disk before the confirm; 0: none
    int64_t names            # in a transaction: size of the names of its queues, which follow; a multiple of 8

# Queues ---------------------------------------------------------------------------------------------------------------

cdef struct BrokerQueue:
    Queue queue                  # must be first
    atomic[int64_t] references
    Server* server
    Host* host
    Text name                    # its own copy
    Text table                   # its own copy of the arguments as declared: a table, which begins with its length
    QueueArguments arguments     # texts are in `table`
    bint durable
    bint exclusive
    bint auto_delete
    uint64_t record              # in the journal; 0: not recorded
    BrokerConnection* owner      # if exclusive: its connection, which lives as long as the topology has the queue
    BrokerQueue* owner_next      # of the same owner
    BrokerQueue* owner_previous
    BrokerQueue* next            # of its virtual host
    BrokerQueue* previous
    Guard* guard
    Consumer* consumers
    Names slots                  # of a fair queue: from its keys to its slots; under `guard`
    QueueConsumer getter         # takes messages for basic.get
    atomic[int64_t] used         # time of the last use, for x-expires
    atomic[uint32_t] listed      # in the list of queues with timers
    BrokerQueue* next_timed
    atomic[uint64_t] published
    atomic[uint64_t] delivered
    atomic[uint64_t] acked

cdef struct Held:  # a message that an exchange holds until it is due; the name of the exchange follows
    Host* host
    Payload* payload
    int64_t expiration           # milliseconds in its queues; -1: none
    uint64_t record              # in the journal; 0: none
    uint32_t exchange_size

cdef struct HeldEntry:  # of a heap
    int64_t due                  # nanoseconds
    uint64_t number              # of messages due at the same time, the older one is first
    Held* held

cdef struct DeadLetter:  # a message that has left a queue without an acknowledgement
    DeadLetter* next
    Payload* payload
    BrokerQueue* queue
    uint32_t reason              # DEAD_…

cdef struct DeadLetters:  # a list to publish when no lock is held
    DeadLetter* first
    DeadLetter** last            # place of the next pointer of the last one; NULL: the list was never used

# Consumers ------------------------------------------------------------------------------------------------------------

cdef struct Consumer:
    QueueConsumer base           # must be first
    Target target
    Task task                    # cancels it when its queue is deleted
    atomic[uint32_t] references
    void* block
    BrokerQueue* queue
    Channel* channel             # own; NULL: it has left its channel
    uint8_t* tag
    uint32_t tag_size
    NameEntry* entry             # among the tags of its channel
    bint no_ack
    bint left                    # it has left the queue
    bint replies                 # it receives direct replies
    uint32_t unacked             # own: number of unacknowledged deliveries that refer to it
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
    Consumer* consumer           # NULL: basic.get, or the consumer is gone
    uint64_t holder
    uint32_t lease
    uint8_t counted              # in the channel's prefetch
    uint8_t settled              # in a transaction that is not committed yet
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
    uint64_t last                # sequence number of its last message
    uint64_t batch               # of the journal, that must be on disk before the run is confirmed
    bint refused                 # the run is one message, which is refused

cdef struct Channel:
    Session session              # must be first
    BrokerConnection* connection
    uint32_t number
    bint open
    Consumer* consumers
    Names tags                   # from tags to consumers
    UnackedTable unacked
    uint32_t prefetch            # of new consumers
    uint32_t limit               # prefetch of the channel; 0: none
    uint32_t in_flight           # deliveries that count towards `limit`
    bint full                    # `limit` is reached: consumers are stopped
    Text last_queue              # name of the queue declared last; its own copy
    Text replies                 # name of the queue of its direct replies, while it consumes them; its own copy
    # The message being received:
    Awaited awaited
    Publication incoming
    int64_t received             # octets of the body
    int64_t room                 # octets of the body that fit into its memory
    uint8_t names[512]           # exchange and routing key
    Text exchange
    Text key
    bint mandatory
    # Confirms and transactions:
    bint confirms
    bint transactional
    uint64_t sequence            # of the last message published
    uint64_t confirmed           # of the last message confirmed or refused
    Bytes waiting                # ConfirmRun after ConfirmRun: messages that wait for the disk
    bint awaits_confirm          # in the list BrokerConnection.confirming
    Channel* next_confirm
    Bytes transaction            # Publication after Publication, each with the names of its queues
    Bytes settlements            # TxSettlement after TxSettlement
    uint64_t settled             # all deliveries before this tag are settled, in the transaction or before

# Connections ----------------------------------------------------------------------------------------------------------

cdef enum ConnectionState:
    STATE_HEADER        # waits for the protocol header
    STATE_START         # waits for start-ok
    STATE_LOGIN         # the password is being checked
    STATE_TUNE          # waits for tune-ok
    STATE_OPENING       # waits for connection.open
    STATE_OPEN
    STATE_CLOSING       # connection.close was sent: everything but close-ok is ignored
    STATE_GONE          # neither read nor written any more

cdef enum:  # BrokerConnection.alarms
    ALARM_HEARTBEAT = 1  # a heartbeat is due
    ALARM_DEAD = 2       # the heartbeat or the handshake has timed out
    ALARM_STOP = 4       # the broker stops
    ALARM_MEMORY = 8     # the memory alarm has changed
    ALARM_TIMEOUT = 16   # a delivery may have waited too long for its acknowledgement
    ALARM_CLOSE = 32     # the operator closes the connection

cdef struct BrokerConnection:  # one client's connection
    Connection base              # must be first
    Server* server
    uint64_t number
    int fd
    bint local
    char peer[64]
    ConnectionState state
    atomic[uint32_t] events      # EVENT_…, as reported
    atomic[uint32_t] alarms
    atomic[int64_t] heard        # nanoseconds
    atomic[int64_t] spoken
    atomic[int64_t] heartbeat    # nanoseconds; 0: none
    atomic[uint32_t] opened      # the handshake is complete
    Bytes input
    Bytes output
    uint64_t awaits              # the batch of the journal that must be on disk before output is written; 0: none
    atomic[uint32_t] waits       # the next batch on disk notifies the connection
    atomic[int64_t] deadline     # of the next step of the handshake or the closing; 0: none
    bint lost                    # the socket has failed
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
    bint paused                  # not read: the broker is low on memory
    bint held                    # not served: the client has too much output to read
    Channel** channels           # by number
    uint32_t room
    uint32_t channel_count       # open, or closed by the broker and not yet by the client
    Channel* confirming
    Route route
    bint shares                  # it has the topology's lock, shared
    int64_t now                  # nanoseconds, of this pass
    DeadLetters dead
    BrokerQueue* exclusive       # its exclusive queues
    Task login
    Text password                # its own copy, as long as it is being checked
    bint admitted
    bint plain                   # the mechanism is PLAIN; otherwise AMQPLAIN
    bint tls                     # it began TLS, which is not supported; it is among the logins only to be logged
    BrokerConnection* next_login
    BrokerConnection* next
    BrokerConnection* previous
    uintptr_t buried             # next in the graveyard

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
    atomic[int64_t] memory       # octets of messages at which publishers are blocked; 0: no limit; changes at any time
    int64_t handshake            # nanoseconds
    int64_t ack_timeout          # nanoseconds; 0: none

cdef struct Server:
    Scheduler scheduler
    ConnectionActions connection_actions  # called by core/connection
    SessionActions session_actions
    TargetActions target_actions
    Poller* poller
    int listening
    int spare                    # a descriptor in reserve: core/broker/network.pxd, socket_turn_away
    int port
    Limits limits
    SharedGuard* lock
    Journal* journal             # NULL: nothing is durable
    Host* hosts
    Guard* registry
    BrokerConnection* first_connection
    atomic[uintptr_t] timed      # queues with timers
    Guard* delays
    HeldEntry* held              # messages that exchanges hold: a heap, the first due first
    int64_t held_count
    int64_t held_room
    uint64_t held_number         # of the newest
    atomic[int64_t] held_due     # nanoseconds, when the first one is due; INT64_MAX: there is none
    atomic[uintptr_t] graveyard
    atomic[int64_t] connections
    atomic[int64_t] channels
    atomic[int64_t] queues
    atomic[int64_t] payloads
    atomic[int64_t] memory       # octets of payloads
    int64_t memory_peak          # since the heap was trimmed; the ticking thread's
    atomic[uint32_t] short_of_memory
    atomic[uint32_t] stopping
    atomic[uint64_t] numbers
    Route route                  # of the ticking thread, like the next three
    DeadLetters dead
    int64_t tick_due
    int64_t survey_due
    BrokerConnection* logins     # under `registry`: waiting for the check of their passwords
    BrokerConnection** last_login
    Parking* arrived             # signals that `logins` is not empty
    Bytes properties             # server-properties: a table
    Text mechanisms
