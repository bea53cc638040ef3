"""Settings: sources and their priority, checks and their messages, and what never shows a password."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import CoDel, Limit, Pool, Retry
from fairsched.config.consumer_options import OPTIONS, URL_VARIABLES
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.settings import Settings
from fairsched.errors import ConfigurationError, FairschedError

SECRET = "hunter2"

#: For each key: values by source (file, environment, argument) as each writes them, and what they become.
EXAMPLES: dict[str, dict[str, tuple[Any, Any]]] = {
    "url": {
        "file": (["amqp://file"], ("amqp://file",)),
        "environment": ("amqp://env-1, amqps://env-2", ("amqp://env-1", "amqps://env-2")),
        "argument": (("amqp://argument",), ("amqp://argument",)),
    },
    "queues": {
        "file": ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        "environment": ("gold=40, free=4", {"gold": 40, "free": 4}),
        "argument": (["x", "y"], ("x", "y")),
    },
    "prefetch": {"file": ({"a": 7}, {"a": 7}), "environment": ("a=8,b=9", {"a": 8, "b": 9}), "argument": (10, 10)},
    "target_delay": {"file": ("50ms", 0.05), "environment": ("0.2", 0.2), "argument": (0.3, 0.3)},
    "max_buffer_bytes": {"file": (1000, 1000), "environment": ("2_000", 2000), "argument": (3000, 3000)},
    "workers": {
        "file": ([{"size": 2}, {"size": 4, "priority": 10}], (Pool(4, priority=10), Pool(2))),
        "environment": ("2", 2),
        "argument": (3, 3),
    },
    "cost": {"file": ("bytes", "bytes"), "environment": ("TIME", "time"), "argument": ("constant", "constant")},
    "key": {
        "file": ("header:tenant", "header:tenant"),
        "environment": ("property:app_id", "property:app_id"),
        "argument": ("queue", "queue"),
    },
    "subkey": {
        "file": ("header:user", "header:user"),
        "environment": ("property:user_id", "property:user_id"),
        "argument": ("header:team", "header:team"),
    },
    "band": {
        "file": ("property:priority", "property:priority"),
        "environment": ("header:urgency", "header:urgency"),
        "argument": ("header:rank", "header:rank"),
    },
    "tenants": {
        "file": (
            {
                "acme": 5,
                "beta": {"weight": 2, "limit": {"rate": 2.5, "burst": 5}, "band": 0},
                "free": {"limit": "off"},
                "*": {"limit": 4},
            },
            {
                "acme": 5,
                "beta": {"weight": 2, "limit": Limit(rate=2.5, burst=5), "band": 0},
                "free": {"limit": False},
                "*": {"limit": Limit(4)},
            },
        ),
        "environment": ("acme=10, *=2", {"acme": 10, "*": 2}),
        "argument": ('{"t=1,": {"limit": "concurrency=4,rate=10/s"}}', {"t=1,": {"limit": Limit(4, rate="10/s")}}),
    },
    "limit": {
        "file": ({"concurrency": 12, "scope": "group"}, Limit(12, scope="group")),
        "environment": ("concurrency=4,rate=10/s", Limit(4, rate="10/s")),
        "argument": ("5", Limit(5)),
    },
    "sparse_boost": {"file": (True, True), "environment": ("on", True), "argument": (False, False)},
    "ordering_key": {
        "file": ("header:account", "header:account"),
        "environment": ("property:app_id", "property:app_id"),
        "argument": ("header:order", "header:order"),
    },
    "on_error": {
        "file": ("reject", "reject"),
        "environment": ("Requeue", "requeue"),
        "argument": ("requeue", "requeue"),
    },
    "retry": {
        "file": (
            {"max_attempts": 3, "backoff": ["500ms", 60], "jitter": False},
            {"max_attempts": 3, "backoff": (0.5, 60.0), "jitter": False},
        ),
        "environment": (
            "max_attempts=4,backoff=1s:5m,dead_letter=failed",
            {
                "max_attempts": 4,
                "backoff": (1.0, 300.0),
                "dead_letter": "failed",
            },
        ),
        "argument": ("3", {"max_attempts": 3}),
    },
    "codel": {
        "file": (
            {"target": "100ms", "interval": 1, "law": "linux", "requeue": False},
            {"target": 0.1, "interval": 1.0, "law": "linux", "requeue": False},
        ),
        "environment": ("target=50ms,min_backlog=0,budget=9", {"target": 0.05, "min_backlog": 0, "budget": 9}),
        "argument": ("20ms", {"target": 0.02}),
    },
    "shutdown_timeout": {"file": (5, 5.0), "environment": ("1.5s", 1.5), "argument": (0, 0.0)},
    "connect_timeout": {"file": ("200ms", 0.2), "environment": ("9", 9.0), "argument": (0.5, 0.5)},
    "share_group": {"file": ("g", "g"), "environment": ("off", "off"), "argument": ("h", "h")},
    "connection_name": {"file": ("a", "a"), "environment": ("b", "b"), "argument": ("c", "c")},
    "decode": {"file": ("json", "json"), "environment": ("off", "off"), "argument": ("JSON", "json")},
    "time_limit": {"file": ("30s", 30.0), "environment": ("off", "off"), "argument": (0.5, 0.5)},
    "health_port": {"file": (8080, 8080), "environment": ("off", "off"), "argument": ("0", 0)},
    "metrics_port": {"file": (9191, 9191), "environment": ("off", "off"), "argument": ("0", 0)},
    "queue_source": {
        "file": (
            {"pattern": "^a", "management": "http://h", "every": "10s", "weights": {"gold": 40, "*": 4}},
            {"pattern": "^a", "management": "http://h", "every": 10.0, "weights": {"gold": 40, "*": 4}},
        ),
        "environment": ("function=a.b:c,every=1s", {"function": "a.b:c", "every": 1.0}),
        "argument": ("queues.toml", {"file": "queues.toml"}),
    },
    "control": {"file": ("/a", "/a"), "environment": ("off", "off"), "argument": ("c", "c")},
    "log_level": {"file": ("debug", "debug"), "environment": ("WARNING", "warning"), "argument": ("error", "error")},
}
PRIORITY = ("file", "environment", "argument")


def toml(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return '"' + value.replace('"', '\\"') + '"' if isinstance(value, str) else str(value)


def load(directory: Path, **given: Any) -> Settings:
    """Load with an empty environment unless one is given, from `directory`."""
    return Settings.load(given.pop("arguments", None), environ=given.pop("environ", {}), directory=directory, **given)


def test_every_setting_has_an_example() -> None:
    assert set(EXAMPLES) == set(OPTIONS)


@given(data=st.data())
def test_later_sources_override_earlier_ones(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The whole matrix: any subset of sources for any subset of keys."""
    given_in = {key: data.draw(st.sets(st.sampled_from(PRIORITY)), label=key) for key in EXAMPLES}
    raw = {
        source: {key: EXAMPLES[key][source][0] for key, sources in given_in.items() if source in sources}
        for source in PRIORITY
    }
    directory = tmp_path_factory.mktemp("matrix")
    lines = [f"{key} = {toml(value)}\n" for key, value in raw["file"].items()]
    if data.draw(st.booleans(), label="pyproject"):
        (directory / "pyproject.toml").write_text("[tool.fairsched]\n" + "".join(lines), encoding="utf-8")
    else:
        (directory / "fairsched.toml").write_text("".join(lines), encoding="utf-8")
    environ = {f"FAIRSCHED_{key.upper()}": value for key, value in raw["environment"].items()}
    found = load(directory, environ=environ, arguments=raw["argument"])
    for key, sources in given_in.items():
        winner = max(sources, key=PRIORITY.index, default=None)
        if winner is None:
            assert getattr(found, key) in (None, ())
        else:
            assert getattr(found, key) == EXAMPLES[key][winner][1]
            assert winner in found.source(key)


@given(st.sets(st.sampled_from(URL_VARIABLES), min_size=1))
def test_our_url_variable_comes_first(names: set[str]) -> None:
    found = Settings.load(environ={name: f"amqp://{name.lower()}" for name in names}, directory="/nonexistent")
    first = min(names, key=URL_VARIABLES.index)
    assert found.url == (f"amqp://{first.lower()}",)
    assert found.source("url") == f"environment variable {first}"


def test_empty_variables_and_absent_arguments_say_nothing(tmp_path: Path) -> None:
    environ = {"FAIRSCHED_URL": "", "RABBITMQ_URL": "amqp://other", "FAIRSCHED_WORKERS": ""}
    found = load(tmp_path, environ=environ, arguments={"workers": None, "prefetch": None})
    assert found == Settings(url="amqp://other")  # type: ignore[arg-type]


def test_own_file_wins_over_pyproject_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fairsched]\nworkers = 1\n")
    assert load(tmp_path).workers == 1
    (tmp_path / "fairsched.toml").write_text("workers = 2\n")
    assert load(tmp_path).workers == 2


def test_a_pyproject_without_our_table_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert load(tmp_path) == Settings()
    with pytest.raises(ConfigurationError, match=r"has no table \[tool.fairsched\]"):
        load(tmp_path, file=tmp_path / "pyproject.toml")


def test_the_file_may_be_named_by_argument_or_environment(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("workers = 1\n")
    (tmp_path / "two.toml").write_text("workers = 2\n")
    environ = {"FAIRSCHED_CONFIG": str(tmp_path / "one.toml")}
    assert load(tmp_path, environ=environ).workers == 1
    assert load(tmp_path, environ=environ, file=tmp_path / "two.toml").workers == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"workers = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"queues = " + b"[" * 10_000, "is not valid TOML"),
        (b"workers = 0", r"workers must be a whole number of at least 1, or pools.*, got 0 \(file .*fairsched.toml\)"),
        (b"prefech = 1", r"unknown setting 'prefech' in file .*fairsched.toml: did you mean 'prefetch'\?"),
        (b"zzz = 1", "unknown setting 'zzz' in file .*: there are url, queues, prefetch"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "fairsched.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As editors of Windows write them."""
    (tmp_path / "fairsched.toml").write_bytes("workers = 2\n".encode("utf-8-sig"))
    assert load(tmp_path).workers == 2


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ("[queues]\norders.eu = 3", "orders.eu"),
        ("[queues]\norders.eu.x = 3", "orders.eu.x"),
        ("[queues]\nsmall = 1\norders.eu = {weight = 3}", "orders.eu"),
        ("[queues.orders.eu]\nweight = 3", "orders.eu"),
        ("[queues.orders]\nweight = 3\neu = 4", "orders.eu"),
        ("[tenants]\na.b.c = 3", "a.b.c"),
        ("[tenants]\na.b.limit = 4", "a.b"),
        ("[tenants.a.b.limit]\nrate = '3/s'", "a.b"),
        ("[tenants]\na.b.band = 3", "a.b"),
        ("[prefetch]\na.b = 3", "a.b"),
    ],
)
def test_names_with_dots_are_to_be_quoted(tmp_path: Path, content: str, quoted: str) -> None:
    (tmp_path / "fairsched.toml").write_text(content)
    with pytest.raises(ConfigurationError) as refusal:
        load(tmp_path)
    assert str(refusal.value).endswith(f'. If the name has dots, quote it in TOML: "{quoted}"')
    if quoted in content:
        (tmp_path / "fairsched.toml").write_text(content.replace(quoted, f'"{quoted}"'))
        load(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file"):
        load(tmp_path, file=tmp_path / "none.toml")


def test_a_bad_value_is_an_error_also_where_it_is_overridden(tmp_path: Path) -> None:
    (tmp_path / "fairsched.toml").write_text("workers = -1\n")
    with pytest.raises(ConfigurationError, match=r"got -1 \(file"):
        load(tmp_path, arguments={"workers": 1})


BAD = [
    ("url", "http://broker", "start with amqp:// or amqps://"),
    ("url", (), None),
    ("url", "amqp://broker:99999/", "not understood"),
    ("url", "amqp://a amqp://a", "one or more URLs"),
    ("queues", {}, "different names of queues"),
    ("queues", {"a": 0}, "at least 1"),
    ("queues", "a=1,a=2", "different names"),
    ("queues", "a,,b", "names"),
    ("queues", "a=1,b", "at least 1"),
    ("queues", ["a", "a"], "different names"),
    ("queues", 7, "names"),
    ("queues", '{"a": tru', "names"),
    ("prefetch", 0, "at least 1"),
    ("prefetch", True, "at least 1"),
    ("prefetch", 2.5, "at least 1"),
    ("prefetch", {"a": 65_536}, "from 1 to 65535"),
    ("prefetch", "automatic", "'auto', a whole number"),
    ("target_delay", -1, "such as 100us"),
    ("max_buffer_bytes", 0, "at least 1"),
    ("workers", "many", "at least 1"),
    ("workers", "4:10,", "at least 1"),
    ("workers", "4:high", "at least 1"),
    ("workers", "-1:0", "at least 1"),
    ("workers", [], "at least 1"),
    ("workers", [4, 2], "at least 1"),
    ("workers", [{"size": 4, "prio": 1}], "a size of at least 1 and a priority"),
    ("workers", [{"size": 0}], "got 0"),
    ("workers", {"size": 1, "priority": 2**31}, "-2**31 to 2**31 - 1"),
    ("cost", "price", "one of constant, bytes, time"),
    ("key", "tenant", "'header:NAME'"),
    ("key", "property:tenant", "no such property"),
    ("subkey", "queue", "'header:NAME'"),
    ("subkey", "property:user", "no such property"),
    ("band", "property:app_id", "'property:priority' or 'header:NAME'"),
    ("band", "header:", "'property:priority' or 'header:NAME'"),
    ("band", 3, "'property:priority' or 'header:NAME'"),
    ("ordering_key", "queue", "'header:NAME'"),
    ("ordering_key", "property:account", "no such property"),
    (
        "tenants",
        ["a"],
        "names of tenants with weights (whole numbers of at least 1) or with tables of weight, limit, band",
    ),
    ("tenants", {"*": float("nan")}, "at least 1"),
    ("on_error", "dead-letter", "one of requeue, reject, got"),
    ("shutdown_timeout", "5 weeks", "such as 100us, 4ms or 1.5s"),
    ("shutdown_timeout", -1, "such as 100us"),
    ("decode", "xml", "'off', or one of json"),
    ("time_limit", 0, "positive"),
    ("connect_timeout", 0, "positive"),
    ("health_port", 65536, "a port, 0 to 65535"),
    ("health_port", "http", "'off', or a port"),
    ("metrics_port", -1, "a port, 0 to 65535"),
    ("log_level", "loud", "one of debug, info, warning, error, critical"),
]


@pytest.mark.parametrize(("key", "value", "rule"), BAD)
def test_bad_values_name_key_value_source_and_rule(key: str, value: Any, rule: str | None) -> None:
    if rule is None:  # an empty tuple says nothing
        assert Settings(**{key: value}) == Settings()
        return
    with pytest.raises(ConfigurationError) as caught:
        Settings(**{key: value})
    text = str(caught.value)
    assert text.startswith(f"{key} must be ")
    assert rule in text
    assert f"got {value!r}" in text
    assert f"(argument {key})" in text
    assert isinstance(caught.value, FairschedError | ValueError)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("FAIRSCHED_PREFECH", "did you mean 'FAIRSCHED_PREFETCH'"), ("FAIRSCHED_XYZZY", "there are FAIRSCHED_URL")],
)
def test_unknown_variables(tmp_path: Path, name: str, suggestion: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting '{name}' in the environment: {suggestion}"):
        load(tmp_path, environ={name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "FAIRSCHED_SANITIZE",
        "FAIRSCHED_TRACE",
        "FAIRSCHED_PROBE",
        "FAIRSCHED_SERVICE_HOST",
        "FAIRSCHED_SERVICE_PORT_METRICS",
        "FAIRSCHED_PORT",
        "FAIRSCHED_PORT_9191_TCP",
        "FAIRSCHED_PORT_9191_TCP_ADDR",
        "FAIRSCHED_WORKER_SERVICE_HOST",
        "FAIRSCHED_WORKER_PORT_80_TCP_PROTO",
    ],
)
def test_variables_that_belong_to_others_are_left_alone(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, environ={name: "x"}) == Settings()


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("4", 4),
        ("4:10,2:0", (Pool(4, priority=10), Pool(2))),
        (" 2 , 4 : 10 ", (Pool(4, priority=10), Pool(2))),
        ("1:-5", (Pool(1, priority=-5),)),
        ('[{"size": 4, "priority": 10}, {"size": 2}]', (Pool(4, priority=10), Pool(2))),
        ('{"size": 3}', (Pool(3),)),
    ],
)
def test_pools_as_text(text: str, pools: object) -> None:
    assert Settings(workers=text).workers == pools  # type: ignore[arg-type]


def test_unknown_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown setting 'threads' in arguments"):
        load(tmp_path, arguments={"threads": 1})


@given(st.sampled_from(sorted(EXAMPLES)), st.sampled_from(PRIORITY))
def test_checked_values_pass_their_own_check_unchanged(key: str, source: str) -> None:
    checked = OPTIONS[key].kind.read(EXAMPLES[key][source][0])
    assert OPTIONS[key].kind.read(checked) == checked == EXAMPLES[key][source][1]


def everything() -> Settings:
    """One of each, with a password in the URLs."""
    settings = {key: example["argument"][0] for key, example in EXAMPLES.items()}
    urls = [f"amqp://app:{SECRET}@one/%2F", f"amqps://app:{SECRET}@two:5671/vhost?heartbeat=30"]
    return Settings(**{**settings, "url": urls})


def test_frozen_hashable_and_picklable() -> None:
    settings = everything()
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(pickle.loads(pickle.dumps(settings))) == hash(settings)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.workers = 9  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.tenants["u"] = 9  # type: ignore[index]
    assert dataclasses.replace(settings, workers=9).workers == 9


def test_no_password_in_representation_or_errors() -> None:
    assert SECRET not in repr(everything())
    assert "amqp://app:******@one/%2F" in repr(everything())
    for bad in (
        f"http://app:{SECRET}@one",
        f"amqp://app:{SECRET}@one:port",
        f"amqp://app:x{SECRET}@@{SECRET}@one:1:2",
        [f"amqp://app:{SECRET}@one", f"http://app:{SECRET}@two"],
        {"amqp": f"amqp://app:{SECRET}@one"},
    ):
        with pytest.raises(ConfigurationError) as caught:
            Settings(url=bad)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(caught.value)
        assert caught.value.__cause__ is None


def test_consumer_options_are_what_was_set() -> None:
    assert Settings(url="amqp://x", queues=["a"], log_level="info").consumer_options() == {}  # type: ignore[arg-type]
    options = everything().consumer_options()
    assert repr(options.pop("codel")) == repr(CoDel(0.02))
    assert options == {
        "prefetch": 10,
        "limit": Limit(5),
        "target_delay": 0.3,
        "max_buffer_bytes": 3000,
        "workers": 3,
        "cost": "constant",
        "key": "queue",
        "subkey": "header:team",
        "band": "header:rank",
        "tenants": {"t=1,": {"limit": Limit(4, rate="10/s")}},
        "share_group": "h",
        "sparse_boost": False,
        "ordering_key": "header:order",
        "on_error": "requeue",
        "retry": Retry(3),
        "shutdown_timeout": 0.0,
        "connect_timeout": 0.5,
        "connection_name": "c",
        "decode": "json",
        "time_limit": 0.5,
    }
    assert type(everything().consumer_options()["tenants"]) is dict


def test_prefetch_by_measuring() -> None:
    for text in ("auto", " Auto "):
        assert Settings(prefetch=text).consumer_options() == {"prefetch": "auto"}


def test_the_table_of_codel_becomes_a_law() -> None:
    text = "target=50ms, interval=1s, min_backlog=2, max_returns=5, law=linux, requeue=off, budget=7, when_alone=TRUE"
    settings = Settings(codel=text)
    options = settings.consumer_options()
    law = CoDel(0.05, 1.0, min_backlog=2, max_returns=5, law="linux", requeue=False, budget=7, when_alone=True)
    assert repr(options.pop("codel")) == repr(law)
    assert options == {}
    found = pickle.loads(pickle.dumps(settings))
    assert found == settings
    assert hash(found) == hash(settings)


@pytest.mark.parametrize("key", ["codel", "ordering_key", "subkey", "band", "max_buffer_bytes"])
def test_off_overrides_what_an_earlier_source_switched_on(tmp_path: Path, key: str) -> None:
    (tmp_path / "fairsched.toml").write_text(f"{key} = {toml(EXAMPLES[key]['file'][0])}\n")
    assert load(tmp_path, environ={}).consumer_options()[key] is not None
    assert load(tmp_path, environ={f"FAIRSCHED_{key.upper()}": " Off "}).consumer_options() == {key: None}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", "limit of tenant 'acme' cannot be 'many'"),
        ("0", "limit of tenant 'acme' cannot be '0'"),
        ({"concurrency": 3, "codel": 1}, "unknown 'codel'; there are concurrency, rate, burst"),
        ("rate=10/y", "rate of a limit must be a number of messages a second"),
        ({"burst": 2}, "a limit needs a concurrency or a rate"),
        ("concurrency=2,burst=2", "burst of a limit needs a rate"),
    ],
)
def test_refused_limits(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings(tenants={"acme": {"limit": value}})


def test_refused_bands() -> None:
    for value in ("first", 8, -1, True, 1.5):
        with pytest.raises(ConfigurationError, match=f"band of tenant 'acme' cannot be {value!r}"):
            Settings(tenants={"acme": {"band": value}})
    with pytest.raises(
        ConfigurationError, match=r"band of tenant '\*' must be None, got 3: tenants without one have band 4"
    ):
        Settings(tenants={"*": {"band": 3}})
    with pytest.raises(ConfigurationError, match="band of queue 'gold' cannot be 8"):
        Settings(queues={"gold": {"band": 8}})


def test_refused_tenants() -> None:
    for value in ("acme", ["acme"], {"acme": "many"}, {"acme": True}, 3, {}, "acme=1,acme=2"):
        with pytest.raises(ConfigurationError, match="tenants must be names of tenants with weights"):
            Settings(tenants=value)
    with pytest.raises(ConfigurationError, match="unknown 'wait' of tenant 'acme'; there are weight, limit, band"):
        Settings(tenants={"acme": {"wait": 3}})
    with pytest.raises(ConfigurationError, match=r'quote it in TOML: "acme\.eu"'):
        Settings(tenants={"acme": {"eu": 3}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("soon", "codel must be 'off', or a duration, or a table of target, interval"),
        ("0", "codel must be 'off', or a duration, or a table"),
        (True, "codel must be 'off', or a duration, or a table"),
        ({"target": "5ms", "limit": 3}, "unknown 'limit'; there are target, interval"),
        ("target=5ms,law=codel", "law must be one of 'rfc'"),
        ("target=5ms,requeue=maybe", "codel must be 'off', or a duration, or a table of target, interval"),
        ("target=5ms,budget=-1", "codel must be 'off', or a duration, or a table of target, interval"),
        (f"budget={2**62}", "budget must be an integer of 0 or more, of at most"),
        ({"min_backlog": 2**62}, "min_backlog must be an integer of 0 or more, of at most"),
        ("target=5ms,return=no", "unknown 'return'; there are target, interval"),
        ("target=1500us,law=queueing-consumer", "target must be a whole number of milliseconds"),
        ("min_backlog=-1", "codel must be"),
    ],
)
def test_refused_tables_of_codel(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings(codel=value)


def test_the_module_does_not_load_pika() -> None:
    code = (
        "import sys, types, pathlib, importlib.util as u\n"
        "package = types.ModuleType('fairsched')\n"
        "package.__path__ = [str(pathlib.Path(u.find_spec('fairsched').origin).parent)]\n"
        "sys.modules['fairsched'] = package\n"
        "import fairsched.config\n"
        "assert 'pika' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.dictionaries(st.text(), st.integers()))
def test_frozen_mapping_behaves_as_its_content(content: dict[str, int]) -> None:
    frozen = FrozenMapping(content)
    assert frozen == content == dict(frozen)
    assert repr(frozen) == repr(content)
    assert len(frozen) == len(content)
    assert hash(frozen) == hash(FrozenMapping(reversed(list(content.items()))))
    assert pickle.loads(pickle.dumps(frozen)) == frozen
