"""What headers do for the sake of caches: memory that begins with a line, and fetching what is needed soon."""

from libc.stdint cimport uintptr_t

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define fairsched_prefetch(address) __builtin_prefetch(address)
    #else
    #define fairsched_prefetch(address) ((void)(address))
    #endif
    """
    void prefetch "fairsched_prefetch"(const void* address) noexcept nogil

cdef enum:
    CACHE_LINE = 64

cdef inline void* first_line(void* block) noexcept nogil:
    """Where the first cache line of a block begins, which has to be CACHE_LINE larger than what is put there."""
    return <void*> ((<uintptr_t> block + CACHE_LINE - 1) & ~<uintptr_t> (CACHE_LINE - 1))
