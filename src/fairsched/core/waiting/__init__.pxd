"""Consumers that wait for work, and which to wake. Compiled into `_waitingroom`, and `_pullqueue` under the queue.

Read interest.pxd first: the lists a consumer moves between. Then wakeup.pxd (which consumer to wake), node.pxd (a
consumer's state), membership.pxd (coming and going), levels.pxd (the priorities that have consumers), walk.pxd (going
over the lists), nodelist.pxd (one list), fetchahead.pxd (hints that make long lists quick) and reclaim.pxd (when memory
may be used again). A thread sleeps in parking.pxd; nodelistcheck.pxd has the invariants of a list, for tests.
"""
