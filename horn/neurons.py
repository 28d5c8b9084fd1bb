"""The built-in neurons, written as a user would write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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


class Dropout(Neuron):
    """A standard neuron that is silent with probability 1 - keep, per sample; at inference its
    output is scaled by keep.

    Source: Yoon 2016, section 3.
    """

    keep = 0.5

    def forward(self, messages: Iterable[Any]) -> None:
        mask = self.bernoulli(self.keep) if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


class SequenceDropout(Neuron):
    """Dropout with one mask per neuron and sequence: the same neurons are silent at all its steps.

    Source: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent neural
    networks", 2016.
    """

    keep = 0.5

    def forward(self, messages: Iterable[Any]) -> None:
        mask = self.bernoulli(self.keep, per="sequence") if self.training else self.keep
        if mask == 0:
            self.feedforward(0.0)
        else:
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(self.activation(total) * mask)


class BatchDropout(Neuron):
    """Dropout with one mask per neuron and batch: a dropped neuron sits the whole batch out and is
    not computed at all.
    """

    keep = 0.5

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
