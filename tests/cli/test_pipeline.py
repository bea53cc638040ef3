"""The command's output without Spark: of its report, of the function it is to call, and of a failure in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairsched.cli.commands.pipeline import _first_line
from fairsched.cli.group import cli
from fairsched.errors import ConfigurationError
from fairsched.spark.pipeline.job import load_function

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


@pytest.mark.parametrize(
    ("name", "words"), [("shares.pdf", ".html or .png"), ("nowhere/shares.html", "in an existing directory")]
)
def test_a_report_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, words: str) -> None:
    done = CliRunner().invoke(cli, ["pipeline", str(tmp_path / "none.toml"), "--report", str(tmp_path / name)])
    assert done.exit_code == 2
    assert words in done.output


def test_a_report_without_matplotlib_is_refused_at_once(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name.startswith('matplotlib'):\n"
        "            raise ModuleNotFoundError(name, name='matplotlib')\n"
        "sys.meta_path.insert(0, Missing)\n"
        "from fairsched.cli import main\n"
        f"main(['pipeline', {str(tmp_path / 'none.toml')!r}, '--report', {str(tmp_path / 'shares.png')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "needs matplotlib" in done.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("from os import nowhere\n", "ImportError"),
        ("def enrich(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("enrich = 1\n", "is not callable, got 1"),
    ],
)
def test_a_module_that_fails_is_a_mistake_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    (tmp_path / "failing_orders.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_orders", raising=False)
    with pytest.raises(ConfigurationError, match=words):
        load_function("failing_orders:enrich")
