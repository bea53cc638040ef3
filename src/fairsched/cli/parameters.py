"""Parameters that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.durations import parse_duration

# Generic only since click 8.2.
if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
else:
    _ParamType = click.ParamType


class Duration(_ParamType):
    """Seconds, written as people write them.

    Parameters
    ----------
    positive : bool
        Whether zero is refused.
    """

    name = "duration"

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or fail with the rule."""
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._positive and not seconds:
            self.fail(f"a duration above zero is needed, got {value!r}", param, ctx)
        return seconds


_Command = Callable[..., Any]


def config_option(command: _Command) -> _Command:
    """Add ``--config``."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Read settings from FILE. Without it: fairsched.toml here, or [tool.fairsched] of pyproject.toml.",
    )(command)


def urls_option(command: _Command) -> _Command:
    """Add ``--url``, which may be repeated."""
    return click.option(
        "--url",
        "urls",
        multiple=True,
        metavar="URL",
        help="Broker, amqp:// or amqps://. Repeat it for more brokers, tried in this order. "
        "[env: FAIRSCHED_URL, RABBITMQ_URL, AMQP_URL, CLOUDAMQP_URL]",
    )(command)


def queues_option(command: _Command) -> _Command:
    """Add ``--queues``, which may be repeated."""
    return click.option(
        "-Q",
        "--queues",
        multiple=True,
        metavar="NAME[=WEIGHT],...",
        help="Queues, separated by commas or repeated; all of them with weights, or none. [env: FAIRSCHED_QUEUES]",
    )(command)
