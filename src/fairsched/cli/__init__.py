"""The command line, ``fairsched``: the commands are in `commands`, what they print and draw in `output`."""

from __future__ import annotations

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
    cli.main(args=None if arguments is None else list(arguments), prog_name="fairsched")
