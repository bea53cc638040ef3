"""Nothing that users, logs or checkpoints get to see has a password in it, or a URL with a user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from support.declare import DeclareAll
from support.rabbitmq import Node
from support.spark.failing import failure, failure_of
from support.spark.queries import Rows, drain, load
from support.spark.running import fill, options_of

from fairsched.spark import register

pytestmark = pytest.mark.timeout(280)

#: The password is "hush-hush", the wrong one "hush-wrong".
SECRET = re.compile(r"hush|amqps?://[^/\s]*@", re.IGNORECASE)


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


@pytest.fixture(scope="module")
def url(broker: Node) -> str:
    """The broker's URL with a user whose password can be told from everything else."""
    return broker.add_user("app", "hush-hush")


def check(shown: Iterable[str]) -> None:
    """Fail if a secret is in one of the texts."""
    for text in shown:
        found = SECRET.search(text)
        assert found is None, text[max(0, found.start() - 300) : found.end() + 100]


def files(folder: Path) -> list[str]:
    """The contents of all files in a folder and below."""
    found = [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    assert found
    return found


def into_queue(frame: Any, login: dict[str, str], routing_key: str, checkpoint: Path) -> Any:
    """Start a query that writes bodies to a queue."""
    return (
        frame.select("body")
        .writeStream.format("rabbitmq")
        .options(**login, routingKey=routing_key, connectRetries="0")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def test_what_is_searched_for_would_be_found() -> None:
    for text in ("amqp://app:hush-hush@host/%2F", "AMQPS://app:other@host", "amqp://app@host", "password 'hush-hush'"):
        with pytest.raises(AssertionError):
            check([text])
    check(["amqp://127.0.0.1:5672/%2F", "no broker at 127.0.0.1:1: refused"])


def test_a_source_shows_no_password(
    spark: Any, broker: Node, url: str, queues: DeclareAll, tmp_path: Path, capfd: Any
) -> None:
    [name, other] = queues(2)
    fill(broker, [name], 20)
    options = {**options_of(broker, {name: 1}, tmp_path / "spool"), "url": url}
    frame = load(spark, options)
    frame.explain(extended=True)
    spark.read.format("rabbitmq").option("url", url).option("queues", name).load().explain(extended=True)
    done = drain(frame, tmp_path / "checkpoint", Rows())
    printed = capfd.readouterr().out
    assert printed.lower().count("== physical plan ==") == 2
    check([printed, *(progress.json for progress in done.recentProgress), *files(tmp_path / "checkpoint")])
    check(files(tmp_path / "spool"))
    elsewhere = {**options, "spoolLocation": str(tmp_path / "elsewhere"), "connectRetries": "0"}
    for number, (changes, why) in enumerate([
        ({"queues": "no-such-queue"}, "no queue 'no-such-queue'"),
        ({"url": url.replace("hush-hush", "hush-wrong")}, "ACCESS_REFUSED|refused"),
    ]):  # fmt: skip
        check([failure(load(spark, {**elsewhere, **changes}), tmp_path / f"failed{number}", why)])
    unreachable = {**options, "url": "amqp://app:hush-hush@127.0.0.1:1/%2F", "connectRetries": "0", "queues": other}
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:1: .*refused") as caught:
        spark.read.format("rabbitmq").options(**unreachable).load().count()
    check([str(caught.value)])


def test_a_password_of_its_own_is_not_shown(
    spark: Any, broker: Node, url: str, queues: DeclareAll, tmp_path: Path, capfd: Any
) -> None:
    [source, target] = queues(2)
    fill(broker, [source], 20)
    login = {"url": url.replace("app:hush-hush@", ""), "username": "app", "password": "hush-hush"}
    options = {**options_of(broker, {source: 1}, tmp_path / "spool"), **login}
    browsed = spark.read.format("rabbitmq").options(**login, queues=source).load()
    assert browsed.count() == 20
    browsed.explain(extended=True)
    frame = load(spark, options)
    frame.explain(extended=True)
    running = into_queue(frame, login, target, tmp_path / "checkpoint")
    assert running.awaitTermination(120)
    assert broker.count(target) == 20
    running.explain(extended=True)
    printed = capfd.readouterr().out
    assert printed.lower().count("== physical plan ==") == 3
    assert "password=*********(redacted)" in printed
    check([printed, *(progress.json for progress in running.recentProgress), *files(tmp_path / "checkpoint")])
    wrong = {**options, "password": "hush-wrong", "spoolLocation": str(tmp_path / "other"), "connectRetries": "0"}
    check([failure(load(spark, wrong), tmp_path / "failed", "ACCESS_REFUSED|refused")])


def test_a_streaming_sink_shows_no_password(
    spark: Any, broker: Node, url: str, queues: DeclareAll, tmp_path: Path, capfd: Any
) -> None:
    [source, target] = queues(2)
    fill(broker, [source], 20)
    options = {**options_of(broker, {source: 1}, tmp_path / "spool"), "url": url}
    running = into_queue(load(spark, options), {"url": url}, target, tmp_path / "checkpoint")
    assert running.awaitTermination(120)
    assert broker.count(target) == 20
    running.explain(extended=True)
    printed = capfd.readouterr().out
    assert "== Physical Plan ==" in printed
    assert "rabbitmq" in printed.lower()
    assert running.recentProgress
    check([printed, *(progress.json for progress in running.recentProgress), *files(tmp_path / "checkpoint")])


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ("wrong password", "refused"),
        ("unreachable", r"127\.0\.0\.1:1: .*refused"),
        ("deleted queue", "no queue takes a message with routing key"),
    ],
)
def test_a_streaming_sink_that_fails_shows_no_password(
    trouble: str, why: str, spark: Any, broker: Node, url: str, queues: DeclareAll, tmp_path: Path
) -> None:
    [source, target] = queues(2)
    fill(broker, [source], 5)
    options = {**options_of(broker, {source: 1}, tmp_path / "spool"), "url": url}
    sink = url
    if trouble == "wrong password":
        sink = url.replace("hush-hush", "hush-wrong")
    elif trouble == "unreachable":
        sink = "amqp://app:hush-hush@127.0.0.1:1/%2F"
    else:
        broker.delete(target)
    running = into_queue(load(spark, options), {"url": sink}, target, tmp_path / "checkpoint")
    check([failure_of(running, why), *(progress.json for progress in running.recentProgress)])
    check(files(tmp_path / "checkpoint"))
