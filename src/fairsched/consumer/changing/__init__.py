"""Queues that come and go while a consumer runs.

In the order of reading: `queue_changes` (their channels), `uninterrupted` (a change that nothing leaves half done),
`queue_watcher` (a source of queues), `functions_made_anew` (whether a source gives a queue that differs).
"""
