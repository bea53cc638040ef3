"""Routing: the exchanges, bindings and queues of a virtual host. Compiled into `_broker`, and into a probe.

Nothing here depends on connections. Read exchanges.pxd first: declaring, binding, and errors. Then

    routing       from a message to queues
    topics        the tree of a topic exchange; headers: matching of a headers exchange; buckets: of a
                  consistent-hash exchange
    fields        what stands in a table; names, growing: tables by name, vectors, sets of small numbers
"""
