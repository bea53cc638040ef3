"""Asking a running worker by its control socket: the options for it, and what becomes of answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairsched.cli import exits
from fairsched.cli.parameters import config_option
from fairsched.config.settings import Settings
from fairsched.config.values import OFF

_Command = Callable[..., Any]


def worker_options(command: _Command) -> _Command:
    """Add ``--control`` and ``--config``, which say where the worker's control socket is."""
    return click.option(
        "--control",
        metavar="PATH",
        help="Control socket of the worker. [default: $FAIRSCHED_CONTROL, or control in the settings]",
    )(config_option(command))


def socket_path(control: str | None, config: Path | None) -> str:
    """Return where the control socket of a worker is.

    Parameters
    ----------
    control, config
        As given on the command line.

    Returns
    -------
    str
        A path.

    Raises
    ------
    exits.Failure
        If there is none.
    """
    found = Settings.load({"control": control}, file=config).control
    if found in (None, OFF):
        raise exits.Failure(
            "which worker? Give --control PATH as fairsched run has it, or set control in the settings of both",
            exits.USAGE,
        )
    return str(found)


def result_of(path: str, **request: Any) -> Any:
    """Ask a worker.

    Parameters
    ----------
    path : str
        Where its control socket is.
    **request
        As `fairsched.cli.control.Control` takes it.

    Returns
    -------
    object
        The result.

    Raises
    ------
    exits.Failure
        If no worker answers, or the answer is an error.
    """
    from fairsched.cli.controlsocket import ask

    if not hasattr(socket, "AF_UNIX"):
        raise exits.Failure(f"control sockets need Unix sockets, which {sys.platform} does not have", exits.USAGE)
    try:
        answer = ask(path, request)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise exits.Failure(f"no worker answers at {path!r}: {reason}", exits.CONNECTION) from error
    if not isinstance(answer, dict) or "result" not in answer:
        said = answer.get("error") if isinstance(answer, dict) else answer
        raise exits.Failure(printable(str(said)), exits.USAGE)
    return answer["result"]


def printable(text: str) -> str:
    """Return text without what a terminal would obey: names of tenants may be anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
