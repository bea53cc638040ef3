"""Options of a pull queue: names, callables and times, checked, with errors that name the value and the rule."""

from libc.stdint cimport INT64_MAX, int64_t


cdef inline object choice(dict choices, object value, str what):
    """Look up an option by name."""
    if value is not None and not isinstance(value, str) or value not in choices:
        allowed = ", ".join([repr(name) for name in choices])
        raise ValueError(f"{what} must be one of {allowed}, got {value!r}")
    return choices[value]


cdef inline object check_callable(object value, str what):
    if value is not None and not callable(value):
        raise ValueError(f"{what} must be callable, got {value!r}")
    return value


cdef inline int64_t as_ns(object seconds, str what) except? -1:
    """Convert a time in seconds; never 0, which stands for none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not -9e9 < seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds between -9e9 and 9e9, got {seconds!r}")
    return round(seconds * 1e9) or 1


cdef inline int64_t as_lifetime(object seconds, str what) except -1:
    """Convert a time to live to nanoseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds, 0 or more and below 9e9, got {seconds!r}")
    return round(seconds * 1e9)


cdef inline int64_t clock_ns(object seconds) except? -1:
    """Convert the time that a clock returned."""
    if not -9e9 < seconds < 9e9:  # NaN too
        raise ValueError(f"a clock must return a number of seconds between -9e9 and 9e9, got {seconds!r}")
    return round(seconds * 1e9)


cdef inline int64_t time_after(int64_t now, int64_t span) noexcept:
    """Return the time `span` later, or INT64_MAX if that is later than can be counted."""
    return INT64_MAX if span > INT64_MAX - max(now, <int64_t> 0) else now + span
