"""A pipeline's file: what it may say, and what is said of what it may not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fairsched.errors import ConfigurationError
from fairsched.spark.pipeline.settings import PipelineSettings, read_pipeline
from fairsched.spark.source.options import source_options

WHOLE = """
[source]
url = "amqp://app:secret@broker/"
queues = { gold = 10, free = 1 }
spoolLocation = "/shared/spool"
maxMessagesPerTrigger = 5000
includeHeaders = true

[partition]
key = "routing_key"
members = { "shard-0" = 1, "shard-1" = 2 }
points = 128

[transform]
function = "orders.clean:enrich"
schema = "id long, body binary"

[sink]
format = "parquet"
path = "out"
checkpointLocation = "checkpoint"
partitionBy = ["queue"]
trigger = "10s"

[spark]
"spark.sql.shuffle.partitions" = 4
"""

LEAST = """
[source]
queues = ["a", "b"]
[sink]
format = "rabbitmq"
checkpointLocation = "checkpoint"
"""


def read(tmp_path: Path, text: str, **environ: str) -> PipelineSettings:
    file = tmp_path / "pipeline.toml"
    file.write_text(text, encoding="utf-8")
    return read_pipeline(file, environ)


def test_a_whole_file(tmp_path: Path) -> None:
    settings = read(tmp_path, WHOLE)
    assert settings.quanta == {"gold": 10, "free": 1}
    assert settings.source == {
        "url": "amqp://app:secret@broker/", "queues": '{"gold": 10, "free": 1}', "spoolLocation": "/shared/spool",
        "maxMessagesPerTrigger": "5000", "includeHeaders": "true",
    }  # fmt: skip
    assert (settings.key, settings.members, settings.points) == ("routing_key", {"shard-0": 1, "shard-1": 2}, 128)
    assert (settings.function, settings.schema) == ("orders.clean:enrich", "id long, body binary")
    assert (settings.sink_format, settings.sink, settings.checkpoint) == ("parquet", {"path": "out"}, "checkpoint")
    assert (settings.partition_by, settings.trigger) == (("queue",), 10.0)
    assert settings.spark == {"spark.sql.shuffle.partitions": "4"}
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_least_there_can_be(tmp_path: Path) -> None:
    settings = read(tmp_path, LEAST, RABBITMQ_URL="amqp://app:secret@broker/")
    assert settings.quanta == {"a": 1, "b": 1}
    assert settings.source == {"url": "amqp://app:secret@broker/", "queues": "a,b"}
    assert settings.sink == {"url": "amqp://app:secret@broker/"}
    assert (settings.trigger, settings.key, settings.function) == ("available-now", None, None)


@pytest.mark.parametrize(
    "queues", ['"gold, free"', '["gold", "free"]', "{ gold = 1, free = 1 }", '\'{"gold":1,"free":1}\'']
)
def test_queues_in_every_form(tmp_path: Path, queues: str) -> None:
    settings = read(tmp_path, LEAST.replace('["a", "b"]', queues), AMQP_URL="amqp://broker/")
    assert settings.quanta == {"gold": 1, "free": 1}


def test_a_name_may_hold_a_comma(tmp_path: Path) -> None:
    settings = read(tmp_path, LEAST.replace('["a", "b"]', '["a,b", "c"]'), AMQP_URL="amqp://broker/")
    assert settings.quanta == {"a,b": 1, "c": 1}
    assert source_options({**settings.source, "spoolLocation": "/s"}).quanta == settings.quanta


def test_streams_weigh_the_same(tmp_path: Path) -> None:
    settings = read(tmp_path, LEAST.replace("queues", "streams"), AMQP_URL="amqp://broker/")
    assert settings.source["streams"] == "a,b"
    assert settings.quanta == {"a": 1, "b": 1}


def test_no_secret_is_shown(tmp_path: Path) -> None:
    assert "secret" not in repr(read(tmp_path, WHOLE))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[sink]", "[sinks]", r"unknown table \[sinks\]; there are source, partition, transform, sink, spark"),
        ('format = "parquet"', "", r"\[sink\] format must be given as text, got None"),
        ('checkpointLocation = "checkpoint"', "", r"\[sink\] checkpointLocation must be given as text"),
        ("{ gold = 10, free = 1 }", "{ gold = 0 }", r"whole numbers of at least 1\) or streams, got {'gold': 0}"),
        ("queues = { gold = 10, free = 1 }", "", r"\[source\] must have queues"),
        ('trigger = "10s"', 'trigger = "soon"', "'available-now' or a duration such as '10s', got 'soon'"),
        ("points = 128", "points = 0", r"\[partition\] points must be a whole number of at least 1, got 0"),
        ("points = 128", "knots = 1", r"unknown setting 'knots' in \[partition\]; there are key, members, points"),
        ('"shard-1" = 2', '"shard-1" = "x"', r"\[partition\] members must be a table"),
        ("orders.clean:enrich", "orders.clean", "must be named as module:function, got 'orders.clean'"),
        ('schema = "id long, body binary"', "schema = 1", r"\[transform\] schema must be columns as in SQL, got 1"),
        ('partitionBy = ["queue"]', "partitionBy = [1]", r"\[sink\] partitionBy must name columns"),
        ('partitionBy = ["queue"]', "partitionBy = 5", r"\[sink\] partitionBy must name columns, got 5"),
        ("{ gold = 10, free = 1 }", "'{bad'", r"\[source\] must have queues .*, got '{bad'"),
        ("{ gold = 10, free = 1 }", '[["gold"]]', r"\[source\] must have queues"),
        ("{ gold = 10, free = 1 }", "[1, 2]", r"\[source\] must have queues"),
        ("{ gold = 10, free = 1 }", '" , "', r"\[source\] must have queues"),
        ("includeHeaders = true", "startingOffsets = { a = 1979-05-27 }", "option startingOffsets must be text, a num"),
        ("maxMessagesPerTrigger", "maxMesages", r"no such option: maxmesages.*; there are"),
        (
            'format = "parquet"\npath = "out"',
            'format = "rabbitmq"\nurl = "amqp://app:secret@b/"\nkey = "x"',
            "no such option: key",
        ),
        ("[source]", "[source", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in WHOLE
    with pytest.raises(ConfigurationError, match=words) as caught:
        read(tmp_path, WHOLE.replace(old, new))
    assert "secret" not in str(caught.value)


def test_a_url_in_the_place_of_a_table_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"source must be a table .*, got str") as caught:
        read(tmp_path, 'source = "amqp://app:secret@broker/"')
    assert "secret" not in str(caught.value)


def test_no_url_anywhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="url is missing: give it in the file or in one of FAIRSCHED_URL"):
        read(tmp_path, LEAST)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_pipeline(tmp_path / "none.toml", {})
