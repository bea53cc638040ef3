"""Broker addresses, and that no password gets out."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairsched import ConfigurationError
from fairsched.amqp import urls
from fairsched.config.consumer_options import default_url
from fairsched.config.settings import Settings
from fairsched.consumer.settings import ConsumerSettings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://app:secret@broker:5672/%2F", "amqp://app:******@broker:5672/%2F"),
        ("amqps://app:se:cr@et@broker/", "amqps://app:******@broker/"),
        ("amqp://:secret@broker", "amqp://:******@broker"),
        ("amqp://app@broker", "amqp://app@broker"),
        ("amqp://broker:5672/vhost", "amqp://broker:5672/vhost"),
        ("amqps://a:secret@b/?heartbeat=5&ssl_options={'password':'secret'}&locale=x",
         "amqps://a:******@b/?heartbeat=5&ssl_options=******&locale=x"),
        ("amqp://my user:secret@broker/", "amqp://my user:******@broker/"),
        ("amqp://u/s@e r:se cr et@broker/", "amqp://u/s@e r:******@broker/"),
        ("amqp://a:b://c:secret@broker", "amqp://a:******@broker"),
        ("amqp://a@b/?ssl_options={'password': 'sec ret&secret'}&heartbeat=5",
         "amqp://a@b/?ssl_options=******&heartbeat=5"),
        ("amqps://b/?locale=x&ssl_options={'password': 'a&b=secret&secret=c'}&heartbeat=5",
         "amqps://b/?locale=x&ssl_options=******&heartbeat=5"),
        ("amqps://b/?ssl-options={'password': 'a&b=secret'}&heartbeat=5", "amqps://b/?ssl-options=******&heartbeat=5"),
        ("amqps://b/?heartbeat=5&%73sl_options={'password': 'secret'}", "amqps://b/?heartbeat=5&******"),
        ("amqp://app:secret", "amqp://app:******"),
        ("amqp://app:secret%40broker:5672/%2F", "amqp://app:******"),
        ("amqp://app:12%40secret", "amqp://app:******"),
        ("amqp://[::1]:5672/", "amqp://[::1]:5672/"),
        ("cannot reach amqp://b:5672: refused", "cannot reach amqp://b:5672: refused"),
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
    assert default_url({}) is None
    assert default_url({"AMQP_URL": "amqp://c", "RABBITMQ_URL": "amqp://b"}) == "amqp://b"
    assert default_url({"AMQP_URL": "amqp://c", "FAIRSCHED_URL": "amqp://a"}) == "amqp://a"
    assert default_url({"FAIRSCHED_URL": "", "CLOUDAMQP_URL": "amqp://d"}) == "amqp://d"


def test_a_user_without_a_password_is_understood() -> None:
    found = urls.parameters("amqp://app@rabbit-1:5673/%2F")
    assert (found.credentials.username, found.credentials.password) == ("app", "")
    assert (found.host, found.port, found.virtual_host) == ("rabbit-1", 5673, "/")
    assert urls.parameters("amqps://app@rabbit").ssl_options is not None
    assert urls.parameters("amqp://rabbit").credentials.username == "guest"
    assert urls.parameters("amqp://app:secret@rabbit/v@w").virtual_host == "v@w"


@pytest.mark.parametrize(
    ("url", "said"),
    [("amqp://a:secret@b:port/", "could not be cast to integer"), ("amqp://a:secret@b/?heartbeat=often", "heartbeat"),
     ("amqp://a:sec/ret@b/", "percent-encoded"), ("amqp://a:sec?ret@b/", "percent-encoded"),
     ("amqp://a:secret", "followed by '@' and the host"), ("amqp://a:secret%40b/", "followed by '@' and the host"),
     ("amqps://b/?ssl_options={'password':'a&b=secret'}", "percent-encoded"), ("guest:secret", "starts with amqp"),
     ("amqps://b/?ssl-options={'password':'secret'}", "Unknown URL parameter: 'ssl-options'"),
     ("amqp://us/er:secret@b/", "percent-encoded"), ("amqp://a:secret@b/?ssl_options=secret", "percent-encoded")],
)  # fmt: skip
def test_what_is_wrong_is_said_without_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        urls.check_urls(url)
    assert "sec" not in str(caught.value)
    assert "ret" not in str(caught.value)


HEAD, TAIL = "S3cretBegins", "3ndsHere"
signs = st.text(" :/?#@%&=\\'\",;\n\t[]", max_size=8) | st.sampled_from(["://", "%40", "&a=", "@h/"])
odd = st.text(max_size=8) | signs


@given(
    user=odd, middle=odd, quoted=st.booleans(),
    form=st.sampled_from(
        ["amqp://{}:{}@broker/%2F", "amqps://{}:{}@broker:5671", "AMQP://{}:{}@broker", "http://{}:{}@broker/",
         "{}:{}@broker", "amqp:/{}:{}@broker/", "://{}:{}@broker", "amqp://{}:{}@broker:port/",
         "amqp://{}:{}@broker/?heartbeat=often", "broker amqp://{}:{}@broker is not there"]
    ),
)  # fmt: skip
@example(user="", middle="://", quoted=False, form="{}:{}@broker")
@example(user="app", middle="://", quoted=False, form="{}:{}@broker")
def test_no_password_gets_out_however_odd(user: str, middle: str, quoted: bool, form: str) -> None:
    password = HEAD + middle + TAIL
    url = form.format(*(quote(part, safe="") if quoted else part for part in (user, password)))
    shown = [] if "://" not in url else [urls.mask_url(url), urls.mask_url([url, url])]
    # `urlsplit` and pika take no part in this: what they would read out of it does not matter.
    shown += [urls.mask_address(url), urls.mask_address([url])]
    for make in (
        lambda: urls.check_urls(url), lambda: repr(Settings(url=url)), lambda: repr(Settings(url=[url, "amqp://b"])),
        lambda: Settings.load({"url": url}, environ={}), lambda: Settings.load({}, environ={"FAIRSCHED_URL": url}),
        lambda: repr(ConsumerSettings(url, ["q"])),
    ):  # fmt: skip
        try:
            found = make()
        except ConfigurationError as error:
            shown.append("".join(traceback.format_exception(error)))
        else:
            shown.append(repr(found) if not isinstance(found, tuple) else "")
    text = "\n".join(shown)
    assert HEAD not in text
    assert TAIL not in text
