"""A network as JSON and back: the layers in a model file and in the text of a job.

An absent key has its default: a plain layer takes few words.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from horn import activations, initializers, losses, metrics
from horn.activations import Activation, OfTwo
from horn.connections import Edges
from horn.connections.dense import Dense
from horn.connections.placed import PLACED
from horn.connections.sparse import Sparse, edges_in_file
from horn.connections.tied import Tied
from horn.delays import MAX_STEPS
from horn.errors import ModelError
from horn.initializers import Initializer, Unsaved
from horn.layers import Connects, InputNeuron, Layer, Link, later
from horn.losses import Loss
from horn.metrics import Metric
from horn.network import Network
from horn.neuron import Neuron
from horn.plain_values import NotPlain, decoded, encoded
from horn.sources import CapturedCode, Reference, SourceCapture

Array = np.ndarray[Any, Any]
MAX_SIZE = 2**31 - 1  # neurons of a layer: places are 32-bit numbers


class Description:
    """A network as JSON: its layers, and the source of the user's neurons and functions.

    problem : the reason that it cannot be saved, if any; it can still be trained.
    """

    def __init__(self, manifest: Mapping[str, Any], problem: str = "") -> None:
        self.manifest, self.problem = manifest, problem

    @classmethod
    def of(cls, network: Network, wanted: Iterable[Metric] = ()) -> Description:
        """Capture a network now, before a file is edited in a long training. wanted : metrics."""
        capture = SourceCapture()
        try:
            described = network_to_json(network, capture)
        except ModelError as error:
            return cls({}, str(error))
        kept = metrics.saved(wanted, capture)
        found = {"network": described, "sources": capture.sources()}
        return cls(found | {"metrics": kept} if kept else found)


def network_to_json(network: Network, capture: SourceCapture) -> dict[str, Any]:
    """The layers as JSON; the user's sources go into ``capture``. Raises ModelError if one cannot
    be read.
    """
    layers = [_layer_to_json(layer, capture) for layer in network.layers]
    return {"seed": network.seed, "layers": layers}


def _layer_to_json(layer: Layer, capture: SourceCapture) -> dict[str, Any]:
    if layer.kind == "input":
        names = ("name", "size", "kind", "keep", "per")
        parts: dict[str, Any] = {"parts": layer.parts} if layer.parts else {}
        parts |= {"steps": layer.steps} if layer.steps else {}
        return {name: getattr(layer, name) for name in names} | _shape_to_json(layer) | parts
    constants = {
        name: getattr(layer.neuron, name)
        for base in layer.neuron.__mro__
        if issubclass(base, Neuron) and base is not Neuron
        for name, value in vars(base).items()
        if isinstance(value, (bool, int, float)) and not name.startswith("_")
    }
    return {
        "name": layer.name,
        "size": layer.size,
        "kind": layer.kind,
        "neuron": capture.reference(layer.neuron),
        "neuron_name": layer.neuron.__name__,
        "constants": constants,
        "activation": activation_to_json(layer.activation, capture),
        "activation_name": layer.activation_name,
        "interlayer": None if layer.interlayer is None else capture.reference(layer.interlayer),
        "loss": _loss_to_json(layer.loss, capture),
        "bias": None if layer.bias is None else _init_to_json(layer.bias, capture),
        "links": [
            {
                "source": link.source.index,
                "weight": link.weight,
                "sparse": link.edges is not None,
                "connection": type(link.connection).__name__,
                "init": _init_to_json(link.init, capture),
            }
            | ({"input": link.input} if link.input else {})
            | ({"delay": link.delay} if link.delay else {})
            | ({"reversed": True} if link.is_reversed else {})
            | ({"tied": _tie_to_json(link.tie)} if link.tie is not None else {})
            | ({"windows": vars(link.connection)} if link.is_known else {})
            | (
                {"weight_shape": link.edges.weight_shape}
                if link.edges is not None and link.is_shared and not link.is_known and not link.tie
                else {}
            )
            for link in layer.links
        ],
        **_shape_to_json(layer),
        **({"each_step": True} if layer.each_step else {}),
        **({"loss_weight": layer.loss_weight} if layer.loss_weight != 1.0 else {}),
        **({} if layer.answers else {"answers": False}),
    }


def _tie_to_json(tie: Tied) -> dict[str, Any]:
    return {"layer": tie.layer.index, "transposed": tie.transposed, "input": tie.input}


def _shape_to_json(layer: Layer) -> dict[str, Any]:
    """The shape and kinds of a layer; a flat layer, each neuron of its own kind, has none."""
    found: dict[str, Any] = {"shape": layer.extents} if layer.extents else {}
    return found | ({"kinds": layer.kinds} if layer.kinds else {})


def _parts_from_json(found: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    parts = tuple((str(name), number(n, int, 1, MAX_SIZE)) for name, n in found.get("parts", ()))
    if parts and sum(n for _, n in parts) != found["size"]:
        raise ValueError(f"inputs of {found['size']} features in parts {parts!r:.80}")
    return parts


def _shape_from_json(found: Mapping[str, Any]) -> dict[str, Any]:
    shape = tuple(number(n, int, 1, MAX_SIZE) for n in found.get("shape", ()))
    if shape and (len(shape) > 3 or math.prod(shape) != found["size"]):
        raise ValueError(f"a layer of {found['size']} neurons and of shape {shape}")
    kinds = found.get("kinds")
    if kinds is not None and found["size"] % number(kinds, int, 1, MAX_SIZE):
        raise ValueError(f"{kinds} kinds of {found['size']} neurons")
    return {"extents": shape, "kinds": kinds}


def activation_to_json(activation: Activation, capture: SourceCapture) -> dict[str, Any]:
    if activations.ACTIVATIONS.get(activation.name) == activation:
        return {"name": activation.name}
    functions = {part: getattr(activation, part) for part in ("f", "df", "df_at")}
    given = {part: capture.reference(f) for part, f in functions.items() if f is not None}
    of_two = {"arguments": 2} if activation.n_arguments == 2 else {}
    return {"name": activation.name, **given, **of_two}


def activation_from_json(found: Mapping[str, Any], code: CapturedCode) -> Activation:
    if "f" not in found:
        return activations.ACTIVATIONS[found["name"]]
    functions = {p: code.resolve(found[p]) for p in ("f", "df", "df_at") if p in found}
    return (OfTwo if found.get("arguments") == 2 else Activation)(found["name"], **functions)


def _loss_to_json(loss: Loss | None, capture: SourceCapture) -> dict[str, Any] | None:
    if loss is None:
        return None
    if losses.LOSSES.get(loss.name) == loss:
        return {"name": loss.name}
    return {"name": loss.name, "f": capture.reference(loss.f), "labels": loss.labels}


def _loss_from_json(found: Mapping[str, Any] | None, code: CapturedCode) -> Loss | None:
    if found is None:
        return None
    if "f" not in found:
        return losses.LOSSES[found["name"]]
    return Loss(found["name"], code.resolve(found["f"]), found["labels"])


def _init_to_json(init: Initializer, capture: SourceCapture) -> dict[str, Any]:
    """An initialiser; of the user's own its source and its attributes, plain values, functions and
    initialisers. One that cannot be kept is told, and nothing is drawn from it again.
    """
    if isinstance(init, Unsaved):
        return {"was": init.was}
    if dataclasses.is_dataclass(init) and type(init).__module__ == initializers.__name__:
        return {"name": type(init).__name__, **dataclasses.asdict(init)}
    try:
        kept = {k: _part_to_json(v, capture) for k, v in vars(init).items()}
        return {"class": capture.reference(type(init)), "attributes": kept}
    except (ModelError, NotPlain, TypeError):  # TypeError: it has __slots__
        return {"was": f"{type(init).__name__}, {init!r:.200}"}


def _part_to_json(value: Any, capture: SourceCapture) -> dict[str, Any]:
    if isinstance(value, types.FunctionType):
        return {"function": capture.reference(value)}
    is_plain_kind = isinstance(value, (type, dict))
    if not is_plain_kind and callable(getattr(value, "values", None)):
        found = _init_to_json(value, capture)
        if "was" in found:
            raise NotPlain
        return {"init": found}
    return {"value": encoded(value)}


def _init_from_json(found: Mapping[str, Any], code: CapturedCode) -> Initializer:
    if "was" in found:
        return Unsaved(str(found["was"]))
    if "class" in found:
        kind = code.resolve(found["class"])
        own: Initializer = kind.__new__(kind)
        vars(own).update({k: _part_from_json(v, code) for k, v in found["attributes"].items()})
        return own
    fields = {k: v for k, v in found.items() if k != "name"}
    if any(isinstance(value, (list, dict)) for value in fields.values()):
        raise TypeError(f"{found['name']} of {fields!r:.80}")
    init: Initializer = getattr(initializers, found["name"])(**fields)
    drawn = init.values((2, 2), 2, 2, initializers.generator(0))
    if not np.all(np.abs(np.asarray(drawn, np.float64)) < 1e30):  # else it fails when it runs
        raise ValueError(f"{found['name']} draws {drawn!r:.80}")
    return init


def _part_from_json(found: Mapping[str, Any], code: CapturedCode) -> Any:
    if "function" in found:
        return code.resolve(found["function"])
    if "init" in found:
        return _init_from_json(found["init"], code)
    return decoded(found["value"])


def rebuild(
    manifest: Mapping[str, Any],
    arrays: Mapping[str, Array],
    origin: str,
    code: CapturedCode | None = None,
) -> Network:
    """The network of a manifest. Runs the source in it, unless it is in ``code`` already."""
    described = manifest["network"]
    if code is None:
        # Class constants tell apart two loaded classes of one source.
        salt = [layer.get("constants") for layer in described["layers"]]
        code = CapturedCode(dict(manifest["sources"]), origin, salt=salt)
    network = Network(number(described["seed"], int, 0, 2**64 - 1))
    layers = described["layers"]
    for index, found in enumerate(layers):
        if not isinstance(found["name"], str):
            raise TypeError(f"{found['name']!r:.80} where a layer's name was expected")
        described = index, found["name"], number(found["size"], int, 1, MAX_SIZE), found["kind"]
        if found["kind"] == "input":
            keep = number(found["keep"], float, 0.0, 1.0)
            identity = activations.ACTIVATIONS["identity"]
            layer = Layer(
                *described, InputNeuron, identity, "identity", keep=keep, per=found["per"],
                parts=_parts_from_json(found), **_shape_from_json(found),
                steps=number(found.get("steps", 0), int, 0, MAX_STEPS),
            )  # fmt: skip
        else:
            layer = Layer(
                *described,
                _neuron_from_json(found, code, origin),
                activation_from_json(found["activation"], code),
                found["activation_name"],
                None if found["interlayer"] is None else code.resolve(found["interlayer"]),
                tuple(
                    _link_from_json(link, network, arrays, layers, code, found["size"])
                    for link in found["links"]
                ),
                None if found["bias"] is None else _init_from_json(found["bias"], code),
                _loss_from_json(found["loss"], code),
                **_shape_from_json(found),
                each_step=bool(found.get("each_step", False)),
                loss_weight=number(found.get("loss_weight", 1.0), float, 0.0, math.inf),
                answers=bool(found.get("answers", True)),
            )
        network._add(layer)
    return network


def number(found: Any, kind: type[int | float], low: float, high: float) -> Any:
    """Check a number of a file, before the model runs. Raises ValueError."""
    if not isinstance(found, (int, kind)) or not low <= found <= high:
        raise ValueError(f"{found!r:.80} where a number from {low:g} to {high:g} was expected")
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Whether two constants are equal, or both NaN."""
    return bool(one == other or (one != one and other != other))


def _neuron_from_json(found: Mapping[str, Any], code: CapturedCode, origin: str) -> type[Neuron]:
    reference: Reference = found["neuron"]
    neuron = code.resolve(reference)
    if not isinstance(neuron, type) or not issubclass(neuron, Neuron):
        raise ModelError(f"{origin}: {found['neuron_name']} is no neuron class in the saved source")
    # A job may have set a class constant after the class was defined.
    constants = found["constants"].items()
    numbers = {k: v if v != v else number(v, float, -math.inf, math.inf) for k, v in constants}
    changed = {k: v for k, v in numbers.items() if not _is_same(getattr(neuron, k, None), v)}
    if changed and "horn" in reference:
        return type(neuron.__name__, (neuron,), changed)
    for name, value in changed.items():
        setattr(neuron, name, value)
    return neuron


def _link_from_json(
    found: Mapping[str, Any],
    network: Network,
    arrays: Mapping[str, Array],
    described: Sequence[Mapping[str, Any]],
    code: CapturedCode,
    n_receivers: int,
) -> Link:
    edges: Edges | None = None
    connection: Connects = Dense()
    weight, place = found["weight"], int(found["source"])
    if place < len(network.layers):
        source = network.layers[place]
    else:  # a delayed input from this layer or a later one
        at = described[place]
        size = number(at["size"], int, 1, MAX_SIZE)
        shape = _shape_from_json(at).get("extents") or (size,)
        source = later(str(at["name"]), place, shape)
    if (tied := found.get("tied")) is not None:
        tie = Tied(network.layers[tied["layer"]], tied["transposed"], tied["input"])
        connection, edges = tie, tie.at(source.shape, weight).edges
    elif "windows" in found:
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in found["windows"].items()}
        known = PLACED[found["connection"]](**fields)
        connection, edges = known, known.at(source.shape, weight).edges
    elif found["sparse"]:
        edges = edges_in_file(found, arrays, source.size, n_receivers)
        connection = Sparse(csr=(edges.indptr, edges.indices))
    if edges is not None and len(edges.indptr) != n_receivers + 1:
        raise ValueError(f"{weight} has {len(edges.indptr) - 1} receivers, not {n_receivers}")
    init = _init_from_json(found["init"], code)
    delay = number(found.get("delay", 0), int, 0, MAX_STEPS)
    named = str(found.get("input", ""))
    turned = bool(found.get("reversed", False))
    how: dict[str, Any] = {"input": named, "delay": delay, "is_reversed": turned}
    return Link(source, connection, edges, init, weight, **how)


def shapes(network: Network) -> dict[tuple[str, str], tuple[int, ...]]:
    """The shapes of all learned arrays and States, by ("parameter" or "state", name)."""
    layers = network.layers[1:]
    found = {("parameter", name): shape for x in layers for name, shape in x.shapes.items()}
    return found | {("state", name): shape for name, shape in network.state_shapes.items()}
