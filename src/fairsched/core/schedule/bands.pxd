"""Strict bands: no slot takes a turn while a slot of an earlier band has a message.

Band 0 is the first; within a band, slots take turns as in dwrr.pxd. Each band has its own active list. The table holds
the list of the band in service, the first one with messages. Messages of the other bands count as `withheld`, like
those of slots at their limit, so code that pops sees only one list.

* Service. Each message served is from the first band that has one in a slot that is not at its limit.
* Within a band, the order is that of the plain algorithm for this band alone: a turn interrupted by an earlier band
  continues with the rest of its quantum, and the bound of dwrr.pxd holds for the messages of the band.
* Starvation. Later bands have no bound: a band with messages always queued gets all service. A limit on its slots
  (limits.pxd) gives them one: a band that may serve burst + t/interval messages in any time t leaves the rest of the
  time to later bands, and one with a concurrency the rest of the workers.
* Anticipation (anticipation.pxd) is for shares within a band: a band with nothing queued is passed over at once. Time
  in which other slots are served counts as waited, so `patience` remains the maximum.
* A slot that changes its band starts there without credit, at the tail, and keeps its debt.

Source: the strict priority of Linux's prio and ets queueing disciplines; ets also has deficit round robin below it.
Without bands, `bands` of the table is NULL, the only thing checked; only a module that defines FAIRSCHED_BANDED as 1
checks that. A table with bands must not be changed by another module's code. Thread safety: none; the caller
synchronizes. Complexity: O(bands) where the band in service may change, and O(active slots of the band) to change a
slot's. Slots are removed when they are idle only.
"""

from libc.stdint cimport int64_t, uint32_t, uint8_t

from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, BANDS, BAND_BITS, BAND_SHIFT, DEFAULT_BAND, NOT_AWAITED, NO_SLOT, BandList, Bands, Slot, SlotTable,
    slots_activate, slots_deactivate_after,
)

cdef extern from *:
    """
    #if !defined(FAIRSCHED_BANDED)
    #define FAIRSCHED_BANDED 0
    #endif
    """
    const bint BANDED "FAIRSCHED_BANDED"

cdef inline uint32_t bands_of(const SlotTable* t, uint32_t index) noexcept nogil:
    """The band of a slot, or of a branch. Bits that are 0, as those of a new slot, stand for the default."""
    if t.branches != NULL:
        return t.branches.of[index].band
    return ((t.slots[index].flags >> BAND_SHIFT) + DEFAULT_BAND) & (BANDS - 1)

cdef inline void bands_start(SlotTable* t, Bands* bands, uint32_t count) noexcept nogil:
    """Let there be bands from now on; so far all slots are of the default one."""
    cdef uint32_t band
    bands.count = count
    for band in range(count):
        bands.of[band].tail = NO_SLOT
        bands.of[band].newest = NO_SLOT
        bands.of[band].count = bands.of[band].boosts = 0
        bands.of[band].queued = bands.of[band].patience_left = 0
        bands.of[band].awaited_since = NOT_AWAITED
    bands.elsewhere = 0
    bands.inside = DEFAULT_BAND
    t.bands = bands

cdef inline void bands_exchange(SlotTable* t, uint32_t band) noexcept nogil:
    """Put the list of the table away, and have that of another band in its place."""
    cdef Bands* bands = t.bands
    cdef BandList* away = &bands.of[bands.inside]
    cdef BandList* here = &bands.of[band]
    if band == bands.inside:
        return
    away.tail, away.count, away.queued = t.active_tail, t.active_count, t.queued
    away.patience_left, away.awaited_since = t.patience_left, t.awaited_since
    away.newest, away.boosts = t.newest, t.boosts
    bands.elsewhere += away.queued - here.queued
    t.withheld += away.queued - here.queued
    t.active_tail, t.active_count, t.queued = here.tail, here.count, here.queued
    t.patience_left, t.awaited_since = min(here.patience_left, t.patience), here.awaited_since
    t.newest, t.boosts = here.newest, here.boosts
    bands.inside = <uint8_t> band

cdef inline int64_t bands_queued(const SlotTable* t, uint32_t band) noexcept nogil:
    """Messages of a band, without those of slots at their limit."""
    return t.queued if band == t.bands.inside else t.bands.of[band].queued

cdef inline void bands_enter(SlotTable* t, uint32_t index) noexcept nogil:
    """Have the list of a slot's band in the table, to change it; bands_serve comes after."""
    if BANDED and rarely(t.bands != NULL):
        bands_exchange(t, bands_of(t, index))

cdef inline void bands_serve(SlotTable* t) noexcept nogil:
    """Have the list of the first band with messages in the table; any, if there are none."""
    cdef uint32_t band
    if BANDED and rarely(t.bands != NULL):
        for band in range(t.bands.count):
            if bands_queued(t, band):
                bands_exchange(t, band)
                return

cdef inline void bands_set(SlotTable* t, uint32_t index, uint32_t band) noexcept nogil:
    """Change the band of a slot."""
    cdef Slot* slot = &t.slots[index]
    cdef int64_t count = 0 if slot.flags & AT_LIMIT else <int64_t> (slot.pushed - slot.served)
    cdef bint was_active = slot.active
    cdef uint32_t before
    if band == bands_of(t, index):
        return
    bands_enter(t, index)
    if was_active:
        before = t.active_tail
        while t.slots[before].next != index:
            before = t.slots[before].next
        slots_deactivate_after(t, before)
    slot.granted = 0
    slot.deficit = min(slot.deficit, 0)
    t.queued -= count
    slot.flags = (slot.flags & ~BAND_BITS) | (((band - DEFAULT_BAND) & (BANDS - 1)) << BAND_SHIFT)
    bands_enter(t, index)
    t.queued += count
    if was_active:
        slots_activate(t, index)
    bands_serve(t)

cdef inline int64_t bands_above(const SlotTable* t, uint32_t index, uint32_t* slots, uint32_t* others) noexcept nogil:
    """Messages served before any of a slot's band; add the slots that have them, and all that take turns elsewhere."""
    cdef int64_t messages = 0
    cdef uint32_t band, at, count, _i
    for band in range(t.bands.count):
        if band == bands_of(t, index):
            continue
        at = t.active_tail if band == t.bands.inside else t.bands.of[band].tail
        count = t.active_count if band == t.bands.inside else t.bands.of[band].count
        others[0] += count
        if band > bands_of(t, index):
            continue
        messages += bands_queued(t, band)
        for _i in range(count):
            slots[0] += t.slots[at].head != NULL
            at = t.slots[at].next
    return messages
