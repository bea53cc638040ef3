"""Random changes of exchanges, queues and bindings, and random messages for them."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, NamedTuple

from support.wiretables import written

Table = list[tuple[bytes, str, Any]]

EXCHANGES = [b"x%d" % number for number in range(6)]
QUEUES = [b"q%d" % number for number in range(5)]
KINDS = [b"direct", b"fanout", b"topic", b"topic", b"headers", b"headers", b"x-consistent-hash"]
WORDS = [b"a", b"b", b"", b"*", b"#", b"#", b"a"]
NAMES = [b"a", b"b", b"c", b"x-d", b"h", b"CC"]
MODES = [b"all", b"any", b"all-with-x", b"any-with-x", b"some"]


class Change(NamedTuple):
    """A change, and its arguments."""

    what: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def binds(self) -> bool:
        """Whether it is about a binding."""
        return self.what in ("bind", "unbind")

    @property
    def coded(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and options with tables as octets."""
        coded, options = self.arguments, dict(self.options)
        if self.binds:
            source, (kind, name), key, table = self.arguments
            coded, options = (source, name, key, written(table)), {"to_exchange": kind == "exchange"}
        if "arguments" in self.options:
            options["arguments"] = written(self.options["arguments"])
        return coded, options


class Message(NamedTuple):
    exchange: bytes
    key: bytes
    headers: Table | None
    properties: dict[str, Any]

    @property
    def content_header(self) -> bytes:
        """The payload of the frame: RabbitMQ's order of flags is that of the properties."""
        flags, values = 0, b""
        if self.headers is not None:
            flags, values = 0x2000, written(self.headers)
        if "correlation_id" in self.properties:
            flags, values = flags | 0x0400, values + short(self.properties["correlation_id"])
        if "message_id" in self.properties:
            flags, values = flags | 0x0080, values + short(self.properties["message_id"])
        if "timestamp" in self.properties:
            flags, values = flags | 0x0040, values + struct.pack(">Q", self.properties["timestamp"])
        return struct.pack(">HHQH", 60, 0, 0, flags) + values


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def some_value(random: Random, depth: int = 2) -> tuple[str, Any]:
    """A kind and a value; few values, so that they are often the same in different kinds."""
    kind = random.choice("bBsuIilLfdTttVSSxD" + "AF" * (depth > 0))
    if kind in "BTui":
        return kind, random.choice([0, 1, 2])
    if kind in "bsIlLfd":
        return kind, random.choice([0, 1, 2, -1])
    if kind == "t":
        return kind, random.random() < 0.5
    if kind in "Sx":
        return kind, random.choice([b"", b"1", b"true"])
    if kind == "D":
        return kind, (random.choice([0, 1]), random.choice([0, 1]))
    if kind == "A":
        return kind, [some_value(random, depth - 1) for _ in range(random.choice([0, 1, 1, 2]))]
    return kind, some_table(random, depth - 1) if kind == "F" else None


def some_table(random: Random, depth: int = 2, most: int = 3) -> Table:
    return [(random.choice(NAMES[:5]), *some_value(random, depth)) for _ in range(random.randrange(most + 1))]


def some_key(random: Random, wild: bool) -> bytes:
    pool = WORDS if wild else WORDS[:3]
    return b".".join(random.choice(pool) for _ in range(random.choice([0, 1, 1, 2, 3, 4])))


def some_hashed(random: Random) -> tuple[str, Any]:
    """The value of a header to be hashed, of a kind that pika tells from others."""
    kind = random.choice("SSxIldtT")
    value = {
        "S": b"%d" % random.randrange(50), "x": b"%d" % random.randrange(50), "I": random.randrange(-50, 50),
        "l": random.choice([-1, 1]) * random.randrange(2**32, 2**62), "d": random.random(),
        "t": random.random() < 0.5, "T": random.randrange(2**31),
    }  # fmt: skip
    return kind, value[kind]


def some_declaration(random: Random) -> Change:
    name, kind = random.choice([*EXCHANGES, *EXCHANGES, b"amq.direct", b"amq.new", b""]), random.choice(KINDS)
    arguments: Table = []
    if random.random() < 0.4:
        kind_of_name = "S" if random.random() < 0.95 else "I"
        name_of_other = random.choice([*EXCHANGES, b"", b"nobody"])
        arguments.append((b"alternate-exchange", kind_of_name, name_of_other if kind_of_name == "S" else 1))
    if kind == b"x-consistent-hash" and random.random() < 0.7:
        if random.random() < 0.5:
            arguments.append((b"hash-header", "S", b"h"))
        if random.random() < 0.5:
            named = random.choice([b"message_id", b"correlation_id", b"timestamp", b"app_id"])
            arguments.append((b"hash-property", "S", named))
    options = {
        "durable": random.random() < 0.3, "auto_delete": random.random() < 0.3, "internal": random.random() < 0.1,
        "arguments": arguments,
    }  # fmt: skip
    return Change("declare", (name, random.choice([kind] * 20 + [b"indirect"])), options)


def some_binding(random: Random, kinds: dict[bytes, bytes]) -> tuple[Any, ...]:
    source = random.choice(
        [*EXCHANGES, *EXCHANGES, *EXCHANGES, b"amq.topic", b"amq.match", b"amq.fanout", b"", b"nobody"]
    )
    if random.random() < 0.35:
        destination = ("exchange", random.choice([*EXCHANGES, *EXCHANGES, b"amq.direct", b""]))
    else:
        destination = ("queue", random.choice(QUEUES))
    kind = kinds.get(source)
    key, arguments = some_key(random, True), [] if random.random() < 0.8 else some_table(random)
    if kind == b"x-consistent-hash":
        key = random.choice([b"1", b"2", b"3", b"+5", b"007", b"20", b"0", b"-1", b"x", b" 5", b"1_0", b""])
    if kind == b"headers":
        arguments = some_table(random)
        if random.random() < 0.8:
            arguments.append((b"x-match", "S", random.choice(MODES)))
    return source, destination, key, arguments


def some_change(random: Random, kinds: dict[bytes, bytes], bindings: list[tuple[Any, ...]]) -> Change:
    """`kinds` of the exchanges that there are, and what was bound so far, so that most changes mean something."""
    chance = random.random()
    if chance < 0.25:
        return some_declaration(random)
    if chance < 0.3:
        return Change("delete", (random.choice([*EXCHANGES, b"amq.topic", b""]), random.random() < 0.5), {})
    if chance < 0.4:
        return Change("add_queue", (random.choice(QUEUES),), {})
    if chance < 0.43:
        return Change("remove_queue", (random.choice(QUEUES),), {})
    if chance < 0.52 and bindings:
        return Change("unbind", random.choice(bindings), {})
    return Change("bind", some_binding(random, kinds), {})


def some_message(random: Random) -> Message:
    headers = None
    if random.random() < 0.8:
        headers = [item for item in some_table(random, most=4) if item[0] != b"h"]
        if random.random() < 0.7:
            headers.append((b"h", *some_hashed(random)))
        for name in (b"CC", b"BCC"):
            if random.random() < 0.2:
                keys = [("S", random.choice([*QUEUES, some_key(random, False)])) for _ in range(random.randrange(3))]
                headers.append((name, "A", [*keys, ("I", 1)] if random.random() < 0.2 else keys))
            elif random.random() < 0.01:
                headers.append((name, "S", b"q0"))
    properties: dict[str, Any] = {}
    for name in ("message_id", "correlation_id"):
        if random.random() < 0.4:
            properties[name] = str(random.randrange(100))
    if random.random() < 0.4:
        properties["timestamp"] = random.randrange(2**32)
    exchange = random.choice(
        [*EXCHANGES, *EXCHANGES, *EXCHANGES, b"amq.topic", b"amq.match", b"amq.direct", b"", b"no"]
    )
    return Message(
        exchange, random.choice([*QUEUES, some_key(random, True), some_key(random, False)]), headers, properties
    )
