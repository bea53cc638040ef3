"""Queues that a pattern selects, by the management API of a RabbitMQ node."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest
from support.ports import free_ports
from support.rabbitmq import Node
from support.waiting import eventually

from fairsched import App, ConfigurationError, ConnectionFailed, Consumer, QueueSource
from fairsched.amqp import management
from fairsched.config.queue_pattern import QueuePattern

pytestmark = pytest.mark.rabbitmq("the management API")


class ManagedNode(Node):
    """A node with the management plugin, over HTTP and HTTPS."""

    def __init__(self) -> None:
        super().__init__(tls=True)
        port, tls_port = free_ports(2)
        self.management, self.secure_management = f"http://127.0.0.1:{port}", f"https://localhost:{tls_port}"
        (self.home / "plugins").write_text("[rabbitmq_management].\n")
        with (self.home / "rabbitmq.conf").open("a") as file:
            file.write(
                f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
                f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {tls_port}\n"
                f"management.ssl.certfile = {self.certificate}\nmanagement.ssl.keyfile = {self.home / 'key.pem'}\n"
            )


@pytest.fixture(scope="module")
def node() -> Iterator[ManagedNode]:
    """A node that the tests of this module share."""
    with ManagedNode() as made:
        yield made


@pytest.fixture(autouse=True)
def clean(node: ManagedNode) -> Iterator[None]:
    """Delete the queues of a test."""
    yield
    node.delete(*names(node, "."))


def names(node: ManagedNode, pattern: str) -> list[str]:
    return QueuePattern(pattern, node.management).names([node.url])


def test_queues_that_match_are_consumed_as_long_as_they_exist(node: ManagedNode) -> None:
    node.declare("tenant.a", "tenant.gold", "other")
    source = QueueSource.matching(r"^tenant\.", node.management, every=0.05, weights={"gold": 40, "*": 4})
    with Consumer(node.url, source) as consumer:
        eventually(lambda: consumer.state.consuming == {"tenant.a": True, "tenant.gold": True})
        assert consumer._client.settings.weights == {"tenant.a": 4, "tenant.gold": 40}
        node.declare("tenant.b")
        eventually(lambda: consumer.state.consuming.get("tenant.b"))
        node.publish("tenant.b", [b"x"])
        with consumer.get(timeout=30) as message:
            assert (message.queue, message.body) == ("tenant.b", b"x")
        node.delete("tenant.a")
        eventually(lambda: consumer.state.consuming == {"tenant.b": True, "tenant.gold": True})


def test_a_name_is_matched_as_by_policies(node: ManagedNode) -> None:
    node.declare("a.b", "A.b", "x/y &?", "été", "a=b")
    assert names(node, "[.]b$") == ["A.b", "a.b"]
    assert names(node, "^a[.]") == ["a.b"]
    assert names(node, "^x/y &[?]$") == ["x/y &?"]
    assert names(node, "^a=b$") == ["a=b"]
    assert names(node, "no such queue") == []
    assert names(node, "^ét") == ["été"]


def test_streams_and_exclusive_queues_are_left_out(node: ManagedNode) -> None:
    node.declare("kept")
    node.declare("stream", arguments={"x-queue-type": "stream"})
    with node.connect() as channel:
        channel.queue_declare("mine", exclusive=True)
        assert names(node, ".") == ["kept"]
    node.delete("stream")


def test_several_pages(node: ManagedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "_PAGE", 3)
    wanted = [f"page.{number}" for number in range(8)]
    node.declare(*wanted)
    assert names(node, "^page") == wanted


def test_another_virtual_host(node: ManagedNode) -> None:
    node.add_host("other/host")
    node.declare("here")
    try:
        assert QueuePattern(".", node.management, vhost="other/host").names([node.url]) == []
        assert QueuePattern(".", node.management).names([node.url.replace("%2F", "other%2Fhost")]) == []
    finally:
        node.delete_host("other/host")
    with pytest.raises(ConnectionFailed, match=r"HTTP status 404 .*the virtual host must exist"):
        QueuePattern(".", node.management, vhost="other/host").names([node.url])


def test_a_user_of_its_own(node: ManagedNode) -> None:
    node.add_user("lister", "s3cret@/:")
    node.order('rabbit_auth_backend_internal:set_tags(<<"lister">>, [management], <<"test">>).')
    node.declare("here")
    good = node.management.replace("://", "://lister:s3cret%40%2F%3A@")
    assert QueuePattern(".", good).names([node.url]) == ["here"]
    with pytest.raises(ConnectionFailed, match="HTTP status 401 ") as found:
        QueuePattern(".", good.replace("s3cret", "wr0ng")).names([node.url])
    assert "wr0ng" not in str(found.value)


def test_an_error_of_the_api_takes_no_queue_away(node: ManagedNode, caplog: pytest.LogCaptureFixture) -> None:
    node.declare("tenant.a")
    source = QueueSource.matching("^tenant", node.management, every=0.02)
    with caplog.at_level(logging.ERROR), Consumer(node.url, source) as consumer:
        eventually(lambda: consumer.state.consuming == {"tenant.a": True})
        # The connection of the consumer stays, and the API is gone.
        node.evaluate("application:stop(rabbitmq_management).")
        try:
            eventually(lambda: "the queues stay as they are" in caplog.text)
            assert consumer.state.consuming == {"tenant.a": True}
        finally:
            node.evaluate("application:start(rabbitmq_management).")
        node.declare("tenant.b")
        eventually(lambda: consumer.state.consuming == {"tenant.a": True, "tenant.b": True})


def test_an_expression_that_the_broker_does_not_take(node: ManagedNode) -> None:
    node.declare("x")
    with pytest.raises(ConnectionFailed, match="HTTP status 400"):
        names(node, "(?a:x)")


def test_a_certificate_is_verified(node: ManagedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.declare("here")
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        QueuePattern(".", node.secure_management).names([node.tls_url])
    monkeypatch.setenv("SSL_CERT_FILE", str(node.certificate))
    assert QueuePattern(".", node.secure_management).names([node.tls_url]) == ["here"]


def test_an_app(node: ManagedNode) -> None:
    node.declare("tenant.a")
    app, found = App(node.url), []

    @app.consumer(QueueSource.matching("^tenant", node.management, every=0.05))
    def handle(message: object) -> None:
        found.append(message)
        app.stop()

    node.publish("tenant.a", [b"x"])
    app.run()
    assert len(found) == 1


def test_no_api(node: ManagedNode) -> None:
    [port] = free_ports(1)
    with pytest.raises(ConnectionFailed, match=re.escape(f"API at http://127.0.0.1:{port} does not list queues")):
        QueuePattern(".", f"http://127.0.0.1:{port}").names([node.url])
    with pytest.raises(ConnectionFailed, match="does not list queues"):  # it speaks AMQP
        QueuePattern(".", f"http://127.0.0.1:{node.port}", timeout=2).names([node.url])
    with pytest.raises(ConfigurationError, match="is not sent to http://127"):
        QueuePattern(".", node.management).names([node.tls_url])
