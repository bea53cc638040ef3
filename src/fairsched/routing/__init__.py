"""Placement of keys: a hash ring, jump hash, and the queue that RabbitMQ's consistent-hash exchange chooses.

In the order of reading: `bindingkey` (what a binding key says, its weight), `rabbitmqhash` (from bindings and a value
to a queue), `exchange` (the same from a message, as an exchange that hashes its routing key, a header or a property).
The hashes are those of `fairsched.routing._ring`.
"""

from __future__ import annotations

from fairsched.routing._ring import HashRing, jump_hash, jump_hash_many
from fairsched.routing.exchange import ConsistentHashExchange
from fairsched.routing.rabbitmqhash import MISSING, Binding, RabbitMQHash

__all__ = [
    "MISSING",
    "Binding",
    "ConsistentHashExchange",
    "HashRing",
    "RabbitMQHash",
    "jump_hash",
    "jump_hash_many",
]
