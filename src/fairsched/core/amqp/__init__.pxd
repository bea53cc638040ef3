"""AMQP 0-9-1: one codec for clients and for the broker. Compiled into `_amqp`, `_delivery` and `_broker`.

constants.pxd has the numbers, octets.pxd what reads and writes octets. A client: frames.pxd (deliveries in the bytes of
a connection), then contents.pxd (the properties in a content header) with tables.pxd (one header among them),
ackledger.pxd (which frames settle exactly what was processed) and settlements.pxd (the bytes of these); publish.pxd has
messages on their way out, and their confirms. A broker: frames.pxd (any frame), methods.pxd (those of a client read,
its own written), tables.pxd (arguments and headers) and contents.pxd (a header rewritten).
"""
