"""Where the broker is, and how patiently to look for it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Broker:
    """Broker(urls, heartbeat=60, timeout=10.0, retries=3)
    --

    Where the broker is and how patiently to look for it.

    Parameters
    ----------
    urls : tuple of str
        Tried in turn.
    heartbeat : int
        Seconds; 0 switches heartbeats off.
    timeout : float
        Seconds for a connection, and for each answer.
    retries : int
        Further rounds over the URLs.
    """

    urls: tuple[str, ...] = field(repr=False)
    heartbeat: int = 60
    timeout: float = 10.0
    retries: int = 3
