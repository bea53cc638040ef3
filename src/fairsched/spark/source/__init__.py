"""Reading queues and streams of RabbitMQ.

Read `queues` (a batch is planned on the driver), `partition` (and read by a task), `consuming` (over one channel),
`spool` (what is kept until it is acknowledged) and `rows` (what becomes of a message); then `streams` and `batch`, the
other two readers.
"""
