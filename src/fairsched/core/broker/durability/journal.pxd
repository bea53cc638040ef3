"""The journal: records that must survive a restart, appended by I/O threads without the GIL, and written by one thread.

A record is put with an id and a kind, and dropped by its id; recovery finds the records that were put and not dropped.
Appending copies a record into the newest batch, and waits only for the lock. The writer takes the oldest batch, passes
it to the store as one chunk in one transaction (broker/_journal.pyx: SQLite, which handles checksums, torn writes and
the reuse of space), and then publishes up to which batch everything is on disk: a confirm is sent when its batch is.
So one write to disk covers everything that arrived during the previous write (group commit).

Space. A drop refers to a record in its own chunk or in an older one. So the oldest chunk can always be deleted when it
has no live record: its drops refer to nothing that is left. When more than half of the stored octets are dead, the live
records of the oldest chunk are copied to the batch being written, and the chunk is deleted in the same transaction. So
a record is copied at most once per equal number of dead octets. Ids ascend in the order of putting, and copies keep
them: readers of the journal sort by id.
  A record that is dropped while its chunk is copied: the copy asks `places` under the lock. If the drop came first,
there is no place and no copy. If the copy came first, the drop is appended to a younger batch than the one being
written, since that one was taken out before.

Thread safety: any thread appends; one thread, the writer, takes, copies and commits. The lock is a leaf: nothing is
called with it held. Complexity: O(octets) to append, O(1) beside that, amortised; memory 40 bytes a live record.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libcpp.atomic cimport atomic

from fairsched.core.amqp.frames cimport frames_number, frames_octets, frames_write
from fairsched.core.amqp.octets cimport Bytes, Text, bytes_add, bytes_append, bytes_clear, bytes_room, bytes_size

cdef extern from *:
    """
    #include <algorithm>
    #include <chrono>
    #include <condition_variable>
    #include <cstdint>
    #include <deque>
    #include <mutex>
    #include <unordered_map>
    #include <vector>

    namespace fairsched {

    struct JournalPlace {
        uint64_t chunk;
        uint64_t size;         // of the whole record
    };

    struct JournalChunk {
        int64_t size;
        int64_t live;          // octets of live records
    };

    struct JournalRecord {     // read from the journal
        uint64_t id;
        uint8_t kind;
        const uint8_t* data;
        uint32_t size;
    };

    // The chunk of each live record, and the lock of the whole journal.
    class JournalIndex {
        std::mutex mutex;
        std::condition_variable appended;
        std::unordered_map<uint64_t, JournalPlace> places;
        std::deque<JournalChunk> chunks;
        std::unordered_map<uint64_t, JournalRecord> records;

        JournalChunk& chunk(uint64_t number) { return chunks[number - first]; }

    public:
        uint64_t first = 1;    // number of the oldest chunk
        int64_t size = 0;      // of all chunks
        int64_t live = 0;

        void lock() { mutex.lock(); }
        void unlock() { mutex.unlock(); }
        void wake() { appended.notify_all(); }

        // Wait for an append, with the lock held, for at most `ns` nanoseconds; negative: without limit.
        void wait(int64_t ns) {
            std::unique_lock<std::mutex> held(mutex, std::adopt_lock);
            if (ns < 0) {
                appended.wait(held);
            } else {
                appended.wait_for(held, std::chrono::nanoseconds(ns));
            }
            held.release();
        }

        void begin(uint64_t number) {
            if (chunks.empty()) {
                first = number;
            }
            while (first + chunks.size() <= number) {
                chunks.push_back({0, 0});
            }
        }

        void put(uint64_t id, uint64_t number, uint64_t octets) {
            begin(number);
            places[id] = {number, octets};
            chunk(number).size += octets;
            chunk(number).live += octets;
            size += octets;
            live += octets;
        }

        // Count the octets of a drop's own record.
        void spend(uint64_t number, uint64_t octets) {
            begin(number);
            chunk(number).size += octets;
            size += octets;
        }

        bool drop(uint64_t id) {
            auto found = places.find(id);
            if (found == places.end()) {
                return false;
            }
            if (found->second.chunk >= first) {
                chunk(found->second.chunk).live -= found->second.size;
            }
            live -= found->second.size;
            places.erase(found);
            return true;
        }

        bool stands(uint64_t id, uint64_t number) {
            auto found = places.find(id);
            return found != places.end() && found->second.chunk == number;
        }

        // Remove the oldest chunks, up to the first that has a live record or is not older than `before`.
        void trim(uint64_t before) {
            while (!chunks.empty() && first < before && chunks.front().live == 0) {
                size -= chunks.front().size;
                chunks.pop_front();
                first += 1;
            }
        }

        bool stands_anywhere(uint64_t id) { return places.count(id) > 0; }
        int64_t count() { return places.size(); }

        // Reading the journal: each record once, in the order of the ids.
        void found(JournalRecord record) { records[record.id] = record; }
        void lost(uint64_t id) { records.erase(id); }
        JournalRecord* sorted() {
            auto* all = new JournalRecord[records.size()];
            size_t count = 0;
            for (auto& one : records) {
                all[count++] = one.second;
            }
            records.clear();
            std::sort(all, all + count, [](const JournalRecord& a, const JournalRecord& b) { return a.id < b.id; });
            return all;
        }
    };

    static inline void records_free(JournalRecord* records) { delete[] records; }

    }  // namespace fairsched
    """
    void records_free "fairsched::records_free"(JournalRecord* records) noexcept nogil
    cdef cppclass JournalIndex "fairsched::JournalIndex":
        uint64_t first
        int64_t size
        int64_t live
        JournalIndex() nogil
        void lock() noexcept nogil
        void unlock() noexcept nogil
        void wake() noexcept nogil
        void wait(int64_t ns) noexcept nogil
        bint stands_anywhere(uint64_t id) noexcept nogil
        void put(uint64_t id, uint64_t number, uint64_t octets) noexcept nogil
        void spend(uint64_t number, uint64_t octets) noexcept nogil
        bint drop(uint64_t id) noexcept nogil
        bint stands(uint64_t id, uint64_t number) noexcept nogil
        void trim(uint64_t before) noexcept nogil
        int64_t count() noexcept nogil
        void found(JournalRecord record) noexcept nogil
        void lost(uint64_t id) noexcept nogil
        JournalRecord* sorted() noexcept nogil
    cdef struct JournalRecord "fairsched::JournalRecord":
        uint64_t id
        uint8_t kind
        const uint8_t* data
        uint32_t size

cdef enum:
    JOURNAL_PUT = 1
    JOURNAL_DROP = 2
    JOURNAL_PUT_HEAD = 14      # octets before the contents of a record: operation, id, kind, length
    JOURNAL_DROP_SIZE = 9
    JOURNAL_BATCH = 16 << 20   # octets at which a new batch is begun
    JOURNAL_LEAST = 4 << 20    # stored octets below which no chunk is copied

cdef struct JournalBatch:
    Bytes octets
    uint64_t number
    JournalBatch* next         # the next younger batch

cdef struct Journal:
    JournalIndex* index
    JournalBatch* oldest       # waiting batch; NULL: there is none
    JournalBatch* newest
    JournalBatch* writing      # the writer's, without the lock
    uint64_t next_id
    uint64_t next_number
    atomic[int64_t] backlog    # octets of waiting batches; written with the lock
    bint closed
    atomic[uint64_t] durable   # the newest batch that is on disk with all before it; written by the writer
    atomic[uint32_t] failed    # the store failed, or memory was exhausted: no further confirms
    # Called by the writer when `durable` or `failed` has changed.
    void (*told)(void* host, uint64_t durable) noexcept nogil
    void* host


# Appending: any thread ------------------------------------------------------------------------------------------------

cdef inline bint journal_init(Journal* j) noexcept nogil:
    """Begin with an empty journal; False: memory is exhausted."""
    j.index = new JournalIndex()
    j.oldest = j.newest = j.writing = NULL
    j.next_id = j.next_number = 1
    j.backlog.store(0)
    j.closed = False
    j.durable.store(0)
    j.failed.store(0)
    j.told = NULL
    j.host = NULL
    return j.index != NULL

cdef inline JournalBatch* journal_batch(Journal* j) noexcept nogil:
    """Return the batch to append to; NULL: memory is exhausted. The caller holds the lock."""
    cdef JournalBatch* batch = j.newest
    if batch != NULL and bytes_size(&batch.octets) < JOURNAL_BATCH:
        return batch
    batch = <JournalBatch*> calloc(1, sizeof(JournalBatch))
    if batch == NULL:
        return NULL
    batch.number = j.next_number
    j.next_number += 1
    if j.newest != NULL:
        j.newest.next = batch
    else:
        j.oldest = batch
    j.newest = batch
    return batch

cdef inline void batch_free(JournalBatch* batch) noexcept nogil:
    bytes_clear(&batch.octets)
    free(batch)

cdef inline void journal_free(Journal* j) noexcept nogil:
    """Free the journal, which no thread uses any more."""
    cdef JournalBatch* batch = j.oldest
    while batch != NULL:
        j.oldest = batch.next
        batch_free(batch)
        batch = j.oldest
    if j.writing != NULL:
        batch_free(j.writing)
    j.newest = j.writing = NULL
    del j.index
    j.index = NULL

cdef inline uint8_t* journal_room(Journal* j, int64_t size) noexcept nogil:
    """Return the place of a record of `size` octets; NULL: memory is exhausted. The caller holds the lock."""
    cdef JournalBatch* batch = journal_batch(j)
    cdef uint8_t* to
    if batch == NULL:
        return NULL
    to = bytes_room(&batch.octets, size)
    if to == NULL:
        batch.octets.failed = False  # earlier records are complete; only this one is missing
        return NULL
    bytes_add(&batch.octets, size)
    j.backlog.fetch_add(size)
    return to

cdef inline int64_t record_size(const uint8_t* at, int64_t left) noexcept nogil:
    """Return the size of the record at `at`; -1: it is not a record."""
    cdef int64_t size
    if left >= JOURNAL_DROP_SIZE and at[0] == JOURNAL_DROP:
        return JOURNAL_DROP_SIZE
    if left < JOURNAL_PUT_HEAD or at[0] != JOURNAL_PUT:
        return -1
    size = JOURNAL_PUT_HEAD + <int64_t> frames_number(at + 10, 4)
    return size if size <= left else -1

cdef inline uint8_t* record_head(uint8_t* to, uint64_t id, uint8_t kind, uint64_t size) noexcept nogil:
    to[0] = JOURNAL_PUT
    to = frames_write(to + 1, id, 8)
    to[0] = kind
    return frames_write(to + 1, size, 4)

cdef inline uint64_t journal_put(
    Journal* j, uint8_t kind, const Text* parts, int count, uint64_t* batch
) noexcept nogil:
    """Put a record that consists of these parts, less than 512 MiB; return its id, or 0 if memory is exhausted.

    The record is on disk when `durable` has reached `batch`.
    """
    cdef int64_t size = JOURNAL_PUT_HEAD
    cdef uint64_t id = 0
    cdef uint8_t* to
    cdef int i
    for i in range(count):
        size += parts[i].length
    j.index.lock()
    to = journal_room(j, size)
    if to != NULL:
        id = j.next_id
        j.next_id += 1
        batch[0] = j.newest.number
        to = record_head(to, id, kind, <uint64_t> (size - JOURNAL_PUT_HEAD))
        for i in range(count):
            to = frames_octets(to, parts[i].data, parts[i].length)
        j.index.put(id, batch[0], <uint64_t> size)
    j.index.unlock()
    j.index.wake()
    return id

cdef inline bint journal_drop(Journal* j, uint64_t id, uint64_t* batch) noexcept nogil:
    """Drop a record, unless it was dropped before; False: memory is exhausted."""
    cdef uint8_t* to
    cdef bint done = True
    j.index.lock()
    if j.index.stands_anywhere(id):
        to = journal_room(j, JOURNAL_DROP_SIZE)
        done = to != NULL
        if done:
            j.index.drop(id)
            batch[0] = j.newest.number
            to[0] = JOURNAL_DROP
            frames_write(to + 1, id, 8)
            j.index.spend(batch[0], JOURNAL_DROP_SIZE)
    j.index.unlock()
    j.index.wake()
    return done

cdef inline uint64_t journal_latest(Journal* j) noexcept nogil:
    """Return the batch that contains the last appended record."""
    cdef uint64_t number
    j.index.lock()
    number = j.next_number - 1
    j.index.unlock()
    return number

cdef inline bint journal_is_durable(const Journal* j, uint64_t batch) noexcept nogil:
    """Return whether a batch is on disk."""
    return (<Journal*> j).durable.load() >= batch


# Writing: one thread --------------------------------------------------------------------------------------------------

cdef inline uint64_t journal_take(Journal* j, int64_t ns) noexcept nogil:
    """Take the oldest batch to write, waiting for one for at most `ns` nanoseconds, and return its number; 0: none.

    Its octets are in `writing`. The caller then calls `journal_written` or `journal_refused`.
    """
    cdef JournalBatch* batch
    j.index.lock()
    if j.oldest == NULL and not j.closed and ns != 0:
        j.index.wait(ns)
    batch = j.oldest
    if batch != NULL:
        j.oldest = batch.next
        if j.oldest == NULL:
            j.newest = NULL
        batch.next = NULL
        j.backlog.fetch_sub(bytes_size(&batch.octets))
        j.writing = batch
    j.index.unlock()
    return batch.number if batch != NULL else 0

cdef inline uint64_t journal_copy_wanted(Journal* j) noexcept nogil:
    """Return the oldest chunk if its live records must be copied into the batch being written; 0: none."""
    cdef uint64_t found = 0
    j.index.lock()
    j.index.trim(j.writing.number)
    if j.index.first < j.writing.number and j.index.size > JOURNAL_LEAST and j.index.size > 2 * j.index.live:
        found = j.index.first
    j.index.unlock()
    return found

cdef inline bint journal_copy(Journal* j, uint64_t number, const uint8_t* data, int64_t size) noexcept nogil:
    """Copy the live records of the oldest chunk, `data`; False: memory is exhausted, and some are stored twice."""
    cdef int64_t at = 0, length
    cdef uint64_t id
    cdef bint done = True
    while done and at < size:
        length = record_size(data + at, size - at)
        if length < 0:
            return False
        id = frames_number(data + at + 1, 8)
        if data[at] == JOURNAL_PUT:
            j.index.lock()
            if j.index.stands(id, number):
                bytes_append(&j.writing.octets, data + at, length)
                done = not j.writing.octets.failed
                if done:
                    j.index.drop(id)
                    j.index.put(id, j.writing.number, <uint64_t> length)
            j.index.unlock()
        at += length
    j.writing.octets.failed = False
    return done

cdef inline uint64_t journal_first(Journal* j) noexcept nogil:
    """Return the oldest chunk needed once the batch is written. Older ones are deleted in the same transaction."""
    cdef uint64_t first
    j.index.lock()
    j.index.trim(j.writing.number)
    first = min(j.index.first, j.writing.number)
    j.index.unlock()
    return first

cdef inline void journal_written(Journal* j) noexcept nogil:
    """Publish that the batch is on disk."""
    cdef uint64_t number = j.writing.number
    batch_free(j.writing)
    j.writing = NULL
    j.durable.store(number)
    if j.told != NULL:
        j.told(j.host, number)

cdef inline void journal_fail(Journal* j) noexcept nogil:
    """Stop the journal after a failed append: later records may depend on the missing one."""
    j.failed.store(1)

cdef inline void journal_refused(Journal* j) noexcept nogil:
    """Stop the journal after the store has failed: neither this batch nor later ones are written."""
    j.failed.store(1)
    if j.told != NULL:
        j.told(j.host, j.durable.load())

cdef inline void journal_close(Journal* j) noexcept nogil:
    """Have the writer write the waiting batches, and then end."""
    j.index.lock()
    j.closed = True
    j.index.unlock()
    j.index.wake()


# Reading it back: before anything is appended -------------------------------------------------------------------------

cdef inline bint journal_recover(Journal* j, uint64_t number, const uint8_t* data, int64_t size) noexcept nogil:
    """Read a chunk, oldest first; False: it is invalid. `data` must stay while `journal_records` is in use."""
    cdef int64_t at = 0, length
    cdef uint64_t id
    while at < size:
        length = record_size(data + at, size - at)
        if length < 0:
            return False
        id = frames_number(data + at + 1, 8)
        j.next_id = max(j.next_id, id + 1)
        j.index.drop(id)  # a copy or a drop replaces the older record
        if data[at] == JOURNAL_PUT:
            j.index.put(id, number, <uint64_t> length)
            j.index.found(
                JournalRecord(id, data[at + 9], data + at + JOURNAL_PUT_HEAD, <uint32_t> (length - JOURNAL_PUT_HEAD))
            )
        else:
            j.index.lost(id)
            j.index.spend(number, JOURNAL_DROP_SIZE)
        at += length
    j.next_number = number + 1
    j.durable.store(number)
    return True

cdef inline JournalRecord* journal_records(Journal* j) noexcept nogil:
    """Return the `journal_count` live records in the order of their ids; free them with `records_free`."""
    return j.index.sorted()

cdef inline int64_t journal_count(Journal* j) noexcept nogil:
    """Return the number of live records."""
    cdef int64_t count
    j.index.lock()
    count = j.index.count()
    j.index.unlock()
    return count
