"""A session, or channel: its targets with work, served one message each in turn.

Source: Qpid Broker-J's AbstractAMQPSession. One call handles one target, which is out of the set before it is worked
on, and goes last again if it delivered: so targets that all have work are served strictly in turn, and each is in the
set at most once. A target that delivered nothing is out until it is notified again (its consumers' nodes are Interested
before the queue is looked at, so whatever comes after that look notifies).

Thread safety: the connection's thread (chain.pxd). Complexity: O(1), and one target_send_next.
"""

from fairsched.core.connection.chain cimport Connection, HINDRANCE_BLOCKED, Session, SessionActions, Target
from fairsched.core.connection.target cimport target_close, target_hinder, target_resume, target_send_next
from fairsched.core.connection.workset cimport workitem_init, workset_add, workset_init, workset_ready, workset_take

cdef inline void session_init(
    Session* s, Connection* connection, const SessionActions* actions, void* context
) noexcept nogil:
    """A session without targets; `actions` may be NULL."""
    workitem_init(&s.item)
    workset_init(&s.pending)
    s.connection = connection
    s.actions = actions
    s.context = context
    s.targets = NULL
    s.target_count = 0
    s.closing = False
    s.previous = NULL
    s.following = connection.sessions
    if connection.sessions != NULL:
        connection.sessions.previous = s
    connection.sessions = s

cdef inline bint session_process(Session* s) noexcept nogil:
    """Serve one target; True when there is likely to be more work."""
    cdef Target* t = <Target*> workset_take(&s.pending)
    if t == NULL:
        return False
    if target_send_next(t):
        workset_add(&s.pending, &t.item)
    return workset_ready(&s.pending)

cdef inline void session_block(Session* s, bint blocked) noexcept nogil:
    """Tell all targets that the transport takes no more, or does again."""
    cdef Target* t = s.targets
    cdef Target* following
    while t != NULL:
        following = t.following
        if blocked:
            target_hinder(t, HINDRANCE_BLOCKED)
        else:
            target_resume(t, HINDRANCE_BLOCKED)
        t = following

cdef inline void session_close(Session* s) noexcept nogil:
    """Close all targets. The session is disposed of when they are."""
    if s.closing:
        return
    s.closing = True
    while s.targets != NULL:
        target_close(s.targets)
    if s.previous != NULL:
        s.previous.following = s.following
    elif s.connection.sessions == s:
        s.connection.sessions = s.following
    if s.following != NULL:
        s.following.previous = s.previous
    s.previous = NULL
    s.following = s.connection.closed_sessions
    s.connection.closed_sessions = s

cdef inline void session_dispose(Session* s) noexcept nogil:
    """Let go of a closed session without targets: it is the caller's memory again."""
    if s.actions != NULL and s.actions.dispose != NULL:
        s.actions.dispose(s)
