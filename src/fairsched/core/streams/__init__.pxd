"""RabbitMQ's streams as their own protocol has them: from chunks to records, and these as AMQP 0-9-1 shows them.

Read in this order: `chunk` (entries of a chunk), `values` (types of AMQP 1.0), `sections` (parts of a message),
`headers`, and `basic`, which writes a message as RabbitMQ delivers it over AMQP 0-9-1.
"""
