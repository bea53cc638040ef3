"""Print the ratios of a benchmark run beside their targets, as the table of docs/benchmarks.md.

Usage: python benchmarks/report.py build/benchmarks.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def rows(path: Path) -> list[tuple[str, float, str, float]]:
    """List (what, ratio, sense, bar) of every comparison in a pytest-benchmark file."""
    data = json.loads(path.read_text())
    return [
        (bar["what"], bar["ratio"], bar["sense"], bar["bar"])
        for one in data["benchmarks"]
        for bar in one["extra_info"].get("bars", [])
    ]


def main() -> None:
    """Print the table; the exit code says whether a bar is missed."""
    missed = 0
    print("| comparison, in one interleaved run | ratio | target | |")
    print("|---|---|---|---|")
    for what, ratio, sense, bar in rows(Path(sys.argv[1])):
        met = ratio <= bar if sense == "<=" else ratio >= bar
        missed += not met
        print(f"| {what} | {ratio:.3g} × | {'≤' if sense == '<=' else '≥'} {bar:g} × | {'met' if met else 'MISSED'} |")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
