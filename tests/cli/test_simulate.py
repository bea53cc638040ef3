"""``fairsched simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairsched.cli.group import cli
from fairsched.simulator import scenario_names


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["simulate", *arguments])


def figures(*arguments: str) -> dict[str, Any]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_list() -> None:
    result = run("--list")
    assert result.exit_code == 0
    for name in scenario_names():
        assert name in result.stdout
    listed = json.loads(run("--list", "--json").stdout)
    assert [entry["name"] for entry in listed] == scenario_names()


def test_json() -> None:
    found = figures("optimal-prefetch")
    assert found["consumers"][0]["utilisation"] == 1.0
    assert found["queues"][0]["latency"]["mean"] == 0.05


def test_tables() -> None:
    result = run("worker-failure")
    for word in ("Two consumers", "Waits of worker-failure", "orders", "app-1", "again", "twice", "per second"):
        assert word in result.stdout
    result = run("flattening", "--set", "messages=4000")
    for word in ("Shares of flattening", "p9", "+37.50%", "Jain's index 0.946"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_settings() -> None:
    changed = figures("slow-network", "--set", "consumers.*.prefetch=51", "--set", "broker.delay=100ms", "--seed", "5")
    assert changed["consumers"][0]["utilisation"] == pytest.approx(1.0)
    assert changed["seed"] == 5


def test_a_file_and_a_picture(tmp_path: Path) -> None:
    scenario, picture = tmp_path / "mine.toml", tmp_path / "mine.png"
    scenario.write_text(
        'duration = "1s"\nqueues = [{ name = "a" }, { name = "b" }]\nconsumers = [{ name = "c" }]\n', encoding="utf-8"
    )
    result = run(str(scenario), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run("cold-start", "--plot", str(picture)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SCENARIO must be a TOML file or one of anticipation, "),
        (["slow-netwrk"], "did you mean 'slow-network'?"),
        (["nothing.toml"], "file nothing.toml cannot be read"),
        (["spike", "--set", "seed"], "must be KEY=VALUE, such as seed=7, got 'seed'"),
        (["spike", "--set", "speed=7"], "a scenario has no field 'speed'"),
        (["spike", "--set", "duration=soon"], "duration must be a number of seconds"),
        (["spike", "--plot", "spike.pdf"], "must end in .png"),
        (["spike", "--seed", "-1"], "-1 is not in the range"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
