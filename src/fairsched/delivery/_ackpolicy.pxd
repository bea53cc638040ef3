"""The policy by which settlements are sent, as other modules see it; see _ackpolicy.pyx."""

from fairsched.core.amqp.ackpolicy cimport AckPolicyState


cdef class AckPolicy:
    cdef AckPolicyState state
