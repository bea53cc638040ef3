"""A job that refuses every third message, and may be stopped between any two of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.spark.queries import into_files

from fairsched.spark import dead_letter

#: Where a batch may stop: before it is read; when it is read; while its refused rows are published; when they are; when
#: the good rows are written, too, and only the commit is left.
STEPS = ("begun", "read", "publishing", "published", "written")
REASON = "a third"
_here = threading.local()


def is_refused(body: bytes) -> bool:
    return int(body.partition(b"/")[2]) % 3 == 0


def refusing(
    folder: Path, dead: dict[str, str], at: Callable[[str, int], None] = lambda _step, _batch: None
) -> Callable[[DataFrame, int], None]:
    """A sink of good rows, which says where it is."""
    write = into_files(folder)
    reason = F.expr(f"IF(CAST(split_part(CAST(body AS STRING), '/', 2) AS INT) % 3 = 0, '{REASON}', NULL)")

    def process(frame: DataFrame, number: int) -> None:
        at("begun", number)
        _here.read = lambda: at("read", number)
        good = dead_letter(frame, reason, **dead)
        at("published", number)
        write(good, number)
        at("written", number)

    return process


def stopping(step: str, batch: int, reached: Path) -> Callable[[str, int], None]:
    """Stop for good at a step of a batch; while it publishes, it goes on until it is killed."""
    begun = {"publishing": "read"}.get(step, step)

    def at(here: str, number: int) -> None:
        if (here, number) == (begun, batch):
            reached.touch()
            if begun == step:
                threading.Event().wait()

    return at


def watch_reading() -> None:
    """Say when the rows of a batch were read: inside `dead_letter`, which has no place for a hook."""
    from pyspark.sql.classic.dataframe import DataFrame as Classic

    read: Any = Classic.localCheckpoint

    def watched(frame: Any, *arguments: Any, **more: Any) -> Any:
        rows = read(frame, *arguments, **more)
        _here.read()
        return rows

    setattr(Classic, "localCheckpoint", watched)  # noqa: B010  # a method, as mypy sees it
