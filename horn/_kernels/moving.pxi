"""Arrays whose memory changes between runs or steps, and the instructions that point into them.

`pointers_of` (bands.c) has the one list of an instruction's pointers.
"""

cdef tuple all_pointers(tape_t *t):
    """Of the pointers of the tape's instructions, sorted by what they point to: this, where they
    are, and whether an instruction writes there.
    """
    cdef int64_t n = 0, k
    cdef int i
    for i in range(t.n_ins):
        n += pointers_of(&t.ins[i], t.dtype, NULL)
    memory = np.empty(n * sizeof(pointed_t), np.uint8)
    addresses, places, written = np.empty(n, np.uintp), np.empty(n, np.uintp), np.empty(n, bool)
    cdef pointed_t *found = <pointed_t *>at(memory)
    cdef uintptr_t *address = <uintptr_t *>at(addresses)
    cdef uintptr_t *place = <uintptr_t *>at(places)
    cdef uint8_t *writes = <uint8_t *>at(written)
    n = 0
    for i in range(t.n_ins):
        n += pointers_of(&t.ins[i], t.dtype, found + n)
    for k in range(n):
        address[k], place[k] = <uintptr_t>found[k].at[0], <uintptr_t>found[k].at
        writes[k] = found[k].is_written
    order = np.argsort(addresses, kind="stable")
    return addresses[order], places[order], written[order]


cdef bint find_uses(uses_t *uses, Binding bind, char *begin, int64_t size) except *:
    """All pointers of the tape's instructions into the memory [begin, begin + size); whether an
    instruction writes there. Raises ValueError if one of their arrays goes beyond it.
    """
    cdef int64_t k, first, last
    if bind.n_sorted != bind.t.n_ins:  # once for all arrays that are looked up before any moves
        bind.pointers = all_pointers(bind.t)
        bind.extents = np.array([(x.ctypes.data, *_bounds(x)) for x in bind.keep
                                 if isinstance(x, np.ndarray) and x.nbytes],
                                np.uintp).reshape(-1, 3).T
        bind.n_sorted = bind.t.n_ins
    starts, lowest, ends = bind.extents
    low, past = <uintptr_t>begin, <uintptr_t>begin + size
    beyond = (low <= starts) & (starts < past) & ((lowest < low) | (past < ends))
    if beyond.any():
        reach = int((ends - lowest)[beyond].max())
        raise ValueError(f"an array of {size} bytes cannot move: instructions have an array of "
                         f"{reach} bytes that begins in it and ends beyond it; move what has all of "
                         "its memory")
    addresses, places, written = bind.pointers
    first, last = np.searchsorted(
        addresses, np.array([<uintptr_t>begin, <uintptr_t>begin + size], np.uintp))
    if last <= first:
        return False
    uses.pointer = <char ***>calloc(last - first, sizeof(char **))
    uses.offset = <int64_t *>calloc(last - first, sizeof(int64_t))
    if not (uses.pointer and uses.offset):
        raise MemoryError
    for k in range(last - first):
        uses.pointer[k] = <char **><uintptr_t>places[first + k]
        uses.offset[k] = uses.pointer[k][0] - begin
    uses.n = last - first
    return bool(written[first:last].any())


cdef void point(uses_t *uses, char *memory) noexcept nogil:
    """Point all uses of the array to memory that begins here."""
    cdef int i
    for i in range(uses.n):
        uses.pointer[i][0] = memory + uses.offset[i]


cdef void forget(uses_t *uses) noexcept:
    free(uses.pointer)
    free(uses.offset)


cdef class Anchor:
    """A contiguous array of a tape, which can be moved to other memory.

    It keeps the instructions, and they keep ``held``, where the array lies now.
    """

    cdef uses_t uses
    cdef int64_t size
    cdef bint is_written
    cdef Binding bind
    cdef list held

    def __init__(self, Binding bind, array):
        self.bind, self.held, self.size = bind, [array], array.nbytes
        self.is_written = find_uses(&self.uses, bind, at(array), self.size)

    def __dealloc__(self):
        forget(&self.uses)

    def settle(self, memory):
        """Move the array to this memory: contiguous, as large as before, writable if an instruction
        writes the array.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
        try:
            if view.len != self.size:
                raise ValueError(f"an array of {self.size} bytes cannot lie in {view.len}")
            if view.readonly and self.is_written:
                raise ValueError("an array that instructions write cannot lie in read-only memory: "
                                 "give a writable copy")
            point(&self.uses, <char *>view.buf)
            self.bind.n_sorted = -1
            self.held[0] = memory
        finally:
            PyBuffer_Release(&view)


cdef class Moves:
    """The arrays of a tape that move at each step, and the loads that read another part."""

    cdef tape_t *t
    cdef Binding bind
    cdef moving_t *moving
    cdef stepped_t *stepped
    cdef int n_moving, n_stepped
    cdef int64_t first_step
    cdef bands_t **bands  # of instructions that were repeated, by rows
    cdef int n_bands

    def __dealloc__(self):
        cdef int i
        self.drop_bands()
        for i in range(self.n_moving):
            forget(&self.moving[i].uses)
        free(self.moving)
        free(self.stepped)

    cdef void drop_bands(self) noexcept:
        """Free the bands, which point into this object and the tape's instructions."""
        cdef int i
        for i in range(self.n_bands):
            bands_free(self.bands[i])
        free(self.bands)
        self.bands, self.n_bands = NULL, 0

    cdef bands_t *bands_of(self, int32_t first, int32_t last) except NULL:
        """The bands of these instructions, made at the first use."""
        cdef int i
        for i in range(self.n_bands):
            if bands_are(self.bands[i], first, last):
                return self.bands[i]
        more = <bands_t **>realloc(self.bands, (self.n_bands + 1) * sizeof(bands_t *))
        if not more:
            raise MemoryError
        self.bands = more
        self.bands[self.n_bands] = bands_make(
            self.t, first, last, self.moving, self.n_moving, self.stepped, self.n_stepped)
        if not self.bands[self.n_bands]:
            raise MemoryError
        self.n_bands += 1
        return self.bands[self.n_bands - 1]

    cdef int add(self, array, memory, int64_t first, int64_t unit, int dim, bint stays) except -1:
        cdef int64_t size = array.itemsize + sum(
            (n - 1) * s for n, s in zip(array.shape, array.strides)) if array.size else 0
        self.drop_bands()
        moving = <moving_t *>realloc(self.moving, (self.n_moving + 1) * sizeof(moving_t))
        if not moving:
            raise MemoryError
        self.moving = moving
        cdef moving_t *m = &moving[self.n_moving]
        memset(m, 0, sizeof(moving_t))
        m.memory, m.first, m.unit, m.dim, m.stays = at(memory), first, unit, dim, stays
        find_uses(&m.uses, self.bind, at(array), size)
        self.n_moving += 1
        return 0

    cdef int add_load(self, int number, int columns) except -1:
        self.drop_bands()
        stepped = <stepped_t *>realloc(self.stepped, (self.n_stepped + 1) * sizeof(stepped_t))
        if not stepped:
            raise MemoryError
        self.stepped = stepped
        memset(&stepped[self.n_stepped], 0, sizeof(stepped_t))
        stepped[self.n_stepped].number, stepped[self.n_stepped].columns = number, columns
        self.n_stepped += 1
        return 0

    cdef void rebind(self, int number, load_t *load, int64_t column_stride) noexcept:
        """Let the load with this number read another source."""
        cdef int i
        for i in range(self.n_stepped):
            if self.stepped[i].number == number:
                self.stepped[i].load, self.stepped[i].base = load, load.source
                self.stepped[i].stride = self.stepped[i].columns * column_stride

    cdef void seek(self, int64_t step) noexcept nogil:
        cdef moving_t *m
        cdef stepped_t *s
        cdef int i
        self.bind.n_sorted = -1
        for i in range(self.n_moving):
            m = &self.moving[i]
            point(&m.uses, m.memory + m.unit * (m.first + (0 if m.stays else step)) * (
                1 if m.dim < 0 else self.t.dims[m.dim]))
        for i in range(self.n_stepped):
            s = &self.stepped[i]
            if s.load:
                s.load.source = s.base + (self.first_step + step) * s.stride
