"""The engine: one algorithm, one header, in folders by concept. Headers know C only, and raise nothing.

    schedule      whose turn it is: deficit weighted round robin
    delay         how long messages wait: CoDel, estimates, histograms
    hashing       where keys go: rings, jump hash, RabbitMQ's hash
    amqp          deliveries and acknowledgements of AMQP 0-9-1
    waiting       who waits for work, and whom to wake; lists without locks, and their memory
    queue         a queue whose consumers pull (over waiting; over schedule, where it is fair)
    connection    connections served by a pool of I/O threads (over queue)
    broker        an AMQP broker (over amqp, connection and queue)
    simulation    brokers, links and consumers in virtual time (over schedule and delay)

atomics.pxd is what all of the concurrent ones share; memory.pxd has arrays that grow and what is done for the sake of
caches, chains.pxd the hash table, arrowdata.pxd the structures of Arrow, arrowexport.pxd the making of them. Each
folder says in which order to read it.
"""
