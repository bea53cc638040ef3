"""A chunk of a stream: its header, and the entries in its data.

An entry is a message, or a batch of messages that its publisher put together and perhaps compressed. Input is
untrusted: each length is checked against the available bytes before use.

Source: RabbitMQ, "RabbitMQ Streams Protocol Reference" (Deliver); Osiris, osiris_log (specification of the log format).
Thread safety: pure functions. Complexity: O(1).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from fairsched.core.amqp.frames cimport frames_number

cdef enum:
    CHUNK_HEAD = 48          # octets of a chunk before its data
    CHUNK_MAGIC = 0x50       # the first octet: a magic number of 4 bits, and version 0
    CHUNK_USER = 0           # the type of a chunk with messages
    ENTRY_HEAD = 4           # octets before a message
    BATCH_HEAD = 11          # octets before the messages of a batch

cdef enum ChunkFound:
    CHUNK_WHOLE
    CHUNK_SHORT      # the header, or the data that it announces, is not all there
    CHUNK_UNKNOWN    # another magic number or version

cdef struct Chunk:
    int kind
    int64_t entries
    int64_t records
    int64_t timestamp        # milliseconds since 1970 at which the broker wrote it
    int64_t first            # offset of the first record
    uint32_t crc             # CRC-32 of the data
    int64_t size             # of the data

cdef inline ChunkFound chunk_read(const uint8_t* at, int64_t size, Chunk* c) noexcept nogil:
    """Read the header at the beginning of `size` octets."""
    if size < CHUNK_HEAD:
        return CHUNK_SHORT
    if at[0] != CHUNK_MAGIC:
        return CHUNK_UNKNOWN
    c.kind = at[1]
    c.entries = <int64_t> frames_number(at + 2, 2)
    c.records = <int64_t> frames_number(at + 4, 4)
    c.timestamp = <int64_t> frames_number(at + 8, 8)
    c.first = <int64_t> frames_number(at + 24, 8)
    c.crc = <uint32_t> frames_number(at + 32, 4)
    c.size = <int64_t> frames_number(at + 36, 4)
    return CHUNK_WHOLE if CHUNK_HEAD + c.size <= size else CHUNK_SHORT

cdef struct Entry:
    bint batched
    int compression          # of a batch: 0 for none
    int64_t records
    int64_t uncompressed     # octets of a batch's messages, as its publisher says
    int64_t begin            # of the message, or of the batch's octets
    int64_t end

cdef inline bint entry_read(const uint8_t* data, int64_t at, int64_t end, Entry* e) noexcept nogil:
    """Read the entry at `at`, which must end before `end`; False: it does not."""
    cdef int64_t size
    if end - at < ENTRY_HEAD:
        return False
    e.batched = data[at] & 0x80
    if not e.batched:
        size = <int64_t> frames_number(data + at, 4)
        e.compression = 0
        e.records = 1
        e.begin = at + ENTRY_HEAD
        e.uncompressed = size
    else:
        if end - at < BATCH_HEAD:
            return False
        e.compression = data[at] >> 4 & 7
        e.records = <int64_t> frames_number(data + at + 1, 2)
        e.uncompressed = <int64_t> frames_number(data + at + 3, 4)
        size = <int64_t> frames_number(data + at + 7, 4)
        e.begin = at + BATCH_HEAD
    e.end = e.begin + size
    return e.end <= end
