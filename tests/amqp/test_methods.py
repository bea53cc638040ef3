"""Methods, contents and frames as a broker reads and writes them, with pamqp as the other side of the wire."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands, encode, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from support.amqpmethods import BROKERS, CLIENTS, EXAMPLES, RESERVED, filled

from fairsched import _probe_codec as probe

CONTENTS = [commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return]
short = st.text("ab-_.:9", max_size=40)  # all that pamqp has in names
tables: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"x": None},
        {"x": [1, {"y": "z"}], "y-" * 60: {"a": {}, "b": 2.5}},
        {"\u00e9": True, "l": [[], "\u00e9"], "n": -1},
    ]
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "shortstr": short,
    "longstr": short,
    "table": tables,
    "bit": st.booleans(),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
}


def methods(kinds: list[type[base.Frame]]) -> st.SearchStrategy[base.Frame]:
    """Generate methods."""

    def drawn(kind: type[base.Frame]) -> st.SearchStrategy[base.Frame]:
        wanted = {name: KINDS[kind.amqp_type(name)] for name in kind.__slots__ if name not in RESERVED}
        return st.fixed_dictionaries(wanted).map(lambda values: filled(kind, values))

    return st.sampled_from(kinds).flatmap(drawn)


def payload(method: base.Frame) -> bytes:
    return frame.marshal(method, 1)[7:-1]


def arguments(method: base.Frame) -> list[Any]:
    return [getattr(method, name) for name in method.__slots__ if name not in RESERVED]


def wire(value: Any) -> Any:
    """Return the probe's form of a value of pamqp's."""
    if isinstance(value, dict):
        return (encode.field_table(value),)
    return value.encode() if isinstance(value, str) else value


def written(method: base.Frame, channel: int) -> bytes:
    """Let the codec write a method that pamqp has."""
    values = [value[0] if isinstance(value, tuple) else value for value in map(wire, arguments(method))]
    if method.name.endswith(".Close"):
        values[2:] = [values[2] << 16 | values[3]]
    return bytes(probe.write(method.index, channel, *values))


def check_read(method: base.Frame) -> None:
    assert probe.read(payload(method)) == [wire(value) for value in arguments(method)]


@given(methods(CLIENTS))
def test_methods_of_clients_are_read(method: base.Frame) -> None:
    check_read(method)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: str(kind.name))
def test_every_method_of_a_client_is_read(kind: type[base.Frame]) -> None:
    for bit in (False, True):
        check_read(filled(kind, EXAMPLES | {"bit": bit}))


@given(methods(CLIENTS), st.data())
def test_a_method_cut_short_or_longer_is_refused(method: base.Frame, data: st.DataObject) -> None:
    whole = payload(method)
    cut = data.draw(st.integers(4, len(whole)))
    assert probe.read(whole[:cut]) == (probe.read(whole) if cut == len(whole) else False)
    assert probe.read(whole + b"\0") is False


def check_written(method: base.Frame, channel: int) -> None:
    number = 0 if method.name.startswith("Connection.") else channel
    assert written(method, number) == frame.marshal(method, number)


@given(methods(BROKERS), st.integers(1, 2**16 - 1))
def test_methods_of_a_broker_are_written(method: base.Frame, channel: int) -> None:
    check_written(method, channel)


@pytest.mark.parametrize("kind", BROKERS, ids=lambda kind: str(kind.name))
def test_every_method_of_a_broker_is_written(kind: type[base.Frame]) -> None:
    for bit in (False, True):
        check_written(filled(kind, EXAMPLES | {"bit": bit}), 5)


def test_channel_open_ok() -> None:
    """pamqp writes a text of one octet for what RabbitMQ leaves empty."""
    assert probe.write(commands.Channel.OpenOk.index, 3) == b"\1\0\3\0\0\0\x08\0\x14\0\x0b\0\0\0\0\xce"


def test_access_request_ok() -> None:
    assert probe.write(30 << 16 | 11, 3, 1) == b"\1\0\3\0\0\0\6\0\36\0\13\0\1\xce"


@given(st.text("ab", min_size=250, max_size=270))
def test_a_reply_text_that_is_too_long_ends_with_dots(text: str) -> None:
    _, _, close = frame.unmarshal(probe.write(commands.Channel.Close.index, 1, 404, text.encode(), 0))
    assert close.reply_text == (text if len(text) <= 255 else text[:252] + "...")


properties = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
            "message_type", "user_id", "app_id",
        ),
        short.filter(bool),
    )
    | {"delivery_mode": st.integers(1, 2), "priority": st.integers(1, 255), "headers": tables.filter(bool)},
)  # fmt: skip


def content_header(values: dict[str, Any], size: int) -> bytes:
    return frame.marshal(ContentHeader(0, size, commands.Basic.Properties(**values)), 1)[7:-1]


@given(methods(CONTENTS), properties, st.binary(max_size=300), st.integers(1, 100), st.integers(0, 5000))
def test_contents_are_written(
    method: base.Frame, values: dict[str, Any], body: bytes, longest: int, ahead: int
) -> None:
    header = content_header(values, len(body))
    args = {name: wire(getattr(method, name)) for name in method.__slots__}
    exchange, key = args.pop("exchange"), args.pop("routing_key")
    data = probe.write_content(method.index, 7, longest, tuple(args.values()), exchange, key, header, body, ahead)
    parts = [body[at : at + longest] for at in range(0, len(body), longest)]
    expected = frame.marshal(method, 7)
    expected += frame.marshal(ContentHeader(0, len(body), commands.Basic.Properties(**values)), 7)
    assert data == expected + b"".join(frame.marshal(ContentBody(part), 7) for part in parts)


NAMES = [name if name != "type" else "message_type" for name in commands.Basic.Properties.__slots__]


@given(properties)
def test_every_property_is_found(values: dict[str, Any]) -> None:
    found = probe.properties(content_header(values, 5))
    assert {NAMES[number]: value for number, value in found.items()} == {
        name: wire(value)[0] if name == "headers" else wire(value) for name, value in values.items()
    }


@given(properties, st.sets(st.sampled_from(NAMES)), st.none() | tables.filter(bool))
def test_a_content_header_is_rewritten(
    values: dict[str, Any], without: set[str], headers: dict[str, Any] | None
) -> None:
    flags = sum(0x8000 >> NAMES.index(name) for name in without)
    kept = {name: value for name, value in values.items() if name not in without}
    if headers is not None:
        kept["headers"] = headers
    table = None if headers is None else encode.field_table(headers)
    assert probe.rewrite(content_header(values, 9), flags, table) == content_header(kept, 9)


@given(st.binary(max_size=60), st.integers(0, 65535), st.integers(1, 60), st.data())
def test_frames_are_found_as_soon_as_they_are_whole(
    found: bytes, channel: int, longest: int, data: st.DataObject
) -> None:
    whole = frame.marshal(ContentBody(found), channel)
    cut = data.draw(st.integers(0, len(whole)))
    word, kind, number, size, part = probe.span(whole[:cut], longest)
    if cut < 7:
        assert (word, kind, number, size) == ("part", 0, 0, 0)
        return
    assert (kind, number, size) == (3, channel, len(found))
    if len(found) > longest:
        assert word == "too long"
    else:
        assert (word, part) == (("whole", found) if cut == len(whole) else ("part", None))
        if cut == len(whole):
            assert probe.span(whole[:-1] + b"\0", longest)[0] == "unended"
