"""The group of commands. A command's module is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from fairsched import __version__
from fairsched.cli import EXTRA, REMEDY, exits
from fairsched.errors import ConfigurationError, ConnectionFailed, QueueNotFound

#: Commands in the order of the help: name, module and what the list of commands says.
COMMANDS = {
    "demo": "Show ten weighted queues getting their shares.",
    "run": "Run an application's handlers until told to stop.",
    "check": "Check the configuration, the broker and the queues.",
    "prefetch": "Recommend a prefetch, and show what it does.",
    "route": "Show which queue has which key.",
    "simulate": "Try brokers, queues and consumers out before there are any.",
    "pipeline": "Run a pipeline through Spark.",
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports them on use; errors of ours become exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order in which they are explained."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None for an unknown name, which click reports with the names that are close."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fairsched.cli.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command and turn the errors that have an exit code into one line and that code."""
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
    """Fair consuming over RabbitMQ."""
