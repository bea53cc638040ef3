"""How a message comes into a pull queue; see _putting.pyx."""

from fairsched._pullqueue cimport PullQueue

cdef int put_message(
    PullQueue q, object item, object priority, object key, object slot, object size, object ttl, object not_before,
    object block, object timeout
) except -1
