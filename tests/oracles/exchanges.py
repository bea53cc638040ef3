"""RabbitMQ's treatment of exchanges, bindings and messages, in plain Python, written for reading.

Tables are lists of (name, kind, value) as in support/wiretables. Names are bytes.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fairsched.routing import MISSING, RabbitMQHash

Table = list[tuple[bytes, str, Any]]

TYPES = {b"direct", b"fanout", b"topic", b"headers", b"x-consistent-hash"}
PREDECLARED = {
    b"": b"direct", b"amq.direct": b"direct", b"amq.fanout": b"fanout", b"amq.headers": b"headers",
    b"amq.match": b"headers", b"amq.rabbitmq.trace": b"topic", b"amq.topic": b"topic",
}  # fmt: skip


class Refused(Exception):
    """With RabbitMQ's code."""


def look_up(table: Table, name: bytes) -> tuple[str, Any] | None:
    return next(((kind, value) for found, kind, value in table if found == name), None)


# Topics --------------------------------------------------------------------------------------------------------------


def words(key: bytes) -> tuple[bytes, ...]:
    return tuple(key.split(b".")) if key else ()


@lru_cache(maxsize=100_000)
def topic_matches(pattern: tuple[bytes, ...], key: tuple[bytes, ...]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == b"#":
        return topic_matches(pattern[1:], key) or (bool(key) and topic_matches(pattern, key[1:]))
    return bool(key) and pattern[0] in (b"*", key[0]) and topic_matches(pattern[1:], key[1:])


# Headers -------------------------------------------------------------------------------------------------------------

NUMBERS = "bBsuIilLfdT"


def types_equal(kind: str, other: str) -> bool:
    return kind == other or {kind, other} == {"l", "L"}


def equal(kind: str, value: Any, other_kind: str, other: Any) -> bool:
    """Erlang's ==."""
    if kind in "AF" and other_kind in "AF":
        if not value and not other:
            return True
        return (
            kind == other_kind
            and len(value) == len(other)
            and all(
                one[:-2] == two[:-2] and types_equal(one[-2], two[-2]) and equal(one[-2], one[-1], two[-2], two[-1])
                for one, two in zip(value, other, strict=True)
            )
        )
    for kinds in (NUMBERS, "Sx", "t", "V", "D"):
        if kind in kinds:
            return other_kind in kinds and bool(kind == "V" or value == other)
    return False


def headers_match(arguments: Table, headers: Table) -> bool:
    """Field by field in the order of their names; of several of one name, the first against the first."""
    _, mode = look_up(arguments, b"x-match") or ("S", b"all")
    pattern = sorted(arguments, key=lambda field: field[0])
    data = sorted(headers, key=lambda field: field[0])
    results = []
    for name, kind, value in pattern:
        if name == b"x-match" or (name.startswith(b"x-") and not mode.endswith(b"-with-x")):
            continue
        while data and data[0][0] < name:
            data.pop(0)
        if not data or data[0][0] != name:
            results.append(False)
        else:
            _, other_kind, other = data.pop(0)
            results.append(kind == "V" or equal(kind, value, other_kind, other))
    return all(results) if mode.startswith(b"all") else any(results)


# The whole -----------------------------------------------------------------------------------------------------------


@dataclass
class Binding:
    source: bytes
    destination: tuple[str, bytes]  # "queue" or "exchange", and its name
    key: bytes
    arguments: Table

    def identity(self) -> tuple[Any, ...]:
        arguments = sorted(self.arguments, key=lambda field: field[0])
        return self.source, self.destination, self.key, repr(arguments).replace("'L'", "'l'")


@dataclass
class Exchange:
    kind: bytes
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=list)
    hash: RabbitMQHash | None = None


class Broker:
    """One virtual host.

    Parameters
    ----------
    typed_headers : bool
        Whether a consistent-hash exchange hashes the types of headers, as before RabbitMQ 3.13.
    """

    def __init__(self, *, typed_headers: bool = False) -> None:
        self.typed = typed_headers
        self.queues: set[bytes] = set()
        self.exchanges = {
            name: Exchange(kind, durable=True, internal=name == b"amq.rabbitmq.trace")
            for name, kind in PREDECLARED.items()
        }
        self.bindings: list[Binding] = []

    # Changing ---------------------------------------------------------------------------------------------------------

    def declare(
        self, name: bytes, kind: bytes, *, durable: bool = False, auto_delete: bool = False, internal: bool = False,
        arguments: Table | None = None,
    ) -> None:  # fmt: skip
        if kind not in TYPES:
            raise Refused(503)
        if name == b"":
            raise Refused(403)
        arguments = arguments or []
        new = Exchange(kind, durable, auto_delete, internal, arguments)
        old = self.exchanges.get(name)
        if old is not None:
            self.check_same(old, new)
            return
        if name.startswith(b"amq."):
            raise Refused(403)
        kinds = [look_up(arguments, key) for key in (b"alternate-exchange", b"hash-header", b"hash-property")]
        if kinds[0] is not None and kinds[0][0] != "S":
            raise Refused(406)
        if kind == b"x-consistent-hash":
            if kinds[2] is not None and (
                kinds[1] is not None or kinds[2][1] not in (b"correlation_id", b"message_id", b"timestamp")
            ):
                raise Refused(406)
            new.hash = RabbitMQHash(typed_headers=self.typed, max_weight=None)
        self.exchanges[name] = new

    def check_same(self, old: Exchange, new: Exchange) -> None:
        if (old.kind, old.durable, old.auto_delete, old.internal) != (
            new.kind, new.durable, new.auto_delete, new.internal,
        ):  # fmt: skip
            raise Refused(406)
        before, now = (look_up(x.arguments, b"alternate-exchange") for x in (old, new))
        if before != now and (before is None or now is None or not equal(*before, *now)):
            raise Refused(406)

    def delete(self, name: bytes, if_unused: bool = False) -> None:
        if name == b"" or name.startswith(b"amq."):
            raise Refused(403)
        if name not in self.exchanges:
            return
        if if_unused and any(binding.source == name for binding in self.bindings):
            raise Refused(406)
        self.end_exchange(name)

    def end_exchange(self, name: bytes) -> None:
        del self.exchanges[name]
        self.bindings = [binding for binding in self.bindings if binding.source != name]
        self.end_bindings_to(("exchange", name))

    def end_bindings_to(self, destination: tuple[str, bytes]) -> None:
        for binding in [binding for binding in self.bindings if binding.destination == destination]:
            if binding in self.bindings:
                self.end_binding(binding)

    def end_binding(self, binding: Binding) -> None:
        self.bindings.remove(binding)
        source = self.exchanges.get(binding.source)
        if source is None:
            return
        if source.hash is not None:
            source.hash.unbind(str(binding.destination), binding.key.decode())
        if source.auto_delete and all(other.source != binding.source for other in self.bindings):
            self.end_exchange(binding.source)

    def add_queue(self, name: bytes) -> None:
        self.queues.add(name)

    def remove_queue(self, name: bytes) -> None:
        self.queues.discard(name)
        self.end_bindings_to(("queue", name))

    def exists(self, destination: tuple[str, bytes]) -> bool:
        return destination[1] in (self.queues if destination[0] == "queue" else self.exchanges)

    def bind(self, source: bytes, destination: tuple[str, bytes], key: bytes, arguments: Table) -> None:
        if source == b"" or destination == ("exchange", b""):
            raise Refused(403)
        if source not in self.exchanges or not self.exists(destination):
            raise Refused(404)
        exchange = self.exchanges[source]
        binding = Binding(source, destination, key, arguments)
        if exchange.hash is not None and (not re.fullmatch(rb"[+-]?[0-9]+", key) or int(key) < 1):
            raise Refused(406)
        if exchange.kind == b"headers":
            kind, mode = look_up(arguments, b"x-match") or ("S", b"all")
            if kind != "S" or mode not in (b"all", b"any", b"all-with-x", b"any-with-x"):
                raise Refused(406)
        if all(other.identity() != binding.identity() for other in self.bindings):
            self.bindings.append(binding)
            if exchange.hash is not None:
                exchange.hash.bind(str(destination), key.decode())

    def unbind(self, source: bytes, destination: tuple[str, bytes], key: bytes, arguments: Table) -> None:
        if source == b"" or destination == ("exchange", b""):
            raise Refused(403)
        wanted = Binding(source, destination, key, arguments).identity()
        for binding in self.bindings:
            if binding.identity() == wanted:
                self.end_binding(binding)
                return

    # Routing ----------------------------------------------------------------------------------------------------------

    def publish(self, name: bytes, key: bytes, headers: Table | None, properties: dict[str, Any]) -> set[bytes]:
        if name not in self.exchanges:
            raise Refused(404)
        if self.exchanges[name].internal:
            raise Refused(403)
        keys = [key]
        for more in (b"CC", b"BCC"):
            found = look_up(headers or [], more)
            if found is not None:
                if found[0] != "A":
                    raise Refused(406)
                keys += [value for kind, value in found[1] if kind == "S"]
        return self.route(name, keys, headers, properties)

    def route(self, name: bytes, keys: list[bytes], headers: Table | None, properties: dict[str, Any]) -> set[bytes]:
        if name == b"":
            return self.queues & set(keys)
        queues, asked, work = set(), {name}, [name]
        while work:
            exchange = work.pop()
            found = self.destinations(exchange, keys, headers or [], properties)
            alternate = look_up(self.exchanges[exchange].arguments, b"alternate-exchange")
            if not found and alternate is not None:
                found = {("exchange", alternate[1])}
            queues |= {name for kind, name in found if kind == "queue"}
            for kind, name in found:
                if kind == "exchange" and name not in asked and name in self.exchanges:
                    asked.add(name)
                    work.append(name)
        return queues

    def destinations(
        self, name: bytes, keys: list[bytes], headers: Table, properties: dict[str, Any]
    ) -> set[tuple[str, bytes]]:
        exchange = self.exchanges[name]
        mine = [binding for binding in self.bindings if binding.source == name]
        if exchange.hash is not None:
            place = self.place(exchange, keys[0], headers, properties)
            return {binding.destination for binding in mine if str(binding.destination) == place}
        matches = {
            b"direct": lambda binding: binding.key in keys,
            b"fanout": lambda binding: True,
            b"topic": lambda binding: any(topic_matches(words(binding.key), words(key)) for key in keys),
            b"headers": lambda binding: headers_match(binding.arguments, headers),
        }[exchange.kind]
        return {binding.destination for binding in mine if matches(binding)}

    def place(self, exchange: Exchange, key: bytes, headers: Table, properties: dict[str, Any]) -> str | None:
        assert exchange.hash is not None
        header, named = (look_up(exchange.arguments, name) for name in (b"hash-header", b"hash-property"))
        if header is not None:
            found = look_up(headers, header[1])
            return exchange.hash.route(header=MISSING if found is None else as_python(*found))
        if named is not None:
            return exchange.hash.route(property=properties.get(named[1].decode()))
        return exchange.hash.route(key)


def as_python(kind: str, value: Any) -> Any:
    """The value of a header as pika gives it."""
    if kind == "S":
        return value.decode()
    return dt.datetime.fromtimestamp(value, dt.UTC) if kind == "T" else value
