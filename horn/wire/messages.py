"""The messages between tasks, and with parameter servers: the typed middle of a frame.

One class each, with its number in ``TYPES``; ``frames`` encodes and decodes them. What a field may
hold is checked by msgspec while it decodes.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

import msgspec

MAJOR, MINOR = 2, 0  # the version of the protocol
MAX_BODIES = 64
MAX_NDIM, MAX_DIM = 8, 2**31

# The number of a dtype on the wire; all are little-endian.
DTYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "<i8", 5: "|u1", 6: "|b1",
    7: "<u4", 8: "<u8", 9: "<f2", 10: "|i1", 11: "<i2", 12: "<u2",
}  # fmt: skip


class FrameKind(enum.IntEnum):
    """The purpose of a frame, readable without its type."""

    CTL = 1
    DATA = 2
    ACK = 3
    ERR = 4


# Bits of a hello's features.
MENDS = 1  # acknowledges, drops repeated frames, and sends again

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Word = Annotated[str, msgspec.Meta(max_length=256)]
_Text = Annotated[str, msgspec.Meta(max_length=16_000)]
_Shape = Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)], ...],
                   msgspec.Meta(max_length=MAX_NDIM)]  # fmt: skip
_Specs = Annotated[
    tuple[tuple[Annotated[int, msgspec.Meta(ge=1, le=255)], _Shape], ...],
    msgspec.Meta(max_length=MAX_BODIES),
]
_Plain = bool | int | float | str | None


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The typed middle of a message. ``arrays`` : dtype number and shape of each body. ``ack`` :
    the receiver's frames have come up to this number.
    """

    kind: ClassVar[FrameKind] = FrameKind.CTL
    arrays: _Specs = ()
    ack: _Count = 0


class Hello(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The first frame of each end: identity and features."""

    task: _Small
    n_tasks: _Small
    job: _Word
    incarnation: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    min_minor: _Small = MINOR
    max_minor: _Small = MINOR
    features: _Count = 0
    endian: _Word = "little"
    dtypes: tuple[int, ...] = tuple(DTYPES)


class Welcome(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The handshake succeeded, for this minor version."""

    minor: _Small = MINOR


class Refusal(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The handshake failed, and why."""

    kind = FrameKind.ERR
    where: _Word
    got: _Text
    expected: _Text


class ChannelDigest(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The sender's channels: all must have the same. ``size`` is that of its shared memory."""

    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    size: _Count = 0


class BlockData(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The values of many neurons: all of a channel (``whole`` = 0), or bytes ``at`` .. of it."""

    kind = FrameKind.DATA
    at: _Count = 0
    whole: _Count = 0


class Arrived(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The sender has arrived at the barrier of the header's superstep."""


class Acknowledgement(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The sender has used ``used`` bytes of the receiver's and has its frames up to ``seq``; its
    own up to ``sent`` came before this on this connection. ``again``: send frames after ``seq``
    once more. ``ask``: acknowledge in return. Between tasks it has no number: a later one contains
    an earlier one.
    """

    kind = FrameKind.ACK
    used: _Count
    seq: _Count
    sent: _Count = 0
    again: bool = False
    ask: bool = False


class Bye(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """The sender leaves as intended, and sends nothing more."""

    reason: _Text = ""


class Note(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """A message outside the supersteps: a topic, plain fields, arrays."""

    topic: _Word
    fields: Annotated[dict[_Word, _Plain], msgspec.Meta(max_length=256)] = {}


_Pieces = Annotated[tuple[_Small, ...], msgspec.Meta(max_length=MAX_BODIES)]


# The topic of a Note from a server: the ranks whose pushes a pull waits for, and whether all of
# these measure the model.
WAITS = "waits"
# The topic of a Note from group 0: it measures the model, and decides after that.
MEASURES = "measures"


class ParameterData(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """Learned arrays by piece, to a server at the start, else from it: in the block of channel
    ``part`` posted just before, or, from durable servers, in the message. ``clock``, ``turn`` : of
    the pull.
    """

    pieces: _Pieces
    clock: _Count = 0
    part: _Small = 0
    turn: _Count = 0


class PushGradients(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """To a server: push number ``clock``, of so many samples; ``part`` as for ParameterData.
    ``batches``: of its group, with those of this push; None where it does not say.
    """

    pieces: _Pieces
    clock: _Count
    samples: _Count
    part: _Small = 0
    batches: _Count | None = None


class PullParameters(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """To a server: the task's pull ``turn``, after ``clock`` pushes; ``final``: its last;
    ``measures``: it measures what it gets, which may take long, before it pushes or pulls again.
    ``batches``: those of the clock at which a group resumes or begins, where servers said them.
    """

    clock: _Count
    final: bool = False
    turn: _Count = 0
    measures: bool = False
    batches: _Count | None = None


class LeaveServers(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """To a server: the sender's group pushes no more; ``is_thanks``: it has the final arrays."""

    is_thanks: bool = False


class EndOfEpoch(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """An epoch is over in the sender's group: does training end? ``stop`` is group 0's decision."""

    epoch: _Count
    stop: bool = False


class Verdict(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """Whether training ends after this epoch."""

    epoch: _Count
    stop: bool = False


class JoinServers(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """To a durable server: this task of a group has started, in the header's attempt."""


class ServersReady(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """From a durable server: the group is complete, and each piece has ``clock`` of its pushes,
    None without arrays. ``is_new``: the group begins here. ``batches``: those of its pushes, None
    where they did not say.
    """

    clock: _Count | None = None
    is_new: bool = False
    batches: _Count | None = None


class PushAcknowledged(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """From a durable server: it has bundle ``part`` of push ``clock`` (None: of the start)."""

    part: _Small
    clock: _Count | None = None


class MeanPart(Meta, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of the ``at``-th array of the ``number``-th mean that groups take."""

    kind = FrameKind.DATA
    number: _Count
    at: _Count = 0


TYPES: dict[int, type[Meta]] = {
    1: Hello, 2: Welcome, 3: Refusal, 4: ChannelDigest, 5: Bye,
    16: BlockData, 17: Arrived, 18: Acknowledgement, 32: Note,
    48: ParameterData, 49: PushGradients, 50: PullParameters, 51: LeaveServers,
    52: EndOfEpoch, 53: Verdict, 54: MeanPart,
    55: JoinServers, 56: ServersReady, 57: PushAcknowledged,
}  # fmt: skip
