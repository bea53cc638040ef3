"""The moment at which a message is handled again: against the schedule written out, and what is not allowed."""

from __future__ import annotations

import pickle
import random
import struct
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.spec import Basic, BasicProperties
from support.wiretables import Encoded, field, table

from fairsched import ConfigurationError, Retry
from fairsched.amqp.fieldtables import read_table, replace_fields, write_table
from fairsched.amqp.properties import decode
from fairsched.config.settings import Settings
from fairsched.consumer.handling.retries import attempts_before, copy_properties, delay_declaration, first_declarations
from fairsched.consumer.settings import ConsumerSettings
from fairsched.delivery._delivery import Message
from fairsched.testing import FakeChannel

milliseconds = st.integers(1, 86_400_000)


def schedule(first: int, longest: int, attempt: int) -> int:
    """The delay after an attempt, in milliseconds: doubled by hand."""
    delay = first
    for _ in range(attempt - 1):
        delay = min(longest, 2 * delay)
    return min(longest, delay)


@given(milliseconds, milliseconds, st.integers(1, 999))
def test_delays_double_up_to_the_longest(one: int, other: int, attempt: int) -> None:
    first, longest = sorted((one, other))
    retry = Retry(1000, backoff=(first / 1000, longest / 1000), jitter=False)
    assert retry.delays(attempt) == (schedule(first, longest, attempt) / 1000,)
    assert retry.delay(attempt) == schedule(first, longest, attempt) / 1000


@given(milliseconds, milliseconds, st.integers(1, 999))
def test_jitter_is_within_the_second_half(one: int, other: int, attempt: int) -> None:
    first, longest = sorted((one, other))
    delays = Retry(1000, backoff=(first / 1000, longest / 1000)).delays(attempt)
    whole = schedule(first, longest, attempt)
    expected = {Fraction(whole * step, 8) for step in (5, 6, 7, 8)}
    assert all(min(abs(round(1000 * delay) - one) for one in expected) <= 1 for delay in delays)
    assert 1 <= len(delays) <= 4
    assert delays[-1] == whole / 1000
    assert all(delay >= 0.001 for delay in delays)


def test_jitter_takes_every_step_equally_often() -> None:
    random.seed(1)
    retry = Retry(backoff=8)
    counts = Counter(retry.delay(3) for _ in range(4000))
    assert set(counts) == {5.0, 6.0, 7.0, 8.0}
    assert min(counts.values()) > 850


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0}, {"max_attempts": True}, {"max_attempts": 1001}, {"max_attempts": "5"}, {"backoff": 0},
        {"backoff": (5, 1)}, {"backoff": (1, 2, 3)}, {"backoff": float("nan")}, {"backoff": (1, float("inf"))},
        {"backoff": "1s"}, {"jitter": 1}, {"on": KeyboardInterrupt}, {"on": ()}, {"on": "ValueError"},
        {"on": (ValueError, BaseException)}, {"dead_letter": ""}, {"dead_letter": True}, {"dead_letter": 3},
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_named(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ConfigurationError) as caught:
        Retry(**options)
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_retry_is_immutable_and_can_be_pickled() -> None:
    retry = Retry(3, backoff=[1, 5], on=(OSError, ValueError))
    assert pickle.loads(pickle.dumps(retry)) == retry
    with pytest.raises(AttributeError):
        retry.max_attempts = 4


def test_which_failures_are_retried() -> None:
    assert Retry().wants(None, ValueError())
    assert not Retry(on=(OSError, KeyError)).wants(None, ValueError())
    assert Retry(on=(OSError, KeyError)).wants(None, ConnectionResetError())
    assert Retry(on=lambda message, error: message == "m" and "again" in str(error)).wants("m", ValueError("again"))


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", Retry(3)),
        ("max_attempts=3,backoff=500ms:5m,jitter=off", Retry(3, backoff=(0.5, 300), jitter=False)),
        ('{"backoff": ["2s", "1m"], "dead_letter": "failed"}', Retry(backoff=(2, 60), dead_letter="failed")),
        ("backoff=10s,dead_letter=false", Retry(backoff=10, dead_letter=False)),
    ],
)
def test_text_becomes_a_retry(text: str, expected: Retry) -> None:
    for settings in (Settings.load({"retry": text}, environ={}), Settings.load(environ={"FAIRSCHED_RETRY": text})):
        assert settings.consumer_options() == {"retry": expected}
        assert pickle.loads(pickle.dumps(settings)) == settings
    assert Settings.load({"retry": "off"}, environ={}).consumer_options() == {"retry": None}


@pytest.mark.parametrize(
    "text", ["0", "attempts=3", "backoff=soon", "backoff=5s:1s", "jitter=perhaps", "max_attempts=x"]
)
def test_text_that_is_no_retry_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"retry must be .* a table of max_attempts"):
        Settings.load({"retry": text}, environ={})


@pytest.mark.parametrize(
    ("queues", "retry", "match"),
    [
        (["q"], 5, "retry must be a fairsched.Retry"),
        (["q" * 250], Retry(), "at most 255 bytes"),
        (["q", "failed"], Retry(dead_letter="failed"), "needs queue 'failed' for itself"),
        (["ü" * 122], Retry(), "at most 255 bytes"),
        # The delays are 1, 2 and 4 seconds.
        (["q", "q.retry.2000"], Retry(4, backoff=(1, 4), jitter=False), "needs queue 'q.retry.2000' for itself"),
        (["q"], Retry(4, backoff=(1, 4), jitter=False, dead_letter="q.retry.4000"), "must be another queue than"),
        (
            ["q", "q.retry.1"],
            Retry(2, backoff=1, jitter=False, dead_letter="q.retry.1.retry.1000"),
            "in which messages of queue 'q.retry.1' wait",
        ),
    ],
)
def test_what_a_consumer_refuses(queues: list[str], retry: Any, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        ConsumerSettings("amqp://localhost", queues, retry=retry)


def test_names_that_only_look_alike_are_allowed() -> None:
    retry = Retry(4, backoff=(1, 4), jitter=False)
    found = ConsumerSettings("amqp://localhost", ["q", "q.retry.3000", "q.retry", "ü" * 120], retry=retry)
    assert set(found.retries) == {"q", "q.retry.3000", "q.retry", "ü" * 120}


def test_all_delays_are_those_of_any_attempt() -> None:
    for retry in (Retry(), Retry(1), Retry(1000, backoff=(0.001, 86_400)), Retry(7, backoff=3, jitter=False)):
        attempts = range(1, retry.max_attempts)
        assert retry.all_delays() == {delay for attempt in attempts for delay in retry.delays(attempt)}


def test_what_is_declared() -> None:
    retry = Retry(backoff=2, jitter=False, dead_letter="{queue}-failed")
    one, two = first_declarations({"q": retry})
    assert (one, two.queue, two.if_missing) == (delay_declaration("q", 2), "q-failed", True)
    assert one.queue == "q.retry.2000"
    assert one.arguments == {
        "x-queue-type": "classic", "x-message-ttl": 2000, "x-expires": 602_000, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "q",
    }  # fmt: skip
    assert first_declarations({"q": Retry(1, dead_letter=False)}) == []


# Copies ---------------------------------------------------------------------------------------------------------------


def message(properties: Any) -> Message:
    method = Basic.Deliver("tag", 1, False, "events", "gold.new")
    if isinstance(properties, BasicProperties):
        return Message(b"body", 1, False, method, properties, FakeChannel("gold"))
    return Message(b"body", 1, False, method, struct.pack(">HHQ", 60, 0, 4) + properties, FakeChannel("gold"))


def copied(found: Message, attempt: int = 1, error: Exception | None = None) -> BasicProperties:
    return decode(struct.pack(">HHQ", 60, 0, 4) + copy_properties(found, attempt, error or ValueError("bad")))


PROPERTIES = {
    "content_type": "text/plain", "priority": 7, "delivery_mode": 2, "message_id": "m", "correlation_id": "c",
    "reply_to": "r", "timestamp": 1_700_000_000, "type": "t", "app_id": "a", "content_encoding": "gzip",
}  # fmt: skip


@pytest.mark.parametrize("encoded", [True, False])
def test_a_copy_has_what_the_message_had(encoded: bool) -> None:
    given = BasicProperties(headers={"a": 1, "b": {"c": [1, None]}}, **PROPERTIES)
    found = copied(message(b"".join(given.encode()) if encoded else given))
    assert {name: getattr(found, name) for name in PROPERTIES} == PROPERTIES
    assert found.headers == {
        "a": 1, "b": {"c": [1, None]}, "x-attempts": 1, "x-exception": "ValueError: bad",
        "x-original-queue": "gold", "x-original-exchange": "events", "x-original-routing-key": "gold.new",
    }  # fmt: skip


def test_a_copy_lacks_what_would_lead_it_astray() -> None:
    death = [{"queue": "gold", "reason": "expired", "count": 1}]
    headers = {"CC": ["other"], "BCC": ["x"], "x-death": death, "x-first-death-queue": "gold"}
    found = copied(message(BasicProperties(expiration="5", user_id="else", headers=headers)))
    assert (found.expiration, found.user_id) == (None, None)
    assert found.headers == {
        "x-attempts": 1, "x-exception": "ValueError: bad", "x-original-queue": "gold",
        "x-original-exchange": "events", "x-original-routing-key": "gold.new", "x-original-expiration": "5",
        "x-original-user-id": "else", "x-original-cc": ["other"], "x-original-death": death,
    }  # fmt: skip


def test_the_copy_of_a_copy_keeps_the_first() -> None:
    first = copied(message(BasicProperties(expiration="5", headers={"x-death": [{"queue": "before"}]})))
    first.headers["x-death"] = [{"queue": "gold.retry.1000"}]
    second = copied(message(first), 2, KeyError("other"))
    assert second.headers == {
        "x-attempts": 2, "x-exception": "KeyError: 'other'", "x-original-queue": "gold",
        "x-original-exchange": "events", "x-original-routing-key": "gold.new", "x-original-expiration": "5",
        "x-original-death": [{"queue": "before"}],
    }  # fmt: skip


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unprintable(), "Unprintable"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 988),
        (ValueError("\ud800"), "ValueError: ?"),
    ],
)
def test_any_exception_becomes_a_header(error: Exception, text: str) -> None:
    assert copied(message(BasicProperties()), error=error).headers["x-exception"] == text


def test_headers_that_cannot_be_decoded_are_copied_as_they_are() -> None:
    headers = table(field(b"bad", b"?", b""))
    given = b"".join(Encoded(headers, app_id="app", expiration="5").encode())
    expected = b"".join(Encoded(headers, app_id="app").encode())
    assert copy_properties(message(given), 1, ValueError()) == expected
    assert attempts_before(message(given)) == 0


@pytest.mark.parametrize(
    ("value", "attempts"),
    [(3, 3), (0, 0), (-1, 0), (2**63 - 1, 1_000_000), ("3", 0), (True, 0), (None, 0), ([3], 0)],
)
def test_attempts_are_read_from_a_header(value: Any, attempts: int) -> None:
    headers = {"x-attempts": value, "x-original-queue": "gold"}
    found = message(BasicProperties(headers=headers))
    assert attempts_before(found) == attempts
    assert copied(found, attempts + 1).headers["x-attempts"] == attempts + 1
    assert attempts_before(message(BasicProperties())) == 0


@pytest.mark.parametrize("queue", [{}, {"x-original-queue": "other"}, {"x-original-queue": ["gold"]}])
def test_attempts_at_another_queue_are_none_at_this_one(queue: dict[str, Any]) -> None:
    found = message(BasicProperties(headers={"x-attempts": 5, **queue}))
    assert attempts_before(found) == 0
    again = message(copied(found))
    assert (again.headers["x-original-queue"], attempts_before(again)) == ("gold", 1)


@pytest.mark.parametrize("name", ["x-death", "CC"])
def test_what_cannot_be_written_again_is_left_out_of_a_copy_that_counts(name: str) -> None:
    headers = table(field(name.encode(), b"T", b"\xff" * 8), field(b"a", b"I", b"\0\0\0\1"))
    found = copied(message(b"".join(Encoded(headers, app_id="app").encode())))
    assert found.app_id == "app"
    assert found.headers == {
        "a": 1, "x-attempts": 1, "x-exception": "ValueError: bad", "x-original-queue": "gold",
        "x-original-exchange": "events", "x-original-routing-key": "gold.new",
    }  # fmt: skip


values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.binary(max_size=5)
tables = st.dictionaries(st.text(max_size=5), values | st.lists(values, max_size=3), max_size=5)


@given(tables, tables, st.lists(st.text(max_size=5), max_size=3))
def test_fields_are_replaced_as_in_a_dict(old: dict[str, Any], new: dict[str, Any], gone: list[str]) -> None:
    found, end = read_table(replaced := replace_fields(write_table(old), new, gone), 0)
    assert end == len(replaced)
    kept = {name: value for name, value in old.items() if name not in gone}
    assert found == {**kept, **new}


def test_fields_that_stay_keep_their_bytes() -> None:
    odd = table(
        field(b"f", b"f", struct.pack(">f", 1.5)), field(b"s", b"s", struct.pack(">h", 3)), field(b"x", b"V", b"")
    )
    assert replace_fields(odd, {"x": 1}) == table(
        field(b"f", b"f", struct.pack(">f", 1.5)), field(b"s", b"s", struct.pack(">h", 3)),
        field(b"x", b"I", struct.pack(">i", 1)),
    )  # fmt: skip


@given(st.binary(max_size=40))
def test_no_bytes_are_trusted(data: bytes) -> None:
    try:
        read_table(replace_fields(data, {"a": 1}), 0)
    except ValueError:
        pass
