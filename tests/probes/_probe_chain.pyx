"""The chain from consumers to I/O threads, for tests and benchmarks: consumers with a counter instead of a queue."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from fairsched.core.atomics cimport thread_yield
from fairsched.core.connection.chain cimport (
    Connection, ConnectionActions, Session, SessionActions, Target, TargetActions, Task,
)
from fairsched.core.connection.connection cimport (
    PASS_MORE, connection_close, connection_init, connection_notify, connection_pass, connection_release,
    connection_retain, connection_step, connection_submit, target_forget, target_notify, task_init,
)
from fairsched.core.connection.scheduler cimport (
    Scheduler, scheduler_clear, scheduler_init, scheduler_resume, scheduler_run, scheduler_stop, scheduler_threads,
)
from fairsched.core.connection.session cimport session_close, session_init
from fairsched.core.connection.target cimport (
    target_attach, target_close, target_desired, target_detach, target_hinder, target_init, target_resume, target_start,
)
from fairsched.core.connection.workset cimport (
    WorkItem, Workset, workitem_init, workitem_scheduled, workset_add, workset_init, workset_ready, workset_take,
)

cdef extern from *:
    """
    #include <chrono>
    #include <condition_variable>
    #include <mutex>
    #include <vector>
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static std::mutex unwanted;
    static void mutex_lock() { unwanted.lock(); }
    static void mutex_unlock() { unwanted.unlock(); }

    // Stands for a selector: poll waits here, interrupt and events end that.
    struct Bell {
        std::mutex mutex;
        std::condition_variable rung;
        bool ringing = false;
        int64_t events = 0;
        void* receiver = nullptr;
        void ring() { { std::lock_guard<std::mutex> lock(mutex); ringing = true; } rung.notify_one(); }
        int64_t wait(bool really) {  // how many events there were
            std::unique_lock<std::mutex> lock(mutex);
            while (really && !ringing) rung.wait(lock);
            ringing = false;
            int64_t seen = events;
            events = 0;
            return seen;
        }
        void event(int64_t count) { { std::lock_guard<std::mutex> lock(mutex); events += count; } ring(); }
    };

    struct Journal {
        std::vector<int64_t> entries;
        void add(int64_t entry) { entries.push_back(entry); }
        int64_t at(int64_t index) { return entries[index]; }
        int64_t size() { return entries.size(); }
        void clear() { entries.clear(); }
    };
    """
    int64_t now_ns() noexcept nogil
    void mutex_lock() noexcept nogil
    void mutex_unlock() noexcept nogil
    cdef cppclass Bell:
        Bell() nogil
        void ring() noexcept nogil
        void* receiver
        int64_t wait(bint really) noexcept nogil
        void event(int64_t count) noexcept nogil

    cdef cppclass Journal:
        Journal() nogil
        void add(int64_t entry) noexcept nogil
        int64_t at(int64_t index) noexcept nogil
        int64_t size() noexcept nogil
        void clear() noexcept nogil

cdef enum:
    TASK = -1     # in a connection's log, where the numbers of consumers are
    CLOSED = -2

cdef struct HostConsumer:
    int64_t number
    atomic[int64_t] waiting     # messages
    int64_t pulls               # tries, of the connection's thread, as is `seen`
    HostTarget* target
    bint known                  # to a queue
    Journal* seen       # changes of desire; 2: close

cdef struct HostTarget:
    Target target               # must be first
    HostConnection* connection
    atomic[uint32_t] disposed

cdef struct HostSession:
    Session session             # must be first
    atomic[uint32_t] disposed

cdef struct HostConnection:
    Connection connection       # must be first
    Task task
    Journal* log        # what was served, when that is wanted
    bint logs
    atomic[uint32_t] inside
    int64_t served
    int64_t overlaps
    atomic[int64_t] tasks
    int64_t message_size
    atomic[int64_t] writes
    atomic[int64_t] output      # bytes buffered
    atomic[int64_t] accepts     # bytes that the transport takes yet; negative: any
    atomic[int64_t] input       # events that it has to receive
    atomic[int64_t] received
    atomic[uint32_t] closed
    atomic[uint32_t] disposed
    atomic[int64_t]* progress   # messages served by all connections

cdef inline uint64_t draw(uint64_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    state[0] = state[0] * 6364136223846793005ULL + 1442695040888963407ULL
    return state[0] >> 33

cdef bint host_pull(void* context, void* consumer) noexcept nogil:
    cdef HostConnection* h = (<HostTarget*> context).connection
    cdef HostConsumer* c = <HostConsumer*> consumer
    cdef bint found
    h.overlaps += h.inside.exchange(1)
    c.pulls += 1
    found = c.waiting.load() > 0
    if found:
        c.waiting.fetch_sub(1)
        h.served += 1
        h.output.fetch_add(h.message_size)
        h.progress.fetch_add(1)
        if h.logs:
            h.log.add(c.number)
    h.inside.store(0)
    return found

cdef void host_interest(void* context, void* consumer, bint desired) noexcept nogil:
    cdef HostConsumer* c = <HostConsumer*> consumer
    c.seen.add(desired)
    if desired and c.waiting.load() > 0:
        target_notify(&c.target.target)

cdef void host_close_consumer(void* context, void* consumer) noexcept nogil:
    (<HostConsumer*> consumer).seen.add(2)

cdef void host_dispose_target(Target* target) noexcept nogil:
    (<HostTarget*> target).disposed.store(1)

cdef void host_dispose_session(Session* session) noexcept nogil:
    (<HostSession*> session).disposed.store(1)

cdef bint host_receive(void* context) noexcept nogil:
    cdef HostConnection* h = <HostConnection*> context
    if h.input.load() > 0:
        h.input.fetch_sub(1)
        h.received.fetch_add(1)
    return h.input.load() > 0

cdef int64_t host_buffered(void* context) noexcept nogil:
    return (<HostConnection*> context).output.load()

cdef void host_write(void* context) noexcept nogil:
    cdef HostConnection* h = <HostConnection*> context
    cdef int64_t size = h.output.load(), accepts = h.accepts.load()
    h.writes.fetch_add(1)
    if accepts >= 0:
        size = min(size, accepts)
        h.accepts.fetch_sub(size)
    h.output.fetch_sub(size)

cdef void host_closed(void* context) noexcept nogil:
    cdef HostConnection* h = <HostConnection*> context
    h.log.add(CLOSED)
    h.closed.store(1)

cdef void host_dispose(Connection* connection) noexcept nogil:
    (<HostConnection*> connection).disposed.store(1)

cdef void host_task(Task* task) noexcept nogil:
    cdef HostConnection* h = <HostConnection*> task.context
    h.overlaps += h.inside.exchange(1)
    h.tasks.fetch_add(1)
    if h.logs:
        h.log.add(TASK)
    h.inside.store(0)

cdef TargetActions TARGET = [host_pull, host_interest, host_close_consumer, host_dispose_target]
cdef SessionActions SESSION = [host_dispose_session]
cdef ConnectionActions CONNECTION = [host_receive, host_buffered, host_write, host_closed, host_dispose]

cdef void bell_poll(void* context, bint wait) noexcept nogil:
    cdef int64_t events = (<Bell*> context).wait(wait)
    cdef HostConnection* h = <HostConnection*> (<Bell*> context).receiver
    if events:
        h.input.fetch_add(events)
        connection_notify(&h.connection)

cdef void bell_interrupt(void* context) noexcept nogil:
    (<Bell*> context).ring()

cdef list entries(Journal* journal):
    return [journal.at(i) for i in range(journal.size())]


def mutex_lock_unlock(uint64_t count):
    """Nanoseconds for `count` times locking and unlocking a mutex that no other thread wants."""
    cdef uint64_t _i
    cdef int64_t start
    with nogil:
        start = now_ns()
        for _i in range(count):
            mutex_lock()
            mutex_unlock()
        start = now_ns() - start
    return start


cdef struct NumberedItem:
    WorkItem item             # must be first
    int64_t number


cdef class ProbeWorkset:
    """A set of `count` items, by number."""

    cdef Workset work
    cdef NumberedItem* items
    cdef int64_t count
    cdef atomic[int64_t] finished

    def __cinit__(self, uint32_t count):
        cdef int64_t i
        self.items = <NumberedItem*> calloc(count, sizeof(NumberedItem))
        self.count = count
        workset_init(&self.work)
        for i in range(count):
            workitem_init(&self.items[i].item)
            self.items[i].number = i

    def __dealloc__(self):
        free(self.items)

    def add(self, int64_t number):
        return workset_add(&self.work, &self.items[number].item)

    def take(self):
        cdef WorkItem* item = workset_take(&self.work)
        return None if item == NULL else (<NumberedItem*> item).number

    def scheduled(self, int64_t number):
        return workitem_scheduled(&self.items[number].item)

    @property
    def ready(self):
        return workset_ready(&self.work)

    def add_many(self, uint64_t seed, uint64_t count):
        """Add items at random `count` times; how often one was not in the set."""
        cdef uint64_t _i, state = 2 * seed + 1, news = 0
        with nogil:
            for _i in range(count):
                news += workset_add(&self.work, &self.items[draw(&state) % <uint64_t> self.count].item)
            self.finished.fetch_add(1)
        return news

    def take_all(self, int64_t adders):
        """Take until so many calls of add_many have returned and the set is empty; how many were taken."""
        cdef uint64_t taken = 0
        cdef bint last
        with nogil:
            while True:
                last = self.finished.load() == adders
                if workset_take(&self.work) != NULL:
                    taken += 1
                elif last:
                    break
                else:
                    thread_yield()
        return taken

    def cycle(self, uint64_t count):
        """Nanoseconds for `count` times adding an item and taking one."""
        cdef uint64_t i
        cdef int64_t start
        with nogil:
            start = now_ns()
            for i in range(count):
                workset_add(&self.work, &self.items[i % <uint64_t> self.count].item)
                workset_take(&self.work)
            start = now_ns() - start
        return start


cdef class ProbeChain:
    """A scheduler and its connections, each with so many sessions, of so many targets, of so many consumers.

    Everything is numbered through; a log has the numbers of the consumers in the order in which they were served.
    """

    cdef Scheduler scheduler
    cdef Bell* bell
    cdef HostConnection* connections
    cdef HostSession* sessions
    cdef HostTarget* targets
    cdef HostConsumer* consumers
    cdef int64_t connection_count, session_count, target_count, consumer_count
    cdef int64_t targets_each, consumers_each
    cdef atomic[int64_t] total

    def __cinit__(
        self, int64_t connections=1, int64_t sessions=1, int64_t targets=1, int64_t consumers=1, *,
        bint logs=True, int64_t message_size=0, bint polls=False, int64_t buffer_size=0,
    ):
        cdef int64_t i
        self.connection_count = connections
        self.session_count = connections * sessions
        self.target_count = self.session_count * targets
        self.consumer_count = self.target_count * consumers
        self.targets_each, self.consumers_each = targets, consumers
        self.connections = <HostConnection*> calloc(connections, sizeof(HostConnection))
        self.sessions = <HostSession*> calloc(self.session_count, sizeof(HostSession))
        self.targets = <HostTarget*> calloc(self.target_count, sizeof(HostTarget))
        self.consumers = <HostConsumer*> calloc(self.consumer_count, sizeof(HostConsumer))
        self.bell = new Bell()
        if polls:
            scheduler_init(&self.scheduler, bell_poll, bell_interrupt, self.bell)
        else:
            scheduler_init(&self.scheduler, NULL, NULL, NULL)
        for i in range(connections):
            self.make_connection(&self.connections[i], logs, message_size, buffer_size)
        for i in range(self.session_count):
            session_init(
                &self.sessions[i].session, &self.connections[i // sessions].connection, &SESSION, &self.sessions[i]
            )
        for i in range(self.target_count):
            self.targets[i].connection = &self.connections[i // (sessions * targets)]
            target_init(&self.targets[i].target, &self.sessions[i // targets].session, &TARGET, &self.targets[i])
        for i in range(self.consumer_count):
            self.make_consumer(i)

    cdef void make_connection(self, HostConnection* h, bint logs, int64_t message_size, int64_t buffer_size):
        connection_init(&h.connection, self.scheduler.queue, &CONNECTION, h, buffer_size)
        task_init(&h.task, host_task, h)
        h.log = new Journal()
        h.logs = logs
        h.message_size = message_size
        h.accepts.store(-1)
        h.progress = &self.total

    cdef void make_consumer(self, int64_t number):
        cdef HostConsumer* c = &self.consumers[number]
        c.number = number
        c.target = &self.targets[number // self.consumers_each]
        c.seen = new Journal()
        c.known = target_attach(&c.target.target, c)

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.consumer_count):
            del self.consumers[i].seen
            if self.consumers[i].known:
                target_forget(&self.consumers[i].target.target)
        for i in range(self.target_count):  # of connections that never closed
            if not self.targets[i].disposed.load():
                free(self.targets[i].target.consumers)
        for i in range(self.connection_count):
            del self.connections[i].log
        scheduler_clear(&self.scheduler)
        del self.bell
        free(self.consumers)
        free(self.targets)
        free(self.sessions)
        free(self.connections)

    # -- targets --------------------------------------------------------------------------------------------------

    def start(self):
        """Let all targets be desired."""
        cdef int64_t i
        for i in range(self.target_count):
            target_start(&self.targets[i].target)

    def hinder(self, int64_t target, uint32_t reasons):
        target_hinder(&self.targets[target].target, reasons)

    def resume(self, int64_t target, uint32_t reasons):
        target_resume(&self.targets[target].target, reasons)

    def desired(self, int64_t target):
        return target_desired(&self.targets[target].target)

    def close_target(self, int64_t target):
        target_close(&self.targets[target].target)

    def close_session(self, int64_t session):
        session_close(&self.sessions[session].session)

    def detach(self, int64_t consumer):
        cdef HostConsumer* c = &self.consumers[consumer]
        return target_detach(&c.target.target, c)

    def attach(self, int64_t consumer):
        """Attach a consumer that was detached and forgotten."""
        cdef HostConsumer* c = &self.consumers[consumer]
        c.known = target_attach(&c.target.target, c)
        return c.known

    def forget(self, int64_t consumer):
        """Its queue lets go of a consumer."""
        cdef HostConsumer* c = &self.consumers[consumer]
        c.known = False
        target_forget(&c.target.target)

    def seen(self, int64_t consumer):
        """What a consumer was told: 1 and 0, desired or not; 2, closed."""
        return entries(self.consumers[consumer].seen)

    def pulls(self, int64_t consumer):
        """How often a consumer was tried."""
        return self.consumers[consumer].pulls

    def waiting(self, int64_t consumer):
        """Messages in its queue."""
        return self.consumers[consumer].waiting.load()

    def disposed(self):
        """Numbers of targets, sessions and connections disposed of."""
        return (
            sum(self.targets[i].disposed.load() for i in range(self.target_count)),
            sum(self.sessions[i].disposed.load() for i in range(self.session_count)),
            sum(self.connections[i].disposed.load() for i in range(self.connection_count)),
        )

    # -- connections ----------------------------------------------------------------------------------------------

    def put(self, int64_t consumer, int64_t count=1, bint notify=True):
        """Give a consumer's queue messages, and have it notify."""
        cdef HostConsumer* c = &self.consumers[consumer]
        c.waiting.fetch_add(count)
        if notify:
            target_notify(&c.target.target)

    def notify(self, int64_t connection):
        connection_notify(&self.connections[connection].connection)

    def closed(self, int64_t connection):
        """Whether it has made its last pass."""
        return bool(self.connections[connection].closed.load())

    def submit(self, int64_t connection):
        return connection_submit(&self.connections[connection].connection, &self.connections[connection].task)

    def close(self, int64_t connection):
        connection_close(&self.connections[connection].connection)

    def retain(self, int64_t connection):
        connection_retain(&self.connections[connection].connection)

    def release(self, int64_t connection):
        connection_release(&self.connections[connection].connection)

    def one_pass(self, int64_t connection=0):
        """Make one pass, in this thread: 0 done, 1 more, 2 blocked, 3 closed."""
        return connection_pass(&self.connections[connection].connection)

    def log(self, int64_t connection=0):
        """What the connection served since the last call."""
        served = entries(self.connections[connection].log)
        self.connections[connection].log.clear()
        return served

    def receive(self, int64_t connection, int64_t events):
        """Have so many events come in, without a notification."""
        self.connections[connection].input.fetch_add(events)

    def accept(self, int64_t connection, int64_t size):
        """Have the transport take so many bytes from now on; negative: any number."""
        self.connections[connection].accepts.store(size)

    def figures(self, int64_t connection=0):
        """Bytes buffered, writes, tasks run, events received."""
        cdef HostConnection* h = &self.connections[connection]
        return h.output.load(), h.writes.load(), h.tasks.load(), h.received.load()

    # -- threads --------------------------------------------------------------------------------------------------

    def run(self):
        """Be an I/O thread."""
        with nogil:
            scheduler_run(&self.scheduler)

    def stop(self):
        scheduler_stop(&self.scheduler)

    def restart(self):
        scheduler_resume(&self.scheduler)

    @property
    def threads(self):
        return scheduler_threads(&self.scheduler)

    def receive_by_selector(self, int64_t connection, int64_t events):
        """Have so many events come in, of which only the selector knows; for one connection in a chain's life."""
        self.bell.receiver = &self.connections[connection]
        self.bell.event(events)

    @property
    def progress(self):
        """Messages served so far."""
        return self.total.load()

    @property
    def overlaps(self):
        """How often two threads were in one connection, or one's count was lost."""
        cdef int64_t i, served = 0, overlaps = 0
        for i in range(self.connection_count):
            served += self.connections[i].served
            overlaps += self.connections[i].overlaps
        return overlaps + self.total.load() - served

    def hammer(self, uint64_t seed, uint64_t count, int64_t burst):
        """Put `count` messages, each into a random consumer's queue; now and then the same one gets a burst."""
        cdef uint64_t i, state = 2 * seed + 1
        cdef HostConsumer* c = NULL
        with nogil:
            for i in range(count):
                if i % <uint64_t> burst == 0:
                    c = &self.consumers[draw(&state) % <uint64_t> self.consumer_count]
                c.waiting.fetch_add(1)
                target_notify(&c.target.target)
        return count

    def submit_many(self, uint64_t seed, uint64_t count):
        """Submit tasks to random connections; how many were taken on."""
        cdef uint64_t _i, at, state = 2 * seed + 1, taken = 0
        with nogil:
            for _i in range(count):
                at = draw(&state) % <uint64_t> self.connection_count
                taken += connection_submit(&self.connections[at].connection, &self.connections[at].task)
        return taken

    def cycle(self, uint64_t count):
        """Nanoseconds for `count` times: a message comes for the first target, which is notified and served."""
        cdef uint64_t _i
        cdef int64_t start
        cdef HostConsumer* c = self.consumers
        cdef Connection* connection = &self.connections[0].connection
        with nogil:
            # As in a pass: the connection's flags are set, so that no thread is asked for.
            connection.flags.store(3)
            start = now_ns()
            for _i in range(count):
                c.waiting.fetch_add(1)
                target_notify(&c.target.target)
                connection_step(connection)
            start = now_ns() - start
            connection.flags.store(0)
        return start

    def serve(self, uint64_t each):
        """Nanoseconds for passes over all targets of the first connection until each consumer had so many messages."""
        cdef int64_t i, start
        cdef Connection* connection = &self.connections[0].connection
        with nogil:
            connection.flags.store(3)
            for i in range(self.consumer_count):
                self.consumers[i].waiting.store(<int64_t> each)
                target_notify(&self.consumers[i].target.target)
            start = now_ns()
            while connection_pass(connection) == PASS_MORE:
                pass
            start = now_ns() - start
            connection.flags.store(0)
        return start
