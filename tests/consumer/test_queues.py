"""Options of a queue, in Python, in a file and in a variable."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairsched import App, ConfigurationError, Queue, Retry
from fairsched.config.queues import as_queues
from fairsched.config.settings import Settings
from fairsched.consumer.declarations import Declaration, wanted_queues
from fairsched.consumer.settings import ConsumerSettings


def settings(queues: Any, **options: Any) -> ConsumerSettings:
    return ConsumerSettings("amqp://localhost", queues, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"name": ""}, "1 to 255 bytes"), ({"name": 5}, "1 to 255 bytes"),
        ({"name": "\ud800"}, "1 to 255 bytes"), ({"dead_letter": "\ud800"}, "1 to 255 bytes"),
        ({"bind": ["\ud800"]}, "at most 255 bytes"), ({"bind": [("e", "x" * 256)]}, "at most 255 bytes"),
        ({"weight": 0}, "weight of 'q' must be .* got 0"), ({"weight": 1.5}, "got 1.5"), ({"weight": True}, "got True"),
        ({"time_limit": 0}, "time_limit of queue 'q' must be a positive number"), ({"time_limit": True}, "got True"),
        ({"time_limit": float("nan")}, "got nan"), ({"time_limit": "5s"}, "got '5s'"),
        ({"time_limit": 10**400}, "a positive number of seconds"),
        ({"prefetch": 0}, "prefetch of queue 'q'"),
        ({"prefetch": 65_536}, "1 to 65535"), ({"prefetch": True}, "prefetch"),
        ({"on_error": "drop"}, "one of requeue"),
        ({"on_error": 5}, "on_error"), ({"retry": 5}, "a fairsched.Retry or False"), ({"retry": True}, "retry"),
        ({"retry": Retry(), "on_error": "reject"}, "has retry and on_error"), ({"durable": "yes"}, "True or False"),
        ({"arguments": [1]}, "arguments"), ({"arguments": {1: 2}}, "arguments"), ({"bind": "events"}, "a list of"),
        ({"bind": [5]}, "names of exchanges"), ({"bind": [("a", "b", {}, 4)]}, "names of"),
        ({"bind": [()]}, "names of"),
        ({"bind": [("", "k")]}, "names of exchanges"), ({"bind": [("e", 5)]}, "names of"),
        ({"dead_letter": ""}, "1 to 255"),
        ({"dead_letter": "q"}, "another queue"), *(({"priority": bad}, r"-2\*\*31 to") for bad in (2**31, "high")),
        ({"dead_letter": "d", "arguments": {"x-dead-letter-exchange": "e"}}, "which are given too"),
        ({"exclusive": 1, "prefetch": 5}, "True or False"), ({"exclusive": True}, "exclusive .* needs prefetch"),
        ({"offset": "first"}, "offset .* needs prefetch"), ({"offset": "begin", "prefetch": 5}, "one of first"),
        ({"offset": -1, "prefetch": 5}, "at least 0"), ({"offset": "first", "prefetch": 5, "retry": Retry()}, "stream"),
        ({"arguments": {"x-queue-type": "stream"}, "retry": Retry()}, "by its arguments: streams have no retry"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Queue(**{"name": "q", **options})


def test_an_on_error_beside_a_retry_is_for_the_queues_without_one() -> None:
    app = App("amqp://localhost", retry=Retry(), on_error="reject")
    app.consumer("a")(print)
    app.consumer(Queue("b", retry=False))(print)
    for chosen, retried in ((None, {"a"}), (["a"], {"a"}), (["b"], set())):  # a worker of some of the queues starts too
        found = settings(app._selected(chosen), **app.options)
        assert found.retries.keys() == retried
        assert found.options.on_error == "reject"


def test_what_a_queue_says_goes_before_what_the_consumer_says() -> None:
    def own(message: Any, error: Exception) -> None:
        pass

    every, other = Retry(2), Retry(9)
    found = settings(
        [
            "a", Queue("b", weight=4, prefetch=7), Queue("c", on_error="reject"), Queue("d", on_error=own),
            Queue("e", retry=False), Queue("f", retry=other), Queue("g", dead_letter="g-dead"),
        ],
        prefetch=100, retry=every,
    )  # fmt: skip
    assert found.windows["b"] == 7
    assert sum(found.windows.values()) - 7 < 100
    assert found.policies == {"c": "reject", "d": own}
    assert found.retries["a"] == every
    assert found.retries["f"] == other
    assert found.retries["g"] == Retry(2, dead_letter="g-dead")
    assert set(found.retries) == {"a", "b", "f", "g"}
    assert found.quanta["b"] == 4 * found.quanta["a"]


def test_a_queue_has_its_own_time_limit_or_none() -> None:
    queues = ["a", Queue("b", time_limit=3), Queue("c", time_limit=False)]
    assert settings(queues, time_limit=20.0).time_limits == {"a": 20, "b": 3}
    assert settings(queues).time_limits == {"b": 3}
    assert settings(["a", Queue("c", time_limit=False)]).time_limits == {}


def test_a_prefetch_of_its_own_is_not_for_auto() -> None:
    with pytest.raises(ConfigurationError, match='prefetch="auto" is for all queues, but b has'):
        settings(["a", Queue("b", prefetch=5)], prefetch="auto")


def test_which_queues_are_declared_with_what() -> None:
    queues = as_queues(
        [
            "a", Queue("b", weight=3), Queue("c", durable=True),
            Queue("d", durable=False, arguments={"x": [1, {"y": 2}]}),
            Queue("e", bind=["events", ("topics", "e.*"), ("headers", "", {"h": 1})], dead_letter="e-dead"),
        ]
    )  # fmt: skip
    assert wanted_queues(queues) == [
        Declaration("c", "queue 'c' is to be declared", bindings=[]),
        Declaration("d", "queue 'd' is to be declared", {"x": [1, {"y": 2}]}, durable=False, bindings=[]),
        Declaration("e-dead", "queue 'e' is to be declared with 'e-dead'", if_missing=True),
        Declaration(
            "e", "queue 'e' is to be declared", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "e-dead"},
            bindings=[("events", "", {}), ("topics", "e.*", {}), ("headers", "", {"h": 1})],
        ),
    ]  # fmt: skip


def test_how_a_queue_is_consumed() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert Queue("q").consumer_arguments == {}
    assert Queue("q", priority=-3).consumer_arguments == {"x-priority": -3}
    assert Queue("q", prefetch=1, offset=moment).consumer_arguments == {"x-stream-offset": moment}


TABLE = """
[queues]
free = 4

[queues.gold]
weight = 40
prefetch = 100
time_limit = "1m"
retry = {max_attempts = 3, backoff = ["1s", "1m"]}
durable = true
arguments = {x-queue-type = "quorum"}
bind = ["all", ["topics", "gold.*"]]
dead_letter = "gold.failed"
"""
JSON = (
    '{"free": 4, "gold": {"weight": "40", "prefetch": 100, "retry": "max_attempts=3,backoff=1s:1m", "durable": "yes", '
    '"time_limit": 60, "arguments": {"x-queue-type": "quorum"}, "bind": ["all", ["topics", "gold.*"]], '
    '"dead_letter": "gold.failed"}}'
)
GOLD = Queue(
    "gold", weight=40, prefetch=100, time_limit=60, retry=Retry(3, backoff=(1, 60)), durable=True,
    arguments={"x-queue-type": "quorum"}, bind=["all", ("topics", "gold.*")], dead_letter="gold.failed",
)  # fmt: skip


def test_a_file_and_a_variable_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "fairsched.toml").write_text(TABLE)
    for found in (
        Settings.load(environ={}, directory=tmp_path),
        Settings.load(environ={"FAIRSCHED_QUEUES": JSON}),
        Settings.load({"queues": JSON}, environ={}),
    ):
        assert as_queues(found.queues) == {"free": Queue("free", weight=4), "gold": GOLD}
        assert pickle.loads(pickle.dumps(found)) == found
        assert hash(found) == hash(pickle.loads(pickle.dumps(found)))
        assert Settings(queues=found.queues) == found


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"q": {"wait": 5}}, "unknown 'wait' of queue 'q'; there are weight, prefetch"),
        ({"q": {"prefetch": 0}}, "prefetch of queue 'q' cannot be 0"),
        ({"q": {"time_limit": "soon"}}, "time_limit of queue 'q' cannot be 'soon'"),
        ({"q": {"on_error": "drop"}}, "on_error of queue 'q' must be one of"),
        ({"q": {"retry": "attempts=3"}}, "retry of queue 'q' cannot be 'attempts=3': unknown 'attempts'"),
        ({"q": {}, "": {}}, "queues must be"),
    ],
)
def test_a_table_that_is_wrong_is_refused(table: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Settings(queues=table)


def test_an_app_has_its_queues_and_what_overrides_them() -> None:
    app = App("amqp://localhost")
    app.consumer("gold", weight=40, prefetch=10, on_error="reject")(print)
    app.consumer(Queue("free", weight=4))(print)
    assert app.weights == {"gold": 40, "free": 4}
    assert app._selected(None)["gold"] == Queue("gold", weight=40, prefetch=10, on_error="reject")
    assert app._selected(["gold"]) == {"gold": app.queues["gold"]}
    assert app._selected({"gold": 7})["gold"] == Queue("gold", weight=7, prefetch=10, on_error="reject")
    found = app._selected({"gold": {"prefetch": 5}, "free": Queue("free", durable=True)})
    assert found["gold"] == Queue("gold", weight=40, prefetch=5, on_error="reject")
    assert found["free"] == Queue("free", durable=True)
    with pytest.raises(TypeError, match="did you mean 'prefetch'"):
        app.consumer("other", prefech=5)
    with pytest.raises(TypeError, match=r"pass weight to Queue\(...\), not to consumer\(\)"):
        app.consumer(Queue("other"), weight=5)
    with pytest.raises(ConfigurationError, match="queue 'gold' has a handler already"):
        app.consumer(Queue("gold"))


@pytest.mark.parametrize(
    ("queues", "match"),
    [
        ({"a": Queue("b")}, "queue 'b' stands under another name, 'a'"),
        ({"a": {"wait": 1}}, "unknown 'wait' of queue 'a'; there are weight, "),
        (["a", Queue("a")], "queues must differ"),
    ],
)
def test_queues_that_cannot_be(queues: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        as_queues(queues)


@pytest.mark.parametrize("weight", [2**70, 10**400])
def test_a_weight_that_the_engine_cannot_count_is_refused(weight: int) -> None:
    with pytest.raises(ConfigurationError, match="weight of 'a' is too large"):
        settings({"a": weight, "b": 1})


@pytest.mark.parametrize("name", ["\ud800", "x" * 256, "", 5])
def test_a_queue_for_dead_letters_has_a_name_of_255_bytes_at_most(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="dead_letter must be the name of a queue"):
        Retry(dead_letter=name)
