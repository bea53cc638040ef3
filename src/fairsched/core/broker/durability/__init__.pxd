"""Durability: the contents that survive a restart. Compiled into `_broker`; journal.pxd into `_journal` as well.

Read keeping.pxd first: the records, and when they are dropped. Then journal.pxd (writing records to disk) and
recovery.pxd (restoring them at the next start).
"""
