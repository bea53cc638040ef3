"""Exit codes, and the exception that carries them."""

from __future__ import annotations

import click

USAGE = 2  # click's own for bad arguments, and ours for bad configuration
IMPORT = 3
CONNECTION = 4
APPLICATION = 5
QUEUE_MISSING = 6
PLACEMENT = 7
LEFT = 8

#: Shown at the end of the help of every command.
EPILOG = (
    "Exit codes: 0 success, 1 the output cannot be written, 2 usage or configuration error, 3 import failed, 4 no "
    "broker or worker reached, or connection refused, 5 application failed, 6 queue not found, 7 the broker's "
    "placement of keys differs, 8 some messages could not be moved."
)


class Failure(click.ClickException):
    """A command failed.

    Parameters
    ----------
    message : str
        What went wrong, in one line, without passwords.
    exit_code : int
        One of the constants of this module.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.args = (message, exit_code)  # from which copies are created
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class, and reads the instance
