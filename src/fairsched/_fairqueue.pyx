"""A thread-safe, blocking queue of Python objects, served by deficit weighted round robin.

Exclusion. Everything but the waiting happens with the GIL held (on free-threaded builds: inside the object's critical
section). It is lost not only in a wait and around a wake-up, but wherever Python code may run: looking up a name may
call its __hash__ and __eq__, whatever allocates an object may call finalizers, and each of them may use this queue,
or let another thread do so. So every method converts its arguments first, looks the slot up, and does then, in one
stretch, what belongs together: finds room and puts, finds an item and takes it, finds a tenant idle and forgets it.
What may run Python code again (waking others, letting go of a name, an exception) comes after that. tests/reentrancy
lets others in at each of these points. How threads wait is in _fairwaiting.pyx, event loops in _waiter.pyx, many
items at once in _batching.pyx.

Ownership. The token of an entry is a pointer to the queued object, and the entry owns one reference to it. The
garbage collector is shown those references by the traverse function at the end of this file.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_New
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t

from fairsched._batching cimport store_many, take_many
from fairsched._core cimport NamedSlots, clear_t, slot_find, slot_pin, slot_unpin, slots_disown
from fairsched._fairwaiting cimport (
    READY, READY_AFTER_WAIT, Verdict, as_nanoseconds, hand_over, hand_room_over, has_room, is_awaiting, may_take,
    raise_verdict, wait_for_item, wait_for_room, wanted,
)
from fairsched._numbers cimport as_amount, as_count, as_int64, as_priority
from fairsched._waiter cimport waiter_of
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.anticipation cimport anticipation_left, anticipation_set
from fairsched.core.dwrr cimport dwrr_hold, dwrr_pop, dwrr_push, dwrr_retire_empty, dwrr_set_quantum
from fairsched.core.entrypool cimport Entry
from fairsched.core.slots cimport (
    HELD, HELD_ONLY, NOT_HELD, TRANSIENT, Slot, SlotTable, slots_report_idle, slots_unlink_head,
)
from fairsched.core.wakeup cimport wakeup_possible

import numpy as np

from fairsched._arrays import as_costs
from fairsched._core import checked_quanta
from fairsched.batch import Batch

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear

cdef enum:
    LONGEST_TURN = 3600  # seconds


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

    def __cinit__(self, quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None):
        if clock is not None and not callable(clock):
            raise ValueError(f"clock must be callable and return seconds, got {clock!r}")
        self.maxsize = max(as_int64(maxsize, "maxsize", "an integer (0 or less: no limit)"), 0)
        self.default_quantum = 0 if default_quantum is None else as_amount(default_quantum, "default_quantum")
        self.getters = WaitingRoom(clock)
        self.putters = WaitingRoom(clock, True)
        self.anticipate(anticipation)
        for name, quantum in [] if quanta is None else checked_quanta(quanta):
            self.add_new(name, quantum)

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
        TypeError
            The time-out, where it is needed, is no number.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            if has_room(self, 1):
                self.store(index, item, amount)
            else:
                self.store_after_wait(index, item, amount, block, timeout)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(wanted(self))

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
            store_many(self, slots, names, objects, &cost_view[0] if cost_view is not None else NULL, block, timeout)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(wanted(self))

    cdef int store(self, uint32_t index, object item, int64_t cost) except -1:
        Py_INCREF(item)
        if not dwrr_push(&self.table, index, <uint64_t> <uintptr_t> <PyObject*> item, cost):
            Py_DECREF(item)
            raise MemoryError()
        return 0

    cdef int store_after_wait(self, uint32_t index, object item, int64_t cost, bint block, object timeout) except -1:
        """Wait for room in a slot that is not forgotten meanwhile; what room is left is handed over."""
        slot_pin(self, index)
        try:
            wait_for_room(self, 1, block, timeout)
            self.store(index, item, cost)
        finally:
            slot_unpin(self, index)
            hand_room_over(self)
            self.forget_idle()
        return 0

    cdef uint32_t admit(self, object name, int64_t hash) except? 0xFFFFFFFF:
        """Add an unknown slot, where that is wanted."""
        if not self.default_quantum:
            raise KeyError(f"no slot is named {name!r}, and there is no default_quantum to add it with")
        return self.add(name, hash, self.default_quantum, True)

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
        TypeError
            The time-out, where it is needed, is no number.
        """
        cdef int32_t rank = as_priority(priority)
        cdef Verdict verdict = READY
        cdef uint64_t token = 0
        cdef uint32_t index
        with cython.critical_section(self):
            if not may_take(self, rank):
                deadline = self.getters.deadline(block, timeout)
                verdict = wait_for_item(self, block, deadline, rank, 1)
                if verdict > READY_AFTER_WAIT:
                    raise_verdict(verdict, True)
            index = dwrr_pop(&self.table, &token)
            name = <object> PyList_GET_ITEM(self.name_of, index)
            item = <object> <PyObject*> <uintptr_t> token
            Py_DECREF(item)  # the entry's reference; `item` holds one of its own
            if verdict == READY_AFTER_WAIT:
                hand_over(self)
            if wakeup_possible(&self.putters.interest):
                hand_room_over(self)
            if self.table.idle_count:
                self.forget_idle()
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
        cdef Verdict verdict = READY
        cdef list names = []
        cdef list items = []
        deadline = None
        with cython.critical_section(self):
            while limit and taken == 0:
                if verdict == READY_AFTER_WAIT:  # and somebody else was quicker
                    hand_over(self)
                # Making a list may run finalizers that use this queue: so it is made before anything is looked at.
                size = min(limit, max(self.table.queued, 1))
                names = PyList_New(size)
                items = PyList_New(size)
                if may_take(self, rank):
                    taken = take_many(self, names, items, size)
                    continue
                if verdict == READY:
                    deadline = self.getters.deadline(True, timeout)
                verdict = wait_for_item(self, True, deadline, rank, limit)
                if verdict > READY_AFTER_WAIT:
                    raise_verdict(verdict, True)
            if verdict == READY_AFTER_WAIT:
                hand_over(self)
            if wakeup_possible(&self.putters.interest):
                hand_room_over(self)
            if self.table.idle_count:
                self.forget_idle()
        if taken < size:
            del names[taken:], items[taken:]
        return Batch(names, items)

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
        return waiter_of(self, callback, priority)

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
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
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
            Drop what is queued, so that gets raise at once. It was not served, and slots added for it are forgotten.
        """
        cdef SlotTable* table = &self.table
        with cython.critical_section(self):
            self.is_shut_down = True
            anticipation_set(table, 0)  # nothing will come
            if immediate:
                drop_items(table)
                self.forget_idle()
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
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            self.table.slots[index].flags &= ~TRANSIENT
            dwrr_set_quantum(&self.table, index, amount)
            self.getters.wake(self.table.queued)  # those who wait for this slot's turn, perhaps

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
        cdef bint awaiting
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            awaiting = is_awaiting(self)
            try:
                self.settle_index(index, difference)
            finally:
                slots_report_idle(&self.table, index)
                if awaiting:  # perhaps for this slot, whose turn may be over
                    self.getters.wake(self.table.queued)
                self.forget_idle()

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
        cdef bint is_held = held, is_awaited = awaited
        cdef int state = HELD if is_held and is_awaited else HELD_ONLY if is_held else NOT_HELD
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            state = dwrr_hold(&self.table, index, state)
            self.getters.wake(self.table.queued)  # those who wait for this slot's turn, perhaps
            self.forget_idle()
            return state == HELD

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
        cdef int64_t patience = as_nanoseconds(seconds)
        with cython.critical_section(self):
            anticipation_set(&self.table, 0 if self.is_shut_down else patience)
            self.getters.wake(self.table.queued)

    def anticipated(self):
        """anticipated($self)
        --

        Seconds for which `get` would still wait though items are queued; None when it would not.

        For those who do not block: call `get` again when an item was put, or after so many seconds.
        """
        cdef int64_t now
        with cython.critical_section(self):
            if not is_awaiting(self):
                return None
            now = as_nanoseconds(self.getters.clock())
            return anticipation_left(&self.table, now) * 1e-9 if is_awaiting(self) else None

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
    """Take every item out, unserved, then let go of them: their finalizers may use the queue."""
    cdef list dropped = []
    cdef Slot* slot
    cdef uint32_t i
    for i in range(table.size):
        slot = &table.slots[i]
        while slot.quantum and slot.head != NULL:
            item = <object> <PyObject*> <uintptr_t> slots_unlink_head(table, slot)
            slot.served -= 1
            slot.pushed -= 1  # as though it had never come
            Py_DECREF(item)
            dropped.append(item)
    dwrr_retire_empty(table)


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
    slots_disown(<FairQueue> self)
    return base_clear(self)


(<PyTypeObject*> FairQueue).tp_traverse = fairqueue_traverse
(<PyTypeObject*> FairQueue).tp_clear = fairqueue_clear
