"""The node list and the interest manager for tests and benchmarks: loops without the GIL, and their invariants."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libcpp.atomic cimport atomic

from fairsched.core.atomics cimport thread_yield
from fairsched.core.waiting.interest cimport (
    Interest, interest_clear, interest_done, interest_enter, interest_first, interest_highest_notified, interest_init,
    interest_leave, interest_notify, interest_set,
)
from fairsched.core.waiting.membership cimport interest_add, interest_remove
from fairsched.core.waiting.node cimport ConsumerNode, node_init, node_retire, node_state
from fairsched.core.waiting.nodelist cimport (
    NodeIterator, NodeList, nodeiterator_has_next, nodeiterator_init, nodeiterator_next, nodelist_append,
    nodelist_delete, nodelist_init, nodelist_size, nodelist_tidy,
)
from fairsched.core.waiting.nodelistcheck cimport nodelist_physical, nodelist_valid
from fairsched.core.waiting.reclaim cimport (
    Garbage, NodeEntry, Pin, Reclaim, reclaim_clear, reclaim_enter, reclaim_flush, reclaim_init, reclaim_leave,
    reclaim_take,
)
from fairsched.core.waiting.walk cimport (
    InterestList, InterestWalk, interest_count, interest_physical, interest_size, interest_valid, interestwalk_init,
    interestwalk_next,
)

cdef extern from *:
    """
    #include <chrono>
    #include <mutex>
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static std::mutex unwanted;
    static void mutex_lock() { unwanted.lock(); }
    static void mutex_unlock() { unwanted.unlock(); }
    """
    int64_t now_ns() noexcept nogil
    void mutex_lock() noexcept nogil
    void mutex_unlock() noexcept nogil
    void* aligned_alloc(size_t alignment, size_t size) noexcept nogil

#: Nodes disposed of since the module was loaded.
cdef atomic[int64_t] disposals
#: A word for `exchanges`.
cdef atomic[uint64_t] exchanged

cdef void node_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    disposals.fetch_add(1)
    free(garbage)

cdef inline uint64_t draw(uint64_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    state[0] = state[0] * 6364136223846793005ULL + 1442695040888963407ULL
    return state[0] >> 33


def disposed():
    """How many retired nodes have been disposed of so far, in all managers."""
    return disposals.load()


def mutex_lock_unlock(uint64_t count):
    """Nanoseconds for `count` times locking and unlocking a mutex that no other thread wants."""
    cdef uint64_t _i
    cdef int64_t start
    with nogil:
        start = now_ns()
        for _i in range(count):
            mutex_lock()
            mutex_unlock()
        start = now_ns() - start
    return start


def exchanges(uint64_t count):
    """Nanoseconds for `count` atomic exchanges on one word that no other thread wants."""
    cdef uint64_t i
    cdef int64_t start
    with nogil:
        start = now_ns()
        for i in range(count):
            exchanged.exchange(i)
        start = now_ns() - start
    return start


cdef class ProbeCursor:
    """An iterator of a ProbeList; it stays inside until it is closed."""

    cdef ProbeList owner
    cdef Pin* pin
    cdef NodeIterator nodes

    def has_next(self):
        return nodeiterator_has_next(&self.nodes)

    def __iter__(self):
        return self

    def __next__(self):
        cdef void* node = nodeiterator_next(&self.nodes)
        if node == NULL:
            raise StopIteration
        return <uintptr_t> node

    def close(self):
        if self.pin != NULL:
            reclaim_leave(self.pin)
            self.pin = NULL

    def __dealloc__(self):
        self.close()


cdef class ProbeList:
    """One node list with a domain of its own. Nodes are numbers from 1; handles are the addresses of entries."""

    cdef Reclaim reclaim
    cdef NodeList nodes

    def __cinit__(self, uint32_t threshold=100):
        if not reclaim_init(&self.reclaim):
            raise MemoryError
        nodelist_init(&self.nodes, threshold)

    def __dealloc__(self):
        reclaim_clear(&self.reclaim)

    def append(self, uintptr_t node):
        cdef Pin* pin = reclaim_enter(&self.reclaim)
        cdef NodeEntry* entry = reclaim_take(pin)
        nodelist_append(&self.nodes, pin, entry, <void*> node)
        reclaim_leave(pin)
        return <uintptr_t> entry

    def delete(self, uintptr_t handle, bint tidy=True):
        cdef Pin* pin = reclaim_enter(&self.reclaim)
        cdef bint won = nodelist_delete(&self.nodes, pin, <NodeEntry*> handle)
        if tidy:
            nodelist_tidy(&self.nodes, pin)
        reclaim_leave(pin)
        return won

    def cursor(self):
        cdef ProbeCursor cursor = ProbeCursor()
        cursor.owner = self
        cursor.pin = reclaim_enter(&self.reclaim)
        nodeiterator_init(&cursor.nodes, &self.nodes, cursor.pin)
        return cursor

    def items(self):
        cursor = self.cursor()
        nodes = list(cursor)
        cursor.close()
        return nodes

    def __len__(self):
        cdef Pin* pin = reclaim_enter(&self.reclaim)
        cdef int32_t size = nodelist_size(&self.nodes)
        reclaim_leave(pin)
        return size

    @property
    def physical(self):
        """Entries linked, dead ones included."""
        return nodelist_physical(&self.nodes)

    @property
    def capacity(self):
        """Entries allocated."""
        return self.reclaim.capacity.load()

    @property
    def valid(self):
        cdef Pin* pin = reclaim_enter(&self.reclaim)
        cdef bint valid = nodelist_valid(&self.nodes, pin)
        reclaim_leave(pin)
        return valid

    def cycle(self, uint64_t count, uint64_t alive=1):
        """Nanoseconds for `count` times a delete and an append, the oldest of this thread's `alive` entries first."""
        cdef NodeEntry** mine = <NodeEntry**> malloc((alive + 1) * sizeof(NodeEntry*))
        cdef Pin* pin
        cdef uint64_t i
        cdef int64_t start
        with nogil:
            for i in range(alive):
                pin = reclaim_enter(&self.reclaim)
                mine[i] = reclaim_take(pin)
                nodelist_append(&self.nodes, pin, mine[i], mine)
                reclaim_leave(pin)
            start = now_ns()
            for i in range(count):
                pin = reclaim_enter(&self.reclaim)
                nodelist_delete(&self.nodes, pin, mine[i % alive])
                mine[i % alive] = reclaim_take(pin)
                nodelist_append(&self.nodes, pin, mine[i % alive], mine)
                nodelist_tidy(&self.nodes, pin)
                reclaim_leave(pin)
            start = now_ns() - start
            for i in range(alive):
                pin = reclaim_enter(&self.reclaim)
                nodelist_delete(&self.nodes, pin, mine[i])
                reclaim_leave(pin)
            free(mine)
        return start

    def walk(self, uint64_t rounds):
        """Walk over the list `rounds` times; how many nodes were met."""
        cdef NodeIterator nodes
        cdef Pin* pin
        cdef uint64_t _i, met = 0
        with nogil:
            for _i in range(rounds):
                pin = reclaim_enter(&self.reclaim)
                nodeiterator_init(&nodes, &self.nodes, pin)
                while nodeiterator_next(&nodes) != NULL:
                    met += 1
                reclaim_leave(pin)
        return met


cdef class ProbeInterest:
    """The consumers of one queue. Nodes are numbered as they are made."""

    cdef Interest* manager
    cdef ConsumerNode** nodes
    cdef int64_t made

    def __cinit__(self, uint32_t threshold=100):
        self.manager = <Interest*> malloc(sizeof(Interest))
        if self.manager == NULL or not interest_init(self.manager, threshold):
            raise MemoryError

    def __dealloc__(self):
        cdef int64_t i
        interest_clear(self.manager)
        for i in range(self.made):
            free(self.nodes[i])
        free(self.nodes)
        free(self.manager)

    def make(self, int64_t count=1, int32_t priority=0, bint acquires=True):
        """Make nodes that are not registered yet; the number of the first."""
        cdef int64_t i
        self.nodes = <ConsumerNode**> realloc(self.nodes, (self.made + count) * sizeof(ConsumerNode*))
        for i in range(self.made, self.made + count):
            self.nodes[i] = <ConsumerNode*> aligned_alloc(64, sizeof(ConsumerNode))
            node_init(self.nodes[i], <uint64_t> i, priority, acquires)
        self.made += count
        return self.made - count

    def add(self, int64_t number, bint desired=True):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_add(self.manager, pin, self.nodes[number], desired)
        interest_leave(pin)
        return moved == 1

    def remove(self, int64_t number):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_remove(self.manager, pin, self.nodes[number])
        interest_leave(pin)
        return moved == 1

    def remove_foreign(self, ProbeInterest other, int64_t number):
        """Try to remove the node of another manager."""
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_remove(self.manager, pin, other.nodes[number])
        interest_leave(pin)
        return moved == 1

    def retire(self, int64_t number):
        """Hand over a removed node's memory."""
        cdef Pin* pin = interest_enter(self.manager)
        node_retire(pin, self.nodes[number], node_dispose)
        self.nodes[number] = NULL
        interest_leave(pin)

    def flush(self):
        """Let an epoch pass, if no thread is inside."""
        cdef Pin* pin = interest_enter(self.manager)
        reclaim_flush(pin)
        interest_leave(pin)

    def set(self, int64_t number, bint desired):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_set(self.manager, pin, self.nodes[number], desired)
        interest_leave(pin)
        return moved == 1

    def notify(self, int64_t number):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_notify(self.manager, pin, self.nodes[number])
        interest_leave(pin)
        return moved == 1

    def done(self, int64_t number):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int moved = interest_done(self.manager, pin, self.nodes[number])
        interest_leave(pin)
        return moved == 1

    def first(self):
        """Number of the first interested node, or -1."""
        cdef Pin* pin = interest_enter(self.manager)
        cdef ConsumerNode* node = interest_first(self.manager, pin)
        cdef int64_t number = -1 if node == NULL else <int64_t> node.token
        interest_leave(pin)
        return number

    def notify_first(self):
        """Notify the first interested node; its number, or -1."""
        cdef Pin* pin = interest_enter(self.manager)
        cdef ConsumerNode* node = interest_first(self.manager, pin)
        cdef int64_t number = -1
        if node != NULL and interest_notify(self.manager, pin, node) == 1:
            number = <int64_t> node.token
        interest_leave(pin)
        return number

    def state(self, int64_t number):
        return node_state(self.nodes[number])

    @property
    def highest_notified(self):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int32_t priority = interest_highest_notified(self.manager, pin)
        interest_leave(pin)
        return priority

    def numbers(self, int which):
        """The nodes of a list, in order."""
        cdef Pin* pin = interest_enter(self.manager)
        cdef InterestWalk walk
        cdef ConsumerNode* node
        found = []
        interestwalk_init(&walk, self.manager, pin, <InterestList> which)
        node = interestwalk_next(&walk)
        while node != NULL:
            found.append(node.token)
            node = interestwalk_next(&walk)
        interest_leave(pin)
        return found

    def size(self, int which):
        cdef Pin* pin = interest_enter(self.manager)
        cdef int64_t size = interest_size(self.manager, pin, <InterestList> which)
        interest_leave(pin)
        return size

    def physical(self, int which):
        """Entries linked in a list, dead ones included."""
        return interest_physical(self.manager, <InterestList> which)

    def __len__(self):
        return interest_count(self.manager)

    @property
    def levels(self):
        """How many priorities there are."""
        return self.manager.levels.load().count

    @property
    def capacity(self):
        """Entries allocated."""
        return self.manager.reclaim.capacity.load()

    @property
    def valid(self):
        cdef Pin* pin = interest_enter(self.manager)
        cdef bint valid = interest_valid(self.manager, pin)
        interest_leave(pin)
        return valid

    def cycle(self, uint64_t count):
        """Nanoseconds for `count` times: find the first interested node, notify it, and have it done."""
        cdef Interest* m = self.manager
        cdef ConsumerNode* node
        cdef Pin* pin
        cdef uint64_t _i
        cdef int64_t start
        with nogil:
            start = now_ns()
            for _i in range(count):
                pin = interest_enter(m)
                node = interest_first(m, pin)
                if node != NULL and interest_notify(m, pin, node) == 1:
                    interest_done(m, pin, node)
                interest_leave(pin)
            start = now_ns() - start
        return start

    def hammer(self, uint64_t seed, uint64_t steps, int64_t first, int64_t last):
        """Move the nodes of a range at random, and walk; how many moves took place."""
        cdef Interest* m = self.manager
        cdef InterestWalk walk
        cdef ConsumerNode* node
        cdef Pin* pin
        cdef uint64_t _i, choice, state = seed * 2 + 1, moved = 0
        with nogil:
            for _i in range(steps):
                choice = draw(&state) % 16
                pin = interest_enter(m)
                node = self.nodes[first + <int64_t> (draw(&state) % <uint64_t> (last - first))]
                if choice < 5:
                    node = interest_first(m, pin)
                    if node != NULL:
                        moved += interest_notify(m, pin, node) == 1
                elif choice < 10:
                    moved += interest_done(m, pin, node) == 1
                elif choice < 14:
                    moved += interest_set(m, pin, node, choice & 1) == 1
                elif choice == 14:
                    interest_highest_notified(m, pin)
                else:
                    interestwalk_init(&walk, m, pin, <InterestList> (draw(&state) % 5))
                    node = interestwalk_next(&walk)
                    while node != NULL:
                        state += node.token
                        node = interestwalk_next(&walk)
                interest_leave(pin)
        return moved

    def come_and_go(self, uint64_t seed, uint64_t steps, int32_t priorities):
        """Make, add, remove and retire nodes of random priorities; this thread's own."""
        cdef Interest* m = self.manager
        cdef ConsumerNode* node
        cdef Pin* pin
        cdef uint64_t _i, state = seed * 2 + 1
        with nogil:
            for _i in range(steps):
                node = <ConsumerNode*> malloc(sizeof(ConsumerNode))
                node_init(
                    node, 0, <int32_t> (draw(&state) % <uint64_t> priorities) - priorities // 2, draw(&state) % 4 != 0
                )
                pin = interest_enter(m)
                interest_add(m, pin, node, draw(&state) % 4 != 0)
                interest_leave(pin)
                if draw(&state) % 4 == 0:
                    thread_yield()  # so that others meet it
                pin = interest_enter(m)
                interest_remove(m, pin, node)
                node_retire(pin, node, node_dispose)
                interest_leave(pin)
