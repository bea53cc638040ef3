"""The source: reads queues and streams of RabbitMQ.

In the order of reading: `queues` (the driver plans a batch), `partition` (a task reads its part), `consuming` (from one
channel), `spool` (rows stored until their messages are acknowledged) and `columns` (from messages to rows); then
`streams` and `batch`, the other two readers.
"""
