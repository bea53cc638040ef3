"""RabbitMQ for kombu and Celery by compiled code: `Transport`."""

from __future__ import annotations

import errno
import threading
from _socket import socket as PlainSocket
from functools import partial
from struct import Struct
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import RecoverableConnectionError, UnexpectedFrame
from amqp.transport import SSLTransport as TLS
from amqp.transport import TCPTransport as TCP
from kombu.connection import resolve_aliases
from kombu.message import ACK_STATES
from kombu.transport import TRANSPORT_ALIASES, pyamqp
from vine import promise

from fairsched import __version__
from fairsched.integrations._kombulink import Delivery, Link, Settlements
from fairsched.integrations.kombu_batch import PublishBatch
from fairsched.integrations.kombu_timer import TIMER

__all__ = ["Channel", "Connection", "Message", "SSLTransport", "Transport"]

#: Most messages that are handled in one turn of an event loop.
TURN = 100
#: Errors of a socket that has nothing to read.
_NOTHING_TO_READ = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ENOENT}
_TAG = Struct(">Q")
_new = object.__new__


def _sent() -> Any:
    """Return what py-amqp returns for a method that was sent."""
    done: Any = promise()
    done()
    return done


class Delivered(amqp.Message):  # type: ignore[misc]  # py-amqp has no types
    """A delivery as py-amqp's message, decoded when an attribute is read."""

    __slots__ = ("_delivery",)

    def __getattr__(self, name: str) -> Any:
        read = _DELIVERED.get(name)
        if read is None:
            if name == "_delivery":
                raise AttributeError(name)
            return super().__getattr__(name)
        value = read(self._delivery)
        setattr(self, name, value)
        return value


_DELIVERED: dict[str, Any] = {
    "properties": Delivery.properties,
    "body": Delivery.body,
    "delivery_info": Delivery.delivery_info,
    "channel": lambda delivery: delivery.channel,
    "frame_method": lambda _delivery: spec.Basic.Deliver,
    "frame_args": lambda _delivery: None,
    "ready": lambda _delivery: True,
    "_pending_chunks": lambda _delivery: [],
    "body_size": lambda delivery: delivery.body_size,
    "body_received": lambda delivery: delivery.body_size,
}


class Message(pyamqp.Message):  # type: ignore[misc]  # kombu has no types
    """A message of kombu's, decoded when an attribute is read."""

    # What kombu's constructor sets, for messages that are made without it.
    _delivery: Delivery | None = None
    _state = "RECEIVED"
    _decoded_cache = None
    accept = None

    def __getattr__(self, name: str) -> Any:
        read = _MESSAGE.get(name)
        if read is None or self._delivery is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = read(self._raw)
        setattr(self, name, value)
        return value

    @property
    def errors(self) -> list[Any]:
        """The errors that decompressing the body has met."""
        found: list[Any] = self.__dict__.setdefault("errors", [])
        return found

    @errors.setter
    def errors(self, errors: list[Any]) -> None:
        self.__dict__["errors"] = errors

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge the message.

        Raises
        ------
        MessageStateError
            If it is settled.
        """
        delivery = self._delivery
        if delivery is None or self.channel is None:
            super().ack(multiple)
            return
        if delivery.no_ack:
            return
        self._check()
        if not delivery.ack(multiple):
            self.channel.basic_ack(self.delivery_tag, multiple=multiple)
        self._state = "ACK"

    def reject(self, requeue: bool = False) -> None:
        """Reject the message.

        Raises
        ------
        MessageStateError
            If it is settled.
        """
        self._check()
        super().reject(requeue)

    def requeue(self) -> None:
        """Return the message to its queue.

        Raises
        ------
        MessageStateError
            If it is settled.
        """
        self._check()
        super().requeue()

    def _check(self) -> None:
        if self._state in ACK_STATES:
            raise self.MessageStateError(f"Message already acknowledged with state: {self._state}")
        delivery = self._delivery
        if delivery is not None and delivery.stale and self.channel is not None:
            # The same number may belong to another message by now.
            raise RecoverableConnectionError(
                f"delivery {delivery.tag} cannot be settled: its channel was closed since, and its queue has it again"
            )


_MESSAGE: dict[str, Any] = {
    "properties": lambda raw: raw.properties,
    "body": lambda raw: raw.body,
    "delivery_info": lambda raw: raw.delivery_info,
    "delivery_tag": lambda raw: raw._delivery.tag,
    "headers": lambda raw: raw.properties.get("application_headers") or {},
    "content_type": lambda raw: raw.properties.get("content_type"),
    "content_encoding": lambda raw: raw.properties.get("content_encoding"),
}


class Channel(pyamqp.Channel):  # type: ignore[misc]
    """A channel of py-amqp's whose deliveries, acknowledgements and publishing are compiled."""

    Message = Message
    #: None: the connection has no link, and all is py-amqp's.
    _settlements: Any = None

    def _on_open_ok(self) -> None:
        link = self.connection._link
        if link is not None:
            self._settlements = Settlements(link, self, self.channel_id, self._delivered)
        super()._on_open_ok()

    def _do_revive(self) -> None:
        self._forget()
        super()._do_revive()

    def collect(self) -> None:
        """Tear down the channel without asking the broker."""
        self._forget()
        super().collect()

    def _forget(self) -> None:
        if self._settlements is not None:
            self._settlements.close()
            self._settlements = None

    # Deliveries -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _delivered(delivery: Delivery) -> Delivered:
        message: Delivered = _new(Delivered)
        message._delivery = delivery
        return message

    def _reject_unclaimed(self, message: Delivered) -> None:
        """Return a delivery to its queue whose consumer has no callback, as py-amqp does."""
        info = message.delivery_info
        names = ("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key")
        self._on_basic_deliver(*(info[name] for name in names), message)

    def message_to_python(self, raw_message: Any) -> Any:
        """Return kombu's message for one of py-amqp's."""
        if type(raw_message) is not Delivered or self.Message is not Message or raw_message._delivery.is_compressed():
            return self.Message(raw_message, channel=self)
        message: Message = _new(Message)
        message.channel = self
        message._raw = raw_message
        message._delivery = raw_message._delivery
        return message

    def basic_consume(
        self, queue: str = "", consumer_tag: str = "", no_local: bool = False, no_ack: bool = False,
        exclusive: bool = False, nowait: bool = False, callback: Any = None, arguments: Any = None,
        on_cancel: Any = None, argsig: str = "BssbbbbF",
    ) -> Any:  # fmt: skip
        """Start a consumer."""
        tag = super().basic_consume(
            queue, consumer_tag, no_local, no_ack, exclusive, nowait, callback, arguments, on_cancel, argsig
        )
        if self._settlements is not None:
            self._settlements.consume(tag, bool(no_ack))
        return tag

    def basic_get(self, queue: str = "", no_ack: bool = False, argsig: str = "Bsb") -> Any:
        """Request one message."""
        if self._settlements is not None:
            self._settlements.get(bool(no_ack))
        return super().basic_get(queue, no_ack, argsig)

    def basic_qos(self, prefetch_size: int, prefetch_count: int, a_global: bool, argsig: str = "lBb") -> Any:
        """Limit what is delivered and not acknowledged."""
        answer = super().basic_qos(prefetch_size, prefetch_count, a_global, argsig)
        if self._settlements is not None:
            self._settlements.window = int(prefetch_count)
        return answer

    # Settlements ------------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: int, multiple: bool = False, argsig: str = "Lb") -> Any:
        """Acknowledge deliveries."""
        settlements = self._settlements
        usual = settlements is not None and type(delivery_tag) is int and 0 < delivery_tag < 1 << 63
        if usual and settlements.ack(delivery_tag, bool(multiple)):
            return _sent()
        return super().basic_ack(delivery_tag, multiple, argsig)

    def basic_reject(self, delivery_tag: int, requeue: bool, argsig: str = "Lb") -> Any:
        """Reject a delivery."""
        sent = super().basic_reject(delivery_tag, requeue, argsig)
        if self._settlements is not None:
            self._settlements.settled(delivery_tag)
        return sent

    def basic_recover(self, requeue: bool = False) -> Any:
        """Have the broker take back what is not acknowledged."""
        sent = super().basic_recover(requeue)
        if self._settlements is not None:
            self._settlements.recovered()
        return sent

    def basic_recover_async(self, requeue: bool = False) -> Any:
        """Have the broker take back what is not acknowledged."""
        sent = super().basic_recover_async(requeue)
        if self._settlements is not None:
            self._settlements.recovered()
        return sent

    def tx_select(self) -> Any:
        """Begin transactions: from now on py-amqp acknowledges, as the broker may undo it."""
        if self._settlements is not None and self.connection is not None:
            self.connection._link.flush()
            self._settlements.immediate = True
        return super().tx_select()

    # Publishing -------------------------------------------------------------------------------------------------------

    def confirm_select(self, nowait: bool = False) -> Any:
        """Have the broker confirm what is published."""
        answer = super().confirm_select(nowait)
        if self._settlements is not None:
            self._settlements.select()
        return answer

    def _confirming(self) -> Any:
        """Return what counts confirms; from now on the broker sends them."""
        if self.connection is None:
            raise RecoverableConnectionError("basic_publish: connection closed")
        if not self._settlements.confirms:
            self._confirm_selected = True
            self.confirm_select()
        return self._settlements

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return a batch, for ``Producer.batch()``: its messages are confirmed together."""
        return PublishBatch(self, max_size)

    @property
    def supports_batch_publish(self) -> bool:
        """Whether batches are confirmed together, or each message is published at once."""
        return self._settlements is not None

    def _on_basic_ack(self, delivery_tag: int, multiple: bool) -> None:
        if self._settlements is not None:
            self._settlements.confirm(delivery_tag, multiple, False)
        super()._on_basic_ack(delivery_tag, multiple)

    def _on_basic_nack(self, delivery_tag: int, multiple: bool) -> None:
        if self._settlements is not None:
            self._settlements.confirm(delivery_tag, multiple, True)
        super()._on_basic_nack(delivery_tag, multiple)

    def _post(
        self, index: int, message: Any, exchange: str = "", routing_key: str = "", mandatory: bool = False,
        immediate: bool = False, timeout: float | None = None, confirm_timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Publish a message of a batch; it may wait for others."""
        arguments = (exchange, routing_key, mandatory)
        if immediate or not self.connection._link.publish(self.channel_id, message, *arguments, True):
            self.send_method(spec.Basic.Publish, "Bssbb", (0, *arguments, immediate), message)
        self._settlements.post(index)

    def _basic_publish(
        self, msg: Any, exchange: str = "", routing_key: str = "", mandatory: bool = False, immediate: bool = False,
        timeout: float | None = None, confirm_timeout: float | None = None, argsig: str = "Bssbb",
    ) -> Any:  # fmt: skip
        connection = self.connection
        if not connection:
            raise RecoverableConnectionError("basic_publish: connection closed")
        link = connection._link
        if link is None:
            return super()._basic_publish(
                msg, exchange, routing_key, mandatory, immediate, timeout, confirm_timeout, argsig
            )
        connection._look()
        usual = timeout is None and not immediate
        if usual and link.publish(self.channel_id, msg, exchange, routing_key, mandatory):
            connection.bytes_sent += 1
            sent = _sent()
        else:
            sent = self._publish_by_py_amqp(timeout, argsig, (0, exchange, routing_key, mandatory, immediate), msg)
        if self._settlements is not None:
            self._settlements.post()
        return sent

    def _publish_by_py_amqp(self, timeout: float | None, argsig: str, arguments: tuple[Any, ...], msg: Any) -> Any:
        try:
            with self.connection.transport.having_timeout(timeout):
                return self.send_method(spec.Basic.Publish, argsig, arguments, msg)
        except TimeoutError:
            raise RecoverableConnectionError("basic_publish: timed out") from None

    basic_publish = _basic_publish


class Connection(pyamqp.Connection):  # type: ignore[misc]
    """A connection of py-amqp's that reads and writes by compiled code."""

    Channel = Channel
    #: A `Link`, or None: not connected, or by a transport that has no socket.
    _link: Any = None
    #: The transport and the event loop.
    _hub: Any = None
    _turn_is_due = False
    #: Whether no other socket takes the place of Python's, as gevent's does, and none has a timeout of its own.
    _waits_compiled = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frame_writer_cls: Any = partial(self._make_writer, self.frame_writer_cls)

    def _make_writer(self, make: Any, connection: Any, transport: Any) -> Any:
        if not isinstance(transport, TCP | TLS):
            return make(connection, transport)
        # TLS is Python's socket's, which must not be used by two threads at once: its settlements do not wait.
        socket = transport.sock.fileno() if isinstance(transport, TCP) else -1
        self._waits_compiled = (
            socket >= 0 and isinstance(transport.sock, PlainSocket) and transport.read_timeout is None
        )
        self._link = Link(transport, socket, threading.RLock(), TIMER.wake, (amqp.Message, Delivered))
        TIMER.add(self._link)
        return partial(self._link.write, make(connection, transport))

    def _on_tune(self, *args: Any, **options: Any) -> None:
        super()._on_tune(*args, **options)
        if self._link is not None:
            self._link.longest = self.frame_max - 8

    def collect(self) -> None:
        """Tear down the connection without asking the broker."""
        if self._link is not None:
            self._link.leave()
            self._link = None
        self._hub = None
        super().collect()

    # Reading ----------------------------------------------------------------------------------------------------------

    def drain_events(self, timeout: float | None = None) -> None:
        """Handle one method, waiting for it if need be.

        Raises
        ------
        TimeoutError
            If none has arrived in time.
        """
        while not self.blocking_read(timeout):
            pass

    def blocking_read(self, timeout: float | None = None) -> bool:
        """Handle what was read, or else read and handle; return whether a method was handled."""
        transport = self.transport  # connects, if that was forgotten
        link = self._link
        if link is None:
            handled: bool = super().blocking_read(timeout)
            return handled
        handled = link.step(self)
        if not handled:
            self._receive(transport, link, timeout)
            handled = link.step(self)
        if self._hub is not None and link.buffered:
            self._have_turn()
        return handled

    def _receive(self, transport: Any, link: Link, timeout: float | None) -> None:
        """Read from the socket, waiting for it if need be."""
        link.flush()
        found = link.fill()
        if found == 0:
            found = self._await(transport, link, timeout)
        if found < 0:
            found = self._receive_by_python(transport, link, timeout)
        self.bytes_recv += found > 0

    def _await(self, transport: Any, link: Link, timeout: float | None) -> int:
        """Wait for the socket and read; return what `Link.fill` does."""
        if timeout == 0:
            raise TimeoutError
        if not self._waits_compiled or transport.sock.gettimeout() is not None:
            return -1
        if not link.wait(-1 if timeout is None else timeout):
            raise TimeoutError("timed out")
        return link.fill()

    def _receive_by_python(self, transport: Any, link: Link, timeout: float | None) -> int:
        """Have Python's socket wait and read: one over TLS, or of gevent or eventlet, or one that fails."""
        try:
            with transport.having_timeout(timeout) as sock:
                data = sock.recv(link.wanted())
        except TimeoutError:
            raise
        except OSError as error:
            if error.errno in _NOTHING_TO_READ:
                raise TimeoutError from None
            transport.connected = False
            raise
        if not data:
            transport.connected = False
            raise OSError("Server unexpectedly closed connection")
        link.add(data)
        return len(data)

    def _unended(self, octet: int) -> None:
        raise UnexpectedFrame(f"Received frame_end {octet:#04x} while expecting 0xce")

    def _look(self) -> None:
        """Handle a method that has arrived, as py-amqp does before it publishes: the broker may have blocked it."""
        if not self.client_properties.get("capabilities", {}).get("connection.blocked", False):
            return
        link = self._link
        if link.buffered == 0 and link.fill() == 0:
            return  # as nearly always
        try:
            self.drain_events(timeout=0)
        except TimeoutError:
            pass

    def on_inbound_method(self, channel_id: int, method_sig: tuple[int, int], payload: bytes, content: Any) -> Any:
        """Dispatch a method that was read by py-amqp."""
        record = _RECORDED.get(method_sig)
        if record is not None and self._link is not None and self.channels is not None:
            settlements = getattr(self.channels[channel_id], "_settlements", None)
            if settlements is not None:
                record(settlements, payload)
        return super().on_inbound_method(channel_id, method_sig, payload, content)

    # The event loop ---------------------------------------------------------------------------------------------------

    def _have_turn(self) -> None:
        """Have the event loop handle what was read: the socket does not call it for that."""
        if not self._turn_is_due:
            self._turn_is_due = True
            _transport, loop = self._hub
            loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        if self._hub is not None:
            transport, loop = self._hub
            transport.on_readable(self, loop)


def _record_delivery(settlements: Settlements, payload: bytes) -> None:
    end = 5 + payload[4]
    settlements.deliver(_TAG.unpack_from(payload, end)[0], payload[5:end].decode("utf-8", "surrogatepass"))


#: What the channel has to record of methods that py-amqp reads.
_RECORDED: dict[tuple[int, int], Any] = {
    spec.Basic.Deliver: _record_delivery,
    spec.Basic.GetOk: lambda settlements, payload: settlements.got(_TAG.unpack_from(payload, 4)[0]),
    spec.Basic.GetEmpty: lambda settlements, payload: settlements.got(None),
}


class Transport(pyamqp.Transport):  # type: ignore[misc]
    """A transport of kombu's for RabbitMQ, with the surface of py-amqp's.

    Notes
    -----
    Give it to Celery as ``broker_transport = "fairsched.integrations.kombu:Transport"``, to kombu as
    ``Connection(url, transport="fairsched.integrations.kombu:Transport")``.
    """

    Connection = Connection
    driver_name = "fairsched"
    implements = pyamqp.Transport.implements.extend(batch_publish=True)

    def driver_version(self) -> str:
        """Return the version of fairsched."""
        return __version__

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have an event loop handle what arrives."""
        super().register_with_event_loop(connection, loop)
        connection._hub = (self, loop)
        if connection._link is not None and connection._link.buffered:
            connection._have_turn()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo that."""
        connection._hub = None
        super().unregister_from_event_loop(connection, loop)

    def _make_reader(self, connection: Any, *_args: Any) -> Any:
        def read(_loop: Any) -> None:
            if not connection.connected:
                raise RecoverableConnectionError("Socket was disconnected")
            try:
                for _ in range(TURN):
                    connection.drain_events(timeout=0)
                    if not connection.connected:
                        return
            except TimeoutError:
                return
            except OSError as error:
                if error.errno not in _NOTHING_TO_READ:
                    raise
                return
            connection._have_turn()

        return read


class SSLTransport(pyamqp.SSLTransport, Transport):  # type: ignore[misc]
    """The same over TLS."""


# The schemes fairsched:// and fairscheds:// of URLs, once this module is imported.
TRANSPORT_ALIASES.update({"fairsched": f"{__name__}:Transport", "fairscheds": f"{__name__}:SSLTransport"})
# What a connection writes as its URL.
resolve_aliases.update({f"{__name__}:Transport": "amqp", f"{__name__}:SSLTransport": "amqps"})
