"""A store, and threads that append without the GIL."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from fairsched.broker._journal cimport Store
from fairsched.core.amqp.octets cimport Text
from fairsched.core.atomics cimport thread_yield
from fairsched.core.broker.durability.journal cimport Journal, journal_drop, journal_is_durable, journal_put


def put(Store store not None, int kind, *parts):
    """Put a record; return its id and the batch it is in."""
    cdef Text texts[4]
    cdef uint64_t batch = 0, id
    cdef int i, count = len(parts)
    for i in range(count):
        texts[i] = Text(<const uint8_t*> PyBytes_AS_STRING(<bytes?> parts[i]), PyBytes_GET_SIZE(parts[i]))
    with nogil:
        id = journal_put(&store.journal, kind, texts, count, &batch)
    return id, batch


def drop(Store store not None, uint64_t id):
    """Drop a record; return the batch that says so, 0 if it was not there."""
    cdef uint64_t batch = 0
    with nogil:
        journal_drop(&store.journal, id, &batch)
    return batch


def durable(Store store not None):
    """Up to which batch all is on disk."""
    return store.journal.durable.load()


def stored(Store store not None):
    """Octets of all chunks, octets of the live records, the oldest chunk."""
    return store.journal.index.size, store.journal.index.live, store.journal.index.first


def work(Store store not None, int64_t count, int64_t size, int64_t window, int64_t kept, bint once=False):
    """Put `count` records, with at most `window` that are not on disk, and drop each `kept` records later.

    Returns how many are on disk in the end, which is all of them unless the store failed.
    """
    cdef uint64_t* ids = <uint64_t*> calloc(count, sizeof(uint64_t))
    cdef uint64_t* batches = <uint64_t*> calloc(count, sizeof(uint64_t))
    cdef uint8_t* octets = <uint8_t*> calloc(size, 1)
    cdef Text text = Text(octets, size)
    cdef Journal* j = &store.journal
    cdef uint64_t ignored = 0
    cdef int64_t i = 0, done = 0
    with nogil:
        while done < count and not j.failed.load():
            while i < count and i - done < window:
                ids[i] = journal_put(j, 1, &text, 1, &batches[i])
                if i >= kept:
                    journal_drop(j, ids[i - kept], &ignored)
                i += 1
            while done < i and journal_is_durable(j, batches[done]):
                done += 1
            thread_yield()
    free(ids)
    free(batches)
    free(octets)
    return done
