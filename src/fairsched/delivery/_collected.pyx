"""Deliveries that become columns of Arrow without becoming messages, as Spark's source reads them.

    CollectedDeliveries   the octets of one channel's deliveries, and their columns
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.time cimport time as wall_clock
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from fairsched.core.amqp.contents cimport PROPERTY_HEADERS, Properties, contents_find
from fairsched.core.amqp.frames cimport Delivery, frames_names, frames_number
from fairsched.core.amqp.streamoffset cimport stream_offset
from fairsched.core.amqp.tables cimport FIELD_FOUND, FIELD_MISSING, Field, FieldFound, tables_find
from fairsched.delivery._column cimport (
    COLUMN_MOST, Column, add_content, add_path, add_read, check_numbers, column_free, column_init, column_take,
)
from fairsched.scheduling._buffers cimport part
from fairsched.scheduling._buffers cimport array_data


cdef class CollectedDeliveries:
    """CollectedDeliveries(surplus=False)
    --

    The deliveries of one channel, undecoded, until they become columns of Arrow together.

    Parameters
    ----------
    surplus : bool
        Whether what comes while enough is here is kept for later; it is dropped otherwise.

    Attributes
    ----------
    count : int
        Deliveries of this part, which are the rows of its columns.
    room, space : int
        Deliveries, and octets of these, names, properties, headers and bodies, that this part still wants; the last one
        may exceed `space`.
    came : int
        Deliveries so far, of this part and those before it, what was dropped left out: the last delivery tag.

    Notes
    -----
    For one thread. It holds a copy of the octets of each delivery, and no object for it. O(octets) a delivery, and a
    column; columns have the order of arrival, or the last one that was given to `arrange`.
    """

    def __init__(self, bint surplus=False):
        self.surplus = surplus

    def __dealloc__(self):
        free(self.rows)
        free(self.data)

    @property
    def full(self):
        """Whether this part wants no more."""
        return self.room <= 0 or self.space <= 0

    def want(self, int64_t room, int64_t space):
        """want($self, room, space)
        --

        Forget this part and begin the next one, of at most so many deliveries, and octets of these.
        """
        cdef int64_t i, first = 0
        self.held -= self.count
        if self.held:
            first = self.rows[self.count].method
            memmove(self.data, self.data + first, self.size - first)
        for i in range(self.held):
            self.rows[i] = self.rows[self.count + i]
            self.rows[i].method -= first
            self.rows[i].header -= first
            self.rows[i].header_end -= first
            self.rows[i].body -= first
            self.rows[i].end -= first
        self.size = self.rows[self.held - 1].end if self.held else 0
        self.count = 0
        self.room = room
        self.space = space
        while self.count < self.held and self.room > 0 and self.space > 0:
            self.counted()

    def close(self):
        """close($self)
        --

        Drop what comes from now on.
        """
        self.room = 0
        self.surplus = False

    cdef int prepare(self) except -1:
        """Have the method and the content header of each row at hand; see `fairsched.streams._records`."""
        return 0

    cdef int check(self, int64_t i) except -1:
        """Raise if there is no such row any more: Python code that was called may have changed them."""
        if i >= self.count:
            raise RuntimeError("the deliveries were changed while columns were made of them")
        return 0

    cdef void counted(self) noexcept:
        """Count the next delivery to this part."""
        self.room -= 1
        self.space -= self.rows[self.count].end - self.rows[self.count].method
        self.count += 1

    cdef int reserve(self, int64_t size) except -1:
        """Have memory for one more delivery of so many octets."""
        cdef void* grown
        if self.held == self.rows_capacity:
            grown = realloc(self.rows, (2 * self.held + 64) * sizeof(Collected))
            if grown == NULL:
                raise MemoryError()
            self.rows = <Collected*> grown
            self.rows_capacity = 2 * self.held + 64
        if self.size + size > self.capacity:
            grown = realloc(self.data, 2 * (self.size + size))
            if grown == NULL:
                raise MemoryError()
            self.data = <uint8_t*> grown
            self.capacity = 2 * (self.size + size)
        return 0

    cdef int take(self, const uint8_t* at, const Delivery* d) except -1:
        """Take a delivery out of a buffer, in one copy from the beginning of its method to the end of its body."""
        cdef Collected* row
        cdef bint wanted = self.room > 0 and self.space > 0
        if not wanted and not self.surplus:
            return 0
        if frames_number(at + d.tag, 8) != <uint64_t> self.came + 1:
            raise ValueError(
                f"delivery tag must be {self.came + 1}, the one after the last, got {frames_number(at + d.tag, 8)}"
            )
        self.reserve(d.body_end - d.method)
        row = &self.rows[self.held]
        row.method = self.size
        row.header = self.size + d.header - d.method
        row.header_end = self.size + d.header_end - d.method
        row.body = self.size + d.body - d.method
        row.end = self.size + d.body_end - d.method
        row.received = <int64_t> (wall_clock() * 1e6)
        memcpy(self.data + self.size, at + d.method, d.body_end - d.method)
        self.size = row.end
        self.held += 1
        self.came += 1
        if wanted:
            self.counted()
        return 0

    def deliver(self, bytes method not None, bytes header not None, bytes body not None):
        """deliver($self, method, header, body)
        --

        Take a delivery that was put together elsewhere: payloads of its method and content header, and its body.

        Raises
        ------
        ValueError
            The method is no basic.deliver, or its delivery tag does not follow the last.
        """
        cdef bytes whole = method + header + body
        cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(method)
        cdef Delivery d
        if PyBytes_GET_SIZE(method) < 14 or not frames_names(at, 14 + at[4], PyBytes_GET_SIZE(method)):
            raise ValueError(f"method must be a basic.deliver, got {method[:64]!r}")
        d.method = 0
        d.tag = 5 + at[4]
        d.header = PyBytes_GET_SIZE(method)
        d.header_end = d.body = d.header + PyBytes_GET_SIZE(header)
        d.body_end = PyBytes_GET_SIZE(whole)
        self.take(<const uint8_t*> PyBytes_AS_STRING(whole), &d)

    def arrange(self, order not None):
        """arrange($self, order)
        --

        Have the rows of this part in another order, or only some of them.

        Parameters
        ----------
        order : numpy.ndarray of int64
            For each row, which of the present ones it is.

        Raises
        ------
        ValueError
            There is no such row.
        """
        cdef int64_t* places = <int64_t*> array_data(order) if order.itemsize == 8 else NULL
        cdef int64_t i, count = len(order), later = self.held - self.count
        cdef Collected* chosen
        if places == NULL and count:
            raise ValueError(f"order must be of 64 bits, got {order.dtype}")
        chosen = <Collected*> malloc((count + later + 1) * sizeof(Collected))
        if chosen == NULL:
            raise MemoryError()
        for i in range(count):
            if not 0 <= places[i] < self.count:
                free(chosen)
                raise ValueError(f"order must have rows from 0 to {self.count - 1}, got {places[i]}")
            chosen[i] = self.rows[places[i]]
        if later:
            memcpy(&chosen[count], &self.rows[self.count], later * sizeof(Collected))
        free(self.rows)
        self.rows = chosen
        self.rows_capacity = count + later + 1
        self.held = count + later
        self.count = count

    # Numbers of rows, as bytes of 64 bits each, but for `queues`, of 32, and `redelivered`, of one.

    def queues(self, dict numbers not None):
        """queues($self, numbers)
        --

        The number of each row's queue, of which `numbers` has them by consumer tag. KeyError if it has not.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int32_t)), tag = b""
        cdef int32_t* to = <int32_t*> PyBytes_AS_STRING(found)
        cdef int32_t number = 0
        cdef const uint8_t* at
        cdef int64_t i, count = self.count
        for i in range(count):
            at = self.data + self.rows[i].method + 4
            if not tag or at[0] != PyBytes_GET_SIZE(tag) or memcmp(at + 1, PyBytes_AS_STRING(tag), at[0]) != 0:
                tag = part(at, 1, 1 + at[0])
                number = numbers[tag]
            to[i] = number
        return found

    def sizes(self):
        """sizes($self)
        --

        The octets of each delivery: names, properties, headers and body.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        cdef int64_t* to = <int64_t*> PyBytes_AS_STRING(found)
        cdef int64_t i
        for i in range(self.count):
            to[i] = self.rows[i].end - self.rows[i].method
        return found

    def received(self):
        """received($self)
        --

        When each was received, in microseconds since 1970.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        cdef int64_t* to = <int64_t*> PyBytes_AS_STRING(found)
        cdef int64_t i
        for i in range(self.count):
            to[i] = self.rows[i].received
        return found

    def redelivered(self):
        """redelivered($self)
        --

        Whether each came before.
        """
        cdef bytes found = bytes(self.count // 8 + 1)
        cdef uint8_t* to = <uint8_t*> PyBytes_AS_STRING(found)
        cdef const uint8_t* at
        cdef int64_t i
        self.prepare()
        for i in range(self.count):
            at = self.data + self.rows[i].method
            to[i >> 3] |= <uint8_t> ((at[5 + at[4] + 8] & 1) << (i & 7))
        return found

    def offsets(self):
        """offsets($self)
        --

        The offset of each in its stream; -1 where it came from none.
        """
        cdef bytes found = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        cdef int64_t* to = <int64_t*> PyBytes_AS_STRING(found)
        cdef int64_t i
        for i in range(self.count):
            to[i] = self.offset_of(i)
        return found

    def last_offset(self):
        """last_offset($self)
        --

        That of the last row; -1 if there is none.
        """
        return self.offset_of(self.count - 1) if self.count else -1

    cdef int64_t offset_of(self, int64_t i) noexcept:
        return stream_offset(self.data + self.rows[i].header, self.rows[i].header_end - self.rows[i].header)

    # Columns, each as rows, nulls, and the buffers: validity (None: all are there), offsets of 32 bits, data.

    def bodies(self):
        """bodies($self)
        --

        The column of bodies. OverflowError if they have more than 2 GiB.
        """
        cdef int64_t i, size = 0
        cdef bytes offset_bytes = PyBytes_FromStringAndSize(NULL, (self.count + 1) * sizeof(int32_t)), data
        cdef int32_t* offsets = <int32_t*> PyBytes_AS_STRING(offset_bytes)
        cdef char* to
        for i in range(self.count):
            size += self.rows[i].end - self.rows[i].body
        if size > COLUMN_MOST:
            raise OverflowError(f"bodies of a record batch have at most 2 GiB, got {size} octets")
        data = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(data)
        size = offsets[0] = 0
        for i in range(self.count):
            memcpy(to + size, self.data + self.rows[i].body, self.rows[i].end - self.rows[i].body)
            size += self.rows[i].end - self.rows[i].body
            offsets[i + 1] = <int32_t> size
        return self.count, 0, (None, offset_bytes, data)

    def paths(self):
        """paths($self)
        --

        The columns of exchanges and of routing keys.
        """
        cdef Column exchange, key
        cdef int64_t i
        self.prepare()
        memset(&exchange, 0, sizeof(Column))
        memset(&key, 0, sizeof(Column))
        try:
            column_init(&exchange, self.count)
            column_init(&key, self.count)
            for i in range(self.count):
                if not add_path(
                    &exchange, &key, self.data + self.rows[i].method, self.rows[i].header - self.rows[i].method
                ):
                    raise ValueError("a delivery has no exchange and routing key")
            return column_take(&exchange), column_take(&key)
        finally:
            column_free(&exchange)
            column_free(&key)

    def properties(self, tuple numbers not None, list names not None, headers, int64_t latest):
        """properties($self, numbers, names, headers, latest)
        --

        The columns of properties and headers, and a bit a row: whether it has any at all.

        What cannot be decoded is null. ``headers(header)`` is called with a content header where it takes Python.
        """
        cdef int count = len(numbers), total = count + len(names), k
        cdef int64_t i, rows = self.count
        cdef Column* columns = <Column*> calloc(total + 1, sizeof(Column))
        cdef bytes readable = bytes(rows // 8 + 1), header
        if columns == NULL:
            raise MemoryError()
        try:
            self.prepare()
            check_numbers(numbers)
            for k in range(total):
                column_init(&columns[k], rows)
            for i in range(rows):
                self.check(i)
                header = part(self.data, self.rows[i].header, self.rows[i].header_end) if names else b""
                if add_content(
                    columns, self.data + self.rows[i].header, self.rows[i].header_end - self.rows[i].header, numbers,
                    names, header, headers, latest,
                ):
                    (<uint8_t*> PyBytes_AS_STRING(readable))[i >> 3] |= <uint8_t> (1 << (i & 7))
                    continue
                for k in range(total):
                    add_read(&columns[k], None, numbers[k] if k < count else 0)
            return [column_take(&columns[k]) for k in range(total)], readable
        finally:
            for k in range(total):
                column_free(&columns[k])
            free(columns)

    def numbers(self, bytes name not None, headers):
        """numbers($self, name, headers)
        --

        A header that is a whole number: a bit a row that says whether it is there, and values of 64 bits.

        ``headers(header)`` returns it, or None, where it takes Python to tell.
        """
        cdef bytes there = bytes(self.count // 8 + 1), values = bytes(self.count * sizeof(int64_t)), header
        cdef int64_t* to = <int64_t*> PyBytes_AS_STRING(values)
        cdef Properties found
        cdef Field field
        cdef FieldFound state
        cdef int64_t i
        self.prepare()
        for i in range(self.count):
            self.check(i)
            header = part(self.data, self.rows[i].header, self.rows[i].header_end)
            at = <const uint8_t*> PyBytes_AS_STRING(header)
            if not contents_find(at, PyBytes_GET_SIZE(header), &found) or found.begin[PROPERTY_HEADERS] < 0:
                continue
            state = tables_find(
                at, found.begin[PROPERTY_HEADERS], PyBytes_GET_SIZE(header),
                <const uint8_t*> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &field,
            )
            if state == FIELD_FOUND and field.kind == c'l':
                value = <int64_t> frames_number(field.value.data, 8)
            elif state != FIELD_MISSING:
                value = headers(header)
            else:
                continue
            if value is not None:
                to[i] = value
                (<uint8_t*> PyBytes_AS_STRING(there))[i >> 3] |= <uint8_t> (1 << (i & 7))
        return there, values

    def content_headers(self):
        """content_headers($self)
        --

        The payload of each content header: a list of bytes.
        """
        cdef int64_t i
        self.prepare()
        return [part(self.data, self.rows[i].header, self.rows[i].header_end) for i in range(self.count)]
