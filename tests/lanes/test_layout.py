"""The layout of lanes: read from the text with which a broker refuses another one."""

from __future__ import annotations

import pytest

from fairsched import Lanes
from fairsched.lanes.layout import disagreement, layout_request


def refusal(here: Lanes, there: Lanes, version: int = 4) -> str:
    """Return RabbitMQ's text, which has 255 bytes at most."""
    received, current = (layout_request(one)["arguments"]["alternate-exchange"] for one in (here, there))
    values = {
        3: f"received '{received}' but current is '{current}'",
        4: f"received the value '{received}' of type 'longstr' but current is the value '{current}' of type 'longstr'",
    }
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '{here.layout}' in vhost '/': "
        + values[version]
    )
    return text if len(text) <= 255 else text[:252] + "..."


@pytest.mark.parametrize(
    "there",
    [
        Lanes("orders", key="header:tenant", buckets=8),
        Lanes("orders", key="header:it's/a", buckets=16),
        Lanes("orders", key="property:app_id", ordered=True),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_both_layouts_are_named(there: Lanes, version: int) -> None:
    here = Lanes("orders", key="header:tenant", buckets=16)
    found = str(disagreement(here, refusal(here, there, version)))
    assert "have buckets=16, key='header:tenant', ordered=False here" in found
    assert f"with buckets={there.buckets}, key={there.key!r}, ordered={there.ordered}. Give all" in found
    assert "delete the exchange 'orders.layout'" in found


@pytest.mark.parametrize("length", [20, 60, 223])
def test_what_the_broker_cut_off_is_not_guessed(length: int) -> None:
    here, there = (Lanes("x" * length, key="header:tenant", buckets=number) for number in (16, 116))
    found = str(disagreement(here, refusal(here, there)))
    assert "have buckets=16, key='header:tenant', ordered=False here" in found
    assert "with other values (PRECONDITION_FAILED" in found


@pytest.mark.parametrize(
    "text",
    [
        "ACCESS_REFUSED - access to exchange 'orders.layout' in vhost '/' refused for user 'x'",
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'orders.layout' in vhost '/'",
        "",
    ],
)
def test_other_refusals_say_nothing_of_other_programs(text: str) -> None:
    assert disagreement(Lanes("orders", key="header:tenant"), text) is None
