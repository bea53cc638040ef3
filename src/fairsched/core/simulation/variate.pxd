"""Random durations in whole nanoseconds: constant, exponential, uniform or lognormal.

Thread safety: none; see xoshiro.pxd. Complexity: O(1).
"""

from libc.math cimport exp
from libc.stdint cimport int64_t

from fairsched.core.simulation.xoshiro cimport Xoshiro, xoshiro_exponential, xoshiro_normal, xoshiro_uniform

cdef extern from *:
    """
    static const int64_t FAIRSCHED_NEVER = int64_t(1) << 62;
    """
    # Later than any moment: the sum of two of them still fits in an int64.
    const int64_t NEVER "FAIRSCHED_NEVER"

cdef enum VariateKind:
    VARIATE_CONSTANT     # a
    VARIATE_EXPONENTIAL  # mean a
    VARIATE_UNIFORM      # from a to b
    VARIATE_LOGNORMAL    # exp(normal of mean a and deviation b)

cdef struct Variate:
    int kind
    double a  # nanoseconds, except for the logarithm's parameters
    double b

cdef inline int64_t whole_nanoseconds(double value) noexcept nogil:
    """Round to the nearest nanosecond, at least 0 and at most NEVER."""
    if value >= <double> NEVER:
        return NEVER
    return <int64_t> (value + 0.5) if value > 0.0 else 0

cdef inline int64_t variate_draw(const Variate* v, Xoshiro* random) noexcept nogil:
    """Draw one duration. A constant draws nothing from the stream."""
    cdef double value = v.a
    if v.kind == VARIATE_EXPONENTIAL:
        value = v.a * xoshiro_exponential(random)
    elif v.kind == VARIATE_UNIFORM:
        value = v.a + (v.b - v.a) * xoshiro_uniform(random)
    elif v.kind == VARIATE_LOGNORMAL:
        value = exp(v.a + v.b * xoshiro_normal(random))
    return whole_nanoseconds(value)
