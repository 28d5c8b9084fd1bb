"""The operands of instructions, checked, in the structs of tape.h.

Arrays become addresses and strides, extents and factors entries of the tape's tables, a planned
loop (loops.py) a loop_t. What an instruction points to lives as long as its tape.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING


cdef char *at(array) except? NULL:
    """The address of an array."""
    return <char *><uintptr_t>array.ctypes.data


cdef int64_t leading(array) except -1:
    """The numbers from one row to the next: of a single row NumPy's stride says nothing."""
    return strides(array)[0] if len(array) > 1 else array.shape[1]


cdef class Binding:
    """The operands of one tape's instructions, and the memory that they point to."""

    cdef tape_t *t
    cdef readonly object dtype
    cdef list keep
    cdef dict bits  # address of a list of live neurons -> the same as bits
    cdef readonly set of_data  # addresses of arrays that data are read into
    cdef object pointers, extents  # of the first n_sorted instructions, sorted (moving.pxi)
    cdef int n_sorted

    def __init__(self, dtype):
        self.dtype, self.keep, self.bits, self.of_data = dtype, [], {}, set()
        self.n_sorted = -1

    cdef void *block(self, size_t size) except NULL:
        """Zeroed memory for an instruction, aligned to a cache line."""
        memory = bytearray(size + 64)
        self.keep.append(memory)
        cdef char *begin = PyByteArray_AS_STRING(memory)
        return begin + (-<int64_t>begin & 63)

    cdef int find_thin(self, gemm_t *g, c, inputs, ops, outputs) except -1:
        """Set the fields for thin.h if it can compute the loop."""
        w = patterns.added_to(c, inputs, ops, outputs)
        if w is not None:
            g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
            g.w = <float *>at(w)
            g.ldw = max(strides(w)[0], c.shape[1])
            return self.room_for_kernels()
        found = patterns.spread_over(c, inputs, ops, outputs)
        if found is None or g.beta.scalar >= 0 or g.beta.factor != 0:
            return 0
        w, velocity, decay = found
        rows, cols = w.index.get("m"), w.index.get("n")
        if cols is not None and cols.ctypes.data not in self.bits:
            return 0
        g.v, g.ldv = <float *>at(w.array), strides(w.array)[0]
        g.decay = self.coef(1.0 if decay is None else decay)
        if velocity is not None:
            g.w, g.ldw = g.v, g.ldv
            g.v = <float *>at(velocity.array)
            g.ldv = strides(velocity.array)[0]
        if rows is not None:
            g.rows = <const int32_t *>at(rows)
        if cols is not None:
            g.cols = <const int32_t *>at(cols)
            g.bits = <const uint16_t *>at(self.bits[cols.ctypes.data])
        return self.room_for_kernels()

    cdef int room_for_kernels(self) except -1:
        cdef void *block = NULL
        if self.t.packs:
            return 0
        self.t.packs = <char **>calloc(self.t.n_threads, sizeof(char *))
        if not self.t.packs:
            raise MemoryError
        for i in range(self.t.n_threads):
            if posix_memalign(&block, 64, KERNEL_BYTES):
                raise MemoryError
            self.t.packs[i] = <char *>block
        return 0

    cdef array(self, array, name, writes=False):
        self.keep.append(usable(array, name, writes))
        return array

    def rows_of(self, array, name, writes=False):
        """An array of this tape's type whose rows are contiguous."""
        array = self.array(array, name, writes=writes)
        if array.dtype != self.dtype or array.ndim != 2 \
                or array.shape[1] > 1 and array.size and array.strides[1] != array.itemsize \
                or len(array) > 1 and array.strides[0] < array.shape[1] * array.itemsize:
            raise ValueError(f"{name} is a matrix of {self.dtype} with contiguous rows, each after "
                             f"the one before, got {array.shape} of {array.dtype} with strides "
                             f"{array.strides}")
        return array

    def flat(self, array, name, dtype):
        array = self.array(array, name)
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is a contiguous vector of {np.dtype(dtype)}, got "
                             f"{array.shape} of {array.dtype}")
        return array

    cdef int room_for_windows(self, int64_t size) except -1:
        """Make room for the instructions over windows, which use it one after the other."""
        cdef void *block = NULL
        if size > self.t.panel_bytes:
            free(self.t.panel)
            self.t.panel, self.t.panel_bytes = NULL, 0
            if posix_memalign(&block, 64, size):
                raise MemoryError
            self.t.panel, self.t.panel_bytes = <char *>block, size
        return 0

    cdef extent_t extent(self, value, limit, name) except *:
        cdef extent_t e
        e.dim = -1
        if value is None:
            e.fixed = limit
            return e
        maximum = maximum_of(value)
        if maximum > limit or maximum < 0:
            raise ValueError(f"{name} may be {maximum}, but the array has {limit}")
        if isinstance(value, Dim):
            e.dim, e.fixed = value.index, maximum
        else:
            e.fixed = maximum
        return e

    cdef coef_t coef(self, value) except *:
        cdef coef_t c
        c.factor, c.scalar, c.per = 1.0, -1, -1
        if isinstance(value, Scalar):
            c.scalar = value.index
        elif isinstance(value, Coef):
            c.factor = value.factor
            if value.scalar is not None:
                c.scalar = value.scalar.index
            if value.per is not None:
                c.per = value.per.index
        else:
            c.factor = float(value)
        return c

    cdef int matrix(self, matrix_t *out, array, name, writes) except -1:
        array = self.array(array, name, writes)
        if array.ndim != 2 or array.dtype != self.dtype:
            raise ValueError(f"{name} must be a matrix of {self.dtype}, got {array.shape} of "
                             f"{array.dtype}")
        rows, cols = array.shape
        s0, s1 = strides(array)
        if is_row(array):
            s1 = 1
            s0 = max(s0, cols, 1) if rows <= 1 or cols == 0 else s0
            out.row, out.ld = 1, s0
        elif is_row(array.T):
            s0 = 1
            s1 = max(s1, rows, 1) if cols <= 1 else s1
            out.row, out.ld = 0, s1
        else:
            raise ValueError(f"{name} {array.shape} has strides {array.strides}: one of its axes "
                             f"must be contiguous; copy it first")
        out.data = at(array)
        out.stride[0], out.stride[1] = s0, s1
        return 0

    cdef gemm_t *gemm(self, a, b, c, alpha, beta, m, n, k, zeros="") except NULL:
        cdef gemm_t *g = <gemm_t *>self.block(sizeof(gemm_t))
        if self.t.wide:
            self.room_for_kernels()
        self.matrix(&g.a, a, "a", False)
        self.matrix(&g.b, b, "b", False)
        self.matrix(&g.c, c, "c", True)
        if a.shape[1] != b.shape[0] and k is None or a.shape[0] != c.shape[0] and m is None \
                or b.shape[1] != c.shape[1] and n is None:
            raise ValueError(f"a {a.shape} @ b {b.shape} does not give c {c.shape}")
        if np.may_share_memory(c, a) or np.may_share_memory(c, b):
            raise ValueError("c shares memory with a or b: a product cannot be made in place")
        g.m = self.extent(m, min(a.shape[0], c.shape[0]), "m")
        g.n = self.extent(n, min(b.shape[1], c.shape[1]), "n")
        g.k = self.extent(k, min(a.shape[1], b.shape[0]), "k")
        g.alpha, g.beta = self.coef(alpha), self.coef(beta)
        for array, name, which in ((a, "a", ZEROS_A), (b, "b", ZEROS_B)):
            if name == zeros or not zeros and array.ctypes.data in self.of_data:
                g.zeros = which
        return g

    cdef loop_t *loop(self, axes, inputs, ops, outputs, reduce, accumulate, offset,
                      order) except NULL:
        cdef int i
        cdef loop_t *l = <loop_t *>self.block(sizeof(loop_t))
        plan = loops.plan(dict(axes), list(inputs), list(ops), list(outputs), reduce, accumulate,
                          order)
        consts, program, results = plan.consts, plan.program, plan.results
        n_first = len(plan.slots) - len(program)
        l.n_out, l.n_ops, l.n_const = len(results), len(program), len(consts)
        l.n_in = n_first - len(consts)
        l.n_values, l.n_slots = len(plan.slots), plan.n_slots
        l.reduce, l.axis, l.fast = plan.reduce, plan.axis, plan.fast
        l.term = plan.term
        for i, role in enumerate(plan.roles):
            l.role[i] = role
        l.gate = plan.gate
        l.accumulate = bool(accumulate)
        l.view = <view_t *>self.block(len(plan.views) * sizeof(view_t))
        l.ops = <op_t *>self.block((len(program) + 1) * sizeof(op_t))
        l.consts = <coef_t *>self.block((len(consts) + 1) * sizeof(coef_t))
        l.slot = <int32_t *>self.block((len(plan.slots) + 1) * sizeof(int32_t))
        l.result = <int32_t *>self.block(len(results) * sizeof(int32_t))
        if len(plan.views) > FEW_VIEWS:
            l.room = <view_t *>self.block(2 * self.t.n_threads * len(plan.views) * sizeof(view_t))
        for i, extent in enumerate(plan.extents):
            l.extent[i] = self.extent(extent, 2**62, f"axis {plan.order[i]!r}")
        if plan.indptr is not None:
            l.indptr = <const int64_t *>at(plan.indptr)
        for i, view in enumerate(plan.views):
            self.view(&l.view[i], view, plan.order, plan.ragged)
        for i, free in enumerate(plan.direct):
            l.view[l.n_in + i].direct = free
        for i, c in enumerate(consts):
            l.consts[i] = self.coef(c)
        l.consts[len(consts)].factor = offset
        for i, (code, values) in enumerate(program):
            l.ops[i].op = code
            l.ops[i].a, l.ops[i].b, l.ops[i].c = (values + 2 * values[:1])[:3]
        for i, value in enumerate(results):
            l.result[i] = value
        for i, slot in enumerate(plan.slots):
            l.slot[i] = slot
        self.keep += plan.keep
        return l

    cdef const drawn_t *drawn(self, view) except NULL:
        """The struct for the draws of a view."""
        cdef drawn_t *g = <drawn_t *>self.block(sizeof(drawn_t))
        self.keep += [view.keys, view.sources, view.samples]
        g.iteration = self.t.dims + <int>view.iteration.index
        if view.samples is not None:
            g.samples = <const uint64_t *>at(view.samples)
        g.keys = <const uint32_t *>at(view.keys)
        g.sources = <const int64_t *>at(view.sources)
        g.n_keys = len(view.keys)
        g.n_sources = 0 if "e" in view.axes else len(view.sources)
        g.site, g.kind = view.site, DRAWS[view.kind]
        return g

    cdef int view(self, view_t *v, view, order, ragged) except -1:
        cdef int a
        if isinstance(view, Iota):
            v.dtype = IOTA
            v.data = <char *><intptr_t>view.offset
            v.stride[order.index(view.axis)] = 1
            v.local = view.axis in ragged
            return 0
        if isinstance(view, Drawn):
            v.dtype, v.drawn = DRAWN, self.drawn(view)
            for a in range(3):
                if order[a] in view.axes:
                    v.stride[a] = view.strides[order[a]]
                    if order[a] in view.index:
                        places = view.index[order[a]].ctypes.data
                        v.index[a] = <const int32_t *><uintptr_t>places
            return 0
        steps = strides(view.array)
        v.data = at(view.array)
        v.dtype = DTYPES[view.array.dtype]
        v.ascending = bool(view.ascending)
        for a in range(3):
            if order[a] in view.axes:
                v.stride[a] = steps[view.axes.index(order[a])]
                if order[a] in view.index:
                    places = view.index[order[a]].ctypes.data
                    v.index[a] = <const int32_t *><uintptr_t>places
                    if view.ascending and places in self.bits:
                        v.mask[a] = <const uint16_t *>at(self.bits[places])
        return 0
