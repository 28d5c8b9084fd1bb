"""The sum that guards a message's bytes: 64 bits, about as fast as they are read (``sum.h``)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

cdef extern from "sum.h" nogil:
    void horn_make_keys()
    int horn_widest()
    uint64_t horn_sum(uint64_t sum, const unsigned char *p, size_t n, int way)

horn_make_keys()
WIDEST = horn_widest()
cdef int _widest = WIDEST


def sum64(data, uint64_t start=0, int widest=2):
    """The checksum of data after data with the checksum ``start``; of no data it is ``start``.

    widest : at most so wide a way, 2 for AVX-512, 1 for AVX2, 0 for plain C; all find the same.
    """
    cdef int way = min(widest, _widest)
    cdef Py_buffer view  # a typed memoryview would bring 20,000 lines of C
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len:
        with nogil:
            start = horn_sum(start, <const unsigned char *>view.buf, view.len, way)
    PyBuffer_Release(&view)
    return start
