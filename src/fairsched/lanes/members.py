"""The workers that are present, and the ordered lanes that each of them consumes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from fairsched.routing._ring import xxh64

__all__ = ["Members", "divide"]

#: Seconds between two messages in which a worker says that it is here.
BEAT = 0.5
#: Seconds after which a worker that was not heard is gone.
LOST = 2.0
#: Seconds for which a worker that starts waits for the others to say that they are here. After a lost connection it
#: waits for `LOST`: the others may have lost theirs, too.
FIRST_WAIT = 0.3
#: Seconds without the registry after which a worker consumes all lanes. The broker delivers each to one consumer.
ALONE = 5.0


def divide(lanes: Sequence[str], workers: Iterable[str]) -> dict[str, str]:
    """Divide lanes among workers.

    Parameters
    ----------
    lanes : sequence of str
        Names of lanes.
    workers : iterable of str
        Identities, at least one.

    Returns
    -------
    dict
        The worker of each lane. Each worker has as many lanes as any other, or one more.

    Raises
    ------
    ValueError
        If there is no worker.

    Notes
    -----
    Rendezvous hashing (Thaler and Ravishankar, 1998) with a bound: of all pairs of a lane and a worker, the one with
    the highest hash is taken first, unless the lane is taken or the worker has its number. If a worker joins, 1.3 to
    1.6 times as many lanes move as must, in the mean. On a hash ring with bounded loads, 2.1 to 4.6 times as many
    move, and some workers have more than the bound says, since that grows with the lanes that are placed.

    Pure: all that know the same workers come to the same result. O(lanes * workers * log).
    """
    present = sorted(set(workers))
    if not present:
        raise ValueError("lanes can be divided among one or more workers, got none")
    least, larger = divmod(len(lanes), len(present))
    pairs = sorted(((xxh64(f"{worker}/{lane}"), lane, worker) for lane in lanes for worker in present), reverse=True)
    counts = dict.fromkeys(present, 0)
    found: dict[str, str] = {}
    for _hash, lane, worker in pairs:
        if lane in found or counts[worker] > least or (counts[worker] == least and not larger):
            continue
        larger -= counts[worker] == least
        counts[worker] += 1
        found[lane] = worker
    return found


class Registry(enum.Enum):
    """The registry of the lanes, as a worker has it."""

    JOINING = enum.auto()  # connected, and the others have not had the time to answer
    JOINED = enum.auto()
    LOST = enum.auto()


class Members:
    """The workers that a worker knows, and which lanes it is to consume.

    Parameters
    ----------
    own : str
        Identity of this worker; no other has it.
    lanes : sequence of str
        All lanes.
    now : float
        Seconds, on the clock of all other calls.

    Notes
    -----
    A worker begins with all lanes: while the others have not answered, it is a standby. Once it knows them, it consumes
    those lanes that `divide` gives it. Workers with different views may consume the same lane, and the broker delivers
    it to one of them; a lane that none consumes is taken by its worker as soon as that has the view of the others.

    Without the registry a worker keeps its lanes; after `ALONE` seconds it consumes all of them, since it would not
    hear of a worker that is gone.

    Pure: the caller passes the time, and does what follows. O(workers) a call, `lanes_at` O(lanes * workers) if these
    have changed. For one thread.
    """

    def __init__(self, own: str, lanes: Sequence[str], now: float) -> None:
        self.own = own
        self._all = frozenset(lanes)
        self._lanes = self._all
        self._heard: dict[str, float] = {}
        self._registry = Registry.LOST
        self._since = now
        self._first_wait = FIRST_WAIT
        self._present: frozenset[str] = frozenset()

    @property
    def present(self) -> frozenset[str]:
        """The workers among which the lanes were divided last; empty: not yet."""
        return self._present

    def joined(self, now: float) -> None:
        """Note that this worker hears what the others say, from now on."""
        self._registry, self._since = Registry.JOINING, now
        self._first_wait = LOST if self._present else FIRST_WAIT

    def lost(self, now: float) -> None:
        """Note that this worker hears nothing any more."""
        if self._registry is not Registry.LOST:
            self._registry, self._since = Registry.LOST, now
            self._heard.clear()

    def here(self, worker: str, now: float) -> bool:
        """Note that a worker is here; return whether it is another one that was not known, and should hear of this."""
        if worker == self.own:
            return False
        known = worker in self._heard
        self._heard[worker] = now
        return not known

    def bye(self, worker: str) -> None:
        """Note that a worker leaves."""
        self._heard.pop(worker, None)

    def lanes_at(self, now: float) -> frozenset[str]:
        """Return the lanes that this worker is to consume."""
        if self._registry is Registry.LOST:
            if now - self._since >= ALONE:
                self._lanes, self._present = self._all, frozenset()
            return self._lanes
        self._heard = {worker: heard for worker, heard in self._heard.items() if now - heard < LOST}
        if self._registry is Registry.JOINING and now - self._since < self._first_wait:
            return self._lanes
        self._registry = Registry.JOINED
        present = frozenset({self.own, *self._heard})
        if present != self._present:
            self._present = present
            owner = divide(sorted(self._all), present)
            self._lanes = frozenset(lane for lane, worker in owner.items() if worker == self.own)
        return self._lanes

    def wait(self, now: float) -> float:
        """Return the seconds until `lanes_at` may differ although nothing is heard; infinite if it cannot."""
        if self._registry is Registry.LOST:
            return max(0.0, self._since + ALONE - now) if self._lanes != self._all else float("inf")
        due = [heard + LOST - now for heard in self._heard.values()]
        if self._registry is Registry.JOINING:
            due.append(self._since + self._first_wait - now)
        return max(0.0, min(due, default=float("inf")))
