"""Errors can be copied and pickled, as process pools, Celery and Spark do with them."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest

import fairsched
from fairsched.cli.exits import Failure
from fairsched.errors import MessageReturned, Throttled, UndecodableBody
from fairsched.testing import FakeConsumer


def error_classes() -> list[type[BaseException]]:
    """Return every exception class of the package."""
    found = set()
    for module in pkgutil.walk_packages(fairsched.__path__, "fairsched."):
        if "_probe" not in module.name and not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(value) and issubclass(value, BaseException) and "fairsched" in value.__module__:
                    found.add(value)
    return sorted(found, key=lambda one: (one.__module__, one.__name__))


def undecodable() -> UndecodableBody:
    """Return an error of a message that cannot be decoded."""
    message = FakeConsumer(decode="json").put(b"{")
    with pytest.raises(UndecodableBody) as raised:
        _ = message.data
    assert raised.value.message is message
    return raised.value


#: How to create those that take more than a text.
CREATED: dict[type[BaseException], Any] = {
    Failure: lambda: Failure("no broker", 4),
    MessageReturned: lambda: MessageReturned(312, "NO_ROUTE", "e", "k", "id"),
    Throttled: lambda: Throttled(2.5),
    UndecodableBody: undecodable,
}

KEPT = ["reply_code", "reply_text", "exchange", "routing_key", "reason", "exit_code", "message", "seconds", "__notes__"]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_errors_can_be_copied_and_pickled(kind: type[BaseException], copied: Any) -> None:
    error = CREATED.get(kind, lambda: kind("a text with %s and \xe6"))()
    error.add_note("seen in a test")
    again = copied(error)
    assert type(again) is kind
    assert str(again) == str(error)
    assert repr(again) == repr(error)
    for name in KEPT:
        expected = None if (kind, name) == (UndecodableBody, "message") else getattr(error, name, "none")
        assert getattr(again, name, "none") == expected
