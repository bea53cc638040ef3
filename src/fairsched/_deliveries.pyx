"""Deliveries out of the bytes of a connection: cut apart, undecoded, a whole read at once."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from fairsched.core.frames cimport FOUND_OTHER, FOUND_WHOLE, Delivery, Found, frames_find, frames_number


cdef inline bytes part(const uint8_t* start, int64_t begin, int64_t end):
    return PyBytes_FromStringAndSize(<const char*> start + begin, end - begin)


def take_deliveries(
    bytes buffer not None, int64_t start, int channel, int64_t longest, int64_t room, int64_t space,
    list found not None, now,
):
    """take_deliveries(buffer, start, channel, longest, room, space, found, now)
    --

    Cut the deliveries of one channel out of a buffer.

    Parameters
    ----------
    buffer : bytes
        What a connection has received.
    start : int
        Where to begin, 0 to ``len(buffer)``.
    channel : int
        Number of the channel.
    longest : int
        Bytes of the longest body that comes in one frame.
    room, space : int
        Deliveries, and bytes of bodies, that are wanted; the last one may exceed `space`.
    found : list
        Gets a tuple for each: method, content header and body (each bytes, the first two undecoded), and `now`.
    now : object
        When the buffer was received.

    Returns
    -------
    position : int
        Where the deliveries end.
    other : bool
        Whether what follows is, or may be, something else; else it is the beginning of a delivery, or not wanted.
    room, space : int
        What is still wanted.

    Notes
    -----
    Complexity O(deliveries). Thread safety: for one thread at a time with the same list.

    Source: AMQP 0-9-1, sections 4.2.3 and 4.2.6.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(buffer)
    cdef int64_t size = PyBytes_GET_SIZE(buffer), position = start
    cdef Delivery d
    cdef Found what = FOUND_WHOLE
    while room > 0 and space > 0:
        what = frames_find(at, size, position, longest, &d)
        if what != FOUND_OTHER and d.channel != <unsigned int> channel:
            what = FOUND_OTHER
        if what != FOUND_WHOLE:
            break
        found.append(
            (part(at, d.method, d.method_end), part(at, d.header, d.header_end), part(at, d.body, d.body_end), now)
        )
        position = d.end
        room -= 1
        space -= d.body_end - d.body
    return position, what == FOUND_OTHER, room, space


def give_deliveries(bytes buffer not None, int64_t start, int64_t longest, dict sinks not None):
    """give_deliveries(buffer, start, longest, sinks)
    --

    Call the channels' sinks with the deliveries of a buffer.

    Parameters
    ----------
    buffer : bytes
        What a connection has received.
    start : int
        Where to begin, 0 to ``len(buffer)``.
    longest : int
        Bytes of the longest body that comes in one frame.
    sinks : dict of int to callable
        By channel; called with delivery tag, redelivered (0 or 1), method, content header (both undecoded) and body.
        May change meanwhile.

    Returns
    -------
    position : int
        Where the deliveries end.
    other : bool
        Whether what follows is, or may be, something else than the beginning of a delivery for a sink.
    frames : int
        Frames that the deliveries were made of.

    Raises
    ------
    Exception
        Whatever a sink raises; the deliveries from that one on are then lost to the caller.

    Notes
    -----
    Complexity O(deliveries). Thread safety: that of the sinks.

    Source: AMQP 0-9-1, sections 4.2.3, 4.2.6 and 1.8.3.13.
    """
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(buffer)
    cdef int64_t size = PyBytes_GET_SIZE(buffer), position = start, frames = 0
    cdef Delivery d
    cdef Found what
    while True:
        what = frames_find(at, size, position, longest, &d)
        sink = sinks.get(d.channel) if what != FOUND_OTHER else None
        if sink is None:
            what = FOUND_OTHER
        if what != FOUND_WHOLE:
            return position, what == FOUND_OTHER, frames
        sink(
            frames_number(at + d.tag, 8), at[d.tag + 8] & 1, part(at, d.method, d.method_end),
            part(at, d.header, d.header_end), part(at, d.body, d.body_end),
        )
        frames += 3 if d.body != d.body_end else 2
        position = d.end
