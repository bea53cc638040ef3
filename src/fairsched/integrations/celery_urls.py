"""Addresses of the brokers of a Celery app, as fairsched takes them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from celery import Celery
from celery.exceptions import ImproperlyConfigured

#: Options of Celery's ``broker_use_ssl`` that a URL can carry.
_TLS = ("ca_certs", "certfile", "keyfile", "ciphers", "server_hostname")


def broker_urls(app: Celery) -> list[str]:
    """Return the URLs of the brokers that an app's workers read from, in the order in which Celery tries them.

    Raises
    ------
    ImproperlyConfigured
        If the broker is not RabbitMQ, or if Celery does not log in by user name and password.

    Notes
    -----
    Connects to no broker. A certificate of the broker is always verified: by ``ca_certs`` of ``broker_use_ssl``, or by
    those of the system.
    """
    connection = app.connection_for_read()
    if connection.transport.driver_type != "amqp":
        raise ImproperlyConfigured(f"lanes need RabbitMQ, got the transport {connection.transport.driver_name!r}")
    found = []
    for alternate in connection.alt or [None]:
        if alternate is not None:
            connection.switch(alternate)
        found.append(_url(connection.info(), app.conf.broker_heartbeat))
    return found


def _url(info: Mapping[str, Any], heartbeat: int | None) -> str:
    if info["login_method"] not in ("PLAIN", "AMQPLAIN"):
        raise ImproperlyConfigured(
            f"lanes need a login by user name and password, got broker_login_method {info['login_method']!r}"
        )
    user, password = (quote(info[name] or "", safe="") for name in ("userid", "password"))
    host = f"[{info['hostname']}]" if ":" in info["hostname"] else info["hostname"]
    scheme, options = "amqp", {}
    if info["ssl"]:
        scheme, options = "amqps", _tls(info["ssl"])
    if heartbeat is not None:
        options["heartbeat"] = str(int(heartbeat))
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{user}:{password}@{host}:{info['port']}/{quote(info['virtual_host'] or '/', safe='')}{query}"


def _tls(given: Any) -> dict[str, str]:
    """Return the parameter of a URL for the options of TLS, if there are some."""
    if not isinstance(given, Mapping):
        return {}
    named = {name: given[name] for name in _TLS if given.get(name) is not None}
    if not named:
        return {}
    if "ca_certs" not in named:
        system = ssl.get_default_verify_paths()
        named.update(cafile=system.cafile, capath=system.capath)
    return {"ssl_options": repr(named)}
