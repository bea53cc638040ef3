"""Exit codes, and the one exception that carries them."""

from __future__ import annotations

import click

USAGE = 2  # click's own, for arguments it refuses; configuration joins it
IMPORT = 3
CONNECTION = 4
APPLICATION = 5
QUEUE_MISSING = 6
PLACEMENT = 7

#: Shown at the end of the help of every command that can end in these ways.
EPILOG = (
    "Exit codes: 0 success, 2 usage or configuration, 3 something cannot be imported, 4 no broker reached or it "
    "refused, 5 the application failed, 6 a queue does not exist, 7 a broker places keys otherwise."
)


class Failure(click.ClickException):
    """A command could not do its work.

    Parameters
    ----------
    message : str
        What went wrong, in one line, without passwords.
    exit_code : int
        One of the constants of this module.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class, and reads the instance
