"""Let a thread sleep, without the GIL, until it is woken or a timeout has passed.

A counting semaphore: `unpark(n)` adds n permits, `park` takes one or times out. A wake-up before the thread reaches
park is not lost: the permit stays. The caller decides which thread to wake, and ensures that no permit is left over;
_waitingroom.pyx does so with the lists of interest.pxd.

Synchronization: `permits` is written and read under `mutex` only. The mutex is never held while Python code can run,
so park and unpark may be called with or without the GIL; park without it, because it blocks. Any number of threads.
Complexity: O(1).
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <chrono>
    #include <condition_variable>
    #include <cstdint>
    #include <mutex>

    namespace fairsched {

    class Parking {
        std::mutex mutex;
        std::condition_variable arrived;
        int64_t permits = 0;

    public:
        // Take a permit, waiting at most `ns` nanoseconds (negative: as long as it takes).
        bool park(int64_t ns) {
            std::unique_lock<std::mutex> lock(mutex);
            auto ready = [this] { return permits > 0; };
            if (ns < 0) {
                arrived.wait(lock, ready);
            } else if (!arrived.wait_for(lock, std::chrono::nanoseconds(ns), ready)) {
                return false;
            }
            permits -= 1;
            return true;
        }

        // Notifies after the mutex is let go, so that the woken thread need not wait for it: the caller keeps this
        // object alive until unpark has returned.
        void unpark(int64_t count) {
            {
                std::lock_guard<std::mutex> lock(mutex);
                permits += count;
            }
            if (count == 1) {
                arrived.notify_one();
            } else {
                arrived.notify_all();
            }
        }
    };

    }  // namespace fairsched
    """
    cdef cppclass Parking "fairsched::Parking":
        Parking() nogil
        bint park(int64_t ns) noexcept nogil
        void unpark(int64_t count) noexcept nogil
