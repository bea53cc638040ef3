"""The priorities that have consumers, highest first, and which of them have a consumer waiting.

A table of levels is never changed: a priority that comes or goes means a new table, and the old one is retired. Beside
the sorted levels stand two bitmaps, one for each list that is searched from the top (interested, notified), so that
finding the first level with a consumer in it does not touch the others.

A bit may be set for an empty list, never clear for one that holds a node whose move is complete:
  - a thread that appends does so first, then reads the table, and sets the bit there unless it is set;
  - a new table starts with all bits set, so a mover that still set it in the old one loses nothing; a finder that
    begins after the move has the mover's table, or a newer one;
  - a thread that finds a list empty under a set bit clears the bit, checks the list again, and sets the bit back if
    need be. In between the bit is wrong: `clearing` counts the threads that do this now (low half) and all that ever
    did (high half). levels_next believes the bits only if no thread did so from before its check until after it.
    Otherwise it returns the level it was asked to start from, and its caller checks the lists themselves.

Thread safety: any, pinned; levels_obtain and levels_release by one thread at a time (interest.pxd locks). Nothing
waits. Complexity: levels_next O(levels / 64); levels_mark O(1), O(log levels) while the table changes; a new or dropped
priority O(levels).
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libcpp.atomic cimport atomic, memory_order_relaxed

from fairsched.core.atomics cimport lowest_bit
from fairsched.core.waiting.nodelist cimport NodeList, nodelist_clear, nodelist_first, nodelist_init
from fairsched.core.waiting.reclaim cimport Garbage, Pin, reclaim_discard

cdef enum LevelIndex:  # the searched lists of a level; their order is that of Level.lists
    LEVEL_INTERESTED
    LEVEL_NOTIFIED
    LEVEL_ALL

ctypedef atomic[LevelTable*] LevelTablePointer

cdef struct Level:
    Garbage garbage
    NodeList lists[3]
    int32_t priority          # fixed
    uint32_t members          # nodes registered; under the manager's lock
    atomic[uint32_t] index    # its place in the current table: a hint, checked before use
    LevelTablePointer* home   # fixed: whose level it is

cdef struct LevelTable:
    Garbage garbage
    uint32_t count            # fixed, as are the pointers
    uint32_t words            # of one bitmap
    Level** levels            # by descending priority
    atomic[uint64_t]* bits    # 2 * words: interested, then notified
    atomic[uint64_t] clearing

cdef inline void level_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    cdef Level* level = <Level*> garbage
    cdef int i
    for i in range(3):
        nodelist_clear(&level.lists[i], pin)
    free(level)

cdef inline void leveltable_dispose(Garbage* garbage, Pin* pin) noexcept nogil:
    free(garbage)

cdef inline Level* level_create(int32_t priority, uint32_t threshold) noexcept nogil:
    """A level without members; NULL when memory is exhausted."""
    cdef Level* level = <Level*> malloc(sizeof(Level))
    cdef int i
    if level == NULL:
        return NULL
    level.garbage.dispose = level_dispose
    for i in range(3):
        nodelist_init(&level.lists[i], threshold)
    level.priority = priority
    level.members = 0
    level.index.store(0)
    return level

cdef inline LevelTable* leveltable_create(uint32_t count) noexcept nogil:
    """A table in one block, all bits set, its levels to be filled in; NULL when memory is exhausted."""
    cdef uint32_t words = (count + 63) // 64, i
    cdef uint64_t every = ~<uint64_t> 0
    cdef LevelTable* t = <LevelTable*> malloc(
        sizeof(LevelTable) + count * sizeof(Level*) + 2 * words * sizeof(uint64_t)
    )
    if t == NULL:
        return NULL
    t.garbage.dispose = leveltable_dispose
    t.count = count
    t.words = words
    t.levels = <Level**> (t + 1)
    t.bits = <atomic[uint64_t]*> (t.levels + count)
    for i in range(2 * words):
        # Bits past the last level stay clear.
        t.bits[i].store(every >> (63 - (count - 1) % 64) if i % words == words - 1 else every)
    t.clearing.store(0)
    return t

cdef inline uint32_t leveltable_search(const LevelTable* t, int32_t priority) noexcept nogil:
    """Index of the first level whose priority is not above `priority`."""
    cdef uint32_t low = 0, high = t.count, middle
    while low < high:
        middle = (low + high) // 2
        if t.levels[middle].priority > priority:
            low = middle + 1
        else:
            high = middle
    return low

cdef inline void levels_publish(LevelTablePointer* current, Pin* pin, LevelTable* t) noexcept nogil:
    """Make `t` the current table; the old one goes when its readers have gone."""
    cdef LevelTable* old = current.load()
    cdef uint32_t i
    for i in range(t.count):
        t.levels[i].index.store(i, memory_order_relaxed)  # a hint: checked before use
    current.store(t)
    reclaim_discard(pin, &old.garbage)

cdef inline Level* levels_obtain(
    LevelTablePointer* current, Pin* pin, int32_t priority, uint32_t threshold
) noexcept nogil:
    """The level of a priority, made if there is none; NULL when memory is exhausted. One thread at a time."""
    cdef LevelTable* old = current.load()
    cdef uint32_t at = leveltable_search(old, priority), i
    cdef LevelTable* t
    cdef Level* level
    if at < old.count and old.levels[at].priority == priority:
        return old.levels[at]
    level = level_create(priority, threshold)
    if level == NULL:
        return NULL
    t = leveltable_create(old.count + 1)
    if t == NULL:
        free(level)
        return NULL
    level.home = current
    for i in range(t.count):
        t.levels[i] = level if i == at else old.levels[i - (i > at)]
    levels_publish(current, pin, t)
    return level

cdef inline void levels_release(LevelTablePointer* current, Pin* pin, Level* level) noexcept nogil:
    """Drop a level without members. Without the memory for that it stays, empty. One thread at a time."""
    cdef LevelTable* old = current.load()
    cdef uint32_t at = leveltable_search(old, level.priority), i
    cdef LevelTable* t = leveltable_create(old.count - 1)
    if t == NULL:
        return
    for i in range(t.count):
        t.levels[i] = old.levels[i + (i >= at)]
    levels_publish(current, pin, t)
    reclaim_discard(pin, &level.garbage)

cdef inline void levels_mark(LevelTablePointer* current, Level* level, LevelIndex which) noexcept nogil:
    """Note that `level` has a node in that list. After the append, which the table is then read after."""
    cdef LevelTable* t = current.load()
    cdef uint32_t at = level.index.load()
    cdef atomic[uint64_t]* word
    if at >= t.count or t.levels[at] != level:  # the hint belongs to another table
        at = leveltable_search(t, level.priority)
        if at == t.count or t.levels[at] != level:
            return  # the table is older than the level, or younger than its end
    word = &t.bits[<uint32_t> which * t.words + at // 64]
    if not word.load() & (<uint64_t> 1 << (at % 64)):
        word.fetch_or(<uint64_t> 1 << (at % 64))

cdef inline uint32_t levels_next(LevelTable* t, LevelIndex which, uint32_t start) noexcept nogil:
    """Return the index of the first level from `start` on whose list may hold a consumer; t.count: there is none."""
    cdef uint64_t clearing = t.clearing.load()
    cdef uint32_t at = start // 64, found = t.count
    cdef uint64_t word
    if start >= t.count or <uint32_t> clearing != 0:
        return start
    word = t.bits[<uint32_t> which * t.words + at].load() & (~<uint64_t> 0 << (start % 64))
    while word == 0:
        at += 1
        if at == t.words:
            break
        word = t.bits[<uint32_t> which * t.words + at].load()
    if word != 0:
        found = at * 64 + lowest_bit(word)
    return found if t.clearing.load() == clearing else start

cdef inline void levels_unmark(LevelTable* t, Pin* pin, LevelIndex which, uint32_t at) noexcept nogil:
    """Clear the bit of a list that was found empty, unless a consumer came meanwhile."""
    cdef atomic[uint64_t]* word = &t.bits[<uint32_t> which * t.words + at // 64]
    cdef uint64_t bit = <uint64_t> 1 << (at % 64)
    if not word.load() & bit or nodelist_first(&t.levels[at].lists[<int> which], pin) != NULL:
        return
    t.clearing.fetch_add((<uint64_t> 1 << 32) + 1)
    word.fetch_and(~bit)
    if nodelist_first(&t.levels[at].lists[<int> which], pin) != NULL:
        word.fetch_or(bit)
    t.clearing.fetch_sub(1)
