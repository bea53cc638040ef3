"""The same calls by py-amqp's transport and by the compiled one have the same results."""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import logging
import os
import threading
import uuid
from collections.abc import Callable
from typing import Any

import amqp
import kombu
import pytest
from support.kombu_workers import TRANSPORTS, connection
from support.rabbitmq import Broker
from support.waiting import eventually

#: Seconds until something has happened that must.
SOON = 30


def q(ch: Any, **options: Any) -> str:
    """Declare a queue."""
    name = f"kombu-same-{uuid.uuid4().hex[:8]}"
    ch.queue_declare(name, durable=True, auto_delete=False, **options)
    return name


def pub(ch: Any, name: str, *bodies: Any) -> None:
    """Publish to a queue."""
    for body in bodies:
        ch.basic_publish(amqp.Message(body), routing_key=name)


def publish(ch: Any, name: str, body: Any, **properties: Any) -> None:
    """Publish a message with properties; its making is part of what may fail."""
    ch.basic_publish(amqp.Message(body, **properties), routing_key=name)


def left(c: kombu.Connection, name: str, expected: int) -> None:
    """Wait until a queue has so many messages: after a channel was closed, the broker returns its messages later."""

    def count() -> int:
        channel = c.channel()
        found: int = channel.queue_declare(name, passive=True).message_count
        channel.close()
        return found

    eventually(lambda: count() == expected, SOON, f"{name} has {expected} messages, not {count()}")


def exc(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, Any]:
    """Call a function; return the class of its result or of its error, and the reply code."""
    try:
        return "ok", type(function(*arguments, **options)).__name__
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}", getattr(error, "reply_code", None)


def drain(c: kombu.Connection, count: int = 1) -> None:
    """Handle so many methods."""
    for _ in range(count):
        c.drain_events(timeout=SOON)


def delete(t: str, url: str, name: str) -> None:
    """Delete a queue by another connection, which does not meet what the first is told of that."""
    with connection(t, url) as other:
        other.channel().queue_delete(name)


def fetch(ch: Any, name: str) -> Any:
    """Get a message that was just published, None if the channel ends instead."""
    found: list[Any] = [None]

    def get() -> bool:
        found[0] = ch.basic_get(name, no_ack=True)
        return found[0] is not None or not ch.is_open

    eventually(get, SOON)
    return found[0]


SCENARIOS: dict[str, Any] = {}


def scenario(function: Any) -> Any:
    """Keep a scenario: it gets a connection, the transport's name and the broker's URL, and returns what it saw."""
    SCENARIOS[function.__name__] = function
    return function


@scenario
def unknown_tag(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1")
    seen = []
    ch.basic_consume(name, callback=seen.append)
    drain(c)
    ch.basic_ack(99)
    return exc(drain, c), ch.is_open


@scenario
def ack_twice(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2")
    seen = []
    ch.basic_consume(name, callback=seen.append)
    drain(c, 2)
    ch.basic_ack(1)
    ch.basic_ack(1)
    return exc(drain, c), ch.is_open, left(c, name, 1)


@scenario
def multiple(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"%d" % i for i in range(5)])
    seen = []
    ch.basic_consume(name, callback=seen.append)
    drain(c, 5)
    ch.basic_ack(3, multiple=True)
    ch.basic_reject(4, requeue=False)
    ch.close()
    return len(seen), left(c, name, 1)


@scenario
def ack_zero_multiple(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"%d" % i for i in range(5)])
    seen = []
    ch.basic_consume(name, callback=seen.append)
    drain(c, 5)
    ch.basic_ack(0, multiple=True)
    ch.close()
    return left(c, name, 0)


@scenario
def odd_tags(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    return [exc(ch.basic_ack, x) for x in (-1, 2**64, "1", None, 1.5, True)]


@scenario
def tx(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2")
    seen = []
    ch.tx_select()
    ch.basic_consume(name, callback=seen.append)
    drain(c, 2)
    ch.basic_ack(1)
    ch.tx_rollback()
    ch.basic_ack(2)
    ch.tx_commit()
    ch.basic_ack(1)
    ch.tx_commit()
    pub(ch, name, b"3")
    ch.tx_rollback()
    pub(ch, name, b"4")
    ch.tx_commit()
    ch.close()
    return left(c, name, 1)


@scenario
def tx_after_acks(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"x"] * 20)
    seen = []

    def cb(m):
        seen.append(m)
        if len(seen) <= 5:
            ch.basic_ack(m.delivery_tag)

    ch.basic_consume(name, callback=cb)
    drain(c, 20)
    ch.tx_select()
    ch.basic_ack(20, multiple=True)
    ch.tx_rollback()
    ch.close()
    return left(c, name, 15)


@scenario
def recover(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2")
    seen = []
    ch.basic_consume(name, callback=lambda m: seen.append((m.body, m.delivery_tag, m.delivery_info["redelivered"])))
    drain(c, 2)
    ch.basic_ack(1)
    ch.basic_recover(requeue=True)
    drain(c, 2)
    ch.basic_ack(3)
    ch.close()
    return seen, left(c, name, 0)


@scenario
def returns(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    got = []
    ch.events["basic_return"].add(lambda exc, ex, rk, m: got.append((type(exc).__name__, ex, rk, m.body)))
    ch.basic_publish(amqp.Message("x"), routing_key="nowhere-x", mandatory=True)
    r = exc(drain, c)
    return got, r


@scenario
def confirm_return(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    ch.confirm_select()
    got = []
    ch.events["basic_return"].add(lambda exc, ex, rk, m: got.append((type(exc).__name__, ex, rk, m.body)))
    r = exc(ch.basic_publish_confirm, amqp.Message("x"), routing_key="nowhere-x", mandatory=True)
    return got, r


@scenario
def acks_events(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    ch.confirm_select()
    got = []
    ch.events["basic_ack"].add(lambda tag, multiple: got.append(tag))
    ch.events["basic_nack"].add(lambda tag, multiple: got.append(-tag))
    ch.basic_publish(amqp.Message("x"), routing_key=name)
    drain(c)
    return got


@scenario
def nack_confirm(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    ch.confirm_select()
    return [exc(ch.basic_publish_confirm, amqp.Message("x"), routing_key=name) for _ in range(3)]


@scenario
def missing_exchange(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    ch.basic_publish(amqp.Message("x"), exchange="no-such", routing_key="x")
    r = exc(drain, c)
    return r, ch.is_open, exc(ch.basic_publish, amqp.Message("x"), routing_key="x")


@scenario
def missing_exchange_confirm(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    ch.confirm_select()
    return exc(ch.basic_publish_confirm, amqp.Message("x"), exchange="no-such", routing_key="x"), ch.is_open


@scenario
def odd_consumer_tags(c: kombu.Connection, t: str, url: str) -> Any:
    """Without an answer, the tag is what the caller gave."""
    ch = c.channel()
    name = q(ch)
    tags = type("Tag", (str,), {})("a"), b"b", "c"
    return [exc(ch.basic_consume, name, consumer_tag=tag, callback=print, nowait=True) for tag in tags]


@scenario
def cancel_by_broker(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    got = []
    ch.basic_consume(name, callback=print, consumer_tag="ct", on_cancel=got.append)
    delete(t, url, name)
    return exc(drain, c), got


@scenario
def cancel_by_broker_raises(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    ch.basic_consume(name, callback=print, consumer_tag="ct")
    delete(t, url, name)
    return exc(drain, c)


@scenario
def callback_raises(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2", b"3")
    seen = []

    def cb(m):
        seen.append(m.body)
        if m.body in (b"2", "2"):
            raise KeyError("x")

    ch.basic_consume(name, callback=cb)
    r = [exc(c.drain_events, timeout=1) for _ in range(4)]
    return r, seen


@scenario
def reentrant_drain(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"%d" % i for i in range(6)])
    seen = []

    def cb(m):
        seen.append(("in", m.body))
        if len(seen) < 4:
            c.drain_events(timeout=1)
        seen.append(("out", m.body))
        m.channel.basic_ack(m.delivery_tag)

    ch.basic_consume(name, callback=cb)
    while len(seen) < 12:
        drain(c)
    ch.close()
    return seen, left(c, name, 0)


@scenario
def close_in_callback(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"%d" % i for i in range(6)])
    seen = []

    def cb(m):
        seen.append(m.body)
        m.channel.basic_ack(m.delivery_tag)
        if len(seen) == 2:
            ch.close()

    ch.basic_consume(name, callback=cb)
    r = exc(drain, c, 2)
    return seen, r, left(c, name, 4)


@scenario
def cancel_in_callback(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"%d" % i for i in range(6)])
    seen = []

    def cb(m):
        seen.append(m.body)
        m.channel.basic_ack(m.delivery_tag)
        if len(seen) == 2:
            ch.basic_cancel("ct")

    ch.basic_consume(name, callback=cb, consumer_tag="ct")
    r = exc(drain, c, 2)
    n = len(seen)
    ch.close()
    return n, r, left(c, name, 6 - n)


@scenario
def kombu_message(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    out = []
    p = kombu.Producer(ch)
    p.publish(
        {"a": 1},
        routing_key=name,
        headers={"h": [1, {"x": None}], "b": True, "f": 1.5},
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration=100,
        compression="zlib",
        message_id="m",
    )
    p.publish("text", routing_key=name, content_type="text/plain")
    p.publish(b"\x00\xff", routing_key=name, content_type="application/data", content_encoding="binary")
    p.publish({"n": 1}, routing_key=name, serializer="pickle")

    def on(body, m):
        out.append(("cb", repr(body)))

    def rec(m):
        r = exc(m.decode)
        out.append(
            (
                r,
                repr(m.payload) if r[0] == "ok" else None,
                m.content_type,
                m.content_encoding,
                sorted(m.headers.items(), key=str),
                sorted((k, str(v)) for k, v in m.properties.items() if k != "application_headers"),
                type(m.body).__name__,
                m.delivery_tag,
                m.acknowledged,
                sorted(k for k in m.delivery_info),
            )
        )
        m.ack()
        out.append((m.acknowledged, exc(m.ack), exc(m.reject), exc(m.requeue), m.errors))

    with kombu.Consumer(
        ch, kombu.Queue(name, no_declare=True), on_message=rec, accept=["json", "text/plain", "application/data"]
    ):
        drain(c, 4)
    ch.close()
    return out, left(c, name, 0)


@scenario
def decode_error(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    out = []
    kombu.Producer(ch).publish({"n": 1}, routing_key=name, serializer="pickle")
    kombu.Producer(ch).publish(b"{", routing_key=name, content_type="application/json", content_encoding="utf-8")
    with kombu.Consumer(
        ch,
        kombu.Queue(name, no_declare=True),
        callbacks=[lambda b, m: out.append(b)],
        accept=["json"],
        on_decode_error=lambda m, e: (out.append(type(e).__name__), m.reject()),
    ):
        drain(c, 2)
    ch.close()
    return out, left(c, name, 0)


@scenario
def decode_error_raises(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    kombu.Producer(ch).publish({"n": 1}, routing_key=name, serializer="pickle")
    with kombu.Consumer(ch, kombu.Queue(name, no_declare=True), callbacks=[print], accept=["json"]):
        return exc(drain, c)


@scenario
def no_ack(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2")
    out = []
    with kombu.Consumer(
        ch,
        kombu.Queue(name, no_declare=True),
        on_message=lambda m: (m.ack(), out.append((m.body, m.acknowledged))),
        no_ack=True,
    ):
        drain(c, 2)
    return out, left(c, name, 0)


@scenario
def get(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1", b"2", b"3")
    qq = kombu.Queue(name, channel=ch, no_declare=True)
    a = qq.get()
    b = qq.get(no_ack=True)
    d = qq.get()
    e = qq.get()
    out = [a.body, b.body, d.body, e, a.delivery_tag, d.delivery_tag, a.delivery_info.get("message_count")]
    a.ack()
    d.requeue()
    f = qq.get()
    out += [f.body, f.delivery_info["redelivered"]]
    f.reject()
    ch.close()
    return out, left(c, name, 0)


@scenario
def qos(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"x"] * 10)
    ch.basic_qos(0, 3, False)
    seen = []
    ch.basic_consume(name, callback=seen.append)
    drain(c, 3)
    ch.basic_ack(seen[0].delivery_tag)
    drain(c, 1)
    return [one.delivery_tag for one in seen]


@scenario
def flow(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    return exc(ch.flow, True)


@scenario
def close_then_use(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    ch.close()
    return [
        exc(f)
        for f in (
            lambda: ch.basic_publish(amqp.Message("x"), routing_key=name),
            lambda: ch.basic_ack(1),
            lambda: ch.basic_get(name),
            lambda: ch.queue_declare(name),
            ch.close,
        )
    ]


@scenario
def conn_close_then_use(c: kombu.Connection, t: str, url: str) -> Any:
    d = connection(t, url)
    d.connect()
    ch = d.channel()
    name = q(ch)
    raw = d.connection
    raw.close()
    try:
        return [
            exc(f)
            for f in (
                lambda: ch.basic_publish(amqp.Message("x"), routing_key=name),
                lambda: ch.basic_ack(1),
                lambda: ch.basic_get(name),
                lambda: raw.drain_events(timeout=0.1),
                raw.channel,
                raw.close,
                raw.heartbeat_tick,
            )
        ], raw.connected
    finally:
        raw.collect()  # one of these has connected again


@scenario
def stale_message(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1")
    qq = kombu.Queue(name, channel=ch, no_declare=True)
    m = qq.get()
    ch.close()
    r = [exc(m.ack)]
    return r, m.acknowledged


@scenario
def ack_log_error(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"1")
    qq = kombu.Queue(name, channel=ch, no_declare=True)
    m = qq.get()
    ch.close()
    class_errors = c.connection_errors + c.channel_errors
    return exc(m.ack_log_error, logging.getLogger("x"), class_errors)


@scenario
def big(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, b"", b"x" * 131064, b"y" * 131065, b"z" * 300000)
    seen = []
    ch.basic_consume(name, callback=lambda m: seen.append((len(m.body), m.body[:1])), no_ack=True)
    drain(c, 4)
    return seen


@scenario
def props(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    out = []
    for h in (
        {"i": 2**31},
        {"i": 2**63},
        {"i": -(2**63)},
        {"i": 2**64},
        {"d": decimal.Decimal("1.5")},
        {"t": dt.datetime(2020, 1, 1)},
        {"b": b"\xff"},
        {"n": None},
        {"l": [1, "a", None, [2]]},
        {1: 2},
        {"u": "é"},
        {"k" * 300: 1},
        {"tt": (1, 2)},
    ):
        m = amqp.Message("x", application_headers=h)
        r = exc(ch.basic_publish, m, routing_key=name)
        got = None
        if r[0] == "ok":
            g = fetch(ch, name)
            got = repr(g.headers if hasattr(g, "headers") else None)
        out.append((repr(h)[:20], r, got))
    return out, ch.is_open


@scenario
def props2(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    out = []
    for p in (
        {"timestamp": dt.datetime(2020, 1, 1)},
        {"timestamp": 5},
        {"priority": 300},
        {"priority": "3"},
        {"delivery_mode": 2},
        {"expiration": "5000"},
        {"expiration": 5000},
        {"type": "t" * 256},
        {"user_id": "guest"},
        {"app_id": "é"},
        {"cluster_id": "c"},
        {"message_id": 5},
        {"nonsense": 1},
        {"content_type": None},
    ):
        r = exc(publish, ch, name, "x", **p)
        got = None
        if r[0] == "ok":
            g = fetch(ch, name)
            got = repr(sorted(g.properties.items())) if g else None
        out.append((p, r, got))
    return out, ch.is_open


@scenario
def bodies(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    out = []
    for b in ("str", b"b", bytearray(b"ba"), memoryview(b"mv"), 5, None, "é", "\ud800", {"a": 1}):
        r = exc(publish, ch, name, b)
        got = None
        if r[0] == "ok":
            g = fetch(ch, name)
            got = repr((g.body, g.properties)) if g else None
        out.append((repr(b)[:12] if not isinstance(b, memoryview) else "mv", r, got))
    return out, ch.is_open


@scenario
def keys(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    out = []
    names = ("k" * 256, "é" * 128, None, 5, "\ud800")
    out += [exc(ch.basic_publish, amqp.Message("x"), routing_key=name) for name in ("k" * 255, "é" * 127, b"k", *names)]
    out += [exc(ch.basic_publish, amqp.Message("x"), exchange=name, routing_key="") for name in names]
    return out


@scenario
def threads_ack(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"x"] * 500)
    tags = []
    ch.basic_consume(name, callback=lambda m: tags.append(m.delivery_tag))
    drain(c, 500)
    parts = [tags[i::4] for i in range(4)]
    ts = [threading.Thread(target=lambda p=p: [ch.basic_ack(x) for x in p]) for p in parts]
    [x.start() for x in ts]
    [x.join() for x in ts]
    ch.close()
    return len(tags), left(c, name, 0)


@scenario
def fork_exit(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"x"] * 50)
    tags = []

    def cb(m):
        tags.append(m.delivery_tag)
        ch.basic_ack(m.delivery_tag)
        if len(tags) == 10:
            pid = os.fork()
            if pid == 0:
                del tags[:]
                gc.collect()
                os._exit(0)
            os.waitpid(pid, 0)

    ch.basic_consume(name, callback=cb)
    drain(c, 50)
    ch.close()
    return len(tags), left(c, name, 0)


@scenario
def two_channels(c: kombu.Connection, t: str, url: str) -> Any:
    a, b = c.channel(), c.channel()
    n1, n2 = q(a), q(b)
    seen = []
    a.basic_consume(
        n1,
        callback=lambda m: (
            seen.append(("a", m.body)),
            b.basic_publish(amqp.Message(m.body), routing_key=n2),
            a.basic_ack(m.delivery_tag),
        ),
    )
    b.basic_consume(n2, callback=lambda m: (seen.append(("b", m.body)), b.basic_ack(m.delivery_tag)))
    pub(a, n1, *[b"%d" % i for i in range(20)])
    while len(seen) < 40:
        drain(c)
    return sorted(map(str, seen)), left(c, n1, 0), left(c, n2, 0)


@scenario
def purge_delete(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    pub(ch, name, *[b"x"] * 5)
    eventually(lambda: ch.queue_declare(name, passive=True).message_count == 5)
    return (
        ch.queue_purge(name),
        exc(ch.queue_delete, name),
        exc(ch.queue_delete, name, if_unused=True),
        exc(ch.queue_declare, name, passive=True),
        ch.is_open,
    )


@scenario
def uri(c: kombu.Connection, t: str, url: str) -> Any:
    return (
        c.as_uri().split("://")[1],
        c.transport.driver_type,
        c.supports_heartbeats,
        c.is_evented,
        c.transport.implements.asynchronous,
        [e.__name__ for e in c.recoverable_connection_errors],
        [e.__name__ for e in c.recoverable_channel_errors],
        [e.__name__ for e in c.connection_errors],
        [e.__name__ for e in c.channel_errors],
        c.info()["heartbeat"],
        c.default_channel.__class__.__mro__[-2].__name__,
    )


@scenario
def server_props(c: kombu.Connection, t: str, url: str) -> Any:
    return (
        sorted(c.connection.server_properties),
        sorted(c.connection.client_properties),
        c.connection.frame_max,
        c.connection.channel_max,
        c.connection.heartbeat,
    )


@scenario
def login(c: kombu.Connection, t: str, url: str) -> Any:
    return (
        exc(lambda: connection(t, url.replace("guest:guest", "guest:wrong")).connect()),
        exc(lambda: connection(t, url.replace("%2F", "nope")).connect()),
        exc(lambda: connection(t, "amqp://guest:guest@127.0.0.1:1//").connect()),
    )


@scenario
def ensure(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    name = q(ch)
    p = kombu.Producer(ch)
    c.connection.transport.sock.shutdown(2)
    r = exc(
        lambda: p.publish({"a": 1}, routing_key=name, retry=True, retry_policy={"max_retries": 3, "interval_start": 0})
    )
    return r, left(c, name, 1)


@scenario
def dead_socket_drain(c: kombu.Connection, t: str, url: str) -> Any:
    c.connect()
    # py-amqp does not close it.
    with c.connection.transport.sock as sock:
        sock.shutdown(2)
        try:
            c.drain_events(timeout=1)
        except OSError as error:  # "closed" or "reset": what the broker does first decides
            return not isinstance(error, TimeoutError), exc(c.drain_events, timeout=1), c.connected
        return "nothing raised"


@scenario
def dead_socket_publish(c: kombu.Connection, t: str, url: str) -> Any:
    ch = c.channel()
    c.connection.transport.sock.close()
    return exc(ch.basic_publish, amqp.Message("x"), routing_key="x")


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_results_are_the_same(name: str, broker: Broker) -> None:
    seen: dict[str, Any] = {}
    for transport in TRANSPORTS:
        with connection(transport, broker.url) as link:
            seen[transport] = SCENARIOS[name](link, transport, broker.url)
    assert seen["fairsched"] == seen["pyamqp"]
