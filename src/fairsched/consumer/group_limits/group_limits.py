"""The connection of a process to the others that have the same limits, and to their keeper."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from pika import BasicProperties

from fairsched.amqp.session import Session
from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.amqp.side_connection import SideConnection
from fairsched.consumer.group_limits.holder import Holder
from fairsched.consumer.group_limits.limit_message import GroupLimit, Message, decode, encode
from fairsched.consumer.group_limits.member import ASKS, BEATS, GOT, NEWS, OLDEST, Member
from fairsched.consumer.log_limit import LogLimit
from fairsched.consumer.sharing.share_message import slot_name
from fairsched.errors import ConfigurationError, ConnectionFailed, FairschedError
from fairsched.scheduling._permits import Permits

if TYPE_CHECKING:
    from pika.channel import Channel

    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.worker_queues import WorkerQueues
    from fairsched.scheduling.limit import Limit

_log = logging.getLogger(__name__)

#: What the names of exchanges and of the keeper's queue begin with.
PREFIX = "fairsched.limits."
#: Seconds of the heartbeat: a keeper that is cut off in silence is replaced after two of them.
HEARTBEAT = 5
#: Longest delay of an attempt to connect again, in seconds: well below keeper.RETURN.
LONGEST_PAUSE = 1.0
#: Seconds for which the last message of a connection may be on its way.
LEAVING = 0.2
#: Milliseconds for which messages wait for a keeper, and the keeper's queue for members.
_MESSAGE_TTL, _QUEUE_EXPIRES = int(OLDEST * 1000), 3_600_000
#: Seconds for which a handler may run after its connection failed, unless there are time limits: RabbitMQ's
#: consumer_timeout.
LEASE = 1_800.0


def group_limit(limit: Limit | None) -> GroupLimit | None:
    """Return a limit as the group knows it; None if it is none of the group."""
    if limit is None or limit.scope != "group":
        return None
    return GroupLimit(limit.concurrency or 0, limit.interval_ns, limit.burst or 1)


class GroupLimits(SideConnection):
    """Keeps limits with ``scope="group"`` together with the other processes of a share group.

    Parameters
    ----------
    name : str
        Of the group.
    settings : ConsumerSettings
        Where the broker is, and the limits at first.
    worker_queues : WorkerQueues
        What is limited: a single one.

    Notes
    -----
    It has a connection and a thread of its own (`SideConnection`). While the broker cannot be reached, no message of a
    limited slot begins; messages in hand go on. Its clock stands still while it is not connected: what other processes
    did in that time is not known.

    `start`, `end` and `take` are for the owner. `wake` is safe from any thread, as are figures, which are single
    references and copies made in one step. All else belongs to the thread.
    """

    def __init__(self, name: str, settings: ConsumerSettings, worker_queues: WorkerQueues) -> None:
        super().__init__(settings.urls, "fairsched-limits", heartbeat=HEARTBEAT, longest_pause=LONGEST_PAUSE)
        self._exchange = PREFIX + name
        self._keepers = f"{self._exchange}.keeper"
        if not is_short_string(self._keepers):
            most = LONGEST - len(self._keepers.encode()) + len(name.encode())
            raise ConfigurationError(f"share_group of limits must be at most {most} bytes of text, got {name!r}")
        self._settings = settings
        self._permits = Permits(worker_queues.only())
        self.identity = uuid.uuid4().hex
        limits = settings.time_limits.values()
        lease = 2 * max(limits) if limits and len(limits) == len(settings.queues) else LEASE
        self._holder = Holder(self.identity, lease, self._permits, slot_name, self._limit_of)
        self._member = Member(self._exchange, self._holder, worker_queues, self._permits, self._say, self._send)
        self._log = LogLimit()
        self._properties = BasicProperties(content_type="application/json", app_id=self.identity)
        self._inbox: deque[tuple[str, bytes]] = deque()
        self._gone: deque[str] = deque()
        #: Slots that the others have to be told of, with seconds; any thread appends.
        self._throttles: deque[tuple[str, float]] = deque()
        self._woken = False
        #: Whether the broker takes no messages for now: it is short of memory or disk.
        self._blocked = False
        #: Seconds for which this was not connected, in all, and since when.
        self._away, self._left = 0.0, time.monotonic()
        self._channel: Channel
        self._permits.call_when_short(self.wake)

    def take(self, settings: ConsumerSettings) -> None:
        """Take the limits of other queues."""
        self._settings = settings

    def _limit_of(self, slot: Hashable) -> GroupLimit | None:
        return group_limit(self._settings.limit_of(slot))

    def permits_of(self, slot: Hashable) -> int | None:
        """Return how many messages of a slot may be in hand here; None: its limit, if any, is not of the group."""
        limit = self._limit_of(slot)
        use = None if limit is None or not limit.concurrency else self._permits.use(slot)
        return None if use is None else use.permits

    def figures(self) -> dict[str, int]:
        """Return numbers: names and permits held, whether this is the keeper, and then of what; from any thread."""
        keeper = self._member.keeper
        return {
            **self._holder.figures(),
            "keeper": int(keeper is not None),
            **({"members": 1 + len(self._holder.peers)} if keeper is None else keeper.figures()),
        }

    def throttle(self, slot: Hashable, seconds: float) -> None:
        """Have the other processes let a slot take no turns for so long, if they can be told now; from any thread."""
        if self.connected:
            self._throttles.append((slot_name(slot), seconds))
            self.wake()

    def wake(self) -> None:
        """Have the thread look at slots that are short of permits; from any thread."""
        self._woken = True
        session = self._session
        if session is not None:
            session.wake()

    # The thread --------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._away

    def _lose(self, error: BaseException) -> None:
        if not isinstance(error, FairschedError | KeyboardInterrupt):
            _log.error("the limits of group %s failed", self._exchange, exc_info=error)
        if self._log.due("lost"):
            _log.warning(
                "messages under limits of the group %s wait until the broker can be used: %s", self._exchange, error
            )

    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Tell, hear, and keep if the broker says so, until the connection is lost or this is ended."""
        self._inbox.clear()
        self._gone.clear()
        self._blocked = False
        session.transport.add_on_connection_blocked_callback(lambda *_: setattr(self, "_blocked", True))
        session.transport.add_on_connection_unblocked_callback(lambda *_: setattr(self, "_blocked", False))
        self._channel = channel = session.channel()
        queue = self._declare(session, channel)
        self._away += time.monotonic() - self._left
        try:
            self._member.joined(queue, self._now())
            working()
            while not self.over():
                self._step()
                if not self._blocked and self._member.is_cut_off(self._now()):
                    self._leave_alive(session)
                session.serve_until(self._has_work, self._member.wait(self._now()))
        finally:
            self._left = time.monotonic()
            self._member.lost()
            if channel.is_open and self._holder.is_idle():
                self._say(BEATS, self._holder.bye())

    def _leave_alive(self, session: Session) -> None:
        """Connect anew: nothing has come back for a while."""
        self._member.leave_alive()
        session.serve_until(self.over, LEAVING)  # which sends what was said
        raise ConnectionFailed(f"{session.address}: nothing that was published to {self._exchange} came back")

    def _declare(self, session: Session, channel: Channel) -> str:
        """Declare what this needs, and consume it; return the name of the own queue."""
        exchange, keepers = self._exchange, self._keepers
        arguments = {
            "x-single-active-consumer": True, "x-message-ttl": _MESSAGE_TTL, "x-expires": _QUEUE_EXPIRES,
        }  # fmt: skip
        _, _, declared = session.call(
            [
                partial(channel.exchange_declare, exchange, "direct", durable=True, auto_delete=True),
                partial(channel.queue_declare, keepers, durable=True, arguments=arguments),
                partial(channel.queue_declare, "", exclusive=True),
            ],
            f"limits of group {exchange}",
        )
        queue: str = declared.method.queue
        bindings = [(queue, BEATS), (queue, NEWS), (queue, GOT), (keepers, BEATS), (keepers, ASKS)]
        session.call([partial(channel.queue_bind, whose, exchange, key) for whose, key in bindings], "queue.bind")
        channel.add_on_cancel_callback(lambda _frame: session.fail(ConnectionFailed(f"a queue of {exchange} is gone")))
        channel.add_on_return_callback(self._on_return)
        channel.basic_consume(queue, partial(self._on_message, session, ""), auto_ack=True)
        channel.basic_consume(keepers, partial(self._on_message, session, keepers), auto_ack=True)
        return queue

    def _has_work(self) -> bool:
        return bool(self._inbox or self._gone or self._woken) or self.over()

    def _step(self) -> None:
        """Take what was heard, and do what is due."""
        now = self._now()
        while self._inbox:
            self._hear(*self._inbox.popleft(), now)
        while self._gone:
            self._member.undeliverable(self._gone.popleft(), now)
        short, self._woken = self._woken, False
        while self._throttles:
            self._member.throttle(*self._throttles.popleft())
        self._member.step(short, now)

    # Messages ----------------------------------------------------------------------------------------------------

    def _say(self, key: str, message: Message) -> None:
        self._channel.basic_publish(self._exchange, key, encode(message), self._properties)

    def _send(self, queue: str, message: Message) -> None:
        self._channel.basic_publish("", queue, encode(message), self._properties, mandatory=True)

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._gone.append(method.routing_key)

    def _on_message(
        self, session: Session, queue: str, _channel: Any, method: Any, properties: Any, body: bytes
    ) -> None:
        self._inbox.append((queue, body))
        key = method.routing_key
        if key != BEATS and (
            key != GOT or properties.app_id == self.identity
        ):  # the others can wait until the next step
            session.stop()

    def _hear(self, queue: str, body: bytes, now: float) -> None:
        try:
            message = decode(body)
        except ValueError as error:
            if self._log.due("message"):
                _log.warning("limits of group %s: message ignored: %s", self._exchange, error)
            return
        if queue:
            self._member.hear_as_keeper(message, now)
        else:
            self._member.hear(message, now)
