"""A thread-safe, blocking queue of Python objects, served by deficit weighted round robin.

Exclusion. Everything but the waiting happens with the GIL held (on free-threaded builds: inside the object's critical
section), and nothing between two reads of the state runs Python code or gives the GIL up. Threads wait in a
`WaitingRoom`; a put or get gives the GIL up around a wake-up only when somebody is registered to be woken.

Ownership. The token of an entry is a pointer to the queued object, and the entry owns one reference to it. The
garbage collector is shown those references by the traverse function at the end of this file.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched._core cimport NamedSlots, slot_find
from fairsched._numbers cimport as_amount, as_count, as_int64
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.anticipation cimport anticipation_end_wait, anticipation_left, anticipation_set
from fairsched.core.dwrr cimport (
    dwrr_hold, dwrr_pop, dwrr_push, dwrr_reserve, dwrr_set_quantum,
)
from fairsched.core.entrypool cimport Entry
from fairsched.core.slots cimport (
    AWAITED_SLOT, NO_SLOT, NOT_AWAITED, Slot, SlotTable, slots_first, slots_take_idle, slots_unlink_head,
)

import queue

import numpy as np

from fairsched._arrays import as_costs
from fairsched._core import checked_quanta
from fairsched.batch import Batch
from fairsched.errors import ShutDown

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
ctypedef int (*clear_t)(PyObject*) noexcept

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear

cdef enum:
    NAME_CACHE = 16
    LONGEST_TURN = 3600  # seconds


cdef int64_t as_nanoseconds(double seconds) noexcept:
    return <int64_t> (seconds * 1e9)


@cython.final
cdef class FairQueue(NamedSlots):
    """FairQueue(quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None)
    --

    A thread-safe queue that serves its slots fairly, where `queue.Queue` serves whoever floods it.

    Parameters
    ----------
    quanta : Mapping[Hashable, int], optional
        Slot names and quanta. A slot's share of the cost served is its quantum over the sum of all backlogged quanta.
    maxsize : int
        Most items in all slots together; 0 or less: no limit.
    default_quantum : int, optional
        Quantum of slots (tenants) not named in `quanta`: they appear on first use and are forgotten when idle and out
        of debt. Without it an unknown slot is a KeyError.
    anticipation : float
        Seconds that a turn of a held slot (see `hold`) is waited for at most while the slot is empty; see `anticipate`.
    clock : callable, optional
        Returns seconds, for time-outs; `time.monotonic` by default. Blocked calls look at a clock of the caller's own
        every millisecond.

    Raises
    ------
    ValueError
        A quantum is not a positive integer.
    OverflowError
        A quantum is above 2**62 - 1.

    Notes
    -----
    Complexity: put and get O(1), as in `Dwrr`; tenants that are idle cost nothing.
    Memory: 24 bytes an item queued, beyond the item.
    Thread safety: every method may be called from any thread; each is atomic. One item put wakes one waiting thread.

    Examples
    --------
    >>> tenants = FairQueue({"gold": 3}, default_quantum=1)
    >>> for i in range(4):
    ...     tenants.put("gold", i)
    ...     tenants.put("free", i)
    >>> [tenants.get() for _ in range(5)]
    [('gold', 0), ('gold', 1), ('gold', 2), ('free', 0), ('gold', 3)]
    """

    cdef WaitingRoom getters
    cdef WaitingRoom putters
    cdef int64_t batches_waiting  # putters that wait for room for more than one item
    cdef int64_t anticipating     # getters that wait for the slot whose turn it is, and will look again in time
    cdef int64_t maxsize
    cdef int64_t default_quantum  # 0: unknown slots are errors
    cdef bint is_shut_down
    cdef object __weakref__

    def __init__(self, quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None):
        if not isinstance(maxsize, int) or isinstance(maxsize, bool):
            raise ValueError(f"maxsize must be an integer (0 or less: no limit), got {maxsize!r}")
        if clock is not None and not callable(clock):
            raise ValueError(f"clock must be callable and return seconds, got {clock!r}")
        pairs = [] if quanta is None else checked_quanta(quanta)
        self.maxsize = max(maxsize, 0)
        self.default_quantum = 0 if default_quantum is None else as_amount(default_quantum, "default_quantum")
        self.getters = WaitingRoom(clock)
        self.putters = WaitingRoom(clock)
        self.anticipate(anticipation)
        for name, quantum in pairs:
            self.add(name, quantum, False)

    def __dealloc__(self):
        drop_items(&self.table)

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, slot, item, cost=1, block=True, timeout=None):
        """put($self, slot, item, cost=1, block=True, timeout=None)
        --

        Append an item to a slot.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        item : object
        cost : int
            What serving it costs: a positive integer, in the unit of the quanta.
        block : bool
            Whether to wait for room when the queue is full.
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.

        Raises
        ------
        queue.Full
            There is no room, and waiting was not wanted or took too long.
        ShutDown
            The queue is shut down.
        KeyError
            There is no such slot, and no default quantum.
        ValueError, OverflowError
            The cost is not a positive integer of at most 2**62 - 1, or the time-out is negative.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef long index
        with cython.critical_section(self):
            if self.is_shut_down or (self.maxsize and self.table.queued >= self.maxsize):
                self.wait_for_room(slot, 1, block, timeout)
            index = slot_find(self, slot)
            if index < 0:
                index = self.admit(slot)
            Py_INCREF(item)
            if not dwrr_push(&self.table, index, <uint64_t> <uintptr_t> <PyObject*> item, amount):
                Py_DECREF(item)
                raise MemoryError()
            if self.getters.waiting:
                self.wake_getters(1)

    def put_many(self, slots, items, costs=None, block=True, timeout=None):
        """put_many($self, slots, items, costs=None, block=True, timeout=None)
        --

        Append many items, all or (on an error) none.

        Parameters
        ----------
        slots : list or numpy.ndarray, or Hashable
            A list or an array names the slot of each item; anything else is the one slot of all of them.
        items : Iterable
        costs : array-like of int, optional
            One positive integer an item; 1 each by default.
        block, timeout
            As for `put`: the wait is for room for all.

        Raises
        ------
        queue.Full, ShutDown, KeyError, OverflowError
            As for `put`.
        ValueError
            Lengths differ, the items outnumber `maxsize`, or as for `put`.
        """
        cdef const int64_t[::1] cost_view = None
        cdef list objects = items if type(items) is list else list(items)
        cdef Py_ssize_t size = len(objects)
        cdef list names = slots if type(slots) is list else list(slots) if isinstance(slots, np.ndarray) else None
        if names is not None and len(names) != size:
            raise ValueError(f"slots must have one name for each item: {size} items, {len(names)} slots")
        if costs is not None:
            cost_view = as_costs(costs, size)
        if self.maxsize and size > self.maxsize:
            raise ValueError(f"items must fit in maxsize={self.maxsize}, got {size}")
        if size == 0:
            return
        with cython.critical_section(self):
            if self.is_shut_down or (self.maxsize and self.table.queued + size > self.maxsize):
                self.wait_for_room(slots if names is None else names[0], size, block, timeout)
            self.store_many(slots, names, objects, &cost_view[0] if cost_view is not None else NULL)
            if self.getters.waiting:
                self.wake_getters(size)

    cdef int store_many(self, object slot, list names, list objects, const int64_t* costs) except -1:
        """Find the slots, then push: no Python code runs between the two."""
        cdef Py_ssize_t i, size = len(objects)
        cdef int32_t* indices = <int32_t*> malloc(size * sizeof(int32_t))
        if indices == NULL:
            raise MemoryError()
        try:
            self.find_many([slot] * size if names is None else names, indices, size)
            if len(objects) != size:
                raise RuntimeError("the items changed while their slots were looked up")
            if not dwrr_reserve(&self.table, size):
                raise MemoryError()
            for i in range(size):
                Py_INCREF(<object> PyList_GET_ITEM(objects, i))
                dwrr_push(
                    &self.table, indices[i], <uint64_t> <uintptr_t> PyList_GET_ITEM(objects, i),
                    1 if costs == NULL else costs[i],
                )
        except BaseException:
            self.forget_unused(indices, size)
            raise
        finally:
            free(indices)
        return 0

    cdef uint32_t admit(self, object name) except? 0xFFFFFFFF:
        """Add an unknown slot, where that is wanted."""
        if not self.default_quantum:
            raise KeyError(f"no slot is named {name!r}, and there is no default_quantum to add it with")
        return self.add(name, self.default_quantum, True)

    cdef int find_many(self, list names, int32_t* indices, Py_ssize_t size) except -1:
        """Find, or admit, the slot of every name. The last few names are remembered by identity."""
        cdef void* remembered[NAME_CACHE]
        cdef int32_t remembered_index[NAME_CACHE]
        cdef int64_t removals = self.removals
        cdef Py_ssize_t i
        cdef uintptr_t identity
        cdef long index
        for i in range(size):
            indices[i] = -1
        memset(remembered, 0, sizeof(remembered))
        for i in range(size):
            if i >= len(names):
                raise RuntimeError("the slots changed while they were looked up")
            name = <object> PyList_GET_ITEM(names, i)
            identity = <uintptr_t> <PyObject*> name
            if remembered[(identity >> 4) % NAME_CACHE] == <void*> identity:
                indices[i] = remembered_index[(identity >> 4) % NAME_CACHE]
                continue
            index = slot_find(self, name)
            if index < 0:
                index = self.admit(name)
            indices[i] = index
            if PyUnicode_CheckExact(name) or PyLong_CheckExact(name):
                remembered[(identity >> 4) % NAME_CACHE] = <void*> identity
                remembered_index[(identity >> 4) % NAME_CACHE] = index
            else:  # looking it up may have run Python code, and freed what was remembered
                memset(remembered, 0, sizeof(remembered))
        if self.removals != removals:  # a name's own __eq__ used this queue meanwhile: look again
            return self.find_many(names, indices, size)
        return 0

    cdef int forget_unused(self, const int32_t* indices, Py_ssize_t size) except -1:
        """Forget the transient slots of a failed batch that have nothing in them."""
        cdef Py_ssize_t i
        cdef Slot* slot
        for i in range(size):
            if indices[i] < 0:
                break
            slot = &self.table.slots[indices[i]]
            if slot.quantum and slot.transient and not slot.active and not slot.held:
                self.forget(indices[i])
        return 0

    # -- getting ------------------------------------------------------------------------------------------------------

    def get(self, block=True, timeout=None):
        """get($self, block=True, timeout=None)
        --

        Serve one item.

        Parameters
        ----------
        block : bool
            Whether to wait for an item when there is none.
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.

        Returns
        -------
        tuple
            (slot name, item).

        Raises
        ------
        queue.Empty
            There is no item, and waiting was not wanted or took too long.
        ShutDown
            The queue is shut down and has no item left.
        ValueError
            The time-out is negative.
        """
        cdef uint64_t token = 0
        cdef uint32_t index
        with cython.critical_section(self):
            if self.table.queued == 0:
                self.wait_for_item(block, timeout)
            self.end_wait()
            index = dwrr_pop(&self.table, &token)
            if index >= AWAITED_SLOT:
                index = self.pop_awaited(&token, block, timeout)
            name = <object> PyList_GET_ITEM(self.name_of, index)
            item = <object> <PyObject*> <uintptr_t> token
            Py_DECREF(item)  # the entry's reference; `item` holds one of its own
            if self.table.forgettable != NO_SLOT:
                self.forget_idle()
            if self.putters.waiting:
                self.wake_putters(1)
            self.wake_next_getter()
            return name, item

    def get_many(self, n, timeout=None):
        """get_many($self, n, timeout=None)
        --

        Wait for an item, then serve up to `n` without waiting for more.

        Parameters
        ----------
        n : int
            At most so many.
        timeout : float, optional
            Longest wait in seconds for the first; None: as long as it takes.

        Returns
        -------
        Batch
            A sequence of (slot name, item) pairs, with the lists `slots` and `items`.

        Raises
        ------
        queue.Empty, ShutDown, ValueError
            As for `get`.
        """
        cdef int64_t limit = as_count(n)
        cdef int64_t size = 0, taken = 0
        cdef list names = []
        cdef list items = []
        with cython.critical_section(self):
            while limit and taken == 0:
                if self.table.queued == 0:
                    self.wait_for_item(True, timeout)
                size = min(limit, self.table.queued)
                names = PyList_New(size)
                items = PyList_New(size)
                # Making a list may run finalizers that use this queue: fewer items may be left, even none.
                self.end_wait()
                taken = self.take_many(names, items, size)
                if taken == 0 and self.table.queued:
                    timeout = self.wait_for_turn(True, timeout)
            if self.table.forgettable != NO_SLOT:
                self.forget_idle()
            if self.putters.waiting:
                self.wake_putters(taken)
            self.wake_next_getter()
        if taken < size:
            del names[taken:], items[taken:]
        return Batch(names, items)

    cdef int64_t take_many(self, list names, list items, int64_t size) noexcept:
        """Serve up to `size` items into new lists and return how many: no Python code runs in here."""
        cdef uint64_t token = 0
        cdef uint32_t index
        cdef int64_t i, taken = 0
        for i in range(size):
            index = dwrr_pop(&self.table, &token)
            if index >= AWAITED_SLOT:
                Py_INCREF(None)
                PyList_SET_ITEM(names, i, None)
                Py_INCREF(None)
                PyList_SET_ITEM(items, i, None)
                continue
            taken += 1
            Py_INCREF(<object> PyList_GET_ITEM(self.name_of, index))
            PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(self.name_of, index))
            PyList_SET_ITEM(items, i, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
        return taken

    cdef int forget_idle(self) except -1:
        """Forget the tenants that the last pop left idle and out of debt."""
        cdef uint32_t index = slots_take_idle(&self.table)
        while index != NO_SLOT:
            self.forget(index)
            index = slots_take_idle(&self.table)
        return 0

    # -- waiting ------------------------------------------------------------------------------------------------------

    cdef int wait_for_item(self, object block, object timeout) except -1:
        """Return once something is queued."""
        cdef object deadline = self.getters.deadline(block, timeout)
        while self.table.queued == 0:
            if self.is_shut_down:
                raise ShutDown("the queue is shut down and has no item left")
            if not block or not (self.getters.wait(deadline) or self.table.queued):
                if self.is_shut_down:
                    raise ShutDown("the queue is shut down and has no item left")
                raise queue.Empty
        return 0

    cdef uint32_t pop_awaited(self, uint64_t* token, object block, object timeout) except? 0xFFFFFFFF:
        """Serve one item once the slot whose turn it is has one, or its turn has passed."""
        cdef uint32_t index = AWAITED_SLOT
        while index >= AWAITED_SLOT:
            if index == AWAITED_SLOT:
                timeout = self.wait_for_turn(block, timeout)
            else:  # another getter took what there was
                self.wait_for_item(block, timeout)
            index = dwrr_pop(&self.table, token)
        return index

    cdef object wait_for_turn(self, object block, object timeout):
        """Wait for a put, while the slot whose turn it is may be waited for; return what is left of the time-out."""
        cdef object deadline = self.getters.deadline(block, timeout)
        cdef object now = self.getters.clock()
        cdef int64_t left = anticipation_left(&self.table, as_nanoseconds(now))
        if left == 0:
            return timeout
        if not block:
            raise queue.Empty
        self.anticipating += 1
        try:
            if deadline is not None and not now < deadline:
                raise queue.Empty
            until = now + left * 1e-9
            self.getters.wait(until if deadline is None else min(until, deadline))
        except BaseException:
            self.wake_next_getter()  # the puts that counted on this one woke nobody
            raise
        finally:
            self.anticipating -= 1
        self.end_wait()
        return None if deadline is None else max(0.0, deadline - self.getters.clock())

    cdef int end_wait(self) except -1:
        """Stop the clock of the slot whose turn it is, if it was waited for and has an item now."""
        cdef SlotTable* table = &self.table
        if table.awaited_since != NOT_AWAITED and table.active_count and table.slots[slots_first(table)].head != NULL:
            anticipation_end_wait(table, as_nanoseconds(self.getters.clock()))
        return 0

    cdef void wake_getters(self, int64_t count) noexcept:
        """Wake getters for new items, unless the turn is another slot's and somebody waits for that."""
        cdef SlotTable* table = &self.table
        if self.anticipating == 0 or table.slots[slots_first(table)].head != NULL:
            self.getters.wake(count)

    cdef void wake_next_getter(self) noexcept:
        """Make up for a wake-up that a put spared: with patience, whoever took an item wakes the next."""
        if self.table.patience and self.table.queued and self.getters.waiting:
            self.getters.wake(1)

    cdef int wait_for_room(self, object slot, int64_t count, object block, object timeout) except -1:
        """Return once `count` more items fit."""
        cdef object deadline = self.putters.deadline(block, timeout)
        if not self.default_quantum and slot_find(self, slot) < 0:
            self.admit(slot)  # raises: an unknown slot is an error now, not when there is room
        self.batches_waiting += count > 1
        try:
            while not self.is_shut_down and self.table.queued + count > self.maxsize:
                if not block or not self.putters.wait(deadline):
                    if self.is_shut_down or self.table.queued + count <= self.maxsize:
                        break
                    raise queue.Full
        finally:
            self.batches_waiting -= count > 1
        if self.is_shut_down:
            raise ShutDown("the queue is shut down")
        return 0

    cdef void wake_putters(self, int64_t freed) noexcept:
        """Wake as many putters as there is new room for; all, if one of them needs room for many."""
        self.putters.wake(self.putters.waiting if self.batches_waiting else freed)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def qsize(self):
        """qsize($self)
        --

        Number of items queued at this moment, in all slots.
        """
        return self.table.queued

    def shutdown(self, immediate=False):
        """shutdown($self, immediate=False)
        --

        Shut the queue down, as `queue.Queue.shutdown` does in Python 3.13.

        Puts raise `ShutDown` from now on, those that wait included. Gets go on until nothing is queued, then raise it.

        Parameters
        ----------
        immediate : bool
            Drop what is queued, so that gets raise at once.
        """
        cdef SlotTable* table = &self.table
        with cython.critical_section(self):
            self.is_shut_down = True
            anticipation_set(table, 0)  # nothing will come
            if immediate:
                drop_items(table)
            self.getters.wake(self.getters.waiting)
            self.putters.wake(self.putters.waiting)

    def close(self):
        """close($self)
        --

        Shut the queue down and let what is queued be got: `shutdown()`.
        """
        self.shutdown()

    def set_quantum(self, slot, quantum):
        """set_quantum($self, slot, quantum)
        --

        Change a slot's quantum; takes effect on its backlog at once.

        With a default quantum an unknown slot is added, and either way the slot is no longer forgotten when idle.

        Raises
        ------
        KeyError
            There is no such slot, and no default quantum.
        ValueError, OverflowError
            The quantum is not a positive integer of at most 2**62 - 1.
        """
        cdef int64_t amount = as_amount(quantum, f"quantum of slot {slot!r}")
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot)
            if index < 0:
                index = self.admit(slot)
            self.table.slots[index].transient = False
            dwrr_set_quantum(&self.table, index, amount)

    def settle(self, slot, cost_difference):
        """settle($self, slot, cost_difference)
        --

        Correct what a slot was charged, once the real cost is known.

        Parameters
        ----------
        slot : Hashable
            The slot's name. A tenant forgotten meanwhile comes back with its debt; a refund to it is void.
        cost_difference : int
            Measured cost minus the cost given to `put`. May drive the deficit below zero: the debt is paid before the
            slot's next turn.

        Raises
        ------
        KeyError
            There is no such slot, and no default quantum.
        ValueError
            The difference is not an integer.
        OverflowError
            The debt would exceed 2**62 - 1.
        """
        cdef int64_t difference = as_int64(cost_difference, "cost difference", "an integer")
        cdef Slot* found
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot)
            if index < 0:
                index = self.admit(slot)
            self.settle_index(index, difference)
            found = &self.table.slots[index]
            if found.transient and not found.active and not found.held:
                self.forget(index)

    def hold(self, slot, held):
        """hold($self, slot, held)
        --

        Say whether a slot, when it runs empty here, still has a backlog upstream.

        A held slot keeps its deficit (at most one quantum plus the largest cost) when it empties, so that shares do
        not flatten while the next delivery is in flight. Letting go of an empty slot drops what it kept.

        Returns
        -------
        bool
            True when a whole turn of the slot was waited for in vain (see `anticipate`) since it was held. It is not
            waited for again until it is held again, which this call does or ends.

        Raises
        ------
        KeyError
            There is no such slot.
        """
        cdef long index
        cdef bint in_vain
        with cython.critical_section(self):
            index = slot_find(self, slot)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            in_vain = dwrr_hold(&self.table, index, bool(held))
            self.forget_idle()
            return in_vain

    def anticipate(self, seconds):
        """anticipate($self, seconds)
        --

        Say how long a held slot is waited for when its turn comes, or goes on, while it is empty.

        With patience, getters pass over items of other slots and wait for the one whose turn it is: shares are those
        of the quanta even when getters are faster than what fills the queue. The wait ends with an item of the slot,
        or after so many seconds in one turn; then the turn passes. A few times the round trip to what fills the queue
        is enough.

        Parameters
        ----------
        seconds : float
            0: turns of empty slots pass at once.

        Raises
        ------
        ValueError
            `seconds` is not a number from 0 to 3600.
        """
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST_TURN:
            raise ValueError(f"anticipation must be a number of seconds from 0 to {LONGEST_TURN}, got {seconds!r}")
        with cython.critical_section(self):
            anticipation_set(&self.table, 0 if self.is_shut_down else as_nanoseconds(seconds))

    def anticipated(self):
        """anticipated($self)
        --

        Seconds for which `get` would still wait though items are queued; None when it would not.

        For those who do not block: call `get` again when an item was put, or after so many seconds.
        """
        cdef SlotTable* table = &self.table
        with cython.critical_section(self):
            if table.queued == 0 or table.awaited_since == NOT_AWAITED or table.slots[slots_first(table)].head != NULL:
                return None
            return anticipation_left(table, as_nanoseconds(self.getters.clock())) * 1e-9

    def stats(self):
        """stats($self)
        --

        Figures by slot name: a dict of `SlotStats`. O(slots).
        """
        with cython.critical_section(self):
            return self.all_stats()


# ---------------------------------------------------------------------------------------------------------------------
# Garbage collection. Cython shows the collector a class's Python attributes; the references in the entries are ours to
# show. Both functions are called with every other Python thread stopped or waiting for the GIL.

cdef traverse_t base_traverse = (<PyTypeObject*> FairQueue).tp_traverse
cdef clear_t base_clear = (<PyTypeObject*> FairQueue).tp_clear


cdef void drop_items(SlotTable* table) noexcept:
    """Take every item out, then let go of them: their finalizers may use the queue."""
    cdef list dropped = []
    cdef uint32_t i
    for i in range(table.size):
        while table.slots[i].quantum and table.slots[i].head != NULL:
            item = <object> <PyObject*> <uintptr_t> slots_unlink_head(table, &table.slots[i])
            Py_DECREF(item)
            dropped.append(item)


@cython.linetrace(False)
@cython.profile(False)
cdef int fairqueue_traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef SlotTable* table = &(<FairQueue> self).table
    cdef Entry* entry
    cdef uint32_t i
    cdef int stop
    for i in range(table.size):
        entry = table.slots[i].head if table.slots[i].quantum else NULL
        while entry != NULL:
            stop = visit(<PyObject*> <uintptr_t> entry.token, arg)
            if stop:
                return stop
            entry = entry.next
    return base_traverse(self, visit, arg)


@cython.linetrace(False)
@cython.profile(False)
cdef int fairqueue_clear(PyObject* self) noexcept:
    drop_items(&(<FairQueue> self).table)
    return base_clear(self)


(<PyTypeObject*> FairQueue).tp_traverse = fairqueue_traverse
(<PyTypeObject*> FairQueue).tp_clear = fairqueue_clear
