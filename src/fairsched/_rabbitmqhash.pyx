"""The hashes of RabbitMQ's consistent-hash exchange: Erlang's phash2, and the bucket that a number falls to."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fairsched._numbers cimport as_buckets
from fairsched.core.exs1024 cimport rabbitmq_bucket as bucket_of_rabbitmq
from fairsched.core.phash2 cimport (
    phash2_atom, phash2_binary, phash2_float, phash2_integer, phash2_list_end, phash2_pair, phash2_range,
)


cdef uint32_t phash2_atom_of(uint32_t state, bytes name) noexcept:
    return phash2_atom(state, <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))


cdef int phash2_term(object value, uint32_t* state) except -1:
    """Take a term into the hash so far."""
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


def phash2(value, *, tag=None, listed=False):
    """phash2(value, *, tag=None, listed=False)
    --

    Erlang's `erlang:phash2/1` of a value as RabbitMQ holds it.

    Parameters
    ----------
    value : str, bytes, int, float, bool or None
        A binary, an integer, a float, or one of the atoms `true`, `false` and `undefined`.
    tag : str, optional
        Hash the pair of this atom and the value, as `longstr` and a header's value were before RabbitMQ 3.13.
    listed : bool
        Hash a list of the one value, as a routing key was before RabbitMQ 3.7.8.

    Returns
    -------
    int
        0 to 2**27 - 1.

    Raises
    ------
    TypeError
        The value is of no such type.
    OverflowError
        An integer does not fit AMQP's 64 bits.

    Notes
    -----
    Complexity O(length). Thread safety: a pure function.
    """
    cdef uint32_t state = 0
    if tag is not None:
        state = phash2_atom_of(phash2_pair(0), tag.encode("ascii"))
    phash2_term(value, &state)
    return phash2_range(phash2_list_end(state) if listed else state)


def rabbitmq_bucket(key, buckets):
    """rabbitmq_bucket(key, buckets)
    --

    Bucket that RabbitMQ's consistent-hash exchange, since 3.7.8, gives an integer key.

    Parameters
    ----------
    key : int
        A `phash2`, or the value of an integer header itself; its lowest 21 bits count.
    buckets : int
        1 to 2**31 - 1.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        `buckets` is out of range.

    Notes
    -----
    Complexity O(log buckets). Thread safety: a pure function.
    """
    return bucket_of_rabbitmq(<uint64_t> (key & 0xFFFFFFFFFFFFFFFF), as_buckets(buckets))
