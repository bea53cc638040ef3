"""The table of options: the name, the allowed values and the default of each option of a consumer.

Everything else is derived from it: the signatures of `Consumer` and `aio.Consumer`, `Settings` with its file and
environment variables, the options of ``fairsched run`` and ``fairsched check``, and docs/reference/configuration.md.

To add an option, add a field to `ConsumerOptions` and use it in the consumer as ``settings.options.NAME``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from fairsched.config import values
from fairsched.config.durations import format_duration
from fairsched.config.pools import Workers
from fairsched.config.values import Kind, or_off
from fairsched.errors import ConfigurationError
from fairsched.scheduling.limit import Limit

if TYPE_CHECKING:
    from pathlib import Path

    from fairsched.config.lanes import Lanes
    from fairsched.config.queue_source import QueueSource
    from fairsched.config.queues import Queue
    from fairsched.config.retry import Retry
    from fairsched.config.tenants import Tenant
    from fairsched.scheduling._codel import CoDel

__all__ = ["OPTIONS", "PREFIX", "URL_VARIABLES", "ConsumerOptions", "Option", "default_url", "did_you_mean"]

#: Prefix of the names of environment variables.
PREFIX = "FAIRSCHED_"

#: Environment variables with a broker URL, the first one set wins; hosting platforms set the last three.
URL_VARIABLES = (PREFIX + "URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL")

#: Default of `target_delay` in seconds, with ``prefetch="auto"`` only.
TARGET_DELAY = 0.1


class Option(NamedTuple):
    """A row of the table.

    Parameters
    ----------
    name : str
        The name in Python and in the file; the environment variable and the command-line option are derived from it.
    kind : Kind
        The allowed values.
    default : object
        The default in Python; None: chosen by the consumer, or off.
    unset : str
        How the documentation shows a default of None, or no default.
    metavar : str
        The form of the value on the command line.
    help : str
        What the option does, in one or two sentences.
    """

    name: str
    kind: Kind
    default: Any
    unset: str
    metavar: str
    help: str

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """All environment variables that are read, in this order."""
        return URL_VARIABLES if self.name == "url" else (self.variable,)

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as written in a file."""
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
        Broker URL, ``amqp://`` or ``amqps://``; several are tried in turn.
    queues : mapping of str to int or mapping, or Lanes, or sequence of str, Queue and Lanes, or QueueSource
        Weight of each queue, or a mapping of the parameters of `Queue` or `Lanes`; or names of queues with equal
        weights, `Queue` objects and `Lanes`. `Lanes` may stand alone; with lanes, `key` is theirs by default. Or a
        `QueueSource`, alone or with those in a sequence, for queues that come and go; a function or a `pathlib.Path`
        stands for the `QueueSource` of it.
    prefetch : int, mapping or "auto", optional
        Maximum number of unsettled messages: in total, divided in proportion to the weights, or per queue. The default
        keeps the shares at a round trip of a millisecond: at least 500 in total, or 20 per queue up to 5 000 in total.
        After a lost connection, once the handler time is known, it is at most a second of work, or what the workers and
        the shares need. "auto" measures round trip and handler time continuously, and keeps the windows at the smallest
        size that keeps the workers busy.
    target_delay : float, optional
        With ``prefetch="auto"``: seconds that a message may be buffered beyond what keeps the workers busy; 0.1 by
        default.
    max_buffer_bytes : int, optional
        Limit on the bytes of unsettled messages, divided over the queues in proportion to their weights. A queue above
        its part receives no more until half of that part is settled. One message of each queue is always allowed.
    workers : int, Pool or list of Pool
        Number of threads in which `run` calls the handler. With pools of different priorities, a pool helps only while
        all pools of higher priority are busy; not with an `ordering_key`.
    cost : "constant", "bytes", "time" or callable
        Cost of a message: one, its length, its handler's time, or ``cost(message)``. None is "constant".
    key : str or callable
        ``"header:NAME"``, ``"property:NAME"`` or ``key(message)``: be fair to tenants inside the queues instead of
        to queues. Messages without a key belong to the tenant ``""``. None is "queue".
    subkey : str or callable, optional
        Like `key`: divide the share of a tenant (without `key`: of a queue) equally among its subkeys, by the same
        `cost`. A flood of one user then does not delay the other users of the same tenant, and the share of a tenant
        does not depend on its number of users. Messages without one belong to the subkey ``""``.
    band : str or callable, optional
        ``"property:priority"``, ``"header:NAME"`` or ``band(message)``: the priority of each message, a whole number
        from 0 to 9. As in RabbitMQ, larger ones go first: while a message of one priority is buffered, no message of a
        lower one is handed to a handler, for as long as that lasts; among the messages of one priority, tenants
        (without `key`: queues) have their shares. Larger values are 9, a missing one is 0, and so is anything else,
        which is logged. Only buffered messages are compared, so a higher priority needs room in the window (see
        `prefetch`). In a `share_group`, tenants share each priority over all processes. Not with `subkey`,
        `ordering_key` or the `band` of a tenant or queue, which is counted the other way: 0 is its first.
    tenants : mapping, optional
        With `key`: by name of a tenant, its weight or a `Tenant`, with its weight, limit and strict band. The name
        ``"*"`` stands for all other tenants, which have weight 1 and no limit by default. Messages above a limit stay
        buffered, and the others are handled. Buffered messages of a tenant fill the window of the queue, which it
        shares with other tenants, so limits need a larger `prefetch`. No limits with an `ordering_key` and more than
        one worker. For queues, use `queues`.
    limit : Limit, optional
        How many messages of this consumer are handled at a time, and how fast: of all queues and tenants together,
        besides their own limits. With ``scope="group"``: of all consumers of the share group that have such a limit.
        Without a name. Not with an `ordering_key` and more than one worker.
    share_group : str, optional
        Consumers of the same group on the same broker keep the shares together: each tells the others once a second
        what it served, and charges its queues or tenants for what other consumers served them. Without it, each
        consumer is fair to its own messages only. All consumers of a group need the same `cost`, and weights in the
        same unit. Limits with ``scope="group"`` count the messages of all its consumers.
    sparse_boost : bool
        Whether a tenant (without `key`: a queue) without buffered messages for a round has its next turn before the
        others, at most once a round.
    ordering_key : str or callable, optional
        Like `key`: messages with the same ordering key, of one queue or tenant (and `subkey`), are handled in order and
        one at a time; `workers` handle different keys in parallel. Messages without one form a sequence of their own.
    on_error : "requeue", "reject" or callable
        What happens to a message whose handler raised. "reject" rejects it: the broker dead-letters the message if
        the queue is set up for it, otherwise drops it. A callable gets
        ``(message, exception)`` and settles the message, which is requeued if the callable does not. "requeue" returns
        a message that always fails again and again, at first at once, then at intervals of up to 10 s; `retry` and
        "reject" avoid that. The delivery limit of a queue does not, from RabbitMQ 4.3 on, because it no longer
        counts returned messages.
    retry : Retry, optional
        How often a message whose handler raised is retried, after a delay in a queue of the broker, and where it goes
        after the last attempt. Replaces `on_error`.
    codel : CoDel, optional
        Return messages to the broker that were buffered for too long. CoDel decides, separately for each slot, about
        every message that is about to be handled. One pull returns at most 10 messages of a slot, unless `max_returns`
        of the `CoDel` is set, and never the last buffered one. `CoDel` has the other parameters.
    shutdown_timeout : float
        Maximum duration of a stop in seconds. A fifth of it, at most 2 s, is reserved for closing the connection; the
        rest is for messages that are buffered, running or deferred.
    connect_timeout : float
        Seconds to wait for the first connection, which may be infinite; then the start fails.
    connection_name : str, optional
        Name of the connection in the broker's management interface.
    decode : "json" or callable, optional
        How ``message.data`` is made from the body: as JSON, or by ``decode(body)``. `run` decodes before it calls the
        handler. A message that cannot be decoded is rejected, whatever `on_error` says, since a retry cannot succeed.
    time_limit : float, optional
        Seconds that a call of the handler in `run` may take. After that, a coroutine is cancelled; in the thread of a
        plain handler `TimeLimitExceeded` is raised when the thread next executes Python code. In both cases the message
        fails with a TimeoutError, and is settled as `on_error` says when the handler has ended.
    middleware : sequence of callable
        Called by `run` in place of the handler, the first one outermost: ``middleware(message, call_next)`` returns
        ``call_next(message)``; `call_next` of the last one calls the handler. Coroutine functions for coroutine
        handlers.

    Raises
    ------
    ConfigurationError
        If a value is invalid; the message names the option, the value and the rule.
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
    queues: (
        Mapping[str, Any] | Lanes | Sequence[str | Queue | Lanes | QueueSource] | QueueSource | Callable[[], Any] | Path
    ) = field(
        metadata=_row(
            values.QUEUES,
            "NAME[=WEIGHT],...",
            "Queues to consume, all with weights or all without; a queue may have a table of options instead, and "
            "lanes have one.",
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
    band: str | Callable[[Any], object] | None = field(
        default=None,
        metadata=_row(
            or_off(values.BAND),
            "property:priority|header:NAME|off",
            "Handle messages by this priority, 9 (first) to 0, and fairly among those of the same priority.",
            unset="off",
        ),
    )
    tenants: Mapping[Any, int | Tenant | Mapping[str, Any]] | None = field(
        default=None,
        metadata=_row(
            values.TENANTS,
            "NAME=WEIGHT,...|JSON",
            "With key: the weight of each tenant, or a table of its weight, limit and band; the name * stands for all "
            "other tenants.",
            unset="weight 1 each",
        ),
    )
    limit: Limit | None = field(
        default=None,
        metadata=_row(
            or_off(values.LIMIT),
            "N|NAME=VALUE,...|off",
            "Handle at most N messages at a time, of all queues and tenants together. Names: concurrency, rate, burst, "
            "scope.",
            unset="off",
        ),
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
            values.word("requeue", "reject", or_function=True),
            "requeue|reject",
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
            "Names: target, interval, min_backlog, max_returns, law, requeue, budget, when_alone.",
            unset="off",
        ),
    )
    shutdown_timeout: float = field(
        default=25.0,
        metadata=_row(
            values.timeout(),
            "DURATION",
            "Maximum duration of a shutdown; keep it below the supervisor's limit.",
        ),
    )
    connect_timeout: float = field(
        default=30.0,
        metadata=_row(
            values.timeout(limit="positive: ", positive=True), "DURATION", "How long to wait for the first connection."
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


# Options of the command line only.
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
    "Serve /metrics for Prometheus, and of a worker /scale for KEDA, over HTTP on this port of all interfaces; 0: a "
    "free port. May be health_port.",
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
QUEUE_SOURCE = Option(
    "queue_source",
    values.SOURCE,
    None,
    "that of the app",
    "FILE|NAME=VALUE,...|JSON",
    "Which further queues to consume, asked again and again: a file, a function, or a pattern at the management API. "
    f"Names: {', '.join(values._SOURCE)}.",
)
#: The options of the command line only, by name.
COMMAND_OPTIONS = {option.name: option for option in (QUEUE_SOURCE, LOG_LEVEL, HEALTH_PORT, METRICS_PORT, CONTROL)}

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
    """Return the broker URL set in the environment.

    Parameters
    ----------
    environ : mapping, optional
        Environment variables; by default those of the process.

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
    """Suggest the closest known name for an unknown one, or list all known names.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        The known names.
    prefix : str
        The common prefix of all names, which the comparison ignores.

    Returns
    -------
    str
        The end of an error message.
    """
    names = list(known)
    close = difflib.get_close_matches(name[len(prefix) :], [entry[len(prefix) :] for entry in names], n=1)
    return f"did you mean {prefix + close[0]!r}?" if close else f"there are {', '.join(names)}"
