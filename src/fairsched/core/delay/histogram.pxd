"""A histogram of durations: exact for few values, and bounded in memory for any number.

The first EXACT values are stored. The next one moves all of them into buckets: one for each value below 128, then 128
per octave, so that the middle of a bucket is within 1/256 (0.4 %) of every value in it. Octaves are allocated when a
value falls into them. Count, sum, minimum and maximum are always exact.

Thread safety: none; the caller synchronizes. Complexity: O(1); memory at most 57 KiB, in practice 1 KiB per octave.
Source of the bucketing: Tene's HdrHistogram.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef extern from *:
    """
    #include <cstdint>
    #if defined(_MSC_VER)
    #include <intrin.h>
    #endif
    // Index of the highest bit that is set; not defined for 0.
    static inline int fairsched_highest_bit(uint64_t word) {
    #if defined(_MSC_VER)
        unsigned long index;
        _BitScanReverse64(&index, word);
        return static_cast<int>(index);
    #else
        return 63 - __builtin_clzll(word);
    #endif
    }
    """
    int highest_bit "fairsched_highest_bit"(uint64_t word) noexcept nogil

cdef enum:
    HISTOGRAM_EXACT = 4096
    HISTOGRAM_FIRST = 64     # room for so many at first
    HISTOGRAM_OCTAVES = 56   # enough for values below 2**62
    HISTOGRAM_BUCKETS = 128  # to an octave

cdef struct Histogram:
    int64_t* values    # the first ones, until there are too many
    int64_t capacity
    int64_t* octaves[HISTOGRAM_OCTAVES]
    int64_t count
    int64_t least
    int64_t largest
    uint64_t sum_low   # the sum in 128 bits
    uint64_t sum_high

cdef inline void histogram_init(Histogram* h) noexcept nogil:
    cdef int i
    h.values = NULL
    for i in range(HISTOGRAM_OCTAVES):
        h.octaves[i] = NULL
    h.capacity = h.count = h.least = h.largest = 0
    h.sum_low = h.sum_high = 0

cdef inline void histogram_clear(Histogram* h) noexcept nogil:
    """Free everything: the histogram is as new."""
    cdef int i
    free(h.values)
    for i in range(HISTOGRAM_OCTAVES):
        free(h.octaves[i])
    histogram_init(h)

cdef inline bint histogram_bucket(Histogram* h, int64_t value) noexcept nogil:
    """Count a value in its bucket; False when memory is exhausted."""
    cdef int octave = highest_bit(<uint64_t> value | 127) - 6
    cdef int64_t place = value if octave == 0 else (value >> (octave - 1)) - HISTOGRAM_BUCKETS
    if h.octaves[octave] == NULL:
        h.octaves[octave] = <int64_t*> calloc(HISTOGRAM_BUCKETS, sizeof(int64_t))
        if h.octaves[octave] == NULL:
            return False
    h.octaves[octave][place] += 1
    return True

cdef inline int64_t histogram_middle(int octave, int64_t place) noexcept nogil:
    """The value that stands for a bucket."""
    if octave == 0:
        return place
    return ((HISTOGRAM_BUCKETS + place) << (octave - 1)) + ((<int64_t> 1 << (octave - 1)) >> 1)

cdef inline bint histogram_spill(Histogram* h) noexcept nogil:
    """Move the values into buckets; False when memory is exhausted."""
    cdef int64_t i
    for i in range(h.count):
        if not histogram_bucket(h, h.values[i]):
            return False
    free(h.values)
    h.values = NULL
    h.capacity = 0
    return True

cdef inline bint histogram_store(Histogram* h, int64_t value) noexcept nogil:
    """Keep a value as it is, or in a bucket; False when memory is exhausted."""
    cdef int64_t* grown
    if h.count < h.capacity:
        h.values[h.count] = value
        return True
    if h.count >= HISTOGRAM_EXACT:
        if h.values != NULL and not histogram_spill(h):
            return False
        return histogram_bucket(h, value)
    h.capacity = 2 * h.capacity if h.capacity else HISTOGRAM_FIRST
    grown = <int64_t*> realloc(h.values, h.capacity * sizeof(int64_t))
    if grown == NULL:
        return False
    h.values = grown
    h.values[h.count] = value
    return True

cdef inline bint histogram_add(Histogram* h, int64_t value) noexcept nogil:
    """Count a value, 0 to 2**62 - 1; False when memory is exhausted."""
    if not histogram_store(h, value):
        return False
    if h.count == 0 or value < h.least:
        h.least = value
    if value > h.largest:
        h.largest = value
    h.count += 1
    h.sum_low += <uint64_t> value
    h.sum_high += h.sum_low < <uint64_t> value
    return True
