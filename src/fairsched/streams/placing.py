"""A connection to a node that has a stream: consumers need its leader or a replica, publishers its leader.

Brokers tell where a stream is by the hosts and ports that they advertise. A client may be unable to reach these, such
as from outside of a Kubernetes cluster: then it connects to the URL, a load balancer, until it is on the right node.
"""

from __future__ import annotations

import random

from fairsched.errors import ConnectionFailed, QueueNotFound
from fairsched.streams.connection import Place, StreamConnection

#: Connections to a load balancer until one leads to the right node: of three nodes one fails with probability 0.0003.
_ATTEMPTS = 20


def connect_to(
    url: str, stream: str, *, leader: bool = False, timeout: float = 10.0, heartbeat: int = 60
) -> StreamConnection:
    """Connect to a node that has a stream.

    Parameters
    ----------
    url : str
        Of any node of the cluster, or of a load balancer before it; see `StreamConnection`.
    stream : str
        Its name.
    leader : bool
        Whether to publish: only the leader takes messages.
    timeout : float
        Longest time to connect, and for each answer, in seconds.
    heartbeat : int
        Seconds; 0 switches heartbeats off.

    Returns
    -------
    StreamConnection
        Open.

    Raises
    ------
    QueueNotFound
        There is no such stream.
    ConnectionFailed
        No node that has the stream was reached, or no leader is there at the moment.

    Notes
    -----
    Takes one connection where the first node has the stream, two where the advertised host of another can be reached,
    and otherwise up to 21. Safe from any thread.
    """
    connection = StreamConnection(url, timeout=timeout, heartbeat=heartbeat).open()
    try:
        nodes = _nodes(connection, stream, leader)
        if _is_on(connection, nodes):
            return connection
        for host, port in nodes:
            other = StreamConnection(url, timeout=timeout, heartbeat=heartbeat)
            try:
                other.open(host, port)
            except ConnectionFailed:
                continue
            if _is_on(other, [(host, port)]):
                connection.close()
                return other
            other.close()
        for _ in range(_ATTEMPTS):
            connection.close()
            connection.open()
            if _is_on(connection, nodes):
                return connection
    except BaseException:
        connection.drop()
        raise
    connection.close()
    where = ", ".join(f"{host}:{port}" for host, port in nodes)
    raise ConnectionFailed(
        f"{connection.address}: none of the nodes with stream {stream!r} was reached: not by their advertised "
        f"addresses ({where}), nor by {_ATTEMPTS} connections to this one"
    )


def _nodes(connection: StreamConnection, stream: str, leader: bool) -> list[tuple[str, int]]:
    place: Place | None = connection.metadata([stream]).get(stream)
    if place is None:
        raise QueueNotFound(f"{connection.address}: there is no stream {stream!r}")
    if leader:
        nodes = [place.leader] if place.leader is not None else []
    else:
        # Replicas first: they have less to do than the leader.
        nodes = random.sample(place.replicas, len(place.replicas)) + ([place.leader] if place.leader else [])
    if not nodes:
        raise ConnectionFailed(f"{connection.address}: stream {stream!r} has no leader at the moment")
    return nodes


def _is_on(connection: StreamConnection, nodes: list[tuple[str, int]]) -> bool:
    """Whether this is one of the nodes; a broker that does not tell who it is, is the only one."""
    return connection.advertised is None or connection.advertised in nodes
