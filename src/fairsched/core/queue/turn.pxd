"""Turns of a fair queue where cursors matter: for a consumer that may not have everything, slots without
anything for it are passed over, and the others take turns as in schedule/dwrr.pxd, each with its first message for it
in front.

What a consumer does not want is noted in the message (as rejected by it), filters' refusals too, and what it yields to
those above (yields.pxd), since there is no cursor that could go past it: the order of service is not the order of
arrival. When it goes, so do its notes (members.pxd). Whether a message is another's is found out when a look has
arrived at it, so a slot's first message counts in the looks before that.

A look grants nothing, however it ends: it says which message would come next, not how. Say that of `n` active slots the
one at place `p`, from 0, has a message for this consumer of cost `c`, a deficit `d` and the quantum `q`. Then it is
served after so many rounds, and the fewest rounds win, then the place:

    (0, 0)                         it is the first, has its quantum, and c <= d
    (ceil((c - d) / q), n)         it is the first, has its quantum, and c > d: its turn is over, it goes to the end
    (max(1, ceil((c - d) / q)), p) any other: it is granted its quantum when it is visited, and not before

Slots that only pay a debt are passed over: their turns serve no message. A consumer that takes the message, under the
same lock as the look, then has the turns granted (turn_reach) that lead to it. A filter is asked about one message
after another, until it is known which comes first, and which slots are granted turns on the way.

A slot that is passed over in its turn keeps what it has, and is granted its quantum anew when it is visited: as often
as consumers with different wishes take turns. So it keeps no more than schedule/dwrr.pxd's cap, and cannot save up.

While a filter refuses one message of a slot after another, the next to be asked about is looked for from there
(turn_further); so n questions about a slot are one walk over it, and the look that ends them another. What other slots
have in between is gone past only as far as that costs no more than a look.

Thread safety: under the queue's lock, all of it. Complexity: a look O(slots before the one it finds, and what stands in
each before the first that is wanted), if a quantum pays for the message found; else, for all slots with messages.
turn_reach likewise, for each round in which a slot pays off its debt. Nothing is noted when memory is exhausted.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t

from fairsched.core.queue.cursor cimport cursor_skip_group
from fairsched.core.queue.groups cimport groups_allow
from fairsched.core.queue.message cimport (
    HEAP_NONE, MESSAGE_AVAILABLE, Message, message_expired, message_reject, message_rejected,
)
from fairsched.core.queue.order.fair cimport fair_cost, fair_message
from fairsched.core.queue.state cimport Call, Queue, QueueConsumer, queue_accepts
from fairsched.core.schedule.amount cimport AMOUNT_MAX
from fairsched.core.schedule.dwrr cimport dwrr_end_turn, dwrr_grant, dwrr_retire_first, dwrr_trim_deficit
from fairsched.core.schedule.entrypool cimport Entry
from fairsched.core.schedule.slots cimport Slot, SlotTable, slots_first

cdef inline int turn_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    """The answer of a consumer's filter about a message; a refusal is noted in that, so that it is not asked again."""
    cdef int answer = queue_accepts(call, c, m)
    if answer == 0 and not c.gone.load():
        c.refused = message_reject(m, c.id) or c.refused
    return answer

cdef inline Message* turn_further(Call* call, QueueConsumer* c) noexcept nogil:
    """The next message of the slot whose message a consumer has just refused, if its filter is to be asked about that.

    NULL: the next there is none, or nothing was refused. So a look past many that are refused does not begin with the
    first of the slot for each question; what came back before them meanwhile is met by the look that ends it.

    What stands in between may be other slots', any number of it. So it goes no further than a look from the beginning
    might have to.
    """
    cdef SlotTable* t = &call.queue.order.slots
    cdef Message* past = call.stand.refused
    cdef Message* m
    cdef uint64_t steps
    if past == NULL or call.stand.refuser != c.id or queue_accepts(call, c, past) != 0:
        return NULL
    if not message_rejected(past, c.id, c.epoch):
        turn_accepts(call, c, past)
    steps = t.active_count + t.slots[past.slot].pushed - t.slots[past.slot].served
    m = past.next  # in the order of arrival, which is that of each slot
    while m != NULL and steps > 0:
        steps -= 1
        if m.slot == past.slot and m.state == <uint32_t> MESSAGE_AVAILABLE and m.heap == <uint8_t> HEAP_NONE:
            if message_expired(m, call.now):
                return NULL
            if groups_allow(&call.queue.groups, m, c.id) and not message_rejected(m, c.id, c.epoch):
                return m if turn_accepts(call, c, m) == -1 else NULL
        m = m.next
    return NULL

cdef inline Message* turn_wanted(Call* call, QueueConsumer* c, const Slot* slot, bint* known) noexcept nogil:
    """The first message of a slot that a consumer may have, or that has expired; NULL: there is none.

    `known` becomes False if its filter has not been asked about that.
    """
    cdef Queue* q = call.queue
    cdef Entry* entry = slot.head
    cdef Message* m
    cdef int answer
    while entry != NULL:
        m = fair_message(entry)
        if message_expired(m, call.now):
            return m
        if not groups_allow(&q.groups, m, c.id):
            cursor_skip_group(q, m)
        elif not message_rejected(m, c.id, c.epoch):
            answer = turn_accepts(call, c, m)
            if answer != 0:
                known[0] = known[0] and answer == 1
                return m
        entry = entry.next
    return NULL

cdef inline int64_t turn_rounds(const Slot* slot, const Message* m) noexcept nogil:
    """The number of quanta that a slot has to be granted before it serves that message; at least one."""
    cdef int64_t need = fair_cost(m) - slot.deficit
    return 1 if need <= slot.quantum else (need - 1) // slot.quantum + 1

cdef inline Message* turn_look(Call* call, QueueConsumer* c, bint* known) noexcept nogil:
    """The message that is next for a consumer; NULL: there is none. Nothing is granted, and nothing removed.

    `known` becomes False if it is one that its filter has to be asked about first.
    """
    cdef SlotTable* t = &call.queue.order.slots
    cdef uint32_t place, index = t.active_tail
    cdef int64_t rounds, fewest = INT64_MAX, after = INT64_MAX
    cdef Message* m
    cdef Message* found = NULL
    cdef Message* last = NULL  # that of the first slot, if its turn is over
    cdef Slot* slot
    for place in range(t.active_count):
        index = t.slots[index].next
        slot = &t.slots[index]
        m = turn_wanted(call, c, slot, known)
        if m == NULL:
            continue
        if not known[0] or (place == 0 and slot.granted and fair_cost(m) <= slot.deficit):
            return m
        rounds = turn_rounds(slot, m)
        if place == 0 and slot.granted:
            last = m
            after = rounds
        elif rounds < fewest:
            found = m
            fewest = rounds
        if fewest == 1:
            break
    return last if after < fewest else found

cdef inline void turn_skip_rounds(Call* call, QueueConsumer* c) noexcept nogil:
    """Grant, at once, the rounds in which no slot could serve this consumer or finish paying."""
    cdef SlotTable* t = &call.queue.order.slots
    cdef uint32_t index = t.active_tail
    cdef uint32_t _i
    cdef int64_t need, skipped = AMOUNT_MAX
    cdef bint known = True
    cdef Message* m
    cdef Slot* slot
    for _i in range(t.active_count):
        slot = &t.slots[index]
        m = turn_wanted(call, c, slot, &known)
        if m != NULL or slot.head == NULL:
            need = -slot.deficit if m == NULL else fair_cost(m) - slot.deficit
            skipped = min(skipped, (need - 1) // slot.quantum)
        index = slot.next
    for _i in range(t.active_count):
        slot = &t.slots[index]
        if skipped > 0 and (slot.head == NULL or turn_wanted(call, c, slot, &known) != NULL):
            slot.deficit += skipped * slot.quantum
        index = slot.next

cdef inline void turn_reach(Call* call, QueueConsumer* c) noexcept nogil:
    """Have the slots take turns until it is that of the message which a look has just found, and which is taken now."""
    cdef SlotTable* t = &call.queue.order.slots
    cdef uint32_t index, barren = 0
    cdef bint known = True
    cdef Slot* slot
    cdef Message* m
    while True:
        index = slots_first(t)
        slot = &t.slots[index]
        m = turn_wanted(call, c, slot, &known)
        if slot.head == NULL or m != NULL:
            dwrr_grant(slot)
            if slot.head == NULL and slot.deficit >= 0:
                dwrr_retire_first(t)
                barren = 0
                continue
            if m != NULL and fair_cost(m) <= slot.deficit:
                return
        else:
            dwrr_trim_deficit(t, slot)  # a turn that was cut short leaves no more than a slot may keep
        dwrr_end_turn(t, index)
        barren += 1
        if barren == t.active_count:
            turn_skip_rounds(call, c)
            barren = 0
