"""pika's connection with a short cut for confirms."""

from __future__ import annotations

from collections.abc import Callable

from fairsched.amqp._publishing import PublishWindow
from fairsched.amqp.transport import Transport


class PublisherTransport(Transport):
    """A `Transport` that gives confirms to a `PublishWindow`, all that a read brings at once.

    Attributes
    ----------
    window : PublishWindow or None
        Takes the confirms of the connection's one channel, once that is in confirm mode.
    confirmed : callable
        Called after confirms were taken.

    Notes
    -----
    For the I/O thread alone. What is no confirm takes pika's way, a frame at a time.
    """

    window: PublishWindow | None = None
    confirmed: Callable[[], None]

    _found = 0

    def _take(self, data_in: bytes) -> None:
        self._found = 0
        super()._take(data_in)
        if self._found:
            self.confirmed()

    def _take_known(self, buffer: bytes, start: int) -> tuple[int, bool, int]:
        if self.window is None:
            return super()._take_known(buffer, start)
        position, frames = self.window.take_confirms(buffer, start)
        self._found += frames
        return position, True, frames

    def emit(self, data: bytes) -> None:
        """Send frames. What the socket does not take at once is not copied again and again."""
        self._adapter_emit_data(memoryview(data))  # type: ignore[arg-type]
        self.bytes_sent += len(data)
