"""Everything the embedded server raises on purpose.

ZkError
├─ Refused        a request broke a rule               answered with the protocol's code
├─ WireError      bytes that are not a record          answered -5, or the peer is dropped
├─ LogError       a file of the data folder is damaged  names the file and the offset
└─ ServerError    the server cannot start or go on      says what to do; has exit_code
"""

from __future__ import annotations


class ZkError(Exception):
    """The root: everything this package raises on purpose, and nothing else."""


class Refused(ZkError):
    """A request broke a rule of the protocol; ``code`` and ``body`` are for the client."""

    def __init__(self, code: int, path: str = "", *, body: bytes = b"") -> None:
        self.code, self.path, self.body = code, path, body
        super().__init__(code, path)


class WireError(ZkError):
    """A record is cut short, or a length in it cannot be true."""


class LogError(ZkError):
    """A file of the data folder is damaged before its last record."""

    exit_code = 3

    def __init__(self, file: str, offset: int, problem: str) -> None:
        self.file, self.offset, self.problem = file, offset, problem
        super().__init__(file, offset, problem)

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.problem} at offset {self.offset}; the server will not start on "
            f"a damaged log. Restore the folder from a copy, or move it away to start empty"
        )


class ServerError(ZkError):
    """The server cannot start, or cannot go on; the sentence says what to do."""

    def __init__(self, problem: str, exit_code: int = 2) -> None:
        self.problem, self.exit_code = problem, exit_code
        super().__init__(problem, exit_code)

    def __str__(self) -> str:
        return self.problem
