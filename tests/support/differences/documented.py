"""The documented differences of the embedded broker that sessions can show, as in docs/reference/differences.md.

Some are of no consequence for what follows: observations are equated. After others the brokers are in different states:
the comparison of a session ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.differences.operations import (
    Cancel,
    CloseConnection,
    Commit,
    Consume,
    DeclareQueue,
    Publish,
    Qos,
    Session,
)  # fmt: skip
from support.differences.runner import Observation, is_brief


@dataclass(frozen=True)
class Difference:
    """One after which no more can be compared."""

    name: str
    sentence: str
    #: Whether it explains that at this place of the session RabbitMQ and the embedded broker were observed to do this.
    explains: Callable[[Session, int, Observation, Observation], bool]


@dataclass(frozen=True)
class Equated:
    """One of no consequence; `same` makes such observations equal."""

    name: str
    sentence: str
    same: Callable[[Observation], Observation]


def each_table(value: Any, change: Callable[[dict[Any, Any]], dict[Any, Any]]) -> Any:
    """Change every table in an observation."""
    if isinstance(value, dict):
        return change({key: each_table(one, change) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(each_table(one, change) for one in value)
    return value


def older_deaths_sorted(found: Observation) -> Observation:
    def change(table: dict[Any, Any]) -> dict[Any, Any]:
        deaths = table.get("x-death")
        if not isinstance(deaths, list):
            return table
        return {**table, "x-death": [*deaths[:1], *sorted(deaths[1:], key=repr)]}

    return each_table(found, change)  # type: ignore[no-any-return]


EQUATING = [
    Equated(
        "older deaths",
        "RabbitMQ 3.10 reverses the older deaths of `x-death` with every further death; the embedded broker has the "
        "latest first.",
        older_deaths_sorted,
    ),
]


def merged(found: Observation) -> list[str]:
    """All that was delivered, to whomever."""
    return sorted(
        repr(sorted(message.items(), key=str))
        for channel in found.values()
        if isinstance(channel, dict)
        for consumer in channel.get("delivered", {}).values()
        for message in consumer
    )


def turns_of_consumers(_session: Session, _place: int, left: Observation, right: Observation) -> bool:
    counts = left.get("counts") == right.get("counts")
    return counts and bool(merged(left)) and merged(left) == merged(right)


def arrays_and_tables(_session: Session, _place: int, left: Observation, right: Observation) -> bool:
    def shown(found: Observation) -> Observation:
        return {
            key: {inner: one for inner, one in value.items() if inner != "closed"} if "closed" in value else value
            for key, value in found.items()
        }

    return " octets'" in str(right) and shown(left) == shown(right)


def last_deliveries(session: Session, place: int, left: Observation, right: Observation) -> bool:
    """Whether a connection was closed, for one reason, and what comes back from its channels went elsewhere."""
    closed = place < len(session) and isinstance(session[place], CloseConnection)
    same = left.get("connections") == right.get("connections")
    return same and (closed or "connections" in left) and merged(left) != merged(right)


def rejections_beside_consumers(session: Session, place: int, left: Observation, right: Observation) -> bool:
    """Whether more messages than fit were sent together to a queue that rejects, and has consumers."""
    return (
        any(isinstance(one, Publish | Commit) for one in session[place : place + 1])
        and any(
            isinstance(one, DeclareQueue) and str(one.arguments.get("x-overflow")).startswith("reject-publish")
            for one in session[:place]
        )
        and any(isinstance(one, Consume) for one in session[:place])
    )


def expiration_of_lazy(session: Session, _place: int, left: Observation, right: Observation) -> bool:
    """Whether only the expiration that a dead letter had is missing, where a queue is lazy."""

    def change(table: dict[Any, Any]) -> dict[Any, Any]:
        return {key: value for key, value in table.items() if key != "original-expiration"}

    lazy = any(isinstance(one, DeclareQueue) and one.arguments.get("x-queue-mode") == "lazy" for one in session)
    return lazy and bool(each_table(left, change) == each_table(right, change))


def expiry_in_priority_queues(session: Session, place: int, _left: Observation, _right: Observation) -> bool:
    done = session[: place + 1]
    levels = any(isinstance(one, DeclareQueue) and "x-max-priority" in one.arguments for one in done)
    return levels and any(map(is_brief, done))


def active_consumer_after_cancel(session: Session, place: int, _left: Observation, _right: Observation) -> bool:
    """Whether a consumer was cancelled, as all are at the end of a session, where one is active at a time."""
    return (place == len(session) or isinstance(session[place], Cancel)) and any(
        isinstance(one, DeclareQueue) and one.arguments.get("x-single-active-consumer") for one in session[:place]
    )


def internal_error(_session: Session, _place: int, left: Observation, right: Observation) -> bool:
    return "(541, 'INTERNAL_ERROR'" in str(left.get("connections")) and "541" not in str(right.get("connections"))


def channel_limit(session: Session, place: int, _left: Observation, _right: Observation) -> bool:
    return any(isinstance(one, Qos) and one.everywhere for one in session[: place + 1])


ENDING = [
    Difference(
        "turns of consumers",
        "Which of several consumers of one priority gets a message: RabbitMQ serves them strictly in turn; with the "
        "embedded broker each takes one message at a time, whichever thread comes first.",
        turns_of_consumers,
    ),
    Difference(
        "arrays and tables in errors",
        "An argument that is an array or a table: RabbitMQ's error shows it as Erlang writes it, the embedded broker's "
        "its length.",
        arrays_and_tables,
    ),
    Difference(
        "last deliveries",
        "A connection that closes: with RabbitMQ, channels that end later may still be sent what those before them "
        "had; with the embedded broker all channels end together.",
        last_deliveries,
    ),
    Difference(
        "rejections beside consumers",
        "More messages at once than a queue that rejects may have: RabbitMQ first gives its consumers all that they "
        "may have; with the embedded broker messages count until a consumer has taken them.",
        rejections_beside_consumers,
    ),
    Difference(
        "expiration of lazy queues",
        "The `original-expiration` in `x-death`: RabbitMQ 3.10 leaves it out when the message expired in a lazy "
        "queue; the embedded broker has it.",
        expiration_of_lazy,
    ),
    Difference(
        "expiry in priority queues",
        "A message that overtakes others in a queue with priorities, and expires: RabbitMQ notices that with the next "
        "change of the queue, the embedded broker at once.",
        expiry_in_priority_queues,
    ),
    Difference(
        "the next active consumer",
        "The active consumer of several is cancelled while messages wait: RabbitMQ 3.10 gives the next one nothing "
        "before the queue changes again (4.3 does), the embedded broker at once.",
        active_consumer_after_cancel,
    ),
    Difference(
        "internal errors",
        "RabbitMQ ends the connection with an internal error (541), as for a queue type that does not exist if the "
        "server is to name the queue; the embedded broker says what is wrong.",
        internal_error,
    ),
    Difference(
        "turns under a channel's limit",
        "Which queue is served first when a limit of a whole channel has room again: RabbitMQ asks them in random "
        "order, the embedded broker in turn.",
        channel_limit,
    ),
]
