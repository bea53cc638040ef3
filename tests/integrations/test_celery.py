"""The settings an app of Celery's is given."""

from __future__ import annotations

import celery
import pytest

from fairsched import ConfigurationError
from fairsched.integrations.celery import Step, fair_shares


def test_the_last_call_counts() -> None:
    app = celery.Celery("shop")
    with pytest.raises(ConfigurationError, match="weight of 'gold' must be"):
        fair_shares(app, {"gold": 0})
    for weight in (1, 2):
        before = set(app.steps["worker"])
        fair_shares(app, {"gold": weight})
    [step] = [step for step in app.steps["worker"] if isinstance(step, type) and issubclass(step, Step)]
    assert step not in before
