"""Brokers, links and consumers in virtual time. Compiled into `_simulator`.

Read loop.pxd first: the event loop. Then model.pxd (the data structures), broker.pxd and queue.pxd (the brokers' side),
client.pxd (the consumers' side), traffic.pxd and link.pxd (the network), messages.pxd (messages in flight),
presence.pxd and changes.pxd (changes at given times), arrivals.pxd, variate.pxd and xoshiro.pxd (random numbers),
eventtree.pxd and sources.pxd (the event queue), setup.pxd (memory).
"""
