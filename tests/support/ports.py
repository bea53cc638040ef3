"""TCP ports of this machine for servers that tests start."""

from __future__ import annotations

import socket
import sys

#: Sockets that are bound to ports of this process and never listen, one for each port that `free_ports` returned.
_held: list[socket.socket] = []


def bound(port: int) -> socket.socket:
    """Return a socket that is bound to a port of 127.0.0.1 (0: to any); fail while a server listens there."""
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
    except OSError:
        one.close()
        raise
    return one


def free_ports(count: int) -> list[int]:
    """Return ports without a listener, all different, on which only servers of this process's tests will listen.

    On Linux, a socket that is bound with SO_REUSEADDR and does not listen keeps the system from giving its port to
    anyone who asks for any port, or connects; servers that ask for this port with SO_REUSEADDR, as most do, get it.
    So a server that starts late, or again, finds its port free, however many others are starting. Elsewhere such a
    socket would keep the server out, too.
    """
    sockets = [bound(0) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    if sys.platform == "linux":
        _held.extend(sockets)
    else:
        for one in sockets:
            one.close()
    return ports


def is_taken(port: int) -> bool:
    """Tell whether a server listens on a port of `free_ports`."""
    try:
        bound(port).close()
    except OSError:
        return True
    return False
