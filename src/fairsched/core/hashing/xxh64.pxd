"""XXH64: a 64-bit hash of bytes.

Source: "xxHash fast digest algorithm", specification version 0.1.1 (XXH64). Equal to all other implementations, such as
Spark's `xxhash64` (with seed 42), so that different programs place a key alike.

Complexity: O(length), nothing allocated. Thread safety: pure functions.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <cstring>
    static inline uint64_t fairsched_read64(const uint8_t* at) {
        uint64_t word;
        std::memcpy(&word, at, sizeof word);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }
    static inline uint32_t fairsched_read32(const uint8_t* at) {
        uint32_t word;
        std::memcpy(&word, at, sizeof word);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap32(word);
    #endif
        return word;
    }
    static const uint64_t FAIRSCHED_XXH_PRIME1 = 0x9E3779B185EBCA87ULL;
    static const uint64_t FAIRSCHED_XXH_PRIME2 = 0xC2B2AE3D27D4EB4FULL;
    static const uint64_t FAIRSCHED_XXH_PRIME3 = 0x165667B19E3779F9ULL;
    static const uint64_t FAIRSCHED_XXH_PRIME4 = 0x85EBCA77C2B2AE63ULL;
    static const uint64_t FAIRSCHED_XXH_PRIME5 = 0x27D4EB2F165667C5ULL;
    """
    # Little-endian words at any address.
    uint64_t read64 "fairsched_read64"(const uint8_t* at) noexcept nogil
    uint32_t read32 "fairsched_read32"(const uint8_t* at) noexcept nogil
    const uint64_t PRIME1 "FAIRSCHED_XXH_PRIME1"
    const uint64_t PRIME2 "FAIRSCHED_XXH_PRIME2"
    const uint64_t PRIME3 "FAIRSCHED_XXH_PRIME3"
    const uint64_t PRIME4 "FAIRSCHED_XXH_PRIME4"
    const uint64_t PRIME5 "FAIRSCHED_XXH_PRIME5"


cdef inline uint64_t rotate_left(uint64_t word, int count) noexcept nogil:
    return (word << count) | (word >> (64 - count))

cdef inline uint64_t xxh64_round(uint64_t lane, uint64_t word) noexcept nogil:
    """Take one word into a lane."""
    return rotate_left(lane + word * PRIME2, 31) * PRIME1

cdef inline uint64_t xxh64_merge(uint64_t state, uint64_t lane) noexcept nogil:
    """Take one of the four lanes into the state."""
    return (state ^ xxh64_round(0, lane)) * PRIME1 + PRIME4

cdef inline uint64_t xxh64_word(uint64_t state, uint64_t word) noexcept nogil:
    """Take eight bytes of the tail into the state."""
    return rotate_left(state ^ xxh64_round(0, word), 27) * PRIME1 + PRIME4

cdef inline uint64_t xxh64_avalanche(uint64_t state) noexcept nogil:
    """Let every bit of the state reach every bit of the hash."""
    state = (state ^ (state >> 33)) * PRIME2
    state = (state ^ (state >> 29)) * PRIME3
    return state ^ (state >> 32)

cdef inline uint64_t xxh64_long(const uint8_t* at, uint64_t length, uint64_t seed) noexcept nogil:
    """State after all whole stripes of 32 bytes."""
    cdef uint64_t lane1 = seed + PRIME1 + PRIME2
    cdef uint64_t lane2 = seed + PRIME2
    cdef uint64_t lane3 = seed
    cdef uint64_t lane4 = seed - PRIME1
    cdef uint64_t state
    while length >= 32:
        lane1 = xxh64_round(lane1, read64(at))
        lane2 = xxh64_round(lane2, read64(at + 8))
        lane3 = xxh64_round(lane3, read64(at + 16))
        lane4 = xxh64_round(lane4, read64(at + 24))
        at += 32
        length -= 32
    state = rotate_left(lane1, 1) + rotate_left(lane2, 7) + rotate_left(lane3, 12) + rotate_left(lane4, 18)
    state = xxh64_merge(xxh64_merge(state, lane1), lane2)
    return xxh64_merge(xxh64_merge(state, lane3), lane4)

cdef inline uint64_t xxh64(const uint8_t* at, uint64_t length, uint64_t seed) noexcept nogil:
    """Hash `length` bytes."""
    cdef uint64_t state, rest = length
    if length >= 32:
        state = xxh64_long(at, length, seed)
        at += length & ~<uint64_t> 31
        rest = length & 31
    else:
        state = seed + PRIME5
    state += length
    while rest >= 8:
        state = xxh64_word(state, read64(at))
        at += 8
        rest -= 8
    if rest >= 4:
        state = rotate_left(state ^ (read32(at) * PRIME1), 23) * PRIME2 + PRIME3
        at += 4
        rest -= 4
    while rest > 0:
        state = rotate_left(state ^ (at[0] * PRIME5), 11) * PRIME1
        at += 1
        rest -= 1
    return xxh64_avalanche(state)

cdef inline uint64_t xxh64_integer(uint64_t value, uint64_t seed) noexcept nogil:
    """Hash of the eight bytes of an integer, lowest first."""
    return xxh64_avalanche(xxh64_word(seed + PRIME5 + 8, value))
