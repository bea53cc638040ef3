"""What outlives the process. Compiled into `_broker`; journal.pxd into `_journal` as well.

Read keeping.pxd first: which records there are, and when they are dropped. Then journal.pxd (records on their way to
disk) and recovery.pxd (what is found at the next start, and how it comes again).
"""
