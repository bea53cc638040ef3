"""What the I/O thread tells the rest of a consumer."""

from __future__ import annotations


class Listener:
    """What the io_thread tells its owner; every method is called in the I/O thread."""

    def ready(self) -> None:
        """Every queue is being consumed, for the first time."""

    def failed(self, error: BaseException) -> None:
        """Consuming cannot begin, or cannot go on."""

    def intake_closed(self) -> None:
        """No more deliveries will come."""

    def settled(self) -> None:
        """No more deliveries will come, and all that came on a living channel are settled."""

    def orphan(self) -> bool:
        """Whether nobody can use the consumer any more; asked now and then."""
        return False

    def service(self) -> float | None:
        """Return the seconds for which a message occupies the workers, as far as that is known."""
        return None
