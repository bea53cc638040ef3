"""kombu in a process whose sockets and threads are greenlets': others run while one waits for a message.

Arguments: the URL of a broker, a queue, and "gevent" or "eventlet".
"""

from __future__ import annotations

import sys

URL, QUEUE, KIND = sys.argv[1:]
if KIND == "gevent":
    from gevent import monkey, sleep, spawn

    monkey.patch_all()
else:
    import eventlet
    from eventlet import sleep, spawn

    eventlet.monkey_patch()

import kombu  # noqa: E402

TRANSPORT = "fairsched.integrations.kombu:Transport"
COUNT = 100
got: list[int] = []
beats: list[int] = []


def beat() -> None:
    """Note how much was received, while there is something to come."""
    while len(got) < COUNT:
        beats.append(len(got))
        sleep(0.005)


def produce() -> None:
    with kombu.Connection(URL, transport=TRANSPORT) as connection:
        producer = connection.Producer()
        while not beats or len(beats) < 20:
            sleep(0.005)
        for number in range(COUNT):
            producer.publish({"n": number}, routing_key=QUEUE)
            sleep(0.001)


def receive(message: kombu.Message) -> None:
    got.append(message.payload["n"])
    message.ack()


with kombu.Connection(URL, transport=TRANSPORT) as connection:
    queue = kombu.Queue(QUEUE, durable=False, auto_delete=False)
    others = [spawn(beat), spawn(produce)]
    with kombu.Consumer(connection.channel(), [queue], prefetch_count=5, on_message=receive):
        while len(got) < COUNT:
            connection.drain_events(timeout=60)
    connection.default_channel.queue_delete(QUEUE)
assert got == list(range(COUNT)), got
assert len(beats) >= 20, beats
