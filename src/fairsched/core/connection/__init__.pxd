"""Connections served by a pool of I/O threads, from a queue's notification to a pull.

Used by the embedded broker, and by probes of the tests. Read chain.pxd first (overview, which thread may access what,
lifetimes), then target.pxd, session.pxd, connection.pxd, scheduler.pxd; workset.pxd and runqueue.pxd are the two kinds
of sets they use.
"""
