"""RabbitMQ and weighted fairness in Spark."""

from __future__ import annotations
