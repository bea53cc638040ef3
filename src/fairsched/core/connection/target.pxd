"""One consuming client: its consumers on one or several queues, served in turn, and whether it wants messages.

Source: Qpid Broker-J's AbstractConsumerTarget. Desired means that nothing hinders: the flow is on, the transport takes
more, there is credit. Only a change is told to the queues, and first the flag is changed (a queue that is told, and
looks which others could take what the target leaves, must not find it willing still; that was a stall upstream).
  In turn: the cursor stays where the last message came from, so queues that all have messages are served one message
each, q1, q2, …, qk, q1, …. A call tries every consumer at most once, from the cursor on.

Thread safety: the connection's thread (chain.pxd), which also calls the actions; target_desired: any.
Complexity: target_send_next at most one pull of each consumer; attach O(1) amortized; detach and a change of desire
O(consumers).
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free

from fairsched.core.connection.chain cimport (
    Connection, HINDRANCE_BLOCKED, HINDRANCE_CLOSED, HINDRANCE_START, Session, Target, TargetActions,
)
from fairsched.core.connection.workset cimport workitem_init
from fairsched.core.memory cimport array_reserve

cdef inline void target_init(Target* t, Session* session, const TargetActions* actions, void* context) noexcept nogil:
    """A target without references yet; target_start lets it be desired."""
    workitem_init(&t.item)
    t.session = session
    t.actions = actions
    t.context = context
    t.consumers = NULL
    t.count = t.room = t.cursor = 0
    t.hindrances = HINDRANCE_START
    if session.connection.blocked:
        t.hindrances |= HINDRANCE_BLOCKED
    t.desired.store(0)
    t.attached.store(0)
    t.previous = NULL
    t.following = session.targets
    if session.targets != NULL:
        session.targets.previous = t
    session.targets = t
    session.target_count += 1

cdef inline bint target_desired(Target* t) noexcept nogil:
    """Return whether the client would take a message."""
    return t.desired.load() != 0

cdef inline void target_change(Target* t, uint32_t hindrances) noexcept nogil:
    cdef bint desired = hindrances == 0
    cdef uint32_t i
    t.hindrances = hindrances
    if desired == target_desired(t):
        return
    t.desired.store(desired)
    for i in range(t.count):
        t.actions.interest(t.context, t.consumers[i], desired)

cdef inline void target_hinder(Target* t, uint32_t reasons) noexcept nogil:
    """Have reasons (HINDRANCE_…) not to be sent anything."""
    target_change(t, t.hindrances | reasons)

cdef inline void target_resume(Target* t, uint32_t reasons) noexcept nogil:
    """Have these reasons no longer."""
    target_change(t, t.hindrances & ~(reasons & ~<uint32_t> HINDRANCE_CLOSED))

cdef inline void target_start(Target* t) noexcept nogil:
    """Be desired from now on, unless something else hinders."""
    target_resume(t, HINDRANCE_START)

cdef inline bint target_attach(Target* t, void* consumer) noexcept nogil:
    """Add a consumer, last in turn. False: the target is closed, or memory is exhausted.

    Its queue may notify it from before this call; the consumer is told of later changes only, so its interest begins
    as target_desired says. target_forget is due once for each.
    """
    if t.hindrances & HINDRANCE_CLOSED:
        return False
    if not array_reserve(<void**> &t.consumers, &t.room, <int64_t> t.count + 1, sizeof(void*), 2):
        return False
    t.consumers[t.count] = consumer
    t.count += 1
    t.attached.fetch_add(1)
    t.session.connection.references.fetch_add(1)
    return True

cdef inline bint target_detach(Target* t, void* consumer) noexcept nogil:
    """Take a consumer out of the turn; False if it is not there. The next consumer stays next."""
    cdef uint32_t i, at = t.count
    for i in range(t.count):
        if t.consumers[i] == consumer:
            at = i
            break
    if at == t.count:
        return False
    for i in range(at + 1, t.count):
        t.consumers[i - 1] = t.consumers[i]
    t.count -= 1
    if t.cursor > at:
        t.cursor -= 1
    return True

cdef inline bint target_send_next(Target* t) noexcept nogil:
    """Pull one message, from the first consumer in turn that has one; False when none has."""
    cdef uint32_t tries = t.count
    cdef void* consumer
    while tries and target_desired(t) and t.count:
        tries -= 1
        if t.cursor >= t.count:
            t.cursor = 0
        consumer = t.consumers[t.cursor]
        t.cursor += 1  # before the pull, which may detach it
        if t.actions.pull(t.context, consumer):
            return True
    return False

cdef inline void target_unlist(Target* t) noexcept nogil:
    """Take it out of the list of targets that it is in."""
    if t.previous != NULL:
        t.previous.following = t.following
    elif t.session.targets == t:
        t.session.targets = t.following
    if t.following != NULL:
        t.following.previous = t.previous
    t.previous = NULL

cdef inline void target_close(Target* t) noexcept nogil:
    """Want nothing any more, and leave all queues. It is disposed of when no queue and no set knows it."""
    cdef Connection* connection = t.session.connection
    cdef uint32_t count = t.count, i
    if t.hindrances & HINDRANCE_CLOSED:
        return
    target_hinder(t, HINDRANCE_CLOSED)
    t.count = 0
    for i in range(count):
        t.actions.close(t.context, t.consumers[i])
    target_unlist(t)
    t.following = connection.closed_targets
    connection.closed_targets = t

cdef inline void target_dispose(Target* t) noexcept nogil:
    """Let go of a closed target without references: it is the caller's memory again."""
    t.session.target_count -= 1
    free(t.consumers)
    t.consumers = NULL
    if t.actions.dispose != NULL:
        t.actions.dispose(t)
