"""Publish rows that a job cannot use to a dead-letter exchange, with the reason, before the commit.

The broker cannot dead-letter them itself: a message of a queue is acknowledged when its row is in the spool, before the
job reads it, and a message of a stream cannot be rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairsched.amqp.shortstring import LONGEST
from fairsched.amqp.urls import parameters
from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["dead_letter"]

#: Maximum length of a reason in characters, and bytes that everything but the message's own headers may have, since all
#: properties of a message must fit into one frame.
_LONGEST_REASON = 1000
_RESERVED = 12_000
#: Bytes of a header in addition to its name and value.
_AROUND = 6
#: Headers added to a copy: where the message was.
_ORIGIN = {"queue": "x-original-queue", "exchange": "x-original-exchange", "routing_key": "x-original-routing-key"}
_REASON = "x-reason"
#: Header with the names of those that did not fit.
_LEFT_OUT = "x-left-out"
#: The temporary column with the reason of a row.
_WHY = "_fairsched_reason"
#: Headers removed from a copy: some would route it to other queues; with others the broker would detect a cycle of dead
#: lettering, and drop it.
_WITHOUT = ("CC", "BCC", "x-death") + tuple(
    f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "reason", "exchange")
)


def dead_letter(df: DataFrame, reason: Column | str, **options: str) -> DataFrame:
    """Publish rows with a reason to a dead-letter exchange, and return the others.

    Parameters
    ----------
    df : DataFrame
        Rows of the source, in ``foreachBatch`` or of a batch query: the column ``body`` and, if present, ``queue``,
        ``exchange``, ``routing_key``, ``message_id``, ``headers`` and ``properties``.
    reason : Column or str
        A text column, or its name: why a row cannot be used; null if it can. It is evaluated once per row. Only the
        first 1000 characters are sent.
    **options : str
        Options of the sink: ``url``, and ``exchange`` or ``routingKey`` or both. Without ``routingKey`` a message keeps
        its routing key.

    Returns
    -------
    DataFrame
        The rows without a reason, as read by this call.

    Raises
    ------
    ConfigurationError
        If neither ``exchange`` nor ``routingKey`` is given, so that messages would return to their queues; or if `df`
        is streaming, or lacks a column.
    pyspark.errors.PySparkException
        If the broker did not confirm a message, or could not route one to a queue. In ``foreachBatch`` the batch then
        fails, and is run again.

    Notes
    -----
    Returns when the broker has confirmed all messages. Delivery is at least once: a batch that is run again publishes
    again, with the same ``message_id`` if a message has one. `df` is read once, by this call, into the storage of the
    executors (``localCheckpoint``). If rows are lost there with an executor, the batch fails; they are not read again,
    because with ``ackMode=auto`` a second reading returns other messages. To copy a message's headers, set
    ``includeHeaders``; for its other properties ``includeProperties``. Headers are copied as text, the smallest first,
    as many as fit into a frame; the header ``x-left-out`` names the others. O(rows). For one thread.

    Examples
    --------
    >>> def process(batch, number):
    ...     unreadable = F.when(F.expr("try_parse_json(CAST(body AS STRING)) IS NULL"), "not JSON")
    ...     good = dead_letter(batch, unreadable, url=url, exchange="orders-dlx")
    ...     good.write.mode("append").parquet("/shared/orders")
    """
    from pyspark.sql import functions as F

    given = {name.lower(): value for name, value in options.items()}
    if not given.get("exchange") and not given.get("routingkey"):
        raise ConfigurationError(
            "dead_letter() needs the option exchange or routingKey: the default exchange would route messages back to "
            "their queues, by their own routing keys"
        )
    if df.isStreaming:
        raise ConfigurationError("dead_letter() does not work on a streaming DataFrame: call it in foreachBatch")
    needed = ["body"] if given.get("routingkey") else ["body", "routing_key"]
    if missing := [name for name in needed if name not in df.columns]:
        raise ConfigurationError(
            f"dead_letter() needs the column {', '.join(missing)}; there are {', '.join(df.columns)}"
        )
    why = (F.col(reason) if isinstance(reason, str) else reason).cast("string")
    # Read once: with acknowledged messages a second reading would return others, and a reason that differs the second
    # time would put a row on both sides, or on none.
    rows = df.withColumn(_WHY, why).localCheckpoint(eager=True)
    columns = _message(rows, F.col(_WHY), own_key=not given.get("routingkey"), frame=_frame(given))
    rows.where(F.col(_WHY).isNotNull()).select(*columns).write.format("rabbitmq").mode("append").options(
        **options
    ).save()
    return rows.where(F.col(_WHY).isNull()).drop(_WHY)


def _frame(options: Mapping[str, str]) -> int:
    """Return the bytes of a frame, as the URLs say."""
    return min(int(parameters(url.strip()).frame_max) for url in options.get("url", "amqp://").split(","))


def _message(df: DataFrame, why: Column, *, own_key: bool, frame: int) -> list[Column]:
    """Return the columns for the sink; without the expiration, so that the message stays in the queue.

    Text that is no UTF-8 has grown three times, and bytes as JSON even more: what AMQP has no room for is cut, or left
    out, because a message that cannot be sent would stop the query for ever.
    """
    from pyspark.sql import functions as F

    longest = min(_LONGEST_REASON, frame // 16)
    added = {header: F.col(name) for name, header in _ORIGIN.items() if name in df.columns}
    added[_REASON] = F.substring(why, 1, longest)
    headers = F.create_map(*[part for header, value in added.items() for part in (F.lit(header), value)])
    if "headers" in df.columns:
        dropped = [*added, _LEFT_OUT, *_WITHOUT]
        own = F.map_filter(F.coalesce("headers", F.create_map().cast("map<string,string>")),
                           lambda name, _: ~name.isin(dropped))  # fmt: skip
        headers = F.map_concat(*_fitting(own, max(0, frame - _RESERVED), longest), headers)
    columns = [F.col("body"), headers.alias("headers")]
    columns += [_short(F.col("message_id")).alias("message_id")] if "message_id" in df.columns else []
    columns += [_short(F.col("routing_key")).alias("routing_key")] if own_key else []
    if "properties" in df.columns:
        found: Any = df.schema["properties"].dataType
        of = F.col("properties").getField
        columns += [
            (of(name) if name == "priority" else _short(of(name))).alias(name)
            for name in ("content_type", "correlation_id", "priority")
            if name in found.fieldNames()
        ]
    return columns


def _short(text: Column) -> Column:
    """Cut a text that AMQP would refuse; a character has at most four bytes."""
    from pyspark.sql import functions as F

    return F.when(F.octet_length(text) > LONGEST, F.substring(text, 1, LONGEST // 4)).otherwise(text)


def _fitting(headers: Column, room: int, longest: int) -> tuple[Column, Column]:
    """Return the smallest headers, as many as fit, and a map with the names of the others, if there are any.

    Each entry gets a number, its size with its place behind it, so that no two are equal.
    """
    from pyspark.sql import functions as F

    def number(entry: Column, place: Column) -> Column:
        size = F.octet_length(entry["key"]) + F.coalesce(F.octet_length(entry["value"]), F.lit(0)) + _AROUND
        size = F.when(F.octet_length(entry["key"]) > LONGEST, F.lit(1 << 30)).otherwise(size)
        return F.struct(
            (size.cast("bigint") * (1 << 30) + place).alias("number"), entry["key"].alias("key"),
            entry["value"].alias("value"),
        )  # fmt: skip

    entries = F.transform(F.map_entries(headers), number)
    room_left = F.aggregate(
        F.array_sort(entries["number"]),
        F.struct(F.lit(room).cast("bigint").alias("room"), F.lit(-1).cast("bigint").alias("last")),
        lambda so_far, one: F.when(
            F.shiftright(one, 30) <= so_far["room"],
            F.struct((so_far["room"] - F.shiftright(one, 30)).alias("room"), one.alias("last")),
        ).otherwise(F.struct(F.lit(-1).cast("bigint").alias("room"), so_far["last"].alias("last"))),
    )
    last = room_left["last"]
    kept = F.filter(entries, lambda entry: entry["number"] <= last)
    names = F.transform(F.filter(entries, lambda entry: entry["number"] > last), lambda entry: entry["key"])
    none = F.create_map().cast("map<string,string>")
    return (
        F.map_from_entries(F.transform(kept, lambda entry: F.struct(entry["key"], entry["value"]))),
        F.when(F.size(names) > 0, F.create_map(F.lit(_LEFT_OUT), F.substring(F.concat_ws(", ", names), 1, longest)))
        .otherwise(none),
    )  # fmt: skip
