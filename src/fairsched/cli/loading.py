"""Import the app that ``MODULE:APP`` names."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fairsched.cli import exits
from fairsched.consumer import App
from fairsched.errors import ConfigurationError


def load_app(reference: str) -> App:
    """Import an app.

    Parameters
    ----------
    reference : str
        ``package.module:attribute``; the attribute may be dotted, and is ``app`` when left out.

    Returns
    -------
    App
        The app.

    Raises
    ------
    Failure
        With the exit code for usage, if the reference is malformed. With the one for imports, if the module cannot be
        imported, lacks the attribute, or the attribute is not an `App`. When the module itself fails, its traceback
        is printed first.
    ConfigurationError
        If the module raises it.

    Notes
    -----
    The current directory is put at the front of `sys.path`, as ``python -m`` does.
    """
    if re.fullmatch(r"\w+(\.\w+)*(:\w+(\.\w+)*)?", reference) is None:
        raise exits.Failure(
            f"the app must be given as MODULE:APP, such as workers.mail:app, got {reference!r}", exits.USAGE
        )
    module_name, _, attribute = reference.partition(":")
    found = _attribute(module_name, attribute or "app")
    if not isinstance(found, App):
        raise exits.Failure(f"{reference!r} is not a fairsched.App but {type(found).__name__!r}", exits.IMPORT)
    return found


def load_function(reference: str) -> Callable[[], Any]:
    """Import the function that ``MODULE:FUNCTION`` names, as `load_app` imports an app.

    Raises
    ------
    Failure
        With the exit code for imports, if the module cannot be imported, or has no such function.
    """
    module_name, _, attribute = reference.partition(":")
    found = _attribute(module_name, attribute)
    if not callable(found):
        raise exits.Failure(f"{reference!r} is not a function but {type(found).__name__!r}", exits.IMPORT)
    function: Callable[[], Any] = found
    return function


def _attribute(module_name: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = _module(module_name)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise exits.Failure(f"module {module_name!r} has no attribute {attribute!r}", exits.IMPORT) from None
    return found


def _module(name: str) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # The module asked for, or a package it is in; anything else is missing inside it.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise exits.Failure(f"no module {name!r} in the current directory or on sys.path", exits.IMPORT) from None
        return _failed(name)
    except ConfigurationError as error:
        # Its message says what is wrong; a traceback would add nothing.
        raise ConfigurationError(f"module {name!r}: {error}") from error
    except (Exception, SystemExit):
        return _failed(name)


def _failed(name: str) -> object:
    traceback.print_exc()
    raise exits.Failure(f"importing {name!r} failed: {sys.exc_info()[1]!r}", exits.IMPORT) from None
