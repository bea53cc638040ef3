"""The CoDel law, which judges how long messages wait, and an estimator of recent durations.

In this file, in this order:

    CoDel, make_codel    seconds in, a verdict out; arrays of nanoseconds without the GIL
    Estimator            a duration's least value, quantiles and mean over a window of time
"""

cimport cython
from libc.math cimport INFINITY, NAN, floor
from libc.stdint cimport int64_t, uint8_t

from fairsched.core.delay.codel cimport (
    CODEL_AGAIN, CODEL_COUNT_MAX, CODEL_LINUX, CODEL_LINUX_Q16, CODEL_Q16_ONE, CODEL_QUEUEING_CONSUMER, CODEL_RFC,
    CodelParams, CodelVars, codel_elapsed, codel_found_nothing, codel_init, codel_reset, codel_should_return,
    codel_spare, codel_tick, codel_unit,
)
from fairsched.core.delay.estimator cimport (
    NOTHING, Estimator as Header, estimator_add, estimator_count, estimator_init, estimator_mean, estimator_minimum,
    estimator_quantile,
)
from fairsched.scheduling._buffers cimport array_data
from fairsched.scheduling._numbers cimport as_int64

import numpy as np

from fairsched.scheduling._arrays import as_moments, as_numbers
from fairsched.stats import CoDelStats

cdef enum:
    LONGEST_DURATION = 1_000_000_000  # seconds

cdef extern from *:
    """
    static const int64_t FAIRSCHED_MOMENT_MAX = (int64_t(1) << 62) - 1;
    """
    const int64_t MOMENT_MAX "FAIRSCHED_MOMENT_MAX"

cdef dict LAWS = {
    "rfc": CODEL_RFC,
    "linux": CODEL_LINUX,
    "linux-q16": CODEL_LINUX_Q16,
    "queueing-consumer": CODEL_QUEUEING_CONSUMER,
}

# The longest target and interval, in seconds; the kernel's clock wraps, so that 16 intervals must fit in half of it.
cdef dict LONGEST = {"rfc": 86_400, "linux": 137, "linux-q16": 137, "queueing-consumer": 86_400}
cdef dict SHORTEST = {"rfc": 1, "linux": 1_024, "linux-q16": 1_024, "queueing-consumer": 1_000_000}  # nanoseconds

cdef double SECONDS_MAX = 4611686018.0

# The numbers of `CoDel.state`, with their bounds for `resume`. Before the first message, `last_now` is the lowest.
cdef tuple STATE = (
    ("first_above", -MOMENT_MAX, MOMENT_MAX),
    ("drop_next", -MOMENT_MAX, MOMENT_MAX),
    ("last_now", -MOMENT_MAX, MOMENT_MAX),
    ("pull_returns", 0, MOMENT_MAX),
    ("count", 0, CODEL_COUNT_MAX),
    ("lastcount", 0, CODEL_COUNT_MAX),
    ("inv_sqrt", 0, CODEL_Q16_ONE),
    ("above", 0, 1),
    ("dropping", 0, 1),
    ("entered", 0, 1),
    ("phase", 0, CODEL_AGAIN),
)


# CoDel ----------------------------------------------------------------------------------------------------------------


cdef inline double as_seconds(object value, str what) except? -1:
    """Convert a number of seconds before it is compared, since comparisons may be Python code."""
    if isinstance(value, (bool, str, bytes)):
        raise ValueError(f"{what} must be a number of seconds, got {value!r}")
    try:
        return value
    except OverflowError:
        return INFINITY
    except TypeError:
        raise ValueError(f"{what} must be a number of seconds, got {value!r}") from None


cdef inline int64_t as_nanoseconds(double seconds) noexcept:
    return <int64_t> floor(seconds * 1e9 + 0.5)


cdef inline int64_t as_moment(object value, str what) except? -1:
    """Convert a point in time from seconds to nanoseconds."""
    cdef double seconds = as_seconds(value, what)
    if not -SECONDS_MAX < seconds < SECONDS_MAX:
        raise ValueError(f"{what} must be a finite number of seconds, at most {SECONDS_MAX:.0f}, got {value!r}")
    return as_nanoseconds(seconds)


cdef int64_t as_span(object value, str what, str law) except -1:
    """Check the target or the interval for the law, and convert it to nanoseconds."""
    cdef int64_t span
    cdef double seconds = as_seconds(value, what)
    if not 0 < seconds <= LONGEST[law]:
        raise ValueError(
            f"{what} must be positive and at most {LONGEST[law]} seconds under the law {law!r}, got {value!r}"
        )
    span = as_nanoseconds(seconds)
    if span < SHORTEST[law] or law == "queueing-consumer" and span % 1_000_000:
        raise ValueError(
            f"{what} must be a whole number of milliseconds under the law {law!r}, got {value!r}"
            if law == "queueing-consumer"
            else f"{what} must be at least {SHORTEST[law]} ns under the law {law!r}, got {value!r}"
        )
    return span


cdef inline int64_t within(int64_t value, int64_t least) noexcept nogil:
    """Clamp a number to the bounds of as_moments."""
    return max(least, min(value, MOMENT_MAX))


cdef void judge_all(
    CodelVars* vars, const CodelParams* params, const int64_t* queued, const int64_t* taken, Py_ssize_t taken_step,
    const int64_t* behind, Py_ssize_t behind_step, uint8_t* verdict, Py_ssize_t size,
) noexcept nogil:
    """Judge messages one after the other; a step of 0 is one value for all.

    The one place that asks the law, so that it is compiled into the loop. The arrays may be the caller's, and change
    after they were checked: each number is held to its bounds where it is read, which costs less than a copy.
    """
    cdef CodelVars state = vars[0]  # a copy: the compiler knows that stores to `verdict` do not change it
    cdef CodelParams law = params[0]
    cdef Py_ssize_t i
    for i in range(size):
        verdict[i] = codel_should_return(
            &state, &law, within(queued[i], -MOMENT_MAX), within(taken[i * taken_step], -MOMENT_MAX),
            within(behind[i * behind_step], 0),
        )
    vars[0] = state


@cython.final
cdef class CoDel:
    """CoDel(target=0.005, interval=0.1, *, min_backlog=1, law="rfc", max_returns=None, requeue=True, budget=3, \
when_alone=False)
    --

    Decide, as messages are taken from a buffer, which have waited too long and are returned instead of delivered.

    Parameters
    ----------
    target : float
        Seconds that a message may wait; a wait of `target` or more is too long.
    interval : float
        Seconds for which messages must continuously have waited too long before one is returned.
    min_backlog : int
        If this many messages or fewer are left in the buffer, none is returned; the last message never is.
    law : "rfc", "linux", "linux-q16" or "queueing-consumer"
        "rfc": RFC 8289. "linux": the same with the kernel's clock (32 bits of 1024 ns) and its strict comparison.
        "linux-q16": in addition the kernel's 16-bit square root, bit for bit. "queueing-consumer": the variant of the
        Java client's QueueingConsumer (whole milliseconds, the rules of 2012).
    max_returns : int, optional
        Maximum number of messages returned in one pull; by default the law alone decides, and in a consumer it is 10.
    requeue : bool
        For a consumer: True returns such a message to its queue, for another consumer; False dead-letters it, or drops
        it.
    budget : int
        For a consumer that requeues: maximum number of returns of one message.
    when_alone : bool
        For a consumer that requeues: whether messages are returned even if their queue has no other consumer.

    Raises
    ------
    ValueError
        A parameter is invalid. The message names it and the allowed values.

    Notes
    -----
    Units: seconds in the scalar calls and the properties, int64 nanoseconds in `should_return_many`. The clock's origin
    does not matter, but it must be steady: use `time.monotonic`. If the clock goes backwards, no message is returned
    and the observation starts again.

    Complexity: O(1) per message; one square root per returned message.

    Thread safety: an instance belongs to one thread at a time, and to one buffer. `should_return_many` releases the
    GIL; a call that overlaps it raises RuntimeError. Pickles and copies carry the parameters, not the state.

    Sources: RFC 8289; Linux net/codel_impl.h; the CoDel QueueingConsumer for RabbitMQ's Java client.

    Examples
    --------
    >>> law = CoDel(target=0.005, interval=0.1)
    >>> [millisecond for millisecond in range(300) if law.should_return(
    ...     enqueued_at=(millisecond - 10) / 1000, now=millisecond / 1000, backlog=50)]
    [100, 200, 271]
    """

    cdef CodelParams params
    cdef CodelVars vars
    cdef bint busy  # a call without the GIL is under way
    cdef readonly double target
    cdef readonly double interval
    cdef readonly str law
    cdef readonly bint requeue
    cdef readonly int64_t budget
    cdef readonly bint when_alone

    def __cinit__(
        self, target=0.005, interval=0.1, *, min_backlog=1, law="rfc", max_returns=None, requeue=True, budget=3,
        when_alone=False,
    ):
        cdef int64_t least, most, aim, span, returns
        if not isinstance(law, str) or law not in LAWS:
            raise ValueError(f"law must be one of {', '.join(map(repr, LAWS))}, got {law!r}")
        least = as_int64(min_backlog, "min_backlog", "an integer of 0 or more,")
        if least < 0:
            raise ValueError(f"min_backlog must be an integer of 0 or more, got {min_backlog!r}")
        most = 0 if max_returns is None else as_int64(max_returns, "max_returns", "a positive integer or None,")
        if max_returns is not None and most <= 0:
            raise ValueError(f"max_returns must be a positive integer or None, got {max_returns!r}")
        returns = as_int64(budget, "budget", "an integer of 0 or more,")
        if returns < 0:
            raise ValueError(f"budget must be an integer of 0 or more, got {budget!r}")
        for name, flag in (("requeue", requeue), ("when_alone", when_alone)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be True or False, got {flag!r}")
        aim = as_span(target, "target", law)
        span = as_span(interval, "interval", law)
        self.check_idle()
        codel_init(&self.params, LAWS[law], aim, span, least, most)
        codel_reset(&self.vars)
        self.target = target
        self.interval = interval
        self.law = law
        self.requeue = requeue
        self.budget = returns
        self.when_alone = when_alone

    cdef int check_idle(self) except -1:
        if self.busy:
            raise RuntimeError("a CoDel belongs to one thread at a time: another call is under way")
        return 0

    def should_return(self, enqueued_at, now, backlog):
        """should_return($self, enqueued_at, now, backlog)
        --

        Return whether the message just taken is to be returned.

        A pull calls this for each message it takes until the answer is False, and delivers that message. The message
        after the one that begins an episode is delivered whatever its age (except under "queueing-consumer").

        Parameters
        ----------
        enqueued_at : float
            Time in seconds at which the message entered the buffer.
        now : float
            Time in seconds at which it was taken. One clock reading per pull is enough.
        backlog : int
            Number of messages left in the buffer behind it.

        Returns
        -------
        bool
            True: return the message.

        Raises
        ------
        ValueError
            A time is not a finite number, or the backlog is negative or not an integer.

        Notes
        -----
        Complexity O(1).
        """
        cdef int64_t queued = as_moment(enqueued_at, "enqueued_at")
        cdef int64_t taken = as_moment(now, "now")
        cdef uint8_t verdict
        cdef int64_t behind = as_int64(backlog, "backlog", "an integer of 0 or more,")
        if behind < 0:
            raise ValueError(f"backlog must be an integer of 0 or more, got {backlog!r}")
        self.check_idle()
        judge_all(&self.vars, &self.params, &queued, &taken, 0, &behind, 0, &verdict, 1)
        return verdict != 0

    def should_return_many(self, enqueued_at, now, backlog):
        """should_return_many($self, enqueued_at, now, backlog)
        --

        Decide about many messages, taken one after the other.

        Parameters
        ----------
        enqueued_at : array-like of int, shape (n,)
            Time in nanoseconds at which each message entered the buffer.
        now : int, or array-like of int, shape (n,)
            Time in nanoseconds at which each message was taken, or one time for all.
        backlog : int, or array-like of int, shape (n,)
            Number of messages left behind each, or one number for all.

        Returns
        -------
        numpy.ndarray of bool, shape (n,)
            True where a message is to be returned: the results of `should_return` for each message in turn.

        Raises
        ------
        ValueError
            A value is not an integer, or lengths differ.
        OverflowError
            A backlog is negative, or a value is not within 2**62.

        Notes
        -----
        Complexity O(n). The GIL is released once.
        """
        cdef object enqueued = as_moments(enqueued_at, "enqueued_at")
        cdef Py_ssize_t size = len(enqueued)
        cdef object moments = as_moments(now, "now", size)
        cdef object numbers = as_numbers(backlog, "backlog", size)
        cdef object verdicts = np.empty(size, dtype=np.uint8)
        cdef const int64_t* queued = <const int64_t*> array_data(enqueued)
        cdef const int64_t* taken = <const int64_t*> array_data(moments)
        cdef const int64_t* behind = <const int64_t*> array_data(numbers)
        cdef uint8_t* verdict = <uint8_t*> array_data(verdicts)
        cdef bint own_moments = len(moments) == size, own_numbers = len(numbers) == size
        self.check_idle()  # last: all of the above may run Python code, which may use this object
        self.busy = True
        with nogil:
            judge_all(
                &self.vars, &self.params, queued, taken, own_moments, behind, own_numbers, verdict, size
            )
        self.busy = False
        return verdicts.view(np.bool_)

    def spare(self):
        """spare($self)
        --

        Report that the message it last decided to return is delivered nevertheless, so that the pull ends with it.

        For callers with a rule of their own, such as a maximum number of returns per message.

        Raises
        ------
        RuntimeError
            The last answer was not True.
        """
        self.check_idle()
        if self.vars.pull_returns == 0:
            raise RuntimeError("spare follows an answer of True; there is no message to spare")
        codel_spare(&self.vars, &self.params)

    def found_nothing(self):
        """found_nothing($self)
        --

        Report that a pull found the buffer empty, which ends the current observation.
        """
        self.check_idle()
        codel_found_nothing(&self.vars)

    def reset(self):
        """reset($self)
        --

        Reset all state, statistics included.
        """
        self.check_idle()
        codel_reset(&self.vars)

    def state(self):
        """state($self)
        --

        Return the observed state, from which another instance with the same parameters can `resume`.

        Returns
        -------
        tuple of int
            Opaque; JSON-serializable. Its times are those of the clock in use, so both sides must share a clock. The
            statistics of `stats` are not included.
        """
        cdef CodelVars v = self.vars
        self.check_idle()
        return (
            v.first_above, v.drop_next, max(v.last_now, -MOMENT_MAX), v.pull_returns, v.count, v.lastcount, v.inv_sqrt,
            v.above, v.dropping, v.entered, v.phase,
        )

    def resume(self, state):
        """resume($self, state)
        --

        Continue from the `state` of another instance.

        Parameters
        ----------
        state : sequence of int
            The result of `state`.

        Raises
        ------
        ValueError
            The argument is not a result of `state`; nothing is changed.
        OverflowError
            A number is not within 2**62; nothing is changed.
        """
        cdef CodelVars v
        cdef list numbers
        numbers = [as_int64(number, "a number of a law's state", "an integer,") for number in state]
        if len(numbers) != len(STATE):
            raise ValueError(f"a law's state has {len(STATE)} numbers, got {len(numbers)}")
        for number, (name, least, most) in zip(numbers, STATE):
            if not least <= number <= most:
                raise ValueError(f"{name} of a law's state must be from {least} to {most}, got {number}")
        if numbers[4] == 0 and (numbers[8] or numbers[9] or numbers[10]):
            raise ValueError("count of a law's state must be positive once messages went back, got 0")
        self.check_idle()
        v = self.vars  # from here on no Python code runs, so that the figures are those of this moment
        v.first_above, v.drop_next, v.last_now, v.pull_returns = numbers[0], numbers[1], numbers[2], numbers[3]
        v.count, v.lastcount, v.inv_sqrt = numbers[4], numbers[5], numbers[6]
        v.above, v.dropping, v.entered, v.phase = numbers[7], numbers[8], numbers[9], numbers[10]
        self.vars = v

    @property
    def min_backlog(self):
        """More messages than this must be left behind a returned one."""
        return self.params.min_backlog

    @property
    def max_returns(self):
        """Maximum number of messages returned in one pull; None: the law alone decides."""
        return self.params.max_returns or None

    @property
    def dropping(self):
        """True during an episode, in which messages are returned."""
        return self.vars.dropping != 0

    @property
    def count(self):
        """Messages returned in this or the last episode, including the count carried over from the episode before."""
        return self.vars.count

    @property
    def lastcount(self):
        """`count` at the beginning of that episode."""
        return self.vars.lastcount

    @property
    def drop_next(self):
        """Time of the next return, in seconds of the caller's clock; None before the first return."""
        return self.moment(self.vars.drop_next) if self.vars.entered else None

    @property
    def first_above(self):
        """End of the interval of too long waits, in seconds; None while messages do not wait too long."""
        return self.moment(self.vars.first_above) if self.vars.above else None

    cdef double moment(self, int64_t tick):
        """Convert a time of the law's clock, which may wrap, to the caller's clock."""
        cdef int64_t now = self.vars.last_now
        return (now + codel_elapsed(&self.params, tick, codel_tick(&self.params, now)) * codel_unit(&self.params)) / 1e9

    def stats(self):
        """stats($self)
        --

        Statistics: a `CoDelStats`. O(1).
        """
        self.check_idle()
        figures = self.vars.stats
        return CoDelStats(
            figures.asked, figures.returned, figures.episodes, figures.capped, figures.spared, figures.clock_steps,
            figures.sojourn / 1e9,
        )

    def __reduce__(self):
        return make_codel, (
            self.target, self.interval, self.min_backlog, self.law, self.max_returns, self.requeue, self.budget,
            self.when_alone,
        )

    def __repr__(self):
        return (
            f"CoDel(target={self.target:g}, interval={self.interval:g}, min_backlog={self.min_backlog}, "
            f"law={self.law!r}"
            + ("" if self.max_returns is None else f", max_returns={self.max_returns}")
            + ("" if self.requeue else ", requeue=False")
            + ("" if self.budget == 3 else f", budget={self.budget}")
            + (", when_alone=True" if self.when_alone else "")
            + ")"
        )


def make_codel(target, interval, min_backlog, law, max_returns, requeue, budget, when_alone):
    """Create a CoDel from the arguments in its pickle."""
    return CoDel(
        target, interval, min_backlog=min_backlog, law=law, max_returns=max_returns, requeue=requeue, budget=budget,
        when_alone=when_alone,
    )


# Estimator ------------------------------------------------------------------------------------------------------------


cdef int64_t as_ns(object seconds, str what) except -1:
    cdef double amount = as_double(seconds)
    if not 0 <= amount <= LONGEST_DURATION:
        raise ValueError(f"{what} must be a number of seconds from 0 to {LONGEST_DURATION}, got {seconds!r}")
    return <int64_t> (amount * 1e9)


cdef double as_double(object value) except? -1:
    """Convert before comparing, since a comparison may be Python code; NaN for a value that is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NAN
    try:
        return value
    except OverflowError:
        return INFINITY


@cython.final
cdef class Estimator:
    """Estimator(window)
    --

    Estimate the recent minimum, quantiles and mean of a duration.

    Parameters
    ----------
    window : float
        Length of the window in seconds. The minimum covers the last seven eighths to the whole of it; quantiles and
        mean cover the last half to the whole.

    Raises
    ------
    ValueError
        The window is not a number of seconds above 0.

    Notes
    -----
    Thread safety: every method may be called from any thread, and each is atomic. Complexity: `add` is O(1) amortised,
    the other methods are O(1) in the number of samples. Memory: 5 KiB.

    Times are in seconds of any clock that starts at 0 or later and does not go backwards.

    Examples
    --------
    >>> round_trips = Estimator(10.0)
    >>> for number in range(5):
    ...     round_trips.add(0.1 + 0.01 * number, now=float(number))
    >>> round_trips.minimum(4.0), round_trips.minimum(12.0), round_trips.minimum(60.0)
    (0.1, 0.11, None)
    """

    cdef Header header

    def __cinit__(self, window):
        cdef int64_t length = as_ns(window, "window")
        if length < 16:
            raise ValueError(f"window must be a number of seconds above 0, got {window!r}")
        estimator_init(&self.header, length)

    def add(self, seconds, now):
        """add($self, seconds, now)
        --

        Add a sample.

        Parameters
        ----------
        seconds : float
            The duration.
        now : float
            Time at which it ended.

        Raises
        ------
        ValueError
            `seconds` or `now` is not a number from 0 to 10**9.
        """
        cdef int64_t value = as_ns(seconds, "duration")
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            estimator_add(&self.header, value, time)

    def count(self, now):
        """Number of samples that quantile and mean cover."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            return estimator_count(&self.header, time)

    def minimum(self, now):
        """Smallest sample in the window, in seconds; None without samples."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            found = estimator_minimum(&self.header, time)
        return None if found == NOTHING else found * 1e-9

    def mean(self, now):
        """Mean of the samples, in seconds; None without samples."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            found = estimator_mean(&self.header, time)
        return None if found == NOTHING else found * 1e-9

    def quantile(self, q, now):
        """quantile($self, q, now)
        --

        Quantile of the samples in seconds, to within a sixteenth; None without samples.

        Parameters
        ----------
        q : float
            Fraction of the samples below the quantile, from 0 to 1.
        now : float
            The current time.

        Raises
        ------
        ValueError
            `q` is not a number from 0 to 1, or `now` is not a valid time.
        """
        cdef int64_t time = as_ns(now, "time")
        cdef double part = as_double(q)
        if not 0 <= part <= 1:
            raise ValueError(f"q must be a number from 0 to 1, got {q!r}")
        with cython.critical_section(self):
            found = estimator_quantile(&self.header, part, time)
        return None if found == NOTHING else found * 1e-9
