"""The embedded broker for Python: a class around core/broker.

    Server     a socket, connections, queues; I/O threads run in `run`, which never takes the GIL

Python checks passwords (hashlib) and builds the status; everything between a socket and a queue is in core/broker.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from fairsched.broker._journal cimport Store
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_append, bytes_clear, bytes_init, bytes_size, text_copy
from fairsched.core.broker.durability.journal cimport JournalRecord, journal_count, journal_records, records_free
from fairsched.core.broker.durability.recovery cimport server_recover, server_say_closed
from fairsched.core.broker.errors cimport Refusal
from fairsched.core.broker.handshake cimport login_answer, login_take
from fairsched.core.broker.server cimport (
    server_add_host, server_create, server_destroy, server_journal, server_limit_memory, server_listen, server_quiet,
    server_run, server_stop, server_warn,
)
from fairsched.core.broker.state cimport ALARM_CLOSE, ALARM_DEAD, BrokerConnection, Server as ServerMemory
from fairsched.core.broker.status cimport ConsumerRow, QueueRow, status_write
from fairsched.core.waiting.node cimport INTERESTED, NOTIFIED, NOT_INTERESTED, SERVED

import os


cdef inline Text text_of_bytes(bytes octets):
    return Text(<const uint8_t*> PyBytes_AS_STRING(octets), <uint32_t> PyBytes_GET_SIZE(octets))


cdef inline bytes bytes_of_text(Text text):
    return (<const char*> text.data)[:text.length]


#: The lists that a consumer can be in.
cdef dict LISTS = {
    INTERESTED: "interested", NOTIFIED: "notified", SERVED: "notified", NOT_INTERESTED: "not interested",
}


cdef str text_at(bytes rows, int64_t* at, uint32_t length):
    """Return the text at `at`, and advance past it."""
    at[0] += length
    return rows[at[0] - length:at[0]].decode("utf-8", "replace")


cdef bytes status_rows(ServerMemory* server, bint consumers):
    """Return rows of core/broker/status.pxd. No Python object is made under the broker's locks."""
    cdef Bytes out
    bytes_init(&out)
    with nogil:
        status_write(server, consumers, &out)
    try:
        if out.failed:
            raise MemoryError
        return (<const char*> out.data + out.begin)[:bytes_size(&out)] if bytes_size(&out) else b""
    finally:
        bytes_clear(&out)


@cython.final
cdef class Server:
    """Server(host, port, *, properties, vhosts, limits, store=None)
    --

    A broker's socket, connections and queues.

    Parameters
    ----------
    host : str
        A numeric address to listen on.
    port : int
        Port to listen on; 0: any free port.
    properties : bytes
        The server-properties of connection.start, as a table of AMQP.
    vhosts : sequence of str
    limits : Mapping[str, int]
        connections, queues, channel_max, frame_max, heartbeat (seconds), message_size, memory (bytes), handshake and
        ack_timeout (nanoseconds). 0: none, of connections, queues, heartbeat, memory and ack_timeout.
    store : Store, optional
        The journal, not started yet: its contents are restored. Close it before the server is freed.

    Raises
    ------
    ValueError
        The contents of the store cannot be restored.
    OSError
        The address cannot be listened on.

    Notes
    -----
    Thread safety: any thread, any method; `close` when no thread is in `run` or `login` any more.
    """

    cdef ServerMemory* memory
    cdef Store store

    def __cinit__(self, str host, int port, *, bytes properties, vhosts, limits, Store store=None):
        cdef bytes address = host.encode()
        cdef bytes encoded
        cdef ServerMemory* server = server_create()
        if server == NULL:
            raise MemoryError()
        self.memory = server
        server.limits.connections = limits["connections"]
        server.limits.queues = limits["queues"]
        server.limits.channel_max = limits["channel_max"]
        server.limits.frame_max = limits["frame_max"]
        server.limits.heartbeat = limits["heartbeat"]
        server.limits.message_size = limits["message_size"]
        server.limits.memory.store(limits["memory"])
        server.limits.handshake = limits["handshake"]
        server.limits.ack_timeout = limits["ack_timeout"]
        server.mechanisms = text_copy(text_of_bytes(b"PLAIN AMQPLAIN"))
        bytes_append(
            &server.properties, <const uint8_t*> PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties)
        )
        for vhost in vhosts:
            encoded = vhost.encode()
            if server_add_host(server, text_of_bytes(encoded)) == NULL:
                raise MemoryError()
        if store is not None:
            self.store = store
            server_journal(server, &store.journal)
            self.recover()
        if not server_listen(server, PyBytes_AS_STRING(address), <uint16_t> port):
            error = errno
            raise OSError(error, f"cannot listen on {host}:{port}: {os.strerror(error)}")

    def __dealloc__(self):
        if self.memory != NULL:
            server_destroy(self.memory)

    cdef int recover(self) except -1:
        """Restore the contents of the store."""
        cdef JournalRecord* records = journal_records(&self.store.journal)
        cdef int64_t count = journal_count(&self.store.journal)
        cdef Refusal refusal
        cdef bint done
        with nogil:
            done = server_recover(self.memory, records, count, &refusal)
            records_free(records)
        if not done:
            raise ValueError((<const char*> refusal.text)[:refusal.length].decode("utf-8", "replace"))
        return 0

    def say_closed(self):
        """say_closed($self)
        --

        Record in the store which messages were delivered, so that they are marked as redelivered after the next start.

        Call it when all threads have returned from `run`, and before the store is closed.
        """
        with nogil:
            server_say_closed(self.memory)

    @property
    def port(self):
        """The port that the server listens on."""
        return self.memory.port

    def run(self):
        """run($self)
        --

        Run as an I/O thread until `stop`, without the GIL.
        """
        with nogil:
            server_run(self.memory)

    def login(self):
        """login($self)
        --

        Wait for a client that logs in.

        Returns
        -------
        (int, bytes or None, bytes, bool, str) or None
            A token, to be passed to `answer`; user (None: the client began TLS, and its connection is closed);
            password; whether the client is on this machine; its address. None: the broker stops.
        """
        cdef BrokerConnection* connection
        with nogil:
            connection = login_take(self.memory)
        if connection == NULL:
            return None
        user = None if connection.tls else bytes_of_text(connection.user)
        password = b"" if connection.tls else bytes_of_text(connection.password)
        peer = (<const char*> &connection.peer[0]).decode("ascii")
        return <uintptr_t> connection, user, password, bool(connection.local), peer

    def answer(self, token, admitted):
        """answer($self, token, admitted)
        --

        Accept or refuse a login. Call it once for each token.
        """
        cdef BrokerConnection* connection = <BrokerConnection*> <uintptr_t> token
        cdef bint yes = bool(admitted)
        with nogil:
            login_answer(connection, yes)

    def quiet(self):
        """quiet($self)
        --

        Stop accepting connections, and close those that are open.
        """
        with nogil:
            server_quiet(self.memory)

    def close_connections(self):
        """close_connections($self)
        --

        Close all connections; clients may connect again.
        """
        with nogil:
            server_warn(self.memory, ALARM_CLOSE)

    def limit_memory(self, int64_t most):
        """limit_memory($self, most)
        --

        Set the number of bytes of messages at which publishers are blocked; 0: no limit.
        """
        with nogil:
            server_limit_memory(self.memory, most)

    def disconnect(self):
        """disconnect($self)
        --

        End all connections immediately, without connection.close.
        """
        with nogil:
            server_warn(self.memory, ALARM_DEAD)

    def stop(self):
        """stop($self)
        --

        Have all threads return from `run`.
        """
        with nogil:
            server_stop(self.memory)

    def counts(self):
        """counts($self)
        --

        Return the numbers of connections, channels, queues and messages, and the bytes of messages.

        Returns
        -------
        dict
        """
        cdef ServerMemory* server = self.memory
        return {
            "connections": server.connections.load(),
            "channels": server.channels.load(),
            "queues": server.queues.load(),
            "messages": server.payloads.load(),
            "message_bytes": server.memory.load(),
            "memory_alarm": server.short_of_memory.load() != 0,
        }

    def queues(self):
        """queues($self)
        --

        Return the status of each queue, in no order.

        Returns
        -------
        list of dict
        """
        cdef bytes rows = status_rows(self.memory, False)
        cdef QueueRow row
        cdef int64_t at = 0
        cdef list found = []
        while at < PyBytes_GET_SIZE(rows):
            memcpy(&row, PyBytes_AS_STRING(rows) + at, sizeof(QueueRow))  # texts stand between: not aligned
            at += sizeof(QueueRow)
            found.append({
                "vhost": text_at(rows, &at, row.vhost),
                "name": text_at(rows, &at, row.name),
                "durable": row.durable != 0,
                "exclusive": row.exclusive != 0,
                "ready": row.ready,
                "depth": row.depth,
                "bytes": row.octets,
                "consumers": row.consumers,
                "published": row.published,
                "delivered": row.delivered,
                "acknowledged": row.acked,
            })
        return found

    def consumers(self):
        """consumers($self)
        --

        Return the status of each consumer, in no order.

        Returns
        -------
        list of dict
        """
        cdef bytes rows = status_rows(self.memory, True)
        cdef ConsumerRow row
        cdef int64_t at = 0
        cdef list found = []
        while at < PyBytes_GET_SIZE(rows):
            memcpy(&row, PyBytes_AS_STRING(rows) + at, sizeof(ConsumerRow))  # texts stand between: not aligned
            at += sizeof(ConsumerRow)
            found.append({
                "vhost": text_at(rows, &at, row.vhost),
                "queue": text_at(rows, &at, row.queue),
                "tag": text_at(rows, &at, row.tag),
                "connection": text_at(rows, &at, row.peer),
                "channel": row.channel,
                "prefetch": row.prefetch,
                "priority": row.priority,
                "acknowledges": row.no_ack == 0,
                "list": LISTS.get(row.state, "none"),
            })
        return found
