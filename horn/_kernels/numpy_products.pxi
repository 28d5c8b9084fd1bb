"""Products through NumPy, where no BLAS was found: a run goes back to Python for each."""

cdef void numpy_gemm(void *owner, const gemm_t *g, int64_t m, int64_t n, int64_t k, double alpha,
                     double beta) noexcept with gil:
    """Compute a product through NumPy, where no BLAS was found; it allocates."""
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
    """An array over memory that an instruction lends."""

    def __init__(self, interface):
        self.__array_interface__ = interface


def _borrow(dtype, address, stride0, stride1, rows, cols):
    size = dtype.itemsize
    return np.asarray(_Memory({"data": (address, False), "shape": (rows, cols), "version": 3,
                               "strides": (stride0 * size, stride1 * size),
                               "typestr": dtype.str}))
