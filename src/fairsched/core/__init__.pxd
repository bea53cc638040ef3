"""The engine: one header per algorithm, in folders by concept. Headers use C only, and raise no exceptions.

    schedule      whose turn it is: deficit weighted round robin
    delay         how long messages wait: CoDel, estimates, histograms
    hashing       which bucket a key belongs to: rings, jump hash, RabbitMQ's hash
    amqp          deliveries and acknowledgements of AMQP 0-9-1
    streams       chunks of RabbitMQ's streams, and their messages as AMQP 0-9-1 delivers them (over amqp)
    waiting       which consumers wait for work, and which to wake; lock-free lists, and their memory
    queue         a queue whose consumers pull (over waiting; over schedule, where it is fair)
    connection    connections served by a pool of I/O threads (over queue)
    broker        an AMQP broker (over amqp, connection and queue)
    simulation    brokers, links and consumers in virtual time (over schedule and delay)

All concurrent headers use atomics.pxd; memory.pxd has growing arrays and cache alignment, chains.pxd a hash table,
arrowdata.pxd the structures of Arrow, and arrowexport.pxd creates them. The `__init__.pxd` of each folder lists its
headers in the order of reading.
"""
