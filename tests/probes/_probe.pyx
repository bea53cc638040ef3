"""What only C can reach: loops that call the headers without the GIL, and their invariants. Never in a wheel."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.schedule.dwrr cimport dwrr_hold, dwrr_pop, dwrr_push, dwrr_settle
from fairsched.core.schedule.slots cimport NO_SLOT, SlotTable, slots_add, slots_clear, slots_init, slots_valid

cdef extern from *:
    """
    #include <chrono>
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    """
    int64_t now_ns() noexcept nogil


cdef struct Ring:
    uint64_t* tokens
    uint64_t capacity  # a power of two
    uint64_t head
    uint64_t tail

cdef inline bint ring_push(Ring* ring, uint64_t token) noexcept nogil:
    if ring.tail - ring.head == ring.capacity:
        return False
    ring.tokens[ring.tail & (ring.capacity - 1)] = token
    ring.tail += 1
    return True

cdef inline bint ring_pop(Ring* ring, uint64_t* token) noexcept nogil:
    if ring.tail == ring.head:
        return False
    token[0] = ring.tokens[ring.head & (ring.capacity - 1)]
    ring.head += 1
    return True


def ring_push_pop(uint64_t count, uint64_t depth):
    """Nanoseconds for `count` times a pop and a push of that token on one plain bounded ring: the floor.

    The ring is an object in memory, as a scheduler's are: in a local variable the compiler would do away with it.
    """
    cdef Ring* ring = <Ring*> malloc(sizeof(Ring))
    cdef uint64_t i, _i, token = 0
    cdef int64_t start
    ring.capacity = 1024
    ring.head = ring.tail = 0
    ring.tokens = <uint64_t*> malloc(ring.capacity * sizeof(uint64_t))
    for i in range(depth):
        ring_push(ring, i)
    with nogil:
        start = now_ns()
        for _i in range(count):
            ring_pop(ring, &token)
            ring_push(ring, token)
        start = now_ns() - start
        free(ring.tokens)
        free(ring)
    return start


cdef class ProbeTable:
    """A slot table driven by C loops."""

    cdef SlotTable table

    def __cinit__(self, uint32_t slots, int64_t quantum):
        cdef uint32_t _i
        slots_init(&self.table)
        for _i in range(slots):
            slots_add(&self.table, quantum, False)

    def __dealloc__(self):
        slots_clear(&self.table)

    def fill(self, uint32_t depth):
        """Push `depth` tokens to every slot."""
        cdef uint32_t i, j
        for j in range(depth):
            for i in range(self.table.size):
                dwrr_push(&self.table, i, j, 1)

    def push_pop(self, uint64_t count):
        """Nanoseconds for `count` times a pop, and a push to the slot that was served; every slot stays backlogged."""
        cdef uint64_t _i, token = 0
        cdef uint32_t index
        cdef int64_t start
        with nogil:
            start = now_ns()
            for _i in range(count):
                index = dwrr_pop(&self.table, &token)
                dwrr_push(&self.table, index, token, 1)
            start = now_ns() - start
        return start

    def lone_message(self, uint64_t count, uint32_t stride):
        """Nanoseconds for `count` times a push to one of the idle slots, another each time, and a pop."""
        cdef uint64_t i, token
        cdef uint32_t index = 0
        cdef int64_t start
        with nogil:
            start = now_ns()
            for i in range(count):
                dwrr_push(&self.table, index, i, 1)
                dwrr_pop(&self.table, &token)
                index = (index + stride) % self.table.size
            start = now_ns() - start
        return start

    def random_walk(self, uint64_t steps, uint64_t seed):
        """Push, pop, settle and hold at random; True when the table is valid after every step."""
        cdef uint64_t step, token, state = seed * 2 + 1
        cdef uint32_t index
        cdef bint ok = True
        with nogil:
            for step in range(steps):
                state = state * 6364136223846793005ULL + 1442695040888963407ULL
                index = <uint32_t> ((state >> 33) % self.table.size)
                if (state >> 20) % 8 < 3:
                    dwrr_push(&self.table, index, step, 1 + <int64_t> ((state >> 40) % 50))
                elif (state >> 20) % 8 < 6:
                    dwrr_pop(&self.table, &token)
                elif (state >> 20) % 8 == 6:
                    dwrr_settle(&self.table, index, <int64_t> ((state >> 40) % 61) - 20)
                else:
                    dwrr_hold(&self.table, index, (state >> 40) & 1)
                ok = ok and slots_valid(&self.table)
        return ok

    @property
    def valid(self):
        return slots_valid(&self.table)

    @property
    def pool_capacity(self):
        return self.table.pool.capacity

    def drain(self):
        """Pop everything; return how many there were."""
        cdef uint64_t token
        cdef int64_t count = 0
        while dwrr_pop(&self.table, &token) != NO_SLOT:
            count += 1
        return count
