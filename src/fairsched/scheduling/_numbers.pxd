"""Numbers from Python: integers only, checked, with errors that name the value and the rule."""

from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.long cimport PyLong_CheckExact
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint64_t

from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.slots cimport PRIORITIES

cdef enum:
    BUCKETS_MAX = 0x7FFFFFFF

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object o, int* overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(object o)


cdef inline int64_t as_int64(object value, str what, str rule) except? -1:
    """Convert an integer, or what says it is one by __index__."""
    cdef int overflow = 0
    cdef int64_t result
    cdef object number = value
    if not PyLong_CheckExact(value):
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise ValueError(f"{what} must be {rule}, got {value!r}")
        number = value.__index__()
    result = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow or not -AMOUNT_MAX <= result <= AMOUNT_MAX:
        raise OverflowError(f"{what} must be {rule} of at most {AMOUNT_MAX}, got {value!r}")
    return result


cdef inline int64_t as_amount(object value, str what) except -1:
    """Convert a quantum or a cost."""
    cdef int64_t result
    if value is 1:
        return 1
    result = as_int64(value, what, "a positive integer")
    if result <= 0:
        raise ValueError(f"{what} must be a positive integer, got {value!r}")
    return result


cdef inline int64_t as_count(object value) except -1:
    """Convert a number of messages."""
    cdef int64_t result = as_int64(value, "n", "an integer of 0 or more")
    if result < 0:
        raise ValueError(f"n must be an integer of 0 or more, got {value!r}")
    return result


cdef inline int64_t as_buckets(object value) except -1:
    """Convert a number of buckets."""
    cdef int64_t count = as_int64(value, "buckets", "an integer from 1 to 2**31 - 1")
    if not 1 <= count <= BUCKETS_MAX:
        raise ValueError(f"buckets must be an integer from 1 to 2**31 - 1, got {value!r}")
    return count


cdef inline int64_t natural(object value, str what) except -1:
    """Convert an integer of 0 or more."""
    cdef int64_t number = as_int64(value, what, "an integer of 0 or more")
    if number < 0:
        raise ValueError(f"{what} must be an integer of 0 or more, got {value!r}")
    return number


cdef inline int64_t as_credit(object credit) except? -2:
    """Convert a credit; -1: no limit."""
    return -1 if credit is None else natural(credit, "credit")


cdef inline int32_t as_priority(object value) except? -1:
    """Convert the priority of a consumer."""
    cdef int64_t result
    if value is 0:
        return 0
    result = as_int64(value, "priority", "an integer")
    if result != <int32_t> result:
        raise OverflowError(f"priority must be an integer from -2**31 to 2**31 - 1, got {value!r}")
    return <int32_t> result


cdef inline int64_t as_item_priority(object value) except -1:
    """Convert the priority of an item."""
    cdef int64_t result = as_int64(value, "priority of an item", "an integer from 0 to 9")
    if not 0 <= result < PRIORITIES:
        raise ValueError(f"priority of an item must be an integer from 0 to 9 (served first), got {value!r}")
    return result


cdef inline uint64_t as_token(object value) except? 0:
    """Convert a token."""
    cdef uint64_t result
    if not PyLong_CheckExact(value):
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise ValueError(f"token must be an integer from 0 to 2**64 - 1, got {value!r}")
        value = value.__index__()
    result = PyLong_AsUnsignedLongLong(value)
    if result == <uint64_t> -1 and PyErr_Occurred() != NULL:
        PyErr_Clear()
        raise OverflowError(f"token must be an integer from 0 to 2**64 - 1, got {value!r}")
    return result


cdef inline double as_timeout(object value, str what) except -1:
    """Convert a timeout in seconds; what is beyond all floats is infinite, as None is."""
    cdef double seconds = INFINITY
    if value is None:
        return INFINITY
    try:
        seconds = value
    except TypeError:
        raise TypeError(f"{what} must be a number of seconds, 0 or more, got {value!r}") from None
    except ValueError:  # a signaling NaN
        seconds = -1
    except OverflowError:  # a whole number
        seconds = INFINITY if value > 0 else -1
    if not seconds >= 0:  # NaN too
        raise ValueError(f"{what} must be a number of seconds, 0 or more, got {value!r}")
    return seconds


cdef inline int64_t as_nanoseconds(double seconds) noexcept:
    """Convert a time of any clock: NaN becomes 0, and values are clamped to ±4e9 s, so that sums fit in 64 bits."""
    return <int64_t> (min(max(seconds, -4e9), 4e9) * 1e9) if seconds == seconds else 0
