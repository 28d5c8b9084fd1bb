"""Each of a network's outputs by itself, with its targets and its metrics.

Functions for a network with one output serve each of several, by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from horn import metrics
from horn.answers import checked_answer_kind
from horn.data import Dataset
from horn.errors import ModelError
from horn.layers import Layer
from horn.metrics import Metric
from horn.network import Network


@dataclass(frozen=True)
class OutputView:
    """An output as the only one of a network. prefix : before the names of its measurements, "" if
    the network has no other.
    """

    layer: Layer
    network: Network
    data: Dataset
    columns: slice
    prefix: str = ""

    def answer_kind(self, target: str | None) -> str | None:
        """The kind of its answers (``horn.answers.checked_answer_kind``)."""
        return checked_answer_kind(self.network, self.data, target)

    def takes(self, metric: Metric, target: str | None) -> bool:
        """Whether a metric applies to it: by its name, or as one of all that it fits."""
        if metric.output or not self.prefix or not metric.reads:
            return metric.output in ("", self.layer.name)
        try:
            metrics.check([metric], self.network, self.data, target, self.data.name)
        except ModelError:
            return False  # the metric is for other outputs
        return True


def each(network: Network, data: Dataset, target: str | None) -> Iterator[OutputView]:
    """The outputs that are compared with targets; an only output in any case."""
    if not network.has_several:
        yield OutputView(network.last, network.alone(network.last), data, slice(None))
        return
    if target != "labels" or not data.targets:
        return
    for output in network.outputs:
        if output.loss is not None:
            own = data.of_output(output.name)
            name = output.name
            yield OutputView(output, network.alone(output), own, network.columns[name], f"{name}_")


def part_of(sent: Any, output: Layer, columns: slice) -> Any:
    """The answer of one of several outputs, from the outputs of all at each step or at the last:
    (n, size), or with an answer at each step (n, steps, size). Steps behind the end of a sequence
    keep their contents.
    """
    part = sent[..., columns]
    return part if part.ndim == 2 or output.each_step else part[:, -1]


def has_answers(network: Network, data: Dataset, target: str | None) -> bool:
    """Whether any output tells right from wrong."""
    return any(view.answer_kind(target) is not None for view in each(network, data, target))


def check(
    wanted: Iterable[Metric], network: Network, data: Dataset, target: str | None, where: str
) -> None:
    """Raise ModelError unless each metric fits the output that it names, or any of several."""
    wanted = list(wanted)
    views = list(each(network, data, target))
    for metric in wanted:
        own = [view for view in views if view.takes(metric, target)]
        if not own and not metric.output and network.has_several and views:
            names = ", ".join(view.layer.name for view in views)
            raise ModelError(
                f"metric {metric.name!r} fits none of the outputs {names} and their targets in "
                f"{where}; name the one that it is for: metrics={{{views[0].layer.name!r}: [...]}}"
            )
        if metric.output and not own:
            raise ModelError(
                f"metric {metric.name!r} is asked of {metric.output!r}, but the outputs with "
                f"targets are {', '.join(view.layer.name for view in views) or 'none'}"
            )
        for view in own:
            metrics.check([metric], view.network, view.data, target, where)


def check_defined(
    wanted: Iterable[Metric], network: Network, data: Dataset, target: str | None, where: str
) -> None:
    """Raise ModelError if auc is undefined for an output (``horn.metrics.check_defined``)."""
    for view in each(network, data, target):
        own = [metric for metric in wanted if view.takes(metric, target)]
        metrics.check_defined(own, view.network, view.data, target, where)


def resolve(given: Any, network: Network, where: str) -> tuple[Metric, ...]:
    """Resolve names and functions to metrics: for all outputs they fit, or {output: metrics}."""
    if not isinstance(given, Mapping):
        return metrics.resolve(given, where)
    known = [output.name for output in network.outputs]
    if wrong := [name for name in given if name not in known]:
        raise ModelError(
            f"{where}: there is no output {wrong[0]!r}; the network has {', '.join(known)}"
        )
    found = [(name, metric) for name in given for metric in metrics.resolve(given[name], where)]
    return tuple(metric.of(name) if network.has_several else metric for name, metric in found)


def loss_column(layer: Layer) -> str:
    """The column of one loss of several: "digit_loss" of an output, else the loss's name."""
    return f"{layer.name}_loss" if layer.answers else layer.name


def better(
    network: Network, wanted: Iterable[Metric], data: Any, target: str | None
) -> dict[str, str]:
    """The columns of validation data that can be watched, each with its better direction: "min",
    "max", or "" if unknown. Of several outputs those that these data are measured in.
    """
    wanted, found = list(wanted), {"val_loss": "min"}
    if network.has_several or len(network.judged) > 1:
        found |= {f"val_{loss_column(layer)}": "min" for layer in network.judged}
    if not network.has_several:
        return found | {"val_acc": "max"} | {f"val_{m.name}": m.better for m in wanted}
    for view in each(network, data, target):
        if view.answer_kind(target) is not None:
            found[f"val_{view.prefix}acc"] = "max"
        for metric in wanted:
            if view.takes(metric, target):
                found[f"val_{view.prefix}{metric.name}"] = metric.better
    return found


def metrics_for(name: str, network: Network, data: Any, target: str | None) -> Any:
    """The metrics to ask of a job for the column "val_" and this name; None without any that fit
    the output.
    """
    for view in each(network, data, target):
        asked = name.removeprefix(view.prefix)
        known = metrics.METRICS.get(asked)
        if name.startswith(view.prefix) and (known is None or view.takes(known, target)):
            return {view.layer.name: [asked]} if view.prefix else [asked]
    return None
