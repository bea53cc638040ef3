"""The table of a pipeline: shares where there is a verdict, the rest apart, and no share where there is none."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress
from rich.console import Console

from fairsched.cli.output.pipeline_report import write_report
from fairsched.cli.output.pipeline_table import view
from fairsched.spark.pipeline.progress import PipelineProgress, PipelineReport

QUANTA = {"[/gold]": 3, "free": 1}


def batch(number: int, rows: dict[str, int], latest: object) -> Any:
    """The progress of a batch: even ones as a session of its own reports it, odd ones as Spark Connect does."""
    counts: dict[str, Any] = {**rows, "_other": 0}
    ages: dict[str, Any] = {}
    if number % 2:
        latest = json.dumps(latest)
        counts, ages = by_schema(counts), by_schema(dict.fromkeys(("p50", "p99", "max")))
    found = {
        "id": str(uuid.UUID(int=1)), "runId": str(uuid.UUID(int=2)), "name": None, "batchId": number,
        "timestamp": "2026-01-01T00:00:00.000Z", "batchDuration": 500, "stateOperators": [],
        "sources": [{"description": "rabbitmq", "startOffset": None, "endOffset": {"seq": number + 1},
                     "latestOffset": latest, "numInputRows": sum(rows.values()),
                     "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}],
        "sink": {"description": "noop", "numOutputRows": -1},
        "numInputRows": sum(rows.values()), "observedMetrics": {"shares": counts, "ages": ages},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(found)))


def by_schema(row: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in row]
    return {"values": list(row.values()), "schema": {"type": "struct", "fields": fields}}


def behind(gold: int, free: int) -> dict[str, Any]:
    return {"depths": {}, "behind": {"[/gold]": gold, "free": free}}


def rows(gold: int, free: int) -> dict[str, int]:
    return {"[/gold]": gold, "free": free}


def reported(*batches: Any) -> PipelineReport:
    progress = PipelineProgress(QUANTA)
    assert progress.add(batches, "shares", "ages")
    assert not progress.add(batches, "shares", "ages")
    assert progress.missed == 0
    assert [age.p50 for age in progress.ages] == [None] * len(batches)
    return progress.report(2.0)


@pytest.fixture
def judged() -> PipelineReport:
    return reported(
        batch(0, rows(10, 90), None),  # planned by an earlier run: what was left is not known
        batch(1, rows(300, 101), behind(300, 500)),
        batch(2, rows(300, 100), behind(0, 400)),
        batch(3, rows(0, 400), behind(0, 0)),
    )


@pytest.fixture
def unjudged() -> PipelineReport:
    return reported(batch(7, rows(20, 1020), behind(0, 1)))


def shown(report: PipelineReport) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(report, "orders[/red]"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def cells(lines: list[str]) -> list[list[str]]:
    _headings, *rows = (line for line in lines if line.startswith("│"))
    return [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows]


def test_shares_are_those_of_batches_that_left_every_queue_a_backlog(judged: PipelineReport) -> None:
    lines = shown(judged)
    assert lines[0].strip() == "orders[/red]"
    assert cells(lines) == [
        ["[/gold]", "3", "300", "74.81%", "75.00%", "-0.25%", "310", "610"],
        ["free", "1", "101", "25.19%", "25.00%", "+0.75%", "590", "691"],
    ]
    assert lines[-2].startswith("Jain's index 0.9999")
    assert "the 1 of 4 batches" in lines[-2]
    assert lines[-1].rstrip() == "1,301 messages in 2.0 s"


def test_without_such_a_batch_there_is_no_verdict(unjudged: PipelineReport) -> None:
    lines = shown(unjudged)
    assert cells(lines) == [
        ["[/gold]", "3", "0", "–", "75.00%", "–", "20", "20"],
        ["free", "1", "0", "–", "25.00%", "–", "1,020", "1,020"],
    ]
    assert lines[-2].startswith("No verdict: none of 1 batches")
    assert unjudged["jain"] is None
    assert shown(PipelineProgress(QUANTA).report(0.0))[-2].strip() == "No verdict: nothing was read"


@pytest.mark.parametrize("outcome", ["judged", "unjudged"])
def test_the_page_and_the_picture_say_the_same(outcome: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    report = request.getfixturevalue(outcome)
    write_report(tmp_path / "shares.html", "orders <b>", report, [])
    write_report(tmp_path / "shares.png", "orders <b>", report, [])
    page = (tmp_path / "shares.html").read_text()
    assert "orders &lt;b&gt;" in page
    assert ("No verdict" in page) == (outcome == "unjudged")
    assert ("<td>-0.25%</td>" in page) == (outcome == "judged")
    assert "<td>310</td>" in page or "<td>1,020</td>" in page
    assert matplotlib.image.imread(tmp_path / "shares.png").std() > 0.03  # not a blank sheet
