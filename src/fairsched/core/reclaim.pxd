"""When an unlinked entry may be used again: after every reader that could hold it has left. Epochs, with pins.

The seed's lists leave this to a garbage collector. Here a thread enters before it touches a shared entry (reclaim_enter
gives it a Pin) and leaves afterwards. What was unlinked is retired, in a bag stamped with the epoch, and becomes free
memory two epochs later. Source of the scheme: K. Fraser, Practical lock-freedom (2004), section 5.2.3.

Why nothing is used again too early. All steps below are seq_cst, so there is one order of them.
  E1  a pin stores the epoch it read into its slot before it reads any shared pointer.
  E2  the epoch goes from e to e+1 only after every slot was seen free or holding e.
  So, once a reader's pin stands, at most one more step of the epoch succeeds (one whose look at that slot came before
  the pin): it finds v, and while it is inside the epoch is v or v+1.
  An entry it can reach was unlinked after its pin stood, and is stamped r >= v after that. It is freed by the step to
  r+2 >= v+2, which cannot happen while the reader is inside.
  E3  three bags are enough: who steps from e to e+1 is pinned at e, so the epoch stays at e+1 while it empties the bag
  of e-1, which is also that of e+2; and who retires under stamp s is pinned at s-1 or s, so nobody puts anything into
  the bag of e-1 any more.
No ABA: an address comes back only through a bag, so it cannot come back while a thread that knew it is inside. This
also makes the pool of free batches sound: reclaim_take pops while pinned, and batches enter it from a bag or new.

  synchronization     enter/leave  take  retire  advance   X: needs external exclusion
  enter, leave             -        -      -        -      a Pin is used by the thread that entered, and no other
  take, untake             -        -      -        -      on the caller's own pin
  retire, discard          -        -      -        -      by the one thread whose compare-and-swap unlinked it
  init, clear              X        X      X        X

Progress: leave, take and retire never wait (take may allocate). Enter waits only while PIN_SLOTS threads are inside.
A thread that stays inside stops the epoch: nothing breaks, but what is retired meanwhile is not used again.
Memory: entries in lists + 3 bags + 2 * BATCH - 1 for each slot ever used; in bags is what was retired during the last
two epochs, at most BATCH * PIN_SLOTS an epoch unless somebody stays inside. Chunks go back to the system at clear.
Complexity: O(1); one call in BATCH looks at all slots.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic, memory_order_relaxed, memory_order_release

from fairsched.core.atomics cimport CACHE_LINE, spin_wait, stack_page

cdef enum:
    PIN_SLOTS = 32
    BATCH = 64
    CHUNK_ENTRIES_MAX = 8192

cdef struct NodeEntry:  # half a cache line
    atomic[uintptr_t] next    # address of the successor, and DELETED in the lowest bit: written by list operations
    atomic[uintptr_t] node    # the consumer node while alive, 0 when dead; in the pool, the next batch
    atomic[uint64_t] order    # position in the list since its beginning; written before the entry is linked
    NodeEntry* link           # next in a bag or batch: of the one thread that owns that

cdef struct Garbage:
    # The head of any other object that readers may hold: a consumer node, a level, a table of levels.
    Garbage* link
    void (*dispose)(Garbage* garbage, Pin* pin) noexcept nogil

cdef struct Pin:  # a cache line: a thread's stay inside, and what it has to itself meanwhile
    atomic[uint64_t] epoch    # 0: free. Claimed by compare-and-swap, read by whoever wants to step the epoch
    Reclaim* reclaim
    NodeEntry* cache          # free entries
    NodeEntry* retired        # unlinked, not yet in a bag
    NodeEntry* retired_last
    uint32_t retired_count
    uint32_t index            # fixed: for counters that every pin has its own of
    char padding[CACHE_LINE - 48]

cdef struct Reclaim:
    atomic[uint64_t] epoch            # from 1; stepped by compare-and-swap, read by all
    char padding[CACHE_LINE - 8]      # the bags' writers do not disturb the epoch's readers
    atomic[uintptr_t] bags[3]         # NodeEntry chains; pushed by any pinned thread, emptied by who stepped
    atomic[uintptr_t] garbage[3]      # Garbage chains, likewise
    atomic[uintptr_t] pool            # batches of free entries, chained by `node`
    atomic[uintptr_t] chunks          # all memory of entries, chained; pushed only
    atomic[uint64_t] capacity         # entries in all chunks; for growth, and for tests
    Pin* pins                         # PIN_SLOTS of them, each on a cache line
    void* block

cdef inline bint reclaim_init(Reclaim* r) noexcept nogil:
    """False when memory is exhausted."""
    cdef int i
    r.epoch.store(1)
    for i in range(3):
        r.bags[i].store(0)
        r.garbage[i].store(0)
    r.pool.store(0)
    r.chunks.store(0)
    r.capacity.store(0)
    r.block = malloc(PIN_SLOTS * sizeof(Pin) + CACHE_LINE)
    if r.block == NULL:
        return False
    r.pins = <Pin*> ((<uintptr_t> r.block + CACHE_LINE - 1) & ~<uintptr_t> (CACHE_LINE - 1))
    for i in range(PIN_SLOTS):
        r.pins[i].epoch.store(0)
        r.pins[i].reclaim = r
        r.pins[i].index = <uint32_t> i
        r.pins[i].cache = r.pins[i].retired = r.pins[i].retired_last = NULL
        r.pins[i].retired_count = 0
    return True

cdef inline Pin* reclaim_enter(Reclaim* r) noexcept nogil:
    """Go inside: what is reachable from now on stays as it is until reclaim_leave. One pin at a time in a thread."""
    cdef uint32_t first = <uint32_t> ((stack_page() * <uintptr_t> 0x9E3779B97F4A7C15ULL) >> 40), i = 0
    cdef unsigned int spins = 0
    cdef uint64_t expected
    cdef Pin* pin
    while True:
        pin = &r.pins[(first + i) % PIN_SLOTS]
        expected = 0
        # A1: pairs with R1; whoever used this slot before is done with its cache.
        if pin.epoch.load() == 0 and pin.epoch.compare_exchange_strong(expected, r.epoch.load()):
            return pin
        i += 1
        if i % PIN_SLOTS == 0:
            spin_wait(&spins)

cdef inline void reclaim_leave(Pin* pin) noexcept nogil:
    """Let go of everything found since reclaim_enter."""
    # R1 (leave): pairs with A1 in reclaim_enter and A2 in reclaim_advance; all reads were done before.
    pin.epoch.store(0, memory_order_release)

cdef inline void reclaim_push(atomic[uintptr_t]* bag, NodeEntry* first, NodeEntry* last) noexcept nogil:
    cdef uintptr_t head = bag.load()
    last.link = <NodeEntry*> head
    while not bag.compare_exchange_weak(head, <uintptr_t> first):
        last.link = <NodeEntry*> head

cdef inline void reclaim_push_batch(Reclaim* r, NodeEntry* batch) noexcept nogil:
    cdef uintptr_t head = r.pool.load()
    batch.node.store(head, memory_order_relaxed)  # seen by others after the compare-and-swap only
    while not r.pool.compare_exchange_weak(head, <uintptr_t> batch):
        batch.node.store(head, memory_order_relaxed)

cdef inline void reclaim_give(Reclaim* r, NodeEntry* chain) noexcept nogil:
    """Cut a chain of entries that nobody can hold any more into batches for the pool."""
    cdef NodeEntry* batch
    cdef NodeEntry* last
    cdef int i
    while chain != NULL:
        batch = last = chain
        for i in range(BATCH - 1):
            if last.link == NULL:
                break
            last = last.link
        chain = last.link
        last.link = NULL
        reclaim_push_batch(r, batch)

cdef inline void reclaim_advance(Pin* pin) noexcept nogil:
    """Step the epoch if everybody inside has seen it, and free what was retired two epochs ago."""
    cdef Reclaim* r = pin.reclaim
    cdef uint64_t epoch = r.epoch.load(), seen
    cdef int i
    cdef Garbage* garbage
    cdef Garbage* following
    for i in range(PIN_SLOTS):
        seen = r.pins[i].epoch.load()  # A2: pairs with R1
        if seen != 0 and seen != epoch:
            return
    if not r.epoch.compare_exchange_strong(epoch, epoch + 1):
        return
    reclaim_give(r, <NodeEntry*> r.bags[(epoch + 2) % 3].exchange(0))
    garbage = <Garbage*> r.garbage[(epoch + 2) % 3].exchange(0)
    while garbage != NULL:
        following = garbage.link
        garbage.dispose(garbage, pin)
        garbage = following

cdef inline void reclaim_flush(Pin* pin) noexcept nogil:
    """Put what this pin retired into the bag of the epoch."""
    if pin.retired != NULL:
        reclaim_push(&pin.reclaim.bags[pin.reclaim.epoch.load() % 3], pin.retired, pin.retired_last)
        pin.retired = NULL
        pin.retired_count = 0
    reclaim_advance(pin)

cdef inline void reclaim_retire(Pin* pin, NodeEntry* entry) noexcept nogil:
    """Take an entry that the caller has unlinked; the caller alone did."""
    if pin.retired == NULL:
        pin.retired_last = entry
    entry.link = pin.retired
    pin.retired = entry
    pin.retired_count += 1
    if pin.retired_count >= BATCH:
        reclaim_flush(pin)

cdef inline void reclaim_discard(Pin* pin, Garbage* garbage) noexcept nogil:
    """Call garbage.dispose when no reader can hold it; it is out of every shared place already."""
    cdef atomic[uintptr_t]* bag = &pin.reclaim.garbage[pin.reclaim.epoch.load() % 3]
    cdef uintptr_t head = bag.load()
    garbage.link = <Garbage*> head
    while not bag.compare_exchange_weak(head, <uintptr_t> garbage):
        garbage.link = <Garbage*> head
    reclaim_flush(pin)

cdef inline bint reclaim_grow(Reclaim* r) noexcept nogil:
    """Add a chunk of entries to the pool; False when memory is exhausted."""
    cdef uint64_t size = r.capacity.load(), i
    cdef uintptr_t head = r.chunks.load()
    cdef NodeEntry* chunk
    size = <uint64_t> BATCH if size < BATCH else <uint64_t> CHUNK_ENTRIES_MAX if size > CHUNK_ENTRIES_MAX else size
    chunk = <NodeEntry*> malloc((size + 1) * sizeof(NodeEntry))
    if chunk == NULL:
        return False
    chunk.node.store(head, memory_order_relaxed)  # its first entry is the chunk's own; seen by others after this:
    while not r.chunks.compare_exchange_weak(head, <uintptr_t> chunk):
        chunk.node.store(head, memory_order_relaxed)
    r.capacity.fetch_add(size)
    for i in range(1, size + 1):
        chunk[i].link = &chunk[i + 1] if i < size else NULL
    reclaim_give(r, chunk + 1)
    return True

cdef inline NodeEntry* reclaim_take(Pin* pin) noexcept nogil:
    """Hand out a free entry; NULL when memory is exhausted."""
    cdef Reclaim* r = pin.reclaim
    cdef NodeEntry* entry
    cdef uintptr_t batch
    while pin.cache == NULL:
        batch = r.pool.load()
        if batch == 0:
            if not reclaim_grow(r):
                return NULL
        elif r.pool.compare_exchange_strong(batch, (<NodeEntry*> batch).node.load()):
            pin.cache = <NodeEntry*> batch
    entry = pin.cache
    pin.cache = entry.link
    return entry

cdef inline void reclaim_untake(Pin* pin, NodeEntry* entry) noexcept nogil:
    """Take an entry back that was never linked."""
    entry.link = pin.cache
    pin.cache = entry

cdef inline void reclaim_clear(Reclaim* r) noexcept nogil:
    """Dispose of all garbage and free all entries. Nobody is inside, and no list is used again."""
    cdef int i
    cdef Pin* pin
    cdef void* chunk
    cdef uintptr_t head
    if r.block == NULL:
        return
    for i in range(4):  # everything retired is two steps old after at most four
        pin = reclaim_enter(r)
        reclaim_flush(pin)
        reclaim_leave(pin)
    head = r.chunks.load()
    while head != 0:
        chunk = <void*> head
        head = (<NodeEntry*> chunk).node.load()
        free(chunk)
    free(r.block)
    r.block = NULL
