"""The broker: AMQP 0-9-1 from sockets to queues, without Python. Compiled into `_broker`.

It stands on core/amqp (the codec), core/queue (the queues), and core/connection (whose turn it is). Read state.pxd
first: what there is, who may touch it, in which order things are locked, and how long they live. Then

    server        I/O threads, sockets, time; network: the system's calls; poller: waiting for sockets
    clients       a connection: frames, errors, what a pass does; handshake: how it begins
    channels      what becomes of deliveries, and how a channel ends; unacked: by delivery tag
    consumers     how messages are sent, and how consumers come and go
    publishing    how messages come in: routed, put, returned, confirmed; payload: their memory
    queues        a queue and its messages; visit: one call into it; arguments: what x-arguments say; keys: by what
                  a message is served
    deadletters   what left a queue unacknowledged; deathheader: what it is published with
    queuemethods  classes queue and exchange; basicmethods: basic, confirm, tx; replies: direct reply-to
    errors        codes and texts; generated: names that the broker makes; status: what is to be seen of it

    exchanges/    where messages go: exchanges, bindings, routing
    durability/   what outlives the process: a journal, and how it comes again

One message, from a publisher to a consumer:

    client_read ─▶ client_parse ─▶ on_basic_publish, on_header, on_body ─▶ channel_publish ─▶ route_publish ─▶
    brokerqueue_put ─▶ queue_put ─▶ visit_tell ─▶ target_notify        (the publisher's thread)
    connection_pass ─▶ session_process ─▶ consumer_pull ─▶ queue_pull ─▶ basic_deliver_write ─▶ client_write
                                                                       (the consumer's thread)
"""
