"""zlib's CRC-32, five times as fast where the processor multiplies without carries.

The tail of fewer than 16 bytes, short inputs and other processors are zlib's own.
"""

import zlib

from libc.stdint cimport uint32_t

cdef extern from "crc32.h" nogil:
    bint horn_can_fold()
    uint32_t horn_fold(uint32_t crc, const unsigned char *p, size_t n)

cdef bint CAN_FOLD = horn_can_fold()


def crc32(const unsigned char[::1] data, uint32_t crc=0):
    """``zlib.crc32(data, crc)``."""
    cdef size_t n = data.shape[0], body = n & ~<size_t>15
    if not CAN_FOLD or n < 256:
        return zlib.crc32(data, crc)
    with nogil:
        crc = ~horn_fold(~crc, &data[0], body)
    if body < n:
        return zlib.crc32(data[body:], crc)
    return crc
