"""Mailboxes in memory that the tasks of one host share.

Each task owns a segment and alone writes its counters and slots. Others ring its doorbell and tell
news there; whoever starts it says in its state how its end is reported, and that it has ended.
A counter is published with a release store after the data that it counts, and read with an acquire
load, so a reader of the count sees the data. Waiting: spin, then yield, then sleep on the doorbell.
A sleeper sets its flag, fences, and looks once more; a publisher fences, and rings if the flag is
set: one of the two always sees the other. No checks here: horn/transport/shm.py has checked; and a
wait returns after its slice at the latest, so that the caller can look for ended tasks.
Layout and reasons: docs/notes/0020.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.errno cimport errno
from libc.string cimport memcpy
from cpython.buffer cimport (
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

cdef extern from "sys/mman.h" nogil:
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_POPULATE
    void *MAP_FAILED
    void *mmap(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)

cdef extern from *:
    """
    #include <errno.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <sched.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline uint64_t horn_acquire(const uint64_t *p) {
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);
    }
    static inline void horn_release(uint64_t *p, uint64_t v) {
        __atomic_store_n(p, v, __ATOMIC_RELEASE);
    }
    static inline uint32_t horn_acquire32(const uint32_t *p) {
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);
    }
    static inline void horn_store32(uint32_t *p, uint32_t v) {
        __atomic_store_n(p, v, __ATOMIC_RELAXED);
    }
    static inline void horn_add(uint32_t *p) { __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
    static inline void horn_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    static inline void horn_pause(void) {
    #if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
    #elif defined(__aarch64__)
        __asm__ __volatile__("yield");
    #endif
    }
    static inline int64_t horn_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    static inline int horn_sleep(uint32_t *p, uint32_t seen, int64_t ns) {
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        return syscall(SYS_futex, p, FUTEX_WAIT, seen, &t, NULL, 0) == -1 ? errno : 0;
    }
    static inline void horn_wake(uint32_t *p) {
        syscall(SYS_futex, p, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    """
    enum: EINTR
    uint64_t horn_acquire(const uint64_t *) noexcept nogil
    void horn_release(uint64_t *, uint64_t) noexcept nogil
    uint32_t horn_acquire32(const uint32_t *) noexcept nogil
    void horn_store32(uint32_t *, uint32_t) noexcept nogil
    void horn_add(uint32_t *) noexcept nogil
    void horn_fence() noexcept nogil
    void horn_pause() noexcept nogil
    int64_t horn_now() noexcept nogil
    int horn_sleep(uint32_t *, uint32_t, int64_t) noexcept nogil
    void horn_wake(uint32_t *) noexcept nogil
    void sched_yield() noexcept nogil

# Bytes from the start of a segment; every word that another task reads has a cache line.
cdef enum:
    DOORBELL = 64     # u32, on which its owner sleeps
    NEWS = 68         # u32, rung for other reasons than a counter
    SLEEPING = 128    # u32
    ARRIVED = 192     # u64, barriers entered; then the supersteps of the last two
    STATE = 256       # u64, 0, HAS_LEFT or HAS_ENDED; u64, the handle of its end
    DIGESTS = 320     # DIGEST_BYTES each, of this plan and of the next
    REASON = 384      # u32, the number of bytes; then the reason for leaving
    COUNTERS = 4096   # u64 per channel: published if it is its own, else released
    LINE = 64
    DIGEST_BYTES = 32
    HAS_LEFT = 1      # it said so
    HAS_ENDED = 2     # others saw that it ended

# Two tasks on two cores meet within 2 us; two on one core lose the time that they spin (20 us of it
# made a barrier 41 us instead of 2). 1 ms of yielding costs less than a sleep and a wake-up
# (30-120 us) as long as the other task arrives within it (bench_superstep).
cdef enum:
    SPIN_NS = 2_000
    YIELD_NS = 1_000_000

cdef enum:
    ALL_HERE = -1
    WRONG_STEP = -2

CONTROL_BYTES = COUNTERS
REASON_BYTES = COUNTERS - REASON - 4
LEFT = HAS_LEFT
LINE_BYTES = LINE
DONE, MISMATCH = ALL_HERE, WRONG_STEP


cdef class Mapping:
    """Map the shared memory of a descriptor, which may be closed: mmap.mmap would keep a copy of
    it, and a task of a group of n has n of them, and one for each message that it has not used.
    is_read_only : its views cannot be written. Freed with the last view.

    Raises
    ------
    OSError : as mmap(2).
    """

    cdef char *start
    cdef Py_ssize_t size
    cdef bint is_read_only

    def __cinit__(self, int fd, Py_ssize_t size, bint is_read_only=False):
        cdef int access = PROT_READ if is_read_only else PROT_READ | PROT_WRITE
        cdef void *found = mmap(NULL, size, access, MAP_SHARED | MAP_POPULATE, fd, 0)
        if found == MAP_FAILED:
            raise OSError(errno, f"no memory for a mapping of {size} bytes")
        self.start, self.size, self.is_read_only = <char *>found, size, is_read_only

    def __dealloc__(self):
        if self.start:
            munmap(self.start, self.size)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, self.is_read_only, flags)


cdef class Step:
    """The channels of one superstep, as one task sees them."""

    cdef int n_out, n_in, n_ring
    cdef int *out_channels
    cdef int *in_channels
    cdef int *ring            # tasks that may sleep until something is published or released here

    def __cinit__(self, out_channels, in_channels, ring):
        self.n_out, self.n_in, self.n_ring = len(out_channels), len(in_channels), len(ring)
        self.out_channels = <int *>calloc(self.n_out + 1, sizeof(int))
        self.in_channels = <int *>calloc(self.n_in + 1, sizeof(int))
        self.ring = <int *>calloc(self.n_ring + 1, sizeof(int))
        if not self.out_channels or not self.in_channels or not self.ring:
            raise MemoryError
        for i, channel in enumerate(out_channels):
            self.out_channels[i] = channel
        for i, channel in enumerate(in_channels):
            self.in_channels[i] = channel
        for i, task in enumerate(ring):
            self.ring[i] = task

    def __dealloc__(self):
        free(self.out_channels)
        free(self.in_channels)
        free(self.ring)


cdef class Mailboxes:
    """All segments of a group, as one task maps them."""

    cdef int task, n_tasks, n_channels
    cdef bint may_spin
    cdef list segments              # keeps the memory mapped
    cdef char **base                # (n_tasks,)
    cdef int *src                   # (n_channels,)
    cdef int64_t *offset            # (n_channels,) of the header of slot 0
    cdef int64_t *stride            # (n_channels,) from slot 0 to slot 1
    cdef uint64_t *published        # (n_channels,) uses, if src is this task
    cdef uint64_t *collected        # (n_channels,) uses, if it is not
    cdef uint64_t **words           # scratch: the words that are waited for ...
    cdef uint64_t *targets          # ... and their targets
    cdef uint64_t n_arrived
    cdef readonly int bad           # channel or task of the last MISMATCH
    cdef readonly uint64_t bad_got, bad_expected
    cdef readonly uint64_t n_sleeps

    def __cinit__(self, int task, list segments, list channels, bint may_spin):
        """channels: (src, offset, stride) of each."""
        cdef Py_buffer view
        cdef int n_words = max(len(channels), len(segments)) + 1
        self.task, self.n_tasks, self.n_channels = task, len(segments), len(channels)
        self.may_spin, self.segments = may_spin, segments
        self.base = <char **>calloc(self.n_tasks, sizeof(char *))
        self.src = <int *>calloc(n_words, sizeof(int))
        self.offset = <int64_t *>calloc(n_words, sizeof(int64_t))
        self.stride = <int64_t *>calloc(n_words, sizeof(int64_t))
        self.published = <uint64_t *>calloc(n_words, sizeof(uint64_t))
        self.collected = <uint64_t *>calloc(n_words, sizeof(uint64_t))
        self.words = <uint64_t **>calloc(n_words, sizeof(uint64_t *))
        self.targets = <uint64_t *>calloc(n_words, sizeof(uint64_t))
        if not (self.base and self.src and self.offset and self.stride and self.published
                and self.collected and self.words and self.targets):
            raise MemoryError
        for i, segment in enumerate(segments):
            PyObject_GetBuffer(segment, &view, PyBUF_WRITABLE)
            self.base[i] = <char *>view.buf  # as long as self.segments
            PyBuffer_Release(&view)
        for i, (src, offset, stride) in enumerate(channels):
            self.src[i], self.offset[i], self.stride[i] = src, offset, stride

    def __dealloc__(self):
        free(self.base)
        free(self.src)
        free(self.offset)
        free(self.stride)
        free(self.published)
        free(self.collected)
        free(self.words)
        free(self.targets)

    # words of others and of this task

    cdef inline uint64_t *_counter(self, int task, int channel) noexcept nogil:
        return <uint64_t *>(self.base[task] + COUNTERS + <int64_t>LINE * channel)

    cdef inline uint64_t *_arrived(self, int task) noexcept nogil:
        return <uint64_t *>(self.base[task] + ARRIVED)

    cdef inline uint64_t *_header(self, int channel, uint64_t use) noexcept nogil:
        return <uint64_t *>(self.base[self.src[channel]] + self.offset[channel]
                            + (<int64_t>(use & 1)) * self.stride[channel])

    cdef inline void _ring(self, int task) noexcept nogil:
        """After a fence: wake a task that says it sleeps."""
        cdef uint32_t *doorbell
        if horn_acquire32(<uint32_t *>(self.base[task] + SLEEPING)):
            doorbell = <uint32_t *>(self.base[task] + DOORBELL)
            horn_add(doorbell)
            horn_wake(doorbell)

    cdef int _wait(self, int n, int64_t wait_ns, bint may_yield) noexcept nogil:
        """Wait until every word has its target: DONE, else the index of one that has not."""
        cdef uint64_t **words = self.words
        cdef uint64_t *targets = self.targets
        cdef uint32_t *doorbell = <uint32_t *>(self.base[self.task] + DOORBELL)
        cdef uint32_t *news = <uint32_t *>(self.base[self.task] + NEWS)
        cdef uint32_t *sleeping = <uint32_t *>(self.base[self.task] + SLEEPING)
        cdef uint32_t seen, old_news
        cdef int64_t now, began, end
        cdef int i = 0, k, error
        while i < n and horn_acquire(words[i]) >= targets[i]:
            i += 1
        if i == n:
            return ALL_HERE
        began = now = horn_now()
        end = began + wait_ns
        old_news = horn_acquire32(news)
        if self.may_spin and may_yield:
            while now - began < SPIN_NS and now < end:
                for k in range(32):
                    while horn_acquire(words[i]) >= targets[i]:
                        i += 1
                        if i == n:
                            return ALL_HERE
                    horn_pause()
                now = horn_now()
        while may_yield and now - began < YIELD_NS and now < end:
            sched_yield()
            while horn_acquire(words[i]) >= targets[i]:
                i += 1
                if i == n:
                    return ALL_HERE
            now = horn_now()
        while True:
            seen = horn_acquire32(doorbell)
            horn_store32(sleeping, 1)
            horn_fence()
            while i < n and horn_acquire(words[i]) >= targets[i]:
                i += 1
            if i == n or now >= end or horn_acquire32(news) != old_news:
                horn_store32(sleeping, 0)
                return ALL_HERE if i == n else i
            self.n_sleeps += 1
            error = horn_sleep(doorbell, seen, end - now)
            horn_store32(sleeping, 0)
            if error == EINTR:
                return i              # Python looks for signals
            now = horn_now()

    # the barrier

    cdef void _arrive(self, uint64_t superstep) noexcept nogil:
        cdef uint64_t *mine = self._arrived(self.task)
        cdef int task
        self.n_arrived += 1
        mine[1 + (self.n_arrived & 1)] = superstep   # no task still reads that of two barriers ago
        horn_release(mine, self.n_arrived)
        horn_fence()
        for task in range(self.n_tasks):
            if task != self.task:
                self._ring(task)

    cdef int _wait_arrived(self, uint64_t superstep, int64_t wait_ns, bint first) noexcept nogil:
        cdef int task, n = 0, late
        for task in range(self.n_tasks):
            if task != self.task:
                self.words[n] = self._arrived(task)
                self.targets[n] = self.n_arrived
                n += 1
        late = self._wait(n, wait_ns, first)
        if late != ALL_HERE:
            return late
        for task in range(self.n_tasks):
            if self._arrived(task)[1 + (self.n_arrived & 1)] != superstep:
                self.bad, self.bad_expected = task, superstep
                self.bad_got = self._arrived(task)[1 + (self.n_arrived & 1)]
                return WRONG_STEP
        return ALL_HERE

    def barrier(self, uint64_t superstep, double wait_s, bint first=True):
        """Arrive (if ``first``) and wait: DONE, MISMATCH, or from 0: not all are here."""
        cdef int code
        with nogil:
            if first:
                self._arrive(superstep)
            code = self._wait_arrived(superstep, <int64_t>(wait_s * 1e9), first)
        return code

    def has_arrived(self, int task):
        return horn_acquire(self._arrived(task)) >= self.n_arrived

    # blocks

    def wait_free(self, int channel, list dsts, double wait_s, bint first=True):
        """Wait until all readers have released the slot of the next use."""
        cdef int n = 0, dst, code
        if self.published[channel] >= 2:
            for dst in dsts:
                self.words[n] = self._counter(dst, channel)
                self.targets[n] = self.published[channel] - 1
                n += 1
        with nogil:
            code = self._wait(n, <int64_t>(wait_s * 1e9), first)
        return code

    def has_released(self, int channel, int dst):
        return (self.published[channel] < 2
                or horn_acquire(self._counter(dst, channel)) >= self.published[channel] - 1)

    def slot(self, int channel, bint is_next):
        """The slot, 0 or 1, of the next use to write, or of the last one collected."""
        if is_next:
            return (self.published[channel] + 1) & 1
        return self.collected[channel] & 1

    cdef void _post(self, Step step, uint64_t superstep) noexcept nogil:
        cdef uint64_t use
        cdef uint64_t *header
        cdef int i, channel
        for i in range(step.n_out):
            channel = step.out_channels[i]
            use = self.published[channel] + 1
            header = self._header(channel, use)
            header[0], header[1] = use, superstep
            horn_release(self._counter(self.task, channel), use)
            self.published[channel] = use
        for i in range(step.n_in):          # blocks collected before may now be overwritten
            channel = step.in_channels[i]
            horn_release(self._counter(self.task, channel), self.collected[channel])
        horn_fence()
        for i in range(step.n_ring):
            self._ring(step.ring[i])

    cdef int _collect(self, Step step, uint64_t superstep, int64_t wait_ns,
                      bint first) noexcept nogil:
        cdef uint64_t *header
        cdef int i, channel, late
        for i in range(step.n_in):
            channel = step.in_channels[i]
            self.words[i] = self._counter(self.src[channel], channel)
            self.targets[i] = self.collected[channel] + 1
        late = self._wait(step.n_in, wait_ns, first)
        if late != ALL_HERE:
            return late
        for i in range(step.n_in):
            channel = step.in_channels[i]
            header = self._header(channel, self.collected[channel] + 1)
            if header[0] != self.collected[channel] + 1 or header[1] != superstep:
                self.bad, self.bad_got, self.bad_expected = channel, header[1], superstep
                return WRONG_STEP
        for i in range(step.n_in):
            self.collected[step.in_channels[i]] += 1
        return ALL_HERE

    def post(self, Step step, uint64_t superstep):
        """Publish this task's blocks, release those that it had collected."""
        with nogil:
            self._post(step, superstep)

    def collect(self, Step step, uint64_t superstep, double wait_s, bint first=True):
        """Wait for the blocks for this task: DONE, MISMATCH, or from 0: not all are here."""
        cdef int code
        with nogil:
            code = self._collect(step, superstep, <int64_t>(wait_s * 1e9), first)
        return code

    def exchange(self, Step step, uint64_t superstep, double wait_s):
        """Run ``post`` and ``collect`` in one call."""
        cdef int code
        with nogil:
            self._post(step, superstep)
            code = self._collect(step, superstep, <int64_t>(wait_s * 1e9), True)
        return code

    def is_published(self, int channel):
        return horn_acquire(self._counter(self.src[channel], channel)) > self.collected[channel]

    # coming and going

    def enter(self, int task, uint64_t handle):
        """Give the hub a task, and the handle by which its end is reported."""
        (<uint64_t *>(self.base[task] + STATE))[1] = handle

    def handle(self, int task):
        return (<uint64_t *>(self.base[task] + STATE))[1]

    def leave(self, bytes why):
        """Announce that this task sends nothing more, and wake all. why : the reason, at
        most as many bytes as there is room for.
        """
        cdef char *text = why
        cdef uint32_t size = len(why)
        cdef int task
        (<uint32_t *>(self.base[self.task] + REASON))[0] = size
        memcpy(self.base[self.task] + REASON + 4, text, size)
        horn_release(<uint64_t *>(self.base[self.task] + STATE), HAS_LEFT)
        for task in range(self.n_tasks):
            if task != self.task:
                self._call(task)

    def set_ended(self, int task):
        """Mark another task as ended without an announcement."""
        horn_release(<uint64_t *>(self.base[task] + STATE), HAS_ENDED)

    def reason(self, int task):
        """The reason that a task gave for leaving."""
        cdef uint32_t size = (<uint32_t *>(self.base[task] + REASON))[0]
        return self.base[task][REASON + 4 : REASON + 4 + min(size, COUNTERS - REASON - 4)]

    def say_digest(self, int at, bytes digest):
        """Set the digest of plan ``at``; the others read it after the next barrier."""
        cdef char *text = digest
        memcpy(self.base[self.task] + DIGESTS + DIGEST_BYTES * (at & 1), text, DIGEST_BYTES)

    def digest(self, int at, int task):
        cdef int begin = DIGESTS + DIGEST_BYTES * (at & 1)
        return self.base[task][begin : begin + DIGEST_BYTES]

    def call(self, int task):
        """Wake a task although no counter has moved."""
        self._call(task)

    cdef void _call(self, int task) noexcept nogil:
        horn_add(<uint32_t *>(self.base[task] + NEWS))
        horn_fence()
        self._ring(task)

    def state(self, int task):
        return horn_acquire(<uint64_t *>(self.base[task] + STATE))
