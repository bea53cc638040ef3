"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: default, ci, expensive, sanitize; what all tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.distributions import build_sdist, build_wheel, once
from support.outcomes import Outcomes
from support.rabbitmq import Broker, Node, chosen_broker, make_broker
from support.scheduling import SparkInOneHalf, place

# No profile has a deadline: a time limit per example says more about the machine than about the code. Too slow a test
# is caught by pytest-timeout. `make test` tries the same examples every time, so that what it says of a change is
# about the change, and more of them would be tried in vain; the other profiles search elsewhere with every run.
settings.register_profile("default", deadline=None, print_blob=True, derandomize=True, max_examples=50)
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

# What a script starts in the background ignores SIGINT, and by nohup SIGHUP, and so does everything started from there:
# no test of a Ctrl-C could end, and no worker would reload.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


#: Fixtures that are a broker of this run.
BROKERS = {"broker", "mortal", "hashing_broker"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a broker, and leave out what the broker of this run cannot be asked."""
    here = Path(__file__).parent
    for item in items:
        folders = item.path.relative_to(here).parts
        if folders[:2] == ("integration", "broker"):
            item.add_marker(pytest.mark.model)  # and asks both brokers in every run
        elif folders[0] == "integration" or (folders[0] != "broker" and BROKERS & {*getattr(item, "fixturenames", ())}):
            item.add_marker(pytest.mark.broker)
    unfit = {"rabbitmq": (), "embedded": ("rabbitmq",)}.get(chosen_broker(), ("model",))
    left_out = {item: None for item in items if any(item.get_closest_marker(name) for name in unfit)}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    sort_by_length(items)


def sort_by_length(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process is left alone with it at the end."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: place(item.path.relative_to(tests).as_posix()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Collect no garbage while tests are collected, which makes little: a fifth of the processor time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the collector the tests themselves.

    With all they import they are 300 000 objects, and the search for cycles looked at each of them again: a third of a
    second, every time.
    """
    # With its first test in a process, Hypothesis warns if the collector finds no reference to its random numbers;
    # and the collector does not look at what is frozen.
    given(nothing=st.none())(lambda nothing: None)()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file together, and Spark's files in one half of the processes."""
    return SparkInOneHalf(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker for tests that leave it running."""
    with make_broker() as made:
        yield made


@pytest.fixture(scope="session")
def spare() -> Iterator[list[Node]]:
    """Nodes of RabbitMQ that tests have left running and empty: a start takes four seconds of processor time."""
    kept: list[Node] = []
    yield kept
    for one in kept:
        one.close()


@pytest.fixture
def mortal(spare: list[Node]) -> Iterator[Broker]:
    """A broker of the test's own, which may be killed."""
    made = spare.pop() if spare else make_broker(durable=True).__enter__()
    try:
        yield made
    finally:
        if isinstance(made, Node) and made.forget():
            spare.append(made)
        else:
            made.close()


@pytest.fixture
def outcomes(record_property: Callable[[str, object], None]) -> Outcomes:
    """Notes what a fault did to messages, for `make chaos`."""
    return Outcomes(record_property)


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
