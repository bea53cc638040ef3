"""A thread-safe, blocking queue of Python objects, served by deficit weighted round robin.

In this file, in this order:

    FairQueue             the public methods: put, get, and the rest
    readiness             whether a put or a get may go on at this moment
    waiting               how a put or a get waits until it may go on
    one item              put, and taken out
    many items at once    put_many and get_many
    limits                slots that are short of permits, and places of items in hand
    Waiter                waiting without blocking a thread, as an event loop does
    garbage collection    the references that entries own

Exclusion. Everything but the waiting happens with the GIL held (on free-threaded builds: inside the object's critical
section). It is lost not only in a wait and around a wake-up, but wherever Python code may run: looking up a name may
call its __hash__ and __eq__, whatever allocates an object may call finalizers, and each of them may use this queue,
or let another thread do so. So every method converts its arguments first and looks the slot up. Then it does in one
stretch what belongs together: it finds room and puts, finds an item and takes it, or finds a tenant idle and forgets
it. Steps that may run Python code again (waking others, releasing a name, an exception) come after that.
tests/reentrancy runs other calls at each of these points.

Ownership. The token of an entry is a pointer to the queued object, and the entry owns one reference to it. With
subkeys, the entry of the subkey owns the reference, and the entry of the slot owns none. The traverse function at the
end of this file shows those references to the garbage collector.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject, visitproc
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.math cimport INFINITY, nextafter
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fairsched._core cimport NamedSlots, clear_t, slot_find, slot_pin, slot_unpin, slots_disown
from fairsched.core.atomics cimport rarely
from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.anticipation cimport (
    anticipation_awaits, anticipation_cost, anticipation_end_wait, anticipation_left, anticipation_set,
)
from fairsched.core.schedule.bands cimport bands_set, bands_start
from fairsched.core.schedule.branches cimport (
    branches_add_root, branches_band, branches_clear, branches_hold, branches_init, branches_push, branches_reserve,
    branches_served, branches_set_quantum,
)
from fairsched.core.schedule.dwrr cimport (
    dwrr_charge_elsewhere, dwrr_hold, dwrr_pop, dwrr_push, dwrr_reserve, dwrr_set_quantum, dwrr_turn,
)
from fairsched.core.schedule.jointlimits cimport Limit, NO_JOINT
from fairsched.core.schedule.limits cimport (
    NEVER, limits_add, limits_arrange, limits_block, limits_clear, limits_counts, limits_due, limits_give_back,
    limits_give_back_joint, limits_init, limits_look, limits_pushed, limits_release, limits_reserve, limits_take,
    limits_tell,
)
from fairsched.core.schedule.slots cimport (
    AWAITED_SLOT, BANDS, HELD, HELD_ONLY, NOT_AWAITED, NOT_HELD, NO_SLOT, TRANSIENT, Slot, SlotTable,
    slots_first, slots_report_idle,
)
from fairsched.core.schedule.subkeys cimport subkeys_clear, subkeys_init, subkeys_pop, subkeys_push
from fairsched.core.schedule.withdrawal cimport Sought, withdraw_retire, withdraw_sought
from fairsched.core.waiting.node cimport NOTIFIED, node_state
from fairsched.core.waiting.wakeup cimport wakeup_higher, wakeup_possible
from fairsched.scheduling._buffers cimport array_data
from fairsched.scheduling._givenlimits cimport all_limits, as_limit, change_limit, joint_number, lift_all, limit_all
from fairsched.scheduling._itempriorities cimport (
    bands_of_items, branch_if_any, branch_of, charged_priority, checked_priority, enter_branches,
    forget_idle_branches, part_of, priority_figures, start_priorities,
)
from fairsched.scheduling._items cimport items_drop, items_list, items_visit, nth
from fairsched.scheduling._itemsubkeys cimport add_subkey, forget_idle_subkeys, queued_by_subkey, settle_lowest
from fairsched.scheduling._numbers cimport as_amount, as_count, as_int64, as_nanoseconds, as_priority
from fairsched.scheduling._outlooks cimport NextService, next_service, slot_outlook
from fairsched.scheduling._waitingroom cimport Seat, WaitingRoom
from fairsched.scheduling._withdrawal cimport withdrawal_begin, withdrawal_end

from queue import Empty, Full

import numpy as np

from fairsched._core import checked_quanta
from fairsched.errors import ShutDown
from fairsched.scheduling._arrays import as_costs
from fairsched.scheduling.bands import check_band
from fairsched.scheduling.batch import Batch
from fairsched.scheduling.limit import own_and_named

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
cdef str NO_SUBKEY = ""

#: The priority of items for which none is given.
cdef object NO_PRIORITY = 0

cdef enum:
    LONGEST_TURN = 3600  # seconds
    NAME_CACHE = 16      # names of put_many that are known by identity

cdef enum Verdict:  # on a put or a get at this moment
    VERDICT_ERROR = -1
    READY
    READY_AFTER_WAIT  # the call waited, so it wakes another thread for the items or the room that it leaves
    TOO_LATE
    IS_SHUT_DOWN
    WAIT


@cython.final
cdef class FairQueue(NamedSlots):
    """FairQueue(quanta=None, *, maxsize=0, default_quantum=None, anticipation=0.0, clock=None, limit=None, \
total_limit=None, sparse_boost=False, subkey_quantum=None, priorities=False)
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
    limit : Limit or sequence of Limit, optional
        How many items of a slot may be served and not yet released (see `release`), and how fast the slot is served. It
        applies to every slot without a limit of its own (see `set_limit`). A slot at its limit takes no turns until it
        may be served again; other slots continue. A `Limit` with a name counts the items of all slots that have it.
    total_limit : Limit, optional
        The same for the items of all slots together.
    sparse_boost : bool
        Whether a slot that was empty for a round and then gets an item takes its next turn before the others; see
        Notes.
    subkey_quantum : int, optional
        Quantum of each subkey within its slot: the slot's service is divided equally among the subkeys of its items
        (see `put`). Without it, items have no subkeys.
    priorities : bool
        Whether items have priorities (see `put`): an item is served before all items of lower priorities, and among the
        slots that have items of one priority the quanta apply, as if there were no other items. Not with subkeys.

    Raises
    ------
    ValueError
        A quantum is not a positive integer, `limit` is not a `Limit`, or there are priorities and subkeys.
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
    is forgotten one round later. Priorities: put and get are O(priorities in use in the slot); memory: 120 bytes for
    each priority of which a slot has items or debts. Items of a high priority may keep others waiting without bound.
    Thread safety: every method may be called from any thread, and each is atomic. Each
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
        total_limit=None, sparse_boost=False, subkey_quantum=None, priorities=False,
    ):
        limits_init(&self.limits)
        branches_init(&self.branches)
        subkeys_init(&self.levels)
        self.one_subkey = NO_SUBKEY
        self.one_priority = NO_PRIORITY
        self.watched_until = NEVER
        if clock is not None and not callable(clock):
            raise ValueError(f"clock must be callable and return seconds, got {clock!r}")
        self.maxsize = max(as_int64(maxsize, "maxsize", "an integer (0 or less: no limit)"), 0)
        self.default_quantum = 0 if default_quantum is None else as_amount(default_quantum, "default_quantum")
        if subkey_quantum is not None:
            self.subkey_quantum = as_amount(subkey_quantum, "subkey_quantum")
            self.below = SubkeySlots.__new__(SubkeySlots)
            self.levels.below = &self.below.table
            self.one_subkey = self.below  # a value that no caller can pass
            self.is_divided = True
        self.getters = WaitingRoom(clock)
        self.putters = WaitingRoom(clock, True)
        self.anticipate(anticipation)
        self.table.sparse = sparse_boost
        for name, quantum in [] if quanta is None else checked_quanta(quanta):
            self.add_new(name, quantum)
        if priorities:
            start_priorities(&self.table, &self.branches, &self.bands, self.subkey_quantum)
            self.one_priority = self.getters  # a value that no caller can pass
            self.is_divided = True
        self.joint_names = []
        own, named = own_and_named(limit)
        if own is not None or named is not None or total_limit is not None:
            limit_all(&self.limits, &self.table, as_limit(own))
        if named is not None:
            self.limits.joints.usual_named = joint_number(self, &self.limits, self.joint_names, named, False)
        if total_limit is not None:
            self.limits.joints.total = joint_number(self, &self.limits, self.joint_names, total_limit, True)

    def __dealloc__(self):
        items_drop(&self.table, &self.levels)
        limits_clear(&self.limits)
        subkeys_clear(&self.levels)
        branches_clear(&self.branches)

    # -- putting ------------------------------------------------------------------------------------------------------

    def put(self, slot, item, block=True, timeout=None, *, cost=1, subkey=NO_SUBKEY, priority=NO_PRIORITY):
        """put($self, slot, item, block=True, timeout=None, *, cost=1, subkey='', priority=0)
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
        priority : int
            With `priorities`: from 0 to 9, which is served first. Items of one slot and one priority keep their order.

        Raises
        ------
        queue.Full
            The queue is full, and `block` is false or the time-out passed.
        ShutDown
            The queue is shut down.
        KeyError
            There is no such slot and no default quantum.
        ValueError, OverflowError
            The cost is not a positive integer of at most 2**62 - 1, the time-out is negative, the priority is not an
            integer from 0 to 9, there is a subkey and no `subkey_quantum`, or a priority and no `priorities`.
        TypeError
            The time-out is not a number; raised only if the call has to wait.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef uint32_t index
        with cython.critical_section(self):
            index = find_lowest(self, slot, subkey, priority)
            if rarely(not has_room(self, 1)):
                store_after_wait(self, index, item, amount, block, timeout)
            else:
                store(self, index, <PyObject*> item, amount)
            if rarely(wakeup_possible(&self.getters.interest)):
                self.getters.wake(wanted(self))
            if rarely(self.limits.shorts != 0):
                tell_shorts(self)

    def put_nowait(self, slot, item, *, cost=1, subkey=NO_SUBKEY, priority=NO_PRIORITY):
        """put_nowait($self, slot, item, *, cost=1, subkey='', priority=0)
        --

        Append an item to a slot without waiting: ``put(slot, item, block=False)``.
        """
        self.put(slot, item, False, None, cost=cost, subkey=subkey, priority=priority)

    def put_many(
        self, slots, items, costs=None, block=True, timeout=None, *, subkeys=NO_SUBKEY, priorities=NO_PRIORITY
    ):
        """put_many($self, slots, items, costs=None, block=True, timeout=None, *, subkeys='', priorities=0)
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
        priorities : list or numpy.ndarray, or int
            As for `slots`: the priority of each item, or one for all items; see `put`.

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
        cdef bytes bands = None
        if rarely(priorities is not self.one_priority):
            bands = bands_of_items(&self.table, priorities, one_each(priorities, size, "priorities"))
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
            store_many(self, slots, names, subkeys, subnames, bands, objects, cost_at, block, timeout)
            if wakeup_possible(&self.getters.interest):
                self.getters.wake(wanted(self))
            if rarely(self.limits.shorts != 0):
                tell_shorts(self)

    cdef uint32_t admit(self, object name, int64_t hash) except? 0xFFFFFFFF:
        """Add an unknown slot, if there is a default quantum."""
        if not self.default_quantum:
            raise KeyError(f"no slot is named {name!r}, and there is no default_quantum to add it with")
        return self.add_limited(name, hash, self.default_quantum, True)

    cdef uint32_t add_limited(self, object name, int64_t hash, int64_t quantum, bint transient) except? 0xFFFFFFFF:
        """Add a slot that slot_find has just not found, with the usual limit."""
        cdef uint32_t index
        if rarely(self.limits.on) and not limits_reserve(&self.limits, &self.table):
            raise MemoryError()
        if rarely(self.table.branches != NULL) and not branches_reserve(&self.branches, &self.table):
            raise MemoryError()
        index = self.add(name, hash, quantum, transient)
        if rarely(self.limits.on):
            limits_add(&self.limits, &self.table, index)
        if rarely(self.table.branches != NULL):
            branches_add_root(&self.table, index)
        return index

    cdef uint32_t keep_slot(self, object name) except? 0xFFFFFFFF:
        """Find or add a slot, which from now on is not forgotten when idle."""
        cdef uint32_t index = find_slot(self, name)
        self.table.slots[index].flags &= ~TRANSIENT
        return index

    cdef void forget_idle(self) noexcept:
        """Forget the transient slots that are idle at this moment, and before them the idle subkeys and branches."""
        if self.levels.below != NULL:
            forget_idle_subkeys(self, self.below, &self.levels)
        elif rarely(self.table.branches != NULL):
            forget_idle_branches(self)
        else:
            NamedSlots.forget_idle(self)

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
                verdict = wait_for_item(self, block, self.getters.deadline(block, timeout), rank, 1)
                if verdict == TOO_LATE:
                    raise Empty
            index = serve(self, &token)
            if rarely(self.limits.on):
                limits_take(&self.limits, &self.table, index, True)
            name = <object> PyList_GET_ITEM(self.name_of, index)
            Py_INCREF(name)
            PyTuple_SET_ITEM(found, 0, name)
            PyTuple_SET_ITEM(found, 1, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
            after_serving(self, verdict)
            return found

    cdef object take(self, int32_t rank, object nothing, Place place):
        """Return an item as get(False) does, without its slot; `nothing` if there is none at this moment.

        Where slots have limits, the caller brings the place that the item takes.
        """
        cdef Verdict verdict = READY
        with cython.critical_section(self):
            if rarely(not may_take(self, rank)):
                verdict = wait_for_item(self, False, None, rank, 1)
                if verdict == TOO_LATE:
                    return nothing
            return take_item(self, verdict, place)

    cdef object take_in_time(self, object timeout, int32_t rank, Place place):
        """Return an item as get(True, timeout) does, without its slot; it takes `place` if limits are on by then."""
        cdef Verdict verdict = READY
        with cython.critical_section(self):
            if not may_take(self, rank):
                verdict = wait_for_item(self, True, self.getters.deadline(True, timeout), rank, 1)
                if verdict == TOO_LATE:
                    raise Empty
            return take_item(self, verdict, place)

    cdef int take_more(self, list found, Py_ssize_t limit) except -1:
        """Append items to a list, as `take` returns them, until the list has `limit` items or `take` would return none.

        For queues without limits.
        """
        cdef uint64_t token = 0
        with cython.critical_section(self):
            while PyList_GET_SIZE(found) < limit and may_take(self, 0):
                found.append(None)  # which may fail, so nothing is taken yet; it runs no Python code
                serve(self, &token)
                PyList_SET_ITEM(found, PyList_GET_SIZE(found) - 1, <object> <PyObject*> <uintptr_t> token)
                Py_DECREF(None)
            after_serving(self, READY)
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
                if verdict == READY_AFTER_WAIT:  # another thread took the items that this one was woken for
                    hand_over(self)
                if self.limits.rated:  # so that slots whose tokens are due count among those that take turns
                    limits_tell(&self.limits, &self.table, as_nanoseconds(self.getters.clock()))
                # The result is complete before an item is taken: an allocation may fail, or run finalizers that use
                # this queue, and a signal may arrive.
                size = min(limit, max(takeable(self) + (self.table.withheld if self.limits.joints.on else 0), 1))
                names = PyList_New(size)
                items = PyList_New(size)
                found = new_batch(names, items)
                if may_take(self, rank):
                    taken = take_many(self, names, items, size)
                    continue
                if verdict == READY:
                    deadline = self.getters.deadline(True, timeout)
                verdict = wait_for_item(self, True, deadline, rank, limit)
                if verdict == TOO_LATE:
                    raise Empty
            after_serving(self, verdict)
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

    def backlog(self, slot, priority=None):
        """backlog($self, slot, priority=None)
        --

        Number of items now queued in one slot, or of those with one priority; 0 if there is no such slot.
        """
        cdef int64_t number = -1 if priority is None else checked_priority(&self.table, priority)
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index >= 0 and number >= 0 and self.table.branches != NULL:
                index = branch_if_any(&self.table, index, branches_band(number))
            return 0 if index < 0 else self.table.slots[index].pushed - self.table.slots[index].served

    def subkeys(self, slot):
        """subkeys($self, slot)
        --

        Number of items now queued in one slot, by subkey: a dict, without subkeys that have no items.

        Empty if there is no such slot, or there are no subkeys. O(subkeys of the slot that have items or debts).
        """
        with cython.critical_section(self):
            return {} if self.below is None else queued_by_subkey(self, self.below, &self.levels, slot)

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

        From now on puts raise `ShutDown`, waiting ones included; so do gets once the queue is empty.

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
                items_drop(&self.table, &self.levels)
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
        cdef uint32_t index
        with cython.critical_section(self):
            index = self.keep_slot(slot)
            if self.table.branches == NULL:
                dwrr_set_quantum(&self.table, index, amount)
            else:
                branches_set_quantum(&self.table, index, amount)
            self.getters.wake(takeable(self))  # getters may have waited for this slot's turn

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
            `band` is not an integer from 0 to 7, or items have `priorities`, which divide them into bands.

        Notes
        -----
        A band that always has queued items keeps all later bands waiting without bound, unless its slots have limits
        (see `set_limit`). The slot starts in its new band without credit; a debt remains. O(backlogged slots of its
        band). Once bands are used, each put, and each slot that runs empty, checks all eight bands.
        """
        cdef uint32_t number = check_band(slot, band)
        cdef uint32_t index
        if self.table.branches != NULL:
            raise ValueError(f"band {band} of slot {slot!r}: a queue with priorities has a band for each of these")
        with cython.critical_section(self):
            index = self.keep_slot(slot)
            if self.table.bands == NULL:
                bands_start(&self.table, &self.bands, BANDS)
            bands_set(&self.table, index, number)
            self.getters.wake(takeable(self))  # getters may have waited for the turn of a slot that is not served now

    # -- slots and items that go --------------------------------------------------------------------------------------

    def add_slot(self, slot, quantum):
        """add_slot($self, slot, quantum)
        --

        Add a slot, which is not forgotten when idle.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        quantum : int
            A positive integer.

        Raises
        ------
        ValueError, OverflowError
            A slot of this name exists that was not retired, or the quantum is not a positive integer of at most
            2**62 - 1.

        Notes
        -----
        A slot that was retired (see `retire`) and is not forgotten yet is kept again, with its new quantum. O(1).
        """
        cdef int64_t amount = as_amount(quantum, f"quantum of slot {slot!r}")
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index >= 0 and not self.table.slots[index].flags & TRANSIENT:
                raise ValueError(f"there is a slot named {slot!r} already")
            if index < 0:
                index = self.add_limited(slot, hash, amount, False)
            self.table.slots[index].flags &= ~TRANSIENT
            if self.table.branches == NULL:
                dwrr_set_quantum(&self.table, index, amount)
            else:
                branches_set_quantum(&self.table, index, amount)

    def retire(self, slot):
        """retire($self, slot)
        --

        Forget a slot as soon as it is idle: no item is queued in it, it is not held, and no limit counts an item of it.

        Parameters
        ----------
        slot : Hashable
            The slot's name.

        Raises
        ------
        KeyError
            There is no such slot.

        Notes
        -----
        Its hold ends, and its debt is forgotten. Items that are queued in it are served first; `withdraw` takes them
        out. O(active slots).
        """
        cdef int64_t hash
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            self.table.slots[index].flags |= TRANSIENT
            withdraw_retire(&self.table, index)
            if self.limits.on:
                limits_look(&self.limits, &self.table, index)
            hand_over(self)  # getters may have waited for this slot's turn
            self.forget_idle()

    def items(self):
        """items($self)
        --

        Return a list of all queued items, in no particular order. O(slots and queued items).
        """
        with cython.critical_section(self):
            return items_list(&self.table, &self.levels)

    def withdraw(self, items):
        """withdraw($self, items)
        --

        Take items out, wherever they are queued, as if they had never been put.

        Parameters
        ----------
        items : Iterable
            Compared by identity. An object that occurs twice is taken out twice.

        Returns
        -------
        list
            Those of them that were queued, in the order given.

        Notes
        -----
        The items of every slot that stay keep their order, and their slot its deficit. O(queued items * log(items)).
        """
        cdef list wanted = list(items)
        cdef Sought sought
        cdef list found = withdrawal_begin(&sought, wanted)
        try:
            with cython.critical_section(self):
                withdraw_sought(&self.table, &self.levels, &sought)
                hand_over(self)
                hand_room_over(self)
                self.forget_idle()
            withdrawal_end(&sought, wanted, found)
            return found
        finally:
            free(sought.tokens)

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
        limit : Limit, sequence of Limit, or None
            None: none. A slot has at most one without a name, and one with: the same for all slots that have the name.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            `limit` is not as above.

        Notes
        -----
        An item counts as in hand if it was served while the slot had a limit with a concurrency or a name. Complexity:
        O(log slots); O(backlogged slots) if the slot has queued items.
        """
        own, named = own_and_named(limit)
        cdef Limit found = as_limit(own)
        cdef uint32_t index, number = NO_JOINT
        with cython.critical_section(self):
            if self.limits.rated:
                limits_tell(&self.limits, &self.table, as_nanoseconds(self.getters.clock()))
            if not self.limits.on:
                limit_all(&self.limits, &self.table, as_limit(None))
            if named is not None:
                number = joint_number(self, &self.limits, self.joint_names, named, False)
            index = self.keep_slot(slot)
            change_limit(&self.limits, &self.table, index, found, number)
            hand_over(self)
            tell_shorts(self)

    def release(self, slot):
        """release($self, slot)
        --

        Report that a served item is no longer in hand. Call it once per served item of a slot that has a limit with a
        concurrency or a name, or if there is a total limit.

        Parameters
        ----------
        slot : Hashable
            The slot's name.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            Items of the slot are counted, and none is in hand.

        Notes
        -----
        Does nothing if items of the slot are not counted.
        """
        cdef int64_t hash
        cdef long index
        cdef bint done
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0 and not self.default_quantum:
                raise KeyError(f"no slot is named {slot!r}")
            done = not limits_counts(&self.limits, index)  # -1: a tenant that was forgotten
            if not done and index >= 0 and self.limits.of[index].in_hand:
                done = True
                limits_release(&self.limits, &self.table, index)
                self.gave_back()
        if not done:
            raise ValueError(f"nothing of slot {slot!r} is in hand: each item is released once")

    def throttle(self, slot, seconds):
        """throttle($self, slot, seconds)
        --

        Let a slot take no turns for so long, or for longer if it is throttled already. With a default quantum, an
        unknown slot is added, and forgotten as usual afterwards.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        seconds : float
            At least 0; more than 4e9 count as 4e9.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            `seconds` is negative or not a number.

        Notes
        -----
        O(log slots); O(backlogged slots) if the slot has queued items. Safe from any thread.
        """
        cdef double wait = seconds
        cdef int64_t now
        cdef uint32_t index
        if not wait >= 0:
            raise ValueError(f"seconds must be at least 0, got {seconds!r}")
        with cython.critical_section(self):
            now = as_nanoseconds(self.getters.clock())
            index = find_slot(self, slot)
            if not self.limits.on:
                limit_all(&self.limits, &self.table, as_limit(None))
            self.limits.rated = self.limits.watched = True
            limits_tell(&self.limits, &self.table, now)
            limits_block(&self.limits, &self.table, index, now + as_nanoseconds(wait))
            hand_over(self)

    def lift_limits(self):
        """lift_limits($self)
        --

        Remove the limits of all slots from now on: for a caller that takes out the remaining items without handling
        them.
        """
        with cython.critical_section(self):
            if self.limits.on:
                lift_all(self, &self.limits)
                hand_over(self)

    def limit_stats(self):
        """limit_stats($self)
        --

        A dict of `LimitStats` by slot name, and by `JointName` for limits of several slots. O(slots).
        """
        with cython.critical_section(self):
            return all_limits(self, &self.limits, self.joint_names, limits_time(self)) if self.limits.on else {}

    cdef int gave_back(self) except -1:
        """Wake the getters that may go on now, and tell the owner of permits."""
        if wakeup_possible(&self.getters.interest):
            hand_over(self)
        if self.table.idle_count:
            self.forget_idle()
        if rarely(self.limits.shorts != 0):
            tell_shorts(self)
        return 0

    def settle(self, slot, cost_difference, *, subkey=NO_SUBKEY, priority=NO_PRIORITY):
        """settle($self, slot, cost_difference, *, subkey='', priority=0)
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
        priority : int
            As given to `put`: the debt is paid by the slot's turns with items of this priority.

        Raises
        ------
        KeyError
            There is no such slot and no default quantum.
        ValueError
            The difference is not an integer, or a subkey or priority as for `put`.
        OverflowError
            The debt would exceed 2**62 - 1.
        """
        cdef int64_t difference = as_int64(cost_difference, "cost difference", "an integer")
        cdef bint awaiting, done
        cdef uint32_t index
        with cython.critical_section(self):
            index = find_lowest(self, slot, subkey, priority)
            awaiting = is_awaiting(self)
            done = settle_lowest(&self.table, &self.levels, index, difference)
            if awaiting:  # perhaps for this slot, whose turn may be over
                self.getters.wake(takeable(self))
            self.forget_idle()
        if not done:
            owner = f"slot {slot!r}" if self.below is None else f"subkey {subkey!r} of slot {slot!r}"
            raise OverflowError(f"cost difference {difference} would take the debt of {owner} past {AMOUNT_MAX}")

    def charge(self, slot, cost, most, priority=None):
        """charge($self, slot, cost, most, priority=None)
        --

        Charge a slot for service that it received elsewhere, for example in another process.

        The slot's deficit shrinks, so that others are served first; `SlotStats.work` is only what this queue served.
        If only slots in debt have items, they are served at once: a charge leaves no getter idle while items wait.

        Parameters
        ----------
        slot : Hashable
            The slot's name. A slot that has no items and is not held is not charged.
        cost : int
            The cost of that service.
        most : int
            Maximum debt of the slot after the charge; it bounds how long the slot is held back.
        priority : int, optional
            With `priorities`, that of the items served elsewhere: only such items are held back.

        Returns
        -------
        bool
            Whether the slot exists.

        Raises
        ------
        ValueError, OverflowError
            `cost` or `most` is not a positive integer of at most 2**62 - 1, or `priority` is missing with `priorities`.

        Notes
        -----
        O(1). Safe from any thread.
        """
        cdef int64_t amount = as_amount(cost, "cost")
        cdef int64_t limit = as_amount(most, "most")
        cdef int64_t number = charged_priority(&self.table, slot, priority), hash
        cdef bint awaiting
        cdef long index
        with cython.critical_section(self):
            index = slot_find(self, slot, &hash)
            if index < 0:
                return False
            awaiting = is_awaiting(self)
            index = part_of(&self.table, index, number)
            if index >= 0:
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
            worth of messages can be in flight: each turn would then last several round trips. With `priorities`, none
            is waited for.

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
            if self.table.branches != NULL:
                state = HELD_ONLY if is_held else NOT_HELD
                branches_hold(&self.table, index, state)
            state = dwrr_hold(&self.table, index, state)
            self.getters.wake(takeable(self))  # getters may have waited for this slot's turn
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

    def stats(self, by_priority=False):
        """stats($self, by_priority=False)
        --

        Statistics by slot name, or by (name, priority) of the items: a dict of `SlotStats`. O(slots).
        """
        with cython.critical_section(self):
            return priority_figures(self) if by_priority else self.all_stats()

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
        cdef NextService service
        cdef int64_t hash, now
        cdef long index
        cdef object item = None, awaited = None
        with cython.critical_section(self):
            now = limits_time(self)
            index = slot_find(self, slot, &hash)
            if index < 0:
                raise KeyError(f"no slot is named {slot!r}")
            # This stretch only takes references and copies figures; the objects of the result are made after it.
            next_service(&self.table, &self.limits, index, &service)
            if service.has_item:
                item = <object> <PyObject*> <uintptr_t> service.slot.head.token
            if is_awaiting(self):
                awaited = <object> PyList_GET_ITEM(self.name_of, slots_first(&self.table))
        return slot_outlook(&service, item, awaited, now)


# Readiness: whether a put or a get may go on at this moment -----------------------------------------------------------
#
# Called with the queue's exclusion held. A verdict holds until the caller does something that gives the exclusion up. A
# clock of the caller's own may run any Python code, so `is_due` and `may_take` check again after they have read it.


cdef inline int64_t limits_time(FairQueue q) except? -1:
    """Return the time, if there is a rate; otherwise 0. The clock may run Python code."""
    return as_nanoseconds(q.getters.clock()) if q.limits.rated else 0


cdef inline bint is_awaiting(FairQueue q) noexcept:
    """True when items are queued, but getters leave them, since an empty slot has the turn and is waited for."""
    cdef SlotTable* table = &q.table
    cdef Slot* slot
    if table.queued == 0 or table.awaited_since == NOT_AWAITED:
        return False
    slot = &table.slots[slots_first(table)]
    return slot.head == NULL and slot.deficit >= anticipation_cost(slot) and anticipation_awaits(table, slot)


cdef inline int64_t takeable(FairQueue q) noexcept:
    """Return the number of items in the slots that take turns, of all bands."""
    if rarely(q.limits.joints.on):
        limits_arrange(&q.limits, &q.table)
    return q.table.queued + q.bands.elsewhere


cdef inline int64_t token_due(FairQueue q) noexcept:
    """Return when a slot at its limit may be served again; NEVER if no time is known, or no such slot has items."""
    return limits_due(&q.limits) if q.table.withheld > q.bands.elsewhere else NEVER


cdef inline int64_t wanted(FairQueue q) noexcept:
    """Return the number of items to wake getters for: none while a getter waits for the slot whose turn it is.

    Plus one if no getter will check again when the next token is due.
    """
    return (0 if q.anticipating and is_awaiting(q) else takeable(q)) + (token_due(q) < q.watched_until)


cdef inline bint has_room(FairQueue q, int64_t count) noexcept:
    """True when `count` more items may be put."""
    return not q.is_shut_down and (not q.maxsize or q.table.queued + q.table.withheld + count <= q.maxsize)


cdef inline bint is_outranked(FairQueue q, int32_t rank) noexcept:
    """True when the queued items are for a waiting getter of a higher priority."""
    return wakeup_higher(&q.getters.interest, rank) and q.getters.outranked(rank)


cdef inline int is_due(FairQueue q) except -1:
    """1 when the slot whose turn it is has an item; turns of slots that were waited for long enough pass."""
    cdef SlotTable* table = &q.table
    cdef int64_t now
    if dwrr_turn(table) != AWAITED_SLOT and table.awaited_since == NOT_AWAITED:
        return 1
    now = as_nanoseconds(q.getters.clock())
    while table.queued and dwrr_turn(table) == AWAITED_SLOT:
        if anticipation_left(table, now) > 0:
            return 0
    if table.awaited_since != NOT_AWAITED:
        anticipation_end_wait(table, now)
    return table.queued != 0


cdef inline int may_take(FairQueue q, int32_t rank) except -1:
    """1 when an item is queued, no getter of a higher priority is to have it, and no slot is waited for."""
    if rarely(q.limits.watched):
        look_at_limits(q)
    if q.table.queued == 0 or is_outranked(q, rank):
        return 0
    if not rarely(q.table.patience != 0):
        return 1
    if rarely(q.limits.joints.on):
        return is_due_and_allowed(q, rank)
    return is_due(q) and q.table.queued != 0 and not is_outranked(q, rank)


cdef int is_due_and_allowed(FairQueue q, int32_t rank) except -1:
    """Return what may_take does: a turn that passes may leave one whose slot has to wait for a joint limit."""
    while is_due(q):
        if not limits_arrange(&q.limits, &q.table) or q.table.queued == 0:
            return q.table.queued != 0 and not is_outranked(q, rank)
    return 0


cdef int look_at_limits(FairQueue q) except -1:
    """Let slots take turns whose limits allow it now, and no others. The clock may run Python code."""
    if q.limits.rated:
        limits_tell(&q.limits, &q.table, as_nanoseconds(q.getters.clock()))
    if q.limits.joints.on:
        limits_arrange(&q.limits, &q.table)
    return 0


cdef inline Verdict verdict_on(FairQueue q, bint for_item, int32_t rank, int64_t count) except VERDICT_ERROR:
    """Decide whether a get of this rank, or a put of `count` items, may go on, has to wait, or has come to its end."""
    if may_take(q, rank) if for_item else has_room(q, count):
        return READY
    if q.is_shut_down and (not for_item or q.table.queued + q.table.withheld == 0):
        return IS_SHUT_DOWN
    return WAIT


# Waiting: for items, for room, for the slot whose turn it is ----------------------------------------------------------
#
# Threads that wait are consumers, of items or of room, each kind in a `WaitingRoom`. These functions are called with
# the queue's exclusion held. It is given up while a thread waits, collects a permit or wakes others, and whenever
# Python code runs: a clock of the caller's own, a finalizer that the collector calls, an exception being made. So the
# verdict on a wait is found last, and the caller takes its items, or puts them, at once; exceptions are raised after
# the seat was left. A thread that waited hands over: it wakes another one for the items or the room left, once it has
# taken its own or has given up.


cdef Verdict wait_for_item(FairQueue q, bint block, object deadline, int32_t rank, int64_t limit) except VERDICT_ERROR:
    """Wait until an item may be taken; TOO_LATE if none was in time, ShutDown if none will come."""
    cdef Verdict verdict = verdict_on(q, True, rank, limit)
    if verdict == WAIT and rarely(q.limits.joints.listed != 0):
        tell_shorts(q)
        verdict = verdict_on(q, True, rank, limit)
    if verdict == WAIT:
        verdict = wait_seated(q, True, deadline, rank, limit) if block else TOO_LATE
    if verdict > READY_AFTER_WAIT:
        if q.limits.on:  # this check may have found slots whose tokens are due: others may take their items
            q.getters.wake(takeable(q))
        q.forget_idle()
    if verdict == IS_SHUT_DOWN:
        raise ShutDown("the queue is shut down and has no item left")
    return verdict


cdef int wait_for_room(FairQueue q, int64_t count, bint block, object timeout) except -1:
    """Return once `count` more items fit, or raise. The caller has pinned their slots, and hands over what is left."""
    cdef object deadline = q.putters.deadline(block, timeout)
    cdef Verdict verdict = verdict_on(q, False, 0, count)
    if verdict == WAIT:
        verdict = wait_seated(q, False, deadline, 0, count) if block else TOO_LATE
    if verdict == TOO_LATE:
        raise Full
    if verdict == IS_SHUT_DOWN:
        raise ShutDown("the queue is shut down")
    return 0


cdef Verdict wait_seated(
    FairQueue q, bint for_item, object deadline, int32_t rank, int64_t count
) except VERDICT_ERROR:
    """Wait among the getters, or among the putters; a thread that gives up hands over."""
    cdef WaitingRoom room = q.getters if for_item else q.putters
    cdef Seat* seat = room.sit(rank, count)
    cdef Verdict verdict = WAIT
    cdef bint in_time
    try:
        while verdict == WAIT:
            in_time = wait_for_turn(q, seat, deadline) if for_item else room.wait(seat, deadline)
            verdict = verdict_on(q, for_item, rank, count)
            if is_told_late(room, seat):
                verdict = verdict_on(q, for_item, rank, count)
            if verdict == WAIT and not in_time:
                verdict = TOO_LATE
            if verdict == WAIT:
                room.stay(seat)
                if not for_item:
                    hand_room_over(q)
                elif not is_awaiting(q):  # otherwise this getter waits for the slot whose turn it is
                    room.wake(takeable(q))
                tell_shorts(q)
    except BaseException:
        leave_seat(q, for_item, seat)
        raise
    if verdict == READY:
        room.leave(seat)
        return READY_AFTER_WAIT
    leave_seat(q, for_item, seat)
    return verdict


cdef void leave_seat(FairQueue q, bint for_item, Seat* seat) noexcept:
    """Give up waiting, and hand over."""
    if for_item:
        q.getters.leave(seat)
        hand_over(q)
    else:
        q.putters.leave(seat)
        hand_room_over(q)


cdef bint is_told_late(WaitingRoom room, Seat* seat) noexcept:
    """True when a seat was claimed after its wait had ended: collects the permit, so the last verdict may be outdated.

    After this, leaving the seat does not give the exclusion up.
    """
    return node_state(&seat.node) == NOTIFIED and not seat.has_permit and room.collect(seat)


cdef bint wait_for_turn(FairQueue q, Seat* seat, object deadline) except -1:
    """Wait to be claimed, or until a slot at its limit gets its token or the awaited turn passes.

    Return False when the deadline passed.
    """
    cdef bint woken, awaiting = is_awaiting(q), watching = token_due(q) < q.watched_until
    cdef int64_t now, due = NEVER
    cdef double until
    if not awaiting and not watching:
        return q.getters.wait(seat, deadline)
    if awaiting:
        now = as_nanoseconds(q.getters.clock())
        if not is_awaiting(q):  # the clock may run any Python code
            return True
        due = now + anticipation_left(&q.table, now)
    if watching:
        due = min(due, token_due(q))
        if due == NEVER:
            return True
        q.watched_until = due
    until = due * 1e-9
    # Rounded down, it would not be due yet. What is due beyond the end of all clocks never is.
    while as_nanoseconds(until) < due <= as_nanoseconds(INFINITY):
        until = nextafter(until, INFINITY)
    q.anticipating += awaiting
    try:
        woken = q.getters.wait(seat, until if deadline is None else min(until, <double> deadline))
    finally:
        q.anticipating -= awaiting
        if watching and q.watched_until == due:
            q.watched_until = NEVER
    return woken or deadline is None or q.getters.clock() < deadline


cdef void hand_over(FairQueue q) noexcept:
    """Wake getters for the items that are left."""
    if q.table.queued or q.table.withheld:
        q.getters.wake(wanted(q))
        tell_shorts(q)
    elif q.is_shut_down:
        q.getters.wake_all()


cdef void hand_room_over(FairQueue q) noexcept:
    """Wake putters for the room that is left."""
    q.putters.wake(q.maxsize - q.table.queued - q.table.withheld)


# One item: put, and taken out -----------------------------------------------------------------------------------------
#
# Called with the queue's exclusion held. `lowest` names the level that items are put into: the slots, or the subkeys of
# a queue that has them. Its indices are those of the table below then.


cdef inline uint32_t find_lowest(FairQueue q, object slot, object subkey, object priority) except? 0xFFFFFFFF:
    """Find, or add, the slot, the branch or the subkey that an item is put into."""
    if rarely(priority is not q.one_priority):
        return find_branch(q, slot, subkey, priority)
    if rarely(subkey is not q.one_subkey):
        check_subkey(q, subkey)
        return find_subkey(q, (slot, subkey))
    return find_slot(q, slot)


cdef inline uint32_t find_slot(FairQueue q, object name) except? 0xFFFFFFFF:
    """Find a slot by name, or add it if there is a default quantum. May run Python code, but not after the search."""
    cdef int64_t hash
    cdef long index = slot_find(q, name, &hash)
    if rarely(index < 0):
        index = q.admit(name, hash)
    return index


cdef inline int check_subkey(FairQueue q, object subkey) except -1:
    if q.below is None:
        raise ValueError(f"subkey {subkey!r} needs a subkey_quantum, which this queue does not have")
    return 0


cdef inline uint32_t find_subkey(FairQueue q, tuple pair) except? 0xFFFFFFFF:
    """Find, or add, the subkey with this pair of names, and its slot."""
    cdef int64_t hash
    cdef uint32_t above
    cdef long index = slot_find(q.below, pair, &hash)
    if index >= 0:
        return index
    above = find_slot(q, pair[0])
    slot_pin(q, above)
    try:
        index = slot_find(q.below, pair, &hash)  # another thread may have added it during the search for the slot
        if index < 0:
            index = add_subkey(q, q.below, &q.levels, above, q.subkey_quantum, pair, hash)
    finally:
        slot_unpin(q, above)
    return index


cdef uint32_t find_branch(FairQueue q, object slot, object subkey, object priority) except? 0xFFFFFFFF:
    """Find, or add, the branch of a slot for a priority; without priorities the slot or the subkey."""
    cdef int64_t number = checked_priority(&q.table, priority)
    if q.table.branches == NULL:
        return find_lowest(q, slot, subkey, q.one_priority)
    if subkey is not NO_SUBKEY:
        check_subkey(q, subkey)
    return branch_of(q, &q.branches, &q.limits, find_slot(q, slot), branches_band(number))


cdef inline NamedSlots lowest(FairQueue q):
    return q if q.below is None else q.below


cdef bint push_below(FairQueue q, uint32_t index, uint64_t token, int64_t cost) noexcept:
    """Append an item to a subkey or branch. Not inline: the compiler would optimise it for size where it is rare."""
    if q.table.branches != NULL:
        return branches_push(&q.table, index, token, cost)
    return subkeys_push(&q.levels, &q.table, index, token, cost)


cdef inline bint push(FairQueue q, uint32_t index, PyObject* item, int64_t cost) noexcept:
    """Append an item, with a reference of its own, to a slot, branch or subkey; False if memory is exhausted."""
    Py_INCREF(<object> item)
    if rarely(q.is_divided):
        return push_below(q, index, <uint64_t> <uintptr_t> item, cost)
    return dwrr_push(&q.table, index, <uint64_t> <uintptr_t> item, cost)


cdef inline int store(FairQueue q, uint32_t index, PyObject* item, int64_t cost) except -1:
    """Append an item to a slot, branch or subkey, or raise MemoryError. Runs no Python code."""
    if rarely(not push(q, index, item, cost)):
        Py_DECREF(<object> item)
        slots_report_idle(&q.table if q.levels.below == NULL else q.levels.below, index)
        raise MemoryError()
    if rarely(q.limits.shared):
        note_pushed(q, index)
    return 0


cdef int store_after_wait(
    FairQueue q, uint32_t index, object item, int64_t cost, bint block, object timeout
) except -1:
    """Wait for room with the slot, branch or subkey pinned, then append the item; hand over the room that is left."""
    slot_pin(lowest(q), index)
    try:
        wait_for_room(q, 1, block, timeout)
        store(q, index, <PyObject*> item, cost)
    finally:
        slot_unpin(lowest(q), index)
        hand_room_over(q)
        q.forget_idle()
    return 0


cdef inline uint32_t serve(FairQueue q, uint64_t* token) noexcept:
    """Pop the next item as dwrr_pop does, from its subkey, too; return its slot, not its branch."""
    cdef uint32_t index = dwrr_pop(&q.table, token)
    if rarely(q.is_divided) and index < AWAITED_SLOT:
        return serve_divided(q, index)
    return index


cdef uint32_t serve_divided(FairQueue q, uint32_t index) noexcept:
    """Note what was popped: in its subkey, or in the slot of its branch. Return the slot. Not inline: as push_below."""
    if q.table.branches != NULL:
        return branches_served(&q.table, index)
    subkeys_pop(&q.levels, &q.table, index)
    return index


cdef inline object take_item(FairQueue q, Verdict verdict, Place place):
    """Serve the item that a verdict allows, into a place if there is one, and a slot has a limit at this moment."""
    cdef uint64_t token = 0
    cdef uint32_t index = serve(q, &token)
    if rarely(place is not None) and q.limits.on:
        take_place(q, index, place)
    item = <object> <PyObject*> <uintptr_t> token
    Py_DECREF(item)  # the entry's reference; `item` holds one of its own
    after_serving(q, verdict)
    return item


cdef inline void after_serving(FairQueue q, Verdict verdict) noexcept:
    """Wake the threads that may go on now, and forget idle tenants. May run Python code."""
    if rarely(verdict == READY_AFTER_WAIT or q.limits.on):
        hand_over(q)
        if q.limits.shorts:
            tell_shorts(q)
    if rarely(wakeup_possible(&q.putters.interest)):
        hand_room_over(q)
    if rarely(q.table.idle_count != 0):
        q.forget_idle()


# Many items at once: put, all or none of them, and taken out into lists -----------------------------------------------
#
# Called with the queue's exclusion held. Steps that may run Python code, such as looking up a slot's name, come first;
# slots that were found are pinned, so that they are not forgotten meanwhile. Then all items move in one stretch.


cdef list one_each(object values, Py_ssize_t size, str what):
    """Return a list of one value for each item; None: there is one value for all items."""
    cdef list found = values if type(values) is list else list(values) if isinstance(values, np.ndarray) else None
    if found is not None and len(found) != size:
        raise ValueError(f"{what} must have one name for each item: {size} items, {len(found)} {what}")
    return found


cdef int store_many(
    FairQueue q, object slot, list names, object subkey, list subnames, bytes bands, list objects,
    const int64_t* costs, bint block, object timeout,
) except -1:
    """Find the slots or subkeys, wait for room, then append all items; no Python code runs from then on.

    `names` has the slot of each item, or `slot` is that of all; the same for subkeys and bands.
    """
    cdef Py_ssize_t i, size = len(objects), found = 0, pins = 0
    cdef Py_ssize_t ranks = 0 if bands is None else PyBytes_GET_SIZE(bands)
    cdef Py_ssize_t places = 1 if names is None and subnames is None and ranks <= 1 else size
    cdef uint32_t remembered[NAME_CACHE]
    cdef uint32_t* indices = <uint32_t*> malloc(2 * places * sizeof(uint32_t))
    cdef uint32_t* pinned
    if indices == NULL:
        raise MemoryError()
    pinned = indices + places
    memset(remembered, 0xFF, sizeof(remembered))  # NO_SLOT
    try:
        while found < places:
            name = nth(slot, names, found, "slots")
            if rarely(q.levels.below != NULL):
                pinned[pins] = indices[found] = find_subkey(q, (name, nth(subkey, subnames, found, "subkeys")))
                slot_pin(q.below, indices[found])
                pins += 1
            else:
                indices[found] = find_pinned(q, name, remembered, pinned, &pins)
            found += 1
        if not has_room(q, size):
            wait_for_room(q, size, block, timeout)
        if PyList_GET_SIZE(objects) != size:
            raise RuntimeError("the items changed while their slots were looked up")
        if ranks:
            enter_branches(q, &q.branches, &q.limits, indices, places, <const uint8_t*> PyBytes_AS_STRING(bands), ranks)
        if not dwrr_reserve(&q.table, size) or (q.levels.below != NULL and not dwrr_reserve(q.levels.below, size)):
            raise MemoryError()
        for i in range(size):
            push(q, indices[0 if places == 1 else i], PyList_GET_ITEM(objects, i), 1 if costs == NULL else costs[i])
            if rarely(q.limits.shared):
                note_pushed(q, indices[0 if places == 1 else i])
    finally:
        for i in range(pins):
            slot_unpin(lowest(q), pinned[i])
        free(indices)
        if q.maxsize:
            hand_room_over(q)
        if q.table.idle_count or q.is_divided:
            q.forget_idle()
    return 0


cdef inline uint32_t find_pinned(
    FairQueue q, object name, uint32_t* remembered, uint32_t* pinned, Py_ssize_t* pins
) except? 0xFFFFFFFF:
    """Find, or add, a slot, and pin it: it is not forgotten until it is unpinned.

    The names found last are known by identity, and their slots are pinned; other slots are appended to `pinned`.
    """
    cdef uintptr_t identity = <uintptr_t> <PyObject*> name
    cdef uint32_t* last = &remembered[(identity >> 4) % NAME_CACHE]
    cdef uint32_t index = last[0]
    if index == NO_SLOT or q.names.names[index].name != <void*> identity:  # pinned: the index is good
        index = find_slot(q, name)
        last[0] = index
        slot_pin(q, index)
        pinned[pins[0]] = index
        pins[0] += 1
    return index


cdef object new_batch(list names, list items):
    """Create a Batch of unfilled lists, without `__init__`, in which a signal handler would see them unfilled."""
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
            limits_take(&q.limits, &q.table, index, True)
        Py_INCREF(<object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(q.name_of, index))
        PyList_SET_ITEM(items, i, <object> <PyObject*> <uintptr_t> token)  # with the entry's reference
    Py_SET_SIZE(<PyObject*> names, taken)  # cutting a list would need memory
    Py_SET_SIZE(<PyObject*> items, taken)
    return taken


@cython.final
@cython.no_gc_clear  # entries refer to objects as long as the queue is not cleared, which clears this too
cdef class SubkeySlots(NamedSlots):
    """The subkeys of all slots of one queue."""


# Limits ---------------------------------------------------------------------------------------------------------------
#
# core/schedule/limits.pxd counts the items in hand, in the same stretch in which they are taken out.


cdef inline void note_pushed(FairQueue q, uint32_t index) noexcept:
    """List the slot of an item that was put if it is short of permits. `index` may be that of a subkey or branch."""
    if q.table.branches != NULL:
        index = q.table.branches.of[index].root
    elif q.levels.below != NULL:
        index = q.levels.above[index]
    limits_pushed(&q.limits, &q.table, index)


cdef void tell_shorts(FairQueue q) noexcept:
    """Call the function that was given to call_when_short, if slots are short. May run Python code."""
    if q.limits.shorts and not q.told and q.asker is not None:
        q.told = True
        asker = q.asker  # a reference of its own: the function may replace it
        q.getters.call(asker)


@cython.final
cdef class Place:
    """The place of one item in hand within its slot's limit: given back once, at the latest when it is deallocated."""

    def __del__(self):
        self.give_back(False)

    cdef int give_back(self, bint unused) except -1:
        """Note that the item is no longer in hand; unused: it counts as not served."""
        cdef FairQueue fair = self.queue
        if fair is not None:
            with cython.critical_section(fair):
                if self.queue is not None:
                    self.queue = None
                    if fair.limits.of[self.index].count == self.count:
                        limits_give_back(&fair.limits, &fair.table, self.index, 1, unused)
                    if self.named or self.total:
                        limits_give_back_joint(&fair.limits, &fair.table, self.named, self.total, unused)
                    fair.gave_back()
        return 0


cdef inline void take_place(FairQueue q, uint32_t index, Place place) noexcept:
    limits_take(&q.limits, &q.table, index, False)
    place.index = index
    place.count = q.limits.of[index].count
    place.named = q.limits.joints.slot[index].named if q.limits.joints.on else NO_JOINT
    place.total = q.limits.joints.total
    place.queue = q


# Event loops: waiting for an item without blocking a thread -----------------------------------------------------------


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
            if not is_awaiting(self.queue):  # otherwise no other getter could take an item either
                self.queue.getters.wake(takeable(self.queue))  # without one for a token: this waiter checks for it

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
    """Create a waiter, with a seat for its callback."""
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
            hand_over(q)  # this waiter may be the one that the queued items are for
    return waiter


# Garbage collection ---------------------------------------------------------------------------------------------------
#
# Cython's own traverse function shows the collector a class's Python attributes; this one adds the references of the
# entries. Both functions are called with every other Python thread stopped or waiting for the GIL.

cdef traverse_t base_traverse = (<PyTypeObject*> FairQueue).tp_traverse
cdef clear_t base_clear = (<PyTypeObject*> FairQueue).tp_clear


@cython.linetrace(False)
@cython.profile(False)
cdef int fairqueue_traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    cdef int stop = items_visit(&(<FairQueue> self).table, &(<FairQueue> self).levels, visit, arg)
    if stop:
        return stop
    return base_traverse(self, visit, arg)


@cython.linetrace(False)
@cython.profile(False)
cdef int fairqueue_clear(PyObject* self) noexcept:
    items_drop(&(<FairQueue> self).table, &(<FairQueue> self).levels)
    slots_disown(<FairQueue> self)
    (<FairQueue> self).is_divided = False
    if (<FairQueue> self).levels.below != NULL:
        slots_disown((<FairQueue> self).below)
        subkeys_clear(&(<FairQueue> self).levels)
    return base_clear(self)


(<PyTypeObject*> FairQueue).tp_traverse = fairqueue_traverse
(<PyTypeObject*> FairQueue).tp_clear = fairqueue_clear
