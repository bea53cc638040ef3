"""The consumer of replies on the publisher's channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pika.exceptions

from fairsched.amqp.errors import broker_text
from fairsched.delivery._delivery import Message
from fairsched.errors import RequestRefused
from fairsched.publisher.calls import DIRECT_REPLY

if TYPE_CHECKING:
    from fairsched.publisher.calls import Calls
    from fairsched.publisher.transport import PublisherTransport


class _Origin:
    """The origin of replies, which came settled."""

    queue = DIRECT_REPLY
    alive = False

    def settle(self, _tag: int, _verdict: int) -> bool:
        return False

    def failed(self, _message: Message, _error: Exception) -> None:
        pass


class ReplyConsumer:
    """Consumes replies on the publisher's channel, once there are calls.

    Parameters
    ----------
    calls : Calls
        The calls that replies belong to.

    Notes
    -----
    Only the I/O thread may use it. The broker replaces the reply address of a request when the request is published,
    by one of the channel that publishes it. So the consumer has to be there before the first request, on each channel
    again, and a request that is published again on another channel gets its reply there. There is no need to wait for
    the broker's answer: it handles the frames of a channel in their order.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._transport: PublisherTransport | None = None
        self._channel: Any = None
        self._origin = _Origin()
        #: Whether the consumer was requested on this channel, and whether the broker has confirmed it.
        self._requested = self._confirmed = False

    def opened(self, transport: PublisherTransport, channel: Any) -> None:
        """Take a channel that is ready for messages."""
        self._transport, self._channel = transport, channel
        self._requested = self._confirmed = False

    def consume(self) -> None:
        """Consume replies on the present channel, unless this does so already or the broker has refused it."""
        channel = self._channel
        # While the connection closes, messages are still passed to it, but pika refuses methods.
        if self._requested or channel is None or not channel.is_open or self._calls.refusal is not None:
            return
        assert self._transport is not None
        self._requested = True
        channel.basic_consume(DIRECT_REPLY, self._on_message, auto_ack=True, callback=self._on_consuming)
        self._transport.sinks[channel.channel_number] = self._take

    def _on_consuming(self, _frame: Any) -> None:
        self._confirmed = True

    def closed(self, why: str, reason: BaseException | None = None) -> bool:
        """Note that the channel is closed.

        Parameters
        ----------
        why : str
            What happened.
        reason : BaseException, optional
            The broker's reason, if it closed the channel.

        Returns
        -------
        bool
            Whether the broker closed the channel because it refuses the consumer; then no message is to blame.
        """
        refused = (
            self._requested
            and not self._confirmed
            and isinstance(reason, pika.exceptions.ChannelClosedByBroker)
            and f"queue '{DIRECT_REPLY}'" in broker_text(reason.reply_text)
        )
        if self._requested and self._transport is not None:
            self._transport.sinks.pop(self._channel.channel_number, None)
        self._channel = None
        self._requested = self._confirmed = False
        if refused:
            refusal = f"calls need direct reply-to: {why}"
            self._calls.refusal = RequestRefused(refusal)
            self._calls.lost(refusal, unconfirmed=True)
        else:
            self._calls.lost(f"{why}; the broker had accepted the request, whose reply address is gone")
        return refused

    def disconnected(self, why: str) -> None:
        """Note that the connection is lost; the next broker may not refuse the consumer."""
        self.closed(why)
        self._calls.refusal = None

    def _take(self, tag: int, redelivered: int, method: bytes, header: bytes, body: bytes) -> None:
        """Take a reply that compiled code has read."""
        self._give(Message(body, tag, bool(redelivered), method, header, self._origin))

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Take a reply that pika has read."""
        self._give(Message(body, method.delivery_tag, method.redelivered, method, properties, self._origin))

    def _give(self, reply: Message) -> None:
        reply.settled = True  # the broker forgot the reply when it was sent
        self._calls.on_reply(reply)
