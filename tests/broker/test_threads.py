"""The broker's I/O threads never take the GIL: messages pass while another thread does not let go of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import fairsched

CLIENT = """
import sys, pika
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.queue_declare("q")
channel.confirm_delivery()
print("ready", flush=True)
sys.stdin.readline()
for number in range(500):
    channel.basic_publish("", "q", b"x" * 100)
taken = 0
for method, _, body in channel.consume("q"):
    channel.basic_ack(method.delivery_tag)
    taken += 1
    if taken == 500:
        break
connection.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no waitpid, nor a broker")
@pytest.mark.parametrize("io_threads", [1, 2])
def test_messages_pass_while_this_thread_holds_the_gil(io_threads):
    with fairsched.Broker(io_threads=io_threads) as broker:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, broker.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with client.stdin, client.stdout:
            assert client.stdout.readline() == "ready\n"
            client.stdin.write("go\n")
            client.stdin.flush()
            status = ctypes.c_int(-1)
            # PyDLL calls without letting go of the GIL; a test that hangs is interrupted, and then this is -1.
            ended = ctypes.PyDLL(None).waitpid(client.pid, ctypes.byref(status), 0)
        client.returncode = status.value
        assert (ended, status.value) == (client.pid, 0)
