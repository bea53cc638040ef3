"""A histogram of fixed size, whose bucket bounds are 1, 2 and 5 times powers of ten, as is usual with Prometheus.

The caller chooses the unit: the first bucket ends at BUCKETS_FIRST ticks, the last but one at 10**6 times that, and the
last has no bound. With ticks of a nanosecond that is 100 us to 100 s; with 100 000 ticks per second, 1 s to eleven
days. Log-linear: three buckets per power of ten. Each bound is at least twice the one before, so there is at most one
between two powers of two: the highest bit of a value and one comparison find its bucket.

Thread safety: none; the caller synchronizes. Complexity: O(1); memory 168 bytes.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from fairsched.core.delay.histogram cimport highest_bit

cdef extern from *:
    """
    #include <cstdint>
    enum { FAIRSCHED_BUCKETS = 20, FAIRSCHED_BUCKETS_FIRST = 100000 };
    struct FairschedBucketBounds {
        int64_t end[FAIRSCHED_BUCKETS];  // of each bucket, which it includes
        uint8_t from[64];                // by highest bit of a value: the first bucket that it may be in
        constexpr FairschedBucketBounds() : end(), from() {
            int64_t power = FAIRSCHED_BUCKETS_FIRST;
            for (int i = 0; i < FAIRSCHED_BUCKETS; i++) {
                end[i] = i + 1 == FAIRSCHED_BUCKETS ? INT64_MAX : power * (i % 3 == 0 ? 1 : i % 3 == 1 ? 2 : 5);
                power = i % 3 == 2 ? 10 * power : power;
            }
            for (int bit = 0, i = 0; bit < 64; bit++) {
                while (i + 1 < FAIRSCHED_BUCKETS && static_cast<uint64_t>(end[i]) < uint64_t{1} << bit) {
                    i++;
                }
                from[bit] = static_cast<uint8_t>(i);
            }
        }
    };
    static constexpr FairschedBucketBounds fairsched_bucket_bounds;
    """
    enum:
        BUCKETS "FAIRSCHED_BUCKETS"
        BUCKETS_FIRST "FAIRSCHED_BUCKETS_FIRST"
    ctypedef struct BucketBounds "FairschedBucketBounds":
        int64_t* end
        unsigned char* first "from"
    const BucketBounds bucket_bounds "fairsched_bucket_bounds"

cdef struct Buckets:
    int64_t counts[20]  # BUCKETS of them; not cumulative
    double sum          # of all values

cdef inline void buckets_clear(Buckets* b) noexcept nogil:
    memset(b, 0, sizeof(Buckets))

cdef inline int buckets_place(int64_t value) noexcept nogil:
    """The bucket of a value of at least 0."""
    cdef int place = bucket_bounds.first[highest_bit(<uint64_t> value | 1)]
    return place + (value > bucket_bounds.end[place])

cdef inline void buckets_add(Buckets* b, int64_t value) noexcept nogil:
    """Count a value; a negative one, which clocks that differ make, as 0."""
    value = max(value, 0)
    b.counts[buckets_place(value)] += 1
    b.sum += <double> value
