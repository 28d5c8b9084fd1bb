"""``inproc`` with a link that loses, doubles, delays and alters frames.

``faults`` says what happens to the n-th frame from one task to another: without a clock, since a
delay is counted in frames. Acknowledgements are not counted: how many there are is a matter of
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horn.transport import Identity
from horn.transport.inproc import InProc, InProcQueues
from horn.wire.frames import HEADER

_SEQ = 9  # of a header's fields; acknowledgements have none


@dataclass(frozen=True)
class DropFault:
    """The frame never arrives."""


@dataclass(frozen=True)
class DuplicateFault:
    """It arrives twice."""


@dataclass(frozen=True)
class DelayFault:
    """It arrives after ``n_frames`` later ones of the same sender: 1 swaps it with the next."""

    n_frames: int = 1


@dataclass(frozen=True)
class CorruptFault:
    """One bit of it is another: ``bit`` of part ``part`` (0 header, 1 meta, 2.. bodies)."""

    part: int = 0
    bit: int = 0


Fault = DropFault | DuplicateFault | DelayFault | CorruptFault
# (from, to, number of the frame from 1; 0 for any acknowledgement)
Faults = Mapping[tuple[int, int, int], Fault]


class FaultyQueues(InProcQueues):
    def __init__(self, endpoint: str, task: int) -> None:
        super().__init__(endpoint, task)
        self.faults: Faults = {}
        self.n_put: dict[int, int] = {}
        self.late: dict[int, list[tuple[int, list[bytes]]]] = {}

    def arriving(self, to: int, frame: list[bytes]) -> list[list[bytes]]:
        is_word = not HEADER.unpack_from(frame[0])[_SEQ]
        number = self.n_put[to] = self.n_put.get(to, 0) + (not is_word)
        late = self.late.setdefault(to, [])
        match self.faults.get((self.task, to, 0 if is_word else number)):
            case DropFault():
                now = []
            case DuplicateFault():
                now = [frame, frame]
            case DelayFault(n_frames=n_frames):
                late.append((number + n_frames, frame))
                now = []
            case CorruptFault(part=part, bit=bit):
                bad = bytearray(frame[part])
                bad[bit // 8 % len(bad)] ^= 1 << bit % 8
                now = [[*frame[:part], bytes(bad), *frame[part + 1 :]]]
            case _:
                now = [frame]
        now += [delayed for due, delayed in late if due <= number]
        self.late[to] = [(due, delayed) for due, delayed in late if due > number]
        return now


class FaultyInProc(InProc):
    queues = FaultyQueues

    def __init__(self, url: str, identity: Identity, faults: Faults | None = None) -> None:
        super().__init__(url, identity)
        self.link.faults = faults or {}  # type: ignore[attr-defined]
