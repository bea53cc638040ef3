"""Settling many messages at once, and messages whose handlers raised.

Once a handler has raised, only the consumer's decision settles its message (`note_failures`, then `settle_failed`); or,
while the function `on_error` is asked, the methods of the message again (`ask_about`, `decide_about`).
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE

from fairsched.core.amqp.ackledger cimport VERDICT_ACK as ACK
from fairsched.delivery._counters cimport COUNT_STALE
from fairsched.delivery._delivery cimport ASKED, DECIDED, NOT_FAILED, ChannelDeliveries, Message, Settlements

cimport cython


def note_failures(list messages not None):
    """note_failures(messages)
    --

    Note that the handler of messages raised: until `settle_failed` or `ask_about` only that has an effect on them.

    Parameters
    ----------
    messages : list of Message

    Returns
    -------
    list of Message
        Those that were neither settled nor failed before.

    Notes
    -----
    O(messages). Safe from any thread: of several calls, one gets a message.
    """
    cdef list found = []
    cdef Message message
    for message in messages[:]:
        if not message.settled and message.note_failure():
            found.append(message)
    return found


def settle_failed(Message message not None, int verdict):
    """settle_failed(message, verdict)
    --

    Settle a message whose handler raised, as was decided; return whether this call settled it.
    """
    return message.carry_out(verdict)


def ask_about(Message message not None):
    """ask_about(message)
    --

    Let a message whose handler raised be settled and deferred by its methods, until `decide_about`.
    """
    with cython.critical_section(message):
        message.failure = ASKED


def decide_about(Message message not None):
    """decide_about(message)
    --

    Return whether a message that was asked about is still neither settled nor deferred; then only `settle_failed` can
    settle it.
    """
    cdef bint left
    with cython.critical_section(message):
        left = not (message.settled or message.deferred)
        if left:
            message.failure = DECIDED
    return left


def settle_all(list messages not None, int verdict):
    """settle_all(messages, verdict)
    --

    Settle the unsettled messages of a list.

    Parameters
    ----------
    messages : list of Message
    verdict : int
        `AckLedger.ACK`, `REQUEUE`, `REJECT` or `FAIL`.

    Returns
    -------
    int
        Number of messages that this call settled.

    Raises
    ------
    RuntimeError
        This is a copy in a child process.

    Notes
    -----
    Complexity: O(messages), without a Python call for each. Thread safety: any thread; each message is settled once,
    even if other threads settle it too.
    """
    return settle_some(messages, verdict, BY_USER)


def finish_all(list messages not None):
    """finish_all(messages)
    --

    Ack messages as `Message.finish` does: unless they were settled or deferred, or failed; as `settle_all`.
    """
    return settle_some(messages, ACK, BY_RETURN)


def settle_all_failed(list messages not None, int verdict):
    """settle_all_failed(messages, verdict)
    --

    Settle messages whose handlers raised, except those that a function was asked about; as `settle_all`.
    """
    return settle_some(messages, verdict, BY_FAILURE)


cdef Py_ssize_t settle_some(list messages, int verdict, int reason) except -1:
    cdef list chosen = messages[:]  # a channel of another class may change the caller's
    cdef Settlements due = None
    cdef Message message
    cdef ChannelDeliveries channel
    cdef Py_ssize_t count = 0, i = 0
    cdef bint is_due = False, placed = False
    while i < PyList_GET_SIZE(chosen):
        message = <Message?> <object> PyList_GET_ITEM(chosen, i)
        if isinstance(message.origin, ChannelDeliveries):
            channel = <ChannelDeliveries> message.origin
            count += settle_run(channel, chosen, &i, verdict, reason, &is_due, &placed)
            if is_due:
                due = channel.settlements
                is_due = False
            continue
        i += 1
        if takes(message, reason):
            count += message.origin.settle(message.delivery_tag, verdict)
            placed |= message.place is not None
    if due is not None and not due.flush_requested:
        due.send_soon()
    if placed:
        for message in chosen:
            if message.settled:
                message.leave_place()
    return count


cdef inline bint takes(Message message, int reason) noexcept:
    """Return whether the caller is to settle a message for that reason."""
    if reason == BY_RETURN and (message.deferred or message.failure != NOT_FAILED):
        return False
    if reason == BY_FAILURE and message.failure == ASKED:
        return False
    return message.take(reason == BY_FAILURE)


cdef Py_ssize_t settle_run(
    ChannelDeliveries channel, list messages, Py_ssize_t* at, int verdict, int reason, bint* is_due, bint* placed
) except -1:
    """Settle messages that follow one another and came on one channel.

    No Python code runs in here, unless it is a stream of which pika has decoded the headers.
    """
    cdef Message message
    cdef Py_ssize_t done = 0, stale = 0
    cdef bint stands = channel.stands()
    try:
        while at[0] < PyList_GET_SIZE(messages):
            message = <Message?> <object> PyList_GET_ITEM(messages, at[0])
            if message.origin is not channel:
                break
            at[0] += 1
            if not takes(message, reason):
                continue
            placed[0] |= message.place is not None
            if stands:
                done += channel.note_tag(message.delivery_tag, message.sent_as(channel, verdict))
            else:
                stale += 1
    finally:
        if stale:
            channel.settlements.counters.count(COUNT_STALE, stale)
        if done:
            is_due[0] = channel.noted(done, verdict)
    return done
