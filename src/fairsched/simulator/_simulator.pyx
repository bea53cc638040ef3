"""The simulation for Python: lay out a plan, run it without the GIL, return the figures."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

from fairsched.core.delay.codel cimport CODEL_LINUX, CODEL_LINUX_Q16, CODEL_QUEUEING_CONSUMER, CODEL_RFC, codel_init
from fairsched.core.delay.histogram cimport HISTOGRAM_BUCKETS, HISTOGRAM_OCTAVES, Histogram, histogram_middle
from fairsched.core.simulation.arrivals cimport (
    ARRIVALS_BURSTS, ARRIVALS_CONSTANT, ARRIVALS_NONE, ARRIVALS_POISSON, ARRIVALS_RANDOM_BURSTS, ARRIVALS_TRACE,
    Arrivals,
)
from fairsched.core.simulation.eventtree cimport eventtree_set
from fairsched.core.simulation.loop cimport sim_run, sim_start
from fairsched.core.simulation.model cimport (
    CHANGE_ARRIVALS, CHANGE_DELAY, CHANGE_FAIL, CHANGE_GAP, CHANGE_JOIN, CHANGE_LEAVE, CHANGE_QUANTUM, CHANGE_SERVICE,
    CHANGE_WINDOW, FRAME_COLUMNS, RECORD_COLUMNS, Sim, SimChange, SimConsumer, SimCounts, SimQueue, SimSlot,
)
from fairsched.core.simulation.queue cimport stock_init, stock_ready
from fairsched.core.simulation.setup cimport sim_allocate, sim_clear, sim_init
from fairsched.core.simulation.variate cimport (
    NEVER as NO_MOMENT, VARIATE_CONSTANT, VARIATE_EXPONENTIAL, VARIATE_LOGNORMAL, VARIATE_UNIFORM, Variate,
)
from fairsched.core.simulation.xoshiro cimport Xoshiro
from fairsched.scheduling._buffers cimport array_data

import numpy as np

NEVER = NO_MOMENT

cdef dict LAWS = {
    "rfc": CODEL_RFC,
    "linux": CODEL_LINUX,
    "linux-q16": CODEL_LINUX_Q16,
    "queueing-consumer": CODEL_QUEUEING_CONSUMER,
}
cdef dict SERVICES = {
    "constant": VARIATE_CONSTANT,
    "exponential": VARIATE_EXPONENTIAL,
    "uniform": VARIATE_UNIFORM,
    "lognormal": VARIATE_LOGNORMAL,
}
cdef dict ARRIVALS = {
    "none": ARRIVALS_NONE,
    "constant": ARRIVALS_CONSTANT,
    "poisson": ARRIVALS_POISSON,
    "bursts": ARRIVALS_BURSTS,
    "random-bursts": ARRIVALS_RANDOM_BURSTS,
    "trace": ARRIVALS_TRACE,
}
cdef dict CHANGES = {
    "join": CHANGE_JOIN,
    "leave": CHANGE_LEAVE,
    "fail": CHANGE_FAIL,
    "delay": CHANGE_DELAY,
    "service": CHANGE_SERVICE,
    "window": CHANGE_WINDOW,
    "quantum": CHANGE_QUANTUM,
    "gap": CHANGE_GAP,
    "arrivals": CHANGE_ARRIVALS,
}
cdef tuple HISTOGRAMS = ("wait", "latency", "age", "total")

cdef enum:
    STEPS = 1 << 20  # events between two checks for signals


cdef int set_service(Variate* service, object plan) except -1:
    service.kind = SERVICES[plan.kind]
    service.a = plan.a
    service.b = plan.b
    return 0


cdef int set_random(Xoshiro* random, tuple words) except -1:
    for i in range(4):
        random.words[i] = words[i]
    return 0


cdef Histogram* histogram_named(SimSlot* slot, object name):
    if name == "wait":
        return &slot.wait
    if name == "latency":
        return &slot.latency
    return &slot.age if name == "age" else &slot.total


cdef object counted(Histogram* h):
    """Return the values of a histogram, ascending, their counts, and the exact figures."""
    cdef int64_t i, size = 0
    cdef object value_array, count_array
    cdef int64_t* values
    cdef int64_t* counts
    cdef int octave
    if h.values != NULL or h.count == 0:
        found = copied(h.values, h.count)
        found.sort()
        return found, np.ones(h.count, dtype=np.int64), True
    value_array = np.zeros(HISTOGRAM_OCTAVES * HISTOGRAM_BUCKETS, dtype=np.int64)
    count_array = np.zeros(HISTOGRAM_OCTAVES * HISTOGRAM_BUCKETS, dtype=np.int64)
    values = <int64_t*> array_data(value_array)
    counts = <int64_t*> array_data(count_array)
    for octave in range(HISTOGRAM_OCTAVES):
        if h.octaves[octave] == NULL:
            continue
        for i in range(HISTOGRAM_BUCKETS):
            if h.octaves[octave][i]:
                values[size] = histogram_middle(octave, i)
                counts[size] = h.octaves[octave][i]
                size += 1
    return value_array[:size].copy(), count_array[:size].copy(), False


cdef object copied(const int64_t* source, int64_t size):
    """Return an array with a copy of `size` numbers."""
    array = np.empty(size, dtype=np.int64)
    if size:
        memcpy(array_data(array), source, size * sizeof(int64_t))
    return array


@cython.final
cdef class Simulation:
    """Simulation(plan)
    --

    One run of a plan, which `fairsched.simulator.plan` makes: numbers only, times in nanoseconds.

    Parameters
    ----------
    plan : Plan
        The plan, checked by the caller.

    Notes
    -----
    Thread safety: an instance belongs to one thread at a time; `run` releases the GIL, so simulations run side by side.
    """

    cdef Sim sim
    cdef list kept  # arrays that the simulation reads
    cdef bint laid_out
    cdef bint started

    def __init__(self, plan):
        if self.laid_out:
            raise RuntimeError("a Simulation is laid out once")
        self.laid_out = True

    def __dealloc__(self):
        sim_clear(&self.sim)

    def __cinit__(self, plan):
        cdef Sim* s = &self.sim
        sim_init(s)
        self.kept = []
        s.queue_count = len(plan.queues)
        s.slot_count = len(plan.slots)
        s.worker_count = sum([consumer.workers for consumer in plan.consumers])
        s.consumer_count = len(plan.consumers)
        s.broker_count = len(plan.gaps)
        s.change_count = len(plan.changes)
        s.record_room = plan.records
        s.frame_room = plan.frames
        if not sim_allocate(s):
            raise MemoryError()
        s.end = plan.end
        s.limit = plan.limit
        s.counted_from = plan.warmup
        s.frame_gap = s.frame_next = plan.frame_gap
        self.lay_out(plan)

    cdef int lay_out(self, object plan) except -1:
        cdef Sim* s = &self.sim
        cdef uint32_t i
        for i, gap in enumerate(plan.gaps):
            s.brokers[i].gap = gap
        for i, delay in enumerate(plan.delays):
            s.links[i].delay = s.links[s.link_count + i].delay = delay
        for i, queue in enumerate(plan.queues):
            self.lay_out_queue(&s.queues[i], queue)
        for i, slot in enumerate(plan.slots):
            self.lay_out_slot(&s.slots[i], slot)
        cdef uint32_t first_worker = 0
        for i, consumer in enumerate(plan.consumers):
            self.lay_out_consumer(i, first_worker, consumer)
            first_worker += consumer.workers
        for i, change in enumerate(plan.changes):
            self.lay_out_change(&s.changes[i], change)
        if s.change_count:
            eventtree_set(&s.calendar, 0, s.changes[0].time)
        sim_start(s)
        return 0

    cdef int lay_out_arrivals(self, Arrivals* arrivals, object plan) except -1:
        arrivals.kind = ARRIVALS[plan.kind]
        arrivals.gap = plan.gap
        arrivals.on = plan.on
        arrivals.off = plan.off
        if plan.kind == "trace":
            times = np.frombuffer(plan.times, dtype=np.int64)
            self.kept.append(times)
            arrivals.size = len(times)
            arrivals.times = <const int64_t*> array_data(times) if arrivals.size else NULL
        return 0

    cdef int lay_out_queue(self, SimQueue* queue, object plan) except -1:
        queue.broker = plan.broker
        queue.cost = plan.cost
        stock_init(&queue.stock, plan.depth, plan.endless)
        set_random(&queue.random, plan.seed)
        return self.lay_out_arrivals(&queue.arrivals, plan.arrivals)

    cdef int lay_out_slot(self, SimSlot* slot, object plan) except -1:
        slot.queue = plan.queue
        slot.consumer = plan.consumer
        slot.quantum = plan.quantum
        slot.window = plan.window
        set_random(&slot.random, plan.seed)
        return set_service(&slot.service, plan.service)

    cdef int lay_out_consumer(self, uint32_t number, uint32_t first_worker, object plan) except -1:
        cdef SimConsumer* consumer = &self.sim.consumers[number]
        cdef uint32_t i
        consumer.first_slot = plan.first_slot
        consumer.slots = plan.slots
        consumer.first_worker = first_worker
        consumer.workers = plan.workers
        consumer.holds = plan.holds
        consumer.full = plan.full
        consumer.patience = plan.patience
        for i in range(consumer.workers):
            self.sim.workers[first_worker + i].consumer = number
            if i + 1 < consumer.workers:
                self.sim.workers[first_worker + i].next = first_worker + i + 1
        consumer.idle = first_worker
        law = plan.law
        if law is not None:
            consumer.sheds = True
            consumer.sheds_alone = law.alone
            consumer.dead_letters = law.dead_letter
            consumer.budget = law.budget
            codel_init(
                &consumer.law, LAWS[law.law], law.target, law.interval, law.min_backlog, law.max_returns
            )
        return 0

    cdef int lay_out_change(self, SimChange* change, object plan) except -1:
        change.time = plan.time
        change.kind = CHANGES[plan.kind]
        change.target = plan.target
        change.amount = plan.amount
        if plan.service is not None:
            set_service(&change.service, plan.service)
        if plan.arrivals is not None:
            self.lay_out_arrivals(&change.arrivals, plan.arrivals)
        return 0

    def run(self):
        """run($self)
        --

        Run to the end.

        Raises
        ------
        RuntimeError
            The simulation was run before.
        MemoryError
            Memory is exhausted.
        KeyboardInterrupt
            The user interrupted; checked every 2**20 events.

        Notes
        -----
        Complexity O(events · log sources). The GIL is released.
        """
        cdef bint done = False
        if self.started:
            raise RuntimeError("a Simulation is run once")
        self.started = True
        while not done:
            with nogil:
                done = sim_run(&self.sim, STEPS)
            if not done:
                PyErr_CheckSignals()
        if self.sim.exhausted:
            raise MemoryError()

    @property
    def now(self):
        """Simulated nanoseconds."""
        return self.sim.now

    @property
    def events(self):
        """Number of events so far."""
        return self.sim.events

    def queue_figures(self):
        """queue_figures($self)
        --

        Return for each queue the number of messages that arrived and the number that wait.
        """
        cdef uint32_t i
        return [(self.sim.queues[i].came, stock_ready(&self.sim.queues[i].stock)) for i in range(self.sim.queue_count)]

    def consumer_figures(self):
        """consumer_figures($self)
        --

        Return for each consumer the nanoseconds of its presence.
        """
        cdef uint32_t i
        cdef SimConsumer* c
        figures = []
        for i in range(self.sim.consumer_count):
            c = &self.sim.consumers[i]
            figures.append(c.was_present + (self.sim.now - c.joined if c.present else 0))
        return figures

    def slot_figures(self):
        """slot_figures($self)
        --

        Return for each slot, since counting began: served, repeated, returned, redelivered, busy and waited
        nanoseconds, unsettled now, and the most returns of one message.
        """
        cdef uint32_t i
        cdef SimCounts* now
        cdef SimCounts* then
        figures = []
        for i in range(self.sim.slot_count):
            now = &self.sim.slots[i].counts
            then = &self.sim.slots[i].before
            figures.append((
                now.served - then.served, now.repeated - then.repeated, now.returned - then.returned,
                now.redelivered - then.redelivered, now.busy - then.busy, now.waited - then.waited,
                self.sim.slots[i].unsettled, self.sim.slots[i].most_returns,
            ))
        return figures

    def law_figures(self):
        """law_figures($self)
        --

        Return for each slot, since it was last attached: CoDel's decisions, episodes, capped pulls, and spared
        returns.
        """
        cdef uint32_t i
        figures = []
        for i in range(self.sim.slot_count):
            law = self.sim.slots[i].law.stats
            figures.append((law.asked, law.episodes, law.capped, law.spared))
        return figures

    def histogram(self, slot, which):
        """histogram($self, slot, which)
        --

        Return a slot's "wait", "latency", "age" or "total": values, counts, exact?, count, sum, least, largest.
        """
        cdef SimSlot* found
        cdef Histogram* h
        if not 0 <= slot < self.sim.slot_count:
            raise IndexError(f"slot must be 0 to {self.sim.slot_count - 1}, got {slot!r}")
        found = &self.sim.slots[slot]
        if which not in HISTOGRAMS:
            raise ValueError(f"which must be one of {', '.join(HISTOGRAMS)}, got {which!r}")
        h = histogram_named(found, which)
        values, counts, exact = counted(h)
        return values, counts, exact, h.count, (int(h.sum_high) << 64) | int(h.sum_low), h.least, h.largest

    def records(self):
        """records($self)
        --

        Return the histories of the first handled messages, one row each: slot, number in the queue, created, sent,
        arrived, messages ahead at arrival, started, handled, returns.
        """
        return copied(self.sim.records, RECORD_COLUMNS * self.sim.record_count).reshape(-1, RECORD_COLUMNS)

    def frames(self):
        """frames($self)
        --

        Return the timeline: nanoseconds between two rows, depths by row and queue, and counters since the start by row
        and slot: served, returned, waited and busy nanoseconds, buffered.
        """
        cdef int64_t size = self.sim.queue_count + FRAME_COLUMNS * <int64_t> self.sim.slot_count
        rows = copied(self.sim.frames, size * self.sim.frame_count).reshape(-1, size)
        slots = rows[:, self.sim.queue_count:].reshape(len(rows), self.sim.slot_count, FRAME_COLUMNS)
        return self.sim.frame_gap, rows[:, : self.sim.queue_count], slots
