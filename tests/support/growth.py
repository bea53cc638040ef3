"""The resources of a process, and by how much that grows from one third of a run to the next."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import psutil
from support.spark.processes import MEGABYTE, threads

Sample = dict[str, float]


def held(name: str, process: psutil.Process) -> Sample:
    """Return the resources a process holds now, by name."""
    return {
        f"{name}: MB": process.memory_info().rss / MEGABYTE,
        f"{name}: files": process.num_fds(),
        f"{name}: threads": threads(process.pid),
    }


def growth(found: Sequence[Sample]) -> Sample:
    """By how much each third is above the one before it, the lesser of both; of several processes, the one most so.

    A leak grows in both. What is taken once, as a pool's next block is, is a step in one of them. Memory is compared by
    medians. Files and connections come and go within a batch, so what there is at least counts. What is not there from
    the first sample to the last is left out; the number of processes shows it.
    """
    third = len(found) // 3
    parts = found[:third], found[third:-third], found[-third:]
    grown: Sample = {}
    for name in found[0].keys() & found[-1].keys():
        kind = re.sub(r" \d+:", ":", name)
        level = median if kind.endswith("MB") else min
        levels = [level([one[name] for one in part if name in one]) for part in parts]
        grown[kind] = max(grown.get(kind, -math.inf), min(b - a for a, b in pairwise(levels)))
    return dict(sorted(grown.items()))
