"""Job: a network, its data, and how to train it. Frozen; it never runs anything."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from horn import html, mistakes
from horn.aggregates import COLUMNS, Aggregate
from horn.callbacks import Callback, as_callbacks
from horn.data import Augment
from horn.data.augment import AugmentedBatch
from horn.data.checks import check_weights
from horn.data.classes import check_kept
from horn.data.stream import Stream, as_stream, is_stream
from horn.delays import MAX_STEPS, hears_reversed
from horn.errors import JobError, ModelError, is_finite, is_whole
from horn.initial import beginning
from horn.job_checks import (
    aggregates_of,
    check_fits,
    check_names_of_aggregates,
    check_slots,
    check_targets_of,
    frozen_of,
    no_optimizer,
)
from horn.job_data import DataPreparation, GivenData
from horn.layers import Layer
from horn.network import Network
from horn.optimizers import SGD, Optimizer
from horn.outputs import better, has_answers, metrics_for, resolve
from horn.weights import weighed

# The fields by which the data of a job are prepared.
OF_DATA = frozenset(
    ("data", "validation", "test", "initial", "normalize", "sample_weight", "class_weight")
)


@mistakes.teaches
@dataclass(frozen=True)
class EarlyStopping:
    """Stop when ``monitor`` has not improved by more than ``min_delta`` for ``patience`` epochs;
    keep the best model.

    ``monitor`` is "val_loss", "val_acc", or a metric of the job, as "val_f1". ``mode`` is the
    better direction, "min" or "max"; for the loss and for metrics with names horn knows it.
    """

    patience: int = 3
    monitor: str = "val_loss"
    min_delta: float = 0.0
    mode: str | None = None

    def __post_init__(self) -> None:
        if not str(self.monitor).startswith("val_"):
            raise ModelError(
                f'EarlyStopping: monitor must be "val_loss" or "val_acc", got {self.monitor!r}; or '
                f'"val_" and the name of a metric of the job, as "val_f1"'
            )
        if self.mode not in (None, "min", "max"):
            raise ModelError(
                f'EarlyStopping: mode is what is better, "min" or "max"; got {self.mode!r}'
            )
        if type(self.patience) is not int or self.patience < 1:
            raise ModelError(
                f"EarlyStopping: patience must be a whole number of epochs from 1, got "
                f"{self.patience!r}"
            )
        if not is_finite(self.min_delta):
            raise ModelError(
                f"EarlyStopping: min_delta must be a finite number, got {self.min_delta!r}"
            )


@mistakes.teaches
@dataclass(frozen=True, eq=False)
class Job:
    """A training job: the network, its data, and how to train it.

    network : a ``horn.Network``; horn leaves it as it is.
    data, validation : a ``horn.data`` dataset, or arrays (x, y), or a stream: an iterator, a
    function that returns one, a DataLoader of PyTorch, a ``horn.data.Stream`` (read by one process;
    validation and test streams are read whole). validation may also be a fraction of data that is
    held out.
    optimizer : what an update makes of gradients, as ``horn.Adam(0.001)``; ``horn.SGD()`` by
    default, with a learning rate of 0.1.
    batch_size : samples per update.
    epochs, iterations : the length of training; one of the two (10 epochs by default).
    target : "labels" (y), "input" (autoencoder), or None where there is no loss.
    dtype : "float32" or "float64".
    check : compare written backward methods with finite differences before the first step; it takes
    about as long as a few dozen forward passes of six samples for each layer that has one.
    early_stopping : stop and keep the best by the validation data. Without it ``keep_best`` alone
    keeps the best.
    test : data that are evaluated once, after training.
    initial : the beginning instead of drawn numbers: a ``horn.Model``, the path of a model file, or
    arrays by name. Arrays are taken by name and must have the shape of this network's; arrays that
    are missing there are drawn from the seed, further ones are not used (``initial`` names both).
    frozen : the parts that training leaves unchanged: names of layers (all that they learn:
    incoming weights, those too that they are tied to, biases, Parameters), of arrays
    ("layer2.bias"), or the layers themselves, as returned by ``net.layer``. States still change:
    they are remembered, not learned.
    name : the beginning of the job's id in a cluster; the model remembers it.
    aggregates : further measurements after each epoch: a ``horn.Aggregate`` by name, which is the
    column in ``run.history``. Measured on the samples of acc, in inference; changes no weight.
    metrics : measurements beside the loss, over all validation data after each epoch (columns
    val_f1 ...), and over test data: names (accuracy, precision, recall, f1, auc, top5, mae, mse,
    rmse, r2) or functions f(y_true, y_pred) of all targets and outputs (horn/metrics.py defines
    each). They change no weight; the model keeps them for ``evaluate``.
    normalize : every feature less its mean, divided by its standard deviation, both of ``data`` (a
    constant feature is only shifted); with "channel" mean and deviation are those of each channel
    of the input over all positions. The model keeps them and applies them to all inputs later. For
    sequences they are those of each feature over all existing steps. None: as in the model that
    ``initial`` names, else no normalization.
    callbacks : objects that training calls: ``horn.Callback`` objects, or functions of their
    context that are called after each epoch (docs/callbacks.md).
    sample_weight : (n,) numbers from 0, one for each sample of data: a factor of its loss, in the
    loss that is reported and in what is learned. The loss of a batch is the sum of weight times
    loss divided by the number of its samples, not by the sum of their weights, as in Keras. Where
    each step of sequences is judged it may be of steps: (n, steps), or a list of arrays (steps,).
    class_weight : the same by class, {label: weight} (1 for labels that are not there) or
    "balanced": n / (number of classes * samples of the class), as in scikit-learn; where each
    step is answered of steps, (n, steps). The product of both is ``job.data.weight`` then.
    Validation and test data are not weighed.
    augment : a ``horn.data.Augment``: random changes of the training images, new in every epoch.
    stateful : sequences are longer than the steps of one update: they are cut into pieces, and
    carried States and delayed outputs go on from piece to piece, without a gradient. data are one
    sequence x (steps, n), cut into ``batch_size`` lanes side by side, or several (n, steps,
    features), each with targets of each step; a new epoch begins anew. Their order is that of time.
    Validation and test data are heard as they are, each sequence from its beginning on.
    truncate : for stateful jobs, the steps of a piece; by default those of net.input(n, steps=...).
    Steps at the end of a lane that fill no piece are left out, of validation and test data, too.
    buckets : for sequences of different lengths, the number of batches whose sequences are sorted
    by length at a time, so that like lengths are in one batch, which is as long as its longest; the
    batches come in an order drawn anew in every epoch. 0: batches as they are drawn.
    recompute : for sequences, "sqrt": the values that backward reads are kept for about sqrt(T) of
    the T steps at a time, and computed again from a copy every sqrt(T) steps. Memory grows with
    sqrt(T), a step of training takes about a quarter longer, and learns the same. None: all steps
    are kept.
    """

    network: Network
    data: Any
    optimizer: Optimizer = field(default_factory=SGD)
    _: KW_ONLY
    batch_size: int = 32
    epochs: int | None = None
    iterations: int | None = None
    validation: Any = None
    test: Any = None
    target: str | None = "labels"
    dtype: str = "float32"
    check: bool = True
    early_stopping: EarlyStopping | None = None
    keep_best: bool = False
    name: str = ""
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    initial: Any = None
    frozen: Sequence[str | Layer] = ()
    metrics: Any = ()
    normalize: bool | str | None = None
    callbacks: Sequence[Callback | Callable[..., Any]] = ()
    sample_weight: Any = None
    class_weight: Any = None
    augment: Augment | None = None
    stateful: bool = False
    truncate: int | None = None
    buckets: int = 0
    recompute: str | None = None

    def __post_init__(self) -> None:
        self._check_settings()
        set_ = object.__setattr__
        set_(self, "_network", self.network)  # without the steps of pieces, and initial arrays
        self._check_sequences()
        prepare = DataPreparation(self.network, self.target, self.stateful, self.normalize)
        validation = self.validation
        begun = None if self.initial is None else beginning(self.initial, self.network)
        data: Any = self._streamed() if is_stream(self.data) else prepare.training(self.data, begun)
        whole, fraction = data, None
        if self.sample_weight is not None:
            if self.stateful and len(data) == 1:
                raise ModelError(
                    "Job: sample_weight is one number for each sequence, but the data are one; "
                    "for its steps give horn.data.Dataset(x, y, weight=...) as the data"
                )
            data = weighed(data, self.sample_weight, self.network)
        if isinstance(validation, (int, float)):
            fraction = validation
            data, validation = prepare.held_out(data, validation, self.data)
        elif validation is not None:
            validation = prepare.read(validation, data, "validation")
        test = None if self.test is None else prepare.read(self.test, data, "test")
        set_(self, "_given", GivenData.of(
            whole, data, validation, test, fraction, self.network.seed, self.sample_weight,
            self.class_weight,
        ))  # fmt: skip
        if not isinstance(data, Stream):
            data = prepare.weighed(prepare.as_seen(data, begun), self.class_weight)
            check_kept(data.all_classes, data.name)
        elif begun is not None and (begun.classes or begun.normalization):
            raise ModelError(
                "Job: the model that it begins with has names of classes, or normalizes, and a "
                "stream does neither; pass arrays, or begin with its arrays: "
                "initial=model.parameters"
            )
        else:
            prepare.check_columns(data.head, begun)
        set_(self, "sample_weight", None)  # sample_weight and class_weight are in data now
        set_(self, "class_weight", None)
        validation, test = prepare.like(validation, data), prepare.like(test, data)
        uncut = {"data": data, "validation": validation, "test": test}
        set_(self, "_uncut", uncut if self.stateful else {})
        if self.truncate is not None:
            set_(self, "truncate", int(self.truncate))
        for what, each in uncut.items():
            n_lanes, least = (self.batch_size, 2) if what == "data" else (1, 1)
            set_(self, what, prepare.in_pieces(each, self.truncate, n_lanes, what, least=least))
        self._check_augment()
        if (self.early_stopping or self.keep_best) and validation is None:
            raise ModelError(
                "Job: early stopping and keep_best need validation data; add "
                "validation=0.1 to hold out a tenth"
            )
        callbacks = as_callbacks(self.callbacks)
        set_(self, "callbacks", callbacks)
        set_(self, "aggregates", aggregates_of(self.aggregates, self.network))
        frozen, arrays = frozen_of(self.frozen, self.network)
        set_(self, "frozen", frozen)
        if self.truncate not in (None, self.network.steps):
            of_piece = self.network.of_steps(self.truncate or 0, asks_each=False)
            set_(self, "network", of_piece)
        set_(self, "network", self.network.freezing(arrays))
        set_(self, "metrics", resolve(self.metrics, self.network, "Job: metrics"))
        check_names_of_aggregates(self.aggregates, self._better)
        self._check_monitor()
        for callback in callbacks:
            callback.check(self)
        if self.epochs is None and self.iterations is None:
            set_(self, "epochs", 10)
        if begun is not None:
            set_(self, "initial", begun)
            set_(self, "network", self.network.beginning_with(begun.parameters, begun.states))

    def _check_settings(self) -> None:
        """Check each setting by itself, before the data are read. Raises ModelError."""
        if not isinstance(self.network, Network):
            remedy = ""
            if isinstance(getattr(self.network, "network", None), Network):
                remedy = "; write horn.Job(model.network, data, initial=model)"
            raise ModelError(
                "Job: the first argument is a horn.Network, got "
                f"{mistakes.shown(self.network)}{remedy}"
            )
        if not isinstance(self.optimizer, Optimizer):
            raise ModelError(no_optimizer(self.optimizer))
        check_slots(self.network, self.optimizer)
        self.network.check()
        for what in ("batch_size", "epochs", "iterations"):
            value = getattr(self, what)
            if value is None and what != "batch_size":
                continue
            if not is_whole(value, 1):
                raise ModelError(f"Job: {what} must be a whole number from 1, got {value!r}")
        if self.epochs is not None and self.iterations is not None:
            raise ModelError(
                f"Job: give epochs or iterations, not both (got {self.epochs} and "
                f"{self.iterations})"
            )
        if self.dtype not in ("float32", "float64"):
            raise ModelError(f'Job: dtype must be "float32" or "float64", got {self.dtype!r}')
        if isinstance(self.target, np.ndarray) or self.target not in ("labels", "input", None):
            raise ModelError(
                'Job: target must be "labels", "input" or None, got '
                f"{mistakes.shown(self.target)}; y is of the data, (x, y)"
            )
        if not isinstance(self.early_stopping, (EarlyStopping, type(None))):
            raise ModelError(
                f"Job: early_stopping is a horn.EarlyStopping, got {self.early_stopping!r}; write "
                "early_stopping=horn.EarlyStopping(patience=3)"
            )
        judged = [layer.name for layer in self.network.judged]
        if self.target is None and judged and (len(judged) > 1 or self.network.has_several):
            raise ModelError(
                f"Job: target=None is for a network without a loss, but this one has the losses of "
                f"{', '.join(judged)}; leave target=None out, or the losses"
            )
        if self.target == "input" and self.network.has_several:
            raise ModelError(
                f'Job: target="input" is of one output, but the network has '
                f"{', '.join(self.network.columns)}; give each its targets by name, (x, {{name: "
                "x}), or compare a layer with the input: net.loss(layer, net_input, "
                '"squared_error")'
            )

    @property
    def n_iterations(self) -> int:
        """Updates in the whole job."""
        if self.iterations is not None:
            return self.iterations
        assert self.epochs is not None
        return self.epochs * self.iterations_per_epoch

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the history that may be measured, but for those that callbacks add: of
        several outputs those that have a value; of one, acc is None in each row without answers.
        """
        net, other = self.network, self.validation is not None
        found = (*COLUMNS, *self.aggregates, *self._better, *self._better_in_training)
        without = ("acc", "val_acc") if net.has_several else ()
        return tuple(
            dict.fromkeys(
                c for c in found if c not in without and (other or not c.startswith("val_"))
            )
        )

    @property
    def iterations_per_epoch(self) -> int:
        """Updates per epoch; the last batch of an epoch may be smaller."""
        pieces = 1 if isinstance(self.data, Stream) else self.data.pieces
        return -(-(len(self.data) // pieces) // self.batch_size) * pieces

    @property
    def most_rows(self) -> int:
        """The number of rows of the largest batch."""
        n = len(self.data) if isinstance(self.data, Stream) else len(self.data) // self.data.pieces
        return int(min(self.batch_size, n))

    @property
    def looks_at_every(self) -> int:
        """The stride of the training samples that ``acc`` and aggregates are measured on after an
        epoch: a twentieth of the samples, 100 to 2,000.
        """
        n = len(self.data)
        return -(-n // min(max(n // 20, 100), 2000))

    @property
    def looked_pieces(self) -> int:
        """The pieces of each sequence of a stateful job that acc is measured on, from its start."""
        pieces: int = self.data.pieces
        return -(-pieces // self.looks_at_every)

    @property
    def acc_is_of(self) -> str:
        """The sentence that names the samples of ``acc``; "" where these are all training data."""
        n, every = len(self.data), self.looks_at_every
        if self.stateful and every > 1:
            n_looked = n // self.data.pieces * self.looked_pieces
            return (
                f"acc is of {n_looked:,} of the {n:,} training pieces, the first of each sequence, "
                "after the epoch and without dropout; loss is of all"
            )
        if every == 1 or not has_answers(self.network, self.data, self.target):
            return ""
        if isinstance(self.data, Stream):
            return "acc is not measured on the training samples of a stream; loss is of all"
        return (
            f"acc is of {-(-n // every):,} of the {n:,} training samples, after the epoch and "
            f"without dropout; loss is of all"
        )

    def score(self, row: Mapping[str, Any]) -> float:
        """The score of an epoch's row by which the best model is selected: less is better, and an
        undefined value is worst.
        """
        stopping = self.early_stopping or EarlyStopping()
        value = row[stopping.monitor]
        if value is None or math.isnan(value):
            return float("inf")
        mode = stopping.mode or self.better(stopping.monitor)
        return -value if mode == "max" else value  # type: ignore[no-any-return]

    def better(self, column: str) -> str:
        """The better direction of a column of the history, "min" or "max". Of a column of the
        user's own (an aggregate, a metric, a callback's) by its name: "min" where that speaks of a
        loss or an error.
        """
        known = {"seconds": "min"} | self._better_in_training | self._better
        lower = any(word in column for word in ("loss", "error", "mae", "mse"))
        return known.get(column) or ("min" if lower else "max")

    @property
    def _better(self) -> dict[str, str]:
        """The columns of the validation data (``horn.outputs.better``)."""
        data = self.data if self.validation is None else self.validation
        return better(self.network, self.metrics, data, self.target)

    @property
    def _better_in_training(self) -> dict[str, str]:
        """The losses and accuracies of the training data, likewise."""
        found = better(self.network, (), self.data, self.target)
        return {name.removeprefix("val_"): mode for name, mode in found.items()}

    def _check_monitor(self) -> None:
        stopping = self.early_stopping
        if stopping is None:
            return
        names = self._better
        if stopping.monitor not in names:
            missing = stopping.monitor.removeprefix("val_")
            asked = metrics_for(missing, self.network, self.validation, self.target)
            add = "" if asked is None else f"add metrics={asked!r}, or "
            raise ModelError(
                f"Job: early stopping watches {stopping.monitor!r}, but what is measured is "
                f"{', '.join(names)}; {add}watch one of them"
            )
        if not (stopping.mode or names[stopping.monitor]):
            raise ModelError(
                f"Job: early stopping watches {stopping.monitor!r}, a function of yours; say what "
                f'is better: EarlyStopping(monitor={stopping.monitor!r}, mode="max") or mode="min"'
            )

    def check_data(self) -> None:
        """Compare the data with the network. Raises DataError with the place and the remedy."""
        for what in ("data", "validation", "test"):
            data = getattr(self, what)
            if data is not None:
                check_fits(self.network, self.target, self.dtype, data, what)
        if not isinstance(self.data, Stream):
            check_weights(self.data, self.dtype)

    def batches(self) -> AugmentedBatch | None:
        """The augmented batches of the training data; None where batches are plain rows of them."""
        if self.augment is None:
            return None
        shape, size = self.network.layers[0].shape, min(self.batch_size, len(self.data))
        maps = self._moved_targets() if self.augment.moves else []
        return AugmentedBatch(self.augment, self.data, shape, self.network.seed, size, maps)

    def _moved_targets(self) -> list[tuple[slice, tuple[int, ...]]]:
        """The columns of y with positions of the images, and the shape of each one's output.

        ModelError : targets have positions that cannot be moved with those of the images.
        """
        data, (rows, columns, _) = self.data, self.network.layers[0].shape
        if data.y is None or self.target != "labels":
            return []
        parts = {part.name: part for part in data.targets}
        found = []
        for layer in self.network.judged:
            if not layer.answers or (parts and layer.name not in parts):
                continue
            part = parts.get(layer.name)
            given, places = part.shape if part else data.target_shape, layer.shape
            where = f"Job: augment flips and moves images, {(rows, columns)}, but {layer.name}"
            if len(places) < 2 and given[:2] == (rows, columns):
                declared = (*given, 1)[:3]
                raise ModelError(
                    f"{where} has {layer.size} neurons without positions for targets of {given}, "
                    f"which would stay where they are; write net.output({declared}, ...)"
                )
            if len(places) < 2 or math.prod(places[:-1]) == 1:
                continue
            if places[:-1] != (rows, columns):
                raise ModelError(
                    f"{where} has {places[:-1]} positions, whose targets cannot move with them; "
                    "change the arrays before, or ask for brightness alone"
                )
            if part.is_labels if part else data.has_labels:
                raise ModelError(
                    f"{where} has labels that are one of its {layer.size} positions, which would "
                    f"stay where they are; pass targets of shape {(len(data), *places)}, 1 at the "
                    "position"
                )
            found.append((part.columns if part else slice(None), places))
        return found

    def _check_stateful(self) -> None:
        net, steps = self.network, self.truncate
        if not self.stateful:
            if steps is not None:
                raise ModelError("Job: truncate is of stateful jobs; write stateful=True, too")
            return
        if not net.steps:
            raise ModelError(
                f"Job: stateful is for a network of sequences: net.input({net.n_inputs}, steps=...)"
            )
        if hears_reversed(net.layers):
            raise ModelError(
                "Job: stateful goes on from piece to piece, but a layer hears another from the end "
                "of the sequence; leave one of the two out"
            )
        if steps is not None and (not is_whole(steps, 1) or steps > MAX_STEPS):
            raise ModelError(
                f"Job: truncate is the steps of a piece, a whole number from 1 to {MAX_STEPS:,}; "
                f"got {steps!r}"
            )
        for layer in net.judged if self.target is not None else ():
            if not layer.each_step:
                how = f"output({layer.size}, ..." if layer.answers else "loss(..."
                raise ModelError(
                    "Job: stateful goes on from piece to piece, and each is judged: write "
                    f"net.{how}, each_step=True)"
                )

    def _check_recompute(self) -> None:
        if self.recompute is None:
            return
        if self.recompute != "sqrt":
            raise ModelError(f'Job: recompute is "sqrt" or None, got {self.recompute!r}')
        if not self.network.steps:
            raise ModelError(
                "Job: recompute is for a network of sequences: "
                f"net.input({self.network.n_inputs}, steps=...)"
            )
        if hears_reversed(self.network.layers):
            raise ModelError(
                "Job: recompute has a part of the steps in memory; what is heard reversed needs "
                "all; leave it out"
            )

    def _check_sequences(self) -> None:
        """Raise ModelError for settings that sequences, or samples without steps, do not allow."""
        self._check_stateful()
        if type(self.buckets) is not int or self.buckets < 0:
            raise ModelError(
                f"Job: buckets is of how many batches sequences are sorted by length, a whole "
                f"number from 0 (not sorted), as 20; got {self.buckets!r}"
            )
        if self.buckets and (not self.network.steps or self.stateful or is_stream(self.data)):
            raise ModelError(
                "Job: buckets put sequences of like length together; leave it out where samples "
                "are no sequences, in a stateful job, and of a stream"
            )
        self._check_recompute()
        if not self.network.steps:
            return
        for what, is_asked, remedy in (
            ("augment", self.augment is not None, "change the arrays before"),
            ("a stream", is_stream(self.data), "pass arrays, or lists of them"),
        ):  # fmt: skip
            if is_asked:
                raise ModelError(
                    f"Job: {what} is not available for sequences (net.input(n, steps=...)); "
                    f"{remedy}"
                )

    def _check_augment(self) -> None:
        if self.augment is None:
            return
        if not isinstance(self.augment, Augment):
            raise ModelError(
                f"Job: augment is a horn.data.Augment, as horn.data.Augment(flip=True, shift=4); "
                f"got {self.augment!r}"
            )
        if isinstance(self.data, Stream):
            raise ModelError("Job: augment is for arrays; change the images of a stream in it")
        if len(self.network.inputs) > 1:
            raise ModelError("Job: augment is for networks with one input")
        self.augment.check(self.network.layers[0].shape)
        if self.augment.moves:
            self._moved_targets()

    def _streamed(self) -> Any:
        """The stream with the length of an epoch. Raises ModelError for settings it cannot have."""
        data = as_stream(self.data, "data")
        cannot = {
            "normalize=True": self.normalize,
            "sample_weight": self.sample_weight is not None,
            "class_weight": self.class_weight is not None,
            "aggregates": self.aggregates,
            "a validation fraction": isinstance(self.validation, float),
        }
        for what, is_asked in cannot.items():
            if is_asked:
                raise ModelError(
                    f"Job: {what} needs all samples before training, and a stream does not have "
                    "them; pass arrays, or do it in the stream"
                )
        if self.network.has_several and self.network.compared:
            names = ", ".join(f"{name!r}: ..." for name in self.network.compared)
            raise ModelError(
                "Job: the network has several outputs, and the targets of a stream are of one; "
                f"pass arrays, (x, {{{names}}}), or one .npz file"
            )
        if data.samples is None:
            if self.iterations is None:
                raise ModelError(
                    "Job: a stream has no length, so give iterations=, how many updates to make; "
                    "or say how many samples are an epoch: horn.data.Stream(source, samples=60000)"
                )
            data = data.with_samples(self.iterations * self.batch_size)
        if self.target == "labels" and self.network.last.loss is not None:
            data = data.with_check(functools.partial(check_targets_of, self.network, what="data"))
        return data

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise mistakes.no_attribute("a horn.Job", name, dir(self))

    def __repr__(self) -> str:
        """The network, the data, and the settings that are not the usual ones."""
        shown = [repr(self.network), repr(self.data)]
        for each in fields(self)[2:]:
            value = getattr(self, each.name)
            is_usual = value is None or repr(value) == repr(each.default)
            if not is_usual and (isinstance(value, (int, float)) or value):
                shown.append(f"{each.name}={value!r}")
        return f"Job({', '.join(shown)})"

    def _repr_html_(self) -> str:
        settings = {
            "data": f"{self.data.name or 'arrays'}, {len(self.data):,} samples",
            "optimizer": type(self.optimizer).__name__,
            "learning rate": self.optimizer.rate(0),
            "batch": self.batch_size,
            "epochs": self.epochs,
            "iterations": self.iterations,
            "dtype": self.dtype,
        }
        return self.network._repr_html_() + html.facts(settings)

    def with_settings(self, **changes: Any) -> Job:
        """A copy with some fields replaced; the others are as they were given. A fraction of
        validation data is held out of all data, of new ones too, and weights and normalization are
        made anew, where a change is of one of these; data that are a ``Dataset`` with weights keep
        those. Other changes leave the data as they are, in the same memory.
        """
        own, is_of_data = vars(self), not changes.keys().isdisjoint(OF_DATA)
        kept: dict[str, Any] = own["_given"].arguments(changes) if is_of_data else own["_uncut"]
        if not changes.keys().isdisjoint(("initial", "truncate")):
            kept = {"network": own["_network"], **kept}
        try:
            job = replace(self, **(kept | changes))
        except TypeError as error:
            raise JobError(f"Job: {error}") from None
        if not is_of_data:
            vars(job)["_given"] = own["_given"]
        if "network" not in changes:
            vars(job)["_network"] = own["_network"]
        return job
