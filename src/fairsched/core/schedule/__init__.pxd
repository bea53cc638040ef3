"""Turns of slots. Compiled into `_core` and `_fairqueue`, the fair order of `_pullqueue`, and the simulator.

Read dwrr.pxd first: the algorithm. Then anticipation.pxd (waits for a slot that is empty but backlogged upstream),
limits.pxd and jointlimits.pxd (slots that take no turns for some time), sparse.pxd and bands.pxd (slots that are served
before others), branches.pxd (messages that are), subkeys.pxd (divides a slot's turns), slots.pxd (the slots and the
circular list of those with work), entrypool.pxd (memory of queued entries), names.pxd (finds a slot by name) and
amount.pxd (the largest quantum and cost).
"""
