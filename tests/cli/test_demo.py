"""``fairsched demo`` without a URL: figures, formats and refusals."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairsched.cli.group import cli

ROUND = 55
#: As many as the most favoured queue is served of 11 000: nothing has to come in time, so counts are exact.
WINDOW = ["--prefetch", "2000"]


def demo(*arguments: str) -> Any:
    """Run the command with a short handler unless told otherwise."""
    return CliRunner().invoke(cli, ["demo", "--service-time", "1us", *arguments])


def figures(*arguments: str) -> dict[str, Any]:
    """Run it with --json and return the object."""
    result = demo("--json", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_is_exactly_the_documented_object() -> None:
    found = figures("--messages", "5500")
    assert list(found) == ["queues", "jain", "total", "seconds"]
    assert [row["name"] for row in found["queues"]] == [f"p{index}" for index in range(10)]
    assert [row["quantum"] for row in found["queues"]] == list(range(4, 44, 4))
    for row in found["queues"]:
        assert list(row) == ["name", "quantum", "served", "rate", "share", "ideal", "error"]
        assert {type(row[key]) for key in ("quantum", "served")} == {int}
        assert {type(row[key]) for key in ("rate", "share", "ideal", "error")} == {float}
        assert row["rate"] == pytest.approx(row["served"] / found["seconds"])
    assert (type(found["jain"]), type(found["total"]), type(found["seconds"])) == (float, int, float)
    assert found["total"] == sum(row["served"] for row in found["queues"]) == 5500


def test_whole_rounds_are_served_exactly() -> None:
    found = figures("--messages", str(200 * ROUND), *WINDOW)
    assert [row["served"] for row in found["queues"]] == [200 * (index + 1) for index in range(10)]
    assert [row["error"] for row in found["queues"]] == [0.0] * 10
    assert found["jain"] == 1.0


@pytest.mark.parametrize("messages", ["9000", "10987"])
def test_every_share_is_within_one_per_cent_wherever_it_stops(messages: str) -> None:
    found = figures("--messages", messages, *WINDOW)
    assert max(abs(row["error"]) for row in found["queues"]) < 0.01
    assert found["jain"] > 0.9999


@pytest.mark.steady
def test_the_default_takes_the_article_s_handler_and_whole_rounds() -> None:
    result = CliRunner().invoke(cli, ["demo", "--json"])
    found = json.loads(result.stdout)
    assert found["total"] == 33_000
    assert found["seconds"] > 3.3
    assert max(abs(row["error"]) for row in found["queues"]) < 0.05  # within 0.01 where nothing else runs


def test_one_message() -> None:
    found = figures("--messages", "1")
    assert [row["served"] for row in found["queues"]] == [1] + [0] * 9


def test_the_table_has_every_figure_and_the_summary() -> None:
    result = demo("--messages", str(100 * ROUND), *WINDOW)
    assert result.exit_code == 0
    for word in ("queue", "quantum", "served", "msg/s", "share", "ideal", "error", "p0", "p9", "18.18%", "+0.00%"):
        assert word in result.stdout
    assert "Jain's index 1.00000" in result.stdout
    assert "p9/p0 10.00 (ideal 10.00)" in result.stdout
    assert "5,500 messages in" in result.stdout
    assert "\x1b" not in result.stdout  # no terminal, no control sequences


def test_a_small_window_flattens_shares_and_says_so() -> None:
    result = demo("--messages", "5500", "--prefetch", "1", "--json")
    found = json.loads(result.stdout)
    assert found["jain"] < 0.7
    result = demo("--prefetch", "1")
    assert "The shares deviate: p0 is +" in result.stderr
    assert "a larger --prefetch" in result.stderr


def test_on_a_terminal_the_table_lives() -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "demo", "--messages", "5500", "--service-time", "100us"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert done.stdout.count("msg/s") > 3  # drawn again and again
    assert "\x1b[?25l" in done.stdout  # the cursor hidden meanwhile
    assert done.stdout.rstrip().endswith("s")
    final = done.stdout[done.stdout.rindex("Ten queues") :]
    assert "5,500 messages in" in final
    assert "Jain's index" in final


def test_plot_writes_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "shares.png"
    figures("--messages", "550", "--plot", str(path))
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    assert width >= 1000
    assert height >= 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--messages", "0"], "0 is not in the range x>=1"),
        (["--service-time", "5 weeks"], "a duration must be a number of seconds"),
        (["--prefetch", "70000"], "1<=x<=65535"),
        (["--plot", "shares.pdf"], "must end in .png, got 'shares.pdf'"),
        (["--plot", "/nonexistent/shares.png"], "directory '/nonexistent' does not exist"),
        (["--url", "http://app:hunter2@broker"], "url must be one or more URLs that start with amqp://"),
        (["--url", "amqp://app:hunter2@broker:port"], "is not understood"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = demo(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert "hunter2" not in result.output


def test_a_broker_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        port = unused.getsockname()[1]
        result = demo("--url", f"amqp://app:hunter2@127.0.0.1:{port}/")
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: 127.0.0.1:{port}: ConnectionRefusedError: ")
    assert result.stderr.count("\n") == 1
    assert "hunter2" not in result.stderr
