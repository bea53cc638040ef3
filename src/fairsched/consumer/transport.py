"""pika's connection, with fewer system calls: settlements leave in one piece and deliveries arrive in larger ones."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import pika

#: Bytes asked of the socket at once. pika asks for 4 KiB and copies what remains of it once per frame, so that much
#: larger pieces cost more than the calls they save.
_RECEIVE = 32 * 1024


class Transport(pika.SelectConnection):
    """A `pika.SelectConnection` whose writes can be held together.

    Notes
    -----
    Within ``with transport:`` frames are collected and leave as one write. A write is one system call and gives up
    the GIL once; while a handler computes, getting it back can take as long as the interpreter's switch interval.

    pika offers no option for either, so this overrides ``_adapter_emit_data`` and sets the transport's
    ``_MAX_RECV_BYTES``. If a pika of the future has neither, everything works as before, only slower.
    """

    _held: list[bytes] | None = None

    def widen(self) -> None:
        """Receive in larger pieces; to be called once the connection is open."""
        transport = getattr(self, "_transport", None)
        if hasattr(transport, "_MAX_RECV_BYTES"):
            transport._MAX_RECV_BYTES = _RECEIVE

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._held is None:
            super()._adapter_emit_data(data)
        else:
            self._held.append(data)

    def __enter__(self) -> Transport:
        self._held = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        held, self._held = self._held, None
        if held and self.is_open:
            super()._adapter_emit_data(b"".join(held))
