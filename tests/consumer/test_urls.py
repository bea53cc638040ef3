"""Broker addresses, and that no password gets out."""

from __future__ import annotations

import pytest

from fairsched import ConfigurationError
from fairsched.consumer import urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://app:secret@broker:5672/%2F", "amqp://app:******@broker:5672/%2F"),
        ("amqps://app:se:cr@et@broker/", "amqps://app:******@broker/"),
        ("amqp://:secret@broker", "amqp://:******@broker"),
        ("amqp://app@broker", "amqp://app@broker"),
        ("amqp://broker:5672/vhost", "amqp://broker:5672/vhost"),
        ("amqps://a:secret@b/?heartbeat=5&ssl_options={'password':'secret'}&x=1",
         "amqps://a:******@b/?heartbeat=5&ssl_options=******&x=1"),
        ("cannot reach amqp://a:secret@b/", "cannot reach amqp://a:******@b/"),
        (["amqp://a:secret@b", "amqp://c:secret@d"], "amqp://a:******@b, amqp://c:******@d"),
    ],
)  # fmt: skip
def test_passwords_are_masked(url: object, shown: str) -> None:
    assert urls.mask_url(url) == shown
    assert "secret" not in urls.mask_url(url)


def test_urls_are_checked() -> None:
    assert urls.check_urls("amqp://a:b@c/") == ("amqp://a:b@c/",)
    assert urls.check_urls(["amqp://a", "amqps://b"]) == ("amqp://a", "amqps://b")


@pytest.mark.parametrize(
    "url", [[], "http://a:secret@b/", "secret", 5, ["amqp://a", None], "amqp://a:secret@b:port/",
            "amqp://a:secret@b/?heartbeat=often", "amqp://a:secret@b/?ssl_options=secret"],
)  # fmt: skip
def test_a_bad_url_is_refused_without_its_password(url: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        urls.check_urls(url if isinstance(url, str | list) else [url])
    if url != "secret":
        assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_endpoint_and_parameters() -> None:
    assert urls.endpoint("amqp://a:b@host:1234/x") == "host:1234"
    assert urls.endpoint("amqps://host") == "host:5671"
    first, second = urls.parameters("amqp://host"), urls.parameters("amqp://host")
    assert first is not second
    assert first.client_properties == {"connection_name": "fairsched"}
    named = urls.parameters("amqp://host?client_properties={'connection_name':'mine'}")
    assert named.client_properties == {"connection_name": "mine"}


def test_the_environment_may_name_the_broker() -> None:
    assert urls.default_url({}) is None
    assert urls.default_url({"AMQP_URL": "amqp://c", "RABBITMQ_URL": "amqp://b"}) == "amqp://b"
    assert urls.default_url({"AMQP_URL": "amqp://c", "FAIRSCHED_URL": "amqp://a"}) == "amqp://a"
    assert urls.default_url({"FAIRSCHED_URL": "", "CLOUDAMQP_URL": "amqp://d"}) == "amqp://d"
