"""Generated names, for queues and consumers that a client did not name.

Source: RabbitMQ's rabbit_guid: a prefix, and 16 random octets in base 64 of RFC 4648, section 5, without padding.
Thread safety: any. Complexity: O(1).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, strlen

from fairsched.core.amqp.octets cimport Text

cdef extern from *:
    """
    #include <random>

    static inline uint32_t fairsched_random() {
        static thread_local std::random_device device;
        return device();
    }
    """
    uint32_t system_random "fairsched_random"() noexcept nogil

cdef inline Text name_generate(const char* prefix, uint8_t* room) noexcept nogil:
    """Return a unique name; `room` must hold the prefix and 22 octets."""
    cdef const char* letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    cdef uint32_t size = <uint32_t> strlen(prefix), _i
    cdef uint64_t bits = 0
    cdef int left = 0
    memcpy(room, prefix, size)
    for _i in range(22):
        if left < 6:
            bits = bits << 32 | system_random()
            left += 32
        left -= 6
        room[size] = <uint8_t> letters[bits >> left & 63]
        size += 1
    return Text(room, size)
