"""The buckets of a consistent-hash exchange: a block of them for each destination, and the hash of a message.

The first binding of a destination adds as many buckets as its weight; further ones are ignored. Removing any of them
removes the block and renumbers the later ones, as RabbitMQ does.

The routing key, a header or a property is hashed as RabbitMQ does since 3.13:

    an integer                       itself
    a timestamp in a header          its milliseconds
    missing, or an empty array       Erlang's phash2 of `undefined`
    an array or a table              phash2 of the first element
    anything else                    phash2

One difference: RabbitMQ hashes arrays and tables inside the first element as terms, this broker by their octets.

Source: RabbitMQ, "Consistent Hash Exchange"; core/hashing/exs1024 and phash2.
Thread safety: none; the caller synchronizes. Complexity: adding and removing O(destinations); finding O(log buckets).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strlen

from fairsched.core.amqp.fieldtypes cimport (
    FAMILY_BOOL, FAMILY_DECIMAL, FAMILY_REAL, FAMILY_TIMESTAMP, FAMILY_VOID, FieldFamily,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.core.amqp.octets cimport Text
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, field_family, field_integer, field_is_table, field_nests, field_real, field_type, tables_next,
    tables_walk,
)
from fairsched.core.hashing.exs1024 cimport rabbitmq_bucket
from fairsched.core.hashing.phash2 cimport (
    KIND_TUPLE, phash2_atom, phash2_binary, phash2_float, phash2_integer, phash2_pair, phash2_range, phash2_words,
)
from fairsched.core.memory cimport array_reserve

cdef enum:
    WEIGHT_MAX = 10000
    BUCKETS_MAX = 0x7FFFFFFF

cdef enum Weight:
    WEIGHT_OK
    WEIGHT_NO_INTEGER
    WEIGHT_TOO_SMALL
    WEIGHT_TOO_LARGE

cdef struct Block:
    void* destination
    int64_t end              # end of its buckets, which begin at the end of the previous block

cdef struct Buckets:
    Block* blocks
    int64_t count
    int64_t room


# Weights --------------------------------------------------------------------------------------------------------------

cdef inline Weight weight_read(Text key, int64_t* weight) noexcept nogil:
    """Read a binding key as Erlang reads an integer: an optional sign, and ASCII digits."""
    cdef int64_t digit
    cdef bint negative = key.length > 0 and key.data[0] == b'-'
    cdef uint32_t i = 1 if key.length > 0 and key.data[0] in (b'-', b'+') else 0
    if i == key.length:
        return WEIGHT_NO_INTEGER
    weight[0] = 0
    for i in range(i, key.length):
        digit = <int64_t> key.data[i] - 48  # "0"
        if digit < 0 or digit > 9:
            return WEIGHT_NO_INTEGER
        weight[0] = min(10 * weight[0] + digit, <int64_t> WEIGHT_MAX + 1)
    if negative or weight[0] == 0:
        return WEIGHT_TOO_SMALL
    return WEIGHT_TOO_LARGE if weight[0] > WEIGHT_MAX else WEIGHT_OK


# Blocks ---------------------------------------------------------------------------------------------------------------

cdef inline void buckets_init(Buckets* b) noexcept nogil:
    b.blocks = NULL
    b.count = b.room = 0

cdef inline void buckets_clear(Buckets* b) noexcept nogil:
    free(b.blocks)
    buckets_init(b)

cdef inline int64_t buckets_total(const Buckets* b) noexcept nogil:
    return b.blocks[b.count - 1].end if b.count else 0

cdef inline int64_t buckets_block(const Buckets* b, const void* destination) noexcept nogil:
    """Return the index of a destination's block; -1: there is none."""
    cdef int64_t i
    for i in range(b.count):
        if b.blocks[i].destination == destination:
            return i
    return -1

cdef inline bint buckets_add(Buckets* b, void* destination, int64_t weight) noexcept nogil:
    """Append a block, unless the destination has one. False: memory is exhausted."""
    if buckets_block(b, destination) >= 0:
        return True
    if not array_reserve(<void**> &b.blocks, &b.room, b.count + 1, sizeof(Block), 8):
        return False
    b.blocks[b.count] = Block(destination, buckets_total(b) + weight)
    b.count += 1
    return True

cdef inline void buckets_remove(Buckets* b, const void* destination) noexcept nogil:
    """Remove a destination's block, if there is one, and renumber the later ones."""
    cdef int64_t i = buckets_block(b, destination), size
    if i < 0:
        return
    size = b.blocks[i].end - (b.blocks[i - 1].end if i else 0)
    b.count -= 1
    for i in range(i, b.count):
        b.blocks[i] = Block(b.blocks[i + 1].destination, b.blocks[i + 1].end - size)

cdef inline void* buckets_find(const Buckets* b, uint64_t key) noexcept nogil:
    """Return the destination of a hash; NULL: there are no buckets."""
    cdef int64_t bucket, low = 0, high = b.count - 1, middle
    if b.count == 0:
        return NULL
    bucket = rabbitmq_bucket(key, buckets_total(b))
    while low < high:
        middle = (low + high) // 2
        if b.blocks[middle].end > bucket:
            high = middle
        else:
            low = middle + 1
    return b.blocks[low].destination


# Hashes ---------------------------------------------------------------------------------------------------------------

cdef inline uint32_t hash_atom(uint32_t state, const char* name) noexcept nogil:
    return phash2_atom(state, <const uint8_t*> name, strlen(name))

cdef inline uint64_t hash_missing() noexcept nogil:
    return phash2_range(hash_atom(0, "undefined"))

cdef inline uint64_t hash_text(Text text) noexcept nogil:
    return phash2_range(phash2_binary(0, text.data, text.length))

cdef inline uint32_t hash_field(uint32_t state, const Field* f) noexcept nogil:
    """Continue a hash with a value; arrays and tables by their octets."""
    cdef FieldFamily family = field_family(f)
    cdef int64_t integer
    if family == FAMILY_BOOL:
        return hash_atom(state, "true" if f.value.data[0] else "false")
    if family == FAMILY_VOID:
        return hash_atom(state, "undefined")
    if family == FAMILY_REAL:
        return phash2_float(state, field_real(f))
    if family == FAMILY_DECIMAL:
        state = phash2_integer(phash2_pair(state), f.value.data[0])
        return phash2_integer(state, <int64_t> frames_number(f.value.data + 1, 4))
    if family == FAMILY_TIMESTAMP:
        return phash2_integer(state, <int64_t> frames_number(f.value.data, 8))
    if field_integer(f, &integer):
        return phash2_integer(state, integer)
    return phash2_binary(state, f.value.data, f.value.length)

cdef inline uint64_t hash_first(const Field* f) noexcept nogil:
    """Return the hash of an array or a table: that of its first element, as a tuple of name, type and value."""
    cdef bint named = field_is_table(f)
    cdef TableWalk w = tables_walk(f.value, named)
    cdef Text name = Text(NULL, 0)
    cdef Field first
    cdef uint32_t state
    if not tables_next(&w, &name, &first):
        return hash_missing()
    if named:
        state = phash2_binary(phash2_words(0, 3, 0, KIND_TUPLE), name.data, name.length)
    else:
        state = phash2_pair(0)
    return phash2_range(hash_field(hash_atom(state, field_type(&first)), &first))

cdef inline uint64_t hash_value(const Field* f) noexcept nogil:
    """Return the hash of a header's value."""
    cdef int64_t integer
    if field_nests(f):
        return hash_first(f)
    if field_family(f) == FAMILY_TIMESTAMP:
        return 1000 * frames_number(f.value.data, 8)
    if field_integer(f, &integer):
        return <uint64_t> integer
    return phash2_range(hash_field(0, f))
