"""The settings of a pipeline: source, partition key, function and sink."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.config.consumer_options import URL_VARIABLES, default_url
from fairsched.config.durations import parse_duration
from fairsched.config.file import parse_toml
from fairsched.config.frozenmapping import FrozenMapping
from fairsched.config.unique_json import parse_json
from fairsched.config.values import quoting
from fairsched.errors import ConfigurationError
from fairsched.spark.sink.options import sink_options
from fairsched.spark.source.options import source_options

__all__ = ["PipelineSettings", "read_pipeline"]

_TABLES = {
    "source": "the options of the rabbitmq source",
    "partition": "key, members, points",
    "transform": "function, schema",
    "sink": "format, checkpointLocation, trigger, partitionBy and the options of the format",
    "spark": "configuration of the session",
}


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """A pipeline, checked as far as it can be without Spark.

    Parameters
    ----------
    source : mapping of str to str
        Options of the ``rabbitmq`` source; not in the repr, because of the URL.
    quanta : mapping of str to int
        The queues (or streams) and their weights, for the table of shares.
    sink_format : str
        ``parquet``, ``delta``, ``rabbitmq`` or any other format that streams can be written to.
    sink : mapping of str to str
        Options of the sink; not in the repr, since they may include a URL.
    checkpoint : str
        Directory in which Spark stores the query's offsets.
    trigger : str or float
        ``"available-now"``, or seconds between batches.
    partition_by : tuple of str
        Columns that name the folders of a file sink.
    key : str or None
        The column to partition by on the ring; None: no ring.
    members : mapping of str to int
        The ring's members and weights.
    points : int
        Points on the ring per unit of weight.
    function : str or None
        ``module:function``, called with each Arrow record batch; returns one.
    schema : str or None
        Its output columns, as in SQL ("id long, body binary"); None: the same as its input.
    spark : mapping of str to str
        Configuration of the Spark session.

    Notes
    -----
    Immutable and picklable.
    """

    source: FrozenMapping[str, str] = field(repr=False)
    quanta: FrozenMapping[str, int]
    sink_format: str
    sink: FrozenMapping[str, str] = field(repr=False)
    checkpoint: str
    trigger: str | float = "available-now"
    partition_by: tuple[str, ...] = ()
    key: str | None = None
    members: FrozenMapping[str, int] = field(default_factory=FrozenMapping)
    points: int = 256
    function: str | None = None
    schema: str | None = None
    spark: FrozenMapping[str, str] = field(default_factory=FrozenMapping)


def read_pipeline(
    path: str | Path, environ: Mapping[str, str] | None = None, broker: Callable[[], str] | None = None
) -> PipelineSettings:
    """Read a pipeline's TOML file.

    Parameters
    ----------
    path : str or Path
    environ : mapping of str to str, optional
        Environment variables, read for the broker's URL if the file has none, as by `Settings`; by default
        `os.environ`.
    broker : callable, optional
        Starts a broker and returns its URL; called if there is no URL, for a pipeline that reads queues and does not
        end by itself.

    Returns
    -------
    PipelineSettings

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or a setting is unknown, missing or invalid. The message names the file, the table
        and the key, and never contains a URL.
    """
    location = Path(path)
    document = parse_toml(location, "pipeline")
    try:
        return _settings(document, os.environ if environ is None else environ, broker)
    except ConfigurationError as error:
        raise ConfigurationError(f"pipeline {location}: {error}") from None


def _settings(
    document: Mapping[str, Any], environ: Mapping[str, str], broker: Callable[[], str] | None
) -> PipelineSettings:
    for name, table in document.items():
        if name not in _TABLES:
            raise ConfigurationError(f"unknown table [{name}]; there are {', '.join(_TABLES)}")
        if not isinstance(table, dict):
            raise ConfigurationError(f"{name} must be a table ({_TABLES[name]}), got {type(table).__name__}")
    url = default_url(environ)
    source = dict(document.get("source", {}))
    sink = dict(document.get("sink", {}))
    sink_format = _text(sink, "sink", "format")
    trigger = _trigger(sink.pop("trigger", "available-now"))
    for table, wants_url in ((source, True), (sink, sink_format == "rabbitmq")):
        if wants_url and "url" not in table:
            # A broker that was just started has no streams and no messages.
            if url is None and broker is not None and trigger != "available-now" and "streams" not in source:
                url = broker()
            if url is None:
                raise ConfigurationError(
                    f"url is missing: give it in the file or in one of {', '.join(URL_VARIABLES)}. Without a URL, "
                    'queues can be read from an embedded broker on Linux, with a periodic trigger such as "10s"'
                )
            table["url"] = url
    found = PipelineSettings(
        quanta=_quanta(source),
        sink_format=sink_format,
        checkpoint=_text(sink, "sink", "checkpointLocation"),
        trigger=trigger,
        partition_by=_names(sink.pop("partitionBy", ())),
        source=_options(source),
        sink=_options(sink),
        spark=_options(document.get("spark", {})),
        **_partition(dict(document.get("partition", {}))),
        **_transform(dict(document.get("transform", {}))),
    )
    # Spark would report errors in them later, and less clearly.
    source_options(found.source)
    if sink_format == "rabbitmq":
        sink_options(found.sink)
    return found


def _text(table: dict[str, Any], name: str, key: str) -> str:
    value = table.pop(key, None)
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"[{name}] {key} must be given as text, got {value!r}")
    return value


def _options(table: Mapping[str, Any]) -> FrozenMapping[str, str]:
    """Convert values to the text of Spark's options; tables and lists become JSON."""
    options = {}
    for key, value in table.items():
        if isinstance(value, str):
            options[key] = value
            continue
        try:
            options[key] = json.dumps(value)
        except TypeError:
            raise ConfigurationError(
                f"option {key} must be text, a number, true or false, or a table or list of these"
            ) from None
    return FrozenMapping(options)


def _quanta(source: dict[str, Any]) -> FrozenMapping[str, int]:
    """Return the weights of the queues, or of the streams, whose weight is 1."""
    queues = _parsed(source.get("queues", source.get("streams")))
    if isinstance(queues, list) and all(isinstance(name, str) and name for name in queues):
        simple = all("," not in name and name == name.strip() for name in queues)
        text = ",".join(queues) if simple else json.dumps(dict.fromkeys(queues, 1))
        source.update({name: text for name in ("queues", "streams") if name in source})
        queues = dict.fromkeys(queues, 1)
    if not isinstance(queues, dict) or not queues or not all(_is_weight(quantum) for quantum in queues.values()):
        tables = (
            [(name, one) for name, one in queues.items() if isinstance(one, dict)] if isinstance(queues, dict) else []
        )
        raise ConfigurationError(
            "[source] must have queues (names, or a table of names and whole numbers of at least 1) or streams, "
            f"got {queues!r}" + (quoting(*tables[0]) if tables else "")
        )
    return FrozenMapping(queues)


def _parsed(queues: Any) -> Any:
    """Parse text: comma-separated names, or JSON."""
    if not isinstance(queues, str):
        return queues
    if not queues.lstrip().startswith("{"):
        return [name.strip() for name in queues.split(",") if name.strip()]
    try:
        return parse_json(queues)
    except ConfigurationError:
        raise
    except ValueError:
        return queues


def _is_weight(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _trigger(value: Any) -> str | float:
    if value == "available-now":
        return "available-now"
    try:
        return parse_duration(value)
    except ValueError:
        raise ConfigurationError(
            f"[sink] trigger must be 'available-now' or a duration such as '10s', got {value!r}"
        ) from None


def _names(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"[sink] partitionBy must name columns, got {value!r}")
    return names


def _partition(table: dict[str, Any]) -> dict[str, Any]:
    if not table:
        return {}
    key, members, points = _text(table, "partition", "key"), table.pop("members", None), table.pop("points", 256)
    if not isinstance(members, dict) or not members or not all(_is_weight(weight) for weight in members.values()):
        raise ConfigurationError(
            f"[partition] members must be a table of names and whole numbers of at least 1, got {members!r}"
        )
    if not _is_weight(points):
        raise ConfigurationError(f"[partition] points must be a whole number of at least 1, got {points!r}")
    _nothing_left(table, "partition")
    return {"key": key, "members": FrozenMapping(members), "points": points}


def _transform(table: dict[str, Any]) -> dict[str, Any]:
    if not table:
        return {}
    function, schema = _text(table, "transform", "function"), table.pop("schema", None)
    if re.fullmatch(r"\w+(\.\w+)*:\w+", function) is None:
        raise ConfigurationError(f"[transform] function must be named as module:function, got {function!r}")
    if schema is not None and (not isinstance(schema, str) or not schema):
        raise ConfigurationError(f"[transform] schema must be columns as in SQL, got {schema!r}")
    _nothing_left(table, "transform")
    return {"function": function, "schema": schema}


def _nothing_left(table: Mapping[str, Any], name: str) -> None:
    if table:
        raise ConfigurationError(f"unknown setting {next(iter(table))!r} in [{name}]; there are {_TABLES[name]}")
