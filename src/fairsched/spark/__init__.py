"""RabbitMQ and weighted fairness for Spark: a replayable source, a sink with confirms, and functions on DataFrames.

Spark finds the format "rabbitmq" by its name. pyspark and pyarrow are imported on first use.

Start with `datasource`, which Spark calls first. It leads to `source` and `sink`, which connect with `broker` and read
their options with `optionreader`. `pipeline` is a prebuilt job made of both. Each public function has a file of its
own: `fairorder`, `shedding` (CoDel), `ringpartition`, `deadletter`, `fairnessreport`, `queryprogress`,
`scenariosweep`. `columnnames` and `quanta` read their arguments. `metrics` has the Prometheus collector.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairsched.spark.deadletter import dead_letter
    from fairsched.spark.fairnessreport import fairness_report, observe_fairness
    from fairsched.spark.fairorder import fair_order, virtual_finish
    from fairsched.spark.queryprogress import progress
    from fairsched.spark.ringpartition import repartition_by_ring, ring_partition
    from fairsched.spark.scenariosweep import sweep
    from fairsched.spark.shedding import codel

__all__ = [
    "codel",
    "dead_letter",
    "fair_order",
    "fairness_report",
    "observe_fairness",
    "progress",
    "register",
    "repartition_by_ring",
    "ring_partition",
    "sweep",
    "virtual_finish",
]

_MODULES = {
    "codel": "shedding",
    "dead_letter": "deadletter",
    "fair_order": "fairorder",
    "fairness_report": "fairnessreport",
    "observe_fairness": "fairnessreport",
    "progress": "queryprogress",
    "repartition_by_ring": "ringpartition",
    "ring_partition": "ringpartition",
    "sweep": "scenariosweep",
    "virtual_finish": "fairorder",
}


def register(spark: SparkSession) -> None:
    """Register the format "rabbitmq" with a session that has not found it by itself.

    Spark looks for formats in packages named ``pyspark_*``, such as `pyspark_fairsched`; it finds none of them if one
    of these packages cannot be imported.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session. An earlier registration is replaced, with a warning from Spark.

    Notes
    -----
    Executors import fairsched themselves: the same version must be installed there (see docs/howto/spark.md).
    """
    from fairsched.spark.datasource import RabbitMQDataSource

    spark.dataSource.register(RabbitMQDataSource)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fairsched.spark.{_MODULES[name]}"), name)
