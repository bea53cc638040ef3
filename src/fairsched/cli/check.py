"""``fairsched check``: would a worker start with this configuration?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from fairsched.cli import exits
from fairsched.cli.broker import Session
from fairsched.cli.parameters import config_option, queues_option, urls_option
from fairsched.config import Settings
from fairsched.consumer.urls import mask_url
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound
from fairsched.settingvalues import masked

#: Where pika, and nearly everybody's development machine, has its broker.
DEFAULT_URL = "amqp://guest:guest@localhost:5672/%2F"


@click.command(epilog=exits.EPILOG)
@config_option
@urls_option
@queues_option
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Seconds."
)
def check(config: Path | None, urls: tuple[str, ...], queues: tuple[str, ...], timeout: float) -> None:
    """Check the configuration, every broker, and every queue.

    Prints one line for each check. Nothing is consumed and nothing changed. Of several faults the first one of
    configuration, brokers, queues decides the exit code.
    """
    try:
        settings = Settings.load({"url": urls or None, "queues": ",".join(queues) or None}, file=config)
    except ConfigurationError as error:
        _line(False, f"configuration: {error}")
        raise click.exceptions.Exit(exits.USAGE) from None
    _line(True, f"configuration: {_described(settings)}")
    outcomes = list(_brokers(settings, timeout))
    failed = [code for code in (exits.CONNECTION, exits.QUEUE_MISSING) if code in outcomes]
    raise click.exceptions.Exit(failed[0] if failed else 0)


def _described(settings: Settings) -> str:
    """List what is set, and where."""
    found = [f"{key}={masked(getattr(settings, key))!r} from {source}" for key, source in settings.sources.items()]
    return ", ".join(found) or "nothing is set, all defaults"


def _brokers(settings: Settings, timeout: float) -> Iterator[int]:
    """Look at every broker, and at the queues on the first that answers; yield exit codes."""
    looked = False
    for url in settings.url or (DEFAULT_URL,):
        try:
            with Session(url, timeout) as session:
                _line(True, f"broker {mask_url(url)}: {session.server}")
                if not looked:
                    looked = True
                    yield from _queues(settings, session)
        except ConnectionFailed as error:
            _line(False, f"broker {error}")
            yield exits.CONNECTION


def _queues(settings: Settings, session: Session) -> Iterator[int]:
    for name in settings.queues:
        try:
            found = session.find(name)
        except QueueNotFound as error:
            _line(False, f"queue {name}: {error}")
            yield exits.QUEUE_MISSING
        else:
            _line(True, f"queue {name}: {found.messages:,} messages ready, {found.consumers} consumers")


def _line(good: bool, text: str) -> None:
    click.echo(f"{click.style('✓', fg='green') if good else click.style('✗', fg='red')} {text}")
