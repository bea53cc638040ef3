"""A connection of the stream protocol that its caller drives, call by call."""

from __future__ import annotations

import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

from fairsched.errors import ConfigurationError, ConnectionFailed, FairschedError, QueueNotFound, RequestRefused
from fairsched.streams.commands import (
    EXISTS,
    LONGEST_REFERENCE,
    MEANINGS,
    NO_OFFSET,
    NO_STREAM,
    OK,
    PASSING,
    RESPONSE,
    Key,
    Payload,
    array,
    frame,
    offset_specification,
    pairs,
    string,
)  # fmt: skip
from fairsched.streams.link import Link

T = TypeVar("T")

#: Ports of the plugin: without and with TLS.
PORT, TLS_PORT = 5552, 5551
SCHEMES = {"rabbitmq-stream": ("amqp", PORT), "rabbitmq-stream+tls": ("amqps", TLS_PORT)}
#: Credit of a subscription, in chunks.
CREDIT = 10
_MOST_IDS = 256
_URL = re.compile(r"(rabbitmq-stream(?:\+tls)?)(://[^/?#]*)(.*)", re.DOTALL)
#: The first version that converts messages for AMQP 0-9-1 in the way of 4.x.
_MESSAGE_CONTAINERS = (3, 13)


@dataclass(frozen=True)
class Place:
    """Where a stream is: hosts and ports as the brokers advertise them.

    Parameters
    ----------
    leader : tuple of str and int, or None
        The node that publishers must be connected to; None while there is none.
    replicas : tuple of such tuples
        Further nodes that consumers may be connected to.
    """

    leader: tuple[str, int] | None
    replicas: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Chunk:
    """Octets of a chunk that was delivered, valid until the next call of the connection.

    Parameters
    ----------
    subscription : int
        What it was delivered to.
    frame : memoryview or bytes
    at : int
        Where the chunk begins in the frame.
    """

    subscription: int
    frame: memoryview | bytes
    at: int


class StreamConnection:
    """A connection to one node, served in the caller's thread, and only while a call waits.

    Parameters
    ----------
    url : str
        ``rabbitmq-stream://user:password@host:5552/vhost``, or ``rabbitmq-stream+tls://`` with port 5551; the rest is
        as in an AMQP URL, ``ssl_options`` included.
    timeout : float
        Longest time to connect, and for each answer, in seconds.
    heartbeat : int
        Seconds; 0 switches heartbeats off.
    mechanism : str
        ``PLAIN``, or ``EXTERNAL`` for the client's certificate.

    Attributes
    ----------
    address : str
        host:port that it is connected to.
    advertised : tuple of str and int, or None
        Host and port of this node as others are told; None if it does not tell.
    version : tuple of int
        The broker's.
    cluster : str
        The name of its cluster.

    Raises
    ------
    ConfigurationError
        The URL or an argument is malformed.
    ConnectionFailed
        From any call: the broker cannot be reached, disconnects, does not answer in time, or answers with nonsense. The
        message names host and port, never a password. `RequestRefused` if no retry will help, such as `QueueNotFound`
        if there is no such stream.

    Notes
    -----
    Nothing is sent between calls, not even heartbeats. Not thread-safe.

    Source: RabbitMQ, "RabbitMQ Streams Protocol Reference".
    """

    def __init__(self, url: str, *, timeout: float = 10.0, heartbeat: int = 60, mechanism: str = "PLAIN") -> None:
        if mechanism not in ("PLAIN", "EXTERNAL"):
            raise ConfigurationError(f"mechanism must be PLAIN or EXTERNAL, got {mechanism!r}")
        self._parameters = _parameters(url)
        self._timeout, self._heartbeat, self._mechanism = timeout, heartbeat, mechanism
        self.address = f"{self._parameters.host}:{self._parameters.port}"
        self.advertised: tuple[str, int] | None = None
        self.version: tuple[int, ...] = ()
        self.cluster = ""
        self._frame_max = 0
        self._correlation = 0
        self._link: Link | None = None
        self._chunks: deque[Chunk] = deque()
        self._streams: dict[int, str] = {}
        self._publishers: dict[int, str] = {}
        #: Publishing ids that were confirmed, and that were refused with the code, in the order of arrival.
        self.confirmed: deque[tuple[int, int]] = deque()
        self.refused: deque[tuple[int, int, int]] = deque()

    # Opening and closing ---------------------------------------------------------------------------------------------

    def open(self, host: str | None = None, port: int | None = None) -> Self:
        """Connect and log in, to the host of the URL or another one.

        Parameters
        ----------
        host : str, optional
        port : int, optional

        Returns
        -------
        StreamConnection
            This one.
        """
        context, name = None, None
        if self._parameters.ssl_options is not None:
            context, name = self._parameters.ssl_options.context, self._parameters.ssl_options.server_hostname
        self._link = Link(
            host or self._parameters.host, port or self._parameters.port, self._timeout, context,
            name if host is None else None,
        )  # fmt: skip
        self.address = self._link.address
        try:
            self._log_in()
        except BaseException:
            self.drop()
            raise
        return self

    def _log_in(self) -> None:
        properties = {"product": "fairsched", "platform": "Python", "connection_name": "fairsched"}
        found = self._request(Key.PEER_PROPERTIES, pairs(properties)).pairs()
        self.version = tuple(int(number) for number in re.findall(r"\d+", found.get("version", ""))[:3])
        self.cluster = found.get("cluster_name", "")
        offered = self._request(Key.SASL_HANDSHAKE)
        mechanisms = offered.array(offered.string)
        if self._mechanism not in mechanisms:
            raise RequestRefused(
                f"{self.address}: the broker offers the SASL mechanisms {', '.join(mechanisms)}, not {self._mechanism}"
            )
        self._request(Key.SASL_AUTHENTICATE, string(self._mechanism), self._secret(), what="login")
        tune = self._await(lambda key, _: key == Key.TUNE, "tune")
        self._frame_max, heartbeat = tune.number(4), tune.number(4)
        self._heartbeat = min(heartbeat, self._heartbeat)
        self._send(frame(Key.TUNE, struct.pack(">II", self._frame_max, self._heartbeat)))
        host = self._parameters.virtual_host
        answer = self._request(Key.OPEN, string(host, "the virtual host"), what=f"virtual host {host!r}")
        found = answer.pairs() if answer.left else {}
        if "advertised_host" in found and found.get("advertised_port", "").isdigit():
            self.advertised = found["advertised_host"], int(found["advertised_port"])

    def _secret(self) -> bytes:
        if self._mechanism == "EXTERNAL":
            return struct.pack(">i", 0)
        login = self._parameters.credentials
        plain = f"\0{login.username}\0{login.password}".encode()
        return struct.pack(">I", len(plain)) + plain

    def close(self) -> None:
        """Tell the broker, wait for its answer, and close the socket; not an error if the connection was lost."""
        if self._link is not None:
            try:
                self._request(Key.CLOSE, struct.pack(">H", OK), string("bye"))
            except FairschedError:
                pass
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._chunks.clear()
        self._streams.clear()
        self._publishers.clear()

    def __enter__(self) -> Self:
        return self if self._link is not None else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def old(self) -> bool:
        """Whether the broker converts messages for AMQP 0-9-1 as before 3.13; see `StreamRecords`."""
        return self.version < _MESSAGE_CONTAINERS

    # Streams ---------------------------------------------------------------------------------------------------------

    def create(self, stream: str, arguments: Mapping[str, str] | None = None) -> None:
        """Create a stream; not an error if it is there with the same arguments, such as ``{"max-age": "1D"}``."""
        code = self._answer(Key.CREATE, self._ask(Key.CREATE, string(stream), pairs(arguments or {}))).number(2)
        if code != EXISTS:
            self._check(code, f"stream {stream!r} with arguments {dict(arguments or {})}")

    def delete(self, stream: str) -> None:
        """Delete a stream."""
        self._request(Key.DELETE, string(stream), what=f"stream {stream!r}")

    def create_super_stream(
        self, name: str, partitions: Sequence[str], keys: Sequence[str], arguments: Mapping[str, str] | None = None
    ) -> None:
        """Create a super stream of new streams, each with its binding key; RabbitMQ 3.13 and newer."""
        if len(partitions) != len(keys):
            raise ConfigurationError(f"each of {len(partitions)} partitions needs a binding key, got {len(keys)}")
        parts = (array(map(string, partitions)), array(map(string, keys)), pairs(arguments or {}))
        self._request(Key.CREATE_SUPER_STREAM, string(name), *parts, what=f"super stream {name!r}")

    def delete_super_stream(self, name: str) -> None:
        """Delete a super stream and its streams; RabbitMQ 3.13 and newer."""
        self._request(Key.DELETE_SUPER_STREAM, string(name), what=f"super stream {name!r}")

    def partitions(self, name: str) -> list[str]:
        """Return the streams of a super stream, in their order."""
        answer = self._request(Key.PARTITIONS, string(name), what=f"super stream {name!r}")
        return answer.array(answer.string)

    def route(self, key: str, name: str) -> list[str]:
        """Return the streams of a super stream to which a routing key leads."""
        answer = self._request(Key.ROUTE, string(key), string(name), what=f"super stream {name!r}")
        return answer.array(answer.string)

    def metadata(self, streams: Iterable[str]) -> dict[str, Place]:
        """Return where streams are; those that do not exist are left out.

        Raises
        ------
        RequestRefused
            This user may not see one of them.
        """
        names = list(streams)
        number = self._ask(Key.METADATA, array(map(string, names)))
        answer = self._answer(Key.METADATA, number)
        nodes = dict(answer.array(lambda: (answer.number(2), (answer.string(), answer.number(4)))))

        def place() -> tuple[str, int, Place]:
            name, code, leader = answer.string(), answer.number(2), nodes.get(answer.number(2))
            replicas = answer.array(lambda: answer.number(2))
            return name, code, Place(leader, tuple(nodes[one] for one in replicas if one in nodes))

        found = {}
        for name, code, where in answer.array(place):
            if code == OK:
                found[name] = where
            elif code != NO_STREAM:
                raise self._refusal(code, f"stream {name!r}")
        return found

    # Consuming -------------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        stream: str,
        offset: str | int | datetime,
        credit: int = CREDIT,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Subscribe to a stream that this node has.

        Parameters
        ----------
        stream : str
        offset : str, int or datetime
            ``"first"``, ``"last"`` (the last chunk), ``"next"``, an offset, or a moment: the broker begins with the
            chunk that has it, so drop the records before it.
        credit : int
            Chunks that the broker may send; each that is taken needs another `credit`.
        properties : mapping of str to str, optional
            As the protocol has them: ``{"filter.0": "invoices", "match-unfiltered": "true"}``.

        Returns
        -------
        int
            The number of the subscription.
        """
        number = self._free(self._streams, "subscriptions")
        self._streams[number] = stream
        asked = pairs(properties) if properties else b""
        parts = (bytes([number]), string(stream), offset_specification(offset), struct.pack(">H", credit), asked)
        try:
            self._request(Key.SUBSCRIBE, *parts, what=f"stream {stream!r}")
        except RequestRefused:
            self._streams.pop(number, None)
            raise
        return number

    def unsubscribe(self, subscription: int) -> None:
        """End a subscription; chunks that came are dropped."""
        stream = self._streams.pop(subscription, None)
        if stream is not None:
            self._request(Key.UNSUBSCRIBE, bytes([subscription]), what=f"stream {stream!r}")
            self._chunks = deque(one for one in self._chunks if one.subscription != subscription)

    def credit(self, subscription: int, chunks: int = 1) -> None:
        """Let the broker send more chunks."""
        self._send(frame(Key.CREDIT, struct.pack(">BH", subscription, chunks)))

    def chunk(self, seconds: float) -> Chunk | None:
        """Return the next chunk of any subscription; None if none came for so long."""
        until = time.monotonic() + seconds
        while not self._chunks:
            if (found := self._serve(until)) is None:
                return None
            if isinstance(found, Chunk):
                return found
        return self._chunks.popleft()

    def store_offset(self, reference: str, stream: str, offset: int) -> None:
        """Store an offset under a name; the broker does not answer. It is written to the stream itself."""
        name = string(reference, "the name of an offset", LONGEST_REFERENCE)
        self._send(frame(Key.STORE_OFFSET, name, string(stream), struct.pack(">Q", offset)))

    def query_offset(self, reference: str, stream: str) -> int | None:
        """Return the offset that was stored last under a name; None for none."""
        name = string(reference, "the name of an offset", LONGEST_REFERENCE)
        number = self._ask(Key.QUERY_OFFSET, name, string(stream))
        answer = self._answer(Key.QUERY_OFFSET, number)
        code = answer.number(2)
        if code == NO_OFFSET:
            return None
        self._check(code, f"stream {stream!r}")
        return answer.number(8)

    # Publishing ------------------------------------------------------------------------------------------------------

    def declare_publisher(self, stream: str, name: str = "") -> int:
        """Declare a publisher to a stream whose leader this node is; return its number.

        Parameters
        ----------
        stream : str
        name : str
            With a name, the broker drops messages whose publishing ids are not higher than the last one of that name.
        """
        number = self._free(self._publishers, "publishers")
        reference = string(name, "the name of a publisher", LONGEST_REFERENCE)
        self._request(Key.DECLARE_PUBLISHER, bytes([number]), reference, string(stream), what=f"stream {stream!r}")
        self._publishers[number] = stream
        return number

    def delete_publisher(self, publisher: int) -> None:
        """End a publisher."""
        self._publishers.pop(publisher, None)
        self._request(Key.DELETE_PUBLISHER, bytes([publisher]), what=f"publisher {publisher}")

    def query_publisher_sequence(self, name: str, stream: str) -> int:
        """Return the last publishing id that the stream has of a publisher; 0 for none."""
        reference = string(name, "the name of a publisher", LONGEST_REFERENCE)
        what = f"stream {stream!r}"
        return self._request(Key.QUERY_PUBLISHER_SEQUENCE, reference, string(stream), what=what).number(8)

    def publish(self, publisher: int, messages: Iterable[tuple[int, bytes]]) -> None:
        """Send messages in as few frames as they fit in; `confirmed` and `refused` tell what became of them.

        Parameters
        ----------
        publisher : int
        messages : iterable of tuple of int and bytes
            Publishing ids, and messages in the format of AMQP 1.0: see `data_message`.

        Raises
        ------
        ConfigurationError
            A message does not fit into a frame.
        """
        head = struct.pack(">B", publisher)
        parts: list[bytes] = []
        size = around = 4 + len(head) + 4
        for number, message in messages:
            part = struct.pack(">QI", number, len(message)) + message
            if self._frame_max and around + len(part) > self._frame_max:
                raise ConfigurationError(
                    f"a message must have at most {self._frame_max - around - 12} bytes (the broker's "
                    f"stream.frame_max), got {len(message)}"
                )
            if parts and self._frame_max and size + len(part) > self._frame_max:
                self._send(frame(Key.PUBLISH, head, array(parts)))
                parts, size = [], around
            parts.append(part)
            size += len(part)
        if parts:
            self._send(frame(Key.PUBLISH, head, array(parts)))

    def wait_confirms(self, count: int, seconds: float) -> bool:
        """Serve the connection until so many messages are confirmed or refused; False if that takes too long."""
        until = time.monotonic() + seconds
        while len(self.confirmed) + len(self.refused) < count:
            found = self._serve(until)
            if found is None:
                return False
            if isinstance(found, Chunk):
                self._keep(found)
        return True

    # Frames ----------------------------------------------------------------------------------------------------------

    def _free(self, taken: Mapping[int, str], what: str) -> int:
        for number in range(_MOST_IDS):
            if number not in taken:
                return number
        raise ConfigurationError(f"a connection has at most {_MOST_IDS} {what}")

    def _linked(self) -> Link:
        if self._link is None:
            raise ConnectionFailed(f"{self.address}: the connection is closed")
        return self._link

    def _send(self, octets: bytes) -> None:
        self._linked().send(octets)

    def _ask(self, key: Key, *parts: bytes) -> int:
        self._correlation = self._correlation % 0x7FFFFFFF + 1
        self._send(frame(key, struct.pack(">I", self._correlation), *parts))
        return self._correlation

    def _answer(self, key: Key, number: int) -> Payload:
        """Wait for the response to a request, and return what follows its number."""
        found = self._await(
            lambda came, data: came == RESPONSE | key and int.from_bytes(data[:4], "big") == number,
            key.name.lower().replace("_", " "),
        )
        found.number(4)
        return found

    def _request(self, key: Key, *parts: bytes, what: str = "") -> Payload:
        """Send a request and return what follows the code of its response, which must be OK."""
        answer = self._answer(key, self._ask(key, *parts))
        self._check(answer.number(2), what or key.name.lower())
        return answer

    def _check(self, code: int, what: str) -> None:
        if code != OK:
            raise self._refusal(code, what)

    def _refusal(self, code: int, what: str) -> ConnectionFailed:
        text = f"{self.address}: {what}: {MEANINGS.get(code, 'unknown response')} ({code})"
        if code == NO_STREAM:
            return QueueNotFound(text)
        return ConnectionFailed(text) if code in PASSING else RequestRefused(text)

    def _malformed(self, why: object) -> ConnectionFailed:
        return ConnectionFailed(f"{self.address}: the broker sent a malformed frame: {why}")

    def _await(self, wanted: Callable[[int, memoryview], bool], what: str) -> Payload:
        until = time.monotonic() + self._timeout
        while (found := self._serve(until)) is not None:
            if isinstance(found, Chunk):
                self._keep(found)
            elif found[0] and wanted(*found):
                return Payload(memoryview(bytes(found[1])), self._malformed)
        raise ConnectionFailed(f"{self.address}: the broker did not answer {what} within {self._timeout:g} s")

    def _keep(self, chunk: Chunk) -> None:
        """Keep a chunk for later, while others are waited for."""
        self._chunks.append(Chunk(chunk.subscription, bytes(chunk.frame), chunk.at))

    def _serve(self, until: float) -> Chunk | tuple[int, memoryview] | None:
        """Handle the next frame; a chunk, a response, (0, b"") for anything else, or None if nothing came."""
        link = self._linked()
        found = None
        while found is None:
            found = link.frame(min(until, self._beat(link)))
            if found is None and time.monotonic() >= until:
                return None
        try:
            return self._handle(found)
        except ValueError as error:
            self.drop()
            raise self._malformed(error) from None

    def _beat(self, link: Link) -> float:
        """Send a heartbeat if one is due, and return when to look again; raise if the broker is silent."""
        if not self._heartbeat:
            return float("inf")
        now = time.monotonic()
        if now - link.sent >= self._heartbeat / 2:
            link.send(frame(Key.HEARTBEAT))
        if now - link.heard > 2 * self._heartbeat and link.frame(now) is None:
            raise ConnectionFailed(f"{self.address}: the broker was silent for {2 * self._heartbeat} s")
        return now + self._heartbeat / 4

    def _handle(self, data: memoryview) -> Chunk | tuple[int, memoryview]:
        payload = Payload(data)
        key, version = payload.number(2), payload.number(2)
        if key == Key.DELIVER:
            subscription = payload.number(1)
            if version not in (1, 2):
                raise ValueError(f"deliver must have version 1 or 2, got {version}")
            if subscription in self._streams:
                return Chunk(subscription, data, 5 if version == 1 else 13)
        elif key == RESPONSE | Key.CREDIT:
            code = payload.number(2)
            if payload.number(1) in self._streams:
                raise self._refusal(code, "credit")
        elif key & RESPONSE or key == Key.TUNE:
            return key, data[4:]
        elif key in (Key.ROUTE, Key.PARTITIONS):
            # RabbitMQ 3.10 answers these two without the bit of a response.
            return RESPONSE | key, data[4:]
        elif key != Key.HEARTBEAT:
            self._told(key, payload)
        return 0, memoryview(b"")

    def _told(self, key: int, payload: Payload) -> None:
        """Note what the broker tells by itself."""
        if key == Key.PUBLISH_CONFIRM:
            publisher = payload.number(1)
            self.confirmed.extend((publisher, one) for one in payload.array(lambda: payload.number(8)))
        elif key == Key.PUBLISH_ERROR:
            publisher = payload.number(1)
            each = payload.array(lambda: (payload.number(8), payload.number(2)))
            self.refused.extend((publisher, number, code) for number, code in each)
        elif key == Key.METADATA_UPDATE:
            self._moved(payload.number(2), payload.string())
        elif key == Key.CLOSE:
            number, code, reason = payload.number(4), payload.number(2), payload.string()
            self._send(frame(RESPONSE | Key.CLOSE, struct.pack(">IH", number, OK)))
            self.drop()
            raise ConnectionFailed(f"{self.address}: the broker closed the connection: {reason} ({code})")
        else:
            raise ValueError(f"its key must be one that brokers send, got {key}")

    def _moved(self, code: int, stream: str) -> None:
        """Raise if this connection has to do with a stream that is no longer here: its subscriptions are gone."""
        if stream in self._streams.values() or stream in self._publishers.values():
            raise ConnectionFailed(
                f"{self.address}: stream {stream!r}: {MEANINGS.get(code, 'it moved')} ({code}): it was deleted, or its "
                "leader or replica moved"
            )


def data_message(body: bytes) -> bytes:
    """Return a message of AMQP 1.0 that has only a body.

    Parameters
    ----------
    body : bytes

    Returns
    -------
    bytes
        A section "data".

    Notes
    -----
    O(length). Safe from any thread.

    Examples
    --------
    >>> data_message(b"hello").hex()
    '005375a00568656c6c6f'
    """
    if len(body) < 256:
        return b"\0Su\xa0" + bytes([len(body)]) + body
    return b"\0Su\xb0" + struct.pack(">I", len(body)) + body


def stream_url(url: str, port: int | None = None) -> str:
    """Return the URL of a node's stream port for its AMQP URL.

    Parameters
    ----------
    url : str
        ``amqp://`` or ``amqps://``.
    port : int, optional
        Otherwise 5552, with TLS 5551.

    Returns
    -------
    str
        ``rabbitmq-stream://`` or ``rabbitmq-stream+tls://``, and the rest.

    Examples
    --------
    >>> stream_url("amqps://app:secret@broker:5671/%2F")
    'rabbitmq-stream+tls://app:secret@broker:5551/%2F'
    """
    scheme, _, rest = url.partition("://")
    place = re.match(r"[^/?#]*", rest)
    location = place[0] if place else ""
    user, at, host = location.rpartition("@")
    host = re.sub(r":\d*\Z", "", host)
    wanted = port or (TLS_PORT if scheme == "amqps" else PORT)
    name = "rabbitmq-stream+tls" if scheme == "amqps" else "rabbitmq-stream"
    return f"{name}://{user}{at}{host}:{wanted}{rest[len(location) :]}"


def _parameters(url: str) -> Any:
    """Return the parameters of a URL as pika reads them."""
    from fairsched.amqp.urls import mask_address, parameters

    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise ConfigurationError(
            f"a stream URL starts with rabbitmq-stream:// or rabbitmq-stream+tls://, got {mask_address(url)!r}"
        )
    scheme, port = SCHEMES[found[1]]
    location = found[2]
    if not re.search(r":\d+\Z", location.rpartition("@")[2].removeprefix("://")):
        location = f"{location.rstrip(':')}:{port}"
    return parameters(scheme + location + found[3])
