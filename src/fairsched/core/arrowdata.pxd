"""The structures of Arrow's C data and stream interfaces: an ABI by which libraries exchange columns.

Read by hashing/arrow.pxd, written by arrowexport.pxd.

Source: "The Arrow C data interface" and "The Arrow C stream interface", Apache Arrow columnar format 1.4, whose
names and guards these are. Thread safety: none of their own.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <cstdint>
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowSchema {
        const char* format;
        const char* name;
        const char* metadata;
        int64_t flags;
        int64_t n_children;
        struct ArrowSchema** children;
        struct ArrowSchema* dictionary;
        void (*release)(struct ArrowSchema*);
        void* private_data;
    };
    struct ArrowArray {
        int64_t length;
        int64_t null_count;
        int64_t offset;
        int64_t n_buffers;
        int64_t n_children;
        const void** buffers;
        struct ArrowArray** children;
        struct ArrowArray* dictionary;
        void (*release)(struct ArrowArray*);
        void* private_data;
    };
    #endif
    #ifndef ARROW_C_STREAM_INTERFACE
    #define ARROW_C_STREAM_INTERFACE
    struct ArrowArrayStream {
        int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
        int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
        const char* (*get_last_error)(struct ArrowArrayStream*);
        void (*release)(struct ArrowArrayStream*);
        void* private_data;
    };
    #endif
    """
    ctypedef struct ArrowSchema:
        const char* format
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept

    ctypedef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data

    ctypedef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema* out) noexcept
        int (*get_next)(ArrowArrayStream*, ArrowArray* out) noexcept
        const char* (*get_last_error)(ArrowArrayStream*) noexcept
        void (*release)(ArrowArrayStream*) noexcept
