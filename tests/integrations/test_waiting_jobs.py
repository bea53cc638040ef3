"""Jobs that wait for a worker: whose turn it is, in which order within a slot, and what they cost."""

from __future__ import annotations

import itertools
import logging
import queue
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import ConfigurationError
from fairsched.integrations.waiting_jobs import Job, Key, WaitingJobs

slots = st.sampled_from(["gold", "free", "other", "another"])


def drain(jobs: WaitingJobs) -> list[Job]:
    return [jobs.take() for _ in range(len(jobs))]


def test_shares_are_exact_while_all_wait() -> None:
    jobs = WaitingJobs({"gold": 40, "free": 10, "*": 5}, "constant")
    for number in range(100):
        for slot in ("gold", "free", "other"):
            jobs.put(Job(slot, number, None))
    served = Counter(jobs.take().slot for _ in range(110))
    assert served == {"gold": 80, "free": 20, "other": 10}


@given(st.lists(st.tuples(slots, st.integers(0, 3))))
def test_every_job_comes_once_and_by_rank_within_its_slot(given: list[tuple[str, int]]) -> None:
    jobs = WaitingJobs({"gold": 3}, "time")
    for number, (slot, priority) in enumerate(given):
        jobs.put(Job(slot, (priority, number), number))
    taken = drain(jobs)
    assert sorted(job.work for job in taken) == list(range(len(given)))
    for slot in {slot for slot, _ in given}:
        ranks = [job.rank for job in taken if job.slot == slot]
        assert ranks == sorted(ranks)
    with pytest.raises(queue.Empty):
        jobs.take()


def test_shares_are_shares_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(1).__next__
    clock = SimpleNamespace(now=now())
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock.now)
    jobs = WaitingJobs({"slow": 1, "quick": 1}, "time")
    takes: dict[Any, int] = {"slow": 50_000_000, "quick": 5_000_000}
    spent: Counter[Any] = Counter()
    for slot in takes:
        for number in range(4):
            jobs.put(Job(slot, number, None))
    for number in range(4, 2000):
        job = jobs.take()
        clock.now += takes[job.slot]
        spent[job.slot] += takes[job.slot]
        jobs.finish(job)
        jobs.put(Job(job.slot, number, None))
    assert spent["slow"] == pytest.approx(spent["quick"], rel=0.03)


def test_what_kept_no_worker_busy_costs_nothing() -> None:
    jobs = WaitingJobs({"gold": 1, "free": 1}, "constant")
    for number in range(20):
        jobs.put(Job("gold", number, None))
        jobs.put(Job("free", number, None))
    served: Counter[Any] = Counter()
    for number in range(20):
        job = jobs.take()
        if job.slot == "gold" and number < 8:
            jobs.refund(job)
        else:
            served[job.slot] += 1
    assert abs(served["gold"] - served["free"]) <= 1


def test_clear_forgets_jobs() -> None:
    jobs = WaitingJobs(None, "time")
    jobs.put(Job("a", 1, None))
    jobs.clear()
    assert len(jobs) == 0
    jobs.put(Job("a", 2, "new"))
    assert jobs.take().work == "new"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (({"gold": 0}, "time"), "weight of 'gold' must be a whole number of at least 1, got 0"),
        (({"gold": True}, "time"), "weight of 'gold' must be"),
        (({"*": 0}, "time"), "weight of .* must be a whole number of at least 1, got 0"),
        (({}, "bytes"), "cost must be 'time' or 'constant', got 'bytes'"),
    ],
)
def test_wrong_values_are_named(arguments: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        WaitingJobs(*arguments)


def key(spec: Any) -> Key:
    return Key(spec, lambda message: message["queue"], {"header": lambda message, name: message.get(name)})


def test_keys() -> None:
    message = {"queue": "q", "tenant": "acme", "none": None, "list": [1], "nan": float("nan")}
    assert key("queue")(message) == "q"
    assert key("header:tenant")(message) == "acme"
    assert key("header:none")(message) == ""
    assert key("header:missing")(message) == ""
    assert key("header:list")(message) == "[1]"
    assert key("header:nan")(message) == "nan"
    assert key(len)(message) == 5


def test_a_key_function_that_fails_stops_no_job(caplog: pytest.LogCaptureFixture) -> None:
    find = key(lambda message: message["missing"])
    with caplog.at_level(logging.ERROR):
        assert [find({}), find({})] == ["", ""]
    assert [record.message for record in caplog.records] == ["key function failed; such messages get no key"]


@pytest.mark.parametrize("spec", ["header:", "option:tenant", "tenant", "", 5, None])
def test_no_key(spec: Any) -> None:
    with pytest.raises(ConfigurationError, match="key must be 'queue', 'header:NAME' or a function, got "):
        key(spec)


def test_a_coroutine_function_is_no_key() -> None:
    async def find(message: object) -> str:
        return ""

    with pytest.raises(ConfigurationError, match="key"):
        key(find)
