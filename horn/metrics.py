"""Metrics: measurements of a model's outputs beside its loss; larger or smaller, never learned.

A metric sees all samples of a data set at once: ``f(y_true, y_pred)``. What an output means
(``answers.py``) decides which metrics fit.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from horn import mistakes, texts
from horn.answers import answer_kind, by_step, checked_answer_kind, n_right
from horn.data import Dataset
from horn.errors import ModelError
from horn.network import Network
from horn.sources import CapturedCode, SourceCapture, is_user_file

Array = np.ndarray[Any, Any]
TRIED = 10_000  # samples, at most, on which a user's function is tried before training

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """A number over all samples. f : of targets and outputs; for "answers" their kind first. reads
    : "answers", "numbers", or "" for a user's function. better : "max", "min", or "" if unknown.
    output : the one of several that it measures; "" all that it fits.
    """

    name: str
    f: Callable[..., Any]
    reads: str = ""
    better: str = ""
    output: str = ""

    def __repr__(self) -> str:
        return mistakes.constructed(self)

    def of(self, output: str) -> Metric:
        """The same metric, for one output alone."""
        return replace(self, output=output)


def _columns(kind: str, y: Array, outputs: Array) -> tuple[Array, Array]:
    """The true and the answered membership in each class or output: (n, columns) booleans."""
    if kind == "side" or kind == "each":
        return y.reshape(outputs.shape) > 0.5, outputs > 0.5
    true = y if kind == "label" else y.argmax(axis=1)
    classes = np.arange(outputs.shape[1])
    return true[:, None] == classes, outputs.argmax(axis=1)[:, None] == classes


def _ratios(kind: str, y: Array, outputs: Array, of: Callable[[Array, Array, Array], Array]) -> Any:
    """The mean over classes of a ratio of (both, said, true) counts; 0 where nothing is counted."""
    true, said = _columns(kind, y, outputs)
    both, n_said, n_true = ((a.sum(axis=0).astype(float)) for a in (true & said, said, true))
    found = of(both, n_said, n_true)
    if kind in ("label", "one-hot"):  # classes without samples and answers do not count
        found = found[(n_said > 0) | (n_true > 0)]
    return found.mean()


def _over(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def accuracy(kind: str, y: Array, outputs: Array) -> Any:
    """The share of right answers; with several labels per sample, of all labels of all samples."""
    n = outputs.size if kind == "each" else len(outputs)
    return n_right(kind, outputs, y) / n


def precision(kind: str, y: Array, outputs: Array) -> Any:
    """The share of right answers among the answers of a class. With one output that of class 1;
    else the plain mean over the classes (macro), 0 for a class without answers, as in
    scikit-learn's precision_score.
    """
    return _ratios(kind, y, outputs, lambda both, said, true: _over(both, said))


def recall(kind: str, y: Array, outputs: Array) -> Any:
    """Right answers among a class's samples; averaged as ``precision``, as in recall_score."""
    return _ratios(kind, y, outputs, lambda both, said, true: _over(both, true))


def f1(kind: str, y: Array, outputs: Array) -> Any:
    """The harmonic mean of precision and recall, 2 both / (said + true), of each class; averaged as
    ``precision``: macro, as scikit-learn's f1_score(average="macro").

    Source: van Rijsbergen, "Information Retrieval", 2nd ed. 1979, chapter 7.
    """
    return _ratios(kind, y, outputs, lambda both, said, true: _over(2.0 * both, said + true))


def auc(kind: str, y: Array, outputs: Array) -> Any:
    """The area under the ROC curve: how often an output is larger for a sample of its class than
    for one that is not, a tie counting half. With several classes or labels the plain mean, each
    against the rest, as scikit-learn's roc_auc_score(multi_class="ovr"). NaN where all samples, or
    none, are of one of them.

    Source: Hanley & McNeil 1982, "The meaning and use of the area under a ROC curve".
    """
    true, _ = _columns(kind, y, outputs)
    return np.mean([_area(t, s) for t, s in zip(true.T, outputs.T, strict=True)])


def _area(true: Array, score: Array) -> float:
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[place]
    n = int(true.sum())
    pairs = n * (len(true) - n)
    return float((rank[true].sum() - n * (n + 1) / 2.0) / pairs) if pairs else float("nan")


def top(k: int) -> Callable[[str, Array, Array], Any]:
    """The share of samples whose class is among the k largest outputs: "top5". Of equal outputs the
    first is the larger, as in ``accuracy``: else outputs that are all alike would be right.
    """

    def among_largest(kind: str, y: Array, outputs: Array) -> Any:
        true = (y if kind == "label" else y.argmax(axis=1))[:, None]
        own = np.take_along_axis(outputs, true, axis=1)
        is_first = np.arange(outputs.shape[1]) < true
        return (((outputs > own) | ((outputs == own) & is_first)).sum(axis=1) < k).mean()

    return among_largest


def mae(y: Array, outputs: Array) -> Any:
    """The mean of |y - t| over samples and outputs."""
    return np.abs(outputs - y).mean()


def mse(y: Array, outputs: Array) -> Any:
    """The mean of (y - t)^2 over samples and outputs: with one output twice the loss
    "squared_error".
    """
    return np.square(outputs - y).mean()


def rmse(y: Array, outputs: Array) -> Any:
    """The square root of ``mse``, in the unit of the targets."""
    return np.sqrt(mse(y, outputs))


def r2(y: Array, outputs: Array) -> Any:
    """1 - sum (y - t)^2 / sum (t - mean t)^2 of each output, and their plain mean: 1 is perfect, 0
    as good as the mean. For a constant target 1 if it is met and 0 if not, as scikit-learn's
    r2_score.
    """
    off = np.square(outputs - y).sum(axis=0)
    spread = np.square(y - y.mean(axis=0)).sum(axis=0)
    spread[y.max(axis=0) == y.min(axis=0)] = 0.0  # the mean of 0.1 and 0.1 and 0.1 is rounded
    found = 1.0 - np.divide(off, spread, out=np.where(off > 0.0, 1.0, 0.0), where=spread > 0.0)
    return found.mean()


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("acc", accuracy, "answers", "max"),
        Metric("precision", precision, "answers", "max"),
        Metric("recall", recall, "answers", "max"),
        Metric("f1", f1, "answers", "max"),
        Metric("auc", auc, "answers", "max"),
        Metric("mae", mae, "numbers", "min"),
        Metric("mse", mse, "numbers", "min"),
        Metric("rmse", rmse, "numbers", "min"),
        Metric("r2", r2, "numbers", "max"),
    )
}
TOP = re.compile(r"top([1-9]\d{0,4})")
OF_EVALUATE = ("schema", "model", "data", "samples")  # beside metrics, in one JSON object
KNOWN = f"accuracy, {', '.join(list(METRICS)[1:])}, top5 (or another number)"


def resolve(given: Any, where: str) -> tuple[Metric, ...]:
    """Resolve names and functions, one or several, to metrics. Raises ModelError."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found: dict[tuple[str, str], Metric] = {}
    for each in several:
        metric = each if isinstance(each, Metric) else _metric(each, where)
        if (metric.name, metric.output) in found:
            raise ModelError(f"{where}: two metrics are called {metric.name!r}; leave one out")
        found[metric.name, metric.output] = metric
    return tuple(found.values())


def _metric(given: Any, where: str) -> Metric:
    if isinstance(given, str):
        name = "acc" if given == "accuracy" else given
        if name in METRICS:
            return METRICS[name]
        if found := TOP.fullmatch(name):
            return Metric(name, top(int(found[1])), "answers", "max")
        hint = mistakes.suggest(given, ["accuracy", *METRICS], mistakes.METRICS, 0.5)
        raise ModelError(
            f"{where}: unknown metric {given!r}; {hint}known: {KNOWN}, or pass a function "
            f"f(y_true, y_pred)"
        )
    name = getattr(given, "__name__", "")
    if not mistakes.is_function(given):
        raise ModelError(
            f'{where}: a metric is a name, as "f1", or a function f(y_true, y_pred); got {given!r}'
        )
    is_known = name == "loss" or name in METRICS or TOP.fullmatch(name)
    if is_known or name in OF_EVALUATE or not name.isidentifier():
        taken = f'; "{name}" is that of one of horn\'s, val_{name}' if is_known else ""
        if name in OF_EVALUATE:
            taken = f'; horn evaluate --json has "{name}" already'
        raise ModelError(
            f"{where}: {given!r} needs a name of its own, by which its column is called{taken}: "
            f"write it as  def of_mine(y_true, y_pred): ..."
        )
    texts.keep(given)
    return Metric(name, given)


# scoring


def score(
    metric: Metric, network: Network, data: Dataset, target: str | None, outputs: Array
) -> float:
    """Compute a metric over a whole data set; a named metric is NaN where an output is. outputs (n,
    n_outputs). A user's function gets views that cannot be written. Raises ModelError: it does not
    fit, or writes.
    """
    y = _read(data, outputs.dtype) if target == "input" else data.y
    assert y is not None
    outputs, y = by_step(outputs, y, data.lengths)
    # a NaN is neither above nor below 0.5: it would count as a class, or r2 be 1
    if metric.reads and np.isnan(outputs).any():
        return float("nan")
    if metric.reads == "answers":
        kind = answer_kind(network, target, y)
        assert kind is not None, "check comes before"
        return float(metric.f(kind, y, outputs))
    if metric.reads == "numbers":
        wide = outputs.astype(np.float64)
        return float(metric.f(y.reshape(outputs.shape).astype(np.float64), wide))
    outputs = outputs.reshape(y.shape) if outputs.shape[1] == 1 else outputs
    try:
        found = metric.f(_unwritable(y), _unwritable(outputs))
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise ModelError(
            f"metric {metric.name}: writes into what it measures ({error}): y_true is the data's "
            f"own array, and other metrics get the same y_pred; write  y_true = y_true.copy()  "
            f"first, or make new arrays, as  y_true - y_true.mean()  instead of  y_true -= ..."
        ) from error
    if np.ndim(found) != 0 or not np.isrealobj(found):
        shape = np.shape(found)
        got = f"an array of shape {shape}" if shape else repr(found)
        raise ModelError(
            f"metric {metric.name}: returns {got:.80}, but one number is expected, as return "
            f"float(...)"
        )
    return float(found)


def _unwritable(array: Array) -> Array:
    """A view: y_true may be the user's own array, which training reads."""
    view = array.view()
    view.flags.writeable = False
    return view


def _read(data: Dataset, dtype: Any) -> Array:
    return data.read(np.arange(len(data)), np.empty(data.x.shape, dtype))


def check(
    metrics: Iterable[Metric], network: Network, data: Dataset, target: str | None, where: str
) -> None:
    """Raise ModelError unless the metrics fit a network's outputs and the targets of a data set.
    where : the name of the data in messages. Runs no network.
    """
    metrics, last = list(metrics), network.last
    if not metrics:
        return
    if last.loss is None or target is None:
        raise ModelError(
            f"metrics compare outputs with targets, but {last.name} has no loss; give net.output "
            f'one, as loss="squared_error", or leave {metrics[0].name!r} out'
        )
    kind = checked_answer_kind(network, data, target)
    is_of_labels = data.has_labels and last.size > 1
    for metric in metrics:
        said = f"metric {metric.name!r} does not fit {last.name} ({last.activation_name}) and "
        if metric.reads == "answers" and kind is None:
            raise ModelError(f"{said}the targets of {where}: {_why_none(network, data, target)}")
        if TOP.fullmatch(metric.name) and kind not in ("label", "one-hot"):
            raise ModelError(f"{said}the targets of {where}: it is for classes, one per sample")
        if metric.reads == "numbers" and target != "input" and is_of_labels:
            raise ModelError(
                f"{said}the labels of {where}: it compares numbers, and classes are names; take "
                f'"accuracy" or "f1", or learn numbers with y.reshape(-1, 1) and output(1)'
            )
        if not metric.reads:
            _try(metric, network, data, target, where)


def check_defined(
    metrics: Iterable[Metric], network: Network, data: Dataset, target: str | None, where: str
) -> None:
    """Raise ModelError if auc is undefined: a class has no sample in the data set, or all."""
    kind = checked_answer_kind(network, data, target)
    if kind is None or "auc" not in [metric.name for metric in metrics]:
        return
    assert data.y is not None
    outputs = np.zeros((len(data), *network.answers))
    outputs, y = by_step(outputs, data.y, data.lengths)
    true, _ = _columns(kind, y, outputs)
    count = true.sum(axis=0)
    if len(bad := np.flatnonzero((count == 0) | (count == len(true)))):
        how = "no" if count[bad[0]] == 0 else "only"
        raise ModelError(
            f"metric 'auc' compares the samples of a class with the others, but {where} has {how} "
            f"samples of class {1 if kind == 'side' else bad[0]}; hold out more, or take 'f1'"
        )


def _why_none(network: Network, data: Dataset, target: str | None) -> str:
    kind = answer_kind(network, target, data.y)
    if target == "input":
        return 'with target="input" they are numbers; take "mae", "rmse" or "r2"'
    if kind is None:
        return (
            'one output that is no sigmoid is a number; take "mae", "rmse" or "r2", or give it '
            'activation="sigmoid"'
        )
    if kind == "side":
        return 'they are not 0 and 1; take "mae", "rmse" or "r2"'
    if kind == "each":
        return "they are not rows of zeros and ones"
    return (
        "they are not rows with a single 1 among zeros; for several labels per sample take "
        'activation="sigmoid", loss="binary_cross_entropy"; for numbers "mae", "rmse" or "r2"'
    )


def _try(metric: Metric, network: Network, data: Dataset, target: str | None, where: str) -> None:
    """Call a user's function once, with drawn outputs, so that it fails before the first epoch."""
    few = data[:: -(-len(data) // TRIED)]
    drawn = np.random.default_rng(0).random((len(few), *network.answers), np.float32)
    if network.last.size > 1:
        drawn /= drawn.sum(axis=-1, keepdims=True)
    try:
        score(metric, network, few, target, drawn)
    except ModelError:
        raise
    except Exception as error:
        shape = None if few.y is None else few.y.shape
        raise ModelError(
            f"metric {metric.name}: tried before training on {where}, it raised "
            f"{type(error).__name__}: {error}. It gets y_true as the data have it, here {shape}, "
            f"and y_pred, what the outputs say, {drawn.shape}; of one output in y_true's shape"
        ) from error


# Metrics in files.


def to_json(metrics: Iterable[Metric], capture: SourceCapture) -> list[dict[str, Any]]:
    """The names, and the places of users' functions. Raises ModelError: one cannot be read."""
    return [
        {"name": m.name}
        | ({} if m.reads else _place(m.f, capture))
        | ({"output": m.output} if m.output else {})
        for m in metrics
    ]


def _place(f: Any, capture: SourceCapture) -> dict[str, Any]:
    """The place of a function: its name in an installed package, or else its source."""
    name = f.__name__
    module = sys.modules.get(getattr(f, "__module__", None) or "")
    file = getattr(module, "__file__", None) or ""
    is_installed = f.__module__ != "__main__" and file and not is_user_file(file)
    if is_installed and getattr(module, name, None) is f:
        return {"import": f"{f.__module__}:{name}"}
    return {"f": capture.reference(f)}


def from_json(found: Iterable[Mapping[str, Any]], code: CapturedCode) -> tuple[Metric, ...]:
    """Read the metrics that ``to_json`` wrote. Runs the source of a user's functions."""
    metrics = []
    for each in found:
        if "import" in each:
            module, _, name = str(each["import"]).partition(":")
            f = getattr(importlib.import_module(module), name)
        elif "f" in each:
            f = code.resolve(each["f"])
        else:
            known = _metric(str(each["name"]), "this file")
            metrics.append(known.of(str(each.get("output", ""))))
            continue
        if not callable(f):
            raise ModelError(f"metric {each['name']!r:.80} is no function in the saved source")
        metrics.append(Metric(str(each["name"]), f, output=str(each.get("output", ""))))
    return tuple(metrics)


def saved(metrics: Iterable[Metric], capture: SourceCapture) -> list[dict[str, Any]]:
    """The metrics as ``to_json``, without unreadable ones: a model is worth more than a metric."""
    found = []
    for metric in metrics:
        try:
            found += to_json([metric], capture)
        except ModelError as error:
            logger.warning("metric %s is not kept in the model: %s", metric.name, error)
    return found
