"""RabbitMQ's management API: the names of queues, which AMQP cannot list."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from fairsched.amqp.urls import mask_address
from fairsched.errors import ConfigurationError, ConnectionFailed

#: Queues of a page, the most that the API gives.
_PAGE = 500
#: Longest answer that is read, in bytes: a name has at most 255, of which JSON makes up to six times as much.
_LONGEST = 8 * 1024 * 1024
_PORTS = {"http": 15672, "https": 15671}


class ManagementURL(NamedTuple):
    """Parts of the URL of a management API; `user` is None if the URL has none."""

    scheme: str
    host: str
    port: int
    path: str
    user: str | None
    password: str

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_management_url(url: object) -> ManagementURL:
    """Take the URL of a management API apart.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``, with or without user and password, percent-encoded; the port is 15672 or 15671 by
        default. A path is what a proxy puts before ``/api``.

    Returns
    -------
    ManagementURL
        Its parts.

    Raises
    ------
    ConfigurationError
        If it is anything else; the message does not show the password.

    Notes
    -----
    O(length). Safe from any thread.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = parts.port if parts else None
    except ValueError:  # its text may quote the password
        parts = port = None
    if parts is None or parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(
            "management must be a URL such as http://user:password@host:15672 or https://host:15671, got "
            f"{mask_address(url)!r}"
        )
    user = None if parts.username is None else unquote(parts.username)
    path, password = parts.path.rstrip("/").removesuffix("/api"), unquote(parts.password or "")
    return ManagementURL(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path, user, password)


class ManagementAPI:
    """Asks a management API.

    Parameters
    ----------
    url : ManagementURL
        Where it is.
    user, password : str
        Of a user with the tag ``management`` and a permission for the virtual host.
    timeout : float
        Seconds for connecting, and for each answer to go on.

    Notes
    -----
    Certificates of ``https`` URLs are verified, against those that the system trusts, or the file that the variable
    ``SSL_CERT_FILE`` names. Redirections are errors: they would take the password elsewhere. A connection is kept for
    the pages of one list only. For one thread at a time.
    """

    def __init__(self, url: ManagementURL, user: str, password: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}

    def queue_names(self, vhost: str, pattern: re.Pattern[str]) -> list[str]:
        """Return the names of the queues of a virtual host that match, sorted.

        Parameters
        ----------
        vhost : str
            The virtual host.
        pattern : re.Pattern
            Searched for in the names. The broker compares, too, to send less.

        Returns
        -------
        list of str
            Without streams, which need an offset, and without exclusive queues, which are for other connections.

        Raises
        ------
        ConnectionFailed
            If the API cannot be reached, refuses, or answers something else; the message has no password.

        Notes
        -----
        One request for every 500 queues. A queue that is deleted or declared between two of these moves others to
        another page, where they might be missed: a list of several pages is read twice, and what either has is
        returned.
        """
        connection = self._connection()
        try:
            found, pages = self._read(connection, vhost, pattern)
            if pages > 1:
                found |= self._read(connection, vhost, pattern)[0]
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        return sorted(found)

    def _connection(self) -> http.client.HTTPConnection:
        url = self._url
        if url.scheme == "http":
            return http.client.HTTPConnection(url.host, url.port, timeout=self._timeout)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(url.host, url.port, timeout=self._timeout, context=context)

    def _failed(self, reason: str) -> ConnectionFailed:
        return ConnectionFailed(f"the management API at {self._url.shown} does not list queues: {reason}")

    def _read(
        self, connection: http.client.HTTPConnection, vhost: str, pattern: re.Pattern[str]
    ) -> tuple[set[str], int]:
        """Return the names on all pages, and how many pages there are."""
        found: set[str] = set()
        page = pages = 1
        while page <= pages:
            answer = self._page(connection, vhost, pattern.pattern, page)
            items, count = answer.get("items"), answer.get("page_count")
            if not isinstance(items, list) or not isinstance(count, int):
                raise self._failed("its answer has no items or no page_count")
            pages = count
            found.update(name for name in self._consumable(items) if pattern.search(name))
            page += 1
        return found, pages

    def _consumable(self, items: list[Any]) -> Iterator[str]:
        for item in items:
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str):
                raise self._failed("its answer has an item without a name")
            if item.get("type") != "stream" and not item.get("exclusive"):
                yield name

    def _page(self, connection: http.client.HTTPConnection, vhost: str, pattern: str, page: int) -> dict[str, Any]:
        query = urlencode({
            "page": page, "page_size": _PAGE, "name": pattern, "use_regex": "true", "columns": "name,type,exclusive",
            "sort": "name",
        })  # fmt: skip
        path = f"{self._url.path}/api/queues/{quote(vhost, safe='')}?{query}"
        connection.request("GET", path, headers=self._headers)
        with connection.getresponse() as response:
            body = response.read(_LONGEST + 1)
            if response.status != http.client.OK:
                raise self._failed(f"HTTP status {response.status} {response.reason}{_advice(response.status)}")
        if len(body) > _LONGEST:
            raise self._failed(f"its answer has more than {_LONGEST} bytes")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise self._failed(f"its answer is not JSON: {body[:80]!r}") from None
        if not isinstance(answer, dict):
            raise self._failed("its answer is not a page, which RabbitMQ gives since version 3.6")
        return answer


def _advice(status: int) -> str:
    if status == http.client.UNAUTHORIZED:
        return "; user and password must be right, and the user must have the tag 'management'"
    if status == http.client.NOT_FOUND:
        return "; the virtual host must exist, and the plugin rabbitmq_management must be enabled"
    return ""
