"""Consuming RabbitMQ in weighted fair order: pika in a thread of its own, recovery, settlement, workers."""

from __future__ import annotations

from fairsched.consumer.adapter import from_pika
from fairsched.consumer.app import App
from fairsched.consumer.consumer import Consumer
from fairsched.consumer.message import Message

__all__ = ["App", "Consumer", "Message", "from_pika"]
