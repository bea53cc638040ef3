"""Consumers that wait for work, and which to wake. Compiled into `_waitingroom`, and `_pullqueue` under the queue.

Read interest.pxd first: the lists a consumer moves between. Then wakeup.pxd (whom to wake), node.pxd (a consumer's
state), membership.pxd (coming and going), levels.pxd (the priorities that have consumers), walk.pxd (going over the
lists), nodelist.pxd (one list), fetchahead.pxd (what makes long ones quick) and reclaim.pxd (when memory may be used
again). parking.pxd is where a thread sleeps; nodelistcheck.pxd has the invariants of a list, for tests.
"""
