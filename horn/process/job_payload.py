"""A job for a fresh process: text, and shared memory.

The text is JSON: the network as in a model file, with the user's sources; the job's
settings; the places of arrays. The arrays are in sealed memfds, or in the file that they are
mapped from, and travel as descriptors. Nothing is pickled. What is read is checked before it is
used; only the sources of the user's own neurons run.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import math
import mmap
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from horn.aggregates import Aggregate
from horn.callbacks import Callback, name_of
from horn.data import Augment, Dataset, Normalization
from horn.data.targets import OutputTargets
from horn.description import network_to_json, rebuild
from horn.errors import DataError, JobError, ModelError, ProtocolError
from horn.formats.ahead import mapped_at
from horn.job import EarlyStopping, Job
from horn.language.layers import Reading, digest
from horn.metrics import from_json
from horn.metrics import to_json as metrics_to_json
from horn.network import Network
from horn.optimizers import Optimizer
from horn.partition.placement import CHANNELS, LAYER_SPLITS, PLACES, Placement
from horn.process.job_spec import (
    PLAIN,
    AggregateSpec,
    ArraySpec,
    AugmentSpec,
    DataSpec,
    JobSpec,
    JobText,
    RunSpec,
    StoppingSpec,
    TargetsSpec,
)
from horn.sources import CapturedCode, Reference, SourceCapture
from horn.strategies import Strategy
from horn.strategies.allreduce import AllReduce
from horn.wire.descriptors import SEALS
from horn.wire.frames import Array
from horn.wire.messages import DTYPES

FORMAT = 1
ALIGN_BYTES = 64
MAX_TEXT_BYTES = 64 * 1024 * 1024


class SharedArrays:
    """Arrays in memfds or files that other processes can map, through ``descriptors``."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def add(self, arrays: Mapping[str, Array], name: str) -> dict[str, ArraySpec]:
        """Copy arrays into one sealed memfd."""
        specs, end = {}, 0
        for key, array in arrays.items():
            offset = -(-end // ALIGN_BYTES) * ALIGN_BYTES
            specs[key] = ArraySpec(len(self.descriptors), offset, array.dtype.str, array.shape)
            end = offset + array.nbytes
        fd = os.memfd_create(f"horn-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.descriptors.append(fd)
        try:
            os.posix_fallocate(fd, 0, max(end, 1))  # an error now, not SIGBUS later
            for key, array in arrays.items():
                _write(fd, np.ascontiguousarray(array), specs[key].offset)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            if error.errno == errno.EFAULT:  # an array's file was removed
                raise DataError(f"{name}: the file that it is mapped from was cut short") from error
            raise JobError(
                f"no room in memory for {name} of {end:,} bytes: {error.strerror}"
            ) from error
        return specs

    def add_data(self, data: Dataset) -> DataSpec:
        """Add a dataset: copied, or as the file that it is mapped from."""
        given = {key: getattr(data, key) for key in ("x", "y", "weight", "lengths")}
        found = {key: None if array is None else self._file(array) for key, array in given.items()}
        rest = {k: a for k, a in given.items() if found[k] is None and a is not None}
        if data.normalization is not None:
            rest["normalization"] = np.stack([data.normalization.mean, data.normalization.std])
        if rest:
            found.update(self.add(rest, "data"))
        assert found["x"] is not None
        return DataSpec(
            found["x"], found["y"], float(data.scale), data.name, found.get("normalization"),
            found["weight"], found["lengths"], data.pieces,
            tuple(
                TargetsSpec(t.name, t.first, t.size, t.is_labels, t.by_step) for t in data.targets
            ),
        )  # fmt: skip

    def _file(self, array: Array) -> ArraySpec | None:
        """The file that an array is mapped from, if it still is. Raises DataError: cut short."""
        root: Any = array
        while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
            root = root.base
        if not isinstance(root, np.memmap) or root.mode == "c" or not array.flags.c_contiguous:
            return None
        start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        try:
            fd = os.open(str(root.filename), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        status = os.fstat(fd)
        offset = int(root.offset) + start
        is_same = mapped_at(root.__array_interface__["data"][0])[0] == status.st_ino
        if not is_same or offset < 0:
            os.close(fd)  # another file has its name now
            return None
        if offset + array.nbytes > status.st_size:
            os.close(fd)
            raise DataError(
                f"{root.filename}: was cut short to {status.st_size:,} bytes, of which "
                f"{offset + array.nbytes:,} were mapped; write it again under another name, and "
                "rename that when it is whole"
            )
        self.descriptors.append(fd)
        return ArraySpec(len(self.descriptors) - 1, offset, array.dtype.str, array.shape)

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


def _write(fd: int, array: Array, offset: int) -> None:
    if not array.size:
        return
    left = array.reshape(-1).view(np.uint8).data
    while left:
        n_bytes = os.pwrite(fd, left, offset)
        left, offset = left[n_bytes:], offset + n_bytes


@dataclass(frozen=True)
class JobDraft:
    """The code of a job as text, made before anything starts and without its arrays."""

    network: dict[str, Any]
    sources: dict[str, Any]
    optimizer: dict[str, Any]
    strategy: dict[str, Any]
    aggregates: dict[str, AggregateSpec]
    metrics: list[dict[str, Any]]
    callbacks: list[dict[str, Any]]
    digests: list[str]


def draft(
    job: Job, strategy: Strategy | None = None, with_callbacks: bool = False,
    reading: Reading | None = None,
) -> JobDraft:  # fmt: skip
    """Write a job's code as text; the strategy is allreduce by default. with_callbacks : all
    callbacks, not only those that run everywhere, in tasks. reading : as in ``Setup``. Raises
    JobError: something cannot travel to a process.
    """
    capture = SourceCapture()
    try:
        network = network_to_json(job.network, capture)
        optimizer = _thing_to_json(job.optimizer, "optimizer", capture)
        plan = _thing_to_json(strategy or AllReduce(), "strategy", capture)
        aggregates = {
            name: AggregateSpec(a.layer, capture.reference(a.of_layer), a.of_samples)
            for name, a in job.aggregates.items()
        }
        metrics = metrics_to_json(job.metrics, capture)
        watching = [
            _callback_to_json(one, capture)
            for one in job.callbacks
            if isinstance(one, Callback) and (with_callbacks or one.everywhere)
        ]
        sources = capture.sources(whole_paths=True)
        found = JobDraft(
            network,
            sources,
            optimizer,
            plan,
            aggregates,
            metrics,
            watching,
            _digests(job.network, reading or Reading()),
        )
        json.dumps([network, sources, optimizer, plan, metrics, watching])
        json.dumps(msgspec.to_builtins(aggregates))
    except (ModelError, TypeError, ValueError) as error:
        remedy = (
            "Write the job into a file, and submit that:  cluster.submit('train.py')"
            if with_callbacks
            else "With one task it need not be"
        )
        raise JobError(f"this job cannot be given to other processes: {error}. {remedy}") from error
    return found


def pack(draft: JobDraft, job: Job, run: RunSpec, placement: Placement) -> SharedArrays:
    """Make a job's payload; its first descriptor is the text. Close it when all tasks have it."""
    memory = SharedArrays()
    try:
        memory.descriptors.append(-1)  # the text comes first
        arrays = memory.add(_arrays_of(job), "arrays")
        stopping = job.early_stopping
        augment = job.augment
        plain: dict[str, Any] = {name: getattr(job, name) for name in PLAIN}
        spec = JobSpec(
            draft.optimizer,
            early_stopping=None if stopping is None else StoppingSpec(**asdict(stopping)),
            data=memory.add_data(job.data),
            validation=None if job.validation is None else memory.add_data(job.validation),
            test=None if job.test is None else memory.add_data(job.test),
            aggregates=draft.aggregates,
            frozen=tuple(map(str, job.frozen)),
            callbacks=draft.callbacks,
            metrics=draft.metrics,
            augment=None if augment is None else AugmentSpec(**asdict(augment)),
            epochs=job.epochs,
            **plain,
        )
        links = [(layer, at, where) for (layer, at), where in sorted(placement.links.items())]
        layers = sorted(placement.layers.items())
        text = JobText(
            FORMAT, draft.network, draft.sources, spec, run, draft.strategy, links, layers, arrays,
            draft.digests,
        )  # fmt: skip
        written = json.dumps(msgspec.to_builtins(text, enc_hook=_number)).encode()
        memory.add({"text": np.frombuffer(written, np.uint8)}, "job")
        memory.descriptors[0] = memory.descriptors.pop()
    except BaseException:
        memory.descriptors = [fd for fd in memory.descriptors if fd >= 0]
        memory.close()
        raise
    return memory


def _number(value: Any) -> Any:
    """Convert NumPy's numbers to plain ones."""
    if isinstance(value, np.generic):
        return value.item()
    raise JobError(f"this job cannot be given to other processes: {value!r} is no plain value")


def _arrays_of(job: Job) -> dict[str, Array]:
    network, dtype = job.network, np.dtype(job.dtype)
    arrays = {f"parameter/{n}": a for n, a in network.initial_parameters(dtype).items()}
    arrays |= {f"state/{n}": a for n, a in network.initial_states(dtype).items()}
    for layer in network.layers:
        for link in layer.links:
            for part, array in link.kept_edges.items():
                arrays[f"edges/{link.weight}/{part}"] = array
    return arrays


@dataclass(frozen=True)
class OpenedPayload:
    """A payload as its process reads it. ``parameters``, ``states`` : initial arrays, whole,
    read-only views of shared memory. reading : of the network, as its text was checked.
    """

    job: Job
    run: RunSpec
    placement: Placement
    strategy: Strategy
    parameters: dict[str, Array]
    states: dict[str, Array]
    memory: tuple[mmap.mmap, ...] = ()
    reading: Reading | None = None

    def forget(self) -> None:
        """Free the pages of initial arrays; they can be read again."""
        for mapped in self.memory:
            mapped.madvise(mmap.MADV_DONTNEED)


def open_payload(descriptors: Sequence[int]) -> OpenedPayload:
    """Open a payload, and take over its descriptors. Runs user sources. Raises ProtocolError: not
    what ``pack`` writes. ModelError: a source does not run.
    """
    maps: dict[int, mmap.mmap] = {}
    try:
        raw = _map(descriptors, 0, maps)
        if len(raw) > MAX_TEXT_BYTES:
            raise ProtocolError(f"payload: {len(raw)} bytes of text, at most {MAX_TEXT_BYTES}")
        try:
            text = msgspec.convert(json.loads(bytes(raw)), JobText)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise ProtocolError(f"payload: {error}") from error
        if text.format != FORMAT:
            raise ProtocolError(f"payload: format {text.format}, this horn reads {FORMAT}")
        found = {n: _array(descriptors, s, maps, n) for n, s in text.arrays.items()}
        code = CapturedCode(text.sources, "")  # its files have whole paths
        job = _job(text, found, descriptors, maps, code)
        reading = Reading()
        _check_digests(text.digests, job.network, reading)
        return OpenedPayload(
            job,
            text.run,
            _placement(text, job.network),
            _thing_from_json(text.strategy, code, Strategy),
            {n.removeprefix("parameter/"): a for n, a in found.items() if n[:10] == "parameter/"},
            {n.removeprefix("state/"): a for n, a in found.items() if n[:6] == "state/"},
            tuple(maps[index] for index in {spec.memory for spec in text.arrays.values()}),
            reading,
        )
    finally:
        for fd in descriptors:
            os.close(fd)


def _digests(network: Network, reading: Reading) -> list[str]:
    """A digest of what each layer computes; layers of the same kind are read once."""
    known: dict[tuple[Any, ...], str] = {}
    found = []
    for layer in network.layers[1:]:
        receivers = network.receivers(layer)
        key = (layer.neuron, layer.activation, layer.interlayer, layer.kind, layer.inputs,
               tuple(receiver.neuron for receiver in receivers))  # fmt: skip
        if key not in known:
            known[key] = digest(layer, receivers, reading)
        found.append(known[key])
    return found


def _check_digests(digests: Sequence[str], network: Network, reading: Reading) -> None:
    """Check that the sources say here what they said to their sender. Raises ModelError."""
    found = _digests(network, reading)
    for layer, there, here in zip(network.layers[1:], digests, found, strict=True):
        if there != here:
            raise ModelError(
                f"{layer.name}: the text of {layer.neuron.__name__}, or of what it calls, is not "
                f"what was to be trained: something changed a function or a number without a "
                f"statement that horn can repeat (globals()['f'] = ..., an item set inside a "
                f"function, a module's attribute). Write it as a statement of its own at the "
                f"top level, f = ..., after which nothing changes it"
            )


def _map(descriptors: Sequence[int], index: int, maps: dict[int, mmap.mmap]) -> mmap.mmap:
    if index not in maps:
        if index >= len(descriptors):
            raise ProtocolError(f"payload: memory {index} of {len(descriptors)}")
        maps[index] = map_private(descriptors[index])
    return maps[index]


def map_private(descriptor: int) -> mmap.mmap:
    """Map a file or memfd, read-only."""
    size = os.fstat(descriptor).st_size
    # Private: a write-sealed memfd may be mapped so by every kernel, and nothing is written.
    return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ)


def _array(
    descriptors: Sequence[int], spec: ArraySpec, maps: dict[int, mmap.mmap], what: str
) -> Array:
    if spec.dtype not in DTYPES.values():
        raise ProtocolError(f"payload: {what} is {spec.dtype!r}, not {' '.join(DTYPES.values())}")
    memory = _map(descriptors, spec.memory, maps)
    if spec.offset + spec.n_bytes > len(memory):
        raise ProtocolError(
            f"payload: {what} ends at byte {spec.offset + spec.n_bytes} of {len(memory)}"
        )
    if not spec.n_bytes:
        return np.empty(spec.shape, spec.dtype)
    count = math.prod(spec.shape)
    return np.frombuffer(memory, spec.dtype, count, spec.offset).reshape(spec.shape)


def _job(
    text: JobText,
    arrays: Mapping[str, Array],
    descriptors: Sequence[int],
    maps: dict[int, mmap.mmap],
    code: CapturedCode,
) -> Job:
    def data(spec: DataSpec | None, what: str) -> Dataset | None:
        if spec is None:
            return None
        x = _array(descriptors, spec.x, maps, f"{what}.x")
        y, normal, weight, lengths = (
            None if place is None else _array(descriptors, place, maps, f"{what}.{name}")
            for name, place in (
                ("y", spec.y), ("normalization", spec.normalization), ("weight", spec.weight),
                ("lengths", spec.lengths),
            )
        )  # fmt: skip
        try:
            found = None
            if normal is not None:
                mean, std = np.array(normal, np.float64)
                found = Normalization(mean, std, by_step=bool(network.steps))
            shape = () if lengths is None else (network.steps, network.n_inputs)
            targets = tuple(
                OutputTargets(t.name, t.first, t.size, t.is_labels, by_step=t.by_step)
                for t in spec.targets
            )
            return Dataset(
                x, y, spec.scale, spec.name, normalization=found, weight=weight, shape=shape,
                lengths=lengths, pieces=spec.pieces, targets=targets,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"payload: {what}.normalization: {error}") from error

    spec = text.job
    try:
        edges = {n.removeprefix("edges/"): a for n, a in arrays.items() if n[:6] == "edges/"}
        network = rebuild({"network": text.network}, edges, "the job", code)
        aggregates = {
            name: Aggregate(a.layer, code.resolve(a.of_layer), a.of_samples)
            for name, a in spec.aggregates.items()
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ProtocolError(f"payload: {type(error).__name__}: {error}") from error
    optimizer = _thing_from_json(spec.optimizer, code, Optimizer)
    stopping, augment = spec.early_stopping, spec.augment
    plain: dict[str, Any] = {name: getattr(spec, name) for name in PLAIN}
    return Job(
        network,
        data(spec.data, "data"),
        optimizer,
        epochs=None if spec.iterations is not None else spec.epochs,
        validation=data(spec.validation, "validation"),
        test=data(spec.test, "test"),
        check=False,  # written backward methods were compared before the start
        early_stopping=None if stopping is None else EarlyStopping(**structs.asdict(stopping)),
        aggregates=aggregates,
        frozen=spec.frozen,
        metrics=from_json(spec.metrics, code),
        callbacks=[_callback(found, code) for found in spec.callbacks],
        augment=None if augment is None else Augment(**structs.asdict(augment)),
        **plain,
    )


def _callback_to_json(one: Callback, capture: SourceCapture) -> dict[str, Any]:
    """Write a callback: its class and its attributes, tuples as lists; it need not be a dataclass.
    Raises ModelError: JSON would lose or change an attribute.
    """
    fields: dict[str, Any] = {}
    functions: dict[str, Reference] = {}
    for name, value in vars(one).items():
        if isinstance(value, types.FunctionType):
            functions[name] = capture.reference(value)
            continue
        fields[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        try:
            json.dumps(fields[name])
            is_plain = all(isinstance(key, str) for key in _keys(fields[name]))
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            raise ModelError(
                f"the callback {name_of(one)} has {name} = {value!r}, which is no number, text, "
                f"list, dict by text, path or function of yours; make it in on_train_begin"
            )
    return {"class": capture.reference(type(one)), "fields": fields, "functions": functions}


def _keys(value: Any) -> Iterator[Any]:
    """Yield the keys of all dicts in a value."""
    if isinstance(value, dict):
        yield from value
    inner = value.values() if isinstance(value, dict) else value
    for each in inner if isinstance(value, (dict, list, tuple)) else ():
        yield from _keys(each)


def _callback(found: Mapping[str, Any], code: CapturedCode) -> Callback:
    try:
        kind = code.resolve(found["class"])
        if not (isinstance(kind, type) and issubclass(kind, Callback)):
            raise ProtocolError(f"payload: {kind!r} is no callback")
        made: Callback = kind.__new__(kind)
        vars(made).update(found["fields"])
        vars(made).update({k: code.resolve(each) for k, each in found["functions"].items()})
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ProtocolError(f"payload: {type(error).__name__}: {error}") from error
    return made


def _placement(text: JobText, network: Network) -> Placement:
    links = {(layer, at): where for layer, at, where in text.links}
    layers = dict(text.layers)
    wanted = {(layer.index, at) for layer in network.layers for at in range(len(layer.links))}
    if (
        not links.keys() <= wanted  # every task has all of the others
        or not set(links.values()) <= {*PLACES}
        or not set(layers.values()) <= {*LAYER_SPLITS, CHANNELS}
    ):
        raise ProtocolError("payload: the placement does not fit the network")
    return Placement(links, layers)


# optimizers, schedules and strategies: frozen dataclasses, horn's or the user's


def _thing_to_json(thing: Any, where: str, capture: SourceCapture) -> Any:
    """A number, a text, None, {"function": reference}, or {"class": reference, "fields": ...}."""
    if isinstance(thing, np.generic):
        return thing.item()
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, (types.FunctionType, types.BuiltinFunctionType)):
        return {"function": capture.reference(thing)}
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise ModelError(
            f"{where} is {thing!r}, which is no number, no function and no dataclass; write "
            f"it as a dataclass whose fields are numbers"
        )
    return {
        "class": capture.reference(type(thing)),
        "fields": {
            f.name: _thing_to_json(getattr(thing, f.name), f"{where}.{f.name}", capture)
            for f in dataclasses.fields(thing)
            if f.init
        },
    }


T = TypeVar("T")


def _thing_from_json(found: Mapping[str, Any], code: CapturedCode, kind: type[T]) -> T:
    try:
        thing: Any = _value_from_json(found, code)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ProtocolError(f"payload: {type(error).__name__}: {error}") from error
    if not isinstance(thing, kind):
        raise ProtocolError(f"payload: {thing!r} is no {kind.__name__}")
    return thing


def _value_from_json(found: Any, code: CapturedCode) -> Any:
    if not isinstance(found, dict):
        return found
    if "function" in found:
        return code.resolve(found["function"])
    return code.resolve(found["class"])(
        **{name: _value_from_json(value, code) for name, value in found["fields"].items()}
    )
