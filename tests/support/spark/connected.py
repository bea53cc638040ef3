"""Everything public over Spark Connect: a client of its own, and a server with two cores in the same process.

Usage: connected.py OPTIONS SINK-URL FOLDER; prints JSON lines, a list of name, what was found and what was expected.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.spark.session import start
from support.spark.smallframes import cases

from fairsched.simulator import Arrivals, Broker, ConsumerSpec, Queue, Scenario
from fairsched.spark import dead_letter, observe_fairness, progress, register, repartition_by_ring, sweep


def swept(spark: Any) -> tuple[Any, Any]:
    """Over as many tasks as there are cores, since no other number is given."""
    from pyspark.sql import functions as F

    base = Scenario(
        brokers=[Broker()], queues=[Queue("gold", arrivals=Arrivals.poisson(40))],
        consumers=[ConsumerSpec(prefetch=10, service="2ms")], duration="1s",
    )  # fmt: skip
    found = sweep(spark, [base] * 5).select("scenario", F.spark_partition_id().alias("task")).collect()
    return [sorted(row.scenario for row in found), len({row.task for row in found})], [list(range(5)), 2]


def placed(spark: Any) -> tuple[Any, Any]:
    from pyspark.sql import functions as F

    from fairsched.routing import HashRing

    ring = HashRing({"a": 1, "b": 1, "c": 1}, points_per_weight=64)
    rows = spark.createDataFrame([(str(number),) for number in range(90)], "key string")
    found = repartition_by_ring(rows, "key", ring).withColumn("place", F.spark_partition_id()).collect()
    return {row.key: row.place for row in found}, {row.key: ring.names.index(ring.route(row.key)) for row in found}


def viewed(spark: Any, options: dict[str, str]) -> tuple[Any, Any]:
    """Queues in SQL, before anything is taken from them."""
    given = ", ".join(f"{name} '{options[name]}'" for name in ("url", "queues", "pollTimeout"))
    spark.sql(f"CREATE TEMPORARY VIEW waiting USING rabbitmq OPTIONS ({given})")
    found = spark.sql("SELECT queue, count(*) AS messages FROM waiting GROUP BY queue").collect()
    return {row.queue: row.messages for row in found}, dict.fromkeys(json.loads(options["queues"]), 60)


def streamed(spark: Any, options: dict[str, str], folder: Path) -> tuple[Any, Any]:
    """Queues through a query with counts in its progress, which are read as a pipeline reads them."""
    from fairsched.spark.pipeline.progress import PipelineProgress

    quanta = json.loads(options["queues"])
    rows = observe_fairness(spark.readStream.format("rabbitmq").options(**options).load(), quanta, name="shares")
    counted = PipelineProgress(quanta)
    writer = rows.select("body").writeStream.format("rabbitmq").trigger(availableNow=True)
    writer = writer.option("url", options["url"]).option("routingKey", "connected-sink")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(300)
    counted.add(query.recentProgress, "shares", "ages")
    report = counted.report(1.0)
    judged = [[row["name"], row["served"], row["judged"], row["error"]] for row in report["queues"]]
    one, three = sorted(quanta, key=quanta.__getitem__)
    first = progress(query.recentProgress[0])
    assert first is not None
    judged.append([first.depths[one], first.plan[one], first.lag[one]])
    return sorted(judged, key=str), sorted([[60, 10, 50], [one, 60, 10, 0.0], [three, 60, 30, 0.0]], key=str)


def written(spark: Any, url: str) -> tuple[Any, Any]:
    from pyspark.sql import functions as F

    rows = spark.createDataFrame([(b"one",), (b"two",)], "body binary")
    rows.write.format("rabbitmq").mode("append").option("url", url).option("routingKey", "connected-sink").save()
    reason = F.when(F.col("body").cast("string") == "two", "not one")
    good = dead_letter(rows, reason, url=url, routingKey="connected-sink")
    return [row.body.decode() for row in good.collect()], ["one"]


def main() -> None:
    options, url, folder = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    spark = start("local[2]", remote=True)
    assert "connect" in type(spark).__module__
    register(spark)
    found = [*cases(spark), ("swept by default", *swept(spark)), ("repartitioned", *placed(spark))]
    found += [("viewed", *viewed(spark, options)), ("streamed", *streamed(spark, options, folder))]
    found.append(("written", *written(spark, url)))
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
