"""The meaning of pika's exceptions, and the part of them that may be shown."""

from __future__ import annotations

import ast
import contextlib
import re
import ssl
from collections.abc import Iterator

import pika.exceptions

#: Answers that no retry will change.
_REFUSALS = (pika.exceptions.AuthenticationError, ssl.SSLCertVerificationError)
#: Exceptions by which pika interprets the end of a connection that was being opened; they quote its `repr`.
_CONCLUSIONS = (
    pika.exceptions.ProbableAuthenticationError,
    pika.exceptions.ProbableAccessDeniedError,
    pika.exceptions.IncompatibleProtocolError,
)
#: Ends of a connection that are not about this client: a cut, and a broker that stops (320).
_SAYS_NOTHING = re.compile(r"StreamLostError|ConnectionClosedByBroker: \(320\)")
#: Reasons of OpenSSL for an answer that is not TLS, such as that of a broker's port for amqp://.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})


def describe(error: BaseException) -> str:
    """Return what went wrong in words.

    Parameters
    ----------
    error : BaseException
        An exception of pika; these often wrap the one that names the problem.

    Returns
    -------
    str
        Type and text of the innermost exception that has a text, and the remedy if the port does not speak TLS. The
        text may quote a URL: see `urls.mask_url`.
    """
    causes = [one for one in _causes(error) if str(one)]
    text = f"{type(causes[-1]).__name__}: {_said(causes[-1])}" if causes else repr(error)
    if any(_met_no_tls(one) for one in causes):
        text += "; this port does not speak TLS: use amqp://, or the port for amqps://, by default 5671"
    return text


def broker_text(text: str | bytes) -> str:
    """Decode a text of the broker, such as a reply text, that is not valid UTF-8.

    pika leaves such a text as bytes, and its exceptions contain the `repr` of the bytes.
    """
    if isinstance(text, str) and text[:2] in ("b'", 'b"'):
        with contextlib.suppress(ValueError, SyntaxError):
            text = ast.literal_eval(text)
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _said(error: BaseException) -> str:
    text = getattr(error, "reply_text", None)
    return str(error) if text is None else f"({getattr(error, 'reply_code', None)}, {broker_text(text)!r})"


def is_refusal(error: BaseException) -> bool:
    """Tell whether the broker refused the connection, so that no retry will change its answer.

    A port that accepts and closes at once does not refuse: a load balancer without brokers does the same.
    """
    return any(isinstance(one, _REFUSALS) or _concluded(one) or _met_no_tls(one) for one in _causes(error))


def is_missing(error: BaseException) -> bool:
    """Tell whether a channel was closed because a queue or an exchange does not exist."""
    return isinstance(error, pika.exceptions.ChannelClosedByBroker) and error.reply_code == 404


def is_final(error: BaseException) -> bool:
    """Tell whether a channel was closed by an answer that no retry will change.

    403: no permission, or another's exclusive consumer. 404: no such queue. 405: another connection's exclusive queue.
    406: arguments that do not fit; but also an acknowledgement that came too late, after which a retry helps.
    """
    if not isinstance(error, pika.exceptions.ChannelClosedByBroker):
        return False
    late = re.search(r"timed out|unknown delivery tag", broker_text(error.reply_text))
    return error.reply_code in (403, 404, 405) or (error.reply_code == 406 and late is None)


def refusing_stream(error: BaseException) -> str | None:
    """Return the name of the stream for which the broker closed the connection: it refused a negative acknowledgement.

    The broker does not tell the type of a queue before a client uses an operation that this type does not support.
    """
    if not isinstance(error, pika.exceptions.ConnectionClosedByBroker) or error.reply_code != 540:
        return None
    found = re.search(r"not supported by stream queues.* queue '(.*)' in vhost", error.reply_text, re.DOTALL)
    return found and found[1]


def _concluded(error: BaseException) -> bool:
    return isinstance(error, _CONCLUSIONS) and _SAYS_NOTHING.match(str(error.args[0]) if error.args else "") is None


def _met_no_tls(error: BaseException) -> bool:
    return isinstance(error, ssl.SSLError) and error.reason in _NO_TLS


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those it wraps: pika nests them in `exceptions`, `exception` and `args`."""
    yield error
    nested = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    for one in nested:
        if isinstance(one, BaseException):
            yield from _causes(one)
