"""Key columns from Arrow arrays, through the C data interface: of pyarrow, polars and others; none is a dependency.

A producer passes the structures of arrowdata.pxd in capsules, and frees them when they are released.

Source: "The Arrow C data interface", Apache Arrow columnar format 1.4.

Thread safety: pure functions over arrays that do not change.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport strtoll

from fairsched.core.arrowdata cimport ArrowArray, ArrowSchema
from fairsched.core.hashing.keycolumn cimport (
    KEYS_FIXED, KEYS_NULL, KEYS_OFFSETS32, KEYS_OFFSETS64, KEYS_SIGNED, KEYS_UNSIGNED, KEYS_VIEWS, KeyColumn,
)

cdef inline int64_t arrow_integer_width(char letter) noexcept nogil:
    """Bytes of an integer type by its format letter, negative for a signed one; 0 for any other type."""
    if letter == b"c":
        return -1
    if letter == b"C":
        return 1
    if letter == b"s":
        return -2
    if letter == b"S":
        return 2
    if letter == b"i":
        return -4
    if letter == b"I":
        return 4
    if letter == b"l":
        return -8
    return 8 if letter == b"L" else 0

cdef inline bint arrow_is(const char* format, char first, char second) noexcept nogil:
    """Return whether a format has just these two letters."""
    return format[0] == first and format[1] == second and (second == 0 or format[2] == 0)

cdef inline bint arrow_text(const ArrowSchema* schema, const ArrowArray* array, KeyColumn* c) noexcept nogil:
    """Describe an array of strings or binaries; False for any other type."""
    cdef const char* format = schema.format
    if arrow_is(format, b"u", 0) or arrow_is(format, b"z", 0):
        c.kind = KEYS_OFFSETS32
    elif arrow_is(format, b"U", 0) or arrow_is(format, b"Z", 0):
        c.kind = KEYS_OFFSETS64
    elif arrow_is(format, b"v", b"u") or arrow_is(format, b"v", b"z"):
        c.kind = KEYS_VIEWS
        c.data = <const uint8_t*> array.buffers[1]
        c.buffers = array.buffers
        return True
    else:
        return False
    c.offsets = array.buffers[1]
    c.data = <const uint8_t*> array.buffers[2]
    return True

cdef inline bint arrow_column(const ArrowSchema* schema, const ArrowArray* array, KeyColumn* c) noexcept nogil:
    """Describe an array, its indices where it has a dictionary; False for a type that no key has."""
    cdef const char* format = schema.format
    cdef int64_t width = arrow_integer_width(format[0]) if format[1] == 0 else 0
    c.length = array.length
    c.first = array.offset
    c.validity = c.data = NULL
    c.offsets = NULL
    c.buffers = NULL
    c.kind = KEYS_NULL
    if arrow_is(format, b"n", 0):
        return True
    # A nested or union array, which is refused below, may have no buffer at all.
    if array.null_count != 0 and array.n_buffers > 0:
        c.validity = <const uint8_t*> array.buffers[0]
    if width != 0:
        c.kind = KEYS_SIGNED if width < 0 else KEYS_UNSIGNED
        c.width = width if width > 0 else -width
    elif format[0] == b"w" and format[1] == b":":
        c.kind = KEYS_FIXED
        c.width = strtoll(format + 2, NULL, 10)
    else:
        return arrow_text(schema, array, c)
    c.data = <const uint8_t*> array.buffers[1]
    return True
