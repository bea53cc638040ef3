"""The methods `batches` and `arrow_batches` of all consumers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from fairsched.consumer.batching.batches import check_limits, plain_batches

#: An iterator of `MessageBatch`, and one of `ArrowBatch`.
_Batches = TypeVar("_Batches")
_ArrowBatches = TypeVar("_ArrowBatches")

#: Makes batches of messages; called with those, and with the two functions of a `MessageBatch`.
MakeBatches = Callable[..., Generator[Any]]


class BatchMethods(Generic[_Batches, _ArrowBatches]):
    """Base of consumers that yield messages in batches."""

    def batches(self, max_size: int = 256, max_wait: float = 0.1) -> _Batches:
        """Yield batches of messages in fair order until `stop`; the caller settles each batch or uses it in a ``with``.

        Parameters
        ----------
        max_size : int
            Maximum number of messages in a batch, from 1 to 1 000 000. No batch is larger than the prefetch windows
            together (`prefetch`); a prefetch of twice `max_size` keeps the broker sending while a batch is handled.
        max_wait : float
            Seconds that a batch which is not full waits for more messages after its first; 0 to 3600. It does not wait
            if the prefetch windows are full, so that no more messages can come, or if the consumer stops.

        Returns
        -------
        iterator of MessageBatch
            Sequences of messages; for ``async for`` if the consumer is one of `fairsched.aio`. The wait for the first
            message of a batch has no time limit.

        Raises
        ------
        ConfigurationError
            If an argument is invalid, or the consumer has worker queues, which only `run` serves.
        FairschedError, RuntimeError, BaseException
            As for an iteration over the consumer.

        Notes
        -----
        A stop, the end of the consumer's block and a lost connection have the same effects as on the messages of an
        iteration. An exception that interrupts the wait for more messages, or a task's cancellation, requeues those
        already in the batch.

        Examples
        --------
        >>> with Consumer(url, {"gold": 40, "free": 4}, prefetch=1000) as consumer:  # doctest: +SKIP
        ...     for batch in consumer.batches(max_size=256):
        ...         with batch:
        ...             store([message.body for message in batch])
        """
        found: _Batches = self._checked(plain_batches, max_size, max_wait)
        return found

    def arrow_batches(
        self,
        max_size: int = 256,
        max_wait: float = 0.1,
        *,
        headers: Sequence[str] = (),
        properties: Sequence[str] = (),
    ) -> _ArrowBatches:
        """Yield batches of messages as Arrow record batches, in fair order, until `stop`; needs pyarrow.

        Parameters
        ----------
        max_size, max_wait
            As for `batches`.
        headers : sequence of str
            Names of headers to include, each as a string column of that name. Values other than text are written as
            JSON. The value is null if a message does not have the header, or its headers cannot be decoded.
        properties : sequence of str
            Names of properties to include, such as "message_id", each as a column of that name: a string, except
            ``priority`` and ``delivery_mode`` (int32) and ``timestamp`` (in UTC; null beyond the year 9999). The value
            is null if a message does not have the property, or it cannot be decoded.

        Returns
        -------
        iterator of ArrowBatch
            Batches as from `batches`, each with a ``record_batch``.

        Raises
        ------
        ConfigurationError
            As for `batches`; or if pyarrow is not installed, a property does not exist, or two columns would have the
            same name.
        FairschedError, RuntimeError, BaseException
            As for an iteration over the consumer.

        Notes
        -----
        The columns of ``batch.record_batch`` are ``body`` (binary), ``queue`` (dictionary of strings: all queues of
        this consumer, the same in every batch), ``exchange`` and ``routing_key`` (strings), ``redelivered`` (bool),
        then properties and headers. Invalid UTF-8 in a string is replaced. Messages whose bodies exceed 2 GiB together
        are split into several batches.

        Examples
        --------
        >>> with Consumer(url, {"gold": 40, "free": 4}, prefetch=1000) as consumer:  # doctest: +SKIP
        ...     for batch in consumer.arrow_batches(headers=["tenant"]):
        ...         with batch:
        ...             writer.write_batch(batch.record_batch)
        """
        found: _ArrowBatches = self._checked(self._arrow_columns(headers, properties), max_size, max_wait)
        return found

    def _checked(self, make: MakeBatches, max_size: int, max_wait: float) -> Any:
        size, wait = check_limits(max_size, max_wait)
        return self._each_batch(make, size, wait)

    @abstractmethod
    def _arrow_columns(self, headers: Sequence[str], properties: Sequence[str]) -> MakeBatches:
        """Check the names of columns at once, and return the function that makes Arrow batches."""

    @abstractmethod
    def _each_batch(self, make: MakeBatches, size: int, wait: float) -> Any:
        """Check at once that messages can be taken, and return the iterator."""
