"""The policy by which a consumer's settlements are sent, as an object; core/amqp/ackpolicy.pxd has the rules."""

cimport cython
from cpython.time cimport monotonic
from libc.stdint cimport int64_t

from fairsched.core.amqp.ackpolicy cimport (
    ACKS_PERIOD, ACKS_SLOWEST_PERIOD, ackpolicy_count, ackpolicy_init, ackpolicy_looked, ackpolicy_note_here,
    ackpolicy_sending,
)

#: A settlement waits at most this long for others, in seconds.
PERIOD = ACKS_PERIOD
#: While messages are out but nothing is settled, it is looked this seldom.
SLOWEST_PERIOD = ACKS_SLOWEST_PERIOD


@cython.final
cdef class AckPolicy:
    """AckPolicy(window)
    --

    Decides when settlements are sent, by the prefetch windows of the whole connection and by time.

    Parameters
    ----------
    window : int
        Of all queues together.

    Notes
    -----
    For the thread that has the connection. O(1).
    """

    def __init__(self, int64_t window):
        ackpolicy_init(&self.state, window)

    @property
    def period(self):
        """Seconds between two looks whether something is settled and not sent."""
        return self.state.period

    @property
    def resting(self):
        """Whether it is looked more seldom than a settlement may wait."""
        return self.state.period > ACKS_PERIOD

    def arrived(self, int64_t count):
        """arrived($self, count)
        --

        Note deliveries.
        """
        ackpolicy_note_here(&self.state, self.state.here + count)

    def sending(self):
        """sending($self)
        --

        Note that all that was settled is about to be sent.
        """
        ackpolicy_sending(&self.state, monotonic())

    def count(self, int64_t here, int64_t window):
        """count($self, here, window)
        --

        Set what the broker has given out and not heard of, as it was counted, and what it may give out in all.
        """
        ackpolicy_count(&self.state, here, window)

    def looked(self, bint found):
        """looked($self, found)
        --

        Note whether anything was found to send: if not, and none was sent since the last look, look half as often.
        """
        ackpolicy_looked(&self.state, found)

    def wake(self):
        """wake($self)
        --

        Look often again.
        """
        self.state.period = ACKS_PERIOD
