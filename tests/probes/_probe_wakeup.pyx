"""The policy of wake-ups for tests and benchmarks: consumers with tastes, and threads that add work and take it."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libcpp.atomic cimport atomic

from fairsched.core.waiting.interest cimport (
    MOVED, Interest, interest_clear, interest_done, interest_enter, interest_init, interest_leave, interest_notify,
    interest_set,
)
from fairsched.core.waiting.membership cimport interest_add
from fairsched.core.waiting.node cimport ConsumerNode, NOTIFIED, node_init, node_state
from fairsched.core.waiting.reclaim cimport Pin
from fairsched.core.waiting.wakeup cimport Wants, wakeup_notify, wakeup_one, wakeup_outranked, wakeup_possible
from fairsched.core.waiting.walk cimport interest_valid

cdef extern from *:
    """
    #include <chrono>
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    """
    int64_t now_ns() noexcept nogil
    void* aligned_alloc(size_t alignment, size_t size) noexcept nogil

cdef bint tasteful(void* context, ConsumerNode* node) noexcept nogil:
    """True when the node's taste, a set of kinds as bits, has the kind of the work."""
    return <bint> (node.token >> 32 & <uint64_t> 1 << (<uint64_t*> context)[0])

cdef inline uint64_t draw(uint64_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    state[0] = state[0] * 6364136223846793005ULL + 1442695040888963407ULL
    return state[0] >> 33


cdef class ProbeWakeup:
    """The consumers of one queue, numbered as they are made, and a number for the work that there is.

    `kind` is None where all want the work; else those want it whose taste has that bit.
    """

    cdef Interest manager
    cdef ConsumerNode** nodes
    cdef int64_t made
    cdef atomic[int64_t] work
    cdef atomic[int64_t] taken
    cdef uint64_t kind

    def __cinit__(self):
        if not interest_init(&self.manager, 100):
            raise MemoryError

    def __dealloc__(self):
        cdef int64_t i
        interest_clear(&self.manager)
        for i in range(self.made):
            free(self.nodes[i])
        free(self.nodes)

    cdef Wants taste_for(self, object kind):
        if kind is None:
            return NULL
        self.kind = kind
        return tasteful

    def add(self, int32_t priority=0, bint desired=True, bint acquires=True, uint64_t taste=0):
        """Make a consumer and register it; its number."""
        cdef ConsumerNode* node = <ConsumerNode*> aligned_alloc(64, sizeof(ConsumerNode))
        cdef Pin* pin
        self.nodes = <ConsumerNode**> realloc(self.nodes, (self.made + 1) * sizeof(ConsumerNode*))
        self.nodes[self.made] = node
        node_init(node, taste << 32 | <uint64_t> self.made, priority, acquires)
        pin = interest_enter(&self.manager)
        interest_add(&self.manager, pin, node, desired)
        interest_leave(pin)
        self.made += 1
        return self.made - 1

    def set(self, int64_t number, bint desired):
        cdef Pin* pin = interest_enter(&self.manager)
        cdef int moved = interest_set(&self.manager, pin, self.nodes[number], desired)
        interest_leave(pin)
        return moved == MOVED

    def done(self, int64_t number):
        cdef Pin* pin = interest_enter(&self.manager)
        cdef int moved = interest_done(&self.manager, pin, self.nodes[number])
        interest_leave(pin)
        return moved == MOVED

    def state(self, int64_t number):
        return node_state(self.nodes[number])

    def one(self, kind=None):
        """Claim the waiter that is to be woken; its number, or -1."""
        cdef Wants wants = self.taste_for(kind)
        cdef Pin* pin = interest_enter(&self.manager)
        cdef ConsumerNode* node = wakeup_one(&self.manager, pin, wants, &self.kind)
        cdef int64_t number = -1 if node == NULL else <int64_t> (node.token & 0xFFFFFFFF)
        interest_leave(pin)
        return number

    def notify(self, int64_t number, kind=None):
        """Claim that consumer: MOVED, NOT_MOVED or OUTRANKED."""
        cdef Wants wants = self.taste_for(kind)
        cdef Pin* pin = interest_enter(&self.manager)
        cdef int moved = wakeup_notify(&self.manager, pin, self.nodes[number], wants, &self.kind)
        interest_leave(pin)
        return moved

    def outranked(self, int32_t priority, kind=None):
        cdef Wants wants = self.taste_for(kind)
        cdef Pin* pin = interest_enter(&self.manager)
        cdef bint outranked = wakeup_outranked(&self.manager, pin, priority, wants, &self.kind)
        interest_leave(pin)
        return outranked

    @property
    def possible(self):
        return wakeup_possible(&self.manager)

    @property
    def valid(self):
        cdef Pin* pin = interest_enter(&self.manager)
        cdef bint valid = interest_valid(&self.manager, pin)
        interest_leave(pin)
        return valid

    # -- loops without the GIL ----------------------------------------------------------------------------------------

    def cycle(self, uint64_t count, kind=None):
        """Nanoseconds for `count` times: claim the waiter that is to be woken, and have it done."""
        cdef Wants wants = self.taste_for(kind)
        cdef ConsumerNode* node
        cdef Pin* pin
        cdef uint64_t _i
        cdef int64_t start
        with nogil:
            start = now_ns()
            for _i in range(count):
                pin = interest_enter(&self.manager)
                node = wakeup_one(&self.manager, pin, wants, &self.kind)
                if node != NULL:
                    interest_done(&self.manager, pin, node)
                interest_leave(pin)
            start = now_ns() - start
        return start

    def look(self, uint64_t count):
        """Nanoseconds for `count` looks whether any waiter is interested; how often it seemed so."""
        cdef uint64_t _i, seen = 0
        cdef int64_t start
        with nogil:
            start = now_ns()
            for _i in range(count):
                seen += wakeup_possible(&self.manager)
            start = now_ns() - start
        return start, seen

    cdef bint take(self) noexcept nogil:
        """Acquire one piece of work."""
        cdef int64_t left = self.work.load()
        while left > 0:
            if self.work.compare_exchange_weak(left, left - 1):
                self.taken.fetch_add(1)
                return True
        return False

    cdef bint pull(self, Pin* pin, ConsumerNode* node) noexcept nogil:
        """What a notified consumer does: interested again first, then the look; and hand over what it may not have."""
        interest_done(&self.manager, pin, node)
        if not wakeup_outranked(&self.manager, pin, node.priority, NULL, NULL) and self.take():
            interest_notify(&self.manager, pin, node)
            return True
        if self.work.load() > 0:
            wakeup_one(&self.manager, pin, NULL, NULL)
        return False

    cdef void flip(self, Pin* pin, ConsumerNode* node, bint desired) noexcept nogil:
        """What a consumer does whose readiness changes."""
        if interest_set(&self.manager, pin, node, desired) != MOVED or self.work.load() <= 0:
            return
        if desired:
            wakeup_notify(&self.manager, pin, node, NULL, NULL)
        else:
            wakeup_one(&self.manager, pin, NULL, NULL)

    def hammer(self, uint64_t seed, uint64_t steps, int64_t first, int64_t last):
        """Add work at random, and be the consumers of a range: pull when notified, flip; how much was added."""
        cdef uint64_t _i, choice, state = seed * 2 + 1, added = 0
        cdef ConsumerNode* node
        cdef Pin* pin
        with nogil:
            for _i in range(steps):
                choice = draw(&state) % 16
                pin = interest_enter(&self.manager)
                node = self.nodes[first + <int64_t> (draw(&state) % <uint64_t> (last - first))]
                if choice < 5:
                    self.work.fetch_add(1)
                    added += 1
                    wakeup_one(&self.manager, pin, NULL, NULL)
                elif choice < 13:
                    if node_state(node) == NOTIFIED:
                        self.pull(pin, node)
                else:
                    self.flip(pin, node, choice & 1)
                interest_leave(pin)
        return added

    def finish(self):
        """Let the notified consumers pull until there is none; how much work was taken, and how much is left."""
        cdef bint busy = True
        cdef int64_t i
        cdef Pin* pin
        while busy:
            busy = False
            for i in range(self.made):
                pin = interest_enter(&self.manager)
                while node_state(self.nodes[i]) == NOTIFIED:
                    busy = True
                    self.pull(pin, self.nodes[i])
                interest_leave(pin)
        return self.taken.load(), self.work.load()
