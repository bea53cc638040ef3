"""Many items of a `FairQueue` at once; see _batching.pyx."""

from libc.stdint cimport int64_t

from fairsched._fairqueue cimport FairQueue

cdef int store_many(
    FairQueue q, object slot, list names, list objects, const int64_t* costs, bint block, object timeout
) except -1
cdef int64_t take_many(FairQueue q, list names, list items, int64_t size) noexcept
