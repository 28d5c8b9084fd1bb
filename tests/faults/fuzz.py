"""Mutants of good input for every parser that reads what others send. Experiment 33.

    python -m tests.faults.fuzz frame 1000000 [SEED]

prints what was measured as one line of JSON: refused with an error of horn, accepted, the longest
time in the parser (CPU), and by how much the most memory grew.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import struct
import sys
import time
import zlib
from contextlib import closing, suppress
from typing import Any

import msgspec
import numpy as np
from zmq.utils import z85

from horn.cluster import package, submission
from horn.coordination.records import Znode
from horn.errors import HornError
from horn.process import control
from horn.rpc import protocol as calls
from horn.security.keys import Key
from horn.wire.frames import decode, sum_of
from horn.wire.messages import Meta
from horn.wire.zap import ZAP_DOMAIN, AllowedKeys, pair_of

KEY, NODE = Key(bytes(range(32))), Znode(b"", 0, 41, 41, 0, 0, 1000.25)
SLOW_S = 0.001
BAIT = [
    b"\x90", b"\x80", b"\xc1", b"\x91" * 64, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc7\x05\x01hello", b"\xd6\xff\0\0\0\0",
    b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7), b"\xff" * 8, bytes(8), b"../", b"type", b'"', b"{", b"[",
]  # fmt: skip


def mutant(rng: random.Random, good: bytes, others: list[bytes]) -> bytes:
    """One to four changes of ``good``."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 9)]
            case 4:
                data[at:at] = rng.choice(BAIT)
            case 5:
                data[at : at + rng.randrange(1, 9)] = rng.choice(BAIT)
            case 6:
                data[at:at] = rng.randbytes(rng.randrange(1, 17))
            case 7:
                other = rng.choice(others)
                data[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                piece = data[at : at + rng.randrange(1, 65)]
                data[at:at] = piece * rng.choice((1, 2, 50))
    return bytes(data)


def frames() -> list[list[bytes]]:
    """One good frame of each kind that tasks say."""
    from tests.wire.test_frames import EXAMPLES, raw

    return [raw(message) for message in EXAMPLES.values()]


class Parser:
    """What is fuzzed: ``make`` a mutant, ``parse`` it and look at what passed."""

    good: list[Any]

    def make(self, rng: random.Random) -> Any:
        raise NotImplementedError

    def parse(self, made: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give back what it opened."""


class Frames(Parser):
    """``decode``: half of the mutants have a good checksum, else few got past it."""

    def __init__(self) -> None:
        self.good = frames()
        self.metas = [parts[1] for parts in self.good]

    def make(self, rng: random.Random) -> list[bytes]:
        parts = list(rng.choice(self.good))
        which = rng.randrange(len(parts) + 1)
        if which == len(parts):
            match rng.randrange(3):
                case 0:
                    del parts[rng.randrange(len(parts))]
                case 1:
                    parts.insert(rng.randrange(len(parts) + 1), rng.choice(BAIT))
                case _:
                    parts[-1] = rng.choice(self.metas)
        else:
            parts[which] = mutant(rng, parts[which], self.metas)
        if rng.random() < 0.7 and len(parts) >= 2 and len(parts[0]) == 64:
            head = bytearray(parts[0])
            struct.pack_into("<HI", head, 10, len(parts) - 2, len(parts[1]))
            struct.pack_into("<I", head, 16, sum(map(len, parts[2:])))
            if head[8] & 1:
                struct.pack_into("<Q", head, 52, sum_of(parts[2:]))
            guard = zlib.crc32(parts[1], zlib.crc32(head[:60]))
            struct.pack_into("<I", head, 60, guard)
            parts[0] = bytes(head)
        return parts

    def parse(self, parts: list[bytes]) -> None:
        found = decode(parts)
        assert isinstance(found.meta, Meta)
        assert all(isinstance(array, np.ndarray) for array in found.arrays)


class Lines(Parser):
    """``control.ControlChannel``: real packets over a real socket."""

    def __init__(self) -> None:
        from tests.process.test_control import MESSAGES

        self.ours, self.theirs = control.ControlChannel.pair()
        self.good = [msgspec.msgpack.encode(message) for message in MESSAGES]

    def make(self, rng: random.Random) -> bytes:
        kind = rng.choice((control.INLINE, control.INLINE, control.INLINE, control.IN_MEMORY, b"x"))
        return (kind + mutant(rng, rng.choice(self.good), self.good))[: control.PACKET_BYTES]

    def parse(self, packet: bytes) -> None:
        self.ours.sock.send(packet)
        found = self.theirs.receive(5.0)
        assert found is not None and isinstance(found[0], control.ControlMessage) and found[1] == []

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Calls(Parser):
    """The frames of services, and the request in one."""

    def __init__(self) -> None:
        request = msgspec.Raw(msgspec.msgpack.encode({"text": "x", "n": 3}))
        self.good = [
            calls.encode(frame)
            for frame in (
                calls.CallRequest(1, calls.VERSION, "echo", 5.0, request, 10),
                calls.CallResponse(1, request, calls.UNKNOWN), calls.BodyChunk(1),
                calls.EndOfBody(1), calls.WindowGrant(1, 1000),
                calls.CallError(1, "JobError", "no"), calls.CancelCall(1),
            )
        ]  # fmt: skip

    def make(self, rng: random.Random) -> list[bytes]:
        parts = [mutant(rng, rng.choice(self.good), self.good)]
        if rng.random() < 0.2:
            parts.append(rng.randbytes(rng.randrange(20)))
        return parts

    def parse(self, parts: list[bytes]) -> None:
        frame, _ = calls.decode(parts)
        assert isinstance(frame, calls.RpcFrame)
        if isinstance(frame, calls.CallRequest):
            try:
                msgspec.msgpack.decode(frame.request, type=control.StartTask)
            except ValueError as error:
                raise calls.ProtocolError(str(error)) from None


class Manifests(Parser):
    """``package.decode``."""

    def __init__(self) -> None:
        def of(*paths: str) -> bytes:
            files = tuple(package.PackageFile(path, len(path), bytes(32)) for path in paths)
            return package.encode(package.PackageManifest(package.FORMAT, files))

        self.good = [of(), of("a.py"), of("a.py", "b/c.py", "b/d.py", "é.txt"),
                     of(*(f"f{n:03}" for n in range(30)))]  # fmt: skip

    def make(self, rng: random.Random) -> bytes:
        return mutant(rng, rng.choice(self.good), self.good)

    def parse(self, packed: bytes) -> None:
        manifest = package.decode(packed)
        assert package.encode(manifest) == packed
        for file in manifest.files:  # whatever passes stays below its folder
            path = os.path.normpath(os.path.join("/root/of/it", file.path))
            assert path == f"/root/of/it/{file.path}" and "\0" not in path


class Submissions(Parser):
    """``submission.verify``: nothing may pass but the good one itself."""

    def __init__(self) -> None:
        job = submission.Submission(job="a-1", target="job.py", package="ab" * 32, seed=3)
        self.good = [submission.sign(KEY, job, NODE)]

    def make(self, rng: random.Random) -> bytes:
        return mutant(rng, self.good[0], self.good)

    def parse(self, raw: bytes) -> None:
        submission.verify(KEY, raw, job="a-1", origin=NODE)
        assert raw == self.good[0]


class Zaps(Parser):
    """The gate of CURVE: nobody is let in but who is known."""

    def __init__(self) -> None:
        public = pair_of(KEY.role("client"))[0]
        self.allowed = AllowedKeys()
        self.allowed.admit(public, "client")
        self.known = z85.decode(public)
        self.good = [b"1.0", b"1", ZAP_DOMAIN, b"127.0.0.1", b"", b"CURVE", self.known]

    def make(self, rng: random.Random) -> list[bytes]:
        parts = list(self.good)
        at = rng.randrange(len(parts) + 1)
        if at == len(parts):
            del parts[rng.randrange(len(parts))]
        else:
            parts[at] = mutant(rng, parts[at], self.good)
        return parts

    def parse(self, parts: list[bytes]) -> None:
        if self.allowed.answer(parts)[2] != b"200":
            raise calls.ProtocolError("refused")
        whose = [at for at in range(7) if parts[at] != self.good[at]]
        assert set(whose) <= {1, 3, 4}, parts  # request number, address and identity mean nothing


TARGETS: dict[str, type[Parser]] = {
    "frame": Frames, "line": Lines, "call": Calls, "manifest": Manifests,
    "submission": Submissions, "zap": Zaps,
}  # fmt: skip


def _most_memory() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def fuzz(target: str, n: int, seed: int = 0) -> dict[str, Any]:
    """Throw ``n`` mutants at a parser. Whatever is no error of horn comes out."""
    with closing(TARGETS[target]()) as parser:
        rng = random.Random(f"{target} {seed}")
        for _ in range(1000):  # what is allocated once
            with suppress(HornError):
                parser.parse(parser.make(rng))
        gc.collect()
        gc.freeze()  # to look through all that the tests hold is no parser's doing
        try:
            return {"target": target, "n": n, "seed": seed, **_throw(parser, n, rng)}
        finally:
            gc.unfreeze()


def _timed(parser: Parser, made: Any, number: int) -> tuple[float, bool]:
    """CPU seconds, and whether it was refused."""
    began = time.thread_time()
    try:
        parser.parse(made)
    except HornError:
        return time.thread_time() - began, True
    except BaseException as error:
        error.add_note(f"mutant {number}: {made!r}"[:2000])
        raise
    return time.thread_time() - began, False


def _throw(parser: Parser, n: int, rng: random.Random) -> dict[str, Any]:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins anew
    before, n_fds = _most_memory(), len(os.listdir("/proc/self/fd"))
    n_refused, longest_s = 0, 0.0
    for number in range(n):
        made = parser.make(rng)
        took_s, is_refused = _timed(parser, made, number)
        n_refused += is_refused
        if took_s > SLOW_S:  # the machine stumbles now and then; a slow input is slow again
            took_s = min(_timed(parser, made, number)[0] for _ in range(3))
        longest_s = max(longest_s, took_s)
    assert len(os.listdir("/proc/self/fd")) == n_fds
    return {"refused": n_refused, "accepted": n - n_refused,
            "longest_ms": round(longest_s * 1000, 3),
            "grown_MB": round((_most_memory() - before) / 1e6, 2)}  # fmt: skip


if __name__ == "__main__":
    logging.disable()
    arguments = sys.argv[1:]
    print(json.dumps(fuzz(arguments[0], int(arguments[1]), int((arguments + ["0"])[2]))))
