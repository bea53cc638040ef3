"""The page /scale of running workers, as KEDA asks for it, and the example of the manual."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from support.ports import free_ports
from support.rabbitmq import Broker, numbered
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/scaling.md").read_text(encoding="utf-8")
KEDA = list(yaml.safe_load_all((ROOT / "examples/deploy/keda.yaml").read_text(encoding="utf-8")))

WORKER = """
import pathlib
import time

from fairsched import App

app = App(workers=2, prefetch=10)


@app.consumer("{queue}")
def handle(message):
    while not pathlib.Path("open").exists() and message.body != b"0":
        time.sleep(0.01)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@contextmanager
def running(directory: Path, broker: Broker, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running ``fairsched run`` of an app that is in the directory."""
    with subprocess.Popen(
        [sys.executable, "-m", "fairsched.cli", "run", module, *arguments],
        cwd=directory, env={**os.environ, "FAIRSCHED_URL": broker.url}, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ask(port: int) -> tuple[int, dict[str, Any]]:
    """Return status and body of an answer; status 0 while none listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/scale", timeout=30) as answer:
            assert answer.headers.get_content_type() == "application/json"
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except (urllib.error.URLError, ConnectionError):
        return 0, {}


def answered(port: int, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first answer with a number that fulfils a condition."""
    found: dict[str, Any] = {}

    def is_answered() -> bool:
        nonlocal found
        status, found = ask(port)
        return status == 200 and bool(condition(found))

    eventually(is_answered, 60, every=0.1)
    return found


def test_two_workers_answer_for_both(tmp_path: Path, broker: Broker, new_queue: Callable[..., str]) -> None:
    queue, ports = new_queue(), free_ports(2)
    (tmp_path / "worker.py").write_text(WORKER.format(queue=queue))
    with ExitStack() as workers:
        for port in ports:
            workers.enter_context(running(tmp_path, broker, "worker:app", "--metrics-port", str(port)))
        # Nothing has been handled: no number, while there is something to do.
        for port in ports:
            assert answered(port, lambda found: found["queues"][0]["workers"] == 4)["seconds"] == 0.0
        broker.publish(queue, [b"1"] * 100)
        for port in ports:
            eventually(lambda port=port: ask(port)[0] == 503, 60, every=0.1)
        (tmp_path / "open").touch()
        for port in ports:
            found = answered(port, lambda found: found["backlog"] == 0)
            assert found["seconds"] == 0.0
            assert found["queues"][0]["name"] == queue
            assert found["queues"][0]["workers"] == 4
    assert broker.count(queue) == 0


def test_a_backlog_is_counted(tmp_path: Path, broker: Broker, new_queue: Callable[..., str]) -> None:
    queue, [port] = new_queue(), free_ports(1)
    broker.publish(queue, numbered(200))  # the first one returns at once, the others wait
    (tmp_path / "worker.py").write_text(WORKER.format(queue=queue))
    with running(tmp_path, broker, "worker:app", "--metrics-port", str(port)):
        found = answered(port, lambda found: found["backlog"] == 199)
        [one] = found["queues"]
        assert one["ready"] == 189
        assert found["seconds"] == one["seconds"] == pytest.approx(199 * one["handler_seconds"] / 2, abs=1e-4)
        assert 0 <= found["age"] <= 60
        (tmp_path / "open").touch()
        assert answered(port, lambda found: found["backlog"] == 0)["seconds"] == 0.0


def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path, mortal: Broker) -> None:
    [port] = free_ports(1)
    mortal.declare("lasting")
    mortal.publish("lasting", [b"0"] * 10, delivery_mode=2)
    (tmp_path / "worker.py").write_text(WORKER.format(queue="lasting"))
    with running(tmp_path, mortal, "worker:app", "--metrics-port", str(port)):
        answered(port, lambda found: found["queues"][0]["handler_seconds"] is not None)
        mortal.publish("lasting", [b"1"] * 30, delivery_mode=2)
        answered(port, lambda found: found["backlog"] == 30)
        mortal.restart()
        (tmp_path / "open").touch()
        # The counts from before the restart have ready messages: these are others.
        assert answered(port, lambda found: found["backlog"] == 0)["seconds"] == 0.0


# The manual ------------------------------------------------------------------------------------------------------


def shape(value: Any) -> Any:
    """Return the types and the names of a value; of a list, its first."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])]
    return type(value)


def test_the_example_of_the_page(tmp_path: Path, broker: Broker) -> None:
    """Two of its workers answer as it prints, with the numbers of the moment."""
    [code], [commands], [printed] = blocks("python"), blocks("sh"), blocks("json")
    command = shlex.split(commands.splitlines()[0])
    assert command[:2] == ["fairsched", "run"]
    assert urlsplit(shlex.split(commands.splitlines()[1])[1])[1:3] == ("127.0.0.1:9191", "/scale")
    ports = free_ports(2)
    (tmp_path / "workers.py").write_text(code)
    broker.delete("orders")
    broker.declare("orders")
    for tenant in ("acme", "acme", "gold") * 5:
        broker.publish("orders", [b"work"] * 100, headers={"tenant": tenant})
    with ExitStack() as workers:
        for port in ports:
            changed = [str(port) if one == "9191" else one for one in command[2:]]
            workers.enter_context(running(tmp_path, broker, changed[0], *changed[1:]))
        for port in ports:
            found = answered(port, lambda found: found["queues"][0]["workers"] == 8 and len(found["tenants"]) == 2)
            assert shape(found) == shape(json.loads(printed))
            [orders] = found["queues"]
            assert 0.099 <= orders["handler_seconds"] < 1  # it sleeps for 0.1 s; a busy machine wakes it later
            assert found["seconds"] == pytest.approx(orders["backlog"] * orders["handler_seconds"] / 8, abs=1e-3)
            assert orders["backlog"] - orders["ready"] <= 40
    broker.delete("orders")


def value_at(table: Any, path: str) -> Any:
    """Return what a GJSON path of the forms ``a``, ``a.b`` and ``a.#(b=="c").d`` points to."""
    for part in re.findall(r'#\(\w+=="[^"]*"\)|[^.]+', path):
        if part.startswith("#"):
            key, wanted = re.findall(r'#\((\w+)=="([^"]*)"\)', part)[0]
            table = next(one for one in table if one[key] == wanted)
        else:
            table = table[part]
    return table


def test_paths_of_the_page_point_to_numbers() -> None:
    printed = json.loads(blocks("json")[0])
    paths = re.findall(r"`(seconds|(?:queues|tenants)\.#\(.*?\)\.\w+)`", PAGE)
    assert len(set(paths)) == 3
    for path in paths:
        assert isinstance(value_at(printed, path), int | float)


def test_the_example_for_keda_fits_the_worker_beside_it() -> None:
    manifest = yaml.safe_load_all((ROOT / "examples/deploy/kubernetes.yaml").read_text(encoding="utf-8"))
    deployment = next(one for one in manifest if one["kind"] == "Deployment")
    service, scaled, authentication = KEDA
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    [metrics] = [part for part in scaled["spec"]["triggers"] if part["type"] == "metrics-api"]
    url = urlsplit(metrics["metadata"]["url"])
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert url.hostname is not None
    assert url.hostname.split(".")[0] == service["metadata"]["name"]
    arguments = container["args"]
    assert url.port == int(arguments[arguments.index("--metrics-port") + 1])
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [url.port]
    assert url.port in [port["containerPort"] for port in container["ports"]]
    assert url.path == "/scale"
    assert metrics["metricType"] == "Value"
    assert isinstance(value_at(json.loads(blocks("json")[0]), metrics["metadata"]["valueLocation"]), float)
    # The first pod cannot be asked: another trigger starts it, and asks for no other.
    [first] = [part for part in scaled["spec"]["triggers"] if part["type"] == "rabbitmq"]
    assert first["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert int(first["metadata"]["activationValue"]) == 0
    assert int(first["metadata"]["value"]) >= 1_000_000
