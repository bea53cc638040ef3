"""Broker addresses: checking them, turning them into pika parameters, and never showing their passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import pika

from fairsched.errors import ConfigurationError

MASK = "******"

#: Environment variables looked at, in this order, when no URL is given.
URL_VARIABLES = ("FAIRSCHED_URL", "RABBITMQ_URL", "AMQP_URL", "CLOUDAMQP_URL")

# Greedy up to the last "@": a password that contains an unescaped "@" is masked whole rather than half.
_CREDENTIALS = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^:@/\s]*):[^\s]*@")
# A key file's pass phrase may hide in ssl_options.
_SSL_OPTIONS = re.compile(r"(ssl_options=)[^&\s]+")


def mask_url(url: object) -> str:
    """mask_url(url)
    --

    Return a URL, or a list of them, as text in which passwords are replaced.

    Parameters
    ----------
    url : object
        One URL, a sequence of URLs, or any text that may contain some.

    Returns
    -------
    str
        The text with every password and every ``ssl_options`` value replaced by ``******``.

    Notes
    -----
    O(length). Safe from any thread.

    Examples
    --------
    >>> mask_url("amqp://app:secret@broker:5672/%2F")
    'amqp://app:******@broker:5672/%2F'
    """
    if isinstance(url, Sequence) and not isinstance(url, str | bytes):
        return ", ".join(mask_url(one) for one in url)
    masked = _CREDENTIALS.sub(rf"\g<head>:{MASK}@", str(url))
    return _SSL_OPTIONS.sub(rf"\g<1>{MASK}", masked)


def check_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """check_urls(url)
    --

    Return the URLs as a tuple after checking each of them.

    Parameters
    ----------
    url : str or sequence of str
        ``amqp://`` or ``amqps://`` URLs in the order in which they are tried.

    Returns
    -------
    tuple of str
        The same URLs.

    Raises
    ------
    ConfigurationError
        If there is no URL, or one is not understood; the message shows it without its password.

    Notes
    -----
    O(number of URLs). Safe from any thread.
    """
    urls = (url,) if isinstance(url, str) else tuple(url)
    if not urls:
        raise ConfigurationError("at least one broker URL is needed, got none")
    for one in urls:
        if not isinstance(one, str) or not one.startswith(("amqp://", "amqps://")):
            raise ConfigurationError(f"a broker URL starts with amqp:// or amqps://, got {mask_url(one)!r}")
        parameters(one)
    return urls


def parameters(url: str) -> pika.URLParameters:
    """parameters(url)
    --

    Return fresh pika parameters for one URL.

    Parameters
    ----------
    url : str
        A broker URL as `pika.URLParameters` reads it.

    Returns
    -------
    pika.URLParameters
        A new object each time: pika writes the negotiated values into it.

    Raises
    ------
    ConfigurationError
        If pika does not understand the URL.

    Notes
    -----
    O(length). Safe from any thread.
    """
    try:
        result = pika.URLParameters(url)
    except Exception as error:
        # pika's text may quote the URL, so neither it nor the chained exception may be shown as they are.
        reason = mask_url(str(error))
        raise ConfigurationError(f"broker URL {mask_url(url)!r} is not understood: {reason}") from None
    if result.client_properties is None:
        result.client_properties = {"connection_name": "fairsched"}
    return result


def endpoint(url: str) -> str:
    """endpoint(url)
    --

    Return ``host:port`` of a URL.

    Parameters
    ----------
    url : str
        A broker URL.

    Returns
    -------
    str
        Host and port, with pika's defaults filled in.

    Notes
    -----
    O(length). Safe from any thread.
    """
    found = parameters(url)
    return f"{found.host}:{found.port}"


def default_url(environ: Mapping[str, str] | None = None) -> str | None:
    """default_url(environ=None)
    --

    Return the first broker URL that the environment offers.

    Parameters
    ----------
    environ : mapping, optional
        Variables to look into; the process environment by default.

    Returns
    -------
    str or None
        The value of the first of `URL_VARIABLES` that is set, or None.

    Notes
    -----
    O(1). Safe from any thread.
    """
    source = os.environ if environ is None else environ
    return next((source[name] for name in URL_VARIABLES if source.get(name)), None)
