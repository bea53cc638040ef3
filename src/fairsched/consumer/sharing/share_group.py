"""Shares across processes: the consumers of a group tell each other what they served, and count it as their own.

Every worker is fair to the queues that it consumes. If not all consume the same ones, or if one of them finds more of a
queue than another, the sum of their service is in no proportion to the weights: two workers that both divide their time
equally between ``gold`` and ``free``, and a third that consumes ``free`` alone, serve ``free`` twice as much.

So each worker publishes once a second what it serves of every slot, to a fanout exchange, and charges its own slots
(`FairQueue.charge`) for what they are served too much elsewhere. The charge of a slot is found by integral control: it
grows while the slot is ahead of the others in the whole group, by work in proportion to its weight, and shrinks while
it is behind. Where every worker serves those that are furthest behind, the whole is max-min fair. Slots are compared
with those that have something of it when they stand back: of the same band, and not at their limit. With priorities of
messages, each slot has an account of each priority, which is compared with those of the same priority.

Bounds: a charge holds a slot back for a second at most, and only while another one has messages here, so no worker is
ever idle for it. A worker that is not heard of for 3.5 s, or 3.5 of its own periods, no longer counts; without another
there is no charge. Messages are not trusted: share_message.py refuses what cannot be, a worker is believed to have
longer periods only after it had one, and its rates are forgotten with it.

Sources: max-min fairness, Bertsekas and Gallager, "Data Networks", 6.5.2; integral control with a clamp against windup,
Åström and Murray, "Feedback Systems", 11.4.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched.amqp.session import Session
from fairsched.amqp.shortstring import LONGEST, is_short_string
from fairsched.amqp.side_connection import SideConnection
from fairsched.consumer.log_limit import LogLimit
from fairsched.consumer.sharing.share_message import Claim, decode, encode, slot_name, slot_of
from fairsched.errors import ConfigurationError, FairschedError
from fairsched.scheduling.bands import DEFAULT_BAND

if TYPE_CHECKING:
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.worker_queues import WorkerQueues
    from fairsched.stats import SlotStats

_log = logging.getLogger(__name__)

#: What the names of exchanges begin with.
EXCHANGES = "fairsched.shares."
#: Seconds between two messages to the group; a charge is made in so many parts. All of it takes at most this part of a
#: processor: with many slots the periods are longer.
PERIOD, PARTS, MOST_EFFORT = 1.0, 4, 0.005
#: A worker of which nothing was heard for so many of its periods, and seconds, is gone; after the latter, always.
LOST_PERIODS, LOST_AFTER, LONGEST_LASTING = 3.5, 3.5, 60.0
#: How much of a difference is corrected in a period, and how much of it a measurement counts against those before.
GAIN, SMOOTHING = 0.3, 0.4
#: A charge is at most this part more than what holds a slot back altogether.
HEADROOM = 1.25
#: Workers that are remembered at most.
MOST_PEERS = 1_000


class _Peer(NamedTuple):
    """The last message of another worker: its time and duration, the rates, and the slots that have messages there."""

    heard: float
    lasts: float
    rates: dict[str, float]
    wanted: frozenset[str]


class GroupBalance:
    """Charges of slots that make the whole group fair.

    Notes
    -----
    Rates and charges are in cost per second. Slots are known by text. `update` is O(slots * workers). Pure but for its
    memory; for one thread.
    """

    def __init__(self) -> None:
        #: Charge of each slot.
        self.charges: dict[str, float] = {}
        #: The most debt that goes with it.
        self.limits: dict[str, float] = {}
        #: Workers by name; those whose time is over are kept a little longer, to measure how often they publish.
        self._peers: dict[str, _Peer] = {}
        #: Names of the workers that counted in the last update.
        self._present: set[str] = set()
        self._served: dict[str, float] = {}
        self._lags: dict[str, float] = {}

    def hear(self, sender: str, rates: Mapping[str, float], wanted: Iterable[str], lasts: float, now: float) -> None:
        """Note what a worker said, for as long as it says, but for no longer than its last period justifies."""
        before = self._peers.get(sender)
        if before is None and len(self._peers) >= MOST_PEERS:
            self._forget(now, 0.0)
            if len(self._peers) >= MOST_PEERS:
                return
        period = 0.0 if before is None else now - before.heard
        believed = min(lasts, max(LOST_AFTER, LOST_PERIODS * period), LONGEST_LASTING)
        self._peers[sender] = _Peer(now, believed, dict(rates), frozenset(wanted))

    def peers(self, now: float) -> int:
        """Return the number of other workers that are heard of."""
        return len(self._counting(now))

    def _counting(self, now: float) -> dict[str, _Peer]:
        """Return the workers whose time is not over."""
        return {name: peer for name, peer in self._peers.items() if now - peer.heard <= peer.lasts}

    def _forget(self, now: float, after: float) -> None:
        """Forget workers whose time has been over for so many seconds."""
        for name, peer in list(self._peers.items()):
            if now - peer.heard > max(peer.lasts, after):
                del self._peers[name]

    def update(
        self,
        rates: Mapping[str, float],
        weights: Mapping[str, float],
        now: float,
        at_limit: Collection[str] = (),
        bands: Mapping[str, int] | None = None,
    ) -> None:
        """Find new charges.

        Parameters
        ----------
        rates : mapping
            What was served here lately.
        weights : mapping
            Of the slots that have messages here: of these alone the service can be divided otherwise.
        now : float
            In seconds, on the clock of `hear`.
        at_limit : collection
            Those of them that are at their limit here, so that they would have no more if all others stood back.
        bands : mapping, optional
            Bands of slots: no slot has more because one of another band stands back.
        """
        self._forget(now, LONGEST_LASTING)
        peers = self._counting(now)
        if not peers:
            weights = {}
        if self._present - peers.keys():
            self._served = {}  # what a worker said is not remembered longer than the worker
        self._present = set(peers)
        served = {
            name: rates.get(name, 0.0) + sum(peer.rates.get(name, 0.0) for peer in peers.values()) for name in weights
        }
        self._served = {
            name: rate + (1.0 - SMOOTHING) * (self._served.get(name, rate) - rate) for name, rate in served.items()
        }
        rivals: dict[int, dict[str, float]] = {}
        for name, weight in weights.items():
            rivals.setdefault((bands or {}).get(name, DEFAULT_BAND), {})[name] = weight
        lags, self._lags, self.charges, self.limits = self._lags, {}, {}, {}
        for those in rivals.values():
            if len(those) > 1:
                # All workers that can correct a difference correct it once together.
                able = 1 + sum(len(peer.wanted & those.keys()) > 1 for peer in peers.values())
                self._compare(those, rates, lags, set(at_limit), GAIN / able)

    def _compare(
        self,
        weights: Mapping[str, float],
        rates: Mapping[str, float],
        lags: Mapping[str, float],
        at_limit: set[str],
        gain: float,
    ) -> None:
        """Find the charges of slots that are served in turn with one another."""
        level = {name: self._served[name] / weights[name] for name in weights}
        # A slot at its limit is behind, whatever the others do: it may be charged, but no slot waits for it.
        free = [name for name in weights if name not in at_limit] or list(weights)
        behind = min(level[name] for name in free)
        found = {name: lags.get(name, 0.0) + gain * (level[name] - behind) for name in weights}
        least = min(found[name] for name in free)
        # As much as the slot is served that is charged nothing: more cannot be held back.
        most = HEADROOM * max(rates.get(name, 0.0) / weights[name] for name in weights)
        found = {name: min(most, max(0.0, lag - least)) for name, lag in found.items()}
        self._lags |= found
        self.charges |= {name: lag * weights[name] for name, lag in found.items()}
        self.limits |= {name: most * weights[name] for name in weights}


class ShareGroup(SideConnection):
    """Keeps the shares of a consumer in step with those of the others of its group.

    Parameters
    ----------
    name : str
        Of the group.
    settings : ConsumerSettings
        Where the broker is, and the cost model, which all of the group share.
    worker_queues : WorkerQueues
        What is charged.

    Notes
    -----
    It has a connection and a thread of its own (`SideConnection`). While the broker cannot be reached, or does not
    allow it, every worker is fair to its own queues as without a group; the log says so once a minute.

    `start` and `end` are for the owner, one after the other. Synchronization: `peers`, `connected` and what `charges`
    reads are single references that the thread writes and any thread may read. All else belongs to the thread.
    """

    def __init__(self, name: str, settings: ConsumerSettings, worker_queues: WorkerQueues) -> None:
        super().__init__(settings.urls, "fairsched-shares")
        self._exchange = EXCHANGES + name
        if not is_short_string(self._exchange):
            most = LONGEST - len(EXCHANGES)
            raise ConfigurationError(f"share_group must be at most {most} bytes of text, got {name!r}")
        self._settings = settings
        self._worker_queues = worker_queues
        #: Other consumers that were heard of lately.
        self.peers = 0
        self._identity = uuid.uuid4().hex
        self._balance = GroupBalance()
        self._log = LogLimit()
        self._work: dict[str, int] = {}
        self._began = time.monotonic()
        #: How often a slot had messages in this period, and how often it was at its limit then.
        self._wanted: Counter[str] = Counter()
        self._full: Counter[str] = Counter()
        #: Accounts by name: a slot, or with priorities of messages a slot and a priority.
        self._slots: dict[str, Any] = {}
        self._by_priority = settings.band is not None
        self._parts = 0
        #: Slots that the others have to be told of, and until when they take no turns; any thread appends.
        self._throttles: deque[tuple[str, float]] = deque()
        #: What is left of a charge that was no whole number.
        self._rests: dict[str, float] = {}

    def take(self, settings: ConsumerSettings) -> None:
        """Take the bands of other queues."""
        self._settings = settings

    def throttle(self, slot: Hashable, seconds: float) -> None:
        """Have the other consumers let a slot take no turns for so long; they hear of it within a period."""
        if self.connected:
            self._throttles.append((slot_name(slot), time.monotonic() + seconds))

    def charges(self) -> dict[Hashable, float]:
        """Return what slots are charged for their service elsewhere, in cost a second; from any thread."""
        slots, by_slot = self._slots, Counter[Hashable]()
        if self.connected:
            for name, rate in list(self._balance.charges.items()):
                if name in slots:
                    by_slot[slots[name][0] if self._by_priority else slots[name]] += rate  # type: ignore[assignment]
        return dict(by_slot)

    # The thread --------------------------------------------------------------------------------------------------

    def _lose(self, error: BaseException) -> None:
        if not isinstance(error, FairschedError | KeyboardInterrupt):
            _log.error("the share group %s failed", self._exchange, exc_info=error)
        if self._log.due("lost"):
            _log.warning("shares are kept by this consumer alone, until %s can be used: %s", self._exchange, error)
        self._balance, self.peers = GroupBalance(), 0

    def _take_part(self, session: Session, working: Callable[[], None]) -> None:
        """Take part until the connection is lost or this is ended."""
        channel = session.channel()
        exchange = self._exchange
        _, declared = session.call(
            [
                partial(channel.exchange_declare, exchange, "fanout", auto_delete=True),
                partial(channel.queue_declare, "", exclusive=True),
            ],
            f"share group {exchange}",
        )
        queue = declared.method.queue
        session.call([partial(channel.queue_bind, queue, exchange)], "queue.bind")
        channel.basic_consume(queue, self._on_message, auto_ack=True)
        working()
        self._measure(time.monotonic(), self._worker_queues.stats(self._by_priority))
        length = PERIOD / PARTS
        while not self.over():
            session.serve_until(self.over, length)
            before = time.thread_time()
            self._step(channel, length)
            length = max(PERIOD / PARTS, (time.thread_time() - before) / MOST_EFFORT)

    def _step(self, channel: Any, length: float) -> None:
        """Look what has messages, charge a part; and once in a period measure, publish and find new charges."""
        stats = self._worker_queues.stats(self._by_priority)
        for slot, figures in stats.items():
            if figures.queued or figures.held:
                name = slot_name(slot)
                self._slots[name] = slot
                self._wanted[name] += 1
                self._full[name] += figures.at_limit
        self._parts += 1
        if self._parts >= PARTS:
            now = time.monotonic()
            rates = self._measure(now, stats)
            # What comes and goes is served whenever it comes, and is not behind.
            wanted = [name for name, times in self._wanted.items() if 2 * times > self._parts]
            weights = {name: float(stats[self._slots[name]].quantum) for name in wanted if self._slots[name] in stats}
            self._publish(channel, rates, wanted, max(LOST_AFTER, LOST_PERIODS * PARTS * length))
            at_limit = [name for name in weights if 2 * self._full[name] > self._wanted[name]]
            bands = {name: self._band_of(self._slots[name]) for name in weights}
            self._balance.update(rates, weights, now, at_limit, bands)
            self.peers = self._balance.peers(now)
            self._parts, self._wanted, self._full = 0, Counter(), Counter()
            self._slots = {name: self._slots[name] for name in weights}
        self._charge(length)

    def _band_of(self, account: Any) -> int:
        """Return what accounts have in common that are served in turn with one another."""
        return int(account[1] if self._by_priority else self._settings.bands.get(account, DEFAULT_BAND))

    def _measure(self, now: float, stats: Mapping[Hashable, SlotStats]) -> dict[str, float]:
        """Return what was served of each slot in a second since the last call."""
        seconds, self._began = max(1e-3, now - self._began), now
        before, self._work = self._work, {slot_name(slot): figures.work for slot, figures in stats.items()}
        rates = {}
        for name, work in self._work.items():
            # A tenant that was forgotten, and came back, counts from nothing.
            done = work - before.get(name, 0) if work >= before.get(name, 0) else work
            if done:
                rates[name] = done / seconds
        return rates

    def _charge(self, seconds: float) -> None:
        worker_queues, before = self._worker_queues.queues, self._rests
        self._rests = {}  # of these alone: tenants come and go
        for name, rate in self._balance.charges.items():
            exact = rate * seconds + before.get(name, 0.0)
            limit, amount = math.ceil(self._balance.limits[name]), int(exact)
            self._rests[name] = exact - amount
            if amount > 0 and limit > 0 and name in self._slots:
                account = self._slots[name]
                slot, priority = account if self._by_priority else (account, None)
                for worker_queue in worker_queues:  # each has its part of the slot
                    part, most = max(1, amount // len(worker_queues)), max(1, limit // len(worker_queues))
                    worker_queue.charge(slot, part, most, priority)

    # Messages ----------------------------------------------------------------------------------------------------

    def _publish(self, channel: Any, rates: Mapping[str, float], wanted: Sequence[str], lasts: float) -> None:
        throttled: dict[str, float] = {}
        while self._throttles:
            name, until = self._throttles.popleft()
            throttled[name] = max(throttled.get(name, 0.0), until - time.monotonic())
        claim = Claim(self._identity, self._cost, lasts, rates, wanted, throttled)
        channel.basic_publish(self._exchange, "", encode(claim))

    @property
    def _cost(self) -> str:
        cost = self._settings.options.cost
        return cost if isinstance(cost, str) else "function"

    def _on_message(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        try:
            claim = decode(body)
        except ValueError as error:
            if self._log.due("message"):
                _log.warning("share group %s: message ignored: %s", self._exchange, error)
            return
        if claim.sender == self._identity:
            return
        for name, seconds in claim.throttled.items():
            with contextlib.suppress(ValueError):
                self._worker_queues.throttle(slot_of(name), seconds)
        if claim.cost != self._cost:
            if self._log.due("cost"):
                _log.warning(
                    "share group %s: another consumer has cost=%r, this one %r; it is not counted",
                    self._exchange, claim.cost, self._cost,
                )  # fmt: skip
            return
        # Slots that are not here are no concern of this worker, and are not kept.
        rates = {name: rate for name, rate in claim.rates.items() if name in self._work}
        wanted = [name for name in claim.wanted if name in self._work]
        self._balance.hear(claim.sender, rates, wanted, claim.lasts, time.monotonic())
