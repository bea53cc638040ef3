"""Brokers, links and consumers in virtual time. Compiled into `_simulator`.

Read loop.pxd first: the event loop. Then model.pxd (the world), broker.pxd and queue.pxd (the brokers' side),
client.pxd (the consumers' side), traffic.pxd and link.pxd (what travels), messages.pxd (what is under way),
presence.pxd and changes.pxd (what changes at given times), arrivals.pxd, variate.pxd and xoshiro.pxd (chance),
eventtree.pxd and sources.pxd (the calendar), setup.pxd (memory).
"""
