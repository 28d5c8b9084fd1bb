"""Any object of a job in plain values: all its fields, but for those in ``LEFT_OUT``, and code by
its names, texts and what these read.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from horn import texts
from horn.connections import Edges
from horn.data import Dataset
from horn.errors import ModelError
from horn.job import Job
from horn.layers import Layer, Link
from horn.neuron import Neuron, Parameter
from horn.sources import SourceCapture, is_horn, successor
from horn.training.digest import digest

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
    (Dataset, "target_shape"): "it changes no row of y",
    (Dataset, "scale_is"): "what it says of is scale",
    (Dataset, "_checked"): "whether it was looked at",
    (Dataset, "_is_file"): "whether it was looked at",
    (Link, "connection"): "who listens to whom is in edges",
}
MANY = 64  # numbers in a list, from which it is written as the digest of an array
MOST_LISTED = 2**24  # synapses of windows, above which a list of them takes long


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


def is_left_out(described: Mapping[str, Any], name: str) -> bool:
    """Whether a field does not count: an earlier horn may have described it."""
    return any(
        name == field and described.get("class") == f"{cls.__module__}:{cls.__qualname__}"
        for cls, field in LEFT_OUT
    )


def default_of(described: Mapping[str, Any], name: str) -> Any:
    """The default of a field, described; None if there is none. An earlier horn, which did not have
    a field, did what horn does by its default. described : an object, as it is described here.
    """
    module, _, cls = str(described.get("class")).partition(":")
    if not is_horn(module):
        return None
    kind = getattr(importlib.import_module(module), cls, None)
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.name == name and field.default is not dataclasses.MISSING:
            return JobDescriber().describe(field.default)
        if field.name == name and field.default_factory is not dataclasses.MISSING:
            return JobDescriber().describe(field.default_factory())
    return None


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
