"""A connection that its I/O thread lends while it waits, over a socket pair and with pika's own loop."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from support.deliveries import delivery, octets_kept
from support.lent import HEARTBEAT, LentSource
from support.waiting import SOON, reach

from fairsched.delivery._delivery import HeaderKey, Message

pytestmark = pytest.mark.skipif("not hasattr(__import__('select'), 'epoll')", reason="lends where there is an epoll")

MESSAGES = 20_000


@contextlib.contextmanager
def lent(
    channels: int = 1, key: HeaderKey | None = None, bodies: list[bytes] | None = None
) -> Iterator[tuple[LentSource, socket.socket]]:
    """A source, and the broker's end of its connection."""
    source = LentSource(bodies or [b"%d" % number for number in range(MESSAGES)], channels, MESSAGES, key)
    theirs = source.open()
    theirs.settimeout(SOON)
    source.start()
    try:
        yield source, theirs
    finally:
        source.close()
        theirs.close()


def more(source: LentSource, channel: int = 1) -> bytes:
    """One more delivery of the broker."""
    return source.broker.frames(channel, len(source.broker.out.get(channel, ())) + 1)


def take(source: LentSource) -> Message:
    message = source.get(source.worker_queue, SOON)
    assert message is not None
    return message


def turn(source: LentSource) -> None:
    """Have the I/O thread take the connection back, and count what others read."""
    turned = threading.Event()
    source.loop.add_callback_threadsafe(turned.set)
    assert turned.wait(SOON)


def borrow(source: LentSource, theirs: socket.socket) -> list[Message]:
    """Consume as fast as may be, until something was not received by the I/O thread."""
    found: list[Message] = []
    while not source.wire.borrowed:
        theirs.sendall(more(source))
        found.append(take(source))
    return found


def settle(source: LentSource, theirs: socket.socket, messages: list[Message]) -> None:
    """Ack, and have the broker hear of it."""
    for message in messages:
        assert message.ack()
    read = b""
    deadline = time.monotonic() + SOON
    while any(source.broker.out.values()):
        assert time.monotonic() < deadline
        read += theirs.recv(1 << 16)
        whole = len(read) // 21 * 21
        source.broker.read(read[:whole])
        read = read[whole:]


def test_a_fast_consumer_reads_itself() -> None:
    with lent() as (source, theirs):
        found = borrow(source, theirs)
        assert [int(message.body) for message in found] == list(range(len(found)))
        settle(source, theirs, found)
        reach(lambda: source.wire.bytes_sent >= 21)


def test_messages_keep_what_was_read_and_a_small_read_is_no_longer_than_it_was() -> None:
    """Bodies are made when they are asked for: long after other reads, which went to other memory."""
    chance = random.Random(14)
    bodies = [chance.randbytes(chance.choice((0, 1, 90, 700, 3000))) for _ in range(4000)]
    with lent(bodies=bodies) as (source, theirs):
        found = borrow(source, theirs)
        kept = [octets_kept(message) for message in found]
        assert max(kept) <= len(delivery(1, 1, bytes(3000)))
        while len(found) < len(bodies):
            theirs.sendall(b"".join(more(source) for _ in range(chance.choice((1, 20, 70)))))
            while len(found) < source.broker.tags[1]:
                found += source.get_many(source.worker_queue, 50, SOON)
        assert max(map(octets_kept, found)) == 1 << 16
        assert [(message.body, message.routing_key) for message in found] == [(body, "key") for body in bodies]
        assert all(message.body is message.body and message.raw_properties.endswith(b"\0\0") for message in found)
        assert [message.delivery.delivery_tag for message in found] == list(range(1, len(bodies) + 1))


def test_what_one_read_brings_goes_each_to_its_own_queue() -> None:
    """Whether the messages of a read are all of one queue or of several, at the beginning or at the end of it."""
    with lent(channels=3) as (source, theirs):
        for numbers in ([1, 1, 1, 1], [1, 1, 1, 3], [2, 1, 1, 1], [2, 1, 3, 2]):
            borrowed = source.wire.borrowed
            while source.wire.borrowed == borrowed:
                theirs.sendall(b"".join(more(source, number) for number in numbers))
                left = Counter(f"0.{number}" for number in numbers)
                for _ in numbers:
                    left[take(source).queue] -= 1
                    reach(lambda left=left: source.worker_queue.qsize() == left.total())
                    assert {name: source.worker_queue.backlog(name) for name in left} == dict(left)


def test_pikas_counters_count_what_others_read() -> None:
    with lent() as (source, theirs):
        received, frames = source.wire.bytes_received, source.wire.frames_received
        borrow(source, theirs)
        count, size = source.broker.tags[1], 0
        for tag in range(1, count + 1):
            size += len(delivery(1, tag, b"%d" % (tag - 1)))
        reach(lambda: source.wire.bytes_received == received + size)
        reach(lambda: source.wire.frames_received == frames + 3 * count)


def test_no_thread_borrows_a_withdrawn_connection() -> None:
    with lent() as (source, theirs):
        found = borrow(source, theirs)
        source.lent.withdraw()
        turn(source)
        borrowed = source.wire.borrowed
        for _ in range(1000):
            theirs.sendall(more(source))
            found.append(take(source))
        settle(source, theirs, found)
        assert [int(message.body) for message in found] == list(range(len(found)))
        turn(source)
        assert source.wire.borrowed == borrowed


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_any_thread_reads_the_same_messages_in_the_same_order(channels: int, seed: int) -> None:
    """Deliveries and heartbeats, in pieces: each heartbeat after what was sent before it."""
    chance = random.Random(seed)
    numbers = range(1, channels + 1)
    with lent(channels=channels) as (source, theirs):
        expected: list[tuple[str, list[int]]] = []
        found: list[Message] = []
        while len(found) < 300:
            frames, sent = [], 0
            for _ in range(chance.choice((1, 3, 40))):
                if chance.random() < 0.05:
                    frames.append(HEARTBEAT)
                    expected.append(("Heartbeat", [source.broker.tags[number] for number in numbers]))
                else:
                    frames.append(more(source, chance.choice(numbers)))
                    sent += 1
            data, at = b"".join(frames), 0
            while at < len(data):
                size = chance.choice((1, 9, 100, 5000))
                theirs.sendall(data[at : at + size])
                at += size
                while chance.random() < 0.5:
                    found += source.try_get_many(source.worker_queue, chance.choice((1, 2, 20)))
            while len(found) < sum(source.broker.tags.values()):
                found.append(take(source))
        reach(lambda: len(source.wire.others) == len(expected))
        assert source.wire.others == expected
        for channel in numbers:
            assert [m.delivery_tag for m in found if m.queue == f"0.{channel}"] == list(
                range(1, source.broker.tags[channel] + 1)
            )
        settle(source, theirs, found)


def test_what_is_here_of_the_only_queue_is_handed_out_before_more_is_read() -> None:
    """Mostly: a thread that was interrupted, or finds the I/O thread awake, does not leave it in the socket."""
    late = early = 0
    with lent() as (source, theirs):
        found = borrow(source, theirs)
        deadline = time.monotonic() + SOON
        while late < early + 5:
            assert time.monotonic() < deadline, f"{late} times it was left, {early} times it was not"
            theirs.sendall(b"".join(more(source) for _ in range(60)))
            found += source.get_many(source.worker_queue, 10, SOON)
            here = source.worker_queue.qsize()
            theirs.sendall(more(source))
            for _ in range(8):
                found += source.try_get_many(source.worker_queue, 5)
            left = here - source.worker_queue.qsize()
            last = source.try_get_many(source.worker_queue, 100)
            found += last
            if here == 50 and left < 40:
                early += 1
            elif here == 50 and len(last) == 11:
                late += 1
            while len(found) < source.broker.tags[1]:
                found.append(take(source))
        assert [message.delivery_tag for message in found] == list(range(1, len(found) + 1))


def test_the_i_o_thread_reads_when_no_thread_borrows_any_more() -> None:
    with lent() as (source, theirs):
        borrow(source, theirs)
        theirs.sendall(HEARTBEAT)
        reach(lambda: [name for name, _ in source.wire.others] == ["Heartbeat"])


def test_what_the_socket_does_not_take_is_sent_by_the_i_o_thread_uncut() -> None:
    with lent(channels=2) as (source, theirs):
        found = borrow(source, theirs)
        source.wire._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        while source.wakes == 0:
            for _ in range(40):
                theirs.sendall(more(source, 1) + more(source, 2))
            found += [take(source) for _ in range(80)]
            for message in found[::2]:  # no prefix, so that each takes a frame
                message.ack()
            source.settlements.send()
            if not source.wire.flowing:  # it was the I/O thread that filled the socket
                settle(source, theirs, [message for message in found if not message.settled])
        settle(source, theirs, [message for message in found if not message.settled])
        assert source.broker.settled.keys() == {(0, int(m.queue[2:]), m.delivery_tag) for m in found}


@pytest.mark.parametrize("broken", [HEARTBEAT[:-1] + b"\0", delivery(1, 10**6, b"x")])
def test_what_is_broken_loses_the_connection(broken: bytes) -> None:
    lost: list[bool] = []
    with lent() as (source, theirs):
        source.lost = lambda: lost.append(True)
        borrow(source, theirs)
        theirs.sendall(broken)
        reach(lambda: source.get(source.worker_queue, 0.001) or lost)
        assert source.lent.fd == -1


def test_a_key_that_takes_python_code_is_asked_by_the_i_o_thread() -> None:
    asked: list[Message] = []

    def otherwise(message: Message) -> int:
        asked.append(message)
        return int(message.headers["tenant"])

    def frames(tag: int, value: bytes) -> bytes:
        table = b"\x06tenant" + value
        return delivery(1, tag, b"x", properties=b"\x20\0" + struct.pack(">L", len(table)) + table)

    with lent(key=HeaderKey("tenant", otherwise)) as (source, theirs):
        found: list[Message] = []
        tag = 0
        while not source.wire.borrowed or tag < 20:
            tag += 2
            theirs.sendall(frames(tag - 1, b"S\0\0\0\x04gold") + frames(tag, b"I\0\0\0\x07"))
            found += [take(source), take(source)]
        assert {message.delivery_tag: message.slot for message in found} == {
            one: 7 if one % 2 == 0 else "gold" for one in range(1, tag + 1)
        }
        assert sorted(message.delivery_tag for message in asked) == list(range(2, tag + 1, 2))


def test_an_interrupt_does_not_keep_the_i_o_thread_from_what_is_left() -> None:
    with lent() as (source, theirs):
        wake, interrupts = source.wake, [KeyboardInterrupt("in wake")]

        def interrupted() -> None:
            if interrupts:
                raise interrupts.pop()
            wake()

        source.on_wake = interrupted
        caught = 0
        while interrupts:
            theirs.sendall(more(source) + HEARTBEAT)
            try:
                take(source)
            except KeyboardInterrupt:
                caught += 1
                take(source)
        assert caught == 1
        reach(lambda: len(source.wire.others) == source.broker.tags[1])


def test_a_child_process_neither_sends_nor_reads() -> None:
    with lent() as (source, theirs):
        found = borrow(source, theirs)
        source.settlements.forked("forked")
        assert source.lent.fd == -1
        with pytest.raises(RuntimeError, match="forked"):
            found[0].ack()


def test_no_other_thread_reads_a_connection_that_is_not_lent() -> None:
    with lent() as (source, theirs):
        source.quick = False
        theirs.sendall(HEARTBEAT)
        reach(lambda: source.wire.others)
        for _ in range(300):
            theirs.sendall(more(source))
            take(source)
        assert not source.wire.borrowed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_settlements_that_were_taken_and_cannot_be_sent_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the broker would wait for them for ever: no other thread sends them."""

    def fail(_tag: int) -> None:
        raise MemoryError

    with lent(channels=2) as (source, theirs):
        found = borrow(source, theirs)
        theirs.sendall(more(source, 2))
        found.append(take(source))
        source.policy.count(0, 1 << 30)  # so that nothing leaves before it is told to
        source.sinks[2].room = 1
        monkeypatch.setattr(source.sinks[2], "expect", fail)  # when those of the first are taken
        monkeypatch.setattr(source, "send", lambda: None)  # the I/O thread's own: it does not ask for what fails here
        for message in found:
            message.ack()
        # At any one moment the I/O thread may be awake, and have the connection itself.
        reach(lambda: source.settlements.send() or not source.running)


def test_settlements_of_another_connection_are_left_to_the_io_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with lent(channels=2) as (source, theirs):
        found = borrow(source, theirs)
        theirs.sendall(more(source, 2))
        found.append(take(source))
        ours, other = source.sinks[1], source.sinks[2]
        other.number = 0
        source.policy.count(0, 1 << 30)  # so that nothing leaves before it is told to
        monkeypatch.setattr(source, "send", lambda: None)  # the I/O thread's own
        asked: list[bool] = []
        source.asked = lambda: asked.append(source.settlements.waiting)
        for message in found:
            assert message.ack()
        # At any one moment the I/O thread may be awake, and have the connection itself.
        reach(lambda: source.settlements.send() or not ours.unsettled)
        assert (other.unsettled, source.settlements.waiting, asked[:1]) == (1, True, [True])
        assert source.settlements.take_unsent() == [other]


def test_a_thread_interrupted_while_waking_the_loop_may_wake_it() -> None:
    with lent() as (source, _):
        poller = source.loop._poller
        real, woken = poller._w_interrupt, threading.Event()

        class Interrupted:
            def send(self, data: bytes) -> int:
                poller._w_interrupt = real
                source.wake()
                return real.send(data)

        def wake() -> None:
            source.wake()
            woken.set()

        poller._w_interrupt = Interrupted()
        threading.Thread(target=wake, daemon=True).start()
        done = woken.wait(SOON)
        if not done:  # so that the loop can be ended
            poller._waking_mutex = threading.Lock()
        assert done
