"""Texts of the broker that are not UTF-8: a queue's name may be any bytes, and errors quote it."""

from __future__ import annotations

import pika.exceptions
import pytest

from fairsched.amqp.errors import broker_text, describe


@pytest.mark.parametrize(("text", "shown"), [("f\xfcr", "f\xfcr"), (b"f\xfcr", "f\ufffdr"), (b"", "")])
def test_a_text_is_shown_as_text(text: str | bytes, shown: str) -> None:
    assert broker_text(text) == shown
    for kind in (pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ChannelClosedByBroker):
        said = describe(kind(404, text))
        assert shown in said
        assert "b'" not in said
