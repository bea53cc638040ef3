"""The table of options: what a consumer can be told, and what each of these things is called, may be and is by default.

All else comes from it: the signatures of `Consumer` and `aio.Consumer`, `Settings` with its file and its environment
variables, the options of ``fairsched run`` and ``fairsched check``, and the table in docs/reference/configuration.md.

To add an option, add a field to `ConsumerOptions` and use it in the consumer, where it is ``settings.options.NAME``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fairsched.config import values
from fairsched.config.values import Kind, or_off
from fairsched.durations import format_duration
from fairsched.errors import ConfigurationError
from fairsched.pools import Workers

if TYPE_CHECKING:
    from fairsched._codel import CoDel
    from fairsched.limit import Limit
    from fairsched.queues import Queue
    from fairsched.retry import Retry

__all__ = ["OPTIONS", "PREFIX", "URL_VARIABLES", "ConsumerOptions", "Option", "default_url", "did_you_mean"]

#: What the names of our environment variables begin with.
PREFIX = "FAIRSCHED_"

#: Where a broker's URL is looked for, the first that is set wins; the last three are what hosting platforms set.
URL_VARIABLES = (PREFIX + "URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL")

#: Default of `target_delay` with ``prefetch="auto"``, in seconds; without, there is none.
TARGET_DELAY = 0.1


class Option(NamedTuple):
    """A row of the table.

    Parameters
    ----------
    name : str
        In Python and in the file; the environment variable and the option of the command line are made of it.
    kind : Kind
        What its values may be.
    default : object
        In Python; None where something is chosen or switched off.
    unset : str
        What a default of None, or none, means to a reader.
    metavar : str
        The form of its values on the command line.
    help : str
        What it is, in a sentence or two.
    """

    name: str
    kind: Kind
    default: Any
    unset: str
    metavar: str
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """All environment variables that are looked at, in this order."""
        return URL_VARIABLES if self.name == "url" else (self.variable,)

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as it is written in a file."""
        if self.default is None or self.default is MISSING:
            return self.unset
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return format_duration(self.default) if isinstance(self.default, float) else str(self.default)


def _row(kind: Kind, metavar: str, help: str, unset: str = "") -> dict[str, Any]:
    return {"kind": kind, "metavar": metavar, "help": help, "unset": unset}


# Any stands for Message in the types of functions: the consumer imports this module, which needs no pika.
@dataclass(frozen=True)
class ConsumerOptions:
    """The arguments of a consumer.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://``; several are tried in turn.
    queues : mapping of str to int or mapping, or sequence of str and Queue
        Weight per queue, or what else `Queue` takes; or names of queues that weigh the same, and queues.
    prefetch : int, mapping or "auto", optional
        Unsettled messages in all, divided in proportion to the weights, or per queue. By default chosen so that
        shares do not flatten at a round trip of a millisecond: 500 in all at least, or 20 for each queue up to 5 000 in
        all; and after a lost connection, once the handler was measured, no more than a second of work or what that
        and the workers need. "auto" measures round trip and handler time all the while, and keeps the windows at the
        smallest size that keeps the workers busy.
    target_delay : float, optional
        With ``prefetch="auto"``: seconds that a message may wait here beyond what keeps the workers busy; 0.1 by
        default.
    max_buffer_bytes : int, optional
        Bytes of unsettled messages to have here, divided over the queues in proportion to their weights. A queue that
        has more takes in nothing until half of that is settled; one message of each is always possible.
    anticipation : float, optional
        Seconds that a queue whose turn it is, empty here but backlogged at the broker, is waited for in one turn
        before the others go on, so that shares hold even when the broker is slower than the handlers. By default four
        round trips, and 20 ms at least; 0 waits for nobody.
    workers : int, Pool or list of Pool
        Threads that `run` gives the handler. In pools of different priorities, those of a lower one help only while
        all above them are busy; not with an `ordering_key`.
    cost : "constant", "bytes", "time" or callable
        What a message is charged: one, its length, its handler's time, or ``cost(message)``. None is "constant".
    key : str or callable
        ``"header:NAME"``, ``"property:NAME"`` or ``key(message)``: be fair to tenants inside the queues instead of
        to queues. Messages without a key belong to the tenant ``""``. None is "queue".
    subkey : str or callable, optional
        As `key`: what a tenant, or without a `key` a queue, is served is divided among its subkeys in equal parts, by
        the same `cost`. So a flood of one user does not delay the other users of his tenant, and a tenant has its share
        however many of them it has. Messages without one belong to the subkey ``""``.
    weights : mapping, optional
        Weights of tenants, with `key`.
    default_weight : int
        Weight of every other tenant.
    share_group : str, optional
        Consumers of the same group, on the same broker, keep shares together: each tells the others once a second what
        it serves, and charges its queues or tenants for what they are served elsewhere. Without it each is fair to
        what it has here. All of a group need the same `cost`, and weights that mean the same.
    limit : Limit, optional
        How many messages of each tenant, or without a `key` of each queue, are handled at a time, and how fast; those
        above it wait here, and the others go on. A tenant that shares its queue with others fills the window with
        what waits, so it needs a `prefetch` that is larger. Not with an `ordering_key` and more than one of `workers`.
    limits : mapping, optional
        With `key`: limits of tenants, in place of `limit`; False: none. Queues take theirs in `queues`.
    bands : mapping, optional
        With `key`: strict bands of tenants, from 0 to 7; others are of band 4. While a message of a tenant of a band
        waits here, nothing of those after it is handled, for however long that is. Queues take theirs in `queues`.
    sparse_boost : bool
        Whether a tenant, or without a `key` a queue, that had nothing here for a round has its next turn before the
        others, once a round at most.
    ordering_key : str or callable, optional
        As `key`: messages of one ordering key, of one queue or tenant (and `subkey`), are handled in order and one at
        a time, those of different keys by `workers` in parallel. Messages without one form a sequence of their own.
    on_error : "requeue", "reject", "dead-letter" or callable
        What happens to a message whose handler raised. "reject" and "dead-letter" send the same frame: the broker
        dead-letters what it can and drops the rest. A callable gets ``(message, exception)`` and settles the message,
        which is requeued if it does not. Note that "requeue" returns a message that always fails, at first at once,
        then at intervals of up to 10 s: use `retry` or "dead-letter" against it. The delivery limit of a
        queue is none from RabbitMQ 4.3 on: what is returned does not count.
    retry : Retry, optional
        How often a message whose handler raised is handled again, after a delay in a queue of the broker, and where it
        goes in the end. Takes the place of `on_error`.
    codel : CoDel, optional
        Its law judges, for each slot, every message that is about to be handled: those that waited here too long
        go back. At most 10 of a slot in one pull unless the law has `max_returns`, and never the last one buffered.
    codel_requeue : bool
        True returns such a message to its queue, for another consumer; False dead-letters it, or drops it.
    codel_budget : int
        Returns of one message at most.
    codel_when_alone : bool
        Whether messages are returned although their queue has no other consumer.
    shutdown_timeout : float
        Seconds that a stop takes in all. A fifth of them, but 2 s at most, is kept for closing the connection; the
        rest is for what is buffered, running or deferred.
    connect_timeout : float
        Seconds until a first connection that does not come about is an error.
    connection_name : str, optional
        What the broker's management shows the connection as.
    decode : "json" or callable, optional
        What makes ``message.data`` of a body: JSON, or ``decode(body)``. `run` decodes before it calls the handler.
        What cannot be decoded is rejected, whatever `on_error` says, since it never can be.
    time_limit : float, optional
        Seconds that a call of the handler in `run` may take. A coroutine is cancelled then; in the thread of a plain
        handler `TimeLimitExceeded` is raised, which comes when the thread executes Python code next. Either way the
        message has failed with a TimeoutError, and is settled as `on_error` says when the handler has ended.
    middleware : sequence of callable
        What `run` calls in place of the handler, the first one outermost: ``middleware(message, call_next)`` returns
        ``call_next(message)``; the last one's calls the handler. Coroutine functions for coroutine handlers.
    fast : bool, optional
        Whether compiled code takes the deliveries out of the connection's bytes instead of pika. By default it does if
        this pika's internals are those it knows; otherwise pika does, and the log says once what is missing. True makes
        that an error of the start; False always leaves it to pika, which takes many times as long for each message.

    Raises
    ------
    ConfigurationError
        If a value is not allowed; the message names the option, the value and the rule.
    """

    url: str | Sequence[str] = field(
        repr=False,  # with its password
        metadata=_row(
            values.URLS,
            "URL",
            "Broker URL, amqp:// or amqps://; several are tried in order.",
            unset="required",
        ),
    )
    queues: Mapping[str, Any] | Sequence[str | Queue] = field(
        metadata=_row(
            values.QUEUES,
            "NAME[=WEIGHT],...",
            "Queues to consume, all with weights or all without; a queue may have a table of options instead.",
            unset="those of the app",
        )
    )
    _: KW_ONLY
    prefetch: int | str | Mapping[str, int] | None = field(
        default=None,
        metadata=_row(
            values.PREFETCH,
            "auto|N|NAME=N,...",
            "Maximum number of unsettled messages, in total or per queue; auto measures and adjusts it.",
            unset="at least 500",
        ),
    )
    target_delay: float | None = field(
        default=None,
        metadata=_row(
            values.duration(),
            "DURATION",
            "With prefetch auto: how long a message may wait in this process.",
            unset=format_duration(TARGET_DELAY),
        ),
    )
    max_buffer_bytes: int | None = field(
        default=None,
        metadata=_row(or_off(values.whole()), "N|off", "Limit on the bytes of unsettled messages.", unset="off"),
    )
    anticipation: float | None = field(
        default=None,
        metadata=_row(
            values.duration(most=3600.0, limit="at most an hour: "),
            "DURATION",
            "How long to wait for a queue whose turn it is while its messages are in flight; 0: do not wait.",
            unset="4 round trips, at least 20ms",
        ),
    )
    workers: Workers = field(
        default=1,
        metadata=_row(
            values.WORKERS,
            "N|SIZE:PRIORITY,...",
            "Threads that run handlers, or pools of them; a pool helps only while all of higher priority are busy.",
        ),
    )
    cost: str | Callable[[Any], int] | None = field(
        default="constant",
        metadata=_row(
            values.word("constant", "bytes", "time")._replace(check=None),  # `cost_model` checks, also for functions
            "constant|bytes|time",
            "What a message costs its queue or tenant: always the same, its length, or its handler's time.",
        ),
    )
    key: str | Callable[[Any], object] | None = field(
        default="queue",
        metadata=_row(
            values.KEY,
            "queue|header:NAME|property:NAME",
            "Be fair to queues, or to tenants named by a header or property of the message.",
        ),
    )
    subkey: str | Callable[[Any], object] | None = field(
        default=None,
        metadata=_row(
            or_off(values.HEADER_OR_PROPERTY),
            "header:NAME|property:NAME|off",
            "Divide the share of a queue (with key: of a tenant) equally by this header or property.",
            unset="off",
        ),
    )
    weights: Mapping[Any, int] | None = field(
        default=None, metadata=_row(values.WEIGHTS, "NAME=WEIGHT,...", "With key: weights of tenants.", unset="none")
    )
    default_weight: int = field(
        default=1, metadata=_row(values.whole(), "N", "Weight of tenants that weights does not list.")
    )
    share_group: str | None = field(
        default=None,
        metadata=_row(
            or_off(values.TEXT),
            "NAME|off",
            "Keep shares fair across the consumers of this group; each sends a message per second through the broker.",
            unset="off",
        ),
    )
    limit: Limit | None = field(
        default=None,
        metadata=_row(
            or_off(values.LIMIT),
            "N|NAME=VALUE,...|off",
            "How many messages of a queue (with key: of a tenant) may be in hand at a time, and how fast they are "
            "handed out. Names: concurrency, rate (such as 10/s or 100/m), burst.",
            unset="off",
        ),
    )
    limits: Mapping[Any, Limit | Literal[False]] | None = field(
        default=None,
        metadata=_row(
            values.LIMITS,
            "NAME=N,...|JSON",
            "With key: limits of individual tenants, in place of limit; off: no limit.",
            unset="none",
        ),
    )
    bands: Mapping[Any, int] | None = field(
        default=None,
        metadata=_row(
            values.BANDS,
            "NAME=BAND,...",
            "With key: strict bands of tenants, from 0 (served first) to 7; the default is band 4.",
            unset="none",
        ),
    )
    sparse_boost: bool = field(
        default=False,
        metadata=_row(
            values.flag(),
            "true|false",
            "Give a queue (with key: a tenant) without buffered messages for a round its next turn first.",
        ),
    )
    ordering_key: str | Callable[[Any], object] | None = field(
        default=None,
        metadata=_row(
            or_off(values.HEADER_OR_PROPERTY),
            "header:NAME|property:NAME|off",
            "Handle messages with the same value of this header or property in order, one at a time.",
            unset="off",
        ),
    )
    on_error: str | Callable[[Any, Exception], object] = field(
        default="requeue",
        metadata=_row(
            values.word("requeue", "reject", "dead-letter", or_function=True),
            "requeue|reject|dead-letter",
            "What to do with a message whose handler raised an exception.",
        ),
    )
    retry: Retry | None = field(
        default=None,
        metadata=_row(
            or_off(values.RETRY),
            "N|NAME=VALUE,...|off",
            "Handle a message up to N times while its handler raises, with growing delays, then dead-letter it. Names: "
            "max_attempts, backoff (FIRST:LONGEST), jitter, dead_letter.",
            unset="off",
        ),
    )
    codel: CoDel | None = field(
        default=None,
        metadata=_row(
            or_off(values.CODEL),
            "TARGET|NAME=VALUE,...|off",
            "Return messages to the broker that were buffered in this process longer than TARGET (a duration). "
            "Names: target, interval, min_backlog, max_returns, law.",
            unset="off",
        ),
    )
    codel_requeue: bool = field(
        default=True,
        metadata=_row(
            values.flag(), "true|false", "Requeue the messages that codel returns; false dead-letters them instead."
        ),
    )
    codel_budget: int = field(
        default=3, metadata=_row(values.whole(least=0), "N", "How often codel may return the same message.")
    )
    codel_when_alone: bool = field(
        default=False,
        metadata=_row(
            values.flag(), "true|false", "Let codel return messages even if their queue has no other consumer."
        ),
    )
    shutdown_timeout: float = field(
        default=25.0,
        metadata=_row(
            values.duration(),
            "DURATION",
            "Maximum duration of a shutdown; keep it below the supervisor's limit.",
        ),
    )
    connect_timeout: float = field(
        default=30.0,
        metadata=_row(
            values.duration(limit="positive: ", positive=True), "DURATION", "How long to wait for the first connection."
        ),
    )
    connection_name: str | None = field(
        default=None,
        metadata=_row(values.TEXT, "NAME", "Name of the connection in the management interface.", unset="none"),
    )
    decode: str | Callable[[bytes], Any] | None = field(
        default=None,
        metadata=_row(
            or_off(values.word("json", or_function=True)),
            "json|off",
            "Decode message bodies before the handler is called; message.data is the decoded value.",
            unset="off",
        ),
    )
    time_limit: float | None = field(
        default=None,
        metadata=_row(
            or_off(values.duration(limit="positive: ", positive=True)),
            "DURATION|off",
            "How long a handler may run; after that, it is interrupted and its message counts as failed.",
            unset="off",
        ),
    )
    middleware: Sequence[Callable[..., Any]] = ()  # functions have no text, so it has no row
    fast: bool | None = field(
        default=None,
        metadata=_row(
            values.flag(),
            "true|false",
            "Read deliveries with compiled code instead of pika: true requires it, false disables it.",
            unset="if pika allows it",
        ),
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            if name in COMMAND_OPTIONS or option.kind.check is None:
                continue
            value = getattr(self, name)
            if value is not None or option.default is not None:
                object.__setattr__(self, name, _checked(option, value))


def _checked(option: Option, value: Any) -> Any:
    """Check an argument."""
    assert option.kind.check is not None
    try:
        return option.kind.check(value)
    except ValueError:
        raise ConfigurationError(f"{option.name} must be {option.kind.allowed}, got {value!r}") from None


#: What only the command line has.
LOG_LEVEL = Option(
    "log_level", values.word(*values.LOG_LEVELS), "info", "", "|".join(values.LOG_LEVELS), "Log level of fairsched run."
)
HEALTH_PORT = Option(
    "health_port",
    or_off(values.PORT),
    None,
    "off",
    "PORT|off",
    "Serve the health probes /healthz and /readyz over HTTP on this port of all interfaces; 0: a free port.",
)
METRICS_PORT = Option(
    "metrics_port",
    or_off(values.PORT),
    None,
    "off",
    "PORT|off",
    "Serve Prometheus metrics, /metrics, over HTTP on this port of all interfaces; 0: a free port. May be health_port.",
)
CONTROL = Option(
    "control",
    or_off(values.TEXT),
    None,
    "off",
    "PATH|off",
    "Unix socket on which fairsched run answers fairsched top, explain and control. Only the worker's user and root "
    "can open it; a client may change weights and pause queues.",
)
#: These by name.
COMMAND_OPTIONS = {option.name: option for option in (LOG_LEVEL, HEALTH_PORT, METRICS_PORT, CONTROL)}

#: All options by name.
OPTIONS: dict[str, Option] = {
    **{
        row.name: Option(row.name, default=row.default, **row.metadata)
        for row in fields(ConsumerOptions)
        if row.metadata
    },
    **COMMAND_OPTIONS,
}


def default_url(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the first broker URL that the environment offers.

    Parameters
    ----------
    environ : mapping, optional
        Variables to look into; the process environment by default.

    Returns
    -------
    str or None
        The value of the first of `URL_VARIABLES` that is set, or None.

    Notes
    -----
    O(1). Safe from any thread.
    """
    variables = os.environ if environ is None else environ
    return next((variables[name] for name in URL_VARIABLES if variables.get(name)), None)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Say what may have been meant by an unknown name: the closest known one, or all of them.

    Parameters
    ----------
    name : str
        What was given.
    known : iterable of str
        Names that exist.
    prefix : str
        What all of them begin with; it would make anything look alike.

    Returns
    -------
    str
        For the end of a message.
    """
    names = list(known)
    close = difflib.get_close_matches(name[len(prefix) :], [entry[len(prefix) :] for entry in names], n=1)
    return f"did you mean {prefix + close[0]!r}?" if close else f"there are {', '.join(names)}"
