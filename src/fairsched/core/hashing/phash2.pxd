"""Erlang's portable hash of the terms that routing needs: binaries, atoms, integers, floats and pairs.

Source: the behaviour of `erlang:phash2/1`, which hashes a term piece by piece with the mix of Jenkins, "Hash functions"
(Dr. Dobb's Journal, 1997), each kind of term under a constant of its own. Erlang promises that it never changes.

Every function takes the hash so far (0 at the start of a term) and returns the next; `phash2_range` ends it. The pieces
of a tuple are hashed in order after `phash2_pair`.

Complexity: O(length). Thread safety: pure functions.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fairsched.core.hashing.xxh64 cimport read32

cdef extern from *:
    """
    static const uint32_t FAIRSCHED_PHASH2_CONSTANT = 0x9E3779B9u;
    """
    # A kind of term is hashed under this constant times its number.
    const uint32_t KIND "FAIRSCHED_PHASH2_CONSTANT"

cdef enum:
    KIND_INTEGER = 1
    KIND_ATOM = 3
    KIND_TUPLE = 9
    KIND_NEGATIVE = 10
    KIND_POSITIVE = 11
    KIND_FLOAT = 12
    KIND_BINARY = 13
    PHASH2_BITS = 27

cdef struct Mixer:
    uint32_t a
    uint32_t b
    uint32_t c

cdef inline void mixer_mix(Mixer* m) noexcept nogil:
    m.a = (m.a - m.b - m.c) ^ (m.c >> 13)
    m.b = (m.b - m.c - m.a) ^ (m.a << 8)
    m.c = (m.c - m.a - m.b) ^ (m.b >> 13)
    m.a = (m.a - m.b - m.c) ^ (m.c >> 12)
    m.b = (m.b - m.c - m.a) ^ (m.a << 16)
    m.c = (m.c - m.a - m.b) ^ (m.b >> 5)
    m.a = (m.a - m.b - m.c) ^ (m.c >> 3)
    m.b = (m.b - m.c - m.a) ^ (m.a << 10)
    m.c = (m.c - m.a - m.b) ^ (m.b >> 15)

cdef inline uint32_t phash2_words(uint32_t state, uint32_t low, uint32_t high, uint32_t kind) noexcept nogil:
    """Hash two words."""
    cdef Mixer m
    m.a = KIND * kind + low
    m.b = KIND * kind + high
    m.c = state
    mixer_mix(&m)
    return m.c

cdef inline uint32_t phash2_binary(uint32_t state, const uint8_t* at, uint64_t length) noexcept nogil:
    """Hash a binary, of which Erlang counts the length in 32 bits."""
    cdef Mixer m
    cdef uint8_t last[12]
    cdef uint32_t size = <uint32_t> length
    cdef uint32_t rest = size
    if size == 0:
        return KIND * KIND_BINARY + state
    m.a = m.b = KIND
    m.c = KIND * KIND_BINARY + state
    while rest >= 12:
        m.a += read32(at)
        m.b += read32(at + 4)
        m.c += read32(at + 8)
        mixer_mix(&m)
        at += 12
        rest -= 12
    last[:] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    memcpy(last, at, rest)
    # The lowest byte of the third word is the length's.
    m.a += read32(last)
    m.b += read32(last + 4)
    m.c += size + (read32(last + 8) << 8)
    mixer_mix(&m)
    return m.c

cdef inline uint32_t phash2_atom(uint32_t state, const uint8_t* name, uint64_t length) noexcept nogil:
    """Hash an atom by its name, in ASCII."""
    cdef uint32_t value = 0
    cdef uint32_t top
    cdef uint64_t i
    for i in range(length):
        value = (value << 4) + name[i]
        top = (value >> 28) << 28
        value = (value ^ (top >> 24)) ^ top
    return value if state == 0 else phash2_words(state, value, 0, KIND_ATOM)

cdef inline uint32_t phash2_integer(uint32_t state, int64_t value) noexcept nogil:
    """Hash an integer: in 28 bits, mixed twice when negative; else as magnitude and sign."""
    cdef uint64_t magnitude = -<uint64_t> value if value < 0 else <uint64_t> value
    if -(1 << 27) <= value < (1 << 27):
        if value < 0:
            state = phash2_words(state, <uint32_t> magnitude, 0, KIND_INTEGER)
        return phash2_words(state, <uint32_t> value, 0, KIND_INTEGER)
    return phash2_words(
        state, <uint32_t> magnitude, <uint32_t> (magnitude >> 32), KIND_NEGATIVE if value < 0 else KIND_POSITIVE
    )

cdef inline uint32_t phash2_float(uint32_t state, double value) noexcept nogil:
    """Hash a float by its bits, the upper half first; both zeros are one."""
    cdef uint64_t bits
    value = value + 0.0
    memcpy(&bits, &value, sizeof(bits))
    return phash2_words(state, <uint32_t> (bits >> 32), <uint32_t> bits, KIND_FLOAT)

cdef inline uint32_t phash2_pair(uint32_t state) noexcept nogil:
    """Begin a tuple of two."""
    return phash2_words(state, 2, 0, KIND_TUPLE)

cdef inline uint32_t phash2_range(uint32_t state) noexcept nogil:
    """End a term: what phash2/1 returns."""
    return state & ((1 << PHASH2_BITS) - 1)
