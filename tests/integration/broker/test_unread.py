"""Clients that write and do not read: nothing is done for them for a while, and nothing is lost when they read."""

from __future__ import annotations

import socket
import threading
import time
from urllib.parse import urlsplit

from pamqp import commands, frame

from fairsched.broker import Broker

OPENING = [
    (commands.Connection.StartOk(client_properties={}, response="\0guest\0guest"), 0),
    (commands.Connection.TuneOk(2047, 131072, 0), 0),
    (commands.Connection.Open("/"), 0),
    (commands.Channel.Open(), 1),
]


def test_unread_answers_are_bounded_and_none_is_lost() -> None:
    with Broker() as broker, socket.create_connection(("127.0.0.1", urlsplit(broker.url).port), 30) as connection:
        connection.sendall(b"AMQP\0\0\x09\x01" + b"".join(frame.marshal(*one) for one in OPENING))
        one = frame.marshal(commands.Queue.Declare(queue="a-queue-with-a-name-of-some-length"), 1)
        count = 500_000  # their answers take 27 MB: more than is kept
        sender = threading.Thread(target=connection.sendall, args=(one * count,), daemon=True)
        sender.start()
        sender.join(2)
        assert sender.is_alive(), "everything was taken though nothing was read"
        answer = frame.marshal(commands.Queue.DeclareOk("a-queue-with-a-name-of-some-length", 0, 0), 1)
        left, tail = count, b""
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            data = tail + connection.recv(1 << 20)
            left -= data.count(answer)
            tail = data[-(len(answer) - 1) :] if not data.endswith(answer) else b""
        assert left == 0
        sender.join(10)
        assert not sender.is_alive()
