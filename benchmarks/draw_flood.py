"""Draw docs/flood.svg: how long a steady tenant's messages wait while another tenant publishes a burst.

    python benchmarks/draw_flood.py

Two simulations of the same arrivals and the same workers: all messages in one queue, first in, first out; and a queue
for each tenant, scheduled by the engine with equal weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fairsched import simulate
from fairsched.simulator import Arrivals, Broker, ConsumerSpec, Queue, Scenario, Service

PATH = Path(__file__).parents[1] / "docs" / "flood.svg"
SECONDS, BURST = 50, (10, 15)
FIFO, FAIR, SHADE, INK = "#b3261e", "#2e7d4f", "#eceff3", "#222222"


def arrivals() -> dict[str, NDArray[np.float64]]:
    """Draw the times at which each tenant publishes."""
    random = np.random.default_rng(1)
    return {
        "noisy": np.sort(random.uniform(*BURST, 1600 * (BURST[1] - BURST[0]))),
        "steady": np.sort(random.uniform(0, SECONDS, 50 * SECONDS)),
    }


def handled(queues: dict[str, NDArray[np.float64]]) -> NDArray[np.void]:
    """Simulate four workers that take 10 ms a message, and return the histories of all messages."""
    scenario = Scenario(
        brokers=[Broker(delay="1ms")],
        queues=[Queue(name, arrivals=Arrivals.trace(times)) for name, times in queues.items()],
        consumers=[ConsumerSpec(prefetch_total=40, workers=4, hold=True, service=Service.constant("10ms"))],
        messages=sum(map(len, queues.values())),
        histories=sum(map(len, queues.values())),
    )
    return simulate(scenario).histories


def waits(history: NDArray[np.void]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when each message was published and how long it waited, in seconds."""
    order = np.argsort(history["created"])
    created = history["created"][order] / 1e9
    return created, history["started"][order] / 1e9 - created


def main() -> None:
    times = arrivals()
    merged = np.concatenate(list(times.values()))
    order = np.argsort(merged, kind="stable")
    steady = order >= len(times["noisy"])
    fair = handled(times)
    fair = fair[fair["queue"] == 1]
    mixed = handled({"all": merged[order]})
    mixed = mixed[steady[np.searchsorted(np.sort(mixed["number"]), mixed["number"])]]
    with rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "flood"}):
        figure = Figure(figsize=(8.4, 3.1), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.axvspan(*BURST, color=SHADE, zorder=0)
        for history, color, label, at in (
            (mixed, FIFO, "one queue, first in, first out", (24.0, 10.5)),
            (fair, FAIR, "fairsched, equal weights", (33.0, 0.9)),
        ):
            created, waited = waits(history)
            axes.plot(created[::10], waited[::10], color=color, linewidth=2, clip_on=False)
            axes.text(*at, f"{label}: at most {waited.max():.2g} s", color=color, fontsize=10)
        axes.text(BURST[0] - 0.5, 14.3, "another tenant\npublishes\n8 000 messages", ha="right", va="top", color=INK)
        axes.set(
            xlim=(0, SECONDS),
            ylim=(0, 17),
            yticks=range(0, 16, 5),
            xlabel="published at (seconds)",
            ylabel="wait (seconds)",
        )
        axes.set_title("Wait of a tenant that publishes 50 messages per second", loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(PATH, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
