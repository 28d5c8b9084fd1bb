"""The initial arrays of a job instead of drawn numbers: those of a model, by name and shape."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from horn import modelfile
from horn.connections import Edges
from horn.connections.placed import PLACED
from horn.connections.sparse import edges_in_file
from horn.data import Normalization
from horn.data.arrays import as_numbers
from horn.data.classes import Classes, all_from_json
from horn.errors import DataError, ModelError
from horn.layer_costs import EDGE_ARRAYS
from horn.layers import Link
from horn.network import Network
from horn.neuron import carried
from horn.weight_matrices import of_matrices

Array = np.ndarray[Any, Any]
AllClasses = Classes | Mapping[str, Classes | None] | None  # of several outputs, by their names


@dataclass(frozen=True)
class Beginning:
    """Initial arrays of a job by their origin: ``taken`` from the given ones, ``drawn`` from the
    seed where none is given, ``unused`` where the network has none of that name. ``resized`` :
    the States that begin anew, since there are others in number. ``classes``,
    ``normalization`` and ``feature_names`` are those of the model that they are from,
    ``input_shapes`` the shapes of its inputs by name; ``synapses`` those of the network that they
    were taken for, to which another one is compared.
    """

    parameters: Mapping[str, Array]
    states: Mapping[str, Array]
    taken: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    classes: AllClasses = None
    normalization: Normalization | None = None
    feature_names: tuple[str, ...] = ()
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    synapses: Mapping[str, Synapses] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        said = [f"begins with {', '.join(self.taken)}"]
        said += [f"drawn from the seed: {', '.join(self.drawn)}"] * bool(self.drawn)
        said += [f"not used: {', '.join(self.unused)}"] * bool(self.unused)
        said += [f"of another size, so anew: {', '.join(self.resized)}"] * bool(self.resized)
        return "; ".join(said)


def beginning(given: Any, network: Network) -> Beginning:
    """The initial arrays of a network from a Model, a model file's path, or arrays by name.

    Raises
    ------
    ModelError : no array has a name of the network's, an array of the same name has another
    shape, or its numbers are of other synapses there: of other sparse connections, or windows.
    DataError : a given array holds what is no finite number.
    """
    left: tuple[str, ...] = ()
    synapses: Mapping[str, Synapses] = {}
    classes: AllClasses = getattr(given, "classes", None)
    normalization: Normalization | None = getattr(given, "normalization", None)
    feature_names: tuple[str, ...] = getattr(given, "feature_names", ())
    shapes_of_inputs: Mapping[str, tuple[int, ...]] = {}
    if isinstance(given, Beginning):  # from the job that this one is made from
        left = given.unused
        parameters, states, synapses = given.parameters, given.states, given.synapses
        shapes_of_inputs = given.input_shapes
    elif isinstance(given, (str, os.PathLike)):
        manifest, arrays = modelfile.read(given)
        with modelfile.understood(given):
            classes, normalization, feature_names = seen(manifest)
            synapses = synapses_in_file(manifest["network"]["layers"], arrays)
            shapes_of_inputs = _input_shapes(manifest["network"]["layers"])
        states = {n.removeprefix("state/"): a for n, a in arrays.items() if n[:6] == "state/"}
        ends = tuple(f"/{part}" for part in EDGE_ARRAYS)
        parameters = {n: a for n, a in arrays.items() if n[:6] != "state/" and not n.endswith(ends)}
    elif isinstance(given, Mapping):
        each = of_matrices(network, given, "Job: initial: ")
        parameters, states = {n: _numbers(a, n) for n, a in each.items()}, {}
        if (whose := getattr(given, "network", None)) is not None:  # model.parameters
            synapses = synapses_of(whose)
    elif hasattr(given, "parameters") and hasattr(given, "network"):
        parameters, states = given.parameters, given.states
        synapses = synapses_of(given.network)
        shapes_of_inputs = given.network.input_shapes
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
    _check_synapses(synapses, network, taken)
    fitting, resized = _states(states, network)
    return Beginning(
        {name: parameters[name] for name in taken},
        fitting,
        tuple(taken),
        tuple(name for name in shapes if name not in parameters),
        left + tuple(name for name in parameters if name not in shapes),
        resized,
        classes,
        normalization,
        feature_names,
        shapes_of_inputs,
        synapses_of(network),
    )


def _states(
    states: Mapping[str, Array], network: Network
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The States of the network, and the names of those that do not fit it. A State that is one
    number for each map, at all its positions, fits maps of any size.
    """
    kinds = {f"{x.name}.{n}": x.kinds for x in network.layers[1:] if x.kinds for n in x.states}
    anew = {f"{x.name}.{n}" for x in network.layers[1:] for n in carried(x.neuron)}
    found, resized = {}, []
    for name, shape in network.state_shapes.items():
        if name not in states:
            continue
        array, n = np.asarray(states[name]), kinds.get(name)
        if array.shape == shape:
            found[name] = array
        elif (
            n
            and array.ndim == 1
            and array.size % n == 0
            and ((each := array.reshape(-1, n)) == each[:1]).all()
        ):
            found[name] = np.tile(each[0], shape[0] // n)
        elif name not in anew:  # those begin with each sequence
            resized.append(name)
    return found, tuple(resized)


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


@dataclass(frozen=True, eq=False)
class Synapses:
    """What says of which synapse each number of a weight array is: ``edges``, None for a dense
    connection, and the settings of a shaped connection of horn's, from which they follow.
    """

    edges: Edges | None
    windows: Any = None

    def are_those_of(self, other: Synapses) -> bool:
        """Whether each number of the array is of the same synapses in both. Weights that the
        positions of horn's windows share are of no synapse: those of another picture are the same.
        """
        if self.windows is not None and other.windows is not None:
            if self.windows == other.windows:
                return True
            if all(one.edges is not None and one.edges.is_shared for one in (self, other)):
                return True
        a, b = self.edges, other.edges
        if a is None or b is None:
            return a is b
        if not np.array_equal(a.indptr, b.indptr) or not np.array_equal(a.indices, b.indices):
            return False
        if not a.is_shared and not b.is_shared:
            return True
        return np.array_equal(a.numbered.weight, b.numbered.weight)  # type: ignore[arg-type]


def synapses_of(network: Network) -> dict[str, Synapses]:
    """The synapses of each weight array of a network, by the link's name of it."""
    return {
        link.weight: Synapses(link.edges, _windows(link) if link.is_known else None)
        for layer in network.layers
        for link in layer.links
        if link.tie is None
    }


def synapses_in_file(
    layers: Sequence[Mapping[str, Any]], arrays: Mapping[str, Array]
) -> dict[str, Synapses]:
    """The same, of the layers and arrays of a model file."""
    found = {}
    for layer in layers:
        for link in layer.get("links", ()):
            name, below = link["weight"], layers[link["source"]]
            if "tied" in link:
                continue
            if "windows" in link:
                settings = {k: _plain(v) for k, v in link["windows"].items()}
                shape = _plain(below.get("shape", ())) or (below["size"],)
                edges = PLACED[link["connection"]](**settings).at(shape, name).edges
                found[name] = Synapses(edges, (link["connection"], shape, settings))
            elif link["sparse"]:
                edges = edges_in_file(link, arrays, below["size"], layer["size"])
                found[name] = Synapses(edges)
            else:
                found[name] = Synapses(None)
    return found


def _input_shapes(layers: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """``Network.input_shapes``, of the layers of a model file."""
    first = layers[0]
    known = {each["name"]: _plain(each.get("shape", (each["size"],))) for each in layers}
    parts = first.get("parts") or [(first["name"], first["size"])]
    return {name: known.get(name, (size,)) for name, size in parts}


def _windows(link: Link) -> Any:
    settings = {k: _plain(v) for k, v in vars(link.connection).items()}
    return type(link.connection).__name__, link.source.shape, settings


def _check_synapses(
    given: Mapping[str, Synapses], network: Network, taken: Collection[str]
) -> None:
    """Raise ModelError for a taken weight array whose numbers are of other synapses here."""
    for layer in network.layers:
        for link in layer.links:
            there = given.get(link.weight)
            is_taken = link.tie is None and not set(taken).isdisjoint(link.weights.values())
            if there is None or not is_taken:
                continue
            here = Synapses(link.edges, _windows(link) if link.is_known else None)
            if there.are_those_of(here):
                continue
            if there.windows is not None and here.windows is not None:
                raise ModelError(
                    f"Job: initial: {link.weight} is of {_in_words(there.windows)} there and of "
                    f"{_in_words(here.windows)} in this network, so its numbers are of other "
                    "synapses; give that layer another name, and it is drawn from the seed"
                )
            raise ModelError(
                f"Job: initial: the sparse connections of {link.weight} are others than in this "
                "network, or in another order; begin with  Job(model.network, ..., initial=model),"
                "  or give that layer another name, and it is drawn from the seed"
            )


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _in_words(windows: Any) -> str:
    """The windows in words, as "Local(channels=4, kernel=3) over (8, 8, 1)"."""
    name, below, settings = windows
    defaults = {"stride": 1, "padding": "valid", "dilation": 1}
    said = ", ".join(f"{k}={v!r}" for k, v in settings.items() if defaults.get(k) != v)
    return f"{name}({said}) over {below}"


def sparse_edges(network: Network) -> dict[str, Array]:
    """The arrays of the sparse connections, by their names in a model file."""
    return {
        f"{link.weight}/{part}": array
        for layer in network.layers
        for link in layer.links
        for part, array in link.kept_edges.items()
    }
