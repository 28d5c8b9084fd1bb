"""The identity of a job: what must be the same to resume from a checkpoint.

The rule: a resumed run gives what this job would have given from its beginning. So all fields of
all objects of a job are described, new ones without being named here, but for those in
``LEFT_OUT``. The user's code is compared as text without comments, docstrings and layout, with all
that it calls in the user's own files and the values that it reads; horn's own by name; data by
their ``digest``. How a job is run (groups where the strategy allows it, tasks, backend, threads,
transport) does not count, but for what servers were told (training/journals.py).
"""

from __future__ import annotations

import dataclasses
import logging
import types
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from horn import summary, texts
from horn.connections import Edges
from horn.data import Dataset
from horn.description import shapes
from horn.errors import CheckpointError, ModelError
from horn.job import Job
from horn.layers import Layer, Link
from horn.neuron import Neuron, Parameter
from horn.sources import SourceCapture, is_horn, successor
from horn.training.digest import digest

logger = logging.getLogger(__name__)

LEFT_OUT = {
    (Job, "epochs"): "a job may train longer than it did",
    (Job, "iterations"): "a job may train longer than it did",
    (Job, "test"): "it is looked at once, after training",
    (Job, "name"): "for people",
    (Job, "check"): "it looks before training, and changes nothing",
    (Job, "aggregates"): "they are looked at after an epoch, and change nothing",
    (Job, "metrics"): "they are looked at after an epoch, and change nothing",
    (Job, "normalize"): "what it does is in the data",
    (Dataset, "classes"): "what the labels are called; they are in y",
    (Dataset, "ids"): "for people",
    (Dataset, "id_name"): "for people",
    (Job, "callbacks"): "what they remember is in the checkpoint",
    (Dataset, "name"): "for people",
    (Dataset, "shape"): "it changes no row",
    (Dataset, "_checked"): "whether it was looked at",
    (Dataset, "_is_file"): "whether it was looked at",
    (Link, "connection"): "who listens to whom is in edges",
}
MANY = 64  # numbers in a list, from which it is written as the digest of an array
MOST_LISTED = 2**24  # synapses of windows, above which a list of them takes long
MAX_SAID = 5  # differences that are named in one message
SHORT = 100  # letters of a value in a message
# What is said in short of a job, and the part of "job" that says it in full.
HEADLINES = {
    "layers": "network.layers",
    "shapes": "network.layers",
    "seed": "network.seed",
    "optimizer": "optimizer",
    "batch_size": "batch_size",
    "samples": "data",
    "dtype": "dtype",
    "strategy": "strategy",
}
NAMES = {
    "batch_size": "batch size",
    "samples": "number of samples",
    "servers": "number of servers",
    "tasks": "number of tasks",
}


def identity(job: Job, strategy: str, settings: Any = None) -> dict[str, Any]:
    """Describe a job in plain values, for a manifest. strategy : its part that must be the same, in
    words; settings : the strategy itself.
    """
    network = job.network
    describer = JobDescriber()
    described = describer.describe(job)
    described["strategy"] = describer.describe(settings)
    return {
        "layers": [
            {"name": layer.name, "size": layer.size, "neuron": layer.neuron.__name__,
             "activation": layer.activation_name}
            for layer in network.layers
        ],
        "shapes": {name: list(shape) for (_, name), shape in shapes(network).items()},
        "seed": network.seed,
        "optimizer": summary.in_words(job.optimizer),
        "batch_size": job.batch_size,
        "samples": len(job.data),
        "dtype": job.dtype,
        "strategy": strategy,
        "job": described,
        "sources": describer.sources(),
    }  # fmt: skip


def uncompared(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The parts that cannot be compared, as nobody can read them, in words."""
    return sorted({*_unknown(mine["job"], ""), *_unknown(theirs["job"], "")})


def differences(
    theirs: Mapping[str, Any], mine: Mapping[str, Any], but: Collection[str] = ()
) -> list[str]:
    """The differences, a sentence each. Empty for the same job. but : parts that are left out; of
    data only what is in them, not their number.
    """
    rest = [*_compare(theirs["job"], mine["job"], ""), *_sources(theirs, mine)]
    rest = [each for each in rest if not any(_is_in(each[0], part) for part in but)]
    found, covered = [], []
    for key, part in HEADLINES.items():
        was, is_ = theirs[key], mine[key]
        if was == is_ or part in covered:
            continue
        is_said = any(_is_in(path, part) for path, _ in rest)
        if key not in ("strategy", "samples") and not is_said:
            continue  # the same in other words
        covered.append(part)
        if key == "layers":
            found.append(f"its layers are {_layers(was)}, here {_layers(is_)}")
        elif key == "shapes":
            name = next(n for n in sorted({*was, *is_}) if was.get(n) != is_.get(n))
            found.append(f"its {name} has shape {was.get(name)}, here {is_.get(name)}")
        else:
            found.append(f"its {NAMES.get(key, key)} is {was}, here {is_}")
    for key in sorted({*theirs, *mine} - {*HEADLINES, "job", "sources", "scales"}):
        if theirs.get(key) != mine.get(key):
            found.append(f"its {NAMES.get(key, key)} is {theirs.get(key)}, here {mine.get(key)}")
    found += [said for path, said in rest if not any(_is_in(path, part) for part in covered)]
    return found


def check_same(
    place: str,
    theirs: Mapping[str, Any],
    mine: Mapping[str, Any],
    is_changed: bool,
    changeable: Collection[str] | None = None,
) -> None:
    """Check that the job of a checkpoint at a place is this one. Raises CheckpointError with the
    differences; if ``is_changed`` only logs them. Parts that cannot be compared are logged.
    changeable : of servers, the only parts for which ``is_changed`` counts; None : all.
    """
    try:
        found, unknown = differences(theirs, mine), uncompared(theirs, mine)
        fixed = [] if changeable is None else differences(theirs, mine, changeable)
        # A part of the old arrays would fit a smaller layer, but of unknown neurons.
        resized = [
            f"{name} was {tuple(was)}, is {tuple(now)}"
            for name, now in mine["shapes"].items()
            if (was := theirs["shapes"].get(name, now)) != now
        ]
        if theirs["dtype"] != mine["dtype"]:
            resized.append(f"all numbers were {theirs['dtype']}, are {mine['dtype']}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # nothing that horn wrote
        what = f"says of its job what this horn does not write ({type(error).__name__}: {error})"
        raise CheckpointError(place, f"{what[:300]}; use an older checkpoint") from error
    if fixed:
        said = in_words(fixed if is_changed else found)
        also = '; --changed (resume="changed") cannot help' if is_changed else ""
        what = f"is of another job: {said}. What its servers were told does not fit this one{also}"
        remedy = (
            "Resume with the job that wrote it (its epochs may be others), or begin in another "
        )
        remedy += "folder with the model that it ends with, as Job(initial=...)"
        raise CheckpointError(place, f"{what}. {remedy}")
    if found and not is_changed:
        remedy = 'or go on knowingly with --changed (in horn.train: resume="changed")'
        if resized:
            remedy = "or begin with what it learned: Job(initial=...)"
        what = f"is of another job: {in_words(found)}. Resume with the job that wrote it, {remedy}"
        raise CheckpointError(place, what)
    if resized:
        what = f"has other arrays: {in_words(resized)}. Resume with those of before, or begin with"
        remedy = "Job(initial=...), where a layer of another size needs another name"
        raise CheckpointError(place, f"{what} {remedy}")
    if found:
        logger.warning("going on with a changed job: %s: %s", place, in_words(found))
    if unknown:
        logger.warning("%s: not compared with this job: %s", place, "; ".join(unknown))


def in_words(found: list[str]) -> str:
    """Differences, or the first of many, as a part of a sentence."""
    more = len(found) - MAX_SAID
    return "; ".join(found[:MAX_SAID]) + (f"; and {more} more" if more > 0 else "")


# describing


class JobDescriber:
    """Describes any object in plain values; code by names, whose texts are in ``sources``."""

    def __init__(self) -> None:
        self._capture = SourceCapture(other=self.describe)
        self._under_way: list[int] = []

    def sources(self) -> dict[str, Any]:
        found = {}
        for module, (written, values) in self._capture.texts().items():
            data = {name: self.describe(v) for name, v in sorted(values.items()) if _is_data(v)}
            found[module] = {"texts": written, "values": data}
        return found

    def describe(self, thing: Any) -> Any:
        if isinstance(thing, np.generic):
            thing = thing.item()
        if thing is None or isinstance(thing, (bool, int, str)):
            return thing
        if isinstance(thing, float):
            return thing if np.isfinite(thing) else repr(thing)
        if isinstance(thing, np.ndarray):
            return digest(thing) if thing.dtype.kind in "biuf" else _undescribed(thing)
        if id(thing) in self._under_way:
            return {"class": type(thing).__name__, "is": "what it is in"}
        self._under_way.append(id(thing))
        try:
            is_code = isinstance(thing, (type, types.FunctionType, types.BuiltinFunctionType))
            return self._code(thing) if is_code else self._composed(thing)
        finally:
            self._under_way.pop()

    def _composed(self, thing: Any) -> Any:
        if isinstance(thing, Mapping):
            return {str(key): self.describe(value) for key, value in thing.items()}
        if isinstance(thing, (set, frozenset)):
            return sorted((self.describe(value) for value in thing), key=repr)
        if isinstance(thing, (list, tuple)):
            if len(thing) >= MANY and _is_table(thing):
                return digest(np.asarray(thing))
            if thing and all(isinstance(value, Layer) for value in thing):
                return {layer.name: self.describe(layer) for layer in thing}
            return [self.describe(value) for value in thing]
        found = {"class": self.describe(type(thing))}
        for name, value in _fields(thing).items():
            if (type(thing), name) in LEFT_OUT:
                continue
            if isinstance(thing, Link) and isinstance(value, Layer):
                value = value.name  # it is described before
            if isinstance(value, Edges) and thing.is_known and value.n > MOST_LISTED:
                value = thing.connection  # whose settings determine them
            found[name] = self.describe(value)
        if isinstance(thing, Link) and thing.tie is not None and thing.tie.transposed:
            if thing.source.size == thing.owner.source.size:  # else the sizes say it
                found["transposed"] = True
        if len(found) == 1 and not dataclasses.is_dataclass(thing) and _is_opaque(thing):
            return _undescribed(thing)
        return found

    def _code(self, thing: Any) -> Any:
        """Describe a class or function: its name, and whatever the name does not determine."""
        try:
            reference = self._capture.reference(thing)
            if "at" in reference and (now := successor(thing)) is not None and now[1]:
                reference = self._capture.reference(now[0])  # a cell ran again, unchanged
        except ModelError:
            return self._compiled(thing)
        if "horn" in reference or "math" in reference:
            name = reference.get("horn") or f"math:{reference['math']}"
        else:
            name = f"{reference['module']}:{reference['name']}"
        found: dict[str, Any] = {"code": name}
        if "at" in reference:
            found["text"] = self._capture.inner_text(reference)
            found["free"] = reference["free"]
        if isinstance(thing, type) and not dataclasses.is_dataclass(thing):
            found["set"] = self._attributes(thing)
        return found if len(found) > 1 and any(found[k] for k in found if k != "code") else name

    def _attributes(self, cls: type) -> dict[str, Any]:
        """The constants, Parameters and States of a class, as they are now."""
        found = {}
        for base in reversed(cls.__mro__):
            if base in (object, Neuron) or base.__module__ == "typing":
                continue
            for name in vars(base):
                value = getattr(cls, name, None)
                if name.startswith("__") or name == "_abc_impl":
                    continue
                if isinstance(value, Parameter):
                    settings = {k: self.describe(v) for k, v in vars(value).items() if k != "name"}
                    found[name] = {"class": type(value).__name__, **settings}
                elif _is_data(value):
                    found[name] = self.describe(value)
        return found

    def _compiled(self, thing: Any) -> Any:
        """Describe code whose source cannot be read, such as code typed at the prompt."""
        if isinstance(thing, types.FunctionType):
            names = [n for n in thing.__code__.co_names if n in thing.__globals__]
            read = {n: thing.__globals__[n] for n in names}
            return {
                "code": thing.__qualname__,
                "bytes": texts.code_digest(thing.__code__),
                "free": [self.describe(value) for value in texts.around(thing).values()],
                "defaults": self.describe([thing.__defaults__, thing.__kwdefaults__]),
                "reads": {
                    n: self.describe(v)
                    for n, v in read.items()
                    if _is_data(v) or (isinstance(v, types.FunctionType) and v is not thing)
                },
            }
        if isinstance(thing, type):
            functions = {
                name: self._compiled(value)
                for base in reversed(thing.__mro__)
                if not is_horn(base.__module__) and base is not object
                for name, value in vars(base).items()
                if isinstance(value, types.FunctionType)
            }
            return {
                "code": thing.__qualname__,
                "bases": [self.describe(b) for b in thing.__bases__ if b is not object],
                "functions": functions,
                "set": self._attributes(thing),
            }
        return {"code": f"{thing.__module__}:{thing.__qualname__}"}


def _undescribed(thing: Any) -> dict[str, Any]:
    return {"class": type(thing).__name__, "unknown": True}


def _fields(thing: Any) -> dict[str, Any]:
    if isinstance(thing, Edges):  # which makes some of them when they are asked for
        names = ("indptr", "indices", "weight", "weight_shape")
        return {name: getattr(thing, name) for name in names}
    if dataclasses.is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    found = {
        name: getattr(thing, name)
        for base in type(thing).__mro__
        for name in getattr(base, "__slots__", ())
        if isinstance(name, str) and hasattr(thing, name) and not name.startswith("__")
    }
    return {**found, **getattr(thing, "__dict__", {})}


def _is_opaque(thing: Any) -> bool:
    """Whether an object's state is invisible to Python."""
    return not isinstance(getattr(type(thing), "__init__", None), types.FunctionType) and (
        type(thing).__flags__ & (1 << 9) == 0  # no heap type: written in C
    )


def _is_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_data, value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic, np.ndarray))


def _is_table(values: Any) -> bool:
    """Whether values are numbers, or rows of numbers of one length."""
    try:
        return np.asarray(values).dtype.kind in "biuf"
    except ValueError:
        return False


# comparing


def _compare(was: Any, is_: Any, path: str) -> list[tuple[str, str]]:
    """The differences, as (path, sentence)."""
    if was == is_:
        return []
    both = isinstance(was, Mapping) and isinstance(is_, Mapping)
    if both and was.get("class") == is_.get("class") and was.get("code") == is_.get("code"):
        found = []
        for key in sorted({*was, *is_}):
            below = f"{path}.{key}" if path else key
            found += _compare(was.get(key), is_.get(key), below)
        return found
    if isinstance(was, list) and isinstance(is_, list) and len(was) == len(is_):
        found = []
        for k, (old, new) in enumerate(zip(was, is_, strict=True)):
            found += _compare(old, new, f"{path}[{k}]")
        return found
    return [(path, f"its {_place(path)} is {_value(was)}, here {_value(is_)}")]


def _sources(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The differences of code; those of a module on one side only show where it is used."""
    found = []
    old, new = theirs["sources"], mine["sources"]
    for module in sorted({*old} & {*new}):
        was, is_ = old[module], new[module]
        for name in sorted({*was["texts"]} | {*is_["texts"]}):
            texts = [one["texts"].get(name, "") for one in (was, is_)]
            if texts[0] != texts[1]:
                first, second = _first_lines(*texts)
                found.append(f"its source of {name} ({module}) has {first}, here {second}")
        for name in sorted({*was["values"]} | {*is_["values"]}):
            values = [one["values"].get(name) for one in (was, is_)]
            if values[0] != values[1]:
                said = " is {}, here {}".format(*map(_value, values))
                found.append(f"its {name} ({module}){said}")
    if not found and old.keys() != new.keys():
        files = [", ".join(sorted(one)) or "no file" for one in (old, new)]
        found.append("its source is in {}, here in {}".format(*files))
    return [("sources", said) for said in found]


def _first_lines(was: str, is_: str) -> tuple[str, str]:
    old, new = was.splitlines(), is_.splitlines()
    n = next((k for k, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
    if n is None:
        n = min(len(old), len(new))
    first, second = ((lines[n].strip() if n < len(lines) else "no more") for lines in (old, new))
    return _cut(f"{first!r}"), _cut(f"{second!r}")


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith((f"{part}.", f"{part}["))


def _place(path: str) -> str:
    return path.removeprefix("network.layers.").removeprefix("network.")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        name = value.get("class") or value.get("code")
        if isinstance(name, Mapping):
            name = name.get("code")
        name = str(name or "").rpartition(":")[2]
        rest = {k: v for k, v in value.items() if k not in ("class", "code", "set", "free")}
        inside = ", ".join(f"{k}={_value(v)}" for k, v in rest.items())
        return _cut(f"{name}({inside})" if inside or "class" in value else name)
    if value is None:
        return "None"
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _layers(found: Any) -> str:
    """The layers in words: 784 InputNeuron, 500 Standard relu, ..."""
    return ", ".join(f"{x['size']} {x['neuron']} {x['activation']}" for x in found)


def _unknown(found: Any, path: str) -> list[str]:
    if isinstance(found, Mapping):
        if found.get("unknown") is True:
            return [_place(path)]
        return [x for k, v in found.items() for x in _unknown(v, f"{path}.{k}" if path else k)]
    if isinstance(found, list):
        return [x for k, v in enumerate(found) for x in _unknown(v, f"{path}[{k}]")]
    return []
