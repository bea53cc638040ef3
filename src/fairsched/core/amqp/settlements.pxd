"""The frames that settle deliveries: basic.ack, basic.nack and basic.reject, which have the same length.

Source: AMQP 0-9-1, sections 4.2.3 (frames), 1.8.3.13 (basic.ack) and 1.8.3.14 (basic.reject); RabbitMQ's extension
basic.nack.
Thread safety: pure functions. Complexity: O(1) per frame.
"""


from libc.stdint cimport int64_t, uint8_t, uint64_t

from fairsched.core.amqp.ackledger cimport VERDICT_ACK, VERDICT_FAIL, VERDICT_REQUEUE, Frame
from fairsched.core.amqp.constants cimport BASIC_ACK, BASIC_NACK, BASIC_REJECT, FRAME_END, FRAME_HEAD, FRAME_METHOD
from fairsched.core.amqp.frames cimport frames_write

cdef enum:
    SETTLEMENT_PAYLOAD = 13                                # class, method, delivery tag, flags
    SETTLEMENT_SIZE = FRAME_HEAD + SETTLEMENT_PAYLOAD + 1

cdef inline uint64_t settlements_method(int64_t verdict) noexcept nogil:
    """Return the class and method of a settlement.

    A failure is rejected: a quorum queue of RabbitMQ 4.3 counts basic.reject, and delays it, but not basic.nack.
    """
    if verdict == VERDICT_ACK:
        return BASIC_ACK
    return BASIC_REJECT if verdict == VERDICT_FAIL else BASIC_NACK

cdef inline void settlements_write(uint8_t* out, unsigned int channel, const Frame* frame) noexcept nogil:
    """Write one frame of SETTLEMENT_SIZE octets."""
    out[0] = FRAME_METHOD
    out = frames_write(out + 1, channel, 2)
    out = frames_write(out, SETTLEMENT_PAYLOAD, 4)
    out = frames_write(out, settlements_method(frame.verdict), 4)
    out = frames_write(out, frame.tag, 8)
    if frame.verdict == VERDICT_FAIL:
        out[0] = 1  # requeue: this method settles one delivery
    else:
        out[0] = <uint8_t> (frame.multiple | (2 if frame.verdict == VERDICT_REQUEUE else 0))
    out[1] = FRAME_END

cdef inline uint64_t settlements_covered(const Frame* frames, uint64_t size) noexcept nogil:
    """Return the newest tag that an acknowledgement of several covers; 0: there is none."""
    cdef uint64_t i, covered = 0
    for i in range(size):
        if frames[i].multiple:
            covered = max(covered, frames[i].tag)
    return covered

cdef inline void settlements_encode(
    uint8_t* out, unsigned int channel, const Frame* frames, uint64_t size
) noexcept nogil:
    """Write frames, `size` of them, into size * SETTLEMENT_SIZE octets: refusals after acknowledgements.

    It stays before an acknowledgement that would otherwise cover it. The broker's part for a quorum queue puts aside
    what comes after a few dozen settlements at once, and forgets it if the channel is closed right then: what was given
    back returns to its queue even so; what was handled must not.
    """
    cdef uint64_t covered = settlements_covered(frames, size), i
    cdef bint later, late
    for later in range(2):
        for i in range(size):
            late = frames[i].verdict != VERDICT_ACK and frames[i].tag > covered
            if late == later:
                settlements_write(out, channel, &frames[i])
                out += SETTLEMENT_SIZE
