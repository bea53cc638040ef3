"""Direct reply-to: a client consumes from amq.rabbitmq.reply-to, and receives the replies to its requests.

The consumer gets a queue of its own with an unguessable name, which is deleted with it; in messages that the channel
publishes, that name replaces the reply-to.

Source: RabbitMQ, "Direct Reply-to", and its refusals. Thread safety: the connection's thread.
Complexity: O(octets of the content header) for a request.
"""


from libc.stdint cimport int64_t, uint8_t

from fairsched.core.amqp.constants cimport PRECONDITION_FAILED
from fairsched.core.amqp.contents cimport PROPERTY_REPLY_TO, Properties, contents_has, contents_text
from fairsched.core.amqp.methods cimport BasicConsume, QueueDeclare
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_append, bytes_init, bytes_short, text_copy, text_is
from fairsched.core.broker.errors cimport Refusal, refuse, refuse_memory
from fairsched.core.broker.generated cimport name_generate
from fairsched.core.broker.methods.queue cimport queue_obtain
from fairsched.core.broker.state cimport BrokerQueue, Channel

cdef inline bint replies_named(Text name) noexcept nogil:
    return text_is(name, b"amq.rabbitmq.reply-to")

cdef inline BrokerQueue* replies_open(Channel* ch, BasicConsume* m, Refusal* refusal) noexcept nogil:
    """Return the queue of a channel's replies, referenced; NULL: refused.

    Clears arguments and `exclusive`, which RabbitMQ ignores: a refusal would leave this queue without a consumer.
    """
    cdef QueueDeclare declare
    cdef uint8_t generated[64]
    if not m.no_ack:
        refuse(refusal, PRECONDITION_FAILED, b"reply consumer cannot acknowledge")
        return NULL
    if ch.replies.length:
        refuse(refusal, PRECONDITION_FAILED, b"reply consumer already set")
        return NULL
    m.exclusive = False
    m.arguments = Text(NULL, 0)
    declare.queue = name_generate(b"amq.rabbitmq.reply-to.", generated)
    declare.passive = declare.durable = declare.exclusive = declare.no_wait = False
    declare.auto_delete = True
    declare.arguments = Text(NULL, 0)
    ch.replies = text_copy(declare.queue)
    if ch.replies.data == NULL:
        refuse_memory(refusal)
        return NULL
    return queue_obtain(ch.connection, &declare, refusal)

cdef inline bint replies_address(
    Channel* ch, const uint8_t* header, int64_t size, const Properties* properties, Bytes* out, Refusal* refusal
) noexcept nogil:
    """Write the payload of a content header with the channel's own reply-to.

    `out`, which the caller clears, stays empty if the message does not ask for that. False: refused.
    """
    cdef int64_t begin
    bytes_init(out)
    if not contents_has(properties, PROPERTY_REPLY_TO) or not replies_named(
        contents_text(header, properties, PROPERTY_REPLY_TO)
    ):
        return True
    if ch.replies.length == 0:
        return refuse(refusal, PRECONDITION_FAILED, b"fast reply consumer does not exist")
    begin = properties.begin[PROPERTY_REPLY_TO] - 1
    bytes_append(out, header, begin)
    bytes_short(out, ch.replies)
    bytes_append(out, header + properties.end[PROPERTY_REPLY_TO], size - properties.end[PROPERTY_REPLY_TO])
    return True if not out.failed else refuse_memory(refusal)
