"""Speaking AMQP 0-9-1 as a client: addresses, errors, properties, and pika's connection with faster deliveries.

Nothing here knows of consumers, publishers, Spark or the command line, which all connect through this. In the order of
reading: `urls`, `errors`, `backoff`, `transport`, `connection` (lost and made again), `session` (one that its caller
drives), `properties`, `fieldtables`.
"""
