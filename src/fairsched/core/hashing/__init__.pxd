"""Where keys go. Compiled into `_routing`.

Read ring.pxd first: consistent hashing. Then jump.pxd (buckets without a table); phash2.pxd and exs1024.pxd (what
RabbitMQ's consistent-hash exchange does); xxh64.pxd (the hash of a key); keycolumn.pxd and arrow.pxd (many keys as they
lie in memory).
"""
