"""Arithmetic of when settlements are sent, by the prefetch windows of a whole connection and by time.

It does not go by the window of a single queue, which may be one message if there are hundreds of queues. Settlements
leave as soon as one of these is true:

* They are a quarter of all windows together, or half of them if these are many and the last ones just left.
* They are a sixteenth of what is here, and half of one queue's window is settled: others may still keep the workers
  busy, but the broker soon gives no more of that one.
* A worker is about to wait for a message, or a handler took long: delivery/_messagesource.pyx sends then.
* Nothing was settled for a while before.
* A period is over: the timer of consumer/flush_timer.py.

Thread safety: any thread notes settlements. Their count is not exact where several settle at once on a build without a
GIL; that moves one sending by a message or two, and the period holds all the same. The rest is for the thread that has
the connection. Complexity: O(1).
"""

from libc.stdint cimport int64_t

cdef enum:
    # Settlements leave when they are this part of all windows together: early enough that the broker refills before
    # the rest is handled, late enough that many share a frame and a write.
    ACKS_PART = 4
    # Where the queue of the last one has half of its own window settled and may soon get nothing more, they leave when
    # they are this part of what the broker has given out and not heard of: little, where few of the queues have any.
    ACKS_SMALL_PART = 16
    # That soon after the last ones, so many or more wait until they are twice as many: each sending costs as much as to
    # handle a few messages, and dozens where it wakes the I/O thread.
    ACKS_MANY = 32

cdef extern from *:
    """
    static const double FAIRSCHED_ACKS_PAUSE = 0.0002;
    static const double FAIRSCHED_ACKS_PERIOD = 0.005;
    static const double FAIRSCHED_ACKS_SLOWEST_PERIOD = 0.08;
    """
    const double ACKS_PAUSE "FAIRSCHED_ACKS_PAUSE"  # "that soon", in seconds
    const double ACKS_PERIOD "FAIRSCHED_ACKS_PERIOD"  # a settlement waits at most so many seconds for others
    # While messages are out but nothing is settled, it is looked this seldom.
    const double ACKS_SLOWEST_PERIOD "FAIRSCHED_ACKS_SLOWEST_PERIOD"


cdef enum AcksDue:
    ACKS_WAIT
    ACKS_DUE
    ACKS_AFTER_PAUSE  # if `ackpolicy_rested`: the caller reads the clock


cdef struct AckPolicyState:
    double period        # how often it is looked whether something is settled and not sent, in seconds
    int64_t pending      # settlements that are not sent
    int64_t here         # messages that the broker has given out and not heard of
    int64_t limit
    int64_t small_limit
    double sent          # when settlements were sent last
    bint settled         # whether any were since the last look


cdef inline void ackpolicy_note_here(AckPolicyState* policy, int64_t here) noexcept nogil:
    """Note how many messages the broker has given out and not heard of."""
    policy.here = here
    policy.small_limit = max(1, here // ACKS_SMALL_PART)


cdef inline void ackpolicy_count(AckPolicyState* policy, int64_t here, int64_t window) noexcept nogil:
    """Note these messages as they were counted, and how many the broker may give out in all."""
    ackpolicy_note_here(policy, here)
    policy.limit = max(1, window // ACKS_PART)


cdef inline void ackpolicy_init(AckPolicyState* policy, int64_t window) noexcept nogil:
    policy.period = ACKS_PERIOD
    policy.pending = 0
    ackpolicy_count(policy, 0, window)


cdef inline AcksDue ackpolicy_due(
    AckPolicyState* policy, int64_t count, int64_t pending, int64_t window
) noexcept nogil:
    """Note settlements, of a queue with so many that are not sent and such a window; say if it is time to send."""
    policy.pending += count
    if policy.period > ACKS_PERIOD or 2 * pending >= window and policy.pending >= policy.small_limit:
        return ACKS_DUE
    if policy.limit >= ACKS_MANY and policy.limit <= policy.pending < 2 * policy.limit:
        return ACKS_AFTER_PAUSE
    return ACKS_DUE if policy.pending >= policy.limit else ACKS_WAIT


cdef inline bint ackpolicy_rested(const AckPolicyState* policy, double now) noexcept nogil:
    """Whether the last settlements left a while ago."""
    return now - policy.sent >= ACKS_PAUSE


cdef inline void ackpolicy_sending(AckPolicyState* policy, double now) noexcept nogil:
    """Note that all that was settled is about to be sent."""
    cdef int64_t pending = policy.pending
    policy.pending = 0
    policy.settled = policy.settled or pending > 0
    policy.sent = now
    ackpolicy_note_here(policy, policy.here - pending)


cdef inline void ackpolicy_looked(AckPolicyState* policy, bint found) noexcept nogil:
    """Note whether a look found anything to send: if not, and none was sent since the last look, look half as often."""
    if found or policy.settled:
        policy.period = ACKS_PERIOD
    else:
        policy.period = min(ACKS_SLOWEST_PERIOD, 2 * policy.period)
    policy.settled = False
