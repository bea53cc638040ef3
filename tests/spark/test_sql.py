"""Queues in SQL: a temporary view reads them, and what Spark gives no options says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.running import fill

REMEDY = "CREATE TEMPORARY VIEW … USING rabbitmq OPTIONS"


@pytest.fixture
def catalog(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A database whose tables leave nothing elsewhere."""
    spark.sql(f"CREATE DATABASE shelf LOCATION '{(tmp_path / 'shelf').as_uri()}'")
    yield "shelf"
    spark.sql("DROP DATABASE shelf CASCADE")


def test_a_temporary_view_reads_queues(spark: Any, broker: Node, queues: DeclareAll) -> None:
    names = queues(2)
    expected = fill(broker, names, 20)
    spark.sql(
        f"CREATE TEMPORARY VIEW waiting USING rabbitmq OPTIONS (url '{broker.url}', queues '{','.join(names)}', "
        "pollTimeout '1s')"
    )
    try:
        found = spark.sql("SELECT queue, count(*) AS messages FROM waiting GROUP BY queue").collect()
        assert {row.queue: row.messages for row in found} == dict.fromkeys(names, 20)
        assert {bytes(row.body) for row in spark.table("waiting").collect()} == expected
    finally:
        spark.catalog.dropTempView("waiting")


@pytest.mark.parametrize("columns", ["", "(queue STRING, body BINARY)"])
def test_a_table_is_refused_with_what_does_instead(columns: str, spark: Any, catalog: str) -> None:
    options = "OPTIONS (url 'amqp://app:hush@127.0.0.1:1/', queues 'gold')"
    for query in (
        f"CREATE TABLE {catalog}.gold {columns} USING rabbitmq {options}",
        f"SELECT * FROM {catalog}.gold",
        f"INSERT INTO {catalog}.gold SELECT 'gold', CAST('x' AS BINARY)",
    ):
        if query.startswith("CREATE") and columns:
            spark.sql(query)  # Spark does not ask the source
        elif query.startswith("CREATE") or columns:
            with pytest.raises(AnalysisException) as caught:
                spark.sql(query).collect()
            assert REMEDY in str(caught.value)
            assert "hush" not in str(caught.value)


@pytest.mark.parametrize("path", ["/tmp/orders", ["/tmp/orders", "/tmp/more"]])
def test_a_path_is_no_option(path: Any, spark: Any) -> None:
    options = {"url": "amqp://app:hush@127.0.0.1:1/", "queues": "gold"}
    with pytest.raises(AnalysisException, match=r"no such option: paths?; there are"):
        spark.read.format("rabbitmq").options(**options).load(path)


def test_a_path_is_no_option_of_the_sink(spark: Any) -> None:
    rows = spark.createDataFrame([(b"a",)], "body binary")
    with pytest.raises(AnalysisException, match="no such option: path; there are"):
        rows.write.format("rabbitmq").mode("append").option("url", "amqp://127.0.0.1:1/").save("/tmp/orders")
