"""Topic exchanges: a message goes along the bindings whose pattern matches one of its keys.

Source: AMQP 0-9-1, section 3.1.3.3; the patterns are a tree (topictree.pxd).
Thread safety: none; the caller synchronizes. Complexity: that of topictree.pxd, and O(destinations).
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from fairsched.core.broker.exchanges.peers cimport peers_add, peers_remove, peers_route
from fairsched.core.broker.exchanges.state cimport Binding, Exchange, Route
from fairsched.core.broker.exchanges.topictree cimport (
    TopicNode, Topics, topics_clear, topics_init, topics_obtain, topics_release, topics_walk,
)

# An exchange's `own` is its tree, a binding's `own` the node where its key ends.

cdef inline bint topic_begin(Exchange* x) noexcept nogil:
    x.own = calloc(1, sizeof(Topics))
    if x.own != NULL:
        topics_init(<Topics*> x.own)
    return x.own != NULL

cdef inline void topic_end(Exchange* x) noexcept nogil:
    topics_clear(<Topics*> x.own)
    free(x.own)

cdef inline bint topic_add(Binding* b) noexcept nogil:
    cdef TopicNode* node = topics_obtain(<Topics*> b.source.own, b.key)
    b.own = node
    if node != NULL:
        peers_add(<Binding**> &node.bindings, b)
    return node != NULL

cdef inline void topic_remove(Binding* b) noexcept nogil:
    cdef TopicNode* node = <TopicNode*> b.own
    peers_remove(<Binding**> &node.bindings, b)
    topics_release(<Topics*> b.source.own, node)

cdef inline void topic_route(Route* r, const Exchange* x) noexcept nogil:
    cdef int64_t i, node
    for i in range(r.key_count):
        if not topics_walk(<const Topics*> x.own, r.keys[i], &r.walk):
            r.failed = True
            return
        for node in range(r.walk.nodes.count):
            peers_route(r, <const Binding*> (<TopicNode*> r.walk.nodes.at[node]).bindings)
