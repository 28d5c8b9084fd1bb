"""What the neuron language refuses, in words: the compiler and the interpreter say the same.

Each place of the text is theirs to find. ``name`` is that of a variable, a field or a weight,
``word`` one of horn's own, as "feedforward"; ``known`` lists what there is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from horn.neuron import STATISTICS

# methods


def no_method(cls: str, kind: str) -> str:
    return f"{cls}.{kind} must be a plain method: def {kind}(self, messages)"


NO_GENERATOR = (
    "yield and await are not for neurons: a method gives its number with self.feedforward(value) "
    "or self.backpropagate(delta), a helper with return"
)


def wrong_method(word: str, kind: str, here: str) -> str:
    return f"self.{word} belongs in {kind}, not in {here}"


def called_in_loop(word: str) -> str:
    return f"self.{word} is called inside the loop over messages; call it once, after the loop"


def called_twice(word: str) -> str:
    return f"self.{word} is called a second time; call it exactly once on every path"


def by_what(pushes: bool) -> str:
    """What a class learns by without its backward, behind "leave backward out". pushes : whether it
    does so in forward, so that nothing is derived.
    """
    return ": its weights learn by its push in forward" if pushes else " and horn derives it"


def no_written_backward(cls: str, why: str, pushes: bool) -> str:
    or_push = "" if pushes else ", or push in forward if it is to learn without a gradient"
    return f"{cls} writes backward, but {why}: leave backward out{by_what(pushes)}{or_push}"


def has_interlayer(layer: str) -> str:
    return f"{layer} has an interlayer, which mixes its neurons"


def has_weights(n: int) -> str:
    return f"its synapses have {n} weights, so it has no one delta"


ASKS = (
    "its forward asks the layer or the batch, through which one neuron's error depends on the "
    "others"
)
TELLS_APART = "its forward tells its inputs apart (messages.x), so it has no one delta"
NO_WEIGHTED_SUM = (
    "its forward is more than a function of sum(input * weight), so it has no one delta"
)

NOT_SENT = "what a neuron sends is  self.feedforward(value)"
NO_OUTPUT = "self.output is read before self.feedforward(...) has set it"


def no_derivative(activation: str) -> str:
    return (
        f"activation {activation!r} has no derivative of its output; use "
        "self.activation.derivative_at(z) with the summed input z"
    )


# messages

NO_ORDER = (
    "a neuron sees one message at a time and in no fixed order; loop over them (for m in "
    "messages) instead of indexing"
)


def of_generator(name: str) -> str:
    return (
        f"numpy.{name} takes {name}(... for m in messages) for one object, not for its numbers; "
        "call Python's own: below  from numpy import *  or %pylab write  from builtins import "
        f"{name}"
    )


LOOP_IN_LOOP = (
    "a loop inside the loop over messages is not in the neuron language: compute it before, in a "
    "loop of its own"
)


def no_input(name: str, known: Iterable[str], kind: str, of: str = "") -> str:
    """The error message of ``messages.name``. of : the input whose messages were asked."""
    if of:
        return f"messages.{of} has no {name!r}: loop over it, or ask len(messages.{of})"
    if kind != "forward":
        return (
            f"messages.{name}: in {kind} messages come from the receivers and have no names; loop "
            "over them (for m in messages)"
        )
    there = ", ".join(f"messages.{each}" for each in known)
    if name in ("sum", "prod", "max", "min", "mean") and name not in known:
        what = "sum" if name == "mean" else name
        share = " / len(messages)" if name == "mean" else ""
        return f"messages.{name}: write  {what}(m.input * m.weight for m in messages){share}"
    if name in ("input", "weight"):
        return f"messages.{name}: ask each message, as sum(m.input * m.weight for m in messages)"
    has = f"its inputs are {there}" if there else "its inputs have no names"
    return (
        f"messages has no {name!r}: {has}; give the layer one, as net.layer(..., "
        f'inputs={{"{name}": a_layer}}), or loop over all messages (for m in messages)'
    )


def no_field(name: str, hint: str, known: str) -> str:
    if name == "push":
        return "a message has no push; a neuron has: self.push(value), in the loop for each message"
    return f"message has no field {name!r}. {hint}Fields: {known}"


def not_yet(name: str, known: str) -> str:
    return f"in forward a message has no {name!r} yet: it comes in backward. Fields: {known}"


def no_delta(name: str, known: str) -> str:
    return (
        f"m.delta.{name} would be the delta of the sum of m.input * m.{name}; the receivers have "
        f"{known}"
    )


NO_PREVIOUS_UPDATE = (
    "m.previous_update is of m.weight; a neuron that declares Weights keeps what it needs of each "
    "synapse in a horn.SynapseState"
)


def not_assigned(name: str) -> str:
    return (
        f"m.{name} cannot be assigned: a weight changes by self.push(...); a number that each "
        "synapse remembers is declared in the class: trace = horn.SynapseState(0.0)"
    )


# pushes


def which_weight(named: str) -> str:
    return f"a message has several weights; say which: push(..., {named})"


PUSHED_TWICE = "push is called a second time for the same message; push exactly once per message"


def pushed_outside(to: str) -> str:
    return f'push(..., to="{to}") is for each message: call it inside the loop over messages'


def pushed_forward(to: str) -> str:
    return f'push(..., to="{to}") belongs in backward'


def pushed_in_loop(to: str) -> str:
    return (
        f'push(..., to="{to}") stands inside the loop over messages; sum up in a variable and push '
        "once after the loop"
    )


def pushed_again(to: str) -> str:
    return f'push(..., to="{to}") is called a second time; once on every path'


# what a neuron keeps


def not_declared(name: str, cls: type) -> str:
    found = inspect.getattr_static(cls, name, None)
    if callable(found):
        return f"self.{name} is called, not assigned: self.{name}(value)"
    is_number = isinstance(found, (int, float))
    what = "is a constant of the class" if is_number else "is not declared"
    return (
        f"self.{name} {what}; a value that a neuron keeps is a State: write  {name} = "
        f"horn.State({found if is_number else 0.0})  in {cls.__name__}, or use a plain variable"
    )


def weight_assigned(name: str) -> str:
    return (
        f"self.{name} is a Weight: it is learned, not assigned, and each synapse has its own; a "
        f'local rule changes it by self.push(..., to="{name}")'
    )


def parameter_assigned(name: str) -> str:
    return (
        f"self.{name} is a Parameter: it is learned, not assigned; for a value that you set "
        f"yourself declare  {name} = horn.State(0.0)"
    )


def state_in_loop(name: str) -> str:
    return (
        f"self.{name} is set inside the loop over messages, so its value depends on their order; "
        "sum up in a variable and set it after the loop"
    )


def set_twice(name: str) -> str:
    """The error message of a second assignment."""
    return (
        f'self.{name} is a State(per="sample") and is assigned a second time on this path: the '
        "next step begins with one value; compute in a variable and assign once"
    )


ONE_STEP = (
    'recompute="sqrt" computes steps again, and what synapses remember of each sample '
    "(horn.SynapseState) has one step where a neuron pushes in forward; train without it"
)

# numbers of layers, batches and targets


def no_statistic(word: str, over: object) -> str:
    """The error message of ``self.word(x, over=over)``, where there is no such statistic.
    over : None where it is not said.
    """
    if over is None:
        known = " or ".join(f'over="{each}"' for each, has in STATISTICS.items() if word in has)
        return f"self.{word}(x) does not say over which numbers: add {known}"
    there = "; ".join(f'over="{known}": {", ".join(words)}' for known, words in STATISTICS.items())
    return f"self.{word} is over {over!r}; there are {there}"


def no_word(word: str) -> str:
    """The error message of ``self.word(x, over=over)`` with other arguments than it has."""
    known = " or ".join(f'over="{each}"' for each in STATISTICS)
    more = "" if word in ("mean", "var") else "; running= is of self.mean and self.var"
    return f"self.{word} takes a number, and {known}{more}"


NO_ARGMIN = 'there is no self.argmin: write self.argmax(-x, over="layer")'
NO_CHANNELS = (
    'over="channel" is over all positions of a channel, and this layer has no positions: give it '
    'a shape, as net.layer((8, 8, 4)), or connect it through windows; over="layer" asks all neurons'
)
NO_BATCH = (
    "at prediction there is no batch; keep the number in a State, which follows it in training:  "
    'average = horn.State(0.0)  and  running="average", or ask  if self.training:'
)


def asked_backward(word: str, over: str) -> str:
    return f"self.{word} asks the {over}: that is for forward"


def asked_in_loop(word: str, over: str) -> str:
    return f"self.{word} asks the {over} inside the loop over messages; ask once"


def several_numbers(name: str) -> str:
    return (
        f"{name} makes one number per neuron, but an aggregate is one number of the whole layer; "
        "return output.mean(), output.sum(), output.max() or output.min() of it"
    )


NO_TARGET = (
    "only output neurons have one, and this layer is hidden: give it the label as an input of its "
    'own, net.input(n, name="label"), or make it an output, net.output(..., loss=...)'
)
TARGET_AT_PREDICTION = (
    "self.target is known in training only, but what is fed forward or kept at prediction depends "
    "on it; ask  if self.training:"
)

# draws


def wrong_draw(word: str, values: Sequence[float]) -> str:
    """The error message of a draw with numbers outside of its domain, "" for those inside."""
    if word == "bernoulli" and not 0.0 <= values[0] <= 1.0:
        return f"bernoulli takes a probability, from 0 to 1; got {values[0]:g}"
    if word == "normal" and not values[1] >= 0.0:
        return f"normal takes a mean and a standard deviation from 0; got std={values[1]:g}"
    if word == "uniform" and not values[0] <= values[1]:
        return f"uniform takes low and high, in this order; got {values[0]:g} and {values[1]:g}"
    return ""


DRAWN_LIKE_ANOTHER = (
    "this draw would give the numbers of another one: a draw is known by its place in the text, of "
    "which there are 32,768, and these two have the same; write it on another line"
)
DRAWN_AGAIN = (
    "this draw is made a second time, and would give the same number again: a draw is known by its "
    "place in the text; write each draw on its own. Of two places one may be taken for the other, "
    "as there are 32,768: write it on another line"
)
