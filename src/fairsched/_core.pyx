"""The engine's Python face: check, release the GIL once, call the headers in core/."""

cimport cython
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_Check
from cpython.object cimport Py_EQ, PyObject, PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from fairsched.core.memory cimport prefetch
from fairsched.core.schedule.branches cimport branches_add_up
from fairsched.core.schedule.dwrr cimport (
    dwrr_hold, dwrr_pop, dwrr_push, dwrr_reserve, dwrr_set_quantum, dwrr_turn,
)
from fairsched.core.schedule.names cimport (
    SlotNames, slotnames_clear, slotnames_first, slotnames_init, slotnames_put, slotnames_reserve, slotnames_take,
)
from fairsched.core.schedule.slots cimport (
    AT_LIMIT, NO_SLOT, Slot, slots_add, slots_clear, slots_has, slots_init, slots_remove, slots_take_idle,
    slots_unlink_head,
)
from fairsched.scheduling._buffers cimport array_data
from fairsched.scheduling._numbers cimport as_amount, as_count, as_int64, as_timeout, as_token

import operator

import numpy as np

from fairsched.scheduling._arrays import as_costs, as_integers, as_tokens
from fairsched.stats import SlotStats


def checked_quanta(quanta):
    """List the (name, quantum) pairs of a mapping, all of them checked before anything is built."""
    if not hasattr(quanta, "items"):
        raise ValueError(f"quanta must map slot names to quanta, got {quanta!r}")
    return [(name, as_amount(quantum, f"quantum of slot {name!r}")) for name, quantum in quanta.items()]


def checked_timeout(value, str what="timeout"):
    """Convert a timeout in seconds to a float; without one (None) it is infinite."""
    return as_timeout(value, what)


cdef object slot_figures(const Slot* slot):
    """The figures of a slot, which is not to be one that others may change meanwhile: a copy."""
    return SlotStats(
        slot.quantum, slot.deficit, slot.pushed - slot.served, slot.served, slot.work, slot.held != 0,
        (slot.flags & AT_LIMIT) != 0,
    )


cdef long slot_search(NamedSlots slots, object name, int64_t hash) except -2:
    """Compare a name with those of the same hash; start again whenever that has changed which names there are."""
    cdef SlotNames* names = &slots.names
    cdef uint32_t index = slotnames_first(names, hash)
    cdef uint64_t changes = names.changes
    cdef void* pointer
    cdef bint equal, there
    while index != NO_SLOT:
        pointer = names.names[index].name
        if pointer == <void*> <PyObject*> name:
            return index
        if names.names[index].hash == hash:
            known = <object> <PyObject*> pointer
            equal = PyObject_RichCompareBool(known, name, Py_EQ)
            there = names.names[index].name == pointer
            known = None  # it may have been the last reference: before the look at what has changed
            if equal and there:
                return index
            if names.changes != changes:
                changes = names.changes
                index = slotnames_first(names, hash)
                continue
        index = names.names[index].next
    return -1


cdef int slots_make_room(NamedSlots slots) except -1:
    """Make sure that another slot can be added, with or without a name. Runs no Python code."""
    if slots.table.free_slot == NO_SLOT:
        if not slotnames_reserve(&slots.names, slots.table.size):
            raise MemoryError()
        if PyList_GET_SIZE(slots.name_of) == slots.table.size:
            PyList_Append(slots.name_of, None)
    return 0


cdef class NamedSlots:
    """A slot table and the names of its slots: the base of `Dwrr` and `FairQueue`.

    Names are arbitrary objects: hashing and comparing them may run Python code, and so may letting go of the last
    reference to one. So a slot is found first (slot_find); what is done about it then, by `add` or `forget`, runs
    none until it is complete.
    """

    def __cinit__(self, *args, **kwargs):
        slots_init(&self.table)
        slotnames_init(&self.names)
        self.name_of = []

    def __dealloc__(self):
        slots_clear(&self.table)
        slotnames_clear(&self.names)

    cdef uint32_t add(self, object name, int64_t hash, int64_t quantum, bint transient) except? 0xFFFFFFFF:
        """Add a slot of a new name: one that slot_find has just not found. Runs no Python code before it is there."""
        cdef uint32_t index
        slots_make_room(self)
        index = slots_add(&self.table, quantum, transient)
        if index == NO_SLOT:
            raise MemoryError()
        Py_DECREF(None)
        Py_INCREF(name)
        PyList_SET_ITEM(self.name_of, index, name)
        slotnames_put(&self.names, index, <void*> <PyObject*> name, hash)
        self.integer_names |= PyLong_Check(name)
        return index

    cdef uint32_t add_new(self, object name, int64_t quantum) except? 0xFFFFFFFF:
        """Add a slot to be kept, or raise that there is one of this name."""
        cdef int64_t hash
        cdef long index = slot_find(self, name, &hash)
        self.check_idle()
        if index >= 0:
            raise ValueError(f"there is a slot named {name!r} already")
        return self.add(name, hash, quantum, False)

    cdef int check_idle(self) except -1:
        """Raise while another thread is inside without the GIL."""
        return 0

    cdef void forget(self, uint32_t index) noexcept:
        """Remove a slot without messages, and its name. Its name's destructor runs last, and may use these slots."""
        cdef PyObject* name = PyList_GET_ITEM(self.name_of, index)
        slotnames_take(&self.names, index)
        Py_INCREF(None)
        PyList_SET_ITEM(self.name_of, index, None)
        slots_remove(&self.table, index)
        self.removals += 1
        Py_DECREF(<object> name)

    cdef void forget_idle(self) noexcept:
        """Forget the transient slots that are idle at this moment."""
        cdef uint32_t index = slots_take_idle(&self.table)
        while index != NO_SLOT:
            if self.names.names[index].pins == 0:
                self.forget(index)
            index = slots_take_idle(&self.table)

    cdef dict all_stats(self):
        """Figures by slot name, all of one moment."""
        cdef uint32_t i, size
        cdef Slot* slots = NULL
        cdef list names = None
        figures = {}
        while names is None or PyList_GET_SIZE(names) != self.table.size:
            names = PyList_New(self.table.size)  # may run Python code, which may add slots
        size = self.table.size
        slots = <Slot*> malloc(size * sizeof(Slot))
        if slots == NULL and size:
            raise MemoryError()
        for i in range(size):
            slots[i] = self.table.slots[i]
            Py_INCREF(<object> PyList_GET_ITEM(self.name_of, i))
            PyList_SET_ITEM(names, i, <object> PyList_GET_ITEM(self.name_of, i))
        if self.table.branches != NULL:
            branches_add_up(&self.table, slots)
        try:
            for i in range(size):
                if slots[i].quantum:
                    figures[names[i]] = slot_figures(&slots[i])
        finally:
            free(slots)
        return figures


@cython.final
cdef class Dwrr(NamedSlots):
    """Dwrr(quanta)
    --

    Schedule 64-bit tokens by deficit weighted round robin.

    The engine for embedding: tokens in, tokens out. It keeps no Python objects except the slots' names. The caller
    decides what a token stands for (a delivery tag, an index, a row).

    Parameters
    ----------
    quanta : Mapping[Hashable, int]
        Slot names and quanta. A slot's share of the served cost is its quantum divided by the sum of the quanta of all
        backlogged slots.

    Raises
    ------
    ValueError
        A quantum is not a positive integer.
    OverflowError
        A quantum is above 2**62 - 1.

    Notes
    -----
    Complexity: push is O(1). pop is O(1) while no cost exceeds its slot's quantum; a token with a larger cost is served
    every ceil(cost / quantum) rounds, and found in O(active slots) for any ratio. Empty slots cost nothing.

    Thread safety: an instance belongs to one thread at a time. `push_many` and `pop_many` release the GIL; a call that
    overlaps one of them raises RuntimeError. To share a queue between threads, use `FairQueue`.

    Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin", 1995.

    Examples
    --------
    >>> scheduler = Dwrr({"gold": 2, "free": 1})
    >>> scheduler.push_many(["gold"] * 4 + ["free"] * 4, range(8))
    >>> [scheduler.pop() for _ in range(4)]
    [('gold', 0), ('gold', 1), ('free', 4), ('gold', 2)]
    """

    cdef bint busy  # a call without the GIL is under way

    def __cinit__(self, quanta):
        for name, quantum in checked_quanta(quanta):
            self.add_slot(name, quantum)

    cdef int check_idle(self) except -1:
        if self.busy:
            raise RuntimeError("a Dwrr belongs to one thread at a time: another call is under way; use FairQueue")
        return 0

    cdef long resolve(self, object slot) except -1:
        """Index of a slot by name, or, where no name is an integer, by index; checked last, so to be used at once."""
        cdef int64_t hash
        cdef long found = slot_find(self, slot, &hash)
        if found >= 0:
            self.check_idle()
            return found
        if not self.integer_names and not isinstance(slot, bool) and hasattr(type(slot), "__index__"):
            index = operator.index(slot)
            self.check_idle()
            if 0 <= index < self.table.size and slots_has(&self.table, index):
                return index
        raise KeyError(f"no slot is named {slot!r}; add it with add_slot")

    def __len__(self):
        return self.table.queued

    @property
    def names(self):
        """Tuple of slot names by index; None at the index of a removed slot."""
        return tuple(self.name_of[:self.table.size])

    def push(self, slot, token, cost=1):
        """push($self, slot, token, cost=1)
        --

        Append a token to a slot.

        Parameters
        ----------
        slot : Hashable
            The slot's name (or its index, if no name is an integer).
        token : int
            0 to 2**64 - 1.
        cost : int
            Cost of serving the token: a positive integer, in the unit of the quanta.

        Raises
        ------
        KeyError
            There is no such slot.
        ValueError
            The cost is not a positive integer.
        OverflowError
            The token or the cost is out of range.

        Notes
        -----
        Complexity O(1).
        """
        cdef int32_t index = self.resolve(slot)
        cdef int64_t amount, removals = self.removals
        cdef uint64_t number
        prefetch(&self.table.slots[index])  # among very many slots, fetch it while the numbers are converted
        number = as_token(token)
        amount = as_amount(cost, "cost")
        if self.removals != removals:  # by Python code, in converting them
            index = self.resolve(slot)
        if not dwrr_push(&self.table, index, number, amount):
            raise MemoryError()

    def push_many(self, slots, tokens, costs=None):
        """push_many($self, slots, tokens, costs=None)
        --

        Append many tokens, all or (on an error) none.

        Parameters
        ----------
        slots : array of integers, or sequence of Hashable
            One slot per token. An integer array holds slot indices (see `names`); any other sequence holds names.
        tokens : array-like of int, shape (n,)
            Each from 0 to 2**64 - 1.
        costs : array-like of int, shape (n,), optional
            Positive integers; 1 each by default.

        Raises
        ------
        KeyError
            There is no such slot.
        ValueError
            Lengths differ, or a cost is not a positive integer.
        OverflowError
            A token or a cost is out of range.
        RuntimeError
            The hash or the equality of a name removed a slot meanwhile.

        Notes
        -----
        Complexity O(n). The GIL is released once.
        """
        cdef object checked_tokens = as_tokens(tokens), checked_costs = None, indices
        cdef const uint64_t* token_at = <const uint64_t*> array_data(checked_tokens)
        cdef const int64_t* cost_at = NULL
        cdef const int32_t* slot_at
        cdef Py_ssize_t i, size = len(checked_tokens)
        cdef int64_t removals
        cdef bint ok
        if costs is not None:
            checked_costs = as_costs(costs, size)
            cost_at = <const int64_t*> array_data(checked_costs)
        removals = self.removals
        indices = self.slot_indices(slots)
        slot_at = <const int32_t*> array_data(indices)
        if len(indices) != size:
            raise ValueError(f"slots must have one value for each token: {size} tokens, {len(indices)} slots")
        self.check_idle()
        if self.removals != removals:
            raise RuntimeError("a slot was removed while the slots were looked up")
        self.busy = True
        with nogil:
            ok = dwrr_reserve(&self.table, size)
            if ok:
                for i in range(size):
                    dwrr_push(&self.table, slot_at[i], token_at[i], 1 if cost_at == NULL else cost_at[i])
        self.busy = False
        if not ok:
            raise MemoryError()

    cdef object slot_indices(self, object slots):
        """Make an int32 array of slot indices from indices or names."""
        cdef const int32_t* index_at
        cdef Py_ssize_t i
        if getattr(getattr(slots, "dtype", None), "kind", "") not in ("i", "u"):
            return np.array([self.resolve(slot) for slot in slots], dtype=np.int32)
        if slots.dtype != np.int32:
            slots = as_integers(slots, "slots", "a slot index", -(2**31), 2**31 - 1)
        array = np.array(slots, dtype=np.int32)  # a copy: the caller may change his after it was checked
        if array.ndim != 1:
            raise ValueError(f"slots must be one-dimensional, got {array.ndim} dimensions")
        index_at = <const int32_t*> array_data(array)
        for i in range(len(array)):
            if not slots_has(&self.table, index_at[i]):
                raise KeyError(f"no slot has index {index_at[i]}; see names")
        return array

    def pop(self):
        """pop($self)
        --

        Serve one token.

        Returns
        -------
        tuple or None
            (slot name, token), or None if nothing is queued.

        Notes
        -----
        Complexity O(1) while no cost exceeds its slot's quantum.
        """
        cdef uint64_t token = 0
        cdef uint32_t index
        # What may fail, or run the collector, comes before the token is taken.
        cdef tuple found = PyTuple_New(2)
        cdef object number
        self.check_idle()
        if self.table.queued == 0:
            return None
        number = self.table.slots[dwrr_turn(&self.table)].head.token
        index = dwrr_pop(&self.table, &token)
        name = <object> PyList_GET_ITEM(self.name_of, index)
        Py_INCREF(name)
        PyTuple_SET_ITEM(found, 0, name)
        Py_INCREF(number)
        PyTuple_SET_ITEM(found, 1, number)
        return found

    def pop_many(self, n):
        """pop_many($self, n)
        --

        Serve up to `n` tokens.

        Parameters
        ----------
        n : int
            Maximum number of tokens; not negative.

        Returns
        -------
        slot_indices : numpy.ndarray of int32, shape (k,)
            Indices into `names`; k <= n.
        tokens : numpy.ndarray of uint64, shape (k,)

        Raises
        ------
        ValueError
            `n` is negative or not an integer.

        Notes
        -----
        Complexity O(k). The GIL is released once.
        """
        cdef int64_t limit = as_count(n)
        cdef int64_t size = -1
        cdef int32_t* slot_at = NULL
        cdef uint64_t* token_at = NULL
        cdef tuple found = None
        cdef Py_ssize_t i
        # The result is complete before a token is taken: an allocation may fail, or run Python code that pops.
        while not 0 <= size <= self.table.queued:
            size = min(limit, self.table.queued)
            indices = np.empty(size, dtype=np.int32)
            tokens = np.empty(size, dtype=np.uint64)
            slot_at = <int32_t*> array_data(indices)
            token_at = <uint64_t*> array_data(tokens)
            found = (indices, tokens)
            self.check_idle()
        self.busy = True
        with nogil:
            for i in range(size):
                slot_at[i] = <int32_t> dwrr_pop(&self.table, &token_at[i])
        self.busy = False
        return found

    def settle(self, slot, cost_difference):
        """settle($self, slot, cost_difference)
        --

        Correct the cost charged to a slot, once the real cost is known.

        Parameters
        ----------
        slot : Hashable
            The slot's name.
        cost_difference : int
            Measured cost minus the cost given to `push`. The deficit may fall below zero: the slot pays this debt
            before its next turn. A backlogged slot keeps a refund of up to one quantum plus the largest cost.

        Raises
        ------
        KeyError
            There is no such slot.
        ValueError
            The difference is not an integer.
        OverflowError
            The debt would exceed 2**62 - 1.
        """
        cdef int64_t difference = as_int64(cost_difference, "cost difference", "an integer")
        slot_settle(self, self.resolve(slot), difference)

    def set_quantum(self, slot, quantum):
        """set_quantum($self, slot, quantum)
        --

        Change a slot's quantum. The change applies to its backlog at once.

        Raises
        ------
        KeyError
            There is no such slot.
        ValueError, OverflowError
            The quantum is not a positive integer of at most 2**62 - 1.
        """
        cdef int64_t amount = as_amount(quantum, f"quantum of slot {slot!r}")
        dwrr_set_quantum(&self.table, self.resolve(slot), amount)

    def add_slot(self, name, quantum):
        """add_slot($self, name, quantum)
        --

        Add a slot and return its index (that of a removed slot, if there is one).

        Raises
        ------
        ValueError
            A slot of this name exists, or the quantum is not a positive integer.
        OverflowError
            The quantum is above 2**62 - 1.
        """
        cdef int64_t amount = as_amount(quantum, f"quantum of slot {name!r}")
        return self.add_new(name, amount)

    def remove_slot(self, slot):
        """remove_slot($self, slot)
        --

        Remove a slot.

        Returns
        -------
        numpy.ndarray of uint64
            The tokens still queued in the slot, oldest first: nothing is lost.

        Raises
        ------
        KeyError
            There is no such slot.

        Notes
        -----
        Complexity O(tokens queued in the slot + active slots).
        """
        cdef object tokens = None
        cdef uint64_t* token_at = NULL
        cdef Py_ssize_t i, size = -1
        cdef uint32_t index = self.resolve(slot)
        while size != self.queued_in(index):
            size = self.queued_in(index)
            tokens = np.empty(size, dtype=np.uint64)  # may run Python code, which may push
            token_at = <uint64_t*> array_data(tokens)
            index = self.resolve(slot)
        for i in range(size):
            token_at[i] = slots_unlink_head(&self.table, &self.table.slots[index])
        self.forget(index)
        return tokens

    cdef Py_ssize_t queued_in(self, uint32_t index) noexcept:
        return <Py_ssize_t> (self.table.slots[index].pushed - self.table.slots[index].served)

    def hold(self, slot, held):
        """hold($self, slot, held)
        --

        Set whether a slot still has a backlog upstream when it runs empty here.

        A held slot keeps its deficit (at most one quantum plus the largest cost) when it runs empty, so that shares do
        not flatten while the next delivery is in flight. Ending the hold of an empty slot drops its deficit.

        Raises
        ------
        KeyError
            There is no such slot.
        """
        cdef bint state = held
        dwrr_hold(&self.table, self.resolve(slot), state)

    def stats(self):
        """stats($self)
        --

        Statistics by slot name: a dict of `SlotStats`. O(slots).
        """
        self.check_idle()
        return self.all_stats()


# ---------------------------------------------------------------------------------------------------------------------
# Garbage collection. The collector finds the names in `name_of`; when it lets go of that list, the slots go first.

cdef clear_t dwrr_base_clear = (<PyTypeObject*> Dwrr).tp_clear


cdef void slots_disown(NamedSlots slots) noexcept:
    """Have no slot and no name any more. Nothing is queued."""
    slotnames_clear(&slots.names)
    slots_clear(&slots.table)


@cython.linetrace(False)
@cython.profile(False)
cdef int dwrr_clear(PyObject* self) noexcept:
    slots_disown(<Dwrr> self)
    return dwrr_base_clear(self)


(<PyTypeObject*> Dwrr).tp_clear = dwrr_clear
