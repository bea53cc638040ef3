"""A thread-safe, blocking queue of Python objects, served by deficit weighted round robin.

Exclusion. Everything but the waiting happens with the GIL held (on free-threaded builds: inside the object's critical
section), and nothing between two reads of the state runs Python code or gives the GIL up. Threads that wait are
consumers, of items or of room, in a `WaitingRoom`; a put or get gives the GIL up only around a wake-up. Who waited
hands over what is left, once he has taken his own.

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
from fairsched._numbers cimport as_amount, as_count, as_int64, as_priority
from fairsched._waitingroom cimport Seat, WaitingRoom
from fairsched.core.anticipation cimport anticipation_end_wait, anticipation_left, anticipation_set
from fairsched.core.dwrr cimport (
    dwrr_hold, dwrr_pop, dwrr_push, dwrr_reserve, dwrr_set_quantum, dwrr_turn,
)
from fairsched.core.entrypool cimport Entry
from fairsched.core.slots cimport (
    AWAITED_SLOT, HELD, HELD_ONLY, NO_SLOT, NOT_AWAITED, NOT_HELD, Slot, SlotTable, slots_first,
    slots_take_idle, slots_unlink_head,
)
from fairsched.core.wakeup cimport wakeup_higher, wakeup_possible

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
    Thread safety: every method may be called from any thread; each is atomic. One item put wakes one waiting thread: of
    those of the highest priority, the one that waited longest.

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
    cdef int64_t anticipating     # getters that wait for the slot whose turn it is, and look again in time
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
        self.putters = WaitingRoom(clock, True)
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
        cdef bint waited = False
        cdef long index
        with cython.critical_section(self):
            if not self.has_room(1):
                waited = self.wait_for_room(slot, 1, block, timeout)
            try:
                index = slot_find(self, slot)
                if index < 0:
                    index = self.admit(slot)
                Py_INCREF(item)
                if not dwrr_push(&self.table, index, <uint64_t> <uintptr_t> <PyObject*> item, amount):
                    Py_DECREF(item)
                    raise MemoryError()
            finally:
                if waited:
                    self.putters.wake(self.maxsize - self.table.queued)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(self.wanted())

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
        cdef bint waited = False
        if names is not None and len(names) != size:
            raise ValueError(f"slots must have one name for each item: {size} items, {len(names)} slots")
        if costs is not None:
            cost_view = as_costs(costs, size)
        if self.maxsize and size > self.maxsize:
            raise ValueError(f"items must fit in maxsize={self.maxsize}, got {size}")
        if size == 0:
            return
        with cython.critical_section(self):
            if not self.has_room(size):
                waited = self.wait_for_room(slots if names is None else names[0], size, block, timeout)
            try:
                self.store_many(slots, names, objects, &cost_view[0] if cost_view is not None else NULL)
            finally:
                if waited:
                    self.putters.wake(self.maxsize - self.table.queued)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(self.wanted())

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

    def get(self, block=True, timeout=None, *, priority=0):
        """get($self, block=True, timeout=None, *, priority=0)
        --

        Serve one item.

        Parameters
        ----------
        block : bool
            Whether to wait for an item when there is none.
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.
        priority : int
            Whose turn it is among getters, from -2**31 to 2**31 - 1: while one of a higher priority waits, or is on its
            way to the item it was woken for, this call takes nothing.

        Returns
        -------
        tuple
            (slot name, item).

        Raises
        ------
        queue.Empty
            There is no item for this priority, and waiting was not wanted or took too long.
        ShutDown
            The queue is shut down and has no item left.
        ValueError, OverflowError
            The time-out is negative, or the priority is not an integer of 32 bits.
        """
        cdef int32_t rank = as_priority(priority)
        cdef uint64_t token = 0
        cdef uint32_t index
        cdef bint waited = False
        with cython.critical_section(self):
            if not self.may_take(rank):
                waited = self.wait_for_item(block, timeout, rank, 1)
            index = dwrr_pop(&self.table, &token)
            name = <object> PyList_GET_ITEM(self.name_of, index)
            item = <object> <PyObject*> <uintptr_t> token
            Py_DECREF(item)  # the entry's reference; `item` holds one of its own
            if waited:
                self.hand_over()
            if self.table.forgettable != NO_SLOT:
                self.forget_idle()
            if wakeup_possible(&self.putters.interest):
                self.putters.wake(self.maxsize - self.table.queued)
            return name, item

    def get_many(self, n, timeout=None, *, priority=0):
        """get_many($self, n, timeout=None, *, priority=0)
        --

        Wait for an item, then serve up to `n` without waiting for more.

        Parameters
        ----------
        n : int
            At most so many.
        timeout : float, optional
            Longest wait in seconds for the first; None: as long as it takes.
        priority : int
            As for `get`. Who waits for `n` is woken in place of so many who wait for one.

        Returns
        -------
        Batch
            A sequence of (slot name, item) pairs, with the lists `slots` and `items`.

        Raises
        ------
        queue.Empty, ShutDown, ValueError, OverflowError
            As for `get`.
        """
        cdef int32_t rank = as_priority(priority)
        cdef int64_t limit = as_count(n)
        cdef int64_t size = 0, taken = 0
        cdef list names = []
        cdef list items = []
        cdef bint waited = False
        with cython.critical_section(self):
            try:
                while limit and taken == 0:
                    if not self.may_take(rank):
                        waited |= self.wait_for_item(True, timeout, rank, limit)
                    size = min(limit, self.table.queued)
                    names = PyList_New(size)
                    items = PyList_New(size)
                    # Making a list may run finalizers that use this queue: fewer items may be left, even none.
                    taken = self.take_many(names, items, size)
            finally:
                if waited:
                    self.hand_over()
            if self.table.forgettable != NO_SLOT:
                self.forget_idle()
            if wakeup_possible(&self.putters.interest):
                self.putters.wake(self.maxsize - self.table.queued)
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

    cdef inline int may_take(self, int32_t rank) except -1:
        """1 when something is queued, no getter of a higher priority is to have it, and no slot is waited for."""
        return self.table.queued != 0 and not (
            wakeup_higher(&self.getters.interest, rank) and self.getters.outranked(rank)
        ) and (self.table.patience == 0 or self.is_due())

    cdef int is_due(self) except -1:
        """1 when the slot whose turn it is has an item; turns that were waited for long enough pass."""
        cdef SlotTable* table = &self.table
        cdef int64_t now
        if dwrr_turn(table) != AWAITED_SLOT and table.awaited_since == NOT_AWAITED:
            return 1
        now = as_nanoseconds(self.getters.clock())  # a clock of the caller's own may run anything
        while table.queued and dwrr_turn(table) == AWAITED_SLOT:
            if anticipation_left(table, now) > 0:
                return 0
        if table.awaited_since != NOT_AWAITED:
            anticipation_end_wait(table, now)
        return table.queued != 0

    cdef inline bint is_awaiting(self) noexcept:
        """True when items are queued, but the last look found that the turn of an empty slot is waited for."""
        cdef SlotTable* table = &self.table
        return table.queued and table.awaited_since != NOT_AWAITED and table.slots[slots_first(table)].head == NULL

    cdef inline int64_t wanted(self) noexcept:
        """Items that getters are to be woken for: none while one of them sees to the slot whose turn it is."""
        return 0 if self.anticipating and self.is_awaiting() else self.table.queued

    cdef inline bint has_room(self, int64_t count) noexcept:
        """True when `count` more items may be put."""
        return not self.is_shut_down and (not self.maxsize or self.table.queued + count <= self.maxsize)

    cdef bint wait_for_item(self, object block, object timeout, int32_t rank, int64_t limit) except -1:
        """Return once something may be taken. True: it was waited for, so what is left is to be handed over."""
        cdef object deadline = self.getters.deadline(block, timeout)
        cdef bint in_time = False
        cdef Seat* seat
        if self.may_take(rank):
            return False
        self.check_for_end()
        if not block:
            raise queue.Empty
        seat = self.getters.sit(rank, limit)
        try:
            in_time = self.wait_seated(seat, deadline)
            while not self.may_take(rank):
                self.check_for_end()
                if not in_time:
                    raise queue.Empty
                self.getters.stay(seat)
                if not self.is_awaiting():  # else this getter sees to it
                    self.hand_over()
                in_time = self.wait_seated(seat, deadline)
        except BaseException:
            self.getters.leave(seat)
            self.hand_over()
            raise
        self.getters.leave(seat)
        return True

    cdef bint wait_seated(self, Seat* seat, object deadline) except -1:
        """Wait to be claimed, or until the turn passes that is waited for; False when the deadline passed."""
        cdef bint woken
        if not self.is_awaiting():
            return self.getters.wait(seat, deadline)
        now = self.getters.clock()
        until = now + anticipation_left(&self.table, as_nanoseconds(now)) * 1e-9
        self.anticipating += 1
        try:
            woken = self.getters.wait(seat, until if deadline is None else min(until, deadline))
        finally:
            self.anticipating -= 1
        return woken or deadline is None or self.getters.clock() < deadline

    cdef int check_for_end(self) except -1:
        if self.is_shut_down and self.table.queued == 0:
            raise ShutDown("the queue is shut down and has no item left")
        return 0

    cdef void hand_over(self) noexcept:
        """Wake getters for what is left, after one that waited has taken its items or has given up."""
        if self.table.queued:
            self.getters.wake(self.wanted())
        elif self.is_shut_down:
            self.getters.wake_all()

    cdef bint wait_for_room(self, object slot, int64_t count, object block, object timeout) except -1:
        """Return once `count` more items fit. True: they were waited for; what room is left is to be handed over."""
        cdef object deadline = self.putters.deadline(block, timeout)
        cdef bint in_time = False
        cdef Seat* seat
        if not self.default_quantum and slot_find(self, slot) < 0:
            self.admit(slot)  # raises: an unknown slot is an error now, not when there is room
        if self.has_room(count):
            return False
        if not block and not self.is_shut_down:
            raise queue.Full
        if self.is_shut_down:
            raise ShutDown("the queue is shut down")
        seat = self.putters.sit(0, count)
        try:
            in_time = self.putters.wait(seat, deadline)
            while not self.has_room(count):
                if self.is_shut_down:
                    raise ShutDown("the queue is shut down")
                if not in_time:
                    raise queue.Full
                self.putters.stay(seat)
                self.putters.wake(self.maxsize - self.table.queued)
                in_time = self.putters.wait(seat, deadline)
        except BaseException:
            self.putters.leave(seat)
            self.putters.wake(self.maxsize - self.table.queued)
            raise
        self.putters.leave(seat)
        return True

    def call_when_ready(self, callback, *, priority=0):
        """call_when_ready($self, callback, *, priority=0)
        --

        Wait for an item without blocking a thread: for event loops.

        Parameters
        ----------
        callback : callable
            Called without arguments when it is this waiter's turn, or the queue is shut down: perhaps at once, and in
            any thread that uses the queue, so it should do no more than tell somebody. Then `get(block=False)` with
            the same priority, and `Waiter.leave`, or `Waiter.again` when there was nothing after all.
        priority : int
            As for `get`.

        Returns
        -------
        Waiter
            Until it has left, getters of lower priority get nothing.

        Raises
        ------
        ValueError, OverflowError
            The callback is not callable, or the priority is not an integer of 32 bits.
        """
        cdef int32_t rank = as_priority(priority)
        cdef Waiter waiter
        if not callable(callback):
            raise ValueError(f"callback must be callable, got {callback!r}")
        waiter = Waiter.__new__(Waiter)
        waiter.queue = self
        waiter.callback = callback
        with cython.critical_section(self):
            waiter.seat = self.getters.sit(rank, 1, <PyObject*> callback)
            if not self.is_awaiting():
                self.hand_over()  # it may be the one that is to have what is queued
        return waiter

    # -- the rest -----------------------------------------------------------------------------------------------------

    def qsize(self):
        """qsize($self)
        --

        Number of items queued at this moment, in all slots.
        """
        return self.table.queued

    def backlog(self, slot):
        """backlog($self, slot)
        --

        Number of items queued in one slot at this moment; 0 when there is no such slot.
        """
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot)
            return 0 if index < 0 else self.table.slots[index].pushed - self.table.slots[index].served

    def waiting(self):
        """waiting($self)
        --

        Priorities of the getters that wait at this moment, in the order in which they will be woken: a list of int.

        One that was woken and is on its way is not listed. O(getters).
        """
        with cython.critical_section(self):
            return self.getters.waiting()

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
            self.getters.wake_all()
            self.putters.wake_all()

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

    def hold(self, slot, held, awaited=True):
        """hold($self, slot, held, awaited=True)
        --

        Say whether a slot, when it runs empty here, still has a backlog upstream.

        A held slot keeps its deficit (at most one quantum plus the largest cost) when it empties, so that shares do
        not flatten while the next delivery is in flight. Letting go of an empty slot drops what it kept.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        held : bool
            Whether it has a backlog.
        awaited : bool
            Whether to wait for it, too; see `anticipate`. Not worth while where less than a turn's worth of messages
            can be under way: then each turn would last for several round trips.

        Returns
        -------
        bool
            Whether the slot was waited for until now. Not so, though it was to be, when a whole turn was waited for in
            vain; it is not waited for again until a call like this one says so.

        Raises
        ------
        KeyError
            There is no such slot.
        """
        cdef long index
        cdef int before
        with cython.critical_section(self):
            index = slot_find(self, slot)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            before = dwrr_hold(&self.table, index, HELD if held and awaited else HELD_ONLY if held else NOT_HELD)
            self.forget_idle()
            if self.anticipating:  # perhaps for this slot
                self.getters.wake(self.table.queued)
            return before == HELD

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
            if self.anticipating:
                self.getters.wake(self.table.queued)

    def anticipated(self):
        """anticipated($self)
        --

        Seconds for which `get` would still wait though items are queued; None when it would not.

        For those who do not block: call `get` again when an item was put, or after so many seconds.
        """
        with cython.critical_section(self):
            if not self.is_awaiting():
                return None
            return anticipation_left(&self.table, as_nanoseconds(self.getters.clock())) * 1e-9

    def stats(self):
        """stats($self)
        --

        Figures by slot name: a dict of `SlotStats`. O(slots).
        """
        with cython.critical_section(self):
            return self.all_stats()


@cython.final
cdef class Waiter:
    """Who waits for an item of a `FairQueue` with a callback; made by `FairQueue.call_when_ready`.

    Notes
    -----
    Thread safety: any thread. Complexity: O(1). It leaves, too, when it is no longer used.
    """

    cdef FairQueue queue
    cdef object callback
    cdef Seat* seat

    def __del__(self):
        self.leave()

    def again(self):
        """again($self)
        --

        Wait on, behind all others of this priority, after a call that found nothing. The callback is called again. If
        `FairQueue.anticipated` is not None, try again after so many seconds without being called, too.

        Raises
        ------
        RuntimeError
            The waiter has left.
        """
        with cython.critical_section(self.queue):
            if self.seat == NULL:
                raise RuntimeError("the waiter has left")
            self.queue.getters.stay(self.seat)
            if not self.queue.is_awaiting():  # else nobody else could take an item either
                self.queue.hand_over()

    def leave(self):
        """leave($self)
        --

        Wait no longer; whoever is next is woken for what is left. Does nothing the second time.
        """
        with cython.critical_section(self.queue):
            if self.seat != NULL:
                self.queue.getters.leave(self.seat)
                self.seat = NULL
                self.queue.hand_over()


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
