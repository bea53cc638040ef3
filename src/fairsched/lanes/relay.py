"""Move the messages of an ingress queue to lanes: consume, publish with confirms, acknowledge.

Two threads: the caller of `Relay.run` is the *mover*, which takes messages in batches and publishes them. The *settler*
waits until the broker has confirmed a batch, and acknowledges its messages in the ingress queue. What limits the number
of messages here is the window of the consumer. What happens when a lane refuses a message: `fairsched.lanes.backlogs`.

Nothing is lost, because a message is acknowledged only once its copy is confirmed. A message is repeated if the relay
dies, or loses the connection, in between.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched.amqp._ackledger import AckLedger
from fairsched.amqp._publishing import Confirmation, are_confirmed
from fairsched.amqp.flag import Flag
from fairsched.amqp.session import Session
from fairsched.amqp.urls import check_urls
from fairsched.config.queues import Queue, thawed
from fairsched.consumer.consumer import Consumer
from fairsched.consumer.declarations import QueueLocked
from fairsched.consumer.keys import key_function
from fairsched.consumer.state import ConsumerState
from fairsched.delivery._settling import settle_all
from fairsched.errors import ConfigurationError, ConnectionFailed, PublishFailed, RequestRefused, ShutDown
from fairsched.lanes.backlogs import Backlogs
from fairsched.lanes.ingress import is_stream
from fairsched.lanes.moved_properties import MovedProperties
from fairsched.publisher.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairsched.config.lanes import Lanes
    from fairsched.delivery._delivery import Message

__all__ = ["Relay"]

_log = logging.getLogger(__name__)

#: Messages that are taken together, at most.
_BATCH = 512
#: After a batch of fewer messages, the next one begins this many seconds after it, or a period of the I/O thread if
#: that is longer: a thread that is woken for a few messages costs more than they do.
_MANY, _PAUSE = 256, 0.01
#: Longest time in seconds for which the I/O threads leave what comes in their sockets while there are many messages.
_REST = 0.04
#: Bytes of unsettled messages, which are held twice: as they came, and as they are published.
_MOST_BYTES = 64 << 20
#: Longest time for the broker to take what was settled when a relay with order leaves, in seconds.
_LEAVE = 5.0
#: Longest time until the settler looks whether the time for a stop is over, in seconds.
_LOOK = 0.25
#: Longest time until a relay that stands by tries to consume, in seconds.
_STANDBY = 1.0
#: The part of an answer of the broker that says that another consumer is exclusive.
_EXCLUSIVE = "in exclusive use"
#: Values of the argument ``x-overflow`` with which a lane refuses messages when it is full.
_REFUSING = frozenset(("reject-publish", "reject-publish-dlx"))


class _Batch(NamedTuple):
    """Messages that were taken together, in the order of the ingress queue.

    `outcomes` has for each a `Confirmation`, None if it is left to the backlog of its lane, or why it could not be
    published; `plain` says that all are of the first kind.
    """

    number: int
    messages: list[Message]
    lanes: list[str]
    outcomes: list[Any]
    plain: bool


class Relay:
    """Move the messages of the queue `lanes.name` to the lanes.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://`` URL; several URLs are tried in turn.
    lanes : Lanes
        The lanes, whose name is that of the ingress queue. With ``ordered=True``, one relay at a time moves messages,
        and all others stand by: the order of a tenant's messages is that of the ingress queue whichever relay moves
        them. Otherwise several relays divide the messages, and each keeps the order of those it moves.
    window : int
        Maximum number of messages here, from 1 to 65 535.
    shutdown_timeout : float
        Maximum time for a stop, in seconds. What is not confirmed then returns to the ingress queue.
    connect_timeout : float
        Seconds to wait for the first connection.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names it.

    Notes
    -----
    At least once: a message is acknowledged when the broker has confirmed its copy, so a fault may repeat messages, and
    loses none. Within a lane, the copies have the order of the ingress queue. A broker that refuses a message, because
    its lane is full, may have taken later ones: these are published once more behind it. If `lanes.arguments` say
    ``x-overflow: reject-publish``, a lane gets one message at a time, and nothing overtakes.

    A copy has body and properties of its message, byte for byte, with the exceptions in
    `fairsched.lanes.moved_properties`. Its exchange is the default exchange, its routing key the lane.

    `run` is for one thread; the other methods are safe from any thread.

    Examples
    --------
    >>> relay = Relay(url, Lanes("orders", key="header:tenant"))  # doctest: +SKIP
    >>> with graceful(relay.stop):  # doctest: +SKIP
    ...     relay.run()
    """

    def __init__(
        self,
        url: str | Sequence[str],
        lanes: Lanes,
        *,
        window: int = 2000,
        shutdown_timeout: float = 30.0,
        connect_timeout: float = 30.0,
    ) -> None:
        self.urls = check_urls(url)
        self.lanes = lanes
        self._shutdown_timeout, self._connect_timeout = shutdown_timeout, connect_timeout
        self._queue = Queue(lanes.name, prefetch=window, exclusive=lanes.ordered)
        #: The consumer of the present, or next, attempt to consume.
        self.consumer = self._new_consumer()
        # The window of the publisher has room for all that the consumer has here, and for what is published again.
        # Nothing but a stop ends a wait for room: a broker may block publishers for hours.
        self._publisher = Publisher(
            self.urls,
            confirm_window=2 * window,
            confirm_timeout=threading.TIMEOUT_MAX,
            connect_timeout=connect_timeout,
            lanes=lanes,
        )
        self._spread = self._publisher._client.spreads[lanes.name]
        self._tenant_of = key_function(lanes.key)
        self._properties = MovedProperties(self.urls)
        self._one_at_a_time = (lanes.arguments or {}).get("x-overflow") in _REFUSING
        self._changed = Flag()
        self._backlogs = Backlogs(
            self._publish_again, self._wake, self._acknowledge, self._count_refusal, self._one_at_a_time
        )
        self._posted: deque[_Batch] = deque()
        self._watched: Confirmation | None = None
        #: Messages that the mover could not publish.
        self._unpublishable = 0
        self._stopping = Flag()
        self._stops = 0
        self._deadline = math.inf
        #: Whether the mover has ended; whether that was an error; and whether the time for a stop is over.
        self._ended = self._failed = self._gave_up = False
        self._error: BaseException | None = None
        self._counts = {"moved": 0, "repeated": 0, "refused": 0}

    # From any thread ---------------------------------------------------------------------------------------------

    def stop(self, now: bool = False) -> None:
        """Ask the relay to stop: take no more messages, move those that are here, acknowledge them, and end.

        Parameters
        ----------
        now : bool
            Return the messages to the ingress queue that are not published yet.

        Notes
        -----
        Returns at once. Messages that wait for a lane that refuses them return to the ingress queue. A second call
        waits for no confirm any more: copies that were published may be repeated.
        """
        self._deadline = min(self._deadline, time.monotonic() + self._consumer_time())
        self._stops += 1
        self._stopping.set()
        if not self.lanes.ordered:
            self.consumer.stop(now)
        self._changed.set()

    def _consumer_time(self) -> float:
        """Return the seconds that a stop has until the consumer closes."""
        return 0.8 * self._shutdown_timeout

    def stats(self) -> dict[str, int]:
        """Return counters.

        Returns
        -------
        dict
            Numbers of messages that were ``moved``: confirmed and acknowledged; ``repeated``: published once more,
            because an earlier one of their lane was refused; ``refused`` by lanes; and ``waiting`` now for lanes that
            refused one.
        """
        return {**self._counts, "waiting": self._backlogs.waiting()}

    @property
    def state(self) -> ConsumerState:
        """State of the consumer of the ingress queue, as from `Consumer.state`."""
        return self.consumer.state

    # Beginning and end -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Move messages until `stop`.

        Raises
        ------
        QueueNotFound
            If the ingress queue does not exist.
        ConnectionFailed
            If no broker can be reached, or it refuses the connection.
        ConfigurationError
            If a lane exists with other arguments, or the ingress queue is a stream. Nothing has been moved then.
        PublishFailed
            If publishing cannot continue, for example because the broker refuses the connection after a restart.
            Messages that are not confirmed return to the ingress queue.
        """
        self._publisher.open()
        settler = threading.Thread(target=self._run_settler, name="fairsched-relay", daemon=True)
        try:
            self._declare()
            with self._consuming() as consumer:
                _log.info(
                    "moving messages of queue %r to %d lanes by %s",
                    self.lanes.name, self.lanes.buckets, self.lanes.key,
                )  # fmt: skip
                settler.start()
                try:
                    self._move_all(consumer)
                except BaseException:
                    self._failed = True
                    raise
                finally:
                    self._ended = True
                    self._changed.set()
                    settler.join()
                    if self.lanes.ordered:
                        consumer._client.io_thread.leave()
                        consumer._client.io_thread.close(_LEAVE)
        finally:
            self._publisher._client.end()
            _log.info(
                "the relay of queue %r is closed: %d messages moved, %d refused, %d repeated",
                self.lanes.name, self._counts["moved"], self._counts["refused"], self._counts["repeated"],
            )  # fmt: skip
        if self._error is not None:
            raise self._error

    def _declare(self) -> None:
        """Declare the buckets, unless the ingress queue is a stream."""
        problem: ConnectionFailed | None = None
        for url in self.urls:
            session = Session(url)
            try:
                session.open()
                if is_stream(session, self.lanes.name):
                    raise ConfigurationError(
                        f"queue {self.lanes.name!r} is a stream, which keeps its messages: they cannot be moved to "
                        "lanes; have producers publish to a classic or quorum queue, or to the lanes"
                    )
                channel = session.channel()
                requests = [self._declaration(channel, name) for name in self.lanes.bucket_names]
                session.call(requests, "queue.declare")
            except RequestRefused as error:
                raise ConfigurationError(
                    f"the lanes of {self.lanes.name!r} cannot be declared with arguments "
                    f"{thawed(self.lanes.arguments or {})}: {error}"
                ) from error
            except ConnectionFailed as error:
                problem = error
            else:
                return
            finally:
                session.close()
        assert problem is not None
        raise problem

    def _declaration(self, channel: Any, name: str) -> Callable[..., Any]:
        queue = self.lanes.queue(name)

        def declare(callback: Callable[..., Any]) -> None:
            channel.queue_declare(name, durable=True, arguments=queue.all_arguments, callback=callback)

        return declare

    def _new_consumer(self) -> Consumer:
        consumer = Consumer(
            self.urls,
            [self._queue],
            # With a limit the window changes, and each window takes another consumer: an exclusive one cannot have it.
            max_buffer_bytes=None if self.lanes.ordered else _MOST_BYTES,
            shutdown_timeout=self._shutdown_timeout,
            connect_timeout=self._connect_timeout,
        )
        if self.lanes.ordered:  # quorum queues ignore that a consumer is exclusive
            consumer._client.settings.lock = self.lanes.relay_lock
        return consumer

    @contextlib.contextmanager
    def _consuming(self) -> Iterator[Consumer]:
        """Consume the ingress queue; while another relay does, and keeps the order, stand by."""
        waited = False
        while True:
            consumer = self.consumer
            try:
                consumer.__enter__()
            except ConnectionFailed as error:
                if not isinstance(error, QueueLocked) and not (self.lanes.ordered and _EXCLUSIVE in str(error)):
                    raise
                if not waited:
                    waited = True
                    _log.info("another relay moves the messages of queue %r: standing by", self.lanes.name)
                self._stopping.wait(random.uniform(0.5, 1.0) * _STANDBY)
                self.consumer = self._new_consumer()
                if self._stopping.is_set():
                    self.consumer.stop()  # it is started all the same, and ends at once
                continue
            break
        with contextlib.ExitStack() as leaving:
            leaving.push(consumer)
            yield consumer

    # The mover ---------------------------------------------------------------------------------------------------

    def _move_all(self, consumer: Consumer) -> None:
        try:
            # The I/O threads need not be faster than the mover, which reads the socket itself although it pauses.
            consumer._client.io_thread.pace.rest = self._publisher._client.io_thread.pace.rest = _REST
            consumer._client.io_thread.settlements.lent.fast = 2 * max(_PAUSE, _REST)
            for messages in self._taken(consumer):
                began = time.monotonic()
                self._move(messages, began)
                if len(messages) < _MANY:
                    pause = max(_PAUSE, consumer._client.io_thread.pace.period)
                    self._stopping.wait(max(0.0, began + pause - time.monotonic()))
        except (PublishFailed, RuntimeError):
            if not self._gave_up:  # otherwise the settler has closed the publisher
                raise

    def _taken(self, consumer: Consumer) -> Iterator[list[Message]]:
        """Yield the messages of the ingress queue until a stop."""
        if not self.lanes.ordered:
            yield from map(list, consumer.batches(_BATCH, 0))
            return
        # What is not published when the relay stops returns to the ingress queue with the connection.
        client = consumer._client
        with contextlib.suppress(ShutDown):
            while not self._stopping.is_set():
                messages = client.get_many(client.worker_queues.only(), _BATCH, _LOOK)
                if messages:
                    yield messages
        if client.error is not None:
            raise client.error

    def _move(self, messages: list[Message], now: float) -> None:
        """Publish messages, except those of lanes that have a backlog."""
        number, backlogs = self._backlogs.begin_batch()
        tenants = list(map(self._tenant_of, messages))
        lanes = self._place(tenants, now)
        outcomes: list[Any] = []
        plain = False
        if self._one_at_a_time:
            outcomes += [None] * len(messages)
        elif not backlogs:
            failed = self._unpublishable
            outcomes += self._publish_all(messages, lanes, tenants)
            plain = self._unpublishable == failed
        else:
            for message, lane, tenant in zip(messages, lanes, tenants, strict=True):
                backlog = backlogs.get(lane)
                if backlog is None:
                    outcomes.append(self._publish(message, lane, tenant))
                else:
                    backlog.left += 1
                    outcomes.append(None)
        self._posted.append(_Batch(number, messages, lanes, outcomes, plain))
        self._changed.set()

    def _place(self, tenants: list[Hashable], now: float) -> list[str]:
        """Return the lane of each message. A tenant that these messages make hot has its own lane for them, too."""
        placement = self._spread.placement
        lanes = placement.place_many(tenants, now)
        if placement.opening:
            self._publisher._client.await_lanes()
            lanes = placement.lanes_of(tenants)
        return lanes

    def _publish_all(self, messages: list[Message], lanes: list[str], tenants: list[Hashable]) -> list[Any]:
        """Publish copies, waiting for room; return what `_publish` returns for each."""
        properties = self._properties.of_all(messages)
        bodies = [message.body for message in messages]
        places = list(zip(repeat(self._spread), tenants))
        window = self._publisher._client.window
        found: list[Any] = []
        while (count := len(found)) < len(messages):
            found += window.put_many(lanes, properties, bodies, places, count)
            if (count := len(found)) < len(messages):
                found.append(self._publish(messages[count], lanes[count], tenants[count]))
        return found

    def _publish(self, message: Message, lane: str, tenant: Hashable) -> Confirmation | Exception:
        """Publish a copy, waiting for room; return the error if there cannot be one."""
        body = message.body
        properties = self._properties.of(message, body)
        try:
            return self._publisher._put(("", lane, properties, body, True, (self._spread, tenant)))
        except ValueError as error:  # the backlog tries again, with less
            self._unpublishable += 1
            return error

    def _publish_again(self, message: Message, lane: str) -> Confirmation | None:
        """Publish a copy from a backlog; None: there is no room."""
        body, place = message.body, (self._spread, self._tenant_of(message))
        put = self._publisher._client.window.put
        properties = self._properties.of(message, body)
        try:
            found: Confirmation | None = put("", lane, properties, body, True, place, in_turn=True)
        except ValueError:
            properties = self._properties.shorter_of(message, body)
            found = put("", lane, properties, body, True, place, in_turn=True)
        return found

    # The settler -------------------------------------------------------------------------------------------------

    def _run_settler(self) -> None:
        try:
            self._settle_all()
        except BaseException as error:
            self._error = error
            _log.critical("the relay ended by %s", type(error).__name__, exc_info=error)
        if self._error is not None or self._gave_up:
            # Whatever the mover waits for: messages, or room in the window.
            self.consumer._client.abandon()
            self._publisher._client.end()

    def _settle_all(self) -> None:
        while not self._failed:
            self._changed.clear()
            if self._check_publisher():
                return
            self._settle_confirmed()
            wait = self._backlogs.go_on()
            if self._ended and not self._posted and self._is_done():
                break
            if time.monotonic() >= self._deadline or self._stops > 2:
                self._gave_up = True
                break
            self._changed.wait(min(wait, _LOOK) if self._stopping.is_set() else None if wait == math.inf else wait)
        self._hand_back()

    def _check_publisher(self) -> bool:
        """Return whether publishing has become impossible."""
        error = self._publisher._client.error
        if error is not None and self._error is None:
            self._error = PublishFailed(f"publishing cannot continue: {error}")
        return error is not None

    def _is_done(self) -> bool:
        """Return whether nothing is left that can be moved soon."""
        return not self._backlogs.is_under_way() and self._backlogs.is_refused()

    def _hand_back(self) -> None:
        """Return what waits for its lane to the ingress queue."""
        messages = self._backlogs.take_all()
        if messages:
            settle_all(messages, AckLedger.REQUEUE)
            _log.info("%d messages that wait for their lanes return to queue %r", len(messages), self.lanes.name)

    def _settle_confirmed(self) -> None:
        """Settle the batches that the broker has answered, in their order."""
        while self._posted:
            if not self._is_answered(self._posted[0]):
                return
            batch = self._posted.popleft()
            self._settle(batch)
            self._backlogs.settled(batch.number)

    def _is_answered(self, batch: _Batch) -> bool:
        """Return whether all messages of a batch are confirmed or have failed; otherwise be woken later."""
        # Most are answered in their order: when the last one is, the others are looked at.
        if batch.plain and batch.outcomes[-1].done() and are_confirmed(batch.outcomes):
            return True
        for one in reversed(batch.outcomes):
            if isinstance(one, Confirmation) and not one.done():
                if one is not self._watched:
                    self._watched = one
                    one.add_done_callback(self._wake)
                return False
        return True

    def _settle(self, batch: _Batch) -> None:
        backlogs = self._backlogs
        if batch.plain and not backlogs.found and are_confirmed(batch.outcomes):
            self._acknowledge(batch.messages)
            return
        confirmed: list[Message] = []
        for message, lane, outcome in zip(batch.messages, batch.lanes, batch.outcomes, strict=True):
            if outcome is None:
                backlog = backlogs.backlog_for(lane)
                backlog.waiting.append(message)
                backlog.taken += 1
            elif (error := _failure(outcome)) is not None:
                backlogs.refused(message, lane, error)
            elif (found := backlogs.found.get(lane)) is not None:
                self._counts["repeated"] += 1
                found.waiting.append(message)  # it has overtaken one that was refused
            else:
                confirmed.append(message)
        self._acknowledge(confirmed)

    def _acknowledge(self, messages: list[Message]) -> None:
        self._counts["moved"] += settle_all(messages, AckLedger.ACK)

    def _wake(self, _confirmation: object) -> None:
        self._changed.set()

    def _count_refusal(self) -> None:
        self._counts["refused"] += 1


def _failure(outcome: Confirmation | Exception) -> BaseException | None:
    """Return why a message was not published, if it was not."""
    return outcome.exception() if isinstance(outcome, Confirmation) else outcome
