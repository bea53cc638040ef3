"""Broker addresses: checking them, turning them into pika parameters, and never showing their passwords."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pika

from fairsched.errors import ConfigurationError

MASK = "******"

# Greedy from the first ":" up to the last "@": characters that should have been percent-encoded are masked too, and
# text that contains more than a URL is masked too far rather than not enough.
# If the first ":" of the text is not that of "://", the scheme was forgotten and "://" belongs to the password.
_CREDENTIALS = re.compile(r"(?P<head>\A(?=.*://)[^:]*(?=:(?!//))|://[^:]*):.*@", re.DOTALL)
# Parameters that pika knows, except ssl_options, which may contain the pass phrase of a key file.
_KNOWN = (
    "backpressure_detection|blocked_connection_timeout|channel_max|client_properties|connection_attempts|frame_max|"
    "heartbeat|locale|retry_delay|socket_timeout|stack_timeout|tcp_options"
)
# Unknown parameters belong to ssl_options: an "&" in a pass phrase should have been percent-encoded.
_SSL_OPTIONS = re.compile(rf"(?P<head>ssl(?:_|%5F)options=)(?:(?!&(?:{_KNOWN})=).)+", re.IGNORECASE | re.DOTALL)
# The name ssl_options may be mistyped, so any name that pika does not know is treated as ssl_options.
_QUERY = re.compile(r"(://[^?]*\?)(.+)", re.DOTALL)
_UNKNOWN = re.compile(rf"(?P<head>(?:\A|&)(?!(?:{_KNOWN})=)[\w.-]*=?)(?:(?!&(?:{_KNOWN})=).)+", re.DOTALL)
# Text in place of a port number is a password: "@" and the host were forgotten, or the "@" was percent-encoded.
_NO_PORT = re.compile(r"(?P<head>://[^:/?#\[\s]*):(?!\d*(?:[/?#\s:'\",;)\]]|\Z)).+", re.DOTALL)
#: Scheme, network location and the rest of a URL.
_PARTS = re.compile(r"(amqps?://)([^/?#]*)(.*)", re.DOTALL)


def mask_url(url: object) -> str:
    """Return a URL, or a list of them, as text in which passwords are replaced.

    Parameters
    ----------
    url : object
        One URL, a sequence of URLs, or any text that may contain some.

    Returns
    -------
    str
        The text with every password and every ``ssl_options`` value replaced by ``******``. A user name goes up to the
        first ``:``, and a password up to the last ``@``, whatever is in them. Parameters that pika does not know are
        replaced as well, and so is text in place of a port number.

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
    if "@" not in masked:
        masked = _NO_PORT.sub(rf"\g<head>:{MASK}", masked)
    masked = _SSL_OPTIONS.sub(rf"\g<head>{MASK}", masked)
    return _QUERY.sub(lambda found: found[1] + _UNKNOWN.sub(rf"\g<head>{MASK}", found[2]), masked)


def mask_address(value: object) -> str:
    """Return the value of a URL option, or a list of them, as text without passwords, even if it is not a URL.

    Parameters
    ----------
    value : object
        The user's value.

    Returns
    -------
    str
        As `mask_url` returns it; without ``://``, everything before the last ``@``, or an invalid port, is replaced.

    Notes
    -----
    O(length). Safe from any thread.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return ", ".join(mask_address(one) for one in value)
    text = mask_url(value)
    if "://" in text:
        return text
    _, at, rest = text.rpartition("@")
    return f"{MASK}@{rest}" if at else mask_url(f"://{text}").removeprefix("://")


def check_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """Return the URLs as a tuple after checking each of them.

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
        If there is no URL, or one cannot be parsed; the message shows it without its password.

    Notes
    -----
    O(number of URLs). Safe from any thread.
    """
    urls = (url,) if isinstance(url, str) else tuple(url)
    if not urls:
        raise ConfigurationError("at least one broker URL is needed, got none")
    for one in urls:
        if not isinstance(one, str) or not one.startswith(("amqp://", "amqps://")):
            raise ConfigurationError(f"a broker URL starts with amqp:// or amqps://, got {mask_address(one)!r}")
        parameters(one)
    return urls


def parameters(url: str) -> pika.URLParameters:
    """Return fresh pika parameters for one URL.

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
    found = _PARTS.fullmatch(url)
    scheme, location, rest = found.groups() if found else ("", url, "")
    user, at, host = location.rpartition("@")
    if at and ":" not in user:
        # pika fails at a user without a password, but accepts an empty one.
        url = f"{scheme}{user}:@{host}{rest}"
    try:
        if not at and re.match(r"/[^?#]*:[^?#]*@", rest):
            raise ValueError(_ENCODE)
        result = pika.URLParameters(url)
    except Exception:
        # pika's text may quote a part of the password, so neither it nor the chained exception may be shown.
        raise ConfigurationError(f"broker URL {mask_url(url)!r} is not understood: {_reason(url)}") from None
    if result.client_properties is None:
        result.client_properties = {"connection_name": "fairsched"}
    return result


_ENCODE = (
    "in the user name, the password and ssl_options, characters other than letters and digits must be percent-encoded"
)


def _reason(url: str) -> str:
    """Describe why pika refuses a URL: by its error for the same URL without secrets."""
    if "@" not in url and _NO_PORT.search(url):
        return "the text after ':' is not a port; a password must be followed by '@' and the host"
    harmless = _SSL_OPTIONS.sub("", _CREDENTIALS.sub(r"\g<head>:@", url))
    try:
        pika.URLParameters(harmless)
    except Exception as error:
        return mask_url(error)
    return _ENCODE


def endpoint(url: str) -> str:
    """Return ``host:port`` of a URL.

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
