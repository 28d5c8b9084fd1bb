"""zlib's CRC-32, several times as fast where the processor multiplies without carries.

The tail of fewer than 16 bytes, short inputs and other processors are zlib's own.
"""

import zlib

from libc.stdint cimport uint32_t

cdef extern from "crc32.h" nogil:
    bint horn_can_fold()
    bint horn_can_fold_wide()
    uint32_t horn_fold(uint32_t crc, const unsigned char *p, size_t n)
    uint32_t horn_fold_wide(uint32_t crc, const unsigned char *p, size_t n)

cdef bint CAN_FOLD = horn_can_fold()
cdef bint CAN_FOLD_WIDE = CAN_FOLD and horn_can_fold_wide()


def crc32(const unsigned char[::1] data, uint32_t crc=0, bint wide=True):
    """``zlib.crc32(data, crc)``. wide : by 512-bit vectors where the processor has them."""
    cdef size_t n = data.shape[0], body = n & ~<size_t>15
    if not CAN_FOLD or n < 256:
        return zlib.crc32(data, crc)
    with nogil:
        if wide and CAN_FOLD_WIDE:
            crc = ~horn_fold_wide(~crc, &data[0], body)
        else:
            crc = ~horn_fold(~crc, &data[0], body)
    if body < n:
        return zlib.crc32(data[body:], crc)
    return crc
