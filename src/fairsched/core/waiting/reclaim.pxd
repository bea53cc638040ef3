"""Epoch-based memory reclamation: an unlinked entry is reused after every reader that could hold it has left.

Broker-J's lists leave this to a garbage collector. Here a thread enters before it touches a shared entry (reclaim_enter
gives it a Pin) and leaves afterwards. What was unlinked is retired, in a bag stamped with the epoch, and is free
memory GRACE epochs later. Source of the scheme: K. Fraser, Practical lock-freedom (2004), section 5.2.3.
Why nothing is used again too early. All steps below are seq_cst, so there is one order of them.
  E1  A pin stores the epoch it read into its slot before it reads any shared pointer.
  E2  The epoch goes from e to e+1 only after every slot was seen free or holding e. So, once a pin stands, at most one
      more step succeeds (one that looked at that slot before): a pin that finds v holds the epoch at v or v+1.
  E3  An entry is unlinked after it is marked. A reader whose pin stood before, at v, can hold it; it is stamped r >= v
      after that, and freed by a step to r+3, which cannot happen while the reader is inside.
  E4  For a moment an unlinked entry is still named in one place: as the tail, while the thread that linked its
      successor has not moved the tail; in its node, while the thread that marked it has not written the next entry
      there. That thread, M, is inside all the while. It found v, so the stamp is r >= v and the epoch at most v+1. A
      reader that gets the entry by its name entered by then: it holds the epoch at v+2 or below, and r+3 >= v+3.
      (With two epochs of grace, as in the source, this fails: tests/model has the schedule.)
  E5  Four bags are enough: a thread that steps from e to e+1 is pinned at e, so the epoch stays at e+1 while it empties
      the bag of e-2, also that of e+2; a thread that retires under stamp s is pinned at s-1 or s, so none fills the bag
      of e-2 then.
No ABA: an address comes back only through a bag, so not while a thread that knew it is inside. So the pool of free
batches is sound, too: reclaim_refill pops while pinned, and batches enter it from a bag or new.

  synchronization     enter/leave  take  retire  advance   X: needs external exclusion
  enter, leave, take       -        -      -        -      a Pin is used by the thread that entered, and no other
  retire, discard          -        -      -        -      by the one thread whose compare-and-swap unlinked it
  init, clear              X        X      X        X
Progress: leave, take and retire never wait (take may allocate); enter waits only while PIN_SLOTS threads are inside.
Memory: entries in lists, + 2 * BATCH for each slot ever used, + the bags. These hold what was retired in four epochs,
and an epoch lasts for BATCH retired entries; but a thread that stays inside stops it, and entries retired meanwhile are
not used again. Chunks go back to the system at clear.
Complexity: O(1); one call in BATCH looks at all slots.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic, memory_order_relaxed, memory_order_release

from fairsched.core.atomics cimport rarely, spin_wait, stack_page, thread_yield
from fairsched.core.memory cimport CACHE_LINE, first_line

cdef enum:
    PIN_SLOTS = 32
    BATCH = 64
    GRACE = 3
    BAGS = GRACE + 1
    CHUNK_ENTRIES_MAX = 8192
    DELETED = 1  # in the lowest bit of an entry's pointer: see nodelist.pxd

cdef struct NodeEntry:  # half a cache line
    atomic[uintptr_t] next    # address of the successor, and DELETED in the lowest bit: written by list operations
    atomic[uintptr_t] node    # the consumer node while alive, 0 when dead; in the pool, the next batch
    atomic[uint32_t] order    # position in the list, modulo 2**32; written before the entry is linked
    atomic[uint32_t] hint     # address of a later entry, perhaps: to be fetched ahead, never to be followed
    NodeEntry* link           # next in a bag or batch: of the one thread that owns that

cdef inline NodeEntry* entry_of(uintptr_t next) noexcept nogil:
    return <NodeEntry*> (next & ~<uintptr_t> DELETED)

cdef struct Garbage:
    Garbage* link             # the head of any other object that readers may hold: a node, a level, a table
    void (*dispose)(Garbage* garbage, Pin* pin) noexcept nogil

cdef struct Pin:  # a cache line: a thread's stay inside, and what it has to itself meanwhile
    atomic[uint64_t] epoch    # 0: free. Claimed by compare-and-swap, read by a thread that wants to step the epoch
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
    atomic[uintptr_t] bags[BAGS]        # NodeEntry chains; pushed by any pinned thread, emptied by the one that stepped
    atomic[uintptr_t] garbage[BAGS]     # Garbage chains, likewise
    atomic[uintptr_t] pool            # batches of free entries, chained by `node`
    atomic[uintptr_t] chunks          # all memory of entries, chained; pushed only
    atomic[uint64_t] capacity         # entries in all chunks; for growth, and for tests
    Pin* pins                         # PIN_SLOTS of them, each on a cache line
    void* block

cdef inline bint reclaim_init(Reclaim* r) noexcept nogil:  # False when memory is exhausted
    cdef int i
    r.epoch.store(1)
    for i in range(BAGS):
        r.bags[i].store(0)
        r.garbage[i].store(0)
    r.pool.store(0)
    r.chunks.store(0)
    r.capacity.store(0)
    r.block = malloc(PIN_SLOTS * sizeof(Pin) + CACHE_LINE)
    if r.block == NULL:
        return False
    r.pins = <Pin*> first_line(r.block)
    for i in range(PIN_SLOTS):
        r.pins[i].epoch.store(0)
        r.pins[i].reclaim = r
        r.pins[i].index = <uint32_t> i
        r.pins[i].cache = r.pins[i].retired = r.pins[i].retired_last = NULL
        r.pins[i].retired_count = 0
    return True

cdef inline bint reclaim_claim(Reclaim* r, Pin* pin) noexcept nogil:
    """Take a slot, if it is free: True for one caller only."""
    cdef uint64_t expected = 0
    # A1: pairs with R1; the thread that used this slot before is done with its cache.
    return pin.epoch.load() == 0 and pin.epoch.compare_exchange_strong(expected, r.epoch.load())

cdef inline Pin* reclaim_enter(Reclaim* r) noexcept nogil:
    """Go inside: what is found from now on stays as it is until reclaim_leave. One pin at a time in a thread."""
    cdef uint32_t first = <uint32_t> ((stack_page() * <uintptr_t> 0x9E3779B97F4A7C15ULL) >> 40) % PIN_SLOTS, i = first
    cdef unsigned int spins = 0
    while rarely(not reclaim_claim(r, &r.pins[i])):
        i = (i + 1) % PIN_SLOTS
        if i == first:
            spin_wait(&spins)
    return &r.pins[i]

cdef inline void reclaim_leave(Pin* pin) noexcept nogil:
    # R1 (leave): pairs with A1 in reclaim_enter and A2 in reclaim_advance; all reads were done before.
    pin.epoch.store(0, memory_order_release)

cdef inline void reclaim_give(Reclaim* r, NodeEntry* chain) noexcept nogil:
    """Cut a chain of entries that no thread holds into batches for the pool."""
    cdef uintptr_t head
    cdef NodeEntry* batch
    cdef NodeEntry* last
    cdef int _i
    while chain != NULL:
        batch = last = chain
        for _i in range(BATCH - 1):
            if last.link == NULL:
                break
            last = last.link
        chain = last.link
        last.link = NULL
        head = r.pool.load()
        batch.node.store(head, memory_order_relaxed)  # seen by others after the compare-and-swap only
        while not r.pool.compare_exchange_weak(head, <uintptr_t> batch):
            batch.node.store(head, memory_order_relaxed)

cdef inline void reclaim_advance(Pin* pin) noexcept nogil:
    """Step the epoch if every thread inside has seen it, and free what was retired GRACE epochs ago."""
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
    reclaim_give(r, <NodeEntry*> r.bags[(epoch + 1 - GRACE) % BAGS].exchange(0))
    garbage = <Garbage*> r.garbage[(epoch + 1 - GRACE) % BAGS].exchange(0)
    while garbage != NULL:
        following = garbage.link
        garbage.dispose(garbage, pin)
        garbage = following

cdef inline void reclaim_flush(Pin* pin) noexcept nogil:
    """Put what this pin retired into the bag of the epoch."""
    cdef atomic[uintptr_t]* bag = &pin.reclaim.bags[pin.reclaim.epoch.load() % BAGS]
    cdef uintptr_t head = bag.load()
    if pin.retired != NULL:
        pin.retired_last.link = <NodeEntry*> head
        while not bag.compare_exchange_weak(head, <uintptr_t> pin.retired):
            pin.retired_last.link = <NodeEntry*> head
        pin.retired = NULL
        pin.retired_count = 0
    reclaim_advance(pin)

cdef inline void reclaim_retire(Pin* pin, NodeEntry* entry) noexcept nogil:
    """Take an entry that the caller has unlinked."""
    if pin.retired == NULL:
        pin.retired_last = entry
    entry.link = pin.retired
    pin.retired = entry
    pin.retired_count += 1
    if pin.retired_count >= BATCH:
        reclaim_flush(pin)

cdef inline void reclaim_discard(Pin* pin, Garbage* garbage) noexcept nogil:
    """Call garbage.dispose when no reader can hold it; no thread finds it any more."""
    cdef atomic[uintptr_t]* bag = &pin.reclaim.garbage[pin.reclaim.epoch.load() % BAGS]
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
    cdef void* block
    size = min(max(size, <uint64_t> BATCH), <uint64_t> CHUNK_ENTRIES_MAX)
    block = malloc((size + 1) * sizeof(NodeEntry) + CACHE_LINE)
    if block == NULL:
        return False
    chunk = <NodeEntry*> first_line(block)
    chunk.link = <NodeEntry*> block
    chunk.node.store(head, memory_order_relaxed)  # the first entry is the chunk's own; seen by others after this:
    while not r.chunks.compare_exchange_weak(head, <uintptr_t> chunk):
        chunk.node.store(head, memory_order_relaxed)
    r.capacity.fetch_add(size)
    for i in range(1, size + 1):
        chunk[i].link = &chunk[i + 1] if i < size else NULL
    reclaim_give(r, chunk + 1)
    return True

cdef inline bint reclaim_refill(Pin* pin) noexcept nogil:
    """Get a batch of free entries; False when memory is exhausted."""
    cdef Reclaim* r = pin.reclaim
    cdef uintptr_t batch
    while pin.cache == NULL:
        batch = r.pool.load()
        if batch == 0:
            if r.capacity.load() >= CHUNK_ENTRIES_MAX:
                thread_yield()  # perhaps to a preempted thread that is inside: it holds up the epoch
            if not reclaim_grow(r):
                return False
        elif r.pool.compare_exchange_strong(batch, (<NodeEntry*> batch).node.load()):
            pin.cache = <NodeEntry*> batch
    return True

cdef inline NodeEntry* reclaim_take(Pin* pin) noexcept nogil:
    """Hand out a free entry; NULL when memory is exhausted."""
    cdef NodeEntry* entry
    if rarely(pin.cache == NULL) and not reclaim_refill(pin):
        return NULL
    entry = pin.cache
    pin.cache = entry.link
    return entry

cdef inline void reclaim_untake(Pin* pin, NodeEntry* entry) noexcept nogil:  # give back what was never linked
    entry.link = pin.cache
    pin.cache = entry

cdef inline void reclaim_clear(Reclaim* r) noexcept nogil:
    """Dispose of all garbage and free all entries. No thread is inside, and no list is used again."""
    cdef int _i
    cdef Pin* pin
    cdef NodeEntry* chunk
    cdef void* block
    if r.block == NULL:
        return
    for _i in range(GRACE + 2):
        pin = reclaim_enter(r)
        reclaim_flush(pin)
        reclaim_leave(pin)
    chunk = <NodeEntry*> r.chunks.load()
    while chunk != NULL:
        block = chunk.link
        chunk = <NodeEntry*> chunk.node.load()
        free(block)
    free(r.block)
    r.block = NULL
