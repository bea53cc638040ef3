"""Consistent hashing on a ring: a key belongs to the member with the nearest point at or above its hash; after the last
point comes the first.

Source: Karger et al., "Consistent Hashing and Random Trees" (1997), as RabbitMQ's exchange first published it: a
member of weight w has w points, pseudo-random, here reproducible from the member's name, a seed and the point's index.
When a member leaves, only its keys move; when one joins, keys move only to it. Coinciding points are ordered by their
members' names, so the result does not depend on the order of joining.

A point stands for the top `space_bits` bits of a hash and is kept with all lower bits set, so whole hashes compare.

Look-up: the space is cut into 2**k equal cells. Most cells lie in one member's arc and name it; the others name the
first point to look at. The table of cells is sized to stay in the second-level cache, and `hashring_owners` reads it
for a block of hashes first and settles what is left afterwards, so that cache misses overlap and guesses of the branch
predictor do not stall the table reads. Expected O(1) per key, O(n log n) to build n points.

Bounded loads: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads" (2018). A key goes to the
first member from its point on whose load is below c times its share of the total load, this key included. For c >= 1
there always is such a member, since the loads sum to less than the bounds.

Thread safety: a built ring never changes; any number of threads may read it.
"""

from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from *:
    """
    #include <algorithm>
    struct FairschedRankedPoint {
        uint64_t place;
        int32_t rank;
        bool operator<(const FairschedRankedPoint& other) const {
            return place != other.place ? place < other.place : rank < other.rank;
        }
    };
    static inline void fairsched_sort_points(FairschedRankedPoint* points, int64_t size) {
        std::sort(points, points + size);
    }
    """
    ctypedef struct RankedPoint "FairschedRankedPoint":
        uint64_t place
        int32_t rank  # of the member's name

    void sort_points "fairsched_sort_points"(RankedPoint* points, int64_t size) noexcept nogil

cdef enum:
    CELL_BITS_MAX = 17  # four bytes each: half of a small second-level cache
    CELL_BITS_SPARE = 1  # two to four cells for each point, while they fit: more would cost single look-ups a miss
    CELL_POINTS = 2  # so many powers of two of points in a cell at most, on the average

cdef struct HashRing:
    uint64_t* points  # ascending, then one that is the first come round again
    int32_t* owners  # member of each point
    int32_t* cells  # a member, or the complement of the first point to look at
    int64_t size
    int shift  # of a hash, to its cell

cdef inline uint64_t hashring_point(uint64_t base, uint64_t index, int space_bits) noexcept nogil:
    """Place of a member's point: SplitMix64 (Steele et al., 2014) at `index`, from the hash of the member's name."""
    cdef uint64_t word = base + (index + 1) * 0x9E3779B97F4A7C15ULL
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL
    word ^= word >> 31
    return word | (UINT64_MAX >> space_bits) if space_bits < 64 else word

cdef inline void hashring_init(HashRing* ring) noexcept nogil:
    """An empty ring."""
    ring.points = NULL
    ring.owners = ring.cells = NULL
    ring.size = 0
    ring.shift = 63

cdef inline void hashring_clear(HashRing* ring) noexcept nogil:
    free(ring.points)
    free(ring.owners)
    free(ring.cells)
    hashring_init(ring)

cdef inline int64_t hashring_first(const HashRing* ring, uint64_t hash) noexcept nogil:
    """Index of the first point at or above a hash; `size` past the last."""
    cdef int64_t low = 0
    cdef int64_t high = ring.size
    cdef int64_t middle
    while low < high:
        middle = (low + high) >> 1
        if ring.points[middle] < hash:
            low = middle + 1
        else:
            high = middle
    return low

cdef inline int hashring_cell_bits(int64_t size) noexcept nogil:
    """Return the binary logarithm of the number of cells for `size` points."""
    cdef int bits = 1
    while (<int64_t> 1 << bits) < size:
        bits += 1
    return max(min(bits + CELL_BITS_SPARE, CELL_BITS_MAX), bits - CELL_POINTS)

cdef inline bint hashring_index(HashRing* ring) noexcept nogil:
    """Fill the table of cells; False when memory is exhausted."""
    cdef int bits = hashring_cell_bits(ring.size)
    cdef int64_t cell, first, last = 0
    cdef uint64_t top
    ring.cells = <int32_t*> malloc(sizeof(int32_t) << bits)
    if ring.cells == NULL:
        return False
    ring.shift = 64 - bits
    for cell in range(<int64_t> 1 << bits):
        first = last
        top = (<uint64_t> cell << ring.shift) | (UINT64_MAX >> bits)
        while last < ring.size and ring.points[last] <= top:
            last += 1
        ring.cells[cell] = hashring_cell(ring, first, last, top)
    return True

cdef inline int32_t hashring_cell(const HashRing* ring, int64_t first, int64_t last, uint64_t top) noexcept nogil:
    """Entry of a cell up to `top`, whose points are `first` up to, not with, `last`."""
    cdef int64_t i
    # A last point on the very top leaves nothing above it in this cell.
    cdef int64_t reached = last - 1 if last > first and ring.points[last - 1] == top else last
    for i in range(first, reached):
        if ring.owners[i] != ring.owners[i + 1]:
            return <int32_t> ~first
    return ring.owners[first]

cdef inline bint hashring_build(
    HashRing* ring, const uint64_t* bases, const int64_t* counts, const int32_t* members, int32_t ranks, int space_bits
) noexcept nogil:
    """Build an empty ring from members in the order of their names; False when memory is exhausted.

    The member `members[rank]` has `counts[rank]` points from the hash `bases[rank]` of its name.
    """
    cdef int64_t i, size = 0
    cdef int32_t rank
    cdef RankedPoint* made
    for rank in range(ranks):
        size += counts[rank]
    if size == 0:
        return True
    made = <RankedPoint*> malloc(size * sizeof(RankedPoint))
    ring.points = <uint64_t*> malloc((size + 1) * sizeof(uint64_t))
    ring.owners = <int32_t*> malloc((size + 1) * sizeof(int32_t))
    if made == NULL or ring.points == NULL or ring.owners == NULL:
        free(made)
        return False
    size = 0
    for rank in range(ranks):
        for i in range(counts[rank]):
            made[size].place = hashring_point(bases[rank], i, space_bits)
            made[size].rank = rank
            size += 1
    sort_points(made, size)
    for i in range(size):
        ring.points[i] = made[i].place
        ring.owners[i] = members[made[i].rank]
    free(made)
    ring.points[size] = UINT64_MAX
    ring.owners[size] = ring.owners[0]
    ring.size = size
    return hashring_index(ring)

cdef inline int32_t hashring_resolve(const HashRing* ring, uint64_t hash, int64_t first) noexcept nogil:
    """Member of the first point at or above a hash, from point `first` on. The one past the last ends the walk."""
    while ring.points[first] < hash:
        first += 1
    return ring.owners[first]

cdef inline int32_t hashring_owner(const HashRing* ring, uint64_t hash) noexcept nogil:
    """Member of a hash. Needs size > 0."""
    cdef int32_t entry = ring.cells[hash >> ring.shift]
    return entry if entry >= 0 else hashring_resolve(ring, hash, ~entry)

cdef inline void hashring_owners(
    const HashRing* ring, const uint64_t* hashes, int32_t* out, int64_t n
) noexcept nogil:
    """Members of a block of at most 1024 hashes. Needs size > 0."""
    cdef int32_t pending[1024]
    cdef int64_t i, k = 0
    for i in range(n):
        out[i] = ring.cells[hashes[i] >> ring.shift]
    for i in range(n):
        pending[k] = <int32_t> i
        k += out[i] < 0
    for i in range(k):
        out[pending[i]] = hashring_resolve(ring, hashes[pending[i]], ~out[pending[i]])

cdef inline int32_t hashring_place(
    const HashRing* ring, uint64_t hash, const int64_t* loads, const int64_t* weights, int64_t load, int64_t weight,
    double factor
) noexcept nogil:
    """Member for one more key when no member may exceed its bound. `load` and `weight` are the sums. Needs size > 0."""
    cdef int64_t i = hashring_first(ring, hash)
    cdef int64_t _step
    cdef int32_t member
    for _step in range(ring.size):
        if i >= ring.size:
            i = 0
        member = ring.owners[i]
        # load < ceil(bound) for whole loads, without dividing: both sides are exact up to 2**53.
        if <double> loads[member] * <double> weight < factor * (<double> (load + 1) * <double> weights[member]):
            return member
        i += 1
    return hashring_owner(ring, hash)
