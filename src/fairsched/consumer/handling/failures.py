"""The settlement of a message whose handler returns or raises: the same in a worker, a coroutine and a test."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from fairsched.amqp._ackledger import AckLedger
from fairsched.consumer.handling.described import described, shown
from fairsched.consumer.requeueing.pace import Pace
from fairsched.delivery._settling import ask_about, decide_about, settle_all_failed, settle_failed
from fairsched.delivery.handlers import check_result
from fairsched.errors import Throttled, UndecodableBody

if TYPE_CHECKING:
    from fairsched.consumer.handling.retries import Retries
    from fairsched.consumer.settings import OnError
    from fairsched.delivery._counters import Counters
    from fairsched.delivery._delivery import Message

_log = logging.getLogger(__name__)

#: Failures that are remembered, the latest ones, for whether they have had their traceback.
_REMEMBERED = 4096


async def call_async(handler: Callable[[Message], Awaitable[object]], message: Message) -> None:
    """Await a coroutine handler, and settle the message, as `fairsched.delivery._delivery.call` does."""
    try:
        result = await handler(message)
    except Exception as error:
        message.fail(error)
    except BaseException as error:
        message.fail(error)
        raise
    else:
        message.finish(result)


class FailurePolicy:
    """Settles messages whose handlers raised.

    Parameters
    ----------
    on_error : "requeue", "reject" or callable
        As `Consumer` documents it.
    counters : Counters
        Counts ``errors``.
    retries : Retries, optional
        Settles messages of the queues that it covers.
    pace : Pace, optional
        Requeues; otherwise that is done at once.
    policies : mapping, optional
        The `on_error` of each queue that has its own.
    throttle : callable, optional
        Lets a slot take no turns for so many seconds; without it a message whose handler raises `Throttled` is
        returned at once.

    Notes
    -----
    Safe from any thread.
    """

    def __init__(
        self,
        on_error: OnError,
        counters: Counters,
        retries: Retries | None = None,
        pace: Pace | None = None,
        policies: Mapping[str, OnError] | None = None,
        throttle: Callable[[Hashable, float], object] = lambda _slot, _seconds: None,
    ) -> None:
        self._on_error = on_error
        self._counters = counters
        self._retries = retries
        self._pace = pace or Pace()
        self._policies = policies or {}
        self._throttle = throttle
        self._tracebacks = Tracebacks()

    def take(self, policies: Mapping[str, OnError], retries: Retries | None) -> None:
        """Settle messages of other queues, too."""
        self._policies, self._retries = policies, retries

    def settle(self, message: Message, error: Exception) -> None:
        """Settle a message as ``on_error`` or ``retry`` says; log the failure once, without the body."""
        if (seconds := _throttled_for(error, message)) is not None:
            self._give_up_for_now(message, error, seconds)
            return
        self._counters.add("errors")
        retries = self._retries if self._retries is not None and self._retries.covers(message.queue) else None
        if _cannot_decode(error, message):
            assert isinstance(error, UndecodableBody)
            _log.error(
                "message %d of queue %r cannot be decoded and is rejected: %s",
                message.delivery_tag, message.queue, error.reason,
            )  # fmt: skip
            if retries is not None and not message.settled:
                retries.settle(message, error, final=True)
            else:
                settle_failed(message, AckLedger.REJECT)
            return
        policy = self._policies.get(message.queue, self._on_error)
        if retries is not None and not message.settled:
            what = retries.settle(message, error)
        elif not callable(policy) and message.in_stream:
            what = f"{policy}, which acknowledges it: a stream keeps its messages"
        else:
            what = policy if isinstance(policy, str) else "on_error function"
        due = self._tracebacks.due(message, error, retries is not None and retries.failed_before(message))
        _log.error(
            "handler failed on message %d of queue %r (%s); settled by: %s",
            message.delivery_tag, message.queue, described(error), what, exc_info=shown(error) if due else None,
        )  # fmt: skip
        if retries is not None:
            return
        if callable(policy):
            self._ask(policy, message, error)
        elif policy == "requeue":
            self._pace.requeue(message)
        else:
            settle_failed(message, AckLedger.REJECT)

    def settle_many(self, messages: list[Message], error: Exception) -> None:
        """Settle messages that were handled together, as ``on_error`` says of each; log the failure once."""
        alone = [self._is_alone(message, error) for message in messages]
        for message in itertools.compress(messages, alone):
            self.settle(message, error)
        messages = [message for message, is_alone in zip(messages, alone, strict=True) if not is_alone]
        if not messages:
            return
        self._counters.add("errors", len(messages))
        policy = self._on_error
        due = self._tracebacks.due(messages[0], error)
        _log.error(
            "handler failed on %d messages of a batch, the first of them message %d of queue %r (%s); "
            "settled by: %s",
            len(messages), messages[0].delivery_tag, messages[0].queue, described(error),
            policy if isinstance(policy, str) else "on_error function",
            exc_info=shown(error) if due else None,
        )  # fmt: skip
        if policy == "requeue":
            for message in messages:
                self._pace.requeue(message)
            return
        if not callable(policy):
            settle_all_failed(messages, AckLedger.REJECT)
            return
        try:
            for message in messages:
                self._ask(policy, message, error)
        except BaseException:  # which `_ask` lets through if it is no Exception: the rest was asked nothing
            settle_all_failed(messages, AckLedger.REQUEUE)
            raise

    def _give_up_for_now(self, message: Message, error: Exception, seconds: float) -> None:
        """Let the slot of a message take no turns for as long as its handler said, then return the message."""
        _log.debug(
            "message %d of queue %r returns: %s for %r",
            message.delivery_tag, message.queue, described(error), message.slot,
        )  # fmt: skip
        try:
            self._throttle(message.slot, seconds)  # first: the message may come again at once
        finally:
            settle_failed(message, AckLedger.REQUEUE)

    def _is_alone(self, message: Message, error: Exception) -> bool:
        """Whether a message is not settled like the others of its batch."""
        if _throttled_for(error, message) is not None:
            return True
        if _cannot_decode(error, message):
            return True  # with the others it would come again and again
        return message.queue in self._policies or (self._retries is not None and self._retries.covers(message.queue))

    def _ask(self, function: Callable[[Message, Exception], object], message: Message, error: Exception) -> None:
        """Have the user's function settle a message, which is requeued if it does not."""
        ask_about(message)
        try:
            result = function(message, error)
            if result is not None:
                check_result(result, "on_error")
        except Exception as problem:
            _log.error(
                "on_error function failed (%s); message %d is requeued",
                described(problem), message.delivery_tag, exc_info=shown(problem),
            )  # fmt: skip
        except BaseException:
            message.nack()
            raise
        if decide_about(message):
            self._pace.requeue(message)


def _throttled_for(error: Exception, message: Message) -> float | None:
    """Return for how many seconds a handler throttled the slot of its message; None: it failed otherwise."""
    # `isinstance` asks the object for its class, which may raise.
    if not issubclass(type(error), Throttled) or message.in_stream:
        return None
    try:
        return Throttled(error.seconds).seconds  # type: ignore[attr-defined]
    except Exception:  # an attribute of a subclass may be anything, or missing: then the message just failed
        return None


def _cannot_decode(error: Exception, message: Message) -> bool:
    # `isinstance` asks the object for its class, which may raise.
    return issubclass(type(error), UndecodableBody) and error.message is message  # type: ignore[attr-defined]


class Tracebacks:
    """Grants each message one traceback: one that fails again and again would bury the log under its own.

    Notes
    -----
    A message that comes again is known by its content, since nothing else of it stays the same in all kinds of queues;
    so one that was delivered to others before, but never failed here, has its traceback.

    Safe from any thread. O(1), and O(length of the body) for the first look at a message.
    """

    def __init__(self) -> None:
        self._shown: OrderedDict[int, None] = OrderedDict()
        self._guard = threading.Lock()

    def due(self, message: Message, error: Exception, again: bool = False) -> bool:
        """Whether a failure is to be shown with its traceback; it counts as shown then.

        `again`: the message failed before, although it is not redelivered.
        """
        failure = hash((message.queue, message.body, type(error)))
        with self._guard:
            if (again or message.redelivered) and failure in self._shown:
                return False
            self._shown[failure] = None
            self._shown.move_to_end(failure)
            if len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)
        return True
