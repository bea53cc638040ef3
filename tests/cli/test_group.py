"""The entry point: version, help, what it imports, and what it says when its libraries are missing."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from click import Context
from click.testing import CliRunner

import fairsched
from fairsched.cli import main
from fairsched.cli.commands import COMMANDS, SECTIONS
from fairsched.cli.group import cli
from fairsched.config.consumer_options import OPTIONS


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_installed_command_is_main() -> None:
    (found,) = entry_points(group="console_scripts", name="fairsched")
    assert found.load() is main


def test_python_dash_m_prints_the_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairsched.cli", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"fairsched, version {fairsched.__version__}\n"


def test_main_takes_arguments_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert fairsched.__version__ in capsys.readouterr().out


def test_help_names_commands_and_exit_codes() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name, says in COMMANDS.items():
        assert f"{name} " in text
        assert says in text
    assert "Exit codes: 0 success" in text
    lines = text.splitlines()
    places = [lines.index(f"{heading}:") for heading in SECTIONS]
    assert places == sorted(places)
    assert "Commands:" not in lines
    running = lines[lines.index("Ask a running worker:") + 1 :][:3]
    assert [line.split()[0] for line in running] == ["top", "explain", "control"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_exit_codes(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    for code in ("0 success", "2 usage", "3 import", "4 no broker", "5 application", "6 queue"):
        assert code in words


@pytest.mark.parametrize("name", ["run", "check"])
def test_a_worker_takes_the_options_of_the_table(name: str) -> None:
    command = cli.get_command(Context(cli), name)
    assert command is not None
    flags = {parameter.name: parameter.opts[-1] for parameter in command.params}
    assert {option.name: option.flag for option in OPTIONS.values()}.items() <= flags.items()
    text = " ".join(CliRunner().invoke(cli, [name, "--help"]).output.split())
    assert all(option.help in text for option in OPTIONS.values())


def test_unknown_command() -> None:
    result = CliRunner().invoke(cli, ["demos"])
    assert result.exit_code == 2
    assert "No such command 'demos'" in result.output


def test_version_and_help_load_neither_rich_nor_matplotlib() -> None:
    done = python(
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from fairsched.cli.group import cli\n"
        "for option in ('--version', '--help'):\n"
        "    assert CliRunner().invoke(cli, [option]).exit_code == 0\n"
        "print({'rich', 'matplotlib'} & set(sys.modules))\n"
    )
    assert done.stdout == "set()\n", done.stderr


BLOCK = (
    "import sys\n"
    "class Absent:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == {name!r}:\n"
    "            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
    "sys.meta_path.insert(0, Absent())\n"
    "from fairsched.cli import main\n"
    "main({arguments!r})\n"
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("click", ["--version"]), ("rich", ["demo", "--messages", "10"]), ("matplotlib", ["demo", "--plot", "x.png"])],
)
def test_a_missing_extra_is_one_line_with_the_remedy(name: str, arguments: list[str]) -> None:
    done = python(BLOCK.format(name=name, arguments=arguments))
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"needs {name}: pip install 'fairsched[cli]'" in done.stderr


def test_another_missing_module_is_not_taken_for_the_extra() -> None:
    done = python(BLOCK.format(name="fairsched.config.durations", arguments=["demo"]))
    assert "No module named 'fairsched.config.durations'" in done.stderr
    assert "pip install" not in done.stderr
