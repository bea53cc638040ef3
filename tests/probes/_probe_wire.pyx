"""Queues, and the chain that carries their wake-ups to I/O threads, wired as an embedded broker wires them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from fairsched.core.atomics cimport cpu_pause, spin_wait
from fairsched.core.connection.chain cimport Connection, ConnectionActions, Session, Target, TargetActions
from fairsched.core.connection.connection cimport (
    connection_close, connection_init, connection_notify, target_forget, target_notify,
)
from fairsched.core.connection.scheduler cimport (
    Scheduler, scheduler_clear, scheduler_init, scheduler_run, scheduler_stop,
)
from fairsched.core.connection.session cimport session_init
from fairsched.core.connection.target cimport target_attach, target_init, target_start
from fairsched.core.queue.consumercredit cimport consumer_set_credit
from fairsched.core.queue.groups cimport GROUPS_NONE
from fairsched.core.queue.members cimport consumer_init, queue_cancel, queue_set_wish, queue_subscribe
from fairsched.core.queue.order.order cimport KIND_STANDARD
from fairsched.core.queue.pull cimport queue_pull
from fairsched.core.queue.question cimport Question
from fairsched.core.queue.queue cimport Offer, queue_clear, queue_init, queue_put
from fairsched.core.queue.settle cimport SETTLE_ACK, SETTLE_RELEASE, queue_settle
from fairsched.core.queue.state cimport WISH_USER, Call, Pulled, Queue, QueueConsumer, call_init, queue_forget
from fairsched.core.waiting.interest cimport interest_enter, interest_leave
from fairsched.core.waiting.node cimport node_retire
from fairsched.core.waiting.reclaim cimport Garbage, Pin, reclaim_flush
from fairsched.core.waiting.walk cimport interest_count, interest_valid

cdef extern from *:
    """
    #include <vector>
    struct Journal {
        std::vector<int64_t> entries;
        void add(int64_t entry) { entries.push_back(entry); }
        int64_t at(int64_t index) { return entries[index]; }
        int64_t size() { return entries.size(); }
    };
    """
    cdef cppclass Journal:
        Journal() nogil
        void add(int64_t entry) noexcept nogil
        int64_t at(int64_t index) noexcept nogil
        int64_t size() noexcept nogil
    void* aligned_alloc(size_t alignment, size_t size) noexcept nogil

cdef struct WiredConsumer:
    QueueConsumer consumer      # must be first, and on a cache line
    Queue* queue
    WiredTarget* target

cdef struct WiredTarget:
    Target target               # must be first
    int64_t number
    WiredConnection* connection

cdef struct WiredConnection:
    Connection connection       # must be first
    Wire* wire
    Journal* log                # numbers of targets, as they were served; when that is wanted
    bint logs
    bint closed
    int64_t message_size
    atomic[int64_t] output      # bytes buffered
    atomic[int64_t] accepts     # bytes that the transport takes yet; negative: any
    atomic[uint32_t] disposed

cdef struct Wire:               # what all share
    atomic[uint8_t]* seen       # by message: how often it was acknowledged
    atomic[int64_t] done        # messages acknowledged
    int64_t total
    uint64_t releases           # one delivery in so many is given back; 0: none

cdef inline uint64_t draw(uint64_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    state[0] = state[0] * 6364136223846793005ULL + 1442695040888963407ULL
    return state[0] >> 33

cdef void wire_tell(Call* call, QueueConsumer* c) noexcept nogil:
    """What a queue does to notify a consumer."""
    target_notify(&(<WiredConsumer*> c).target.target)

cdef inline void begin(Call* call, Queue* q) noexcept nogil:
    call_init(call, q, 0)
    call.tell = wire_tell
    call.pin = interest_enter(&q.interest)

cdef inline void end(Call* call) noexcept nogil:
    interest_leave(call.pin)
    queue_forget(call.queue, call)

cdef bint wire_pull(void* context, void* consumer) noexcept nogil:
    cdef WiredTarget* t = <WiredTarget*> context
    cdef WiredConsumer* w = <WiredConsumer*> consumer
    cdef Wire* wire = t.connection.wire
    cdef Pulled pulled
    cdef Call call
    cdef Question question
    cdef uint64_t token
    cdef bint back
    begin(&call, w.queue)
    if queue_pull(&call, &w.consumer, 1, &pulled, &question) != 1:
        end(&call)
        return False
    token = pulled.token
    back = wire.releases != 0 and pulled.deliveries == 0 and token % wire.releases == 0
    queue_settle(
        &call, &w.consumer, pulled.message, pulled.holder, pulled.lease, SETTLE_RELEASE if back else SETTLE_ACK
    )
    end(&call)
    t.connection.output.fetch_add(t.connection.message_size)
    if not back:
        wire.seen[token].fetch_add(1)
        wire.done.fetch_add(1)
        if t.connection.logs:
            t.connection.log.add(t.number)
    return True

cdef void wire_interest(void* context, void* consumer, bint desired) noexcept nogil:
    cdef WiredConsumer* w = <WiredConsumer*> consumer
    cdef Call call
    begin(&call, w.queue)
    queue_set_wish(&call, &w.consumer, WISH_USER, desired)
    end(&call)

cdef void wire_dispose_consumer(Garbage* garbage, Pin* pin) noexcept nogil:
    """No queue can notify it any more."""
    cdef WiredConsumer* w = <WiredConsumer*> garbage
    cdef WiredTarget* t = w.target
    free(w)
    target_forget(&t.target)

cdef void wire_close(void* context, void* consumer) noexcept nogil:
    cdef WiredConsumer* w = <WiredConsumer*> consumer
    cdef Call call
    begin(&call, w.queue)
    queue_cancel(&call, &w.consumer)
    node_retire(call.pin, &w.consumer.node, wire_dispose_consumer)
    end(&call)

cdef int64_t wire_buffered(void* context) noexcept nogil:
    return (<WiredConnection*> context).output.load()

cdef void wire_write(void* context) noexcept nogil:
    cdef WiredConnection* h = <WiredConnection*> context
    cdef int64_t size = h.output.load(), accepts = h.accepts.load()
    if accepts >= 0:
        size = min(size, accepts)
        h.accepts.fetch_sub(size)
    h.output.fetch_sub(size)

cdef void wire_dispose(Connection* connection) noexcept nogil:
    (<WiredConnection*> connection).disposed.store(1)

cdef TargetActions TARGET = [wire_pull, wire_interest, wire_close, NULL]
cdef ConnectionActions CONNECTION = [NULL, wire_buffered, wire_write, NULL, wire_dispose]


cdef class ProbeWire:
    """`queues` queues; `connections` connections of one session each, whose targets have so many consumers each.

    Target t consumes from queues t, t + 1, …, so neighbours share queues, of one connection or several.
    """

    cdef Scheduler scheduler
    cdef Wire wire
    cdef Queue* queues
    cdef WiredConnection* connections
    cdef Session* sessions
    cdef WiredTarget* targets
    cdef int64_t queue_count, connection_count, target_count, consumers_each
    cdef atomic[int64_t] numbered   # messages put

    def __cinit__(
        self, int64_t queues, int64_t connections, int64_t targets, int64_t consumers, int64_t total, *,
        bint logs=False, int64_t message_size=0, int64_t credit=-1, uint64_t releases=0,
    ):
        cdef int64_t i
        self.queue_count, self.connection_count, self.target_count = queues, connections, connections * targets
        self.consumers_each = consumers
        self.wire.total, self.wire.releases = total, releases
        self.wire.seen = <atomic[uint8_t]*> calloc(total, 1)
        self.queues = <Queue*> calloc(queues, sizeof(Queue))
        self.connections = <WiredConnection*> calloc(connections, sizeof(WiredConnection))
        self.sessions = <Session*> calloc(connections, sizeof(Session))
        self.targets = <WiredTarget*> calloc(self.target_count, sizeof(WiredTarget))
        scheduler_init(&self.scheduler, NULL, NULL, NULL)
        for i in range(queues):
            if not queue_init(&self.queues[i], KIND_STANDARD, 1, GROUPS_NONE, 20):
                raise MemoryError
        for i in range(connections):
            self.make_connection(i, logs, message_size)
        for i in range(self.target_count):
            self.make_target(i, targets, credit)

    cdef void make_connection(self, int64_t i, bint logs, int64_t message_size) noexcept:
        cdef WiredConnection* h = &self.connections[i]
        connection_init(&h.connection, self.scheduler.queue, &CONNECTION, h, 0)
        session_init(&self.sessions[i], &h.connection, NULL, NULL)
        h.wire = &self.wire
        h.log = new Journal()
        h.logs = logs
        h.message_size = message_size
        h.accepts.store(-1)

    cdef void make_target(self, int64_t i, int64_t targets, int64_t credit) noexcept:
        cdef WiredTarget* t = &self.targets[i]
        cdef WiredConsumer* w
        cdef Call call
        cdef int64_t each
        t.number = i
        t.connection = &self.connections[i // targets]
        target_init(&t.target, &self.sessions[i // targets], &TARGET, t)
        target_start(&t.target)
        for each in range(self.consumers_each):
            w = <WiredConsumer*> aligned_alloc(64, (sizeof(WiredConsumer) + 63) & ~<size_t> 63)
            consumer_init(&w.consumer, 0, True)
            consumer_set_credit(&w.consumer, credit)
            w.queue = &self.queues[(i + each) % self.queue_count]
            w.target = t
            target_attach(&t.target, w)
            begin(&call, w.queue)
            queue_subscribe(&call, &w.consumer)
            end(&call)

    def __dealloc__(self):
        """Everything was closed before."""
        cdef int64_t i
        for i in range(self.queue_count):
            queue_clear(&self.queues[i])
        for i in range(self.connection_count):
            del self.connections[i].log
        scheduler_clear(&self.scheduler)
        free(self.targets)
        free(self.sessions)
        free(self.connections)
        free(self.queues)
        free(self.wire.seen)

    def produce(self, uint64_t seed, int64_t count, int64_t queue=-1):
        """Put so many messages, into random queues or into one."""
        cdef uint64_t state = 2 * seed + 1
        cdef int64_t _i
        cdef Call call
        cdef Offer offer
        cdef Queue* q
        with nogil:
            offer.size = offer.priority = offer.expiry = offer.not_before = 0
            offer.key = NULL
            offer.key_length = 0
            offer.slot = 0
            for _i in range(count):
                q = &self.queues[queue if queue >= 0 else <int64_t> (draw(&state) % <uint64_t> self.queue_count)]
                offer.token = <uint64_t> self.numbered.fetch_add(1)
                begin(&call, q)
                queue_put(&call, &offer, NULL)
                end(&call)
        return count

    def run(self):
        """Be an I/O thread."""
        with nogil:
            scheduler_run(&self.scheduler)

    def stop(self):
        scheduler_stop(&self.scheduler)

    def throttle(self, uint64_t seed, int64_t size):
        """Be the network, and take up to `size` bytes at a time of this connection and that, until all was served."""
        cdef uint64_t state = 2 * seed + 1
        cdef WiredConnection* h
        with nogil:
            while self.wire.done.load() < self.wire.total:
                h = &self.connections[draw(&state) % <uint64_t> self.connection_count]
                if h.accepts.load() == 0:
                    h.accepts.store(<int64_t> (draw(&state) % <uint64_t> size))
                    connection_notify(&h.connection)
        for i in range(self.connection_count):
            self.connections[i].accepts.store(-1)
            connection_notify(&self.connections[i].connection)

    def stall(self, int64_t connection):
        """Have the transport take nothing."""
        self.connections[connection].accepts.store(0)

    def close(self, int64_t connection):
        self.connections[connection].closed = True
        connection_close(&self.connections[connection].connection)

    def flush(self):
        """Let epochs of all queues pass, so that what was cancelled is disposed of."""
        cdef int64_t i
        cdef Pin* pin
        for i in range(self.queue_count):
            for _ in range(5):
                pin = interest_enter(&self.queues[i].interest)
                reclaim_flush(pin)
                interest_leave(pin)

    @property
    def done(self):
        """Messages acknowledged."""
        return self.wire.done.load()

    @property
    def left(self):
        """Messages in all queues."""
        return sum([self.queues[i].depth.load() for i in range(self.queue_count)])

    @property
    def once(self):
        """Whether every message was acknowledged exactly once."""
        cdef int64_t i
        for i in range(self.wire.total):
            if self.wire.seen[i].load() != 1:
                return False
        return True

    @property
    def disposed(self):
        """How many connections were disposed of."""
        return sum([self.connections[i].disposed.load() for i in range(self.connection_count)])

    @property
    def valid(self):
        """Whether the lists of all queues agree with themselves. When no thread is inside."""
        cdef int64_t i
        cdef Pin* pin
        cdef bint valid = True
        for i in range(self.queue_count):
            pin = interest_enter(&self.queues[i].interest)
            valid = valid and interest_valid(&self.queues[i].interest, pin)
            interest_leave(pin)
        return valid

    @property
    def consumers(self):
        """How many consumers are registered."""
        return sum([interest_count(&self.queues[i].interest) for i in range(self.queue_count)])

    def log(self, int64_t connection):
        """The targets of a connection as they were served. When no thread is inside."""
        return [self.connections[connection].log.at(i) for i in range(self.connections[connection].log.size())]


cdef class ProbeRace:
    """One queue, one consumer: each round a message is put just while the consumer becomes interested."""

    cdef Queue* q
    cdef QueueConsumer* c
    cdef atomic[int64_t] turn       # the round that has begun
    cdef atomic[int64_t] put        # rounds whose message was put

    def __cinit__(self):
        cdef Call call
        self.q = <Queue*> calloc(1, sizeof(Queue))
        if self.q == NULL or not queue_init(self.q, KIND_STANDARD, 1, GROUPS_NONE, 20):
            raise MemoryError
        self.c = <QueueConsumer*> aligned_alloc(64, (sizeof(QueueConsumer) + 63) & ~<size_t> 63)
        consumer_init(self.c, 0, True)
        self.c.wishes.fetch_and(~<uint32_t> WISH_USER)
        call_init(&call, self.q, 0)
        call.pin = interest_enter(&self.q.interest)
        queue_subscribe(&call, self.c)
        end(&call)

    def __dealloc__(self):
        queue_clear(self.q)
        free(self.c)
        free(self.q)

    def produce(self, int64_t rounds, uint64_t seed):
        """Put one message in each round."""
        cdef Call call
        cdef Offer offer
        cdef uint64_t _pause, state = seed
        cdef unsigned int spins
        cdef int64_t i
        with nogil:
            offer.size = offer.priority = offer.expiry = offer.not_before = 0
            offer.key = NULL
            offer.key_length = 0
            offer.slot = 0
            for i in range(1, rounds + 1):
                spins = 0
                while self.turn.load() < i:
                    spin_wait(&spins)
                for _pause in range(draw(&state) % 8):
                    cpu_pause()
                offer.token = <uint64_t> i
                call_init(&call, self.q, 0)
                call.pin = interest_enter(&self.q.interest)
                queue_put(&call, &offer, NULL)
                end(&call)
                self.put.store(i)

    def consume(self, int64_t rounds, uint64_t seed):
        """Become interested in each round; in how many the consumer was not told."""
        cdef Call call
        cdef Pulled pulled
        cdef Question question
        cdef uint64_t _pause, told, state = seed
        cdef unsigned int spins
        cdef int64_t i, missed = 0
        with nogil:
            for i in range(1, rounds + 1):
                told = self.c.told.load()
                self.turn.store(i)
                for _pause in range(draw(&state) % 8):
                    cpu_pause()
                call_init(&call, self.q, 0)
                call.pin = interest_enter(&self.q.interest)
                queue_set_wish(&call, self.c, WISH_USER, True)
                end(&call)
                spins = 0
                while self.put.load() < i:
                    spin_wait(&spins)
                missed += self.c.told.load() == told
                call_init(&call, self.q, 0)
                call.pin = interest_enter(&self.q.interest)
                if queue_pull(&call, self.c, 1, &pulled, &question) == 1:
                    queue_settle(&call, self.c, pulled.message, pulled.holder, pulled.lease, SETTLE_ACK)
                queue_set_wish(&call, self.c, WISH_USER, False)
                end(&call)
        return missed
