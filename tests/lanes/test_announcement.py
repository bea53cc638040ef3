"""Messages of the registry of lanes, sound and malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched import Lanes
from fairsched.lanes.announcement import LONGEST_BODY, Announcement, decode, encode

ORDERS = Lanes("orders", key="header:tenant")
TENANTS = st.one_of(
    st.text(), st.binary(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)
)


@given(TENANTS)
def test_what_is_encoded_is_read(tenant: Any) -> None:
    lane = ORDERS.own_lane_of(tenant)
    found = decode(encode(Announcement(lane, tenant)), ORDERS)
    assert found.lane == lane
    if isinstance(tenant, bytes) and is_utf8(tenant):
        assert found.tenant == tenant.decode()  # which is what a consumer makes of such a header
    else:
        assert found.tenant == tenant
    assert ORDERS.own_lane_of(found.tenant) == lane


@pytest.mark.parametrize("tenant", [b"\xff" * 100_000, "ü" * 60_000])
def test_a_lane_is_found_however_long_its_tenant_is(tenant: Any) -> None:
    lane = ORDERS.own_lane_of(tenant)
    body = encode(Announcement(lane, tenant))
    assert len(body) <= LONGEST_BODY
    assert decode(body, ORDERS) == (lane, None)


def is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"", "the body must be JSON, got b''"),
        (b"\xff\xfe", "the body must be JSON"),
        (b"[" * 100_000, "the body must be JSON"),
        (b"[]", "'lane' must be the name of a lane of 'orders', got None"),
        (b'"orders.tenant.x"', "'lane' must be"),
        (b"{}", "'lane' must be"),
        (b'{"lane": 5}', "'lane' must be the name of a lane of 'orders', got 5"),
        (b'{"lane": "orders"}', "got 'orders'"),
        (b'{"lane": "orders.bucket.0"}', "got 'orders.bucket.0'"),
        (b'{"lane": "mails.tenant.x"}', "got 'mails.tenant.x'"),
        (b'{"lane": "orders.tenant.\\ud800"}', "'lane' must be"),
        (json.dumps({"lane": "orders.tenant." + "x" * 300}).encode(), "'lane' must be"),
        (b'{"lane": "orders.tenant.x", "tenant": []}', "'tenant' must be text, .* got list"),
        (b'{"lane": "orders.tenant.x", "tenant": {"a": 1}}', "'tenant' must be text, .* got dict"),
        (b" " * (LONGEST_BODY + 1), f"at most {LONGEST_BODY} bytes, got {LONGEST_BODY + 1}"),
    ],
)
def test_malformed(body: bytes, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        decode(body, ORDERS)


@given(st.binary())
def test_any_body_is_read_or_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="must"):
        decode(body, ORDERS)


@given(
    st.recursive(
        TENANTS.filter(lambda x: not isinstance(x, bytes)), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        decode(json.dumps(value).encode(), ORDERS)
