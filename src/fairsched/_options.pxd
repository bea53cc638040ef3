"""Options from Python: names, callables and times, checked, with errors that name the value and what is allowed."""

from libc.stdint cimport int64_t


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
        raise ValueError(f"{what} must be a finite number of seconds, got {seconds!r}")
    return round(seconds * 1e9) or 1


cdef inline int64_t as_lifetime(object seconds, str what) except -1:
    """Convert a time to live; nanoseconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 9e9:
        raise ValueError(f"{what} must be a number of seconds, 0 or more, got {seconds!r}")
    return round(seconds * 1e9)
