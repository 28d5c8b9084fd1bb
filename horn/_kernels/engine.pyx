"""A tape of array instructions that runs without Python.

Python appends instructions once, over NumPy arrays that the tape keeps alive; `tape.run()` then
executes them from C: no allocation, no GIL, every thread of the tape through every instruction,
with a barrier after each. Shapes are checked here, when an instruction is appended, never in the
loops (engine.h, strips.h). What changes between runs are two tables: whole numbers in `dims` (rows
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

from libc.stdint cimport int32_t, int64_t, intptr_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

import os

import numpy as np

from horn._kernels import blas as _blas


cdef extern from "engine.h":
    ctypedef struct extent_t:
        int64_t fixed
        int32_t dim
    ctypedef struct coef_t:
        double factor
        int32_t scalar, per
    ctypedef struct view_t:
        char *data
        int64_t stride[3]
        const int32_t *index[3]
        const uint16_t *mask[3]
        int32_t dtype, ascending, local, direct
    ctypedef struct op_t:
        int32_t op, dst, a, b, c
    ctypedef struct loop_t:
        extent_t extent[3]
        const int64_t *indptr
        int32_t n_in, n_out, n_ops, n_const, n_values, n_slots, reduce, axis, accumulate, fast
        view_t *view
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
    ctypedef struct live_t:
        const char *mask
        int64_t stride
        int32_t dtype
        extent_t n
        int32_t *list
        uint16_t *bits
        int32_t dim
    ctypedef struct ins_t:
        int32_t kind, numpy
        int64_t ns
        gemm_t *gemm
        loop_t *loop
        draw_t *draw
        load_t *load
        live_t *live
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
        char **thin
        void *blas_get
        void *blas_set
        void *worker
        int64_t pid
    int MAX_VIEWS, STRIP_BYTES, LEVEL_USED, THIN_BYTES, LIVE_BYTES, MAX_PARTS
    int K_GEMM, K_LOOP, K_GEMM_LOOP, K_DRAW, K_LOAD, K_LIVE
    void choose_level(int) nogil
    int start_threads(tape_t *) nogil
    void stop_threads(tape_t *) nogil
    void tape_run(tape_t *, int32_t, int32_t) nogil
    void tape_free(tape_t *) nogil
    void free_loop(loop_t *) nogil

cdef extern from "unistd.h" nogil:
    int getpid()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)

MAX_DIMS = 256
MAX_SCALARS = 1024

DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.uint8): 2,
          np.dtype(np.bool_): 2, np.dtype(np.int32): 3, np.dtype(np.int64): 4}
IOTA = 5

#: operation -> (code, number of arguments), in the order of engine.h
OPS = {name: (code, 1 if code < 19 else 2 if code < 34 else 3) for code, name in enumerate(
    "copy neg abs sqrt exp log log1p expm1 tanh sigmoid softplus sin cos floor sign not relu "
    "square reciprocal add sub mul div min max pow lt le gt ge eq ne and or select fma".split())}
#: monoid -> code, in the order of engine.h
MONOIDS = {name: code + 1 for code, name in
           enumerate("sum prod max min any all argmax".split())}
DRAWS = {"uniform": 0, "normal": 1, "bernoulli": 2}

# The processor level of the loops: 0 plain, 1 AVX2, 2 AVX-512. HORN_SIMD lowers it, for tests.
choose_level(int(os.environ.get("HORN_SIMD", "2")))
LEVEL = LEVEL_USED


class Dim:
    """A whole number in `tape.dims`, at most `maximum`."""

    __slots__ = ("index", "maximum")

    def __init__(self, index, maximum):
        self.index, self.maximum = index, maximum

    def __repr__(self):
        return f"Dim({self.index}, at most {self.maximum})"


class Scalar:
    """A double in `tape.scalars`."""

    __slots__ = ("index",)

    def __init__(self, index):
        self.index = index

    def __repr__(self):
        return f"Scalar({self.index})"


class Coef:
    """factor * scalar / per, read when the instruction runs; `scalar` and `per` may be left out."""

    __slots__ = ("factor", "scalar", "per")

    def __init__(self, factor=1.0, scalar=None, per=None):
        self.factor, self.scalar, self.per = float(factor), scalar, per


class View:
    """An array over some axes of a loop: one axis name per dimension, in the array's order.

    index : {axis: int32 list}; the coordinate on that axis is looked up in the list.
    ascending : the lists ascend without repeats, so one that is a range costs nothing.
    """

    __slots__ = ("array", "axes", "index", "ascending")

    def __init__(self, array, axes, index=None, ascending=False):
        self.array, self.axes, self.index = array, tuple(axes), dict(index or {})
        self.ascending = ascending


class Iota:
    """The coordinate on one axis plus `offset`; on a ragged axis, the place among the messages."""

    __slots__ = ("axis", "offset")

    def __init__(self, axis, offset=0):
        self.axis, self.offset = axis, int(offset)


class Ragged:
    """The extent of an axis of edges: row r of axis `over` has indptr[r] to indptr[r + 1]."""

    __slots__ = ("indptr", "over")

    def __init__(self, indptr, over):
        self.indptr, self.over = indptr, over


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
        t.numpy_gemm = numpy_gemm
        t.owner = <void *>self
        # spinning pays only while every thread has a core (pure spinning collapses beyond that)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        t.spin = 2000 if n_threads <= cores else 0
        t.dims = <int64_t *>calloc(MAX_DIMS, sizeof(int64_t))
        t.scalars = <double *>calloc(MAX_SCALARS, sizeof(double))
        t.scratch = <char **>calloc(n_threads, sizeof(char *))
        if not t.dims or not t.scalars or not t.scratch:
            raise MemoryError
        self.dims = np.asarray(<int64_t[:MAX_DIMS]>t.dims)
        self.scalars = np.asarray(<double[:MAX_SCALARS]>t.scalars)

    def __dealloc__(self):
        tape_free(&self.t)

    def __len__(self):
        return self.t.n_ins

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

    def gemm(self, a, b, c, *, alpha=1.0, beta=0.0, m=None, n=None, k=None, thin=False, label=""):
        """c = alpha * a @ b + beta * c, over the first m, n, k of (m, k) @ (k, n) -> (m, n).

        With beta 0, what c held does not matter. alpha and beta are floats, scalars or coefs.
        thin : by the kernel of thin.h where it can.
        """
        cdef gemm_t *g = self._gemm(a, b, c, alpha, beta, m, n, k)
        if thin and self.t.dtype == 0 and g.c.row and self.blas.sgemm:
            g.v, g.ldv = <float *>g.c.data, g.c.ld
            self._room_for_thin()
        cdef ins_t *ins = self._append(K_GEMM, label or "gemm", g, NULL)
        ins.numpy = self.blas.sgemm == 0
        return self.t.n_ins - 1

    @property
    def reads_live(self):
        """Whether `live_gemm` is there: float32, AVX-512 and a BLAS by function pointer."""
        return self.t.dtype == 0 and LEVEL == 2 and self.blas.sgemm != 0

    def live_gemm(self, a, w, c, *, m=None, n=None, k=None, beta=0.0, label=""):
        """c = a @ b + beta * c, where b is `w`, a matrix at live places: a View over "kn" or "nk"
        whose index lists ascend. One kernel (live.h), for a thin batch: m is at most 256.
        """
        if not self.reads_live:
            raise ValueError("live_gemm needs float32, AVX-512 and a BLAS: gather, then gemm")
        place, turned = w.array, w.axes == ("n", "k")
        if w.axes not in (("k", "n"), ("n", "k")) or not _is_row(place) or not w.ascending:
            raise ValueError(f'b is a row-major View over "kn" or "nk" with ascending lists, got '
                             f"{w.axes} of strides {place.strides}")
        cdef gemm_t *g = self._gemm(a, place.T if turned else place, c, 1.0, beta, m, n, k)
        try:
            if g.m.fixed > 256:
                raise ValueError(f"m may be {g.m.fixed}, but the batch must be at most 256")
            g.live = 1 if turned else 2
            g.w, g.ldw = <float *><uintptr_t>place.ctypes.data, _strides(place)[0]
            for axis, index in w.index.items():
                index = self._array(index, f"the index list of {axis!r}")
                if (axis == "k") == turned:
                    if index.ctypes.data not in self.bits:
                        raise ValueError(f"the list of {axis!r} does not come from `live`")
                    g.cols = <const int32_t *><uintptr_t>index.ctypes.data
                    g.bits = <const uint16_t *><uintptr_t>self.bits[index.ctypes.data].ctypes.data
                else:
                    g.rows = <const int32_t *><uintptr_t>index.ctypes.data
            self._room_for_thin()
        except BaseException:
            free(g)
            raise
        self._append(K_GEMM, label or "live_gemm", g, NULL)
        return self.t.n_ins - 1

    def gemm_loop(self, a, b, c, *, inputs, ops, outputs, alpha=1.0, beta=0.0, m=None, n=None,
                  k=None, block=0, label=""):
        """A GEMM, then an elementwise loop over the axes "m" and "n" of c, by blocks of rows.

        In float32 with a thin k, and with beta 0 in the latter two, one kernel (thin.h) does

            w += c
            w += c                               with w at live rows and columns
            v = decay v + c;  w += v             with v and w at live rows and columns

        and in the latter two c is left as it was. Otherwise `block` is the number of rows between
        product and loop; 0 is all of a thread's rows, because a BLAS packs b again for every block,
        and that costs more than a second pass over c.
        """
        c = np.asarray(c)
        if c.ndim == 2 and not _is_row(c) and _is_row(c.T):
            swap = {"m": "n", "n": "m"}
            return self.gemm_loop(
                np.asarray(b).T, np.asarray(a).T, c.T, alpha=alpha, beta=beta, m=n, n=m, k=k,
                inputs=[_renamed(v, swap) for v in inputs], ops=ops, block=block, label=label,
                outputs=[(_renamed(v, swap), value) for v, value in outputs])
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
        ins.numpy = self.blas.sgemm == 0
        return self.t.n_ins - 1

    def update(self, a, b, w, *, alpha, v=None, decay=0.0, parts=(), k=None, label=""):
        """g = a @ b + the sum of parts; v = decay v + alpha g; w += v.

        Without v: w += alpha g. All of (m, n), which a is (m, k) and b (k, n) for. In float32 with
        a thin k one pass (thin.h), else a product and a loop.
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
        if self.t.dtype or len(parts) > MAX_PARTS or not g.c.row or not all(map(_is_row, rows)):
            return number
        n = c.shape[1]
        g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
        if v is not None:
            g.w, g.ldw = <float *><uintptr_t>w.ctypes.data, max(_strides(w)[0], n)
        g.n_parts = len(parts)
        for i, part in enumerate(parts):
            g.part[i] = <const float *><uintptr_t>part.ctypes.data
            g.ldpart[i] = max(_strides(part)[0], n)
        self._room_for_thin()
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
            g.stride[0], g.stride[1] = _strides(out)
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
        for name, array in (("source", source), ("out", out)):
            if array.dtype not in DTYPES:
                raise ValueError(f"{name} has dtype {array.dtype}; known: "
                                 f"{', '.join(str(d) for d in DTYPES)}")
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
            g.stride[0], g.stride[1] = _strides(out)
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

    def rebind(self, number, source):
        """Let the load instruction `number` read another source with rows of the same length."""
        if not 0 <= number < self.t.n_ins or self.t.ins[number].load == NULL:
            raise ValueError(f"instruction {number} is not a load")
        cdef load_t *g = self.t.ins[number].load
        source = self._array(source, "source")
        if source.dtype not in DTYPES:
            raise ValueError(f"source has dtype {source.dtype}; known: "
                             f"{', '.join(str(d) for d in DTYPES)}")
        if source.ndim == 1:
            source = source[:, None]
        if source.ndim != 2 or source.shape[1] != g.cols.fixed:
            raise ValueError(f"source has rows of {source.shape[1:]}, the load takes "
                             f"{g.cols.fixed}")
        self.sources[number] = source
        self.keep.pop()
        g.source = <const char *><uintptr_t>source.ctypes.data
        g.row_stride = source.strides[0]
        g.col_stride = source.strides[1] // source.itemsize
        g.dtype = DTYPES[source.dtype]

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
            g.stride = _strides(mask)[0]
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
                    if l.view[j].dtype != IOTA:
                        found.note(&l.view[j].data, begin, size)
            if self.t.ins[i].draw or self.t.ins[i].load or self.t.ins[i].live:
                found.refuse(self.t.ins[i].draw.out if self.t.ins[i].draw else
                             self.t.ins[i].load.out if self.t.ins[i].load else
                             <char *>self.t.ins[i].live.mask, begin, size)
        found.now, found.size = begin, size
        self.keep = [x for x in self.keep if not (  # the array's memory may go when it moves
            isinstance(x, np.ndarray) and x.nbytes and np.may_share_memory(x, array))]
        self.keep.append(found)
        return found

    # ---- running ----

    def pick(self, rows, int64_t[::1] picks, int64_t limit):
        """picks[:len(rows)] = rows; whether every one of them is in 0 to limit - 1.

        One pass without NumPy, as `total`: between two steps the caches hold weights, and each
        call of a ufunc comes from memory (20 to 40 us on a 1 MiB second-level cache).
        """
        cdef const int64_t[:] given = np.asarray(rows, np.int64)
        cdef Py_ssize_t i
        cdef bint fits = True
        if given.shape[0] > picks.shape[0]:
            raise ValueError(f"got {given.shape[0]} rows for a batch of {picks.shape[0]}")
        for i in range(given.shape[0]):
            picks[i] = given[i]
            fits &= 0 <= given[i] < limit
        return fits

    def total(self, numbers):
        """The sum of a vector of the tape's type, in double."""
        cdef double total = 0
        cdef const float[:] singles
        cdef const double[:] doubles
        cdef Py_ssize_t i
        if self.t.dtype == 0:
            singles = numbers
            for i in range(singles.shape[0]):
                total += singles[i]
        else:
            doubles = numbers
            for i in range(doubles.shape[0]):
                total += doubles[i]
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
            need = l.n_slots * STRIP_BYTES + strip * 24 + 8 * (l.n_values + 8)
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
        """Note what thin.h needs where the loop is one that it knows."""
        w = _added_to(c, inputs, ops, outputs)
        if w is not None:
            g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
            g.w = <float *><uintptr_t>w.ctypes.data
            g.ldw = max(_strides(w)[0], c.shape[1])
            return self._room_for_thin()
        found = _spread_over(c, inputs, ops, outputs)
        if found is None or g.beta.scalar >= 0 or g.beta.factor != 0:
            return 0
        w, velocity, decay = found
        rows, cols = w.index.get("m"), w.index.get("n")
        if cols is not None and cols.ctypes.data not in self.bits:
            return 0
        g.v, g.ldv = <float *><uintptr_t>w.array.ctypes.data, _strides(w.array)[0]
        g.decay = self._coef(1.0 if decay is None else decay)
        if velocity is not None:
            g.w, g.ldw = g.v, g.ldv
            g.v = <float *><uintptr_t>velocity.array.ctypes.data
            g.ldv = _strides(velocity.array)[0]
        if rows is not None:
            g.rows = <const int32_t *><uintptr_t>rows.ctypes.data
        if cols is not None:
            g.cols = <const int32_t *><uintptr_t>cols.ctypes.data
            g.bits = <const uint16_t *><uintptr_t>self.bits[cols.ctypes.data].ctypes.data
        return self._room_for_thin()

    cdef int _room_for_thin(self) except -1:
        cdef void *block = NULL
        if self.t.thin:
            return 0
        self.t.thin = <char **>calloc(self.t.n_threads, sizeof(char *))
        if not self.t.thin:
            raise MemoryError
        for i in range(self.t.n_threads):
            if posix_memalign(&block, 64, max(THIN_BYTES, LIVE_BYTES)):
                raise MemoryError
            self.t.thin[i] = <char *>block
        return 0

    def _array(self, array, name, writes=False):
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} must be a NumPy array, got {type(array).__name__}")
        if writes and not array.flags.writeable:
            raise ValueError(f"{name} is read-only, but the instruction writes to it")
        if any(s % array.itemsize for s in array.strides):
            raise ValueError(f"{name} has strides {array.strides}, not multiples of its item size "
                             f"{array.itemsize}")
        if not array.dtype.isnative:
            raise ValueError(f"{name} is {array.dtype.str}: convert it to this machine's order")
        self.keep.append(array)
        return array

    cdef extent_t _extent(self, value, limit, name) except *:
        cdef extent_t e
        e.dim = -1
        if value is None:
            e.fixed = limit
            return e
        maximum = value.maximum if isinstance(value, Dim) else int(value)
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
        s0, s1 = _strides(array)
        if _is_row(array):
            s1 = 1
            s0 = max(s0, cols, 1) if rows <= 1 or cols == 0 else s0
            out.row, out.ld = 1, s0
        elif _is_row(array.T):
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
            self._fill_loop(l, dict(axes), list(inputs), list(ops), list(outputs), reduce,
                            accumulate, offset, order)
        except BaseException:
            free_loop(l)
            raise
        return l

    cdef int _fill_loop(self, loop_t *l, axes, inputs, ops, outputs, reduce, accumulate, offset,
                        order) except -1:
        if not 1 <= len(axes) <= 3:
            raise ValueError(f"a loop has one to three axes, not {len(axes)}")
        if not outputs:
            raise ValueError("a loop without outputs does nothing")
        monoid, folded = (None, None) if reduce is None else reduce
        if reduce is not None:
            if monoid not in MONOIDS:
                raise ValueError(f"no reduction is called {monoid!r}; there are "
                                 f"{', '.join(MONOIDS)}")
            if folded not in axes:
                raise ValueError(f"the reduced axis {folded!r} is not one of {list(axes)}")
            allowed = 2 if monoid == "argmax" else 1
            if len(outputs) > allowed:
                raise ValueError(f"{monoid} has at most {allowed} outputs, got {len(outputs)}")
            if monoid == "argmax" and accumulate and len(outputs) == 1:
                raise ValueError("an argmax that accumulates needs the maximum as second output")
        elif accumulate:
            raise ValueError("accumulate is for reductions; add the old value in ops")
        ragged = [name for name, extent in axes.items() if isinstance(extent, Ragged)]
        if len(ragged) > 1:
            raise ValueError(f"only one axis can be ragged, got {ragged}")

        # values: views and iotas, then constants, then one per operation
        arrays = [v for v in inputs if isinstance(v, (View, Iota))]
        consts = [v for v in inputs if not isinstance(v, (View, Iota))]
        number = {}
        place = 0
        for i, v in enumerate(inputs):
            if isinstance(v, (View, Iota)):
                number[i] = place
                place += 1
        for i, v in enumerate(inputs):
            if not isinstance(v, (View, Iota)):
                number[i] = place
                place += 1
        program = []
        for i, (name, *values) in enumerate(ops):
            if name not in OPS:
                raise ValueError(f"operation {i} is {name!r}; known: {', '.join(OPS)}")
            code, arity = OPS[name]
            if len(values) != arity:
                raise ValueError(f"operation {i} {name!r} takes {arity} values, got {len(values)}")
            for v in values:
                if v not in number:
                    raise ValueError(f"operation {i} {name!r} reads value {v!r}; it may read 0 to "
                                     f"{len(inputs) + i - 1}")
            program.append((code, [number[v] for v in values]))
            number[len(inputs) + i] = place
            place += 1
        n_first = len(arrays) + len(consts)
        results = []
        for view, value in outputs:
            if value not in number:
                raise ValueError(f"an output takes value {value!r}; there are 0 to {place - 1}")
            value = number[value]
            if reduce is None and (value < n_first or value in results):
                program.append((OPS["copy"][0], [value]))
                value = place
                place += 1
            results.append(value)
        views = arrays + [view for view, _ in outputs]
        if len(views) > MAX_VIEWS:
            raise ValueError(f"a loop has at most {MAX_VIEWS} arrays, got {len(views)}; split it")
        n_out = len(outputs)
        for i, view in enumerate(views):
            self._check_view(view, axes, i >= len(arrays), folded)

        order = order or self._order(axes, views, folded, ragged)
        l.n_in, l.n_out, l.n_ops = len(arrays), n_out, len(program)
        l.n_const, l.n_values = len(consts), place
        l.view = <view_t *>calloc(len(views), sizeof(view_t))
        l.ops = <op_t *>calloc(len(program) + 1, sizeof(op_t))
        l.consts = <coef_t *>calloc(len(consts) + 1, sizeof(coef_t))
        l.slot = <int32_t *>calloc(place + 1, sizeof(int32_t))
        l.result = <int32_t *>calloc(n_out, sizeof(int32_t))
        if not (l.view and l.ops and l.consts and l.slot and l.result):
            raise MemoryError
        cdef int a, i_view, i_op
        for a in range(3):
            extent = 1 if order[a] is None else axes[order[a]]
            if isinstance(extent, Ragged):
                indptr = self._array(extent.indptr, "indptr")
                parent = axes[order[0]]
                n_rows = parent.maximum if isinstance(parent, Dim) else int(parent)
                if indptr.dtype != np.int64 or not indptr.flags.c_contiguous \
                        or indptr.shape != (n_rows + 1,):
                    raise ValueError(f"indptr must be contiguous int64 of {n_rows + 1}, got "
                                     f"{indptr.shape} of {indptr.dtype}")
                l.indptr = <const int64_t *><uintptr_t>indptr.ctypes.data
                l.extent[a].fixed, l.extent[a].dim = 1, -1
            else:
                l.extent[a] = self._extent(extent, 2**62, f"axis {order[a]!r}")
        l.reduce = 0 if reduce is None else MONOIDS[monoid]
        l.axis = order.index(folded) if reduce is not None else 0
        l.accumulate = bool(accumulate)
        for i, c in enumerate(consts):
            l.consts[i] = self._coef(c)
        l.consts[len(consts)].factor = offset
        for i_view, view in enumerate(views):
            self._bind(&l.view[i_view], view, order, ragged)
        for i_op, (code, values) in enumerate(program):
            l.ops[i_op].op = code
            l.ops[i_op].dst = n_first + i_op
            l.ops[i_op].a = values[0]
            l.ops[i_op].b = values[1] if len(values) > 1 else values[0]
            l.ops[i_op].c = values[2] if len(values) > 2 else values[0]
        for i, value in enumerate(results):
            l.result[i] = value
        l.fast = (reduce is not None and monoid == "sum" and len(arrays) == 2 and not consts
                  and program == [(OPS["mul"][0], [0, 1])] and isinstance(arrays[0], View)
                  and isinstance(arrays[1], View))
        if reduce is None and len(arrays) == n_out == 1 and program == [(OPS["copy"][0], [0])]:
            # a copy may not be done in rows where it would read what it has written
            l.fast = 2 if isinstance(arrays[0], View) and not np.may_share_memory(
                arrays[0].array, outputs[0][0].array) else 0

        # an output may be written in place unless its memory is read, or written, afterwards
        last = [-1] * place
        for i, (code, values) in enumerate(program):
            for v in values:
                last[v] = i
        if reduce is None:
            for i, (out, _) in enumerate(outputs):
                made = results[i] - n_first
                others = [v.array for j, v in enumerate(arrays)
                          if isinstance(v, View) and last[j] > made]
                others += [v.array for j, (v, _) in enumerate(outputs) if j != i]
                l.view[len(arrays) + i].direct = not any(
                    np.may_share_memory(out.array, other) for other in others)
        # strips: constants keep theirs; the others' are used again when the value is dead
        for v in results:
            last[v] = len(program)
        spare = []
        n_slots = 0
        for v in list(range(len(arrays), n_first)) + list(range(len(arrays))):
            l.slot[v] = n_slots
            n_slots += 1
        for i, (code, values) in enumerate(program):
            for v in set(values):
                if last[v] == i and not len(arrays) <= v < n_first:
                    spare.append(l.slot[v])
            if spare:
                l.slot[n_first + i] = spare.pop()
            else:
                l.slot[n_first + i] = n_slots
                n_slots += 1
            if last[n_first + i] < 0:
                spare.append(l.slot[n_first + i])
        l.n_slots = n_slots
        return 0

    def _check_view(self, view, axes, is_output, folded):
        if isinstance(view, Iota):
            if view.axis not in axes:
                raise ValueError(f"the iota's axis {view.axis!r} is not one of {list(axes)}")
            return
        if not isinstance(view, View):
            raise ValueError(f"an output is a View, got {type(view).__name__}")
        array = self._array(view.array, f"the view over {view.axes}", writes=is_output)
        if array.dtype not in DTYPES:
            raise ValueError(f"the view over {view.axes} has dtype {array.dtype}; known: "
                             f"{', '.join(str(d) for d in DTYPES)}")
        if array.ndim != len(view.axes) or len(set(view.axes)) != len(view.axes):
            raise ValueError(f"an array of {array.ndim} dimensions cannot lie on the axes "
                             f"{view.axes}")
        for name, length in zip(view.axes, array.shape):
            if name not in axes:
                raise ValueError(f"the axis {name!r} of a view is not one of {list(axes)}")
            extent = axes[name]
            if name in view.index:
                places = self._array(view.index[name], f"the index list of {name!r}")
                if places.dtype != np.int32 or places.ndim != 1 \
                        or not places.flags.c_contiguous:
                    raise ValueError(f"the index list of {name!r} must be a contiguous int32 "
                                     f"vector, got {places.shape} of {places.dtype}")
                length = len(places)
            if isinstance(extent, Ragged):
                need = int(extent.indptr[len(extent.indptr) - 1])
            else:
                need = extent.maximum if isinstance(extent, Dim) else int(extent)
            if length < need:
                raise ValueError(f"axis {name!r} may have {need} places, but the view over "
                                 f"{view.axes} has {length}")
        unknown = [name for name in view.index if name not in view.axes]
        if unknown:
            raise ValueError(f"index lists for {unknown}, which the view {view.axes} does not have")
        if is_output:
            implied = [extent.over for name, extent in axes.items()
                       if isinstance(extent, Ragged) and name in view.axes]
            missing = [name for name in axes
                       if name != folded and name not in view.axes and name not in implied]
            if missing or folded in view.axes:
                raise ValueError(f"an output must lie on exactly the axes "
                                 f"{[name for name in axes if name != folded]}, not {view.axes}")

    def _order(self, axes, views, folded, ragged):
        """The three axes, outermost first: the strip runs where most of the memory is contiguous.

        A ragged axis is the middle one and its rows the first; a reduced one is never the first.
        """
        if ragged:
            extent = axes[ragged[0]]
            if extent.over not in axes or extent.over == ragged[0] \
                    or isinstance(axes[extent.over], Ragged):
                raise ValueError(f"the ragged axis {ragged[0]!r} is over {extent.over!r}, which is "
                                 f"not another axis of this loop")
            if folded == extent.over:
                raise ValueError("the rows of a ragged axis cannot be reduced in the same loop")
            rest = [name for name in axes if name not in (ragged[0], extent.over)]
            return (extent.over, ragged[0], rest[0] if rest else None)

        def length(name):
            extent = axes[name]
            return max(1, extent.maximum if isinstance(extent, Dim) else int(extent))

        def score(name):
            total = 0.0
            for i, view in enumerate(views):
                if not isinstance(view, View):
                    continue
                size = 1.0
                for axis in view.axes:
                    size *= length(axis)
                if name not in view.axes:
                    continue
                step = _strides(view.array)[view.axes.index(name)]
                good = step == 1 and name not in view.index
                total += size if good else -size
            return total

        names = list(axes)
        inner = max(names, key=lambda name: (length(name) > 1, score(name), names.index(name)))
        rest = [name for name in names if name != inner]
        if folded is not None and folded != inner:
            rest = [name for name in rest if name != folded] + [folded]
        return tuple([None] * (2 - len(rest)) + rest + [inner])

    cdef int _bind(self, view_t *v, view, order, ragged) except -1:
        cdef int a
        if isinstance(view, Iota):
            v.dtype = IOTA
            v.data = <char *><intptr_t>view.offset
            v.stride[order.index(view.axis)] = 1
            v.local = view.axis in ragged
            return 0
        strides = _strides(view.array)
        v.data = <char *><uintptr_t>view.array.ctypes.data
        v.dtype = DTYPES[view.array.dtype]
        v.ascending = bool(view.ascending)
        for a in range(3):
            if order[a] in view.axes:
                v.stride[a] = strides[view.axes.index(order[a])]
                if order[a] in view.index:
                    places = view.index[order[a]].ctypes.data
                    v.index[a] = <const int32_t *><uintptr_t>places
                    if view.ascending and places in self.bits:
                        v.mask[a] = <const uint16_t *><uintptr_t>self.bits[places].ctypes.data
        return 0


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


def _strides(array):
    return tuple(s // array.itemsize for s in array.strides)


def _is_row(array):
    """Rows are contiguous, one after the other or further apart."""
    rows, cols = array.shape
    s0, s1 = _strides(array)
    if array.size == 0:
        return True
    return (s1 == 1 or cols <= 1) and (rows <= 1 or s0 >= max(1, cols))


def _added_to(c, inputs, ops, outputs):
    """The array w of a fused loop that is just w += c, or None."""
    if [op[0] for op in ops] != ["add"] or len(inputs) != 2 or len(outputs) != 1:
        return None
    if sorted(ops[0][1:]) != [0, 1] or outputs[0][1] != 2:
        return None
    w = outputs[0][0]
    for view in (w, *inputs):
        if not isinstance(view, View) or view.index or view.axes != ("m", "n"):
            return None
        if view.array.dtype != np.float32 or not _is_row(view.array):
            return None

    def place(array):
        return array.ctypes.data, array.strides

    if {place(v.array) for v in inputs} != {place(c), place(w.array)} or place(c) == place(w.array):
        return None
    return w.array


def _spread_over(c, inputs, ops, outputs):
    """(w, None, None) or (w, v, decay) of a fused loop that adds c to the live places of w, at
    once or through a velocity v; or None.
    """
    names = [op[0] for op in ops]
    if names == ["add"] and len(inputs) == 2 and [o[1] for o in outputs] == [2] \
            and tuple(ops[0][1:]) == (0, 1):
        w, product = inputs
        v = decay = None
        pairs = [(w, outputs[0][0])]
    elif names == ["fma", "add"] and len(inputs) == 4 and [o[1] for o in outputs] == [4, 5] \
            and tuple(ops[0][1:]) == (1, 3, 2) and tuple(ops[1][1:]) == (0, 4):
        w, v, product, decay = inputs
        if isinstance(decay, (View, Iota)):
            return None
        pairs = [(v, outputs[0][0]), (w, outputs[1][0])]
    else:
        return None

    def place(view):
        lists = {axis: x.ctypes.data for axis, x in view.index.items()}
        return view.array.ctypes.data, view.array.strides, lists

    for old, new in pairs:
        for view in (old, new):
            if not isinstance(view, View) or view.axes != ("m", "n") or not view.ascending \
                    or view.array.dtype != np.float32 or not _is_row(view.array) \
                    or min(view.array.shape) < 2:
                return None
        if place(old) != place(new) or place(old)[2] != place(w)[2]:
            return None
    if not isinstance(product, View) or product.index or product.axes != ("m", "n") \
            or place(product)[:2] != (c.ctypes.data, c.strides):
        return None
    if v is not None and np.may_share_memory(v.array, w.array):
        return None
    return w, v, decay


def _renamed(view, names):
    if isinstance(view, View):
        return View(view.array, [names.get(a, a) for a in view.axes],
                    {names.get(a, a): x for a, x in view.index.items()}, view.ascending)
    if isinstance(view, Iota):
        return Iota(names.get(view.axis, view.axis), view.offset)
    return view
