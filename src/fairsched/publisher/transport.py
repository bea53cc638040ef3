"""pika's connection with a short cut for confirms and replies."""

from __future__ import annotations

from collections.abc import Callable

from fairsched.amqp._publishing import PublishWindow
from fairsched.amqp.transport import Transport
from fairsched.delivery._delivery import give_deliveries


class PublisherTransport(Transport):
    """A `Transport` that passes all confirms of a read to a `PublishWindow` at once.

    Attributes
    ----------
    window : PublishWindow or None
        Receiver of the confirms of the connection's only channel, once this is in confirm mode.
    confirmed : callable
        Called after confirms were processed.
    believed : callable
        Returns whether what the broker sends still counts; otherwise what was read is ignored.

    Notes
    -----
    Only the I/O thread may use it. Frames other than confirms, and deliveries to `sinks`, are processed by pika, one at
    a time.
    """

    window: PublishWindow | None = None
    confirmed: Callable[[], None]
    believed: Callable[[], bool] = staticmethod(lambda: True)

    _found = 0

    def _take(self, data_in: bytes) -> None:
        if not self.believed():
            return
        self._found = 0
        super()._take(data_in)
        if self._found:
            self.confirmed()

    def _take_known(self, buffer: bytes, start: int) -> tuple[int, bool, int]:
        if self.window is None:
            return super()._take_known(buffer, start)
        position, frames = self.window.take_confirms(buffer, start)
        self._found += frames
        if not self.sinks:
            return position, True, frames
        position, other, more = give_deliveries(buffer, position, self.longest, self.sinks, self.unfinished)
        return position, other, frames + more

    def abandon(self, error: Exception) -> None:
        """End the connection without a handshake, as if it had been lost by this error."""
        self.window = None
        transport = self._transport
        if transport is not None:
            transport._initiate_abort(error)

    def emit(self, data: bytes) -> None:
        """Send frames, without copying repeatedly what the socket does not accept at once."""
        self._adapter_emit_data(memoryview(data))  # type: ignore[arg-type]
        self.bytes_sent += len(data)
