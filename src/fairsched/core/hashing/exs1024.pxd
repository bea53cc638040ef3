"""The bucket that RabbitMQ's consistent-hash exchange chooses: jump consistent hash over Erlang's generator exs1024.

Source: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled" (xorshift64* fills the state
of xorshift1024*), with the seeding of Erlang's `rand` from three integers, all three of them the key; and the loop of
Lamping and Veach with uniform numbers in place of their generator.

Complexity: O(log n) steps after filling 16 words of state. Thread safety: pure functions.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from *:
    """
    static const uint64_t FAIRSCHED_XORSHIFT64_STAR = 2685821657736338717ULL;
    static const uint64_t FAIRSCHED_XORSHIFT1024_STAR = 1181783497276652981ULL;
    """
    const uint64_t STAR64 "FAIRSCHED_XORSHIFT64_STAR"
    const uint64_t STAR1024 "FAIRSCHED_XORSHIFT1024_STAR"

cdef struct Exs1024:
    uint64_t words[16]
    uint32_t at

cdef inline void exs1024_seed(Exs1024* g, uint64_t key) noexcept nogil:
    """Seed with (key, key, key), of which 21 bits count."""
    cdef uint64_t mask = (1 << 21) - 1
    cdef uint64_t base = (key & mask) + 1
    cdef uint64_t state = (
        (((base * 2097131) & mask) << 43) | (((base * 2097133) & mask) << 22) | (((base * 2097143) & mask) << 1) | 1
    )
    cdef int i
    for i in range(16):
        state ^= state >> 12
        state ^= state << 25
        state ^= state >> 27
        # Erlang collects the words in a list, the newest first.
        g.words[15 - i] = state * STAR64
    g.at = 0

cdef inline uint64_t exs1024_next(Exs1024* g) noexcept nogil:
    """Next 64 bits."""
    cdef uint32_t following = (g.at + 1) & 15
    cdef uint64_t old = g.words[g.at]
    cdef uint64_t word = g.words[following]
    old ^= old >> 30
    word ^= word << 31
    word ^= word >> 11
    word ^= old
    g.words[following] = word
    g.at = following
    return word * STAR1024

cdef inline int64_t rabbitmq_bucket(uint64_t key, int64_t buckets) noexcept nogil:
    """Bucket of an integer key (a phash2, or an integer header itself); `buckets` is 1 to 2**31 - 1."""
    cdef Exs1024 g
    cdef int64_t bucket = -1
    cdef int64_t candidate = 0
    cdef double uniform, jump
    if buckets == 1:
        return 0
    exs1024_seed(&g, key)
    while candidate < buckets:
        bucket = candidate
        uniform = <double> exs1024_next(&g) / 18446744073709551616.0
        # The broker would fail on a zero, which comes once in 2**64; and a jump out of range ends the search anyway.
        if uniform <= 0.0:
            break
        jump = (bucket + 1) / uniform
        if jump >= buckets:
            break
        candidate = <int64_t> jump
    return bucket
