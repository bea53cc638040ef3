"""The asyncio publisher, exported by `fairsched.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fairsched.amqp._publishing import settled
from fairsched.config.arguments import made_by
from fairsched.errors import PublishFailed
from fairsched.publisher.client import LANE_TIMEOUT, Client, confirmations, message_count
from fairsched.publisher.options import PublisherOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pika.spec import BasicProperties
    from typing_extensions import Buffer

    from fairsched.amqp._publishing import LoopConfirmation
    from fairsched.delivery._delivery import Message
    from fairsched.publisher.calls import Call
    from fairsched.publisher.client import Delayed, Outgoing

_log = logging.getLogger(__name__)


class Publisher:
    """Publish to RabbitMQ with publisher confirms from asyncio.

    Parameters
    ----------
    url, **options
        As for `fairsched.Publisher`.

    Raises
    ------
    ConfigurationError
        If an argument is invalid.

    Notes
    -----
    The publisher belongs to the event loop in which it is entered; in another one, its methods raise RuntimeError.
    Otherwise it works as `fairsched.Publisher`:
    `publish` awaits room in the confirm window and returns a `LoopConfirmation` that can be awaited. Cancelling that
    wait, or `flush`, cancels no message.

    Examples
    --------
    >>> async def main():  # doctest: +SKIP
    ...     async with Publisher(url) as publisher:
    ...         for body in bodies:
    ...             await publisher.publish(body, "orders")
    """

    @made_by(PublisherOptions)
    def __init__(self, settings: PublisherOptions) -> None:
        self._client = client = Client(settings)
        alive = weakref.ref(self)
        client.orphaned = lambda: _is_orphaned(alive())
        client.on_change = lambda: _tell(alive())
        self._changed = asyncio.Event()
        #: Held by the one task that waits for room.
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    # Beginning and end -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, as `fairsched.Publisher.open` does. Entering the ``async with`` block calls it."""
        client = self._client
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        check_loop(self._loop, "an aio.Publisher")
        client.start()
        client.window.belong_to(self._loop)
        try:
            await self._wait(client.settings.connect_timeout)
            if client.error is None and not client.begun:
                raise client.no_connection()
            if client.error is not None:
                raise client.error
        except BaseException:
            await self._end()
            raise

    async def _wait(self, seconds: float) -> bool:
        """Wait for a change; False: there was none in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Wait until all messages are confirmed, then close the connection, as `fairsched.Publisher.close` does.

        Raises RuntimeError in another event loop than that of `open`.
        """
        if self._loop is None:
            self._client.end()  # it was never opened
            return
        check_loop(self._loop, "an aio.Publisher")
        try:
            if self._client.is_open:
                await self.flush()
        finally:
            await self._end()
        self._client.check_end()

    async def _end(self) -> int:
        """Close the connection in a thread of its own; what cancels this meanwhile is raised when it is closed."""
        assert self._loop is not None
        counts: list[int] = []
        ended = asyncio.Event()

        def end() -> None:
            counts.append(self._client.end())
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        loop = self._loop
        threading.Thread(target=end, name="fairsched-control", daemon=True).start()
        cancelled: asyncio.CancelledError | None = None
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return counts[0]

    async def __aenter__(self) -> Publisher:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        if isinstance(error, GeneratorExit):
            threading.Thread(target=self._client.end, name="fairsched-control", daemon=True).start()
            return  # A coroutine that is closed must not wait.
        # What was published before the exception is published; but an exception must not wait for long.
        try:
            if self._client.is_open:
                async with asyncio.timeout(self._client.leave_timeout()):
                    await self.flush()
        except TimeoutError:
            pass  # how many are left is said below
        except PublishFailed as problem:
            _log.error("an exception ends the publisher: %s", problem)
        finally:
            if count := await self._end():
                _log.error("%s of the publisher were not confirmed", message_count(count))

    def __del__(self) -> None:
        client = getattr(self, "_client", None)
        if client is not None:
            client.warn_if_open()

    # Messages ----------------------------------------------------------------------------------------------------

    async def publish(
        self,
        body: Buffer,
        routing_key: str = "",
        *,
        exchange: str = "",
        mandatory: bool | None = None,
        properties: BasicProperties | None = None,
        delay: float | str | None = None,
        at: datetime | None = None,
        **values: Any,
    ) -> LoopConfirmation:
        """Publish a message, as `fairsched.Publisher.publish` does.

        Parameters
        ----------
        body, routing_key, exchange, mandatory, properties, delay, at, **values
            As for `fairsched.Publisher.publish`.

        Returns
        -------
        LoopConfirmation
            Can be awaited: the wait ends once the broker has confirmed the message, and raises `PublishFailed` if the
            message failed.

        Notes
        -----
        If the call is cancelled while it waits, the message is not published.
        """
        if delay is not None or at is not None:
            delayed = self._client.delayed(routing_key, exchange, mandatory, properties, values, delay, at)
            if delayed is not None:
                return await self._publish_delayed(body, delayed, delay, at)
        message = self._client.message(body, routing_key, exchange, mandatory, properties, values)
        check_loop(self._loop, "an aio.Publisher")
        if message[5] is not None and self._client.waits_for_lane(message):
            await self._await_lane()
            message = self._client.placed_again(message)
        found: LoopConfirmation | None = self._client.window.put(*message)
        return await self._put_in_turn(message) if found is None else found

    async def _publish_delayed(
        self, body: Buffer, delayed: Delayed, delay: float | str | None, at: datetime | None
    ) -> LoopConfirmation:
        client = self._client
        check_loop(self._loop, "an aio.Publisher")
        if not client.ladder.is_ready(delayed.target):
            await asyncio.to_thread(client.prepare, delayed)
        message = client.delayed_message(body, delayed, delay, at)
        found: LoopConfirmation | None = client.window.put(*message)
        return await self._put_in_turn(message) if found is None else found

    async def reply(self, message: Message, body: Buffer, **values: Any) -> LoopConfirmation:
        """Reply to a message, as `fairsched.Publisher.reply` does."""
        routing_key, values = self._client.answer(message, values)
        return await self.publish(body, routing_key, **values)

    async def call(
        self,
        body: Buffer,
        routing_key: str = "",
        *,
        exchange: str = "",
        timeout: float | None = 30.0,  # noqa: ASYNC109  # covers also the wait for room, and names the call
        properties: BasicProperties | None = None,
        **values: Any,
    ) -> Message:
        """Send a request and wait for its reply, as `fairsched.Publisher.call` does.

        Notes
        -----
        If the call is cancelled, its reply will be dropped. A request that was published by then stays published.
        """
        client = self._client
        check_loop(self._loop, "an aio.Publisher")
        ended = asyncio.Event()
        call = client.begin_call(routing_key, timeout, partial(_tell_event, asyncio.get_running_loop(), ended))
        try:
            message = client.request(call, body, exchange, properties, values)
            async with asyncio.timeout(call.left()) as limit:
                await self._request(call, message)
                await ended.wait()
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            client.io_thread.calls.forget(call)
        return client.reply_of(call)

    async def _request(self, call: Call, message: Outgoing) -> None:
        """Publish the request of a call."""
        client = self._client
        if message[5] is not None and client.waits_for_lane(message):
            await self._await_lane()
            message = client.placed_again(message)
        client.io_thread.calls.add(call)
        if client.window.put(*message, callback=call) is None:
            await self._put_in_turn(message, call)

    async def _await_lane(self) -> None:
        """Wait for the own lanes of tenants that have become hot."""
        opened = asyncio.Event()
        self._client.io_thread.when_lanes_open(partial(_tell_event, asyncio.get_running_loop(), opened))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LANE_TIMEOUT):
                await opened.wait()

    async def _put_in_turn(
        self, message: Outgoing, callback: Callable[[Any], object] | None = None
    ) -> LoopConfirmation:
        """Wait for room: one task at a time, the others for their turn."""
        client = self._client
        async with self._turn:
            patience = client.patience()
            try:
                client.window.queueing = True
                while True:
                    self._changed.clear()
                    found: LoopConfirmation | None = client.window.put(*message, in_turn=True, callback=callback)
                    if found is not None:
                        return found
                    client.check_open()
                    if not await self._wait(patience.left()) and patience.left() == 0:
                        raise client.no_room(client.settings.confirm_timeout)
            finally:
                client.window.queueing = False

    async def flush(self) -> None:
        """Wait until all published messages are confirmed, as `fairsched.Publisher.flush` does.

        Notes
        -----
        To limit the wait, cancel the call, for example with `asyncio.timeout`.
        """
        client = self._client
        client.check_open()
        check_loop(self._loop, "an aio.Publisher")
        patience = client.patience()
        for one in confirmations(client.window.outstanding()):
            while not await settled(one, patience.left()):
                if patience.left() == 0:
                    raise patience.over()
        client.check_failures()

    def check(self) -> None:
        """Raise PublishFailed, as `flush` does, if messages have failed so far; do not wait."""
        self._client.check_open()
        self._client.check_failures()

    def stats(self) -> dict[str, Any]:
        """Return counters, as `fairsched.Publisher.stats` does."""
        return self._client.stats()


def check_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Raise RuntimeError outside the event loop to which something belongs."""
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError(f"{what} belongs to the event loop in which it was opened, and this is another one")


def _tell_event(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event from another thread than that of its event loop."""
    with contextlib.suppress(RuntimeError):  # a closed loop has no coroutine left to wake
        loop.call_soon_threadsafe(event.set)


def _is_orphaned(publisher: Publisher | None) -> bool:
    return publisher is None or (publisher._loop is not None and publisher._loop.is_closed())


def _tell(publisher: Publisher | None) -> None:
    """Wake the tasks that wait for a change, in a publisher's event loop, if there is one still."""
    if publisher is not None and publisher._loop is not None:
        with contextlib.suppress(RuntimeError):  # a closed loop has no coroutine left to wake
            publisher._loop.call_soon_threadsafe(publisher._changed.set)
