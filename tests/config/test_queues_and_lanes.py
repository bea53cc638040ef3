"""Lanes among the queues of a consumer: in Python, in an app, in a file, in a variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import App, ConfigurationError, Consumer, Lanes, Queue, Tenant, aio
from fairsched.config.lanes import queues_and_lanes
from fairsched.config.settings import Settings
from fairsched.consumer.settings import ConsumerSettings
from fairsched.testing import FakeConsumer

URL = "amqp://localhost"
ORDERS = Lanes("orders", key="header:tenant", buckets=4)
BUCKETS = ["orders.bucket.0", "orders.bucket.1", "orders.bucket.2", "orders.bucket.3"]
TABLE = {"key": "header:tenant", "buckets": 4}


@pytest.mark.parametrize(
    "queues",
    [ORDERS, [ORDERS], (ORDERS,), {"orders": ORDERS}, {"orders": TABLE}],
    ids=["alone", "list", "tuple", "mapping", "table"],
)
def test_buckets_are_queues_that_are_declared(queues: Any) -> None:
    settings = ConsumerSettings(URL, queues)
    assert settings.lanes == (ORDERS,)
    assert list(settings.queues) == list(settings.windows) == BUCKETS
    assert all(queue.is_declared and queue.durable for queue in settings.queues.values())
    assert settings.key is not None


def test_lanes_stand_beside_queues() -> None:
    mails = Lanes("mails", key="header:tenant", buckets=1)
    settings = ConsumerSettings(URL, ["plain", ORDERS, Queue("own", prefetch=3), mails])
    assert list(settings.queues) == ["plain", "own", *BUCKETS, "mails.bucket.0"]
    assert settings.lanes == (ORDERS, mails)
    assert list(ConsumerSettings(URL, {"plain": 2, "orders": TABLE}).weights.items()) == [
        ("plain", 2),
        *((name, 1) for name in BUCKETS),
    ]


def test_a_bucket_has_the_weight_of_the_tenants_that_are_not_named() -> None:
    settings = ConsumerSettings(URL, ORDERS, tenants={"gold": 40, "*": 4})
    assert set(settings.weights.values()) == {4}
    assert settings.quanta == {"gold": 10}


def test_the_key_is_that_of_the_lanes() -> None:
    for key in (None, "queue", "header:tenant"):
        assert ConsumerSettings(URL, ORDERS, key=key).key is not None
    with pytest.raises(ConfigurationError, match=r"key of lanes 'orders' is 'header:tenant', but that of the consumer"):
        ConsumerSettings(URL, ORDERS, key="header:user")
    with pytest.raises(ConfigurationError, match=r"but that of the consumer is <function"):
        ConsumerSettings(URL, ORDERS, key=lambda message: message.body)
    with pytest.raises(ConfigurationError, match=r"key of lanes 'mails' is 'header:user', but that of lanes 'orders'"):
        ConsumerSettings(URL, [ORDERS, Lanes("mails", key="header:user")])


def test_lanes_that_keep_their_order_need_no_ordering_key() -> None:
    ordered = Lanes("orders", key="property:user_id", buckets=1, ordered=True)
    settings = ConsumerSettings(URL, ordered)
    assert settings.ordering_key is not None
    assert settings.queues["orders.bucket.0"].all_arguments == {"x-single-active-consumer": True}
    assert ConsumerSettings(URL, ORDERS).ordering_key is None


@pytest.mark.parametrize(
    ("queues", "rule"),
    [
        ([ORDERS, ORDERS], r"queue 'orders.bucket.0' is one of lanes 'orders'"),
        ([ORDERS, "orders.bucket.3"], r"queue 'orders.bucket.3' is one of lanes 'orders'"),
        ([ORDERS, Queue("orders.tenant.x")], r"queue 'orders.tenant.x' is one of lanes 'orders'"),
        ([ORDERS, "orders.lanes"], r"queue 'orders.lanes' is the registry of lanes 'orders'"),
        ({"mails": ORDERS}, r"lanes 'orders' stand under another name, 'mails'"),
        ({"orders": {"buckets": 4}}, r"lanes 'orders' need a key, .* got \{'buckets': 4\}"),
        (
            {"orders": {**TABLE, "weight": 3}},
            r"unknown 'weight' of lanes 'orders'; there are key, buckets, ordered, arg",
        ),
        (
            {"orders": {"key": "tenant"}},
            r"key of lanes 'orders' must be 'header:NAME' or 'property:NAME', got 'tenant'",
        ),
        (
            {"orders": {**TABLE, "buckets": 0}},
            r"buckets of lanes 'orders' must be a whole number from 1 to 1024, got 0",
        ),
        (5, r"queues must be a mapping of names to weights or a list of names, Queues and Lanes, got 5"),
    ],
)
def test_refused(queues: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        ConsumerSettings(URL, queues)


@given(st.lists(st.sampled_from(["a", "b", ORDERS, Queue("c"), Lanes("mails", key="header:tenant")]), unique_by=str))
def test_nothing_is_lost_or_added(queues: list[Any]) -> None:
    if not queues:
        with pytest.raises(ConfigurationError, match="at least one queue"):
            queues_and_lanes(queues)
        return
    found, lanes = queues_and_lanes(queues, 3)
    assert list(lanes) == [one for one in queues if isinstance(one, Lanes)]
    plain = [one if isinstance(one, str) else one.name for one in queues if not isinstance(one, Lanes)]
    assert list(found) == plain + [name for one in lanes for name in one.bucket_names]


@given(st.one_of(st.text(), st.binary(), st.integers()), st.integers(1, 64))
def test_messages_of_an_own_lane_come_back_to_a_bucket(tenant: Any, buckets: int) -> None:
    lanes = Lanes("orders", key="header:tenant", buckets=buckets)
    settings, own = ConsumerSettings(URL, lanes), lanes.own_lane_of(tenant)
    assert settings.home_of(own) in lanes.bucket_names
    if "#" not in own:  # else it is the bucket of a hash
        assert settings.home_of(own) == lanes.bucket_of(tenant)
    assert settings.home_of("orders.bucket.0") == "orders.bucket.0"
    assert settings.home_of("orders") == "orders"


def test_each_of_many_lanes_has_a_window() -> None:
    settings = ConsumerSettings(URL, Lanes("orders", key="header:tenant"), prefetch=50)
    assert sum(settings.windows.values()) == 50
    for number in range(64):
        settings = settings.with_queues({f"orders.tenant.{number}": Queue(f"orders.tenant.{number}", retry=False)})
    own = [window for name, window in settings.windows.items() if not settings.is_lasting(name)]
    assert own == [2] * 9 + [1] * 55
    assert sum(settings.windows.values()) == 123


def test_consumers_take_lanes() -> None:
    for kind in (Consumer, aio.Consumer):
        consumer = kind(URL, ORDERS, tenants={"gold": Tenant(weight=40)})
        assert consumer._client.settings.lanes == (ORDERS,)
        assert list(consumer.state.consuming) == BUCKETS


def test_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "fairsched.toml"
    file.write_text(
        f'url = "{URL}"\n[queues]\nplain = 2\n[queues.orders]\nkey = "header:tenant"\nbuckets = 4\n'
        'arguments = {"x-queue-type" = "quorum"}\n'
    )
    found = Settings.load(environ={}, file=file)
    hash(found)
    settings = ConsumerSettings(found.url, found.queues, **found.consumer_options())
    assert settings.lanes == (Lanes("orders", key="header:tenant", buckets=4, arguments={"x-queue-type": "quorum"}),)
    assert list(settings.queues) == ["plain", *BUCKETS]


def test_in_a_variable() -> None:
    text = '{"orders": {"key": "header:tenant", "buckets": "4", "ordered": "no"}}'
    found = Settings.load(environ={"FAIRSCHED_QUEUES": text, "FAIRSCHED_URL": URL})
    assert ConsumerSettings(found.url, found.queues).lanes == (ORDERS,)


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({"key": "header:tenant", "bucket": 4}, "unknown 'bucket' of lanes 'orders'; there are key, buckets"),
        ({"key": "header:tenant", "buckets": "many"}, "buckets of lanes 'orders' cannot be 'many'"),
        ({"ordered": True}, "lanes 'orders' need a key"),
    ],
)
def test_refused_in_a_file(table: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        Settings(queues={"orders": table})


def test_an_app_has_one_handler_for_all_lanes_of_a_name() -> None:
    app = App(URL)

    @app.consumer(ORDERS)
    def order(message: Any) -> str:
        return f"order {message.queue}"

    @app.consumer("plain", weight=2)
    def plain(message: Any) -> str:
        return "plain"

    fake, answers = FakeConsumer(), []
    for queue in ("orders.bucket.2", "orders.tenant.x", "plain", "other"):
        fake.put(queue=queue)
    fake.run(lambda message: answers.append(app.dispatch(message)))
    assert answers == ["order orders.bucket.2", "order orders.tenant.x", "plain"]
    assert [str(error) for _, error in fake.errors] == ["no handler for queue 'other'; there are ['orders', 'plain']"]
    assert app.weights == {"plain": 2}
    assert app.make_consumer()._client.settings.lanes == (ORDERS,)
    assert list(app.make_consumer(queues=["orders"])._client.settings.queues) == BUCKETS
    assert len(app.make_consumer(queues={"orders": {**TABLE, "buckets": 9}})._client.settings.queues) == 9
    with pytest.raises(ConfigurationError, match="lanes 'orders' have only key, buckets, ordered, arguments, got 3"):
        app.make_consumer(queues={"orders": 3})
    with pytest.raises(ConfigurationError, match="queue 'orders' has a handler already"):
        app.consumer(ORDERS)
    with pytest.raises(TypeError, match=r"pass weight to Lanes\(...\), not to consumer\(\)"):
        app.consumer(Lanes("mails", key="header:tenant"), weight=2)
