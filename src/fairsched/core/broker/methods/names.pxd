"""Names in methods: of what is declared, bound or deleted.

Thread safety: pure. Complexity: O(length).
"""

from libc.stdint cimport uint8_t, uint32_t

from fairsched.core.amqp.octets cimport Text

cdef inline void strip_breaks(Text* name, uint8_t* room) noexcept nogil:
    """Take CR and LF out of a name that is declared, bound or deleted, as RabbitMQ does; `room` has 255 octets.

    Names to purge, get and consume are taken as they are, there as well.
    """
    cdef uint32_t i, length = 0
    for i in range(name.length):
        room[length] = name.data[i]
        length += name.data[i] != 10 and name.data[i] != 13
    if length < name.length:
        name[0] = Text(room, length)
