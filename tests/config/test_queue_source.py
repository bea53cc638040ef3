"""Sources of queues: what they may be, and what an answer may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairsched import App, ConfigurationError, Consumer, Queue, QueueSource
from fairsched.config.queue_source import without_source
from fairsched.config.settings import Settings
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
        ("queues.json", '{"a": 1, "b": 2, "a": 3}', "names in an object of JSON must differ, got 'a' more than once"),
        ("queues.json", '{"a": {"weight": 1, "weight": 2}}', "got 'weight' more than once"),
        ("queues.json", '["b", "a", "a"]', "queues must differ, got 'a' more than once"),
        ("queues.toml", 'queues = ["a", "b", "b"]', "queues must differ, got 'b' more than once"),
        ("queues.toml", "[queues]\na = 1\na = 2\n", "is not valid TOML.*Cannot overwrite a value"),
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


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"gold": 40, "^a": 7, "*": 4}, {"a.gold": 40, "a.b": 7, "c": 4}),
        ({"gold": 40}, {"a.gold": 40, "a.b": 1, "c": 1}),
        (len, {"a.gold": 6, "a.b": 3, "c": 1}),
    ],
    ids=["others", "none", "function"],
)
def test_queues_without_a_weight_have_that_of_a_rule(weights: Any, found: dict[str, int]) -> None:
    queues = answered(QueueSource(lambda: [*found], weights=weights))
    assert {name: queue.weight for name, queue in queues.items()} == found
    tables = answered(QueueSource(lambda: {name: {"prefetch": 5} for name in found}, weights=weights))
    assert {name: (queue.weight, queue.prefetch) for name, queue in tables.items()} == {
        name: (weight, 5) for name, weight in found.items()
    }
    said = answered(QueueSource(lambda: {"a": 2, "b": {"weight": 3}}, weights=weights))
    assert [queue.weight for queue in said.values()] == [2, 3]


def test_a_queue_with_options_has_its_own_weight() -> None:
    assert answered(QueueSource(lambda: [Queue("a"), "b"], weights={"*": 9})) == {
        "a": Queue("a"),
        "b": Queue("b", weight=9),
    }


@pytest.mark.parametrize(
    ("weights", "rule"),
    [
        ({"[": 1}, "a name in weights must be a regular expression, got '\\['"),
        ({"": 1}, "a name in weights must be a regular expression, got ''"),
        ({5: 1}, "a name in weights must be a regular expression, got 5"),
        ({"a": 0}, "weight of 'a' must be a whole number of at least 1, got 0"),
        ({"*": "4"}, "weight of '\\*' must be a whole number of at least 1, got '4'"),
        (4, "weights must be a mapping of regular expressions to weights, or a function, got 4"),
    ],
)
def test_a_rule_that_is_none(weights: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        QueueSource(lambda: ["a"], weights=weights)


@pytest.mark.parametrize("weight", [0, 1.5, None, True])
def test_a_function_that_returns_no_weight(weight: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"weight of 'a' must be a whole number of at least 1, got {weight}"):
        answered(QueueSource(lambda: ["a"], weights=lambda _name: weight))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("[", "http://h"), "the pattern of a source of queues must be a regular expression, got '\\['"),
        (("", "http://h"), "must be a regular expression, got ''"),
        ((b"a", "http://h"), "must be a regular expression, got b'a'"),
        (("a", "h:15672"), "management must be a URL such as"),
        (("a", "ftp://h"), "management must be a URL such as"),
        (("a", "http://"), "management must be a URL such as"),
        (("a", "http://h?x=1"), "management must be a URL such as"),
        (("a", None), "management must be a URL such as .*, got 'None'"),
        (("a", "http://me:secret@h:port"), "management must be a URL such as"),
    ],
)
def test_a_pattern_or_an_address_that_is_none(arguments: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as found:
        QueueSource.matching(*arguments)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": True}, {"timeout": 601}, {"vhost": ""}, {"every": 0}])
def test_an_option_of_a_pattern_out_of_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(options))}.* must be"):
        QueueSource.matching("a", "http://h", **options)


def test_no_password_is_shown() -> None:
    source = QueueSource.matching("^a", "https://me:secret@h/proxy/api/")
    assert "secret" not in f"{source} {source!r}"
    assert str(source) == "pattern '^a' at https://h:15671/proxy"


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ({}, "a source has one of file, pattern, function, got none of them"),
        ({"file": "a", "function": "a:b"}, "a source has one of file, pattern, function, got file, function"),
        ({"pattern": "a"}, "a pattern needs management"),
        ({"pattern": "[", "management": "http://h"}, "must be a regular expression"),
        ({"file": "a", "management": "http://h"}, "management is for a pattern, not for a file"),
        ({"function": "a:b", "timeout": 3}, "timeout is for a pattern, not for a function"),
        ({"function": "a.b"}, "function must be MODULE:FUNCTION"),
        ({"file": ""}, "file must be text that is not empty"),
        ({"file": "a", "every": "0s"}, "every must be a number of seconds"),
        ({"file": "a", "weights": {"[": 1}}, "a name in weights must be a regular expression"),
        ({"file": "a", "weightz": {"a": 1}}, "unknown 'weightz'"),
        ({"pattern": "a", "management": "ftp://me:secret@h"}, "management must be a URL such as"),
    ],
)
def test_a_table_that_is_no_source(table: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match="queue_source must be .*" + rule) as found:
        Settings(queue_source=table)
    assert "secret" not in str(found.value)


def test_a_table_shows_no_password() -> None:
    settings = Settings(queue_source={"pattern": "^a", "management": "http://me:secret@h"})
    assert "secret" not in repr(settings)
    assert settings.queue_source == {"pattern": "^a", "management": "http://me:secret@h"}


def test_the_source_of_an_app_is_replaced() -> None:
    app, replacement = App(URL), QueueSource(lambda: ["c"])
    with pytest.raises(ConfigurationError, match="no handler for the queues of"):
        app.make_consumer(source=replacement)
    app.consumer("a")(print)
    app.consumer(QueueSource(lambda: ["b"]))(print)
    for queues in (None, ["a"]):
        assert app.make_consumer(source=replacement, queues=queues)._client.settings.source is replacement
