"""Short strings of AMQP, for modules that write frames."""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize

from fairsched.core.amqp.octets cimport SHORT_MAX as _SHORT_MAX


cdef inline const char* short_text(object text, str name, Py_ssize_t* size) except NULL:
    """Return an AMQP short string as UTF-8."""
    cdef const char* found
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {text!r}")
    try:
        found = PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be encodable as UTF-8, got {text!r}: {error}") from None
    if size[0] > _SHORT_MAX:
        raise ValueError(f"{name} must be at most {_SHORT_MAX} bytes long as UTF-8, got {size[0]}: {text!r}")
    return found
