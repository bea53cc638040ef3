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
    CLIENT_CLOSING, CLIENT_GONE, CLIENT_LOGIN, CLIENT_OPEN, CLIENT_OPENING, CLIENT_START, CLIENT_TUNE, Client, Host,
    Server,
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

cdef inline bint handshake_begin(Client* client, const uint8_t* header) noexcept nogil:
    """Read the protocol header; False: it is another protocol's, and the connection is closed."""
    cdef const uint8_t* ours = b"AMQP\x00\x00\x09\x01"
    if memcmp(header, ours, PROTOCOL_SIZE) != 0:
        bytes_append(&client.output, ours, PROTOCOL_SIZE)
        client.tls = header[0] == TLS_HANDSHAKE and header[1] == TLS_MAJOR
        if client.tls:
            login_submit(client)
        return False
    connection_start_write(
        &client.output, Text(client.server.properties.data, <uint32_t> client.server.properties.end),
        client.server.mechanisms, text_of(b"en_US")
    )
    client.state = CLIENT_START
    return True

cdef inline bint capability(Text capabilities, const char* name) noexcept nogil:
    cdef Field f
    cdef bint value = False
    return tables_get(capabilities, text_of(name), &f) and field_bool(&f, &value) and value

cdef inline void client_learn(Client* client, Text properties) noexcept nogil:
    """Store the client's capabilities."""
    cdef Field f
    if not tables_get(properties, text_of(b"capabilities"), &f) or f.kind != b'F':
        return
    client.cancel_notify = capability(f.value, b"consumer_cancel_notify")
    client.blocked_notify = capability(f.value, b"connection.blocked")
    client.close_notify = capability(f.value, b"authentication_failure_close")
    client.nacks = capability(f.value, b"basic.nack")

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

cdef inline void login_submit(Client* client) noexcept nogil:
    """Queue a login for `login_take`."""
    cdef Server* server = client.server
    connection_retain(&client.connection)
    client.next_login = NULL
    server.registry.lock()
    server.last_login[0] = client
    server.last_login = &client.next_login
    server.registry.unlock()
    server.arrived.unpark(1)

cdef inline void login_refused(Client* client, const char* mechanism) noexcept nogil:
    """Close the connection. A client with the capability authentication_failure_close is told why."""
    cdef Refusal refusal
    refuse_name(
        &refusal, ACCESS_REFUSED, b"ACCESS_REFUSED - Login was refused using authentication mechanism ",
        text_of(mechanism), b". For details see the broker logfile."
    )
    if client.close_notify:
        connection_close_write(&client.output, ACCESS_REFUSED, Text(&refusal.text[0], refusal.length), 0)
        client.state = CLIENT_CLOSING
        client.deadline.store(client.now + SECOND)
    else:
        client.state = CLIENT_GONE
        connection_close(&client.connection)

cdef inline bint on_start_ok(Client* client, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ConnectionStartOk m
    cdef Text user, password
    cdef bint there
    if not connection_start_ok_read(r, &m):
        return refuse_syntax(refusal)
    client_learn(client, m.client_properties)
    if text_is(m.mechanism, b"PLAIN"):
        there = login_plain(m.response, &user, &password)
    elif text_is(m.mechanism, b"AMQPLAIN"):
        there = login_amqplain(m.response, &user, &password)
    else:
        return refuse_name(refusal, COMMAND_INVALID, b"unknown authentication mechanism '", m.mechanism, b"'")
    if not there or user.length > 255 or password.length > 1024:
        login_refused(client, b"PLAIN")
        return True
    client.plain = text_is(m.mechanism, b"PLAIN")
    client.user = text_copy(user)
    client.password = text_copy(password)
    if client.user.data == NULL or client.password.data == NULL:
        return refuse_memory(refusal)
    client.state = CLIENT_LOGIN
    login_submit(client)
    return True

cdef inline void login_forget(Client* client) noexcept nogil:
    """Free a password."""
    if client.password.data != NULL:
        memset(<void*> client.password.data, 0, client.password.length)
        text_free(&client.password)

cdef inline void login_done(Task* task) noexcept nogil:
    """Go on after `login_answer`."""
    cdef Client* client = <Client*> task.context
    login_forget(client)
    if client.state == CLIENT_LOGIN:
        if client.admitted:
            connection_tune_write(
                &client.output, client.server.limits.channel_max, client.server.limits.frame_max,
                client.server.limits.heartbeat
            )
            client.state = CLIENT_TUNE
        else:
            login_refused(client, b"PLAIN" if client.plain else b"AMQPLAIN")
    client.events.fetch_or(EVENT_READ)  # read the frames that came meanwhile
    connection_notify(&client.connection)

cdef inline bint login_abandoned(Client* client) noexcept nogil:
    """Return whether the connection has ended before its password was checked."""
    return (client.connection.flags.load() & CONNECTION_CLOSING) != 0 or (client.events.load() & EVENT_END) != 0

cdef inline Client* login_take(Server* server) noexcept nogil:
    """Wait for a connection that logs in or began TLS, and return it; NULL: the broker stops.

    The caller must call login_answer. Connections that have ended are skipped, since checking their passwords would
    delay the others.
    """
    cdef Client* client = NULL
    while client == NULL:
        server.arrived.park(-1)
        server.registry.lock()
        client = server.logins
        if client != NULL:
            server.logins = client.next_login
            if server.logins == NULL:
                server.last_login = &server.logins
        server.registry.unlock()
        if client == NULL and server.stopping.load():
            return NULL
        if client != NULL and not client.tls and login_abandoned(client):
            login_answer(client, False)
            client = NULL
    return client

cdef inline void login_answer(Client* client, bint admitted) noexcept nogil:
    client.admitted = admitted
    connection_submit(&client.connection, &client.login)
    connection_release(&client.connection)

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

cdef inline bint on_tune_ok(Client* client, Reader* r, Refusal* refusal) noexcept nogil:
    cdef ConnectionTuneOk m
    if not connection_tune_ok_read(r, &m):
        return refuse_syntax(refusal)
    if not tuned(b"frame_max", m.frame_max, client.server.limits.frame_max, refusal) or not tuned(
        b"channel_max", m.channel_max, client.server.limits.channel_max, refusal
    ):
        return False
    if m.frame_max < FRAME_MIN_SIZE:
        return refuse_number(
            refusal, NOT_ALLOWED, b"negotiated frame_max = ", m.frame_max,
            b" is lower than the minimum allowed value (4096)"
        )
    client.frame_max = m.frame_max
    client.channel_max = m.channel_max
    client.heartbeat.store(<int64_t> m.heartbeat * SECOND)
    client.state = CLIENT_OPENING
    return True

cdef inline bint on_connection_open(Client* client, Reader* r, Refusal* refusal) noexcept nogil:
    cdef Text name
    cdef Host* host = client.server.hosts
    if not connection_open_read(r, &name):
        return refuse_syntax(refusal)
    while host != NULL and not text_equal(host.name, name):
        host = host.next
    if host == NULL:
        return refuse_name(refusal, NOT_ALLOWED, b"vhost ", name, b" not found")
    client.host = host
    client.state = CLIENT_OPEN
    client.opened.store(1)
    client.deadline.store(0)
    connection_open_ok_write(&client.output)
    return True
