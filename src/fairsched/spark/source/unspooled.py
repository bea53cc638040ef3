"""At most once: what a batch would be replayed from is not kept, so a message is acknowledged and then shown."""

from __future__ import annotations

from fairsched.spark.options import SourceOptions
from fairsched.spark.source.spool import Segment, Spool


class Unspooled:
    """Unspooled()
    --

    Takes the place of a `Spool` with ``ackMode=auto``: publishing keeps nothing, and nothing is ever found.
    """

    def refuse_foreign(self, strict: bool) -> None:
        """Nothing is kept, so nothing can be another's."""

    def open_batch(self, seq: int, strict: bool) -> None:
        """Every batch may be read."""

    def close_until(self, seq: int) -> list[Segment]:
        """Nothing is known of what was read."""
        return []

    def published(self, seq: int, part: int, number: int) -> Segment | None:
        """Nothing is: every attempt consumes."""
        return None

    def counts(self, seq: int, part: int) -> dict[str, int]:
        """Nothing is known of what an earlier run has read."""
        return {}

    def check_open(self, seq: int) -> None:
        """Every batch may be read."""

    def publish(self, seq: int, part: int, number: int, segment: Segment) -> bool:
        """Let the segment be acknowledged and shown."""
        return True


def open_spool(options: SourceOptions, epoch: str) -> Spool | Unspooled:
    """Return what keeps the segments of a checkpoint, as the options have it."""
    if options.at_most_once:
        return Unspooled()
    assert options.spool is not None
    return Spool(options.spool, epoch)
