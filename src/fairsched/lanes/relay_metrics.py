"""Metrics of a relay for Prometheus; needs prometheus_client, the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from fairsched.lanes.relay import Relay

__all__ = ["RelayCollector"]

#: Counters of the relay: key in `Relay.stats`, and help text.
_COUNTERS = {
    "moved": "Messages whose copy a lane has, and that were acknowledged in the ingress queue.",
    "refused": "Copies that a lane did not take; they are published again.",
    "repeated": "Copies published once more, behind one that their lane had refused.",
}


class RelayCollector(Collector):
    """Prometheus collector of one relay, which is read at each scrape.

    Parameters
    ----------
    relay : Relay
        The relay.

    Notes
    -----
    O(lanes that refuse messages). Safe from any thread.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        found = self._relay.stats()
        for name, help in _COUNTERS.items():
            yield CounterMetricFamily(f"fairsched_relay_messages_{name}", help, found[name])
        yield GaugeMetricFamily(
            "fairsched_relay_waiting_messages", "Messages that wait for a lane that refuses them.", found["waiting"]
        )
        yield GaugeMetricFamily(
            "fairsched_connected", "Whether there is an open connection to a broker.", int(self._relay.state.connected)
        )
