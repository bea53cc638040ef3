"""Durability: what survives a restart. Compiled into `_broker`; journal.pxd into `_journal` as well.

Read keeping.pxd first: which records there are, and when they are dropped. Then journal.pxd (writing records to disk)
and recovery.pxd (what is restored at the next start).
"""
