"""The chain that carries a wake-up to an I/O thread: consumer, target, session, connection, scheduler.

A queue notifies one consumer. The consumer belongs to a target (one consuming client, on one or several queues), the
target to a session, the session to a connection; connections are served by a pool of I/O threads, each by one thread
at a time. A notification puts the target into the set of its session, the session into the set of its connection, and
has the connection run. Its thread then takes them out again in turn, pulls one message for a target, and puts back
what has more. Source: Qpid Broker-J's consumer targets, sessions and NetworkConnectionScheduler.

    any thread     queue ─▶ target_notify ─▶ set of targets ─▶ set of sessions ─▶ run queue ─▶ some I/O thread
    I/O thread     connection_pass: a session ─▶ session_process: a target ─▶ target_send_next: a consumer ─▶ pull

The functions are in target.pxd, session.pxd, connection.pxd and scheduler.pxd; workset.pxd has the sets. Objects are
the caller's memory, with a context and functions for what the chain leaves to its host: pulling and transport.

Which thread may call what
  any thread: target_notify, connection_notify, connection_submit, connection_close, connection_retain and _release,
    target_forget, target_desired. The caller must know that the object exists (see Lifetime).
  the connection's thread (the one in connection_pass), or any thread before the first notification: everything else.
  So the fields marked "own" below need no synchronization of their own: they pass from one I/O thread to the next with
  `flags` (scheduler.pxd has the proof).

  field                     written by           read by        order
  WorkItem, Workset         workset.pxd
  Target.desired            own                  any            seq_cst; before the queues are told (flag first)
  Target.attached           own +1, any -1       own            seq_cst; 0: no queue can notify it any more
  Connection.flags          any                  any            read-modify-writes, seq_cst
  Connection.references     any                  any            read-modify-writes, seq_cst
  Connection.run            run queue            run queue      under its mutex
  everything else           own                  own            fixed after init, or of the connection's thread

Lifetime. An attached consumer holds a reference to its connection, until target_forget reports that its queue has
released it (to be called by the dispose function when a queue retires the consumer's node). A closed target stays in
the connection's `closed` list until no consumer holds it and it is in no set; so does a closed session, until it has no
target. Why a notifier never uses freed memory: it holds a consumer, so target.attached is not 0, so neither the target
nor its session nor the connection is disposed of. An open connection also holds a reference to itself.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.atomic cimport atomic

from fairsched.core.connection.runqueue cimport RunLink, RunQueue
from fairsched.core.connection.workset cimport WorkItem, Workset

cdef enum:  # reasons why a target is not desired; hosts have the bits from HINDRANCE_HOST on to themselves
    HINDRANCE_START = 1     # it was not resumed yet
    HINDRANCE_BLOCKED = 2   # the transport takes no more
    HINDRANCE_CREDIT = 4    # no credit
    HINDRANCE_FLOW = 8      # the client has stopped the flow
    HINDRANCE_CLOSED = 16
    HINDRANCE_HOST = 32

cdef enum:
    BUFFER_DEFAULT = 262144   # bytes
    BUFFER_MIN = 65536
    PASS_STEPS = 1024         # a busy connection reads its input, and lets others run, this often
    TASK_STEPS = 8            # an asynchronous task waits behind no more sessions than this
    PASSES_UNWRITTEN = 32     # of a connection that yields: its output waits for no more passes than this

cdef struct Target
cdef struct Session
cdef struct Connection

cdef struct TargetActions:
    bint (*pull)(void* context, void* consumer) noexcept nogil                    # True: one message was sent
    void (*interest)(void* context, void* consumer, bint desired) noexcept nogil  # tell the consumer's queue
    void (*close)(void* context, void* consumer) noexcept nogil                   # leave the queue
    void (*dispose)(Target* target) noexcept nogil                                # free it; may be NULL

cdef struct SessionActions:
    void (*dispose)(Session* session) noexcept nogil                              # free it; may be NULL

cdef struct ConnectionActions:
    bint (*receive)(void* context) noexcept nogil      # read input, not too much; True: there may be more. May be NULL
    int64_t (*buffered)(void* context) noexcept nogil  # bytes of output not written yet
    void (*write)(void* context) noexcept nogil        # write what the transport takes, and have it notify later
    void (*closed)(void* context) noexcept nogil       # no more passes; may be NULL
    void (*dispose)(Connection* connection) noexcept nogil  # by any thread: free it; may be NULL

cdef struct Target:
    WorkItem item              # must be first
    Session* session
    const TargetActions* actions
    void* context
    void** consumers           # in the order of their attachment
    int64_t room
    uint32_t count
    uint32_t cursor            # the consumer whose turn it is
    uint32_t hindrances        # reasons; 0: desired
    atomic[uint32_t] desired
    atomic[uint32_t] attached  # consumers that a queue may still know
    Target* previous           # in its session's list of targets, or the connection's of closed ones
    Target* following

cdef struct Session:
    WorkItem item              # must be first
    Connection* connection
    const SessionActions* actions
    void* context
    Workset pending            # targets that have work
    Target* targets
    uint64_t target_count      # open or closed, as long as they are not disposed of
    bint closing
    Session* previous
    Session* following

cdef struct Task:
    WorkItem item              # must be first; submitted again while it waits, it runs once
    void (*run)(Task* task) noexcept nogil
    void* context

cdef struct Connection:
    RunLink run                # must be first
    atomic[uint32_t] flags     # CONNECTION_CHANGED …
    atomic[uint32_t] references
    RunQueue* queue            # of its scheduler
    const ConnectionActions* actions
    void* context
    Workset pending            # sessions that have work
    Workset tasks
    Session* sessions
    Session* closed_sessions
    Target* closed_targets
    int64_t buffer_size
    uint32_t streak            # sessions served since the last task
    bint blocked               # the transport takes no more
    bint yields                # set by a host that pulls: end the pass after this step, and let others have their turn
    uint32_t unwritten         # passes since that have left their output to a later one
