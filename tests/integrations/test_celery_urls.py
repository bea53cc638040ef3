"""Addresses of Celery's brokers, as pika takes them."""

from __future__ import annotations

import ssl
from typing import Any

import celery
import pytest
from celery.exceptions import ImproperlyConfigured

from fairsched.amqp.urls import check_urls, parameters
from fairsched.integrations.celery_urls import broker_urls


def app_of(url: Any, **settings: Any) -> celery.Celery:
    app = celery.Celery("shop", broker=url)
    app.conf.update(settings)
    return app


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", ["amqp://guest:guest@localhost:5672/%2F?heartbeat=120"]),
        ("amqp://host", ["amqp://guest:guest@host:5672/%2F?heartbeat=120"]),
        ("pyamqp://me:p%40ss%2F@host:5673/shop", ["amqp://me:p%40ss%2F@host:5673/shop?heartbeat=120"]),
        ("amqp://me:x@host//", ["amqp://me:x@host:5672/%2F?heartbeat=120"]),
        ("amqps://me:x@host/shop", ["amqps://me:x@host:5671/shop?heartbeat=120"]),
        (
            "amqp://me:x@one//;amqp://me:x@two:5673/shop",
            ["amqp://me:x@one:5672/%2F?heartbeat=120", "amqp://me:x@two:5673/shop?heartbeat=120"],
        ),
    ],
)
def test_urls(url: str, expected: list[str]) -> None:
    assert broker_urls(app_of(url)) == expected
    check_urls(expected)


def test_workers_read_from_the_url_for_reading() -> None:
    app = app_of("amqp://write", broker_read_url="amqp://read", broker_heartbeat=0)
    assert broker_urls(app) == ["amqp://guest:guest@read:5672/%2F?heartbeat=0"]


def test_tls_options_are_taken_over() -> None:
    authorities = ssl.get_default_verify_paths().openssl_cafile
    options = {"ca_certs": authorities, "server_hostname": "broker.example", "cert_reqs": ssl.CERT_REQUIRED}
    [url] = broker_urls(app_of("amqp://host", broker_use_ssl=options))
    found = parameters(url)
    assert found.port == 5671
    assert found.ssl_options.server_hostname == "broker.example"
    assert found.ssl_options.context.verify_mode == ssl.CERT_REQUIRED


def test_without_authorities_those_of_the_system_verify() -> None:
    [url] = broker_urls(app_of("amqp://host", broker_use_ssl={"server_hostname": "broker.example"}))
    assert parameters(url).ssl_options.context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "settings", "text"),
    [
        ("memory://", {}, "lanes need RabbitMQ, got the transport 'memory'"),
        ("amqp://", {"broker_login_method": "EXTERNAL"}, "got broker_login_method 'EXTERNAL'"),
    ],
)
def test_other_brokers_and_logins_are_refused(url: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=text):
        broker_urls(app_of(url, **settings))
