"""Explanations of why a queue or a tenant waits, as data and as a sentence."""

from __future__ import annotations

import heapq
import reprlib
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from fairsched.consumer.prefetch.control import byte_limits
from fairsched.errors import ConfigurationError
from fairsched.scheduling.limit import JointName

if TYPE_CHECKING:
    from fairsched.consumer.channels import Unsettled
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.state import ConsumerState
    from fairsched.stats import CoDelStats, LimitStats, SlotOutlook

#: Maximum number of names that an error lists.
_MOST_LISTED = 10
#: Maximum number of subkeys that a sentence names.
_FEW = 3

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 80


@dataclass(frozen=True, slots=True)
class Explanation:
    """Reasons why a queue (with `key`: a tenant) waits; returned by `Consumer.explain`. ``str()`` of it is a sentence.

    Attributes
    ----------
    name : hashable
        The queue or the tenant.
    kind : str
        "queue" or "tenant".
    connected : bool
        Whether there is an open connection to a broker.
    consuming : bool
        Whether the broker has confirmed the consumer of the queue; for a tenant: of every queue that is not paused.
    stopping : bool
        Whether the consumer was stopped, or has ended.
    paused : bool
        Whether the queue is paused; for a tenant: whether every queue is.
    problem : str or None
        Why the consumer cannot recover by itself; see `ConsumerState`.
    workers : int
        Number of messages that can be handled at a time.
    in_hand : int
        Messages of all queues that were handed out and are not yet settled.
    window : int or None
        The queue's prefetch count: maximum number of unsettled messages; for a tenant: of all queues together. None
        before the start.
    unsettled : int or None
        Messages of this window that are buffered or in hand. None before the start.
    unsettled_bytes : int or None
        Bytes of these messages.
    byte_limit : float or None
        Maximum of `unsettled_bytes` by ``max_buffer_bytes``; None without such a limit.
    weight : int or None
        The current weight. With `key`, this attribute and all that follow are None for a queue: tenants take the turns.
    quantum : int or None
        Cost granted in each turn.
    deficit : int or None
        Cost that may still be served in this turn; negative: a debt, which later turns pay first.
    served : int or None
        Messages handed out, counted since the slot was added; slots of idle tenants are removed.
    work : int or None
        Cost served in the same time, with estimates corrected.
    buffered : int or None
        Messages that were received and wait for a handler.
    oldest : float or None
        Seconds since the oldest buffered message was received (with `subkey` or `band`: since the next one was). None
        if none is buffered; cost, rank, turns and others are then None too.
    cost : int or None
        Cost of this message.
    rank : int or None
        Number of other queues or tenants that are served before this message, as things stand. With an `ordering_key`,
        rank, cost, turns and others are those in the worker queue of the oldest message.
    turns : int or None
        Own turns that pass first, because the deficit does not yet cover the cost.
    others : int or None
        Number of other queues or tenants that take turns.
    held : bool or None
        Whether the slot counts as backlogged at the broker while nothing is buffered, and keeps its deficit.
    awaited : hashable or None
        The queue whose turn it is, and for whose next message all workers wait (see ``anticipation``).
    limited : int or None
        Messages in hand that count towards its limit; None if the limit has no concurrency.
    concurrency : int or None
        Maximum of `limited` (see ``limit``).
    permits : int or None
        With a limit of the group: the messages that this process may have in hand at this time, which is its part of
        `concurrency`; None without one.
    retry_after : float or None
        Seconds until its rate allows another message; None if it allows one now, or without a rate. While the slot is
        at its limit, rank, turns and others are None.
    waits_for : str or None
        The named limit or the total for which it waits, since that allows no message now: "limit 'stripe-api'" or "the
        total limit". None if it waits for neither; rank, turns and others are None while it does.
    band : int or None
        Its strict band; None, as `above`, if no queue or tenant has a band of its own.
    above : int or None
        Messages buffered in earlier bands, or with the consumer's `band` of higher priorities, all of which are served
        first.
    priority : int or None
        With the consumer's `band`: the priority of its next message, to which cost, rank, turns and `deficit` refer.
    subkeys : int or None
        Number of its subkeys with buffered messages; None, as `busiest`, without `subkey`.
    busiest : tuple of (hashable, int) or None
        The subkeys with most buffered messages, at most ten, and their numbers of messages.
    returning : bool or None
        Whether CoDel is returning its messages; None, as the next two, without `codel`.
    returned : int or None
        Messages that CoDel returned.
    sojourn : float or None
        Seconds that the last message handed out had waited; None before the first.
    """

    name: Hashable
    kind: str
    connected: bool
    consuming: bool
    stopping: bool
    paused: bool
    problem: str | None
    workers: int
    in_hand: int
    window: int | None
    unsettled: int | None
    unsettled_bytes: int | None
    byte_limit: float | None
    weight: int | None = None
    quantum: int | None = None
    deficit: int | None = None
    served: int | None = None
    work: int | None = None
    buffered: int | None = None
    oldest: float | None = None
    cost: int | None = None
    rank: int | None = None
    turns: int | None = None
    others: int | None = None
    held: bool | None = None
    awaited: Hashable | None = None
    limited: int | None = None
    concurrency: int | None = None
    permits: int | None = None
    retry_after: float | None = None
    waits_for: str | None = None
    band: int | None = None
    above: int | None = None
    priority: int | None = None
    subkeys: int | None = None
    busiest: tuple[tuple[Hashable, int], ...] | None = None
    returning: bool | None = None
    returned: int | None = None
    sojourn: float | None = None

    def __str__(self) -> str:
        verb = "has nothing buffered" if self.buffered == 0 else "waits" if self.buffered else "is not scheduled itself"
        return f"{self.kind} {_shortened.repr(self.name)} {verb}: {'; '.join(_clauses(self))}"


def explained(
    name: Hashable,
    settings: ConsumerSettings,
    state: ConsumerState,
    outlook: SlotOutlook | None,
    windows: dict[str, Unsettled],
    law: tuple[bool, CoDelStats] | None,
    subkeys: Mapping[Hashable, int] | None = None,
    permits: int | None = None,
    joints: Mapping[Hashable, LimitStats] | None = None,
) -> Explanation:
    """Build the explanation of why a queue or a tenant waits.

    Parameters
    ----------
    name : hashable
        The queue or the tenant.
    settings : ConsumerSettings
        The consumer's settings.
    state : ConsumerState
        The consumer's state.
    outlook : SlotOutlook or None
        The position of its slot in the fair order; None if it has no slot.
    windows : dict
        The unsettled messages of each consumed queue.
    law : tuple or None
        Whether CoDel is returning its messages, and CoDel's statistics.
    subkeys : mapping, optional
        Number of buffered messages per subkey, with `subkey`.
    permits : int, optional
        What this process may have in hand of a limit of the group.
    joints : mapping, optional
        What the named limits and the total do.

    Returns
    -------
    Explanation
        The explanation.
    """
    by_tenant = settings.key is not None and outlook is not None
    queues = list(settings.windows) if by_tenant else [cast("str", name)]
    there = [windows[queue] for queue in queues if queue in windows]
    limits = byte_limits(settings)
    found = Explanation(
        name=name,
        kind="tenant" if by_tenant else "queue",
        connected=state.connected,
        consuming=all(state.consuming.get(queue) or (by_tenant and queue in state.paused) for queue in queues),
        stopping=state.stopping,
        paused=all(queue in state.paused for queue in queues),
        problem=state.problem,
        workers=settings.workers,
        in_hand=state.in_hand,
        window=sum(one.window for one in there) if windows else None,
        unsettled=sum(one.messages for one in there) if windows else None,
        unsettled_bytes=sum(one.size for one in there) if windows else None,
        byte_limit=sum(limits[queue] for queue in queues) if limits else None,
    )
    if outlook is None:
        return found
    if subkeys is not None:
        busiest = heapq.nlargest(_MOST_LISTED, subkeys.items(), key=lambda one: one[1])
        found = replace(found, subkeys=len(subkeys), busiest=tuple(busiest))
    found = _scheduled(found, settings, outlook, law, permits)
    return replace(found, waits_for=_waits_for(found, settings, joints)) if joints else found


def _waits_for(found: Explanation, settings: ConsumerSettings, joints: Mapping[Hashable, LimitStats]) -> str | None:
    """Return which limit of several slots a slot waits for, the named one first, if its own limit allows a message."""
    most = found.concurrency if found.permits is None else found.permits
    if not found.buffered or found.rank is not None or found.retry_after is not None:
        return None
    if most is not None and (found.limited or 0) >= most:
        return None
    names = [JointName(limit.name) for limit in settings.limits_of(found.name) if limit.name is not None]
    return next((str(one) for one in (*names, JointName(None)) if one in joints and joints[one].withheld), None)


def _weight_of(name: Any, settings: ConsumerSettings) -> int | None:
    return settings.weights[name] if settings.key is None else settings.tenants.get(name, settings.others).weight


def _scheduled(
    found: Explanation,
    settings: ConsumerSettings,
    outlook: SlotOutlook,
    law: tuple[bool, CoDelStats] | None,
    permits: int | None,
) -> Explanation:
    """Add the figures of the slot."""
    stats, message = outlook.stats, outlook.item
    return replace(
        found,
        weight=_weight_of(found.name, settings),
        quantum=stats.quantum,
        deficit=stats.deficit,
        served=stats.served,
        work=stats.work,
        buffered=stats.queued,
        oldest=None if message is None else max(0.0, time.monotonic() - message.arrived),
        cost=outlook.cost,
        rank=outlook.before,
        turns=outlook.turns,
        others=outlook.others,
        held=stats.held,
        awaited=outlook.awaited,
        limited=outlook.in_hand,
        concurrency=outlook.concurrency,
        permits=permits,
        retry_after=outlook.retry_after,
        band=outlook.band,
        above=outlook.above,
        priority=outlook.priority,
        returning=None if law is None else law[0],
        returned=None if law is None else law[1].returned,
        sojourn=law[1].sojourn if law is not None and law[1].asked else None,
    )


def check_hashable(name: object) -> None:
    """Reject a name that no queue and no tenant can have."""
    try:
        hash(name)
    except Exception as error:  # the hash of a user's object may raise anything
        raise ConfigurationError(
            f"name must be that of a queue or a tenant, and hashable, got {_shortened.repr(name)}"
        ) from error


def check_consumed(queue: object, settings: ConsumerSettings) -> None:
    """Reject a name that is not that of a consumed queue, and list the known ones."""
    if not isinstance(queue, str) or queue not in settings.windows:
        raise ConfigurationError(
            f"queue {_shortened.repr(queue)} is not consumed; there are {_listed(settings.windows)}"
        )


def check_known(name: Hashable, found: object, settings: ConsumerSettings, tenants: Iterable[Hashable]) -> None:
    """Reject an unknown name, and list the known ones.

    Parameters
    ----------
    name : hashable
        Name of a queue or tenant.
    found : object
        Its slot; None if it has none.
    settings : ConsumerSettings
        The consumer's settings.
    tenants : iterable of hashable
        The known tenants.

    Raises
    ------
    ConfigurationError
        If it is neither a known tenant nor a consumed queue.
    """
    if found is not None or name in settings.windows:
        return
    if settings.key is None:
        check_consumed(name, settings)
    raise ConfigurationError(
        f"tenant {_shortened.repr(name)} has no buffered messages and no weight of its own; there are tenants "
        f"{_listed(tenants) or 'none'} and queues {_listed(settings.windows)}"
    )


def _listed(names: Iterable[Hashable]) -> str:
    found = list(names)
    shown = ", ".join(map(_shortened.repr, found[:_MOST_LISTED]))
    return shown + (f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else "")


def _clauses(why: Explanation) -> Iterator[str]:
    """Yield the parts of the sentence: buffered messages, obstacles, turns, the window."""
    if why.buffered:
        first = "oldest" if why.subkeys is None and why.priority is None else "next"
        yield f"{_count(why.buffered, 'message')} buffered, the {first} for {_seconds(why.oldest or 0.0)}"
        if why.busiest:
            yield _division(why)
    yield from _hindrances(why)
    if why.quantum is not None:
        yield from _turns(why)
    yield from _window(why)


def _division(why: Explanation) -> str:
    """Return how the buffered messages divide among the subkeys."""
    shown = [f"{number} of {_shortened.repr(subkey)}" for subkey, number in (why.busiest or ())[:_FEW]]
    rest = (why.subkeys or 0) - len(shown)
    return f"by subkey: {', '.join(shown)}" + (f" and some of {rest} more" if rest else "")


def _hindrances(why: Explanation) -> Iterator[str]:
    if why.problem is not None:
        yield f"the consumer cannot continue: {why.problem}"
    elif why.stopping:
        yield "the consumer is stopping"
    elif not why.connected:
        yield "there is no connection to a broker"
    elif why.paused:
        yield f"{'the queue' if why.kind == 'queue' else 'every queue'} is paused"
    elif not why.consuming:
        yield f"the broker has not confirmed the consumer of {'the' if why.kind == 'queue' else 'every'} queue"
    if why.returning:
        yield f"CoDel is returning its messages, {why.returned} so far"


def _turns(why: Explanation) -> Iterator[str]:
    account = f"its deficit is {why.deficit} of a quantum of {why.quantum} (weight {why.weight})"
    yield account + ("" if why.cost is None else f", and its next message costs {why.cost}")
    if why.permits is not None:
        most = ": it takes no turns until the group has more for it" if (why.limited or 0) >= why.permits else ""
        whole = "any number" if why.concurrency is None else str(why.concurrency)
        yield f"{why.limited or 0} in hand here, where this process has {why.permits} of the group's {whole}{most}"
    elif why.concurrency is not None:
        most = ": it is at its limit and takes no turns" if why.limited == why.concurrency else ""
        yield f"{why.limited} of at most {_count(why.concurrency, 'message')} in hand{most}"
    if why.retry_after is not None:
        yield f"its rate allows the next message in {_seconds(why.retry_after)}, so it takes no turns"
    if why.waits_for is not None:
        yield f"it takes no turns until {why.waits_for} allows another message"
    if why.above:
        where = f"earlier bands (its own is {why.band})"
        if why.priority is not None:
            where = f"higher priorities (that of its next message is {why.priority})"
        yield f"{_count(why.above, 'message')} of {where} {_is(why.above)} served first"
    if why.rank is not None:
        before = (
            f"no other {why.kind} is served before it"
            if not why.rank
            else (f"{why.rank} of {_count(why.others or 0, f'other {why.kind}')} {_is(why.rank)} served before it")
        )
        yield before + (f", and {_count(why.turns, 'turn')} of its own {_pass(why.turns)} first" if why.turns else "")
    if why.awaited is not None:
        yield f"workers wait for the next message of {_shortened.repr(why.awaited)}, whose turn it is"
    if why.held and not why.buffered:
        yield "it is on hold: it has more messages at the broker, so it keeps its deficit"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _pass(turns: int) -> str:
    return "passes" if turns == 1 else "pass"


def _window(why: Explanation) -> Iterator[str]:
    whose = "its" if why.kind == "queue" else "the"
    if why.window == 0:
        yield f"{why.unsettled} of its messages are unsettled"
    elif why.window is not None:
        yield f"{why.unsettled} of {whose} window of {why.window} are unsettled" + (
            ", so the broker sends no more until some are settled" if (why.unsettled or 0) >= why.window else ""
        )
    if why.byte_limit is not None:
        yield f"{why.unsettled_bytes} of {why.byte_limit:.0f} bytes are used"
    yield f"{_count(why.in_hand, 'message')} in hand, {_count(why.workers, 'worker')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.05 else f"{seconds * 1e3:.1f} ms"
