"""An AMQP 0-9-1 client: addresses, errors, properties, and pika's connection with faster deliveries.

Consumers, publishers, Spark and the command line connect through this package, which does not depend on them. Read in
this order: `urls`, `errors`, `backoff`, `transport`, `connection` (reconnects), `session` (a connection that its caller
drives), `properties`, `fieldtables`.
"""
