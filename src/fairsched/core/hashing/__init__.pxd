"""Hashing: the bucket that a key belongs to. Compiled into `_routing`.

Read ring.pxd first: consistent hashing. Then jump.pxd (buckets without a table); phash2.pxd and exs1024.pxd (RabbitMQ's
consistent-hash exchange); xxh64.pxd (the hash of a key); keycolumn.pxd and arrow.pxd (columns of keys in memory).
"""
