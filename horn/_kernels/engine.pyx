"""A tape of array instructions that runs without Python.

Python appends instructions once, over NumPy arrays that the tape keeps alive; `tape.run()` then
executes them from C: no allocation, no GIL, every thread of the tape through every instruction,
with a barrier after each. Shapes are checked here, when an instruction is appended, never in the
loops (tape.h, strips.h). What changes between runs are two tables: whole numbers in `dims` (rows
of this batch, live neurons, iteration) and doubles in `scalars` (learning rate, momentum).

    tape = Tape(np.float32, n_threads=2)
    rows = tape.dim(100)                        # at most 100; tape.dims[rows.index] = 73 later
    rate, momentum = tape.scalar(0.1), tape.scalar(0.9)

    tape.load(images, picks, x, rows=rows, scale=1 / 255)
    tape.draw(mask, "bernoulli", key=(1, 2), site=0, rows=rows, samples=samples,
              iteration=step, below=0.5)
    tape.gemm(x, w.T, z, m=rows)                # z = x @ w.T, any two strides, one of them 1
    tape.loop({"b": rows, "o": 512},            # y = relu(z + b)
              [View(z, "bo"), View(b, "o")],
              [("add", 0, 1), ("relu", 2)],
              [(View(y, "bo"), 3)])
    tape.loop({"b": rows, "o": 10}, [View(z, "bo")], [],
              [(View(top, "b"), 0)], reduce=("max", "o"))
    tape.gemm_loop(delta.T, x, v,               # v = momentum v - rate/rows delta' x; w += v
                   alpha=Coef(-1.0, rate, per=rows), beta=momentum, k=rows,
                   inputs=[View(w, "mn"), View(v, "mn")], ops=[("add", 0, 1)],
                   outputs=[(View(w, "mn"), 2)])
    tape.live(mask, kept, count)                # kept[:count] = where mask is not zero
    tape.run()

A loop's values are numbered: first its inputs (views, iotas, constants, scalars), then one per
operation. Its axes may come in any order and any layout: the tape orders them for the cache.
"""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset, strchr
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer)

import os

import numpy as np

from horn._kernels import blas as _blas
from horn._kernels import loops, patterns
from horn._kernels.operands import (
    DTYPES, Coef, Dim, Drawn, Iota, Ragged, Scalar, View, is_row, known, maximum_of, strides,
    usable)


cdef extern from "tape.h":
    ctypedef struct extent_t:
        int64_t fixed
        int32_t dim
    ctypedef struct coef_t:
        double factor
        int32_t scalar, per
    ctypedef struct drawn_t:
        const int64_t *iteration
        const uint64_t *samples
        const uint32_t *keys
        const int64_t *sources
        int64_t n_keys, n_sources
        uint32_t site
        int32_t kind
    ctypedef struct view_t:
        char *data
        int64_t stride[3]
        const int32_t *index[3]
        const uint16_t *mask[3]
        int32_t dtype, ascending, local, direct
        const drawn_t *drawn
    ctypedef struct op_t:
        int32_t op, dst, a, b, c
    ctypedef struct loop_t:
        extent_t extent[3]
        const int64_t *indptr
        int32_t n_in, n_out, n_ops, n_const, n_values, n_slots, reduce, axis, accumulate, fast, term
        int32_t role[8]
        int32_t gate
        view_t *view
        view_t *room
        op_t *ops
        coef_t *consts
        int32_t *slot
        int32_t *result
    ctypedef struct matrix_t:
        char *data
        int64_t stride[2]
        int64_t ld
        int32_t row
    ctypedef struct gemm_t:
        matrix_t a, b, c
        extent_t m, n, k
        coef_t alpha, beta
        int64_t block
        float *v
        float *w
        int64_t ldv, ldw
        const int32_t *rows
        const int32_t *cols
        const uint16_t *bits
        coef_t decay
        int32_t n_parts
        const float *part[7]
        int64_t ldpart[7]
        int32_t live
        float *panels
        int32_t followers
    ctypedef struct draw_t:
        char *out
        int64_t stride[2]
        int32_t dtype, kind
        extent_t rows, neurons
        const uint64_t *samples
        int32_t iteration
        uint32_t key[2]
        uint32_t site
        int64_t first
        coef_t below
    ctypedef struct load_t:
        const char *source
        int64_t row_stride, col_stride
        int32_t dtype
        const int64_t *index
        char *out
        int64_t stride[2]
        int32_t out_dtype
        extent_t rows, cols
        coef_t scale
        const char *center
        const char *factor
    ctypedef struct live_t:
        const char *mask
        int64_t stride
        int32_t dtype
        extent_t n
        int32_t *list
        uint16_t *bits
        int32_t dim
    ctypedef struct conv_t:
        int32_t kind, end
        char *x
        char *w
        char *out
        char *packed
        char *bias
        char *gate
        int64_t ldx, ldw, ldo, ldz, n_groups, n_units, n_r, n_rows, step, n_x
        int64_t room_bytes
        extent_t rows
        const int64_t *ptr
        const int64_t *base
        const int32_t *src
        const int32_t *row
        const int32_t *unit
    ctypedef struct pool_t:
        int32_t kind, end
        char *x
        char *out
        char *where
        char *upper
        char *gate
        const char *place
        const uint8_t *same
        int64_t ldx, ldo, ldw, ldu, ldz, n_groups
        extent_t rows
        const int64_t *ptr
        const int32_t *src
    ctypedef struct ins_t:
        int32_t kind, numpy
        int64_t ns
        gemm_t *gemm
        loop_t *loop
        draw_t *draw
        load_t *load
        live_t *live
        conv_t *conv
        pool_t *pool
    ctypedef void (*gemm_numpy_t)(void *, const gemm_t *, int64_t, int64_t, int64_t, double,
                                  double) noexcept nogil
    ctypedef struct tape_t:
        int32_t dtype, n_threads, n_ins, room, spin, profile, ilp64
        ins_t *ins
        int64_t *dims
        double *scalars
        void *sgemm
        void *dgemm
        gemm_numpy_t numpy_gemm
        void *owner
        char **scratch
        int64_t scratch_bytes
        char *panel
        int64_t panel_bytes
        char **packs
        int32_t wide
        int32_t packed
        void *blas_get
        void *blas_set
        void *worker
        int64_t pid
    int MAX_STACKED, FEW_VIEWS, STRIP_BYTES, LEVEL_USED, MAX_PARTS, WINDOW_DEEP
    int IOTA, DRAWN
    int K_GEMM, K_LOOP, K_GEMM_LOOP, K_DRAW, K_LOAD, K_LIVE, K_WINDOWS, K_POOL
    int END_BIAS, END_RELU, END_GATE
    void choose_level(int) nogil
    int is_intel() nogil
    int start_threads(tape_t *) nogil
    void stop_threads(tape_t *) nogil
    void tape_run(tape_t *, int32_t, int32_t) nogil
    void tape_pack(tape_t *, int32_t, int32_t) nogil
    void tape_free(tape_t *) nogil
    void free_loop(loop_t *) nogil

cdef extern from "thin.h":
    int KERNEL_BYTES
    int64_t WIDE_PANELS(int64_t, int64_t)

cdef extern from "unistd.h" nogil:
    int getpid()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)

# Laying weights out pays when they are used as often.
cdef int64_t STEPS_TO_PACK = 3
MAX_DIMS = 256
MAX_SCALARS = 1024

DRAWS = {"uniform": 0, "normal": 1, "bernoulli": 2}

# The processor level of the loops: 0 plain, 1 AVX2, 2 AVX-512. HORN_SIMD lowers it, for tests.
choose_level(int(os.environ.get("HORN_SIMD", "2")))
LEVEL = LEVEL_USED


def _same(ptr, src):
    """Whether each row's part of src is that of the row before, as bytes."""
    counts = np.diff(ptr)
    n = len(counts)
    starts = ptr[:n]
    before = np.roll(starts, 1)
    place = np.arange(len(src)) + np.repeat(before - starts, counts)
    differs = np.zeros(len(src) + 1, np.int64)
    np.cumsum(src != src[np.clip(place, 0, max(len(src) - 1, 0))], out=differs[1:])
    same = (differs[ptr[1:]] == differs[starts]) & (counts == np.roll(counts, 1))
    same[:1] = False
    return same.astype(np.uint8)


def _units(ptr, row):
    """Groups by two that have the same rows of weights, the others alone: (units, 2) int32, -1 for
    none."""
    waiting, units = {}, []
    for k in range(len(ptr) - 1):
        key = row[ptr[k]:ptr[k + 1]].tobytes()
        if key in waiting:
            waiting.pop(key).append(k)
        else:
            waiting[key] = [k]
            units.append(waiting[key])
    return np.array([[*unit, -1][:2] for unit in units], np.int32)


cdef class Anchor:
    """All pointers of a tape into one array, which can so be moved to other memory."""

    cdef char **to[64]
    cdef int n
    cdef char *now
    cdef int64_t size
    cdef object memory

    cdef int note(self, char **pointer, char *begin, int64_t size) except -1:
        if begin <= pointer[0] < begin + size:
            if self.n == 64:
                raise ValueError("more than 64 places of a tape use an array that is to move")
            self.to[self.n] = pointer
            self.n += 1
        return 0

    cdef int refuse(self, char *pointer, char *begin, int64_t size) except -1:
        if begin <= pointer < begin + size:
            raise ValueError("an array that data, draws or live neurons are in cannot move")
        return 0

    def settle(self, memory):
        """From now on the array lies in this memory: contiguous, as large as it was."""
        cdef Py_buffer view
        cdef int i
        PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
        try:
            if view.len != self.size:
                raise ValueError(f"an array of {self.size} bytes cannot lie in {view.len}")
            for i in range(self.n):
                self.to[i][0] += <char *>view.buf - self.now
            self.now, self.memory = <char *>view.buf, memory
        finally:
            PyBuffer_Release(&view)


ctypedef struct place_t:
    char **to  # a pointer of an instruction
    int64_t offset  # from where the array begins
    int32_t array


ctypedef struct moving_t:
    char *memory
    int64_t first, unit  # the step at which it begins, and bytes of one row, or of one step
    int32_t dim, stays  # the rows of a step (-1: the unit is a step's); whether it is of all steps


ctypedef struct stepped_t:
    load_t *load
    const char *base
    int64_t stride
    int32_t number, columns


cdef class Tape:
    """Instructions, their arrays and the threads that run them.

    dtype : float32 or float64, the type of all arithmetic.
    n_threads : threads of one run, this one among them; they are started by the first run.
    blas : a `horn._kernels.blas.Blas`, by default the one that `blas.load()` finds.

    Raises ValueError when an instruction's shapes or names do not fit.
    """

    cdef tape_t t
    cdef readonly object dtype, blas, dims, scalars
    cdef list keep
    cdef list labels
    cdef int n_dims, n_scalars
    cdef dict sources, bits
    cdef object failure
    cdef bint in_python  # products go back to NumPy
    cdef place_t *places  # of arrays that move from step to step
    cdef moving_t *moving
    cdef stepped_t *stepped  # loads that read other columns at each step
    cdef int n_places, n_moving, n_stepped
    cdef int64_t first_step

    def __cinit__(self, dtype=np.float32, n_threads=1, blas=None):
        memset(&self.t, 0, sizeof(tape_t))

    def __init__(self, dtype=np.float32, n_threads=1, blas=None):
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"a tape computes in float32 or float64, not {self.dtype}")
        if n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}; a tape needs at least 1")
        self.blas = blas if blas is not None else _blas.load()
        self.keep, self.labels, self.sources, self.failure = [], [], {}, None
        self.bits = {}
        cdef tape_t *t = &self.t
        t.dtype = DTYPES[self.dtype]
        t.n_threads = n_threads
        t.ilp64 = self.blas.is_ilp64
        t.sgemm = <void *><uintptr_t>self.blas.sgemm
        t.dgemm = <void *><uintptr_t>self.blas.dgemm
        t.blas_get = <void *><uintptr_t>self.blas.get_threads
        t.blas_set = <void *><uintptr_t>self.blas.set_threads
        # wide.c beats a library that does not use all that the processor has; Intel's does on Intel's
        t.wide = (t.dtype == 0 and LEVEL == 2 and not self.blas.is_asked
                  and not (self.blas.name == "mkl" and is_intel()))
        self.in_python = self.blas.sgemm == 0 and not t.wide
        t.numpy_gemm = numpy_gemm
        t.owner = <void *>self
        # spinning pays only while every thread has a core (pure spinning collapses beyond that)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        t.spin = 2000 if n_threads <= cores else 0
        t.scratch = <char **>calloc(n_threads, sizeof(char *))
        if not t.scratch:
            raise MemoryError
        self.dims, self.scalars = np.zeros(MAX_DIMS, np.int64), np.zeros(MAX_SCALARS)
        t.dims = <int64_t *><uintptr_t>self.dims.ctypes.data
        t.scalars = <double *><uintptr_t>self.scalars.ctypes.data

    def __dealloc__(self):
        tape_free(&self.t)
        free(self.places)
        free(self.moving)
        free(self.stepped)

    def __len__(self):
        return self.t.n_ins

    @property
    def products(self):
        """Who makes the products: "horn" (wide.c) or the name of the BLAS."""
        return "horn" if self.t.wide else self.blas.name

    @property
    def n_threads(self):
        return self.t.n_threads

    # ---- tables ----

    def dim(self, maximum):
        """A new entry of `dims`; it starts at its maximum."""
        if self.n_dims == MAX_DIMS:
            raise ValueError(f"a tape has {MAX_DIMS} dims, and all are taken")
        self.dims[self.n_dims] = maximum
        self.n_dims += 1
        return Dim(self.n_dims - 1, int(maximum))

    def scalar(self, value=0.0):
        """A new entry of `scalars`."""
        if self.n_scalars == MAX_SCALARS:
            raise ValueError(f"a tape has {MAX_SCALARS} scalars, and all are taken")
        self.scalars[self.n_scalars] = value
        self.n_scalars += 1
        return Scalar(self.n_scalars - 1)

    # ---- instructions: each returns its number ----

    def gemm(self, a, b, c, *, alpha=1.0, beta=0.0, m=None, n=None, k=None, thin=False,
             steady=False, label=""):
        """c = alpha * a @ b + beta * c, over the first m, n, k of (m, k) @ (k, n) -> (m, n).

        With beta 0, what c held does not matter. alpha and beta are floats, scalars or coefs.
        thin : by the kernel of thin.c where it can. steady : b is the same at every step of a
        `repeat`; it is laid out once for all of them, where the products are wide.c's, and such
        products of one a, one after the other, are one.
        """
        cdef gemm_t *g = self._gemm(a, b, c, alpha, beta, m, n, k)
        if thin and self.t.dtype == 0 and g.c.row and not self.in_python:
            g.v, g.ldv = <float *>g.c.data, g.c.ld
            self._room_for_kernels()
        cdef ins_t *ins = self._append(K_GEMM, label or "gemm", g, NULL)
        ins.numpy = self.in_python
        if steady and not thin and self.t.wide and g.c.row and g.m.fixed and g.n.fixed:
            self._keep_panels(g)
        return self.t.n_ins - 1

    cdef int _keep_panels(self, gemm_t *g) except -1:
        """Room for the panels of the last instruction's b; it goes with those before it."""
        cdef void *block = NULL
        cdef gemm_t *before
        cdef int i
        if posix_memalign(&block, 64, max(64, 4 * WIDE_PANELS(g.n.fixed, g.k.fixed))):
            raise MemoryError
        g.panels = <float *>block
        for i in range(self.t.n_ins - 2, max(-1, self.t.n_ins - MAX_STACKED - 1), -1):
            before = self.t.ins[i].gemm
            if self.t.ins[i].kind != K_GEMM or not before.panels or before.a.data != g.a.data \
                    or before.a.stride[0] != g.a.stride[0] or before.a.stride[1] != g.a.stride[1] \
                    or before.m.fixed != g.m.fixed or before.m.dim != g.m.dim \
                    or before.k.fixed != g.k.fixed or before.k.dim != g.k.dim:
                break
            before.followers = self.t.n_ins - 1 - i

    @property
    def reads_live(self):
        """Whether `live_gemm` is there: float32, AVX-512 and products without NumPy."""
        return self.t.dtype == 0 and LEVEL == 2 and not self.in_python

    def live_gemm(self, a, w, c, *, m=None, n=None, k=None, beta=0.0, label=""):
        """c = a @ b + beta * c, where b is `w`, a matrix at live places: a View over "kn" or "nk"
        whose index lists ascend. One kernel (live.h), for a thin batch: m is at most 256.
        """
        if not self.reads_live:
            raise ValueError("live_gemm needs float32, AVX-512 and products without NumPy: gather, "
                             "then gemm")
        place, turned = w.array, w.axes == ("n", "k")
        if w.axes not in (("k", "n"), ("n", "k")) or not is_row(place) or not w.ascending:
            raise ValueError(f'b is a row-major View over "kn" or "nk" with ascending lists, got '
                             f"{w.axes} of strides {place.strides}")
        cdef gemm_t *g = self._gemm(a, place.T if turned else place, c, 1.0, beta, m, n, k)
        try:
            if g.m.fixed > 256:
                raise ValueError(f"m may be {g.m.fixed}, but the batch must be at most 256")
            g.live = 1 if turned else 2
            g.w, g.ldw = <float *><uintptr_t>place.ctypes.data, strides(place)[0]
            for axis, index in w.index.items():
                index = self._array(index, f"the index list of {axis!r}")
                if (axis == "k") == turned:
                    if index.ctypes.data not in self.bits:
                        raise ValueError(f"the list of {axis!r} does not come from `live`")
                    g.cols = <const int32_t *><uintptr_t>index.ctypes.data
                    g.bits = <const uint16_t *><uintptr_t>self.bits[index.ctypes.data].ctypes.data
                else:
                    g.rows = <const int32_t *><uintptr_t>index.ctypes.data
            self._room_for_kernels()
        except BaseException:
            free(g)
            raise
        self._append(K_GEMM, label or "live_gemm", g, NULL)
        return self.t.n_ins - 1

    def gemm_loop(self, a, b, c, *, inputs, ops, outputs, alpha=1.0, beta=0.0, m=None, n=None,
                  k=None, block=0, label=""):
        """A GEMM, then an elementwise loop over the axes "m" and "n" of c, by blocks of rows.

        In float32 with a thin k, and with beta 0 in the latter two, one kernel (thin.c) does

            w += c
            w += c                               with w at live rows and columns
            v = decay v + c;  w += v             with v and w at live rows and columns

        and in the latter two c is left as it was. Otherwise `block` is the number of rows between
        product and loop; 0 is all of a thread's rows, because a BLAS packs b again for every block,
        and that costs more than a second pass over c.
        """
        c = np.asarray(c)
        if c.ndim == 2 and not is_row(c) and is_row(c.T):
            swap = {"m": "n", "n": "m"}
            return self.gemm_loop(
                np.asarray(b).T, np.asarray(a).T, c.T, alpha=alpha, beta=beta, m=n, n=m, k=k,
                inputs=[patterns.renamed(v, swap) for v in inputs], ops=ops, block=block, label=label,
                outputs=[(patterns.renamed(v, swap), value) for v, value in outputs])
        rows = c.shape[0] if m is None else m
        cols = c.shape[1] if n is None else n
        cdef loop_t *l = self._loop({"m": rows, "n": cols}, inputs, ops, outputs, None, False, 0,
                                    ("m", None, "n"))
        cdef gemm_t *g
        try:
            g = self._gemm(a, b, c, alpha, beta, m, n, k)
        except BaseException:
            free_loop(l)
            raise
        g.block = block or 2**30
        if self.t.dtype == 0 and g.c.row:
            self._find_thin(g, c, list(inputs), list(ops), list(outputs))
        cdef ins_t *ins = self._append(K_GEMM_LOOP, label or "gemm_loop", g, l)
        ins.numpy = self.in_python
        return self.t.n_ins - 1

    def update(self, a, b, w, *, alpha, v=None, decay=0.0, parts=(), k=None, label=""):
        """g = a @ b + the sum of parts; v = decay v + alpha g; w += v.

        Without v: w += alpha g. All of (m, n), which a is (m, k) and b (k, n) for. In float32 with
        a thin k one pass (thin.c), else a product and a loop.
        """
        c = w if v is None else v
        inputs = [View(x, "mn") for x in ([w] if v is None else [w, v])]
        ops, last, place = [], 0 if v is None else 1, len(inputs)
        if parts:
            inputs += [View(x, "mn") for x in parts] + [Coef(alpha.factor, alpha.scalar, alpha.per)]
            total, value = place, len(inputs)
            for other in range(place + 1, place + len(parts)):
                ops.append(("add", total, other))
                total, value = value, value + 1
            ops.append(("fma", total, place + len(parts), last))
            last, place = value, value + 1
        outputs = []
        if v is not None:
            if parts:
                outputs.append((View(v, "mn"), last))
            ops.append(("add", 0, last))
            last = place
        if v is not None or parts:
            outputs.append((View(w, "mn"), last))
        beta = 1.0 if v is None else decay
        if not outputs:
            return self.gemm(a, b, c, alpha=alpha, beta=beta, k=k, label=label)
        number = self.gemm_loop(a, b, c, alpha=alpha, beta=beta, k=k, inputs=inputs, ops=ops,
                                outputs=outputs, label=label)
        cdef gemm_t *g = self.t.ins[number].gemm
        rows = [np.asarray(x) for x in (w, c, *parts)]
        if self.t.dtype or len(parts) > MAX_PARTS or not g.c.row or not all(map(is_row, rows)):
            return number
        n = c.shape[1]
        g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
        if v is not None:
            g.w, g.ldw = <float *><uintptr_t>w.ctypes.data, max(strides(w)[0], n)
        g.n_parts = len(parts)
        for i, part in enumerate(parts):
            g.part[i] = <const float *><uintptr_t>part.ctypes.data
            g.ldpart[i] = max(strides(part)[0], n)
        self._room_for_kernels()
        return number

    def loop(self, axes, inputs, ops, outputs, *, reduce=None, accumulate=False, offset=0,
             label=""):
        """One fused pass over up to three axes.

        axes : {name: int, Dim or Ragged}.
        inputs : views, iotas, numbers, scalars and coefs; they are values 0, 1, ...
        ops : (name, value, ...) each; the next values.
        outputs : (view, value) pairs; every view has all the axes that are not reduced.
        reduce : (monoid, axis): the value is folded over that axis and the output gets the result;
            "argmax" writes the first place of the maximum, plus `offset`, -1 where there is none,
            and to a second output, if there is one, the maximum.
        accumulate : start from what the output holds (argmax: from both outputs).
        """
        cdef loop_t *l = self._loop(axes, inputs, ops, outputs, reduce, accumulate, offset, None)
        self._append(K_LOOP, label or "loop", NULL, l)
        return self.t.n_ins - 1

    def draw(self, out, kind, *, key, site, iteration, rows=None, neurons=None, samples=None,
             first=0, below=None, label=""):
        """Fill out (rows, neurons) with "uniform", "normal" or "bernoulli" (1 where u < below).

        samples : uint64 array of global sample numbers, or None for a draw that all share.
        first : the number of the first neuron. iteration : a Dim. See `horn.random`.
        """
        out = self._array(out, "out", writes=True)
        if out.ndim != 2 or out.dtype != self.dtype:
            raise ValueError(f"out must be (rows, neurons) of {self.dtype}, got {out.shape} of "
                             f"{out.dtype}")
        if kind not in DRAWS:
            raise ValueError(f"no draw is called {kind!r}; there are {', '.join(DRAWS)}")
        if (below is not None) != (kind == "bernoulli"):
            raise ValueError('"bernoulli" needs below=, and nothing else takes it')
        if not isinstance(iteration, Dim):
            raise ValueError("iteration must be a Dim: it changes with every run")
        if not 0 <= site < 2**15:
            raise ValueError(f"site is {site}; it must be in [0, 32768)")
        if samples is not None:
            samples = self._array(samples, "samples")
            if samples.dtype != np.uint64 or samples.ndim != 1 or len(samples) < out.shape[0]:
                raise ValueError(f"samples must be uint64, at least {out.shape[0]} of them")
            if not samples.flags.c_contiguous:
                raise ValueError("samples must be contiguous")
        cdef draw_t *g = <draw_t *>calloc(1, sizeof(draw_t))
        if not g:
            raise MemoryError
        try:
            g.out = <char *><uintptr_t>out.ctypes.data
            g.stride[0], g.stride[1] = strides(out)
            g.dtype = self.t.dtype
            g.kind = DRAWS[kind]
            g.rows = self._extent(rows, out.shape[0], "rows")
            g.neurons = self._extent(neurons, out.shape[1], "neurons")
            if samples is not None:
                g.samples = <const uint64_t *><uintptr_t>samples.ctypes.data
            g.iteration = iteration.index
            g.key[0], g.key[1] = int(key[0]), int(key[1])
            g.site = site
            g.first = first
            g.below = self._coef(0.0 if below is None else below)
        except BaseException:
            free(g)
            raise
        cdef ins_t *ins = self._append(K_DRAW, label or "draw", NULL, NULL)
        ins.draw = g
        return self.t.n_ins - 1

    def load(self, source, index, out, *, rows=None, scale=1.0, label=""):
        """out[r] = scale * source[index[r]] for the rows of the batch; index is int64.

        source may be read-only or memory-mapped, uint8, bool, int32, int64, float32 or float64.
        An integer out takes the numbers as they are. Every index must be a row of source.
        """
        source, index = self._array(source, "source"), self._array(index, "index")
        out = self._array(out, "out", writes=True)
        if source.ndim not in (1, 2) or out.ndim != source.ndim:
            raise ValueError(f"source and out are both vectors or both matrices, got "
                             f"{source.shape} and {out.shape}")
        if source.shape[1:] != out.shape[1:]:
            raise ValueError(f"source has rows of {source.shape[1:]}, out of {out.shape[1:]}")
        if index.dtype != np.int64 or index.ndim != 1 or not index.flags.c_contiguous \
                or len(index) < out.shape[0]:
            raise ValueError(f"index must be contiguous int64, at least {out.shape[0]} of them")
        known(source.dtype, "source")
        known(out.dtype, "out")
        if out.dtype not in (self.dtype, np.dtype(np.int32), np.dtype(np.int64)):
            raise ValueError(f"out must be {self.dtype}, int32 or int64, not {out.dtype}")
        if out.ndim == 1:
            source, out = source[:, None], out[:, None]
        cdef load_t *g = <load_t *>calloc(1, sizeof(load_t))
        if not g:
            raise MemoryError
        try:
            g.source = <const char *><uintptr_t>source.ctypes.data
            g.row_stride = source.strides[0]
            g.col_stride = source.strides[1] // source.itemsize
            g.dtype = DTYPES[source.dtype]
            g.index = <const int64_t *><uintptr_t>index.ctypes.data
            g.out = <char *><uintptr_t>out.ctypes.data
            g.stride[0], g.stride[1] = strides(out)
            g.out_dtype = DTYPES[out.dtype]
            g.rows = self._extent(rows, out.shape[0], "rows")
            g.cols = self._extent(None, out.shape[1], "columns")
            g.scale = self._coef(scale)
        except BaseException:
            free(g)
            raise
        cdef ins_t *ins = self._append(K_LOAD, label or "load", NULL, NULL)
        ins.load = g
        return self.t.n_ins - 1

    def rebind(self, number, source, center=None, factor=None):
        """Let the load instruction `number` read another source with rows of the same length.

        With center and factor, one number per column each, out is (scale * source - center) *
        factor.
        """
        if not 0 <= number < self.t.n_ins or self.t.ins[number].load == NULL:
            raise ValueError(f"instruction {number} is not a load")
        cdef load_t *g = self.t.ins[number].load
        source = self._array(source, "source")
        dtype = known(source.dtype, "source")
        if source.ndim == 1:
            source = source[:, None]
        if source.ndim != 2 or source.shape[1] != g.cols.fixed:
            raise ValueError(f"source has rows of {source.shape[1:]}, the load takes "
                             f"{g.cols.fixed}")
        self.keep.pop()
        for vector in (center, factor):
            if vector is None and center is None and factor is None:
                continue
            if vector is None or vector.shape != (g.cols.fixed,) or vector.dtype != self.dtype \
                    or not vector.flags.c_contiguous or g.out_dtype != DTYPES[self.dtype]:
                raise ValueError(f"center and factor are {g.cols.fixed} numbers of {self.dtype} "
                                 f"each, got {center!r} and {factor!r}")
        self.sources[number] = source, center, factor
        g.center = g.factor = NULL
        if center is not None:
            g.center = <const char *><uintptr_t>center.ctypes.data
            g.factor = <const char *><uintptr_t>factor.ctypes.data
        g.source = <const char *><uintptr_t>source.ctypes.data
        g.row_stride = source.strides[0]
        g.col_stride = source.strides[1] // source.itemsize
        g.dtype = dtype
        for i in range(self.n_stepped):
            if self.stepped[i].number == number:
                self.stepped[i].load, self.stepped[i].base = g, g.source
                self.stepped[i].stride = self.stepped[i].columns * source.strides[1]

    def live(self, mask, kept, count, *, n=None, label=""):
        """kept[:count] = the places where mask (n,) is not zero, ascending; int32."""
        mask, kept = self._array(mask, "mask"), self._array(kept, "kept", writes=True)
        if mask.ndim != 1 or mask.dtype not in (np.dtype(np.float32), np.dtype(np.float64),
                                                np.dtype(np.uint8), np.dtype(np.bool_)):
            raise ValueError(f"mask must be a float or byte vector, got {mask.shape} of "
                             f"{mask.dtype}")
        if kept.dtype != np.int32 or kept.ndim != 1 or len(kept) < len(mask) + 1 \
                or not kept.flags.c_contiguous:
            raise ValueError(f"kept must be contiguous int32 with room for {len(mask) + 1}")
        if not isinstance(count, Dim) or count.maximum < len(mask):
            raise ValueError(f"count must be a Dim of at least {len(mask)}")
        cdef live_t *g = <live_t *>calloc(1, sizeof(live_t))
        if not g:
            raise MemoryError
        try:
            g.mask = <const char *><uintptr_t>mask.ctypes.data
            g.stride = strides(mask)[0]
            g.dtype = DTYPES[mask.dtype]
            g.n = self._extent(n, mask.shape[0], "n")
            g.list = <int32_t *><uintptr_t>kept.ctypes.data
            bits = np.zeros(len(mask) // 16 + 1, np.uint16)
            self.bits[kept.ctypes.data] = bits
            g.bits = <uint16_t *><uintptr_t>bits.ctypes.data
            g.dim = count.index
        except BaseException:
            free(g)
            raise
        cdef ins_t *ins = self._append(K_LIVE, label or "live", NULL, NULL)
        ins.live = g
        return self.t.n_ins - 1

    def windows(self, x, w, out, *, ptr, src, row, base, step, bias=None, relu=False, gate=None,
                rows=None, label=""):
        """Rows of out in groups: result r of group k is the sum over its pairs j, from ptr[k] to
        ptr[k + 1], of w[base[row[j]] + r * step] * x[src[j]].

        A bias, one for each row, is added; with relu what is less than 0 becomes 0; where the gate,
        as out, is not more than 0, 0 is kept.

        x (n, batch) and out (groups * results, batch) are contiguous along the batch, w is
        contiguous; ptr and base are int64, src and row int32.
        """
        x, w = self._rows_of(x, "x"), self._flat(w, "w", self.dtype)
        out = self._rows_of(out, "out", writes=True)
        ptr, base = self._flat(ptr, "ptr", np.int64), self._flat(base, "base", np.int64)
        src, row = self._flat(src, "src", np.int32), self._flat(row, "row", np.int32)
        n_groups = len(ptr) - 1
        n_r = len(out) // max(n_groups, 1)
        if n_groups < 1 or n_r * n_groups != len(out) or n_r < 1:
            raise ValueError(f"{len(out)} rows of out are no {n_groups} groups")
        if len(src) != len(row) or ptr[0] != 0 or ptr[len(ptr) - 1] != len(src) or np.any(np.diff(ptr) < 0):
            raise ValueError("ptr goes from 0 to the number of pairs, and src and row have those")
        for what, index, n in (("src", src, len(x)), ("row", row, len(base))):
            if len(index) and not 0 <= index.min() <= index.max() < n:
                raise ValueError(f"{what} names places outside of 0 to {n - 1}")
        reach = (n_r - 1) * step
        if len(base) and not 0 <= base.min() <= base.max() + reach < len(w):
            raise ValueError(f"base and step reach beyond the {len(w)} weights")
        packed = np.zeros((len(base), n_r), self.dtype)
        unit = _units(ptr, row)
        self._panel(len(x) * ((x.shape[1] * x.itemsize + 127) // 128 * 128))
        cdef conv_t *g = self._conv(x, w, out, rows)
        g.kind, g.step, g.n_groups, g.n_r, g.n_rows = 0, step, n_groups, n_r, len(base)
        g.packed, g.n_x, g.n_units = <char *><uintptr_t>packed.ctypes.data, len(x), len(unit)
        g.unit = <const int32_t *><uintptr_t>unit.ctypes.data
        g.ptr = <const int64_t *><uintptr_t>ptr.ctypes.data
        g.base = <const int64_t *><uintptr_t>base.ctypes.data
        g.src = <const int32_t *><uintptr_t>src.ctypes.data
        g.row = <const int32_t *><uintptr_t>row.ctypes.data
        self.keep += [packed, ptr, base, src, row, unit]
        try:
            g.end = self._end(out, bias, relu, gate)
        except BaseException:
            free(g)
            raise
        g.bias = g.gate = g.out
        if bias is not None:
            g.bias = <char *><uintptr_t>bias.ctypes.data
        if gate is not None:
            g.gate, g.ldz = <char *><uintptr_t>gate.ctypes.data, strides(gate)[0]
        return self._append_conv(g, label or "windows")

    def window_gradients(self, x, y, out, *, src, rows=None, label=""):
        """out[m, k] = the sum over positions p and the batch of y[p * maps + m] * x[src[p, k]].

        x (n, batch) and y (positions * maps, batch) are contiguous along the batch, out (maps,
        places) is contiguous; src (positions, places) is int32, -1 for none.
        """
        x, y = self._rows_of(x, "x"), self._rows_of(y, "y")
        out = self._array(out, "out", writes=True)
        src = self._array(src, "src")
        if src.dtype != np.int32 or src.ndim != 2 or not src.flags.c_contiguous \
                or src.size and not -1 <= src.min() <= src.max() < len(x):
            raise ValueError(f"src is contiguous int32 (positions, places) from -1 to {len(x) - 1}")
        if out.dtype != self.dtype or out.ndim != 2 or not out.flags.c_contiguous \
                or out.shape[1] != src.shape[1] or len(y) != out.shape[0] * src.shape[0]:
            raise ValueError(f"y {y.shape} and src {src.shape} do not give out {out.shape}")
        # what flows back, two vectors of maps at a time, and sums of tiles of 12 places at most
        maps = (len(out) + 31) // 32 * 32
        cdef int64_t room_bytes = WINDOW_DEEP * (1 + maps) * x.itemsize
        self._panel(self.t.n_threads * room_bytes + 8 * maps * (src.shape[1] + 12 * 18))
        cdef conv_t *g = self._conv(x, y, out, rows)
        g.n_x, g.room_bytes = len(x), room_bytes
        g.kind, g.ldw, g.n_groups = 1, strides(y)[0], src.shape[0]
        g.n_r, g.n_rows = out.shape
        g.src = <const int32_t *><uintptr_t>src.ctypes.data
        self.keep.append(src)
        return self._append_conv(g, label or "window gradients")

    def pool(self, x, out, fold, *, ptr, src, where=None, upper=None, place=None, gate=None,
             rows=None, label=""):
        """Row k of out is folded from the rows src[ptr[k]:ptr[k + 1]] of x.

        fold : "sum", "max", "min", and "argmax", "argmin": the first place of it, -1 of none.
        where : as out, gets the places, too, of "max" or "min". upper : as x, and place, a number
        for each of src: of a sum, only where upper[src] is that place. gate : as out, of a sum:
        where it is not more than 0, 0 is kept.
        x, out and these are contiguous along the batch; ptr is int64, src int32.
        """
        x, out = self._rows_of(x, "x"), self._rows_of(out, "out", writes=True)
        ptr, src = self._flat(ptr, "ptr", np.int64), self._flat(src, "src", np.int32)
        kinds = {"sum": 0, "max": 2, "argmax": 3, "min": 5, "argmin": 6}
        if fold not in kinds:
            raise ValueError(f"fold is one of {', '.join(kinds)}, got {fold!r}")
        kind = kinds[fold]
        if len(ptr) != len(out) + 1 or ptr[0] != 0 or ptr[len(ptr) - 1] != len(src) \
                or np.any(np.diff(ptr) < 0):
            raise ValueError(f"ptr goes from 0 to the {len(src)} of src in {len(out)} rows")
        if len(src) and not 0 <= src.min() <= src.max() < len(x):
            raise ValueError(f"src names places outside of 0 to {len(x) - 1}")
        if x.shape[1] != out.shape[1]:
            raise ValueError(f"x {x.shape} and out {out.shape} differ in their batch")
        if (where is not None and fold not in ("max", "min")) \
                or ((upper is not None or gate is not None) and fold != "sum") \
                or (upper is None) != (place is None):
            raise ValueError(f"where is of max and min, upper (with place) and gate of sum: {fold}")
        if where is not None:
            where, kind = self._rows_of(where, "where", writes=True), kind + 2
            if where.shape != out.shape:
                raise ValueError(f"where {where.shape} is not as out {out.shape}")
        if upper is not None:
            upper, kind = self._rows_of(upper, "upper"), 1
            place = self._flat(place, "place", self.dtype)
            if upper.shape != x.shape or len(place) != len(src):
                raise ValueError(f"upper {upper.shape} is not as x {x.shape}, or place not as src")
        end = self._end(out, None, False, gate)
        cdef pool_t *g = <pool_t *>calloc(1, sizeof(pool_t))
        if not g:
            raise MemoryError
        try:
            g.kind, g.end, g.n_groups = kind, end, len(out)
            g.x = <char *><uintptr_t>x.ctypes.data
            g.out = g.gate = <char *><uintptr_t>out.ctypes.data
            g.ldx, g.ldo = strides(x)[0], strides(out)[0]
            g.rows = self._extent(rows, x.shape[1], "rows")
            g.ptr = <const int64_t *><uintptr_t>ptr.ctypes.data
            g.src = <const int32_t *><uintptr_t>src.ctypes.data
            if where is not None:
                g.where, g.ldw = <char *><uintptr_t>where.ctypes.data, strides(where)[0]
            if upper is not None:
                g.upper, g.ldu = <char *><uintptr_t>upper.ctypes.data, strides(upper)[0]
                g.place = <const char *><uintptr_t>place.ctypes.data
            if gate is not None:
                g.gate, g.ldz = <char *><uintptr_t>gate.ctypes.data, strides(gate)[0]
        except BaseException:
            free(g)
            raise
        same = _same(ptr, src)
        if kind != 1 and where is None and gate is None and same.any():
            g.same = <const uint8_t *><uintptr_t>same.ctypes.data
        self.keep += [ptr, src, place, same]
        cdef ins_t *ins = self._append(K_POOL, label or "pool", NULL, NULL)
        ins.pool = g
        return self.t.n_ins - 1

    def _end(self, out, bias, relu, gate):
        """What becomes of sums before they are kept, as bits."""
        if bias is not None and self._flat(bias, "bias", self.dtype).shape != out.shape[:1]:
            raise ValueError(f"bias {bias.shape} is not one for each of {len(out)} rows")
        if gate is not None and self._rows_of(gate, "gate").shape != out.shape:
            raise ValueError(f"gate {gate.shape} is not as out {out.shape}")
        return (END_BIAS if bias is not None else 0) | (END_RELU if relu else 0) \
            | (END_GATE if gate is not None else 0)

    def _rows_of(self, array, name, writes=False):
        """An array of this tape's type whose rows are contiguous."""
        array = self._array(array, name, writes=writes)
        if array.dtype != self.dtype or array.ndim != 2 \
                or array.size and array.strides[1] != array.itemsize:
            raise ValueError(f"{name} is a matrix of {self.dtype} with contiguous rows, got "
                             f"{array.shape} of {array.dtype}")
        return array

    def _flat(self, array, name, dtype):
        array = self._array(array, name)
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is a contiguous vector of {np.dtype(dtype)}, got "
                             f"{array.shape} of {array.dtype}")
        return array

    cdef int _panel(self, int64_t size) except -1:
        """The room that instructions over windows have, one after the other."""
        cdef void *block = NULL
        if size > self.t.panel_bytes:
            free(self.t.panel)
            self.t.panel, self.t.panel_bytes = NULL, 0
            if posix_memalign(&block, 64, size):
                raise MemoryError
            self.t.panel, self.t.panel_bytes = <char *>block, size
        return 0

    cdef conv_t *_conv(self, x, w, out, rows) except NULL:
        cdef conv_t *g = <conv_t *>calloc(1, sizeof(conv_t))
        if not g:
            raise MemoryError
        try:
            g.x = <char *><uintptr_t>x.ctypes.data
            g.w = <char *><uintptr_t>w.ctypes.data
            g.out = <char *><uintptr_t>out.ctypes.data
            g.ldx, g.ldo = strides(x)[0], strides(out)[0]
            g.rows = self._extent(rows, x.shape[1], "rows")
        except BaseException:
            free(g)
            raise
        return g

    cdef int _append_conv(self, conv_t *g, label) except -1:
        cdef ins_t *ins = self._append(K_WINDOWS, label, NULL, NULL)
        ins.conv = g
        return self.t.n_ins - 1

    def anchor(self, array):
        """Where the instructions so far point into a C-contiguous array: for ``settle``."""
        array = self._array(array, "array")
        self.keep.pop()
        cdef Anchor found = Anchor()
        found.memory = array
        cdef char *begin = <char *><uintptr_t>array.ctypes.data
        cdef int64_t size = array.nbytes
        cdef int i, j
        cdef gemm_t *g
        cdef loop_t *l
        cdef conv_t *c
        cdef pool_t *p
        if not array.flags.c_contiguous:
            raise ValueError("only a C-contiguous array can be moved")
        for i in range(self.t.n_ins):
            g, l = self.t.ins[i].gemm, self.t.ins[i].loop
            if g:
                found.note(&g.a.data, begin, size)
                found.note(&g.b.data, begin, size)
                found.note(&g.c.data, begin, size)
                found.note(<char **>&g.v, begin, size)
                found.note(<char **>&g.w, begin, size)
                for j in range(g.n_parts):
                    found.note(<char **>&g.part[j], begin, size)
            if l:
                for j in range(l.n_in + l.n_out):
                    if l.view[j].dtype < IOTA:
                        found.note(&l.view[j].data, begin, size)
            c = self.t.ins[i].conv
            if c:
                found.note(&c.x, begin, size)
                found.note(&c.w, begin, size)
                found.note(&c.out, begin, size)
                found.note(&c.bias, begin, size)
                found.note(&c.gate, begin, size)
            p = self.t.ins[i].pool
            if p:
                found.note(&p.x, begin, size)
                found.note(&p.out, begin, size)
                found.note(&p.where, begin, size)
                found.note(&p.upper, begin, size)
                found.note(&p.gate, begin, size)
            if self.t.ins[i].draw or self.t.ins[i].load or self.t.ins[i].live:
                found.refuse(self.t.ins[i].draw.out if self.t.ins[i].draw else
                             self.t.ins[i].load.out if self.t.ins[i].load else
                             <char *>self.t.ins[i].live.mask, begin, size)
        found.now, found.size = begin, size
        self.keep = [x for x in self.keep if not (  # the array's memory may go when it moves
            isinstance(x, np.ndarray) and x.nbytes and np.may_share_memory(x, array))]
        self.keep.append(found)
        return found

    # ---- steps ----

    def step_load(self, int number, int columns):
        """From now on this load reads so many columns further at each step; before `rebind`."""
        room = <stepped_t *>realloc(self.stepped, (self.n_stepped + 1) * sizeof(stepped_t))
        if not room:
            raise MemoryError
        self.stepped = room
        memset(&room[self.n_stepped], 0, sizeof(stepped_t))
        room[self.n_stepped].number, room[self.n_stepped].columns = number, columns
        self.n_stepped += 1

    def move(self, array, memory, int64_t first, int64_t unit, rows=None, stays=False):
        """All places of the tape that use this array use a part of the memory instead: at step s
        what begins `(first + s) * unit` bytes into it, times the rows of the moment if a unit is
        one row of `rows`. stays : it is of all steps, and does not move with s.
        """
        cdef int64_t size = array.itemsize + sum(
            (n - 1) * s for n, s in zip(array.shape, array.strides)) if array.size else 0
        cdef char *begin = <char *><uintptr_t>array.ctypes.data
        cdef int i, j
        cdef gemm_t *g
        cdef loop_t *l
        cdef conv_t *c
        cdef pool_t *p
        cdef drawn_t *d
        room = <moving_t *>realloc(self.moving, (self.n_moving + 1) * sizeof(moving_t))
        if not room:
            raise MemoryError
        self.moving = room
        cdef moving_t *m = &room[self.n_moving]
        m.memory, m.first, m.unit = <char *><uintptr_t>memory.ctypes.data, first, unit
        m.dim, m.stays = -1 if rows is None else rows.index, bool(stays)
        self.n_moving += 1
        self.keep.append(memory)
        for i in range(self.t.n_ins):
            g, l, c = self.t.ins[i].gemm, self.t.ins[i].loop, self.t.ins[i].conv
            if g:
                self._place(&g.a.data, begin, size)
                self._place(&g.b.data, begin, size)
                self._place(&g.c.data, begin, size)
                self._place(<char **>&g.v, begin, size)
                self._place(<char **>&g.w, begin, size)
                for j in range(g.n_parts):
                    self._place(<char **>&g.part[j], begin, size)
            if l:
                for j in range(l.n_in + l.n_out):
                    if l.view[j].dtype < IOTA:
                        self._place(&l.view[j].data, begin, size)
                    elif l.view[j].dtype == DRAWN:
                        d = <drawn_t *>l.view[j].drawn
                        self._place(<char **>&d.samples, begin, size)
            if c:
                self._place(&c.x, begin, size)
                self._place(&c.w, begin, size)
                self._place(&c.out, begin, size)
            p = self.t.ins[i].pool
            if p:
                self._place(&p.x, begin, size)
                self._place(&p.out, begin, size)
                self._place(&p.where, begin, size)
                self._place(&p.upper, begin, size)
                self._place(&p.gate, begin, size)
            if self.t.ins[i].draw:
                self._place(&self.t.ins[i].draw.out, begin, size)
                self._place(<char **>&self.t.ins[i].draw.samples, begin, size)
            if self.t.ins[i].load:
                self._place(&self.t.ins[i].load.out, begin, size)

    cdef int _place(self, char **pointer, char *begin, int64_t size) except -1:
        if not begin <= pointer[0] < begin + size:
            return 0
        room = <place_t *>realloc(self.places, (self.n_places + 1) * sizeof(place_t))
        if not room:
            raise MemoryError
        self.places = room
        room[self.n_places].to, room[self.n_places].offset = pointer, pointer[0] - begin
        room[self.n_places].array = self.n_moving - 1
        self.n_places += 1
        return 0

    cdef void _seek(self, int64_t step) noexcept nogil:
        cdef moving_t *m
        cdef stepped_t *s
        cdef int i
        for i in range(self.n_places):
            m = &self.moving[self.places[i].array]
            self.places[i].to[0] = m.memory + self.places[i].offset + m.unit * (
                m.first + (0 if m.stays else step)) * (1 if m.dim < 0 else self.t.dims[m.dim])
        for i in range(self.n_stepped):
            s = &self.stepped[i]
            if s.load:
                s.load.source = s.base + (self.first_step + step) * s.stride

    def seek(self, int64_t step, int64_t first=0):
        """From now on the arrays that move are those of this step, and loads that move those of so
        many steps further on."""
        self.first_step = first
        self._seek(step)

    def repeat(self, int32_t first, int32_t last, int64_t steps, bint reverse=False):
        """Execute the instructions [first, last) at every step."""
        cdef int64_t k
        if first < 0 or last > self.t.n_ins:
            raise ValueError(f"the tape has instructions 0 to {self.t.n_ins}, not {first} to {last}")
        if self.t.n_threads > 1 and (self.t.worker == NULL or self.t.pid != getpid()):
            if start_threads(&self.t) != 0:
                raise MemoryError(f"cannot start {self.t.n_threads} threads")
        with nogil:
            for k in range(steps):
                self._seek(steps - 1 - k if reverse else k)
                if k == 0 and steps >= STEPS_TO_PACK:
                    tape_pack(&self.t, first, last)
                if first < last:
                    tape_run(&self.t, first, last)
            self.t.packed = 0
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    # ---- running ----

    def pick(self, rows, picks, int64_t limit):
        """picks[:len(rows)] = rows; whether every one of them is in 0 to limit - 1.

        One pass without NumPy, as `total`: between two steps the caches hold weights, and each
        call of a ufunc comes from memory (20 to 40 us on a 1 MiB second-level cache).
        """
        cdef Py_buffer given, taken
        cdef int64_t row
        cdef Py_ssize_t i
        cdef bint fits = True
        _look(np.asarray(rows, np.int64), &given, b"lq", PyBUF_STRIDES)
        try:
            _look(picks, &taken, b"lq", PyBUF_ND | PyBUF_WRITABLE)
            try:
                if given.shape[0] > taken.shape[0]:
                    raise ValueError(
                        f"got {given.shape[0]} rows for a batch of {taken.shape[0]}")
                for i in range(given.shape[0]):
                    row = (<const int64_t *>(<char *>given.buf + i * given.strides[0]))[0]
                    (<int64_t *>taken.buf)[i] = row
                    fits &= 0 <= row < limit
            finally:
                PyBuffer_Release(&taken)
        finally:
            PyBuffer_Release(&given)
        return fits

    def total(self, numbers):
        """The sum of a vector of the tape's type, in double."""
        cdef Py_buffer view
        cdef double total = 0
        cdef Py_ssize_t i
        _look(numbers, &view, b"d" if self.t.dtype else b"f", PyBUF_STRIDES)
        for i in range(view.shape[0]):
            if self.t.dtype:
                total += (<const double *>(<char *>view.buf + i * view.strides[0]))[0]
            else:
                total += (<const float *>(<char *>view.buf + i * view.strides[0]))[0]
        PyBuffer_Release(&view)
        return total

    def run(self, first=0, last=None):
        """Execute the instructions [first, last), by default all of them."""
        cdef int32_t i = first, j = self.t.n_ins if last is None else last
        if i < 0 or j > self.t.n_ins:
            raise ValueError(f"the tape has instructions 0 to {self.t.n_ins}, not {i} to {j}")
        if i >= j:
            return
        if self.t.n_threads > 1 and (self.t.worker == NULL or self.t.pid != getpid()):
            if start_threads(&self.t) != 0:
                raise MemoryError(f"cannot start {self.t.n_threads} threads")
        with nogil:
            tape_run(&self.t, i, j)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def profile(self, runs=100, first=0, last=None):
        """Run `runs` times; [(label, mean seconds)] of each instruction, barriers included."""
        cdef int32_t i
        for i in range(self.t.n_ins):
            self.t.ins[i].ns = 0
        self.t.profile = 1
        try:
            for _ in range(runs):
                self.run(first, last)
        finally:
            self.t.profile = 0
        return [(self.labels[i], self.t.ins[i].ns * 1e-9 / max(1, runs))
                for i in range(self.t.n_ins)]

    def clock(self, on):
        """From now on the seconds of each instruction are summed up, or no longer."""
        self.t.profile = 1 if on else 0

    def times(self):
        """The seconds that each instruction took while the clock was on, barriers included."""
        return [self.t.ins[i].ns * 1e-9 for i in range(self.t.n_ins)]

    # ---- inside ----

    cdef ins_t *_append(self, int kind, label, gemm_t *g, loop_t *l) except NULL:
        cdef tape_t *t = &self.t
        cdef ins_t *room
        cdef int64_t need
        cdef void *block = NULL
        if t.n_ins == t.room:
            room = <ins_t *>realloc(t.ins, (2 * t.room + 16) * sizeof(ins_t))
            if not room:
                raise MemoryError
            t.ins, t.room = room, 2 * t.room + 16
        cdef int64_t strip = STRIP_BYTES // self.dtype.itemsize
        if l:
            need = l.n_slots * STRIP_BYTES + strip * 24 + 9 * (l.n_values + 16)
            if need > t.scratch_bytes:
                for i in range(t.n_threads):
                    free(t.scratch[i])
                    t.scratch[i] = NULL
                    if posix_memalign(&block, 64, need + 4096):
                        raise MemoryError
                    t.scratch[i] = <char *>block
                t.scratch_bytes = need
        cdef ins_t *ins = &t.ins[t.n_ins]
        memset(ins, 0, sizeof(ins_t))
        ins.kind, ins.gemm, ins.loop = kind, g, l
        t.n_ins += 1
        self.labels.append(label)
        return ins

    cdef int _find_thin(self, gemm_t *g, c, inputs, ops, outputs) except -1:
        """Note what thin.c needs where the loop is one that it knows."""
        w = patterns.added_to(c, inputs, ops, outputs)
        if w is not None:
            g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
            g.w = <float *><uintptr_t>w.ctypes.data
            g.ldw = max(strides(w)[0], c.shape[1])
            return self._room_for_kernels()
        found = patterns.spread_over(c, inputs, ops, outputs)
        if found is None or g.beta.scalar >= 0 or g.beta.factor != 0:
            return 0
        w, velocity, decay = found
        rows, cols = w.index.get("m"), w.index.get("n")
        if cols is not None and cols.ctypes.data not in self.bits:
            return 0
        g.v, g.ldv = <float *><uintptr_t>w.array.ctypes.data, strides(w.array)[0]
        g.decay = self._coef(1.0 if decay is None else decay)
        if velocity is not None:
            g.w, g.ldw = g.v, g.ldv
            g.v = <float *><uintptr_t>velocity.array.ctypes.data
            g.ldv = strides(velocity.array)[0]
        if rows is not None:
            g.rows = <const int32_t *><uintptr_t>rows.ctypes.data
        if cols is not None:
            g.cols = <const int32_t *><uintptr_t>cols.ctypes.data
            g.bits = <const uint16_t *><uintptr_t>self.bits[cols.ctypes.data].ctypes.data
        return self._room_for_kernels()

    cdef int _room_for_kernels(self) except -1:
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

    def _array(self, array, name, writes=False):
        self.keep.append(usable(array, name, writes))
        return array

    cdef extent_t _extent(self, value, limit, name) except *:
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

    cdef coef_t _coef(self, value) except *:
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

    cdef int _matrix(self, matrix_t *out, array, name, writes) except -1:
        array = self._array(array, name, writes)
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
        out.data = <char *><uintptr_t>array.ctypes.data
        out.stride[0], out.stride[1] = s0, s1
        return 0

    cdef gemm_t *_gemm(self, a, b, c, alpha, beta, m, n, k) except NULL:
        cdef gemm_t *g = <gemm_t *>calloc(1, sizeof(gemm_t))
        if not g:
            raise MemoryError
        try:
            if self.t.wide:
                self._room_for_kernels()
            self._matrix(&g.a, a, "a", False)
            self._matrix(&g.b, b, "b", False)
            self._matrix(&g.c, c, "c", True)
            if a.shape[1] != b.shape[0] and k is None or a.shape[0] != c.shape[0] and m is None \
                    or b.shape[1] != c.shape[1] and n is None:
                raise ValueError(f"a {a.shape} @ b {b.shape} does not give c {c.shape}")
            if np.may_share_memory(c, a) or np.may_share_memory(c, b):
                raise ValueError("c shares memory with a or b: a product cannot be made in place")
            g.m = self._extent(m, min(a.shape[0], c.shape[0]), "m")
            g.n = self._extent(n, min(b.shape[1], c.shape[1]), "n")
            g.k = self._extent(k, min(a.shape[1], b.shape[0]), "k")
            g.alpha, g.beta = self._coef(alpha), self._coef(beta)
        except BaseException:
            free(g)
            raise
        return g

    cdef loop_t *_loop(self, axes, inputs, ops, outputs, reduce, accumulate, offset,
                       order) except NULL:
        cdef loop_t *l = <loop_t *>calloc(1, sizeof(loop_t))
        if not l:
            raise MemoryError
        try:
            self._fill_loop(l, loops.plan(dict(axes), list(inputs), list(ops), list(outputs),
                                          reduce, accumulate, order),
                            accumulate, offset)
        except BaseException:
            free_loop(l)
            raise
        return l

    cdef int _fill_loop(self, loop_t *l, plan, accumulate, offset) except -1:
        cdef int i
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
        l.view = <view_t *>calloc(len(plan.views), sizeof(view_t))
        l.ops = <op_t *>calloc(len(program) + 1, sizeof(op_t))
        l.consts = <coef_t *>calloc(len(consts) + 1, sizeof(coef_t))
        l.slot = <int32_t *>calloc(len(plan.slots) + 1, sizeof(int32_t))
        l.result = <int32_t *>calloc(len(results), sizeof(int32_t))
        if not (l.view and l.ops and l.consts and l.slot and l.result):
            raise MemoryError
        if len(plan.views) > FEW_VIEWS:
            l.room = <view_t *>calloc(2 * self.t.n_threads * len(plan.views), sizeof(view_t))
            if not l.room:
                raise MemoryError
        for i, extent in enumerate(plan.extents):
            l.extent[i] = self._extent(extent, 2**62, f"axis {plan.order[i]!r}")
        if plan.indptr is not None:
            l.indptr = <const int64_t *><uintptr_t>plan.indptr.ctypes.data
        for i, view in enumerate(plan.views):
            self._bind(&l.view[i], view, plan.order, plan.ragged)
        for i, free in enumerate(plan.direct):
            l.view[l.n_in + i].direct = free
        for i, c in enumerate(consts):
            l.consts[i] = self._coef(c)
        l.consts[len(consts)].factor = offset
        for i, (code, values) in enumerate(program):
            l.ops[i].op, l.ops[i].dst = code, n_first + i
            l.ops[i].a, l.ops[i].b, l.ops[i].c = (values + 2 * values[:1])[:3]
        for i, value in enumerate(results):
            l.result[i] = value
        for i, slot in enumerate(plan.slots):
            l.slot[i] = slot
        self.keep += plan.keep
        return 0

    cdef const drawn_t *_drawn(self, view) except NULL:
        """What the draws of a view are made from; the tape keeps it."""
        memory = np.zeros(sizeof(drawn_t) // 8 + 1, np.int64)
        self.keep += [memory, view.keys, view.sources]
        if view.samples is not None:
            self.keep.append(view.samples)
        cdef drawn_t *g = <drawn_t *><uintptr_t>memory.ctypes.data
        g.iteration = self.t.dims + <int>view.iteration.index
        if view.samples is not None:
            g.samples = <const uint64_t *><uintptr_t>view.samples.ctypes.data
        g.keys = <const uint32_t *><uintptr_t>view.keys.ctypes.data
        g.sources = <const int64_t *><uintptr_t>view.sources.ctypes.data
        g.n_keys = len(view.keys)
        g.n_sources = 0 if "e" in view.axes else len(view.sources)
        g.site, g.kind = view.site, DRAWS[view.kind]
        return g

    cdef int _bind(self, view_t *v, view, order, ragged) except -1:
        cdef int a
        if isinstance(view, Iota):
            v.dtype = IOTA
            v.data = <char *><intptr_t>view.offset
            v.stride[order.index(view.axis)] = 1
            v.local = view.axis in ragged
            return 0
        if isinstance(view, Drawn):
            v.dtype, v.drawn = DRAWN, self._drawn(view)
            for a in range(3):
                if order[a] in view.axes:
                    v.stride[a] = view.strides[order[a]]
                    if order[a] in view.index:
                        places = view.index[order[a]].ctypes.data
                        v.index[a] = <const int32_t *><uintptr_t>places
            return 0
        steps = strides(view.array)
        v.data = <char *><uintptr_t>view.array.ctypes.data
        v.dtype = DTYPES[view.array.dtype]
        v.ascending = bool(view.ascending)
        for a in range(3):
            if order[a] in view.axes:
                v.stride[a] = steps[view.axes.index(order[a])]
                if order[a] in view.index:
                    places = view.index[order[a]].ctypes.data
                    v.index[a] = <const int32_t *><uintptr_t>places
                    if view.ascending and places in self.bits:
                        v.mask[a] = <const uint16_t *><uintptr_t>self.bits[places].ctypes.data
        return 0


cdef int _look(object vector, Py_buffer *view, const char *kinds, int flags) except -1:
    """The memory of a vector of one of these kinds; it is to be released.

    No typed memoryview: their code takes as long to compile as all of this file.
    """
    PyObject_GetBuffer(vector, view, flags | PyBUF_FORMAT)
    if view.ndim == 1 and view.format and strchr(kinds, view.format[0]):
        return 0
    PyBuffer_Release(view)
    raise ValueError(f"a vector of kind {' or '.join(kinds.decode())!r} is needed, got "
                     f"{vector.shape} of {vector.dtype}")


cdef void numpy_gemm(void *owner, const gemm_t *g, int64_t m, int64_t n, int64_t k, double alpha,
                     double beta) noexcept with gil:
    """The product through NumPy, where no BLAS was found; it allocates, and says so by its name."""
    cdef Tape tape = <Tape>owner
    try:
        a = _borrow(tape.dtype, <uintptr_t>g.a.data, g.a.stride[0], g.a.stride[1], m, k)
        b = _borrow(tape.dtype, <uintptr_t>g.b.data, g.b.stride[0], g.b.stride[1], k, n)
        c = _borrow(tape.dtype, <uintptr_t>g.c.data, g.c.stride[0], g.c.stride[1], m, n)
        if beta == 0:
            c[...] = tape.dtype.type(alpha) * (a @ b)
        else:
            c *= tape.dtype.type(beta)
            c += tape.dtype.type(alpha) * (a @ b)
    except BaseException as failure:
        tape.failure = failure


class _Memory:
    """Memory that an instruction borrowed, as NumPy sees it."""

    def __init__(self, interface):
        self.__array_interface__ = interface


def _borrow(dtype, address, stride0, stride1, rows, cols):
    size = dtype.itemsize
    return np.asarray(_Memory({"data": (address, False), "shape": (rows, cols), "version": 3,
                               "strides": (stride0 * size, stride1 * size),
                               "typestr": dtype.str}))
