"""A queue whose consumers pull. Compiled into `_pullqueue`.

Read queue.pxd first: how to use it, why nothing is lost, and how a message is put. Then

    state         the data structures of a queue, and its lock
    pull          takes messages; settle: settles them; members: adds and removes consumers
    wake          which consumers to notify; work: what a consumer may take; question: which filters to evaluate first
    order/        the order of service; turn: turns in a fair queue whose consumers see only some of the messages
    next, cursor  the next message for a consumer; late: messages behind a browser's cursor; yields: messages that it
                  goes past because they are for a higher priority
    message       one message, and the memory of all; heap: heaps of returned and of held messages
    groups, keymap; overflow, ring; time; credit, consumercredit; answers
                  message groups and keys; limits; time to live and delays; credit; results of filters
"""
