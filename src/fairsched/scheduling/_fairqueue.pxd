"""The attributes and C methods of a fair queue; see _fairqueue.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fairsched._core cimport NamedSlots
from fairsched.core.schedule.limits cimport LimitTable
from fairsched.core.schedule.slots cimport Bands, Branches
from fairsched.core.schedule.subkeys cimport Subkeys
from fairsched.scheduling._waitingroom cimport WaitingRoom


cdef class Place


cdef class SubkeySlots(NamedSlots):
    pass


cdef class FairQueue(NamedSlots):
    cdef WaitingRoom getters
    cdef WaitingRoom putters
    cdef int64_t anticipating     # getters that wait for the slot whose turn it is, until that turn passes
    cdef int64_t maxsize
    cdef int64_t default_quantum  # 0: unknown slots are errors
    cdef LimitTable limits
    cdef list joint_names         # a JointName for each limit of several slots, by number from 1 on
    cdef object asker             # called when slots are short of permits; None: nothing is
    cdef bint told                # it was called, and the slots have not been asked for since
    cdef Bands bands              # used once a slot has another band than the default, or items have priorities
    cdef Branches branches        # used if items have priorities
    cdef bint is_divided          # slots have subkeys or branches
    cdef int64_t watched_until    # time at which a waiting getter checks the slots at their limit; NEVER: none does
    cdef bint is_shut_down
    cdef Subkeys levels           # the table of subkeys, by slot
    cdef SubkeySlots below        # the subkeys; None: items have none
    cdef int64_t subkey_quantum
    cdef object one_subkey        # the subkey that all items have; `below`: each may have its own
    cdef object one_priority      # the priority that all items have; `getters`: each may have its own
    cdef object __weakref__

    cdef uint32_t admit(self, object name, int64_t hash) except? 0xFFFFFFFF
    cdef uint32_t add_limited(self, object name, int64_t hash, int64_t quantum, bint transient) except? 0xFFFFFFFF
    cdef void forget_idle(self) noexcept
    cdef uint32_t keep_slot(self, object name) except? 0xFFFFFFFF
    cdef object take(self, int32_t rank, object nothing, Place place)
    cdef object take_in_time(self, object timeout, int32_t rank, Place place)
    cdef int take_more(self, list found, Py_ssize_t limit) except -1
    cdef int gave_back(self) except -1


cdef class Place:
    cdef FairQueue queue  # None: given back
    cdef uint32_t index   # of the slot, if the slot's limit still has this `count`
    cdef uint64_t count
    cdef uint32_t named   # number of the named limit in which the item counts
    cdef uint32_t total   # of that of all slots

    cdef int give_back(self, bint unused) except -1


# Wake the getters that may go on now. May run Python code.
cdef void hand_over(FairQueue q) noexcept


# Tell the owner of permits that slots are short of them. May run Python code.
cdef void tell_shorts(FairQueue q) noexcept
