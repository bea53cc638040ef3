"""The x-arguments of queues and consumers: read, checked, and compared with those of the declaration.

Source: RabbitMQ's check of arguments, including its texts; x-queue-kind, x-queue-key, x-fair-key and x-fair-weights are
this broker's own. Unknown arguments are allowed, as in RabbitMQ.
Thread safety: pure functions. Complexity: O(fields of the table) per argument.
"""

from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint32_t
from libc.stdio cimport snprintf

from fairsched.core.amqp.constants cimport PRECONDITION_FAILED
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_clear, bytes_init, bytes_size, text_is, text_of
from fairsched.core.amqp.tables cimport (
    Field, TableWalk, field_bool, field_integer, field_text, field_type, field_value_describe, tables_get, tables_next,
    tables_walk,
)
from fairsched.core.broker.errors cimport (
    Refusal, refusal_number, refusal_resource, refusal_say, refusal_text, refuse, same_argument,
)
from fairsched.core.broker.state cimport (
    Arguments, BrokerQueue, DROP_HEAD, FAIR_WEIGHT_MAX, REJECT_PUBLISH, REJECT_PUBLISH_DLX,
)
from fairsched.core.queue.order.order cimport (
    KIND_FAIR, KIND_LAST_VALUE, KIND_PRIORITY, KIND_SORTED, KIND_STANDARD,
)

cdef enum:
    PRIORITIES_MAX = 255
    PRIORITIES_DEFAULT = 9

cdef enum: TIMEOUT_MAX = 4294967295  # milliseconds

cdef enum: TIME_MAX = 315360000000  # ten years in milliseconds

cdef struct Reading:
    Text table
    Text queue
    Text vhost
    Refusal* refusal

cdef inline bint argument_refuse(Reading* r, const char* name, const char* why) noexcept nogil:
    """Refuse an argument."""
    refuse(r.refusal, PRECONDITION_FAILED, "invalid arg '")
    refusal_say(r.refusal, name)
    refusal_say(r.refusal, "' for ")
    refusal_resource(r.refusal, False, r.queue, r.vhost)
    refusal_say(r.refusal, ": ")
    refusal_say(r.refusal, why)
    return False

cdef inline bint argument_refuse_value(Reading* r, const char* name, const char* why, int64_t value) noexcept nogil:
    """… for its value; `why` is a pattern with %lld."""
    cdef char reason[128]
    snprintf(reason, sizeof(reason), why, <long long> value)
    return argument_refuse(r, name, reason)

cdef inline bint argument_refuse_type(Reading* r, const char* name, const Field* f) noexcept nogil:
    cdef char reason[128]
    snprintf(reason, sizeof(reason), b"{unacceptable_type,%s}", field_type(f))
    return argument_refuse(r, name, reason)

cdef inline bint argument_refuse_not_integer(Reading* r, const char* name, const Field* f) noexcept nogil:
    cdef char reason[128]
    snprintf(reason, sizeof(reason), b"\"expected integer, got %s\"", field_type(f))
    return argument_refuse(r, name, reason)

cdef inline bint argument_refuse_word(Reading* r, const char* name, const char* what, Text word) noexcept nogil:
    """… for a word that is none of those it may be."""
    argument_refuse(r, name, b"\"unsupported ")
    refusal_say(r.refusal, what)
    refusal_say(r.refusal, b" '")
    refusal_text(r.refusal, word)
    refusal_say(r.refusal, b"'\"")
    return False

cdef inline bint argument_find(Reading* r, const char* name, Field* f) noexcept nogil:
    return tables_get(r.table, text_of(name), f)

cdef inline bint argument_integer(Reading* r, const char* name, bint* there, int64_t* value) noexcept nogil:
    cdef Field f
    there[0] = argument_find(r, name, &f)
    return not there[0] or field_integer(&f, value) or argument_refuse_not_integer(r, name, &f)

cdef inline bint argument_number(
    Reading* r, const char* name, int64_t least, int64_t most, int64_t* value
) noexcept nogil:
    """Read a number that may not be there."""
    cdef bint there
    if not argument_integer(r, name, &there, value):
        return False
    if not there:
        return True
    if value[0] < 0:
        return argument_refuse_value(r, name, b"{value_negative,%lld}", value[0])
    if value[0] < least:
        return argument_refuse_value(r, name, b"{value_zero,%lld}", value[0])
    if value[0] > most:
        return argument_refuse_value(r, name, b"{max_value_exceeded,%lld}", value[0])
    return True

cdef inline bint argument_time(Reading* r, const char* name, int64_t least, int64_t* milliseconds) noexcept nogil:
    if not argument_number(r, name, least, INT64_MAX, milliseconds):
        return False
    if milliseconds[0] > TIME_MAX:
        return argument_refuse_value(r, name, b"{value_too_large,%lld}", milliseconds[0])
    return True

cdef inline bint argument_text(Reading* r, const char* name, bint* there, Text* value) noexcept nogil:
    cdef Field f
    value[0] = Text(NULL, 0)
    there[0] = argument_find(r, name, &f)
    return not there[0] or field_text(&f, value) or argument_refuse_type(r, name, &f)

cdef inline bint argument_overflow(Reading* r, Arguments* a) noexcept nogil:
    cdef Text value
    cdef bint there
    a.overflow = DROP_HEAD
    if not argument_text(r, b"x-overflow", &there, &value):
        return False
    if not there or text_is(value, b"drop-head"):
        return True
    if text_is(value, b"reject-publish"):
        a.overflow = REJECT_PUBLISH
    elif text_is(value, b"reject-publish-dlx"):
        a.overflow = REJECT_PUBLISH_DLX
    else:
        return argument_refuse(r, b"x-overflow", b"invalid_overflow")
    return True

cdef inline bint argument_kind(Reading* r, Arguments* a) noexcept nogil:
    """The order of service."""
    cdef Text value
    cdef Field f
    cdef bint there, fair, named
    a.kind = KIND_STANDARD if a.max_priority < 0 else KIND_PRIORITY
    if not argument_text(r, b"x-queue-kind", &there, &value) or not argument_text(
        r, b"x-queue-key", &named, &a.key
    ) or not argument_text(r, b"x-fair-key", &fair, &a.fair_key):
        return False
    if there:
        if text_is(value, b"priority"):
            a.kind = KIND_PRIORITY
            a.max_priority = a.max_priority if a.max_priority >= 0 else PRIORITIES_DEFAULT
        elif a.max_priority >= 0:
            return argument_refuse(r, b"x-queue-kind", b"priorities_of_another_kind")
        elif text_is(value, b"sorted"):
            a.kind = KIND_SORTED
        elif text_is(value, b"last-value"):
            a.kind = KIND_LAST_VALUE
        elif not text_is(value, b"standard"):
            return argument_refuse(r, b"x-queue-kind", b"invalid_queue_kind")
    if (a.kind == <uint32_t> KIND_SORTED or a.kind == <uint32_t> KIND_LAST_VALUE) != named:
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

cdef inline bint argument_type(Reading* r) noexcept nogil:
    cdef Text value
    cdef bint there
    if not argument_text(r, b"x-queue-type", &there, &value):
        return False
    if there and not text_is(value, b"classic") and not text_is(value, b"quorum"):
        return argument_refuse_word(r, b"x-queue-type", b"queue type", value)
    return True

cdef inline bint argument_exchange(Reading* r, Arguments* a) noexcept nogil:
    """Read the exchange for dead letters."""
    cdef const char* name = b"x-dead-letter-exchange"
    cdef Field f
    a.dlx = Text(NULL, 0)
    a.has_dlx = argument_find(r, name, &f)
    if not a.has_dlx or field_text(&f, &a.dlx):
        return True
    refuse(r.refusal, PRECONDITION_FAILED, b"invalid type '")
    refusal_say(r.refusal, field_type(&f))
    refusal_say(r.refusal, b"' for arg '")
    refusal_say(r.refusal, name)
    refusal_say(r.refusal, b"' in ")
    refusal_resource(r.refusal, False, r.queue, r.vhost)
    return False

cdef inline bint argument_letter_key(Reading* r, Arguments* a) noexcept nogil:
    """Read the routing key of dead letters."""
    cdef const char* name = b"x-dead-letter-routing-key"
    return argument_text(r, name, &a.has_dlk, &a.dlk) and (
        a.has_dlx or not a.has_dlk or argument_refuse(r, name, b"routing_key_but_no_dlx_defined")
    )

cdef inline bint arguments_read(Text table, Text queue, Text vhost, Arguments* a, Refusal* refusal) noexcept nogil:
    """Read and check the arguments of queue.declare, in RabbitMQ's order; False: refused."""
    cdef Reading r
    cdef Field f
    r.table = table
    r.queue = queue
    r.vhost = vhost
    r.refusal = refusal
    a.max_length = a.max_bytes = a.message_ttl = a.expires = a.max_priority = a.delivery_limit = -1
    a.consumer_timeout = -1
    a.single_active = a.has_dlx = a.has_dlk = False
    a.dlx = a.dlk = a.key = a.fair_key = a.weights = Text(NULL, 0)
    if argument_find(&r, b"x-single-active-consumer", &f):
        field_bool(&f, &a.single_active)  # if it is none, arguments_suit refuses it, as the last one
    return (
        argument_exchange(&r, a) and argument_type(&r)
        and argument_time(&r, b"x-expires", 1, &a.expires)
        and argument_time(&r, b"x-message-ttl", 0, &a.message_ttl)
        and argument_letter_key(&r, a)
        and argument_number(&r, b"x-max-length", 0, INT64_MAX, &a.max_length)
        and argument_number(&r, b"x-max-length-bytes", 0, INT64_MAX, &a.max_bytes)
        and argument_number(&r, b"x-max-priority", 0, PRIORITIES_MAX, &a.max_priority)
        and argument_number(&r, b"x-delivery-limit", 0, TIMEOUT_MAX, &a.delivery_limit)
        and argument_number(&r, b"x-consumer-timeout", 1, TIMEOUT_MAX, &a.consumer_timeout)
        and argument_overflow(&r, a) and argument_kind(&r, a)
    )

cdef inline bint argument_mode(Reading* r) noexcept nogil:
    cdef Text value
    cdef bint there
    if not argument_text(r, b"x-queue-mode", &there, &value):
        return False
    if there and not text_is(value, b"default") and not text_is(value, b"lazy"):
        return argument_refuse_word(r, b"x-queue-mode", b"queue mode", value)
    return True

cdef inline bint argument_single_active(Reading* r) noexcept nogil:
    cdef const char* name = b"x-single-active-consumer"
    cdef Field f
    cdef bint flag
    return not argument_find(r, name, &f) or field_bool(&f, &flag) or argument_refuse_type(r, name, &f)

cdef inline bint argument_version(Reading* r) noexcept nogil:
    cdef int64_t version = 1
    if not argument_number(r, b"x-queue-version", 0, INT64_MAX, &version):
        return False
    if version != 1 and version != 2:
        return argument_refuse_value(
            r, b"x-queue-version", b"\"unsupported queue version '%lld'\"", version
        )
    return True

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

cdef inline bint argument_weights(Reading* r) noexcept nogil:
    cdef Field weights, f
    cdef TableWalk w
    cdef Text key
    cdef int64_t weight
    if not argument_find(r, b"x-fair-weights", &weights):
        return True
    w = tables_walk(weights.value)
    while tables_next(&w, &key, &f):
        if not field_integer(&f, &weight) or not 1 <= weight <= FAIR_WEIGHT_MAX:
            return argument_refuse_weight(r, key, &f)
    return True

cdef inline bint type_quorum(Text table) noexcept nogil:
    """Whether the arguments of a queue, which were read, say that it is a quorum queue."""
    cdef Field f
    return tables_get(table, text_of(b"x-queue-type"), &f) and text_is(f.value, b"quorum")

cdef inline bint argument_foreign(Reading* r, bint quorum, const char** names, int count) noexcept nogil:
    """Refuse arguments that queues of this type do not have."""
    cdef Field f
    cdef int i
    for i in range(count):
        if argument_find(r, names[i], &f):
            refuse(r.refusal, PRECONDITION_FAILED, b"invalid arg '")
            refusal_say(r.refusal, names[i])
            refusal_say(r.refusal, b"' for ")
            refusal_resource(r.refusal, False, r.queue, r.vhost)
            refusal_say(r.refusal, b" of queue type rabbit_")
            refusal_say(r.refusal, b"quorum_queue" if quorum else b"classic_queue")
            return False
    return True

cdef inline bint arguments_suit(Text table, Text queue, Text vhost, Refusal* refusal) noexcept nogil:
    """Check what the queue works without, weights and what RabbitMQ alone needs; False: refused.

    What a journal holds is not asked for this: it stays readable.
    """
    cdef Reading r = Reading(table, queue, vhost, refusal)
    cdef const char* quorum[7]
    cdef const char* classic[7]
    quorum[0:7] = [  # that a quorum queue does not have, in the order of their names, as RabbitMQ looks
        b"x-initial-cluster-size", b"x-max-age", b"x-max-priority", b"x-queue-master-locator", b"x-queue-mode",
        b"x-queue-version", b"x-stream-max-segment-size-bytes",
    ]
    classic[0:7] = [
        b"x-dead-letter-strategy", b"x-initial-cluster-size", b"x-max-age", b"x-max-in-memory-bytes",
        b"x-max-in-memory-length", b"x-quorum-initial-group-size", b"x-stream-max-segment-size-bytes",
    ]
    if not argument_weights(&r):
        return False
    if type_quorum(table):
        return argument_single_active(&r) and argument_foreign(&r, True, quorum, 7)
    return (
        argument_mode(&r) and argument_version(&r) and argument_single_active(&r)
        and argument_foreign(&r, False, classic, 7)
    )

cdef inline bint consume_arguments_read(
    Text table, const BrokerQueue* b, int32_t* priority, Refusal* refusal
) noexcept nogil:
    """Read and check the arguments of basic.consume; False: refused."""
    cdef Reading r = Reading(table, b.name, b.host.name, refusal)
    cdef const char* failover = b"x-cancel-on-ha-failover"
    cdef const char* offset = b"x-stream-offset"
    cdef bint quorum = type_quorum(b.table), there, flag
    cdef int64_t value = 0
    cdef Field f
    if not argument_integer(&r, b"x-priority", &there, &value):
        return False
    priority[0] = <int32_t> min(max(value, <int64_t> INT32_MIN), <int64_t> INT32_MAX)
    if not quorum and argument_find(&r, failover, &f) and not field_bool(&f, &flag):
        return argument_refuse_type(&r, failover, &f)
    return argument_foreign(&r, quorum, &offset, 1) and (not quorum or argument_foreign(&r, True, &failover, 1))

cdef inline bint type_agrees(Text declared, Text received) noexcept nogil:
    """Return whether one of two declarations says what the other leaves out: that the queue is a classic one."""
    cdef Field old, new
    cdef Text name = text_of(b"x-queue-type")
    cdef bint before = tables_get(declared, name, &old), now = tables_get(received, name, &new)
    if before:
        new = old
    return before != now and new.kind == b'S' and text_is(new.value, b"classic")

cdef inline bint arguments_agree(Text declared, Text received, Text queue, Text vhost, Refusal* refusal) noexcept nogil:
    """Whether a queue that is there was declared with these arguments; False: refused."""
    cdef const char* names[19]
    cdef const char* kind = b"x-queue-type"
    cdef int i
    names[0:19] = [
        b"x-expires", b"x-message-ttl", b"x-dead-letter-exchange", b"x-dead-letter-routing-key", b"x-max-length",
        b"x-max-length-bytes", b"x-max-priority", b"x-overflow", b"x-queue-mode", b"x-queue-version",
        b"x-queue-master-locator", kind, b"x-single-active-consumer", b"x-delivery-limit",
        b"x-consumer-timeout", b"x-queue-kind", b"x-queue-key", b"x-fair-key", b"x-fair-weights",
    ]
    for i in range(19):
        if names[i] == kind and type_agrees(declared, received):
            continue
        if not same_argument(refusal, False, queue, vhost, names[i], declared, received):
            return False
    return True
