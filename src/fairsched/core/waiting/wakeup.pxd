"""The consumer to wake: at most one per piece of work, of the highest priority, the one that has waited longest.

Source: Qpid Broker-J's AbstractQueue (notifyConsumer, noHigherPriorityWithCredit). What work is, and how a claimed
consumer is told, is the caller's. Where consumers of a queue may take different messages, core/queue/wake.pxd applies
the policy to each message.

Use. All calls are inside one pin. A claimed consumer is NOTIFIED; the thread that claimed it tells it.
    A thread that adds work, or makes some available again: 1. makes it visible 2. wakeup_one.
    A consumer that becomes interested (interest_add, interest_set, interest_done): 1. moves 2. checks for work: by a
        pull, or by wakeup_notify of its own node.
    A consumer that takes work: 1. wakeup_outranked 2. acquires.
    A consumer that is no longer interested (interest_set, interest_remove), or was notified and finds nothing it may
        take: 1. moves 2. acquires what it is still to get 3. if work is left, wakeup_one (hand-over). Before the first
        two steps the others would be judged by an outdated state: they would be outranked by a consumer that is full,
        and stay asleep. (Broker-J may stall so.)
`wants(context, node)` returns whether a consumer could take the work in question; NULL: every one could. For each
candidate it is called before it is called for the consumers that outrank that candidate, so it may note in the context
the work that it means for the candidate.

Why no work waits beside a sleeping consumer that could take it. Lists change by sequentially consistent steps, so there
is one order of them. Say that work was made visible (V), then a walk over Interested (R); that a consumer entered
Interested (E), then checked (L). Then E < R, and the walk meets it; or V < R < E < L, and its check meets the work. The
walk claims each consumer that it meets; or another thread has claimed it, and it checks after that; or it is outranked
by one found interested or notified. That one checks for work, or hands over, in a step after it was found: as it came
(its L), once it was notified, or as it left; and its hand-over is such a walk again.
What L reads has to be written so that V is a step in that order, too: by a sequentially consistent store or a
read-modify-write, or under a lock that L also takes. A plain or a release store may still be under way to memory when R
reads the lists, though V comes first in the program: R misses a consumer whose L then reads the old value, and the work
waits beside a sleeper. With the lock, either V had it before L, and is seen; or L before V, and then E < R. (A queue's
counters are release stores: so queue_offers, in queue/wake.pxd, takes its lock.)

  synchronization     any    X: needs external exclusion
  all                  -     pinned; higher and possible also without a pin, where no thread adds or removes meanwhile
Nothing waits; wakeup_notify and wakeup_one claim, which waits for a move of the same node.
A consumer on its way between Interested and Notified may be missed by wakeup_outranked with NULL: then one of lower
priority takes the work. With `wants` it is not missed: All is walked, and states are read. (A state is written with
release only; but the append that follows in the move is a step in the one order, and comes before the hand-over.)
When memory is exhausted no consumer can be claimed: NO_MEMORY, or NULL as though none were interested.
Complexity: with NULL O(priorities / 64), and one or two loads where no priority is higher. With `wants` O(interested)
and, for each candidate that wants the work, O(consumers of higher priority).
"""

from libc.stdint cimport int32_t, uint32_t

from fairsched.core.waiting.interest cimport MOVED, NOT_MOVED, Interest, interest_first, interest_notify
from fairsched.core.waiting.levels cimport (
    LEVEL_INTERESTED, LEVEL_NOTIFIED, LevelIndex, LevelTable, levels_next, levels_unmark,
)
from fairsched.core.waiting.node cimport ConsumerNode, READY, node_state
from fairsched.core.waiting.nodelist cimport nodelist_first
from fairsched.core.waiting.reclaim cimport Pin
from fairsched.core.waiting.walk cimport LIST_ALL, LIST_INTERESTED, InterestWalk, interestwalk_init, interestwalk_next

cdef enum:
    OUTRANKED = 2  # beside MOVED, NOT_MOVED and NO_MEMORY: not claimed, and consumers after it need not be asked

ctypedef bint (*Wants)(void* context, ConsumerNode* node) noexcept nogil

cdef inline bint wakeup_higher(Interest* m, int32_t priority) noexcept nogil:
    """False when no consumer of a higher priority is registered. For a look before wakeup_outranked, like the next."""
    cdef LevelTable* t = m.levels.load()
    return t.count != 0 and t.levels[0].priority > priority

cdef inline bint wakeup_possible(Interest* m) noexcept nogil:
    """False when no consumer is interested; True when one may be. A check before the work of a wake-up."""
    cdef LevelTable* t = m.levels.load()
    return t.count != 0 and levels_next(t, LEVEL_INTERESTED, 0) < t.count

cdef inline bint wakeup_listed(LevelTable* t, Pin* pin, LevelIndex which, int32_t priority) noexcept nogil:
    """True when a consumer above `priority` is in that list."""
    cdef uint32_t at = levels_next(t, which, 0)
    while at < t.count and t.levels[at].priority > priority:
        if nodelist_first(&t.levels[at].lists[<int> which], pin) != NULL:
            return True
        levels_unmark(t, pin, which, at)
        at = levels_next(t, which, at + 1)
    return False

cdef inline bint wakeup_wanted_above(
    Interest* m, Pin* pin, int32_t priority, Wants wants, void* context
) noexcept nogil:
    """True when a consumer above `priority`, interested or notified, wants the work."""
    cdef InterestWalk w
    cdef ConsumerNode* node
    interestwalk_init(&w, m, pin, LIST_ALL)
    node = interestwalk_next(&w)
    while node != NULL and node.priority > priority:
        if node.acquires and node_state(node) & READY and wants(context, node):
            return True
        node = interestwalk_next(&w)
    return False

cdef inline bint wakeup_outranked(Interest* m, Pin* pin, int32_t priority, Wants wants, void* context) noexcept nogil:
    """True when an acquiring consumer of a higher priority, interested or notified, is to have the work."""
    cdef LevelTable* t = m.levels.load()
    if not wakeup_higher(m, priority):
        return False
    if wants != NULL:
        return wakeup_wanted_above(m, pin, priority, wants, context)
    return wakeup_listed(t, pin, LEVEL_INTERESTED, priority) or wakeup_listed(t, pin, LEVEL_NOTIFIED, priority)

cdef inline int wakeup_notify(Interest* m, Pin* pin, ConsumerNode* node, Wants wants, void* context) noexcept nogil:
    """Claim this consumer if it is interested, wants the work and is not outranked: MOVED, it has to be told.

    A browser has to be told always, and is not asked.
    """
    if not node.acquires:
        return MOVED
    if wants != NULL and not wants(context, node):
        return NOT_MOVED
    if wakeup_outranked(m, pin, node.priority, wants, context):
        return OUTRANKED
    return interest_notify(m, pin, node)

cdef inline ConsumerNode* wakeup_one(Interest* m, Pin* pin, Wants wants, void* context) noexcept nogil:
    """Claim the first interested consumer that wants the work, by priority and then by age; it has to be told.

    NULL: no consumer wants it, or it is for one of a higher priority than those that do.
    """
    cdef ConsumerNode* node = interest_first(m, pin)
    cdef InterestWalk w
    cdef bint walking = False
    cdef int moved
    while node != NULL:
        moved = wakeup_notify(m, pin, node, wants, context)
        if moved != NOT_MOVED:
            return node if moved == MOVED else NULL
        if not walking:  # mostly the first is the one; a walk is set up for the others only, and meets it again
            interestwalk_init(&w, m, pin, LIST_INTERESTED)
            walking = True
        node = interestwalk_next(&w)
    return NULL
