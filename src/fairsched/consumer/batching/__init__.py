"""Messages that are taken and handled together.

In the order of reading: `batches` (a batch, and how its messages are settled), `pending_batch` (until it is full: how
long more messages are waited for), `arrow` (a batch as an Arrow record batch).
"""
