"""Calling a handler for a message, and what becomes of the message then.

In the order of reading: `workers` (the threads that call handlers), `handler_thread` (the same for plain functions of
the asyncio consumer), `around` (what is called round a handler), of this `decoding` and `time_limit`; `failures`
(what becomes of a message when its handler returns or raises), `retries` (messages that failed wait at the broker),
`delayed_retries` (queues that delay them themselves), `redelivered` (before a message is handled again).
"""
