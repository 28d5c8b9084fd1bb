"""The form of a job's payload, the text that a fresh process gets: each part is checked as read."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import numpy as np

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Shape = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=8)]


class ArraySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of an array: the number of its descriptor, and its first byte."""

    memory: _Count
    offset: _Count
    dtype: str
    shape: _Shape

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class TargetsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The OutputTargets of one of several outputs, without the names of classes."""

    name: str
    first: _Count
    size: _Count
    is_labels: bool
    by_step: bool = False


class DataSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings and arrays of a Dataset."""

    x: ArraySpec
    y: ArraySpec | None
    scale: float
    name: str
    normalization: ArraySpec | None = None  # (2, features): mean, std
    weight: ArraySpec | None = None
    lengths: ArraySpec | None = None
    pieces: int = 1
    targets: tuple[TargetsSpec, ...] = ()


class StoppingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an EarlyStopping."""

    patience: int
    monitor: str
    min_delta: float
    mode: str | None = None


class AugmentSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an Augment."""

    flip: str
    shift: tuple[_Count, _Count]
    brightness: float


class AggregateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an Aggregate. ``of_layer`` is a reference to the function."""

    layer: str
    of_layer: dict[str, Any]
    of_samples: str


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a Job. ``optimizer`` is in the form of ``job_payload``."""

    optimizer: dict[str, Any]
    batch_size: _Count
    epochs: int | None
    iterations: int | None
    target: str | None
    dtype: str
    keep_best: bool
    name: str
    early_stopping: StoppingSpec | None
    data: DataSpec
    validation: DataSpec | None
    test: DataSpec | None
    aggregates: dict[str, AggregateSpec] = {}
    frozen: tuple[str, ...] = ()
    callbacks: list[dict[str, Any]] = []  # only callbacks that run everywhere
    metrics: list[dict[str, Any]] = []
    augment: AugmentSpec | None = None
    buckets: _Count = 0
    stateful: bool = False
    recompute: str | None = None


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a job's run, for its tasks.

    n_tasks : of each group. guests : servers are threads of the first tasks. hosts, job :
    ZooKeeper, and the job's id there. begun : monotonic clock of this host. interval_s : between
    reports of progress. attempt : of all its tasks; others are refused. checkpoints : folder or "";
    checkpoint_every : iterations, 0 for on request. resume : a checkpoint; earlier_s : seconds of
    training before ``begun``, None: as in the checkpoint. journals : folder of durable servers, or
    "", which must be there if ``is_told``; n_first : groups at the beginning, where some came
    later. groups : those at the beginning, () for all. silence_s : silence of ZooKeeper before a
    task gives up its place, if more than its session. callbacks : the parent has some that ask for
    epochs (1), or for every update as well (2).
    """

    n_tasks: _Count
    n_groups: _Count
    n_servers: _Count = 0
    guests: bool = False
    hosts: str
    job: str
    url: str
    backend: str
    threads: int
    barrier: str
    begun: float
    interval_s: float
    superstep_timeout_s: float
    start_timeout_s: float
    max_trace_events: _Count
    attempt: _Count = 0
    checkpoints: str = ""
    checkpoint_every: _Count = 0
    resume: str = ""
    earlier_s: float | None = None
    journals: str = ""
    is_told: bool = False
    n_first: _Count = 0
    groups: tuple[_Count, ...] = ()
    silence_s: float = 0.0
    callbacks: _Count = 0


# Settings that a Job has under the same names.
PLAIN = ("batch_size", "iterations", "target", "dtype", "keep_best", "name", "buckets", "stateful",
         "recompute")  # fmt: skip


class JobText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole text of a payload. ``arrays``: parameter/NAME, state/NAME, edges/WEIGHT/indptr and
    .../indices, .../weight. ``digests``: of each layer that computes, for who reads its sources.
    """

    format: int
    network: dict[str, Any]
    sources: dict[str, Any]
    job: JobSpec
    run: RunSpec
    strategy: dict[str, Any]
    links: list[tuple[int, int, str]]
    layers: list[tuple[int, str]]
    arrays: dict[str, ArraySpec]
    digests: list[str]
