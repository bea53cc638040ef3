"""The pytest fixture ``fairsched_broker``. Outside `fairsched`, so that pytest's start does not import the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fairsched.broker import Broker

__all__ = ["fairsched_broker"]


@pytest.fixture
def fairsched_broker() -> Iterator[Broker]:
    """Run an AMQP 0-9-1 broker for this test alone; clients connect to its ``url``."""
    from fairsched.broker import Broker

    with Broker() as broker:
        yield broker
