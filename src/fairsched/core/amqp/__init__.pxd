"""AMQP 0-9-1 on the receiving side. Compiled into `_amqp`.

Read frames.pxd first (deliveries in the bytes of a connection), then contents.pxd (the properties in a content header)
and ackledger.pxd (which frames settle exactly what was processed).
"""
