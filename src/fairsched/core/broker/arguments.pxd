"""The x-arguments of queues and consumers: read, checked, and compared with those of the declaration.

`queue_arguments` is the table of a queue's arguments. A new argument is a row there, and a field of `QueueArguments` if
the broker uses its value. Unknown arguments are allowed, as in RabbitMQ.

Source: RabbitMQ's checks and texts; x-queue-kind, x-queue-key, x-fair-key and x-fair-weights are this broker's own.
Thread safety: pure functions. Complexity: O(fields of the table) per argument.
"""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint32_t
from libc.stdio cimport snprintf
from libc.string cimport strchr, strcmp, strstr

from fairsched.core.amqp.constants cimport PRECONDITION_FAILED
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, bytes_size, text_equal, text_is, text_of
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, field_bool, field_integer, field_text, field_type, field_value_describe, tables_get, tables_next,
    tables_walk,
)
from fairsched.core.broker.errors cimport (
    Refusal, refusal_number, refusal_resource, refusal_say, refusal_text, refuse, refuse_type, same_argument,
)
from fairsched.core.queue.order.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, KIND_STANDARD,
)

cdef enum:
    PRIORITIES_MAX = 255
    PRIORITIES_DEFAULT = 9
    FAIR_WEIGHT_MAX = 1000000

cdef enum: NUMBER_MAX = 4294967295

cdef enum: TIME_MAX = 315360000000  # ten years in milliseconds

cdef enum QueueType:             # the words of x-queue-type
    QUEUE_CLASSIC
    QUEUE_QUORUM

cdef enum Overflows:             # the words of x-overflow
    DROP_HEAD
    REJECT_PUBLISH
    REJECT_PUBLISH_DLX

cdef struct QueueArguments:      # texts point into the table; their data is NULL if the argument is missing
    int64_t max_length           # -1: none; so are the next six
    int64_t max_bytes
    int64_t message_ttl          # milliseconds
    int64_t expires              # milliseconds
    int64_t max_priority
    int64_t delivery_limit
    int64_t consumer_timeout     # milliseconds
    int64_t single_active        # 1: yes
    int64_t overflow             # of Overflows
    int64_t type                 # a QueueType
    uint32_t kind                # a Kind of core/queue/order/order.pxd
    Text dlx
    Text dlk
    Text kind_name
    Text key                     # the header to sort by, or whose last value counts
    Text fair_key                # the header that names the slot
    Text weights                 # a table, which begins with its length

# The table ------------------------------------------------------------------------------------------------------------

cdef enum Turn:                  # the order in which arguments are checked, as in RabbitMQ; rows of one turn in theirs
    FIRST
    NEXT
    LAST
    CHECK_FIRST                  # from here on only if a client declares the queue: journals remain readable
    CHECK
    COMPARE                      # not read, but an existing queue must have been declared with the same
    LISTED                       # not read, and not compared

cdef enum:                       # types of queue that accept an argument
    ON_NONE = 0
    ON_CLASSIC = 1 << QUEUE_CLASSIC
    ON_QUORUM = 1 << QUEUE_QUORUM
    ON_ALL = ON_CLASSIC | ON_QUORUM

cdef struct Reading:             # of one table
    Text table
    Text queue
    Text vhost
    Refusal* refusal

cdef struct QueueArgument:       # a row
    const char* name             # NULL: the end of the table
    Turn turn
    # Store the value if the argument is present. False: refused.
    bint (*read)(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil
    int64_t least
    int64_t most
    const char* words            # separated by |; the value is the index of one
    const char* error            # for a number above `most`, or for none of `words`
    int64_t* number              # destination of the value; NULL: none
    Text* text
    int queues                   # ON_…

cdef enum: ARGUMENT_ROWS = 30

cdef inline void queue_arguments(QueueArgument* rows, QueueArguments* a) noexcept nogil:
    """Write the table, in the order in which RabbitMQ compares arguments; values go to `a`."""
    rows[0:ARGUMENT_ROWS] = [
        # name, turn, read, least, most, words, error, number, text, queues
        QueueArgument(
            b"x-expires", NEXT, read_number, 1, TIME_MAX, NULL, b"{value_too_large,%lld}", &a.expires, NULL, ON_ALL
        ),
        QueueArgument(
            b"x-message-ttl", NEXT, read_number, 0, TIME_MAX, NULL, b"{value_too_large,%lld}", &a.message_ttl, NULL,
            ON_ALL
        ),
        QueueArgument(b"x-dead-letter-exchange", FIRST, read_exchange, 0, 0, NULL, NULL, NULL, &a.dlx, ON_ALL),
        QueueArgument(b"x-dead-letter-routing-key", NEXT, read_letter_key, 0, 0, NULL, NULL, NULL, &a.dlk, ON_ALL),
        QueueArgument(b"x-max-length", NEXT, read_number, 0, INT64_MAX, NULL, NULL, &a.max_length, NULL, ON_ALL),
        QueueArgument(b"x-max-length-bytes", NEXT, read_number, 0, INT64_MAX, NULL, NULL, &a.max_bytes, NULL, ON_ALL),
        QueueArgument(
            b"x-max-priority", NEXT, read_number, 0, PRIORITIES_MAX, NULL, b"{max_value_exceeded,%lld}",
            &a.max_priority, NULL, ON_CLASSIC
        ),
        QueueArgument(
            b"x-overflow", LAST, read_word, 0, 0, b"drop-head|reject-publish|reject-publish-dlx", b"invalid_overflow",
            &a.overflow, NULL, ON_ALL
        ),
        QueueArgument(
            b"x-queue-mode", CHECK, read_word, 0, 0, b"default|lazy", b"\"unsupported queue mode '%s'\"", NULL, NULL,
            ON_CLASSIC
        ),
        QueueArgument(
            b"x-queue-version", CHECK, read_version, 0, 2, NULL, b"\"unsupported queue version '%lld'\"", NULL, NULL,
            ON_CLASSIC
        ),
        QueueArgument(b"x-queue-master-locator", COMPARE, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_CLASSIC),
        QueueArgument(
            b"x-queue-type", FIRST, read_word, 0, 0, b"classic|quorum", b"\"unsupported queue type '%s'\"", &a.type,
            NULL, ON_ALL
        ),
        QueueArgument(
            b"x-single-active-consumer", CHECK, read_flag, 0, 0, NULL, NULL, &a.single_active, NULL, ON_ALL
        ),
        QueueArgument(
            b"x-delivery-limit", NEXT, read_number, 0, NUMBER_MAX, NULL, b"{max_value_exceeded,%lld}",
            &a.delivery_limit, NULL, ON_ALL
        ),
        QueueArgument(
            b"x-consumer-timeout", NEXT, read_number, 1, NUMBER_MAX, NULL, b"{max_value_exceeded,%lld}",
            &a.consumer_timeout, NULL, ON_ALL
        ),
        QueueArgument(b"x-queue-kind", LAST, read_text, 0, 0, NULL, NULL, NULL, &a.kind_name, ON_ALL),
        QueueArgument(b"x-queue-key", LAST, read_text, 0, 0, NULL, NULL, NULL, &a.key, ON_ALL),
        QueueArgument(b"x-fair-key", LAST, read_text, 0, 0, NULL, NULL, NULL, &a.fair_key, ON_ALL),
        QueueArgument(b"x-fair-weights", CHECK_FIRST, read_weights, 0, 0, NULL, NULL, NULL, &a.weights, ON_ALL),
        QueueArgument(b"x-delayed-retry-type", COMPARE, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-delayed-retry-min", COMPARE, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-delayed-retry-max", COMPARE, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-dead-letter-strategy", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-initial-cluster-size", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_NONE),
        QueueArgument(b"x-max-age", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_NONE),
        QueueArgument(b"x-max-in-memory-bytes", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-max-in-memory-length", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-quorum-initial-group-size", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_QUORUM),
        QueueArgument(b"x-stream-max-segment-size-bytes", LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_NONE),
        QueueArgument(NULL, LISTED, NULL, 0, 0, NULL, NULL, NULL, NULL, ON_NONE),
    ]

# Refusing: always False -----------------------------------------------------------------------------------------------

cdef inline bint argument_refuse(Reading* r, const char* name, const char* why) noexcept nogil:
    refuse(r.refusal, PRECONDITION_FAILED, "invalid arg '")
    refusal_say(r.refusal, name)
    refusal_say(r.refusal, "' for ")
    refusal_resource(r.refusal, False, r.queue, r.vhost)
    refusal_say(r.refusal, ": ")
    refusal_say(r.refusal, why)
    return False

cdef inline bint argument_refuse_number(Reading* r, const char* name, const char* why, int64_t value) noexcept nogil:
    """Refuse a number; `why` is a pattern with %lld."""
    cdef char reason[128]
    snprintf(reason, sizeof(reason), why, <long long> value)
    return argument_refuse(r, name, reason)

cdef inline bint argument_refuse_word(Reading* r, const char* name, const char* why, Text word) noexcept nogil:
    """Refuse a word; `why` may contain %s once, for the word."""
    cdef const char* place = strstr(why, b"%s")
    if place == NULL:
        return argument_refuse(r, name, why)
    argument_refuse(r, name, b"")
    refusal_text(r.refusal, text_between(why, place))
    refusal_text(r.refusal, word)
    refusal_say(r.refusal, place + 2)
    return False

cdef inline bint argument_refuse_type(Reading* r, const char* name, const Field* f) noexcept nogil:
    cdef char reason[128]
    snprintf(reason, sizeof(reason), b"{unacceptable_type,%s}", field_type(f))
    return argument_refuse(r, name, reason)

cdef inline bint argument_refuse_weight(Reading* r, Text key, const Field* f) noexcept nogil:
    cdef Bytes value
    argument_refuse(r, b"x-fair-weights", b"the weight of '")
    refusal_text(r.refusal, key)
    refusal_say(r.refusal, b"' must be an integer from 1 to ")
    refusal_number(r.refusal, FAIR_WEIGHT_MAX)
    refusal_say(r.refusal, b", got '")
    bytes_init(&value)
    field_value_describe(&value, f)
    refusal_text(r.refusal, Text(value.data, <uint32_t> bytes_size(&value)))
    bytes_clear(&value)
    refusal_say(r.refusal, b"'")
    return False

cdef inline bint argument_refuse_foreign(Reading* r, const char* name, int64_t type) noexcept nogil:
    """Refuse an argument that this type of queue does not accept."""
    refuse(r.refusal, PRECONDITION_FAILED, b"invalid arg '")
    refusal_say(r.refusal, name)
    refusal_say(r.refusal, b"' for ")
    refusal_resource(r.refusal, False, r.queue, r.vhost)
    refusal_say(r.refusal, b" of queue type rabbit_")
    refusal_say(r.refusal, b"quorum_queue" if type == QUEUE_QUORUM else b"classic_queue")
    return False

# Reading one argument -------------------------------------------------------------------------------------------------

cdef inline bint argument_find(Reading* r, const char* name, Field* f) noexcept nogil:
    return tables_get(r.table, text_of(name), f)

cdef inline bint argument_integer(Reading* r, const char* name, bint* present, int64_t* value) noexcept nogil:
    cdef Field f
    cdef char reason[128]
    present[0] = argument_find(r, name, &f)
    if not present[0] or field_integer(&f, value):
        return True
    snprintf(reason, sizeof(reason), b"\"expected integer, got %s\"", field_type(&f))
    return argument_refuse(r, name, reason)

cdef inline bint read_number(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    cdef int64_t value = 0
    cdef bint present
    if not argument_integer(r, row.name, &present, &value):
        return False
    if not present:
        return True
    if value < 0:
        return argument_refuse_number(r, row.name, b"{value_negative,%lld}", value)
    if value < row.least:
        return argument_refuse_number(r, row.name, b"{value_zero,%lld}", value)
    if value > row.most:
        return argument_refuse_number(r, row.name, row.error, value)
    if row.number != NULL:
        row.number[0] = value
    return True

cdef inline bint read_version(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    cdef int64_t version = 0
    cdef bint present
    if not read_number(r, row, a) or not argument_integer(r, row.name, &present, &version):
        return False
    return not present or version != 0 or argument_refuse_number(r, row.name, row.error, version)

cdef inline bint read_text(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    cdef Field f
    return not argument_find(r, row.name, &f) or field_text(&f, row.text) or argument_refuse_type(r, row.name, &f)

cdef inline bint read_flag(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    cdef Field f
    cdef bint flag
    if not argument_find(r, row.name, &f):
        return True
    if not field_bool(&f, &flag):
        return argument_refuse_type(r, row.name, &f)
    row.number[0] = flag
    return True

cdef inline Text text_between(const char* begin, const char* end) noexcept nogil:
    return Text(text_of(begin).data, <uint32_t> (end - begin))

cdef inline int64_t word_index(const char* words, Text word) noexcept nogil:
    """Return the index of a word among `words`, which are separated by |; -1: it is none of them."""
    cdef int64_t index = 0
    cdef const char* end = strchr(words, b'|')
    while end != NULL:
        if text_equal(word, text_between(words, end)):
            return index
        index += 1
        words = end + 1
        end = strchr(words, b'|')
    return index if text_is(word, words) else -1

cdef inline bint read_word(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    cdef Field f
    cdef int64_t index
    if not argument_find(r, row.name, &f):
        return True
    if f.kind != b'S':
        return argument_refuse_type(r, row.name, &f)
    index = word_index(row.words, f.value)
    if index < 0:
        return argument_refuse_word(r, row.name, row.error, f.value)
    if row.number != NULL:
        row.number[0] = index
    return True

cdef inline bint read_exchange(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    """Read the exchange of dead letters."""
    cdef Field f
    return not argument_find(r, row.name, &f) or field_text(&f, row.text) or refuse_type(
        r.refusal, False, r.queue, r.vhost, row.name, &f
    )

cdef inline bint read_letter_key(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    """Read the routing key of dead letters, which needs their exchange."""
    return read_text(r, row, a) and (
        a.dlx.data != NULL or a.dlk.data == NULL
        or argument_refuse(r, row.name, b"routing_key_but_no_dlx_defined")
    )

cdef inline bint read_weights(Reading* r, const QueueArgument* row, QueueArguments* a) noexcept nogil:
    """Check the weights; `arguments_order` has read the table."""
    cdef Field f
    cdef TableWalk w = tables_walk(a.weights)
    cdef Text key
    cdef int64_t weight
    while a.weights.data != NULL and tables_next(&w, &key, &f):
        if not field_integer(&f, &weight) or not 1 <= weight <= FAIR_WEIGHT_MAX:
            return argument_refuse_weight(r, key, &f)
    return True

# The arguments of a queue ---------------------------------------------------------------------------------------------

cdef inline bint arguments_kind(Reading* r, QueueArguments* a) noexcept nogil:
    """Derive the order of service from x-queue-kind and x-max-priority."""
    a.kind = KIND_STANDARD if a.max_priority < 0 else KIND_PRIORITY
    if a.kind_name.data == NULL:
        return True
    if text_is(a.kind_name, b"priority"):
        a.kind = KIND_PRIORITY
        a.max_priority = a.max_priority if a.max_priority >= 0 else PRIORITIES_DEFAULT
    elif a.max_priority >= 0:
        return argument_refuse(r, b"x-queue-kind", b"priorities_of_another_kind")
    elif text_is(a.kind_name, b"sorted"):
        a.kind = KIND_SORTED
    elif text_is(a.kind_name, b"last-value"):
        a.kind = KIND_LAST_VALUE
    elif not text_is(a.kind_name, b"standard"):
        return argument_refuse(r, b"x-queue-kind", b"invalid_queue_kind")
    return True

cdef inline bint arguments_order(Reading* r, QueueArguments* a) noexcept nogil:
    """Derive the order of service from all arguments that concern it."""
    cdef Field f
    cdef bint fair = a.fair_key.data != NULL
    if not arguments_kind(r, a):
        return False
    if (a.kind == <uint32_t> KIND_SORTED or a.kind == <uint32_t> KIND_LAST_VALUE) != (a.key.data != NULL):
        return argument_refuse(r, b"x-queue-key", b"needed_by_sorted_and_last_value_queues_only")
    if fair:
        if a.kind != <uint32_t> KIND_STANDARD or a.max_bytes >= 0:
            return argument_refuse(r, b"x-fair-key", b"not_with_priorities_another_kind_or_max_length_bytes")
        a.kind = KIND_FAIR
    if argument_find(r, b"x-fair-weights", &f):
        if f.kind != b'F' or not fair:
            return argument_refuse(r, b"x-fair-weights", b"must_be_a_table_beside_x_fair_key")
        a.weights = f.value
    return True

cdef inline void arguments_clear(QueueArguments* a) noexcept nogil:
    a.max_length = a.max_bytes = a.message_ttl = a.expires = a.max_priority = a.delivery_limit = -1
    a.consumer_timeout = -1
    a.single_active = 0
    a.overflow = DROP_HEAD
    a.type = QUEUE_CLASSIC
    a.kind = KIND_STANDARD
    a.dlx = a.dlk = a.kind_name = a.key = a.fair_key = a.weights = Text(NULL, 0)

cdef inline bint arguments_foreign(Reading* r, const QueueArgument* rows, int64_t type) noexcept nogil:
    """Refuse the first argument, by name, that this type of queue does not accept."""
    cdef const char* found = NULL
    cdef Field f
    while rows.name != NULL:
        if not rows.queues & (1 << type) and argument_find(r, rows.name, &f):
            if found == NULL or strcmp(rows.name, found) < 0:
                found = rows.name
        rows += 1
    return found == NULL or argument_refuse_foreign(r, found, type)

cdef inline bint arguments_turn(Reading* r, const QueueArgument* rows, Turn turn, QueueArguments* a) noexcept nogil:
    """Read the arguments of one turn; False: refused."""
    while rows.name != NULL:
        if rows.turn == turn and (turn < CHECK or rows.queues & (1 << a.type)) and not rows.read(r, rows, a):
            return False
        rows += 1
    return True

cdef inline void arguments_recover(Reading* r, const QueueArgument* rows, QueueArguments* a) noexcept nogil:
    """Read the arguments of the turn CHECK that are valid."""
    while rows.name != NULL:
        if rows.turn == CHECK:
            rows.read(r, rows, a)
        rows += 1

cdef inline bint arguments_read(
    Text table, Text queue, Text vhost, bint declared, QueueArguments* a, Refusal* refusal
) noexcept nogil:
    """Read and check the arguments of a queue, in RabbitMQ's order; False: refused.

    With `declared`, a client declares the queue. Without, it comes from the journal: invalid arguments of the turns
    CHECK_FIRST and CHECK are ignored.
    """
    cdef Reading r = Reading(table, queue, vhost, refusal)
    cdef QueueArgument rows[ARGUMENT_ROWS]
    arguments_clear(a)
    queue_arguments(rows, a)
    if not (
        arguments_turn(&r, rows, FIRST, a) and arguments_turn(&r, rows, NEXT, a) and arguments_turn(&r, rows, LAST, a)
        and arguments_order(&r, a)
    ):
        return False
    if not declared:
        arguments_recover(&r, rows, a)
        return True
    return (
        arguments_turn(&r, rows, CHECK_FIRST, a) and arguments_turn(&r, rows, CHECK, a)
        and arguments_foreign(&r, rows, a.type)
    )

cdef inline void arguments_move(QueueArguments* a, Text old, Text copy) noexcept nogil:
    """Have the texts point into a copy of the table."""
    cdef QueueArgument rows[ARGUMENT_ROWS]
    cdef QueueArgument* row = rows
    queue_arguments(rows, a)
    while row.name != NULL:
        if row.text != NULL and row.text.data != NULL:
            row.text.data = copy.data + (row.text.data - old.data)
        row += 1

# Comparing with the declaration ---------------------------------------------------------------------------------------

cdef inline bint type_agrees(Text declared, Text received) noexcept nogil:
    """Return whether one of two declarations says that the queue is a classic one, and the other omits its type."""
    cdef Field old, new
    cdef Text name = text_of(b"x-queue-type")
    cdef bint before = tables_get(declared, name, &old), now = tables_get(received, name, &new)
    if before:
        new = old
    return before != now and new.kind == b'S' and text_is(new.value, b"classic")

cdef inline bint arguments_agree(Text declared, Text received, Text queue, Text vhost, Refusal* refusal) noexcept nogil:
    """Return whether an existing queue was declared with these arguments; False: refused."""
    cdef QueueArguments unused
    cdef QueueArgument rows[ARGUMENT_ROWS]
    cdef QueueArgument* row = rows
    queue_arguments(rows, &unused)
    while row.name != NULL:
        if row.turn != LISTED and not (row.number == &unused.type and type_agrees(declared, received)):
            if not same_argument(refusal, False, queue, vhost, row.name, declared, received):
                return False
        row += 1
    return True

# The arguments of a consumer ------------------------------------------------------------------------------------------

cdef inline bint consume_arguments_read(
    Text table, Text queue, Text vhost, int64_t type, int32_t* priority, Refusal* refusal
) noexcept nogil:
    """Read and check the arguments of basic.consume, for a queue of a type; False: refused."""
    cdef Reading r = Reading(table, queue, vhost, refusal)
    cdef const char* failover = b"x-cancel-on-ha-failover"
    cdef const char* offset = b"x-stream-offset"
    cdef bint present, flag
    cdef int64_t value = 0
    cdef Field f
    if not argument_integer(&r, b"x-priority", &present, &value):
        return False
    priority[0] = <int32_t> min(max(value, <int64_t> INT32_MIN), <int64_t> INT32_MAX)
    if argument_find(&r, failover, &f) and type == QUEUE_CLASSIC and not field_bool(&f, &flag):
        return argument_refuse_type(&r, failover, &f)
    if argument_find(&r, offset, &f):
        return argument_refuse_foreign(&r, offset, type)
    return type == QUEUE_CLASSIC or not argument_find(&r, failover, &f) or argument_refuse_foreign(&r, failover, type)
