"""``fairsched prefetch``: the recommendation, its tables, JSON and picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from click.testing import CliRunner

from fairsched.cli.group import cli
from fairsched.cli.output.prefetch_plot import draw_prefetch
from fairsched.prefetch import analyse

ARTICLE = ("--round-trip", "100ms", "--service", "4ms")


def prefetch(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["prefetch", *arguments])


def test_the_article_in_a_table() -> None:
    result = prefetch(*ARTICLE, "--prefetch", "51")
    assert result.exit_code == 0
    lines = [" ".join(line.replace("│", " ").split()) for line in result.stdout.splitlines()]
    assert "1 3.85% 9.615 0 0s 50ms 0.0%" in lines
    assert "26 * 100.00% 250 0 0s 50ms 0.0%" in lines
    assert "51 < 100.00% 250 25 100ms 150ms 66.7%" in lines
    assert "service x 10 100.00% 25 47 1.9s 1.95s 97.4%" in lines
    assert "Prefetch 26 = (100ms + 4ms) / 4ms" in result.stdout


def test_json() -> None:
    result = prefetch(*ARTICLE, "--headroom", "1.5", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["recommended"], found["round_trip"], found["service_time"]) == (0, 39, 0.1, 0.004)
    assert [row["prefetch"] for row in found["rows"]] == [1, 13, 25, 26, 27, 39, 51]
    assert found["rows"][3] == analyse(26, 0.05, 0.004)._asdict()
    assert [change["name"] for change in found["changes"]] == ["now", "round trip x 2", "service x 5", "service x 10"]
    assert {change["prefetch"] for change in found["changes"]} == {39}


def test_no_network_at_all() -> None:
    result = prefetch("--round-trip", "0", "--service", "1s")
    assert result.exit_code == 0
    assert "Prefetch 1 = (0s + 1s) / 1s" in result.stdout


def test_more_than_amqp_can_say() -> None:
    result = prefetch("--round-trip", "1s", "--service", "1us")
    assert result.exit_code == 0
    assert "AMQP allows at most 65535" in result.stderr


@pytest.mark.parametrize("chosen", [None, "51", "2000"])
def test_the_picture(tmp_path: Path, chosen: str | None) -> None:
    path = tmp_path / "prefetch.png"
    result = prefetch(*ARTICLE, "--plot", str(path), *(("--prefetch", chosen) if chosen else ()))
    assert result.exit_code == 0
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] >= 600
    assert picture.std() > 0.05  # not a blank sheet


def test_a_picture_of_a_wide_range(tmp_path: Path) -> None:
    draw_prefetch(0.5, 1e-6, 7, tmp_path / "wide.png")
    assert matplotlib.image.imread(tmp_path / "wide.png").std() > 0.05


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--service", "4ms"), "Missing option '--round-trip'"),
        (("--round-trip", "100ms"), "Missing option '--service'"),
        (("--round-trip", "-1", "--service", "4ms"), "a duration must be"),
        (("--round-trip", "100ms", "--service", "0"), "a duration must be more than zero"),
        ((*ARTICLE, "--prefetch", "0"), "--prefetch"),
        ((*ARTICLE, "--prefetch", "65536"), "--prefetch"),
        ((*ARTICLE, "--headroom", "0.5"), "--headroom"),
        ((*ARTICLE, "--plot", "x.svg"), "must end in .png"),
        ((*ARTICLE, "--plot", "nowhere/x.png"), "directory 'nowhere' does not exist"),
    ],
)
def test_usage(arguments: tuple[str, ...], says: str) -> None:
    result = prefetch(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
