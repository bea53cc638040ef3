"""Connections served by a pool of I/O threads, from a queue's notification to a pull.

Called by the tests' probes only: the embedded broker is to stand on it. Read chain.pxd first (the whole way, who may
touch what, and lifetimes), then target.pxd, session.pxd, connection.pxd, scheduler.pxd; workset.pxd and runqueue.pxd
are the two kinds of sets it uses.
"""
