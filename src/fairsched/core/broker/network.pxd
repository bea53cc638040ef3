"""Sockets of the broker, without Python: listen, accept, read, write. None of them blocks.

On Linux one call creates a socket with its options; elsewhere, and with FAIRSCHED_POLL defined, it takes several.

Thread safety: as the system's calls.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <cerrno>
    #include <cstdint>
    #include <cstring>
    #include <ctime>
    #include <fcntl.h>
    #include <netdb.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <sys/socket.h>
    #include <unistd.h>

    namespace fairsched {

    inline int64_t clock_now() {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    }

    inline int64_t clock_wall() { return static_cast<int64_t>(time(nullptr)); }

    #if defined(__linux__) && !defined(FAIRSCHED_POLL)
    inline int socket_make(int family) { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

    inline int socket_take(int listening, sockaddr* address, socklen_t* size) {
        return accept4(listening, address, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
    #else
    // Make a socket non-blocking, and not inherited by child processes; -1: failed, and the socket is closed.
    inline int socket_ready(int fd) {
        if (fd >= 0 && (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)) {
            ::close(fd);
            return -1;
        }
        #ifdef SO_NOSIGPIPE
        int one = 1;
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
        #endif
        return fd;
    }

    inline int socket_make(int family) { return socket_ready(socket(family, SOCK_STREAM, 0)); }

    inline int socket_take(int listening, sockaddr* address, socklen_t* size) {
        return socket_ready(accept(listening, address, size));
    }
    #endif

    #ifdef MSG_NOSIGNAL
    constexpr int SEND_FLAGS = MSG_NOSIGNAL;
    #else
    constexpr int SEND_FLAGS = 0;  // SO_NOSIGPIPE has been set
    #endif

    // Return a socket that listens on a numeric address; -1: failed, with errno.
    inline int socket_listen(const char* host, uint16_t port, int backlog) {
        addrinfo hints{};
        addrinfo* found = nullptr;
        hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
        hints.ai_socktype = SOCK_STREAM;
        if (getaddrinfo(host, nullptr, &hints, &found) != 0) {
            errno = EADDRNOTAVAIL;
            return -1;
        }
        int fd = socket_make(found->ai_family);
        int one = 1;
        if (fd >= 0) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
            if (found->ai_family == AF_INET6) {
                reinterpret_cast<sockaddr_in6*>(found->ai_addr)->sin6_port = htons(port);
            } else {
                reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_port = htons(port);
            }
            if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, backlog) != 0) {
                int error = errno;
                close(fd);
                fd = -1;
                errno = error;
            }
        }
        freeaddrinfo(found);
        return fd;
    }

    inline int socket_port(int fd) {
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
        return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    }

    // Return a descriptor in reserve for socket_turn_away; -1: there is none.
    inline int socket_spare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

    // Close the next connection at once if the process has no free descriptors; otherwise its socket would be reported
    // again and again. False: accepting failed for another reason.
    inline bool socket_turn_away(int listening, int* spare) {
        if ((errno != EMFILE && errno != ENFILE) || *spare < 0) return false;
        ::close(*spare);
        int fd = accept(listening, nullptr, nullptr);
        if (fd >= 0) ::close(fd);
        *spare = socket_spare();
        return fd >= 0;
    }

    // Accept the next connection; -1: none waits, or failed with errno. `local`: it comes from this machine.
    inline int socket_accept(int listening, int* local, char* peer, int room) {
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        int fd;
        do {
            fd = socket_take(listening, reinterpret_cast<sockaddr*>(&address), &size);
        } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
        if (fd < 0) return -1;
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        char host[INET6_ADDRSTRLEN] = "?";
        int port = 0;
        *local = 0;
        if (address.ss_family == AF_INET) {
            auto* in = reinterpret_cast<sockaddr_in*>(&address);
            *local = (ntohl(in->sin_addr.s_addr) >> 24) == 127;
            inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
            port = ntohs(in->sin_port);
        } else if (address.ss_family == AF_INET6) {
            auto* in = reinterpret_cast<sockaddr_in6*>(&address);
            const uint8_t* b = in->sin6_addr.s6_addr;
            *local = IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) || (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr) && b[12] == 127);
            inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
            port = ntohs(in->sin6_port);
        }
        snprintf(peer, room, "%s:%d", host, port);
        return fd;
    }

    // Return the number of octets read; 0: no data yet; -1: the connection has ended.
    inline int64_t socket_read(int fd, void* to, int64_t room) {
        ssize_t got;
        do {
            got = recv(fd, to, room, 0);
        } while (got < 0 && errno == EINTR);
        if (got > 0) return got;
        return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
    }

    // Return the number of octets written; 0: the socket is full; -1: the connection has ended.
    inline int64_t socket_write(int fd, const void* from, int64_t size) {
        ssize_t sent;
        do {
            sent = send(fd, from, size, SEND_FLAGS);
        } while (sent < 0 && errno == EINTR);
        if (sent >= 0) return sent;
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    }

    inline void socket_close(int fd) { close(fd); }

    }  // namespace fairsched
    """
    int64_t clock_now "fairsched::clock_now"() noexcept nogil    # nanoseconds, monotonic
    int64_t clock_wall "fairsched::clock_wall"() noexcept nogil  # seconds since 1970

    int socket_listen "fairsched::socket_listen"(const char* host, uint16_t port, int backlog) noexcept nogil
    int socket_port "fairsched::socket_port"(int fd) noexcept nogil
    int socket_accept "fairsched::socket_accept"(int listening, bint* local, char* peer, int room) noexcept nogil
    int socket_spare "fairsched::socket_spare"() noexcept nogil
    bint socket_turn_away "fairsched::socket_turn_away"(int listening, int* spare) noexcept nogil
    int64_t socket_read "fairsched::socket_read"(int fd, void* to, int64_t room) noexcept nogil
    int64_t socket_write "fairsched::socket_write"(int fd, const void* data, int64_t size) noexcept nogil
    void socket_close "fairsched::socket_close"(int fd) noexcept nogil
