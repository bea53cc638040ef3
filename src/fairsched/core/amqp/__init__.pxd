"""AMQP 0-9-1 as a client needs it. Compiled into `_amqp` and `_delivery`.

Read frames.pxd first (deliveries in the bytes of a connection), then contents.pxd (the properties in a content header)
with tables.pxd (one header among them), ackledger.pxd (which frames settle exactly what was processed) and
settlements.pxd (the bytes of these); publish.pxd has messages on their way out, and their confirms.
"""
