"""A consumer of a pull queue: what it wants, what it pulls, and how it waits for work."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from fairsched._entry cimport Entry, entry_of
from fairsched._membership cimport subscription_leave
from fairsched._numbers cimport as_count, as_credit
from fairsched._visit cimport Visit, visit_answer, visit_ask_for, visit_enter, visit_leave
from fairsched._waitingroom cimport WaitingRoom
from fairsched.core.queuemembers cimport queue_set_credit, queue_set_wish
from fairsched.core.queuepull cimport PULL_ASK, queue_pull
from fairsched.core.queuequestion cimport Question
from fairsched.core.queuestate cimport WISH_USER, Pulled, consumer_desired

import logging
import queue

from fairsched.errors import ShutDown

logger = logging.getLogger("fairsched.queue")


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

    def __init__(self):
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
        try:
            if wished:
                visit_ask_for(&visit, self.queue, self)
        except BaseException:
            visit_leave(&visit, self.queue)
            raise
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
        try:
            if messages != 0:
                visit_ask_for(&visit, self.queue, self)
        except BaseException:
            visit_leave(&visit, self.queue)
            raise
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
        O(1), besides the order of service; with a filter, O(messages that it refuses), each once.
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
        ValueError
            The time-out is negative.

        Notes
        -----
        The GIL is given up while the thread waits. The main thread notices signals meanwhile. A message that is held is
        taken when it is due.
        """
        cdef int64_t news
        cdef bint waited
        if self.room is None:
            with cython.critical_section(self):
                if self.room is None:
                    self.room = WaitingRoom(self.queue.clock)
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            entry = pulled(self)
            if entry is not None:
                return entry
            if self.consumer == NULL:
                raise ShutDown("the subscription is cancelled")
            if self.queue.hall.queue.closed.load():
                raise ShutDown("the queue is closed and has nothing left for this subscription")
            due = self.queue.next_due(deadline)
            with cython.critical_section(self):
                waited = self.wait(news, due)
            if not waited and due is deadline and self.news.load() == news:
                raise queue.Empty

    cdef bint wait(self, int64_t news, object deadline) except -1:
        """Wait until it is told something newer than `news`; False when the deadline passed before."""
        if self.news.load() != news or self.consumer == NULL or self.queue.hall.queue.closed.load():
            return True
        return self.room.wait_once(deadline)

    cdef int tell(self) except -1:
        """There is work: wake whoever waits, and call back."""
        self.news.fetch_add(1)
        self.wake()
        if self.on_work is not None:
            try:
                self.on_work(self)
            except Exception:
                logger.exception("on_work of subscription %r failed", self.name)
        return 0

    cdef void wake(self) noexcept:
        cdef object listener = self.listener
        if self.room is not None:
            with cython.critical_section(self):
                self.room.wake(1)
        if listener is not None:
            listener()

    # What a Target needs to wait for several subscriptions at once.

    def _listen(self, listener):
        """Have `listener()` called when there is work, and when there will be none; None: no longer."""
        with cython.critical_section(self):
            if listener is not None and self.listener is not None:
                raise ValueError(f"subscription {self.name!r} belongs to a target already")
            self.listener = listener

    @property
    def _clock(self):
        return self.queue.clock

    @property
    def _over(self):
        """Whether nothing new will come: it is cancelled, or its queue is closed."""
        return self.consumer == NULL or self.queue.hall.queue.closed.load() != 0

    def _next_due(self, deadline):
        """The deadline, or when the next held message is due, if that is before."""
        return self.queue.next_due(deadline)

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


cdef Entry pulled(Subscription subscription):
    """The next entry; None: there is none."""
    cdef Visit visit
    cdef Pulled found
    visit_enter(&visit, subscription.queue)
    try:
        entry = entry_of(subscription, &found) if take(&visit, subscription, 1, &found) else None
    finally:
        visit_leave(&visit, subscription.queue)
    return entry


cdef list pulled_many(Subscription subscription, int64_t n):
    """Up to n entries."""
    cdef list entries = []
    cdef Visit visit
    cdef Pulled* found
    cdef int64_t taken = 1, i, size = min(n, max(subscription.queue.hall.queue.available.load(), 1))
    if n == 0:
        return entries
    found = <Pulled*> malloc(size * sizeof(Pulled))
    if found == NULL:
        raise MemoryError()
    visit_enter(&visit, subscription.queue)
    try:
        while taken > 0 and len(entries) < n:
            # One more than there are: the look that finds nothing is part of it.
            taken = take(&visit, subscription, min(size, n - len(entries)), found)
            for i in range(taken):
                entries.append(entry_of(subscription, &found[i]))
    finally:
        free(found)
        visit_leave(&visit, subscription.queue)
    return entries


cdef int64_t take(Visit* visit, Subscription subscription, int64_t limit, Pulled* out) except -1:
    """Pull, and ask the filters that the engine has to know about."""
    cdef Question question
    cdef int64_t taken = PULL_ASK
    while taken == PULL_ASK:
        if subscription.consumer == NULL:
            return 0
        taken = queue_pull(&visit.call, subscription.consumer, limit, out, &question)
        if taken == PULL_ASK:
            visit_answer(visit, subscription.queue, &question)
    return taken
