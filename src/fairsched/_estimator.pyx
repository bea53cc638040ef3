"""The estimator's Python face."""

cimport cython
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t

from fairsched.core.estimator cimport (
    NOTHING, Estimator as Header, estimator_add, estimator_count, estimator_init, estimator_mean, estimator_minimum,
    estimator_quantile,
)


cdef enum:
    LONGEST = 1_000_000_000  # seconds


cdef int64_t as_ns(object seconds, str what) except -1:
    cdef double amount = as_double(seconds)
    if not 0 <= amount <= LONGEST:
        raise ValueError(f"{what} must be a number of seconds from 0 to {LONGEST}, got {seconds!r}")
    return <int64_t> (amount * 1e9)


cdef double as_double(object value) except? -1:
    """Convert first, and then look: comparisons of a subclass may be Python code. NaN: it is no number."""
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

    Say what a duration was lately: its least value, its quantiles and its mean.

    Parameters
    ----------
    window : float
        Seconds of the past that count: the last seven eighths to whole of them for the minimum, the last half to whole
        for quantiles and mean.

    Raises
    ------
    ValueError
        The window is not a number of seconds above 0.

    Notes
    -----
    Thread safety: every method may be called from any thread; each is atomic.
    Complexity: `add` O(1) amortised, the questions O(1) in the number of samples. Memory: 5 KiB.

    Times are seconds of any clock that starts at 0 or later and does not go backwards.

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

        Take a sample.

        Parameters
        ----------
        seconds : float
            The duration.
        now : float
            When it ended.

        Raises
        ------
        ValueError
            One of them is not a number of seconds from 0 to 10**9.
        """
        cdef int64_t value = as_ns(seconds, "duration")
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            estimator_add(&self.header, value, time)

    def count(self, now):
        """Number of samples of which quantile and mean speak."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            return estimator_count(&self.header, time)

    def minimum(self, now):
        """Seconds of the least sample in the window; None when there is none."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            found = estimator_minimum(&self.header, time)
        return None if found == NOTHING else found * 1e-9

    def mean(self, now):
        """Seconds of the mean of the samples; None when there is none."""
        cdef int64_t time = as_ns(now, "time")
        with cython.critical_section(self):
            found = estimator_mean(&self.header, time)
        return None if found == NOTHING else found * 1e-9

    def quantile(self, q, now):
        """quantile($self, q, now)
        --

        Seconds below which a part of the samples lies, to within a sixteenth; None when there is none.

        Parameters
        ----------
        q : float
            The part, from 0 to 1.
        now : float
            The time.

        Raises
        ------
        ValueError
            `q` is not such a number, or `now` is not a time.
        """
        cdef int64_t time = as_ns(now, "time")
        cdef double part = as_double(q)
        if not 0 <= part <= 1:
            raise ValueError(f"q must be a number from 0 to 1, got {q!r}")
        with cython.critical_section(self):
            found = estimator_quantile(&self.header, part, time)
        return None if found == NOTHING else found * 1e-9
