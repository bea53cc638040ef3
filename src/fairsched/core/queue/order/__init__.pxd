"""The order in which a queue serves its messages.

Read order.pxd first: every message in its place, and the kinds of queues. Then fair.pxd (slots, by deficit weighted
round robin) and tree.pxd (a sorted queue).
"""
