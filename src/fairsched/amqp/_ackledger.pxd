"""The ledger of a channel, as other modules see it; see _ackledger.pyx."""

from fairsched.core.amqp.ackledger cimport AckLedger as Ledger


cdef class AckLedger:
    cdef Ledger ledger
