"""Estimators of scikit-learn: networks of one neuron class behind ``fit`` and ``predict``.

Needs the extra ``sklearn``; ``import horn`` does not load this file. X is (n, n_features) float32
or float64, and the network computes in the type of X; other numbers become float64.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FunctionType
from typing import Any, cast

import numpy as np

from horn import defaults
from horn.activations import Activation
from horn.backends import Engine, Setup, make
from horn.data.arrays import refuse_masked
from horn.data.classes import values
from horn.data.dataset import Dataset
from horn.description import Description, activation_from_json, activation_to_json
from horn.errors import DataError, ModelError, is_whole
from horn.job import EarlyStopping, Job
from horn.mistakes import ESTIMATORS, NoSuchAttribute, remedy, teaches
from horn.model import Array, Model, facts_of, model_of
from horn.module_source import CAPTURED
from horn.network import Network
from horn.neuron import Neuron
from horn.neurons import Standard
from horn.optimizers import Optimizer, named, with_settings
from horn.sources import CapturedCode, SourceCapture
from horn.train import conduct
from horn.training.cursor import Cursor
from horn.training.history import History
from horn.training.loop import TrainingLoop
from horn.training.progress import LineProgress, Progress
from horn.training.run_settings import RunSettings

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning, NotFittedError
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horn.sklearn needs scikit-learn: pip install scikit-learn, or the extra sklearn of horn",
        name=error.name,
    ) from None

TYPES = (np.float64, np.float32)
CODE = ("neuron", "activation", "learning_rate")  # the parameters that may have a source
SHAPING = ("hidden_layer_sizes", "activation", "neuron")  # the parameters that the network is of


def _checked(estimator: Any, *data: Any, **how: Any) -> Any:
    """Call scikit-learn's ``validate_data``; refuse masked arrays, whose masks it ignores, and say
    where pictures and sequences go.
    """
    for letter, each in zip("Xy", data, strict=False):
        try:
            refuse_masked(each, letter)
        except DataError as error:
            raise ValueError(str(error)) from None
    y: Any = data[1] if len(data) > 1 else None
    dtype = getattr(y, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and hasattr(y, "isna"):
        # A column of pandas' own types: scikit-learn would compare its NA.
        _check_all_there([*y], np.flatnonzero(y.isna()), "y")
    try:
        return validate_data(estimator, *data, **how)
    except ValueError as error:
        if len(getattr(data[0], "shape", ())) < 3:
            raise
        raise ValueError(
            f"{error} horn.sklearn takes tables (n_samples, n_features); for sequences and "
            "pictures make a horn.Network, with net.input(features, steps=...) or "
            "net.input((height, width, channels)), and horn.train; or write X.reshape(len(X), -1)"
        ) from None


def _check_all_there(labels: Any, empty: Any, what: str) -> None:
    """Raise ValueError where labels are missing. empty : their rows."""
    if len(empty):
        raise ValueError(
            f"{what} has no label in row {empty[0]:,}, but {labels[empty[0]]} ({len(empty):,} in "
            "all); leave those samples out, or give them a class of their own"
        )


def _check_ordered(y: Array, what: str) -> None:
    """Refuse labels (n,) that have no order, where NumPy would say only that ``<`` fails.

    Raises
    ------
    ValueError : a label is None, or some are text and others are not.
    """
    if y.dtype != object:
        return
    labels = y.ravel().tolist()
    empty = [row for row, label in enumerate(labels) if label is None]
    _check_all_there(labels, empty, what)
    if len({isinstance(label, str) for label in labels}) > 1:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
        raise ValueError(
            f"{what} has labels of several types, {kinds}, which have no order; give one type, as "
            "y.astype(str)"
        )


def _named(value: Any) -> str:
    """A parameter in a message: a class or a function by its name."""
    return str(getattr(value, "__name__", None) or repr(value))


def _plain(value: Any) -> Any:
    """A parameter that a pickle can hold: text and numbers, of others what they are called."""
    return value if isinstance(value, (str, tuple)) else _named(value)


def _is_nameless(thing: Any) -> bool:
    """Whether no module that can be imported has a class, a function or one of an Activation under
    its name.
    """
    parts = (thing.f, thing.df, thing.df_at) if isinstance(thing, Activation) else (thing,)
    return any(
        each.__module__.startswith(("__main__", CAPTURED)) or "<" in each.__qualname__
        for each in parts
        if isinstance(each, (type, FunctionType))
    )


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """The parameters and the training that both estimators share.

    neuron, activation : of the hidden layers. hidden_layer_sizes : neurons per hidden layer; () for
    none. optimizer : a name ("sgd", "adam", ...) with ``learning_rate`` (a number or a schedule;
    None: its default), or an object as ``horn.Adam(0.01)``. early_stopping : hold out
    ``validation_fraction`` of the samples, stop after ``patience`` epochs without a lower loss on
    them, and keep the best. random_state : of the initial weights, the order of the samples and
    the draws of neurons. warm_start : ``fit`` begins with the model of the last ``fit``; another
    neuron, activation or hidden_layer_sizes is a ValueError then, in ``partial_fit`` too. tasks,
    groups, strategy, servers, backend : as for ``horn.train``, used by ``fit``. threads : the most;
    None: as OMP_NUM_THREADS says, which joblib sets in its workers, else the cores. verbose : a
    line per epoch.

    Learned: model_ (a ``horn.Model``), history_ (a row per epoch), loss_curve_ (the loss of each
    epoch), n_iter_ (epochs), n_features_in_, n_outputs_.
    """

    def __init__(
        self,
        neuron: type[Neuron] = Standard,
        hidden_layer_sizes: tuple[int, ...] = (100,),
        activation: Any = "relu",
        optimizer: str | Optimizer = "adam",
        learning_rate: Any = None,
        batch_size: int = 32,
        epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        warm_start: bool = False,
        tasks: int = 1,
        groups: int = 1,
        strategy: Any = defaults.STRATEGY,
        servers: int | None = None,
        backend: str = defaults.BACKEND,
        threads: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.neuron = neuron
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.warm_start = warm_start
        self.tasks = tasks
        self.groups = groups
        self.strategy = strategy
        self.servers = servers
        self.backend = backend
        self.threads = threads
        self.verbose = verbose

    @contextmanager
    def _learned_or_as_before(self) -> Iterator[None]:
        """Leave the attributes as they were where learning fails, so that all are of one call."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            if "_live" in before:
                before["_live"] = None  # its arrays may have changed, those of model_ have not
            self.__dict__ = before
            raise

    def _begins(self) -> bool:
        """Whether ``fit`` begins anew, perhaps with other columns than the last."""
        return not (self.warm_start and hasattr(self, "model_"))

    def _shape(self) -> dict[str, Any]:
        """What the network is made of, now: SHAPING by name."""
        own = {name: getattr(self, name) for name in SHAPING}
        return own | {"hidden_layer_sizes": self._sizes()}

    def _check(self) -> None:
        """Raise ModelError for parameters that would be taken for something else."""
        for name in ("early_stopping", "warm_start"):
            if not isinstance(given := getattr(self, name), (bool, np.bool_)):
                raise ModelError(f"{type(self).__name__}: {name} is True or False, got {given!r}")
        size = self.batch_size
        if not is_whole(size, 1):
            raise ModelError(
                f"{type(self).__name__}: batch_size must be a whole number from 1, got {size!r}"
            )
        share = self.validation_fraction
        if self.early_stopping and not (isinstance(share, (float, np.floating)) and 0 < share < 1):
            raise ModelError(
                f"{type(self).__name__}: validation_fraction is the share of the samples that are "
                f"held out, between 0 and 1, got {share!r}"
            )

    def _sizes(self) -> tuple[Any, ...]:
        """The neurons of each hidden layer as they were given: an array would make all one type."""
        sizes: Any = self.hidden_layer_sizes
        if isinstance(sizes, (list, tuple)):
            return tuple(sizes)
        return (*np.atleast_1d(np.asarray(sizes)).tolist(),)

    def _before(self, goes_on: str) -> Model | None:
        """The model to go on with, if there is one. goes_on : the call, for the message.

        Raises
        ------
        ValueError : parameters were set since that would make another network.
        """
        model: Model | None = getattr(self, "model_", None)
        if model is None:
            self._made_as = self._shape()
            return None
        made, now = getattr(self, "_made_as", {}), self._shape()
        changed = [
            f"{name}={_named(made[name])}, now {_named(now[name])}"
            for name in made
            if made[name] is not now[name] and made[name] != now[name]
        ]
        if changed:
            raise ValueError(
                f"{type(self).__name__}: {goes_on} goes on with the network that was learned, of "
                f"{'; '.join(changed)}. Set {'it' if len(changed) == 1 else 'them'} back, or begin "
                "anew: fit with warm_start=False, or fit a clone, sklearn.base.clone(estimator)"
            )
        return model

    def _train(self, x: Array, y: Array, is_class: bool) -> bool:
        """Fit checked data: y are class numbers, or (n, n_outputs) targets. Whether it was stopped
        before its end, as by Ctrl-C.
        """
        self._check()
        if self.warm_start:
            before = self._before("warm_start=True")
        else:
            before, self._made_as = None, self._shape()
        held = None
        if self.early_stopping:
            seed = self._seed()
            try:
                x, held_x, y, held_y = train_test_split(
                    x, y, test_size=self.validation_fraction, random_state=seed,
                    stratify=y if is_class else None,
                )  # fmt: skip
            except ValueError:  # in the words of train_test_split
                raise ValueError(self._too_few_to_hold_out(y, is_class)) from None
            held = self._samples(held_x, held_y)
        job = Job(
            self._network(x.shape[1]) if before is None else before.network,
            self._samples(x, y),
            self._optimizer(),
            batch_size=self.batch_size,
            epochs=self.epochs,
            validation=held,
            early_stopping=EarlyStopping(self.patience) if self.early_stopping else None,
            dtype=str(x.dtype),
            initial=before,
        )
        settings = RunSettings(
            tasks=self.tasks, groups=self.groups, strategy=self.strategy, servers=self.servers,
            backend=self.backend, threads=self._threads(), progress=bool(self.verbose),
        )  # fmt: skip
        warned: list[str] = []
        run = conduct(job, settings, warn=warned.append)
        self.model_, self._room = run.model, 1
        self._learned(run.history, None)
        for said in warned:
            warnings.warn(f"{type(self).__name__} {said}", ConvergenceWarning, stacklevel=4)
        return run.stopped

    def _too_few_to_hold_out(self, y: Array, is_class: bool) -> str:
        """Why no part of the samples can be held out. y : as of ``_train``."""
        held = min(math.ceil(self.validation_fraction * len(y)), len(y))
        need = "a sample"
        if is_class:
            each = np.bincount(y)
            each = each[each > 0]
            need += f" of every class ({len(each):,} classes, the smallest of {each.min():,})"
        return (
            f"{type(self).__name__}: early_stopping=True with validation_fraction="
            f"{self.validation_fraction:g} holds out {held:,} of n_samples={len(y):,} and learns "
            f"from {len(y) - held:,}, but each part needs {need}; give more samples, another "
            "validation_fraction, or early_stopping=False"
        )

    def _go_on_unless(self, stopped: bool) -> None:
        """Raise KeyboardInterrupt where ``fit`` was stopped: a search that went on would compare
        what has learned half with others.
        """
        if stopped:
            raise KeyboardInterrupt(
                f"{type(self).__name__}.fit was stopped after {self.n_iter_:,} of {self.epochs:,} "
                "epochs; model_ is what it had learned"
            )

    def _train_more(self, x: Array, y: Array) -> None:
        """Train one epoch, in this process, with the optimizer's memory of the epochs before."""
        self._check()
        if self.early_stopping:
            raise ModelError(
                f"{type(self).__name__}: early_stopping=True is of fit, which goes through all "
                "epochs; partial_fit trains one, of all samples given: set early_stopping=False"
            )
        before = self._before("partial_fit")
        network = self._network(x.shape[1]) if before is None else before.network
        dtype = str(x.dtype) if before is None else before.dtype
        done = 0 if before is None else int(before.facts["iteration"])
        size = min(self.batch_size, len(x))
        job = Job(network, self._samples(x, y), self._optimizer(), batch_size=size, dtype=dtype,
                  iterations=done + -(-len(x) // size))  # fmt: skip
        job.check_data()
        # An engine takes batches of fewer rows, too: it is made for one of a few sizes, and the
        # next one, of this estimator or its pickle, is not smaller.
        room = min(self.batch_size, max(1 << int(size - 1).bit_length(), getattr(self, "_room", 1)))
        # without the network: that of a model is another object, with the same layers
        made_of = self.backend, job.optimizer, room, dtype, self._threads()
        live = getattr(self, "_live", None)
        if live is None or live[0] != made_of:
            setup = Setup(network, job.optimizer, "labels", room, dtype, self._threads())
            live = made_of, make(self.backend, setup)
            if before is not None:
                live[1].load(before.parameters, before.states, *self._memory(job.optimizer))
        engine = live[1]
        engine.bind(job.data)
        watcher = LineProgress() if self.verbose else Progress()
        begun = perf_counter()
        loop = TrainingLoop(job, engine, watcher, begun)
        n_epochs = 0 if before is None else len(self.history_)
        loop.go_on(Cursor(iteration=done, epoch=n_epochs, updates=engine.updates), None)
        watcher.begin(job)
        try:
            loop.run()
            result = loop.finish()
        finally:
            watcher.end()
        facts = facts_of(
            job, self.backend, iteration=result.iteration, n_epochs=n_epochs + len(loop.history),
            seconds=perf_counter() - begun, metrics=result.metrics,
        )  # fmt: skip
        model = model_of(
            job, engine.parameters(), engine.states(), backend=self.backend,
            threads=self._threads(), facts=facts, before=before,
            code=Description.of(network) if before is None else None,
        )  # fmt: skip
        self.model_, self._slots_of, self._room = model, type(job.optimizer), room
        self._learned(loop.history, live, goes_on=before is not None)

    def _memory(self, optimizer: Optimizer) -> tuple[dict[str, Array], int]:
        """The slots and the updates that ``optimizer`` goes on from: none after one of another
        kind, whose slots of the same names mean something else.
        """
        if getattr(self, "_slots_of", type(optimizer)) is not type(optimizer):
            return {}, 0
        kept = {
            name: array
            for name, array in getattr(self, "_slots", {}).items()
            if name.rsplit("/", 1)[1] in optimizer.kept_slots
        }
        return kept, getattr(self, "_updates", 0)

    def _learned(
        self, history: History, live: tuple[Any, Engine] | None, goes_on: bool = False
    ) -> None:
        """Set the fitted attributes. live : what the engine of the next ``partial_fit`` was made
        of, and the engine. goes_on : the history goes on from that of the calls before, which is
        not copied: they may be many.
        """
        self._live = live
        self._slots = {} if live is None else live[1].slots()
        self._updates = 0 if live is None else live[1].updates
        self.n_outputs_ = self.model_.network.last.size
        if not goes_on:
            self.history_, self.loss_curve_ = History(), []
        self.history_.rows += history.rows
        self.loss_curve_ += history["loss"]
        self.n_iter_ = len(self.history_)

    def _samples(self, x: Array, y: Array) -> Dataset:
        """Checked data with what labels and columns are called, which ``model_`` then knows."""
        classes = values(getattr(self, "classes_", np.array([])))
        # repr: (False, True) and (0.0, 1.0) equal (0, 1), but are other labels
        named = repr(classes) != repr(tuple(range(len(classes))))
        columns = tuple(getattr(self, "feature_names_in_", ()))
        return Dataset(x, y, classes=classes if named else None, feature_names=columns)

    def _network(self, n_features: int) -> Network:
        network = Network(self._seed())
        network.input(n_features)
        for size in self._sizes():
            network.layer(size, neuron=self.neuron, activation=self.activation)
        self._output(network)
        return network

    def _output(self, network: Network) -> None:
        raise ModelError(f"{type(self).__name__} has no _output(network)")

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _optimizer(self) -> Optimizer:
        rate = self.learning_rate
        if isinstance(self.optimizer, str):
            kind = named(self.optimizer)
            return kind() if rate is None else kind(rate)
        if rate is not None and isinstance(self.optimizer, Optimizer):
            return with_settings(self.optimizer, learning_rate=rate)
        return self.optimizer

    def _threads(self) -> int | None:
        said = os.environ.get("OMP_NUM_THREADS", "")
        return int(said) if self.threads is None and said.isdigit() and int(said) else self.threads

    def _outputs(self, x: Any) -> Array:
        check_is_fitted(self, "model_")
        x = _checked(self, x, dtype=TYPES, order="C", reset=False)
        return np.asarray(self.model_.predict(x))

    def set_params(self, **params: Any) -> Any:
        """Set parameters; a name of scikit-learn's MLPClassifier raises the one to use here."""
        for name in params.keys() - self.get_params().keys() & ESTIMATORS.keys():
            said = f"{type(self).__name__}: unexpected keyword argument {name!r}"
            raise ValueError(f"{said}; {remedy(said)}")
        return super().set_params(**params)

    def __getattr__(self, name: str) -> Any:
        said = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in ("coefs_", "coef_", "intercepts_", "intercept_"):
            said += "; model_.parameters holds the arrays by name, as 'layer1.weight'"
        raise NoSuchAttribute(said)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a neuron, an activation or a learning rate of a script, a notebook or a function
        as its source, as in a model file.
        """
        state = dict(super().__getstate__())
        state["_live"] = None
        if "history_" in state:  # of a copy, which grows by itself
            state["history_"] = History(self.history_.rows)
            state["loss_curve_"] = list(self.loss_curve_)
        if "_made_as" in state:  # None: as it is now; others need no source, only to be told
            now = self._shape()
            state["_made_as"] = {
                name: None if made is now[name] or made == now[name] else _plain(made)
                for name, made in self._made_as.items()
            }
        for name in CODE:
            thing, capture = state[name], SourceCapture()
            if _is_nameless(thing):
                is_pair = isinstance(thing, Activation)
                found = activation_to_json(thing, capture) if is_pair else capture.reference(thing)
                state[name] = {"reference": found, "sources": capture.sources()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        for name in CODE:
            if isinstance(state[name], dict):
                code = CapturedCode(state[name]["sources"], "a pickled estimator")
                found = state[name]["reference"]
                is_pair = "f" in found
                state[name] = activation_from_json(found, code) if is_pair else code.resolve(found)
        super().__setstate__(state)
        if "_made_as" in state:
            now, made_as = self._shape(), state["_made_as"]
            self._made_as = {k: now[k] if made is None else made for k, made in made_as.items()}


@teaches
class HornClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier: hidden layers of ``neuron``, a softmax over the classes, cross entropy.

    Source of the interface: scikit-learn's MLPClassifier.
    """

    __doc__ = f"{__doc__}\n{_Estimator.__doc__}    classes_ : the labels, in the order of columns."

    @teaches
    def fit(self, X: Any, y: Any) -> HornClassifier:
        """Learn from X (n, n_features) and the classes y (n,): numbers or strings."""
        with self._learned_or_as_before():
            X, y = _checked(self, X, y, dtype=TYPES, order="C", reset=self._begins())
            y = self._classes_of(y)
            kept = getattr(self, "classes_", None) if self.warm_start else None
            classes, numbers = np.unique(y, return_inverse=True)
            if kept is not None and not np.array_equal(kept, classes):
                raise ValueError(
                    f"warm_start: y has the classes {classes}, but {kept} were learned before"
                )
            self.classes_ = classes
            if len(self.classes_) < 2:
                raise ValueError(
                    f"HornClassifier needs two classes or more, but y has 1 class: {classes[0]!r}"
                )
            stopped = self._train(X, numbers.astype(np.int64), is_class=True)
        self._go_on_unless(stopped)
        return self

    @teaches
    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> HornClassifier:
        """Train one more epoch, over these samples. classes : all classes, in the first call."""
        is_first = not hasattr(self, "model_")
        if is_first and classes is None:
            raise ValueError("the first partial_fit needs classes=, all that y will ever have")
        with self._learned_or_as_before():
            X, y = _checked(self, X, y, dtype=TYPES, order="C", reset=is_first)
            y = self._classes_of(y)
            if classes is not None:
                _check_ordered(np.asarray(classes), "classes")
                classes = np.unique(classes)
                if not is_first and not np.array_equal(classes, self.classes_):
                    raise ValueError(f"classes={classes} are not those of before, {self.classes_}")
                self.classes_ = classes
            known = self.classes_
            if (y.dtype == object) != (known.dtype == object):  # texts, which numbers are not below
                y, known = (a.astype(str) if a.dtype == object else a for a in (y, known))
            numbers = np.searchsorted(known, y)
            numbers = np.minimum(numbers, len(known) - 1).astype(np.int64)
            if new := sorted(set(y[known[numbers] != y].tolist())):
                raise ValueError(f"y has {new}, which are not among the classes {self.classes_}")
            self._train_more(X, numbers)
        return self

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sample: (n,)."""
        best = self._outputs(X).argmax(axis=1)
        return cast(Array, self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """The probabilities (n, n_classes) in the order of ``classes_``; each row sums to 1."""
        return self._outputs(X)

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of ``predict_proba``."""
        with np.errstate(divide="ignore"):
            return cast(Array, np.log(self._outputs(X)))

    @staticmethod
    def _classes_of(y: Any) -> Array:
        _check_ordered(y, "y")
        check_classification_targets(y)
        return cast(Array, column_or_1d(y, warn=True))

    def _output(self, network: Network) -> None:
        network.output(len(self.classes_), activation="softmax", loss="cross_entropy")


@teaches
class HornRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor: hidden layers of ``neuron``, weighted sums, half the squared error.

    Source of the interface: scikit-learn's MLPRegressor. As there, scale y if it is far from 1.
    """

    __doc__ = f"{__doc__}\n{_Estimator.__doc__}"

    @teaches
    def fit(self, X: Any, y: Any) -> HornRegressor:
        """Learn from X (n, n_features) and the numbers y, (n,) or (n, n_outputs)."""
        with self._learned_or_as_before():
            X, y = _checked(
                self, X, y, dtype=TYPES, order="C", multi_output=True, y_numeric=True,
                reset=self._begins(),
            )  # fmt: skip
            stopped = self._train(X, self._targets(y), is_class=False)
        self._go_on_unless(stopped)
        return self

    @teaches
    def partial_fit(self, X: Any, y: Any) -> HornRegressor:
        """Train one more epoch, over these samples."""
        with self._learned_or_as_before():
            X, y = _checked(
                self, X, y, dtype=TYPES, order="C", multi_output=True, y_numeric=True,
                reset=not hasattr(self, "model_"),
            )  # fmt: skip
            self._train_more(X, self._targets(y))
        return self

    def predict(self, X: Any) -> Array:
        """The predicted numbers: (n,), or (n, n_outputs) if y was."""
        found = self._outputs(X)
        return found[:, 0] if self.n_outputs_ == 1 else found

    def _targets(self, y: Array) -> Array:
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        kept = y.dtype if y.dtype in TYPES else np.float64  # rounded where it is read, if it fits
        y = np.ascontiguousarray(y.reshape(len(y), -1), kept)
        self.n_outputs_ = y.shape[1]
        return cast(Array, y)

    def _output(self, network: Network) -> None:
        network.output(self.n_outputs_, loss="squared_error")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


__all__ = ["HornClassifier", "HornRegressor", "NotFittedError"]
