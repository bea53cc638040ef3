"""Properties of a content as py-amqp has them, for modules that read and write frames; see _amqpfields.pyx."""

from libc.stdint cimport uint8_t, int64_t

from fairsched.core.amqp.octets cimport Bytes


cdef dict properties_read(const uint8_t* header, int64_t size)
cdef bint properties_write(Bytes* out, dict values) except -1
