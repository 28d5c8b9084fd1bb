"""The sum that guards a message's bytes: 64 bits, about as fast as they are read (``sum.h``)."""

from libc.stdint cimport uint64_t

cdef extern from "sum.h" nogil:
    void horn_make_keys()
    int horn_widest()
    uint64_t horn_sum(uint64_t sum, const unsigned char *p, size_t n, int way)

horn_make_keys()
WIDEST = horn_widest()
cdef int _widest = WIDEST


def sum64(const unsigned char[::1] data, uint64_t start=0, int widest=2):
    """The sum of data after what has the sum ``start``; that of nothing is ``start``.

    widest : at most so wide a way, 2 for AVX-512, 1 for AVX2, 0 for plain C; all find the same.
    """
    cdef size_t n = data.shape[0]
    cdef int way = min(widest, _widest)
    if n:
        with nogil:
            start = horn_sum(start, &data[0], n, way)
    return start
