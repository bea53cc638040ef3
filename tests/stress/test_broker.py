"""Many clients of the broker at once, some of which vanish: nothing is lost, nothing stays behind."""

from __future__ import annotations

import random
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress

import pika
import pytest
from support.waiting import eventually

import fairsched

pytestmark = pytest.mark.stress


def connect(broker):
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def vanish(connection):
    """End a connection without a word, as a process that is killed does."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
    with suppress(pika.exceptions.AMQPError):
        connection.close()


class Crowd(ABC):
    """Clients at work, each a thread, until they have done their rounds."""

    def __init__(self, broker, clients, rounds):
        self.broker = broker
        self.rounds = rounds
        self.errors = []
        self.barrier = threading.Barrier(clients)
        self.threads = [threading.Thread(target=self._work, args=(number,)) for number in range(clients)]

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        assert self.errors == []

    def _work(self, number):
        choice = random.Random(number)
        self.barrier.wait()
        try:
            for _ in range(self.rounds):
                self.round(choice, number)
        except Exception as error:
            self.errors.append(error)

    @abstractmethod
    def round(self, choice, number):
        """Do what one of the threads does again and again."""


class Mixed(Crowd):
    """Declare, publish, consume, settle in every way, and close or vanish."""

    ARGUMENTS = (
        {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1"},
        {},
        {"x-message-ttl": 3, "x-dead-letter-exchange": "amq.fanout"},
        {"x-max-priority": 5},
        {"x-fair-key": "t"},
        {"x-single-active-consumer": True},
    )

    def round(self, choice, number):
        connection = connect(self.broker)
        channel = connection.channel()
        queues = [choice.randrange(6) for _ in range(2)]
        for queue in queues:
            channel.queue_declare(f"q{queue}", arguments=self.ARGUMENTS[queue])
        channel.queue_bind(f"q{queues[0]}", "amq.fanout")
        if choice.random() < 0.5:
            channel.basic_qos(prefetch_count=choice.randrange(1, 5), global_qos=choice.random() < 0.3)
        for queue in queues:
            automatic = choice.random() < 0.3
            channel.basic_consume(f"q{queue}", self.handler(choice, automatic), auto_ack=automatic)
        for _ in range(choice.randrange(20)):
            properties = pika.BasicProperties(headers={"t": choice.choice("abc")}, priority=choice.randrange(6))
            channel.basic_publish("", f"q{choice.choice(queues)}", bytes(choice.randrange(2000)), properties)
        connection.process_data_events(0)
        if choice.random() < 0.1:
            channel.queue_purge(f"q{queues[0]}")
        if choice.random() < 0.4:
            vanish(connection)
        else:
            connection.close()

    @staticmethod
    def handler(choice, automatic):
        def handle(channel, method, properties, body):
            if automatic:
                return
            verdict = choice.random()
            if verdict < 0.6:
                channel.basic_ack(method.delivery_tag)
            elif verdict < 0.8:
                channel.basic_nack(method.delivery_tag, requeue=verdict < 0.65)

        return handle


@pytest.mark.parametrize("io_threads", [1, 3])
def test_nothing_stays_behind_clients_that_come_and_go(io_threads):
    with fairsched.Broker(io_threads=io_threads) as broker:
        Mixed(broker, clients=24, rounds=6).run()
        eventually(lambda: broker._running().counts()["connections"] == 0)
        with connect(broker) as connection:
            channel = connection.channel()
            for queue in range(6):
                channel.queue_delete(f"q{queue}")
        left = ("connections", "channels", "queues", "messages", "message_bytes")
        eventually(lambda: all(broker._running().counts()[what] == 0 for what in left))


class Passing(Crowd):
    """Half of them publish, with confirms; the others consume, and vanish now and then."""

    def __init__(self, broker, clients, rounds, messages):
        super().__init__(broker, clients, rounds)
        self.messages = messages
        self.handled = Counter()
        self.lock = threading.Lock()

    @property
    def expected(self):
        return len(self.threads) // 2 * self.rounds * self.messages

    def round(self, choice, number):
        connection = connect(self.broker)
        channel = connection.channel()
        if number % 2:
            channel.confirm_delivery()
            for _ in range(self.messages):
                channel.basic_publish("", "work", f"{number}-{choice.getrandbits(64)}")
            connection.close()
            return
        channel.basic_qos(prefetch_count=10)
        for taken, (method, _, body) in enumerate(channel.consume("work", inactivity_timeout=0.2)):
            if method is None or taken == 2 * self.messages:
                break
            with self.lock:
                self.handled[body] += 1
            channel.basic_ack(method.delivery_tag)
            connection.process_data_events(0)
        vanish(connection)


def test_every_confirmed_message_is_delivered():
    with fairsched.Broker(io_threads=2) as broker:
        with connect(broker) as connection:
            connection.channel().queue_declare("work")
        crowd = Passing(broker, clients=12, rounds=3, messages=30)
        crowd.run()
        bodies = set(crowd.handled)
        with connect(broker) as connection:
            channel = connection.channel()
            while (message := channel.basic_get("work", auto_ack=True))[0] is not None:
                bodies.add(message[2])
        assert len(bodies) == crowd.expected
