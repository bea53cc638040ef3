"""Makes the format "rabbitmq" known to Spark by its name alone: Spark looks into every package named ``pyspark_*``."""

from __future__ import annotations

from fairsched.spark.datasource import RabbitMQDataSource

__all__ = ["DefaultSource"]


class DefaultSource(RabbitMQDataSource):
    """The data source "rabbitmq" (see `fairsched.spark`)."""
