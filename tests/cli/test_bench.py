"""``fairsched bench``: figures, the order in which contestants handle messages, formats and refusals."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fairsched
from fairsched.cli.broker import temporary_queues
from fairsched.cli.flood import CONTESTANTS, Contestant, Plan, Record, outcome, run
from fairsched.cli.group import cli

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no embedded broker on Windows")

SMALL = Plan(40, 4, 2, 0.0)
#: Those that consume just the queues that they are given.
QUEUES_ALONE = [one for one in CONTESTANTS if not one.spread]
QUICK = ["--flood", "20", "--tenants", "3", "--each", "2", "--service-time", "1us"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fairsched.Broker() as broker:
        yield broker.url


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["bench", *arguments])


def test_figures_of_a_record() -> None:
    """Two quiet tenants with two messages each, of which the last is overtaken by three of the flood."""
    plan = Plan(flood=5, tenants=2, each=2, service_time=0.0)
    record = Record(plan)
    # Numbers 5 and 7 are tenant 1's, 6 and 8 tenant 2's.
    assert [plan.tenant(number) for number in range(9)] == [0, 0, 0, 0, 0, 1, 2, 1, 2]
    record.order = [0, 5, 1, 6, 7, 2, 3, 4, 8]
    record.started = {number: 100.0 + place for place, number in enumerate(record.order)}
    record.published = {5: (100.5, 1), 6: (101.0, 2), 7: (103.0, 4), 8: (104.0, 5)}
    record.ended = 109.0
    found = outcome("us", record)
    assert [wait for _, wait in found.waits] == [0.5, 2.0, 1.0, 4.0]
    assert [at for at, _ in found.waits] == [0.5, 1.0, 3.0, 4.0]
    assert (found.p50, found.p99, found.longest) == (1.0, 4.0, 4.0)
    assert found.lag == 3  # 2, 3 and 4 while 8 waited; 5 had 0 before it, 6 had 1, 7 none
    assert found.jain == pytest.approx((1.5 + 6.0) ** 2 / (2 * (1.5**2 + 6.0**2)))
    assert found.rate == 1.0


def test_the_schedule_is_of_its_seed() -> None:
    plan = Plan(seed=5)
    schedule = plan.schedule()
    assert schedule == Plan(seed=5).schedule() != Plan(seed=6).schedule()
    assert schedule == sorted(schedule)
    assert sorted(number for _, number in schedule) == list(range(plan.flood, plan.total))
    assert 0 <= schedule[0][0] <= schedule[-1][0] <= plan.flood * plan.service_time


@pytest.mark.parametrize("contestant", QUEUES_ALONE, ids=[one.name for one in QUEUES_ALONE])
def test_everything_is_handled_once(contestant: Contestant, url: str) -> None:
    names = ["bench.shared"] if contestant.shared else [f"bench.{number}" for number in range(5)]
    bodies = {name: [b"%d" % number for number in range(place, 50, len(names))] for place, name in enumerate(names)}
    found: list[int] = []

    def handle(body: bytes) -> bool:
        found.append(int(body))
        return len(found) < 50

    with temporary_queues(url, bodies):
        contestant.consume(url, names, handle)
    assert sorted(found) == list(range(50))
    for place in range(len(names)):  # within a queue in its order
        mine = [number for number in found if number % len(names) == place]
        assert mine == sorted(mine)
    if contestant.name == "round robin":
        assert [number % 5 for number in found] == [0, 1, 2, 3, 4] * 10


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=[one.name for one in CONTESTANTS])
def test_figures_are_of_all_messages(contestant: Contestant, url: str) -> None:
    found = run(contestant, url, SMALL)
    assert found.name == contestant.name
    assert len(found.waits) == SMALL.tenants * SMALL.each
    assert 0 <= found.p50 <= found.p99 <= found.longest
    assert 0 <= found.lag <= SMALL.total
    assert 0.25 <= found.jain <= 1
    assert found.rate > 0


def test_json() -> None:
    result = bench("--json", *QUICK)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["plan"] == {
        "flood": 20, "tenants": 3, "each": 2, "service_time": 1e-6, "seed": 1, "prefetch": 20,
    }  # fmt: skip
    assert found["broker"] == "on an embedded broker"
    assert list(found["machine"]) == ["python", "system", "processor", "fairsched", "pika"]
    assert [one["name"] for one in found["contestants"]] == ["FIFO", "pika", "round robin", "fairsched", "lanes"]
    assert {tuple(one) for one in found["contestants"]} == {("name", "p50", "p99", "longest", "lag", "jain", "rate")}


def test_table_and_plot(tmp_path: Path) -> None:
    result = bench(*QUICK, "--plot", str(tmp_path / "waits.png"))
    assert result.exit_code == 0, result.output
    assert all(one.name in result.stdout and one.description in result.stderr for one in CONTESTANTS)
    width, height = struct.unpack(">II", (tmp_path / "waits.png").read_bytes()[16:24])
    assert width > height > 300


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--flood", "0"], "--flood"), (["--tenants", "0"], "--tenants"), (["--tenants", "1001"], "1<=x<=1000"),
        (["--each", "-1"], "--each"), (["--service-time", "fast"], "--service-time"), (["--seed", "x"], "--seed"),
        (["--plot", "waits.txt"], "must end in .png"), (["--url", "http://x"], "http://x"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], says: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_broker_that_is_not_there() -> None:
    result = bench("--url", "amqp://user:s3cret@127.0.0.1:1", *QUICK)
    assert result.exit_code == 4
    assert "127.0.0.1:1" in result.output
    assert "s3cret" not in result.output
