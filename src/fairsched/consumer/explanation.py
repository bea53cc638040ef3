"""Why a queue or a tenant waits, as data and as a sentence."""

from __future__ import annotations

import heapq
import reprlib
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from fairsched.consumer.prefetch.control import byte_limits
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from fairsched.consumer.io_thread import Unsettled
    from fairsched.consumer.settings import ConsumerSettings
    from fairsched.consumer.state import ConsumerState
    from fairsched.stats import CoDelStats, SlotOutlook

#: Names that an error lists, at most.
_MOST_LISTED = 10
#: Subkeys that a sentence names, at most.
_FEW = 3

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = 80


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a queue, or with a `key` a tenant, waits; `Consumer.explain` returns it, ``str()`` makes a sentence of it.

    Attributes
    ----------
    name : hashable
        The queue or the tenant.
    kind : str
        "queue" or "tenant".
    connected : bool
        Whether there is an open connection to a broker.
    consuming : bool
        Whether the broker has confirmed the consumer of the queue; of a tenant: of every queue that is
        not paused.
    stopping : bool
        Whether the consumer was stopped, or has ended.
    paused : bool
        Whether the queue was paused; of a tenant: every queue.
    problem : str or None
        Why it cannot go on by itself; see `ConsumerState`.
    workers : int
        Messages that can be handled at a time.
    in_hand : int
        Messages of anybody that were handed out and are not settled.
    window : int or None
        Unsettled messages that the broker may have given out, by its prefetch count; of a tenant: of all queues
        together. None before the start.
    unsettled : int or None
        Messages of this window that are here, buffered or in hand. None before the start.
    unsettled_bytes : int or None
        Bytes of these messages.
    byte_limit : float or None
        Bytes of ``max_buffer_bytes`` that the window may hold; None if there is no such limit.
    weight : int or None
        As it is now. None where the turns are not taken by queues, but by tenants; so is all that follows.
    quantum : int or None
        Cost that is granted in each turn.
    deficit : int or None
        Cost that may still be served in this turn; below 0: a debt, which turns have to pay first.
    served : int or None
        Messages taken out in fair order, since it was last heard of; tenants that are idle are forgotten.
    work : int or None
        Cost served likewise, with corrections of what was estimated.
    buffered : int or None
        Messages that wait here for a handler.
    oldest : float or None
        Seconds for which the first of them has been here; None if there is none, and so are cost, rank, turns, others.
        With a `subkey` the first is the one that is served next.
    cost : int or None
        What the first of them is charged.
    rank : int or None
        Other queues, or tenants, of which something is served before it, as things are. With an `ordering_key`: in the
        lane of the oldest message, as are cost, turns and others.
    turns : int or None
        Turns of its own that pass before, because they do not pay for it yet.
    others : int or None
        Other queues, or tenants, that take turns.
    held : bool or None
        Whether it counts as backlogged at the broker when it is empty here, and keeps its deficit.
    awaited : hashable or None
        The queue for whose next message everybody waits, since it is its turn (see ``anticipation``).
    limited : int or None
        Messages of it in hand that count for its limit; None if it has none for these.
    concurrency : int or None
        How many may be, at most (see ``limit``).
    retry_after : float or None
        Seconds until its rate allows another message; None if it does, or if it has none. While it is at its limit,
        rank, turns and others are None.
    band : int or None
        Its strict band; None if nobody has one of his own, as is above.
    above : int or None
        Messages buffered in the bands before its own, which are served before any of its own.
    subkeys : int or None
        Subkeys of it that have messages buffered; None without a `subkey`, as is the next.
    busiest : tuple of (hashable, int) or None
        Those of them that have most, and how many messages: ten at most.
    returning : bool or None
        Whether CoDel is returning its messages; None without a `codel`, and so are the next two.
    returned : int or None
        Messages that CoDel returned.
    sojourn : float or None
        Seconds for which the last message waited that was handed out; None if there was none.
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
    retry_after: float | None = None
    band: int | None = None
    above: int | None = None
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
) -> Explanation:
    """Put together why a queue or a tenant waits.

    Parameters
    ----------
    name : hashable
        The queue or the tenant.
    settings : ConsumerSettings
        Of the consumer.
    state : ConsumerState
        What the consumer is doing.
    outlook : SlotOutlook or None
        What stands before it; None if it has no slot.
    windows : dict
        Of each queue consumed, what is unsettled of it.
    law : tuple or None
        Whether CoDel is returning its messages, and its figures.
    subkeys : mapping, optional
        Messages buffered by subkey of it, if there is a `subkey`.

    Returns
    -------
    Explanation
        All of it.
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
    return _scheduled(found, settings, outlook, law)


def _scheduled(
    found: Explanation, settings: ConsumerSettings, outlook: SlotOutlook, law: tuple[bool, CoDelStats] | None
) -> Explanation:
    """Add what is known of the slot."""
    stats, message = outlook.stats, outlook.item
    weights = settings.weights if settings.key is None else settings.tenants
    return replace(
        found,
        weight=weights.get(found.name, settings.options.default_weight),  # type: ignore[call-overload]
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
        retry_after=outlook.retry_after,
        band=outlook.band,
        above=outlook.above,
        returning=None if law is None else law[0],
        returned=None if law is None else law[1].returned,
        sojourn=law[1].sojourn if law is not None and law[1].asked else None,
    )


def check_known(name: Hashable, found: object, settings: ConsumerSettings, tenants: Iterable[Hashable]) -> None:
    """Refuse a name of which nothing is known, and list those that are.

    Parameters
    ----------
    name : hashable
        What was asked for.
    found : object
        What is known of it; None: nothing.
    settings : ConsumerSettings
        Of the consumer.
    tenants : iterable of hashable
        Those that there are.

    Raises
    ------
    ConfigurationError
        If it is neither a tenant of whom something is here, nor a queue.
    """
    if found is not None or name in settings.windows:
        return
    if settings.key is None:
        raise ConfigurationError(
            f"queue {_shortened.repr(name)} is not consumed; there are {_listed(settings.windows)}"
        )
    raise ConfigurationError(
        f"nothing of tenant {_shortened.repr(name)} is here, and it has no weight of its own; there are tenants "
        f"{_listed(tenants) or 'none'} and queues {_listed(settings.windows)}"
    )


def _listed(names: Iterable[Hashable]) -> str:
    found = list(names)
    shown = ", ".join(map(_shortened.repr, found[:_MOST_LISTED]))
    return shown + (f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else "")


def _clauses(why: Explanation) -> Iterator[str]:
    """Yield the parts of the sentence: what is here, what is in the way, whose turn it is, the window."""
    if why.buffered:
        first = "oldest" if why.subkeys is None else "next"
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
    if why.concurrency is not None:
        most = ": it is at its limit and takes no turns" if why.limited == why.concurrency else ""
        yield f"{why.limited} of at most {_count(why.concurrency, 'message')} in hand{most}"
    if why.retry_after is not None:
        yield f"its rate allows the next message in {_seconds(why.retry_after)}, so it takes no turns"
    if why.above:
        yield f"{_count(why.above, 'message')} of earlier bands (its own is {why.band}) {_is(why.above)} served first"
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
