"""The delivery path of a consumer, as other modules see it; see _delivery.pyx."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fairsched.amqp._ackledger cimport AckLedger
from fairsched.core.amqp.frames cimport Found
from fairsched.delivery._ackpolicy cimport AckPolicy
from fairsched.delivery._counters cimport Counters, Durations
from fairsched.scheduling._fairqueue cimport FairQueue, Place

cdef enum:  # Message.failure: whether its handler raised, and which settlements have an effect since then
    NOT_FAILED = 0  # all
    DECIDED = 1     # those of the consumer alone: how it is settled is decided, or is being decided
    ASKED = 2       # all, but no end of a block or handler: the function `on_error` settles or defers it


cdef class Settlements:
    cdef readonly Counters counters
    cdef readonly AckPolicy policy
    cdef public bint flush_requested
    cdef readonly LentConnection lent
    cdef object request
    cdef object forked_error
    cdef readonly int64_t window
    cdef list unsent
    cdef list busy           # channels to which something was delivered since they last had nothing

    cdef int send_soon(self) except -1
    cdef list taken_unsent(self)
    cdef int note_unsent(self, ChannelDeliveries channel) except -1


cdef class ChannelDeliveries:
    cdef readonly object queue
    cdef readonly AckLedger ledger
    cdef public bint alive
    cdef public bint filled
    cdef public bint arrived
    cdef public bint keeps_messages
    cdef public bint single_active
    cdef public bint leaving
    cdef readonly int64_t window
    cdef public unsigned int number
    cdef public int64_t room
    cdef readonly int64_t settlements_sent
    cdef Settlements settlements
    cdef Intake intake
    cdef Durations durations  # of the queue; None: not looked up yet
    cdef int64_t nearly_full
    cdef uint64_t due
    cdef double sent
    cdef bint unsent
    cdef bint listed         # whether it is in the list of the `Settlements`

    cdef int book(self, uint64_t tag, uint64_t size) except -1
    cdef int look(self, uint64_t tag) except -1
    cdef int64_t held(self) noexcept
    cdef bytes taken_frames(self)
    cdef bint settle_one(self, uint64_t tag, int verdict, int sent) except -1
    cdef bint note(self, uint64_t tag, int verdict, int sent, bint* is_due) except -1
    cdef bint stands(self) except -1
    cdef bint note_tag(self, uint64_t tag, int sent) except -1
    cdef bint noted(self, int64_t count, int verdict) except -1
    cdef bint leave_one(self, uint64_t tag) except -1


cdef class Message:
    cdef public uint64_t delivery_tag
    cdef public bint redelivered
    cdef public bint settled
    cdef public bint deferred
    cdef int failure         # whether its handler raised, and what settles it since then
    cdef public double arrived
    cdef public object slot
    cdef public object subkey
    cdef public int64_t cost
    cdef object origin
    cdef object content      # the body; None: it is among the octets of the header, unless `body_at` is 0
    cdef object method       # pika's, or bytes with its payload
    cdef int64_t method_at   # where in these it is
    cdef int64_t method_end
    cdef object header       # pika's properties, or bytes with the payload of the content header
    cdef int64_t header_at   # where in these that is, and the body
    cdef int64_t header_end
    cdef int64_t body_at
    cdef int64_t body_end
    cdef object decoded
    cdef tuple value         # of the body, as it was decoded; None: not yet
    cdef Place place         # that it takes of what a limit allows, until it is settled; None: not counted

    cdef int finish_with(self, object result) except -1
    cdef bint note_failure(self) noexcept
    cdef bint take(self, bint decided) noexcept
    cdef bint settle(self, int verdict) except -1
    cdef bint carry_out(self, int verdict) except -1
    cdef bint send_verdict(self, int verdict) except -1
    cdef bint return_unhandled(self) except -1
    cdef int leave_place(self) except -1
    cdef bint has_offset(self) noexcept
    cdef int sent_as(self, ChannelDeliveries channel, int verdict) noexcept
    cdef bytes header_bytes(self)
    cdef object name_in_method(self, int number)


cdef inline const uint8_t* header_octets(Message message, int64_t* size) noexcept:
    """The payload of a message's content header; NULL: there are pika's properties."""
    if not isinstance(message.header, bytes):
        return NULL
    size[0] = message.header_end - message.header_at
    return <const uint8_t*> PyBytes_AS_STRING(message.header) + message.header_at


cdef inline const uint8_t* body_octets(Message message, int64_t* size) noexcept:
    """The body of a message; NULL: it has one that is not bytes."""
    if message.content is None and message.body_at and isinstance(message.header, bytes):
        size[0] = message.body_end - message.body_at
        return <const uint8_t*> PyBytes_AS_STRING(message.header) + message.body_at
    if not isinstance(message.content, bytes):
        return NULL
    size[0] = PyBytes_GET_SIZE(message.content)
    return <const uint8_t*> PyBytes_AS_STRING(message.content)


cdef class HeaderKey:
    cdef bytes name
    cdef object otherwise

    cdef object shown(self, Message message)


cdef class Intake:
    cdef object worker_queues
    cdef Counters counters
    cdef AckPolicy policy
    cdef object key
    cdef object subkey
    cdef object cost
    cdef object defer
    cdef bint priced
    cdef list messages
    cdef double now
    cdef bint borrowed  # it is not the I/O thread that reads
    cdef PyObject* octets  # the present read, to be compared only
    cdef bint sharing      # its messages refer to it
    cdef list kept         # reads to which messages referred when it was last looked, but those of one message
    cdef int64_t kept_size
    cdef Py_ssize_t looked_at  # which of them was looked at last

    cdef bint shares(self, bytes octets, int64_t own) except -1
    cdef bint keep(self, bytes octets) except -1
    cdef int forget_unused(self) except -1
    cdef int append(self, Message message) except -1
    cdef bint queue_all(self, FairQueue worker_queue) except -1
    cdef list prices(self, list messages)


cdef class LentConnection:
    cdef PyThread_type_lock lock
    cdef FairQueue worker_queue
    cdef Intake intake
    cdef object wake
    cdef readonly object transport
    cdef bint usable            # may be borrowed
    cdef bint readable          # and be read
    cdef bint withdrawn         # never again
    cdef bint borrowed          # another thread than the I/O thread has it
    cdef bint unwatched         # the I/O thread is not woken by what comes
    cdef int sleepers           # threads that wait for what the I/O thread reads
    cdef int epoll
    cdef readonly int fd
    cdef uint32_t events        # that pika waits for
    cdef public double fast     # a reader that looks again within so many seconds reads by itself
    cdef double looked          # when a reader looked last
    cdef double waited          # and had waited
    cdef double emptied         # when a reader read last
    cdef bytes block            # to read into; None: messages have it
    cdef int64_t longest
    # For the I/O thread, when it has the connection again.
    cdef bint left              # there is something for it to do
    cdef bint filled            # what was read has filled a window
    cdef object error
    cdef bytes unsent
    cdef list later             # calls
    cdef int64_t received_size
    cdef int64_t received_frames
    cdef int64_t sent_size

    cdef bint borrow(self) noexcept
    cdef bint tell(self, tuple call) except -1
    cdef int give_back(self) except -1
    cdef int wake_up(self) except -1
    cdef bint send(self, Settlements settlements) except -1
    cdef bint send_all(self, Settlements settlements, list channels) except -1
    cdef bint fetch(self, bint wait) except -1
    cdef bint has(self, int64_t count) except -1
    cdef int wait(self, int64_t brief) except -2
    cdef int read(self) except -2
    cdef int read_borrowed(self) except -2
    cdef bytes read_octets(self, int64_t size)
    cdef int take(self, int64_t size) except -1
    cdef int keep(self, bytes octets, int64_t position, int64_t size, Found what) except -1
    cdef int rest(self) except -1
    cdef int rise(self) except -1
    cdef int watch(self) except -1
    cdef int unwatch(self) except -1
