"""``fairsched pipeline``: queues, through Spark, into a table, with the shares as they come."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli import exits
from fairsched.spark.pipelinefile import PipelineSettings, read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fairsched.spark.progress import PipelineProgress, PipelineReport

#: Seconds that a batch under way has to end when the pipeline is told to stop.
_GRACE = 5.0
#: A line that names an exception of Python, and not one of Java.
_PYTHON = re.compile(
    r"(?!(?:com|java|javax|org|py4j|scala)\.)(?:(?:[A-Za-z_]\w*\.)+\w+|\w*(?:Error|Exception|Exit|Interrupt))(?:: |$)"
)


@click.command(epilog=exits.EPILOG)
@click.argument("file", metavar="PIPELINE.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--master", metavar="URL", help="Where Spark runs, such as local[4]; otherwise as the file, or Spark, says."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end and nothing else.")
@click.option(
    "--report", "picture", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write shares and ages at the end: FILE.html or FILE.png.",
)  # fmt: skip
def pipeline(file: Path, master: str | None, as_json: bool, picture: Path | None) -> None:
    """Run a pipeline from RabbitMQ through Spark until it is done, or told to stop.

    PIPELINE.toml names the queues, and may name a ring to partition by, a function of yours (Arrow record batches in
    and out), and the sink. With the trigger "available-now" the pipeline ends when it has read what was there;
    otherwise it runs until SIGTERM or SIGINT, after which the same file goes on from its checkpoint.
    """
    if picture is not None:
        _check_report(picture)
    settings = read_pipeline(file)
    spark = _session(settings, file.stem, master)
    try:
        report, progress = _run(spark, settings, None if as_json else file.stem)
    finally:
        spark.stop()
    if progress.missed:
        click.echo(f"Warning: {progress.missed} batches were not counted: their progress was gone too soon", err=True)
    if as_json:
        click.echo(json.dumps({**report, "ages": [vars(age) for age in progress.ages]}))
    if picture is not None:
        from fairsched.cli.output.pipeline_report import write_report

        try:
            write_report(picture, file.stem, report, progress.ages)
        except OSError as error:
            raise exits.Failure(f"the report cannot be written: {error}", exits.APPLICATION) from None


def _check_report(path: Path) -> None:
    """Say what would be in the way of a report before the work is done, not after."""
    if path.suffix not in (".html", ".png"):
        raise exits.Failure(f"--report must name a file ending in .html or .png, got {str(path)!r}", exits.USAGE)
    if not path.absolute().parent.is_dir():
        raise exits.Failure(f"--report must name a file in a folder that there is, got {str(path)!r}", exits.USAGE)
    import_module("fairsched.cli.output.pipeline_report")  # draws, which needs a package that may be missing


def _session(settings: PipelineSettings, name: str, master: str | None) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise exits.Failure(f"pipelines need {error.name}: pip install 'fairsched[spark]'", exits.IMPORT) from None
    # Spark starts its Python with these: the same interpreter, and the user's modules from here.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # Spark's own bars would be drawn over the table.
    chosen = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **settings.spark}
    if master is not None:
        chosen["spark.master"] = master
    with _reported("Spark cannot be started"), warnings.catch_warnings():
        # A server of Spark Connect that runs already has its own.
        warnings.filterwarnings("ignore", r"Failed to set spark\.(ui\.showConsoleProgress|log\.level) ")
        builder: Any = SparkSession.builder.appName(name)
        for key, value in chosen.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def _reported(what: str, silence: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn what Spark raises into one line."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException, PySparkImportError

    try:
        yield
    except PySparkImportError as error:
        raise exits.Failure(f"{what}: {_first_line(error)}; pip install 'pyspark[connect]'", exits.IMPORT) from None
    except PySparkException as error:
        silence()
        raise exits.Failure(f"{what}: {_first_line(error)}", exits.APPLICATION) from None
    except Py4JJavaError as error:  # what PySpark has no name for, such as a format whose package is not there
        silence()
        raise exits.Failure(f"{what}: {_first_line(error.java_exception.toString())}", exits.APPLICATION) from None


def _run(spark: SparkSession, settings: PipelineSettings, title: str | None) -> tuple[PipelineReport, PipelineProgress]:
    """Run until the query ends; show the shares meanwhile where a title is given."""
    from fairsched.spark.pipeline import AGES, SHARES, start_pipeline
    from fairsched.spark.progress import PipelineProgress

    def silence() -> None:
        _silence(spark)

    progress = PipelineProgress(settings.quanta)
    began = time.monotonic()
    with _reported("the pipeline cannot start", silence):
        query = start_pipeline(spark, settings)

    def latest() -> PipelineReport:
        progress.add(query.recentProgress, SHARES, AGES)
        return progress.report(time.monotonic() - began)

    with _reported("the pipeline failed", silence), _signals_noted() as told, _shown(title) as show:
        while not query.awaitTermination(1):
            show(latest())
            if told.is_set():
                _silence(spark)
                _come_to_rest(query)
                query.stop()  # a batch under way is read again from its spool next time
        report = latest()
        show(report)
    return report, progress


def _come_to_rest(query: StreamingQuery) -> None:
    """Give a batch that is nearly done the time to be so, and to be counted."""
    deadline = time.monotonic() + _GRACE
    while query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.1)


def _silence(spark: SparkSession) -> None:
    """Keep tasks that are cut short from printing their stacks, which would come after what is said here."""
    from pyspark.sql import is_remote

    if not is_remote():  # the log of a server of Spark Connect is not this command's
        spark.sparkContext.setLogLevel("OFF")


def _first_line(error: object) -> str:
    """Find what went wrong: the last exception of Python in what Java says, else the first line of that."""
    said = str(error).partition("=== Streaming Query ===")[0]  # then comes what the query did
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    python = [line for line in lines if _PYTHON.match(line)]
    return (python[-1:] or lines[:1] or [repr(error)])[0]


@contextmanager
def _signals_noted() -> Iterator[threading.Event]:
    """Note SIGTERM or SIGINT, and no more: a handler that spoke to the JVM would break into a call under way."""
    told = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda _number, _frame: told.set()) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(title: str | None) -> Iterator[Callable[[PipelineReport], None]]:
    """Show reports, one in place of the other where there is a terminal, and elsewhere the last one only."""
    from rich.console import Console
    from rich.live import Live

    from fairsched.cli.output.pipeline_table import view

    console = Console()
    reports: list[PipelineReport] = []
    if title is None:
        yield reports.append
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda report: live.update(view(report, f"{title}: rows read"), refresh=True)
    else:
        yield reports.append
        console.print(view(reports[-1], f"{title}: rows read"))
