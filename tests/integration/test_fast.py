"""Deliveries by compiled code or by pika: which pikas allow which, and what is said of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from support.declare import Declare
from support.rabbitmq import Node
from support.waiting import eventually

MESSAGES = 300
LONG = 200_000  # in two frames
ROOT = Path(__file__).parents[2]
REMEDY = "the tests install the oldest and the newest supported pika: make the package index reachable for pip"
# Consumes a queue by two consumers, one after the other, with pika as it is found, or as the doctoring leaves it.
PROGRAM = """
import json, logging, sys
import pika
exec(sys.argv[1])
from fairsched import Consumer
from fairsched.errors import ConfigurationError

url, queue, fast, messages = json.loads(sys.argv[2])
lines, errors, returned, acked = [], [], [], []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("fairsched").addHandler(handler)
for wanted in (messages // 2, messages):
    consumer = Consumer(url, [queue], prefetch=40)
    consumer._client.settings.fast = fast

    def handle(message):
        number = int(message.body)
        if number % 10 == 0 and number not in returned:
            message.nack()
            returned.append(number)
        else:
            acked.append(number)
        if len(acked) == wanted:
            consumer.stop()

    try:
        consumer.run(handle)
    except ConfigurationError as error:
        errors.append(str(error))
found = {"version": pika.__version__, "file": pika.__file__}
print(json.dumps({**found, "lines": lines, "errors": errors, "returned": returned, "acked": acked}))
"""
# How a pika of the future may differ. Each is consistent in itself, and lacks what it is named after.
DOCTORING = {
    "_process_frame()": """
from pika.connection import Connection

def take(self, data):
    self._frame_buffer += data
    while self._frame_buffer:
        size, frame = self._read_frame()
        if not frame:
            return
        self._trim_frame_buffer(size)
        self._handle_frame(frame)

Connection._handle_frame = Connection._process_frame
Connection._on_data_available = take
del Connection._process_frame
""",
    "_on_data_available()": """
from pika.adapters.base_connection import BaseConnection
from pika.connection import Connection

Connection._take_input = Connection._on_data_available
BaseConnection._proto_data_received = lambda self, data: self._take_input(data)
del Connection._on_data_available
""",
    "_adapter_emit_data()": """
from pika.adapters.base_connection import BaseConnection
from pika.connection import Connection

def write(self, frames):
    for frame in frames:
        self.bytes_sent += len(frame)
        self.frames_sent += 1
        self._write_output(frame)

BaseConnection._write_output = BaseConnection._adapter_emit_data
Connection._output_marshaled_frames = write
BaseConnection.__abstractmethods__ = BaseConnection.__abstractmethods__ - {"_adapter_emit_data"}
pika.SelectConnection.__abstractmethods__ = frozenset()
del BaseConnection._adapter_emit_data, Connection._adapter_emit_data
""",
    "_frame_buffer: bytes": """
from pika import frame
from pika.connection import Connection

def take(self, data):
    self._input = getattr(self, "_input", b"") + data
    while self._input:
        self._frame_buffer = None
        size, found = frame.decode_frame(self._input)
        if not found:
            return
        self._input = self._input[size:]
        self.bytes_received += size
        self._process_frame(found)

Connection._on_data_available = take
""",
}


def consume(url: str, queue: str, fast: bool | None, doctoring: str = "", folder: Path | None = None) -> dict[str, Any]:
    """Run the program, with pika from a folder; what it found."""
    path = os.pathsep.join(filter(None, [str(folder or ""), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, doctoring, json.dumps([url, queue, fast, MESSAGES])],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_handled(found: dict[str, Any], broker: Node, queue: str) -> None:
    """Each message was handled once, but for those that were returned first."""
    assert sorted(found["acked"]) == list(range(MESSAGES))
    assert sorted(found["returned"]) == list(range(0, MESSAGES, 10))
    assert broker.count(queue) == 0


@pytest.fixture
def filled(broker: Node, new_queue: Declare) -> str:
    queue = new_queue("fast")
    broker.publish(queue, [b"%d" % number + b" " * (LONG if number % 50 == 7 else 0) for number in range(MESSAGES)])
    return queue


def pip(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{REMEDY}; pip {' '.join(arguments)} said:\n{done.stderr}")
    return done.stdout


def supported() -> list[Version]:
    """Versions of pika that pyproject.toml allows and the index has, the oldest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = next(one for one in map(Requirement, project["dependencies"]) if one.name == "pika").specifier
    listed = re.search(r"Available versions: (.+)", pip("index", "versions", "pika"))
    assert listed is not None
    return sorted(version for version in map(Version, listed[1].split(", ")) if version in allowed)


@pytest.fixture(scope="module", params=[0, -1], ids=["oldest", "newest"])
def released(request: pytest.FixtureRequest) -> tuple[Version, Path]:
    """A version of pika, and a folder with it, which is kept for the next time."""
    version = supported()[request.param]
    folder = request.config.cache.mkdir(f"pika-{version}")
    if not (folder / "pika").exists():
        # The name is there only when all of it is.
        unfinished = folder / f"{os.getpid()}"
        pip("install", "--quiet", "--no-deps", "--target", str(unfinished), f"pika=={version}")
        (unfinished / "pika").rename(folder / "pika")
    return version, folder


@pytest.mark.parametrize("fast", [True, False])
def test_every_supported_pika_allows_both(
    broker: Node, filled: str, released: tuple[Version, Path], fast: bool
) -> None:
    version, folder = released
    found = consume(broker.url, filled, fast, folder=folder)
    assert (found["version"], found["errors"]) == (str(version), [])
    assert Path(found["file"]).is_relative_to(folder)
    assert found["lines"] == []
    check_handled(found, broker, filled)


@pytest.mark.parametrize("missing", DOCTORING)
def test_another_pika_is_left_to_itself_and_named_once(broker: Node, filled: str, missing: str) -> None:
    found = consume(broker.url, filled, None, DOCTORING[missing])
    assert found["errors"] == []
    assert len(found["lines"]) == 1
    assert found["lines"][0].endswith(f"this is pika {found['version']}, whose connections have no {missing}")
    check_handled(found, broker, filled)


def test_nothing_is_said_that_is_not_news(broker: Node, filled: str) -> None:
    found = consume(broker.url, filled, False, DOCTORING["_process_frame()"])
    assert found["lines"] == found["errors"] == []
    check_handled(found, broker, filled)


@pytest.mark.parametrize("missing", DOCTORING)
def test_a_program_that_insists_is_told_what_is_missing(broker: Node, filled: str, missing: str) -> None:
    found = consume(broker.url, filled, True, DOCTORING[missing])
    error = f"fast must be None or False with pika {found['version']} whose connections have no {missing}, got True"
    assert found["errors"] == [error] * 2
    assert found["acked"] == []
    eventually(lambda: broker.count(filled) == MESSAGES)
