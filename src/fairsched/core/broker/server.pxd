"""The server: starts and stops, waits for sockets, accepts connections, and runs timers.

The thread that waits for sockets (one at a time, connection/runqueue.pxd) also accepts connections, and runs the timer:
every few milliseconds it expires messages, and a few times a second it checks connections (heartbeats, time-outs,
memory).

Thread safety: server_run by the I/O threads; the rest as stated there. Complexity: a tick O(queues with expiring or
delayed messages), a check O(connections).
"""

from libc.stdint cimport INT64_MAX, int64_t, uint16_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched.core.amqp.octets cimport Text, bytes_clear, bytes_init, text_copy, text_free
from fairsched.core.broker.channels cimport channel_disposed
from fairsched.core.broker.connections cimport (
    READ_LEAST, brokerconnection_buffered, brokerconnection_settle_up, brokerconnection_tear_down,
    brokerconnection_work, brokerconnection_write,
)
from fairsched.core.broker.consumers cimport (
    consumer_disposed, consumer_interest, consumer_leave, consumer_pull, host_forget,
)
from fairsched.core.broker.deadletters cimport deadletters_publish
from fairsched.core.broker.delays cimport delays_clear, delays_publish
from fairsched.core.broker.durability.journal cimport Journal
from fairsched.core.broker.durability.keeping cimport connections_told
from fairsched.core.broker.exchanges.exchanges cimport topology_clear, topology_init
from fairsched.core.broker.exchanges.routing cimport route_clear, route_init
from fairsched.core.broker.handshake cimport SECOND, login_done, login_forget
from fairsched.core.broker.network cimport (
    clock_now, socket_accept, socket_close, socket_listen, socket_port, socket_spare, socket_turn_away,
)
from fairsched.core.broker.poller cimport Poller, poller_close
from fairsched.core.broker.queues cimport (
    MILLISECOND, brokerqueue_close, brokerqueue_drop, brokerqueue_expire, brokerqueue_release, timed_push,
)
from fairsched.core.broker.state cimport (
    ALARM_DEAD, ALARM_HEARTBEAT, ALARM_MEMORY, ALARM_STOP, ALARM_TIMEOUT, BrokerConnection, BrokerQueue, Guard, Host,
    Server, SharedGuard, STATE_HEADER,
)
from fairsched.core.broker.queuecall cimport deadletters_init
from fairsched.core.connection.chain cimport Connection
from fairsched.core.connection.connection cimport (
    connection_close, connection_init, connection_notify, task_init,
)
from fairsched.core.connection.scheduler cimport scheduler_clear, scheduler_init, scheduler_run, scheduler_stop
from fairsched.core.memory cimport heap_trim
from fairsched.core.waiting.parking cimport Parking

cdef enum:
    BACKLOG = 1024
    TICK = 10            # milliseconds between ticks if messages may expire
    SURVEY = 500         # milliseconds between surveys of the connections
    TRIM_LEAST = 16777216  # the heap is trimmed if the peak was above this, and three quarters of it are free

# Connections ----------------------------------------------------------------------------------------------------------

cdef inline bint on_receive(void* context) noexcept nogil:
    return brokerconnection_work(<BrokerConnection*> context)

cdef inline void on_closed(void* context) noexcept nogil:
    """Return the messages of a connection that has no more passes, and close its socket."""
    cdef BrokerConnection* connection = <BrokerConnection*> context
    cdef Server* server = connection.server
    connection.now = clock_now()
    brokerconnection_tear_down(connection)
    brokerconnection_settle_up(connection)
    brokerconnection_write(connection)
    server.registry.lock()
    if connection.previous != NULL:
        connection.previous.next = connection.next
    else:
        server.first_connection = connection.next
    if connection.next != NULL:
        connection.next.previous = connection.previous
    server.registry.unlock()
    poller_close(server.poller, connection.fd)
    server.connections.fetch_sub(1)

cdef inline void on_dispose(Connection* base) noexcept nogil:
    """Put a connection into the graveyard: the poller frees it when no event can refer to it."""
    cdef BrokerConnection* connection = <BrokerConnection*> base
    cdef Server* server = connection.server
    cdef uintptr_t head = server.graveyard.load()
    connection.buried = head
    while not server.graveyard.compare_exchange_weak(head, <uintptr_t> connection):
        connection.buried = head

cdef inline void server_free_buried(Server* server) noexcept nogil:
    cdef BrokerConnection* connection = <BrokerConnection*> server.graveyard.exchange(0)
    cdef BrokerConnection* following
    while connection != NULL:
        following = <BrokerConnection*> connection.buried
        bytes_clear(&connection.input)
        bytes_clear(&connection.output)
        route_clear(&connection.route)
        login_forget(connection)
        text_free(&connection.user)
        free(connection.channels)
        free(connection)
        connection = following

cdef inline void server_admit(Server* server, int fd, bint local, const char* peer) noexcept nogil:
    """Start serving a new connection."""
    cdef BrokerConnection* connection
    cdef int i
    if server.stopping.load() or (
        server.limits.connections > 0 and server.connections.load() >= server.limits.connections
    ):
        socket_close(fd)
        return
    connection = <BrokerConnection*> malloc(sizeof(BrokerConnection))
    if connection == NULL:
        socket_close(fd)
        return
    memset(<void*> connection, 0, sizeof(BrokerConnection))
    connection_init(&connection.base, server.scheduler.queue, &server.connection_actions, connection, 0)
    connection.server = server
    connection.number = server.numbers.fetch_add(1) + 1
    connection.fd = fd
    connection.local = local
    connection.state = STATE_HEADER
    for i in range(63):
        connection.peer[i] = peer[i]
        if peer[i] == 0:
            break
    connection.now = clock_now()
    connection.heard.store(connection.now)
    connection.spoken.store(connection.now)
    connection.deadline.store(connection.now + server.limits.handshake)
    connection.reads = READ_LEAST
    bytes_init(&connection.input)
    bytes_init(&connection.output)
    route_init(&connection.route)
    deadletters_init(&connection.dead)
    task_init(&connection.login, login_done, connection)
    server.connections.fetch_add(1)
    server.registry.lock()
    connection.next = server.first_connection
    if connection.next != NULL:
        connection.next.previous = connection
    server.first_connection = connection
    server.registry.unlock()
    if not server.poller.add(fd, connection, False):
        connection_close(&connection.base)

cdef inline void server_accept(Server* server) noexcept nogil:
    cdef char peer[64]
    cdef bint local
    cdef int fd = socket_accept(server.listening, &local, peer, 64)
    while fd >= 0 or socket_turn_away(server.listening, &server.spare):
        if fd >= 0:
            server_admit(server, fd, local, peer)
        fd = socket_accept(server.listening, &local, peer, 64)

# Time -----------------------------------------------------------------------------------------------------------------

cdef inline bint queue_unused(const BrokerQueue* b, int64_t now) noexcept nogil:
    """Return whether a queue has been unused for as long as its x-expires."""
    cdef int64_t life = b.arguments.expires * MILLISECOND
    return life > 0 and b.queue.consumers.load() == 0 and now - (<BrokerQueue*> b).used.load() > life

cdef inline void queue_expire(Server* server, BrokerQueue* b, int64_t now) noexcept nogil:
    """Delete a queue that is unused."""
    cdef bint goes
    server.lock.lock()
    goes = not b.queue.closed.load() and queue_unused(b, now) and brokerqueue_close(b, True, False)
    if goes:
        host_forget(b)
    server.lock.unlock()
    if goes:
        brokerqueue_drop(b, now)

cdef inline bint tick_queue(Server* server, BrokerQueue* b, int64_t now) noexcept nogil:
    """Expire the messages of a queue, or the queue; return whether the queue still needs ticks."""
    if b.queue.closed.load():
        return False
    if b.queue.timed.load() != 0:
        brokerqueue_expire(b, now, &server.dead)
    if b.arguments.expires > 0:
        if queue_unused(b, now):
            queue_expire(server, b, now)
        return not b.queue.closed.load()
    return b.queue.timed.load() != 0

cdef inline void tick_queues(Server* server, int64_t now) noexcept nogil:
    """Expire messages and queues."""
    cdef BrokerQueue* chain = <BrokerQueue*> server.timed.exchange(0)
    cdef BrokerQueue* following
    while chain != NULL:
        following = chain.next_timed
        if not tick_queue(server, chain, now):
            chain.listed.store(0)
            # A thread that has put a message meanwhile saw the flag set, and relies on this one.
            if chain.queue.closed.load() or chain.queue.timed.load() == 0 or chain.listed.exchange(1):
                brokerqueue_release(chain)
                chain = following
                continue
        timed_push(server, chain)
        chain = following
    if server.dead.first != NULL:
        server.lock.share()
        deadletters_publish(&server.route, &server.dead, now)
        server.lock.unshare()

cdef inline uint32_t survey_connection(Server* server, BrokerConnection* connection, int64_t now) noexcept nogil:
    """Return the alarms to raise for a connection: time-outs and heartbeats."""
    cdef uint32_t alarms = ALARM_TIMEOUT
    cdef int64_t heartbeat = connection.heartbeat.load(), deadline = connection.deadline.load()
    if deadline != 0 and now > deadline:
        alarms |= ALARM_DEAD
    if heartbeat > 0 and connection.opened.load():
        if now - connection.spoken.load() >= heartbeat // 2:
            alarms |= ALARM_HEARTBEAT
        if not server.short_of_memory.load() and now - connection.heard.load() > 2 * heartbeat + SECOND:
            alarms |= ALARM_DEAD
    return alarms

cdef inline void server_survey(Server* server, int64_t now) noexcept nogil:
    cdef BrokerConnection* connection
    server.registry.lock()
    connection = server.first_connection
    while connection != NULL:
        connection.alarms.fetch_or(survey_connection(server, connection, now))
        connection_notify(&connection.base)
        connection = connection.next
    server.registry.unlock()

cdef inline void server_warn(Server* server, uint32_t alarms) noexcept nogil:
    """Raise alarms for all connections."""
    cdef BrokerConnection* connection
    server.registry.lock()
    connection = server.first_connection
    while connection != NULL:
        connection.alarms.fetch_or(alarms)
        connection_notify(&connection.base)
        connection = connection.next
    server.registry.unlock()

cdef inline void server_watch_memory(Server* server) noexcept nogil:
    """Block publishers when messages take too much memory, unblock them later, and update the peak."""
    cdef int64_t most = server.limits.memory.load(), used = server.memory.load()
    cdef bint was = server.short_of_memory.load() != 0
    cdef bint is_short = most > 0 and (used > most or (was and used > most // 100 * 95))
    server.memory_peak = max(server.memory_peak, used)
    if is_short != was:
        server.short_of_memory.store(is_short)
        server_warn(server, ALARM_MEMORY)

cdef inline void server_trim(Server* server) noexcept nogil:
    """Return memory to the system when most messages are gone."""
    cdef int64_t used = server.memory.load()
    if server.memory_peak >= <int64_t> TRIM_LEAST and used <= server.memory_peak // 4:
        server.memory_peak = used
        heap_trim()

cdef inline void server_tick(Server* server, int64_t now) noexcept nogil:
    server.tick_due = now + TICK * MILLISECOND
    if server.held_due.load() <= now and delays_publish(server, &server.route, &server.dead, now):
        server.tick_due = now
    tick_queues(server, now)
    server_watch_memory(server)
    if now >= server.survey_due:
        server.survey_due = now + SURVEY * MILLISECOND
        server_survey(server, now)
        server_trim(server)

# Waiting for sockets --------------------------------------------------------------------------------------------------

cdef inline bint server_ticks(Server* server) noexcept nogil:
    """Return whether something is to be done every few milliseconds: messages may expire, or are due soon."""
    return server.timed.load() != 0 or server.short_of_memory.load() != 0 or (
        server.held_due.load() < clock_now() + (SURVEY + TICK) * MILLISECOND
    )

cdef inline void server_poll(void* context, bint wait) noexcept nogil:
    """Poll sockets, waiting if `wait` is set, and notify their connections."""
    cdef Server* server = <Server*> context
    cdef uint32_t what = 0
    cdef void* found
    cdef int64_t now
    cdef int count, i, patience = 0
    server_free_buried(server)
    if wait:
        patience = TICK if server_ticks(server) else SURVEY
    count = server.poller.wait(patience)
    for i in range(count):
        found = server.poller.event(i, &what)
        if found == server:
            server_accept(server)
        elif found != NULL:
            (<BrokerConnection*> found).events.fetch_or(what)
            connection_notify(&(<BrokerConnection*> found).base)
    now = clock_now()
    if now >= server.tick_due:
        server_tick(server, now)

cdef inline void server_interrupt(void* context) noexcept nogil:
    (<Server*> context).poller.ring()

# Its life -------------------------------------------------------------------------------------------------------------

cdef inline void server_set_actions(Server* server) noexcept nogil:
    server.connection_actions.receive = on_receive
    server.connection_actions.buffered = brokerconnection_buffered
    server.connection_actions.write = brokerconnection_write
    server.connection_actions.closed = on_closed
    server.connection_actions.dispose = on_dispose
    server.session_actions.dispose = channel_disposed
    server.target_actions.pull = consumer_pull
    server.target_actions.interest = consumer_interest
    server.target_actions.close = consumer_leave
    server.target_actions.dispose = consumer_disposed

cdef inline Host* server_add_host(Server* server, Text name) noexcept nogil:
    """Add a virtual host, before other threads know the server; NULL: memory is exhausted."""
    cdef Host* host = <Host*> malloc(sizeof(Host))
    if host == NULL:
        return NULL
    memset(<void*> host, 0, sizeof(Host))
    host.name = text_copy(name)
    host.server = server
    if host.name.data == NULL or not topology_init(&host.topology, host.name):
        text_free(&host.name)
        free(host)
        return NULL
    host.next = server.hosts
    server.hosts = host
    return host

cdef inline Server* server_create() noexcept nogil:
    """Make a server without limits, hosts or a socket; NULL: memory is exhausted, or there is no poller."""
    cdef Server* server = <Server*> malloc(sizeof(Server))
    if server == NULL:
        return NULL
    memset(<void*> server, 0, sizeof(Server))
    server.listening = -1
    server.spare = socket_spare()
    server_set_actions(server)
    server.poller = new Poller()
    server.lock = new SharedGuard()
    server.registry = new Guard()
    server.arrived = new Parking()
    server.delays = new Guard()
    server.held_due.store(INT64_MAX)
    server.last_login = &server.logins
    bytes_init(&server.properties)
    route_init(&server.route)
    deadletters_init(&server.dead)
    if not scheduler_init(&server.scheduler, server_poll, server_interrupt, server) or not server.poller.open():
        server_destroy(server)
        return NULL
    return server

cdef inline void server_journal(Server* server, Journal* journal) noexcept nogil:
    """Give a server its journal, before the writer starts and before other threads know the server."""
    server.journal = journal
    journal.host = server
    journal.told = connections_told

cdef inline bint server_listen(Server* server, const char* host, uint16_t port) noexcept nogil:
    """Listen on an address; False: failed, with errno."""
    server.listening = socket_listen(host, port, BACKLOG)
    if server.listening < 0:
        return False
    server.port = socket_port(server.listening)
    return server.poller.add(server.listening, server, True)

cdef inline void server_run(Server* server) noexcept nogil:
    """Run as an I/O thread until server_stop."""
    scheduler_run(&server.scheduler)

cdef inline void server_quiet(Server* server) noexcept nogil:
    """Stop accepting connections, and close those that are open."""
    server.stopping.store(1)
    server.arrived.unpark(1)
    server_warn(server, ALARM_STOP)
    server.poller.ring()

cdef inline void server_limit_memory(Server* server, int64_t most) noexcept nogil:
    """Set the octets of messages at which publishers are blocked; from any thread."""
    server.limits.memory.store(most)
    server.poller.ring()

cdef inline void server_stop(Server* server) noexcept nogil:
    """Have all I/O threads return from server_run."""
    scheduler_stop(&server.scheduler)

cdef inline void host_clear(Host* host) noexcept nogil:
    cdef BrokerQueue* b = host.queues
    cdef BrokerQueue* following
    while b != NULL:
        following = b.next
        brokerqueue_release(b)
        b = following
    topology_clear(&host.topology)
    text_free(&host.name)
    free(host)

cdef inline void server_destroy(Server* server) noexcept nogil:
    """Free a server that no thread uses and that has no connections."""
    cdef Host* host
    cdef BrokerQueue* b
    server_free_buried(server)
    while server.timed.load():
        b = <BrokerQueue*> server.timed.load()
        server.timed.store(<uintptr_t> b.next_timed)
        brokerqueue_release(b)
    while server.hosts != NULL:
        host = server.hosts
        server.hosts = host.next
        host_clear(host)
    server_free_buried(server)
    if server.listening >= 0:
        socket_close(server.listening)
    if server.spare >= 0:
        socket_close(server.spare)
    if server.scheduler.queue != NULL:
        scheduler_clear(&server.scheduler)
    route_clear(&server.route)
    bytes_clear(&server.properties)
    text_free(&server.mechanisms)
    server.poller.close()
    delays_clear(server)
    del server.delays
    del server.poller
    del server.lock
    del server.registry
    del server.arrived
    free(server)
