"""The initial arrays of a job instead of drawn numbers: those of a model, by name and shape."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horn import modelfile
from horn.data import Normalization
from horn.data.arrays import as_numbers
from horn.data.classes import Classes, all_from_json
from horn.errors import DataError, ModelError
from horn.network import Network

Array = np.ndarray[Any, Any]
AllClasses = Classes | Mapping[str, Classes | None] | None  # of several outputs, by their names


@dataclass(frozen=True)
class Beginning:
    """Initial arrays of a job by their origin: ``taken`` from the given ones, ``drawn`` from the
    seed where none is given, ``unused`` where the network has none of that name. ``classes``,
    ``normalization`` and ``feature_names`` are those of the model that they are from.
    """

    parameters: Mapping[str, Array]
    states: Mapping[str, Array]
    taken: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    classes: AllClasses = None
    normalization: Normalization | None = None
    feature_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"begins with {', '.join(self.taken)}"]
        said += [f"drawn from the seed: {', '.join(self.drawn)}"] * bool(self.drawn)
        said += [f"not used: {', '.join(self.unused)}"] * bool(self.unused)
        return "; ".join(said)


def beginning(given: Any, network: Network) -> Beginning:
    """The initial arrays of a network from a Model, a model file's path, or arrays by name.

    Raises
    ------
    ModelError : no array has a name of the network's, an array of the same name has another
    shape, or its sparse connections, or windows with weights of their own, are others.
    DataError : a given array holds what is no finite number.
    """
    left: tuple[str, ...] = ()
    windows: Mapping[str, Any] = {}
    classes: AllClasses = getattr(given, "classes", None)
    normalization: Normalization | None = getattr(given, "normalization", None)
    feature_names: tuple[str, ...] = getattr(given, "feature_names", ())
    if isinstance(given, Beginning):  # from the job that this one is made from
        left = given.unused
        parameters, states, edges = given.parameters, given.states, {}
    elif isinstance(given, (str, os.PathLike)):
        manifest, arrays = modelfile.read(given)
        with modelfile.understood(given):
            classes, normalization, feature_names = seen(manifest)
            windows = own_windows(manifest["network"]["layers"])
        states = {n.removeprefix("state/"): a for n, a in arrays.items() if n[:6] == "state/"}
        edges = {n: a for n, a in arrays.items() if n.endswith(("/indptr", "/indices", "/weight"))}
        parameters = {n: a for n, a in arrays.items() if n[:6] != "state/" and n not in edges}
    elif isinstance(given, Mapping):
        parameters, states, edges = {n: _numbers(a, n) for n, a in given.items()}, {}, {}
    elif hasattr(given, "parameters") and hasattr(given, "network"):
        parameters, states, edges = given.parameters, given.states, sparse_edges(given.network)
        windows = _windows(given.network)
    else:
        has_one = "; it has its model: initial=run.model" if hasattr(given, "model") else ""
        raise ModelError(
            f"Job: initial is a horn.Model, the path of a model file, or a dict of arrays by name; "
            f"got {given!r:.80}{has_one}"
        )
    shapes = {name: shape for layer in network.layers[1:] for name, shape in layer.shapes.items()}
    taken = [name for name in shapes if name in parameters]
    if not taken:
        raise ModelError(
            f"Job: initial has no array of this network: it has {', '.join(parameters) or 'none'}; "
            f"the network has {', '.join(shapes)}. Give the layers the same names"
        )
    for name in taken:
        found = np.shape(parameters[name])
        if found != (wanted := tuple(shapes[name])):
            remedy = "give that layer another name, and it is drawn from the seed"
            if len(found) > 2 and (found[0], *found[2:], found[1]) == wanted:
                axes = ", ".join(map(str, (0, *range(2, len(found)), 1)))
                remedy = f"channels come last here: pass numpy.transpose(it, ({axes}))"
            elif len(found) == 2 and found[::-1] == wanted:
                remedy = "a neuron's weights are a row here: pass its transpose, it.T"
            raise ModelError(
                f"Job: initial: {name} is {found} there and {wanted} in this network; {remedy}"
            )
    own = sparse_edges(network)
    for name in edges.keys() & own.keys():
        if not np.array_equal(edges[name], own[name]):
            raise ModelError(
                f"Job: initial: the sparse connections of {name.rpartition('/')[0]} are others "
                f"than in this network; begin with  Job(model.network, ..., initial=model)"
            )
    mine = _windows(network)
    for name in windows.keys() & mine.keys():
        if windows[name] != mine[name]:
            raise ModelError(
                f"Job: initial: {name} is of {_told(windows[name])} there and of "
                f"{_told(mine[name])} in this network, so its numbers are of other synapses; give "
                f"that layer another name, and it is drawn from the seed"
            )
    return Beginning(
        {name: parameters[name] for name in taken},
        {n: a for n, a in states.items() if np.shape(a) == network.state_shapes.get(n)},
        tuple(taken),
        tuple(name for name in shapes if name not in parameters),
        left + tuple(name for name in parameters if name not in shapes),
        classes,
        normalization,
        feature_names,
    )


def _numbers(given: Any, name: str) -> Array:
    """An array of finite numbers, whatever was given for it. Raises DataError."""
    found = as_numbers(given, f"Job: initial: {name}")
    if not (finite := np.isfinite(found)).all():
        place = tuple(map(int, np.unravel_index(finite.argmin(), found.shape)))
        raise DataError(
            f"Job: initial: {name} is {found[place]} at {place}, from where nothing is learned; "
            "give a finite number, or leave the array out, and it is drawn from the seed"
        )
    return found


def seen(
    manifest: Mapping[str, Any],
) -> tuple[AllClasses, Normalization | None, tuple[str, ...]]:
    """The classes, the normalization and the feature names in a model file's manifest."""
    classes, normal = manifest.get("classes"), manifest.get("normalization")
    return (
        None if classes is None else all_from_json(classes),
        None if normal is None else Normalization.of_json(normal),
        tuple(map(str, manifest.get("feature_names", ()))),
    )


def own_windows(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometry of windows with weights of their own at each position, by the name of the
    weights: kernel, stride and shape decide a number's synapse. layers : of a model file.
    """
    found = {}
    for layer in layers:
        for link in layer.get("links", ()):
            if "windows" in link and not layer.get("kinds"):
                told = {k: _plain(v) for k, v in link["windows"].items()}
                below = _plain(layers[link["source"]].get("shape", ()))
                found[link["weight"]] = link["connection"], below, told
    return found


def _windows(network: Network) -> dict[str, Any]:
    return own_windows(
        [
            {
                "shape": layer.extents,
                "kinds": layer.kinds,
                "links": [
                    {"source": link.source.index, "weight": link.weight,
                     "connection": type(link.connection).__name__}
                    | ({"windows": vars(link.connection)} if link.is_known else {})
                    for link in layer.links
                ],
            }
            for layer in network.layers
        ]
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _told(windows: Any) -> str:
    """The windows in words, as "Local(channels=4, kernel=3) over (8, 8, 1)"."""
    name, below, told = windows
    defaults = {"stride": 1, "padding": "valid", "dilation": 1}
    said = ", ".join(f"{k}={v!r}" for k, v in told.items() if defaults.get(k) != v)
    return f"{name}({said}) over {below}"


def sparse_edges(network: Network) -> dict[str, Array]:
    """The arrays of the sparse connections, by their names in a model file."""
    return {
        f"{link.weight}/{part}": array
        for layer in network.layers
        for link in layer.links
        for part, array in link.kept_edges.items()
    }
