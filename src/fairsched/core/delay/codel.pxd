"""CoDel: whether a message has waited too long, and should be returned instead of delivered.

Sources: Nichols and Jacobson, "Controlling Queue Delay" (2012) and RFC 8289; Linux, net/codel_impl.h; the CoDel
variant of the Java client's QueueingConsumer (2012), which returns messages where a router drops packets.

CoDel examines each message when it is taken from a buffer. A wait of `target` or more is too long; waits that are too
long for a whole `interval` mean a standing queue. Then messages are returned, the first at once and each later one
interval/sqrt(count) after the one before, until a message has waited less than `target`, or few messages are left.

A pull calls this for each message it takes until the answer is False; that message is delivered. So the loop of the
published dequeue is unrolled, and `phase` is the pull's position in it. The message after the one that starts an
episode is delivered whatever its age (except with the QUEUEING_CONSUMER law, which judges it like any other).

| law | tick | long enough above | 1/sqrt(count) | back within | then count |
|---|---|---|---|---|---|
| RFC | 1 ns | >= interval | exact, rounded | 16 intervals | returned in the last episode |
| LINUX | 1024 ns, 32 bits that wrap | > interval | exact, cut | 16 intervals | the same |
| LINUX_Q16 | the same | > interval | 16-bit fraction, one Newton step per count | 16 intervals | the same |
| QUEUEING_CONSUMER | 1 ms | >= 2 intervals | exact, cut | 1 interval | count - 2 |

Corrected in all of them: a flag, not a time of 0, says whether a time is set, so a clock may have any origin; when the
clock runs backwards, nothing is returned and the observation restarts; the last message of a buffer is never returned;
a pull returns at most `max_returns`. A clock that jumps ahead looks like a long silence; that bound still holds.

Complexity: O(1), one square root for each message returned and none for others. Thread safety: none; the owner
excludes, and takes `now` while it excludes. Times are int64 nanoseconds between -2**62 and 2**62, of any origin.
"""

from libc.math cimport sqrt
from libc.stdint cimport INT64_MIN, int8_t, int32_t, int64_t, uint32_t, uint64_t

cdef enum CodelLaw:
    CODEL_RFC
    CODEL_LINUX
    CODEL_LINUX_Q16
    CODEL_QUEUEING_CONSUMER

cdef enum CodelPhase:
    CODEL_BETWEEN  # no pull is under way
    CODEL_BEGAN    # this pull returned the message that began an episode
    CODEL_AGAIN    # this pull returned a message inside an episode; its successor moves drop_next

cdef enum:
    CODEL_REENTRY_INTERVALS = 16
    CODEL_NS_PER_MS = 1000000
    CODEL_COUNT_MAX = 0x7FFFFFFF
    CODEL_Q16_ONE = 0xFFFF

cdef struct CodelParams:
    int64_t target       # ticks of the law, as interval
    int64_t interval
    int64_t min_backlog  # with so many messages left, or fewer, none is returned
    int64_t max_returns  # by one pull; 0: no bound
    int64_t patience     # ticks past first_above until a message may be returned
    int law

cdef struct CodelStats:
    int64_t asked        # messages looked at
    int64_t returned     # answers True
    int64_t episodes     # times that dropping began
    int64_t capped       # pulls ended by max_returns
    int64_t spared       # returns that the host did not carry out
    int64_t clock_steps  # times that the clock ran backwards
    int64_t sojourn      # of the last message, nanoseconds

cdef struct CodelVars:
    int64_t first_above   # ticks; when it will have been bad for an interval. Holds while above
    int64_t drop_next     # ticks; when the next message goes back. Holds once entered
    int64_t last_now      # nanoseconds; INT64_MIN before the first message
    int64_t pull_returns  # messages returned by this pull
    uint32_t count        # returned in this episode, with what it took over from the last
    uint32_t lastcount    # count at the beginning of the last episode
    uint32_t inv_sqrt     # 1/sqrt(count) as a Q0.16, for LINUX_Q16
    int8_t above
    int8_t dropping
    int8_t entered
    int8_t phase
    CodelStats stats

cdef inline int64_t codel_tick(const CodelParams* p, int64_t ns) noexcept nogil:
    """A moment in the law's unit, rounded down."""
    if p.law == CODEL_RFC:
        return ns
    if p.law == CODEL_QUEUEING_CONSUMER:
        return (ns - (CODEL_NS_PER_MS - 1 if ns < 0 else 0)) // CODEL_NS_PER_MS
    return <uint32_t> (ns >> 10)

cdef inline int64_t codel_elapsed(const CodelParams* p, int64_t later, int64_t earlier) noexcept nogil:
    """Ticks from one moment to another; wraps as the kernel's clock does (2199 s) under its laws."""
    cdef int64_t ticks = later - earlier
    if p.law == CODEL_LINUX or p.law == CODEL_LINUX_Q16:
        return <int32_t> <uint32_t> ticks
    return ticks

cdef inline int64_t codel_unit(const CodelParams* p) noexcept nogil:
    """Nanoseconds in a tick."""
    return 1 if p.law == CODEL_RFC else CODEL_NS_PER_MS if p.law == CODEL_QUEUEING_CONSUMER else 1024

cdef inline void codel_init(
    CodelParams* p, CodelLaw law, int64_t target, int64_t interval, int64_t min_backlog, int64_t max_returns
) noexcept nogil:
    """Set a law's parameters; `target` and `interval` in nanoseconds, checked by the caller."""
    p.law = law
    p.target = target // codel_unit(p)
    p.interval = interval // codel_unit(p)
    p.min_backlog = min_backlog
    p.max_returns = max_returns
    p.patience = 1 if law == CODEL_LINUX or law == CODEL_LINUX_Q16 else 0

cdef inline void codel_forget(CodelVars* v) noexcept nogil:
    """Begin the observation again; figures are kept."""
    v.first_above = v.drop_next = v.pull_returns = 0
    v.last_now = INT64_MIN
    v.count = v.lastcount = 0
    v.inv_sqrt = CODEL_Q16_ONE
    v.above = v.dropping = v.entered = 0
    v.phase = CODEL_BETWEEN

cdef inline void codel_reset(CodelVars* v) noexcept nogil:
    """The state of a buffer that never held a message."""
    codel_forget(v)
    v.stats.asked = v.stats.returned = v.stats.episodes = v.stats.capped = v.stats.spared = 0
    v.stats.clock_steps = v.stats.sojourn = 0

cdef inline uint32_t codel_newton(uint32_t inv_sqrt, uint32_t count) noexcept nogil:
    """One Newton step towards 1/sqrt(count): x*(3 - count*x*x)/2 in Q0.16, with the kernel's rounding."""
    cdef uint64_t x = <uint64_t> inv_sqrt << 16
    cdef uint64_t value = (<uint64_t> 3 << 32) - count * (x * x >> 32)
    return <uint32_t> ((value >> 2) * x >> 31 >> 16) & CODEL_Q16_ONE

cdef inline int64_t codel_step(const CodelVars* v, const CodelParams* p) noexcept nogil:
    """Ticks from one return to the next: interval/sqrt(count)."""
    if p.law == CODEL_LINUX_Q16:
        return p.interval * (<int64_t> v.inv_sqrt << 16) >> 32
    return <int64_t> (p.interval / sqrt(<double> v.count) + (0.5 if p.law == CODEL_RFC else 0.0))

cdef inline void codel_set_count(CodelVars* v, const CodelParams* p, uint32_t count) noexcept nogil:
    v.count = count
    if p.law == CODEL_LINUX_Q16:
        v.inv_sqrt = codel_newton(v.inv_sqrt, count)

cdef inline bint codel_observe(
    CodelVars* v, const CodelParams* p, int64_t now, int64_t sojourn, int64_t backlog
) noexcept nogil:
    """Return whether waits have been too long for an interval, judged by this message; in ticks."""
    if sojourn < p.target or backlog <= p.min_backlog or backlog <= 0:
        v.above = 0
        return False
    if not v.above:
        v.above = 1
        v.first_above = now + p.interval
        return False
    return codel_elapsed(p, now, v.first_above) >= p.patience

cdef inline bint codel_may_enter(const CodelVars* v, const CodelParams* p, int64_t now) noexcept nogil:
    """The 2012 law waits a second interval, unless the last episode ended less than an interval ago."""
    if p.law != CODEL_QUEUEING_CONSUMER or now - v.first_above >= p.interval:
        return True
    return v.entered and now - v.drop_next < p.interval

cdef inline void codel_enter(CodelVars* v, const CodelParams* p, int64_t now) noexcept nogil:
    """Begin an episode, at the rate of the last one where that ended lately."""
    cdef int64_t since = codel_elapsed(p, now, v.drop_next)
    cdef uint32_t count = 1
    if p.law == CODEL_QUEUEING_CONSUMER:
        if v.entered and since < p.interval and v.count > 2:
            count = v.count - 2
    elif v.entered and v.count > v.lastcount + 1 and since < CODEL_REENTRY_INTERVALS * p.interval:
        count = v.count - v.lastcount
    if count == 1:
        v.count = 1
        v.inv_sqrt = CODEL_Q16_ONE
    else:
        codel_set_count(v, p, count)
    v.lastcount = count
    v.dropping = v.entered = 1
    v.drop_next = now + codel_step(v, p)
    v.phase = CODEL_BETWEEN if p.law == CODEL_QUEUEING_CONSUMER else CODEL_BEGAN
    v.stats.episodes += 1

cdef inline bint codel_continue(CodelVars* v, const CodelParams* p, int64_t now, int8_t phase) noexcept nogil:
    """Inside an episode: whether the next return is due."""
    if phase == CODEL_AGAIN:
        v.drop_next += codel_step(v, p)
    if codel_elapsed(p, now, v.drop_next) < 0:
        return False
    if p.max_returns and v.pull_returns >= p.max_returns:
        v.drop_next = now + codel_step(v, p)
        v.stats.capped += 1
        return False
    codel_set_count(v, p, v.count + (v.count < CODEL_COUNT_MAX))
    v.phase = CODEL_AGAIN
    return True

cdef inline bint codel_decide(CodelVars* v, const CodelParams* p, int64_t now, bint ripe) noexcept nogil:
    """The law proper, in ticks."""
    cdef int8_t phase = v.phase
    v.phase = CODEL_BETWEEN
    if phase == CODEL_BEGAN:
        return False
    if v.dropping:
        if ripe:
            return codel_continue(v, p, now, phase)
        v.dropping = 0
        return False
    if ripe and codel_may_enter(v, p, now):
        codel_enter(v, p, now)
        return True
    return False

cdef inline bint codel_should_return(
    CodelVars* v, const CodelParams* p, int64_t enqueued_at, int64_t now, int64_t backlog
) noexcept nogil:
    """Return whether the message just taken is returned instead of delivered; `backlog` messages are left behind it."""
    cdef int64_t moment = codel_tick(p, now)
    v.stats.asked += 1
    v.stats.sojourn = now - enqueued_at
    if now < v.last_now:
        codel_forget(v)
        v.stats.clock_steps += 1
    v.last_now = now
    if codel_decide(
        v, p, moment, codel_observe(v, p, moment, codel_elapsed(p, moment, codel_tick(p, enqueued_at)), backlog)
    ):
        v.pull_returns += 1
        v.stats.returned += 1
        return True
    v.pull_returns = 0
    return False

cdef inline void codel_spare(CodelVars* v, const CodelParams* p) noexcept nogil:
    """The host delivers the message it was told to return (its budget is spent): the pull ends, the law goes on."""
    if v.phase == CODEL_AGAIN:
        v.drop_next += codel_step(v, p)
    v.phase = CODEL_BETWEEN
    v.pull_returns = 0
    v.stats.returned -= 1
    v.stats.spared += 1

cdef inline void codel_found_nothing(CodelVars* v) noexcept nogil:
    """A pull came to the end of the buffer: nothing stands in it."""
    v.above = v.dropping = 0
    v.phase = CODEL_BETWEEN
    v.pull_returns = 0
