"""The status page over HTTP: what it answers, to which client, and what a browser makes of it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairsched.cli.statuspage import StatusPage

STATUS: dict[str, Any] = {
    "memory_alarm": False,
    "queues": [{"name": "<b>orders</b>", "vhost": "/", "ready": 1234, "published": 7, "arguments": {"x-expires": 9}}],
    "consumers": [{"queue": "<b>orders</b>", "tag": "c1", "list": "interested"}],
    "connections": [],
}


@pytest.fixture
def page() -> Iterator[StatusPage]:
    with StatusPage(lambda: STATUS) as running:
        yield running


def ask(page: StatusPage, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, type and text of an answer."""
    address = urlsplit(page.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_the_status_as_json(page: StatusPage) -> None:
    code, kind, text = ask(page, "/status.json")
    assert (code, kind, json.loads(text)) == (200, "application/json; charset=utf-8", STATUS)


def test_the_page(page: StatusPage) -> None:
    code, kind, text = ask(page, "/")
    assert (code, kind) == (200, "text/html; charset=utf-8")
    assert "<title>fairsched broker</title>" in text


def test_anything_else(page: StatusPage) -> None:
    assert ask(page, "/etc/passwd")[0] == 404
    assert ask(page, "/status.json", "POST")[0] == 501


@pytest.mark.parametrize(
    ("host", "code"), [("localhost", 200), ("localhost:80", 200), ("evil.example", 421), ("", 421)]
)
def test_pages_from_elsewhere_cannot_ask(page: StatusPage, host: str, code: int) -> None:
    # A name of theirs may lead to this machine.
    assert ask(page, "/status.json", Host=host)[0] == code


def test_a_taken_port(page: StatusPage) -> None:
    with pytest.raises(OSError, match="in use"):
        StatusPage(lambda: STATUS, urlsplit(page.url).port or 0)


def test_a_closed_page_does_not_listen(page: StatusPage) -> None:
    with StatusPage(lambda: STATUS) as other:
        assert ask(other, "/")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(other, "/")


@pytest.mark.slow
def test_a_browser_shows_it(page: StatusPage) -> None:
    assert shutil.which("chromium"), "install it: tools/install-servers chromium"
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=1500", "--dump-dom"]
    done = subprocess.run(
        [*browser, page.url], capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    cells = re.findall(r"<t[dh](?: class=\"number\")?>(.*?)</t[dh]>", done.stdout)
    # The queue's name is text, not HTML; a counter became a rate.
    assert "&lt;b&gt;orders&lt;/b&gt;" in cells
    assert {"1,234", "published/s", "interested"} <= set(cells)
    assert "queues (1)" in done.stdout
    assert 'id="problem" role="alert"></p>' in done.stdout
