"""The largest amount: a quantum, a cost, a debt."""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    static const int64_t FAIRSCHED_AMOUNT_MAX = (int64_t(1) << 62) - 1;
    """
    # Any sum of two amounts fits in an int64.
    const int64_t AMOUNT_MAX "FAIRSCHED_AMOUNT_MAX"
