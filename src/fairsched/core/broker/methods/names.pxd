"""Names of exchanges and queues in methods that declare, bind or delete them.

Thread safety: pure. Complexity: O(length).
"""

from libc.stdint cimport uint8_t, uint32_t

from fairsched.core.amqp.octets cimport Text

cdef inline void strip_breaks(Text* name, uint8_t* room) noexcept nogil:
    """Remove CR and LF from a name that is declared, bound or deleted, as RabbitMQ does; `room` has 255 octets.

    Like RabbitMQ, do not use it for the names in purge, get and consume.
    """
    cdef uint32_t i, length = 0
    for i in range(name.length):
        room[length] = name.data[i]
        length += name.data[i] != 10 and name.data[i] != 13
    if length < name.length:
        name[0] = Text(room, length)
