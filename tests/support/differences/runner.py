"""Runs sessions on one broker, and notes everything that a client can observe.

After each operation the runner waits until the broker is at rest: it asks every channel for an answer and every queue
for its counts, until two rounds in a row have observed the same. What expires within a session does so within
milliseconds: the runner waits until a message that it has published afterwards, into a queue of its own, has expired as
well.
"""

from __future__ import annotations

import itertools
import re
import time
from contextlib import suppress
from typing import Any

from pamqp import body, commands, frame, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx
from support.differences import operations as ops
from support.differences.barrier import Barrier
from support.differences.operations import BRIEF, EXPIRES
from support.waiting import eventually
from support.wireclient import PATIENCE, Delivered, WireClient, raw_method

#: What the runner observed at one operation, by what it is; of equal sessions on equal brokers, equal.
Observation = dict[str, Any]

#: The channel, of each connection, that asks for counts, and the channels that sessions use.
ASKING = 3
CHANNELS = (1, 2)
#: Where the runner's own messages expire and arrive.
WITNESS, WITNESSED = "witness of expiry", "witnessed"

#: Operations after which no message moves.
QUIET = (
    ops.DeclareExchange, ops.Bind, ops.BindExchange, ops.SelectConfirms, ops.SelectTransactions,
)  # fmt: skip
#: Those that are not answered.
UNANSWERED = (ops.Publish, ops.Settlement, ops.Reject)

ANSWERS: dict[type[ops.Operation], tuple[type[Any], ...]] = {
    ops.DeclareQueue: (Queue.DeclareOk,),
    ops.DeleteQueue: (Queue.DeleteOk,),
    ops.Purge: (Queue.PurgeOk,),
    ops.DeclareExchange: (Exchange.DeclareOk,),
    ops.DeleteExchange: (Exchange.DeleteOk,),
    ops.Bind: (Queue.BindOk,),
    ops.Unbind: (Queue.UnbindOk,),
    ops.BindExchange: (Exchange.BindOk,),
    ops.UnbindExchange: (Exchange.UnbindOk,),
    ops.Get: (Basic.GetOk, Basic.GetEmpty),
    ops.Consume: (Basic.ConsumeOk,),
    ops.Cancel: (Basic.CancelOk,),
    ops.Recover: (Basic.RecoverOk,),
    ops.Qos: (Basic.QosOk,),
    ops.SelectConfirms: (Confirm.SelectOk,),
    ops.SelectTransactions: (Tx.SelectOk,),
    ops.Commit: (Tx.CommitOk,),
    ops.Rollback: (Tx.RollbackOk,),
    ops.Flow: (Channel.FlowOk,),
    ops.CloseChannel: (Channel.CloseOk,),
}

#: A name that the server made for what it then refused to make.
UNUSED = re.compile(r"amq\.(gen|ctag)-[\w-]{22}")
BARRIER = {number: frame.marshal(Channel.Flow(True), number) for number in CHANNELS}


class Ended(Exception):
    """A connection ended."""

    def __init__(self, link: Link) -> None:
        self.link = link


def built(kind: type[Any], **values: Any) -> Any:
    """Make a method, whatever its values are."""
    method = kind()
    for key, value in values.items():
        setattr(method, key, value)
    method.validate = lambda: None
    return method


def method_of(operation: ops.Operation, real: Any) -> Any:
    """Return the method that is sent, of an operation that has no more than its fields; `real` translates names."""
    values = {key: real(value) for key, value in vars(operation).items() if key != "on"}
    kind = ANSWERS[type(operation)][0]
    group, name = kind.name.split(".")
    renamed = {
        ops.DeclareExchange: {"kind": "exchange_type"},
        ops.Bind: {"key": "routing_key"},
        ops.Unbind: {"key": "routing_key"},
        ops.BindExchange: {"key": "routing_key"},
        ops.UnbindExchange: {"key": "routing_key"},
        ops.Consume: {"tag": "consumer_tag"},
        ops.Cancel: {"tag": "consumer_tag"},
        ops.Qos: {"count": "prefetch_count", "everywhere": "global_", "size": "prefetch_size"},
    }.get(type(operation), {})
    return built(
        getattr(getattr(commands, group), name.removesuffix("Ok")),
        **{renamed.get(key, key): value for key, value in values.items()},
    )


class Link:
    """A connection, with its channels open."""

    def __init__(self, port: int, number: int) -> None:
        self.port, self.number = port, number
        self.client = self.connected()
        #: Its channels that are as they were opened.
        self.fresh = set(CHANNELS)

    def connected(self) -> WireClient:
        client = WireClient(self.port).open()
        for channel in (*CHANNELS, ASKING):
            client.channel(channel)
        return client

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # whose end is read afterwards
            self.client.send_bytes(data)

    def cast(self, channel: int, method: Any) -> None:
        self.send(frame.marshal(method, channel))

    def wait(self, channel: int, *kinds: type[Any]) -> bool:
        """Return when a method of these kinds has come on a channel, False if the channel is closed instead."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for found in self.client.waiting(channel):
                method = found.method if isinstance(found, Delivered) else found
                if isinstance(method, kinds):
                    return True
                if isinstance(method, Channel.Close):
                    return False
            self.read(deadline, channel, kinds)

    def read(self, deadline: float, channel: int, kinds: object) -> None:
        """Read on; raise what tells that the connection has ended."""
        if any(isinstance(one, Connection.Close) for one in self.client.waiting(0)):
            raise Ended(self)
        left = deadline - time.monotonic()
        assert left > 0, f"no {kinds} on channel {channel}: {self.client.waiting(channel)}"
        try:
            self.client.sort(left)
        except (EOFError, ConnectionError):
            raise Ended(self) from None

    def reopen(self, channel: int) -> None:
        """Open a channel that the broker has closed."""
        self.cast(channel, Channel.CloseOk())
        self.open(channel)

    def open(self, channel: int) -> None:
        self.cast(channel, Channel.Open())
        assert self.wait(channel, Channel.OpenOk)
        self.client.take(channel, Channel.OpenOk)
        self.fresh.add(channel)

    def renew(self) -> list[Any]:
        """Connect again; return why the broker closed the connection."""
        closed = [one for one in self.client.take_all(0) if isinstance(one, Connection.Close)]
        if closed:
            self.cast(0, Connection.CloseOk())
            with suppress(OSError):
                self.client.wait_for_end()
        self.client.abort()
        self.client = self.connected()
        self.fresh = set(CHANNELS)
        return [(one.reply_code, one.reply_text, one.class_id, one.method_id) for one in closed]


class ChannelState:
    """The runner's knowledge of a channel of a session."""

    def __init__(self) -> None:
        #: Delivery tags to settle, each with the one up to which several are settled.
        self.unsettled: list[tuple[int, int]] = []
        self.last: tuple[int, int] = (1000, 1000)
        #: What a transaction has settled, to be had again if it is rolled back.
        self.pending: list[tuple[int, int]] = []
        self.transactional = False
        self.confirming = False
        self.published = 0
        self.unconfirmed: set[int] = set()
        #: Whether what it gets needs no acknowledgement, and whether each consumer needs none.
        self.takes = False
        self.consumers: dict[str, bool] = {}

    def settled(self, nth: int | None, multiple: bool) -> int:
        """Return the tag that an operation settles, and forget what it stands for."""
        if nth is None:
            self.unsettled, done = ([], self.unsettled) if multiple else (self.unsettled, [])
            self.pending += done
            return 0
        if nth == -1 or not self.unsettled:
            return self.last[1 if multiple else 0]
        chosen = self.unsettled[nth % len(self.unsettled)]
        tag = chosen[1] if multiple else chosen[0]
        done = [one for one in self.unsettled if one[0] == tag or (multiple and one[0] < tag)]
        self.unsettled = [one for one in self.unsettled if one not in done]
        self.pending += done
        self.last = chosen
        return tag


class Runner:
    """Runs sessions on the broker at a port; its connections are used again."""

    def __init__(self, port: int, barrier: Barrier | None = None) -> None:
        self.port = port
        self.barrier = barrier
        self.links = [Link(port, number) for number in range(2)]
        self.control = WireClient(port).open().channel()
        self.control.declare(WITNESSED)
        self.control.declare(
            WITNESS,
            {"x-message-ttl": BRIEF, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": WITNESSED},
        )
        self.control.consume(WITNESSED, no_ack=True)

    def close(self) -> None:
        for link in self.links:
            link.client.abort()
        self.control.client.abort()
        if self.barrier is not None:
            self.barrier.close()

    def run(self, session: ops.Session, prefix: str) -> list[Observation]:
        """Return what was observed at each operation, and at the end."""
        return SessionRun(self, prefix).run(session)

    def link_of(self, on: int) -> Link:
        return self.links[on // 2]

    def expire_witness(self) -> None:
        """Return when everything that was to expire soon, and was there before, has expired."""
        self.control.publish(b"", WITNESS)
        self.control.take(Basic.Deliver)


class SessionRun:
    """One run of a session."""

    def __init__(self, runner: Runner, prefix: str) -> None:
        self.runner = runner
        self.prefix = prefix
        self.channels = [ChannelState() for _ in range(4)]
        #: Queues that exist, each with the connection that may ask for them.
        self.queues: dict[str, int] = {}
        self.exchanges: set[str] = set()
        #: Names that the server made, as sessions have them.
        self.made: dict[str, str] = {}
        self.bodies = itertools.count()
        #: Whether something may expire.
        self.brief = False
        #: Whether a channel may hold something that has yet to expire.
        self.young = False
        self.seen: Observation = {}
        self.counts: dict[str, tuple[int, int]] = {}
        self.arrived = 0

    # Names ----------------------------------------------------------------------------------------------------------

    def real(self, value: Any) -> Any:
        """Translate what a session names into names of this run."""
        if isinstance(value, str):
            for theirs, ours in self.made.items():
                value = value.replace(ours, theirs)
            return value.replace("~", self.prefix)
        if isinstance(value, list):
            return [self.real(one) for one in value]
        if isinstance(value, dict):
            return {key: self.real(one) for key, one in value.items()}
        return value

    def told(self, value: Any) -> Any:
        """Translate what the broker said into names of the session."""
        if isinstance(value, str):
            for theirs, ours in self.made.items():
                value = value.replace(theirs, ours)
            return UNUSED.sub("~unused", value.replace(self.prefix, "~"))
        if isinstance(value, list | tuple):
            return type(value)(self.told(one) for one in value)
        if isinstance(value, dict):
            return {self.told(key): self.told(one) for key, one in value.items()}
        return value

    def named(self, name: str, kind: str) -> str:
        """Return the name that a session has for one that the broker tells."""
        if UNUSED.fullmatch(name) and name not in self.made:
            self.made[name] = f"~{kind}{sum(kind in one for one in self.made.values())}"
        return str(self.told(name))

    # A session ------------------------------------------------------------------------------------------------------

    def run(self, session: ops.Session) -> list[Observation]:
        observations = []
        try:
            for operation in session:
                self.seen = {}
                self.guarded(lambda operation=operation: self.perform(operation))  # type: ignore[misc]
                self.guarded(lambda operation=operation: self.rest(operation))  # type: ignore[misc]
                observations.append(self.seen)
            observations.append(self.end())
        except BaseException:
            # What it left behind would disturb the next one.
            for link in self.runner.links:
                link.renew()
            raise
        return observations

    def guarded(self, act: Any) -> None:
        """Do something; if a connection ends, note why, and make it again."""
        while True:
            try:
                return act()
            except Ended as ended:
                self.renew(ended.link)
                act = self.look_until_at_rest

    def renew(self, link: Link) -> None:
        for channel in CHANNELS:
            self.collect(link, channel)
        closed = link.renew()
        self.note("connections", link.number, [self.told(one) for one in closed] or "dropped")
        self.forget_connection(link)

    def forget_connection(self, link: Link) -> None:
        for channel in CHANNELS:
            self.channels[link.number * 2 + channel - 1] = ChannelState()
        for queue in [name for name, owner in self.queues.items() if owner == link.number]:
            self.await_release(queue, 1 - link.number)

    def await_release(self, queue: str, asking: int) -> None:
        """Wait until a queue, which is exclusive or not, is gone or to be had by another connection."""
        link = self.runner.links[asking]
        deadline = time.monotonic() + PATIENCE
        while not self.ask(link, queue):
            [closed] = [one for one in link.client.take_all(ASKING) if isinstance(one, Channel.Close)]
            link.reopen(ASKING)
            if closed.reply_code == 404:
                del self.queues[queue]
                return
            assert time.monotonic() < deadline, f"{queue} is still locked"
        link.client.take_all(ASKING)
        self.queues[queue] = asking

    def ask(self, link: Link, queue: str) -> bool:
        link.cast(ASKING, built(Queue.Declare, queue=queue, passive=True))
        return link.wait(ASKING, Queue.DeclareOk)

    # Operations -----------------------------------------------------------------------------------------------------

    def perform(self, operation: ops.Operation) -> None:
        """Do an operation, and wait for its answer."""
        link, channel = self.runner.link_of(operation.on), operation.on % 2 + 1
        state = self.channels[operation.on]
        link.fresh.discard(channel)
        self.brief = self.brief or is_brief(operation)
        match operation:
            case ops.Publish():
                self.publish(link, channel, state, operation)
            case ops.Ack() | ops.Nack() | ops.Reject():
                self.settle(link, channel, state, operation)
            case ops.AwaitExpiry():
                self.await_expiry(operation)
            case ops.CloseConnection():
                self.close_connection(link, operation)
            case ops.Recover(answered=False):
                link.send(raw_method(60, 100, bytes([operation.requeue]), channel))
            case ops.Recover():
                link.cast(channel, Basic.Recover(operation.requeue))
                link.wait(channel, Basic.RecoverOk)
            case ops.CloseChannel():
                link.cast(channel, Channel.Close(200, "", 0, 0))
                if link.wait(channel, Channel.CloseOk):
                    self.collect(link, channel)
                    self.channels[operation.on] = ChannelState()
                    link.open(channel)
            case _:
                state.takes = isinstance(operation, ops.Get) and operation.no_ack
                self.call(link, channel, state, operation)
        self.collect(link, channel)

    def call(self, link: Link, channel: int, state: ChannelState, operation: ops.Operation) -> None:
        """Send a method, and wait for its answer, or until it is done if there is none."""
        method = method_of(operation, self.real)
        link.cast(channel, method)
        answers = ANSWERS[type(operation)]
        quiet = getattr(method, "nowait", False)
        if quiet:
            link.send(BARRIER[channel])
            answers = (Channel.FlowOk,)
        if link.wait(channel, *answers):
            methods = (one.method if isinstance(one, Delivered) else one for one in link.client.waiting(channel))
            [answer] = [one for one in methods if isinstance(one, answers)]
            # A method without an answer has the names that the answer would have.
            self.learn(link, state, operation, method if quiet else answer)

    def learn(self, link: Link, state: ChannelState, operation: ops.Operation, answer: Any) -> None:
        """Note what an operation has changed."""
        match operation:
            case ops.DeclareQueue():
                self.named(answer.queue, "gen")
                owner = self.queues.get(answer.queue, link.number)
                self.queues[answer.queue] = link.number if operation.exclusive else owner
            case ops.DeclareExchange(passive=False):
                self.exchanges.add(self.real(operation.exchange))
            case ops.Consume():
                state.consumers[self.named(answer.consumer_tag, "ctag")] = operation.no_ack
            case ops.Cancel():
                state.consumers.pop(operation.tag, None)
            case ops.SelectConfirms():
                state.confirming = True
            case ops.SelectTransactions():
                state.transactional = True
            case ops.Rollback():
                state.unsettled = sorted(state.unsettled + state.pending)
                state.pending = []
            case ops.Commit():
                state.pending = []

    def publish(self, link: Link, channel: int, state: ChannelState, operation: ops.Publish) -> None:
        method = built(
            Basic.Publish, exchange=self.real(operation.exchange), routing_key=self.real(operation.key),
            mandatory=operation.mandatory, immediate=operation.immediate,
        )  # fmt: skip
        properties = Basic.Properties()
        for key, value in self.real(operation.properties).items():
            setattr(properties, key, value)
        data = []
        for _ in range(operation.count):
            content = (b"m%d" % next(self.bodies)).ljust(operation.size, b".")
            head = header.ContentHeader(body_size=len(content), properties=properties)
            data += [frame.marshal(one, channel) for one in (method, head, body.ContentBody(content))]
            if state.confirming:
                state.published += 1
                state.unconfirmed.add(state.published)
        link.send(b"".join(data) + BARRIER[channel])
        link.wait(channel, Channel.FlowOk)

    def settle(self, link: Link, channel: int, state: ChannelState, operation: ops.Ack | ops.Nack | ops.Reject) -> None:
        tag = state.settled(operation.nth, not isinstance(operation, ops.Reject) and operation.multiple)
        if not state.transactional:
            state.pending = []
        match operation:
            case ops.Ack():
                method = Basic.Ack(tag, operation.multiple)
            case ops.Nack():
                method = Basic.Nack(tag, operation.multiple, operation.requeue)
            case ops.Reject():
                method = Basic.Reject(tag, operation.requeue)
        link.cast(channel, method)

    def close_connection(self, link: Link, operation: ops.CloseConnection) -> None:
        if not operation.abruptly:
            link.cast(0, Connection.Close(200, "", 0, 0))
            link.wait(0, Connection.CloseOk)
        for channel in CHANNELS:
            self.collect(link, channel)
        link.renew()
        self.forget_connection(link)

    def await_expiry(self, operation: ops.AwaitExpiry) -> None:
        """Note whether a queue that has been unused for long enough is gone."""
        link, queue = self.runner.links[0], self.real(operation.queue)
        bind = built(Queue.Bind, queue=queue, exchange="amq.direct", routing_key="of nobody")
        control = self.runner.control
        for _ in range(2):
            control.declare(f"{WITNESS} of queues", {"x-expires": EXPIRES})
            if not self.outlives(link, bind):
                self.seen["expired"] = True
                self.queues.pop(queue, None)
                return
        self.seen["expired"] = False

    def outlives(self, link: Link, bind: Any) -> bool:
        """Whether a queue, which is bound, since that is no use of it, is there longer than one of the runner's."""
        witness = built(Queue.Bind, queue=f"{WITNESS} of queues", exchange="amq.direct", routing_key="of nobody")
        there = True

        def one_is_gone() -> bool:
            nonlocal there
            there = self.succeeds(link, bind)
            return not there or not self.succeeds(link, witness)

        eventually(one_is_gone)
        return there

    def succeeds(self, link: Link, method: Any) -> bool:
        link.cast(ASKING, method)
        done = link.wait(ASKING, Queue.BindOk)
        locked = [one for one in link.client.take_all(ASKING) if isinstance(one, Channel.Close)]
        if locked:
            link.reopen(ASKING)
        return done or locked[0].reply_code == 405

    # Waiting --------------------------------------------------------------------------------------------------------

    def rest(self, operation: ops.Operation) -> None:
        if isinstance(operation, QUIET) and not self.seen:
            self.look()
        else:
            self.look_until_at_rest()
        self.seen["counts"] = dict(sorted(self.told(self.counts).items()))

    def look_until_at_rest(self) -> None:
        """Wait until nothing moves, nor will without a further operation."""
        while True:
            self.look_until_steady()
            ready = any(ready for ready, _consumers in self.counts.values())
            if not self.brief or not (ready or self.young):
                return
            before = (self.counts, self.arrived)
            self.runner.expire_witness()
            self.young = False
            self.look_until_steady()
            if before == (self.counts, self.arrived):
                return

    def look_until_steady(self) -> None:
        deadline = time.monotonic() + PATIENCE
        last: object = None
        while last != (last := (self.look(), self.arrived)) or any(one.unconfirmed for one in self.channels):
            assert time.monotonic() < deadline, f"not at rest: {last}, {[one.unconfirmed for one in self.channels]}"

    def look(self) -> dict[str, tuple[int, int]]:
        """Ask every channel for an answer, and every queue for its counts."""
        if self.runner.barrier is not None:
            self.runner.barrier.wait(len(self.queues))
        for link in self.runner.links:
            link.send(b"".join(BARRIER.values()))
        for link in self.runner.links:
            for channel in CHANNELS:
                link.wait(channel, Channel.FlowOk)
                self.collect(link, channel)
        counts: dict[str, tuple[int, int]] = {}
        for link in self.runner.links:
            self.count(link, [name for name, asking in self.queues.items() if asking == link.number], counts)
        self.counts = counts
        return counts

    def count(self, link: Link, queues: list[str], counts: dict[str, tuple[int, int]]) -> None:
        """Ask for the counts of queues; forget those that are gone."""
        asked: list[str] = []
        while queues:
            if not asked:
                asked = [*queues]
                for one in asked:
                    link.cast(ASKING, built(Queue.Declare, queue=one, passive=True))
            link.wait(ASKING, Queue.DeclareOk)
            answer = link.client.take(ASKING, Queue.DeclareOk, Channel.Close)
            queue = queues.pop(0)
            if isinstance(answer, Queue.DeclareOk):
                counts[queue] = (answer.message_count, answer.consumer_count)
                continue
            assert answer.reply_code == 404, answer.reply_text
            del self.queues[queue]
            link.reopen(ASKING)
            asked = []  # since the broker has read no further

    # What comes -----------------------------------------------------------------------------------------------------

    def note(self, *where: Any) -> None:
        """Add to what was observed: under these keys, the last of which is the value."""
        *path, last, value = where
        place = self.seen
        for key in path:
            place = place.setdefault(key, {})
        place.setdefault(last, []).append(value)

    def collect(self, link: Link, channel: int) -> None:
        """Note what came on a channel."""
        on = link.number * 2 + channel - 1
        batch: dict[str, list[int]] = {}
        for one in link.client.take_all(channel):
            if isinstance(one, Channel.FlowOk):
                continue
            self.arrived += 1
            self.notice(link, channel, on, one, batch)
        state = self.channels[on]
        self.young = self.young or bool(batch)
        highest = max((tag for tags in batch.values() for tag in tags), default=0)
        for _consumer, tags in sorted(batch.items()):
            state.unsettled += [(tag, tag if len(batch) == 1 else highest) for tag in tags]

    def notice(self, link: Link, channel: int, on: int, one: Any, batch: dict[str, list[int]]) -> None:
        state = self.channels[on]
        match one:
            case Delivered():
                self.notice_message(on, one, batch)
            case Basic.Ack() | Basic.Nack():
                tags = {tag for tag in state.unconfirmed if tag == one.delivery_tag or (
                    one.multiple and (one.delivery_tag == 0 or tag < one.delivery_tag)
                )}  # fmt: skip
                state.unconfirmed -= tags
                kind = "acked" if isinstance(one, Basic.Ack) else "nacked"
                found = self.seen.setdefault(on, {}).setdefault(kind, [])
                found[:] = sorted([*found, *tags])
            case Channel.Close():
                self.note(on, "closed", self.told((one.reply_code, one.reply_text, one.class_id, one.method_id)))
                self.channels[on] = ChannelState()
                link.reopen(channel)
            case Basic.Cancel():
                state.consumers.pop(self.told(one.consumer_tag), None)
                self.note(on, "cancelled", self.told(one.consumer_tag))
                self.seen[on]["cancelled"].sort()
            case _:
                self.note(on, "answers", (one.name, self.fields_of(one)))

    def fields_of(self, method: Any) -> dict[str, Any]:
        return {key: self.told(value) for key, value in method}

    def notice_message(self, on: int, one: Delivered, batch: dict[str, list[int]]) -> None:
        state = self.channels[on]
        fields = self.fields_of(one.method)
        message = {**fields, "body": one.body.rstrip(b".").decode(), **self.properties_of(one)}
        if isinstance(one.method, Basic.Return):
            self.note(on, "returned", message)
            return
        tag = message.pop("delivery_tag")
        self.note(on, "tags", tag)
        self.seen[on]["tags"].sort()
        if isinstance(one.method, Basic.GetOk):
            self.note(on, "got", message)
            if not state.takes:
                batch.setdefault("", []).append(tag)
            return
        consumer = message.pop("consumer_tag")
        self.note(on, "delivered", consumer, message)
        if not state.consumers.get(consumer, False):
            batch.setdefault(consumer, []).append(tag)

    def properties_of(self, one: Delivered) -> dict[str, Any]:
        found = {key: self.told(value) for key, value in one.properties if value is not None}
        for death in (found.get("headers") or {}).get("x-death", []):
            if isinstance(death, dict):
                death.pop("time", None)
        return {"properties": found} if found else {}

    # The end --------------------------------------------------------------------------------------------------------

    def end(self) -> Observation:
        """Give back what the session has; note what is left in its queues; remove everything."""
        self.seen = {}
        # First its consumers, so that nothing that comes back is delivered again.
        for on, state in enumerate(self.channels):
            for tag in [*state.consumers]:
                self.guarded(lambda on=on, tag=tag: self.perform(ops.Cancel(on, tag)))  # type: ignore[misc]
        for link in self.runner.links:
            for channel in CHANNELS:
                if channel not in link.fresh:
                    self.guarded(lambda link=link, channel=channel: self.leave(link, channel))  # type: ignore[misc]
        self.seen = {}
        self.guarded(self.look_until_at_rest)
        self.seen = {"counts": dict(sorted(self.told(self.counts).items()))}
        for queue, asking in sorted(self.queues.items()):
            self.drain(self.runner.links[asking], queue)
        self.remove()
        return self.seen

    def leave(self, link: Link, channel: int) -> None:
        link.cast(channel, Channel.Close(200, "", 0, 0))
        if link.wait(channel, Channel.CloseOk):
            link.client.take_all(channel)
            link.open(channel)
            self.channels[link.number * 2 + channel - 1] = ChannelState()

    def drain(self, link: Link, queue: str) -> None:
        """Note what is in a queue."""
        left = self.seen.setdefault("left", {}).setdefault(self.told(queue), [])
        while True:
            link.cast(ASKING, Basic.Get(queue=queue, no_ack=True))
            if not link.wait(ASKING, Basic.GetOk, Basic.GetEmpty):
                left.append("gone")
                link.client.take_all(ASKING)
                link.reopen(ASKING)
                return
            [one] = link.client.take_all(ASKING)
            if isinstance(one, Basic.GetEmpty):
                return
            fields = self.fields_of(one.method)
            del fields["delivery_tag"]
            left.append({**fields, "body": one.body.rstrip(b".").decode(), **self.properties_of(one)})

    def remove(self) -> None:
        for link in self.runner.links:
            methods = [built(Queue.Delete, queue=name) for name, at in self.queues.items() if at == link.number]
            if link.number == 0:
                methods += [built(Exchange.Delete, exchange=name) for name in self.exchanges]
            for method in methods:
                link.cast(ASKING, method)
                assert link.wait(ASKING, Queue.DeleteOk, Exchange.DeleteOk), link.client.waiting(ASKING)
                link.client.take_all(ASKING)


def is_brief(operation: ops.Operation) -> bool:
    """Whether an operation makes messages that expire within a session."""
    match operation:
        case ops.DeclareQueue():
            return operation.arguments.get("x-message-ttl") in (0, BRIEF)
        case ops.Publish():
            return operation.properties.get("expiration") in ("0", str(BRIEF))
    return False


def is_timed(operation: ops.Operation) -> bool:
    """Whether an operation makes messages, or a queue, that expire within a session."""
    queue = isinstance(operation, ops.DeclareQueue) and operation.arguments.get("x-expires") == EXPIRES
    return queue or is_brief(operation)
