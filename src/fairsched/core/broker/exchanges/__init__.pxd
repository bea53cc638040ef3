"""Exchanges, bindings and routing of a virtual host. Compiled into `_broker`, and into a probe.

Nothing here depends on connections. Read state.pxd first: the objects. Then

    declare, bind   declare, delete, bind, unbind by name, with RabbitMQ's refusals
    exchanges       exchanges and queues: added, removed; bindings: the same
    routing         from a message to queues

    types           the table of exchange types. One file each: direct, fanout, topic, headers, consistenthash. They use
                    topictree, buckets, peers (bindings of one key), reach (destinations), textarguments

    fields          fields of a table by name; names, growing: tables by name, vectors, sets of small numbers
"""
