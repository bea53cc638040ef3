"""AMQP 0-9-1: one codec for clients and for the broker. Compiled into `_amqp`, `_delivery` and `_broker`.

constants.pxd has the numbers, octets.pxd reads and writes octets. For a client: frames.pxd (deliveries in the bytes of
a connection), then contents.pxd (the properties in a content header) with tables.pxd (one header among them),
ackledger.pxd (which frames settle exactly the processed messages) and settlements.pxd (the bytes of these frames);
publish.pxd has published messages and their confirms. For a broker: frames.pxd (any frame), methods.pxd (reads a
client's methods, writes its own), tables.pxd (arguments and headers) and contents.pxd (rewrites a content header).
"""
