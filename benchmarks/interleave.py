"""Compare functions in one interleaved run: the machine's drift hits all of them alike."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

Timed = Callable[[], Any]


def medians(rounds: int = 15, /, **functions: Timed) -> dict[str, float]:
    """Median seconds of each function, called in turn, `rounds` times after a warm-up.

    A function that measures itself returns its nanoseconds as an int; the wall time of any other is taken.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, function in functions.items():
                start = time.perf_counter()
                result = function()
                elapsed = time.perf_counter() - start
                samples[name].append(result / 1e9 if type(result) is int else elapsed)
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in samples.items()}


def at_once(*functions: Callable[[], object]) -> int:
    """Nanoseconds until all functions are done, each in a thread of its own; they start together."""
    ready = threading.Barrier(len(functions))
    begun: list[int] = []
    ended: list[int] = []

    def run(function: Callable[[], object]) -> None:
        ready.wait()
        begun.append(time.perf_counter_ns())
        function()
        ended.append(time.perf_counter_ns())

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(ended) - min(begun)


def record(benchmark: Any, bars: dict[str, tuple[float, str, float]], **figures: float) -> None:
    """Keep ratios beside their bars in the benchmark's record, where `report.py` finds them.

    `bars` maps a description to (ratio, "<=" or ">=", bar).
    """
    benchmark.extra_info["bars"] = [
        {"what": what, "ratio": round(ratio, 4), "sense": sense, "bar": bar}
        for what, (ratio, sense, bar) in bars.items()
    ]
    benchmark.extra_info["figures"] = {name: float(f"{value:.4g}") for name, value in figures.items()}
