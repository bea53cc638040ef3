"""What the command says of a failure in Spark: one line, out of many of Java."""

from __future__ import annotations

import pytest

from fairsched.cli.pipeline import _first_line

FROM_PYTHON = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR]: Traceback (…):
  File "/lib/fairsched/spark/_depths.py", line 57, in depths
    self.total: int = self._ask()
                      ^^^^^^^^^^^
shop.errors.NoStock: none left

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
{exception}
 SQLSTATE: 38000
\tat org.apache.spark.Reader.next(Reader.java:1)
Caused by: java.io.IOException: broken pipe
java.io.IOException: broken pipe
=== Streaming Query ===
Identifier: [id = 1]
some.Thing: not meant
Thread State: RUNNABLE"""

COLUMN = "[UNRESOLVED_COLUMN] There is no column `quue`. SQLSTATE: 42703;"
FOLDER = "java.io.IOException: mkdir of file:/out failed"


@pytest.mark.parametrize(
    "exception",
    [
        "fairsched.errors.ConnectionFailed: 127.0.0.1:1: ConnectionRefusedError: [Errno 111] Connection refused",
        "KeyError: 'a'",
        "ZeroDivisionError",
        "shop.Closed",
    ],
)
def test_an_exception_of_python_is_found_whatever_its_name(exception: str) -> None:
    assert _first_line(FROM_PYTHON.format(exception=exception)) == exception


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (f"{COLUMN}\n'Project [quue]\n+- Relation [queue]", COLUMN),
        (f"{FOLDER}\n\tat org.apache.hadoop.fs.FileSystem.mkdir(FileSystem.java:1)", FOLDER),
    ],
)
def test_what_is_java_s_own_is_its_first_line(said: str, line: str) -> None:
    assert _first_line(said) == line


def test_an_exception_that_says_nothing_is_named() -> None:
    assert _first_line(ValueError()) == "ValueError()"
