"""The command line, ``fairsched``: the commands are in `commands`, what they print and draw in `output`."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

from fairsched.cli.extra import EXTRA, REMEDY

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        Instead of those of the process.

    Raises
    ------
    SystemExit
        Always; ``fairsched --help`` lists the codes.

    Notes
    -----
    To be called in the main thread, which handles signals.
    """
    try:
        from fairsched.cli.group import cli
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        print("Error:", REMEDY.format(error.name), file=sys.stderr)
        raise SystemExit(3) from None
    try:
        try:
            cli.main(args=None if arguments is None else list(arguments), prog_name="fairsched")
        finally:
            if sys.stdout is not None:  # closed before the start
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _drop_output()
        print("Error: the output cannot be written:", error.strerror, file=sys.stderr)
        raise SystemExit(1) from None


#: Errors of a standard output that is full or gone, which name no file.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}


def _drop_output() -> None:
    """Have the interpreter not try again to write what is left when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
