"""A way out for rows that a job cannot use: published to a dead-letter exchange, with the reason, before the commit.

The broker cannot dead-letter them itself: a message of a queue is acknowledged once its row is in the spool, before any
job sees it, and a message of a stream is never refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairsched.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["dead_letter"]

#: Characters of a reason that are kept, since all headers together have to fit into one frame.
_LONGEST_REASON = 1000
#: Headers that are given anew: where the message was, and why it is there no more.
_ORIGIN = {"queue": "x-original-queue", "exchange": "x-original-exchange", "routing_key": "x-original-routing-key"}
_REASON = "x-reason"
#: The column that keeps a row's reason while its rows are told apart.
_WHY = "_fairsched_reason"
#: Headers that a copy has not: some would route it to other queues, and what died in its queue before, the broker would
#: take for a cycle, and drop it.
_WITHOUT = ("CC", "BCC", "x-death") + tuple(
    f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "reason", "exchange")
)


def dead_letter(df: DataFrame, reason: Column | str, **options: str) -> DataFrame:
    """Publish the rows that have a reason to a dead-letter exchange, and return all others.

    Parameters
    ----------
    df : DataFrame
        Rows of the source, in ``foreachBatch`` or of a batch query: ``body``, and as far as they are there ``queue``,
        ``exchange``, ``routing_key``, ``message_id``, ``headers`` and ``properties``.
    reason : Column or str
        Text that says why a row cannot be used, null where it can; or the column that has it. It is evaluated once for
        each row. Only the first 1000 characters are sent.
    **options : str
        Options of the sink: ``url``, and ``exchange`` or ``routingKey`` or both. Without ``routingKey`` a message keeps
        its own.

    Returns
    -------
    DataFrame
        The rows without a reason, as they were read by this call.

    Raises
    ------
    ConfigurationError
        There is neither ``exchange`` nor ``routingKey``, so that messages would go back to their queues; or `df` is
        streaming, or lacks a column.
    pyspark.errors.PySparkException
        The broker did not confirm all of them, or one had no queue to go to. In ``foreachBatch`` the batch fails then,
        and is run again.

    Notes
    -----
    Returns when the broker has confirmed all of them: at least once, since a batch that is run again publishes again,
    with the same ``message_id`` where a message has one. `df` is read once, by this call, into the storage of the
    executors (``localCheckpoint``); the rest comes from there. Rows that are lost from there with an executor fail the
    batch, and are not read anew: with ``ackMode=auto`` these would be others. A message's headers need
    ``includeHeaders``, its other properties ``includeProperties``. O(rows). For one thread.

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
            "dead_letter() needs the option exchange or routingKey: by the default exchange and their own routing keys "
            "messages would return to their queues"
        )
    if df.isStreaming:
        raise ConfigurationError("dead_letter() works on the rows of a batch: call it in foreachBatch")
    needed = ["body"] if given.get("routingkey") else ["body", "routing_key"]
    if missing := [name for name in needed if name not in df.columns]:
        raise ConfigurationError(
            f"dead_letter() needs the column {', '.join(missing)}; there are {', '.join(df.columns)}"
        )
    why = (F.col(reason) if isinstance(reason, str) else reason).cast("string")
    # Read once: messages that are acknowledged as they are read would be others in a second reading, and a reason that
    # is not the same twice would put a row on both sides, or on none.
    rows = df.withColumn(_WHY, why).localCheckpoint(eager=True)
    columns = _message(rows, F.col(_WHY), own_key=not given.get("routingkey"))
    rows.where(F.col(_WHY).isNotNull()).select(*columns).write.format("rabbitmq").mode("append").options(
        **options
    ).save()
    return rows.where(F.col(_WHY).isNull()).drop(_WHY)


def _message(df: DataFrame, why: Column, *, own_key: bool) -> list[Column]:
    """Make the columns that the sink takes; an expiration is left out, or the message would not stay."""
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
