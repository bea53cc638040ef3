"""Where messages go that leave a pull queue unacknowledged, and what the alternate does not take.

Whoever has a message leave, by a put, a pull, a release or a look at the clock, is done with it, or never had it: so
what the alternate raises is not for him. It is logged, and the message is kept.

Exclusion. Each step is one operation of a deque; nothing is held while the alternate runs. A message is in the hands of
the one thread that calls the alternate with it, and kept whatever that raises.
"""

cimport cython

from fairsched.core.message cimport REASON_CLOSED, REASON_DELIVERIES, REASON_EXPIRED

import logging
from collections import deque

#: What an alternate is told; what left for another reason was to be dropped.
_REASONS = {REASON_EXPIRED: "expired", REASON_DELIVERIES: "delivery_limit", REASON_CLOSED: "closed"}

logger = logging.getLogger("fairsched.queue")


@cython.final
cdef class Alternate:
    """What takes messages: something with `put`, or a callable of (item, reason); None: nothing does."""

    def __cinit__(self, sink):
        if sink is not None and not callable(sink) and not callable(getattr(sink, "put", None)):
            raise ValueError(f"alternate must be a queue with put, or callable, got {sink!r}")
        self.sink = sink
        self.undelivered = deque()

    cdef int divert(self, list removed) except -1:
        """Hand over those of (item, reason) that are its business, in their order."""
        cdef list messages
        cdef Py_ssize_t i = 0
        if self.sink is None:
            return 0
        messages = [(item, _REASONS[reason]) for item, reason in removed if reason in _REASONS]
        try:
            while i < len(messages):
                i += 1
                self.deliver(messages[i - 1])
        finally:
            self.undelivered.extend(messages[i:])  # what an interrupt has left
        return 0

    cdef int deliver(self, tuple message) except -1:
        """Hand one over; it is kept unless that has taken it, whatever it raises."""
        item, reason = message
        try:
            if hasattr(self.sink, "put"):
                self.sink.put(item)
            else:
                self.sink(item, reason)
            self.refused = False
        except BaseException as error:
            self.undelivered.append(message)
            if not isinstance(error, Exception):
                raise
            if not self.refused:
                self.refused = True
                logger.exception(
                    "the alternate of a queue failed: a message (%s) is kept in undelivered, as others will be, and "
                    "that is not logged again until it takes one", reason,
                )
        return 0

    cdef int deliver_again(self, Py_ssize_t count) except -1:
        """Hand over that many of those kept, oldest first, each once."""
        while count > 0:
            try:
                message = self.undelivered.popleft()
            except IndexError:  # somebody else took it
                break
            self.deliver(message)
            count -= 1
        return 0
