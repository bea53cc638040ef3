"""Declaring lanes, and announcing those of one tenant: in a publisher's I/O thread, on a channel of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika
import pika.exceptions

from fairsched.amqp.errors import broker_text, is_missing
from fairsched.config.lanes import Lanes
from fairsched.errors import ConnectionFailed, PublishFailed
from fairsched.lanes.announcement import ACTIVE, NEW, REGISTRY_ARGUMENTS, Announcement, encode
from fairsched.lanes.layout import disagreement, layout_request

if TYPE_CHECKING:
    from pika.channel import Channel

    from fairsched.amqp.polling.ioloop import Loop
    from fairsched.amqp.transport import Transport

#: The channel, after the one of the messages.
_CHANNEL = 2
#: How often a lane is tried if an exchange or a queue is missing, deleted in between or on a node that is down, and the
#: pause in seconds.
_ATTEMPTS, _PAUSE = 5, 1.0
#: What helps against other replies.
_ADVICE = {
    403: "grant this user the permissions to configure and write it",
    405: "another connection has declared it for itself alone: delete it",
    406: "if it exists with other arguments, give all programs the same arguments= and ordered=, or delete it",
}

#: The number of entries of a registry that a worker reads: they are not counted then.
_READ = 2**32

#: Told what became of a lane: the error, or None.
Done = Callable[[Exception | None], None]
#: A request to the broker: sends it, and has the second argument called with the answer.
_Request = Callable[["Channel", Callable[[Any], None]], None]
#: Requests, one after the other.
_Script = Generator[_Request, Any, None]


@dataclass
class _Job:
    """A lane, and what is to be done: an own lane is looked for, declared and announced; a registry is counted.

    Or the layout of all lanes is compared with that of other programs.
    """

    lanes: Lanes
    lane: str
    done: Done
    looks: bool = False
    declares: bool = True
    announces: bool = False
    counts: bool = False
    compares: bool = False
    entries: int = 0
    tenant: Any = None
    attempts: int = 0


class LaneOpener:
    """Declares lanes one after the other, and announces own lanes on the registry exchange.

    Parameters
    ----------
    loop : pika IOLoop
        Of the I/O thread.

    Notes
    -----
    For the I/O thread. An own lane is announced as new, and this is confirmed, before it counts as open: a worker that
    reads the registry then finds it, however this process ends. The channel is opened when there is something to do.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._transport: Transport | None = None
        self._channel: Channel | None = None
        self._opening = False
        self._jobs: deque[_Job] = deque()
        self._job: _Job | None = None
        self._script: _Script | None = None
        #: What the broker was asked for, as an error names it; whether this was to find out if it exists.
        self._asked = ""
        self._looking = False
        #: Announcements on this channel, the one whose confirm is awaited, and whether the broker returned it.
        self._published = self._awaited = 0
        self._returned = False

    def declare(self, lanes: Lanes, bucket: str, done: Done) -> None:
        """Declare a bucket.

        Parameters
        ----------
        lanes : Lanes
            Those to which it belongs.
        bucket : str
            Its name.
        done : callable
            Called with None, or with the error: a `ConnectionFailed` if the connection was lost, else a
            `PublishFailed` that names the queue, its arguments and what helps.
        """
        self._add(_Job(lanes, bucket, done))

    def open_own(self, lanes: Lanes, lane: str, tenant: Any, done: Callable[[Exception | None, bool], None]) -> None:
        """Declare the own lane of a tenant, and announce it as new.

        Parameters
        ----------
        lanes, lane
            As for `declare`.
        tenant : object
            The tenant.
        done : callable
            Called as for `declare`, and with whether the lane existed before.
        """
        job = _Job(lanes, lane, lambda error: done(error, job.looks), looks=True, announces=True, tenant=tenant)
        self._add(job)

    def check(self, lanes: Lanes, lane: str, done: Done) -> None:
        """Call `done` with an error unless a lane exists; parameters as for `declare`."""
        self._add(_Job(lanes, lane, done, looks=True, declares=False))

    def count_entries(self, lanes: Lanes, done: Callable[[Exception | None, int], None]) -> None:
        """Declare the registry again, and count its entries, unless there is no connection.

        Parameters
        ----------
        lanes : Lanes
            Those whose registry it is.
        done : callable
            Called with the error, or None, and the number of entries, or a larger one while a worker reads them.
        """
        if self._transport is not None:
            job = _Job(lanes, lanes.registry, lambda error: done(error, job.entries), counts=True)
            self._add(job)

    def compare_layout(self, lanes: Lanes, done: Done) -> None:
        """Declare the layout of lanes.

        Parameters
        ----------
        lanes : Lanes
            The lanes.
        done : callable
            Called with None, with a `ConfigurationError` if other programs use the lanes with another layout, or as for
            `declare`.
        """
        self._add(_Job(lanes, lanes.layout, done, compares=True))

    def _add(self, job: _Job) -> None:
        self._jobs.append(job)
        self._go_on()

    def say_active(self, lanes: Lanes, lane: str, tenant: Any) -> None:
        """Announce that an own lane is in use, unless the channel is closed at the moment."""
        if self._channel is not None and self._channel.is_open:
            self._announce(self._channel, ACTIVE, lanes, lane, tenant)

    def connected(self, transport: Transport) -> None:
        """Take a new connection."""
        self._transport = transport
        self._go_on()

    def disconnected(self) -> None:
        """Let all jobs fail."""
        self._transport = self._channel = self._script = None
        self._opening = False
        jobs = [self._job, *self._jobs] if self._job is not None else list(self._jobs)
        self._job = None
        self._jobs.clear()
        for job in jobs:
            job.done(ConnectionFailed(f"lane {job.lane!r} was not declared: the connection was lost"))

    # One after the other -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._job is not None or not self._jobs or self._opening or self._transport is None:
            return
        if self._channel is None:
            if self._transport.is_open:
                self._opening = True
                self._transport.channel(_CHANNEL, on_open_callback=self._on_open)
            return
        self._job = self._jobs.popleft()
        self._script = self._requests(self._job)
        self._next(self._script, None)

    def _next(self, script: _Script, answer: Any) -> None:
        """Send the next request of a job, unless it has ended meanwhile."""
        if script is not self._script or self._channel is None or not self._channel.is_open:
            return
        try:
            request = script.send(answer)
        except StopIteration:
            self._end(None)
        except PublishFailed as error:
            self._end(error)
        else:
            request(self._channel, lambda found: self._next(script, found))

    def _end(self, error: Exception | None) -> None:
        job, self._job, self._script = self._job, None, None
        if job is not None:
            job.done(error)
        self._go_on()

    def _on_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._on_close)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, lambda _frame: self._on_ready(channel))

    def _on_ready(self, channel: Channel) -> None:
        self._opening = False
        self._published = self._awaited = 0
        self._channel = channel
        self._go_on()

    def _on_close(self, channel: Channel, reason: BaseException) -> None:
        if channel is not self._channel and not self._opening:
            return
        self._channel = None
        if not isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            return  # the connection is closed, and `disconnected` is called
        # pika forgets the channel only after this callback; another one with its number is opened then.
        self._opening = True
        transport = self._transport
        self._loop.call_later(0.0, lambda: self._open_again(transport))
        job = self._job
        if job is None:
            return
        if is_missing(reason) and job.looks and job.declares and self._looking:
            job.looks = False
            self._job = self._script = None
            self._jobs.appendleft(job)
            return
        job.attempts += 1
        if is_missing(reason) and job.declares and job.attempts < _ATTEMPTS:
            self._job = self._script = None
            self._loop.call_later(_PAUSE, lambda: self._again(job))
            return
        self._end(self._refused(job, reason.reply_code, broker_text(reason.reply_text)))

    def _open_again(self, transport: Transport | None) -> None:
        if transport is self._transport:
            self._opening = False
            self._go_on()

    def _again(self, job: _Job) -> None:
        if self._transport is None:
            job.done(ConnectionFailed(f"lane {job.lane!r} was not declared: the connection was lost"))
            return
        self._jobs.appendleft(job)
        self._go_on()

    def _refused(self, job: _Job, code: int, text: str) -> Exception:
        if job.compares and (error := disagreement(job.lanes, text)) is not None:
            return error
        advice = _ADVICE.get(code, "declare it, or see the log of the broker")
        return PublishFailed(f"lane {job.lane!r} cannot be opened: the broker refused {self._asked}: {text}; {advice}")

    # The requests of a job ---------------------------------------------------------------------------------------

    def _requests(self, job: _Job) -> _Script:
        lanes, lane = job.lanes, job.lane
        if job.compares:
            self._asked = f"exchange {lane!r}, direct and durable"
            yield lambda channel, answer: channel.exchange_declare(**layout_request(lanes), callback=answer)
            return
        if job.counts:
            job.entries = yield from self._registry(lanes.registry)
            return
        if job.looks:
            self._asked = f"queue {lane!r}"
            self._looking = True
            yield lambda channel, answer: channel.queue_declare(lane, passive=True, callback=answer)
        self._looking = False
        if not job.declares:
            return
        if job.announces:
            yield from self._registry(lanes.registry)
        arguments = dict(lanes.queue(lane).all_arguments)
        self._asked = f"queue {lane!r}, durable, with arguments {arguments!r}"
        yield lambda channel, answer: channel.queue_declare(lane, durable=True, arguments=arguments, callback=answer)
        if job.announces:
            self._asked = f"the announcement of {lane!r} on exchange {lanes.registry!r}"
            yield lambda channel, answer: self._announce_new(channel, job, answer)

    def _registry(self, name: str) -> Generator[_Request, Any, int]:
        """Declare exchange and queue of the registry; return its entries, or `_READ` while a worker has them."""
        self._asked = f"exchange {name!r}, direct and durable"
        yield lambda channel, answer: channel.exchange_declare(name, "direct", durable=True, callback=answer)
        self._asked = f"queue {name!r}, durable, with arguments {REGISTRY_ARGUMENTS!r}"
        declared = yield lambda channel, answer: channel.queue_declare(
            name, durable=True, arguments=REGISTRY_ARGUMENTS, callback=answer
        )
        self._asked = f"the binding of queue {name!r} to the exchange of that name with key {NEW!r}"
        yield lambda channel, answer: channel.queue_bind(name, name, NEW, callback=answer)
        entries: int = _READ if declared.method.consumer_count else declared.method.message_count
        return entries

    def _announce_new(self, channel: Channel, job: _Job, answer: Callable[[Any], None]) -> None:
        self._returned = False
        self._announce(channel, NEW, job.lanes, job.lane, job.tenant)
        self._awaited = self._published
        self._answer = answer

    def _announce(self, channel: Channel, key: str, lanes: Lanes, lane: str, tenant: Any) -> None:
        if not isinstance(tenant, str | bytes | int | float | None):
            tenant = ascii(tenant)  # no weight can be given for such a tenant
        self._published += 1
        properties = pika.BasicProperties(delivery_mode=2 if key == NEW else 1, content_type="application/json")
        channel.basic_publish(lanes.registry, key, encode(Announcement(lane, tenant)), properties, key == NEW)

    def _on_return(self, _channel: Channel, _method: Any, _properties: Any, _body: bytes) -> None:
        self._returned = True

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag, job = method.delivery_tag, self._job
        if not self._awaited or not (tag == self._awaited or (method.multiple and tag > self._awaited)):
            return
        self._awaited = 0
        if job is None:
            return
        if method.NAME == "Basic.Nack":
            self._end(
                PublishFailed(f"lane {job.lane!r} cannot be opened: the broker refused {self._asked} (basic.nack)")
            )
        elif self._returned:  # the queue was deleted after it was declared
            job.attempts += 1
            if job.attempts >= _ATTEMPTS:
                self._end(PublishFailed(f"lane {job.lane!r} cannot be opened: no queue takes {self._asked}"))
                return
            self._script = self._requests(job)
            self._next(self._script, None)
        else:
            self._answer(None)
