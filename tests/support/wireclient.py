"""An AMQP 0-9-1 client that hides nothing: what the broker sent, frame by frame, in the order in which it came."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pamqp import base, body, commands, frame, header, heartbeat
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

#: Seconds that an answer may take.
PATIENCE = 20.0

#: What clients say that they understand, unless told otherwise.
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

_Kind = TypeVar("_Kind")


class Delivered(NamedTuple):
    """A method that carries a content, with its content."""

    method: Any
    properties: Basic.Properties
    body: bytes

    @property
    def tag(self) -> int:
        return self.method.delivery_tag


class Refusal(NamedTuple):
    """Why the broker closed a channel or a connection."""

    code: int
    text: str


class Refused(AssertionError):
    """The broker closed what should have stayed open."""


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """Any frame, valid or not."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def raw_method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    """A method that pamqp would not write."""
    return raw_frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


class WireClient:
    """One connection.

    `open` does the handshake; without it the caller does it, frame by frame.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame_max = 131072
        self.tune: Connection.Tune | None = None
        self.start: Connection.Start | None = None
        self._buffer = b""
        self._held: list[bytes] | None = None
        self._inbox: dict[int, deque[Any]] = defaultdict(deque)
        self._numbers = itertools.count(1)

    # Bytes ----------------------------------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        if self._held is None:
            self.socket.sendall(data)
        else:
            self._held.append(data)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Send what is sent in here at once, at the end."""
        held = self._held = []
        yield
        self._held = None
        self.send_bytes(b"".join(held))

    def send(self, method: Any, channel: int = 0) -> None:
        self.send_bytes(frame.marshal(method, channel))

    def _receive(self, deadline: float) -> bool:
        """Read what there is; False at the end of the stream."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def read_bytes(self, count: int) -> bytes:
        """Return so many bytes that are not a frame, such as a protocol header."""
        deadline = time.monotonic() + PATIENCE
        while len(self._buffer) < count:
            assert self._receive(deadline), f"the connection ended after {self._buffer!r}"
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def read(self, timeout: float = PATIENCE) -> tuple[int, Any]:
        """Return the next frame as it is, with its channel."""
        deadline = time.monotonic() + timeout
        while not self._whole():
            if not self._receive(deadline):
                raise EOFError("the broker closed the socket")
        used, channel, found = frame.unmarshal(self._buffer)
        self._buffer = self._buffer[used:]
        return channel, found

    def _whole(self) -> bool:
        if len(self._buffer) < 7:
            return False
        (size,) = struct.unpack_from(">I", self._buffer, 3)
        return len(self._buffer) >= size + 8

    # Frames ---------------------------------------------------------------------------------------------------------

    def sort(self, timeout: float) -> None:
        """Put the next method, with its content if it has one, where its channel finds it."""
        channel, found = self.read(timeout)
        if isinstance(found, heartbeat.Heartbeat):
            return
        if isinstance(found, Basic.Deliver | Basic.GetOk | Basic.Return):
            found = self._with_content(channel, found)
        self._inbox[channel].append(found)

    def _with_content(self, channel: int, method: Any) -> Delivered:
        # The frames of a content follow one another on their channel; others may come between.
        head = self._next_on(channel)
        assert isinstance(head, header.ContentHeader), head
        parts: list[bytes] = []
        while sum(map(len, parts)) < head.body_size:
            part = self._next_on(channel)
            assert isinstance(part, body.ContentBody), part
            assert len(part.value) <= self.frame_max - 8
            parts.append(part.value)
        return Delivered(method, head.properties, b"".join(parts))

    def _next_on(self, channel: int) -> Any:
        while True:
            other, found = self.read()
            if other == channel:
                return found
            assert isinstance(found, base.Frame | heartbeat.Heartbeat), found
            if isinstance(found, base.Frame):
                self._inbox[other].append(found)

    def take(self, channel: int, *kinds: type[_Kind], timeout: float = PATIENCE) -> _Kind:
        """Return the first of these methods on a channel, and leave others where they are."""
        deadline = time.monotonic() + timeout
        while True:
            for place, found in enumerate(self._inbox[channel]):
                method = found.method if isinstance(found, Delivered) else found
                if isinstance(method, kinds):
                    del self._inbox[channel][place]
                    return found
                if isinstance(method, Channel.Close | Connection.Close):
                    raise Refused(f"{method.reply_code} {method.reply_text}")
            if channel and any(isinstance(one, Connection.Close) for one in self._inbox[0]):
                [method] = [one for one in self._inbox[0] if isinstance(one, Connection.Close)]
                raise Refused(f"{method.reply_code} {method.reply_text}")
            left = deadline - time.monotonic()
            assert left > 0, f"none of {kinds} on channel {channel}: {[*self._inbox[channel]]}"
            self.sort(left)

    def waiting(self, channel: int) -> list[Any]:
        """Return what came on a channel and was not taken."""
        return list(self._inbox[channel])

    def take_all(self, channel: int) -> list[Any]:
        """Return what came on a channel, and forget it."""
        found = self.waiting(channel)
        self._inbox[channel].clear()
        return found

    # A connection ---------------------------------------------------------------------------------------------------

    def greet(self) -> Connection.Start:
        """Send the protocol header; return what the broker starts with."""
        self.send_bytes(b"AMQP\x00\x00\x09\x01")
        self.start = self.take(0, Connection.Start)
        return self.start

    def authenticate(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: str | None = None,
        capabilities: dict[str, bool] = CAPABILITIES,
    ) -> None:
        self.send(
            Connection.StartOk(
                {"product": "wireclient", "capabilities": dict(capabilities)},
                mechanism,
                f"\0{user}\0{password}" if response is None else response,
                "en_US",
            )
        )

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
        **start: Any,
    ) -> WireClient:
        """Do the whole handshake."""
        self.greet()
        self.authenticate(user, password, **start)
        self.tune = self.take(0, Connection.Tune)
        self.send(Connection.TuneOk(channel_max, frame_max, heartbeat))
        self.frame_max = frame_max or 131072
        self.send(Connection.Open(vhost))
        self.take(0, Connection.OpenOk)
        return self

    def channel(self, number: int | None = None) -> WireChannel:
        """Open a channel."""
        opened = WireChannel(self, next(self._numbers) if number is None else number)
        opened.call(Channel.Open())
        return opened

    def ended(self) -> Refusal:
        """Return why the broker closes the connection; and see that it does."""
        closed = self.take(0, Connection.Close)
        self.send(Connection.CloseOk())
        self.wait_for_end()
        return Refusal(closed.reply_code, closed.reply_text)

    def dropped(self) -> Refusal | None:
        """Return why the broker closes the connection, None if it does so without a word."""
        try:
            return self.ended()
        except (EOFError, ConnectionError):
            return None

    def wait_for_end(self) -> None:
        """Return when the broker has closed the socket."""
        deadline = time.monotonic() + PATIENCE
        while self._receive(deadline):
            pass

    def close(self) -> None:
        """Say good-bye. RabbitMQ leaves it to the client to close the socket then."""
        self.send(Connection.Close(200, "", 0, 0))
        self.take(0, Connection.CloseOk)
        self.socket.close()

    def abort(self) -> None:
        """Go without a word."""
        self.socket.close()

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class WireChannel:
    """One channel of a connection."""

    def __init__(self, client: WireClient, number: int) -> None:
        self.client = client
        self.number = number

    def cast(self, method: Any) -> None:
        """Send what has no answer."""
        self.client.send(method, self.number)

    def call(self, method: Any) -> Any:
        """Send a method; return its answer."""
        self.cast(method)
        answers = [
            getattr(getattr(commands, name.split(".")[0]), name.split(".")[1]) for name in method.valid_responses
        ]
        return self.take(*answers)

    def take(self, *kinds: type[_Kind], timeout: float = PATIENCE) -> _Kind:
        return self.client.take(self.number, *kinds, timeout=timeout)

    def refused(self, method: Any | None = None) -> Refusal:
        """Send a method; return why the broker closed the channel for it; and open the channel again."""
        if method is not None:
            self.cast(method)
        closed = self.take(Channel.Close)
        self.cast(Channel.CloseOk())
        self.call(Channel.Open())
        return Refusal(closed.reply_code, closed.reply_text)

    def close(self) -> None:
        self.call(Channel.Close(200, "", 0, 0))

    @property
    def waiting(self) -> list[Any]:
        return self.client.waiting(self.number)

    # What tests do --------------------------------------------------------------------------------------------------

    def declare(self, queue: str = "", arguments: dict[str, Any] | None = None, **flags: bool) -> str:
        """Declare a queue, and return its name."""
        return str(self.call(Queue.Declare(queue=queue, arguments=arguments, **flags)).queue)

    def exchange(self, name: str, kind: str = "direct", arguments: dict[str, Any] | None = None, **flags: bool) -> str:
        """Declare an exchange, and return its name."""
        self.call(Exchange.Declare(exchange=name, exchange_type=kind, arguments=arguments, **flags))
        return name

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.call(Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=arguments))

    def publish(
        self,
        content: bytes = b"",
        routing_key: str = "",
        exchange: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Publish one message."""
        client = self.client
        room = client.frame_max - 8
        method = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate)
        head = header.ContentHeader(body_size=len(content), properties=Basic.Properties(**properties))
        parts = [content[place : place + room] for place in range(0, len(content), room)]
        client.send_bytes(
            b"".join(frame.marshal(one, self.number) for one in [method, head, *map(body.ContentBody, parts)])
        )

    def published(self, *contents: bytes, routing_key: str = "", **settings: Any) -> None:
        """Publish messages, and return when the broker has taken them."""
        for content in contents:
            self.publish(content, routing_key, **settings)
        self.round_trip()

    def round_trip(self) -> None:
        """Return when the broker has done everything that was sent before."""
        self.call(Queue.Declare(queue=f"of-nobody-{self.number}", exclusive=True))

    def counts(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers."""
        found = self.call(Queue.Declare(queue=queue, passive=True))
        return found.message_count, found.consumer_count

    def ready(self, queue: str) -> int:
        return self.counts(queue)[0]

    def consume(self, queue: str, tag: str = "", arguments: dict[str, Any] | None = None, **flags: bool) -> str:
        """Start a consumer, and return its tag."""
        return str(self.call(Basic.Consume(queue=queue, consumer_tag=tag, arguments=arguments, **flags)).consumer_tag)

    def deliveries(self, count: int) -> list[Delivered]:
        """Return the next so many messages for consumers of this channel."""
        return [self.take(Basic.Deliver) for _ in range(count)]  # type: ignore[misc]

    def bodies(self, count: int) -> list[bytes]:
        return [one.body for one in self.deliveries(count)]

    def get(self, queue: str, *, no_ack: bool = True) -> Delivered | None:
        """Take one message out of a queue; None from an empty one."""
        found = self.call(Basic.Get(queue=queue, no_ack=no_ack))
        return found if isinstance(found, Delivered) else None

    def drain(self, queue: str) -> list[bytes]:
        """Take everything that is ready out of a queue."""
        return [one.body for one in iter(lambda: self.get(queue), None)]

    def qos(self, count: int, *, everywhere: bool = False) -> None:
        self.call(Basic.Qos(prefetch_count=count, global_=everywhere))

    def ack(self, tag: int = 0, *, multiple: bool = False) -> None:
        self.cast(Basic.Ack(tag, multiple))

    def nack(self, tag: int = 0, *, multiple: bool = False, requeue: bool = True) -> None:
        self.cast(Basic.Nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self.cast(Basic.Reject(tag, requeue))

    def confirming(self) -> WireChannel:
        """Have publishings confirmed."""
        self.call(Confirm.Select())
        return self

    def transactional(self) -> WireChannel:
        self.call(Tx.Select())
        return self


class Server(NamedTuple):
    """A broker that runs."""

    name: str
    url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port


#: Connects a client; makes a name that no other test uses.
Dial = Callable[[], WireClient]
Name = Callable[[], str]
