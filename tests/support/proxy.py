"""A TCP proxy that makes a network worse: a delay each way, a limit of bytes a second, cuts and silence."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable
from types import TracebackType
from typing import Any

#: Bytes read at once; a throttled direction writes as many at most, so that its limit is kept to within one piece.
PIECE = 16 * 1024


class Proxy:
    """Proxy(port, *, delay=0.0, rate=None)

    Listens on a port of its own and passes connections on to a port of this machine, from a thread of its own.

    `delay` (seconds, one way) and `rate` (bytes a second and direction, None: as fast as it goes) may be changed at
    any time: what comes from then on is treated so, behind what came before. Nothing is lost but by `cut`, `silence`
    and `allowance`, and nothing overtakes. The delay is kept to within a millisecond or two, the precision of an event
    loop's timers.
    """

    def __init__(self, port: int, *, delay: float = 0.0, rate: float | None = None) -> None:
        self.target = port
        self.delay = delay
        self.rate = rate
        self.port = 0
        #: By how many seconds pieces left late, in the mean, since this was set to 0: a starved machine adds delay.
        self.lateness = 0.0
        self._passed = 0
        #: Whether new connections are passed on; those that are not, are closed at once.
        self.accepting = True
        #: Bytes that a connection brings from the target before it is reset; None: as many as come.
        self.allowance: int | None = None
        #: How many connections there have been.
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        #: Those of `_writers` that write to the target.
        self._targets: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Proxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Reset every connection, as when a cable is pulled and both ends find out."""
        self._call(self._abort())

    def silence(self, ways: str = "both") -> None:
        """Pass nothing more on in the present connections, not even their end: sides are left half-open.

        `ways` is "both", "there" (to the target) or "back" (from it).
        """
        self._call(self._hush(ways))

    async def _hush(self, ways: str) -> None:
        if ways != "there":
            self._silent |= self._writers - self._targets
        if ways != "back":
            self._silent |= self._targets

    def _call(self, coroutine: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)  # type: ignore[arg-type]

    async def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self) -> None:
        """End every connection, also one that is just being accepted, or made to the target."""
        self.accepting = False
        self._server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._abort()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next turn

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        self._targets.add(back)
        ways = self._pass_on(reader, back), self._pass_on(there, writer, self.allowance)
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(*ways)
        finally:
            self._writers -= {writer, back}
            self._silent -= {writer, back}
            self._targets.discard(back)
            writer.close()
            back.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, allowance: int | None = None
    ) -> None:
        """Move one direction until it ends: one task reads and stamps, the other writes when it is time."""
        pipe: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        written = self._loop.create_task(self._write(pipe, sink))
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE):
                if allowance is not None and allowance < len(data):
                    pipe.put_nowait((self._loop.time() + self.delay, data[:allowance] or None))
                    pipe.put_nowait((self._loop.time() + self.delay, None))
                    break
                allowance = None if allowance is None else allowance - len(data)
                pipe.put_nowait((self._loop.time() + self.delay, data))
        pipe.put_nowait((self._loop.time() + self.delay, b""))
        await written

    async def _write(self, pipe: asyncio.Queue[tuple[float, bytes | None]], sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await pipe.get()
                await self._until(due)
                self._note(max(0.0, self._loop.time() - due))
                if data is None:
                    sink.transport.abort()
                    break
                if sink in self._silent:
                    if data:
                        continue
                    break
                if not data:
                    sink.write_eof()
                    break
                if self.rate is not None:
                    # The line is busy for as long as the piece takes.
                    await self._until(self._loop.time() + len(data) / self.rate)
                sink.write(data)
                await sink.drain()

    def _note(self, late: float) -> None:
        self._passed = 1 if self.lateness == 0 else self._passed + 1
        self.lateness += (late - self.lateness) / self._passed

    async def _until(self, due: float) -> None:
        left = due - self._loop.time()
        if left > 0:
            await asyncio.sleep(left)


def behind(proxy: Proxy, url: str) -> str:
    """Return an AMQP URL of this machine with the proxy's port in place of its own."""
    before, _, after = url.rpartition(":")
    return f"{before}:{proxy.port}/{after.partition('/')[2]}"
