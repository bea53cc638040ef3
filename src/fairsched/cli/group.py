"""The top-level command group. The module of a command is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from fairsched import __version__
from fairsched.cli import exits
from fairsched.cli.commands import COMMANDS, SECTIONS
from fairsched.cli.extra import EXTRA, REMEDY
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound


class LazyGroup(click.Group):
    """A group that imports a command only when it is used, and turns our exceptions into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for an unknown name, which click reports."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fairsched.cli.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists of commands without importing any."""
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an exception that has an exit code becomes a one-line message and that code."""
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            raise exits.Failure(str(error), exits.USAGE) from error
        except QueueNotFound as error:
            raise exits.Failure(str(error), exits.QUEUE_MISSING) from error
        except ConnectionFailed as error:
            raise exits.Failure(str(error), exits.CONNECTION) from error
        except ModuleNotFoundError as error:
            if error.name not in EXTRA:
                raise
            raise exits.Failure(REMEDY.format(error.name), exits.IMPORT) from error


@click.group(cls=LazyGroup, epilog=exits.EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairsched")
def cli() -> None:
    """Consume RabbitMQ queues in weighted fair order."""
