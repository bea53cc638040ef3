"""The settings of a consumer after queues were added and removed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import ConfigurationError, Limit, Queue, Retry
from fairsched.consumer.settings import ConsumerSettings
from fairsched.prefetch import LARGEST_PREFETCH

URL = "amqp://guest:guest@localhost/"
WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 60), min_size=1)


def queues(weights: dict[str, int]) -> dict[str, Queue]:
    return {name: Queue(name, weight=weight) for name, weight in weights.items()}


@given(first=WEIGHTS, second=WEIGHTS, gone=st.sets(st.sampled_from("abcdefgh")), cost=st.sampled_from(["bytes", None]))
def test_quanta_and_units_are_those_of_a_new_consumer(
    first: dict[str, int], second: dict[str, int], gone: set[str], cost: str | None
) -> None:
    added = {name: weight for name, weight in second.items() if name not in first}
    changed = ConsumerSettings(URL, first, cost=cost).with_queues(queues(added)).without_queues(gone)
    left = {name: weight for name, weight in {**first, **added}.items() if name not in gone}
    assert changed.weights == left
    assert list(changed.queues) == list(changed.windows) == list(left)
    if left:
        anew = ConsumerSettings(URL, left, cost=cost)
        assert (changed.quanta, changed.units) == (anew.quanta, anew.units)
        assert changed.reweighed({}).windows == anew.windows
    else:
        assert (changed.quanta, changed.units) == ({}, {})


@pytest.mark.parametrize("prefetch", [None, 100, 3, "auto"])
def test_windows_of_others_stay_and_a_new_one_is_its_part(prefetch: Any) -> None:
    before = ConsumerSettings(URL, {"a": 2, "b": 1}, prefetch=prefetch)
    changed = before.with_queues({"c": Queue("c", weight=3)})
    assert {name: changed.windows[name] for name in "ab"} == before.windows
    if prefetch != "auto":  # which measures
        anew = ConsumerSettings(URL, {"a": 2, "b": 1, "c": 3}, prefetch=prefetch)
        assert abs(changed.windows["c"] - anew.windows["c"]) <= 1


def test_a_window_of_its_own() -> None:
    before = ConsumerSettings(URL, ["a"], prefetch={"a": 5})
    assert before.with_queues({"b": Queue("b", prefetch=9)}).windows == {"a": 5, "b": 9}
    with pytest.raises(ConfigurationError, match=r"queue 'b' needs one, too: Queue\('b', prefetch=N\)"):
        before.with_queues({"b": Queue("b")})
    with pytest.raises(ConfigurationError, match="b has its own prefetch"):
        ConsumerSettings(URL, ["a"], prefetch="auto").with_queues({"b": Queue("b", prefetch=9)})


def test_a_large_total_still_goes_when_queues_are_fewer() -> None:
    settings = ConsumerSettings(URL, ["a", "b"], prefetch=2 * LARGEST_PREFETCH).without_queues(["b"])
    assert settings.reweighed({"a": 3}).windows == {"a": LARGEST_PREFETCH}


def test_options_of_queues_come_and_go() -> None:
    options: dict[str, Any] = {"limit": Limit(concurrency=1), "band": 2, "time_limit": 3, "on_error": "reject"}
    before = ConsumerSettings(URL, ["a"], retry=Retry(3))
    changed = before.with_queues({"b": Queue("b", **options), "c": Queue("c")})
    assert (list(changed.limits), changed.bands, changed.time_limits) == (["b"], {"b": 2}, {"b": 3})
    assert (changed.policies, list(changed.retries)) == ({"b": "reject"}, ["a", "c"])
    changed = changed.without_queues(["b", "c"])
    assert (changed.limits, changed.bands, changed.time_limits, changed.policies) == ({}, {}, {}, {})
    assert list(changed.retries) == ["a"]


@pytest.mark.parametrize(
    ("options", "queue", "rule"),
    [
        ({}, Queue("a"), "queue 'a' is consumed already"),
        ({"key": "header:t"}, Queue("b", band=1), "band of queue 'b' is for consumers without key="),
        ({"retry": Retry(2)}, Queue("a.retry.1000"), "retry needs queue 'a.retry.1000' for itself"),
        (
            {"ordering_key": "header:k", "workers": 2},
            Queue("b", limit=Limit(concurrency=1)),
            "a limit cannot be combined with ordering_key",
        ),
    ],
)
def test_a_queue_that_does_not_go_with_the_consumer(options: dict[str, Any], queue: Queue, rule: str) -> None:
    if "retry" in options:
        options = {"retry": Retry(2, backoff=1, jitter=False)}
    before = ConsumerSettings(URL, ["a"], **options)
    with pytest.raises(ConfigurationError, match=rule):
        before.with_queues({queue.name: queue})
