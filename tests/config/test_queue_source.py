"""Sources of queues: what they may be, and what an answer may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairsched import App, ConfigurationError, Consumer, Queue, QueueSource
from fairsched.config.queue_source import without_source
from fairsched.consumer.settings import ConsumerSettings

URL = "amqp://guest:guest@localhost/"


def answered(source: QueueSource) -> dict[str, Queue]:
    return source.read(source.answer())


def test_a_function_answers_what_a_consumer_takes() -> None:
    assert answered(QueueSource(lambda: ["a", Queue("b", weight=2)])) == {"a": Queue("a"), "b": Queue("b", weight=2)}
    assert answered(QueueSource(lambda: {"a": 3})) == {"a": Queue("a", weight=3)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("queues.json", '["a", "b"]'),
        ("queues.json", '{"a": 1, "b": {"weight": 1}}'),
        ("queues.toml", 'queues = ["a", "b"]'),
        ("queues.toml", "[queues]\na = 1\n[queues.b]\nweight = 1\n"),
    ],
)
def test_a_file_has_the_queues(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert answered(QueueSource(path)) == {"a": Queue("a"), "b": Queue("b")}


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("queues.json", "[", "is not valid JSON"),
        ("queues.json", "[" * 100_000, "is not valid JSON"),
        ("queues.json", "[]", "at least one queue is needed"),
        ("queues.json", '"a"', "queues must be a mapping"),
        ("queues.json", None, "cannot be read"),
        ("queues.toml", "a = 1", "must have 'queues' and nothing else, got \\['a'\\]"),
        ("queues.toml", "=", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_list_of_queues_is_an_error(tmp_path: Path, name: str, text: str | None, rule: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=rule):
        answered(QueueSource(path))


@pytest.mark.parametrize("source", ["queues.json", 5, None, ["a"]])
def test_a_source_is_a_function_or_a_path(source: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a function or a pathlib\.Path, got"):
        QueueSource(source)


@pytest.mark.parametrize("every", [0, -1, 0.001, float("nan"), float("inf"), "5", True, None])
def test_every_is_a_number_of_seconds(every: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"every must be a number of seconds from 0\.01 to 86400, got"):
        QueueSource(list, every)


def test_a_source_beside_queues(tmp_path: Path) -> None:
    source = QueueSource(list)
    assert without_source(["a", source, "b"]) == (["a", "b"], source)
    assert without_source([source]) == without_source(source) == (None, source)
    assert without_source(list) == (None, source)
    assert without_source(tmp_path) == (None, QueueSource(tmp_path))
    assert without_source({"a": 1}) == ({"a": 1}, None)
    with pytest.raises(ConfigurationError, match="one source of queues, got 2"):
        without_source([source, list])


def test_settings_without_queues_need_a_source() -> None:
    settings = ConsumerSettings(URL, QueueSource(list), prefetch=20)
    assert (settings.queues, settings.windows, settings.quanta) == ({}, {}, {})
    with pytest.raises(ConfigurationError, match="at least one queue"):
        ConsumerSettings(URL, [])
    for prefetch in (0, {"a": 1}, "none"):
        with pytest.raises(ConfigurationError, match="prefetch"):
            ConsumerSettings(URL, QueueSource(list), prefetch=prefetch)


def test_a_coroutine_is_no_source_of_a_blocking_consumer() -> None:
    async def queues() -> list[str]:
        return ["a"]

    with pytest.raises(ConfigurationError, match=r"for fairsched\.aio\.Consumer"):
        Consumer(URL, queues)


def test_an_app_has_one_source() -> None:
    app = App(URL)
    app.consumer(QueueSource(list))(print)
    with pytest.raises(ConfigurationError, match="an app has one source"):
        app.consumer(QueueSource(list))
    with pytest.raises(TypeError, match=r"pass weight to QueueSource\(...\)"):
        app.consumer(QueueSource(list), weight=2)
