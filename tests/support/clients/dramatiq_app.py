"""Actors for a dramatiq worker; the URL and a file for what they did come from the environment."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from fairsched.integrations.dramatiq import FairShares

dramatiq.set_broker(RabbitmqBroker(url=os.environ["BROKER_URL"], confirm_delivery=True))
if "FAIR_SHARES" in os.environ:
    dramatiq.get_broker().add_middleware(FairShares({"dramatiq-work": 2}))
_tries: dict[int, int] = {}


def note(text: str) -> None:
    with open(os.environ["DONE"], "a") as file:
        print(text, file=file)


@dramatiq.actor(queue_name="dramatiq-work")
def work(number: int) -> None:
    note(f"work {number}")


@dramatiq.actor(queue_name="dramatiq-work", max_retries=3, min_backoff=50, max_backoff=100)
def flaky(number: int) -> None:
    _tries[number] = _tries.get(number, 0) + 1
    if _tries[number] < 3:
        raise ValueError("again")
    note(f"flaky {number}")


@dramatiq.actor(queue_name="dramatiq-work", max_retries=0)
def dead() -> None:
    raise ValueError("never")
