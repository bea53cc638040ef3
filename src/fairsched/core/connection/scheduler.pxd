"""A pool of I/O threads that serve connections, each connection by one thread at a time; no wake-up is lost.

Source: Qpid Broker-J's NetworkConnectionScheduler. The host supplies the threads: each calls scheduler_run, and comes
back after scheduler_stop. A connection with more to do goes on at once, unless another waits for a thread: then it goes
last in the run queue.

The handshake. A notifier makes its work visible, by a seq_cst step, then sets CHANGED and SCHEDULED in one step (H1);
if SCHEDULED was clear, it puts the connection into the run queue. The thread clears CHANGED (H2), then looks at
everything; when it finds no more, it gives SCHEDULED up in one step that fails if CHANGED is set (H3), and then makes
another pass.
  One thread at a time: SCHEDULED goes from 0 to 1 in H1 only, so one notifier pushes, and no other until H3. From the
push on, one thread at a time has the connection: the one that pops it, until H3, or until it pushes it again.
  No wake-up is lost: these are seq_cst steps on one word, so they have an order. If H1 comes before the H2 of some
pass, then that pass looks after the work was visible. If it comes after the last H2 and before H3, then H3 finds
CHANGED and fails: there is another H2. If it comes after H3, it finds SCHEDULED clear, and pushes. A notifier that
finds CHANGED set (H0) and does nothing is in the first case, as only H2 clears it; but H0 is a load, so the step
before it must be more than a release store, which may become visible after it.
  The own fields of chain.pxd pass from thread to thread: H3 is before the H1 that finds SCHEDULED clear, and that is
before the pop, by the mutex of the run queue, as a push by the thread itself is.
Without either half, or with that store, tests/model finds the schedule in which a message waits and no thread comes.

Synchronization: any thread, any function; init and clear: externally excluded. Complexity: O(1) beside the pass.
"""

from libc.stdint cimport uint32_t

from fairsched.core.connection.chain cimport Connection
from fairsched.core.connection.connection cimport (
    CONNECTION_SCHEDULED, PASS_CLOSED, PASS_MORE, Pass, connection_pass, connection_release,
)
from fairsched.core.connection.runqueue cimport LOOKED_ITEM, LOOKED_POLL, LOOKED_STOP, Looked, RunLink, RunQueue

cdef struct Scheduler:
    RunQueue* queue

cdef inline bint scheduler_init(
    Scheduler* s, void (*poll)(void* context, bint wait) noexcept nogil,
    void (*interrupt)(void* context) noexcept nogil, void* context
) noexcept nogil:
    """False when memory is exhausted.

    poll waits for whatever the host waits for (sockets), if asked to wait, and notifies connections; interrupt ends a
    wait, this or the next. Both NULL: work comes from notifications only.
    """
    s.queue = new RunQueue()
    if s.queue == NULL:
        return False
    s.queue.poll = poll
    s.queue.interrupt = interrupt
    s.queue.context = context
    return True

cdef inline void scheduler_clear(Scheduler* s) noexcept nogil:
    """Free the run queue. No thread is inside, and no connection is notified any more."""
    del s.queue
    s.queue = NULL

cdef inline bint connection_rest(Connection* c) noexcept nogil:
    """Give the connection up; False when it has changed: make another pass."""
    cdef uint32_t expected = CONNECTION_SCHEDULED
    return c.flags.compare_exchange_strong(expected, 0)  # H3

cdef inline void scheduler_serve(Scheduler* s, Connection* c) noexcept nogil:
    """Make passes until the connection rests, has closed, or lets another have the thread."""
    cdef Pass outcome
    while True:
        outcome = connection_pass(c)
        if outcome == PASS_CLOSED:
            connection_release(c)
            return
        if outcome != PASS_MORE and connection_rest(c):
            return
        if s.queue.wanted():
            s.queue.push(&c.run)
            return

cdef inline void scheduler_run(Scheduler* s) noexcept nogil:
    """Be one of the I/O threads until scheduler_stop."""
    cdef RunLink* item = NULL
    cdef Looked looked
    s.queue.enter()
    while True:
        looked = s.queue.look(&item)
        if looked == LOOKED_STOP:
            break
        if looked == LOOKED_ITEM:
            scheduler_serve(s, <Connection*> item)
        else:
            s.queue.poll(s.queue.context, looked == LOOKED_POLL)
            s.queue.polled()
    s.queue.leave()

cdef inline void scheduler_stop(Scheduler* s) noexcept nogil:
    """Send the threads back, each after the pass it makes. What has work keeps it, for threads that come later."""
    s.queue.stop()

cdef inline void scheduler_resume(Scheduler* s) noexcept nogil:
    """After scheduler_stop, let threads in again."""
    s.queue.resume()

cdef inline int scheduler_threads(Scheduler* s) noexcept nogil:
    """Return how many threads are inside."""
    return s.queue.threads()
