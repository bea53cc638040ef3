"""The pull queue for stress tests and benchmarks: producers and consumers without the GIL, and its invariants."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libcpp.atomic cimport atomic

from fairsched.core.atomics cimport spin_wait
from fairsched.core.queue.answers cimport (
    Answers, answers_add, answers_clear, answers_find, answers_init, answers_reserve,
)
from fairsched.core.queue.consumercredit cimport consumer_set_credit
from fairsched.core.queue.groups cimport Grouping
from fairsched.core.queue.members cimport consumer_init, queue_cancel, queue_set_wish, queue_subscribe
from fairsched.core.queue.message cimport Late, Message, Rejection
from fairsched.core.queue.order.order cimport KIND_FAIR, Kind, order_after
from fairsched.core.queue.pull cimport PULL_ASK, queue_pull
from fairsched.core.queue.question cimport queue_question
from fairsched.core.queue.queue cimport PUT_DONE, Offer, queue_clear, queue_init, queue_put
from fairsched.core.queue.settle cimport SETTLE_ACK, SETTLE_REJECT, SETTLE_RELEASE, Verdict, queue_settle
from fairsched.core.queue.state cimport WISH_USER, Call, Pulled, Queue, QueueConsumer, call_init, queue_forget
from fairsched.core.queue.wake cimport queue_offer
from fairsched.core.queue.work cimport Question, queue_drop
from fairsched.core.schedule.slots cimport slots_add
from fairsched.core.waiting.interest cimport interest_enter, interest_leave
from fairsched.core.waiting.node cimport node_retire
from fairsched.core.waiting.reclaim cimport Garbage, Pin, reclaim_flush
from fairsched.core.waiting.walk cimport InterestList, interest_count, interest_size, interest_valid
from fairsched.pullqueue._pullqueue cimport PullQueue

cdef extern from *:
    """
    #include <chrono>
    static int64_t now_ns() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
            std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    """
    int64_t now_ns() noexcept nogil
    void* aligned_alloc(size_t alignment, size_t size) noexcept nogil

cdef enum:
    BATCH = 8

#: Consumers whose memory was freed since the module was loaded.
cdef atomic[int64_t] disposals


cdef void consumer_free(Garbage* garbage, Pin* pin) noexcept nogil:
    disposals.fetch_add(1)
    free(garbage)


cdef inline uint64_t draw(uint64_t* state) noexcept nogil:
    """The next of a sequence of pseudo-random numbers, 31 bits wide."""
    state[0] = state[0] * 6364136223846793005ULL + 1442695040888963407ULL
    return state[0] >> 33


cdef inline void begin(Call* call, Queue* q) noexcept nogil:
    call_init(call, q, 0)
    call.pin = interest_enter(&q.interest)


cdef inline void end(Call* call) noexcept nogil:
    interest_leave(call.pin)
    queue_forget(call.queue, call)


cdef struct Asking:  # a call whose filters refuse everything, and what it costs
    Call call         # must be first
    Answers answers
    int64_t asked     # filters that were asked
    int64_t looked    # how often the engine wanted to know what one had said


cdef int asking_accepts(Call* call, QueueConsumer* c, Message* m) noexcept nogil:
    cdef Asking* a = <Asking*> call
    a.looked += 1
    return answers_find(&a.answers, c.id, m)


cdef void asking_begin(Asking* a, Queue* q) noexcept nogil:
    begin(&a.call, q)
    answers_init(&a.answers)
    a.call.accepts = asking_accepts
    a.asked = a.looked = 0


cdef void asking_refuse(Asking* a, Question* question) noexcept nogil:
    """Have the filter refuse."""
    a.asked += 1
    answers_reserve(&a.answers)
    answers_add(&a.answers, question.consumer.id, question.message, False)
    a.call.stand.refuser = question.consumer.id
    a.call.stand.refused = question.message


cdef void asking_end(Asking* a) noexcept nogil:
    cdef uint64_t i
    end(&a.call)
    for i in range(a.answers.size):
        if a.answers.table[i].message != NULL:
            queue_drop(a.call.queue, a.answers.table[i].message)
    answers_clear(&a.answers)


def disposed():
    """How many cancelled consumers have been disposed of so far, in all queues."""
    return disposals.load()


def consumer_bytes():
    """What a consumer takes in the engine: its own memory, and two list entries."""
    return sizeof(QueueConsumer) + 2 * 32


def kept(PullQueue queue):
    """What a pull queue's messages keep: the number in memory, what browsers see, and which consumers refused."""
    cdef Queue* q = &queue.memory.queue
    cdef int64_t late = 0, notes = 0
    cdef Message* m = order_after(&q.order, NULL)
    cdef Late* each
    cdef Rejection* note
    while m != NULL:
        each = m.late
        while each != NULL:
            late += 1
            each = each.next
        note = m.rejections
        while note != NULL:
            notes += 1
            note = note.next
        m = order_after(&q.order, m)
    return {"messages": q.pool.used, "late": late, "notes": notes}


cdef class ProbeQueue:
    """A queue whose messages are the numbers from 1, and which counts how often each was acknowledged."""

    cdef Queue* q
    cdef atomic[uint8_t]* acked
    cdef int64_t total
    cdef atomic[int64_t] done       # messages acknowledged
    cdef atomic[int64_t] waves      # notifications
    cdef QueueConsumer** kept       # consumers that idle
    cdef int64_t kept_count
    cdef int64_t kept_size

    def __cinit__(self, int kind=0, int64_t total=0, uint32_t levels=1, int groups=0):
        self.q = <Queue*> calloc(1, sizeof(Queue))
        if self.q == NULL or not queue_init(self.q, <Kind> kind, levels, <Grouping> groups, 100):
            raise MemoryError
        if kind == KIND_FAIR:
            for quantum in (1, 2, 5):
                slots_add(&self.q.order.slots, quantum, False)
        self.total = total
        self.acked = <atomic[uint8_t]*> calloc(total + 1, 1)

    def __dealloc__(self):
        cdef int64_t i
        queue_clear(self.q)
        for i in range(self.kept_count):
            free(self.kept[i])
        free(self.kept)
        free(self.acked)
        free(self.q)

    cdef QueueConsumer* join(
        self, int32_t priority, int64_t credit, bint walks, bint wished, bint acquires=True
    ) noexcept nogil:
        """Make a consumer and subscribe it."""
        cdef QueueConsumer* c = <QueueConsumer*> aligned_alloc(
            64, (sizeof(QueueConsumer) + 63) & ~<size_t> 63
        )
        cdef Call call
        consumer_init(c, priority, acquires)
        c.filtered = walks  # the filter is not asked, so that it accepts all: it has a cursor
        if not wished:
            c.wishes.fetch_and(~<uint32_t> WISH_USER)
        consumer_set_credit(c, credit)
        begin(&call, self.q)
        queue_subscribe(&call, c)
        end(&call)
        return c

    cdef void quit(self, QueueConsumer* c) noexcept nogil:
        cdef Call call
        begin(&call, self.q)
        queue_cancel(&call, c)
        node_retire(call.pin, &c.node, consumer_free)
        end(&call)

    cdef void wish(self, QueueConsumer* c, bint wished) noexcept nogil:
        cdef Call call
        begin(&call, self.q)
        queue_set_wish(&call, c, WISH_USER, wished)
        end(&call)

    cdef int64_t pull(self, QueueConsumer* c, int64_t limit, Pulled* out) noexcept nogil:
        cdef Call call
        cdef Question question
        cdef int64_t taken
        begin(&call, self.q)
        taken = queue_pull(&call, c, limit, out, &question)
        end(&call)
        return taken

    cdef void settle(self, QueueConsumer* c, const Pulled* pulled, Verdict verdict) noexcept nogil:
        cdef Call call
        cdef uint64_t token = pulled.token
        begin(&call, self.q)
        if queue_settle(&call, c, pulled.message, pulled.holder, pulled.lease, verdict) and verdict == SETTLE_ACK:
            if token <= <uint64_t> self.total:
                self.acked[token].fetch_add(1)
            self.done.fetch_add(1)
        end(&call)

    def produce(self, int64_t first, int64_t count, uint64_t seed):
        """Put so many messages; keys, priorities and slots are drawn."""
        cdef Offer offer
        cdef Call call
        cdef int64_t i
        cdef int64_t failed = 0
        cdef uint8_t key[1]
        with nogil:
            offer.size = offer.expiry = offer.not_before = 0
            offer.key = <const char*> key
            offer.key_length = 1
            for i in range(first, first + count):
                offer.token = <uint64_t> i
                offer.priority = <int64_t> (draw(&seed) % 10)
                offer.slot = <uint32_t> (draw(&seed) % 3)
                key[0] = <uint8_t> (draw(&seed) % 50)
                begin(&call, self.q)
                if queue_put(&call, &offer, NULL) != PUT_DONE:
                    failed += 1
                end(&call)
        return failed

    def consume(
        self, uint64_t seed, int32_t priority=0, int64_t credit=-1, bint walks=False, int flips=10, int quits=1,
        int returns=3, int refuses=0,
    ):
        """Pull when told, and only then, until all messages are acknowledged; how many there were for this consumer.

        In percent: how often interest is flipped, the subscription is cancelled and made again, a message is released,
        or rejected.
        """
        cdef Pulled got[BATCH]
        cdef QueueConsumer* c
        cdef uint64_t told, seen = 0
        cdef int64_t taken, i, mine = 0
        cdef unsigned int spins = 0
        with nogil:
            c = self.join(priority, credit, walks, True)
            while self.done.load() < self.total:
                told = c.told.load()
                if told == seen:
                    spin_wait(&spins)
                    continue
                spins = 0
                seen = told
                self.waves.fetch_add(1)
                taken = 1
                while taken > 0:
                    taken = self.pull(c, 1 + <int64_t> (draw(&seed) % BATCH), got)
                    for i in range(taken):
                        if <int> (draw(&seed) % 100) < returns:
                            self.settle(c, &got[i], SETTLE_RELEASE)
                        elif <int> (draw(&seed) % 100) < refuses and got[i].token % 3 == seed % 2:
                            self.settle(c, &got[i], SETTLE_REJECT)
                        else:
                            self.settle(c, &got[i], SETTLE_ACK)
                            mine += 1
                    if <int> (draw(&seed) % 100) < flips:
                        self.wish(c, False)
                        self.wish(c, True)
                    if <int> (draw(&seed) % 1000) < quits:
                        self.quit(c)
                        c = self.join(priority, credit, walks, True)
                        seen = 0
                        break
            self.quit(c)
        return mine

    def browse(self):
        """Look at every message, through a filter that accepts all, until all are acknowledged.

        How many there were to be seen, and how many of those more than once.
        """
        cdef Pulled got[1]
        cdef QueueConsumer* c
        cdef uint64_t told, token, looked = 0
        cdef int64_t distinct = 0, again = 0
        cdef unsigned int spins = 0
        cdef uint8_t* seen = <uint8_t*> calloc(self.total + 1, 1)
        with nogil:
            c = self.join(0, -1, True, True, False)
            while self.done.load() < self.total:
                told = c.told.load()
                if told == looked:
                    spin_wait(&spins)
                    continue
                spins = 0
                looked = told
                while self.pull(c, 1, got) > 0:
                    token = got[0].token
                    distinct += seen[token] == 0
                    again += seen[token] != 0
                    seen[token] = 1
                    queue_drop(self.q, got[0].message)
            self.quit(c)
        free(seen)
        return distinct, again

    def reserve(self, int64_t count):
        """Make room for the addresses of so many consumers."""
        self.kept = <QueueConsumer**> realloc(self.kept, count * sizeof(QueueConsumer*))
        self.kept_size = count

    def idle(self, int64_t count, int32_t priorities=1, bint interested=True):
        """Subscribe consumers that do nothing of themselves."""
        cdef int64_t i
        if self.kept_count + count > self.kept_size:
            self.reserve(self.kept_count + count)
        for i in range(count):
            self.kept[self.kept_count] = self.join(<int32_t> (i % priorities), -1, False, interested)
            self.kept_count += 1

    def idle_refusing(self, int64_t count, int32_t priorities=1, int32_t lowest=0, bint acquires=True):
        """Subscribe consumers whose filters refuse everything, where they are asked."""
        cdef int64_t i
        if self.kept_count + count > self.kept_size:
            self.reserve(self.kept_count + count)
        for i in range(count):
            self.kept[self.kept_count] = self.join(lowest + <int32_t> (i % priorities), -1, True, True, acquires)
            self.kept_count += 1

    def offer_refused(self):
        """Put a message that filters are asked about: how many were, and how many answers were looked up."""
        cdef Offer offer
        cdef Asking a
        cdef Question question
        cdef Message* linked = NULL
        offer.token = 1
        offer.size = offer.expiry = offer.not_before = 0
        offer.priority = 4
        offer.slot = 0
        offer.key = NULL
        offer.key_length = 0
        asking_begin(&a, self.q)
        queue_put(&a.call, &offer, &linked)
        while queue_question(&a.call, linked, &question):
            asking_refuse(&a, &question)
        queue_offer(&a.call, linked, True)
        asking_end(&a)
        return a.asked, a.looked

    def pull_refused(self, int64_t number):
        """Have a consumer pull, and filters refuse: whether it got something, and as offer_refused."""
        cdef Pulled got[1]
        cdef Asking a
        cdef Question question
        cdef int64_t taken = PULL_ASK
        asking_begin(&a, self.q)
        while taken == PULL_ASK:
            taken = queue_pull(&a.call, self.kept[number], 1, got, &question)
            if taken == PULL_ASK:
                asking_refuse(&a, &question)
        asking_end(&a)
        if taken > 0:
            self.settle(self.kept[number], &got[0], SETTLE_ACK)
        return taken, a.asked, a.looked

    def told(self):
        """How often each consumer that idles was told."""
        return [self.kept[i].told.load() for i in range(self.kept_count)]

    def take(self, int64_t number, int64_t limit=1):
        """Have a consumer that idled pull, and acknowledge; how many it got."""
        cdef Pulled got[BATCH]
        cdef int64_t taken = self.pull(self.kept[number], min(limit, <int64_t> BATCH), got), i
        for i in range(taken):
            self.settle(self.kept[number], &got[i], SETTLE_ACK)
        return taken

    def share(self, int64_t count):
        """Put messages one by one; a consumer that is told pulls until there is nothing. How many each consumer got."""
        got = [0] * self.kept_count
        for number in range(1, count + 1):
            before = self.told()
            self.produce(number, 1, number)
            for i, told in enumerate(self.told()):
                while told != before[i] and self.take(i):
                    got[i] += 1
        return got

    def steal(self, int64_t count, int64_t thief):
        """As share, but `thief` takes every message before the one told. How often each was told, at each step."""
        history = []
        for number in range(1, count + 1):
            before = self.told()
            self.produce(number, 1, number)
            self.take(thief)
            for i, told in enumerate(self.told()):
                if told != before[i] and i != thief:
                    self.take(i)
            history.append(self.told())
        return history

    def cycle(self, uint64_t count):
        """Nanoseconds for `count` times: put a message, have the one consumer take it, and acknowledge."""
        cdef QueueConsumer* c = self.kept[0]
        cdef Pulled got[1]
        cdef Offer offer
        cdef Call call
        cdef Question question
        cdef uint64_t _i
        cdef int64_t start
        with nogil:
            offer.token = 1
            offer.size = offer.expiry = offer.not_before = 0
            offer.priority = 4
            offer.slot = 0
            offer.key = NULL
            offer.key_length = 0
            start = now_ns()
            for _i in range(count):
                begin(&call, self.q)
                queue_put(&call, &offer, NULL)
                end(&call)
                begin(&call, self.q)
                queue_pull(&call, c, 1, got, &question)
                queue_settle(&call, c, got[0].message, got[0].holder, got[0].lease, SETTLE_ACK)
                end(&call)
            start = now_ns() - start
        return start

    @property
    def once(self):
        """Whether every message was acknowledged exactly once."""
        cdef int64_t i
        for i in range(1, self.total + 1):
            if self.acked[i].load() != 1:
                return False
        return True

    @property
    def acknowledged(self):
        return self.done.load()

    @property
    def notifications(self):
        return self.waves.load()

    @property
    def depth(self):
        return self.q.depth.load()

    @property
    def available(self):
        return self.q.available.load()

    @property
    def used(self):
        """Messages in memory, those that no consumer can get any more included."""
        return self.q.pool.used

    @property
    def consumers(self):
        return interest_count(&self.q.interest)

    def size(self, int which):
        cdef Pin* pin = interest_enter(&self.q.interest)
        cdef int64_t size = interest_size(&self.q.interest, pin, <InterestList> which)
        interest_leave(pin)
        return size

    @property
    def valid(self):
        cdef Pin* pin = interest_enter(&self.q.interest)
        cdef bint valid = interest_valid(&self.q.interest, pin)
        interest_leave(pin)
        return valid

    def flush(self):
        """Let an epoch pass, if no thread is inside."""
        cdef Pin* pin = interest_enter(&self.q.interest)
        reclaim_flush(pin)
        interest_leave(pin)
