"""Publish rows that a job cannot use to a dead-letter exchange, with the reason, before the commit.

The broker cannot dead-letter them itself: a message of a queue is acknowledged when its row is in the spool, before the
job reads it, and a message of a stream cannot be rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["dead_letter"]

#: Maximum length of a reason in characters, since all headers together must fit in one frame.
_LONGEST_REASON = 1000
#: Headers added to a copy: where the message was.
_ORIGIN = {"queue": "x-original-queue", "exchange": "x-original-exchange", "routing_key": "x-original-routing-key"}
_REASON = "x-reason"
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
    ``includeHeaders``; for its other properties ``includeProperties``. O(rows). For one thread.

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
    columns = _message(rows, F.col(_WHY), own_key=not given.get("routingkey"))
    rows.where(F.col(_WHY).isNotNull()).select(*columns).write.format("rabbitmq").mode("append").options(
        **options
    ).save()
    return rows.where(F.col(_WHY).isNull()).drop(_WHY)


def _message(df: DataFrame, why: Column, *, own_key: bool) -> list[Column]:
    """Return the columns for the sink; without the expiration, so that the message stays in the queue."""
    from pyspark.sql import functions as F

    origin = {header: F.col(name) for name, header in _ORIGIN.items() if name in df.columns}
    added = {**origin, _REASON: F.substring(why, 1, _LONGEST_REASON)}
    headers = F.create_map(*[part for header, value in added.items() for part in (F.lit(header), value)])
    if "headers" in df.columns:
        dropped = [*added, *_WITHOUT]
        kept = F.map_filter(F.coalesce("headers", F.create_map().cast("map<string,string>")),
                            lambda name, _: ~name.isin(dropped))  # fmt: skip
        headers = F.map_concat(kept, headers)
    columns = [F.col("body"), headers.alias("headers")]
    columns += [F.col("message_id")] if "message_id" in df.columns else []
    columns += [F.col("routing_key")] if own_key else []
    if "properties" in df.columns:
        found: Any = df.schema["properties"].dataType
        columns += [
            F.col("properties").getField(name).alias(name)
            for name in ("content_type", "correlation_id", "priority")
            if name in found.fieldNames()
        ]
    return columns
