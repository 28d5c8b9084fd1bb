"""A tape of array instructions that runs without Python.

Python appends instructions once, over NumPy arrays that the tape keeps alive; `tape.run()` then
executes them from C: no allocation, no GIL, every thread of the tape through every instruction,
with a barrier after each. Shapes are checked here, when an instruction is appended, never in the
loops (tape.h, strips.h). What index lists hold is not: it may change from run to run, and whoever
writes it answers for it. Two tables change between runs: whole numbers in `dims` (rows of this
batch, live neurons, iteration) and doubles in `scalars` (learning rate, momentum).

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

binding.pxi checks operands and fills the structs of tape.h (tape.pxd), windows.pxi those of
convolutions and pools; moving.pxi lets arrays move later; numpy_products.pxi computes products
where no BLAS was found.
"""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset, strchr
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer)

import os

import numpy as np

from horn._kernels.tape cimport *

from horn._kernels import blas as _blas
from horn._kernels import loops, patterns
from horn._kernels.operands import (
    DTYPES, Coef, Dim, Drawn, Iota, Ragged, Scalar, View, is_row, known, maximum_of, strides,
    usable)
from horn._kernels.stamp import refuse_others


cdef extern from "stamp.h":
    const char *HORN_STAMP

refuse_others(HORN_STAMP.decode())


cdef extern from "unistd.h" nogil:
    int getpid()

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)

# Packing weights once pays when they are used as often.
cdef int64_t STEPS_TO_PACK = 3
STRIP_BYTES, BEGIN_CYCLES = STRIP_BYTES_, BEGIN_CYCLES_

DRAWS = {"uniform": 0, "normal": 1, "bernoulli": 2}

# The processor level of the loops: 0 plain, 1 AVX2, 2 AVX-512. HORN_SIMD lowers it, for tests.
choose_level(int(os.environ.get("HORN_SIMD", "2")))
LEVEL = LEVEL_USED

include "binding.pxi"
include "windows.pxi"
include "moving.pxi"


cdef class Tape:
    """Instructions, their arrays and the threads that run them.

    dtype : float32 or float64, the type of all arithmetic.
    n_threads : threads of one run, this one among them; they are started by the first run.
    blas : a `horn._kernels.blas.Blas`, by default the one that `blas.load()` finds.

    Raises ValueError when an instruction's shapes or names do not fit.
    """

    cdef tape_t t
    cdef readonly object dtype, blas, dims, scalars
    cdef Binding bind
    cdef Moves moves
    cdef readonly list labels  # of the instructions
    cdef int n_dims, n_scalars
    cdef dict sources
    cdef object failure
    cdef bint in_python  # products go back to NumPy

    def __cinit__(self, dtype=np.float32, n_threads=1, blas=None):
        memset(&self.t, 0, sizeof(tape_t))

    def __init__(self, dtype=np.float32, n_threads=1, blas=None):
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"a tape computes in float32 or float64, not {self.dtype}")
        if n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}; a tape needs at least 1")
        self.blas = blas if blas is not None else _blas.load()
        self.labels, self.sources, self.failure = [], {}, None
        self.bind, self.moves = Binding(self.dtype), Moves()
        cdef tape_t *t = &self.t
        self.bind.t = self.moves.t = t
        self.moves.bind = self.bind
        t.dtype = DTYPES[self.dtype]
        t.n_threads = n_threads
        t.ilp64 = self.blas.is_ilp64
        t.sgemm = <void *><uintptr_t>self.blas.sgemm
        t.dgemm = <void *><uintptr_t>self.blas.dgemm
        t.blas_get = <void *><uintptr_t>self.blas.get_threads
        t.blas_set = <void *><uintptr_t>self.blas.set_threads
        # wide.h is level with the libraries in large products, and beats them where they do not use
        # all that the processor has (as Intel's does on Intel's), pack weights anew at every step,
        # or multiply the zeros of data
        t.wide = (t.dtype == 0 and LEVEL >= 1 and not self.blas.is_asked
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
        t.dims = <int64_t *>at(self.dims)
        t.scalars = <double *>at(self.scalars)

    def __dealloc__(self):
        tape_free(&self.t)

    def __len__(self):
        return self.t.n_ins

    @property
    def products(self):
        """The library of the products: "horn" (wide.h) or the name of the BLAS."""
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
             steady=False, zeros="", label=""):
        """c = alpha * a @ b + beta * c, over the first m, n, k of (m, k) @ (k, n) -> (m, n).

        With beta 0, what c held does not matter. alpha and beta are floats, scalars or coefs.
        Zeros of an array that an earlier `load` filled are skipped, where the products are
        wide.h's; so are those of the operand that `zeros`, "a" or "b", names, from any source.
        thin : by the kernel of thin.h where it can. steady : b is the same at every step of a
        `repeat`; it is packed once for all of them, where the products are wide.h's, and successive
        such products of one a into several c are computed as one.
        """
        cdef gemm_t *g = self.bind.gemm(a, b, c, alpha, beta, m, n, k, zeros)
        if thin and self.t.dtype == 0 and g.c.row and not self.in_python:
            g.v, g.ldv = <float *>g.c.data, g.c.ld
            self.bind.room_for_kernels()
        cdef ins_t *ins = self._append(K_GEMM, label or "gemm", g)
        ins.numpy = self.in_python
        if steady and not thin and self.t.wide and g.c.row and g.m.fixed and g.n.fixed:
            self._keep_panels(g)
        return self.t.n_ins - 1

    cdef int _keep_panels(self, gemm_t *g) except -1:
        """Allocate panels for the last instruction's b, which may join the products before it."""
        cdef gemm_t *before
        cdef int i
        g.panels = <float *>self.bind.block(64 + 4 * WIDE_PANELS(g.n.fixed, g.k.fixed)) + 16
        for i in range(self.t.n_ins - 2, max(-1, self.t.n_ins - MAX_STACKED - 1), -1):
            before = self.t.ins[i].gemm
            if self.t.ins[i].kind != K_GEMM or not before.panels or before.a.data != g.a.data \
                    or before.a.stride[0] != g.a.stride[0] or before.a.stride[1] != g.a.stride[1] \
                    or before.m.fixed != g.m.fixed or before.m.dim != g.m.dim \
                    or before.k.fixed != g.k.fixed or before.k.dim != g.k.dim \
                    or _meet(before, g):
                break
            before.followers = self.t.n_ins - 1 - i

    @property
    def reads_live(self):
        """Whether `live_gemm` is available: float32, AVX-512 and products without NumPy."""
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
        cdef gemm_t *g = self.bind.gemm(a, place.T if turned else place, c, 1.0, beta, m, n, k)
        if g.m.fixed > 256:
            raise ValueError(f"m may be {g.m.fixed}, but the batch must be at most 256")
        g.live = 1 if turned else 2
        g.w, g.ldw = <float *>at(place), strides(place)[0]
        for axis, index in w.index.items():
            index = self.bind.array(index, f"the index list of {axis!r}")
            if (axis == "k") == turned:
                if index.ctypes.data not in self.bind.bits:
                    raise ValueError(f"the list of {axis!r} does not come from `live`")
                g.cols = <const int32_t *>at(index)
                g.bits = <const uint16_t *>at(self.bind.bits[index.ctypes.data])
            else:
                g.rows = <const int32_t *>at(index)
        self.bind.room_for_kernels()
        self._append(K_GEMM, label or "live_gemm", g)
        return self.t.n_ins - 1

    def gemm_loop(self, a, b, c, *, inputs, ops, outputs, alpha=1.0, beta=0.0, m=None, n=None,
                  k=None, zeros="", label=""):
        """A GEMM, then an elementwise loop over the axes "m" and "n" of c.

        In float32 with a thin k, and with beta 0 in the latter two, one kernel (thin.h) does

            w += c
            w += c                               with w at live rows and columns
            v = decay v + c;  w += v             with v and w at live rows and columns

        and in the latter two c is left as it was. Otherwise each thread makes all its rows of c, and
        the loop is a second pass over them: a BLAS would pack b again for every block of rows, and
        that costs more.
        """
        c = np.asarray(c)
        if c.ndim != 2:
            raise ValueError(f"c must be a matrix of {self.dtype}, got {c.shape} of {c.dtype}")
        if not is_row(c) and is_row(c.T):
            swap = {"m": "n", "n": "m"}
            return self.gemm_loop(
                np.asarray(b).T, np.asarray(a).T, c.T, alpha=alpha, beta=beta, m=n, n=m, k=k,
                inputs=[patterns.renamed(v, swap) for v in inputs], ops=ops, label=label,
                zeros={"a": "b", "b": "a"}.get(zeros, ""),
                outputs=[(patterns.renamed(v, swap), value) for v, value in outputs])
        rows = c.shape[0] if m is None else m
        cols = c.shape[1] if n is None else n
        cdef loop_t *l = self.bind.loop({"m": rows, "n": cols}, inputs, ops, outputs, None, False, 0,
                                    ("m", None, "n"))
        cdef gemm_t *g
        g = self.bind.gemm(a, b, c, alpha, beta, m, n, k, zeros)
        if self.t.dtype == 0 and g.c.row:
            self.bind.find_thin(g, c, list(inputs), list(ops), list(outputs))
        cdef ins_t *ins = self._append(K_GEMM_LOOP, label or "gemm_loop", g, l)
        ins.numpy = self.in_python
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
        if self.t.dtype or len(parts) > MAX_PARTS or not g.c.row or not all(map(is_row, rows)):
            return number
        n = c.shape[1]
        g.v, g.ldv, g.decay = <float *>g.c.data, g.c.ld, g.beta
        if v is not None:
            g.w, g.ldw = <float *>at(w), max(strides(w)[0], n)
        g.n_parts = len(parts)
        for i, part in enumerate(parts):
            g.part[i] = <const float *>at(part)
            g.ldpart[i] = max(strides(part)[0], n)
        self.bind.room_for_kernels()
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
        cdef loop_t *l = self.bind.loop(axes, inputs, ops, outputs, reduce, accumulate, offset, None)
        self._append(K_LOOP, label or "loop", NULL, l)
        return self.t.n_ins - 1

    def draw(self, out, kind, *, key, site, iteration, rows=None, neurons=None, samples=None,
             first=0, below=None, label=""):
        """Fill out (rows, neurons) with "uniform", "normal" or "bernoulli" (1 where u < below).

        samples : uint64 array of global sample numbers, or None for a draw that all share.
        first : the number of the first neuron. iteration : a Dim. See `horn.random`.
        """
        out = self.bind.array(out, "out", writes=True)
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
            samples = self.bind.array(samples, "samples")
            if samples.dtype != np.uint64 or samples.ndim != 1 or len(samples) < out.shape[0]:
                raise ValueError(f"samples must be uint64, at least {out.shape[0]} of them")
            if not samples.flags.c_contiguous:
                raise ValueError("samples must be contiguous")
        cdef draw_t *g = <draw_t *>self.bind.block(sizeof(draw_t))
        g.out = at(out)
        g.stride[0], g.stride[1] = strides(out)
        g.dtype = self.t.dtype
        g.kind = DRAWS[kind]
        g.rows = self.bind.extent(rows, out.shape[0], "rows")
        g.neurons = self.bind.extent(neurons, out.shape[1], "neurons")
        if samples is not None:
            g.samples = <const uint64_t *>at(samples)
        g.iteration = iteration.index
        g.key[0], g.key[1] = int(key[0]), int(key[1])
        g.site = site
        g.first = first
        g.below = self.bind.coef(0.0 if below is None else below)
        self._append(K_DRAW, label or "draw").draw = g
        return self.t.n_ins - 1

    def load(self, source, index, out, *, rows=None, scale=1.0, label=""):
        """out[r] = scale * source[index[r]] for the rows of the batch; index is int64.

        source may be read-only or memory-mapped, uint8, bool, int32, int64, float32 or float64.
        An integer out takes the numbers as they are. Every index must be a row of source.
        """
        source, index = self.bind.array(source, "source"), self.bind.array(index, "index")
        out = self.bind.array(out, "out", writes=True)
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
        cdef load_t *g = <load_t *>self.bind.block(sizeof(load_t))
        g.source = at(source)
        g.row_stride = source.strides[0]
        g.col_stride = source.strides[1] // source.itemsize
        g.dtype = DTYPES[source.dtype]
        g.index = <const int64_t *>at(index)
        g.out = at(out)
        g.stride[0], g.stride[1] = strides(out)
        g.out_dtype = DTYPES[out.dtype]
        g.rows = self.bind.extent(rows, out.shape[0], "rows")
        g.cols = self.bind.extent(None, out.shape[1], "columns")
        g.scale = self.bind.coef(scale)
        self.bind.of_data.add(out.ctypes.data)
        self._append(K_LOAD, label or "load").load = g
        return self.t.n_ins - 1

    def of_data(self, array):
        """Register a part of an array that a `load` fills: products with it skip zeros, too."""
        self.bind.of_data.add(self.bind.array(array, "array").ctypes.data)

    def rebind(self, number, source, center=None, factor=None):
        """Let the load instruction `number` read another source with rows of the same length.

        With center and factor, one number per column each, out is (scale * source - center) *
        factor. They are doubles if source is, and else of the tape's type.
        """
        if not 0 <= number < self.t.n_ins or self.t.ins[number].load == NULL:
            raise ValueError(f"instruction {number} is not a load")
        cdef load_t *g = self.t.ins[number].load
        source = self.bind.array(source, "source")
        dtype = known(source.dtype, "source")
        if source.ndim == 1:
            source = source[:, None]
        if source.ndim != 2 or source.shape[1] != g.cols.fixed:
            raise ValueError(f"source has rows of {source.shape[1:]}, the load takes "
                             f"{g.cols.fixed}")
        self.bind.keep.pop()
        normal = source.dtype if source.dtype == np.float64 else self.dtype
        for vector in (center, factor):
            if vector is None and center is None and factor is None:
                continue
            if vector is None or vector.shape != (g.cols.fixed,) or vector.dtype != normal \
                    or not vector.flags.c_contiguous or g.out_dtype != DTYPES[self.dtype]:
                raise ValueError(f"center and factor are {g.cols.fixed} numbers of {normal} "
                                 f"each, got {center!r} and {factor!r}")
        self.sources[number] = source, center, factor
        g.center = g.factor = NULL
        if center is not None:
            g.center = at(center)
            g.factor = at(factor)
        g.source = at(source)
        g.row_stride = source.strides[0]
        g.col_stride = source.strides[1] // source.itemsize
        g.dtype = dtype
        self.moves.rebind(number, g, source.strides[1])

    def live(self, mask, kept, count, *, n=None, label=""):
        """kept[:count] = the places where mask (n,) is not zero, ascending; int32."""
        mask, kept = self.bind.array(mask, "mask"), self.bind.array(kept, "kept", writes=True)
        if mask.ndim != 1 or mask.dtype not in (np.dtype(np.float32), np.dtype(np.float64),
                                                np.dtype(np.uint8), np.dtype(np.bool_)):
            raise ValueError(f"mask must be a float or byte vector, got {mask.shape} of "
                             f"{mask.dtype}")
        if kept.dtype != np.int32 or kept.ndim != 1 or len(kept) < len(mask) + 1 \
                or not kept.flags.c_contiguous:
            raise ValueError(f"kept must be contiguous int32 with room for {len(mask) + 1}")
        if not isinstance(count, Dim) or count.maximum < len(mask):
            raise ValueError(f"count must be a Dim of at least {len(mask)}")
        cdef live_t *g = <live_t *>self.bind.block(sizeof(live_t))
        g.mask = at(mask)
        g.stride = strides(mask)[0]
        g.dtype = DTYPES[mask.dtype]
        g.n = self.bind.extent(n, mask.shape[0], "n")
        g.list = <int32_t *>at(kept)
        bits = np.zeros(len(mask) // 16 + 1, np.uint16)
        self.bind.bits[kept.ctypes.data] = bits
        g.bits = <uint16_t *>at(bits)
        g.dim = count.index
        self._append(K_LIVE, label or "live").live = g
        return self.t.n_ins - 1

    def windows(self, x, w, out, *, ptr, src, row, length, which, first, base, step, apart=1,
                of_squares=False, bias=None, relu=False, gate=None, rows=None, label=""):
        """Rows of out in groups: result r of group k is the sum over the runs j of its list,
        from ptr[which[k]] to ptr[which[k] + 1], and over i below length[j], of
        w[base[row[j] + i] + r * step] * x[first[k] + src[j] + i * apart] or, with of_squares, of the square
        of their difference.

        A bias, one for each row, is added; with relu what is less than 0 becomes 0; where the gate,
        as out, is not more than 0, 0 is kept.

        x (n, batch) and out (groups * results, batch) are contiguous along the batch, w is
        contiguous; ptr and base are int64, the others int32.
        """
        cdef conv_t *g = windows_of(self.bind, x, w, out, ptr, src, row, length, which, first, base,
                                    step, apart, of_squares, bias, relu, gate, rows)
        self._append(K_WINDOWS, label or "windows").conv = g
        return self.t.n_ins - 1

    def window_gradients(self, x, y, out, *, src, which, first, n_parts=1, step=0,
                         rows=None, label=""):
        """out[m, k] = the sum over positions p and the batch of y[p * maps + m] times
        x[first[p] + src[which[p], k] + part * step], where map m is of the part m // (maps //
        n_parts).

        x (n, batch) and y (positions * maps, batch) are contiguous along the batch, out (maps,
        places) is contiguous; src (lists, places), -1 for none, which and first (positions,) are
        int32.
        """
        cdef conv_t *g = window_gradients_of(self.bind, x, y, out, src, which, first, n_parts, step,
                                             rows)
        self._append(K_WINDOWS, label or "window gradients").conv = g
        return self.t.n_ins - 1

    def pool(self, x, out, fold, *, ptr, src, where=None, upper=None, place=None, gate=None,
             rows=None, label=""):
        """Row k of out is folded from the rows src[ptr[k]:ptr[k + 1]] of x.

        fold : "sum", "max", "min", and "argmax", "argmin": the first place of it, -1 of none.
        where : as out, gets the places, too, of "max" or "min". upper : as x, and place, a number
        for each of src: of a sum, only where upper[src] is that place. gate : as out, of a sum:
        where it is not more than 0, 0 is kept.
        x, out and these are contiguous along the batch; ptr is int64, src int32.
        """
        cdef pool_t *g = pool_of(self.bind, x, out, fold, ptr, src, where, upper, place, gate, rows)
        self._append(K_POOL, label or "pool").pool = g
        return self.t.n_ins - 1

    def rank(self, array, out, *, rows=None, neurons=None, label=""):
        """out[r, n] = the number of larger numbers in row r of the array, and of equal ones before
        place n; what is no number comes last.
        """
        array, out = self.bind.array(array, "array"), self.bind.array(out, "out", writes=True)
        if array.ndim != 2 or array.shape != out.shape:
            raise ValueError(f"array and out have rows of equal length, got {array.shape} and "
                             f"{out.shape}")
        if array.dtype != self.dtype or out.dtype != self.dtype:
            raise ValueError(f"array and out must be {self.dtype}, got {array.dtype} and {out.dtype}")
        if array.shape[1] >= 2**31:
            raise ValueError(f"a row has fewer than 2**31 numbers, got {array.shape[1]}")
        cdef rank_t *g = <rank_t *>self.bind.block(sizeof(rank_t))
        g.in_, g.out = at(array), at(out)
        g.from_[0], g.from_[1] = strides(array)
        g.to[0], g.to[1] = strides(out)
        g.rows = self.bind.extent(rows, array.shape[0], "rows")
        g.neurons = self.bind.extent(neurons, array.shape[1], "neurons")
        self._reserve(4 * self.dtype.itemsize * array.shape[1])  # each number with its place, twice
        self._append(K_RANK, label or "rank").rank = g
        return self.t.n_ins - 1

    # ---- arrays that lie elsewhere later ----

    def anchor(self, array):
        """Find the instructions' pointers into a C-contiguous array, for ``settle``."""
        usable(array, "array")
        if not array.flags.c_contiguous:
            raise ValueError("only a C-contiguous array can be moved")
        found = Anchor(self.bind, array)
        first, end = _bounds(array)
        kept = []
        for x in self.bind.keep:  # the memory of what lies in it may go when it moves
            begin, past = _bounds(x) if isinstance(x, np.ndarray) else (0, 0)
            if begin == past or begin < first or past > end:
                kept.append(x)
        kept.append(found.held)
        self.bind.keep = kept
        return found

    def step_load(self, int number, int columns):
        """Let this load read so many columns further at each step; before `rebind`."""
        self.moves.add_load(number, columns)

    def move(self, array, memory, int64_t first, int64_t unit, rows=None, stays=False):
        """Let all instructions use a part of the memory in place of this array: at step s the
        part that begins `(first + s) * unit` bytes into it, times the current rows if a unit is one
        row of `rows`.
        stays : the array belongs to all steps, and does not move with s.
        """
        self.moves.add(array, memory, first, unit, -1 if rows is None else rows.index, stays)
        self.bind.keep.append(memory)

    def seek(self, int64_t step, int64_t first=0):
        """Move the arrays that move to this step, and the loads that move so
        many steps further on."""
        self.moves.first_step = first
        self.moves.seek(step)

    # ---- running ----

    def repeat(self, int32_t first, int32_t last, int64_t steps, bint reverse=False):
        """Execute the instructions [first, last) at every step.

        Where none of them mixes rows of the batch, each thread does all steps for a part of the rows
        (bands.c): nobody waits between steps.
        """
        cdef int64_t k
        if not self._begin(first, last) or steps < 1:
            return
        cdef bands_t *bands = self.moves.bands_of(first, last)
        cdef int n_threads = bands_threads(&self.t, bands), packs = steps >= STEPS_TO_PACK
        with nogil:
            if n_threads:
                bands_run(&self.t, bands, steps, reverse, self.moves.first_step, packs, n_threads)
                self.moves.seek(0 if reverse else steps - 1)
            else:
                n_threads = self.t.n_threads if bands_share(&self.t, bands) else 1
                for k in range(steps):
                    self.moves.seek(steps - 1 - k if reverse else k)
                    if k == 0 and packs:
                        tape_pack(&self.t, first, last)
                    tape_run(&self.t, first, last, n_threads)
            self.t.packed = 0
        self._end()

    def divides_rows(self, int32_t first, int32_t last):
        """The number of threads that divide the rows of this run in a `repeat` of these
        instructions; each does all steps for its own. 0: the instructions mix rows, or there are
        too few.
        """
        self._check_range(first, last)
        return bands_threads(&self.t, self.moves.bands_of(first, last))

    def pick(self, rows, picks, int64_t limit):
        """picks[:len(rows)] = rows, whole numbers; whether all of them are in 0 to limit - 1.

        One pass without NumPy, as `total`: between two steps the caches hold weights, and each
        call of a ufunc is read from memory (20 to 40 us on a 1 MiB second-level cache).
        """
        cdef Py_buffer given, taken
        cdef int64_t row
        cdef Py_ssize_t i
        cdef bint fits = True
        _vector(np.asarray(rows).astype(np.int64, copy=False), &given, b"lq", PyBUF_STRIDES)
        try:
            _vector(picks, &taken, b"lq", PyBUF_ND | PyBUF_WRITABLE)
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
        _vector(numbers, &view, b"d" if self.t.dtype else b"f", PyBUF_STRIDES)
        for i in range(view.shape[0]):
            if self.t.dtype:
                total += (<const double *>(<char *>view.buf + i * view.strides[0]))[0]
            else:
                total += (<const float *>(<char *>view.buf + i * view.strides[0]))[0]
        PyBuffer_Release(&view)
        return total

    def run(self, first=0, last=None, bint is_alone=False):
        """Execute the instructions [first, last), by default all of them. is_alone : on this thread,
        without the others.
        """
        cdef int32_t i = first, j = self.t.n_ins if last is None else last
        if not self._begin(i, j):
            return
        with nogil:
            tape_run(&self.t, i, j, 1 if is_alone else self.t.n_threads)
        self._end()

    cdef int _check_range(self, int32_t first, int32_t last) except -1:
        if first < 0 or last > self.t.n_ins:
            raise ValueError(f"the tape has instructions 0 to {self.t.n_ins}, not {first} to {last}")
        return 0

    cdef bint _begin(self, int32_t first, int32_t last) except -1:
        """Whether there is something to run; also starts the threads, again after a fork."""
        self._check_range(first, last)
        if first >= last:
            return False
        if self.t.n_threads > 1 and (self.t.worker == NULL or self.t.pid != getpid()):
            if start_threads(&self.t) != 0:
                raise MemoryError(f"cannot start {self.t.n_threads} threads")
        return True

    cdef int _end(self) except -1:
        """Raise the error of a product through NumPy."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return 0

    def clock(self, on):
        """Begin or stop adding up the seconds of each instruction."""
        self.t.profile = 1 if on else 0

    def times(self):
        """The seconds that each instruction took while the clock was on, barriers included."""
        return [self.t.ins[i].ns * 1e-9 for i in range(self.t.n_ins)]

    # ---- inside ----

    cdef int _reserve(self, int64_t need) except -1:
        """Let each thread have so many bytes of scratch at least."""
        cdef tape_t *t = &self.t
        cdef void *block = NULL
        if need > t.scratch_bytes:
            for i in range(t.n_threads):
                free(t.scratch[i])
                t.scratch[i] = NULL
                if posix_memalign(&block, 64, need + 4096):
                    raise MemoryError
                t.scratch[i] = <char *>block
            t.scratch_bytes = need
        return 0

    cdef ins_t *_append(self, int kind, label, gemm_t *g=NULL, loop_t *l=NULL) except NULL:
        cdef tape_t *t = &self.t
        cdef ins_t *room
        if t.n_ins == t.room:
            room = <ins_t *>realloc(t.ins, (2 * t.room + 16) * sizeof(ins_t))
            if not room:
                raise MemoryError
            t.ins, t.room = room, 2 * t.room + 16
        cdef int64_t strip = STRIP_BYTES_ // self.dtype.itemsize
        if l:
            self._reserve(l.n_slots * STRIP_BYTES_ + strip * 24 + 9 * (l.n_values + 16)
                          + (8 * l.extent[2].fixed if l.fast == FAST_PLACES else 0))
        self.moves.drop_bands()
        cdef ins_t *ins = &t.ins[t.n_ins]
        memset(ins, 0, sizeof(ins_t))
        ins.kind, ins.gemm, ins.loop = kind, g, l
        t.n_ins += 1
        self.labels.append(label)
        return ins


cdef bint _meet(const gemm_t *before, const gemm_t *after):
    """Whether the results of two products, by rows, may share memory."""
    cdef const gemm_t *first = before if before.c.data <= after.c.data else after
    cdef const gemm_t *second = after if before.c.data <= after.c.data else before
    cdef int64_t last = (first.m.fixed - 1) * first.c.ld + first.n.fixed
    return <float *>first.c.data + last > <float *>second.c.data


def _bounds(array):
    """Where the memory of an array begins and ends; the same twice of an empty one."""
    if not array.nbytes:
        return 0, 0
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides)]
    place = array.ctypes.data
    return (place + sum(step for step in steps if step < 0),
            place + sum(step for step in steps if step > 0) + array.itemsize)


cdef int _vector(object vector, Py_buffer *view, const char *kinds, int flags) except -1:
    """The memory of a vector of one of these kinds; the caller releases it.

    No typed memoryview: their code takes as long to compile as all of this file.
    """
    PyObject_GetBuffer(vector, view, flags | PyBUF_FORMAT)
    if view.ndim == 1 and view.format and strchr(kinds, view.format[0]):
        return 0
    PyBuffer_Release(view)
    raise ValueError(f"a vector of kind {' or '.join(kinds.decode())!r} is needed, got "
                     f"{vector.shape} of {vector.dtype}")


include "numpy_products.pxi"
