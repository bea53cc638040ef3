"""Recent values of a duration: minimum, quantiles and mean over a moving window of time.

* Minimum. A ring of MIN_BUCKETS buckets, each the minimum of one part of the window. The result is the minimum of the
  current bucket and the seven before it, that is, of the last 7/8 to whole window: exact, and old samples expire on
  time. A windowed minimum separates the round trip from queueing delay (as in BBR; win_minmax in Linux keeps three
  samples, this keeps eight).
* Quantiles. A histogram with SUB linear buckets per octave: a quantile is exact to within 1/SUB of its value, whatever
  its size. There are two generations of half a window each, and the older one is dropped at once; so the result covers
  the last half to whole window.

Values are nanoseconds, not negative; times are nanoseconds of one clock that does not go backwards (a sample that is
older than the newest counts as new). Thread safety: none; the caller synchronizes. Complexity: add O(1), and O(buckets)
when a bucket of time ends; minimum O(MIN_BUCKETS); quantile O(buckets). Memory: 5 KiB.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from *:
    """
    static inline int fairsched_log2(uint64_t value) { return 63 - __builtin_clzll(value | 1); }
    static const int64_t FAIRSCHED_NOTHING = -1;
    """
    int log2_of "fairsched_log2"(uint64_t value) noexcept nogil
    const int64_t NOTHING "FAIRSCHED_NOTHING"  # no sample in the window

cdef enum:
    MIN_BUCKETS = 8
    SUB_BITS = 4
    SUB = 16
    OCTAVES = 40  # values up to 2**43 ns, two hours; longer ones count as that
    BUCKETS = 640

cdef struct Generation:
    uint32_t counts[BUCKETS]
    uint64_t total
    double sum

cdef struct Estimator:
    int64_t window
    int64_t stretch            # of one bucket of the minimum
    int64_t newest             # stretches since time 0, of the newest sample or question
    int64_t least[MIN_BUCKETS]  # by stretch modulo MIN_BUCKETS; NOTHING: no sample then
    int64_t half_end           # when the present generation becomes the older one
    int present
    Generation generations[2]

cdef inline void estimator_init(Estimator* e, int64_t window) noexcept nogil:
    cdef int i
    memset(e, 0, sizeof(Estimator))
    e.window = window
    e.stretch = max(1, window // MIN_BUCKETS)
    for i in range(MIN_BUCKETS):
        e.least[i] = NOTHING

cdef inline int bucket_of(int64_t value) noexcept nogil:
    """The bucket of a value: the first SUB hold one value each, every octave after that has SUB of its own."""
    cdef int octave
    if value < SUB:
        return <int> value
    octave = log2_of(value) - SUB_BITS
    return min((octave + 1) * SUB + <int> ((value >> octave) & (SUB - 1)), BUCKETS - 1)

cdef inline int64_t bucket_middle(int bucket) noexcept nogil:
    """A value in the middle of a bucket."""
    cdef int octave = bucket // SUB - 1
    if octave < 1:
        return bucket
    return (<int64_t> (SUB + bucket % SUB) << octave) + ((<int64_t> 1 << octave) >> 1)

cdef inline void estimator_move_on(Estimator* e, int64_t now) noexcept nogil:
    """Forget what has left the window by now."""
    cdef int64_t stretch = now // e.stretch
    cdef int64_t i
    if stretch > e.newest:
        for i in range(max(e.newest + 1, stretch - MIN_BUCKETS + 1), stretch + 1):
            e.least[i % MIN_BUCKETS] = NOTHING
        e.newest = stretch
    if now >= e.half_end:
        e.present = 1 - e.present
        memset(&e.generations[e.present], 0, sizeof(Generation))
        if now >= e.half_end + e.window // 2:
            memset(&e.generations[1 - e.present], 0, sizeof(Generation))
        e.half_end = now + e.window // 2

cdef inline void estimator_add(Estimator* e, int64_t value, int64_t now) noexcept nogil:
    """Take a sample."""
    cdef int64_t* least
    cdef Generation* g
    estimator_move_on(e, now)
    least = &e.least[e.newest % MIN_BUCKETS]
    if least[0] == NOTHING or value < least[0]:
        least[0] = value
    g = &e.generations[e.present]
    g.counts[bucket_of(value)] += 1
    g.total += 1
    g.sum += value

cdef inline int64_t estimator_minimum(Estimator* e, int64_t now) noexcept nogil:
    """The least sample in the window; NOTHING when there is none."""
    cdef int64_t least = NOTHING
    cdef int i
    estimator_move_on(e, now)
    for i in range(MIN_BUCKETS):
        if e.least[i] != NOTHING and (least == NOTHING or e.least[i] < least):
            least = e.least[i]
    return least

cdef inline uint64_t estimator_count(Estimator* e, int64_t now) noexcept nogil:
    """Samples of which quantile and mean speak."""
    estimator_move_on(e, now)
    return e.generations[0].total + e.generations[1].total

cdef inline int64_t estimator_quantile(Estimator* e, double q, int64_t now) noexcept nogil:
    """The value below which a part q of the samples lies, to within 1/SUB of it; NOTHING when there is no sample."""
    cdef uint64_t count = estimator_count(e, now)
    cdef uint64_t rank = <uint64_t> (q * (count - 1)) if count else 0
    cdef uint64_t below = 0
    cdef int i
    if count == 0:
        return NOTHING
    for i in range(BUCKETS):
        below += e.generations[0].counts[i] + e.generations[1].counts[i]
        if below > rank:
            return bucket_middle(i)
    return NOTHING

cdef inline double estimator_mean(Estimator* e, int64_t now) noexcept nogil:
    """The mean of the samples; NOTHING when there is none."""
    cdef uint64_t count = estimator_count(e, now)
    return (e.generations[0].sum + e.generations[1].sum) / count if count else NOTHING
