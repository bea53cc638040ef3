"""The content header of a dead letter: a message that a queue publishes again because it expired, was rejected, ….

The header `x-death` is an array of tables, one per queue and reason, the latest first: count, reason, queue, time of
the first death, and how the message was published. A message without the header also gets x-first-death-queue, -reason
and -exchange. Its time to live is removed, and recorded in x-death. If the queue has a routing key for dead letters,
the header CC is removed, too.

A letter is in a cycle if it arrives at a queue that it left before, and no client has rejected it since: then it is
dropped there. An x-death that a client may have written counts as a rejection.

Source: RabbitMQ, "Dead Letter Exchanges", and what a node does (tests/integration/test_deadletter.py).
Thread safety: pure functions. Complexity: O(octets).
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort

from fairsched.core.amqp.contents cimport (
    PROPERTY_EXPIRATION, PROPERTY_HEADERS, Properties, contents_flag, contents_has, contents_rewrite, contents_text,
)
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, text_equal, text_is, text_of
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, field_integer, table_array_begin, table_begin, table_copy, table_end, table_field, table_long,
    table_nested_begin, table_text, table_timestamp, tables_get, tables_next, tables_walk,
)
from fairsched.core.broker.exchanges.fields cimport (
    Fields, NamedField, fields_clear, fields_compare, fields_init, fields_read, fields_room, fields_write,
)

cdef struct Death:
    Text queue               # the queue that the message has left
    Text reason              # expired, rejected, maxlen or delivery_limit
    Text exchange            # the exchange it was published to
    Text key                 # the routing key it was published with
    bint rekeyed             # the queue names a routing key for dead letters
    uint64_t time            # seconds since 1970


# Entries of x-death ---------------------------------------------------------------------------------------------------

cdef inline bint death_says(Text entry, const char* name, Text value) noexcept nogil:
    cdef Field field
    return tables_get(entry, text_of(name), &field) and field.kind == b'S' and text_equal(field.value, value)

cdef inline bint death_same(const Field* entry, const Death* death) noexcept nogil:
    """Return whether an entry has the same queue and reason."""
    return (
        entry.kind == b'F'
        and death_says(entry.value, "queue", death.queue)
        and death_says(entry.value, "reason", death.reason)
    )

cdef inline void death_keys(Bytes* out, Text headers, const Death* death) noexcept nogil:
    """Write the routing keys: the message's, and those of CC."""
    cdef int64_t begin = table_array_begin(out, text_of("routing-keys"))
    cdef Field field, key
    cdef Text nothing = Text(NULL, 0)
    cdef TableWalk w
    table_text(out, nothing, death.key)
    if tables_get(headers, text_of("CC"), &field) and field.kind == b'A':
        w = tables_walk(field.value, False)
        while tables_next(&w, &nothing, &key):
            if key.kind == b'S':
                table_field(out, Text(NULL, 0), &key)
    table_end(out, begin)

cdef inline void death_new(Bytes* out, Text headers, const Text* expiration, const Death* death) noexcept nogil:
    """Write a new entry for a death, the first of its queue and reason."""
    cdef int64_t begin = table_nested_begin(out, Text(NULL, 0))
    table_long(out, text_of("count"), 1)
    table_text(out, text_of("exchange"), death.exchange)
    if expiration != NULL:
        table_text(out, text_of("original-expiration"), expiration[0])
    table_text(out, text_of("queue"), death.queue)
    table_text(out, text_of("reason"), death.reason)
    death_keys(out, headers, death)
    table_timestamp(out, text_of("time"), death.time)
    table_end(out, begin)

cdef inline void death_again(Bytes* out, const Field* entry) noexcept nogil:
    """Write an entry with its count increased by one."""
    cdef int64_t begin = table_nested_begin(out, Text(NULL, 0)), count = 0
    cdef Text name = text_of("count")
    cdef Field field
    if tables_get(entry.value, name, &field):
        field_integer(&field, &count)
    table_long(out, name, count + 1)
    table_copy(out, entry.value, &name, 1)
    table_end(out, begin)

cdef inline void deaths_write(
    Bytes* out, Text headers, const Field* deaths, const Text* expiration, const Death* death
) noexcept nogil:
    """Write the array, which begins with its length: this death, then the earlier ones (`deaths`; NULL: none)."""
    cdef int64_t begin = table_begin(out)
    cdef TableWalk w = tables_walk(deaths.value if deaths != NULL else Text(NULL, 0), False)
    cdef Text name
    cdef Field entry
    cdef bint found = False
    while not found and tables_next(&w, &name, &entry):
        found = death_same(&entry, death)
    if found:
        death_again(out, &entry)
    else:
        death_new(out, headers, expiration, death)
    w = tables_walk(deaths.value if deaths != NULL else Text(NULL, 0), False)
    while tables_next(&w, &name, &entry):
        if not death_same(&entry, death):
            table_field(out, Text(NULL, 0), &entry)
    table_end(out, begin)


# The headers ----------------------------------------------------------------------------------------------------------

cdef inline bint death_put(Fields* f, const char* name, uint8_t kind, Text value) noexcept nogil:
    if not fields_room(f):
        return False
    f.at[f.count] = NamedField(text_of(name), Field(kind, value))
    f.count += 1
    return True

cdef inline bint death_replaces(Text name, bint first, const Death* death) noexcept nogil:
    """Return whether a header is removed or replaced."""
    return (
        text_is(name, "x-death") or (death.rekeyed and text_is(name, "CC"))
        or (first and (
            text_is(name, "x-first-death-reason") or text_is(name, "x-first-death-queue")
            or text_is(name, "x-first-death-exchange")
        ))
    )

cdef inline bint death_fields(Fields* f, Text headers, bint first, Text deaths, const Death* death) noexcept nogil:
    """Collect the headers in the order of their names; False: memory is exhausted."""
    cdef int64_t i, kept = 0
    cdef bint done = fields_read(f, headers)
    for i in range(f.count):
        if not death_replaces(f.at[i].name, first, death):
            f.at[kept] = f.at[i]
            kept += 1
    f.count = kept
    done = done and death_put(f, "x-death", b'A', deaths)
    if first:
        done = (
            done
            and death_put(f, "x-first-death-exchange", b'S', death.exchange)
            and death_put(f, "x-first-death-queue", b'S', death.queue)
            and death_put(f, "x-first-death-reason", b'S', death.reason)
        )
    if done:
        qsort(f.at, f.count, sizeof(NamedField), fields_compare)
    return done

cdef inline void death_headers(
    Bytes* out, Text headers, const Text* expiration, const Death* death
) noexcept nogil:
    """Append the table of headers of the dead letter."""
    cdef Bytes deaths
    cdef Field before
    cdef Fields fields
    cdef bint first = not tables_get(headers, text_of("x-death"), &before)
    bytes_init(&deaths)
    fields_init(&fields)
    deaths_write(&deaths, headers, &before if not first and before.kind == b'A' else NULL, expiration, death)
    if deaths.failed or not death_fields(&fields, headers, first, Text(deaths.data, <uint32_t> deaths.end), death):
        out.failed = True
    else:
        fields_write(out, &fields)
    fields_clear(&fields)
    bytes_clear(&deaths)

cdef inline void death_header_write(
    Bytes* out, const uint8_t* header, const Properties* properties, const Death* death
) noexcept nogil:
    """Append the payload of a dead letter's content header, from that of the message and its properties."""
    cdef Text headers = contents_text(header, properties, PROPERTY_HEADERS)
    cdef Text expiration = contents_text(header, properties, PROPERTY_EXPIRATION)
    cdef Text table
    cdef Bytes written
    bytes_init(&written)
    death_headers(
        &written, headers, &expiration if contents_has(properties, PROPERTY_EXPIRATION) else NULL, death
    )
    table = Text(written.data, <uint32_t> written.end)
    if written.failed:
        out.failed = True
    else:
        contents_rewrite(out, header, properties, contents_flag(PROPERTY_EXPIRATION), &table)
    bytes_clear(&written)


# Cycles ---------------------------------------------------------------------------------------------------------------

cdef inline bint death_cycle(Text headers, Text queue) noexcept nogil:
    """Return whether a dead letter has been in a queue before, and no client has rejected it since: a cycle."""
    cdef Field deaths, entry
    cdef Text name
    cdef TableWalk w
    if not tables_get(headers, text_of("x-death"), &deaths) or deaths.kind != b'A':
        return False
    w = tables_walk(deaths.value, False)
    while tables_next(&w, &name, &entry):
        if entry.kind != b'F' or death_says(entry.value, "reason", text_of("rejected")):
            return False
        if death_says(entry.value, "queue", queue):
            return True
    return False
