"""A thread-safe, blocking queue of Python objects, served by deficit weighted round robin.

In this file, in this order:

    FairQueue             what callers see: put, get, and the rest
    who may go on         what a put or a get may do at this moment, and how it waits until it may
    many items at once    put_many and get_many
    subkeys               a second level below the slots
    Waiter                who waits without blocking a thread, as an event loop does
    garbage collection    the references that entries own

Exclusion. Everything but the waiting happens with the GIL held (on free-threaded builds: inside the object's critical
section). It is lost not only in a wait and around a wake-up, but wherever Python code may run: looking up a name may
call its __hash__ and __eq__, whatever allocates an object may call finalizers, and each of them may use this queue,
or let another thread do so. So every method converts its arguments first, looks the slot up, and does then, in one
stretch, what belongs together: finds room and puts, finds an item and takes it, finds a tenant idle and forgets it.
What may run Python code again (waking others, letting go of a name, an exception) comes after that. tests/reentrancy
lets others in at each of these points.

Ownership. The token of an entry is a pointer to the queued object, and the entry owns one reference to it; with
subkeys, that is the entry of the subkey, and those of slots own nothing. The garbage collector is shown those
references by the traverse function at the end of this file.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.math cimport INFINITY, nextafter
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched._core cimport (
    NamedSlots, clear_t, slot_figures, slot_find, slot_pin, slot_settle, slot_unpin, slots_disown,
)
from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.anticipation cimport (
    anticipation_awaits, anticipation_cost, anticipation_end_wait, anticipation_left, anticipation_set,
)
from fairsched.core.schedule.bands cimport (
    bands_above, bands_enter, bands_exchange, bands_of, bands_serve, bands_set, bands_start,
)
from fairsched.core.schedule.dwrr cimport (
    dwrr_charge_elsewhere, dwrr_hold, dwrr_pop, dwrr_push, dwrr_reserve, dwrr_retire_empty, dwrr_set_quantum, dwrr_turn,
)
from fairsched.core.schedule.entrypool cimport Entry, EntryPool, entrypool_clear, entrypool_init
from fairsched.core.schedule.limits cimport (
    Limit, NEVER, SlotLimit, limits_add, limits_clear, limits_due, limits_give_back, limits_init, limits_reserve,
    limits_set, limits_take, limits_tell,
)
from fairsched.core.schedule.outlook cimport Outlook, outlook_read
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, AWAITED_SLOT, BANDS, HELD, HELD_ONLY, NOT_AWAITED, NOT_HELD, NO_SLOT, TRANSIENT, Slot, SlotTable,
    slots_first, slots_report_idle, slots_take_idle,
)
from fairsched.core.schedule.subkeys cimport (
    subkeys_clear, subkeys_enter, subkeys_forgive, subkeys_init, subkeys_list, subkeys_pop, subkeys_push,
    subkeys_reserve, subkeys_retire_empty, subkeys_settle,
)
from fairsched.core.waiting.node cimport NOTIFIED, node_state
from fairsched.core.waiting.wakeup cimport wakeup_higher, wakeup_possible
from fairsched.scheduling._buffers cimport array_data
from fairsched.scheduling._numbers cimport as_amount, as_count, as_int64, as_priority
from fairsched.scheduling._waitingroom cimport Seat, WaitingRoom

import queue

import numpy as np

from fairsched._core import checked_quanta
from fairsched.errors import ShutDown
from fairsched.scheduling._arrays import as_costs
from fairsched.scheduling.bands import check_band
from fairsched.scheduling.batch import Batch
from fairsched.scheduling.limit import Limit as GivenLimit
from fairsched.stats import LimitStats, SlotOutlook

cdef extern from *:
    """
    // In this module slots may go before others on demand; see bands.pxd and sparse.pxd.
    #undef FAIRSCHED_BANDED
    #define FAIRSCHED_BANDED 1
    #undef FAIRSCHED_SPARSE
    #define FAIRSCHED_SPARSE 1
    """

ctypedef int (*traverse_t)(PyObject*, visitproc, void*) noexcept
cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        traverse_t tp_traverse
        clear_t tp_clear
    void Py_SET_SIZE(PyObject* container, Py_ssize_t size) noexcept

#: The subkey of items for which none is given.
cdef str NOBODY = ""

cdef enum:
    LONGEST_TURN = 3600  # seconds
    NAME_CACHE = 16      # names of put_many that are known by identity

cdef enum Verdict:  # on what a call may do at this moment
    VERDICT_ERROR = -1
    READY
    READY_AFTER_WAIT  # what is left is to be handed over
    TOO_LATE
    IS_SHUT_DOWN
    WAIT


@cython.final
cdef class FairQueue(NamedSlots):
    """FairQueue(quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None, limit=None, \
sparse_boost=False, subkey_quantum=None)
    --

    A thread-safe queue that serves its slots in weighted fair order, where `queue.Queue` is first in, first out.

    Parameters
    ----------
    quanta : Mapping[Hashable, int], optional
        Slot names and quanta. A slot's share of the served cost is its quantum divided by the sum of the quanta of all
        backlogged slots.
    maxsize : int
        Maximum number of queued items in all slots together; 0 or less: no limit.
    default_quantum : int, optional
        Quantum of slots (tenants) not named in `quanta`. They are created on first use and forgotten when idle and out
        of debt. Without a default quantum, an unknown slot raises KeyError.
    anticipation : float
        Longest time in seconds to wait, per turn, for an item of a held slot (see `hold`) that is empty; see
        `anticipate`.
    clock : callable, optional
        Returns the time in seconds, used for time-outs; `time.monotonic` by default. A blocked call polls any other
        clock every millisecond.
    limit : Limit, optional
        How many items of a slot may be served and not yet released (see `release`), and how fast the slot is served. It
        applies to every slot without a limit of its own (see `set_limit`). A slot at its limit takes no turns until it
        may be served again; other slots continue.
    sparse_boost : bool
        Whether a slot that was empty for a round and then gets an item takes its next turn before the others; see
        Notes.
    subkey_quantum : int, optional
        Quantum of each subkey within its slot: the slot's service is divided equally among the subkeys of its items
        (see `put`). Without it, items have no subkeys.

    Raises
    ------
    ValueError
        A quantum is not a positive integer, or `limit` is not a `Limit`.
    OverflowError
        A quantum is above 2**62 - 1.

    Notes
    -----
    Complexity: put and get are O(1), as in `Dwrr`; idle tenants cost nothing. Memory: 24 bytes per queued item, in
    addition to the item. Subkeys: the cost served to two subkeys of one slot that always have items differs by at most
    subkey_quantum + 2 * (the largest cost). A slot's share does not depend on the number of its subkeys. Subkeys are
    created on first use, and forgotten when idle and out of debt, or with their slot. Memory: 24 more bytes per item,
    and 120 per subkey. Boost: a slot is boosted at most once per round of the other slots, for one turn. In any period,
    the number of boosts exceeds the number of turns that other slots complete by at most 16. A tenant that runs empty
    is forgotten one round later. Thread safety: every method may be called from any thread, and each is atomic. Each
    item put wakes one waiting thread: of those with the highest priority, the one that has waited longest.

    Examples
    --------
    >>> tenants = FairQueue({"gold": 3}, default_quantum=1)
    >>> for i in range(4):
    ...     tenants.put("gold", i)
    ...     tenants.put("free", i)
    >>> [tenants.get() for _ in range(5)]
    [('gold', 0), ('gold', 1), ('gold', 2), ('free', 0), ('gold', 3)]
    """

    def __cinit__(
        self, quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None, limit=None,
        sparse_boost=False, subkey_quantum=None,
    ):
        limits_init(&self.limits)
        subkeys_init(&self.levels)
        self.one_subkey = NOBODY
        self.watched_until = NEVER
        if clock is not None and not callable(clock):
            raise ValueError(f"clock must be callable and return seconds, got {clock!r}")
        self.maxsize = max(as_int64(maxsize, "maxsize", "an integer (0 or less: no limit)"), 0)
        self.default_quantum = 0 if default_quantum is None else as_amount(default_quantum, "default_quantum")
        if subkey_quantum is not None:
            self.subkey_quantum = as_amount(subkey_quantum, "subkey_quantum")
            self.below = SubkeySlots.__new__(SubkeySlots)
            self.levels.below = &self.below.table
            self.one_subkey = self.below  # which none is
        self.getters = WaitingRoom(clock)
        self.putters = WaitingRoom(clock, True)
        self.anticipate(anticipation)
        self.table.sparse = sparse_boost
        for name, quantum in [] if quanta is None else checked_quanta(quanta):
            self.add_new(name, quantum)
        if limit is not None:
            self.limit_slots(as_limit(limit))

    def __dealloc__(self):
        drop_items(self)
        limits_clear(&self.limits)
        subkeys_clear(&self.levels)

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, slot, item, block=True, timeout=None, *, cost=1, subkey=NOBODY):
        """put($self, slot, item, block=True, timeout=None, *, cost=1, subkey='')
        --

        Append an item to a slot.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        item : object
        block : bool
            Whether to wait for room when the queue is full.
        timeout : float, optional
            Longest wait in seconds; None: no time-out.
        cost : int
            Cost of serving the item: a positive integer, in the unit of the quanta.
        subkey : Hashable
            With a `subkey_quantum`: the item's subkey within the slot. The slot's turns serve its subkeys in equal
            parts, and the items of each subkey in the order in which they were put.

        Raises
        ------
        queue.Full
            The queue is full, and `block` is false or the time-out passed.
        ShutDown
            The queue is shut down.
        KeyError
            There is no such slot and no default quantum.
        ValueError, OverflowError
            The cost is not a positive integer of at most 2**62 - 1, the time-out is negative, or there is a subkey and
            no `subkey_quantum`.
        TypeError
            The time-out is not a number; raised only if the call has to wait.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            if rarely(subkey is not self.one_subkey):
                store_below(self, slot, subkey, item, amount, block, timeout)
            else:
                index = slot_find(self, slot, &hash)
                if rarely(index < 0):
                    index = self.admit(slot, hash)
                if rarely(not has_room(self, 1)):
                    self.store_after_wait(index, item, amount, block, timeout)
                else:
                    self.store(index, item, amount)
            if rarely(wakeup_possible(&self.getters.interest)):
                self.getters.wake(wanted(self))

    def put_nowait(self, slot, item, *, cost=1, subkey=NOBODY):
        """put_nowait($self, slot, item, *, cost=1, subkey='')
        --

        Append an item to a slot without waiting: ``put(slot, item, block=False)``.
        """
        self.put(slot, item, False, None, cost=cost, subkey=subkey)

    def put_many(self, slots, items, costs=None, block=True, timeout=None, *, subkeys=NOBODY):
        """put_many($self, slots, items, costs=None, block=True, timeout=None, *, subkeys='')
        --

        Append many items, all or (on an error) none.

        Parameters
        ----------
        slots : list or numpy.ndarray, or Hashable
            A list or array gives the slot of each item; any other value is the slot of all items.
        items : Iterable
        costs : array-like of int, optional
            One positive integer per item; 1 each by default.
        block, timeout
            As for `put`; the call waits until there is room for all items.
        subkeys : list or numpy.ndarray, or Hashable
            As for `slots`: the subkey of each item, or one for all items; see `put`.

        Raises
        ------
        queue.Full, ShutDown, KeyError, OverflowError
            As for `put`.
        ValueError
            Lengths differ, there are more items than `maxsize`, or as for `put`.
        """
        cdef const int64_t* cost_at = NULL
        cdef object checked
        cdef list objects = items if type(items) is list else list(items)
        cdef Py_ssize_t size = len(objects)
        cdef list names = one_each(slots, size, "slots")
        cdef list subnames = None
        if rarely(subkeys is not self.one_subkey):
            subnames = one_each(subkeys, size, "subkeys")
            check_subkey(self, subnames[0] if subnames else subkeys)
        if costs is not None:
            checked = as_costs(costs, size)
            cost_at = <const int64_t*> array_data(checked)
        if self.maxsize and size > self.maxsize:
            raise ValueError(f"items must fit in maxsize={self.maxsize}, got {size}")
        if size == 0:
            return
        with cython.critical_section(self):
            if rarely(self.levels.below != NULL):
                store_many_below(self, slots, names, subkeys, subnames, objects, cost_at, block, timeout)
            else:
                store_many(self, slots, names, objects, cost_at, block, timeout)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(wanted(self))

    cdef int store(self, uint32_t index, object item, int64_t cost) except -1:
        Py_INCREF(item)
        if rarely(not dwrr_push(&self.table, index, <uint64_t> <uintptr_t> <PyObject*> item, cost)):
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
        cdef uint32_t index
        if rarely(self.limits.on) and not limits_reserve(&self.limits, &self.table):
            raise MemoryError()
        index = self.add(name, hash, self.default_quantum, True)
        if rarely(self.limits.on):
            limits_add(&self.limits, index)
        return index

    cdef void forget_idle(self) noexcept:
        """Forget the transient slots that are idle at this moment, and first of all subkeys that are."""
        cdef SlotTable* below = self.levels.below
        cdef uint32_t index
        if below == NULL:
            NamedSlots.forget_idle(self)
            return
        while True:
            index = slots_take_idle(below)
            if index != NO_SLOT:
                if self.below.names.names[index].pins == 0:
                    slot_unpin(self, self.levels.above[index])
                    self.below.forget(index)
                continue
            index = slots_take_idle(&self.table)
            if index == NO_SLOT:
                return
            if self.names.names[index].pins == 0:
                self.forget(index)
            else:  # its subkeys owe something, or somebody is about to use it; the last of them reports it again
                subkeys_forgive(&self.levels, index)

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
            Longest wait in seconds; None: no time-out.
        priority : int
            Priority among getters, from -2**31 to 2**31 - 1. While a getter of a higher priority waits, or has been
            woken but has not yet taken its item, this call takes nothing.

        Returns
        -------
        tuple
            (slot name, item).

        Raises
        ------
        queue.Empty
            There is no item for this priority, and `block` is false or the time-out passed.
        ShutDown
            The queue is shut down and empty.
        ValueError, OverflowError
            The time-out is negative, or the priority is not an integer of 32 bits.
        TypeError
            The time-out is not a number; raised only if the call has to wait.
        """
        cdef int32_t rank = as_priority(priority)
        cdef Verdict verdict = READY
        cdef uint64_t token = 0
        cdef uint32_t index
        # An allocation may fail, or run the collector, so the result is allocated before anything is taken.
        cdef tuple found = PyTuple_New(2)
        with cython.critical_section(self):
            if rarely(not may_take(self, rank)):
                deadline = self.getters.deadline(block, timeout)
                verdict = wait_for_item(self, block, deadline, rank, 1)
                if verdict > READY_AFTER_WAIT:
                    raise_verdict(verdict, True)
            index = serve(self, &token)
            if rarely(self.limits.on):
                limits_take(&self.limits, &self.table, index)
            name = <object> PyList_GET_ITEM(self.name_of, index)
            Py_INCREF(name)
            PyTuple_SET_ITEM(found, 0, name)
            PyTuple_SET_ITEM(found, 1, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
            if rarely(verdict == READY_AFTER_WAIT or self.limits.on):
                hand_over(self)
            if rarely(wakeup_possible(&self.putters.interest)):
                hand_room_over(self)
            if rarely(self.table.idle_count != 0):
                self.forget_idle()
            return found

    cdef object take(self, int32_t rank, object nothing, Place place):
        """As get(False), without the slot: one item, or `nothing` if there is none to be had at this moment.

        Where slots have limits, the caller brings the place that it takes.
        """
        cdef Verdict verdict
        cdef uint64_t token = 0
        cdef uint32_t index
        with cython.critical_section(self):
            if rarely(not may_take(self, rank)):
                verdict = wait_for_item(self, False, None, rank, 1)
                if verdict == TOO_LATE:
                    return nothing
                if verdict != READY:
                    raise_verdict(verdict, True)
            index = serve(self, &token)
            if rarely(place is not None):
                take_place(self, index, place)
            item = <object> <PyObject*> <uintptr_t> token
            Py_DECREF(item)  # the entry's reference; `item` holds one of its own
            if rarely(place is not None):
                hand_over(self)
            if rarely(wakeup_possible(&self.putters.interest)):
                hand_room_over(self)
            if rarely(self.table.idle_count != 0):
                self.forget_idle()
            return item

    cdef object take_in_time(self, object timeout, int32_t rank, Place place):
        """As get(True, timeout), without the slot, and with a place that is taken."""
        cdef Verdict verdict = READY
        cdef uint64_t token = 0
        with cython.critical_section(self):
            if not may_take(self, rank):
                deadline = self.getters.deadline(True, timeout)
                verdict = wait_for_item(self, True, deadline, rank, 1)
                if verdict > READY_AFTER_WAIT:
                    raise_verdict(verdict, True)
            take_place(self, serve(self, &token), place)
            item = <object> <PyObject*> <uintptr_t> token
            Py_DECREF(item)  # the entry's reference; `item` holds one of its own
            hand_over(self)
            if wakeup_possible(&self.putters.interest):
                hand_room_over(self)
            if self.table.idle_count:
                self.forget_idle()
            return item

    cdef int take_more(self, list found, Py_ssize_t limit) except -1:
        """Add items to a list, as `take` finds them, until it has `limit` or there are none to be had.

        For queues without limits.
        """
        cdef uint64_t token = 0
        with cython.critical_section(self):
            while PyList_GET_SIZE(found) < limit and may_take(self, 0):
                found.append(None)  # which may fail, so nothing is taken yet; it runs no Python code
                serve(self, &token)
                PyList_SET_ITEM(found, PyList_GET_SIZE(found) - 1, <object> <PyObject*> <uintptr_t> token)
                Py_DECREF(None)
            if rarely(wakeup_possible(&self.putters.interest)):
                hand_room_over(self)
            if rarely(self.table.idle_count != 0):
                self.forget_idle()
        return 0

    def get_nowait(self, *, priority=0):
        """get_nowait($self, *, priority=0)
        --

        Take an item without waiting: ``get(block=False)``.
        """
        return self.get(False, None, priority=priority)

    def get_many(self, n, timeout=None, *, priority=0):
        """get_many($self, n, timeout=None, *, priority=0)
        --

        Wait for an item, then serve up to `n` items without waiting for more.

        Parameters
        ----------
        n : int
            Maximum number of items.
        timeout : float, optional
            Longest wait in seconds for the first item; None: no time-out.
        priority : int
            As for `get`. A waiting call with `n` counts as `n` waiting `get` calls: with up to `n` items queued, no
            other getter is woken.

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
        found = deadline = None
        with cython.critical_section(self):
            while limit and taken == 0:
                if verdict == READY_AFTER_WAIT:  # and somebody else was quicker
                    hand_over(self)
                if self.limits.rated:  # so that what is due counts among what may be taken
                    limits_tell(&self.limits, &self.table, as_nanoseconds(self.getters.clock()))
                # The result is complete before an item is taken: an allocation may fail, or run finalizers that use
                # this
                # queue, and a signal may arrive.
                size = min(limit, max(takeable(self), 1))
                names = PyList_New(size)
                items = PyList_New(size)
                found = new_batch(names, items)
                if may_take(self, rank):
                    taken = take_many(self, names, items, size)
                    continue
                if verdict == READY:
                    deadline = self.getters.deadline(True, timeout)
                verdict = wait_for_item(self, True, deadline, rank, limit)
                if verdict > READY_AFTER_WAIT:
                    raise_verdict(verdict, True)
            if verdict == READY_AFTER_WAIT or self.limits.on:
                hand_over(self)
            if wakeup_possible(&self.putters.interest):
                hand_room_over(self)
            if self.table.idle_count:
                self.forget_idle()
        return Batch(names, items) if found is None else found  # None: nothing was asked for

    def call_when_ready(self, callback, *, priority=0):
        """call_when_ready($self, callback, *, priority=0)
        --

        Wait for an item without blocking a thread: for event loops.

        Parameters
        ----------
        callback : callable
            Called without arguments when it is this waiter's turn, or the queue is shut down. The call may come at
            once, and from any thread that uses the queue, so the callback should only notify the event loop. After
            that, call `get(block=False)` with the same priority, then `Waiter.leave`, or `Waiter.again` if there was no
            item.
        priority : int
            As for `get`.

        Returns
        -------
        Waiter
            Until it leaves, getters of lower priority take nothing.

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

        Number of items now queued in all slots.
        """
        return self.table.queued + self.table.withheld

    def empty(self):
        """empty($self)
        --

        Whether nothing is queued now. A get may find nothing although this is false: of slots at their limits.
        """
        return self.qsize() == 0

    def full(self):
        """full($self)
        --

        Whether `maxsize` items are queued now.
        """
        return self.maxsize > 0 and self.qsize() >= self.maxsize

    def backlog(self, slot):
        """backlog($self, slot)
        --

        Number of items now queued in one slot; 0 if there is no such slot.
        """
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            return 0 if index < 0 else self.table.slots[index].pushed - self.table.slots[index].served

    def subkeys(self, slot):
        """subkeys($self, slot)
        --

        Number of items now queued in one slot, by subkey: a dict, without subkeys that have no items.

        Empty if there is no such slot, or there are no subkeys. O(subkeys of the slot that have items or debts).
        """
        with cython.critical_section(self):
            return queued_below(self, slot) if self.below is not None else {}

    def waiting(self):
        """waiting($self)
        --

        Priorities of the getters that now wait, in the order in which they will be woken: a list of int.

        A getter that was woken but has not yet taken its item is not listed. O(getters).
        """
        with cython.critical_section(self):
            return self.getters.waiting()

    def shutdown(self, immediate=False):
        """shutdown($self, immediate=False)
        --

        Shut the queue down, as `queue.Queue.shutdown` does in Python 3.13.

        From now on puts raise `ShutDown`, waiting ones included. Gets continue until the queue is empty, then raise it
        too.

        Parameters
        ----------
        immediate : bool
            Drop the queued items, so that gets raise at once. The dropped items do not count as served, and slots added
            for them are forgotten.
        """
        cdef SlotTable* table = &self.table
        with cython.critical_section(self):
            self.is_shut_down = True
            anticipation_set(table, 0)  # nothing will come
            if immediate:
                drop_items(self)
                self.forget_idle()
            self.getters.wake_all()
            self.putters.wake_all()

    def set_quantum(self, slot, quantum):
        """set_quantum($self, slot, quantum)
        --

        Change a slot's quantum. The change applies to its backlog at once.

        With a default quantum, an unknown slot is added. In either case, the slot is no longer forgotten when idle.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
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
            self.getters.wake(takeable(self))  # those who wait for this slot's turn, perhaps

    def set_band(self, slot, band):
        """set_band($self, slot, band)
        --

        Change a slot's band. The change applies to its backlog at once.

        A slot is not served while an item is queued in a slot of an earlier band, unless that slot is at its limit.
        Within a band the quanta apply, as if there were no other bands.

        With a default quantum, an unknown slot is added. In either case, the slot is no longer forgotten when idle.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        band : int
            From 0, served first, to 7; the default of every slot is 4.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            `band` is not an integer from 0 to 7.

        Notes
        -----
        A band that always has queued items keeps all later bands waiting without bound, unless its slots have limits
        (see `set_limit`). The slot starts in its new band without credit; a debt remains. O(backlogged slots of its
        band). Once bands are used, each put, and each slot that runs empty, checks all eight bands.
        """
        cdef uint32_t number = check_band(slot, band)
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            self.table.slots[index].flags &= ~TRANSIENT
            if self.table.bands == NULL:
                bands_start(&self.table, &self.bands)
            bands_set(&self.table, index, number)
            self.getters.wake(takeable(self))  # those who wait for the turn of a slot that is not served now, perhaps

    # -- limits -------------------------------------------------------------------------------------------------------

    def set_limit(self, slot, limit):
        """set_limit($self, slot, limit)
        --

        Change a slot's limit. The change takes effect at once.

        With a default quantum, an unknown slot is added. In either case, the slot is no longer forgotten when idle.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        limit : Limit or None
            None: the slot has no limit.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            `limit` is not a `Limit`.

        Notes
        -----
        An item counts as in hand if it was served while the slot had a limit with a concurrency. Complexity: O(log
        slots); O(backlogged slots) if the slot has queued items.
        """
        cdef Limit found = as_limit(limit)
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            if self.limits.rated:
                limits_tell(&self.limits, &self.table, as_nanoseconds(self.getters.clock()))
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            self.table.slots[index].flags &= ~TRANSIENT
            if not self.limits.on:
                self.limit_slots(as_limit(None))
            self.limits.rated |= found.interval != 0
            limits_set(&self.limits, &self.table, index, found)
            hand_over(self)

    def release(self, slot):
        """release($self, slot)
        --

        Report that a served item is no longer in hand. Call it once per served item of a slot whose limit has a
        concurrency.

        Parameters
        ----------
        slot : Hashable
            The slot's name.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            The slot's limit has a concurrency, and none of its items is in hand.

        Notes
        -----
        Does nothing if the slot's limit has no concurrency.
        """
        cdef int64_t hash
        cdef long index
        cdef bint done
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0 and not self.default_quantum:
                raise KeyError(f"no slot is named {slot!r}")
            if index < 0:  # a tenant that was forgotten
                done = not self.limits.usual.concurrency
            else:
                done = not self.limits.on or not self.limits.of[index].limit.concurrency
            if not done and index >= 0 and self.limits.of[index].in_hand:
                done = True
                self.give_back(index, False)
        if not done:
            raise ValueError(f"nothing of slot {slot!r} is in hand: each item is released once")

    def lift_limits(self):
        """lift_limits($self)
        --

        Remove the limits of all slots from now on: for a caller that takes out the remaining items without handling
        them.
        """
        cdef uint32_t i
        with cython.critical_section(self):
            if self.limits.on:
                self.limits.usual = as_limit(None)
                for i in range(self.table.size):
                    if self.table.slots[i].quantum:
                        limits_set(&self.limits, &self.table, i, self.limits.usual)
                hand_over(self)

    def limit_stats(self):
        """limit_stats($self)
        --

        Figures of the slots that have limits, by slot name: a dict of `LimitStats`. O(slots).
        """
        with cython.critical_section(self):
            return all_limits(self) if self.limits.on else {}

    cdef int limit_slots(self, Limit usual) except -1:
        """Give all slots, also those to come, this limit."""
        cdef uint32_t i
        if not limits_reserve(&self.limits, &self.table):
            raise MemoryError()
        self.limits.on = True
        self.limits.usual = usual
        self.limits.rated |= usual.interval != 0
        for i in range(self.table.size):
            limits_add(&self.limits, i)
        return 0

    cdef int give_back(self, uint32_t index, bint unused) except -1:
        """One that was served is in hand no more; unused: it counts as not served."""
        limits_give_back(&self.limits, &self.table, index, 1, unused)
        if wakeup_possible(&self.getters.interest):
            hand_over(self)
        if self.table.idle_count:
            self.forget_idle()
        return 0

    def settle(self, slot, cost_difference, *, subkey=NOBODY):
        """settle($self, slot, cost_difference, *, subkey='')
        --

        Correct the cost charged to a slot, once the real cost is known.

        Parameters
        ----------
        slot : Hashable
            The slot's name. A tenant that was forgotten meanwhile is added again with its debt; a refund to it has no
            effect.
        cost_difference : int
            Measured cost minus the cost given to `put`. The deficit may fall below zero: the slot pays this debt before
            its next turn.
        subkey : Hashable
            As given to `put`: the subkey is charged, too, within its slot.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            The difference is not an integer, or there is a subkey and no `subkey_quantum`.
        OverflowError
            The debt would exceed 2**62 - 1.
        """
        cdef int64_t difference = as_int64(cost_difference, "cost difference", "an integer")
        cdef bint awaiting
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            if rarely(subkey is not self.one_subkey):
                settle_below(self, slot, subkey, difference)
                return
            index = slot_find(self, slot, &hash)
            if index < 0:
                index = self.admit(slot, hash)
            awaiting = is_awaiting(self)
            try:
                slot_settle(self, index, difference)
            finally:
                slots_report_idle(&self.table, index)
                if awaiting:  # perhaps for this slot, whose turn may be over
                    self.getters.wake(takeable(self))
                self.forget_idle()

    def charge(self, slot, cost, most):
        """charge($self, slot, cost, most)
        --

        Charge a slot for service that it received elsewhere, for example in another process.

        The slot's deficit shrinks, so that other slots are served first; `SlotStats.work` still counts only what this
        queue served. If only slots in debt have items, they are served at once: a charge never leaves getters idle
        while items wait.

        Parameters
        ----------
        slot : Hashable
            The slot's name. A slot that has no items and is not held is not charged.
        cost : int
            The cost of that service.
        most : int
            Maximum debt of the slot after the charge; it bounds how long the slot is held back.

        Returns
        -------
        bool
            Whether the slot exists.

        Raises
        ------
        ValueError, OverflowError
            `cost` or `most` is not a positive integer of at most 2**62 - 1.

        Notes
        -----
        O(1). Safe from any thread.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef int64_t limit = as_amount(most, "most")
        cdef bint awaiting
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                return False
            awaiting = is_awaiting(self)
            dwrr_charge_elsewhere(&self.table, index, amount, limit)
            if awaiting:  # perhaps for this slot, whose turn may be over
                self.getters.wake(takeable(self))
            return True

    def hold(self, slot, held, awaited=True):
        """hold($self, slot, held, awaited=True)
        --

        Set whether a slot still has a backlog upstream when it runs empty here.

        A held slot keeps its deficit (at most one quantum plus the largest cost) when it runs empty, so that shares do
        not flatten while the next delivery is in flight. Ending the hold of an empty slot drops its deficit.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        held : bool
            Whether the slot has a backlog upstream.
        awaited : bool
            Whether to wait for the slot's next item, too; see `anticipate`. This does not pay if less than a turn's
            worth of messages can be in flight: each turn would then last several round trips.

        Returns
        -------
        bool
            Whether getters waited for the slot until now. After a whole turn without an item they stop waiting for it,
            and start again only with another call that asks for it.

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
            self.getters.wake(takeable(self))  # those who wait for this slot's turn, perhaps
            self.forget_idle()
            return state == HELD

    def anticipate(self, seconds):
        """anticipate($self, seconds)
        --

        Set how long getters wait for an item of a held slot that is empty when its turn comes or continues.

        While they wait, getters pass over items of other slots. So shares follow the quanta even if getters are faster
        than the source that fills the queue. The wait ends with an item of the slot, or after `seconds` in one turn;
        then the turn passes. A few round trips to the source are enough.

        Parameters
        ----------
        seconds : float
            0: the turn of an empty slot passes at once.

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
            self.getters.wake(takeable(self))

    def anticipated(self):
        """anticipated($self)
        --

        Seconds for which `get` would still wait although items are queued; None if it would not.

        For non-blocking callers: call `get` again after an item was put or released, or after this many seconds.
        """
        cdef int64_t now, left = NEVER
        with cython.critical_section(self):
            if not is_awaiting(self) and token_due(self) == NEVER:
                return None
            now = as_nanoseconds(self.getters.clock())
            if is_awaiting(self):
                left = anticipation_left(&self.table, now)
            if token_due(self) != NEVER:
                left = min(left, max(0, token_due(self) - now))
            return None if left == NEVER else left * 1e-9

    def stats(self):
        """stats($self)
        --

        Statistics by slot name: a dict of `SlotStats`. O(slots).
        """
        with cython.critical_section(self):
            return self.all_stats()

    def outlook(self, slot):
        """outlook($self, slot)
        --

        Return what has to happen before a slot's first item is served; changes nothing.

        Parameters
        ----------
        slot : Hashable
            The slot's name.

        Returns
        -------
        SlotOutlook
            A consistent snapshot.

        Raises
        ------
        KeyError
            There is no such slot. With a default quantum: the slot has no items and no debt.

        Notes
        -----
        O(backlogged slots), for any number of items.
        """
        cdef SlotTable* table = &self.table
        cdef Slot found
        cdef Outlook outlook
        cdef int64_t hash, cost = 0, above = 0
        cdef uint32_t band = 0
        cdef long index
        cdef bint queued, turns = False
        cdef SlotLimit limit
        cdef int64_t now = 0
        cdef object item = None, awaited = None
        memset(&limit, 0, sizeof(limit))
        with cython.critical_section(self):
            if self.limits.rated:
                now = as_nanoseconds(self.getters.clock())
            index = slot_find(self, slot, &hash)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            # In one stretch, with nothing but references taken; objects are made of it later.
            found = table.slots[index]
            queued = found.head != NULL
            memset(&outlook, 0, sizeof(outlook))
            if queued:
                item = <object> <PyObject*> <uintptr_t> found.head.token
                cost = found.head.cost
                turns = not found.flags & AT_LIMIT
                if turns:
                    bands_enter(table, index)
                    outlook_read(table, index, &outlook)
                    bands_serve(table)
            if table.bands != NULL:
                band = bands_of(table, index)
                above = bands_above(table, index, &outlook.before, &outlook.others)
            if self.limits.on:
                limit = self.limits.of[index]
            if is_awaiting(self):
                awaited = <object> PyList_GET_ITEM(self.name_of, slots_first(table))
        stats = slot_figures(&found)
        now = limit.full_at - limit.limit.tolerance - now if limit.limit.interval and limit.full_at > now else 0
        limited = (
            limit.in_hand if limit.limit.concurrency else None,
            limit.limit.concurrency or None,
            now * 1e-9 if now > 0 else None,
            None if table.bands == NULL else band,
            None if table.bands == NULL else above,
        )
        if not queued:
            return SlotOutlook(stats, None, None, None, None, None, awaited, *limited)
        if not turns:
            return SlotOutlook(stats, item, cost, None, None, None, awaited, *limited)
        return SlotOutlook(stats, item, cost, outlook.before, outlook.turns, outlook.others, awaited, *limited)


# Who may go on, and how the others wait: for items, for room, for the slot whose turn it is ---------------------------
#
# Threads that wait are consumers, of items or of room, each kind in a `WaitingRoom`. All of this is called with the
# queue's exclusion held. It is given up while a thread waits, collects a permit or wakes others, and whenever Python
# code runs: a clock of the caller's own, a finalizer that the collector calls, an exception being made. So the verdict
# on a wait is found last, and holds until the caller does something that gives the exclusion up: it takes its items, or
# puts them, at once; exceptions are raised after the seat was left. Who waited hands over what is left, once he has
# taken his own or has given up.


cdef inline int64_t as_nanoseconds(double seconds) noexcept:
    """Of any clock: what is no number becomes 0, and what is too large 4e9 seconds, twice which is within 64 bits."""
    return <int64_t> (min(max(seconds, -4e9), 4e9) * 1e9) if seconds == seconds else 0


cdef inline bint is_awaiting(FairQueue q) noexcept:
    """True when items are queued, but the turn of an empty slot is waited for, as the last look found, and still is."""
    cdef SlotTable* table = &q.table
    cdef Slot* slot
    if table.queued == 0 or table.awaited_since == NOT_AWAITED:
        return False
    slot = &table.slots[slots_first(table)]
    return slot.head == NULL and slot.deficit >= anticipation_cost(slot) and anticipation_awaits(table, slot)


cdef inline int64_t takeable(FairQueue q) noexcept:
    """Items in the slots that take turns, of all bands."""
    return q.table.queued + q.bands.elsewhere


cdef inline int64_t token_due(FairQueue q) noexcept:
    """Return when a slot at its limit may be served again; NEVER: that is no matter of time, or nothing waits."""
    return limits_due(&q.limits) if q.table.withheld > q.bands.elsewhere else NEVER


cdef inline int64_t wanted(FairQueue q) noexcept:
    """Items that getters are to be woken for: none while one of them sees to the slot whose turn it is.

    And one more, if nobody would look again when a slot at its limit gets its token.
    """
    return (0 if q.anticipating and is_awaiting(q) else takeable(q)) + (token_due(q) < q.watched_until)


cdef inline bint has_room(FairQueue q, int64_t count) noexcept:
    """True when `count` more items may be put."""
    return not q.is_shut_down and (not q.maxsize or q.table.queued + q.table.withheld + count <= q.maxsize)


cdef inline bint is_outranked(FairQueue q, int32_t rank) noexcept:
    """True when a getter of a higher priority is to have what is queued."""
    return wakeup_higher(&q.getters.interest, rank) and q.getters.outranked(rank)


cdef inline int may_take(FairQueue q, int32_t rank) except -1:
    """1 when something is queued, no getter of a higher priority is to have it, and no slot is waited for."""
    if rarely(q.limits.rated):
        limits_tell(&q.limits, &q.table, as_nanoseconds(q.getters.clock()))
    if q.table.queued == 0 or is_outranked(q, rank):
        return 0
    return not rarely(q.table.patience != 0) or (is_due(q) and q.table.queued != 0 and not is_outranked(q, rank))


cdef int is_due(FairQueue q) except -1:
    """1 when the slot whose turn it is has an item; turns that were waited for long enough pass."""
    cdef SlotTable* table = &q.table
    cdef int64_t now
    if dwrr_turn(table) != AWAITED_SLOT and table.awaited_since == NOT_AWAITED:
        return 1
    now = as_nanoseconds(q.getters.clock())  # a clock of the caller's own may run anything
    while table.queued and dwrr_turn(table) == AWAITED_SLOT:
        if anticipation_left(table, now) > 0:
            return 0
    if table.awaited_since != NOT_AWAITED:
        anticipation_end_wait(table, now)
    return table.queued != 0


cdef Verdict item_verdict(FairQueue q, int32_t rank) except VERDICT_ERROR:
    if may_take(q, rank):
        return READY
    return IS_SHUT_DOWN if q.is_shut_down and q.table.queued + q.table.withheld == 0 else WAIT


cdef Verdict room_verdict(FairQueue q, int64_t count) noexcept:
    if has_room(q, count):
        return READY
    return IS_SHUT_DOWN if q.is_shut_down else WAIT


cdef Verdict wait_for_item(FairQueue q, bint block, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR:
    """Wait until something may be taken, or say why nothing will be."""
    cdef Verdict verdict = item_verdict(q, rank)
    if verdict == WAIT:
        verdict = wait_as_getter(q, deadline, rank, limit) if block else TOO_LATE
    if verdict > READY_AFTER_WAIT:
        if q.limits.on:  # this look may have found what is due, and others may take it
            q.getters.wake(takeable(q))
        q.forget_idle()
    return verdict


cdef Verdict wait_as_getter(FairQueue q, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR:
    """Be one of the getters that wait; who gives up hands over."""
    cdef Seat* seat = q.getters.sit(rank, limit)
    cdef Verdict verdict = WAIT
    cdef bint in_time
    try:
        while verdict == WAIT:
            in_time = wait_for_turn(q, seat, deadline)
            verdict = item_verdict(q, rank)
            if is_told_late(q.getters, seat):
                verdict = item_verdict(q, rank)
            if verdict == WAIT and not in_time:
                verdict = TOO_LATE
            if verdict == WAIT:
                q.getters.stay(seat)
                if not is_awaiting(q):  # else this getter sees to it
                    q.getters.wake(takeable(q))
    except BaseException:
        q.getters.leave(seat)
        hand_over(q)
        raise
    q.getters.leave(seat)
    if verdict == READY:
        return READY_AFTER_WAIT
    hand_over(q)
    return verdict


cdef bint is_told_late(WaitingRoom room, Seat* seat) noexcept:
    """Whether a seat was claimed after its wait was over. Its permit is collected: what was found before may be over.

    After this, leaving the seat does not give the exclusion up.
    """
    return node_state(&seat.node) == NOTIFIED and not seat.has_permit and room.collect(seat)


cdef bint wait_for_turn(FairQueue q, Seat* seat, object deadline) except -1:
    """Wait to be claimed, or until the turn passes that is waited for; False when the deadline passed."""
    cdef bint woken
    cdef double until
    if token_due(q) < q.watched_until:
        return wait_for_token(q, seat, deadline)
    if not is_awaiting(q):
        return q.getters.wait(seat, deadline)
    until = q.getters.clock()
    if not is_awaiting(q):  # the clock may have run anything
        return True
    until += anticipation_left(&q.table, as_nanoseconds(until)) * 1e-9
    q.anticipating += 1
    try:
        woken = q.getters.wait(seat, until if deadline is None else min(until, <double> deadline))
    finally:
        q.anticipating -= 1
    return woken or deadline is None or q.getters.clock() < deadline


cdef bint wait_for_token(FairQueue q, Seat* seat, object deadline) except -1:
    """Wait to be claimed, or until a slot at its limit gets its token, or the turn passes that is waited for."""
    cdef bint woken, awaiting = is_awaiting(q)
    cdef int64_t due, now = 0
    cdef double until
    if awaiting:
        now = as_nanoseconds(q.getters.clock())
        if not is_awaiting(q):
            return True
    due = token_due(q)
    if awaiting:
        due = min(due, now + anticipation_left(&q.table, now))
    if due == NEVER:
        return True
    q.watched_until = due
    until = due * 1e-9
    while as_nanoseconds(until) < due:  # rounded down: then it would not be due yet
        until = nextafter(until, INFINITY)
    q.anticipating += awaiting
    try:
        woken = q.getters.wait(seat, until if deadline is None else min(until, <double> deadline))
    finally:
        q.anticipating -= awaiting
        if q.watched_until == due:
            q.watched_until = NEVER
    return woken or deadline is None or q.getters.clock() < deadline


cdef void hand_over(FairQueue q) noexcept:
    """Wake getters for what is left, after one that waited has taken its items or has given up."""
    if q.table.queued or q.table.withheld:
        q.getters.wake(wanted(q))
    elif q.is_shut_down:
        q.getters.wake_all()


cdef bint wait_for_room(FairQueue q, int64_t count, bint block, object timeout) except -1:
    """Return once `count` more items fit, or raise why they will not. The caller has pinned the slots they are for.

    True: it was waited for, and what room is left is to be handed over.
    """
    cdef object deadline = q.putters.deadline(block, timeout)
    cdef Verdict verdict = room_verdict(q, count)
    if verdict == WAIT:
        verdict = wait_as_putter(q, deadline, count) if block else TOO_LATE
    if verdict > READY_AFTER_WAIT:
        raise_verdict(verdict, False)
    return verdict == READY_AFTER_WAIT


cdef Verdict wait_as_putter(FairQueue q, object deadline, int64_t count) except VERDICT_ERROR:
    """Be one of the putters that wait; who gives up hands over."""
    cdef Seat* seat = q.putters.sit(0, count)
    cdef Verdict verdict = WAIT
    cdef bint in_time
    try:
        while verdict == WAIT:
            in_time = q.putters.wait(seat, deadline)
            verdict = room_verdict(q, count)
            if verdict == WAIT and not in_time:
                verdict = TOO_LATE
            if verdict == WAIT:
                q.putters.stay(seat)
                hand_room_over(q)
    except BaseException:
        q.putters.leave(seat)
        hand_room_over(q)
        raise
    q.putters.leave(seat)
    if verdict == READY:
        return READY_AFTER_WAIT
    hand_room_over(q)
    return verdict


cdef void hand_room_over(FairQueue q) noexcept:
    """Wake putters for the room that is left."""
    q.putters.wake(q.maxsize - q.table.queued - q.table.withheld)


cdef int raise_verdict(Verdict verdict, bint for_item) except -1:
    """Raise what a call that cannot go on has to."""
    if verdict == TOO_LATE:
        raise queue.Empty if for_item else queue.Full
    raise ShutDown("the queue is shut down and has no item left" if for_item else "the queue is shut down")


# Many items at once: put, all or none of them, and taken out into lists -----------------------------------------------
#
# Called with the queue's exclusion held. What may run Python code, as looking up a slot's name, comes first; slots that
# were found are pinned, so that nobody forgets them meanwhile. Then all items move in one stretch.


cdef list one_each(object values, Py_ssize_t size, str what):
    """List what is given for each item; None: it is one for all of them."""
    cdef list found = values if type(values) is list else list(values) if isinstance(values, np.ndarray) else None
    if found is not None and len(found) != size:
        raise ValueError(f"{what} must have one name for each item: {size} items, {len(found)} {what}")
    return found


cdef int store_many(
    FairQueue q, object slot, list names, list objects, const int64_t* costs, bint block, object timeout
) except -1:
    """Find the slots (`names`, or the one `slot`), wait for room, then push: no Python code runs from then on."""
    cdef Py_ssize_t i, size = len(objects), slots = 1 if names is None else size, found = 0, pins = 0
    cdef uint32_t remembered[NAME_CACHE]
    cdef uint32_t* indices = <uint32_t*> malloc(2 * slots * sizeof(uint32_t))
    cdef uint32_t* pinned
    if indices == NULL:
        raise MemoryError()
    pinned = indices + slots
    memset(remembered, 0xFF, sizeof(remembered))  # NO_SLOT
    try:
        while found < slots:
            if names is not None and found >= PyList_GET_SIZE(names):
                raise RuntimeError("the slots changed while they were looked up")
            indices[found] = find_pinned(
                q, slot if names is None else <object> PyList_GET_ITEM(names, found), remembered, pinned, &pins
            )
            found += 1
        if not has_room(q, size):
            wait_for_room(q, size, block, timeout)
        if PyList_GET_SIZE(objects) != size:
            raise RuntimeError("the items changed while their slots were looked up")
        if not dwrr_reserve(&q.table, size):
            raise MemoryError()
        for i in range(size):
            Py_INCREF(<object> PyList_GET_ITEM(objects, i))
            dwrr_push(
                &q.table, indices[0 if names is None else i], <uint64_t> <uintptr_t> PyList_GET_ITEM(objects, i),
                1 if costs == NULL else costs[i],
            )
    finally:
        for i in range(pins):
            slot_unpin(q, pinned[i])
        free(indices)
        if q.maxsize:
            hand_room_over(q)
        if q.table.idle_count:
            q.forget_idle()
    return 0


cdef inline uint32_t find_pinned(
    FairQueue q, object name, uint32_t* remembered, uint32_t* pinned, Py_ssize_t* pins
) except? 0xFFFFFFFF:
    """Find, or add, a slot, which is not forgotten until it is unpinned; those found last are known by identity.

    A remembered one is pinned already; the others are appended to `pinned`.
    """
    cdef uintptr_t identity = <uintptr_t> <PyObject*> name
    cdef uint32_t* last = &remembered[(identity >> 4) % NAME_CACHE]
    cdef int64_t hash
    cdef long index = last[0]
    if index == NO_SLOT or q.names.names[index].name != <void*> identity:  # pinned: the index is good
        index = slot_find(q, name, &hash)
        if index < 0:
            index = q.admit(name, hash)
        last[0] = index
        slot_pin(q, index)
        pinned[pins[0]] = index
        pins[0] += 1
    return index


cdef inline uint32_t serve(FairQueue q, uint64_t* token) noexcept:
    """As dwrr_pop, with what follows from it below."""
    cdef uint32_t index = dwrr_pop(&q.table, token)
    if rarely(q.levels.below != NULL) and index < AWAITED_SLOT:
        subkeys_pop(&q.levels, &q.table, index)
    return index


cdef object new_batch(list names, list items):
    """Create a Batch of unfilled lists, without `__init__`: a handler of a signal would see them there."""
    found = Batch.__new__(Batch)
    found.slots = names
    found.items = items
    return found


cdef int64_t take_many(FairQueue q, list names, list items, int64_t size) noexcept:
    """Serve up to `size` items into new lists and return how many: no Python code runs in here."""
    cdef uint64_t token = 0
    cdef uint32_t index
    cdef int64_t i, taken = 0
    for i in range(size):
        index = serve(q, &token)
        if index >= AWAITED_SLOT:
            break
        taken += 1
        if rarely(q.limits.on):
            limits_take(&q.limits, &q.table, index)
        Py_INCREF(<object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(items, i, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
    Py_SET_SIZE(<PyObject*> names, taken)  # cutting a list would need memory
    Py_SET_SIZE(<PyObject*> items, taken)
    return taken


# Subkeys --------------------------------------------------------------------------------------------------------------
#
# A subkey is a slot of the table below, named by a pair: its slot's name and its own. While it is there, its slot is
# pinned, so that its index stays good; so a subkey is forgotten before its slot. What is found may be forgotten when
# other Python code runs, as in any slot.


@cython.final
@cython.no_gc_clear  # entries refer to objects as long as the queue is not cleared, which clears this too
cdef class SubkeySlots(NamedSlots):
    """The subkeys of all slots of one queue."""


cdef int check_subkey(FairQueue q, object subkey) except -1:
    if q.below is None:
        raise ValueError(f"subkey {subkey!r} needs a subkey_quantum, which this queue does not have")
    return 0


cdef uint32_t find_subkey(FairQueue q, tuple pair) except? 0xFFFFFFFF:
    """Find, or add, the subkey that a pair of names stands for, and its slot."""
    cdef int64_t hash, slot_hash
    cdef long above, index = slot_find(q.below, pair, &hash)
    if index >= 0:
        return index
    above = slot_find(q, pair[0], &slot_hash)
    if above < 0:
        above = q.admit(pair[0], slot_hash)
    slot_pin(q, above)
    try:
        index = slot_find(q.below, pair, &hash)  # which may have been added while the slot was looked up
        if index < 0:
            index = add_subkey(q, above, pair, hash)
    finally:
        slot_unpin(q, above)
    return index


cdef uint32_t add_subkey(FairQueue q, uint32_t above, tuple pair, int64_t hash) except? 0xFFFFFFFF:
    """Add a subkey that slot_find has just not found. Runs no Python code before it is there."""
    cdef uint32_t index
    if not subkeys_reserve(&q.levels, &q.table):
        raise MemoryError()
    index = q.below.add(pair, hash, q.subkey_quantum, True)
    q.levels.above[index] = above
    slot_pin(q, above)
    return index


cdef int store_below(
    FairQueue q, object slot, object subkey, object item, int64_t cost, bint block, object timeout
) except -1:
    """Put an item of a subkey, after a wait for room where there is none."""
    cdef uint32_t index
    check_subkey(q, subkey)
    index = find_subkey(q, (slot, subkey))
    if has_room(q, 1):
        return push_below(q, index, <PyObject*> item, cost)
    slot_pin(q.below, index)
    try:
        wait_for_room(q, 1, block, timeout)
        push_below(q, index, <PyObject*> item, cost)
    finally:
        slot_unpin(q.below, index)
        hand_room_over(q)
        q.forget_idle()
    return 0


cdef int push_below(FairQueue q, uint32_t index, PyObject* item, int64_t cost) except -1:
    Py_INCREF(<object> item)
    if rarely(not subkeys_push(&q.levels, &q.table, index, <uint64_t> <uintptr_t> item, cost)):
        Py_DECREF(<object> item)
        slots_report_idle(q.levels.below, index)
        raise MemoryError()
    return 0


cdef int store_many_below(
    FairQueue q, object slot, list names, object subkey, list subnames, list objects, const int64_t* costs, bint block,
    object timeout,
) except -1:
    """As store_many, for items that have subkeys: find these, wait for room, then push."""
    cdef Py_ssize_t i, size = len(objects), pairs = 1 if names is None and subnames is None else size, found = 0
    cdef uint32_t* indices = <uint32_t*> malloc(pairs * sizeof(uint32_t))
    if indices == NULL:
        raise MemoryError()
    try:
        while found < pairs:
            pair = (nth(slot, names, found, "slots"), nth(subkey, subnames, found, "subkeys"))
            indices[found] = find_subkey(q, pair)
            slot_pin(q.below, indices[found])
            found += 1
        if not has_room(q, size):
            wait_for_room(q, size, block, timeout)
        if PyList_GET_SIZE(objects) != size:
            raise RuntimeError("the items changed while their slots were looked up")
        if not dwrr_reserve(&q.table, size) or not dwrr_reserve(q.levels.below, size):
            raise MemoryError()
        for i in range(size):
            push_below(
                q, indices[0 if pairs == 1 else i], PyList_GET_ITEM(objects, i), 1 if costs == NULL else costs[i]
            )
    finally:
        for i in range(found):
            slot_unpin(q.below, indices[i])
        free(indices)
        if q.maxsize:
            hand_room_over(q)
        q.forget_idle()
    return 0


cdef inline object nth(object one, list each, Py_ssize_t place, str what):
    """Return an item's name: its own, or that of all."""
    if each is None:
        return one
    if place >= PyList_GET_SIZE(each):
        raise RuntimeError(f"the {what} changed while they were looked up")
    return <object> PyList_GET_ITEM(each, place)


cdef int settle_below(FairQueue q, object slot, object subkey, int64_t difference) except -1:
    """Correct what a subkey and its slot were charged."""
    cdef SlotTable* below = q.levels.below
    cdef uint32_t index, above
    cdef bint awaiting, done
    check_subkey(q, subkey)
    index = find_subkey(q, (slot, subkey))
    above = q.levels.above[index]
    awaiting = is_awaiting(q)
    done = subkeys_settle(&q.levels, &q.table, index, difference)
    slots_report_idle(below, index)
    slots_report_idle(&q.table, above)
    if awaiting:  # perhaps for this slot, whose turn may be over
        q.getters.wake(takeable(q))
    q.forget_idle()
    if not done:
        raise OverflowError(
            f"cost difference {difference} would take the debt of subkey {subkey!r} of slot {slot!r} past {AMOUNT_MAX}"
        )
    return 0


cdef dict queued_below(FairQueue q, object slot):
    """Items queued by subkey of a slot, all of one moment. Called with the queue's exclusion held."""
    cdef list names = None
    cdef int64_t* queued
    cdef int64_t hash
    cdef long above
    cdef uint32_t index = NO_SLOT, size = 0, i
    cdef dict figures = {}
    while True:
        above = slot_find(q, slot, &hash)
        size = 0 if above < 0 else subkeys_list(&q.levels, above, &index)
        if names is not None and PyList_GET_SIZE(names) == size:
            break
        names = PyList_New(size)  # may run Python code, which may add subkeys
    queued = <int64_t*> malloc(size * sizeof(int64_t))
    if queued == NULL and size:
        raise MemoryError()
    for i in range(size):
        queued[i] = <int64_t> (q.levels.below.slots[index].pushed - q.levels.below.slots[index].served)
        Py_INCREF(<object> PyList_GET_ITEM(q.below.name_of, index))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(q.below.name_of, index))
        index = q.levels.below.slots[index].next
    try:
        for i in range(size):
            if queued[i]:
                figures[names[i][1]] = queued[i]
    finally:
        free(queued)
    return figures


# Limits ---------------------------------------------------------------------------------------------------------------
#
# What is in hand is counted in core/schedule/limits.pxd, in the same stretch in which it is taken out.


cdef Limit as_limit(object limit) except *:
    """Convert a `Limit`, or None."""
    cdef Limit found
    if limit is not None and not isinstance(limit, GivenLimit):
        raise ValueError(f"limit must be a fairsched.Limit or None, got {limit!r}")
    found.concurrency = 0 if limit is None else limit.concurrency or 0
    found.interval = 0 if limit is None else limit.interval_ns
    found.tolerance = 0 if limit is None else ((limit.burst or 1) - 1) * limit.interval_ns
    return found


@cython.final
cdef class Place:
    """The place that one item takes of a limit while it is in hand: given back once, at the latest at its end."""

    def __del__(self):
        self.give_back(False)

    cdef int give_back(self, bint unused) except -1:
        """The item is in hand no more; unused: it counts as not served."""
        cdef FairQueue fair = self.queue
        if fair is not None:
            with cython.critical_section(fair):
                if self.queue is not None:
                    self.queue = None
                    if fair.limits.of[self.index].count == self.count:
                        fair.give_back(self.index, unused)
        return 0


cdef dict all_limits(FairQueue q):
    """The figures of limits by slot name, all of one moment. Called with the queue's exclusion held."""
    cdef uint32_t i, size
    cdef SlotLimit* limits = NULL
    cdef int64_t* queued
    cdef list names = None
    cdef int64_t now = 0
    cdef dict figures = {}
    if q.limits.rated:
        now = as_nanoseconds(q.getters.clock())
    while names is None or PyList_GET_SIZE(names) != q.table.size:
        names = PyList_New(q.table.size)  # may run Python code, which may add slots
    size = q.table.size
    limits = <SlotLimit*> malloc(size * (sizeof(SlotLimit) + sizeof(int64_t)))
    if limits == NULL and size:
        raise MemoryError()
    queued = <int64_t*> (limits + size)
    for i in range(size):
        limits[i] = q.limits.of[i]
        queued[i] = <int64_t> (q.table.slots[i].pushed - q.table.slots[i].served)
        if not q.table.slots[i].quantum:
            limits[i].limit.concurrency = limits[i].limit.interval = 0
        Py_INCREF(<object> PyList_GET_ITEM(q.name_of, i))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(q.name_of, i))
    try:
        for i in range(size):
            if limits[i].limit.concurrency or limits[i].limit.interval:
                figures[names[i]] = limit_figures(&limits[i], queued[i], now)
    finally:
        free(limits)
    return figures


cdef object limit_figures(const SlotLimit* at, int64_t queued, int64_t now):
    """The figures of one limit, of a copy; the slot's mark may be of an earlier moment."""
    cdef bint full = at.limit.concurrency != 0 and at.in_hand >= at.limit.concurrency
    cdef bint early = at.limit.interval != 0 and at.full_at > now and at.full_at - at.limit.tolerance > now
    return LimitStats(
        at.in_hand if at.limit.concurrency else None,
        at.limit.concurrency or None,
        1e9 / at.limit.interval if at.limit.interval else None,
        queued if full or early else 0,
    )


cdef inline void take_place(FairQueue q, uint32_t index, Place place) noexcept:
    limits_take(&q.limits, &q.table, index)
    place.index = index
    place.count = q.limits.of[index].count
    place.queue = q


# Event loops ----------------------------------------------------------------------------------------------------------
#
# Who waits for an item without blocking a thread.


@cython.final
cdef class Waiter:
    """A callback that waits for an item of a `FairQueue`; made by `FairQueue.call_when_ready`.

    Notes
    -----
    Thread safety: any thread. Complexity: O(1). The waiter also leaves when it is garbage collected.
    """

    cdef FairQueue queue
    cdef object callback
    cdef Seat* seat

    def __del__(self):
        self.leave()

    def again(self):
        """again($self)
        --

        Wait again, behind all other waiters of this priority, after a `get` that found nothing. The callback will be
        called again. If `FairQueue.anticipated` is not None, also try again after that many seconds without a call.

        Raises
        ------
        RuntimeError
            The waiter has left.
        """
        if self.queue is None:
            raise RuntimeError("the waiter has left")
        with cython.critical_section(self.queue):
            if self.seat == NULL:
                raise RuntimeError("the waiter has left")
            self.queue.getters.stay(self.seat)
            if not is_awaiting(self.queue):  # else nobody else could take an item either
                self.queue.getters.wake(takeable(self.queue))  # who sees to a token is this one

    def leave(self):
        """leave($self)
        --

        Stop waiting; the next waiter is woken if items are left. A second call does nothing.
        """
        cdef Seat* seat
        if self.queue is None:  # not made by call_when_ready
            return
        with cython.critical_section(self.queue):
            seat = self.seat
            self.seat = NULL
            if seat != NULL:
                self.queue.getters.leave(seat)
                hand_over(self.queue)


cdef Waiter waiter_of(FairQueue q, object callback, object priority):
    """Take a seat for a callback."""
    cdef int32_t rank = as_priority(priority)
    cdef Waiter waiter
    if not callable(callback):
        raise ValueError(f"callback must be callable, got {callback!r}")
    waiter = Waiter.__new__(Waiter)
    waiter.queue = q
    waiter.callback = callback
    with cython.critical_section(q):
        waiter.seat = q.getters.sit(rank, 1, <PyObject*> callback)
        if not is_awaiting(q):
            hand_over(q)  # it may be the one that is to have what is queued
    return waiter


# Garbage collection ---------------------------------------------------------------------------------------------------
#
# Cython shows the collector a class's Python attributes; the references in the entries are ours to show. Both functions
# are called with every other Python thread stopped or waiting for the GIL.

cdef traverse_t base_traverse = (<PyTypeObject*> FairQueue).tp_traverse
cdef clear_t base_clear = (<PyTypeObject*> FairQueue).tp_clear


cdef void drop_items(FairQueue q) noexcept:
    """Take every item out, unserved, then let go of them: their finalizers may use the queue. Needs no memory."""
    cdef SlotTable* table = &q.table
    cdef SlotTable* below = q.levels.below
    cdef Entry* upper = NULL
    cdef Entry* lower = NULL
    cdef Entry** last = &upper
    cdef EntryPool above_pool
    cdef Slot* slot
    cdef uint32_t i
    for i in range(table.size):
        slot = &table.slots[i]
        bands_enter(table, i)
        if slot.quantum and slot.flags & AT_LIMIT:
            table.queued += <int64_t> (slot.pushed - slot.served)
            table.withheld -= <int64_t> (slot.pushed - slot.served)
        last = drop_from(table, slot, last)
    dwrr_retire_empty(table)
    for i in range(BANDS if table.bands != NULL else 0):
        bands_exchange(table, i)
        dwrr_retire_empty(table)
    if below == NULL:
        release_items(&table.pool, upper)
        return
    # Entries above own nothing: each stands for one below.
    above_pool = table.pool
    entrypool_init(&table.pool)
    entrypool_clear(&above_pool)
    last = &lower
    for i in range(below.size):
        if below.slots[i].quantum:
            subkeys_enter(&q.levels, q.levels.above[i])
            last = drop_from(below, &below.slots[i], last)
    subkeys_retire_empty(&q.levels)
    release_items(&below.pool, lower)


cdef Entry** drop_from(SlotTable* table, Slot* slot, Entry** last) noexcept:
    """Append the entries of a slot, as though they had never come, to a chain; return where the chain goes on."""
    cdef Entry* entry
    while slot.quantum and slot.head != NULL:
        entry = slot.head
        slot.head = entry.next
        slot.pushed -= 1
        table.queued -= 1
        last[0] = entry
        last = &entry.next
        last[0] = NULL
    return last


cdef void release_items(EntryPool* pool, Entry* entry) noexcept:
    """Let go of the items of a chain, which has all entries of the pool that are in use.

    The pool starts anew: finalizers may use the queue, which gives memory back when it runs empty.
    """
    cdef EntryPool aside = pool[0]
    entrypool_init(pool)
    while entry != NULL:
        item = <object> <PyObject*> <uintptr_t> entry.token
        Py_DECREF(item)
        item = None
        entry = entry.next
    entrypool_clear(&aside)


@cython.linetrace(False)
@cython.profile(False)
cdef int fairqueue_traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef SlotTable* table = &(<FairQueue> self).table
    cdef Entry* entry
    cdef uint32_t i
    cdef int stop
    if (<FairQueue> self).levels.below != NULL:
        table = (<FairQueue> self).levels.below
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
    drop_items(<FairQueue> self)
    slots_disown(<FairQueue> self)
    if (<FairQueue> self).levels.below != NULL:
        slots_disown((<FairQueue> self).below)
        subkeys_clear(&(<FairQueue> self).levels)
    return base_clear(self)


(<PyTypeObject*> FairQueue).tp_traverse = fairqueue_traverse
(<PyTypeObject*> FairQueue).tp_clear = fairqueue_clear
