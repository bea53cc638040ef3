"""Batches: messages that are handled together.

In the order of reading: `batches` (a batch, and how its messages are settled), `pending_batch` (the wait for a batch to
fill), `arrow` (a batch as an Arrow record batch), `batch_methods` (the methods of all consumers).
"""
