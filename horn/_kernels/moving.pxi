"""Arrays whose memory changes between runs or steps, and the instructions that point into them.

`find_uses` has the one list of an instruction's pointers. Lists of places (indices, live
neurons) and the sources of loads are not in it: they stay, or are bound anew.
"""

cdef int note(uses_t *uses, void *place, char *begin, int64_t size) except -1:
    cdef char **pointer = <char **>place
    if not begin <= pointer[0] < begin + size:
        return 0
    pointers = <char ***>realloc(uses.pointer, (uses.n + 1) * sizeof(char **))
    if pointers:
        uses.pointer = pointers
    offsets = <int64_t *>realloc(uses.offset, (uses.n + 1) * sizeof(int64_t))
    if offsets:
        uses.offset = offsets
    if not (pointers and offsets):
        raise MemoryError
    pointers[uses.n], offsets[uses.n] = pointer, pointer[0] - begin
    uses.n += 1
    return 0


cdef int find_uses(uses_t *uses, tape_t *t, char *begin, int64_t size) except -1:
    """All pointers of the tape's instructions into the memory [begin, begin + size)."""
    cdef int i, j
    cdef ins_t *ins
    cdef drawn_t *drawn
    for i in range(t.n_ins):
        ins = &t.ins[i]
        if ins.gemm:
            note(uses, &ins.gemm.a.data, begin, size)
            note(uses, &ins.gemm.b.data, begin, size)
            note(uses, &ins.gemm.c.data, begin, size)
            note(uses, &ins.gemm.v, begin, size)
            note(uses, &ins.gemm.w, begin, size)
            for j in range(ins.gemm.n_parts):
                note(uses, &ins.gemm.part[j], begin, size)
        if ins.loop:
            for j in range(ins.loop.n_in + ins.loop.n_out):
                if ins.loop.view[j].dtype < IOTA:
                    note(uses, &ins.loop.view[j].data, begin, size)
                elif ins.loop.view[j].dtype == DRAWN:
                    drawn = <drawn_t *>ins.loop.view[j].drawn
                    note(uses, &drawn.samples, begin, size)
        if ins.conv:
            note(uses, &ins.conv.x, begin, size)
            note(uses, &ins.conv.w, begin, size)
            note(uses, &ins.conv.out, begin, size)
            note(uses, &ins.conv.bias, begin, size)
            note(uses, &ins.conv.gate, begin, size)
        if ins.pool:
            note(uses, &ins.pool.x, begin, size)
            note(uses, &ins.pool.out, begin, size)
            note(uses, &ins.pool.where, begin, size)
            note(uses, &ins.pool.upper, begin, size)
            note(uses, &ins.pool.gate, begin, size)
        if ins.rank:
            note(uses, &ins.rank.in_, begin, size)
            note(uses, &ins.rank.out, begin, size)
        if ins.draw:
            note(uses, &ins.draw.out, begin, size)
            note(uses, &ins.draw.samples, begin, size)
        if ins.load:
            note(uses, &ins.load.out, begin, size)
        if ins.live:
            note(uses, &ins.live.mask, begin, size)
    return 0


cdef void point(uses_t *uses, char *memory) noexcept nogil:
    """Point all uses of the array to memory that begins here."""
    cdef int i
    for i in range(uses.n):
        uses.pointer[i][0] = memory + uses.offset[i]


cdef void forget(uses_t *uses) noexcept:
    free(uses.pointer)
    free(uses.offset)


cdef class Anchor:
    """A contiguous array of a tape, which can be moved to other memory."""

    cdef uses_t uses
    cdef int64_t size
    cdef object memory

    def __init__(self, Binding bind, array):
        self.memory, self.size = array, array.nbytes
        find_uses(&self.uses, bind.t, at(array), self.size)

    def __dealloc__(self):
        forget(&self.uses)

    def settle(self, memory):
        """Move the array to this memory: contiguous, as large as before."""
        cdef Py_buffer view
        PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
        try:
            if view.len != self.size:
                raise ValueError(f"an array of {self.size} bytes cannot lie in {view.len}")
            point(&self.uses, <char *>view.buf)
            self.memory = memory
        finally:
            PyBuffer_Release(&view)


cdef class Moves:
    """The arrays of a tape that move at each step, and the loads that read another part."""

    cdef tape_t *t
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
        self.n_moving += 1
        return find_uses(&m.uses, self.t, at(array), size)

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
        for i in range(self.n_moving):
            m = &self.moving[i]
            point(&m.uses, m.memory + m.unit * (m.first + (0 if m.stays else step)) * (
                1 if m.dim < 0 else self.t.dims[m.dim]))
        for i in range(self.n_stepped):
            s = &self.stepped[i]
            if s.load:
                s.load.source = s.base + (self.first_step + step) * s.stride
