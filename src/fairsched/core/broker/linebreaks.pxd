"""Line breaks in names of exchanges and queues.

Source: the answers of RabbitMQ (tests/integration/broker).
Thread safety: pure. Complexity: O(length).
"""

from libc.stdint cimport uint8_t, uint32_t

from fairsched.core.amqp.octets cimport Text

cdef inline void strip_breaks(Text* name, uint8_t* room) noexcept nogil:
    """Remove CR and LF from a name that is declared, bound or deleted, as RabbitMQ does; `room` has 255 octets.

    The name is a short string. Names in purge, get and consume keep their line breaks, as in RabbitMQ.
    """
    cdef uint32_t i, length = 0
    for i in range(name.length):
        room[length] = name.data[i]
        length += name.data[i] != 10 and name.data[i] != 13
    if length < name.length:
        name[0] = Text(room, length)
