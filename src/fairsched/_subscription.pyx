"""A consumer of a pull queue: what it wants, what it pulls, and how it waits for work."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc

from fairsched._hall cimport consumer_destroy
from fairsched._entry cimport Entry, entry_of, put_back
from fairsched._membership cimport subscription_leave
from fairsched._numbers cimport as_count, as_credit
from fairsched._visit cimport (
    Visit, visit_answer, visit_ask_for, visit_end, visit_enter, visit_enter_at, visit_leave, visit_raise,
)
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.queuemembers cimport queue_set_credit, queue_set_wish
from fairsched.core.queuepull cimport PULL_ASK, queue_pull
from fairsched.core.queuequestion cimport Question
from fairsched.core.queuestate cimport WISH_USER, Pulled, Queue, consumer_desired
from fairsched.core.queuetime cimport queue_due

import logging
import queue

from fairsched.errors import ShutDown

logger = logging.getLogger("fairsched.queue")


cdef class Listener:
    cdef void heard(self) noexcept:
        """There is work, or there will be none: look again. Runs no Python code."""


@cython.final
@cython.no_gc_clear
cdef class Subscription:
    """Subscription()
    --

    A consumer of a `PullQueue`, from `PullQueue.subscribe`.

    Who is notified pulls until there is nothing left. One thread at a time pulls; entries may be settled by any.

    Attributes
    ----------
    name : str
    priority : int
    acquires : bool
        False: it browses.

    Notes
    -----
    A subscription stays until it is cancelled, whether or not somebody keeps this object.
    Memory: about 460 bytes in the engine, and this object.
    """

    def __cinit__(self, *args, **kwargs):
        if len(args) != 1 or not isinstance(args[0], PullQueue):  # without a queue, no method would be safe to call
            raise TypeError("subscriptions come from PullQueue.subscribe")
        self.queue = args[0]

    def __dealloc__(self):
        if self.consumer != NULL:  # it has never joined: who has is kept by the queue until the consumer is gone
            consumer_destroy(self.consumer)

    def __init__(self, *args, **kwargs):
        raise TypeError("subscriptions come from PullQueue.subscribe")

    @property
    def interested(self):
        """Whether the queue counts on it: it wants to, has credit, and is among the live consumers. Settable."""
        cdef Visit visit
        cdef bint desired
        visit_enter(&visit, self.queue)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        visit_leave(&visit, self.queue)
        return desired

    @interested.setter
    def interested(self, interested):
        cdef Visit visit
        cdef bint wished = bool(interested)
        visit_enter(&visit, self.queue)
        if wished:
            visit_ask_for(&visit, self.queue, self)
        if self.consumer != NULL:
            queue_set_wish(&visit.call, self.consumer, WISH_USER, wished)
        visit_leave(&visit, self.queue)

    @property
    def credit(self):
        """How many messages it may still pull; None: any number. Set it, and it is so many from now on."""
        cdef Visit visit
        cdef object credit = None
        cdef int64_t left = -1
        visit_enter(&visit, self.queue)
        if self.consumer != NULL and self.consumer.credit.message_limit != 0:
            left = self.consumer.credit.messages
        visit_leave(&visit, self.queue)
        return None if left < 0 else left

    @credit.setter
    def credit(self, credit):
        cdef Visit visit
        cdef int64_t messages = as_credit(credit)
        visit_enter(&visit, self.queue)
        if messages != 0:
            visit_ask_for(&visit, self.queue, self)
        if self.consumer != NULL:
            queue_set_credit(&visit.call, self.consumer, messages)
        visit_leave(&visit, self.queue)

    @property
    def notified_count(self):
        """How often the queue has told it that there is work."""
        return self.news.load()

    def pull(self):
        """pull($self)
        --

        Take the next message, without waiting.

        Returns
        -------
        Entry or None
            None: there is nothing for this subscription, or it is not interested. It is told when there is.

        Notes
        -----
        O(1), besides the order of service; with a filter, O(messages that it refuses), each once. In a fair queue it
        goes past them again with each pull, and, where it refuses some of several slots, once more for each slot.
        """
        return pulled(self)

    def pull_many(self, n):
        """pull_many($self, n)
        --

        Take up to `n` messages, without waiting: as so many calls of `pull`, until one finds nothing.

        Returns
        -------
        list of Entry

        Raises
        ------
        ValueError
            `n` is not an integer of 0 or more.

        Notes
        -----
        Where nobody has a filter, browses, or rejected something, and there are no groups, it is one look at the
        consumers, and one stay under the queue's lock, for all.
        """
        return pulled_many(self, as_count(n))

    def get(self, timeout=None):
        """get($self, timeout=None)
        --

        Take the next message, and wait for it if there is none.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; None: as long as it takes.

        Returns
        -------
        Entry

        Raises
        ------
        queue.Empty
            It took too long.
        ShutDown
            The queue is closed, and has nothing left for this subscription; or that is cancelled.
        TypeError, ValueError
            The time-out is no number, or negative.

        Notes
        -----
        The GIL is given up while the thread waits. The main thread notices signals meanwhile. A message that is held is
        taken when it is due; in a closed queue, too, it is waited for.
        """
        cdef int64_t news
        cdef bint waited, closed
        self.open_room()
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            closed = self.queue.hall.queue.closed.load() != 0  # before the look: nothing is put after that
            entry = self.next_entry()
            if entry is not None:
                return entry
            if self.consumer == NULL:
                raise ShutDown("the subscription is cancelled")
            if closed and self.news.load() == news and not self.holds_on():
                raise ShutDown("the queue is closed and has nothing left for this subscription")
            due = self._next_due(deadline)
            if closed and due is None:
                continue  # what was held is another's by now
            with cython.critical_section(self):
                waited = self.wait(news, closed, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef int open_room(self) except -1:
        """Make the room where threads wait. Making it may run Python code, and so others who make one: one counts."""
        cdef WaitingRoom room
        if self.room is None:
            room = WaitingRoom(self.queue.clock)
            with cython.critical_section(self):
                if self.room is None:
                    self.room = room
        return 0

    cdef object next_entry(self):
        """The next entry, for one of several threads that may wait: what it leaves is for another to see to."""
        try:
            entry = pulled(self)
        except BaseException:
            self.wake_one()
            raise
        if entry is not None:
            self.wake_one()
        return entry

    cdef bint wait(self, int64_t news, bint closed, object deadline) except -1:
        """Wait until it is told something newer than `news`, or that; False when the deadline passed before."""
        if self.news.load() != news or self.consumer == NULL or (
            not closed and self.queue.hall.queue.closed.load() != 0
        ):
            return True
        return self.room.wait_once(deadline)

    cdef void tell(self) noexcept:
        """There is work: wake whoever waits."""
        self.news.fetch_add(1)
        self.wake()

    cdef int call_back(self) except -1:
        """Tell its owner. What that raises is logged, unless it is more than an Exception."""
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of subscription %r failed", self.name)
        return 0

    cdef void wake(self) noexcept:
        """Have somebody look again."""
        cdef Listener listener = self.listener
        self.wake_one()
        if listener is not None:
            listener.heard()

    cdef void wake_one(self) noexcept:
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake(1)

    cdef void wake_all(self) noexcept:
        """There will be nothing new: have everybody look again."""
        cdef Listener listener = self.listener
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake_all()
        if listener is not None:
            listener.heard()

    # What a Target needs to wait for several subscriptions at once.

    cdef int listen(self, Listener listener) except -1:
        """Have somebody told when there is work, and when there will be none."""
        cdef bint taken
        with cython.critical_section(self):
            taken = self.listener is not None
            if not taken:
                self.listener = listener
        if taken:
            raise ValueError(f"subscription {self.name!r} belongs to a target already")
        return 0

    cdef void unlisten(self, Listener listener) noexcept:
        """Tell that one no longer."""
        with cython.critical_section(self):
            if self.listener is listener:
                self.listener = None

    @property
    def _clock(self):
        return self.queue.clock

    @property
    def _over(self):
        """Whether nothing new will come: it is cancelled, or its queue is closed and holds nothing until later."""
        return self.consumer == NULL or (self.queue.hall.queue.closed.load() != 0 and not self.holds_on())

    def _next_due(self, deadline):
        """The deadline, or when the next held message is due, if that is before and this consumer would take it."""
        return self.queue.next_due(deadline) if self.holds_on() else deadline

    cdef bint holds_on(self) except -1:
        """Whether the queue holds a message until later that this consumer might take."""
        cdef Visit visit
        cdef bint desired
        cdef Queue* q = &self.queue.hall.queue
        if q.timed.load() == 0 or queue_due(q) == 0:
            return False
        visit_enter_at(&visit, self.queue, 0)
        desired = self.consumer != NULL and consumer_desired(self.consumer)
        visit_leave(&visit, self.queue)
        return desired

    cdef int judge(self, object item) except -1:
        """Whether the filter accepts an item."""
        try:
            return bool(self.filter(item))
        except Exception:
            if not self.filter_failed:
                self.filter_failed = True
                logger.exception(
                    "the filter of subscription %r failed: that means no, and is not logged again", self.name
                )
            return False

    def cancel(self, release=False):
        """cancel($self, release=False)
        --

        Leave the queue. Others take over what there is to do.

        Parameters
        ----------
        release : bool
            Whether to release all messages that this subscription has pulled and not settled: their entries settle
            nothing any more. Otherwise they may still be settled.

        Notes
        -----
        Cancelling twice does nothing. O(1); O(groups) where there are groups, O(messages) with `release`.
        """
        subscription_leave(self, bool(release))

    def __repr__(self):
        state = "" if self.consumer != NULL else ", cancelled"
        return f"<Subscription {self.name!r}, priority {self.priority}{state}>"


# What was pulled goes back if it cannot be handed out: something else is to be raised, or memory is exhausted.


cdef Entry pulled(Subscription subscription):
    """The next entry; None: there is none."""
    cdef Visit visit
    cdef Pulled found
    cdef int64_t taken
    cdef Entry entry = None
    visit_enter(&visit, subscription.queue)
    taken = take(&visit, subscription, 1, &found)
    visit_end(&visit, subscription.queue)
    if taken == 0 and visit.error == NULL:
        return None
    try:
        if visit.error != NULL:
            visit_raise(&visit)
        entry = entry_of(subscription, &found)
    finally:
        if entry is None:
            put_back(subscription, &found, taken, visit.call.now)
    return entry


cdef list pulled_many(Subscription subscription, int64_t n):
    """Up to n entries."""
    cdef list entries = []
    cdef Visit visit
    cdef Pulled* found = NULL
    cdef int64_t taken, i, made = 0
    if n == 0:
        return entries
    visit_enter(&visit, subscription.queue)
    taken = take_many(&visit, subscription, n, &found)
    visit_end(&visit, subscription.queue)
    try:
        if visit.error != NULL:
            visit_raise(&visit)
        if found == NULL:
            raise MemoryError()
        entries = [None] * taken
        while made < taken:
            entries[made] = entry_of(subscription, &found[made])
            made += 1
    finally:
        if made < taken:
            for i in range(made):
                (<Entry> entries[i]).message = NULL
            put_back(subscription, found, taken, visit.call.now)
        free(found)
    return entries


cdef int64_t take(Visit* visit, Subscription subscription, int64_t limit, Pulled* out) noexcept:
    """Pull, and ask the filters that the engine has to know about; 0: nothing, or one was interrupted."""
    cdef Question question
    cdef int64_t taken = PULL_ASK
    while taken == PULL_ASK and visit.error == NULL and subscription.consumer != NULL:
        taken = queue_pull(&visit.call, subscription.consumer, limit, out, &question)
        if taken == PULL_ASK:
            visit_answer(visit, subscription.queue, &question)
    return max(taken, <int64_t> 0)


cdef int64_t take_many(Visit* visit, Subscription subscription, int64_t n, Pulled** found) noexcept:
    """Pull up to n, until there is nothing left; NULL is found when memory is exhausted before the first."""
    cdef int64_t taken = 1, count = 0, size = 0
    cdef Pulled* larger
    while taken > 0 and count < n:
        if count == size:  # one more than there are: the look that finds nothing is part of it
            size = min(n, max(2 * size, subscription.queue.hall.queue.available.load() + 1))
            larger = <Pulled*> realloc(found[0], size * sizeof(Pulled))
            if larger == NULL:
                break
            found[0] = larger
        taken = take(visit, subscription, size - count, found[0] + count)
        count += taken
    return count
