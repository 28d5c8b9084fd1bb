"""A trained network: predict, evaluate, save, load.

A Model is arrays and a description; ``ModelEngines`` compute its answers.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections.abc import Iterable, Iterator, KeysView, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from horn import defaults, html, mistakes, modelfile, version
from horn.answers import answer_kind
from horn.backends import in_use, is_compiled
from horn.data import Dataset, Normalization
from horn.data.arrays import as_numbers
from horn.data.checks import check_counted
from horn.data.classes import Classes, all_to_json, as_array
from horn.delays import hears_reversed
from horn.description import Description, number, rebuild, shapes
from horn.errors import DataError, ModelError, check_whole
from horn.evaluation import check_fit
from horn.initial import seen, sparse_edges
from horn.metrics import Metric
from horn.model_answers import ModelAnswers
from horn.model_engines import DESCRIBED, ModelEngines, metrics_of
from horn.model_inputs import ModelInputs
from horn.network import Network
from horn.neuron import carried
from horn.outputs import check as check_metrics
from horn.outputs import resolve as resolved
from horn.weight_matrices import as_matrix, of_matrices

if TYPE_CHECKING:
    from horn.export.program import Translation
    from horn.job import Job
    from horn.model_stream import ModelStream

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
# Those that a part of a model keeps.
KEPT_FACTS = ("name", "scale", "highest", "seed", "date", "stateful", "iteration")


class _LearnedArrays(Mapping[str, Array]):
    """A model's arrays, read-only: a missing or assigned name raises an error with the remedy.
    network : the model's, whose synapses the weights are of.
    """

    def __init__(self, kind: str, arrays: dict[str, Array], network: Network) -> None:
        self._kind, self._arrays, self.network = kind, arrays, network

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            known = ", ".join(self)
            raise mistakes.NoSuchKey(f"{name} is not among the model's {self._kind}: {known}")
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        raise mistakes.ReadOnly(
            f"model.{self._kind}[{name!r}] cannot be written; a model with other {self._kind} is "
            f"model.with_arrays({{{name!r}: array}})"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def keys(self) -> KeysView[str]:
        return self._arrays.keys()  # which shows as names: a Mapping's own keys show all numbers

    _ipython_key_completions_ = keys

    def __repr__(self) -> str:
        return repr(self._arrays)


@mistakes.teaches
class Model:
    """A network with its learned numbers. Threads may ask one at the same time: one waits for the
    other.

    network : the description. parameters : the learned arrays by name, weights (fan_out, fan_in) or
    (n_edges,), the rest (fan_out,); read-only. states : the States of the neurons, (fan_out,);
    those of sequences, ``State(per="sample")``, may be missing: each begins with its first value.
    Arrays that could still be written, or are views of such, are copied. facts : its provenance:
    iteration, seed, data, metrics, date. metrics : the measurements of ``evaluate`` beside the
    loss, as in Job. backend : the computing engine; for a network with an interpreted neuron always
    "python". classes : the labels, None if they are whole numbers. normalization : of each feature,
    applied to all inputs. feature_names : the names of the data's columns, () if unknown: the
    columns of tables are found by them.

    Raises
    ------
    ModelError : an array is missing or has another shape than the network says. DataError : it
    holds no numbers.
    """

    def __init__(
        self,
        network: Network,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array] | None = None,
        *,
        dtype: str = "float32",
        target: str | None = "labels",
        backend: str = defaults.BACKEND,
        threads: int | None = None,
        facts: Mapping[str, Any] | None = None,
        code: Description | None = None,
        metrics: Iterable[Metric] = (),
        classes: Classes | Mapping[str, Classes | None] | None = None,
        normalization: Normalization | None = None,
        feature_names: tuple[str, ...] = (),
    ) -> None:
        if not isinstance(network, Network):
            raise ModelError(
                f"Model: the first argument is a horn.Network, got {mistakes.shown(network)}; a "
                "model with other arrays is model.with_arrays({name: array})"
            )
        if dtype not in ("float32", "float64"):
            raise ModelError(f'Model: dtype must be "float32" or "float64", got {dtype!r}')
        if threads is not None:
            check_whole("Model: threads", threads, 1)
        if network.is_of_model and facts is None:  # horn itself gives them
            logger.warning(
                "Model: of another model the network alone is taken, not its normalization, "
                "classes and names of features; model.with_arrays({name: array}) has them all"
            )
        self.network = network.of_model()
        self.classes, self.normalization = classes, normalization
        self.feature_names = feature_names
        self.dtype, self.target, self.threads = dtype, target, threads
        self.backend = in_use(backend, network)
        self.facts: dict[str, Any] = dict(facts or {})
        self._parameters = _frozen(parameters, network, "parameter", dtype)
        states = _of_sequences(network, states or {}, dtype)
        self._states = _frozen(states, network, "state", dtype)
        self._code = code
        self._engines = ModelEngines(
            self.network, self._parameters, self._states, dtype, target, self.backend, threads,
            self.facts, code, tuple(metrics),
        )  # fmt: skip
        of_data = classes, normalization, feature_names
        self._inputs = ModelInputs(self.network, dtype, self.facts, *of_data)
        self._answers = ModelAnswers(
            self.network, dtype, target, self.facts, classes, self._inputs, self._engines
        )

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The learned arrays by name; read-only. A model with others: ``with_arrays``."""
        return _LearnedArrays("parameters", self._parameters, self.network)

    @property
    def states(self) -> Mapping[str, Array]:
        """The States of the neurons between batches, by name; read-only."""
        return _LearnedArrays("states", self._states, self.network)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The measurements of ``evaluate`` beside the loss, as it learned."""
        return self._engines.metrics

    @property
    def classes_(self) -> Array | dict[str, Array | None] | None:
        """The labels in the order of the outputs, as scikit-learn calls them; None if they are
        whole numbers, which are the outputs' own. For several outputs a dict by their names.
        """
        if isinstance(self.classes, Mapping):
            return {k: None if v is None else as_array(v) for k, v in self.classes.items()}
        return None if self.classes is None else as_array(self.classes)

    @mistakes.teaches
    def with_arrays(self, arrays: Mapping[str, Array]) -> Model:
        """A model that has these parameters and States, by name, and is this one otherwise: its
        neurons as it learned, its other arrays, normalization, classes, type and engine. Weights
        may be a scipy.sparse matrix, as ``matrix`` gives it.

        Raises
        ------
        ModelError : an array has no such place in the network, or another shape.
        """
        if not isinstance(arrays, Mapping):
            raise ModelError(
                "with_arrays takes a dict of arrays by name, as {'layer1.bias': array}; got "
                f"{mistakes.shown(arrays)}"
            )
        engines, states = self._engines, self._states
        network = engines.as_learned()
        arrays = of_matrices(network, arrays, "with_arrays: ")
        model = self._copy(
            network,
            {**self._parameters, **{k: a for k, a in arrays.items() if k not in states}},
            {**states, **{k: a for k, a in arrays.items() if k in states}},
            # What was measured was measured of the arrays of before.
            facts={name: fact for name, fact in self.facts.items() if name != "metrics"},
        )
        model._engines.learned = engines.learned
        return model

    @mistakes.teaches
    def cut(self, layer: str) -> Model:
        """A model that ends with this layer and sends its outputs: features, an encoder. An output
        layer keeps its classes.
        """
        network = self._engines.as_learned().until(layer)
        classes, kept = self.classes, {*KEPT_FACTS}
        if isinstance(classes, Mapping):
            classes = classes.get(layer)
        elif layer == self.network.last.name:
            kept.add("answers")
        else:
            classes = None
        facts = {k: v for k, v in self.facts.items() if k in kept}
        if any(each.name == layer and self._answers.is_side(each) for each in self.network.outputs):
            facts["answers"] = "side"
        wanted = shapes(network)
        return self._copy(
            network,
            {name: self._parameters[name] for of, name in wanted if of == "parameter"},
            {name: self._states[name] for of, name in wanted if of == "state"},
            target=None,
            facts=facts,
            code=Description.of(network) if self._code else None,
            metrics=(),
            classes=classes,
        )

    def _copy(
        self,
        network: Network,
        parameters: Mapping[str, Array],
        states: Mapping[str, Array],
        **changes: Any,
    ) -> Model:
        """A model of these arrays that is this one otherwise. changes : keywords of ``Model``."""
        mine: dict[str, Any] = {
            "dtype": self.dtype, "target": self.target, "backend": self.backend,
            "threads": self.threads, "facts": self.facts, "code": self._code,
            "metrics": self.metrics, "classes": self.classes,
            "normalization": self.normalization, "feature_names": self.feature_names,
        }  # fmt: skip
        return Model(network, parameters, states, **(mine | changes))

    def matrix(self, name: str) -> Any:
        """The weights of a sparse layer, of windows or any other as a scipy.sparse.csr_array
        (receivers, sources), with an entry for each synapse. name : of the array of weights, as in
        ``parameters``; where several links share it, the first of them.

        ModelError : there are no weights of that name, or scipy is not installed.
        """
        return as_matrix(self.network, self.parameters, name)

    @mistakes.teaches
    def activations(self, x: Any, layer: str) -> Any:
        """The outputs of a layer for each sample: (n, size), in inference. x : as for
        ``predict``.
        """
        engines = self._engines
        with engines.lock:
            if not isinstance(layer, str) or layer not in engines.cuts:
                engines.cuts[layer] = self.cut(layer)
            model = engines.cuts[layer]
        found: Array = model.predict(x)
        return found

    def record(self, x: Any, *names: str) -> dict[str, Any]:
        """The outputs of layers, and States, at each step of some sequences: by name (n, steps,
        size), where some end early lists of (steps, size); of none (0, steps, size), of one that is
        given alone (steps, size). In inference, with the draws of ``predict``, and step by step:
        for looking at, not for many samples.

        x : as for ``predict``. names : layers, and "layer.state" of each State, also in a list;
        without any, all of these. A SynapseState, by its name in ``initial_states`` of the network,
        is (n, steps, n_synapses), in the order of the weights.

        Raises
        ------
        ModelError : there is no such layer or State, it is a model of samples, or a layer hears
        another from the end.
        """
        from horn.model_stream import recorded

        if not self.network.steps:
            raise ModelError(
                "record is for a model of sequences, net.input(n, steps=...); "
                "model.activations(x, layer) tells what a layer sends for each sample"
            )
        if hears_reversed(self.network.layers):
            raise ModelError(
                "record goes step by step, but a layer of this model hears another from the end of "
                "the sequence: model.activations(x, layer) tells what a layer sends, at each step "
                "if the model answers each, else at the last"
            )
        if len(names) == 1 and isinstance(names[0], (list, tuple)):
            names = tuple(names[0])
        x = self._inputs.sequences(x)
        if (one := _one_of(x, self._least_axes(x))) is not None:  # of no sequences
            return {name: np.array(each)[:0] for name, each in self.record(one, *names).items()}
        data = self._inputs.whole(x) if self._inputs.is_long(x) else self._inputs.dataset(x, "x")
        found = recorded(self.stream(), data, names)
        if data.lengths is not None:
            return dict(found)
        is_one = self._inputs.is_one_sequence(x)
        return {name: np.array(each[0] if is_one else each) for name, each in found.items()}

    @mistakes.teaches
    def __call__(self, x: Any, **how: Any) -> Any:
        """Call ``predict``."""
        return self.predict(x, **how)

    @mistakes.teaches
    def predict(self, x: Any, *, labels: bool = False, layer: str | None = None) -> Any:
        """The outputs of the last layer for each sample: (n, n_outputs), or (n,) labels; for
        sequences with an answer at each step (n, steps, n_outputs), or (n, steps) labels; where
        some end early a list of such, one of each sequence.

        x : (n, features), (n, steps, features), a list of sequences of any lengths, or a dataset.
        Bytes are scaled as the bytes of its training data were. Sequences may have more steps than
        net.input(n, steps=...), and one may be given alone, (steps, features): they are heard in
        pieces, from beginning to end. For features the shape of the input may stand; of an input
        (1, c) an array (k, 1, c) is one sequence of k steps, and x[:, None] is k of one step.
        labels : the class of the largest output: its label, or its number. A single output that
        tells two classes apart gives the second if it is above 0.5. Of several outputs those
        that tell no classes apart keep their numbers; one alone is refused. layer : the outputs of
        this layer instead.
        """
        given, x = x, self._inputs.listed(x)
        lengths = self._inputs.lengths_of_list(x)
        if layer is None and lengths is not None:
            return self._answers.of_list(x, lengths, labels)
        if hears_reversed(self.network.layers) and self._inputs.is_short(x):
            found = self.predict([x], labels=labels, layer=layer)  # in no pieces
            return {k: a[0] for k, a in found.items()} if isinstance(found, dict) else found[0]
        if (one := _one_of(x, self._least_axes(x))) is not None:  # of no samples
            found = self.predict(one, labels=labels, layer=layer)
            return {k: a[:0] for k, a in found.items()} if isinstance(found, dict) else found[:0]
        if layer is not None:
            found = self.activations(given, layer)
            own = [output for output in self.network.outputs if output.name == layer and labels]
            if own and self.network.has_several:
                return self._answers.labels_of_one(own[0], found)
            if own:
                return self.labels_of(found)
            if isinstance(found, list):
                return [one.argmax(axis=-1) if labels else one for one in found]
            return found.argmax(axis=-1) if labels else found
        return self._answers.of(x, labels)

    def _least_axes(self, x: Any) -> int:
        """The axes of x that is one sample; steps side by side in rows are none of a sequence."""
        net = self.network
        is_flat = net.n_features > net.n_inputs and getattr(x, "shape", ())[1:] == (net.n_features,)
        return 2 if net.steps and not is_flat else 1

    @mistakes.teaches
    def labels_of(self, outputs: Any) -> Any:
        """The labels that ``predict(labels=True)`` returns, from the outputs of the last layer
        (..., n_outputs); by name for several outputs.
        """
        return self._answers.labels(outputs)

    def stream(self) -> ModelStream:
        """An object that answers a sequence as it comes, of any length: a ``ModelStream``.

        Raises
        ------
        ModelError : it is a model of samples.
        """
        from horn.backends import Setup
        from horn.model_stream import ModelStream

        if hears_reversed(self.network.layers):
            raise ModelError(
                "stream: a layer of this model hears another from the end of the sequence, which "
                "nobody knows before it is there; use predict"
            )
        engines, scale = self._engines, self.facts.get("scale")
        network = engines.as_learned()
        setup = Setup(network, None, self.target, 1, self.dtype, self.threads)
        is_read = not is_compiled(self.backend, network)  # whenever it computes
        return ModelStream(setup, self.backend, self._parameters, self._states,
                      updates=engines.updates, scale=None if scale is None else float(scale),
                      normalization=self.normalization, feature_names=self.feature_names,
                      warn_of_units=self._inputs.warn_of_units,
                      is_current=(lambda: engines.as_learned() is network) if is_read else None,
                      )  # fmt: skip

    @mistakes.teaches
    def generate(self, prefix: str, n: int, *, temperature: float = 1.0, seed: int = 0) -> str:
        """Write a text that begins with ``prefix`` and goes on for n characters, each drawn with
        the probabilities that a model of ``horn.data.text`` gives after those before it.

        temperature : below 1 likely characters are likelier than the model says, 0 takes the
        likeliest. seed : of the draws.
        """
        from horn.model_stream import written

        letters = self.classes
        if self.network.has_several:
            raise ModelError(
                f"generate goes on with the answers of one output, but this model has "
                f"{', '.join(self.network.columns)}; go on with model.stream(), which answers each"
            )
        if letters is None or not all(isinstance(k, str) and len(k) == 1 for k in letters):
            raise ModelError(
                "generate is for a model that learned a text, from horn.data.text: its classes are "
                "characters"
            )
        if not self.network.n_inputs == self.network.last.size == len(letters):
            raise ModelError(
                f"generate: the network hears {self.network.n_inputs} numbers and answers "
                f"{self.network.last.size}, but there are {len(letters)} characters"
            )
        return written(self.stream(), self._answers.only_classes, prefix, n, temperature, seed)

    @mistakes.teaches
    def evaluate(self, x: Any, y: Any = None, *, metrics: Any = None) -> dict[str, float]:
        """The mean loss over the samples, the fraction of right answers, and metrics.

        metrics : as in Job; by default those of the job that trained it. Returns {"loss", "acc",
        ...}; "acc" exists where an answer is right or wrong: integer labels, one-hot rows, 0 and 1
        of one sigmoid output, rows of several labels (horn/answers.py). Where each step is
        answered x may be one sequence, (steps, features), or several of one length with more steps
        than net.input(n, steps=...); they go on from piece to piece. A model of a stateful job is
        judged as there: without steps at their end that fill no piece. With several outputs "loss"
        is the total, with the weights of ``net.output`` and ``net.loss``, and "digit_loss",
        "digit_acc" ... are each output's own, without weights; y is a dict by their names, or a
        tuple.
        """
        data = self._measurable(x, y, "evaluate")
        if not all(metric.reads for metric in self.metrics):  # a user's function, read when it runs
            self._engines.as_learned()
        wanted = self.metrics if metrics is None else resolved(metrics, self.network, "evaluate")
        check_metrics(wanted, self.network, data, self.target, "the data")
        return self._engines.measured(data, wanted)

    def _measurable(self, x: Any, y: Any, where: str) -> Dataset:
        """x and y, or x with its targets, as the data that ``evaluate`` measures. where : who asks.

        Raises
        ------
        DataError, ModelError : this model cannot be measured on them.
        """
        if not getattr(x, "is_nested", False) and getattr(x, "shape", ())[:1] == (0,):
            raise DataError(
                f"{where}: x has shape {x.shape}: of no samples there is nothing to measure; pass "
                "at least one"
            )
        data = self._inputs.dataset((x, y) if y is not None else x, "data")
        if self.target == "labels":
            data = data.of_outputs(self.network.compared, self.network.has_several)
            data = data.with_classes(self.classes, "this model")
        check_counted(data)
        check_fit(self.network, data, self.target)
        return data

    def _judged(self, x: Any, y: Any, where: str) -> tuple[Dataset, Array]:
        """The data of ``_measurable``, and the outputs by which ``evaluate`` judges them."""
        data = self._measurable(x, y, where)
        return data, self._engines.judged(data)

    def summary(self) -> str:
        """A table of the layers: neuron class, units, parameters, how they run. For a network with
        windows, also the part of the input that a neuron sees, and the multiplications and
        additions of one sample.
        """
        from horn import summary

        rows = summary.layers(self.network, self.backend)
        columns = {
            "layer": [row.name for row in rows],
            "neuron": [row.neuron for row in rows],
            "units": [row.extent for row in rows],
            "parameters": [f"{row.parameters:,}" for row in rows],
        }
        if any(row.shape for row in rows):
            columns["sees"] = [row.sees for row in rows]
            columns["multiply-adds"] = [f"{row.multiply_adds:,}" for row in rows]
        columns["runs as"] = [row.runs_as for row in rows]
        widths = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
        to_the_right = ("units", "parameters", "multiply-adds")
        return "\n".join(
            "  ".join(
                cell.rjust(widths[name]) if name in to_the_right else cell.ljust(widths[name])
                for name, cell in zip(columns, line, strict=True)
            ).rstrip()
            for line in (tuple(columns), *zip(*columns.values(), strict=True))
        )

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise mistakes.no_attribute("a horn.Model", name, dir(self))

    @mistakes.teaches
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, with the source of its neurons. Never half a file.

        Raises
        ------
        ModelError : the place cannot be written, or the source of a neuron cannot be read.
        """
        write(self, path)

    @classmethod
    @mistakes.teaches
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backend: str = defaults.BACKEND,
        threads: int | None = None,
    ) -> Model:
        """A model from its file alone. Runs the source in the file: load only what you trust.

        backend : the computing engine, as of ``Model``. threads : the most that it computes with;
        None: the cores.

        Raises
        ------
        NotFound : no such file.
        ModelError : the file is damaged or foreign, or its source does not run here.
        """
        manifest, arrays = modelfile.read(path)
        with modelfile.understood(path):
            network = rebuild(manifest, arrays, str(path))
            if len(network.layers) < 2:
                raise ValueError(f"{len(network.layers)} layers, but at least 2 were expected")
            every = shapes(network)
            states = {n: arrays[f"state/{n}"] for kind, n in every if kind == "state"}
            parameters = {n: arrays[n] for kind, n in every if kind == "parameter"}
            facts = manifest["facts"]
            number(facts.get("iteration", 0), int, 0, 2**62)
            for name in ("scale", "highest"):
                if facts.get(name) is not None:
                    number(facts[name], float, -math.inf, math.inf)
            _measured(facts)
            code = Description({k: manifest[k] for k in DESCRIBED if k in manifest})
            classes, normalization, names = seen(manifest)
            model = cls(
                network,
                _given_away(parameters),
                _given_away(states),
                dtype=manifest["dtype"],
                target=manifest["target"],
                backend=backend,
                threads=threads,
                facts=facts,
                code=code,
                metrics=metrics_of(manifest, str(path)),
                classes=classes,
                normalization=normalization,
                feature_names=names,
            )
            model._engines.learned = model.network
            return model

    @mistakes.teaches
    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the computation of ``predict`` as an ONNX file: "x" (batch, features) -> "y"
        (batch, outputs), in the type of the model; for sequences "x" (batch, steps, features), with
        any number of steps, and "y" (batch, steps, outputs) if each is answered. Needs the extra
        ``onnx``.

        Raises
        ------
        CompileError : names what ONNX cannot express, as a neuron that draws at prediction.
        ModelError : the place is no .onnx or cannot be written, or onnx is not installed.
        """
        from horn.export import onnx

        said = {k: f"{self.facts[k]}" for k in ("name", "data", "scale") if self.facts.get(k)}
        onnx.export(self._translation(), path, self.summary(), said)

    def to_torch(self) -> Any:
        """A torch.nn.Module that computes what ``predict`` does, (batch, features) -> (batch,
        outputs) in the type of the model, with the learned arrays as its Parameters; of images also
        (batch, height, width, channels), of sequences (batch, steps, features), as for ``export``.
        Needs PyTorch.

        Raises
        ------
        CompileError : as for ``export``. ModelError : PyTorch is not installed.
        """
        from horn.export import torch

        return torch.module(self._translation())

    def _translation(self) -> Translation[Any]:
        from horn.export.program import Translation

        arrays = {**self._parameters, **self._states}
        network, updates = self._engines.as_learned(), self._engines.updates
        return Translation(network, arrays, self.dtype, updates, self.normalization)

    def is_one_sequence(self, x: Any) -> bool:
        """Whether ``predict`` takes x as one sequence, whose rows are its steps."""
        return self._inputs.is_one_sequence(self._inputs.sequences(x))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes of its file, which are checked when they are read."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="horn-model-") as folder:
            self.save(path := Path(folder) / "model.horn")
            return _from_bytes, (path.read_bytes(), self.backend, self.threads)

    def _repr_html_(self) -> str:
        known = {name: self.facts.get(name) for name in ("data", "iteration", "epochs", "date")}
        return self.network._repr_html_() + html.facts(known | _measured(self.facts))

    def __repr__(self) -> str:
        sizes = "-".join(str(layer.size) for layer in self.network.layers)
        return f"<Model {sizes}, {sum(a.size for a in self._parameters.values()):,} parameters>"


def _measured(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The measurements of a model, by the data and the metric: "test acc"."""
    every = (facts.get("metrics") or {}).items()
    return {f"{where} {name}": value for where, values in every for name, value in values.items()}


def _one_of(x: Any, least: int) -> Any:
    """One sample of zeros for an array of none, or for several inputs without any, by name; else
    None. least : the axes of a single sample, or sequence, which may be empty itself.
    """
    if isinstance(x, Mapping):
        each = {name: _one_of(array, least) for name, array in x.items()}
        return each if each and all(array is not None for array in each.values()) else None
    shape = getattr(x, "shape", ())
    return np.zeros((1, *shape[1:])) if shape[:1] == (0,) and len(shape) > least else None


def _from_bytes(content: bytes, backend: str, threads: int | None) -> Model:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="horn-model-") as folder:
        (path := Path(folder) / "model.horn").write_bytes(content)
        return Model.load(path, backend=backend, threads=threads)


def _frozen(
    arrays: Mapping[str, Array], network: Network, kind: str, dtype: str
) -> dict[str, Array]:
    expected = {name: shape for (of, name), shape in shapes(network).items() if of == kind}
    absent, more = sorted({*expected} - {*arrays}), sorted({*arrays} - {*expected})
    if absent or more:
        said = [f"{', '.join(absent)} missing"] if absent else []
        said += [f"{', '.join(more)} unknown to it"] if more else []
        raise ModelError(f"{kind}s do not fit the network: {'; '.join(said)}")
    found = {}
    for name, shape in expected.items():
        array = np.ascontiguousarray(as_numbers(arrays[name], f"{kind} {name}"), dtype)
        if array.shape != shape:
            raise ModelError(f"{name} has shape {array.shape}, but the network says {shape}")
        if _can_be_written(array) and np.may_share_memory(array, arrays[name]):
            array = array.copy()  # who gave it may go on writing
        array = array.view()
        array.flags.writeable = False
        found[name] = array
    return found


def _can_be_written(array: Any) -> bool:
    """Whether an array, or another that it is a view of, can be written."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    try:
        return array is not None and not memoryview(array).readonly
    except TypeError:  # memory of another library
        return True


def _given_away(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays that nobody else writes, so that a model needs no copies of them."""
    return {name: np.asarray(array.data.toreadonly()) for name, array in arrays.items()}


def _of_sequences(network: Network, states: Mapping[str, Array], dtype: str) -> Mapping[str, Array]:
    """The states, with those that each sequence begins anew: nothing is learned in them."""
    names = {f"{x.name}.{name}" for x in network.layers[1:] for name in carried(x.neuron)}
    if names <= set(states):
        return states
    first = network.initial_states(np.dtype(dtype))
    return {**{name: first[name] for name in names if name in first}, **states}


def write(model: Model, path: str | os.PathLike[str], keeps: bool = True) -> None:
    """Save a model. keeps : as of ``modelfile.write``."""
    code = model._code or Description.of(model.network, model.metrics)
    if code.problem:
        raise ModelError(code.problem)
    states = {f"state/{name}": value for name, value in model._states.items()}
    arrays = {**model._parameters, **states, **sparse_edges(model.network)}
    manifest = {
        "horn": version.installed(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "dtype": model.dtype,
        "target": model.target,
        "facts": model.facts,
        **code.manifest,
    }
    if model.classes is not None:
        manifest["classes"] = all_to_json(model.classes)
    if model.normalization is not None:
        manifest["normalization"] = model.normalization.as_json()
    if model.feature_names:
        manifest["feature_names"] = list(model.feature_names)
    modelfile.write(path, manifest, arrays, keeps)


def model_of(
    job: Job, parameters: Mapping[str, Array], states: Mapping[str, Array],
    before: Model | None = None, **settings: Any,
) -> Model:  # fmt: skip
    """The model of a job that has learned these arrays. before : the model that went on learning,
    whose source and compiled engine it takes. settings : further ones of ``Model``.
    """
    data = job.data
    if before is not None:
        settings["code"] = before._code
    model = Model(
        job.network, _given_away(parameters), _given_away(states),
        dtype=job.dtype, target=job.target, metrics=job.metrics,
        classes=data.all_classes if job.target == "labels" else None,
        normalization=data.normalization, feature_names=data.feature_names, **settings,
    )  # fmt: skip
    if before is not None:
        model._engines.take(before._engines)
    return model


def facts_of(
    job: Job,
    backend: str,
    *,
    iteration: int,
    n_epochs: int,
    seconds: float,
    best_epoch: int | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """The ``facts`` of a model of a job: its provenance, and what its answers depend on."""
    from horn import summary  # tasks need none

    return {
        "name": job.name,
        "data": job.data.name,
        "samples": len(job.data),
        **job.data.units,
        "seed": job.network.seed,
        "stateful": job.stateful,
        "answers": answer_kind(job.network, job.target, getattr(job.data, "y", None)),
        "optimizer": summary.in_words(job.optimizer),
        "batch_size": job.batch_size,
        "epochs": n_epochs,
        "iteration": iteration,
        "best_epoch": best_epoch,
        "metrics": metrics or {},
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 3),
        "backend": in_use(backend, job.network),
        "host": platform.machine(),
    }
