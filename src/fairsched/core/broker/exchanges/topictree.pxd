"""The binding keys of a topic exchange as a tree of words, and the walk of a routing key down that tree.

A key is split at its dots: "" has no words, "." has two empty ones. "*" in a binding key stands for one word, "#" for
any number, including none. The walk keeps the set of nodes that the words so far lead to. No node is in it twice, so
each word looks at each node at most once, however many "#" there are.

Source: AMQP 0-9-1, section 3.1.3.3, and the answers of RabbitMQ where it is silent (empty words).
Thread safety: none; the caller synchronizes. Threads may walk at the same time, each with its own `Walk`.
Complexity: O(words) to add and remove; a walk O(words * nodes reached), without "#" at most 2 to the words.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fairsched.core.amqp.octets cimport Text, text_is
from fairsched.core.broker.exchanges.growing cimport (
    Marks, Numbers, Pointers, marks_add, marks_begin, marks_clear, marks_init, numbers_clear, numbers_give,
    numbers_init, numbers_take, pointers_add, pointers_clear, pointers_init,
)
from fairsched.core.broker.exchanges.names cimport (
    NameEntry, Names, names_add, names_clear, names_find, names_find_hashed, names_hash, names_init, names_remove,
)

cdef struct TopicNode:
    TopicNode* parent
    TopicNode* star
    TopicNode* hash
    Names words              # other nodes below, by their word
    NameEntry* word          # its entry in `parent.words`; NULL: a star, a hash or the root
    void* bindings           # first of the bindings whose keys end here
    uint32_t number          # of a hash node

cdef struct Topics:
    TopicNode root
    Numbers hashes           # numbers of hash nodes

cdef struct Walk:
    Pointers nodes           # reached so far
    Pointers following
    Marks hashes             # hash nodes reached so far


# Words ----------------------------------------------------------------------------------------------------------------

cdef inline bint topics_word(Text* key, bint* ended, Text* word) noexcept nogil:
    """Take the next word of a key; False: there is none. `ended` starts as whether the key is empty."""
    cdef uint32_t length = 0
    if ended[0]:
        return False
    while length < key.length and key.data[length] != b'.':
        length += 1
    word[0] = Text(key.data, length)
    ended[0] = length == key.length
    if not ended[0]:
        key[0] = Text(key.data + length + 1, key.length - length - 1)
    return True


# The tree -------------------------------------------------------------------------------------------------------------

cdef inline void topics_init(Topics* t) noexcept nogil:
    t.root.parent = t.root.star = t.root.hash = NULL
    names_init(&t.root.words)
    t.root.word = NULL
    t.root.bindings = NULL
    numbers_init(&t.hashes)

cdef inline void topics_clear(Topics* t) noexcept nogil:
    """Free a tree that has no nodes but the root."""
    names_clear(&t.root.words)
    numbers_clear(&t.hashes)

cdef inline TopicNode* topics_make(Topics* t, TopicNode* parent, Text word) noexcept nogil:
    cdef TopicNode* node = <TopicNode*> calloc(1, sizeof(TopicNode))
    if node == NULL:
        return NULL
    node.parent = parent
    if text_is(word, "*"):
        parent.star = node
    elif text_is(word, "#"):
        if not numbers_take(&t.hashes, &node.number):
            free(node)
            return NULL
        parent.hash = node
    else:
        node.word = names_add(&parent.words, word, node)
        if node.word == NULL:
            free(node)
            return NULL
    return node

cdef inline TopicNode* topics_below(const TopicNode* node, Text word) noexcept nogil:
    cdef NameEntry* entry
    if text_is(word, "*"):
        return node.star
    if text_is(word, "#"):
        return node.hash
    entry = names_find(&node.words, word)
    return <TopicNode*> entry.value if entry != NULL else NULL

cdef inline void topics_release(Topics* t, TopicNode* node) noexcept nogil:
    """Free a node if it has neither bindings nor children; then likewise its ancestors."""
    cdef TopicNode* parent
    while node.parent != NULL and node.bindings == NULL and node.star == NULL and node.hash == NULL:
        if node.words.count:
            return
        parent = node.parent
        if node.word != NULL:
            names_remove(&parent.words, node.word)
        elif parent.star == node:
            parent.star = NULL
        else:
            parent.hash = NULL
            numbers_give(&t.hashes, node.number)
        free(node)
        node = parent

cdef inline TopicNode* topics_obtain(Topics* t, Text key) noexcept nogil:
    """Return the node where a binding key ends, and make it if it is missing; NULL: memory is exhausted."""
    cdef TopicNode* node = &t.root
    cdef TopicNode* below
    cdef Text word
    cdef bint ended = key.length == 0
    while topics_word(&key, &ended, &word):
        below = topics_below(node, word)
        if below == NULL:
            below = topics_make(t, node, word)
        if below == NULL:
            topics_release(t, node)
            return NULL
        node = below
    return node


# The walk -------------------------------------------------------------------------------------------------------------

cdef inline void walk_init(Walk* w) noexcept nogil:
    pointers_init(&w.nodes)
    pointers_init(&w.following)
    marks_init(&w.hashes)

cdef inline void walk_clear(Walk* w) noexcept nogil:
    pointers_clear(&w.nodes)
    pointers_clear(&w.following)
    marks_clear(&w.hashes)

cdef inline bint walk_reach(Walk* w, TopicNode* node) noexcept nogil:
    """Add a node, and the hash nodes below it, since # also stands for no word; False: memory is exhausted."""
    if not pointers_add(&w.following, node):
        return False
    while node.hash != NULL and marks_add(&w.hashes, node.hash.number):
        node = node.hash
        if not pointers_add(&w.following, node):
            return False
    return True

cdef inline bint walk_step(Walk* w, TopicNode* node, Text word, uint64_t hashed) noexcept nogil:
    """Follow a word from a node; False: memory is exhausted."""
    cdef NameEntry* entry = names_find_hashed(&node.words, word, hashed)
    if entry != NULL and not walk_reach(w, <TopicNode*> entry.value):
        return False
    if node.star != NULL and not walk_reach(w, node.star):
        return False
    if node.parent != NULL and node.parent.hash == node and marks_add(&w.hashes, node.number):
        return walk_reach(w, node)
    return True

cdef inline void walk_turn(Walk* w) noexcept nogil:
    """Continue the walk from the nodes just reached."""
    cdef Pointers nodes = w.nodes
    w.nodes = w.following
    w.following = nodes

cdef inline bint topics_walk(const Topics* t, Text key, Walk* w) noexcept nogil:
    """Find the nodes whose binding keys match a routing key, in `w.nodes`; False: memory is exhausted."""
    cdef Text word
    cdef uint64_t hashed
    cdef int64_t i
    cdef bint ended = key.length == 0
    w.following.count = 0
    if not marks_begin(&w.hashes, t.hashes.next) or not walk_reach(w, <TopicNode*> &t.root):
        return False
    walk_turn(w)
    while topics_word(&key, &ended, &word):
        w.following.count = 0
        marks_begin(&w.hashes, t.hashes.next)
        hashed = names_hash(word)
        for i in range(w.nodes.count):
            if not walk_step(w, <TopicNode*> w.nodes.at[i], word, hashed):
                return False
        walk_turn(w)
    return True
