"""What a network sends by the user's methods on plain floats: a judge that shares no code with
horn's interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horn.neuron import SynapseState, declared

KEPT, TRACE = 0.21, 0.15  # what States and SynapseStates start from


class NotPlain(Exception):
    """What the text says has no plain number: it is drawn."""


class _Message:
    """A message of plain floats."""

    def __init__(self, x: float, index: int, weights: dict[str, float], traces: Any) -> None:
        vars(self).update(input=x, index=index, **weights, **dict.fromkeys(traces, TRACE))

    def normal(self, *_: Any) -> float:
        raise NotPlain

    uniform = normal


class _Asked(Exception):
    """The run of one neuron ends: it asks its layer."""

    def __init__(self, word: str, value: float) -> None:
        self.word, self.value = word, value


class _Host:
    """What a neuron's words do in inference."""

    def __init__(self, answers: list[float]) -> None:
        self.output: Any = None
        self.answers = iter(answers)

    def feedforward(self, neuron: Any, value: Any) -> None:
        assert self.output is None
        self.output = vars(neuron)["output"] = value

    def push(self, neuron: Any, value: float, to: str | None) -> None:
        """Nothing is learned."""

    def draw(self, *_: Any) -> float:
        raise NotPlain

    def ask(
        self, neuron: Any, word: str, x: float, over: str, running: str | None, others: Any = ()
    ) -> Any:
        assert not others
        if over == "batch":
            return getattr(neuron, running or "")
        for answer in self.answers:
            return answer
        raise _Asked(word, x)


def _answers(word: str, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    if word == "rank":
        return [sorted(range(len(x)), key=lambda k: -x[k]).index(k) for k in range(len(x))]
    found = {
        "sum": sum(x), "mean": mean, "max": max(x), "min": min(x), "argmax": x.index(max(x)),
        "var": sum((v - mean) ** 2 for v in x) / len(x),
    }  # fmt: skip
    return [found[word]] * len(x)


def _messages(layer: Any, o: int, arrays: dict[str, Any], sent: list[list[float]]) -> list[Any]:
    traces = list(declared(layer.neuron, SynapseState))
    messages: list[_Message] = []
    for link in layer.links:
        weights = {name: np.asarray(arrays[array]) for name, array in link.weights.items()}
        if link.edges is None:
            pairs: list[tuple[int, Any]] = [(i, (o, i)) for i in range(link.source.size)]
        else:
            places = range(link.edges.indptr[o], link.edges.indptr[o + 1])
            pairs = [(int(link.edges.indices[e]), e) for e in places]
        for i, at in pairs:
            own = {name: float(array[at]) for name, array in weights.items()}
            x = sent[link.source.index][i]
            messages.append(_Message(x, len(messages), own, traces))
    if layer.bias is not None:
        own = {name: float(arrays[array][o]) for name, array in layer.biases.items()}
        messages.append(_Message(1.0, len(messages), own, traces))
    return messages


def _fire(layer: Any, o: int, arrays: Any, sent: list[list[float]], answers: list[float]) -> Any:
    """What one neuron feeds forward, or what it asks."""
    neuron, host = object.__new__(layer.neuron), _Host(answers)
    vars(neuron).update(
        index=o, layer_index=layer.index, activation=layer.activation, training=False,
        iteration=0, learning_rate=0.0, _host=host,
        **{p: float(arrays[f"{layer.name}.{p}"][o]) for p in layer.parameters},
        **dict.fromkeys(layer.states, KEPT),
    )  # fmt: skip
    try:
        neuron.forward(_messages(layer, o, arrays, sent))
    except _Asked as asked:
        return asked
    return float(host.output)


def last_hidden(network: Any, arrays: dict[str, Any], x: np.ndarray) -> list[float] | None:
    """What the last hidden layer sends in inference; None where that is not plain."""
    sent = [[float(v) for v in x]]
    for layer in network.layers[1:-1]:
        if layer.interlayer is not None:
            return None
        answers: list[list[float]] = [[] for _ in range(layer.size)]
        while True:
            try:
                made = [_fire(layer, o, arrays, sent, answers[o]) for o in range(layer.size)]
            except NotPlain:
                return None
            if not isinstance(made[0], _Asked):
                break
            replies = _answers(made[0].word, [a.value for a in made])
            for own, each in zip(answers, replies, strict=True):
                own.append(each)
        sent.append(made)
    return sent[-1]
