"""A consumer's credit, in messages, and what it means for its being desired.

The counting is credit.pxd's, without its bytes: sizes may be larger here than it could count with. Every message that
is settled may end a wait: a consumer that has spent its credit is desired again with the first message that comes back
(the batches of credit.pxd are for whole targets).

Thread safety: under the queue's lock. Complexity: O(1).
"""

from libc.stdint cimport int64_t, uint32_t

from fairsched.core.queue.credit cimport (
    CREDIT_DONE, CREDIT_REFUSED, credit_has, credit_init, credit_restore, credit_set_limits, credit_use,
)
from fairsched.core.queue.state cimport WISH_CREDIT, QueueConsumer

cdef inline void consumer_wish(QueueConsumer* c, uint32_t wish, bint wished) noexcept nogil:
    """Change a wish. The caller has the consumer follow it."""
    if wished:
        c.wishes.fetch_or(wish)
    else:
        c.wishes.fetch_and(~wish)

cdef inline bint consumer_paid(QueueConsumer* c) noexcept nogil:
    """Whether pulling takes credit."""
    return c.credit.message_limit != 0

cdef inline void consumer_set_credit(QueueConsumer* c, int64_t messages) noexcept nogil:
    """Let it pull so many messages from now on; negative: any number."""
    if messages < 0:
        credit_set_limits(&c.credit, 0, 0)
    else:  # a limit of 0 would be none
        credit_init(&c.credit, max(c.unsettled + messages, 1), 0)
        c.credit.messages = messages
    consumer_wish(c, WISH_CREDIT, messages != 0)

cdef inline bint consumer_restore(QueueConsumer* c) noexcept nogil:
    """A message that took its credit is settled; whether it has credit again."""
    c.unsettled -= 1
    if not consumer_paid(c):
        return False
    credit_restore(&c.credit, 1, 0)
    if c.wishes.load() & WISH_CREDIT or not credit_has(&c.credit):
        return False
    consumer_wish(c, WISH_CREDIT, True)
    return True

cdef inline bint consumer_pay(QueueConsumer* c) noexcept nogil:
    """Take credit for a message; False: there is not enough."""
    cdef int credit
    if consumer_paid(c):
        credit = credit_use(&c.credit, 0)
        if credit != CREDIT_DONE:
            consumer_wish(c, WISH_CREDIT, False)
        if credit == CREDIT_REFUSED:
            return False
        c.unsettled += 1
    return True
