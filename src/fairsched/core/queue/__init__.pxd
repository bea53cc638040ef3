"""A queue whose consumers pull. Compiled into `_pullqueue`.

Read queue.pxd first: how to use it, why nothing is lost, and how a message is put. Then

    state         what a queue is made of, and its lock
    pull          taking messages; settle: what becomes of them; members: how consumers come and go
    wake          who is told of what; question: which filters are asked before
    order/        the order of service; turn: whose it is in a fair queue where consumers see only some messages
    next, cursor  what is next for a consumer; late: what a browser has gone past
    message       one message, and the memory of many; heap: those that came back, or are held, first served first
    groups, keymap; overflow, ring; time; credit, consumercredit; answers
                  message groups and keys; limits; time to live and delays; credit; what filters have said
"""
