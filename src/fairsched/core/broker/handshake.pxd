"""The opening of a connection: protocol header, start, check of the password, tune, open.

The caller of `login_take` and `login_answer` checks passwords, which takes time, and Python's hashlib; this header only
reads and stores what the client sent. A client that has not logged in in time is disconnected.

Thread safety: the connection's thread; login_take and login_answer any one thread. Complexity: O(1).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memset

from fairsched.core.amqp.constants cimport ACCESS_REFUSED, COMMAND_INVALID, FRAME_MIN_SIZE, NOT_ALLOWED
from fairsched.core.amqp.methods cimport (
    ConnectionStartOk, ConnectionTuneOk, connection_close_write, connection_open_ok_write, connection_open_read,
    connection_start_ok_read, connection_start_write, connection_tune_ok_read, connection_tune_write,
)
from fairsched.core.amqp.octets cimport (
    Reader, Text, bytes_append, text_copy, text_equal, text_free, text_is, text_of,
)
from fairsched.core.amqp.tables cimport Field, TableWalk, field_bool, field_text, tables_fields, tables_get, tables_next
from fairsched.core.broker.errors cimport (
    Refusal, refusal_number, refusal_say, refuse, refuse_memory, refuse_name, refuse_number, refuse_syntax,
)
from fairsched.core.broker.poller cimport EVENT_END, EVENT_READ
from fairsched.core.broker.state cimport (
    BrokerConnection, Host, Server, STATE_CLOSING, STATE_GONE, STATE_LOGIN, STATE_OPEN, STATE_OPENING, STATE_START,
    STATE_TUNE,
)
from fairsched.core.connection.chain cimport Task
from fairsched.core.connection.connection cimport (
    CONNECTION_CLOSING, connection_close, connection_notify, connection_release, connection_retain, connection_submit,
)

cdef enum:
    PROTOCOL_SIZE = 8
    TLS_HANDSHAKE = 22           # first octet of a TLS record, before
    TLS_MAJOR = 3                # the major version
    CHANNELS_ALL = 65535

cdef enum: SECOND = 1000000000

cdef inline bint handshake_begin(BrokerConnection* connection, const uint8_t* header) noexcept nogil:
    """Read the protocol header; False: it is another protocol's, and the connection is closed."""
    cdef const uint8_t* ours = b"AMQP\x00\x00\x09\x01"
    if memcmp(header, ours, PROTOCOL_SIZE) != 0:
        bytes_append(&connection.output, ours, PROTOCOL_SIZE)
        connection.tls = header[0] == TLS_HANDSHAKE and header[1] == TLS_MAJOR
        if connection.tls:
            login_submit(connection)
        return False
    connection_start_write(
        &connection.output, Text(connection.server.properties.data, <uint32_t> connection.server.properties.end),
        connection.server.mechanisms, text_of(b"en_US")
    )
    connection.state = STATE_START
    return True

cdef inline bint capability(Text capabilities, const char* name) noexcept nogil:
    cdef Field f
    cdef bint value = False
    return tables_get(capabilities, text_of(name), &f) and field_bool(&f, &value) and value

cdef inline void brokerconnection_read_capabilities(BrokerConnection* connection, Text properties) noexcept nogil:
    """Store the client's capabilities."""
    cdef Field f
    if not tables_get(properties, text_of(b"capabilities"), &f) or f.kind != b'F':
        return
    connection.cancel_notify = capability(f.value, b"consumer_cancel_notify")
    connection.blocked_notify = capability(f.value, b"connection.blocked")
    connection.close_notify = capability(f.value, b"authentication_failure_close")
    connection.nacks = capability(f.value, b"basic.nack")

cdef inline bint login_plain(Text response, Text* user, Text* password) noexcept nogil:
    """Read a response of PLAIN: NUL user NUL password."""
    cdef const uint8_t* end
    if response.length < 2 or response.data[0] != 0:
        return False
    end = <const uint8_t*> memchr(response.data + 1, 0, response.length - 1)
    if end == NULL:
        return False
    user[0] = Text(response.data + 1, <uint32_t> (end - response.data - 1))
    password[0] = Text(end + 1, <uint32_t> (response.data + response.length - end - 1))
    return True

cdef inline bint login_amqplain(Text response, Text* user, Text* password) noexcept nogil:
    """Read a response of AMQPLAIN: the fields LOGIN and PASSWORD of a table."""
    cdef TableWalk w = tables_fields(response, True)
    cdef Text name
    cdef Field f
    cdef int found = 0
    while tables_next(&w, &name, &f):
        if text_is(name, b"LOGIN") and field_text(&f, user):
            found |= 1
        elif text_is(name, b"PASSWORD") and field_text(&f, password):
            found |= 2
    return found == 3 and not w.broken

cdef inline void login_submit(BrokerConnection* connection) noexcept nogil:
    """Queue a login for `login_take`."""
    cdef Server* server = connection.server
    connection_retain(&connection.base)
    connection.next_login = NULL
    server.registry.lock()
    server.last_login[0] = connection
    server.last_login = &connection.next_login
    server.registry.unlock()
    server.arrived.unpark(1)

cdef inline void login_refused(BrokerConnection* connection, const char* mechanism) noexcept nogil:
    """Close the connection. A client with the capability authentication_failure_close is told why."""
    cdef Refusal refusal
    refuse_name(
        &refusal, ACCESS_REFUSED, b"ACCESS_REFUSED - Login was refused using authentication mechanism ",
        text_of(mechanism), b". For details see the broker logfile."
    )
    if connection.close_notify:
        connection_close_write(&connection.output, ACCESS_REFUSED, Text(&refusal.text[0], refusal.length), 0)
        connection.state = STATE_CLOSING
        connection.deadline.store(connection.now + SECOND)
    else:
        connection.state = STATE_GONE
        connection_close(&connection.base)

cdef inline bint on_start_ok(BrokerConnection* connection, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ConnectionStartOk m
    cdef Text user, password
    cdef bint there
    if not connection_start_ok_read(r, &m):
        return refuse_syntax(refusal)
    brokerconnection_read_capabilities(connection, m.client_properties)
    if text_is(m.mechanism, b"PLAIN"):
        there = login_plain(m.response, &user, &password)
    elif text_is(m.mechanism, b"AMQPLAIN"):
        there = login_amqplain(m.response, &user, &password)
    else:
        return refuse_name(refusal, COMMAND_INVALID, b"unknown authentication mechanism '", m.mechanism, b"'")
    if not there or user.length > 255 or password.length > 1024:
        login_refused(connection, b"PLAIN")
        return True
    connection.plain = text_is(m.mechanism, b"PLAIN")
    connection.user = text_copy(user)
    connection.password = text_copy(password)
    if connection.user.data == NULL or connection.password.data == NULL:
        return refuse_memory(refusal)
    connection.state = STATE_LOGIN
    login_submit(connection)
    return True

cdef inline void login_forget(BrokerConnection* connection) noexcept nogil:
    """Free a password."""
    if connection.password.data != NULL:
        memset(<void*> connection.password.data, 0, connection.password.length)
        text_free(&connection.password)

cdef inline void login_done(Task* task) noexcept nogil:
    """Go on after `login_answer`."""
    cdef BrokerConnection* connection = <BrokerConnection*> task.context
    login_forget(connection)
    if connection.state == STATE_LOGIN:
        if connection.admitted:
            connection_tune_write(
                &connection.output, connection.server.limits.channel_max, connection.server.limits.frame_max,
                connection.server.limits.heartbeat
            )
            connection.state = STATE_TUNE
        else:
            login_refused(connection, b"PLAIN" if connection.plain else b"AMQPLAIN")
    connection.events.fetch_or(EVENT_READ)  # read the frames that came meanwhile
    connection_notify(&connection.base)

cdef inline bint login_abandoned(BrokerConnection* connection) noexcept nogil:
    """Return whether the connection has ended before its password was checked."""
    return (connection.base.flags.load() & CONNECTION_CLOSING) != 0 or (connection.events.load() & EVENT_END) != 0

cdef inline BrokerConnection* login_take(Server* server) noexcept nogil:
    """Wait for a connection that logs in or began TLS, and return it; NULL: the broker stops.

    The caller must call login_answer. Connections that have ended are skipped, since checking their passwords would
    delay the others.
    """
    cdef BrokerConnection* connection = NULL
    while connection == NULL:
        server.arrived.park(-1)
        server.registry.lock()
        connection = server.logins
        if connection != NULL:
            server.logins = connection.next_login
            if server.logins == NULL:
                server.last_login = &server.logins
        server.registry.unlock()
        if connection == NULL and server.stopping.load():
            return NULL
        if connection != NULL and not connection.tls and login_abandoned(connection):
            login_answer(connection, False)
            connection = NULL
    return connection

cdef inline void login_answer(BrokerConnection* connection, bint admitted) noexcept nogil:
    connection.admitted = admitted
    connection_submit(&connection.base, &connection.login)
    connection_release(&connection.base)

cdef inline bint tuned(const char* name, uint32_t value, uint32_t most, Refusal* refusal) noexcept nogil:
    """Refuse a limit above the proposed one; 0 would be unlimited."""
    if 0 < value <= most:
        return True
    refuse(refusal, NOT_ALLOWED, b"negotiated ")
    refusal_say(refusal, name)
    refusal_say(refusal, b" = ")
    if value:
        refusal_number(refusal, value)
    else:
        refusal_say(refusal, b"no limit")
    refusal_say(refusal, b" is higher than the maximum allowed value (")
    refusal_number(refusal, most)
    refusal_say(refusal, b")")
    return False

cdef inline bint on_tune_ok(BrokerConnection* connection, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ConnectionTuneOk m
    if not connection_tune_ok_read(r, &m):
        return refuse_syntax(refusal)
    if not tuned(b"frame_max", m.frame_max, connection.server.limits.frame_max, refusal) or not tuned(
        b"channel_max", m.channel_max, connection.server.limits.channel_max, refusal
    ):
        return False
    if m.frame_max < FRAME_MIN_SIZE:
        return refuse_number(
            refusal, NOT_ALLOWED, b"negotiated frame_max = ", m.frame_max,
            b" is lower than the minimum allowed value (4096)"
        )
    connection.frame_max = m.frame_max
    connection.channel_max = m.channel_max
    connection.heartbeat.store(<int64_t> m.heartbeat * SECOND)
    connection.state = STATE_OPENING
    return True

cdef inline bint on_connection_open(BrokerConnection* connection, Reader* r, Refusal* refusal) noexcept nogil:
    cdef Text name
    cdef Host* host = connection.server.hosts
    if not connection_open_read(r, &name):
        return refuse_syntax(refusal)
    while host != NULL and not text_equal(host.name, name):
        host = host.next
    if host == NULL:
        return refuse_name(refusal, NOT_ALLOWED, b"vhost ", name, b" not found")
    connection.host = host
    connection.state = STATE_OPEN
    connection.opened.store(1)
    connection.deadline.store(0)
    connection_open_ok_write(&connection.output)
    return True
