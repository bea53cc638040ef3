"""Wait for sockets, without Python.

A connection's socket is reported once when it becomes readable or writable, or ends (edge triggered). The thread that
gets the event must read until there is no data, and write until the socket takes no more, with `poller_read` and
`poller_write`. A listening socket is reported as long as a connection waits to be accepted.
  Linux uses epoll. Other systems use poll(2), which is level triggered: an event that was reported is not polled again
until a read or a write has found no more data or room, and has called `want`. Waiting is then O(sockets). Define
FAIRSCHED_POLL to test that on Linux.

Thread safety: `wait` and `event` by one thread at a time; others by any thread, for one socket by its connection's.
Complexity: O(1), except as stated above.
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.broker.network cimport socket_close, socket_read, socket_write

cdef extern from *:
    """
    #include <cstdint>
    #include <fcntl.h>
    #include <unistd.h>

    #if defined(__linux__) && !defined(FAIRSCHED_POLL)
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #else
    #include <mutex>
    #include <poll.h>
    #include <vector>
    #endif

    namespace fairsched {

    enum : uint32_t { EVENT_READ = 1, EVENT_WRITE = 2, EVENT_END = 4 };

    #if defined(__linux__) && !defined(FAIRSCHED_POLL)

    struct Poller {
        static constexpr int BATCH = 256;
        int epoll = -1;
        int bell = -1;
        epoll_event events[BATCH];

        bool open() {
            epoll = epoll_create1(EPOLL_CLOEXEC);
            bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
            epoll_event event{};
            event.events = EPOLLIN;
            event.data.ptr = this;
            return epoll >= 0 && bell >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &event) == 0;
        }

        void close() {
            if (epoll >= 0) ::close(epoll);
            if (bell >= 0) ::close(bell);
            epoll = bell = -1;
        }

        // A listening socket is level triggered, a connection edge triggered.
        bool add(int fd, void* context, bool listening) {
            epoll_event event{};
            event.events = listening ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
            event.data.ptr = context;
            return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
        }

        void forget(int) {}           // closing a socket removes it

        void want(int, uint32_t) {}   // changes are reported anyway

        void ring() {
            uint64_t one = 1;
            ssize_t written = ::write(bell, &one, sizeof one);
            (void) written;
        }

        int wait(int milliseconds) {
            int count = epoll_wait(epoll, events, BATCH, milliseconds);
            return count < 0 ? 0 : count;
        }

        // Return the context of an event, and write its kinds; null: the bell.
        void* event(int index, uint32_t* what) {
            const epoll_event& e = events[index];
            if (e.data.ptr == this) {
                uint64_t rung;
                ssize_t got = ::read(bell, &rung, sizeof rung);
                (void) got;
                return nullptr;
            }
            *what = (e.events & EPOLLIN ? EVENT_READ : 0) | (e.events & EPOLLOUT ? EVENT_WRITE : 0)
                | (e.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) ? EVENT_END : 0);
            return e.data.ptr;
        }
    };

    #else

    class Poller {
        struct Watch {
            void* context;   // null: the descriptor is unused
            uint32_t turn;   // counts the sockets that have had the descriptor
            short wanted;
            bool listening;
        };

        struct Found {
            void* context;
            uint32_t what;
        };

        std::mutex mutex;
        std::vector<Watch> watches;    // by descriptor; like `waiting`, with the mutex
        bool waiting = false;
        std::vector<pollfd> polled;    // like the next two, of the waiting thread
        std::vector<uint32_t> turns;
        std::vector<Found> found;
        int bell[2] = {-1, -1};

        void gather() {
            std::lock_guard<std::mutex> lock(mutex);
            polled.assign(1, {bell[0], POLLIN, 0});
            turns.assign(1, 0);
            for (size_t fd = 0; fd < watches.size(); fd++) {
                const Watch& watch = watches[fd];
                if (watch.context != nullptr && watch.wanted != 0) {
                    polled.push_back({static_cast<int>(fd), watch.wanted, 0});
                    turns.push_back(watch.turn);
                }
            }
            waiting = true;
        }

        void report(const pollfd& p, uint32_t turn) {
            Watch& watch = watches[p.fd];
            // Another thread may have closed the socket, and the system may have reused its descriptor.
            if (p.revents == 0 || watch.context == nullptr || watch.turn != turn) return;
            bool ends = (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
            if (!watch.listening) watch.wanted = ends ? 0 : watch.wanted & ~p.revents;
            found.push_back({watch.context, (p.revents & POLLIN ? EVENT_READ : 0)
                | (p.revents & POLLOUT ? EVENT_WRITE : 0) | (ends ? EVENT_END : 0)});
        }

    public:
        bool open() {
            if (pipe(bell) != 0) return false;
            for (int fd : bell) {
                if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return false;
            }
            return true;
        }

        void close() {
            for (int& fd : bell) {
                if (fd >= 0) ::close(fd);
                fd = -1;
            }
        }

        bool add(int fd, void* context, bool listening) {
            std::lock_guard<std::mutex> lock(mutex);
            if (watches.size() <= static_cast<size_t>(fd)) watches.resize(fd + 1);
            Watch& watch = watches[fd];
            watch.context = context;
            watch.turn += 1;
            watch.wanted = listening ? POLLIN : POLLIN | POLLOUT;
            watch.listening = listening;
            return true;  // the waiting thread adds it
        }

        void forget(int fd) {
            std::lock_guard<std::mutex> lock(mutex);
            watches[fd].context = nullptr;
        }

        void want(int fd, uint32_t what) {
            bool wakes;
            {
                std::lock_guard<std::mutex> lock(mutex);
                watches[fd].wanted |= (what & EVENT_READ ? POLLIN : 0) | (what & EVENT_WRITE ? POLLOUT : 0);
                wakes = waiting;
                waiting = false;  // one ring is enough
            }
            if (wakes) ring();
        }

        void ring() {
            ssize_t written = ::write(bell[1], "", 1);
            (void) written;
        }

        int wait(int milliseconds) {
            char rung[64];
            gather();
            int count = poll(polled.data(), polled.size(), milliseconds);
            std::lock_guard<std::mutex> lock(mutex);
            waiting = false;
            found.clear();
            if (count <= 0) return 0;
            while (polled[0].revents != 0 && ::read(bell[0], rung, sizeof rung) > 0) {}
            for (size_t i = 1; i < polled.size(); i++) report(polled[i], turns[i]);
            return static_cast<int>(found.size());
        }

        void* event(int index, uint32_t* what) {
            *what = found[index].what;
            return found[index].context;
        }
    };

    #endif

    }  // namespace fairsched
    """
    enum:
        EVENT_READ "fairsched::EVENT_READ"
        EVENT_WRITE "fairsched::EVENT_WRITE"
        EVENT_END "fairsched::EVENT_END"

    cdef cppclass Poller "fairsched::Poller":
        Poller() nogil
        bint open() noexcept nogil
        void close() noexcept nogil
        bint add(int fd, void* context, bint listening) noexcept nogil
        void forget(int fd) noexcept nogil
        void want(int fd, uint32_t what) noexcept nogil
        void ring() noexcept nogil
        int wait(int milliseconds) noexcept nogil
        void* event(int index, uint32_t* what) noexcept nogil

cdef inline int64_t poller_read(Poller* p, int fd, void* to, int64_t room) noexcept nogil:
    """Read as socket_read does. After a read that finds no data, the next data is reported."""
    cdef int64_t got = socket_read(fd, to, room)
    if 0 <= got < room:
        p.want(fd, EVENT_READ)
    return got

cdef inline int64_t poller_write(Poller* p, int fd, const void* data, int64_t size) noexcept nogil:
    """Write as socket_write does. After an incomplete write, the socket is reported when it takes more."""
    cdef int64_t sent = socket_write(fd, data, size)
    if 0 <= sent < size:
        p.want(fd, EVENT_WRITE)
    return sent

cdef inline void poller_close(Poller* p, int fd) noexcept nogil:
    """Close a socket that was added."""
    p.forget(fd)
    socket_close(fd)
