"""What becomes of a message when its handler returns or raises: the same in a worker, a coroutine and a test."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fairsched._amqp import AckLedger
from fairsched._delivery import settle_all
from fairsched.consumer.tracebacks import Tracebacks
from fairsched.errors import UndecodableBody
from fairsched.handlers import check_result

if TYPE_CHECKING:
    from fairsched._delivery import Counters, Message
    from fairsched.consumer.settings import OnError

_log = logging.getLogger(__name__)


async def call_async(handler: Callable[[Message], Awaitable[object]], message: Message) -> None:
    """Await a coroutine handler, and settle the message, as `fairsched._delivery.call` does."""
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
    on_error : "requeue", "reject", "dead-letter" or callable
        As `Consumer` documents it.
    counters : Counters
        Counts ``errors``.

    Notes
    -----
    Safe from any thread.
    """

    def __init__(self, on_error: OnError, counters: Counters) -> None:
        self._on_error = on_error
        self._counters = counters
        self._tracebacks = Tracebacks()

    def settle(self, message: Message, error: Exception) -> None:
        """Settle a message as ``on_error`` says; log the failure once, without the body."""
        self._counters.add("errors")
        if isinstance(error, UndecodableBody) and error.message is message:
            _log.error(
                "message %d of queue %r cannot be decoded and is rejected: %s",
                message.delivery_tag, message.queue, error.reason,
            )  # fmt: skip
            message.nack(requeue=False)
            return
        policy = self._on_error
        what = policy if isinstance(policy, str) else "on_error function"
        trace = (type(error), error, error.__traceback__) if self._tracebacks.due(message, error) else None
        _log.error(
            "handler failed on message %d of queue %r (%s: %s); settled by: %s",
            message.delivery_tag, message.queue, type(error).__name__, error, what, exc_info=trace,
        )  # fmt: skip
        if callable(policy):
            self._ask(policy, message, error)
        else:
            message.nack(requeue=policy == "requeue")

    def settle_many(self, messages: list[Message], error: Exception) -> None:
        """Settle messages that were handled together, as ``on_error`` says of each; log the failure once."""
        if isinstance(error, UndecodableBody):  # with the others it would come again and again
            for message in messages:
                if message is error.message:
                    self.settle(message, error)
            messages = [message for message in messages if message is not error.message]
        if not messages:
            return
        self._counters.add("errors", len(messages))
        policy = self._on_error
        due = self._tracebacks.due(messages[0], error)
        _log.error(
            "handler failed on %d messages of a batch, the first of them message %d of queue %r (%s: %s); "
            "settled by: %s",
            len(messages), messages[0].delivery_tag, messages[0].queue, type(error).__name__, error,
            policy if isinstance(policy, str) else "on_error function",
            exc_info=(type(error), error, error.__traceback__) if due else None,
        )  # fmt: skip
        if not callable(policy):
            settle_all(messages, AckLedger.REQUEUE if policy == "requeue" else AckLedger.REJECT)
            return
        try:
            for message in messages:
                self._ask(policy, message, error)
        except BaseException:  # which `_ask` lets through if it is no Exception: the rest was asked nothing
            settle_all(messages, AckLedger.REQUEUE, True)
            raise

    def _ask(self, function: Callable[[Message, Exception], object], message: Message, error: Exception) -> None:
        """Have the user's function settle a message, which is requeued if it does not."""
        try:
            result = function(message, error)
            if result is not None:
                check_result(result, "on_error")
        except Exception:
            _log.exception("on_error function failed; message %d is requeued", message.delivery_tag)
        except BaseException:
            message.nack()
            raise
        if not (message.settled or message.deferred):
            message.nack()
