"""One consumer of several pull queues.

The order of service is that of core/connection/target.pxd. Waiting is as in Subscription.get, in one room for all
subscriptions: each subscription calls `heard` when its queue has told it that there is work. Source: Qpid Broker-J's
multi-queue consumers.

Exclusion. The attributes and the room are used with the exclusion held (the GIL, or the target's critical section). It
is not held while a queue is used, since that runs filters and callbacks. One thread at a time pulls for a subscription:
another thread passes over it, and the first one, when it is done, has a waiting thread look again.

No message waits while a thread does. A thread reads `news`, tries all subscriptions, and waits only if `news` still has
that value. Messages that come after it has tried a queue are announced by that queue, since a pull that finds nothing
leaves the subscription interested; the announcement raises `news` and wakes one thread. A queue announces only the
first of several messages, and expects the notified subscription to pull until nothing is left: so a thread that takes a
message wakes the next waiting thread.
"""

cimport cython
from libc.stdint cimport int64_t
from libcpp.atomic cimport atomic

from fairsched.pullqueue._pullqueue cimport Listener, Subscription
from fairsched.scheduling._numbers cimport as_count
from fairsched.scheduling._waitingroom cimport WaitingRoom

from queue import Empty

from fairsched.errors import ShutDown

cdef enum:  # of a subscription
    FREE
    TAKEN        # a thread pulls for it
    PASSED_OVER  # and another thread passed over it


@cython.final
cdef class Target(Listener):
    """Target(subscriptions, *, interested=True)
    --

    One consumer of several queues: takes messages from the queues in turn, and waits for all of them at once.

    Parameters
    ----------
    subscriptions : Iterable[Subscription]
        Subscriptions of the same or different queues, in the order of their turns. They now belong to the target: pull
        only through it.
    interested : bool
        Whether the target wants messages; passed on to all subscriptions.

    Raises
    ------
    ValueError
        There is no subscription, one already belongs to a target, or their queues have different clocks.
    TypeError
        One of them is not a subscription.

    Notes
    -----
    Queues that all have messages are served strictly in turn: q1, q2, …, qk, q1, …. An empty queue is skipped.
    Complexity: at most O(subscriptions) checks per message; one check if all queues have messages. Thread safety: every
    method may be called from any thread. Several threads may share a target; each message goes to one of them.

    Examples
    --------
    >>> red, blue = PullQueue(), PullQueue()
    >>> target = Target([red.subscribe(), blue.subscribe()])
    >>> for number in range(2):
    ...     red.put(f"red {number}")
    ...     blue.put(f"blue {number}")
    >>> [entry.item for entry in target.pull_many(4)]
    ['red 0', 'blue 0', 'red 1', 'blue 1']
    """

    cdef readonly tuple subscriptions
    cdef WaitingRoom room
    cdef atomic[int64_t] news
    cdef bytearray busy         # by subscription: FREE, TAKEN or PASSED_OVER
    cdef Py_ssize_t cursor      # index of the subscription whose turn it is
    cdef object desired         # the value of `interested`: True or False
    cdef object told            # the value that all subscriptions have been told; None: unknown
    cdef bint telling           # a thread tells them
    cdef bint cancelled
    cdef object __weakref__

    def __cinit__(self, subscriptions, *, interested=True):
        members = tuple(subscriptions)
        if not members:
            raise ValueError("a target needs at least one subscription, got none")
        for member in members:
            if not isinstance(member, Subscription):
                raise TypeError(f"a target is made of subscriptions, got {member!r}")
            if (<Subscription> member).queue.clock is not (<Subscription> members[0]).queue.clock:
                raise ValueError("the queues of a target must have the same clock")
        self.room = WaitingRoom((<Subscription> members[0]).queue.clock)
        self.busy = bytearray(len(members))
        self.subscriptions = members
        self.claim()
        try:
            self.interested = interested
        except BaseException:
            self.give_up(len(members))
            raise

    cdef int claim(self) except -1:
        """Listen to all subscriptions, or, on an error, to none."""
        cdef Py_ssize_t claimed = 0
        try:
            for member in self.subscriptions:
                (<Subscription> member).listen(self)
                claimed += 1
        except BaseException:
            self.give_up(claimed)
            raise
        return 0

    cdef void give_up(self, Py_ssize_t claimed) noexcept:
        """Stop listening to the first `claimed` subscriptions: another target may have them."""
        cdef Py_ssize_t i
        for i in range(claimed):
            (<Subscription> self.subscriptions[i]).unlisten(self)

    cdef void heard(self) noexcept:
        """A subscription has news."""
        self.news.fetch_add(1)
        self.wake()

    cdef void wake(self) noexcept:
        """Wake one of the waiting threads, so that it looks again."""
        with cython.critical_section(self):
            self.room.wake(1)

    # -- interest -----------------------------------------------------------------------------------------------------

    @property
    def interested(self):
        """Whether the target wants messages. Settable; only a change is passed on to the subscriptions, in order."""
        return self.desired

    @interested.setter
    def interested(self, interested):
        cdef bint wished = bool(interested)
        with cython.critical_section(self):
            self.desired = wished and not self.cancelled
            if self.telling:  # the thread that tells them, or an outer call of this one, sees the new value
                return
            self.telling = True
        self.tell()

    cdef bint is_to_tell(self, bint failed) noexcept:
        """Whether the subscriptions do not know the wish yet; if they do, this thread stops telling them.

        A function of its own: Cython leaks a reference where a `break` leaves a critical section.
        """
        with cython.critical_section(self):
            if self.told is not self.desired:
                return True
            if failed:  # a subscription may not know
                self.told = None
            self.telling = False
            return False

    cdef int tell(self) except -1:
        """Pass the wish on to all subscriptions, whatever one of them raises; then raise the first error."""
        cdef object desired, first = None
        while self.is_to_tell(first is not None):
            desired = self.desired
            for member in self.subscriptions:
                try:
                    member.interested = desired
                except BaseException as error:
                    first = error if first is None else first
            self.told = desired
        if first is not None:
            raise first
        return 0

    # -- pulling ------------------------------------------------------------------------------------------------------

    def pull(self):
        """pull($self)
        --

        Take a message from the next queue in turn that has one, without waiting.

        Returns
        -------
        Entry or None
            None: no queue has a message for this target, or other threads are taking them right now.
        """
        return self.next_entry()

    def pull_many(self, n):
        """pull_many($self, n)
        --

        Take up to `n` messages, one from each queue in turn, without waiting.

        Returns
        -------
        list of Entry

        Raises
        ------
        ValueError
            `n` is not an integer of 0 or more.
        """
        cdef int64_t left = as_count(n)
        cdef list entries = []
        while left > 0:
            entry = self.next_entry()
            if entry is None:
                break
            entries.append(entry)
            left -= 1
        return entries

    def get(self, timeout=None):
        """get($self, timeout=None)
        --

        Take a message from the next queue in turn that has one; wait if none has.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds; None: no time-out.

        Returns
        -------
        Entry

        Raises
        ------
        queue.Empty
            The time-out passed.
        ShutDown
            All subscriptions are cancelled or their queues closed, and nothing is left for this target.
        TypeError, ValueError
            The time-out is not a number, or negative.

        Notes
        -----
        The GIL is released during the wait, and the main thread handles signals.
        """
        cdef int64_t news
        cdef bint waited, over
        deadline = self.room.deadline(True, timeout)
        while True:
            news = self.news.load()
            over = self.is_over()
            try:
                entry = self.next_entry()
            except BaseException:
                self.wake()  # another thread has to take the message that this one was woken for
                raise
            if entry is not None:
                return entry
            if over and self.news.load() == news:
                self.wake()  # the next waiting thread finds the same
                raise ShutDown("the subscriptions of the target are cancelled, or their queues closed and empty")
            due = deadline
            for member in self.subscriptions:
                due = (<Subscription> member).next_due(due)
            if not over and self.is_over():
                continue  # another consumer has taken the held message, and nothing else will come
            with cython.critical_section(self):
                waited = self.wait(news, due)
            if not waited and due is deadline and self.news.load() == news:
                raise Empty

    cdef bint wait(self, int64_t news, object deadline) except -1:
        """Wait until `news` has another value than this; False when the deadline passed before."""
        if self.news.load() != news:
            return True
        return self.room.wait_once(deadline)

    cdef bint is_over(self) except -1:
        """Whether no subscription will get anything new."""
        for member in self.subscriptions:
            if not (<Subscription> member).is_over():
                return False
        return True

    cdef object next_entry(self):
        """Take a message from the next subscription in turn that has one, trying each once."""
        cdef Py_ssize_t count = len(self.subscriptions), first = self.cursor, i, at
        for i in range(count):
            at = (first + i) % count
            if not self.enter(at, count):
                continue
            try:
                entry = self.subscriptions[at].pull()
            finally:
                self.leave(at)
            if entry is not None:
                self.wake()
                return entry
        return None

    cdef bint enter(self, Py_ssize_t at, Py_ssize_t count) except -1:
        """Reserve a subscription, which ends its turn; False if another thread has it."""
        with cython.critical_section(self):
            if self.busy[at] != FREE:
                self.busy[at] = PASSED_OVER
                return False
            self.busy[at] = TAKEN
            self.cursor = (at + 1) % count
        return True

    cdef int leave(self, Py_ssize_t at) except -1:
        """Free a subscription; a thread that passed over it is woken to look again."""
        with cython.critical_section(self):
            passed_over = self.busy[at] == PASSED_OVER
            self.busy[at] = FREE
            if passed_over:
                self.news.fetch_add(1)
                self.room.wake(1)
        return 0

    def cancel(self, release=False):
        """cancel($self, release=False)
        --

        Leave all queues. Other subscriptions take over the work; a waiting `get` raises `ShutDown`.

        Parameters
        ----------
        release : bool
            Whether to release all messages that the target has pulled but not settled.

        Notes
        -----
        A second call does nothing. `interested` is False from now on, even if it is set.
        """
        cdef bint releases = bool(release)
        cdef object first = None
        self.cancelled = True
        try:
            self.interested = False
        except BaseException as error:
            first = error
        for member in self.subscriptions:
            try:
                member.cancel(releases)
            except BaseException as error:
                first = error if first is None else first
        if first is not None:
            raise first

    def __repr__(self):
        state = ", cancelled" if self.cancelled else "" if self.desired else ", not interested"
        return f"<Target of {len(self.subscriptions)} subscriptions{state}>"
