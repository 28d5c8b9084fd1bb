"""Checks that a network can be run: combinations of layers that do not work together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from horn.delays import MAX_STEPS, hears_reversed
from horn.errors import ModelError, is_whole
from horn.layer_costs import EDGE_ARRAYS
from horn.layers import Layer
from horn.mistakes import is_function
from horn.neuron import (
    Neuron,
    SynapseState,
    carried,
    declarations,
    declared,
    has_backward,
    is_same_declaration,
    mentions,
)
from horn.refusals import by_what


def check_input(keep: float, per: str, steps: int | None) -> None:
    """Raise ModelError unless ``net.input`` takes these."""
    if not 0.0 < keep <= 1.0:
        raise ModelError(
            f"input: keep is the probability to keep, above 0 and up to 1; got {keep!r}"
        )
    if per not in ("sample", "sequence", "batch"):
        raise ModelError(f'input: per must be "sample", "sequence" or "batch", got {per!r}')
    if steps is not None and (not is_whole(steps, 1) or steps > MAX_STEPS):
        raise ModelError(
            f"input: steps is how many a sequence has, a whole number from 1 to "
            f"{MAX_STEPS:,}; got {steps!r}"
        )


def check_interlayer(given: Any, where: str) -> None:
    """Raise ModelError unless a layer's ``interlayer`` is a function, or None."""
    if given is None or is_function(given):
        return
    own = f"activation={given!r}" if isinstance(given, str) else "activation="
    raise ModelError(
        f"{where}: interlayer is a function of a neuron's output and those of its layer, as  "
        f"lambda output: output / output.sum() ; got {given!r}. One that horn has is {own}"
    )


def check_next(
    layers: Sequence[Layer], kind: str, name: str, where: str, taken: Sequence[str] = ()
) -> None:
    """Raise ModelError unless a layer of this kind and name may be added behind these. taken : the
    names of inputs.
    """
    if not layers:
        raise ModelError(
            f"{where}: the first layer is the input; call net.input(n_features) before"
        )
    if layers[-1].kind == "output" and kind != "output":
        raise ModelError(
            f"{where}: outputs and losses are the last; add it before net.output(...) and "
            "net.loss(...); if it was run a second time, run net = horn.Network(...) again, too"
        )
    if any(layer.name == name for layer in layers) or name in taken:
        other = "an input" if name in taken else "another layer"
        raise ModelError(f"{where}: {other} has this name; names are unique")
    check_name(name, where)


def check_name(name: Any, where: str) -> None:
    """Raise ModelError unless a layer or an input may have this name: its arrays have others."""
    if not isinstance(name, str) or "." in name or not name:
        raise ModelError(
            f"{where}: a layer's name is a text that is not empty and has no dot; got {name!r}"
        )
    if name.startswith("state/") or name.endswith(tuple(f"/{end}" for end in EDGE_ARRAYS)):
        raise ModelError(
            f"{where}: a model file has arrays of its own that begin with state/ or end with "
            f"{', '.join(f'/{end}' for end in EDGE_ARRAYS)}; give the layer another name"
        )


def check(layers: Sequence[Layer], steps: int) -> None:
    """Raise ModelError unless the network can be run."""
    if len(layers) < 2:
        raise ModelError(
            "the network has no layers to compute; add net.layer(...) or net.output(...)"
        )
    check_as_made(layers)
    _check_steps(layers, steps)
    _check_reversed(layers)
    hidden = {layer.neuron for layer in layers[1:] if layer.kind == "hidden"}
    outputs = [layer for layer in layers if layer.kind == "output"]
    for layer in outputs:
        _check_output(layer, hidden)
    if len(outputs) > 1 or not all(layer.answers for layer in outputs):
        _check_several(layers, outputs)


def of_other_steps(layers: Sequence[Layer], layer: Layer) -> str:
    """Why what comes back to a layer of sequences is of other steps, so that no backward can be
    written for it; "" where it is not.
    """
    for x in layers:
        if any(k.source is layer and k.is_reversed for k in x.links):
            return f"{x.name} hears it from end to beginning: what comes back is of other steps"
    for x in layers:
        if any(k.source is layer and k.delay for k in x.links):
            return f"{x.name} hears it late: what comes back is of later steps"
    return _goes_on(carried(layer.neuron)[0]) if carried(layer.neuron) else ""


def _goes_on(state: str) -> str:
    return f"its State {state!r} goes on from step to step: what comes back is of later steps"


def check_as_made(layers: Sequence[Layer]) -> None:
    """Raise ModelError where a neuron class was changed in place since a layer of it was made, as
    by IPython's %autoreload, and declares other numbers: the layer has arrays of those of before.
    """
    for layer in layers:
        before, cls = layer.declarations, layer.neuron
        changes = [
            f"{kind.__name__} {name!r} {_change(before[kind].get(name), here.get(name))}"
            for kind, here in declarations(cls).items()
            for name in dict.fromkeys((*before[kind], *here))
            if not is_same_declaration(before[kind].get(name), here.get(name))
        ]
        if changes:
            raise ModelError(
                f"layer {layer.name}: {cls.__name__} has other declarations than when the network "
                f"was made, as after %autoreload: its {', its '.join(changes)}; run the cell that "
                "makes the network again"
            )


def _change(before: Any, now: Any) -> str:
    """What became of a declaration, in words; None: there is none."""
    if before is None or now is None:
        return "is new" if before is None else "is gone"
    if repr(before) == repr(now):
        return "begins with other numbers"
    return f"was {before!r} and is {now!r}"


def _check_output(last: Layer, hidden: Collection[type[Neuron]]) -> None:
    """Raise ModelError for a loss, activation or backward that does not fit an output."""
    loss = last.loss
    if has_backward(last.neuron) and last.neuron not in hidden:
        raise ModelError(
            f"{last.name}: {last.neuron.__name__} writes backward, but what comes back to an "
            f"output neuron is derived from the loss, and no hidden layer has this class: "
            f"nobody would call it. Leave backward out, or use the class for hidden layers"
        )
    if loss is not None and loss.name == "cross_entropy" and last.interlayer is None:
        raise ModelError(
            f"{last.name}: cross_entropy needs outputs that are positive and sum to "
            "1 over the layer, but activation "
            f'{last.activation_name!r} does not give them; use activation="softmax",'
            ' or loss="binary_cross_entropy" with '
            f'activation="sigmoid"'
        )
    if (
        loss is not None
        and loss.name == "binary_cross_entropy"
        and last.interlayer is None
        and last.activation_name
        in ("identity", "relu", "leaky_relu", "softplus", "tanh", "scaled_tanh")
        and mentions(last.neuron, "forward", "activation")
    ):
        raise ModelError(
            f"{last.name}: binary_cross_entropy needs outputs between 0 and 1, but "
            f"activation {last.activation_name!r} "
            f'leaves that range; use activation="sigmoid"'
        )


def _check_reversed(layers: Sequence[Layer]) -> None:
    """Raise ModelError for a layer that hears, reversed, one that depends on it: a deadlock."""
    for layer in layers[1:]:
        for link in layer.links:
            if not link.is_reversed:
                continue
            below, pending = {link.source.index}, [link.source]
            while pending:
                new = [k.source for k in pending.pop().links if k.source.index not in below]
                below |= {source.index for source in new}
                pending += new
            if layer.index in below:
                raise ModelError(
                    f"{layer.name}: hears {link.source.name} from end to beginning, which hears "
                    f"{layer.name}, if late: neither could begin; leave one of the two out"
                )


def _check_several(layers: Sequence[Layer], outputs: Sequence[Layer]) -> None:
    """Raise ModelError for neurons that read ``self.error`` below several outputs."""
    answering = [layer for layer in outputs if layer.answers]
    for layer in layers[1:]:
        hears = mentions(layer.neuron, "backward", "error") and not hasattr(layer.neuron, "error")
        if len(answering) > 1 and hears:
            raise ModelError(
                f"{layer.name} ({layer.neuron.__name__}): reads self.error, the errors of the "
                f"output, but there are {len(answering)}: "
                f"{', '.join(each.name for each in answering)}; hear what comes back, as m.gradient"
            )


def _check_steps(layers: Sequence[Layer], steps: int) -> None:
    """Raise ModelError for parts that networks of sequences, or of samples, cannot have."""
    for layer in layers[1:]:
        where, cls = f"{layer.name} ({layer.neuron.__name__})", layer.neuron
        for link in layer.links:
            if link.source.kind == "later":
                known = ", ".join(each.name for each in layers)
                raise ModelError(
                    f"{layer.name}: hears Delayed({link.source.name!r}), but no layer is "
                    f"called so; there are {known}"
                )
        late = any(link.delay for link in layer.links)
        traces = declared(cls, SynapseState)
        if not steps:
            if hears_reversed([layer]):
                raise ModelError(
                    f"{where}: has a reversed connection, but the samples are no sequences; say "
                    f"how many steps they have: net.input({layers[0].size}, steps=...)"
                )
            own = carried(cls) or any(x.per == "sample" for x in traces.values())
            if late or own or layer.each_step:
                what = "a delayed connection" if late else "a judge of each step"
                kind = "State" if carried(cls) else "SynapseState"
                what = f'a {kind}(per="sample")' if not late and own else what
                raise ModelError(
                    f"{where}: has {what}, but the samples are no sequences; say how many "
                    f"steps they have: net.input({layers[0].size}, steps=...)"
                )
            continue
        if any(mentions(cls, "backward", name) for name in traces):
            raise ModelError(
                f"{where}: a SynapseState of backward is not available in networks of sequences; "
                "what is remembered from step to step is assigned in forward"
            )
        if layer.kind == "output" or not has_backward(cls):
            continue
        why = of_other_steps(layers, layer)
        read = [name for name in layer.states if mentions(cls, "backward", name)]
        if not why and read:
            why = _goes_on(read[0])
        if why:
            raise ModelError(
                f"{where}: writes backward, but {why}, which one step's backward cannot see. "
                f"Leave backward out{by_what(mentions(cls, 'forward', 'push'))}"
            )
        if mentions(cls, "backward", "loss"):
            raise ModelError(
                f"{where}: reads self.loss, which is of all steps, and not there in networks of "
                "sequences; self.error tells of the outputs at this step, as sum(e.delta for e in "
                "self.error)"
            )
