"""One queue consumed on one channel, from its opening to its end."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pika import spec
from pika.frame import decode_frame

from fairsched.amqp.properties import ReceivedProperties
from fairsched.consumer.prefetch.resize import ResizableWindow
from fairsched.delivery._delivery import ChannelDeliveries

if TYPE_CHECKING:
    from pika.channel import Channel
    from pika.frame import Method
    from pika.spec import Basic, BasicProperties
    from pika.spec import Queue as QueueMethod

    from fairsched.config.queues import Queue
    from fairsched.consumer.prefetch.measure import Measurements
    from fairsched.delivery._delivery import Message, Settlements
    from fairsched.publisher import Publisher

_log = logging.getLogger(__name__)

#: Numbers the consumers of this process; a tag has to be unique on its channel.
_tags = itertools.count()
#: A window counts as full when a quarter of it is left, or this many.
_SLACK = 32
#: Settlements that RabbitMQ's channels send to a quorum queue without an answer; they keep the others.
_AT_ONCE = 32
#: Seconds that a quorum queue has, at least and at most, to log these; it takes about as long as a cancellation.
_LOG, _LONGEST_LOG = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class ChannelCallbacks:
    """The functions by which a channel tells the I/O thread what happens.

    Attributes
    ----------
    filled : callable
        ``filled(channel)``: deliveries have filled the window.
    changed : callable
        ``changed(channel, reason)``: the broker confirmed its consumer, cancelled it, or closed the channel, or it was
        opened with a window of 0; which of these, `ConsumerChannel.consuming`, `subscribed` and `alive` say. The reason
        is an exception, or None.
    failed : callable
        ``failed(message, error)``, from any thread: the handler of a message raised.
    leave : callable
        ``leave(channel)``: the queue has a single active consumer, and the channel must be closed, and opened again if
        the queue is still to be consumed.
    publisher : callable or None
        Returns what answers messages, from any thread.
    decode : callable or None
        Returns what the body of a message stands for, in any thread.
    """

    filled: Callable[[ConsumerChannel], None]
    changed: Callable[[ConsumerChannel, BaseException | None], None]
    failed: Callable[[Message, Exception], None]
    leave: Callable[[ConsumerChannel], None]
    publisher: Callable[[], Publisher] | None = None
    decode: Callable[[Message], Any] | None = None


class ConsumerChannel(ChannelDeliveries):
    """One queue on one channel of its own, so that messages are popped in the order of their tags, a contiguous prefix
    can be acked by one frame, and a channel error hurts one queue only.

    Parameters
    ----------
    queue : str
        The queue's name.
    window : int
        Unsettled messages that the broker may send.
    settlements : Settlements
        Of the consumer.
    callbacks : ChannelCallbacks
        Told what happens.
    measurements : Measurements
        Told of round trips.
    options : Queue, optional
        How it is consumed.
    stream : bool
        Whether the broker said that it is a stream.
    lendable : bool
        Whether it is on the connection that the I/O thread lends, so that other threads may send its settlements.

    Notes
    -----
    `settle` and `failed` are safe from any thread, the rest is for the I/O thread. An object lives as long as its
    channel; after that it is only remembered by its unsettled messages, whose settlement it ignores.
    """

    def __init__(
        self,
        queue: str,
        window: int,
        settlements: Settlements,
        callbacks: ChannelCallbacks,
        measurements: Measurements,
        options: Queue | None = None,
        stream: bool = False,
        lendable: bool = True,
    ) -> None:
        super().__init__(queue, settlements)
        self.prefetch = ResizableWindow(self.ledger, self._start, self._stop, self._on_change)
        #: Whether the broker confirmed the consumer and has not cancelled it since.
        self.consuming = False
        #: The same for the reported state, read by any thread: a window that is being changed, or is shut, counts too.
        self.subscribed = False
        #: Messages ready in the queue when the broker was last asked; None: not asked since the last look.
        self.ready: int | None = None
        #: Whether the broker was asked and has not answered.
        self.asking = False
        self.failed, self.publisher, self.decode = callbacks.failed, callbacks.publisher, callbacks.decode
        self._lendable = lendable
        self._callbacks = callbacks
        self._measurements = measurements
        self.keeps_messages = stream or (options is not None and options.is_stream)
        self.single_active = options is not None and options.has_single_active_consumer
        self._consuming_options: dict[str, Any] = {}
        if options is not None:
            self._consuming_options = {"exclusive": options.exclusive, "arguments": options.consumer_arguments}
        self._channel: Channel | None = None
        self._ending: Callable[[], None] | None = None
        #: Seconds from the last cancellation of a consumer to the broker's answer.
        self._logging = 0.0
        #: Whether the broker cancelled the last consumer, and it is not time to consume again.
        self._sent_away = False
        self.resize(window)

    # Opening -----------------------------------------------------------------------------------------------------

    def opened(self, channel: Channel) -> None:
        """Set the window on a fresh channel, then consume: basic.qos governs only later consumers."""
        if not self.alive:  # its queue was removed meanwhile
            channel.close()
            return
        self._channel = channel
        channel.add_on_close_callback(self._on_close)
        channel.add_on_cancel_callback(self._on_cancel)
        channel.connection.sinks[channel.channel_number] = self
        if self._lendable:
            self.number = channel.channel_number
        if self.window:
            self.consume()
        else:  # it is paused, and all is as it should be
            self.subscribed = True
            self._callbacks.changed(self, None)

    def consume(self) -> None:
        """Consume with the window that is wanted, as soon as that can be; a lost channel makes this a no-op."""
        channel = self._channel
        again, self._sent_away = self._sent_away, False
        if not self.alive or self.leaving or self._ending is not None or channel is None or not channel.is_open:
            return
        if again and self.busy:
            # What is still here comes again, if the broker has taken it back: and it would once more at each timeout.
            self._sent_away = True  # no other consumer is opened until then
            self.flush()
            if not self.await_settlements(lambda: self._close(channel)):
                self._close(channel)
        else:
            self.prefetch.move(channel, self.window)

    def resize(self, window: int) -> None:
        """Change the window; 0 takes in nothing more until it is changed again.

        The window of a single active consumer cannot change: another consumer beside it would get nothing. Its channel
        is closed and opened again with the new window, if the window is to be 0 or twice as large.
        """
        if self.single_active and self.prefetch.target:
            if window == 0 or window >= 2 * self.window:
                self._callbacks.leave(self)
            return
        self.set_window(window, window - max(1, min(_SLACK, window // 4)))
        if not self._sent_away:
            self.consume()

    def allowed(self, more: int = 0) -> int:
        """Return the newest delivery that the broker may send, once it knows of `more` settlements than it does."""
        ledger = self.ledger
        told = ledger.delivered - ledger.outstanding - ledger.pending
        return told + more + self.prefetch.window + self.prefetch.leftover()

    def ping(self) -> None:
        """Measure the round trip of this channel, unless it waits for an answer already."""
        channel = self._channel
        if self.consuming and not (self.prefetch.busy or self.asking) and channel is not None and channel.is_open:
            self._set_window(channel, max(1, self.window))

    def _set_window(self, channel: Channel, window: int) -> None:
        """Set what later consumers may have unsettled, and take the time: the live ones are not affected."""
        asked = time.monotonic()
        pinged = self._measurements.pinged
        channel.basic_qos(prefetch_count=window, callback=lambda _frame: pinged(time.monotonic() - asked))

    def _start(self, channel: Channel, window: int, confirmed: Callable[[Method[Basic.ConsumeOk]], None]) -> str:
        self._set_window(channel, window)
        tag = f"fairsched-{next(_tags)}"  # pika makes one of random bytes, which takes longer than all the rest
        channel.basic_consume(
            self.queue, self._on_message, consumer_tag=tag, callback=confirmed, **self._consuming_options
        )
        return tag

    def _stop(self, channel: Channel, tag: str, confirmed: Callable[[Method[Basic.CancelOk]], None]) -> None:
        asked = time.monotonic()

        def timed(frame: Method[Basic.CancelOk]) -> None:
            self._logging = time.monotonic() - asked
            confirmed(frame)

        channel.basic_cancel(tag, callback=timed)
        # Deliveries may be on their way. pika would refuse them with basic.reject, which counts towards the delivery
        # limit of a quorum queue; we take them, handle them or give them back ourselves. Either every one of them
        # comes here or none: the ledger admits no gap.
        cancelled = getattr(channel, "_cancelled", None)
        if isinstance(cancelled, set):
            cancelled.discard(tag)
        else:
            channel.connection.sinks.pop(channel.channel_number, None)

    def _note_room(self) -> None:
        self.room = 0 if self.prefetch.leftover() else self.prefetch.window

    def _on_change(self) -> None:
        self._note_room()
        first, self.consuming = not self.consuming and self.prefetch.consumers > 0, self.prefetch.consumers > 0
        if self._ending is not None:
            if not self.consuming and not self.prefetch.busy:
                self._ending()
        elif first:
            self.subscribed = True
            self._callbacks.changed(self, None)

    @property
    def busy(self) -> bool:
        """Whether anything is unsettled here or settled but not sent."""
        return self.unsettled > 0

    @property
    def answered(self) -> bool:
        """Whether the broker has certainly heard of a settlement: it sent more than it may without."""
        return self.ledger.delivered > self.prefetch.window + self.prefetch.leftover()

    def backlogged(self, may_ask: bool = True) -> bool:
        """Whether more of the queue presumably waits at the broker; to be called now and then, since it looks back."""
        filled = self.filled or self.full
        arrived, ready = self.arrived, self.ready
        self.filled = self.arrived = False
        self.ready = None
        if not self.alive:
            return False
        if not filled and may_ask:
            self._ask()
        return filled or (arrived and ready != 0)

    def _ask(self) -> None:
        channel = self._channel
        if self.consuming and not self.asking and channel is not None and channel.is_open:
            self.asking = True
            channel.queue_declare(self.queue, passive=True, callback=self._on_answer)

    def _on_answer(self, frame: Method[QueueMethod.DeclareOk]) -> None:
        self.asking = False
        self.ready = frame.method.message_count

    # Deliveries --------------------------------------------------------------------------------------------------

    def _on_message(self, _channel: Channel, delivery: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if self.leaving:  # the broker takes it back when the channel is closed
            return
        raw = properties.header if isinstance(properties, ReceivedProperties) else properties
        self.deliver(delivery.delivery_tag, delivery.redelivered, delivery, raw, body)

    def on_refilled(self, seconds: float) -> None:
        """Measure the round trip of a settlement."""
        self._measurements.refilled(seconds)

    def on_filled(self) -> None:
        """Tell that deliveries have filled the window."""
        self._callbacks.filled(self)

    # Settlement --------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was settled since the last call, in as few frames as are exact."""
        channel = self._channel
        if not self.alive or channel is None or not channel.is_open:
            return
        # The broker sends no more than the window beyond what it was told is settled: so the delivery with the number
        # "settled + window" cannot come sooner than a round trip after that was told, and comes then if the queue is
        # backlogged.
        self.expect(self.allowed(self.ledger.pending))
        self._note_room()
        frames, transport = self.ledger.frames(channel.channel_number), channel.connection
        self.count_sent(frames)
        if transport.shortcut:
            transport.send_settlements(frames)
        else:
            settle_by_pika(channel, frames)

    def settling_time(self) -> float:
        """Return for how many seconds the broker may keep settlements after its channel has answered; 0: it does not.

        A channel of RabbitMQ sends settlements to a quorum queue without waiting. Of more than a few that the queue has
        not logged yet, it keeps the later ones, and drops them if it is closed meanwhile. No answer says when that is
        over, since the queue's log is on disk; but a cancelled consumer is logged too, and answered after that.
        """
        return min(_LONGEST_LOG, max(_LOG, 4 * self._logging)) if self.settlements_sent > _AT_ONCE else 0.0

    def await_settlements(self, done: Callable[[], None]) -> bool:
        """Call `done` when the broker has answered something sent after the settlements; False if there are none.

        `done` is not called if the channel is closed before the answer.
        """
        channel = self._channel
        if not self.alive or not self.ledger.delivered or channel is None or not channel.is_open:
            return False
        channel.queue_declare(self.queue, passive=True, callback=lambda _frame: done())
        return True

    # The end -----------------------------------------------------------------------------------------------------

    def _close(self, channel: Channel) -> None:
        if channel.is_open:
            channel.close(200, "the broker cancelled the consumer")

    def cancel(self, done: Callable[[], None]) -> bool:
        """Stop deliveries and call `done` when they have stopped; False if there is nothing to stop."""
        channel = self._channel
        if not self.alive or not self.consuming or channel is None or not channel.is_open:
            return False
        self._call_at_end(done)
        self.prefetch.move(channel, 0)
        return True

    def _call_at_end(self, done: Callable[[], None]) -> None:
        """Call a function when deliveries have ended, after those that wait for the same."""
        earlier = self._ending

        def ended() -> None:
            if earlier is not None:
                earlier()
            done()

        self._ending = ended

    def leave(self, done: Callable[[], None]) -> None:
        """Stop deliveries for good, and call `done` when none is under way any more, which may be more than once.

        A single active consumer is not cancelled (see `leave_whole`): what still comes is dropped.
        """
        if self.single_active:
            self.leave_whole()
            done()
            return
        channel = self._channel
        self._call_at_end(done)
        if not self.alive or channel is None or not channel.is_open:
            done()
            return
        self.prefetch.move(channel, 0)
        if not (self.prefetch.consumers or self.prefetch.busy):
            done()

    def leave_whole(self) -> bool:
        """Hand out nothing more, because the channel is to be closed; False if that is so already.

        The consumer is not cancelled: the broker would let the next one begin.
        """
        channel = self._channel
        if self.leaving or not self.alive or channel is None or not channel.is_open:
            return False
        self.leaving, self.subscribed = True, False
        channel.connection.sinks.pop(channel.channel_number, None)  # what still comes goes to pika, and is dropped
        return True

    def ended(self) -> None:
        """Call what `cancel` or `leave` was given: the broker cancelled the last consumer by itself."""
        if self._ending is not None and not self.prefetch.busy:
            self._ending()

    def close(self) -> bool:
        """Close the channel, after which `ChannelCallbacks.changed` is called; False if there is none to close."""
        channel = self._channel
        if not self.alive or channel is None or not channel.is_open:
            return False
        channel.connection.sinks.pop(channel.channel_number, None)  # what still comes, pika drops
        self.spare_consumers()
        channel.close(200, "the queue is not consumed any more")
        return True

    def spare_consumers(self) -> None:
        """Keep pika from cancelling a single active or exclusive consumer when it closes the channel, right afterwards.

        pika cancels all consumers before it closes their channel or connection, except those that are cancelled as far
        as it knows. Between the two, the next single active or exclusive consumer would get messages that are newer
        than those that the broker takes back with the channel.
        """
        cancelled = getattr(self._channel, "_cancelled", None)
        alone = self.single_active or self._consuming_options.get("exclusive")
        if alone and self._channel is not None and isinstance(cancelled, set):
            cancelled.update(self._channel.consumer_tags)

    def abandon(self) -> None:
        """Forget the channel: it is gone."""
        if self.alive and self._channel is not None:
            self._channel.connection.sinks.pop(self._channel.channel_number, None)
        self.close_window()
        self.alive = self.consuming = self.subscribed = False
        self.number = 0

    def _on_cancel(self, frame: Method[Basic.Cancel]) -> None:
        # Sent by the broker when the queue is deleted or moves, and from RabbitMQ 4.3 on when a message of a quorum
        # queue was unsettled for too long: then all of them went back. Otherwise they can still be settled.
        self.prefetch.lost(frame.method.consumer_tag)
        self._note_room()
        if self.consuming and not self.prefetch.consumers:
            self.consuming, self._sent_away = False, True
            self.subscribed = False
            _log.warning("the broker cancelled the consumer of queue %r; consuming again shortly", self.queue)
            self._callbacks.changed(self, None)

    def _on_close(self, _channel: Channel, reason: Any) -> None:
        self.abandon()
        self._callbacks.changed(self, reason)


def settle_by_pika(channel: Channel, frames: bytes) -> None:
    """Have pika send settlements.

    Parameters
    ----------
    channel : pika.channel.Channel
        Theirs.
    frames : bytes
        As `AckLedger.frames` makes them.
    """
    while frames:
        size, found = decode_frame(frames)
        frames, method = frames[size:], found.method
        if isinstance(method, spec.Basic.Ack):
            channel.basic_ack(method.delivery_tag, method.multiple)
        else:
            channel.basic_nack(method.delivery_tag, method.multiple, method.requeue)
