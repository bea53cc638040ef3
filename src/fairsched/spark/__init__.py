"""RabbitMQ for Spark: a source with weighted shares and batches that can be read again, and a sink with confirms.

``register(spark)`` makes the format "rabbitmq" known; pyspark is imported only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """register(spark)
    --

    Make the format "rabbitmq" known to a session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session; registering again is harmless.

    Notes
    -----
    Executors import fairsched themselves: the same version must be installed there (see docs/howto/spark.md).
    """
    from fairsched.spark.source import RabbitMQDataSource

    spark.dataSource.register(RabbitMQDataSource)
