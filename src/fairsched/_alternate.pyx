"""Where messages go that leave a pull queue unacknowledged, and what the alternate does not take.

Whoever has a message leave, by a put, a pull, a release or a look at the clock, is done with it, or never had it: so
what the alternate raises is not for him. It is logged, and the message is kept.

Exclusion. Each step is one operation of a deque; nothing is held while the alternate runs. A message is in the hands of
the one thread that calls the alternate with it, and kept whatever that raises.
"""

cimport cython
from libc.stdint cimport uint32_t

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

    cdef int divert(self, object item, uint32_t reason, bint keep) except -1:
        """Hand over what left the queue, if that is its business; or only keep it: somebody was interrupted."""
        if self.sink is None or reason not in _REASONS:
            return 0
        message = (item, _REASONS[reason])
        if keep:
            self.undelivered.append(message)
        else:
            self.deliver(message)
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
