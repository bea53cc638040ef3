"""Priorities of the items of a fair queue: which branch of its slot an item has, and branches that come and go.

A branch is a slot without a name; see core/schedule/branches.pxd. Called with the queue's exclusion held.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from fairsched._core cimport NamedSlots, slot_figures, slot_pin, slot_unpin, slots_make_room
from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.bands cimport bands_start
from fairsched.core.schedule.branches cimport (
    branches_add, branches_add_root, branches_add_work, branches_band, branches_find, branches_is_branch,
    branches_is_idle, branches_remove, branches_reserve,
)
from fairsched.core.schedule.limits cimport LimitTable, limits_exempt, limits_reserve
from fairsched.core.schedule.slots cimport (
    NO_SLOT, PRIORITIES, Bands, Branch, Branches, Slot, SlotTable, slots_report_idle, slots_take_idle,
)
from fairsched.scheduling._numbers cimport as_item_priority


cdef inline int start_priorities(SlotTable* table, Branches* branches, Bands* bands, int64_t subkey_quantum) except -1:
    """Let items have priorities from now on; there are none yet."""
    cdef uint32_t i
    if subkey_quantum:
        raise ValueError(
            f"priorities cannot be combined with subkey_quantum={subkey_quantum}: a subkey's items keep their order"
        )
    if not branches_reserve(branches, table):
        raise MemoryError()
    table.branches = branches
    for i in range(table.size):
        branches_add_root(table, i)
    bands_start(table, bands, PRIORITIES)
    return 0


cdef inline int64_t checked_priority(const SlotTable* table, object priority) except -1:
    """Convert the priority of an item."""
    cdef int64_t number = as_item_priority(priority)
    if number and table.branches == NULL:
        raise ValueError(f"priority {number} of an item needs priorities=True, which this queue does not have")
    return number


cdef inline int64_t charged_priority(const SlotTable* table, object slot, object priority) except -1:
    """Convert the priority of items that were served elsewhere; a queue with priorities needs one."""
    if priority is None and table.branches != NULL:
        raise ValueError(f"a charge to slot {slot!r} needs the priority of the items, from 0 to 9, got None")
    return checked_priority(table, 0 if priority is None else priority)


cdef inline bytes bands_of_items(const SlotTable* table, object priority, list each):
    """Return the band of each item, or of all; None: the queue has no priorities. `each` has those of the items."""
    cdef list bands = []
    if each is None:
        each = [priority]
    for one in list(each):  # a copy: converting a priority may run Python code
        bands.append(branches_band(checked_priority(table, one)))
    return None if table.branches == NULL else bytes(bands)


cdef inline long branch_if_any(const SlotTable* table, uint32_t root, uint32_t band) noexcept:
    """Return the branch of a slot in a band, or -1."""
    cdef uint32_t index = branches_find(table, root, band)
    return -1 if index == NO_SLOT else <long> index


cdef inline long part_of(const SlotTable* table, uint32_t root, int64_t priority) noexcept:
    """Return what serves a slot's items of a priority: its branch, or -1; without priorities the slot itself."""
    return root if table.branches == NULL else branch_if_any(table, root, branches_band(priority))


cdef inline uint32_t add_branch(
    NamedSlots slots, Branches* branches, LimitTable* limits, uint32_t root, uint32_t band
) except? 0xFFFFFFFF:
    """Add a branch to a slot that has none in this band.

    While a branch exists, its root is pinned, so that the root's index stays good.
    """
    cdef uint32_t index = NO_SLOT
    slots_report_idle(&slots.table, root)  # if this raises, it may be forgotten
    slots_make_room(slots)
    if branches_reserve(branches, &slots.table) and (not limits.on or limits_reserve(limits, &slots.table)):
        index = branches_add(&slots.table, root, band)
    if index == NO_SLOT:
        raise MemoryError()
    if limits.on:
        limits_exempt(limits, index)
    slot_pin(slots, root)
    slots_report_idle(&slots.table, index)  # if nothing is put into it, for lack of memory
    return index


cdef inline uint32_t branch_of(
    NamedSlots slots, Branches* branches, LimitTable* limits, uint32_t root, uint32_t band
) except? 0xFFFFFFFF:
    """Find, or add, the branch of a slot in a band. Runs no Python code, unless it raises MemoryError."""
    cdef uint32_t index = branches_find(&slots.table, root, band)
    return add_branch(slots, branches, limits, root, band) if rarely(index == NO_SLOT) else index


cdef inline void forget_idle_branches(NamedSlots slots) noexcept:
    """Forget the branches and the transient slots that are idle at this moment."""
    cdef uint32_t index = slots_take_idle(&slots.table)
    while index != NO_SLOT:
        if slots.names.names[index].pins:
            pass  # a call has pinned it, or it has branches; the last of them reports it again
        elif not branches_is_branch(&slots.table, index):
            slots.forget(index)
        elif branches_is_idle(&slots.table, index):
            slots.removals += 1
            slot_unpin(slots, branches_remove(&slots.table, index))
        index = slots_take_idle(&slots.table)


cdef inline int enter_branches(
    NamedSlots slots, Branches* branches, LimitTable* limits, uint32_t* indices, Py_ssize_t places,
    const uint8_t* bands, Py_ssize_t count
) except -1:
    """Put the branch of each item in the place of its slot. Runs no Python code, unless it raises MemoryError."""
    cdef Py_ssize_t i
    for i in range(places):
        indices[i] = branch_of(slots, branches, limits, indices[i], bands[0 if count == 1 else i])
    return 0


cdef inline dict priority_figures(NamedSlots slots):
    """Figures by slot name and priority, all of one moment; of priorities that were served or have items."""
    cdef uint32_t i, band, index, size
    cdef SlotTable* table = &slots.table
    cdef Slot* copies = NULL
    cdef Branch* branches = NULL
    cdef Slot one
    cdef list names = None
    cdef dict figures = {}
    if table.branches == NULL:
        return figures
    while names is None or PyList_GET_SIZE(names) != table.size:
        names = PyList_New(table.size)  # may run Python code, which may add slots
    size = table.size
    copies = <Slot*> malloc(size * sizeof(Slot))
    branches = <Branch*> malloc(size * sizeof(Branch))
    try:
        if (copies == NULL or branches == NULL) and size:
            raise MemoryError()
        for i in range(size):
            copies[i] = table.slots[i]
            branches[i] = table.branches.of[i]
            Py_INCREF(<object> PyList_GET_ITEM(slots.name_of, i))
            PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(slots.name_of, i))
        for i in range(size):
            if not copies[i].quantum or branches[i].root != NO_SLOT:
                continue
            for band in range(PRIORITIES):
                index = branches[i].next
                while index != NO_SLOT and branches[index].band != band:
                    index = branches[index].next
                if index == NO_SLOT and not branches[i].left[band]:
                    continue
                one = copies[i if index == NO_SLOT else index]
                if index == NO_SLOT:
                    one.work = one.pushed = one.served = one.deficit = 0
                    one.held = 0
                one.flags = copies[i].flags
                branches_add_work(&one.work, branches[i].left[band])
                figures[names[i], PRIORITIES - 1 - <int64_t> band] = slot_figures(&one)
    finally:
        free(copies)
        free(branches)
    return figures
