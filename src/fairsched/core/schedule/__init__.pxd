"""Whose turn it is. Compiled into `_core` and `_fairqueue`, the fair order of `_pullqueue`, and the simulator.

Read dwrr.pxd first: the algorithm. Then anticipation.pxd (waiting for a slot that is empty here and backlogged
upstream), limits.pxd (slots that take no turns for a while), sparse.pxd and bands.pxd (slots that go before others),
subkeys.pxd (how a slot's turns are divided), slots.pxd (the slots and the circular list of those with work),
entrypool.pxd (the memory of what is queued), names.pxd (which slot has which name) and amount.pxd (how large quanta and
costs may be).
"""
