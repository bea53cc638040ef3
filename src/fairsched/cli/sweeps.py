"""The common parts of ``fairsched replay``, ``move`` and ``drop``: their options, progress, and what they print."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.asking import printable
from fairsched.cli.commands.check import DEFAULT_URL
from fairsched.cli.parameters import config_option, some_settings_options
from fairsched.cli.serving import set_up_logging
from fairsched.config.settings import Settings
from fairsched.consumer.signals import graceful
from fairsched.errors import PublishFailed
from fairsched.scheduling.greenlets import in_main_thread
from fairsched.sweeping.condition import Condition
from fairsched.sweeping.sweep import Sweep

_Command = Callable[..., Any]

#: Unless given: a command that ends soon tells of trouble only.
_LOG_LEVEL = "warning"
#: Seconds between two lines of progress where they cannot be written over one another.
_PERIOD = 10.0


def sweep_options(command: _Command) -> _Command:
    """Add ``--where``, ``--dry-run``, ``--url``, ``--log-level`` and ``--config``."""
    for decorate in (
        config_option,
        some_settings_options("url", "log_level"),
        click.option("--dry-run", is_flag=True, help="Only count; every message stays."),
        click.option(
            "--where",
            multiple=True,
            metavar="CONDITION",
            help="Which messages: header:NAME=VALUE or property:NAME=VALUE, or with ~ and a regular expression. May be "
            "repeated: all conditions must be met.",
        ),
    ):
        command = decorate(command)
    return command


def sweep(
    queue: str,
    verb: str,
    where: tuple[str, ...],
    dry_run: bool,
    config: Any,
    given: dict[str, Any],
    destination: Any = None,
    replay: bool = False,
) -> None:
    """Make a pass over a queue, and say what came of it.

    Parameters
    ----------
    queue : str
        The queue.
    verb : str
        What happens to the messages that are meant, as a participle.
    where, dry_run, config, given
        As from `sweep_options`.
    destination, replay
        As for `Sweep`.

    Raises
    ------
    exits.Failure
        If some of the messages that are meant could not be moved.
    """
    settings = Settings.load(given, file=config)
    set_up_logging(settings.log_level or _LOG_LEVEL)
    found = Sweep(
        settings.url or DEFAULT_URL, queue, [Condition(text) for text in where], destination,
        replay=replay, dry_run=dry_run,
    )  # fmt: skip
    progress = _Progress(found, verb)
    try:
        with graceful(found.stop) if in_main_thread() else nullcontext():
            found.run(progress)
    except PublishFailed as error:
        raise exits.Failure(str(error), exits.CONNECTION) from error
    finally:
        progress.end()
    _report(found, verb, dry_run)


class _Progress:
    """One line that is written over and over on a terminal, and one line every ten seconds elsewhere."""

    def __init__(self, sweep: Sweep, verb: str) -> None:
        self._sweep, self._verb = sweep, verb
        self._over = sys.stderr is not None and sys.stderr.isatty()
        self._due = time.monotonic() + (0.0 if self._over else _PERIOD)
        self._written = False

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (0.0 if self._over else _PERIOD)
        self._written = True
        one = self._sweep
        click.echo(
            f"{one.seen:,} of {one.total:,} messages seen, {one.done:,} {self._verb}"
            + ("\x1b[K\r" if self._over else "\n"),
            nl=False,
            err=True,
        )

    def end(self) -> None:
        """Leave the line."""
        if self._over and self._written:
            click.echo(err=True)


def _report(sweep: Sweep, verb: str, dry_run: bool) -> None:
    """Print what came of a pass."""
    count = f"{sweep.matched:,} of {sweep.seen:,} messages match"
    click.echo(f"queue {printable(sweep.queue)}: {count}, " + (f"none {verb}" if dry_run else f"{sweep.done:,} {verb}"))
    for name, number in sweep.destinations.most_common():
        if name is not None:
            click.echo(f"  {number:,} to {printable(name)}")
    if sweep.seen < sweep.total:
        left = sweep.total - sweep.seen
        reason = "stopped before them" if sweep.stopped else "other consumers have them"
        click.echo(f"  {left:,} of {sweep.total:,} messages not looked at: {reason}")
    problems = [f"{number:,} stay: {reason}" for reason, number in sweep.refused.most_common()]
    if sweep.destinations[None]:
        problems.append(f"{sweep.destinations[None]:,} stay: they do not say which other queue they came from")
    if problems and not dry_run:
        raise exits.Failure("; ".join(map(printable, problems)), exits.LEFT)
    for problem in problems:
        click.echo(f"  {printable(problem)}")
