"""The documents' examples run."""

from __future__ import annotations

import asyncio
import doctest
import json
import pkgutil
import queue
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

import fairsched
import fairsched.prefetch
import fairsched.pullqueue
from fairsched import CoDel, Consumer, Dwrr, FairQueue
from fairsched.amqp._ackledger import AckLedger
from fairsched.broker.metrics import BrokerCollector
from fairsched.config.consumer_options import OPTIONS, ConsumerOptions
from fairsched.config.reference import options_table
from fairsched.config.settings import Settings
from fairsched.metrics import collector
from fairsched.pullqueue import PullQueue, Target
from fairsched.spark.metrics import QueryCollector

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("documented", [Dwrr, FairQueue, CoDel, PullQueue, Target, AckLedger])
def test_examples_in_docstrings(documented: type) -> None:
    known = {**vars(fairsched), **vars(fairsched.pullqueue), "AckLedger": AckLedger}
    test = doctest.DocTestParser().get_doctest(documented.__doc__, known, documented.__name__, None, None)
    assert test.examples
    outcome = doctest.DocTestRunner(verbose=False).run(test)
    assert outcome.failed == 0


@pytest.mark.parametrize("page", ["docs/reference/api.md", "docs/reference/configuration.md"])
def test_names_of_the_reference_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"(?::: |`)(fairsched(?:\.(?!toml)\w+)+)", text)
    assert names
    for name in names:
        pkgutil.resolve_name(name)


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
    for code in blocks("docs/howto/testing.md"):
        names: dict[str, Any] = {}
        exec(code, names)
        [test] = [value for name, value in names.items() if name.startswith("test_")]
        test()


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_what_the_page_on_the_broker_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Its publisher and consumer, on a port that is free; each test that it shows, with a broker of its own."""
    ways, in_process, kept, *tests = blocks("docs/howto/broker.md")
    assert "amqp://guest:guest@127.0.0.1:5672/%2F" in ways

    def print_and_leave(body: bytes) -> None:
        print(body)
        raise SystemExit

    with fairsched.Broker() as broker, pytest.raises(SystemExit):
        exec(ways.replace("amqp://guest:guest@127.0.0.1:5672/%2F", broker.url), {"print": print_and_leave})
    exec(in_process, {})
    exec(kept, {})
    printed = capsys.readouterr().out.splitlines()
    assert (printed[0], printed[-1]) == ("b'hello'", "b'hello'")
    assert "b'hello'" in printed[1]
    names: dict[str, Any] = {"pytest": pytest, "fairsched": fairsched}
    for code in tests:
        exec(code, names)
    called = [name for name in names if name.startswith("test_")]
    assert len(called) == 3
    for name in called:
        with fairsched.Broker() as broker:
            names[name](broker)


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


def test_what_the_page_on_routing_shows() -> None:
    """One after another, as they are read: each goes on where the one before it ended."""
    names: dict[str, Any] = {"table": {"account": ["account-1", "account-2"]}, "account_number": 4711}
    for code in blocks("docs/howto/routing.md"):
        exec(code, names)
    assert len(names["indices"]) == 2


def test_what_the_page_on_prefetch_computes() -> None:
    (code, _) = blocks("docs/howto/prefetch.md")
    names: dict[str, Any] = {}
    lines = [line.partition("#") for line in code.splitlines() if line]
    exec(lines[0][0], names)
    assert [round(eval(expression, names), 6) for expression, _, _ in lines[1:]] == [
        float(printed) for _, _, printed in lines[1:]
    ]


def test_what_the_page_on_free_threading_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/howto/free-threading.md")
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.strip().rpartition("# ")[2]


def test_what_the_page_on_simulating_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/howto/simulating.md")
    exec(code, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["26", "39", "51"]


def test_the_queue_of_the_page_on_embedding() -> None:
    names: dict[str, Any] = {"job": "a job"}
    exec(blocks("docs/howto/embedding.md")[0], names)
    assert names["slot"] == "free"
    with pytest.raises(fairsched.ShutDown):
        names["queue"].get()


def test_the_event_loop_of_the_page_on_embedding() -> None:
    code = next(code for code in blocks("docs/howto/embedding.md") if "async def" in code)
    names: dict[str, Any] = {"asyncio": asyncio, "Empty": queue.Empty, "queue": fairsched.FairQueue({"gold": 1})}
    exec(code, names)

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(names["next_job"]()) for _ in range(3)]
        await asyncio.sleep(0)
        for number in range(3):
            await asyncio.to_thread(names["queue"].put, "gold", number)
        return await asyncio.wait_for(asyncio.gather(*waiting), 30)

    assert sorted(asyncio.run(main())) == [("gold", 0), ("gold", 1), ("gold", 2)]


def test_the_scheduler_of_the_page_on_embedding() -> None:
    code = next(code for code in blocks("docs/howto/embedding.md") if "import Dwrr" in code)
    names: dict[str, Any] = {}
    exec(code, names)
    assert sorted(names["tokens"].tolist()) == [101, 102, 103]


def test_the_priorities_of_the_page_on_embedding() -> None:
    code = next(code for code in blocks("docs/howto/embedding.md") if "priorities=True" in code)
    names: dict[str, Any] = {"FairQueue": fairsched.FairQueue}
    for line in code.splitlines():
        call, _, expected = line.partition("  #")
        found = eval(call, names) if call.startswith("queue.") else exec(call, names)
        if call.startswith(("queue.get", "queue.backlog")):
            assert found == eval(expected)
    assert names["queue"].get_many(9).items == ["a", "b", "report", "c"]


def test_the_limits_of_the_pages_on_embedding_and_on_tenants(tmp_path: Path) -> None:
    code = next(code for code in blocks("docs/howto/embedding.md") if "import Limit" in code)
    begin, served = code.split("slot, job = queue.get()")
    names: dict[str, Any] = {"FairQueue": fairsched.FairQueue}
    exec(begin, names)
    for number in range(9):
        names["queue"].put("other", number)
    for _ in range(4):
        exec("slot, job = queue.get()", names)
    with pytest.raises(queue.Empty):
        names["queue"].get(block=False)
    exec(served, names)
    assert names["queue"].get(block=False) == ("other", 4)
    page = (ROOT / "docs/howto/tenants.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "fairsched.toml").write_text(written)
    found = Settings.load(environ={}, directory=tmp_path).consumer_options()
    assert found["tenants"] == {
        "*": {"limit": fairsched.Limit(4, rate="100/m", burst=10)},
        "acme": {"weight": 10, "limit": fairsched.Limit(8)},
        "internal": {"limit": False},
    }


METRICS_PAGE = ROOT / "docs/howto/metrics.md"
#: Of queues, or with a key of tenants.
OF_SLOTS = {
    "fairsched_served_messages_total", "fairsched_served_cost_total", "fairsched_buffered_messages",
    "fairsched_deficit", "fairsched_quantum", "fairsched_limit_concurrency", "fairsched_limit_in_use",
    "fairsched_limit_rate", "fairsched_limit_withheld_messages", "fairsched_share_group_charge",
}  # fmt: skip
#: What a histogram of Prometheus consists of, and the labels of each beside those of the histogram.
PARTS_OF_HISTOGRAM = {"_bucket": {"le"}, "_sum": set[str](), "_count": set[str]()}


def metrics_labels() -> dict[str, tuple[Metric, list[str]]]:
    """Return a consumer's metrics by name, each with the names of its labels."""
    return by_name(collector(Consumer("amqp://127.0.0.1:9", ["q"])))


def spark_labels() -> dict[str, tuple[Metric, list[str]]]:
    """Return the same of Spark's queries."""
    return by_name(QueryCollector())


def by_name(collected: Any) -> dict[str, tuple[Metric, list[str]]]:
    return {one.name + "_total" * (one.type == "counter"): (one, list(one._labelnames)) for one in collected.describe()}


def test_the_page_on_metrics_has_the_tables_of_what_there_is() -> None:
    rows = []
    for name, (family, labels) in metrics_labels().items():
        shown = "*queue or tenant*" if name in OF_SLOTS else ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    assert "\n".join(rows) in METRICS_PAGE.read_text(encoding="utf-8"), "paste:\n" + "\n".join(rows)
    rows = [
        f"| `{name}` | {family.type} | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |"
        for name, (family, labels) in spark_labels().items()
    ]
    assert "\n".join(rows) in METRICS_PAGE.read_text(encoding="utf-8"), "paste:\n" + "\n".join(rows)
    rows = []
    for family in BrokerCollector(dict).describe():
        rows.append(
            f"| `{family.name}{'_total' * (family.type == 'counter')}` | {family.type} | {family.documentation} |"
        )
    assert "\n".join(rows) in METRICS_PAGE.read_text(encoding="utf-8"), "paste:\n" + "\n".join(rows)


def test_the_example_of_the_page_on_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    code, two = blocks("docs/howto/metrics.md")
    names: dict[str, Any] = {}
    exec(compile(code, METRICS_PAGE, "exec"), names)
    assert capsys.readouterr().out == "1\n"
    assert b'fairsched_served_messages_total{queue="orders"} 1.0' in names["page"]
    exec(compile(two, METRICS_PAGE, "exec"), names)
    for name in ("orders", "mails"):
        assert b'fairsched_queue_consumed{queue="%s"} 0.0' % name.encode() in names["pages"][f"/metrics/{name}"]
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        names["registries"]["orders"].register(names["collector"](names["consumers"]["mails"]))


def test_the_example_of_the_page_on_explaining(capsys: pytest.CaptureFixture[str]) -> None:
    code, *_ = blocks("docs/howto/explain.md")
    exec(code, {})
    figures, sentence = capsys.readouterr().out.splitlines()
    assert figures == "1 1 1"
    assert sentence.startswith("tenant 'quiet' waits: 1 message buffered, the oldest for ")
    assert sentence.endswith(
        "; its deficit is 0 of a quantum of 1 (weight 1), and its next message costs 1; 1 of 1 other tenant is served "
        "before it; 4 of the window of 500 are unsettled; 1 message in hand, 1 worker"
    )


@pytest.mark.parametrize(
    ("file", "collected", "unasked", "variable"),
    [
        ("consumers.json", metrics_labels, {"fairsched_tenants"}, "fairsched_connected"),
        ("spark.json", spark_labels, set(), "fairsched_spark_query_running"),
    ],
)
def test_the_dashboard_asks_for_what_there_is(
    file: str, collected: Callable[[], dict[str, tuple[Metric, list[str]]]], unasked: set[str], variable: str
) -> None:
    board = json.loads((ROOT / "examples/grafana" / file).read_text(encoding="utf-8"))
    there: dict[str, set[str]] = {}
    histogram_of: dict[str, str] = {}
    for name, (family, labels) in collected().items():
        of_all = {*labels, "instance"} | ({"tenant"} if name in OF_SLOTS else set())
        for part, more in PARTS_OF_HISTOGRAM.items() if family.type == "histogram" else [("", set[str]())]:
            there[name + part] = of_all | more
            histogram_of[name + part] = name
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 10
    asked: set[str] = set()
    for target in (target for panel in board["panels"] for target in panel["targets"]):
        metrics = re.findall(r"fairsched_\w+", target["expr"])
        assert metrics
        assert set(metrics) <= there.keys()
        [possible] = {frozenset(there[name]) for name in metrics}
        increasing = {name for name in metrics if name.endswith("_total") or histogram_of[name] != name}
        grouped = {label for labels in re.findall(r"by \((.*?)\)", target["expr"]) for label in labels.split(", ")}
        assert grouped <= possible
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == grouped - {"le"}
        for name in metrics:  # a counter is of use as a rate only
            before = target["expr"].partition(name)[0]
            assert (name in increasing) == before.endswith(("rate(", "increase("))
        asked.update(histogram_of[name] for name in metrics)
    assert set(histogram_of.values()) - asked == unasked
    variables = board["templating"]["list"]
    assert {name for one in variables for name in re.findall(r"fairsched_\w+", one["query"])} == {variable}


def test_the_page_on_configuration_has_the_table_of_options() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert options_table() in page, "paste what python -m fairsched.config.reference prints"


def test_links_between_documents() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "kubernetes.yaml"])
def test_workers_in_containers_are_given_options_and_variables_that_exist(name: str) -> None:
    text = re.sub(r"(?m)^\s*#.*", "", (ROOT / "examples/deploy" / name).read_text(encoding="utf-8"))
    text = text.replace("--no-cache-dir", "")
    options = {option.replace("-", "_") for option in re.findall(r"--([a-z][a-z-]+)", text)}
    assert options <= set(OPTIONS)
    variables = {variable.lower() for variable in re.findall(r"FAIRSCHED_(\w+)", text)}
    assert variables <= set(OPTIONS)
    assert options | variables
    # A worker gets less time from itself than from the process that kills it.
    for grace in re.findall(r"(?:stop_grace_period|terminationGracePeriodSeconds): (\d+)", text):
        assert int(grace) > ConsumerOptions("", ()).shutdown_timeout
