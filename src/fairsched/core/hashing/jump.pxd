"""Jump consistent hash: a key's bucket among 0..n-1, without any table.

Source: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014). From n to n + 1 buckets one key
in n + 1 moves, always to the new bucket; only the last bucket can be removed. If any member may leave, use ring.pxd.

Complexity: O(log n) steps, nothing stored. Thread safety: pure functions.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    JUMP_LANES = 4

cdef inline int64_t jump_next(uint64_t key, int64_t bucket) noexcept nogil:
    """Return the next bucket of a key in `bucket` as the buckets grow. `key` is the generator's new state."""
    # Within 2**31 * 2**31: exact in a double's 53 bits where it matters, and below 2**63.
    return <int64_t> (<double> (bucket + 1) * (2147483648.0 / <double> <int64_t> ((key >> 33) + 1)))

cdef inline int64_t jump_bucket(uint64_t key, int64_t buckets) noexcept nogil:
    """Bucket of a key; `buckets` is 1 to 2**31 - 1."""
    cdef int64_t bucket = -1
    cdef int64_t candidate = 0
    while candidate < buckets:
        bucket = candidate
        key = key * 2862933555777941757ULL + 1
        candidate = jump_next(key, bucket)
    return bucket

cdef inline void jump_buckets(const uint64_t* keys, int32_t* out, int64_t n, int64_t buckets) noexcept nogil:
    """Buckets of a block of keys, four at a time: their divisions overlap, and no branch hangs on a single key."""
    cdef uint64_t key[JUMP_LANES]
    cdef int64_t bucket[JUMP_LANES]
    cdef int64_t candidate[JUMP_LANES]
    cdef int64_t i, following, whole = n - n % JUMP_LANES
    cdef int lane
    cdef bint moving
    for i in range(0, whole, 4):
        for lane in range(JUMP_LANES):
            key[lane] = keys[i + lane]
            bucket[lane] = candidate[lane] = 0
        moving = True
        while moving:
            moving = False
            for lane in range(JUMP_LANES):
                bucket[lane] = candidate[lane] if candidate[lane] < buckets else bucket[lane]
                key[lane] = key[lane] * 2862933555777941757ULL + 1
                following = jump_next(key[lane], bucket[lane])
                candidate[lane] = following if candidate[lane] < buckets else candidate[lane]
                moving = moving | (candidate[lane] < buckets)
        for lane in range(JUMP_LANES):
            out[i + lane] = <int32_t> bucket[lane]
    for i in range(whole, n):
        out[i] = <int32_t> jump_bucket(keys[i], buckets)
