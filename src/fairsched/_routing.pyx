"""Consistent hashing: the ring, and the hash that puts keys on it. Pickled rings name this module."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint64_t

from fairsched._keys cimport Column, as_seed, columns_of, hash_key, hashes_of, place_all
from fairsched._numbers cimport as_amount
from fairsched.core.hashring cimport (
    HashRing as Ring, hashring_build, hashring_clear, hashring_init, hashring_owner, hashring_owners, hashring_place,
)

import numpy as np

from fairsched.ringarcs import arcs_of, moved_between

cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(object tuple, Py_ssize_t index) noexcept

cdef enum:
    POINTS_MAX = 1 << 27


cdef void place_on_ring(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil:
    hashring_owners(<const Ring*> where, hashes, out, n)


@cython.final
cdef class RingTable:
    """A built ring with its members: readers go on with it while `HashRing` puts another in its place.

    Only the loads change. They are counted here, so that a load is never counted for the members of another table.
    """

    cdef Ring ring
    cdef tuple names
    cdef dict index_of        # names are exactly str: looking one up runs no Python code
    cdef dict member_weights
    cdef int64_t[::1] weights  # by index
    cdef int64_t[::1] loads    # keys placed and not released, by index
    cdef int64_t weight
    cdef int64_t load

    def __cinit__(self):
        hashring_init(&self.ring)
        self.names = ()
        self.index_of = {}
        self.member_weights = {}

    def __dealloc__(self):
        hashring_clear(&self.ring)

    cdef int32_t place(self, uint64_t hashed, double factor) noexcept:
        """Place one key within the bounds. Runs no Python code; the caller excludes others. Needs a member."""
        cdef int32_t member = hashring_place(
            &self.ring, hashed, &self.loads[0], &self.weights[0], self.load, self.weight, factor
        )
        self.loads[member] += 1
        self.load += 1
        return member

    cdef void take_loads(self, RingTable before, const int64_t* places) noexcept:
        """Go on with the loads of another table, whose members stood in those places; -1: was not a member."""
        cdef Py_ssize_t i
        for i in range(len(self.names)):
            self.loads[i] = before.loads[places[i]] if places[i] >= 0 else 0
            self.load += self.loads[i]


cdef RingTable build_table(dict weights, int64_t points_per_weight, uint64_t seed, int space_bits):
    """Build the ring of these members."""
    cdef RingTable table = RingTable()
    cdef int64_t[::1] counts
    cdef uint64_t[::1] bases
    cdef int32_t[::1] members
    cdef int32_t size
    cdef bint ok
    table.weight = check_points(weights, points_per_weight)
    size = <int32_t> len(weights)
    table.names = tuple(weights)
    table.index_of = {name: index for index, name in enumerate(table.names)}
    table.member_weights = weights
    table.weights = np.array(list(weights.values()), dtype=np.int64)
    table.loads = np.zeros(size, dtype=np.int64)
    if size == 0:
        return table
    # In the order of names, so that coinciding points fall to the same member whatever the order of joining.
    ranked = sorted(table.names, key=lambda name: name.encode())
    counts = np.array([weights[name] * points_per_weight for name in ranked], dtype=np.int64)
    bases = np.array([xxh64(name, seed) for name in ranked], dtype=np.uint64)
    members = np.array([table.index_of[name] for name in ranked], dtype=np.int32)
    with nogil:
        ok = hashring_build(&table.ring, &bases[0], &counts[0], &members[0], size, space_bits)
    if not ok:
        raise MemoryError()
    return table


cdef int64_t check_points(dict weights, int64_t points_per_weight) except -1:
    """The sum of the weights, if there are not too many points."""
    weight = sum(weights.values())
    if weight > POINTS_MAX // points_per_weight:
        raise ValueError(f"a ring has at most 2**27 points, got {weight} times {points_per_weight}")
    return weight


cdef str checked_name(object name):
    """A member's name, as exactly a str: the hash of a subclass may be Python code."""
    if not isinstance(name, str):
        raise ValueError(f"a member's name must be a str, got {name!r}")
    return str.__str__(name)


def rebuilt_ring(weights, points_per_weight, seed, space_bits):
    """Make a ring out of what its pickle holds."""
    return HashRing(weights, points_per_weight=points_per_weight, seed=seed, space_bits=space_bits)


@cython.final
cdef class HashRing:
    """HashRing(weights, *, points_per_weight=1, seed=0, space_bits=64, load_factor=None)
    --

    Consistent hashing: members on a ring, each key with the nearest member above its hash.

    A member that leaves gives up its keys and moves no other; one that joins takes its share and moves nothing between
    the rest. Every process that is given the same weights, seed and space agrees on every key, in whatever order the
    members came.

    Parameters
    ----------
    weights : Mapping[str, int]
        Members and how many points each has, in units of `points_per_weight`.
    points_per_weight : int
        Points for each unit of weight. A member's load varies around its share by about one part in the square root
        of its points: 256 points hold 64 members within 25 % of the mean.
    seed : int
        0 to 2**64 - 1; another seed is another ring.
    space_bits : int
        Points lie on multiples of 2**(64 - space_bits): 27 is the space of RabbitMQ's first exchange. 1 to 64.
    load_factor : float, optional
        Bounded loads: `route` counts the keys it places, and no member is given one that would lift its load above
        ``ceil(load_factor * load * weight / total weight)``, the key itself included. 1 or more; say `release` when a
        key is done.

    Raises
    ------
    ValueError
        A weight is not a positive integer, a name not a str, a parameter out of range, or there would be more than
        2**27 points.
    OverflowError
        A weight or the seed is too large.

    Notes
    -----
    A key is str (hashed as UTF-8), bytes, int (as eight bytes, lowest first) or None (whose hash is the seed), hashed
    by XXH64: with seed 42 the hash is that of Spark's `xxhash64` for strings, binaries and 64-bit integers.

    Complexity: route O(1) expected; route_many O(bytes); building, add and remove O(points log points). With
    `load_factor`, route is O(points passed) more.

    Thread safety: all methods may be called from any thread. `route_many` releases the GIL and works on the ring as it
    was when called. With `load_factor`, placements are made one at a time.

    Source: Karger et al., "Consistent Hashing and Random Trees", 1997, and the first consistent-hash exchange of
    RabbitMQ; bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2018.

    Examples
    --------
    >>> ring = HashRing({"q0": 10, "q1": 10, "q2": 20}, points_per_weight=16)
    >>> ring.route("user-42") in ring.names
    True
    >>> before = [ring.route(number) for number in range(1000)]
    >>> ring.remove("q1")
    >>> all(old in ("q1", ring.route(number)) for number, old in enumerate(before))
    True
    """

    cdef RingTable table
    cdef readonly uint64_t seed
    cdef readonly int space_bits
    cdef readonly int64_t points_per_weight
    cdef readonly object load_factor
    cdef double factor  # 0: not bounded

    def __cinit__(self, weights, *, points_per_weight=1, seed=0, space_bits=64, load_factor=None):
        self.table = RingTable()
        if not hasattr(weights, "items"):
            raise ValueError(f"weights must map names to weights, got {weights!r}")
        self.seed = as_seed(seed)
        self.points_per_weight = as_amount(points_per_weight, "points_per_weight")
        if not 1 <= as_amount(space_bits, "space_bits") <= 64:
            raise ValueError(f"space_bits must be 1 to 64, got {space_bits!r}")
        self.space_bits = space_bits
        self.load_factor = load_factor
        if load_factor is not None:
            self.factor = load_factor
            if not 1.0 <= self.factor < float("inf"):
                raise ValueError(f"load_factor must be 1 or more, got {load_factor!r}")
        members = {}
        for name, weight in weights.items():
            members[checked_name(name)] = as_amount(weight, f"weight of {name!r}")
        self.table = build_table(members, self.points_per_weight, self.seed, self.space_bits)

    cdef RingTable present(self):
        with cython.critical_section(self):
            return self.table

    cdef bint replace(self, RingTable before, dict members) except -1:
        """Build the ring of these members, and put it in the place of `before`; False when others changed that first.

        Building runs Python code and gives up the GIL: loads are counted, and members come and go, meanwhile.
        """
        cdef RingTable table = build_table(members, self.points_per_weight, self.seed, self.space_bits)
        cdef int64_t[::1] places = np.array([before.index_of.get(name, -1) for name in table.names] or [-1], np.int64)
        with cython.critical_section(self):
            if self.table is not before:
                return False
            table.take_loads(before, &places[0])
            self.table = table
        return True

    def __len__(self):
        return len(self.names)

    def __contains__(self, name):
        return name in self.weights

    def __repr__(self):
        return f"HashRing({self.weights!r}, points_per_weight={self.points_per_weight}, seed={self.seed})"

    def __reduce__(self):
        if self.load_factor is not None:
            raise TypeError("a HashRing with loads belongs to one process: it cannot be pickled")
        return rebuilt_ring, (self.weights, self.points_per_weight, self.seed, self.space_bits)

    @property
    def names(self):
        """Tuple of the members' names, in the order of joining: what the indices of `route_many` count."""
        return self.present().names

    @property
    def weights(self):
        """Dict of the members' weights."""
        return dict(self.present().member_weights)

    @property
    def loads(self):
        """Dict of the keys placed with each member and not released; all 0 without `load_factor`."""
        cdef RingTable table
        cdef list loads = []
        cdef Py_ssize_t i
        with cython.critical_section(self):
            table = self.table
            for i in range(len(table.names)):
                loads.append(table.loads[i])
        return dict(zip(table.names, loads))

    def route(self, key):
        """route($self, key)
        --

        Name the member that has a key; None on an empty ring.

        With `load_factor` this places the key: the member's load grows by one.

        Parameters
        ----------
        key : str, bytes, int or None

        Returns
        -------
        str or None

        Raises
        ------
        TypeError
            The key is of no such type.
        OverflowError
            An integer key lies outside -2**63 to 2**64 - 1.

        Notes
        -----
        Complexity O(1) expected.
        """
        cdef uint64_t hashed = 0
        cdef RingTable table
        hash_key(key, self.seed, False, &hashed)
        with cython.critical_section(self):
            table = self.table
            if table.ring.size == 0:
                return None
            if self.factor:
                return <object> PyTuple_GET_ITEM(table.names, table.place(hashed, self.factor))
        return <object> PyTuple_GET_ITEM(table.names, hashring_owner(&table.ring, hashed))

    def route_many(self, keys):
        """route_many($self, keys)
        --

        Find the members of many keys.

        Parameters
        ----------
        keys : sequence of keys, numpy.ndarray, or Arrow array
            A list of str, bytes, int and None; a numpy array of bytes (``S``) or integers; anything that speaks the
            Arrow C data interface (arrays and chunked arrays of pyarrow, series of polars) with strings, binaries or
            integers, dictionary-encoded or not. Arrays are read where they lie. All nulls go to one member.

        Returns
        -------
        numpy.ndarray of int32, shape (n,)
            Indices into `names`; -1 throughout on an empty ring.

        Raises
        ------
        TypeError
            A key, or the array's type, is none of these.
        OverflowError
            An integer key lies outside -2**63 to 2**64 - 1.

        Notes
        -----
        Complexity O(bytes). Python objects are hashed with the GIL held; everything else runs without it.
        """
        cdef RingTable table = self.present()
        columns = columns_of(keys, self.seed, False)
        if self.factor:
            return self.place_many(columns)
        if table.ring.size == 0:
            return np.full(sum([(<Column> column).keys.length for column in columns]), -1, dtype=np.int32)
        return place_all(columns, self.seed, False, place_on_ring, &table.ring)

    cdef object place_many(self, list columns):
        """Place many keys within the bounds, in their order."""
        cdef uint64_t[::1] hashes
        cdef int32_t[::1] out
        cdef RingTable table
        cdef Py_ssize_t i
        hashes = np.concatenate([hashes_of(column, self.seed) for column in columns] or [np.empty(0, np.uint64)])
        result = np.full(hashes.shape[0], -1, dtype=np.int32)
        out = result
        with cython.critical_section(self):
            table = self.table
            for i in range(hashes.shape[0] if table.ring.size else 0):
                out[i] = table.place(hashes[i], self.factor)
        return result

    def release(self, name, count=1):
        """release($self, name, count=1)
        --

        Say that `count` of the keys placed with a member are done.

        Raises
        ------
        KeyError
            There is no such member.
        ValueError
            The count is not positive, or more than the member's load.
        """
        cdef int64_t amount = as_amount(count, "count")
        cdef int64_t load
        cdef str exact = checked_name(name) if isinstance(name, str) else None
        cdef RingTable table
        cdef Py_ssize_t index
        with cython.critical_section(self):
            table = self.table
            index = table.index_of.get(exact, -1)
            load = table.loads[index] if index >= 0 else 0
            if amount <= load:
                table.loads[index] -= amount
                table.load -= amount
        if index < 0:
            raise KeyError(f"no member is named {name!r}")
        if amount > load:
            raise ValueError(f"{name!r} has a load of {load}, {count} cannot be released")

    def add(self, name, weight):
        """add($self, name, weight)
        --

        Let a member join. Keys move to it and nowhere else.

        Raises
        ------
        ValueError
            There is a member of this name, or the weight is not a positive integer.

        Notes
        -----
        Complexity O(points log points): the ring is built anew, and readers go on with the old one meanwhile.
        """
        cdef RingTable before
        cdef str exact = checked_name(name)
        amount = as_amount(weight, f"weight of {name!r}")
        while True:
            before = self.present()
            if exact in before.index_of:
                raise ValueError(f"there is a member named {name!r} already")
            if self.replace(before, {**before.member_weights, exact: amount}):
                return

    def remove(self, name):
        """remove($self, name)
        --

        Let a member leave. Only its keys move.

        Raises
        ------
        KeyError
            There is no such member.

        Notes
        -----
        Complexity O(points log points).
        """
        cdef RingTable before
        cdef str exact = checked_name(name) if isinstance(name, str) else None
        while True:
            before = self.present()
            if exact not in before.index_of:
                raise KeyError(f"no member is named {name!r}")
            members = {other: weight for other, weight in before.member_weights.items() if other != exact}
            if self.replace(before, members):
                return

    def _points(self):
        """Arrays of the points, ascending, and of their members' indices; and the names."""
        cdef RingTable table = self.present()
        cdef uint64_t[::1] points
        cdef int32_t[::1] owners
        cdef int64_t i
        points = where = np.empty(table.ring.size, dtype=np.uint64)
        owners = whose = np.empty(table.ring.size, dtype=np.int32)
        for i in range(table.ring.size):
            points[i] = table.ring.points[i]
            owners[i] = table.ring.owners[i]
        return where, whose, table.names

    def share(self, name):
        """share($self, name)
        --

        Part of all keys that a member has: the exact length of its arcs, as a part of the ring.

        Raises
        ------
        KeyError
            There is no such member.

        Notes
        -----
        Complexity O(points).
        """
        points, owners, names = self._points()
        if name not in names:
            raise KeyError(f"no member is named {name!r}")
        return arcs_of(points, owners == names.index(name)) / 2**64

    def moved(self, other):
        """moved($self, other)
        --

        Part of all keys that have another member on another ring: the exact length of the arcs that differ.

        Parameters
        ----------
        other : HashRing
            With the same seed, so that keys have the same hashes.

        Returns
        -------
        float
            0.0 to 1.0.

        Raises
        ------
        ValueError
            The seeds differ.

        Notes
        -----
        Complexity O(points log points) of both rings.
        """
        if not isinstance(other, HashRing):
            raise TypeError(f"a HashRing is compared with a HashRing, got {other!r}")
        if self.seed != (<HashRing> other).seed:
            raise ValueError(f"rings of different seeds hash keys differently: {self.seed} and {other.seed}")
        return moved_between(self._points(), other._points())


def xxh64(data, seed=0):
    """xxh64(data, seed=0)
    --

    XXH64 of a str (as UTF-8) or of bytes, as `HashRing` hashes keys.

    Notes
    -----
    Complexity O(length). Source: the xxHash specification 0.1.1.
    """
    cdef uint64_t hashed = 0
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"data must be str or bytes, got {data!r}")
    hash_key(data, as_seed(seed), False, &hashed)
    return hashed
