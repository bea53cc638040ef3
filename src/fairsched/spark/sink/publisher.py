"""Publishing with confirms, a window of messages ahead of the broker's answers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from fairsched.amqp.session import Session
from fairsched.errors import FairschedError
from fairsched.spark.sink.messages import Outgoing
from fairsched.spark.sink.options import SinkOptions

#: Messages, and bytes of bodies, that are written to the socket together.
_TOGETHER, _TOGETHER_BYTES = 100, 1 << 20
#: Bytes of bodies that may be unconfirmed, and so in memory, besides what is written together.
_UNCONFIRMED = 32 << 20


class PublishFailed(FairschedError):
    """The broker did not take a message: unroutable, refused, or unconfirmed in time."""


class Publisher:
    """Publishes on a channel of its own.

    Parameters
    ----------
    session : Session
        An open connection.
    options : SinkOptions
        Window, deadline, mandatory.

    Notes
    -----
    For one thread. The broker returns an unroutable message before it confirms it, so when all is confirmed, nothing
    can still come back.
    """

    def __init__(self, session: Session, options: SinkOptions) -> None:
        self._session = session
        self._options = options
        self._sent = 0
        self._confirmed = 0
        #: Size of what was not confirmed yet, by tag, in order.
        self._open: dict[int, int] = {}
        self._bytes = 0
        self._room = 0
        self._channel = session.channel()
        self._channel.add_on_return_callback(self._on_return)
        session.call([partial(self._channel.confirm_delivery, self._on_confirm)], "confirm.select")

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Publish messages; waits whenever the window is full."""
        together: list[Outgoing] = []
        size = 0
        for message in messages:
            together.append(message)
            size += len(message.body)
            if len(together) == min(_TOGETHER, self._options.confirm_window) or size >= _TOGETHER_BYTES:
                self._send(together)
                together, size = [], 0
        if together:
            self._send(together)

    def finish(self) -> None:
        """Return when everything is confirmed."""
        self._wait(0)

    def _send(self, messages: list[Outgoing]) -> None:
        self._wait(self._options.confirm_window - len(messages))
        with self._session.transport:
            for exchange, key, body, properties in messages:
                self._channel.basic_publish(exchange, key, body, properties, self._options.mandatory)
                self._sent += 1
                self._open[self._sent] = len(body)
                self._bytes += len(body)
        # Answers that are here already would otherwise wait until the window is full.
        self._session.serve(0)
        self._check()

    def _fits(self) -> bool:
        """Whether no more is unconfirmed than is waited for."""
        return len(self._open) <= self._room and self._bytes <= _UNCONFIRMED

    def _wait(self, most: int) -> None:
        """Serve the connection until at most so many messages are unconfirmed, and no more bytes than may be."""
        timeout = self._options.confirm_timeout
        since, before = time.monotonic(), self._confirmed
        self._room = most
        while not self._fits():
            self._session.serve(min(1.0, timeout))
            self._check()
            if self._confirmed > before:
                since, before = time.monotonic(), self._confirmed
            elif time.monotonic() - since > timeout:
                raise PublishFailed(
                    f"{self._session.address} confirmed nothing for {timeout:g} s; {len(self._open)} messages are open"
                )
        self._check()

    def _check(self) -> None:
        self._session.run(lambda: True, 0, "publishing")

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag, refused = int(method.delivery_tag), method.NAME == "Basic.Nack"
        tags = [tag]
        if method.multiple:
            tags = []
            for one in self._open:
                if one > tag:
                    break
                tags.append(one)
        for one in tags:
            self._bytes -= self._open.pop(one, 0)
        self._confirmed += len(tags)
        if refused:
            self._session.fail(PublishFailed(f"the broker refused {len(tags)} message(s) (basic.nack)"))
        elif self._fits():
            self._session.stop()

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        self._session.fail(
            PublishFailed(
                f"no queue takes a message with routing key {method.routing_key!r} on exchange {method.exchange!r} "
                f"({method.reply_code} {method.reply_text}, message_id {properties.message_id!r}); declare and bind "
                "one, or set mandatory=false"
            )
        )
