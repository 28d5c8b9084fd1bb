"""A wall clock that is wrong, for processes that a test starts: a library put before libc's.

``Clock`` holds the error in a file that its processes have mapped, so that it may jump while they
run. The monotonic clock stays as it is, as it does when somebody sets the time of a machine.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long error_s(void) {
    static volatile long *at;
    if (!at) {
        static long none;
        const char *path = getenv("HORN_TEST_CLOCK");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        at = map == MAP_FAILED ? &none : map;
    }
    return *at;
}

int clock_gettime(clockid_t which, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, found);
    if (!code && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        found->tv_sec += error_s();
    return code;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""

WANTED = ("LD_PRELOAD", "HORN_TEST_CLOCK")
AGAIN = """\
import os
import sys

if "HORN_TEST_CLOCK" not in os.environ:
    os.execve(sys.executable, sys.orig_argv, os.environ | ours)
"""


def why_not() -> str:
    return "" if shutil.which("cc") else "no C compiler here"


class Clock:
    """``environment`` is for processes that shall have it; ``jump`` sets its error in seconds."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(SOURCE)
        words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        self.file = folder / "clock"
        self.jump(0)
        self.environment = os.environ | {
            "LD_PRELOAD": str(library), "HORN_TEST_CLOCK": str(self.file),
        }  # fmt: skip

    def everywhere(self, path: str = "") -> dict[str, str]:
        """For processes whose own ones are started without most of their environment, such as an
        agent's: each starts its interpreter again, with the library. path : more of PYTHONPATH.
        """
        folder = self.file.parent / "site"
        folder.mkdir()
        ours = {name: self.environment[name] for name in WANTED}
        text = f"ours = {ours!r}\n{AGAIN}"
        (folder / "sitecustomize.py").write_text(text)
        return self.environment | {"PYTHONPATH": f"{folder}{os.pathsep}{path}"}

    def jump(self, error_s: int) -> None:
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:
            file.write(struct.pack("=q", error_s))
