"""pika's connection with a short cut for confirms."""

from __future__ import annotations

from collections.abc import Callable

from fairsched._amqp import PublishWindow
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

    def _take(self, data_in: bytes) -> None:
        window = self.window
        if window is None:
            super()._take(data_in)
            return
        buffer = self._frame_buffer + data_in if self._frame_buffer else data_in
        # While this runs, pika's own buffer is empty: what a callback does to the connection cannot touch our copy.
        self._frame_buffer = b""
        position, found = 0, 0
        while True:
            start = position
            position, frames = window.take_confirms(buffer, position)
            self.frames_received += frames
            self.bytes_received += position - start
            found += frames
            end = self._pass_on_next(buffer, position)
            if end == position:
                break
            position = end
        self._frame_buffer = buffer[position:]
        if found:
            self.confirmed()

    def emit(self, data: bytes) -> None:
        """Send frames. What the socket does not take at once is not copied again and again."""
        self._adapter_emit_data(memoryview(data))  # type: ignore[arg-type]
        self.bytes_sent += len(data)
