"""Records of a stream that become columns of Arrow without becoming messages: what is in chunks.

    StreamRecords   the octets of chunks, and the columns of their records
"""

import zlib

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, bytes_size
from fairsched.core.streams.basic cimport Record, basic_content, basic_deliver
from fairsched.core.streams.chunk cimport (
    CHUNK_HEAD, CHUNK_SHORT, CHUNK_UNKNOWN, CHUNK_USER, Chunk, ChunkFound, Entry, chunk_read, entry_read,
)
from fairsched.core.streams.headers cimport Headers, headers_clear, headers_init
from fairsched.core.streams.sections cimport Sections, sections_find, sections_forget, sections_more_data
from fairsched.delivery._collected cimport Collected, CollectedDeliveries
from fairsched.scheduling._buffers cimport part

cdef enum:
    LONGEST_NAME = 255   # octets of a stream's name


cdef enum WalkEnd:
    WALK_DONE
    WALK_PACKED    # at a batch that is compressed
    WALK_BROKEN    # an entry goes beyond its end
    WALK_FULL      # there are more records than the header says


cdef struct Walk:  # through the entries of a chunk
    int64_t at
    int64_t end
    int64_t offset       # of the next record
    int64_t start        # records before this offset are passed over
    int64_t entries      # left, and records
    int64_t records
    int64_t moment       # microseconds since 1970
    bint parted          # some record has several data sections
    Entry entry          # the one that it stopped at


def unpack_gzip(packed, size):
    """unpack_gzip(packed, size)
    --

    Unpack gzip, to at most one octet more than `size`.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = unpacker.decompress(packed, size + 1)
    if not unpacker.eof and len(found) <= size:
        raise ValueError("its end is missing")
    return found


cdef class StreamRecords(CollectedDeliveries):
    """StreamRecords(stream, old=False)
    --

    The records of chunks of one stream, undecoded, until they become columns of Arrow together.

    Parameters
    ----------
    stream : str
        Its name, at most 255 bytes long.
    old : bool
        Whether messages are converted to AMQP 0-9-1 as RabbitMQ did before 3.13.

    Attributes
    ----------
    next_offset : int
        The offset after the last chunk; -1 before the first.
    timestamp : int
        When the broker wrote the last chunk, in milliseconds since 1970.

    Raises
    ------
    ValueError
        The name is empty or too long.

    Notes
    -----
    For one thread. A consumer tag stands for the name of the stream, and messages were never delivered before;
    `received` is when the broker wrote the chunk. Records that are no messages of AMQP 1.0 are bodies without
    properties.
    """

    cdef bytes stream
    cdef bint old
    cdef bint prepared
    cdef readonly int64_t next_offset, timestamp

    def __cinit__(self, *_args, **_options):
        self.stream = b""
        self.next_offset = -1

    def __init__(self, str stream not None, bint old=False):
        cdef bytes name = stream.encode()
        if not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"the name of a stream must have 1 to {LONGEST_NAME} bytes, got {len(name)}")
        self.stream = name
        self.old = old

    def want(self, int64_t room, int64_t space):
        """want($self, room, space)
        --

        Forget the records, and begin the next part, of at most so many, and octets of these, and the rest of a chunk.
        """
        self.count = self.held = self.size = 0
        self.prepared = False
        self.room = room
        self.space = space

    def deliver(self, bytes method not None, bytes header not None, bytes body not None):
        """deliver($self, method, header, body)
        --

        Not for records of a stream: TypeError.
        """
        raise TypeError("records come in chunks: add_chunk")

    def add_chunk(self, frame, int64_t at, int64_t start, unpack):
        """add_chunk($self, frame, at, start, unpack)
        --

        Add the records of a chunk from an offset on.

        Parameters
        ----------
        frame : bytes-like
            Has the chunk from octet `at` on to its end.
        at : int
        start : int
            The first offset that is wanted.
        unpack : dict of int to callable
            ``unpack[compression](octets, size)`` unpacks a batch of so many octets.

        Returns
        -------
        int
            Records that were added.

        Raises
        ------
        ValueError
            The chunk is malformed or damaged, or no way is known to unpack a batch. Nothing was added then.

        Notes
        -----
        Complexity O(octets).
        """
        cdef Py_buffer view
        if self.prepared:
            raise ValueError("columns were made of these records: begin the next part with want")
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        cdef int64_t count = self.count, size = self.size
        try:
            if not 0 <= at <= view.len:
                raise ValueError(f"the chunk must begin within {view.len} octets, got {at}")
            self.take_chunk(<const uint8_t*> view.buf + at, view.len - at, memoryview(frame)[at:], start, unpack)
        except BaseException:
            # An `unpack` may have begun another part.
            self.count = self.held = min(count, self.count)
            self.size = min(size, self.size)
            raise
        finally:
            PyBuffer_Release(&view)
        count = self.count - count
        self.came += count
        self.room -= count
        self.space -= self.size - size
        return count

    cdef int take_chunk(self, const uint8_t* at, int64_t size, frame, int64_t start, dict unpack) except -1:
        """Check a chunk and add its records."""
        cdef Chunk c
        cdef ChunkFound found = chunk_read(at, size, &c)
        cdef Walk w
        cdef int64_t first
        if found == CHUNK_UNKNOWN:
            raise ValueError(f"a chunk must begin with the octet 0x50, got {at[0]:#x}")
        if found == CHUNK_SHORT:
            raise ValueError(f"a chunk ends within {size} octets, got one that is cut short")
        crc = zlib.crc32(frame[CHUNK_HEAD:CHUNK_HEAD + c.size])
        if crc != c.crc:
            raise ValueError(f"the CRC-32 of chunk {c.first} must be {c.crc:#010x}, got {crc:#010x}: it was damaged")
        if c.first < 0 or c.first >> 62:
            raise ValueError(f"a chunk must begin with an offset from 0 to {2**62 - 1}, got {c.first}")
        if c.kind != CHUNK_USER:
            self.next_offset = c.first + c.records
            return 0
        self.room_for(0, c.size)
        memcpy(self.data + self.size, at + CHUNK_HEAD, c.size)
        w = Walk(
            self.size, self.size + c.size, c.first, start, c.entries, c.records, c.timestamp * 1000,
            False, Entry(False, 0, 0, 0, 0, 0),
        )
        self.size += c.size
        first = self.count
        self.take_entries(&w, &c, unpack)
        if w.parted:
            self.join_data(first)
        self.next_offset = c.first + c.records
        self.timestamp = c.timestamp
        return 0

    cdef int take_entries(self, Walk* w, const Chunk* c, dict unpack) except -1:
        """Add the records of entries that were copied."""
        cdef WalkEnd ended = WALK_PACKED
        while ended == WALK_PACKED:
            self.room_for(w.entries, 0)
            ended = walk(self, w)
            if ended == WALK_PACKED:
                self.take_batch(w, c, unpack)
        if ended == WALK_FULL or (ended == WALK_DONE and w.at == w.end and w.records != 0):
            raise ValueError(f"chunk {c.first} must have the {c.records} records that its header announces")
        if ended == WALK_BROKEN or w.at != w.end:
            raise ValueError(f"an entry of chunk {c.first} must end within its {c.size} octets")
        return 0

    cdef int take_batch(self, Walk* w, const Chunk* c, dict unpack) except -1:
        """Add the records of a batch, unpacked behind what is there."""
        cdef Entry e = w.entry
        cdef Walk inner
        cdef bytes found
        cdef int64_t begin = e.begin, end = e.end, count = self.count, size = self.size
        if e.compression:
            way = unpack.get(e.compression)
            if way is None:
                raise ValueError(
                    f"batches of chunk {c.first} are compressed by method {e.compression}: there is no way to unpack "
                    f"it, only {', '.join(map(str, unpack)) or 'none'}"
                )
            try:
                found = bytes(way(part(self.data, e.begin, e.end), e.uncompressed))
            except ValueError:
                raise
            except Exception as error:
                raise ValueError(f"a batch of chunk {c.first} cannot be unpacked: {error}") from error
            if self.count != count or self.size != size or self.held != count:
                raise RuntimeError("the records were changed while a batch was unpacked")
            if len(found) != e.uncompressed:
                raise ValueError(f"a batch of chunk {c.first} must have {e.uncompressed} octets, got {len(found)}")
            begin, end = self.size, self.size + PyBytes_GET_SIZE(found)
            self.room_for(0, PyBytes_GET_SIZE(found))
            memcpy(self.data + begin, PyBytes_AS_STRING(found), PyBytes_GET_SIZE(found))
            self.size = end
        self.room_for(e.records, 0)
        inner = Walk(begin, end, w.offset, w.start, e.records, e.records, w.moment, False, e)
        if e.records > w.records or walk(self, &inner) != WALK_DONE or inner.at != end:
            raise ValueError(f"a batch of chunk {c.first} must have {e.records} messages, and nothing else")
        w.parted |= inner.parted
        w.at = e.end
        w.offset += e.records
        w.records -= e.records
        w.entries -= 1
        return 0

    cdef int join_data(self, int64_t first) except -1:
        """Have all data sections of records from a row on as their bodies, one after the other behind what is there."""
        cdef Collected* row
        cdef int64_t i, at, begin = 0, end = 0, body
        for i in range(first, self.count):
            row = &self.rows[i]
            at = row.end - row.method
            self.room_for(0, row.header_end - row.method)
            body = self.size
            while sections_more_data(self.data + row.method, row.header_end - row.method, &at, &begin, &end):
                if self.size == body:
                    memcpy(self.data + body, self.data + row.body, row.end - row.body)
                    self.size += row.end - row.body
                memcpy(self.data + self.size, self.data + row.method + begin, end - begin)
                self.size += end - begin
            if self.size > body:
                row.body, row.end = body, self.size
        return 0

    cdef int room_for(self, int64_t rows, int64_t octets) except -1:
        """Have memory for more rows and octets."""
        cdef void* grown
        if self.held + rows > self.rows_capacity:
            grown = realloc(self.rows, (2 * self.held + rows + 64) * sizeof(Collected))
            if grown == NULL:
                raise MemoryError()
            self.rows = <Collected*> grown
            self.rows_capacity = 2 * self.held + rows + 64
        if self.size + octets > self.capacity:
            grown = realloc(self.data, self.capacity + self.size + octets)
            if grown == NULL:
                raise MemoryError()
            self.data = <uint8_t*> grown
            self.capacity += self.size + octets
        return 0

    cdef int64_t offset_of(self, int64_t i) noexcept:
        return self.rows[i].offset

    cdef int prepare(self) except -1:
        """Write each record as it is delivered over AMQP 0-9-1, behind what is there; once."""
        cdef Bytes out
        cdef Headers headers
        cdef Record record
        cdef int64_t i
        if self.prepared:
            return 0
        bytes_init(&out)
        headers_init(&headers)
        record.stream = Text(<const uint8_t*> PyBytes_AS_STRING(self.stream), <uint32_t> PyBytes_GET_SIZE(self.stream))
        record.old = self.old
        try:
            with nogil:
                convert(self.rows, self.count, self.data, &record, &headers, &out)
            if out.failed:
                raise MemoryError()
            self.room_for(0, bytes_size(&out))
            memcpy(self.data + self.size, out.data + out.begin, bytes_size(&out))
            for i in range(self.count):
                self.rows[i].method += self.size
                self.rows[i].header += self.size
                self.rows[i].header_end += self.size
            self.size += bytes_size(&out)
            self.prepared = True
        except MemoryError:
            self.count = self.held = 0
            raise
        finally:
            bytes_clear(&out)
            headers_clear(&headers)
        return 0

    def sizes(self):
        """sizes($self)
        --

        The octets of each: names, properties, headers and body.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        cdef int64_t* to = <int64_t*> PyBytes_AS_STRING(found)
        cdef int64_t i
        self.prepare()
        for i in range(self.count):
            to[i] = self.rows[i].header_end - self.rows[i].method + self.rows[i].end - self.rows[i].body
        return found

    def queues(self, dict numbers not None):
        """queues($self, numbers)
        --

        The number of the stream for each row, of which `numbers` has it by its name. KeyError if it has not.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int32_t))
        cdef int32_t* to = <int32_t*> PyBytes_AS_STRING(found)
        cdef int32_t number = numbers[self.stream]
        cdef int64_t i
        for i in range(self.count):
            to[i] = number
        return found

    def redelivered(self):
        """redelivered($self)
        --

        No row came before.
        """
        return bytes(self.count // 8 + 1)


cdef WalkEnd walk(StreamRecords r, Walk* w) noexcept:
    """Note the records of entries, for which there is room, up to a batch that is to be unpacked."""
    cdef Collected* row
    cdef Sections found
    cdef const uint8_t* data = r.data
    while w.entries:
        if not entry_read(data, w.at, w.end, &w.entry):
            return WALK_BROKEN
        if w.entry.batched:
            return WALK_PACKED
        if w.records == 0:
            return WALK_FULL
        if w.offset >= w.start:
            row = &r.rows[r.held]
            row.method = w.entry.begin  # until `prepare`: the whole record
            row.header = row.header_end = w.entry.end
            row.body = w.entry.begin
            row.end = w.entry.end
            if sections_find(data + w.entry.begin, w.entry.end - w.entry.begin, &found):
                row.body = w.entry.begin + found.body
                row.end = w.entry.begin + found.body_end
                if found.data > 1:
                    w.parted = True
            row.offset = w.offset
            row.received = w.moment
            r.held += 1
            r.count += 1
        w.offset += 1
        w.records -= 1
        w.entries -= 1
        w.at = w.entry.end
    return WALK_DONE


cdef void convert(
    Collected* rows, int64_t count, const uint8_t* data, Record* record, Headers* headers, Bytes* out
) noexcept nogil:
    """Write methods and content headers; their places are counted from the beginning of `out`."""
    cdef Collected* row
    cdef int64_t i
    for i in range(count):
        row = &rows[i]
        record.data = data + row.method
        record.size = row.header_end - row.method
        record.offset = row.offset
        if not sections_find(record.data, record.size, &record.sections):
            sections_forget(&record.sections)
        row.method = bytes_size(out)
        basic_deliver(record, out)
        row.header = bytes_size(out)
        basic_content(record, headers, row.end - row.body, out)
        row.header_end = bytes_size(out)
