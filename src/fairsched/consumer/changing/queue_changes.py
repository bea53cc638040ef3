"""Queues that are added and removed while the others are consumed: their channels, in the I/O thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from fairsched.consumer.declarations import wanted_queues
from fairsched.consumer.handling.retries import first_declarations
from fairsched.errors import ConfigurationError, ConnectionFailed, ShutDown

if TYPE_CHECKING:
    from pika.adapters.select_connection import IOLoop

    from fairsched.amqp.transport import Transport
    from fairsched.consumer.channel import ConsumerChannel
    from fairsched.consumer.channels import ConsumerChannels
    from fairsched.consumer.connections import Connections, QueueConnection
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.startup import Startup

_log = logging.getLogger(__name__)

#: Channels of added queues that are being opened at a time. A broker works on the consumers of a thousand queues for
#: a second, in which it should also deliver and take acknowledgements.
AT_ONCE = 64
#: How often additions that take too long are looked for, in seconds.
EXPIRY_PERIOD = 0.25

#: Called once, when a queue is consumed or removed: with None, or with the error.
Done = Callable[[BaseException | None], None]


def removed_early(queue: str) -> ConfigurationError:
    """Return the error of an addition that a removal overtook."""
    return ConfigurationError(f"queue {queue!r} was removed before it was consumed")


class ChangeEvents:
    """Events of queues that are added and removed; the I/O thread calls every method."""

    def return_messages(self, queues: Collection[str]) -> None:
        """Return the messages of queues that wait here: no more will come."""

    def queues_removed(self, queues: Collection[str]) -> None:
        """Forget queues: they could not be consumed, or were removed and have no messages here any more."""

    def changes_ended(self) -> None:
        """Let nothing wait for a queue any more: the thread has ended."""


class _Leaving:
    """A queue that is being removed."""

    __slots__ = ("channel", "closing", "done", "returned", "timer")

    def __init__(self, channel: ConsumerChannel | None, done: Done) -> None:
        self.channel = channel
        self.done = done
        #: Whether its deliveries have ended, and what was buffered is returned.
        self.returned = False
        #: Whether all its messages are settled, and the broker is asked whether it has heard so.
        self.closing = False
        self.timer: object = None


class QueueChanges:
    """Opens the channels of added queues and closes those of removed ones.

    Parameters
    ----------
    loop, connections, channels, startup
        Of the I/O thread.
    settings : ConsumerSettings
        Time-outs.
    owner : ChangeEvents
        Returns messages, and forgets queues.
    ended : callable
        ``ended(queue)``: no more deliveries of a queue will come. Queues those that have come.
    flush : callable
        Sends what is settled; `look` is called later.

    Notes
    -----
    Adding: the queue gets a place on a connection, is declared if it is to be, then consumed on a channel of its own,
    `AT_ONCE` queues at a time. An error ends the addition, and the queue is forgotten. After a lost connection the
    addition begins again, until `connect_timeout` is over.

    Removing: (1) its consumer is cancelled; (2) its buffered messages are returned; (3) messages in hand are settled,
    within `shutdown_timeout`; (4) the broker answers, so it has heard of the settlements; (5) the channel is closed,
    which returns the rest; (6) the queue is forgotten. A lost channel or connection leads to (6) at once.

    For the I/O thread alone. O(queues that are changing) a flush.
    """

    def __init__(
        self,
        loop: IOLoop,
        connections: Connections,
        channels: ConsumerChannels,
        startup: Startup,
        settings: ConsumerSettings,
        owner: ChangeEvents,
        ended: Callable[[str], None],
        flush: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._channels = channels
        self._startup = startup
        self._settings = settings
        self._owner = owner
        self._ended = ended
        self._flush = flush
        self._stopping = False
        #: What is told of each queue that is being added, and until when, on the clock of `time.monotonic`.
        self._adding: dict[str, tuple[Done, float]] = {}
        #: Whether the timer runs that gives up what takes too long.
        self._expiring = False
        #: Of these, the ones that are declared and wait to be opened, and those that the broker is asked for.
        self._waiting: deque[str] = deque()
        self._opening: set[str] = set()
        self._leaving: dict[str, _Leaving] = {}
        #: Of these, the ones whose channels are closed, and that are about to be forgotten together.
        self._gone: list[str] = []

    def take(self, settings: ConsumerSettings) -> None:
        """Take other settings."""
        self._settings = settings

    def is_changing(self, queue: str) -> bool:
        """Return whether a queue is being added or removed, and so opened by nothing else."""
        return queue in self._adding or queue in self._leaving

    def is_leaving(self, queue: str) -> bool:
        """Return whether a queue is being removed."""
        return queue in self._leaving

    @property
    def any_leaving(self) -> bool:
        """True while queues are being removed."""
        return bool(self._leaving)

    # Adding ------------------------------------------------------------------------------------------------------

    def add(self, wanted: Mapping[str, Done]) -> None:
        """Consume queues, which are in the settings already."""
        until = time.monotonic() + self._settings.options.connect_timeout
        self._adding.update({name: (done, until) for name, done in wanted.items()})
        if self._stopping:
            self._refuse_all(ShutDown("the consumer was stopped"))
            return
        self._expire_later()
        self._connections.place(wanted)
        self._begin(wanted)

    def connected(self, queues: Collection[str]) -> None:
        """Begin to consume those of some queues that are being added, on a connection that is open now."""
        self._begin([name for name in queues if name in self._adding])

    def _begin(self, names: Collection[str]) -> None:
        for name in names:
            one = self._connections.of(name)
            if (transport := one.transport) is None:
                continue  # until it is connected
            queue, retry = self._settings.queues[name], self._settings.retries.get(name)
            declared = wanted_queues({name: queue})
            if retry is not None:
                declared += first_declarations({name: retry})
            if declared:
                one.declarations.declare_all(declared, self._declared(transport, name))
            else:
                self._waiting.append(name)
        self._open_some()

    def _declared(self, transport: Transport, name: str) -> Done:
        def note(error: BaseException | None) -> None:
            one = self._connections.of(name)
            if one.transport is not transport or name not in self._adding:
                return
            if error is None:
                self._waiting.append(name)
                self._open_some()
            elif not isinstance(error, ConnectionFailed):  # else it is declared again on the next connection
                self._refuse({name: ConfigurationError(f"{error} ({one.connection.address})")})

        return note

    def _open_some(self) -> None:
        while self._waiting and len(self._opening) < AT_ONCE:
            name = self._waiting.popleft()
            transport = self._connections.of(name).transport
            if name not in self._adding or transport is None:
                continue
            if not self._channels.is_open(name):
                self._opening.add(name)
                self._channels.open(transport, name)
            elif self._channels.by_queue[name].subscribed:  # opened with the connection, before this addition came
                self._end_addition(name)
            else:
                self._opening.add(name)

    def _end_addition(self, name: str) -> None:
        done, _ = self._adding.pop(name)
        self._opening.discard(name)
        done(None)

    def confirmed(self, name: str) -> None:
        """Note that a queue is consumed."""
        if name in self._adding:
            self._end_addition(name)
            self._open_some()

    def refused(self, name: str, error: BaseException) -> bool:
        """Note that a queue cannot be consumed; False if it is not being added."""
        if name not in self._adding:
            return False
        self._refuse({name: error})
        return True

    def refused_all(self, queues: Collection[str], error: BaseException) -> bool:
        """Note that queues cannot be consumed; False, with nothing done, if one of them is not being added."""
        if any(name not in self._adding for name in queues):
            return False
        self._refuse(dict.fromkeys(queues, error))
        return True

    def _refuse(self, errors: Mapping[str, BaseException]) -> None:
        """Forget queues that cannot be consumed, and say of each why."""
        if not errors:
            return
        refused = [(self._adding.pop(name)[0], error) for name, error in errors.items()]
        self._opening.difference_update(errors)
        self._forget(errors)
        for done, error in refused:
            done(error)
        self._open_some()

    def _refuse_all(self, error: BaseException) -> None:
        self._refuse(dict.fromkeys(self._adding, error))

    def _expire_later(self) -> None:
        if not self._expiring:
            self._expiring = True
            self._loop.call_later(EXPIRY_PERIOD, self._expire)

    def _expire(self) -> None:
        """Give up what was not added in time."""
        self._expiring = False
        now = time.monotonic()
        self._refuse({name: self._too_late(name) for name, (_, until) in self._adding.items() if until <= now})
        if self._adding:
            self._expire_later()

    def _too_late(self, name: str) -> ConnectionFailed:
        connection = self._connections.of(name).connection
        return ConnectionFailed(
            f"queue {name!r} was not consumed on {connection.address} in time (connect_timeout); "
            f"last error: {connection.last_error or 'no answer'}"
        )

    # Removing ----------------------------------------------------------------------------------------------------

    def remove(self, name: str, done: Done, at_once: bool = False) -> None:
        """Stop consuming a queue, and call `done` when it is forgotten; `at_once`: begin with (5)."""
        adding = self._adding.pop(name, None)
        self._opening.discard(name)
        found = self._channels.by_queue.get(name)
        leaving = self._leaving[name] = _Leaving(found, done)
        if adding is not None:
            adding[0](removed_early(name))
        if found is None or not found.alive:
            self._finish([name])
            return
        if at_once:
            self._return(name, leaving)
            leaving.closing = True
            self._close(name, leaving)
            return
        if not found.single_active:  # else another consumer would get what is still being handled
            timeout = self._settings.options.shutdown_timeout
            leaving.timer = self._loop.call_later(timeout, lambda: self._expire_leaving(name, leaving))
        found.leave(lambda: self._cancelled(name, leaving))

    def _cancelled(self, name: str, leaving: _Leaving) -> None:
        """Return what is buffered, since deliveries have ended."""
        if not leaving.returned and self._leaving.get(name) is leaving:
            self._return(name, leaving)
            self._flush()
            self._look_at(name, leaving)

    def _return(self, name: str, leaving: _Leaving) -> None:
        leaving.returned = True
        self._ended(name)
        self._owner.return_messages({name})

    def look(self) -> None:
        """Close the channels of which everything is settled; to be called when something was sent."""
        for name, leaving in list(self._leaving.items()):
            self._look_at(name, leaving)

    def _look_at(self, name: str, leaving: _Leaving) -> None:
        found = leaving.channel
        if found is not None and leaving.returned and not leaving.closing and not found.busy:
            leaving.closing = True
            self._await_answer(name, leaving, found, found.settling_time())

    def _await_answer(self, name: str, leaving: _Leaving, found: ConsumerChannel, seconds: float) -> None:
        """Close a channel when the broker has answered, and unless `seconds` is 0 once more after that time."""

        def answered() -> None:
            if seconds:
                self._loop.call_later(seconds, lambda: self._await_answer(name, leaving, found, 0.0))
            else:
                self._close(name, leaving)

        if not found.await_settlements(answered):
            self._close(name, leaving)

    def _close(self, name: str, leaving: _Leaving) -> None:
        if self._leaving.get(name) is leaving and not (leaving.channel and leaving.channel.close()):
            self._finish([name])

    def _expire_leaving(self, name: str, leaving: _Leaving) -> None:
        """Close a channel although messages of it are in hand."""
        if self._leaving.get(name) is not leaving:
            return
        leaving.timer = None
        if not leaving.returned:
            self._return(name, leaving)
            self._flush()
        left = leaving.channel.unsettled if leaving.channel is not None else 0
        if left:
            _log.warning(
                "%d messages of queue %r, which was removed, were not settled within the shutdown timeout of %g s; "
                "they return to the queue", left, name, self._settings.options.shutdown_timeout,
            )  # fmt: skip
        leaving.closing = True
        self._close(name, leaving)

    def left(self, name: str) -> bool:
        """Note that the channel of a queue is closed; False if the queue is not being removed."""
        leaving = self._leaving.get(name)
        if leaving is None:
            return False
        # Each change of the settings is O(queues), and the channels of many may be closed at once.
        if not self._gone:
            self._loop.call_later(0, self._finish_gone)
        self._gone.append(name)
        return True

    def _finish_gone(self) -> None:
        gone, self._gone = self._gone, []
        self._finish([name for name in gone if name in self._leaving])

    def _finish(self, names: Collection[str]) -> None:
        """Forget queues whose channels are closed."""
        finished = {name: self._leaving[name] for name in names}
        for name, leaving in finished.items():
            if not leaving.returned:
                self._return(name, leaving)
            if leaving.timer is not None:
                self._loop.remove_timeout(leaving.timer)
            del self._leaving[name]
        if finished:
            self._forget(finished)
        for name, leaving in finished.items():
            _log.info("queue %r is not consumed any more", name)
            leaving.done(None)

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            self._channels.forget(name)
        self._owner.queues_removed(names)
        self._startup.subscribed()

    # The end -----------------------------------------------------------------------------------------------------

    def disconnected(self, one: QueueConnection) -> None:
        """Forget the queues of a connection that were being removed: the broker has their messages. Added ones wait."""
        self._waiting = deque(name for name in self._waiting if name not in one.queues)
        self._opening.difference_update(one.queues)
        self._finish([name for name in self._leaving if name in one.queues])
        self._open_some()

    def stop(self) -> None:
        """Add nothing any more."""
        self._stopping = True
        self._refuse_all(ShutDown("the consumer was stopped"))
