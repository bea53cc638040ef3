"""Greenlets in place of threads, as monkey patches of gevent and eventlet make them: what waits there, and what cannot.

All greenlets run in one thread. A wait that keeps this thread, such as one on a semaphore, keeps all of them.
"""

from __future__ import annotations

import sys
import threading

__all__ = ["in_main_thread", "patched_by", "refuse"]


def patched_by() -> str | None:
    """Return "gevent" or "eventlet" if it has replaced threads by its greenlets in this process, or None.

    Notes
    -----
    O(1): two look-ups, since neither is imported here. Safe from any thread.
    """
    modules = sys.modules
    gevent = modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        return "gevent"
    eventlet = modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return "eventlet"
    return None


def in_main_thread() -> bool:
    """Return whether this is the main thread, in which alone handlers of signals can be installed.

    Notes
    -----
    After eventlet's monkey patch there are two objects for it, of two classes, which have only their name in common.
    O(1). Safe from any thread.
    """
    current, main = threading.current_thread(), threading.main_thread()
    return current is main or (patched_by() is not None and current.name == main.name)


def refuse(subject: str, remedy: str) -> None:
    """Raise RuntimeError where threads are greenlets, which something would block.

    Parameters
    ----------
    subject : str
        What needs threads.
    remedy : str
        What to do instead.

    Notes
    -----
    O(1). Safe from any thread.
    """
    found = patched_by()
    if found is not None:
        raise RuntimeError(f"{subject} threads, and {found} has replaced them by greenlets in this process: {remedy}")
