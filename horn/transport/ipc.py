"""Tasks on one host over unix sockets: ``ipc://`` or ``ipc:///folder``.

Without a folder the sockets have abstract names, which no file system knows: nothing is left after
a kill. In a folder they are files, and the folder must be the user's alone (mode 0700).
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from horn.errors import JobError
from horn.transport import Identity
from horn.transport._zeromq import ZeroMq


class Ipc(ZeroMq):
    """ZeroMQ over unix sockets."""

    scheme = "ipc"
    default_url = link_url = "ipc://"
    fds_per_peer = 6
    latency_s, bytes_per_s = 90e-6, 1.2e9

    def __init__(self, url: str, identity: Identity) -> None:
        folder = url.removeprefix("ipc://")
        name = f"horn-{secrets.token_hex(16)}"
        self.path = os.path.join(folder, name) if folder else ""
        if folder:
            try:
                found = os.stat(folder)
            except OSError as error:
                raise JobError(f"{url!r}: {error.strerror}: make the folder, mode 0700") from error
            if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.getuid():
                raise JobError(f"{url!r}: others may enter the folder; chmod 700 {folder}")
        super().__init__(url, identity, f"ipc://{self.path or '@' + name}")

    def close(self, reason: str = "finished") -> None:
        super().close(reason)
        if self.path:
            with suppress(FileNotFoundError):
                os.unlink(self.path)


TRANSPORT = Ipc
