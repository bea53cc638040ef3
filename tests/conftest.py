"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: default, ci, expensive, sanitize; what all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.distributions import build_sdist, build_wheel, once
from support.rabbitmq import Node, shared_broker

# No profile has a deadline: a time limit per example says more about the machine than about the code. Too slow a test
# is caught by pytest-timeout. `make test` tries the same examples every time, so that what it says of a change is
# about the change; the other profiles search elsewhere with every run.
settings.register_profile("default", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("ci", deadline=None, print_blob=True, max_examples=200)
settings.register_profile("expensive", deadline=None, print_blob=True, max_examples=3000)
settings.register_profile(
    "sanitize",
    deadline=None,
    print_blob=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What a script starts in the background ignores SIGINT, and so does everything started from there: no test of a Ctrl-C
# could end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process is left alone with it at the end."""
    first = ["spark", "integration", "reentrancy", "stress"]
    folders = {item: item.path.relative_to(Path(__file__).parent).parts[0] for item in items}
    items.sort(key=lambda item: first.index(folders[item]) if folders[item] in first else len(first))


@pytest.fixture(scope="session")
def broker() -> Iterator[Node]:
    """A node for tests that leave it running."""
    with shared_broker() as node:
        yield node


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def sdist(common: Path) -> Path:
    """The sdist of this tree."""
    return once(common, "sdist", build_sdist)


@pytest.fixture(scope="session")
def wheel(sdist: Path, common: Path) -> Path:
    """The wheel of that sdist."""
    return once(common, "wheel", lambda folder: build_wheel(sdist, folder))
