"""From ``module:app`` to the app, and what goes wrong on the way."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairsched.cli import exits
from fairsched.cli.group import cli
from fairsched.cli.loading import load_app

_numbers = itertools.count()

APP = "from fairsched.consumer import App\napp = App()\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes modules, each with a new name, into the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(content: str) -> str:
        name = f"worker_of_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(content)
        return name

    return write


def test_module_and_attribute(module: Callable[[str], str]) -> None:
    name = module(APP + "class namespace:\n    inner = app\n")
    app = load_app(f"{name}:app")
    assert load_app(name) is app
    assert load_app(f"{name}:namespace.inner") is app


@pytest.mark.parametrize(
    ("content", "reference", "message", "has_traceback"),
    [
        (APP, "{0}:worker", "module '{0}' has no attribute 'worker'", False),
        (APP + "x = 3", "{0}:x", "'{0}:x' is not a fairsched.App but 'int'", False),
        ("import no_such_module_at_all", "{0}:app", "importing '{0}' failed: ModuleNotFoundError", True),
        ("1 / 0", "{0}:app", "importing '{0}' failed: ZeroDivisionError", True),
        ("def f(:", "{0}:app", "importing '{0}' failed: SyntaxError", True),
        ("raise SystemExit(9)", "{0}:app", "importing '{0}' failed: SystemExit(9)", True),
        (APP, "no_such_{0}:app", "no module 'no_such_{0}' in the current directory or on sys.path", False),
        (APP, "no_such_package.{0}:app", "no module 'no_such_package.{0}'", False),
    ],
)
def test_what_cannot_be_imported(
    module: Callable[[str], str],
    content: str,
    reference: str,
    message: str,
    has_traceback: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = module(content)
    with pytest.raises(exits.Failure) as failed:
        load_app(reference.format(name))
    assert failed.value.exit_code == exits.IMPORT
    assert message.format(name) in failed.value.message
    assert ("Traceback" in capsys.readouterr().err) is has_traceback


@pytest.mark.parametrize("reference", [":app", "..:app", "module:", "a b:c", "module:app:more", "", "./module.py"])
def test_malformed_references_are_a_matter_of_usage(reference: str) -> None:
    result = CliRunner().invoke(cli, ["run", reference])
    assert result.exit_code == 2
    assert result.stderr == f"Error: the app must be given as MODULE:APP, such as workers.mail:app, got {reference!r}\n"


def test_run_exits_with_the_code_for_imports(module: Callable[[str], str]) -> None:
    result = CliRunner().invoke(cli, ["run", "no_such_module_at_all:app"])
    assert result.exit_code == 3
    assert result.stderr == "Error: no module 'no_such_module_at_all' in the current directory or on sys.path\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "got '0' (argument workers)"),
        (["--prefetch", "none"], "prefetch must be"),
        (["-Q", "gold=0"], "queues must be"),
        (["--log-level", "loud"], "log_level must be one of debug, info"),
        (["--shutdown-timeout", "soon"], "shutdown_timeout must be a number of seconds"),
        (["--config", "absent.toml"], "absent.toml cannot be read"),
        (["--url", "amqp://app:hunter2@broker:port"], "amqp://app:******@broker:port"),
        (["-Q", "silver"], "no handler for queue 'silver'"),
        ([], "no broker URL"),
    ],
)
def test_run_refuses_bad_settings(module: Callable[[str], str], arguments: list[str], message: str) -> None:
    name = module(APP + "@app.consumer('gold')\ndef gold(message): ...\n")
    # A URL in the environment would be used; the empty ones count as not set.
    url = [] if not arguments or "--url" in arguments else ["--url", "amqp://127.0.0.1:1"]
    nothing = dict.fromkeys(("FAIRSCHED_URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL"))
    result = CliRunner().invoke(cli, ["run", f"{name}:app", *url, *arguments], env=nothing)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "hunter2" not in result.output
