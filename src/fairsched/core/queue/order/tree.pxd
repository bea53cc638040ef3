"""The place of a message in a sorted queue: a treap over the messages that are linked.

Source: C. Aragon, R. Seidel, Randomized search trees (1989). The links are in the messages; `weight` is drawn when a
message is inserted, and not 0. Equal keys stand in the order of arrival.

Thread safety: none; the caller synchronizes. Complexity: O(log n) comparisons of keys, expected.
"""

from libc.stdint cimport uint32_t

from fairsched.core.queue.message cimport Message, message_before

cdef inline uint32_t tree_weight(uint32_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers (xorshift, G. Marsaglia), from a state that is not 0."""
    state[0] ^= state[0] << 13
    state[0] ^= state[0] >> 17
    state[0] ^= state[0] << 5
    return state[0]

cdef inline Message* tree_insert(Message** root, Message* m) noexcept nogil:
    """Insert a message that has a weight; the one it stands behind, or NULL."""
    cdef Message** link = root
    cdef Message** left = &m.left
    cdef Message** right = &m.right
    cdef Message* before = NULL
    cdef Message* rest
    while link[0] != NULL and link[0].weight >= m.weight:
        if message_before(link[0], m):
            before = link[0]
            link = &link[0].right
        else:
            link = &link[0].left
    rest = link[0]
    link[0] = m
    while rest != NULL:  # split what was below into what comes before m, and after
        if message_before(rest, m):
            before = rest
            left[0] = rest
            left = &rest.right
            rest = rest.right
        else:
            right[0] = rest
            right = &rest.left
            rest = rest.left
    left[0] = right[0] = NULL
    return before

cdef inline void tree_remove(Message** root, Message* m) noexcept nogil:
    cdef Message** link = root
    cdef Message* left = m.left
    cdef Message* right = m.right
    while link[0] != m:
        link = &link[0].right if message_before(link[0], m) else &link[0].left
    while left != NULL and right != NULL:
        if left.weight >= right.weight:
            link[0] = left
            link = &left.right
            left = left.right
        else:
            link[0] = right
            link = &right.left
            right = right.left
    link[0] = left if left != NULL else right
    m.left = m.right = NULL
