"""xoshiro256++: random numbers in independent streams, one per random source.

Source: Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators" (2021). A stream is seeded with 256 bits
that must not all be zero. Uniform numbers have 53 bits; everything else is made from them with the platform's logarithm
and cosine, so streams of uniform numbers are the same everywhere and others to the last digit of the C library.

Thread safety: none; a stream belongs to one thread. Complexity: O(1).
"""

from libc.math cimport cos, log, sqrt
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    static const double FAIRSCHED_TWO_PI = 6.283185307179586;
    static const double FAIRSCHED_ULP_53 = 1.0 / 9007199254740992.0;
    """
    const double TWO_PI "FAIRSCHED_TWO_PI"
    const double ULP_53 "FAIRSCHED_ULP_53"

cdef struct Xoshiro:
    uint64_t words[4]

cdef inline uint64_t xoshiro_rotate(uint64_t word, int by) noexcept nogil:
    return (word << by) | (word >> (64 - by))

cdef inline uint64_t xoshiro_next(Xoshiro* g) noexcept nogil:
    """Return the next 64 bits."""
    cdef uint64_t result = xoshiro_rotate(g.words[0] + g.words[3], 23) + g.words[0]
    cdef uint64_t shifted = g.words[1] << 17
    g.words[2] ^= g.words[0]
    g.words[3] ^= g.words[1]
    g.words[1] ^= g.words[2]
    g.words[0] ^= g.words[3]
    g.words[2] ^= shifted
    g.words[3] = xoshiro_rotate(g.words[3], 45)
    return result

cdef inline double xoshiro_uniform(Xoshiro* g) noexcept nogil:
    """Return a uniform number in [0, 1)."""
    return <double> (xoshiro_next(g) >> 11) * ULP_53

cdef inline double xoshiro_exponential(Xoshiro* g) noexcept nogil:
    """Return an exponential number with mean 1, by inversion."""
    return -log(1.0 - xoshiro_uniform(g))

cdef inline double xoshiro_normal(Xoshiro* g) noexcept nogil:
    """Return a standard normal number: the cosine half of Box and Muller's pair, which takes two uniform numbers."""
    cdef double radius = sqrt(2.0 * xoshiro_exponential(g))
    return radius * cos(TWO_PI * xoshiro_uniform(g))
