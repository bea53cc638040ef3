"""Consumers whose queues need more channels than one connection may have."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from math import ceil
from typing import Any

import pytest
from support.declare import Declare
from support.proxy import Proxy, behind
from support.rabbitmq import Node, numbered
from support.running import Running
from support.waiting import eventually, reach_in_loop

from fairsched import ConfigurationError, ConnectionFailed, Consumer, Queue, QueueSource, aio
from fairsched.consumer import connections

#: Channels of a connection, and the queues for which that is enough: one declares queues.
CHANNELS = 8
QUEUES = CHANNELS - 1


def narrow(url: str) -> str:
    """Return a URL of which a connection may have few channels."""
    return f"{url}?channel_max={CHANNELS}"


def opened(consumer: Any) -> int:
    """Return the number of connections."""
    return len(list(consumer._client.io_thread.connections))


def homes(consumer: Consumer) -> list[list[str]]:
    """Return the queues of each connection."""
    return [list(one.queues) for one in consumer._client.io_thread.connections]


def declared(broker: Node, new_queue: Declare, count: int, messages: int = 0) -> list[str]:
    names = [new_queue("connections") for _ in range(count)]
    for name in names:
        if messages:
            broker.publish(name, numbered(messages))
    return names


class TestDividing:
    def test_queues_beyond_the_channels_of_one_connection_are_consumed_on_others(
        self, broker: Node, new_queue: Declare, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = declared(broker, new_queue, 2 * QUEUES + 3, 5)
        seen: Counter[str] = Counter()
        with caplog.at_level(logging.INFO, "fairsched"), Running(narrow(broker.url), names) as running:
            eventually(lambda: running.acked == 5 * len(names))
            assert homes(running.consumer) == [names[:QUEUES], names[QUEUES : 2 * QUEUES], names[2 * QUEUES :]]
            assert running.consumer.state.consuming == dict.fromkeys(names, True)
            seen.update(queue for queue, _ in running.processed)
        assert seen == dict.fromkeys(names, 5)
        assert [broker.count(name) for name in names] == [0] * len(names)
        lines = [record.getMessage() for record in caplog.records]
        assert sum(line.startswith("connected to") for line in lines) == 3
        assert sum(line.startswith("opening connection") for line in lines) == 2

    def test_all_queues_have_their_first_window_before_the_first_is_served(
        self, broker: Node, new_queue: Declare
    ) -> None:
        names = declared(broker, new_queue, 3 * QUEUES, 4)
        with Consumer(narrow(broker.url), names, prefetch=3 * QUEUES * 4) as consumer:
            first = [consumer.get(timeout=30).queue for _ in names]
        assert sorted(first) == sorted(names)

    def test_shares_are_those_of_one_connection(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, QUEUES + 2, 30)
        weights = {name: 1 + (number >= QUEUES) for number, name in enumerate(names)}
        windows = dict.fromkeys(names, 30)
        with Consumer(narrow(broker.url), weights, prefetch=windows) as consumer:
            served = Counter(consumer.get(timeout=30).queue for _ in range(5 * sum(weights.values())))
        assert served == {name: 5 * weight for name, weight in weights.items()}

    def test_in_an_event_loop(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, QUEUES + 2, 1)

        async def run() -> set[str]:
            async with aio.Consumer(narrow(broker.url), names) as consumer:
                messages = [await asyncio.wait_for(consumer.get(), 30) for _ in names]
                for message in messages:
                    message.ack()
                await reach_in_loop(lambda: opened(consumer) == 2)
            return {message.queue for message in messages}

        assert asyncio.run(run()) == set(names)
        assert [broker.count(name) for name in names] == [0] * len(names)

    def test_where_the_broker_allows_no_channel_for_a_queue(self, broker: Node, new_queue: Declare) -> None:
        match = r"a queue needs 2 channels, .* allows 1 on one connection \(channel_max\)"
        with pytest.raises(ConfigurationError, match=match):
            Consumer(f"{broker.url}?channel_max=1", [new_queue()]).run(lambda _message: None)

    def test_fewer_channels_after_a_reconnect(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, 5, 20)
        with Proxy(broker.port) as proxy:
            wide, small = behind(proxy, broker.url), f"{behind(proxy, broker.url)}?channel_max=3"
            with Running([wide, small], names, work=0.001) as running:
                eventually(lambda: running.acked >= 10)
                proxy.cut()
                eventually(lambda: len(set(running.processed)) == 100)
                eventually(lambda: running.consumer.state.connected)
                assert opened(running.consumer) == ceil(5 / 2)
                eventually(lambda: running.consumer.state.consuming == dict.fromkeys(names, True))


class TestSettling:
    def test_what_is_settled_on_any_connection_reaches_the_broker_at_once(
        self, broker: Node, new_queue: Declare
    ) -> None:
        """The thread that gets messages sends settlements itself, except those of additional connections."""
        names = declared(broker, new_queue, QUEUES + 1)
        used = [names[0], names[-1]]
        for name in used:
            broker.publish(name, numbered(200))
        with Consumer(narrow(broker.url), names) as consumer:
            for _ in range(400):
                consumer.get(timeout=30).ack()
            found = [consumer._client.io_thread.channels.by_queue[name] for name in used]
            eventually(lambda: [one.unsettled for one in found] == [0, 0])
            assert [one.settlements_sent > 0 for one in found] == [True, True]
        assert [broker.count(name) for name in used] == [0, 0]

    def test_everything_is_settled_when_a_consumer_stops(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, 3 * QUEUES, 50)
        with Running(narrow(broker.url), names, prefetch=dict.fromkeys(names, 20)) as running:
            eventually(lambda: running.acked > 100)
        handled = Counter(queue for queue, _ in running.processed)
        assert set(running.processed.values()) == {1}
        assert {name: broker.count(name) for name in names} == {name: 50 - handled[name] for name in names}

    @pytest.mark.parametrize("now", [False, True])
    def test_a_stop_while_connections_are_opened(self, broker: Node, new_queue: Declare, now: bool) -> None:
        names = declared(broker, new_queue, 4 * QUEUES, 2)
        running = Running(narrow(broker.url), names)
        with running:
            eventually(lambda: hasattr(running.consumer._client, "io_thread") and opened(running.consumer) > 1)
            running.consumer.stop(now=now)
        assert running.consumer._client.io_thread.ended
        left = sum(broker.count(name) for name in names)
        assert left + len(running.processed) == 2 * len(names)


class TestChanges:
    def test_an_added_queue_opens_a_connection_and_a_removed_one_makes_room(
        self, broker: Node, new_queue: Declare
    ) -> None:
        names = declared(broker, new_queue, QUEUES + 2)
        with Consumer(narrow(broker.url), names[:QUEUES]) as consumer:
            assert opened(consumer) == 1
            consumer.add_queue(names[QUEUES])
            assert opened(consumer) == 2
            consumer.remove_queue(names[0])
            consumer.add_queue(names[QUEUES + 1])
            assert homes(consumer) == [[*names[1:QUEUES], names[QUEUES + 1]], [names[QUEUES]]]
            broker.publish(names[QUEUES], [b"second"])
            assert consumer.get(timeout=30).queue == names[QUEUES]

    @pytest.mark.parametrize("durable", [None, True], ids=["existing", "declared"])
    def test_a_source_of_many(self, broker: Node, new_queue: Declare, durable: bool | None) -> None:
        names = declared(broker, new_queue, 60)
        source = QueueSource(lambda: [Queue(name, durable=durable) for name in names], every=0.05)
        with Consumer(narrow(broker.url), source) as consumer:
            eventually(lambda: consumer.state.consuming == dict.fromkeys(names, True))
            assert opened(consumer) == ceil(60 / QUEUES)

    def test_a_connection_without_queues_is_closed_after_a_while(
        self, broker: Node, new_queue: Declare, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(connections, "IDLE", 0.05)
        names = declared(broker, new_queue, QUEUES + 1)
        with caplog.at_level(logging.INFO, "fairsched"), Consumer(narrow(broker.url), names) as consumer:
            for _ in range(3):
                consumer.remove_queue(names[-1])
                eventually(lambda: opened(consumer) == 1)
                assert consumer.state.connected
                consumer.add_queue(names[-1])
                assert opened(consumer) == 2
        assert sum("closing a connection on which no queue" in record.getMessage() for record in caplog.records) == 3

    def test_a_paused_queue_of_another_connection(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, QUEUES + 1)
        with Consumer(narrow(broker.url), names) as consumer:
            consumer.pause(names[-1])
            eventually(lambda: consumer._client.io_thread.channels.by_queue[names[-1]].prefetch.consumers == 0)
            broker.publish(names[-1], [b"x"])
            assert consumer.state.consuming[names[-1]] is False
            consumer.resume(names[-1])
            assert consumer.get(timeout=30).body == b"x"

    @pytest.mark.rabbitmq("a limit of connections")
    def test_an_addition_whose_connection_is_refused(self, mortal: Node) -> None:
        names = [f"refused-{number}" for number in range(QUEUES + 2)]
        mortal.declare(*names)
        mortal.order('rabbit_vhost_limit:set(<<"/">>, [{<<"max-connections">>, 1}], <<"test">>).')
        with Consumer(narrow(mortal.url), names[:QUEUES]) as consumer:
            for name in names[QUEUES:]:
                with pytest.raises(ConnectionFailed, match="refused the connection"):
                    consumer.add_queue(name)
                assert consumer.state.consuming == dict.fromkeys(names[:QUEUES], True)
                assert consumer.state.connected
            mortal.order('rabbit_vhost_limit:clear(<<"/">>, <<"test">>).')
            consumer.add_queue(names[QUEUES])
            assert opened(consumer) == 2


class TestLostConnections:
    def cut(self, running: Running, number: int) -> None:
        """Lose one connection, as a broken network loses it."""
        running.in_io_thread(
            lambda: list(running.consumer._client.io_thread.connections)[number].transport._transport._sock.shutdown(2)
        )

    @pytest.mark.parametrize("number", [0, 1])
    def test_the_queues_of_the_others_go_on(self, broker: Node, new_queue: Declare, number: int) -> None:
        names = declared(broker, new_queue, 2 * QUEUES)
        lost, kept = (names[:QUEUES], names[QUEUES:]) if number == 0 else (names[QUEUES:], names[:QUEUES])
        with Running(narrow(broker.url), names) as running:
            eventually(lambda: all(running.consumer.state.consuming.values()))
            channels = {name: running.channel(name) for name in kept}
            self.cut(running, number)
            eventually(lambda: running.consumer.stats()["reconnects"] == 1)
            for name in names:
                broker.publish(name, numbered(3))
            eventually(lambda: len(running.processed) == 3 * len(names))
            assert {name: running.channel(name) for name in kept} == channels
            assert all(running.consumer.state.consuming[name] for name in lost)
            assert running.consumer.state.connected

    def test_nothing_is_lost_over_many_cuts(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, 2 * QUEUES, 40)
        with Running(narrow(broker.url), names, work=0.0005, prefetch=dict.fromkeys(names, 8)) as running:
            for cut in range(6):
                eventually(lambda cut=cut: len(running.processed) > 80 * cut)
                self.cut(running, cut % 2)
                eventually(lambda cut=cut: running.consumer.stats()["reconnects"] > cut)
            eventually(lambda: len(running.processed) == 40 * len(names), 60)
            eventually(lambda: running.consumer.state.in_hand == 0)
        assert [broker.count(name) for name in names] == [0] * len(names)

    def test_a_stop_while_one_connection_is_lost(self, broker: Node, new_queue: Declare) -> None:
        names = declared(broker, new_queue, 2 * QUEUES, 5)
        with Proxy(broker.port) as proxy, Running(narrow(behind(proxy, broker.url)), names) as running:
            eventually(lambda: running.acked == 5 * len(names))
            proxy.accepting = False
            self.cut(running, 1)
            eventually(lambda: not running.consumer.state.connected)
            broker.publish(names[0], [b"last"])
            eventually(lambda: running.processed[names[0], b"last"] == 1)
            running.consumer.stop()
            eventually(lambda: running.consumer._client.io_thread.ended, 20)
        assert broker.count(names[0]) == 0
