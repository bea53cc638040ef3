"""Calling a handler for a message, and what becomes of the message then.

In the order of reading: `workers` (the threads that call handlers), `handler_thread` (the same for plain functions of
the asyncio consumer), `around` (what is called round a handler), of this `decoding` and `time_limit`; `failures`
(what becomes of a message when its handler returns or raises), `retries` (copies that wait in queues of the broker).
"""
