"""The settings an app of Celery's is given."""

from __future__ import annotations

from typing import Any

import celery
import pytest

from fairsched import ConfigurationError, Lanes
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "tenant"}, "key must be 'queue', 'header:NAME', 'property:NAME' or a function, got 'tenant'"),
        ({"key": "property:tenant"}, "key 'property:tenant': no such property; there are app_id, "),
        ({"lanes": "jobs"}, r"lanes must be Lanes\(\.\.\.\) or None, got 'jobs'"),
        ({"lanes": Lanes("jobs", key="header:tenant", ordered=True)}, "lanes 'jobs' are ordered, which "),
    ],
)
def test_wrong_values_are_named(options: dict[str, Any], text: str) -> None:
    app = celery.Celery("shop")
    with pytest.raises(ConfigurationError, match=text):
        fair_shares(app, **options)
    assert not [step for step in app.steps["worker"] if isinstance(step, type) and issubclass(step, Step)]
