"""``fairsched pipeline``: read queues into Spark, write a table, and show the shares meanwhile."""

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
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli import exits
from fairsched.spark.pipeline.home import leave_outputs, quick_start
from fairsched.spark.pipeline.settings import PipelineSettings, read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fairsched.spark.pipeline.progress import PipelineProgress, PipelineReport

#: Seconds that a running batch has to finish when the pipeline is stopped.
_GRACE = 5.0
#: A line that names an exception of Python, and not one of Java.
_PYTHON = re.compile(
    r"(?!(?:com|java|javax|org|py4j|scala)\.)(?:(?:[A-Za-z_]\w*\.)+\w+|\w*(?:Error|Exception|Exit|Interrupt))(?:: |$)"
)


@click.command(epilog=exits.EPILOG)
@click.argument("file", metavar="PIPELINE.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--master",
    metavar="URL",
    help="Spark master, such as local[4]. [default: as in PIPELINE.toml, else Spark's default]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object at the end instead of the table.")
@click.option(
    "--report", "picture", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write a report of shares and message ages at the end, to FILE.html or FILE.png.",
)  # fmt: skip
def pipeline(file: Path, master: str | None, as_json: bool, picture: Path | None) -> None:
    """Run a Spark job on RabbitMQ queues, described in a file.

    PIPELINE.toml names the queues and the sink, and optionally a hash ring to partition by and a function to apply
    (Arrow record batches in and out). With the trigger "available-now" the pipeline ends when the messages that were
    queued are read; otherwise it runs until SIGTERM or SIGINT. Started again, it continues from its checkpoint.

    Without a URL in the file or the environment, it starts an embedded broker with its queues, and prints the URL.
    """
    if picture is not None:
        _check_report(picture)
    with ExitStack() as broker:
        settings = _settings(file, broker)
        spark = _session(settings, file.stem, master)
        try:
            report, progress = _run(spark, settings, None if as_json else file.stem)
        finally:
            spark.stop()
            leave_outputs()
    if progress.missed:
        click.echo(
            f"Warning: {progress.missed} batches were not counted: Spark had already discarded their progress", err=True
        )
    if as_json:
        click.echo(json.dumps({**report, "ages": [vars(age) for age in progress.ages]}))
    if picture is not None:
        from fairsched.cli.output.pipeline_report import write_report

        try:
            write_report(picture, file.stem, report, progress.ages)
        except OSError as error:
            raise exits.Failure(f"the report cannot be written: {error}", exits.APPLICATION) from None


def _settings(file: Path, broker: ExitStack) -> PipelineSettings:
    """Read the file; start an embedded broker, with the queues, if there is no URL."""
    started: list[str] = []

    def start() -> str:
        from fairsched.broker import Broker

        started.append(broker.enter_context(Broker()).url)
        return started[0]

    settings = read_pipeline(file, broker=start if sys.platform != "win32" else None)
    for url in started:
        import pika

        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            for queue in settings.quanta:
                channel.queue_declare(queue, durable=True)
        click.echo(f"No URL is given: the queues are on an embedded broker until the pipeline ends, {url}", err=True)
    return settings


def _check_report(path: Path) -> None:
    """Check that the report can be written, before the pipeline runs."""
    if path.suffix not in (".html", ".png"):
        raise exits.Failure(f"--report must name a file ending in .html or .png, got {str(path)!r}", exits.USAGE)
    if not path.absolute().parent.is_dir():
        raise exits.Failure(f"--report must name a file in an existing directory, got {str(path)!r}", exits.USAGE)
    import_module("fairsched.cli.output.pipeline_report")  # it needs matplotlib, which may be missing


def _session(settings: PipelineSettings, name: str, master: str | None) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise exits.Failure(f"pipelines need {error.name}: pip install 'fairsched[spark]'", exits.IMPORT) from None
    # Spark's Python workers use the same interpreter, and can import modules from the current directory.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # Spark's own progress bars would overwrite the table.
    chosen = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **settings.spark}
    if master is not None:
        chosen["spark.master"] = master
    os.environ.update(quick_start(os.environ, chosen))
    with _reported("Spark cannot be started"), warnings.catch_warnings():
        # A running Spark Connect server refuses these two settings.
        warnings.filterwarnings("ignore", r"Failed to set spark\.(ui\.showConsoleProgress|log\.level) ")
        builder: Any = SparkSession.builder.appName(name)
        for key, value in chosen.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def _reported(what: str, silence: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Turn an exception of Spark into a one-line message."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException, PySparkImportError

    try:
        yield
    except PySparkImportError as error:
        raise exits.Failure(f"{what}: {_first_line(error)}; pip install 'pyspark[connect]'", exits.IMPORT) from None
    except PySparkException as error:
        silence()
        raise exits.Failure(f"{what}: {_first_line(error)}", exits.APPLICATION) from None
    except Py4JJavaError as error:  # without an exception of PySpark's own, such as a missing data source package
        silence()
        raise exits.Failure(f"{what}: {_first_line(error.java_exception.toString())}", exits.APPLICATION) from None


def _run(spark: SparkSession, settings: PipelineSettings, title: str | None) -> tuple[PipelineReport, PipelineProgress]:
    """Run until the query ends; show the shares meanwhile if a title is given."""
    from fairsched.spark.pipeline.job import AGES, SHARES, start_pipeline
    from fairsched.spark.pipeline.progress import PipelineProgress

    def silence() -> None:
        _silence(spark)

    progress = PipelineProgress(settings.quanta)
    began = time.monotonic()
    with _reported("the pipeline cannot start", silence):
        query = start_pipeline(spark, settings)

    def latest() -> PipelineReport:
        progress.add(query.recentProgress, SHARES, AGES)
        return progress.report(time.monotonic() - began)

    with _reported("the pipeline failed", silence), _stop_signals() as stopped, _shown(title) as show:
        while not query.awaitTermination(1):
            show(latest())
            if stopped.is_set():
                _silence(spark)
                _wait_for_batch(query)
                query.stop()  # a batch that did not finish is read again from its spool next time
        report = latest()
        show(report)
    return report, progress


def _wait_for_batch(query: StreamingQuery) -> None:
    """Give a running batch a few seconds to finish, so that it is counted."""
    deadline = time.monotonic() + _GRACE
    while query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.1)


def _silence(spark: SparkSession) -> None:
    """Keep interrupted tasks from printing their stack traces after our own message."""
    from pyspark.sql import is_remote

    if not is_remote():  # a Spark Connect server keeps its own log
        spark.sparkContext.setLogLevel("OFF")


def _first_line(error: object) -> str:
    """Return the last Python exception in a Java error message, else its first line."""
    said = str(error).partition("=== Streaming Query ===")[0]  # what follows describes the query
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    python = [line for line in lines if _PYTHON.match(line)]
    return (python[-1:] or lines[:1] or [repr(error)])[0]


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set an event on SIGTERM or SIGINT; a handler that called the JVM would interrupt another call to it."""
    stopped = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda _number, _frame: stopped.set()) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(title: str | None) -> Iterator[Callable[[PipelineReport], None]]:
    """Yield a function that shows reports: live in a terminal; elsewhere only the last one is printed."""
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
