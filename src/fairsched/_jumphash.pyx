"""Jump consistent hash: a bucket for a key, without a table."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from fairsched._keys cimport columns_of, hash_key, place_all
from fairsched._numbers cimport as_buckets
from fairsched.core.jump cimport jump_bucket, jump_buckets


cdef void place_by_jump(const void* where, const uint64_t* hashes, int32_t* out, int64_t n) noexcept nogil:
    jump_buckets(hashes, out, n, (<const int64_t*> where)[0])


def jump_hash(key, buckets):
    """jump_hash(key, buckets)
    --

    Bucket of a key by jump consistent hash.

    Going from n to n + 1 buckets moves one key in n + 1, all of them into the new bucket. Only the last bucket can be
    taken away so cheaply; members that come and go belong on a `HashRing`.

    Parameters
    ----------
    key : int, str, bytes or None
        An integer is used as it is (its 64 bits); anything else by its XXH64.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    int
        0 to ``buckets - 1``.

    Raises
    ------
    ValueError
        `buckets` is not an integer of at least 1 and at most 2**31 - 1.
    TypeError
        The key is of no such type.
    OverflowError
        An integer key lies outside -2**63 to 2**64 - 1.

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

    Buckets of many keys by jump consistent hash.

    Parameters
    ----------
    keys : sequence of keys, numpy.ndarray, or Arrow array
        As for `HashRing.route_many`; integers are used as they are.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    numpy.ndarray of int32, shape (n,)

    Raises
    ------
    ValueError, TypeError, OverflowError
        As by `jump_hash`.

    Notes
    -----
    Complexity O(n log buckets). The GIL is released once for each array.
    """
    cdef int64_t count = as_buckets(buckets)
    return place_all(columns_of(keys, 0, True), 0, True, place_by_jump, &count)
