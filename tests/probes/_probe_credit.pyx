"""Credit for tests and benchmarks."""

from libc.stdint cimport int64_t, uint64_t

from fairsched.core.queue.credit cimport (
    CREDIT_REFUSED, CREDIT_REGAINED, CREDIT_SPENT, CreditManager, credit_has, credit_init, credit_restore,
    credit_set_limits, credit_use,
)


cdef class ProbeCredit:
    """One credit manager."""

    cdef CreditManager credit

    def __cinit__(self, int64_t messages=0, int64_t bytes=0):
        credit_init(&self.credit, messages, bytes)

    def has(self):
        return credit_has(&self.credit)

    def use(self, int64_t size):
        return credit_use(&self.credit, size)

    def restore(self, int64_t messages, int64_t bytes):
        return credit_restore(&self.credit, messages, bytes)

    def set_limits(self, int64_t messages, int64_t bytes):
        return credit_set_limits(&self.credit, messages, bytes)

    @property
    def left(self):
        """Credit in messages and bytes."""
        return self.credit.messages, self.credit.bytes

    def hammer(self, uint64_t rounds, int64_t size):
        """Use and restore in turn, `rounds` times; uses that were granted, refused uses, and edges of both kinds."""
        cdef uint64_t _i, used = 0, refused = 0, spent = 0, regained = 0
        cdef int outcome
        with nogil:
            for _i in range(rounds):
                outcome = credit_use(&self.credit, size)
                if outcome == CREDIT_REFUSED:
                    refused += 1
                    continue
                used += 1
                spent += outcome == CREDIT_SPENT
                regained += credit_restore(&self.credit, 1, size) == CREDIT_REGAINED
        return used, refused, spent, regained
