"""The properties of copies that are those of the delivered messages, byte for byte."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr

from fairsched.core.amqp.constants cimport CLASS_BASIC
from fairsched.core.amqp.contents cimport (
    CONTENT_HEAD, PROPERTY_HEADERS, PROPERTY_USER_ID, contents_body_size, contents_flag,
)
from fairsched.core.amqp.frames cimport frames_number
from fairsched.delivery._delivery cimport Message, body_octets, header_octets


def unchanged_properties(list messages not None, bint with_user_ids):
    """unchanged_properties(messages, with_user_ids)
    --

    Return the encoded properties of copies that are those of their messages.

    Parameters
    ----------
    messages : list of Message
        The messages.
    with_user_ids : bool
        Whether a copy may have a user id of any user.

    Returns
    -------
    list of bytes or None
        For each message its properties, without the beginning of a content header. None: `MovedProperties.of` has to
        say what the copy gets.

    Notes
    -----
    Complexity O(length of the properties). Thread safety: any thread, except for one that sets a message's body.
    """
    cdef list found = []
    cdef Message message
    cdef const uint8_t* at
    cdef int64_t size, body_size
    for message in list(messages):
        size = body_size = 0
        at = header_octets(message, &size)
        if at == NULL or body_octets(message, &body_size) == NULL:
            found.append(None)
        elif not is_unchanged(at, size, body_size, with_user_ids):
            found.append(None)
        else:
            found.append(PyBytes_FromStringAndSize(<const char*> at + CONTENT_HEAD, size - CONTENT_HEAD))
    return found


cdef bint is_unchanged(const uint8_t* at, int64_t size, int64_t body_size, bint with_user_ids) noexcept nogil:
    """Whether a content header is one of this body, with nothing in it that a copy cannot have."""
    cdef uint64_t flags
    if size < CONTENT_HEAD + 2 or frames_number(at, 4) != <uint64_t> CLASS_BASIC << 16:
        return False
    if contents_body_size(at) != body_size:
        return False
    flags = frames_number(at + CONTENT_HEAD, 2)
    if flags & contents_flag(PROPERTY_USER_ID) and not with_user_ids:
        return False
    return not (flags & contents_flag(PROPERTY_HEADERS) and may_name_copies(at + CONTENT_HEAD, size - CONTENT_HEAD))


cdef bint may_name_copies(const uint8_t* at, int64_t size) noexcept nogil:
    """Whether the octets of a header's name ``CC`` or ``BCC``, with its length, are anywhere in the properties."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* c = at + 2  # behind the flags
    while True:
        c = <const uint8_t*> memchr(c, b'C', end - c) if c < end else NULL
        if c == NULL or c + 1 >= end:
            return False
        if c[1] == b'C' and ((c - 1)[0] == 2 or ((c - 1)[0] == b'B' and (c - 2)[0] == 3)):
            return True
        c += 1
