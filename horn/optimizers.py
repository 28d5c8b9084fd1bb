"""Optimizers: the update of one weight by its gradient.

``update(w, g, slots, lr, t)`` is a pure formula of one weight, in Python with + - * / // % **,
comparisons, ``if``, ``and``, ``or``, ``not``, ``max``, ``min``, ``abs`` and ``horn.math``: ``w`` is
the weight, ``g`` the gradient (mean over the batch, ``prepared``), ``slots`` the memory per weight,
``lr`` the learning rate of this iteration, ``t`` the number of updates including this one, from 1.
It returns the new weight and the new slots. The other methods that take gradients are formulas,
too. They are called with numbers, with arrays of weights, and traced (``horn.ir.tracing``), twice
before a run: one that differs then, or changes ``self``, is refused (``horn.ir.formulas``). The
same object serves tasks and parameter servers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from horn import math, registry, schedules
from horn.errors import JobError, ModelError
from horn.mistakes import OPTIMIZER_ATTRIBUTES, misnamed, no_attribute, teaches
from horn.schedules import LearningRate, rate

Slots = dict[str, Any]
PREVIOUS_UPDATE = "previous_update"  # the slot that neurons read as m.previous_update
Updated = tuple[Any, Slots]  # the new weight, the new slots

_SHARE = "at least 0 and below 1", lambda value: 0 <= value < 1
_ABOVE = "above 0", lambda value: value > 0
_NORM = "above 0, and finite, or None for no bound", lambda value: 0 < value < float("inf")
_FROM = "0 or more, and finite", lambda value: 0 <= value < float("inf")
# 1e-37 is about the smallest number that float32 has with all digits: 1e-50 is 0 there.
_EPS = (
    "1e-37 or more, which is above 0 in float32, too, and finite: the step of a weight whose "
    "gradient is 0 would be 0 / 0",
    lambda value: 1e-37 <= value < float("inf"),
)
_Ranges = Mapping[str, tuple[str, Callable[[Any], bool]]]
_RANGES: _Ranges = {
    **dict.fromkeys(("momentum", "beta1", "beta2", "rho"), _SHARE),
    "clip_value": _ABOVE,
    "clip_norm": _NORM,
    **dict.fromkeys(("weight_decay", "eps"), _FROM),
}


@dataclass(frozen=True)
class Optimizer:
    """The settings that all optimizers share, and the interface: ``slots`` and ``update``.

    In this order: weight decay is added to the gradient of synapse weights, not of biases and
    Parameters; ``clip_value`` bounds each gradient; ``clip_norm`` scales all gradients of the
    network together so that their Euclidean norm stays below it.

    learning_rate : of one update: a number, a schedule, or a function of the iteration.
    weight_decay : how much of a weight is added to its gradient. clip_value, clip_norm : in units
    of the gradient, the mean over the batch; None: no bound.
    """

    learning_rate: LearningRate = 0.1
    _: KW_ONLY  # so that the second argument, as in SGD(0.1, 0.9), is the momentum
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_norm: float | None = None

    slots: ClassVar[tuple[str, ...]] = ()
    _own_ranges: ClassVar[_Ranges] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:  # looking for slips here took 5 % of a task's imports
            return
        for method in ("update", "prepared", "of_derived", "clip_factor", "rate"):
            if method in vars(cls):
                continue
            meant = misnamed(cls, method)
            if meant == "rates":  # a word of its own, and a rate there is without it
                continue
            if method == "update" and not meant and isinstance(vars(cls).get("step"), FunctionType):
                meant = "step"
            if meant:
                known = inspect.signature(getattr(Optimizer, method)).parameters.values()
                takes = ", ".join(p.name + ("" if p.default else "=None") for p in known)
                raise ModelError(
                    f"{cls.__name__} has a {meant!r}, which nothing calls; write  "
                    f"def {method}({takes}):"
                )

    def __post_init__(self) -> None:
        name = type(self).__name__
        for each in fields(self):
            own = inspect.getattr_static(type(self), each.name, each.default)
            if own is not each.default and own != vars(self)[each.name]:
                raise ModelError(
                    f"{name}: {each.name} = {own!r} in the class changes nothing, as "
                    f"{each.name} is an argument, and is {vars(self)[each.name]!r} here; write  "
                    f"{each.name}: {type(own).__name__} = {own!r}  in a class under @dataclass("
                    f"frozen=True), or pass it: {name}({each.name}={own!r})"
                )
        schedules.check(self.learning_rate, name)
        ranges = {**_RANGES, **self._own_ranges}
        for what, value in vars(self).items():
            if what not in ranges or (what.startswith("clip_") and value is None):
                continue
            if not isinstance(value, Real) or isinstance(value, bool):
                raise ModelError(f"{name}: {what} must be a number, got {value!r}")
            said, is_within = ranges[what]
            if not is_within(value):
                raise ModelError(f"{name}: {what} must be {said}, got {value!r}")

    if not TYPE_CHECKING:  # type checkers report unknown names themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(type(self).__name__, name, dir(self), OPTIMIZER_ATTRIBUTES)

    def rate(self, iteration: int) -> float:
        """The learning rate at an iteration (from 0)."""
        return rate(self.learning_rate, iteration)

    @property
    def kept_slots(self) -> tuple[str, ...]:
        """The slots to be kept: the others are always 0."""
        return self.slots

    @property
    def plain_momentum(self) -> float | None:
        """The momentum, if an update is v = momentum v - lr g, w += v, of the unchanged gradient: a
        product of matrices can apply that while it computes g. Else None.
        """
        return None

    @property
    def tells_pushes_apart(self) -> bool:
        """Whether a pushed value and a derived gradient of the same number make other updates."""
        return type(self).of_derived is not Optimizer.of_derived

    def of_derived(self, g: Any, lr: Any) -> Any:
        """The update value where no neuron pushes, from the derived gradient."""
        return g

    def prepared(self, g: Any, w: Any = None) -> Any:
        """The gradient that ``update`` takes, clip_norm apart. w : the weights of synapses; None of
        biases and Parameters, which do not decay.
        """
        if self.weight_decay and w is not None:
            g = g + self.weight_decay * w
        if self.clip_value is not None:
            g = math.minimum(math.maximum(g, -self.clip_value), self.clip_value)
        return g

    def clip_factor(self, norm: Any) -> Any:
        """The factor of all prepared gradients under clip_norm. norm : of all of them."""
        return self.clip_norm / math.maximum(self.clip_norm, norm)

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        """The new weight and the new slots, for a weight ``w`` with its prepared gradient ``g``,
        its ``slots``, the learning rate ``lr`` and the number ``t`` of this update, from 1.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update")


Kind = TypeVar("Kind", bound=Optimizer)


@teaches
@dataclass(frozen=True)
class SGD(Optimizer):
    """w += v, v = momentum v - lr g. With ``nesterov`` w += momentum v - lr g, of the new v.

    learning_rate : lr, of one update; with weight_decay, clip_value and clip_norm as of
    ``horn.optimizers.Optimizer``.

    Source: Polyak 1964; Sutskever et al. 2013, eq. 3-4, in the form that looks ahead from w.
    """

    momentum: float = 0.0
    nesterov: bool = False
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.nesterov, bool):
            raise ModelError(f"SGD: nesterov is True or False, got {self.nesterov!r}")
        if self.nesterov and not self.momentum:
            raise ModelError(
                "SGD: nesterov looks ahead along the momentum, which is 0; write "
                "horn.SGD(0.1, momentum=0.9, nesterov=True)"
            )

    @property
    def kept_slots(self) -> tuple[str, ...]:
        is_idle = type(self).update is SGD.update and not self.momentum
        return () if is_idle else self.slots

    @property
    def plain_momentum(self) -> float | None:
        own, plain = type(self), (SGD.of_derived, SGD.prepared, SGD.update)
        is_plain = (own.of_derived, own.prepared, own.update) == plain and not self.nesterov
        prepares = self.weight_decay or self.clip_value is not None or self.clip_norm is not None
        return self.momentum if is_plain and not prepares else None

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        v = self.momentum * slots["velocity"] - lr * g
        if self.nesterov:
            return w + (self.momentum * v - lr * g), {"velocity": v}
        return w + v, {"velocity": v}


@teaches
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s += g^2, w -= lr g / (sqrt(s) + eps).

    learning_rate : lr, of one update; with weight_decay, clip_value and clip_norm as of
    ``horn.optimizers.Optimizer``.

    Source: Duchi, Hazan & Singer 2011.
    """

    eps: float = 1e-10
    slots: ClassVar[tuple[str, ...]] = ("squares",)
    _own_ranges: ClassVar[_Ranges] = {"eps": _EPS}

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        s = slots["squares"] + g * g
        return w - lr * g / (math.sqrt(s) + self.eps), {"squares": s}


@teaches
@dataclass(frozen=True)
class RMSProp(Optimizer):
    """s = rho s + (1 - rho) g^2, w -= lr g / (sqrt(s) + eps).

    learning_rate : lr, of one update; with weight_decay, clip_value and clip_norm as of
    ``horn.optimizers.Optimizer``.

    Source: Tieleman & Hinton 2012, lecture 6.5.
    """

    learning_rate: LearningRate = 0.001
    rho: float = 0.9
    eps: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("squares",)
    _own_ranges: ClassVar[_Ranges] = {"eps": _EPS}

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        s = self.rho * slots["squares"] + (1.0 - self.rho) * g * g
        return w - lr * g / (math.sqrt(s) + self.eps), {"squares": s}


@teaches
@dataclass(frozen=True)
class AdaDelta(Optimizer):
    """Steps scaled by the running size of past steps over that of gradients.

    learning_rate : a factor of each step, of one update; with weight_decay, clip_value and
    clip_norm as of ``horn.optimizers.Optimizer``. rho : the share of the past in running sizes.

    Source: Zeiler 2012, algorithm 1.
    """

    learning_rate: LearningRate = 1.0
    rho: float = 0.95
    eps: float = 1e-6
    slots: ClassVar[tuple[str, ...]] = ("squares", "steps")
    _own_ranges: ClassVar[_Ranges] = {"eps": _EPS}

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        s = self.rho * slots["squares"] + (1.0 - self.rho) * g * g
        step = g * math.sqrt(slots["steps"] + self.eps) / math.sqrt(s + self.eps)
        d = self.rho * slots["steps"] + (1.0 - self.rho) * step * step
        return w - lr * step, {"squares": s, "steps": d}


@teaches
@dataclass(frozen=True)
class Adam(Optimizer):
    """The Adam optimizer, with bias correction.

    learning_rate : about the largest step of a weight in one update; with weight_decay (which is a
    part of the gradient), clip_value and clip_norm as of ``horn.optimizers.Optimizer``. beta1,
    beta2 : the share of the past in the running means of the gradient and of its square.

    Source: Kingma & Ba 2015, algorithm 1.
    """

    learning_rate: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    slots: ClassVar[tuple[str, ...]] = ("mean", "squares")
    _own_ranges: ClassVar[_Ranges] = {"eps": _EPS}

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        m = self.beta1 * slots["mean"] + (1.0 - self.beta1) * g
        s = self.beta2 * slots["squares"] + (1.0 - self.beta2) * g * g
        # The corrections depend on t alone: they are computed once per update, not once per weight.
        unbias_m = 1.0 / (1.0 - math.pow_(self.beta1, t))
        unbias_s = 1.0 / (1.0 - math.pow_(self.beta2, t))
        step = lr * unbias_m * m / (math.sqrt(s * unbias_s) + self.eps)
        return w - step, {"mean": m, "squares": s}


@teaches
@dataclass(frozen=True)
class Direct(Optimizer):
    """The pushed value is the update: w += mean over the batch of the pushes.
    ``m.previous_update`` is the last one.

    Arrays without a push (biases and input synapses of a network with a loss) take the plain step:
    w -= learning_rate * gradient. ``clip_value`` and ``clip_norm`` bound these changes, not
    gradients. Weight decay is not offered: it belongs into the push.

    Source: Yoon 2016, section 2.1, where the neuron itself computes the change of its weight.
    """

    learning_rate: LearningRate = 1.0
    slots: ClassVar[tuple[str, ...]] = (PREVIOUS_UPDATE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise ModelError(
                "Direct adds exactly what is pushed; put the weight decay into the push"
            )

    def of_derived(self, g: Any, lr: Any) -> Any:
        return -lr * g

    def update(self, w: Any, g: Any, slots: Mapping[str, Any], lr: Any, t: Any) -> Updated:
        return w + g, {PREVIOUS_UPDATE: g}


def with_settings(optimizer: Kind, **settings: Any) -> Kind:
    """A copy with other settings, whatever an ``__init__`` of its own takes."""
    made = copy.copy(optimizer)
    vars(made).update(settings)
    return made


def no_previous(optimizer: Optimizer) -> str:
    """The complaint about a read of ``m.previous_update`` under another optimizer than Direct."""
    return (
        "m.previous_update is what horn.Direct() last added to the weight; this job's optimizer "
        f"is {type(optimizer).__name__}: keep what you need of each synapse in a horn.SynapseState"
    )


def of_this_file() -> dict[str, type[Optimizer]]:
    """The optimizers of this file, by their names in small letters."""
    return {
        key.lower(): value
        for key, value in globals().items()
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
    }


def named(name: str) -> type[Optimizer]:
    """An optimizer of this file by its name, whatever its case, or the user's module:Class. Raises
    JobError, which lists the names.
    """
    known = of_this_file()
    if name.lower() in known:
        return known[name.lower()]
    theirs = registry.of_module("optimizer", name, list(known))
    if not (isinstance(theirs, type) and issubclass(theirs, Optimizer)):
        raise JobError(f"optimizer {name}: is {theirs!r}, no subclass of horn.optimizers.Optimizer")
    return theirs
