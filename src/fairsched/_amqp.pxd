"""The ledger of a channel, and octets of a buffer, as other modules see them; see _amqp.pyx."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from fairsched.core.amqp.ackledger cimport AckLedger as Ledger


cdef inline bytes part(const uint8_t* start, int64_t begin, int64_t end):
    """A copy of the octets from `begin` to `end`."""
    return PyBytes_FromStringAndSize(<const char*> start + begin, end - begin)


cdef class AckLedger:
    cdef Ledger ledger
