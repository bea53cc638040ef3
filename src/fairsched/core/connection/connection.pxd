"""A connection: serves its sessions in turn, runs its tasks, and limits its buffered output.

Source: Qpid Broker-J's AbstractAMQPConnection and NonBlockingConnection. A pass reads input, then serves sessions, one
message each in turn; when `buffer_size` bytes are buffered it writes, and when one write frees less than half of that,
the transport is slow: it stops, and its targets are not desired until a later write has brought the buffer below half.
  Tasks that others submitted run when no session has work, and after TASK_STEPS sessions at the latest: upstream they
starve behind sessions with constant work. A pass ends after PASS_STEPS steps, so input is read and others run.
  A host that shares messages out in turn between connections has each pass end after one (`yields`). There is another
pass for certain then, so that one may write what this one has put into the buffer: after PASSES_UNWRITTEN at most.

Thread safety: connection_notify, _submit, _close, _retain, _release, target_notify, target_forget: any thread.
connection_pass: the one thread that has the connection (scheduler.pxd, with the proof); init, clear: externally
excluded. Progress: nothing waits but for the mutex of the run queue, when the connection was at rest.
Complexity: target_notify O(1); a pass O(PASS_STEPS) steps, and O(targets) when the transport blocks or unblocks.
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.connection.chain cimport (
    BUFFER_DEFAULT, BUFFER_MIN, Connection, ConnectionActions, PASSES_UNWRITTEN, PASS_STEPS, Session, TASK_STEPS,
    Target, Task,
)
from fairsched.core.connection.runqueue cimport RunQueue
from fairsched.core.connection.session cimport session_block, session_close, session_dispose, session_process
from fairsched.core.connection.target cimport target_dispose
from fairsched.core.connection.workset cimport (
    workitem_init, workitem_scheduled, workset_add, workset_init, workset_ready, workset_take,
)

cdef enum:  # Connection.flags
    CONNECTION_CHANGED = 1     # something was added since the pass began
    CONNECTION_SCHEDULED = 2   # in the run queue, or with a thread; stays when it has closed, so it runs no more
    CONNECTION_CLOSING = 4

cdef enum Pass:
    PASS_DONE     # nothing is left, as far as was seen
    PASS_MORE     # there is more to do
    PASS_BLOCKED  # the transport's turn: it will notify
    PASS_CLOSED   # this was the last

cdef inline void connection_init(
    Connection* c, RunQueue* queue, const ConnectionActions* actions, void* context, int64_t buffer_size
) noexcept nogil:
    """A connection at rest. buffer_size in bytes; 0: BUFFER_DEFAULT, and never below BUFFER_MIN."""
    c.run.next = NULL
    c.flags.store(0)
    c.references.store(1)  # for being open
    c.queue = queue
    c.actions = actions
    c.context = context
    workset_init(&c.pending)
    workset_init(&c.tasks)
    c.sessions = c.closed_sessions = NULL
    c.closed_targets = NULL
    c.buffer_size = max(buffer_size if buffer_size else <int64_t> BUFFER_DEFAULT, <int64_t> BUFFER_MIN)
    c.streak = c.unwritten = 0
    c.blocked = c.yields = False

# -- any thread -------------------------------------------------------------------------------------------------------

cdef inline void connection_notify(Connection* c) noexcept nogil:
    """Have a pass begin after this call."""
    if c.flags.load() & CONNECTION_CHANGED:
        return  # H0: a pass that has yet to begin will see it
    if not c.flags.fetch_or(CONNECTION_CHANGED | CONNECTION_SCHEDULED) & CONNECTION_SCHEDULED:  # H1
        c.queue.push(&c.run)

cdef inline void target_notify(Target* t) noexcept nogil:
    """Have a target try its consumers. Called by a queue that has work for one of them."""
    cdef Session* s = t.session
    if workset_add(&s.pending, &t.item):
        workset_add(&s.connection.pending, &s.item)
        connection_notify(s.connection)

cdef inline void task_init(Task* task, void (*run)(Task* task) noexcept nogil, void* context) noexcept nogil:
    workitem_init(&task.item)
    task.run = run
    task.context = context

cdef inline bint connection_submit(Connection* c, Task* task) noexcept nogil:
    """Have a task run by the connection's thread; False when it waits for that already. The caller retains."""
    if not workset_add(&c.tasks, &task.item):
        return False
    connection_notify(c)
    return True

cdef inline void connection_close(Connection* c) noexcept nogil:
    """Have the connection's thread run the tasks submitted so far, close everything, and call `closed`."""
    cdef uint32_t flags = CONNECTION_CLOSING | CONNECTION_CHANGED | CONNECTION_SCHEDULED
    if not c.flags.fetch_or(flags) & CONNECTION_SCHEDULED:
        c.queue.push(&c.run)

cdef inline void connection_retain(Connection* c) noexcept nogil:
    c.references.fetch_add(1)

cdef inline void connection_release(Connection* c) noexcept nogil:
    """Let go; the last one to do so, when it has closed, has its remains disposed of."""
    if c.references.fetch_sub(1) == 1:
        connection_clear(c)

cdef inline void target_forget(Target* t) noexcept nogil:
    """A consumer's queue has let go of it: no notification of it is under way, and none will come."""
    cdef Connection* c = t.session.connection
    t.attached.fetch_sub(1)  # the target may be gone from here on
    connection_release(c)

# -- the connection's thread ------------------------------------------------------------------------------------------

cdef inline void connection_sweep(Connection* c, bint all) noexcept nogil:
    """Dispose of closed targets and sessions that are not referred to any more; of all, when none can be."""
    cdef Target** link = &c.closed_targets
    cdef Session** session_link = &c.closed_sessions
    cdef Target* t
    cdef Session* s
    while link[0] != NULL:
        t = link[0]
        if all or (t.attached.load() == 0 and not workitem_scheduled(&t.item)):
            link[0] = t.following
            target_dispose(t)
        else:
            link = &t.following
    while session_link[0] != NULL:
        s = session_link[0]
        if all or (s.target_count == 0 and not workitem_scheduled(&s.item)):
            session_link[0] = s.following
            session_dispose(s)
        else:
            session_link = &s.following

cdef inline void connection_clear(Connection* c) noexcept nogil:
    """Run the tasks that came too late, and dispose of all that is closed, then of the connection.

    It has closed, or was never notified, and it is not referred to any more.
    """
    while connection_task(c):
        pass
    connection_sweep(c, True)
    if c.actions.dispose != NULL:
        c.actions.dispose(c)

cdef inline bint connection_task(Connection* c) noexcept nogil:
    """Run one task; False when there is none."""
    cdef Task* task = <Task*> workset_take(&c.tasks)
    c.streak = 0
    if task != NULL:
        task.run(task)
    return task != NULL

cdef inline bint connection_step(Connection* c) noexcept nogil:
    """Run one task or serve one session; False when there is nothing to do."""
    cdef Session* s
    if c.streak >= TASK_STEPS and connection_task(c):
        return True
    s = <Session*> workset_take(&c.pending) if not c.blocked else NULL
    if s == NULL:
        return connection_task(c)
    c.streak += 1
    if session_process(s):
        workset_add(&c.pending, &s.item)
    return True

cdef inline bint connection_flush(Connection* c) noexcept nogil:
    """Write, if the buffer is full; False when that freed less than half of its size."""
    cdef int64_t before = c.actions.buffered(c.context)
    if before < c.buffer_size:
        return True
    c.actions.write(c.context)
    return before - c.actions.buffered(c.context) >= c.buffer_size // 2

cdef inline void connection_write(Connection* c) noexcept nogil:
    """Write what there is. While half a buffer is left, the transport is blocked, and no target is desired."""
    cdef Session* s = c.sessions
    cdef bint blocked
    if c.actions.buffered(c.context) > 0:
        c.actions.write(c.context)
    blocked = c.actions.buffered(c.context) >= c.buffer_size // 2
    if c.blocked == blocked:
        return
    c.blocked = blocked
    while s != NULL:
        session_block(s, blocked)
        s = s.following

cdef inline void connection_shut(Connection* c) noexcept nogil:
    while connection_task(c):
        pass
    while c.sessions != NULL:
        session_close(c.sessions)
    if c.actions.closed != NULL:
        c.actions.closed(c.context)

cdef inline Pass connection_pass(Connection* c) noexcept nogil:
    """Read, serve, write. The connection is scheduled, and this thread has it."""
    cdef bint more = False
    cdef int steps = 0
    if c.flags.fetch_and(~<uint32_t> CONNECTION_CHANGED) & CONNECTION_CLOSING:  # H2: before any look at what there is
        connection_shut(c)
        return PASS_CLOSED
    c.yields = False
    connection_sweep(c, False)
    if c.blocked:
        connection_write(c)
    if c.actions.receive != NULL:
        more = c.actions.receive(c.context)
    while steps < PASS_STEPS and not c.yields and (c.blocked or connection_flush(c)) and connection_step(c):
        steps += 1
    if c.yields and not c.blocked and c.unwritten < PASSES_UNWRITTEN:
        c.unwritten += 1
        return PASS_MORE
    c.unwritten = 0
    connection_write(c)
    if more or c.yields or steps == PASS_STEPS or (not c.blocked and workset_ready(&c.pending)):
        return PASS_MORE
    return PASS_BLOCKED if c.blocked else PASS_DONE
