"""A model that hears a sequence as it comes, and text that a model goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from horn.backends import Setup, StepEngine, make
from horn.data.arrays import BYTE_SCALE
from horn.data.characters import codes, one_hot
from horn.errors import DataError, ModelError

if TYPE_CHECKING:
    from horn.model import Model

Array = np.ndarray[Any, Any]


class Stream:
    """Answers a sequence step by step, however long it is: ``stream(x)``.

    What layers hear late and what neurons carry (``State(per="sample")``) is kept from call to
    call. So a sequence in pieces is answered as the whole is, to the last digit but the order of
    sums. ``at`` : how many steps there were. Not for several threads at once.

    Raises
    ------
    ModelError : the model is of samples, not of sequences; its normalization is another at each
    step.
    """

    def __init__(self, model: Model) -> None:
        network = model.network
        if not network.steps:
            raise ModelError(
                "stream is for a network of sequences, net.input(n, steps=...); predict answers "
                "samples that have nothing to do with one another"
            )
        if model.normalization is not None:
            raise ModelError(
                "stream: this model normalizes each step of a sequence by figures of its own, and "
                "a stream has no such steps; train without normalize"
            )
        self.at = 0
        self._n_features, self._dtype = network.n_inputs, model.dtype
        self._scale = float(model.facts.get("scale", BYTE_SCALE))
        setup = Setup(network.of_steps(1), None, model.target, 1, model.dtype, model.threads)
        self._engine = cast(StepEngine, make(model.backend, setup))
        updates = int(model.facts.get("iteration", 0))
        self._engine.load(model.parameters, model.states, updates=updates)

    def __call__(self, x: Any) -> Array:
        """What the last layer sends at a step, (n_outputs,), or at several, (steps, n_outputs).

        x : (features,), or (steps, features). Bytes are scaled as those were that it learned from.
        """
        given = np.asarray(x)
        if given.shape[-1:] != (self._n_features,) or given.ndim not in (1, 2):
            raise DataError(
                f"stream: x has shape {given.shape}, but a step has {self._n_features} features: "
                f"({self._n_features},), or (steps, {self._n_features}) of several"
            )
        steps = given.reshape(-1, self._n_features).astype(self._dtype)
        if given.dtype == np.uint8:
            steps *= self._scale
        found = []
        for step in steps:
            found.append(self._engine.go_on(step[None], self.at)[0])
            self.at += 1
        sent = np.array(found, self._dtype).reshape(len(steps), -1)
        return sent[0] if given.ndim == 1 else sent

    def reset(self) -> None:
        """What comes next is the beginning of a sequence."""
        self._engine.forget()
        self.at = 0


def generate(model: Model, prefix: str, n: int, temperature: float, seed: int) -> str:
    """``Model.generate``."""
    letters = model.classes
    if letters is None or not all(isinstance(k, str) and len(k) == 1 for k in letters):
        raise ModelError(
            "generate is for a model that learned a text, from horn.data.text: its classes are "
            "characters"
        )
    network = model.network
    if not network.n_inputs == network.last.size == len(letters):
        raise ModelError(
            f"generate: the network hears {network.n_inputs} and answers {network.last.size} "
            f"numbers a step, but there are {len(letters)} characters"
        )
    if not prefix:
        raise DataError("generate: prefix is what the text begins with, one character at least")
    if type(n) is not int or n < 0:
        raise DataError(f"generate: n is how many characters to write, from 0; got {n!r}")
    if not 0 <= temperature < float("inf"):
        raise DataError(
            f"generate: temperature is from 0 (always the likeliest) on, 1 as the model says; got "
            f"{temperature!r}"
        )
    stream = Stream(model)
    heard = one_hot(codes(prefix, letters, "prefix"), len(letters)).astype(model.dtype)
    draws = np.random.default_rng(seed).random(n)
    said = stream(heard)[-1]
    written = []
    for draw in draws:
        place = _chosen(said.astype(np.float64), temperature, draw)
        written.append(letters[place])
        said = stream(np.eye(1, len(letters), place, dtype=model.dtype)[0])
    return prefix + "".join(written)


def _chosen(p: Array, temperature: float, draw: float) -> int:
    """A place by its probability, p ** (1 / temperature) in all; draw : in [0, 1)."""
    if temperature == 0:
        return int(p.argmax())
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    grown = np.exp(logs - logs.max()).cumsum()
    return int(np.searchsorted(grown, draw * grown[-1], side="right"))
