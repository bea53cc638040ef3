"""The key of a message in a fair, sorted or last-value queue: the value of its header, as octets.

The key of a text is its octets. The key of a number does not depend on the type it was sent as: in a fair or
last-value queue it is the digits, in a sorted queue octets that compare as the numbers do.

Thread safety: pure functions. Complexity: O(headers).
"""

from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, contents_text
from fairsched.core.amqp.fieldtypes cimport FAMILY_TIMESTAMP
from fairsched.core.amqp.frames cimport frames_number, frames_write
from fairsched.core.amqp.octets cimport Text
from fairsched.core.amqp.tables cimport Field, field_family, field_integer, field_is_real, field_real, tables_get
from fairsched.core.broker.payload cimport payload_header
from fairsched.core.broker.state cimport Publication

cdef enum:
    KEY_ROOM = 24  # largest size of a number's key, in octets

cdef inline bint key_number(const Field* f, int64_t* whole, double* real) noexcept nogil:
    """Read a number of any type; False: the field is not a number."""
    if field_is_real(f):
        real[0] = field_real(f)
        whole[0] = 0
        return True
    if field_family(f) == FAMILY_TIMESTAMP:
        whole[0] = <int64_t> frames_number(f.value.data, 8)
    elif not field_integer(f, whole):
        return False
    real[0] = <double> whole[0]
    return True

cdef inline Text key_sorted(int64_t whole, double real, uint8_t* room) noexcept nogil:
    """Write a number so that octets compare as numbers do; integers that are equal as doubles compare exactly."""
    cdef uint64_t sign = <uint64_t> INT64_MIN, bits
    real += 0.0  # -0.0 becomes 0.0
    memcpy(&bits, &real, sizeof(double))
    bits = ~bits if bits & sign else bits | sign
    frames_write(frames_write(room, bits, 8), <uint64_t> whole ^ sign, 8)
    return Text(room, 16)

cdef inline Text key_of(const Publication* p, Text name, bint sorts, uint8_t* room) noexcept nogil:
    """Return the key in the header of a name; empty: there is none. `room` must hold KEY_ROOM octets."""
    cdef Field f
    cdef int64_t whole
    cdef double real
    cdef int length
    if not tables_get(contents_text(payload_header(p.payload), &p.properties, PROPERTY_HEADERS), name, &f):
        return Text(NULL, 0)
    if not key_number(&f, &whole, &real):
        return f.value
    if sorts:
        return key_sorted(whole, real, room)
    if field_is_real(&f):
        length = snprintf(<char*> room, KEY_ROOM, b"%.15g", real)
    else:
        length = snprintf(<char*> room, KEY_ROOM, b"%lld", <long long> whole)
    return Text(room, <uint32_t> length)
