"""Consistent hashing: map keys to queues, or to any named members, and the hash functions this needs.

In this file, in this order:

    HashRing                       members on a ring; a key belongs to the nearest member above its hash. Pickled rings
                                   name this module
    jump_hash, jump_hash_many      buckets without a table
    phash2, rabbitmq_bucket        how RabbitMQ's consistent-hash exchange places a routing key
    xxh64                          the hash function of keys
    one key, many keys, placing    Python objects one by one with the GIL, or columns of numpy and Arrow without it
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fairsched.core.arrowdata cimport ArrowArray, ArrowArrayStream, ArrowSchema
from fairsched.core.hashing.arrow cimport arrow_column
from fairsched.core.hashing.exs1024 cimport rabbitmq_bucket as bucket_of_rabbitmq
from fairsched.core.hashing.jump cimport jump_bucket, jump_buckets
from fairsched.core.hashing.keycolumn cimport (
    KEYS_HASHED, KEYS_PADDED, KEYS_SIGNED, KEYS_UNSIGNED, KeyColumn, keycolumn_hash, keycolumn_integer, keycolumn_valid,
)
from fairsched.core.hashing.phash2 cimport (
    phash2_atom, phash2_binary, phash2_float, phash2_integer, phash2_pair, phash2_range,
)
from fairsched.core.hashing.ring cimport (
    HashRing as Ring, hashring_build, hashring_clear, hashring_init, hashring_owner, hashring_owners, hashring_place,
)
from fairsched.core.hashing.xxh64 cimport xxh64 as hash_bytes, xxh64_integer
from fairsched.scheduling._buffers cimport array_data
from fairsched.scheduling._numbers cimport as_amount, as_buckets

import numpy as np

from fairsched.routing.ringarcs import arcs_of, moved_between

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object o) noexcept
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL
    bint PyBytes_CheckExact(object o) noexcept
    bint PyLong_CheckExact(object o) noexcept
    int64_t PyLong_AsLongLongAndOverflow(object o, int* overflow) except? -1
    uint64_t PyLong_AsUnsignedLongLong(object o) except? 0xFFFFFFFFFFFFFFFF
    PyObject* PyTuple_GET_ITEM(object tuple, Py_ssize_t index) noexcept

cdef enum:
    POINTS_MAX = 1 << 27
    BLOCK = 1024  # keys that are hashed and placed together

# Places a block of hashes, `where` being a ring or a number of buckets.
ctypedef void (*Place)(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil


# The ring -------------------------------------------------------------------------------------------------------------


cdef void place_on_ring(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil:
    hashring_owners(<const Ring*> where, hashes, out, n)


@cython.final
cdef class RingTable:
    """A built ring with its members: readers keep using it while `HashRing` replaces it with another.

    Only the loads change. They are counted here, so that a load is never counted for the members of another table.
    """

    cdef Ring ring
    cdef tuple names
    cdef dict index_of        # names are exactly str: looking one up runs no Python code
    cdef dict member_weights
    cdef int64_t* weights     # by index
    cdef int64_t* loads       # keys placed and not released, by index
    cdef int64_t weight
    cdef int64_t load

    def __cinit__(self):
        hashring_init(&self.ring)
        self.names = ()
        self.index_of = {}
        self.member_weights = {}

    def __dealloc__(self):
        hashring_clear(&self.ring)
        free(self.weights)
        free(self.loads)

    cdef int32_t place(self, uint64_t hashed, double factor) noexcept:
        """Place one key within the bounds. Runs no Python code; the caller holds the lock. Needs a member."""
        cdef int32_t member = hashring_place(
            &self.ring, hashed, self.loads, self.weights, self.load, self.weight, factor
        )
        self.loads[member] += 1
        self.load += 1
        return member

    cdef void take_loads(self, RingTable before, const int64_t* places) noexcept:
        """Take over the loads of another table, in which the members had these indices; -1: was not a member."""
        cdef Py_ssize_t i
        for i in range(len(self.names)):
            self.loads[i] = before.loads[places[i]] if places[i] >= 0 else 0
            self.load += self.loads[i]


cdef RingTable build_table(dict weights, int64_t points_per_weight, uint64_t seed, int space_bits):
    """Build the ring of these members."""
    cdef RingTable table = RingTable()
    cdef object counts, bases, members
    cdef const int64_t* count_at
    cdef const uint64_t* base_at
    cdef const int32_t* member_at
    cdef int32_t size, index
    cdef bint ok
    table.weight = check_points(weights, points_per_weight)
    size = <int32_t> len(weights)
    table.names = tuple(weights)
    table.index_of = {name: index for index, name in enumerate(table.names)}
    table.member_weights = weights
    if size == 0:
        return table
    table.weights = <int64_t*> calloc(size, sizeof(int64_t))
    table.loads = <int64_t*> calloc(size, sizeof(int64_t))
    if table.weights == NULL or table.loads == NULL:
        raise MemoryError()
    for index, weight in enumerate(weights.values()):
        table.weights[index] = weight
    # In the order of names, so that coinciding points fall to the same member whatever the order of joining.
    ranked = sorted(table.names, key=lambda name: name.encode())
    counts = np.array([weights[name] * points_per_weight for name in ranked], dtype=np.int64)
    bases = np.array([xxh64(name, seed) for name in ranked], dtype=np.uint64)
    members = np.array([table.index_of[name] for name in ranked], dtype=np.int32)
    base_at = <const uint64_t*> array_data(bases)
    count_at = <const int64_t*> array_data(counts)
    member_at = <const int32_t*> array_data(members)
    with nogil:
        ok = hashring_build(&table.ring, base_at, count_at, member_at, size, space_bits)
    if not ok:
        raise MemoryError()
    return table


cdef int64_t check_points(dict weights, int64_t points_per_weight) except -1:
    """Return the sum of the weights; raise ValueError if there are too many points."""
    weight = sum(weights.values())
    if weight > POINTS_MAX // points_per_weight:
        raise ValueError(f"a ring has at most 2**27 points, got {weight} times {points_per_weight}")
    return weight


cdef str checked_name(object name):
    """Return a member's name as exactly a str: the hash of a subclass may be Python code."""
    if not isinstance(name, str):
        raise ValueError(f"a member's name must be a str, got {name!r}")
    return str.__str__(name)


def rebuilt_ring(weights, points_per_weight, seed, space_bits):
    """Rebuild a ring from its pickle."""
    return HashRing(weights, points_per_weight=points_per_weight, seed=seed, space_bits=space_bits)


@cython.final
cdef class HashRing:
    """HashRing(weights, *, points_per_weight=1, seed=0, space_bits=64, load_factor=None)
    --

    Consistent hashing: a ring of members; a key belongs to the nearest member above its hash.

    When a member leaves, only its keys move. When a member joins, keys move only to it. Processes with the same
    weights, seed and space agree on every key, whatever the order in which the members joined.

    Parameters
    ----------
    weights : Mapping[str, int]
        Members and their weights.
    points_per_weight : int
        Points on the ring per unit of weight. The load of a member with n points deviates from its share by about one
        part in sqrt(n): with 256 points each, 64 members are within 25 % of the mean.
    seed : int
        Seed of the hash, 0 to 2**64 - 1; a different seed gives a different ring.
    space_bits : int
        Points lie on multiples of 2**(64 - space_bits), 1 to 64; 27 is the space of RabbitMQ's first exchange.
    load_factor : float, optional
        Bounded loads, 1 or more: `route` counts the keys it places, and skips a member if the key would raise its load
        above ``ceil(load_factor * load * weight / total weight)``, where the load includes the key. Call `release` when
        a key is done.

    Raises
    ------
    ValueError
        If a weight is not a positive integer, a name is not a str, a parameter is out of range, or there would be more
        than 2**27 points.
    OverflowError
        If a weight or the seed is too large.

    Notes
    -----
    A key is str (hashed as UTF-8), bytes, int (as eight bytes, little-endian) or None (whose hash is the seed). Keys
    are hashed by XXH64; with seed 42 the hash equals Spark's `xxhash64` of strings, binaries and 64-bit integers.

    Complexity: route O(1) expected; route_many O(bytes); building, add and remove O(points log points). With
    `load_factor`, route takes O(points skipped) more.

    Thread safety: all methods may be called from any thread. `route_many` releases the GIL and uses the ring as it was
    at the call. With `load_factor`, keys are placed one at a time.

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
        """Build the ring of these members and replace `before` by it; False if another thread replaced that first.

        Building runs Python code and releases the GIL: meanwhile loads are counted, and members join and leave.
        """
        cdef RingTable table = build_table(members, self.points_per_weight, self.seed, self.space_bits)
        cdef object places = np.array([before.index_of.get(name, -1) for name in table.names] or [-1], np.int64)
        cdef const int64_t* place_at = <const int64_t*> array_data(places)
        with cython.critical_section(self):
            if self.table is not before:
                return False
            table.take_loads(before, place_at)
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
            raise TypeError("a HashRing with load_factor cannot be pickled: its loads belong to one process")
        return rebuilt_ring, (self.weights, self.points_per_weight, self.seed, self.space_bits)

    @property
    def names(self):
        """Tuple of the members' names, in the order of joining; `route_many` returns indices into it."""
        return self.present().names

    @property
    def weights(self):
        """Dict of the members' weights."""
        return dict(self.present().member_weights)

    @property
    def loads(self):
        """Dict of the number of keys placed on each member and not released; all 0 without `load_factor`."""
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

        Return the name of the member that a key belongs to; None if the ring is empty.

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
            If the key is of another type.
        OverflowError
            If an integer key is outside -2**63 to 2**64 - 1.

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

        Return the members that many keys belong to.

        Parameters
        ----------
        keys : sequence of keys, numpy.ndarray, or Arrow array
            A list of str, bytes, int and None; a numpy array of bytes (``S``) or integers; or an object with the Arrow
            C data interface (such as arrays and chunked arrays of pyarrow, and series of polars) of strings, binaries
            or integers, dictionary-encoded or not. Arrays are read without a copy. All nulls belong to one member.

        Returns
        -------
        numpy.ndarray of int32, shape (n,)
            Indices into `names`; all -1 if the ring is empty.

        Raises
        ------
        TypeError
            If a key, or the array, is of another type.
        OverflowError
            If an integer key is outside -2**63 to 2**64 - 1.

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
        cdef RingTable table
        cdef Py_ssize_t i
        hashed = np.concatenate([hashes_of(column, self.seed) for column in columns] or [np.empty(0, np.uint64)])
        cdef Py_ssize_t size = len(hashed)
        result = np.full(size, -1, dtype=np.int32)
        cdef const uint64_t* hashes = <const uint64_t*> array_data(hashed)
        cdef int32_t* out = <int32_t*> array_data(result)
        with cython.critical_section(self):
            table = self.table
            for i in range(size if table.ring.size else 0):
                out[i] = table.place(hashes[i], self.factor)
        return result

    def release(self, name, count=1):
        """release($self, name, count=1)
        --

        Reduce a member's load by `count` keys that are done.

        Raises
        ------
        KeyError
            If there is no such member.
        ValueError
            If the count is not positive, or exceeds the member's load.
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
            raise ValueError(f"count must be at most the load of {name!r}, which is {load}, got {count}")

    def add(self, name, weight):
        """add($self, name, weight)
        --

        Add a member. Keys move only to it.

        Raises
        ------
        ValueError
            If a member has this name, or the weight is not a positive integer.

        Notes
        -----
        Complexity O(points log points): the ring is rebuilt; until that is done, readers use the old one.
        """
        cdef RingTable before
        cdef str exact = checked_name(name)
        amount = as_amount(weight, f"weight of {name!r}")
        while True:
            before = self.present()
            if exact in before.index_of:
                raise ValueError(f"a member named {name!r} already exists")
            if self.replace(before, {**before.member_weights, exact: amount}):
                return

    def remove(self, name):
        """remove($self, name)
        --

        Remove a member. Only its keys move.

        Raises
        ------
        KeyError
            If there is no such member.

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
        cdef object where = np.empty(table.ring.size, dtype=np.uint64)
        cdef object whose = np.empty(table.ring.size, dtype=np.int32)
        cdef uint64_t* points = <uint64_t*> array_data(where)
        cdef int32_t* owners = <int32_t*> array_data(whose)
        cdef int64_t i
        for i in range(table.ring.size):
            points[i] = table.ring.points[i]
            owners[i] = table.ring.owners[i]
        return where, whose, table.names

    def share(self, name):
        """share($self, name)
        --

        Return the fraction of all keys that belong to a member: the exact length of its arcs relative to the ring.

        Raises
        ------
        KeyError
            If there is no such member.

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

        Return the fraction of all keys whose member differs on another ring: the exact length of the arcs that differ.

        Parameters
        ----------
        other : HashRing
            A ring with the same seed, so that keys have the same hashes.

        Returns
        -------
        float
            0.0 to 1.0.

        Raises
        ------
        ValueError
            If the seeds differ.

        Notes
        -----
        Complexity O(points log points) of both rings.
        """
        if not isinstance(other, HashRing):
            raise TypeError(f"other must be a HashRing, got {other!r}")
        if self.seed != (<HashRing> other).seed:
            raise ValueError(f"both rings must have the same seed, got {self.seed} and {other.seed}")
        return moved_between(self._points(), other._points())


# Jump consistent hash: a bucket for a key, without a table ------------------------------------------------------------


cdef void place_by_jump(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil:
    jump_buckets(hashes, out, n, (<const int64_t*> where)[0])


def jump_hash(key, buckets):
    """jump_hash(key, buckets)
    --

    Return the bucket of a key by jump consistent hash.

    Going from n to n + 1 buckets moves one key in n + 1, always into the new bucket. Only the last bucket can be
    removed at the same cost; for members that join and leave use a `HashRing`.

    Parameters
    ----------
    key : int, str, bytes or None
        An integer is used as its 64 bits; other keys by their XXH64.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    int
        0 to ``buckets - 1``.

    Raises
    ------
    ValueError
        If `buckets` is not an integer from 1 to 2**31 - 1.
    TypeError
        If the key is of another type.
    OverflowError
        If an integer key is outside -2**63 to 2**64 - 1.

    Notes
    -----
    Complexity O(log buckets). Thread safety: a pure function.

    Source: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014.

    Examples
    --------
    >>> jump_hash(256, 1024)
    520
    """
    cdef int64_t count = as_buckets(buckets)
    cdef uint64_t hashed = 0
    hash_key(key, 0, True, &hashed)
    return jump_bucket(hashed, count)


def jump_hash_many(keys, buckets):
    """jump_hash_many(keys, buckets)
    --

    Return the buckets of many keys by jump consistent hash.

    Parameters
    ----------
    keys : sequence of keys, numpy.ndarray, or Arrow array
        As for `HashRing.route_many`; integers are used as their 64 bits.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    numpy.ndarray of int32, shape (n,)

    Raises
    ------
    ValueError, TypeError, OverflowError
        As for `jump_hash`.

    Notes
    -----
    Complexity O(n log buckets). The GIL is released once per array.
    """
    cdef int64_t count = as_buckets(buckets)
    return place_all(columns_of(keys, 0, True), 0, True, place_by_jump, &count)


# RabbitMQ's consistent-hash exchange: Erlang's phash2, and the bucket of a number -------------------------------------


cdef uint32_t phash2_atom_of(uint32_t state, bytes name) noexcept:
    return phash2_atom(state, <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))


cdef int phash2_term(object value, uint32_t* state) except -1:
    """Add a term to the hash."""
    cdef uint32_t so_far = state[0]
    cdef bytes data
    if value is None:
        state[0] = phash2_atom_of(so_far, b"undefined")
    elif isinstance(value, bool):
        state[0] = phash2_atom_of(so_far, b"true" if value else b"false")
    elif isinstance(value, (str, bytes)):
        data = str.encode(value) if isinstance(value, str) else bytes.__getitem__(value, slice(None))
        state[0] = phash2_binary(so_far, <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise OverflowError(f"an AMQP integer must lie in -2**63 to 2**63 - 1, got {value!r}")
        state[0] = phash2_integer(so_far, value)
    elif isinstance(value, float):
        state[0] = phash2_float(so_far, value)
    else:
        raise TypeError(f"a value to hash must be str, bytes, int, float, bool or None, got {value!r}")
    return 0


def phash2(value, *, tag=None):
    """phash2(value, *, tag=None)
    --

    Return Erlang's `erlang:phash2/1` of a value as RabbitMQ represents it.

    Parameters
    ----------
    value : str, bytes, int, float, bool or None
        In Erlang: a binary, an integer, a float, or one of the atoms `true`, `false` and `undefined`.
    tag : str, optional
        Hash the pair of this atom and the value: before 3.13, RabbitMQ hashed `longstr` with a header's value.

    Returns
    -------
    int
        0 to 2**27 - 1.

    Raises
    ------
    TypeError
        If the value is of another type.
    OverflowError
        If an integer does not fit AMQP's 64 bits.

    Notes
    -----
    Complexity O(length). Thread safety: a pure function.
    """
    cdef uint32_t state = 0
    if tag is not None:
        state = phash2_atom_of(phash2_pair(0), tag.encode("ascii"))
    phash2_term(value, &state)
    return phash2_range(state)


def rabbitmq_bucket(key, buckets):
    """rabbitmq_bucket(key, buckets)
    --

    Return the bucket of an integer key at RabbitMQ's consistent-hash exchange, since 3.7.8.

    Parameters
    ----------
    key : int
        A `phash2`, or the value of an integer header; only its lowest 21 bits are used.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If `buckets` is out of range.

    Notes
    -----
    Complexity O(log buckets). Thread safety: a pure function.
    """
    return bucket_of_rabbitmq(<uint64_t> (key & 0xFFFFFFFFFFFFFFFF), as_buckets(buckets))


# One key --------------------------------------------------------------------------------------------------------------


def xxh64(data, seed=0):
    """xxh64(data, seed=0)
    --

    Return the XXH64 of a str (as UTF-8) or of bytes, the hash of keys in `HashRing`.

    Notes
    -----
    Complexity O(length). Source: the xxHash specification 0.1.1.
    """
    cdef uint64_t hashed = 0
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"data must be str or bytes, got {data!r}")
    hash_key(data, as_seed(seed), False, &hashed)
    return hashed


cdef inline int hash_key(object key, uint64_t seed, bint raw, uint64_t* out) except -1:
    """Hash one key; with `raw`, an integer is not hashed."""
    cdef Py_ssize_t size
    cdef const char* text
    if PyUnicode_CheckExact(key):
        text = PyUnicode_AsUTF8AndSize(key, &size)
        out[0] = hash_bytes(<const uint8_t*> text, size, seed)
        return 0
    return hash_other(key, seed, raw, out)


cdef int integer_word(object key, uint64_t* word) except -1:
    """The 64 bits of an integer."""
    cdef int overflow = 0
    cdef int64_t small = PyLong_AsLongLongAndOverflow(key, &overflow)
    if overflow == 0:
        word[0] = <uint64_t> small
    elif overflow > 0 and key <= 0xFFFFFFFFFFFFFFFF:
        word[0] = PyLong_AsUnsignedLongLong(key)
    else:
        raise OverflowError(f"an integer key must lie in -2**63 to 2**64 - 1, got {key!r}")
    return 0


cdef int hash_other(object key, uint64_t seed, bint raw, uint64_t* out) except -1:
    """Hash a key that is not exactly a str."""
    cdef Py_buffer view
    if key is None:
        out[0] = seed
    elif PyBytes_CheckExact(key):
        out[0] = hash_bytes(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), seed)
    elif isinstance(key, (bytes, bytearray, memoryview)):
        flat = memoryview(key).cast("B")
        PyObject_GetBuffer(flat, &view, PyBUF_SIMPLE)
        out[0] = hash_bytes(<const uint8_t*> view.buf, view.len, seed)
        PyBuffer_Release(&view)
    elif isinstance(key, str):
        return hash_key(str.__str__(key), seed, raw, out)
    elif not isinstance(key, (bool, np.bool_)) and hasattr(type(key), "__index__"):
        integer_word(key if PyLong_CheckExact(key) else key.__index__(), out)
        if not raw:
            out[0] = xxh64_integer(out[0], seed)
    else:
        raise TypeError(f"a key must be str, bytes, int or None, got {key!r}")
    return 0


cdef uint64_t as_seed(object seed) except? 0:
    """Convert a seed."""
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    if not 0 <= seed <= 0xFFFFFFFFFFFFFFFF:
        raise OverflowError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return seed


# Many keys ------------------------------------------------------------------------------------------------------------


@cython.final
cdef class Chunk:
    """One array of an Arrow stream, released with this object."""

    cdef ArrowArray array

    def __cinit__(self):
        self.array.release = NULL

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


@cython.final
cdef class StreamSchema:
    """The schema of an Arrow stream, released with this object."""

    cdef ArrowSchema schema

    def __cinit__(self):
        self.schema.release = NULL

    def __dealloc__(self):
        if self.schema.release != NULL:
            self.schema.release(&self.schema)


@cython.final
cdef class Column:
    """A column of keys in memory of another object, which it keeps alive."""

    cdef KeyColumn keys
    cdef Column dictionary  # the keys are indices into it
    cdef object owner       # owns the memory


cdef Column arrow_view(const ArrowSchema* schema, const ArrowArray* array, object owner):
    """View an Arrow array as a column."""
    cdef Column column = Column()
    if not arrow_column(schema, array, &column.keys):
        raise TypeError(f"keys must be strings, binaries or integers, got the Arrow type {schema.format.decode()!r}")
    column.owner = owner
    if schema.dictionary != NULL:
        column.dictionary = arrow_view(schema.dictionary, array.dictionary, owner)
    return column


cdef list stream_columns(object capsule):
    """View the chunks of an Arrow stream as columns."""
    cdef ArrowArrayStream* stream = <ArrowArrayStream*> PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef StreamSchema schema = StreamSchema()
    cdef Chunk chunk
    columns = []
    if stream.get_schema(stream, &schema.schema):
        raise ValueError(f"the Arrow stream has no schema: {stream_error(stream)}")
    while True:
        chunk = Chunk()
        if stream.get_next(stream, &chunk.array):
            raise ValueError(f"the Arrow stream failed: {stream_error(stream)}")
        if chunk.array.release == NULL:
            return columns
        columns.append(arrow_view(&schema.schema, &chunk.array, (schema, chunk)))


cdef str stream_error(ArrowArrayStream* stream):
    cdef const char* text = stream.get_last_error(stream)
    return "no reason given" if text == NULL else text.decode("utf-8", "replace")


cdef Column array_column(object array):
    """View a numpy array as a column; None for a dtype whose keys are hashed one by one."""
    cdef Column column = Column()
    cdef size_t address
    kind = array.dtype.kind
    if array.ndim != 1:
        raise ValueError(f"keys must be one-dimensional, got {array.ndim} dimensions")
    if kind not in ("S", "i", "u"):
        return None
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    address = array.ctypes.data
    column.keys.kind = KEYS_PADDED if kind == "S" else KEYS_SIGNED if kind == "i" else KEYS_UNSIGNED
    column.keys.width = array.dtype.itemsize
    column.keys.length = array.shape[0]
    column.keys.data = <const uint8_t*> address
    column.owner = array
    return column


cdef Column hashed_column(object keys, uint64_t seed, bint raw):
    """Hash Python objects one by one."""
    cdef Column column = Column()
    cdef Py_ssize_t i = 0, size
    cdef uint64_t* out
    if isinstance(keys, (str, bytes, bytearray)):
        raise TypeError(f"keys must be a sequence of keys, got one key: {keys!r}")
    keys = keys if isinstance(keys, (list, tuple)) else list(keys)
    size = len(keys)
    column.owner = np.empty(size, dtype=np.uint64)
    out = <uint64_t*> array_data(column.owner)
    for key in keys:
        if i == size:
            break
        hash_key(key, seed, raw, &out[i])
        i += 1
    if i != size or i != len(keys):
        raise ValueError("keys must not change while they are hashed")  # converting one may run Python code
    column.keys.kind = KEYS_HASHED
    column.keys.length = size
    column.keys.data = <const uint8_t*> out
    return column


cdef list columns_of(object keys, uint64_t seed, bint raw):
    """View keys of any type as columns, one per chunk."""
    cdef Column column = None
    if isinstance(keys, np.ndarray):
        column = array_column(keys)
        keys = keys if column is not None else keys.tolist()
    elif hasattr(keys, "__arrow_c_array__"):
        schema, array = keys.__arrow_c_array__()
        column = arrow_view(
            <const ArrowSchema*> PyCapsule_GetPointer(schema, "arrow_schema"),
            <const ArrowArray*> PyCapsule_GetPointer(array, "arrow_array"),
            (schema, array),
        )
    elif hasattr(keys, "__arrow_c_stream__"):
        capsule = keys.__arrow_c_stream__()
        return stream_columns(capsule)
    return [hashed_column(keys, seed, raw) if column is None else column]


# Placing --------------------------------------------------------------------------------------------------------------


cdef void place_column(
    const KeyColumn* keys, uint64_t seed, bint raw, Place place, const void* where, int32_t* out
) noexcept nogil:
    """Hash and place a column, block by block: a block stays in the first-level cache."""
    cdef uint64_t hashes[BLOCK]
    cdef int64_t i, n, start
    raw = raw and (keys.kind == KEYS_SIGNED or keys.kind == KEYS_UNSIGNED)
    start = 0
    while start < keys.length:
        n = min(<int64_t> BLOCK, keys.length - start)
        if raw:
            for i in range(n):
                hashes[i] = keycolumn_integer(keys, keys.first + start + i)
                if not keycolumn_valid(keys, keys.first + start + i):
                    hashes[i] = seed
        else:
            keycolumn_hash(keys, start, n, seed, hashes)
        place(where, hashes, out + start, n)
        start += n


cdef void gather(const KeyColumn* indices, const int32_t* placed, int32_t null, int32_t* out) noexcept nogil:
    """Look up the places of indices into a dictionary."""
    cdef int64_t i
    for i in range(indices.length):
        if keycolumn_valid(indices, indices.first + i):
            out[i] = placed[keycolumn_integer(indices, indices.first + i)]
        else:
            out[i] = null


cdef int place_keys(Column column, uint64_t seed, bint raw, Place place, const void* where, int32_t* out) except -1:
    """Place one column; keys of a dictionary only once."""
    cdef object places
    cdef int32_t* placed
    cdef int32_t null = 0
    if column.dictionary is None:
        with nogil:
            place_column(&column.keys, seed, raw, place, where, out)
        return 0
    places = np.empty(column.dictionary.keys.length + 1, dtype=np.int32)
    placed = <int32_t*> array_data(places)
    place_keys(column.dictionary, seed, raw, place, where, placed)
    place(where, &seed, &null, 1)
    with nogil:
        gather(&column.keys, placed, null, out)
    return 0


cdef object place_all(list columns, uint64_t seed, bint raw, Place place, const void* where):
    """Place all chunks into one array."""
    cdef int32_t* out
    cdef Column column
    cdef int64_t size = 0
    for column in columns:
        size += column.keys.length
    result = np.empty(size, dtype=np.int32)
    if size == 0:
        return result
    out = <int32_t*> array_data(result)
    size = 0
    for column in columns:
        if column.keys.length:
            place_keys(column, seed, raw, place, where, &out[size])
            size += column.keys.length
    return result


cdef object hashes_of(Column column, uint64_t seed):
    """Return the hashes of a column as an array."""
    cdef KeyColumn* keys = &column.keys
    cdef object hashes = np.empty(keys.length, dtype=np.uint64)
    cdef uint64_t* out = <uint64_t*> array_data(hashes)
    if keys.length == 0:
        return hashes
    if column.dictionary is not None:
        return gathered_hashes(column, seed)
    with nogil:
        keycolumn_hash(keys, 0, keys.length, seed, out)
    return hashes


cdef object gathered_hashes(Column column, uint64_t seed):
    """Return the hashes of a dictionary-encoded column as an array."""
    cdef object dictionary = hashes_of(column.dictionary, seed)
    cdef object hashes = np.empty(column.keys.length, dtype=np.uint64)
    cdef const uint64_t* known = <const uint64_t*> array_data(dictionary)
    cdef uint64_t* out = <uint64_t*> array_data(hashes)
    cdef int64_t i, index
    for i in range(column.keys.length):
        index = column.keys.first + i
        if keycolumn_valid(&column.keys, index):
            out[i] = known[<Py_ssize_t> keycolumn_integer(&column.keys, index)]
        else:
            out[i] = seed
    return hashes
