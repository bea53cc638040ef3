"""Options: their defaults, what is refused, and that no message shows a password."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.amqp.urls import parameters
from fairsched.errors import ConfigurationError
from fairsched.spark.sink.options import sink_options
from fairsched.spark.source.options import Shedding, source_options

URL = "amqp://app:hush@broker:5672/%2F"
QUEUES = {"url": URL, "queues": '{"gold": 10, "free": 1}'}


def test_names_are_found_in_any_case_and_defaults_are_finite():
    found = source_options({"URL": URL, "QUEUES": '{"gold": 10, "free": 1}', "SpoolLocation": "/s"})
    assert found.quanta == {"gold": 10, "free": 1}
    assert (found.max_messages_per_trigger, found.min_messages_per_trigger) == (100_000, 1)
    assert (found.max_trigger_delay, found.poll_timeout, found.planning_interval) == (900.0, 2.0, 0.2)
    assert (found.num_partitions, found.fail_on_data_loss, found.spool_location) == (None, True, "/s")
    assert (found.row_order, found.queue_assignment) == ("fair", "affinity")
    assert found.max_bytes_per_trigger == 256 << 20
    # Only what is kept needs room.
    assert source_options(QUEUES).max_bytes_per_trigger is None
    assert source_options({**QUEUES, "spoolLocation": "/s", "maxBytesPerTrigger": "0"}).max_bytes_per_trigger is None
    assert source_options({"url": URL, "streams": "s", "maxBytesPerTrigger": "0"}).max_bytes_per_trigger is None
    assert pickle.loads(pickle.dumps(found)) == found


def test_queues_may_be_a_list_and_urls_several():
    found = source_options({"url": f"{URL}, amqp://other/%2F", "queues": "a, b"})
    assert found.quanta == {"a": 1, "b": 1}
    assert len(found.broker.urls) == 2


def test_durations_have_a_unit():
    given = {"pollTimeout": "500ms", "planningInterval": "1s", "maxTriggerDelay": "2m", "heartbeat": "1m"}
    found = source_options({**QUEUES, **given})
    assert (found.poll_timeout, found.planning_interval, found.max_trigger_delay) == (0.5, 1.0, 120.0)
    assert found.broker.heartbeat == 60
    assert source_options({**QUEUES, "heartbeat": "0s"}).broker.heartbeat == 0
    for name in given:
        for bad in ("2000", "0", "1e3 ", "soon", "-1s", ""):
            with pytest.raises(ConfigurationError, match=f"option {name} must be a number with a unit .* got {bad!r}"):
                source_options({**QUEUES, name: bad})
    for bad in ("1500ms", "2h"):
        with pytest.raises(ConfigurationError, match="option heartbeat must be whole seconds from 0s to 1h, got"):
            source_options({**QUEUES, "heartbeat": bad})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"url": ""}, "url is missing"),
        ({"username": "me"}, "option username needs option password; give both, or both in url"),
        ({"password": "hush"}, "option password needs option username"),
        ({"username": "", "password": "hush"}, "option password needs option username"),
        ({"username": "me", "password": "hush"}, "the user is given in option url and in options username"),
        ({"minPartitions": "4"}, "minPartitions is for streams only, got 4: .*queueAssignment=split"),
        ({"minPartitions": "0"}, "minPartitions must be an integer from 1 to 10000, got '0'"),
        (
            {"queues": "", "streams": "s", "minPartitions": "4", "numPartitions": "2"},
            "option minPartitions replaces numPartitions: give one or the other",
        ),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be an integer from 1"),
        ({"consumerArguments": "x-priority"}, "consumerArguments must be a JSON object of strings, 64-bit integers"),
        ({"consumerArguments": '{"x-priority": 1.5}'}, "consumerArguments must be a JSON object"),
        ({"consumerArguments": '{"x-priority": null}'}, "consumerArguments must be a JSON object"),
        ({"consumerArguments": f'{{"x": {2**63}}}'}, "64-bit integers"),
        ({"consumerArguments": f'{{"{"x" * 256}": 1}}'}, "consumerArguments: a header's name must be at most 255"),
        (
            {"queues": "", "streams": "s", "consumerArguments": '{"x-stream-offset": 1}'},
            "consumerArguments is for queues only, got x-stream-offset",
        ),
        ({"startingTimestamp": "1700000000000"}, "startingTimestamp is for streams only, got 1700000000000"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be an integer from 0 to .*, got 'yesterday'"),
        ({"startingTimestamp": "-1"}, "startingTimestamp must be an integer from 0"),
        (
            {"queues": "", "streams": "s", "startingTimestamp": "1", "startingOffsets": "earliest"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        ({"includeTypedHeaders": "map"}, "includeTypedHeaders must be true or false, got 'map'"),
        ({"url": "http://app:hush@host"}, "amqp:// or amqps://"),
        ({"url": "amqp://app:hush@host:port/"}, "not understood"),
        ({"queues": ""}, "exactly one of the options queues and streams"),
        ({"streams": "s"}, "exactly one of the options queues and streams"),
        ({"queues": '{"a": 0}'}, "queues must be a JSON object of positive integers"),
        ({"queues": '{"a": 1.5}'}, "queues"),
        ({"queues": "{"}, "queues"),
        ({"queues": '{"": 1}'}, "queues must be a JSON object of positive integers"),
        ({"queues": f'{{"a": {2**62}}}'}, "queues must be a JSON object of positive integers"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger must be an integer from 1"),
        ({"maxMessagesPerTrigger": "many"}, "got 'many'"),
        ({"pollTimeout": "soon"}, "pollTimeout"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss must be true or false"),
        ({"rowOrder": "random"}, "rowOrder must be fair or queue"),
        ({"queueAssignment": "even"}, "queueAssignment must be affinity or split-large or split, got 'even'"),
        ({"allowSplit": "true"}, "no such option: allowsplit; there are"),
        ({"readMode": "browse"}, r"no such option: readmode.*; there are"),
        ({"fairKey": "tenant"}, "fairKey must be header:NAME or property:NAME"),
        ({"fairKey": "property:colour"}, "unknown property 'colour'"),
        ({"keyQuanta": '{"a": 2}'}, "only together with fairKey"),
        ({"startingOffsets": "now"}, "startingOffsets must be earliest, latest or a JSON"),
        ({"ackMode": "manual"}, "ackMode must be spool or auto, got 'manual'"),
        ({"ackMode": "auto", "spoolLocation": "/s"}, "ackMode=auto is for queues without spoolLocation only"),
        ({"ackMode": "auto", "queues": "", "streams": "s"}, "ackMode=auto is for queues"),
        ({"maxBytesPerTrigger": "5000", "queues": "", "streams": "s"}, "must be 0 for streams, got 5000.* maxMessages"),
        ({"codelInterval": "50ms", "codelAction": "flag"}, "codelInterval, codelAction is valid only together"),
        ({"codelTarget": "0s"}, "codelTarget and codelInterval: target must be positive"),
        ({"codelTarget": "5ms", "codelInterval": "48h"}, "interval must be positive and at most 86400"),
        ({"codelTarget": "5ms", "codelAction": "drop"}, "codelAction must be flag or requeue or dead-letter"),
        ({"codelTarget": "5ms", "queues": "", "streams": "s"}, "codelTarget is for queues"),
        (
            {"maxMesagesPerTrigger": "5"},
            r"maxmesagespertrigger \(did you mean maxMessagesPerTrigger\?\); there",
        ),
        ({"path": "/x"}, "no such option: path; there are"),
        ({"queues": None, "queue": "q"}, r"no such option: queue \(did you mean queues\?\)$"),
        ({"queues": None, "topic": "q"}, "exactly one of the options queues and streams must be given"),
        ({"url": None, "uri": "amqp://h"}, r"no such option: uri \(did you mean url\?\)$"),
        ({"startingOffsets": "earliest"}, "startingOffsets is for streams only: a queue is read from its head"),
        ({"endingOffsets": "latest"}, "endingOffsets is for streams only"),
        ({"rowOrder": "fair", "queues": "", "streams": "s"}, "rowOrder is for queues only"),
    ],
)
def test_what_is_wrong_is_named(wrong, named):
    with pytest.raises(ConfigurationError, match=named) as caught:
        source_options({name: value for name, value in {**QUEUES, **wrong}.items() if value is not None})
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(caught.value.__cause__)


def test_messages_that_wait_too_long_are_flagged_by_the_header_that_rabbitmq_writes():
    assert source_options(QUEUES).shedding is None
    assert source_options(QUEUES).enqueue_time_header is None
    found = source_options({**QUEUES, "codelTarget": "500ms"})
    assert found.shedding == Shedding(0.5, 0.1, "flag")
    assert found.enqueue_time_header == "timestamp_in_ms"
    found = source_options({**QUEUES, "codelTarget": "1s", "codelAction": "requeue", "enqueueTimeHeader": "sent"})
    assert (found.shedding, found.enqueue_time_header) == (Shedding(1.0, 0.1, "requeue"), "sent")


def test_user_and_password_may_be_options_of_their_own():
    login = {"username": "a@b", "password": "hu:/sh?%"}
    for check in (lambda options: source_options({**options, "queues": "q"}), sink_options):
        found = check({"url": "amqp://one,amqps://two:1234/%2F?heartbeat=5", **login})
        assert found.broker.urls == (
            "amqp://a%40b:hu%3A%2Fsh%3F%25@one",
            "amqps://a%40b:hu%3A%2Fsh%3F%25@two:1234/%2F?heartbeat=5",
        )
        assert [(one.credentials.username, one.credentials.password) for one in map(parameters, found.broker.urls)] == [
            (login["username"], login["password"])
        ] * 2
        assert "hu:/sh" not in repr(found)


def test_arguments_of_consumers_keep_their_types():
    found = source_options({**QUEUES, "consumerArguments": '{"x-priority": -1, "a": "text", "b": true}'})
    assert found.consumer_arguments == {"x-priority": -1, "a": "text", "b": True}
    assert source_options(QUEUES).consumer_arguments == {}


def test_sparks_own_options_are_ignored():
    source_options({**QUEUES, "checkpointLocation": "/y"})
    sink_options({"url": URL, "checkpointLocation": "/y"})


def test_the_sinks_options():
    found = sink_options({"url": URL, "exchange": "out", "confirmWindow": "7", "messageId": "NONE"})
    assert (found.exchange, found.confirm_window, found.message_id, found.mandatory) == ("out", 7, "none", True)
    with pytest.raises(ConfigurationError, match="hashRing chooses the queue"):
        sink_options({"url": URL, "exchange": "out", "hashRing": "a,b"})
    with pytest.raises(ConfigurationError, match="no such option: queues"):
        sink_options({"url": URL, "queues": "a"})


@given(st.dictionaries(st.sampled_from(["numPartitions", "deliveryMode", "rowOrder", "x"]), st.text(max_size=5)))
def test_no_value_shows_the_url(wrong):
    for check, options in ((source_options, QUEUES), (sink_options, {"url": URL})):
        try:
            shown = repr(check({**options, **wrong}))
        except ConfigurationError as error:
            shown = str(error)
        assert "hush" not in shown
        assert "broker:5672" not in shown
