"""What the documents show, runs."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fairsched
import fairsched.prefetch
from fairsched.config import Settings
from fairsched.config.reference import options_table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["Dwrr", "FairQueue", "PullQueue", "Target", "AckLedger", "CoDel"])
def test_examples_in_docstrings(name: str) -> None:
    docstring = getattr(fairsched, name).__doc__
    test = doctest.DocTestParser().get_doctest(docstring, dict(vars(fairsched)), name, None, None)
    assert test.examples
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.failed == 0


def test_examples_of_the_prefetch_module() -> None:
    outcome = doctest.testmod(fairsched.prefetch)
    assert outcome.attempted
    assert outcome.failed == 0


def test_the_readme_example_that_needs_no_broker() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    code = next(block for block in blocks if "FairQueue" in block)
    *lines, last = code.strip().splitlines()
    expression, _, expected = last.partition("#")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    assert repr(eval(expression, scope)) == "(" + expected.strip() + ")"


def test_the_readme_example_on_the_broker_that_comes_along(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    code = next(block for block in blocks if "Publisher" in block)
    assert "amqp://guest:guest@127.0.0.1:5672/%2F" in code
    with fairsched.Broker() as broker:
        exec(code.replace("amqp://guest:guest@127.0.0.1:5672/%2F", broker.url), {})
    served = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert Counter(served) == {"gold": 100, "free": 100}


def test_the_example_of_the_page_on_testing() -> None:
    page = ROOT / "docs" / "howto" / "testing.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    names["test_orders"]()


def test_the_example_of_a_configuration_file(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "fairsched.toml").write_text(example, encoding="utf-8")
    found = Settings.load(environ={}, directory=tmp_path)
    assert found.url == ("amqp://app@rabbit-1/%2F", "amqp://app@rabbit-2/%2F")
    assert found.queues == {"gold": 40, "free": 4}


def test_what_the_page_on_pulling_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example prints what stands beside it."""
    page = (ROOT / "docs/howto/pulling.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 5
    for code in examples:
        exec(code, {})
        expected = [text for line in code.splitlines() for text in re.findall(r"^(?:print.*)?# (.*)$", line)]
        assert capsys.readouterr().out.splitlines() == expected


def test_the_page_on_configuration_has_the_table_of_options() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert options_table() in page, "paste what python -m fairsched.config.reference prints"


def test_links_between_documents() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
