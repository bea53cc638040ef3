"""Command line parameters that several commands share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.config.consumer_options import OPTIONS, Option
from fairsched.config.durations import parse_duration
from fairsched.errors import ConfigurationError
from fairsched.routing.bindingkey import weight_of

# Generic only since click 8.2.
if TYPE_CHECKING:
    _ParamType = click.ParamType[float]
    _PairType = click.ParamType[tuple[str, Any]]
else:
    _ParamType = _PairType = click.ParamType


class Duration(_ParamType):
    """A duration, such as 100us, 4ms or 1.5s, converted to seconds.

    Parameters
    ----------
    positive : bool
        Whether zero is refused.
    """

    name = "duration"

    def __init__(self, positive: bool = False) -> None:
        self._positive = positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or fail with a message that says what is allowed."""
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._positive and not seconds:
            self.fail(f"a duration must be more than zero, got {value!r}", param, ctx)
        return seconds


class PairParameter(_PairType, ABC):
    """A pair NAME=VALUE.

    One of the two may contain equals signs itself: the name if it is that of a queue, otherwise the value. So a pair
    is split at the last equals sign if `named_freely`, and at the first one otherwise.
    """

    #: Whether the name may contain equals signs, and the value none.
    named_freely: bool
    #: What a pair consists of, with an example.
    rule: str

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Return name and value, or fail with a message that says what is allowed."""
        if isinstance(value, tuple):
            return value
        name, separator, text = value.rpartition("=") if self.named_freely else value.partition("=")
        if not separator or not name:
            self.fail(f"must be {self.rule}, got {value!r}", param, ctx)
        try:
            return name, self.read(name, text)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)

    @abstractmethod
    def read(self, name: str, text: str) -> Any:
        """Return the value that the text of a name stands for; raise ConfigurationError if it stands for none."""


class BindingParameter(PairParameter):
    """A queue and its binding key: NAME=WEIGHT."""

    name = "binding"
    named_freely = True
    rule = "a queue and its weight, such as orders=10"

    def read(self, name: str, text: str) -> str:
        """Return a binding key, which must be a weight."""
        try:
            weight_of(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (queue {name})") from None
        return text


class ArgumentParameter(PairParameter):
    """An argument of a queue: NAME=VALUE, where a value that is no JSON is text."""

    name = "argument"
    named_freely = False
    rule = "a name and a value, such as x-queue-type=quorum"

    def read(self, _name: str, text: str) -> Any:
        """Return a number, flag, list or table if the text is JSON for one, else the text."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = text
        return text if isinstance(found, float | None) else found


def check_picture(path: Path) -> None:
    """Check the file name of a plot before anything is computed."""
    if path.suffix.lower() != ".png":
        raise click.BadParameter(f"must end in .png, got {str(path)!r}", param_hint="'--plot'")
    if not path.parent.is_dir():
        raise click.BadParameter(f"directory {str(path.parent)!r} does not exist", param_hint="'--plot'")


_Command = Callable[..., Any]


def config_option(command: _Command) -> _Command:
    """Add ``--config``."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Read settings from FILE. [default: ./fairsched.toml, or [tool.fairsched] of ./pyproject.toml]",
    )(command)


#: Options that may be repeated, and how the values are put together; none count as not given.
_REPEATED: dict[str, Callable[[tuple[str, ...]], Any]] = {"url": tuple, "queues": ",".join}


def settings_options(command: _Command) -> _Command:
    """Add an option for each row of the table; the command gets them by keyword, None where not given."""
    for option in reversed(OPTIONS.values()):  # decorators apply from the bottom up
        command = _settings_option(option)(command)
    return command


def some_settings_options(*names: str) -> Callable[[_Command], _Command]:
    """Add the options of some rows of the table, as `settings_options` adds all."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _settings_option(OPTIONS[name])(command)
        return command

    return decorate


def _settings_option(option: Option) -> Callable[[_Command], _Command]:
    flags = ["-Q", option.flag] if option.name == "queues" else [option.flag]
    join = _REPEATED.get(option.name)
    return click.option(
        *flags,
        option.name,
        metavar=option.metavar,
        multiple=join is not None,
        callback=None if join is None else lambda _context, _parameter, given: join(given) if given else None,
        help=f"{option.help}{' May be repeated.' if join else ''} [default: {_default(option)}]",
    )


def _default(option: Option) -> str:
    return f"${', $'.join(option.variables)}" if len(option.variables) > 1 else option.default_text


def bindings_option(command: _Command) -> _Command:
    """Add a required ``--binding``, which may be repeated."""
    return _bindings(required=True, text="A queue and its weight. Repeat it per queue, in the order of the bindings.")(
        command
    )


def compared_bindings_option(command: _Command) -> _Command:
    """Add an optional ``--binding``, which may be repeated."""
    return _bindings(
        required=False,
        text="Also check that the broker's consistent-hash exchange routes 1000 keys to the queues that fairsched "
        "computes, for these queues and weights, bound in this order. Uses a temporary exchange and temporary queues.",
    )(command)


def _bindings(*, required: bool, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--binding",
        "bindings",
        type=BindingParameter(),
        multiple=True,
        required=required,
        metavar="QUEUE=WEIGHT",
        help=text,
    )
