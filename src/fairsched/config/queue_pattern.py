"""Queues by the pattern of their names, which the management API of a broker lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairsched.config.weight_rules import compiled
from fairsched.errors import ConfigurationError

#: Seconds for an answer of the API, at most.
LONGEST_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class QueuePattern:
    """All queues of a virtual host whose names match; `QueueSource.matching` documents the parameters.

    Notes
    -----
    Immutable. Safe from any thread.
    """

    pattern: str
    management: str = field(repr=False)  # with its password
    vhost: str | None = None
    timeout: float = 10.0

    def __post_init__(self) -> None:
        from fairsched.amqp.management import parse_management_url  # and with it pika, not to be loaded for a file

        compiled(self.pattern, "the pattern of a source of queues")
        parse_management_url(self.management)
        if self.vhost is not None and not (isinstance(self.vhost, str) and self.vhost):
            raise ConfigurationError(f"vhost must be the name of a virtual host, got {self.vhost!r}")
        number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not (number and 0 < self.timeout <= LONGEST_TIMEOUT):
            raise ConfigurationError(
                f"timeout of a source of queues must be a positive number of seconds up to {LONGEST_TIMEOUT:g}, "
                f"got {self.timeout!r}"
            )

    def __str__(self) -> str:
        from fairsched.amqp.management import parse_management_url

        return f"pattern {self.pattern!r} at {parse_management_url(self.management).shown}"

    def names(self, urls: Sequence[str]) -> list[str]:
        """Ask the API: return the names of the queues that match now.

        Parameters
        ----------
        urls : sequence of str
            Of the consumer. The first one says the virtual host, the user and the password that are not given.

        Raises
        ------
        ConfigurationError
            If the password of an ``amqps`` URL would be sent without TLS.
        ConnectionFailed
            If the API does not answer.
        """
        from fairsched.amqp.management import ManagementAPI, parse_management_url
        from fairsched.amqp.urls import parameters

        url, broker = parse_management_url(self.management), parameters(urls[0])
        user, password = url.user, url.password
        if user is None:
            if broker.ssl_options is not None and url.scheme == "http":
                raise ConfigurationError(
                    f"the password of an amqps:// URL is not sent to {url.shown} without TLS: use https://, or give "
                    "management a user and password of its own"
                )
            user, password = broker.credentials.username, broker.credentials.password
        api = ManagementAPI(url, user, password, self.timeout)
        return api.queue_names(self.vhost or broker.virtual_host, compiled(self.pattern, "the pattern"))
