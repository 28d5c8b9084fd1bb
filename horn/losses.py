"""Losses: functions of one output neuron and its target, summed over the layer and averaged over
the batch.

``f(output, target)`` is in the neuron language. With integer labels the target of neuron k is 1
where the label is k, else 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horn import math, mistakes, texts
from horn.errors import ModelError


@mistakes.teaches
@dataclass(frozen=True)
class Loss:
    """A loss: ``f(output, target)`` of one neuron.

    labels : for integer labels, with an accuracy.
    """

    name: str
    f: Callable[[Any, Any], Any]
    labels: bool = False

    def __post_init__(self) -> None:
        texts.keep(self.f)

    def __repr__(self) -> str:
        return mistakes.constructed(self)


def cross_entropy(output: Any, target: Any) -> Any:
    """-t log y; the log is not taken where t is 0."""
    return -target * math.log(math.where(target > 0.0, output, 1.0))


def squared_error(output: Any, target: Any) -> Any:
    """Half of (y - t)^2, so that its derivative is y - t. The metric "mse" is not halved."""
    return 0.5 * (output - target) ** 2


def binary_cross_entropy(output: Any, target: Any) -> Any:
    """-t log y - (1 - t) log(1 - y), each log only where its factor is not 0."""
    return -target * math.log(math.where(target > 0.0, output, 1.0)) - (1.0 - target) * math.log(
        math.where(target < 1.0, 1.0 - output, 1.0)
    )


def cross_entropy_of_softmax(raw: Any, target: Any) -> Any:
    """cross_entropy(softmax(raw), target), without a softmax that underflows: t (log sum exp(raw) -
    raw). d loss / d raw is softmax(raw) sum(t) - t. Where t is 0 raw may be -inf.
    """
    apart = raw - raw.max()
    own = math.where(target != 0.0, apart, 0.0)
    return target * (math.log(math.exp(apart).sum()) - own)


def binary_cross_entropy_of_sigmoid(z: Any, target: Any) -> Any:
    """binary_cross_entropy(sigmoid(z), target), without a sigmoid that rounds to 0 or 1. d loss /
    d z is sigmoid(z) - t. No sum of numbers of either sign: z may be infinite where it is right.
    """
    is_above = z > 0.0
    share = math.where(is_above, 1.0 - target, -target)
    further = math.where(share != 0.0, share * z, 0.0)
    return math.softplus(math.where(is_above, -z, z)) + further


def own_output(output: Any, target: Any) -> Any:
    """The neuron's output itself: the neurons of a loss between layers compute it."""
    return output


_FORMULAS = {  # what a user writes, by names in other libraries
    **dict.fromkeys(("mae", "l1", "mean_absolute_error", "L1Loss"), "abs(output - target)"),
    **dict.fromkeys(
        ("huber", "huber_loss", "smooth_l1", "smooth_l1_loss", "HuberLoss", "SmoothL1Loss"),
        "horn.math.where(abs(output - target) < 1.0, 0.5 * (output - target) ** 2, "
        "abs(output - target) - 0.5)",
    ),
    "hinge": "horn.math.relu(1.0 - (2.0 * target - 1.0) * output)",
}
_FIRST = ("target", "targets", "y_true", "true", "label", "labels")  # of the target, not of f's own
_SECOND = ("output", "outputs", "y_pred", "pred", "prediction")
BETWEEN = Loss("between", own_output)
LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss("cross_entropy", cross_entropy, labels=True),
    "squared_error": Loss("squared_error", squared_error),
    "binary_cross_entropy": Loss("binary_cross_entropy", binary_cross_entropy),
}


def _check_order(f: Any, where: str) -> None:
    """Raise ModelError for a function whose arguments are named as those of f(target, output)."""
    code = getattr(f, "__code__", None)
    if code is None or code.co_argcount != 2:
        return
    first, second = code.co_varnames[:2]
    if first in _FIRST or second in _SECOND:
        is_lambda = f.__name__ == "<lambda>"
        write = "lambda output, target: ..." if is_lambda else f"def {f.__name__}(output, target):"
        raise ModelError(
            f"{where}: a loss is called with the output first, then the target: {first!r} would be "
            f"the output, and {second!r} the target; write  {write}"
        )


def resolve(loss: str | Loss | Callable[[Any, Any], Any] | None, where: str) -> Loss | None:
    """A Loss from its name, itself, or a function f(output, target)."""
    if loss is None or isinstance(loss, Loss):
        _check_order(getattr(loss, "f", None), where)
        return loss
    called = loss if isinstance(loss, str) else type(loss).__name__  # PyTorch's losses are objects
    is_foreign = mistakes.is_foreign(loss)
    if is_foreign:
        called = getattr(loss, "__name__", called)
    if called in _FORMULAS:
        raise ModelError(
            f"{where}: unknown loss {loss!r}; write loss=lambda output, target: {_FORMULAS[called]}"
        )
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise ModelError(
            f"{where}: {loss.__name__} is a class of losses; write one of them, as "
            "horn.Loss(name, f), or the function f(output, target) itself"
        )
    if mistakes.is_function(loss) and called not in mistakes.LOSSES and not is_foreign:
        _check_order(loss, where)
        return Loss(getattr(loss, "__name__", "loss"), loss)
    if called in LOSSES and not is_foreign:
        return LOSSES[called]
    hint = mistakes.suggest(called, LOSSES, mistakes.LOSSES)
    raise ModelError(
        f"{where}: unknown loss {loss!r}; {hint}known: {', '.join(LOSSES)}, or "
        "pass a function f(output, target), as loss=lambda output, target: abs(output - target)"
    )
