"""Speaking AMQP 0-9-1 as a client: addresses, errors, properties, and pika's connection with faster deliveries.

Nothing here knows of consumers, Spark or the command line, which all connect through this. In the order of reading:
`urls`, `errors`, `backoff`, `transport`, `session` (a connection that its caller drives), `properties`, `fieldtables`.
"""
