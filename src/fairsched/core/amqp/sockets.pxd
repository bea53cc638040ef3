"""Non-blocking use of the I/O thread's socket by a consuming thread; see _delivery.pyx.

Linux only: on other systems every function fails, and the I/O thread does all the work. Only `sockets_wait` blocks, so
the other functions may be called with the GIL.

Thread safety: that of the system calls. Complexity: one system call.
"""

from libc.stdint cimport int64_t, uint32_t

cdef enum:
    RECEIVED_NOTHING = -1  # no data has arrived
    RECEIVED_ERROR = -2

cdef extern from *:
    """
    #include <cerrno>
    #include <cstddef>
    #include <cstdint>
    #ifdef __linux__
    #include <ctime>
    #include <poll.h>
    #include <sys/epoll.h>
    #include <sys/socket.h>
    #endif

    namespace fairsched {

    #ifdef __linux__
    constexpr bool lends = true;

    // Octets received: 0 at the end; RECEIVED_NOTHING or RECEIVED_ERROR.
    static inline int64_t receive(int fd, void* to, int64_t size) {
        ssize_t const found = recv(fd, to, size, MSG_DONTWAIT);
        return found >= 0 ? found : errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? -1 : -2;
    }

    // Octets taken: 0 if none are, for whatever reason.
    static inline int64_t transmit(int fd, void const* from, int64_t size) {
        ssize_t const taken = send(fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        return taken < 0 ? 0 : taken;
    }

    // Waits until something can be received, and says whether it is; a signal ends it sooner.
    static inline bool wait(int fd, int64_t microseconds) {
        struct pollfd readable = {fd, POLLIN, 0};
        struct timespec const time = {time_t(microseconds / 1000000), long(microseconds % 1000000) * 1000};
        return microseconds > 0 && ppoll(&readable, 1, &time, nullptr) > 0;
    }

    // Sets for which events of a socket an epoll returns; 0, or the error.
    static inline int watch(int epoll, int fd, uint32_t events) {
        struct epoll_event wanted = {};
        wanted.events = events;
        wanted.data.fd = fd;
        return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &wanted) == 0 ? 0 : errno;
    }
    #else
    constexpr bool lends = false;
    static inline int64_t receive(int, void*, int64_t) { return -2; }
    static inline int64_t transmit(int, void const*, int64_t) { return 0; }
    static inline bool wait(int, int64_t) { return false; }
    static inline int watch(int, int, uint32_t) { return ENOTSUP; }
    #endif

    }  // namespace fairsched
    """
    const bint SOCKETS_LEND "fairsched::lends"
    int64_t sockets_receive "fairsched::receive"(int fd, void* to, int64_t size) noexcept nogil
    int64_t sockets_send "fairsched::transmit"(int fd, const void* start, int64_t size) noexcept nogil
    bint sockets_wait "fairsched::wait"(int fd, int64_t microseconds) noexcept nogil
    int sockets_watch "fairsched::watch"(int epoll, int fd, uint32_t events) noexcept nogil
