"""The embedded broker: AMQP 0-9-1 from sockets to queues, without Python. Compiled into `_broker`.

It uses core/amqp (the codec), core/queue (the queues), and core/connection (scheduling). Read state.pxd first: the
objects, which thread may access them, the order of locks, and lifetimes. Then

    server        I/O threads, sockets, timers; network: system calls; poller: waits for sockets
    connections   a client's connection: frames, errors, a pass; handshake: its opening
    channels      settlements, and the closing of a channel; unacked: deliveries by delivery tag
    consumers     subscribing, sending messages, cancelling
    publishing    incoming messages: routed, put, returned, confirmed; payload: their memory
    arguments     the table of x-arguments of queues
    queues        a queue and its messages; queuecall: one call into core/queue; keys: the key by which a message is
                  served
    deadletters   messages that left a queue unacknowledged; deathheader: their headers
    replies       direct reply-to
    errors        codes and texts; generated: generated names; status: the figures of the status page

    methods/      the methods of AMQP, by class: basic, queue, exchange
    exchanges/    exchanges, bindings, routing; types: the table of exchange types
    durability/   durable contents: a journal, and recovery

One message, from a publisher to a consumer:

    brokerconnection_read ─▶ brokerconnection_parse ─▶ on_basic_publish, on_header, on_body ─▶ channel_publish ─▶
    route_publish ─▶ brokerqueue_put ─▶ queue_put ─▶ queuecall_tell ─▶ target_notify        (the publisher's thread)
    connection_pass ─▶ session_process ─▶ consumer_pull ─▶ queue_pull ─▶ basic_deliver_write ─▶
    brokerconnection_write
                                                                       (the consumer's thread)
"""
