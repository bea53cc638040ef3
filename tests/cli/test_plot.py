"""The picture of shares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

from fairsched.cli.output.shares_plot import draw_shares
from fairsched.fairness import report

QUANTA = {f"p{index}": 4 * (index + 1) for index in range(10)}


@pytest.mark.parametrize(
    "served",
    [{name: 25 * quantum for name, quantum in QUANTA.items()}, dict.fromkeys(QUANTA, 100), {}, {"p9": 5}],
    ids=["ideal", "flattened", "nothing", "starved"],
)
def test_any_outcome_can_be_drawn(tmp_path: Path, served: dict[str, int]) -> None:
    path = tmp_path / "shares.png"
    draw_shares(report(served, QUANTA, 1.5), path)
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] >= 600
    assert picture.shape[1] >= 1000
    assert picture.std() > 0.05  # not a blank sheet


def test_drawing_leaves_pyplot_and_its_backend_alone(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from fairsched.cli.output.shares_plot import draw_shares\n"
        "from fairsched.fairness import report\n"
        f"draw_shares(report({{}}, {QUANTA!r}, 1.0), pathlib.Path({str(tmp_path / 'x.png')!r}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_dollars_in_a_name_are_text(tmp_path: Path) -> None:
    names = ("$\\gold{$", "$x^2$")
    draw_shares(report(dict.fromkeys(names, 1), dict.fromkeys(names, 1), 1.0), tmp_path / "shares.png")
    assert matplotlib.image.imread(tmp_path / "shares.png").shape[2] == 4
