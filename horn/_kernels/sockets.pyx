"""A ZeroMQ socket's hot path: frames in and out without Python, its lock or a thread in between.

pyzmq makes an event and a tracker per part, and a thread of its own, which needs the interpreter's
lock, is notified that a part is sent: 100 us a frame. Here the library's callback counts in C.
Nothing is linked: the module that imports zmq passes the addresses in the library that pyzmq has
loaded. Used from one thread, as the socket itself.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int64_t, uint64_t, uintptr_t

import os
from collections import deque

FUNCTIONS = (
    "zmq_msg_init", "zmq_msg_init_data", "zmq_msg_send", "zmq_msg_recv", "zmq_msg_close",
    "zmq_msg_data", "zmq_msg_size", "zmq_msg_more", "zmq_send", "zmq_getsockopt", "zmq_errno",
)

cdef extern from *:
    """
    #include <sched.h>
    #include <stdlib.h>
    #include <time.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    static void horn_keep_pages(int most, int spare) {
        mallopt(M_MMAP_THRESHOLD, most);
        mallopt(M_TRIM_THRESHOLD, spare);
    }
    #else
    static void horn_keep_pages(int most, int spare) { (void)most; (void)spare; }
    #endif
    static void horn_gone(void *data, void *left) {
        (void)data;
        __atomic_fetch_sub((int *)left, 1, __ATOMIC_RELEASE);
    }
    static int horn_left(int *left) { return __atomic_load_n(left, __ATOMIC_ACQUIRE); }
    static double horn_seconds(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    """
    void horn_keep_pages(int most, int spare) noexcept nogil
    void horn_gone(void *data, void *left) noexcept nogil
    int horn_left(int *left) noexcept nogil
    double horn_seconds() noexcept nogil
    int sched_yield() noexcept nogil

# zmq.h: part of the library's ABI since 4.0
cdef enum:
    DONTWAIT = 1
    SNDMORE = 2
    EVENTS = 15
    POLLIN = 1
    COPY_BYTES = 65536  # copying so much costs less than the callback when it is sent
    # Memory for received parts, which ZeroMQ allocates anew for each: the size of the largest, and
    # the freed memory that stays with the process. Otherwise the C library returns it to the system
    # now and then, and the next parts are received into pages that have to be cleared first: 2,000
    # page faults and a sixth of the time of an allreduce of 48 MB (docs/notes/0092).
    PART_BYTES = 16 * 1024 * 1024
    SPARE_BYTES = 64 * 1024 * 1024

ctypedef struct Msg:
    uint64_t words[8]

ctypedef void (*Freed)(void *, void *) noexcept nogil
ctypedef int (*OfMsg)(Msg *) noexcept nogil
ctypedef int (*InitData)(Msg *, void *, size_t, Freed, void *) noexcept nogil
ctypedef int (*Move)(Msg *, void *, int) noexcept nogil
ctypedef void *(*DataOf)(Msg *) noexcept nogil
ctypedef size_t (*SizeOf)(const Msg *) noexcept nogil
ctypedef int (*MoreOf)(const Msg *) noexcept nogil
ctypedef int (*Send)(void *, const void *, size_t, int) noexcept nogil
ctypedef int (*GetOption)(void *, int, void *, size_t *) noexcept nogil
ctypedef int (*Errno)() noexcept nogil

cdef OfMsg msg_init = NULL
cdef InitData msg_init_data = NULL
cdef Move msg_send = NULL
cdef Move msg_recv = NULL
cdef OfMsg msg_close = NULL
cdef DataOf msg_data = NULL
cdef SizeOf msg_size = NULL
cdef MoreOf msg_more = NULL
cdef Send send_bytes = NULL
cdef GetOption get_option = NULL
cdef Errno last_error = NULL
cdef bint keeps_pages = False


def use(addresses):
    """The functions named in FUNCTIONS, once per process."""
    global msg_init, msg_init_data, msg_send, msg_recv, msg_close, msg_data, msg_size, msg_more
    global send_bytes, get_option, last_error
    cdef list at = [int(addresses[name]) for name in FUNCTIONS]
    msg_init = <OfMsg><uintptr_t>at[0]
    msg_init_data = <InitData><uintptr_t>at[1]
    msg_send = <Move><uintptr_t>at[2]
    msg_recv = <Move><uintptr_t>at[3]
    msg_close = <OfMsg><uintptr_t>at[4]
    msg_data = <DataOf><uintptr_t>at[5]
    msg_size = <SizeOf><uintptr_t>at[6]
    msg_more = <MoreOf><uintptr_t>at[7]
    send_bytes = <Send><uintptr_t>at[8]
    get_option = <GetOption><uintptr_t>at[9]
    last_error = <Errno><uintptr_t>at[10]


cdef class Part:
    """One received part, in the memory where the library put it."""

    cdef Msg msg

    def __cinit__(self):
        if msg_init == NULL:
            raise RuntimeError("sockets.use() has not been called")
        msg_init(&self.msg)

    def __dealloc__(self):
        if msg_close != NULL:
            msg_close(&self.msg)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, msg_data(&self.msg), <Py_ssize_t>msg_size(&self.msg), 1, flags)


cdef class Sent:
    """A frame whose large parts the library still reads; calling it tells whether they are sent."""

    cdef int n_left
    cdef object views

    def __call__(self):
        return horn_left(&self.n_left) == 0


cdef class Socket:
    """The hot path of one socket; ``handle`` is what pyzmq calls ``underlying``.

    Raises
    ------
    OSError : any error of the library except EAGAIN.
    """

    cdef void *handle
    cdef object flying

    def __init__(self, handle):
        if msg_init == NULL:
            raise RuntimeError("sockets.use() has not been called")
        self.handle = <void *><uintptr_t>int(handle)
        self.flying = deque()

    def send(self, parts):
        """Send a message. None: full, nothing was sent. True: sent. Else a callable that tells when
        the parts may be written again.
        """
        cdef Sent sent = None
        cdef Py_buffer view
        cdef Py_ssize_t n = len(parts), at
        cdef const void *data
        cdef size_t size
        cdef Msg msg
        cdef int flags, rc, error = 0
        self.settle()
        for at in range(1, n):  # refused before a part is sent: the socket would keep a half message
            PyObject_GetBuffer(parts[at], &view, PyBUF_SIMPLE)
            PyBuffer_Release(&view)
        for at in range(n):
            flags = DONTWAIT | (SNDMORE if at < n - 1 else 0)
            PyObject_GetBuffer(parts[at], &view, PyBUF_SIMPLE)
            try:
                size = <size_t>view.len
                data = <const void *>view.buf if size else <const void *>b""
                if size <= COPY_BYTES:
                    rc = send_bytes(self.handle, data, size, flags)
                    while rc < 0 and last_error() == EINTR:
                        rc = send_bytes(self.handle, data, size, flags)
                    if rc < 0:
                        error = last_error()
                else:
                    if sent is None:
                        sent = Sent.__new__(Sent)
                        sent.views = []
                    sent.views.append(memoryview(parts[at]))
                    sent.n_left += 1  # before the library may see it
                    msg_init_data(&msg, <void *>data, size, horn_gone, &sent.n_left)
                    if len(sent.views) == 1:  # the library reads it, whatever becomes of this
                        Py_INCREF(sent)
                        self.flying.append(sent)
                    rc = msg_send(&msg, self.handle, flags)
                    while rc < 0 and last_error() == EINTR:
                        rc = msg_send(&msg, self.handle, flags)
                    if rc < 0:
                        error = last_error()
                        msg_close(&msg)
            finally:
                PyBuffer_Release(&view)
            if error == EAGAIN and at == 0:  # a message is taken whole or not at all
                return None
            if error:
                raise OSError(error, os.strerror(error))
        return True if sent is None else sent

    def settle(self):
        """Release the frames that are sent; return whether all are."""
        cdef Sent sent
        while self.flying:
            sent = self.flying[0]
            if horn_left(&sent.n_left):
                return False
            self.flying.popleft()
            Py_DECREF(sent)
        return True

    def receive(self):
        """The parts of the next message, or None. Large ones stay in the library's memory."""
        global keeps_pages
        cdef list parts = []
        cdef Part part
        cdef Py_ssize_t size
        cdef int rc, more = 1
        while more:
            part = Part.__new__(Part)
            rc = msg_recv(&part.msg, self.handle, DONTWAIT)
            while rc < 0 and last_error() == EINTR:
                rc = msg_recv(&part.msg, self.handle, DONTWAIT)
            if rc < 0:
                rc = last_error()
                if rc == EAGAIN and not parts:
                    return None
                raise OSError(rc, os.strerror(rc))
            more = msg_more(&part.msg)
            size = <Py_ssize_t>msg_size(&part.msg)
            if size <= COPY_BYTES:
                parts.append(PyBytes_FromStringAndSize(<char *>msg_data(&part.msg), size))
            else:
                if not keeps_pages:  # only a process that receives blocks this way
                    keeps_pages = True
                    horn_keep_pages(PART_BYTES, SPARE_BYTES)
                parts.append(memoryview(part))
        return parts

    def wait(self, double wait_s):
        """Wait for a message so long, yielding to other threads; return whether there is one."""
        cdef double ends
        cdef int events = 0
        cdef size_t size = sizeof(int)
        cdef bint found = False
        with nogil:
            ends = horn_seconds() + wait_s
            while True:
                if get_option(self.handle, EVENTS, &events, &size) == 0 and events & POLLIN:
                    found = True
                    break
                if horn_seconds() >= ends:
                    break
                sched_yield()
        return found
