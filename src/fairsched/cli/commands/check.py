"""``fairsched check``: check that a worker would start with this configuration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from fairsched.amqp.urls import check_urls, mask_url
from fairsched.cli import exits
from fairsched.cli.broker import Session
from fairsched.cli.loading import load_app, load_function
from fairsched.cli.parameters import Duration, compared_bindings_option, config_option, settings_options
from fairsched.config.lanes import queues_and_lanes
from fairsched.config.queue_source import QueueSource, without_source
from fairsched.config.queues import Queue
from fairsched.config.settings import Settings
from fairsched.config.source_table import source_of
from fairsched.config.values import masked
from fairsched.consumer import App
from fairsched.consumer.handling.described import described
from fairsched.consumer.settings import ConsumerSettings
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound

#: pika's default: a broker on the local machine.
DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"


@click.command(epilog=exits.EPILOG)
@click.argument("reference", metavar="[MODULE:APP]", required=False)
@settings_options
@config_option
@compared_bindings_option
@click.option(
    "--timeout",
    type=Duration(positive=True),
    default="10s",
    show_default=True,
    help="How long to wait for each reply of a broker.",
)
def check(
    reference: str | None, config: Path | None, bindings: tuple[tuple[str, str], ...], timeout: float, **given: Any
) -> None:
    """Check the configuration, every broker, and every queue.

    With MODULE:APP, the app's own options and queues are checked too, as "fairsched run" would use them. Prints one
    line for each check. Consumes nothing and changes nothing. If several checks fail, the exit code is that of the
    configuration, else of the brokers, else of the queues.
    """
    app = load_app(reference) if reference else App()
    try:
        settings = Settings.load(given, file=config)
        wanted = _wanted(app, settings)
    except ConfigurationError as error:
        _line(False, f"configuration: {error}")
        raise click.exceptions.Exit(exits.USAGE) from None
    _line(True, f"configuration: {_described(settings)}")
    found, code = _asked(wanted)
    wanted = wanted._replace(queues={**found, **wanted.queues})
    outcomes = [*code, *_brokers(wanted, timeout, bindings)]
    if exits.USAGE in outcomes:
        raise click.exceptions.Exit(exits.USAGE)
    failed = [code for code in (exits.CONNECTION, exits.QUEUE_MISSING, exits.PLACEMENT) if code in outcomes]
    raise click.exceptions.Exit(failed[0] if failed else 0)


class _Wanted(NamedTuple):
    """The brokers and queues that a worker would use."""

    urls: tuple[str, ...]
    queues: dict[str, Queue]
    source: QueueSource | None


def _wanted(app: App, settings: Settings) -> _Wanted:
    """Put together what a worker would be given, and check it as the worker would."""
    urls = settings.url or check_urls(app.url or DEFAULT_URL)
    options = {**app.options, **settings.consumer_options()}
    declared = options.pop("queues", None)
    queues = settings.queues or declared or None
    given = settings.queue_source
    source = None if given is None else source_of(given, load_function)
    if app.handlers or app._source is not None:
        queues = app._selected(queues, source)
    elif source is not None:
        queues = [*queues_and_lanes(queues)[0].values(), source] if queues else source
    if queues:
        ConsumerSettings(urls, queues, **options)
    fixed, asked = without_source(queues or None)
    return _Wanted(urls, queues_and_lanes(fixed)[0] if fixed else {}, asked)


def _asked(wanted: _Wanted) -> tuple[dict[str, Queue], list[int]]:
    """Ask the source of queues once, if there is one; return its queues, and the exit code of an error."""
    source = wanted.source
    if source is None or source.is_coroutine:  # which fairsched.aio alone can ask
        return {}, []
    try:
        found = source.read(source.answer(wanted.urls))
    except Exception as error:
        _line(False, f"source of queues, {source}: {described(error)}")
        return {}, [exits.CONNECTION if isinstance(error, ConnectionFailed) else exits.USAGE]
    _line(True, f"source of queues, {source}: {len(found):,} queues")
    return found, []


def _described(settings: Settings) -> str:
    """List the settings and their sources."""
    found = [f"{key}={masked(getattr(settings, key))!r} from {source}" for key, source in settings.sources.items()]
    return ", ".join(found) or "nothing set, all defaults"


def _brokers(wanted: _Wanted, timeout: float, bindings: tuple[tuple[str, str], ...]) -> Iterator[int]:
    """Check every broker, and the queues on the first that answers; yield exit codes."""
    looked = False
    for url in wanted.urls:
        try:
            with Session(url, timeout) as session:
                _line(True, f"broker {mask_url(url)}: {session.server}")
                if not looked:
                    looked = True
                    yield from _queues(wanted, session)
            if bindings:
                yield from _placement(url, timeout, bindings)
        except ConnectionFailed as error:
            _line(False, f"broker {error}")
            yield exits.CONNECTION


def _queues(wanted: _Wanted, session: Session) -> Iterator[int]:
    for name, queue in wanted.queues.items():
        try:
            found = session.find(name)
        except QueueNotFound as error:
            if queue.is_declared:
                _line(True, f"queue {name}: does not exist, and will be declared")
                continue
            _line(False, f"queue {name}: {error}")
            yield exits.QUEUE_MISSING
        else:
            _line(True, f"queue {name}: {found.messages:,} messages ready, {found.consumers} consumers")


def _placement(url: str, timeout: float, bindings: tuple[tuple[str, str], ...]) -> Iterator[int]:
    from fairsched.cli.placement import KEYS, compare

    mismatches = compare(url, timeout, bindings)
    if not mismatches:
        _line(True, f"placement: {len(KEYS)} keys route to the queues computed")
        return
    first = mismatches[0]
    _line(
        False,
        f"placement: {len(mismatches)} of {len(KEYS)} keys route to other queues than computed; key {first.key} routes "
        f"to {first.found}, computed {first.computed}",
    )
    yield exits.PLACEMENT


def _line(good: bool, text: str) -> None:
    mark = "✓" if good else "✗"
    try:
        mark.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        mark = "ok" if good else "FAILED"
    click.echo(f"{click.style(mark, fg='green' if good else 'red')} {text}")
