"""The built-in neurons, written as a user would write them."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

from horn.errors import ModelError
from horn.mistakes import of_module
from horn.neuron import Neuron


class Standard(Neuron):
    """The activation of the weighted sum."""

    def forward(self, messages: Iterable[Any]) -> None:
        total = 0.0
        for m in messages:
            total += m.input * m.weight
        self.feedforward(self.activation(total))


class Relay(Neuron):
    """The sum of its sources; of one source its output itself."""

    def forward(self, messages: Iterable[Any]) -> None:
        self.feedforward(sum(m.input for m in messages))


class Comparison(Neuron):
    """A function of two sources, one message each, for a loss between layers."""

    def forward(self, messages: Any) -> None:
        a = sum(m.input for m in messages.a)
        b = sum(m.input for m in messages.b)
        self.feedforward(self.activation(a, b))


class Penalty(Neuron):
    """A function of its source, for a loss of one layer."""

    def forward(self, messages: Iterable[Any]) -> None:
        self.feedforward(self.activation(sum(m.input for m in messages)))


class _Dropping(Neuron):
    """Neurons that are silent with probability 1 - keep."""

    keep = 0.5

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.keep, Real) and not 0.0 < cls.keep <= 1.0:
            raise ModelError(
                f"{cls.__name__}: keep is the probability to keep, above 0 and up to 1; got "
                f"{cls.keep!r}"
            )


class Dropout(_Dropping):
    """A standard neuron that is silent with probability 1 - keep, per sample; at inference its
    output is scaled by keep.

    Source: Yoon 2016, section 3.
    """

    def forward(self, messages: Iterable[Any]) -> None:
        mask = self.bernoulli(self.keep) if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


class SequenceDropout(_Dropping):
    """Dropout with one mask per neuron and sequence: the same neurons are silent at all its steps.

    Source: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent neural
    networks", 2016.
    """

    def forward(self, messages: Iterable[Any]) -> None:
        mask = self.bernoulli(self.keep, per="sequence") if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


class BatchDropout(_Dropping):
    """Dropout with one mask per neuron and batch: a dropped neuron sits the whole batch out and is
    not computed at all.
    """

    def forward(self, messages: Iterable[Any]) -> None:
        mask = self.bernoulli(self.keep, per="batch") if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


if not TYPE_CHECKING:  # type checkers report unknown names themselves
    _NAMES = ("BatchDropout", "Dropout", "SequenceDropout", "Standard")
    __getattr__, __dir__ = of_module(__name__, _NAMES)
