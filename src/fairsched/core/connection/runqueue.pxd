"""The queue in which connections with work wait for an I/O thread, and I/O threads for a connection.

A queue, first in, first out, with threads that sleep when it is empty. If the host has a poll function (for sockets),
one idle thread leads: it sleeps in that function instead, and is interrupted when work comes and no other thread
sleeps. When all are busy, every POLL_EVERY-th look for work polls first, without waiting: a busy pool stays open to
the threads that were idle. Source: leader/followers, as in Qpid Broker-J's selector.

No item is lost, and none waits while a thread sleeps. All fields are under the mutex, so there is an order of all
pushes and looks. A push that comes before a look is found by it. A push that comes after a thread's look, when it
sleeps, wakes it; when several pushes wake one thread, it takes the first item and comes back for the second. A push
that finds only the leader asleep interrupts it; the host's interrupt ends the poll that runs or, if that has yet to
begin, the next one.

Synchronization: any thread, any method; the mutex is held for a few instructions, and nothing is called inside.
Complexity: O(1). Memory: the link is in the item.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <condition_variable>
    #include <cstdint>
    #include <mutex>
    #include <thread>

    namespace fairsched {

    struct RunLink {
        RunLink* next;
    };

    enum Looked { LOOKED_STOP, LOOKED_ITEM, LOOKED_POLL, LOOKED_POLL_AT_ONCE };

    class RunQueue {
        static constexpr int POLL_EVERY = 16;

        std::mutex mutex;
        std::condition_variable arrived;
        RunLink* first = nullptr;
        RunLink* last = nullptr;
        int sleeping = 0;
        int inside = 0;
        int looks = 0;               // since the last poll
        bool stopping = false;
        bool leading = false;        // a thread is at the poll function
        bool interrupted = false;    // and was told to come back
        std::thread::id leader;

    public:
        void (*poll)(void* context, int wait) = nullptr;  // may be null; fixed before the first thread enters
        void (*interrupt)(void* context) = nullptr;
        void* context = nullptr;

        void push(RunLink* item) {
            bool interrupts = false;
            {
                std::lock_guard<std::mutex> lock(mutex);
                item->next = nullptr;
                (first == nullptr ? first : last->next) = item;
                last = item;
                if (sleeping > 0) {
                    arrived.notify_one();
                } else if (leading && !interrupted && leader != std::this_thread::get_id()) {
                    interrupts = interrupted = true;
                }
            }
            if (interrupts) {
                interrupt(context);
            }
        }

        // Wait for something to do. After a poll, call polled().
        Looked look(RunLink** item) {
            std::unique_lock<std::mutex> lock(mutex);
            for (;;) {
                if (stopping) {
                    return LOOKED_STOP;
                }
                if (poll != nullptr && !leading && (first == nullptr || ++looks >= POLL_EVERY)) {
                    looks = 0;
                    leading = true;
                    leader = std::this_thread::get_id();
                    return first == nullptr ? LOOKED_POLL : LOOKED_POLL_AT_ONCE;
                }
                if (first != nullptr) {
                    *item = first;
                    first = first->next;
                    if (poll != nullptr && !leading && first == nullptr && sleeping > 0) {
                        arrived.notify_one();  // to lead
                    }
                    return LOOKED_ITEM;
                }
                ++sleeping;
                arrived.wait(lock);
                --sleeping;
            }
        }

        void polled() {
            std::lock_guard<std::mutex> lock(mutex);
            leading = interrupted = false;
        }

        // Whether the caller, which could go on with an item, is to push it and look instead.
        bool wanted() {
            std::lock_guard<std::mutex> lock(mutex);
            return first != nullptr || stopping || (poll != nullptr && !leading && ++looks >= POLL_EVERY);
        }

        void enter() {
            std::lock_guard<std::mutex> lock(mutex);
            ++inside;
        }

        void leave() {
            std::lock_guard<std::mutex> lock(mutex);
            --inside;
        }

        // Send the threads away, as soon as each has finished its pass; what waits, waits on.
        void stop() {
            bool interrupts = false;
            {
                std::lock_guard<std::mutex> lock(mutex);
                stopping = true;
                arrived.notify_all();
                if (leading && !interrupted && leader != std::this_thread::get_id()) {
                    interrupts = interrupted = true;
                }
            }
            if (interrupts) {
                interrupt(context);
            }
        }

        // Let threads in again.
        void resume() {
            std::lock_guard<std::mutex> lock(mutex);
            stopping = false;
        }

        int threads() {
            std::lock_guard<std::mutex> lock(mutex);
            return inside;
        }
    };

    }  // namespace fairsched
    """
    cdef cppclass RunLink "fairsched::RunLink":
        RunLink* next

    ctypedef enum Looked "fairsched::Looked":
        LOOKED_STOP "fairsched::LOOKED_STOP"
        LOOKED_ITEM "fairsched::LOOKED_ITEM"
        LOOKED_POLL "fairsched::LOOKED_POLL"
        LOOKED_POLL_AT_ONCE "fairsched::LOOKED_POLL_AT_ONCE"

    cdef cppclass RunQueue "fairsched::RunQueue":
        RunQueue() nogil
        void (*poll)(void* context, bint wait) noexcept nogil
        void (*interrupt)(void* context) noexcept nogil
        void* context
        void push(RunLink* item) noexcept nogil
        Looked look(RunLink** item) noexcept nogil
        void polled() noexcept nogil
        bint wanted() noexcept nogil
        void enter() noexcept nogil
        void leave() noexcept nogil
        void stop() noexcept nogil
        void resume() noexcept nogil
        int threads() noexcept nogil
