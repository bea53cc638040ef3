"""Columns of Arrow made of messages, for batches that handlers take as a table.

    MessageColumns   makes the columns of a list of messages
    ExportedBatch    these columns, as the Arrow C data interface hands them over
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from fairsched.core.arrowdata cimport ArrowArray
from fairsched.core.arrowexport cimport (
    ArrowBlock, ArrowTexts, arrow_batch, arrow_batch_column, arrow_batch_dictionary, arrow_texts_leave,
)
from fairsched.delivery._column cimport (
    COLUMN_MOST, Column, add_content, add_path, add_read, check_numbers, column_add, column_add_object, column_free,
    column_init, is_number,
)
from fairsched.delivery._delivery cimport Message, body_octets, header_octets

cdef enum:
    GROWTH = 6            # octets of JSON that one octet of a header may become, at most


cdef int add_body(Column* c, Message message) except -1:
    """Add a row with a body."""
    cdef int64_t size = 0
    cdef const uint8_t* at = body_octets(message, &size)
    if at == NULL:
        raise TypeError(f"body must be bytes, got {message.content!r}")
    return column_add(c, <const char*> at, size)


cdef int add_names(Column* exchange, Column* key, Message message) except -1:
    """Add a row with the exchange and the routing key of a message."""
    cdef object method = message.method
    if type(method) is not bytes or not add_path(
        exchange, key, <const uint8_t*> PyBytes_AS_STRING(method) + message.method_at,
        message.method_end - message.method_at,
    ):
        column_add_object(exchange, message.name_in_method(0))
        column_add_object(key, message.name_in_method(1))
    return 0


cdef int64_t octets_of(Message message, bint with_properties) noexcept:
    """The octets that a message may take of its longest column."""
    cdef int64_t size = 0, header = 0
    body_octets(message, &size)
    if with_properties:
        header_octets(message, &header)
    return max(size, GROWTH * header)


cdef bint add_row(
    Column* columns, Message message, tuple numbers, list names, object headers, int64_t latest
) except -1:
    """Add the properties and headers of a message; False if its content header is not at hand."""
    cdef int64_t size = 0
    cdef const uint8_t* at = header_octets(message, &size)
    if at == NULL:
        return False
    return add_content(columns, at, size, numbers, names, message, headers, latest)


@cython.final
cdef class ExportedBatch:
    """A record batch as the Arrow C data interface hands it over; not to be made but by `MessageColumns`.

    Attributes
    ----------
    address : int
        Of a struct ArrowArray, which its importer moves away, once. What was not moved is released with this object.
    """

    cdef ArrowArray array

    def __cinit__(self):
        memset(&self.array, 0, sizeof(ArrowArray))

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    @property
    def address(self):
        return <uintptr_t> &self.array


cdef enum:  # the columns that are always there
    COLUMN_BODY, COLUMN_QUEUE, COLUMN_EXCHANGE, COLUMN_KEY, COLUMN_REDELIVERED, COLUMNS_FIXED


@cython.final
@cython.no_gc_clear
cdef class MessageColumns:
    """MessageColumns(queues, numbers, names, read, headers, latest)
    --

    Makes Arrow columns of messages: bodies, queues as numbers with a dictionary, exchanges, routing keys, whether they
    were redelivered, and then properties and headers.

    Parameters
    ----------
    queues : list of str
        What messages may come from.
    numbers : tuple of int
        Which properties, as indices of `PROPERTY_NAMES`.
    names : list of bytes
        Which headers.
    read : callable
        ``read(message, number)`` returns a property of a message whose content header is not at hand.
    headers : callable
        ``headers(message)`` returns a list with the text, or None, of each header, where it takes Python to tell.
    latest : int
        The last second that a timestamp may have.

    Attributes
    ----------
    MOST : int
        Octets that a column may have.

    Raises
    ------
    ValueError
        There is no such property.
    """

    MOST = COLUMN_MOST

    cdef dict queues
    cdef tuple numbers
    cdef list names
    cdef object read
    cdef object headers
    cdef int64_t latest
    cdef ArrowTexts* texts

    def __cinit__(self, list queues not None, tuple numbers not None, list names not None, read, headers, latest):
        cdef bytes octets = "".join(queues).encode()
        cdef int64_t i, size = 0
        check_numbers(numbers)
        self.queues = {name: i for i, name in enumerate(queues)}
        self.numbers, self.names, self.read, self.headers, self.latest = numbers, names[:], read, headers, latest
        self.texts = <ArrowTexts*> calloc(1, sizeof(ArrowTexts))
        if self.texts == NULL:
            raise MemoryError()
        self.texts.users.fetch_add(1)
        self.texts.count = len(queues)
        self.texts.offsets = <int32_t*> calloc(len(queues) + 1, sizeof(int32_t))
        self.texts.data = <char*> malloc(len(octets) + 1)
        if self.texts.offsets == NULL or self.texts.data == NULL:
            raise MemoryError()
        memcpy(self.texts.data, PyBytes_AS_STRING(octets), len(octets))
        for i in range(len(queues)):
            size += len(queues[i].encode())
            self.texts.offsets[i + 1] = <int32_t> size

    def __dealloc__(self):
        if self.texts != NULL:
            arrow_texts_leave(self.texts)

    def make(self, list messages not None, int64_t most=COLUMN_MOST):
        """make($self, messages, most=...)
        --

        Make the columns of some messages: of all, or the first of them.

        Parameters
        ----------
        messages : list of Message
        most : int
            Octets that a column may have. Messages beyond that are left out, but for the first.

        Returns
        -------
        ExportedBatch
            Texts have offsets of 32 bits, numbers 32 bits, and timestamps 64, in microseconds.

        Raises
        ------
        KeyError
            A message comes from another queue.
        OverflowError
            A column would have more than `MOST` octets.
        TypeError
            A body is not bytes.

        Notes
        -----
        Complexity O(octets). Thread safety: any thread; the data is a copy, freed by its importer, also when this
        object is gone.

        Source: AMQP 0-9-1, sections 4.2.5.5 and 4.2.6.1.
        """
        cdef list chosen = messages[:]  # what the names of queues are asked for may change the caller's
        cdef int total = COLUMNS_FIXED + <int> (len(self.numbers) + len(self.names)), i
        cdef Column* columns = <Column*> calloc(total, sizeof(Column))
        if columns == NULL:
            raise MemoryError()
        try:
            self.add_fixed(columns, chosen, most)
            del chosen[columns[COLUMN_BODY].rows:]
            if total > COLUMNS_FIXED:
                self.add_properties(&columns[COLUMNS_FIXED], chosen)
            return self.exported(columns, total, len(chosen))
        finally:
            for i in range(total):
                column_free(&columns[i])
            free(columns)

    cdef int add_fixed(self, Column* columns, list messages, int64_t most) except -1:
        """Make the columns that are always there, of messages that fit: in one go, while a message is in the cache."""
        cdef int64_t rows = PyList_GET_SIZE(messages), row = 0, size = 0
        cdef bint with_properties = len(self.numbers) or len(self.names)
        cdef int32_t number = 0
        cdef object origin = None
        cdef Message message
        column_init(&columns[COLUMN_BODY], rows, octets_of(messages[0], False) if rows else 0)
        column_init(&columns[COLUMN_EXCHANGE], rows)
        column_init(&columns[COLUMN_KEY], rows)
        columns[COLUMN_QUEUE].data = <char*> malloc((rows + 1) * sizeof(int32_t))
        columns[COLUMN_REDELIVERED].data = <char*> calloc(rows // 8 + 1, 1)
        if columns[COLUMN_QUEUE].data == NULL or columns[COLUMN_REDELIVERED].data == NULL:
            raise MemoryError()
        for message in messages:
            size += octets_of(message, with_properties)
            if size > most and row:
                break
            if message.origin is not origin:
                origin = message.origin
                number = self.queues[origin.queue]
            (<int32_t*> columns[COLUMN_QUEUE].data)[row] = number
            columns[COLUMN_REDELIVERED].data[row >> 3] |= <char> (message.redelivered << (row & 7))
            add_body(&columns[COLUMN_BODY], message)
            add_names(&columns[COLUMN_EXCHANGE], &columns[COLUMN_KEY], message)
            row += 1
        return 0

    cdef int add_properties(self, Column* columns, list messages) except -1:
        """Make the columns of properties and headers."""
        cdef int count = len(self.numbers), total = count + <int> len(self.names), i
        cdef Message message
        for i in range(total):
            column_init(&columns[i], PyList_GET_SIZE(messages))
        for message in messages:
            if not add_row(columns, message, self.numbers, self.names, self.headers, self.latest):
                for i in range(count):
                    add_read(&columns[i], self.read(message, self.numbers[i]), self.numbers[i])
                if total > count:
                    texts = self.headers(message)
                    for i in range(count, total):
                        column_add_object(&columns[i], texts[i - count])
        return 0

    cdef ExportedBatch exported(self, Column* columns, int total, int64_t rows):
        """Hand columns over, with what they have."""
        cdef ExportedBatch made = ExportedBatch.__new__(ExportedBatch)
        cdef ArrowBlock* block = arrow_batch(&made.array, rows, total)
        cdef ArrowArray* array
        cdef int i, property
        if block == NULL:
            raise MemoryError()
        for i in range(total):
            property = i - COLUMNS_FIXED
            array = column_export(
                &columns[i], block, &made.array,
                0 <= property < len(self.numbers) and is_number(self.numbers[property]),
            )
            if i == COLUMN_QUEUE:
                arrow_batch_dictionary(block, array, self.texts)
        return made


cdef ArrowArray* column_export(Column* c, ArrowBlock* block, ArrowArray* batch, bint is_fixed) noexcept:
    """Add a column to a batch, which has its buffers then; values of fixed width have no offsets."""
    cdef char* data = c.data
    cdef ArrowArray* array
    if is_fixed:
        free(c.offsets)
        c.offsets = NULL
    if c.nulls == 0:
        free(c.there)
        c.there = NULL
    if c.size < c.capacity:  # batches that are kept have no room for messages that did not come
        data = <char*> realloc(c.data, max(c.size, 1))
    array = arrow_batch_column(block, batch, c.nulls, c.there, c.offsets, c.data if data == NULL else data)
    c.there = NULL
    c.offsets = NULL
    c.data = NULL
    return array
