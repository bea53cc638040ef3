"""The arguments of a consumer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairsched import ConfigurationError, Limit, Pool, Queue, Tenant, aio
from fairsched.consumer import App, Consumer
from fairsched.consumer.settings import ConsumerSettings

URL = "amqp://guest:guest@localhost/"


def test_quanta_are_in_the_smallest_whole_numbers() -> None:
    assert ConsumerSettings(URL, {"gold": 40, "free": 4}).quanta == {"gold": 10, "free": 1}
    assert ConsumerSettings(URL, ["a", "b"]).quanta == {"a": 1, "b": 1}
    assert ConsumerSettings(URL, {"gold": 40, "free": 4}, cost="bytes").quanta == {"gold": 10240, "free": 1024}
    assert ConsumerSettings(URL, {"gold": 40, "free": 4}, cost="time").quanta == {"gold": 10**6, "free": 10**5}
    assert ConsumerSettings(URL, {"gold": 40, "free": 4}, cost=lambda message: 1).quanta == {"gold": 10, "free": 1}


def test_tenants_share_one_scale_with_the_default() -> None:
    settings = ConsumerSettings(URL, ["q"], key="header:t", tenants={"a": 6, "b": 4, "*": 2})
    assert settings.quanta == {"a": 3, "b": 2}
    assert settings.default_quantum == 1
    assert ConsumerSettings(URL, ["q"], key="header:t").quanta == {}
    assert ConsumerSettings(URL, ["q"]).default_quantum is None


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"queues": []}, "at least one queue"),
        ({"queues": "gold"}, "queues must be a mapping"),
        ({"queues": 5}, "queues must be a mapping"),
        ({"queues": None}, "queues must be a mapping"),
        ({"queues": ["a", "a"]}, "queues must differ"),
        ({"queues": {"": 1}}, "queue name"),
        ({"queues": {"x" * 256: 1}}, "queue name"),
        ({"queues": {"a": 0}}, "weight of 'a'"),
        ({"tenants": {"a": 1}}, "tenants= needs key=; queues have weights, limits and bands in queues="),
        ({"tenants": {}}, "tenants= needs key="),
        ({"key": "header:t", "tenants": {"a": 0}}, "weight of 'a' must be a whole number of at least 1, got 0"),
        ({"key": "header:t", "tenants": {"a": None}}, "weight of 'a' must be a whole number of at least 1, got None"),
        ({"key": "header:t", "tenants": ["a"]}, r"tenants must be a mapping of names to weights or Tenants, got \['a'"),
        ({"key": "header:t", "tenants": {"a": {"limits": 1}}}, "unknown 'limits' of tenant 'a'; there are weight, lim"),
        ({"key": "header:t", "tenants": {"a": {"weight": 0}}}, "tenant 'a': weight of a tenant must be a whole number"),
        (
            {"key": "header:t", "tenants": {"a": {"limit": 3}}},
            "tenant 'a': limit of a tenant must be a fairsched.Limit",
        ),
        ({"key": "header:t", "tenants": {"*": {"band": 3}}}, r"band of tenant '\*' must be None, got 3"),
        ({"queues": {"a": {"wait": 1}}}, "unknown 'wait' of queue 'a'; there are weight, prefetch, on_error"),
        ({"key": "nonsense"}, "key must be"),
        ({"ordering_key": "nonsense"}, "ordering_key must be"),
        ({"subkey": "nonsense"}, "subkey must be 'header:NAME', 'property:NAME' or a function of the message, got"),
        ({"subkey": "property:user"}, "subkey 'property:user': no such property"),
        ({"ordering_key": "property:account"}, "ordering_key 'property:account': no such property"),
        ({"ordering_key": "header:account", "workers": 0}, "workers"),
        ({"cost": "weight"}, "cost must be"),
        ({"workers": 0}, "workers"),
        ({"workers": 1.0}, "workers"),
        ({"workers": True}, "workers must be a whole number of at least 1, a Pool, or a list"),
        ({"workers": "4"}, "workers must be .*, got '4'"),
        ({"workers": []}, r"workers must be .*, got \[\]"),
        ({"workers": [Pool(1), 2]}, "workers must be .*, got .*Pool"),
        ({"workers": (3,)}, r"workers must be .*, got \[3\]"),
        (
            {"workers": [Pool(1, priority=1), Pool(1)], "ordering_key": "header:account"},
            "ordering_key gives every worker a queue of its own, .* must have one priority, got 1, 0",
        ),
        ({"on_error": "ignore"}, "on_error"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"connect_timeout": math.nan}, "connect_timeout"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": "automatic"}, "prefetch"),
        ({"target_delay": 0.1}, 'target_delay is for prefetch="auto", got 0.1'),
        ({"prefetch": "auto", "target_delay": -1}, "target_delay must be a number of seconds, 0 or more, got -1"),
        ({"max_buffer_bytes": 0}, "max_buffer_bytes must be a whole number of at least 1, got 0"),
        ({"max_buffer_bytes": 1e6}, "max_buffer_bytes must be a whole number of at least 1, got 1000000.0"),
        ({"url": "redis://x"}, "amqp://"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_rule(arguments: dict[str, object], rule: str) -> None:
    given = {"url": URL, "queues": ["q"], **arguments}
    for kind in (Consumer, aio.Consumer):
        with pytest.raises(ConfigurationError, match=rule):
            kind(given["url"], given["queues"], **{k: v for k, v in given.items() if k not in ("url", "queues")})


def test_prefetch_that_is_found_by_measuring_starts_small() -> None:
    settings = ConsumerSettings(URL, {"a": 3, "b": 1}, prefetch="auto", workers=[Pool(1, priority=1), Pool(1)])
    assert settings.windows == {"a": 24, "b": 8}
    assert settings.target_delay == 0.1
    assert ConsumerSettings(URL, ["q"], prefetch="auto", target_delay=0).target_delay == 0.0
    assert ConsumerSettings(URL, ["q"], prefetch=10).target_delay is None


@pytest.mark.parametrize("options", [{"exclusive": True}, {"offset": "first"}])
def test_a_queue_with_one_consumer_has_a_window_that_stays(options: dict[str, Any]) -> None:
    queue = Queue("q", prefetch=10, **options)
    rule = f"{next(iter(options))} of queue 'q' cannot be combined with max_buffer_bytes=1000"
    with pytest.raises(ConfigurationError, match=rule):
        ConsumerSettings(URL, [queue], max_buffer_bytes=1000)
    with pytest.raises(ConfigurationError, match=rule):
        ConsumerSettings(URL, ["other"], max_buffer_bytes=1000).with_queues({"q": queue})
    assert ConsumerSettings(URL, [queue]).windows == {"q": 10}


def test_workers_in_pools() -> None:
    pools = [Pool(2), Pool(4, priority=10), Pool(1)]
    settings = ConsumerSettings(URL, ["q"], workers=iter(pools))
    assert settings.pools == (Pool(4, priority=10), Pool(2), Pool(1))
    assert settings.priorities == [10, 10, 10, 10, 0, 0, 0]
    assert (settings.workers, settings.worker_queues) == (7, 1)
    assert (
        ConsumerSettings(URL, ["q"], workers=3).pools
        == ConsumerSettings(URL, ["q"], workers=Pool(3)).pools
        == (Pool(3),)
    )
    assert App(URL, workers=pools).options["workers"] == pools


def test_pools_of_one_priority_have_worker_queues() -> None:
    pools = [Pool(2, priority=5), Pool(3, priority=5)]
    assert ConsumerSettings(URL, ["q"], workers=pools, ordering_key="header:account").worker_queues == 5


def test_an_unused_consumer_costs_and_does_nothing() -> None:
    consumer = Consumer(URL, {"a": 3, "b": 1}, prefetch=8)
    assert consumer.stats()["received"] == 0
    assert {name: slot.quantum for name, slot in consumer.stats()["slots"].items()} == {"a": 3, "b": 1}
    with pytest.raises(RuntimeError, match="inside 'with"):
        next(iter(consumer))
    consumer.stop()


def test_an_app_gathers_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRSCHED_URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'prefech': did you mean 'prefetch'\?"):
        App(prefech=2)
    app = App(workers=2)

    @app.consumer("gold", weight=40)
    @app.consumer("free", weight=4)
    def handler(message: object) -> None:
        pass

    assert app.weights == {"free": 4, "gold": 40}
    assert set(app.handlers.values()) == {handler}
    with pytest.raises(ConfigurationError, match="'gold' has a handler already"):
        app.consumer("gold")
    with pytest.raises(ConfigurationError, match="no broker URL"):
        app.make_consumer()
    slots = app.make_consumer(URL).stats()["slots"]
    assert {name: slot.quantum for name, slot in slots.items()} == {"gold": 10, "free": 1}
    assert list(app.make_consumer(URL, queues=["gold"]).stats()["slots"]) == ["gold"]
    slots = app.make_consumer(URL, queues={"gold": 2, "free": 1}).stats()["slots"]
    assert {name: slot.quantum for name, slot in slots.items()} == {"gold": 2, "free": 1}
    with pytest.raises(ConfigurationError, match="no handler for queue 'silver'"):
        app.make_consumer(URL, queues=["silver"])
    app.stop()
    assert app.stats() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"queues": [Queue("a", limit=Limit(1))], "key": "header:t"},
            "limit of queue 'a' is for consumers without key=; with key=, use tenants=",
        ),
        (
            {"queues": [Queue("a", limit=Limit(2))], "ordering_key": "header:k", "workers": 2},
            "a limit cannot be combined with ordering_key and workers=2: .* a queue cannot be limited across them",
        ),
        (
            {"tenants": {"a": Tenant(limit=Limit(2))}, "key": "header:t", "ordering_key": "header:k", "workers": 2},
            "a limit cannot be combined with ordering_key and workers=2: .* a tenant cannot be limited across them",
        ),
        (
            {"tenants": {"*": Tenant(limit=Limit(2))}, "key": "header:t", "ordering_key": "header:k", "workers": 2},
            "a limit cannot be combined with ordering_key",
        ),
    ],
)
def test_refused_limits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ConsumerSettings(URL, options.pop("queues", ["a", "b"]), **options)


def test_limits_of_slots() -> None:
    queues = ConsumerSettings(URL, [Queue("a", limit=False), Queue("b", limit=Limit(1)), "c"])
    assert queues.limits == {"a": None, "b": Limit(1)}
    assert queues.default_limit is None
    tenants = ConsumerSettings(
        URL, ["a"], key="header:t", tenants={"x": Tenant(limit=Limit(1)), "y": {"limit": False}, "z": 1},
    )  # fmt: skip
    assert tenants.limits == {"x": Limit(1), "y": None}
    assert tenants.default_limit is None
    everyone = ConsumerSettings(URL, ["a"], key="header:t", tenants={"*": Tenant(limit=Limit(3)), "y": 2})
    assert (everyone.limits, everyone.default_limit) == ({}, Limit(3))
    worker_queues: dict[str, Any] = {"ordering_key": "header:k", "workers": 2}
    assert ConsumerSettings(URL, [Queue("a", limit=False)], **worker_queues).limits == {"a": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"key": "header:t", "tenants": {"a": {"band": 8}}},
            r"tenant 'a': band of a tenant must be a whole number from 0 \(served first\) to 7, got 8",
        ),
        (
            {"queues": [Queue("a", band=0)], "key": "header:t"},
            "band of queue 'a' is for consumers without key=; with key=, use tenants=",
        ),
    ],
)
def test_refused_bands(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ConsumerSettings(URL, options.pop("queues", ["a", "b"]), **options)


def test_bands_of_slots() -> None:
    assert ConsumerSettings(URL, [Queue("a", band=0), "b"]).bands == {"a": 0}
    assert ConsumerSettings(URL, ["a"], key="header:t", tenants={"x": Tenant(band=7)}).bands == {"x": 7}
    with pytest.raises(ConfigurationError, match="band of 'a' must be a whole number"):
        Queue("a", band=True)
