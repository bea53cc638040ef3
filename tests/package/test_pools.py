"""Pools of workers, by themselves."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from fairsched import ConfigurationError, Pool


def test_frozen_hashable_and_picklable() -> None:
    pool = Pool(4, priority=10)
    assert pickle.loads(pickle.dumps(pool)) == pool
    assert len({pool, Pool(4, priority=10), Pool(4)}) == 2
    assert repr(pool) == "Pool(size=4, priority=10)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        pool.size = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Pool(4, 10)  # type: ignore[misc]


@pytest.mark.parametrize("size", [0, -1, 1.0, "4", None, True, 10_001, 10**400])
def test_bad_size(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="size of a pool must be a whole number from 1 to 10000, got"):
        Pool(size)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.0, "4", None, True])
def test_bad_priority(priority: Any) -> None:
    with pytest.raises(ConfigurationError, match="priority of a pool must be a whole number from"):
        Pool(1, priority=priority)
    assert [Pool(1, priority=edge).priority for edge in (-(2**31), 2**31 - 1)] == [-(2**31), 2**31 - 1]
