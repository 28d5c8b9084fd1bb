"""What the neuron language refuses, with the place and the remedy, and what it accepts.

In the texts of refused neurons «...» is what the caret must be under.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import horn
from horn import math
from horn.errors import CompileError, HornError
from horn.neuron import has_backward
from tests.language.texts import backward, forward, module, source

SUM = """
    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))
"""


def refused(tmp_path, body, before=""):
    """What is said about a neuron; the caret must be under what «...» marks."""
    text = source(body, before)
    made = module(tmp_path, text.replace("«", "").replace("»", ""))
    with pytest.raises(CompileError) as caught:
        forward(made.N)
        if has_backward(made.N):
            backward(made.N)
    error = caught.value
    marked = [(k, line) for k, line in enumerate(text.splitlines(), 1) if "«" in line]
    assert len(marked) == 1, "mark the caret's place"
    number, line = marked[0]
    start = line.index("«")
    end = line.index("»") - 1 if "»" in line else len(line) - 1
    assert (error.file, error.line) == (made.__file__, number), str(error)
    assert (error.column, error.end_column) == (start, end), str(error)
    head, shown, caret, *problem = str(error).split("\n")
    assert re.fullmatch(rf"{re.escape(made.__file__)}:{number}, in \S+", head)
    assert caret.count("^") == end - start
    assert shown[caret.index("^") : len(caret)] == line[start + 1 : end + 1]
    assert "\n".join(problem) == error.problem
    return error.problem


REFUSED = {
    "never feedforward": (
        """
        «def forward(self, messages):»
            total = sum(m.input * m.weight for m in messages)
        """,
        "N.forward never calls self.feedforward(...), so the neuron has no output. "
        "End forward with self.feedforward(value)",
    ),
    "feedforward on one path": (
        """
        «def forward(self, messages):»
            total = sum(m.input * m.weight for m in messages)
            if total > 0.0:
                self.feedforward(total)
        """,
        "self.feedforward(...) is not called where 'total > 0.0' is false; call it exactly once "
        "on every path of forward",
    ),
    "feedforward on one path of a negated condition": (
        """
        «def forward(self, messages):»
            mask = self.bernoulli(0.5)
            total = sum(m.input * m.weight for m in messages)
            if mask == 0:
                self.feedforward(total)
        """,
        "self.feedforward(...) is not called where 'mask == 0' is false",
    ),
    "feedforward twice": (
        """
        def forward(self, messages):
            total = sum(m.input * m.weight for m in messages)
            self.feedforward(total)
            «self.feedforward(total)»
        """,
        "self.feedforward is called a second time; call it exactly once on every path",
    ),
    "feedforward twice on one path": (
        """
        def forward(self, messages):
            total = sum(m.input * m.weight for m in messages)
            if not total > 0.0:
                self.feedforward(total)
            «self.feedforward(0.0)»
        """,
        "self.feedforward is called a second time here: it was called above already, except where "
        "'not total > 0.0' is false; call it exactly once on every path, with else or return",
    ),
    "a draw in a loop over constants": (
        """
        def forward(self, messages):
            noise = 0.0
            for k in range(2):
                noise = noise + «self.uniform()»
            self.feedforward(noise + sum(m.input * m.weight for m in messages))
        """,
        "this draw is made a second time, and would give the same number again",
    ),
    "a draw of a message in a loop over constants": (
        """
        def forward(self, messages):
            self.feedforward(sum(self.thinned(messages) for k in (1.0, 2.0)))

        def thinned(self, messages):
            return sum(m.input * m.weight * «self.bernoulli(0.5)» for m in messages)
        """,
        "write each draw on its own",
    ),
    "feedforward in the loop": (
        """
        def forward(self, messages):
            for m in messages:
                «self.feedforward(m.input)»
        """,
        "call it once, after the loop",
    ),
    "feedforward in backward": (
        SUM
        + """
    def backward(self, messages):
        «self.feedforward(1.0)»
        """,
        "self.feedforward belongs in forward, not in backward",
    ),
    "backpropagate never": (
        SUM
        + """
    «def backward(self, messages):»
        g = sum(m.gradient for m in messages)
        """,
        "N.backward never calls self.backpropagate(...); end backward with "
        "self.backpropagate(delta), once on every path",
    ),
    "backpropagate in forward": (
        """
        def forward(self, messages):
            «self.backpropagate(0.0)»
        """,
        "self.backpropagate belongs in backward, not in forward",
    ),
    "push outside the loop": (
        SUM
        + """
    def backward(self, messages):
        g = sum(m.gradient for m in messages)
        «self.push(g)»
        self.backpropagate(g)
        """,
        "N.backward pushes outside the loop over messages, once for all synapses. Call "
        "self.push(...) once per message, inside the loop",
    ),
    "push twice": (
        SUM
        + """
    def backward(self, messages):
        for m in messages:
            self.push(m.delta)
            «self.push(m.delta)»
        self.backpropagate(0.0)
        """,
        "push is called a second time for the same message; push exactly once per message",
    ),
    "push in two loops": (
        SUM
        + """
    def backward(self, messages):
        for m in messages:
            self.push(m.delta)
        for m in messages:
            «self.push(m.delta)»
        self.backpropagate(0.0)
        """,
        "push is called in two loops; push exactly once per message",
    ),
    "push for some messages": (
        SUM
        + """
    def backward(self, messages):
        for m in messages:
            if m.delta > 0.0:
                «self.push(m.delta)»
        self.backpropagate(0.0)
        """,
        "self.push(...) is not called where 'm.delta > 0.0' is false; push exactly once per "
        "message on every path of the loop",
    ),
    "push of a running sum": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                total += m.input * m.weight
                «self.push(total)»
            self.feedforward(total)
        """,
        "push uses 'total' while it is still being summed up, so it depends on the order of "
        "messages; use it after the loop, in a second loop",
    ),
    "a Parameter's gradient is missing": (
        "    gain = horn.Parameter(1.0)\n"
        + SUM
        + """
    «def backward(self, messages):»
        self.backpropagate(0.0)
        """,
        "N.backward does not push the gradient of Parameter 'gain'; call "
        'self.push(gradient, to="gain") once on every path',
    ),
    "a Parameter that is not there": (
        "    gain = horn.Parameter(1.0)\n"
        + SUM
        + """
    def backward(self, messages):
        «self.push(1.0, to="gian")»
        self.backpropagate(0.0)
        """,
        "N has no Parameter 'gian'; did you mean 'gain'? Parameters: gain",
    ),
    "a Parameter's gradient in the loop": (
        "    gain = horn.Parameter(1.0)\n"
        + SUM
        + """
    def backward(self, messages):
        for m in messages:
            «self.push(m.delta, to="gain")»
        self.backpropagate(0.0)
        """,
        "sum up in a variable and push once after the loop",
    ),
    "a later message": (
        """
        def forward(self, messages):
            self.feedforward(«messages[1]».input)
        """,
        "a neuron sees one message at a time and in no fixed order; loop over them (for m in "
        "messages) instead of indexing",
    ),
    "unknown field": (
        SUM
        + """
    def backward(self, messages):
        self.backpropagate(sum(«m.detla» * m.weight for m in messages))
        """,
        "message has no field 'detla'. Did you mean 'delta'? Fields: delta, weight, gradient, "
        "previous_update",
    ),
    "delta in forward": (
        """
        def forward(self, messages):
            self.feedforward(sum(«m.delta» for m in messages))
        """,
        "in forward a message has no 'delta' yet: it comes in backward. Fields: input, weight, "
        "index, previous_update",
    ),
    "input in backward": (
        SUM
        + """
    def backward(self, messages):
        for m in messages:
            self.push(m.delta * «m.input»)
        self.backpropagate(0.0)
        """,
        "in backward a message has no 'input': what this neuron sent is self.output. Fields: "
        "delta, weight, gradient, previous_update",
    ),
    "undeclared attribute": (
        """
        def forward(self, messages):
            «self.total» = sum(m.input * m.weight for m in messages)
            self.feedforward(self.total)
        """,
        "self.total is not declared; a value that a neuron keeps is a State: write  "
        "total = horn.State(0.0)  in N, or use a plain variable",
    ),
    "misspelled attribute": (
        """
        gain = 2.0
        def forward(self, messages):
            self.feedforward(«self.gian» * sum(m.input for m in messages))
        """,
        "N has no 'gian'; did you mean 'gain'? declare it in the class: a constant (gian = 1.0), "
        "horn.Parameter or horn.State",
    ),
    "a bias that is added again": (
        """
        def forward(self, messages):
            self.feedforward(sum(m.input * m.weight for m in messages) + «self.bias»)
        """,
        "a neuron has no 'bias' to add: it is the weight of the last message, whose input is 1, "
        "and is in the sum over messages already; leave it out",
    ),
    "an attribute that is None": (
        """
        mode = None
        def forward(self, messages):
            self.feedforward(«self.mode»)
        """,
        "self.mode is None; give N.mode a number",
    ),
    "Parameter assigned": (
        """
        gain = horn.Parameter(1.0)
        def forward(self, messages):
            «self.gain» += 1.0
            self.feedforward(self.gain)
        """,
        "self.gain is a Parameter: it is learned, not assigned; for a value that you set yourself "
        "declare  gain = horn.State(0.0)",
    ),
    "State set in the loop": (
        """
        trace = horn.State(0.0)
        def forward(self, messages):
            for m in messages:
                «self.trace» = m.input
            self.feedforward(self.trace)
        """,
        "self.trace is set inside the loop over messages, so its value depends on their order; "
        "sum up in a variable and set it after the loop",
    ),
    "output assigned": (
        """
        def forward(self, messages):
            «self.output» = 1.0
        """,
        "self.output cannot be assigned: call self.feedforward(value)",
    ),
    "output read too early": (
        """
        def forward(self, messages):
            self.feedforward(0.5 * «self.output»)
        """,
        "self.output is read before self.feedforward(...) has set it",
    ),
    "a weight assigned": (
        """
        def forward(self, messages):
            for m in messages:
                «m.weight» = 0.0
            self.feedforward(1.0)
        """,
        "m.weight cannot be assigned: a weight changes by self.push(...); a number that each "
        "synapse remembers is declared in the class: trace = horn.SynapseState(0.0)",
    ),
    "order: the message before": (
        """
        def forward(self, messages):
            total, last = 0.0, 0.0
            for m in messages:
                «total += m.input * last»
                last = m.weight
            self.feedforward(total)
        """,
        "'total' depends on the order of messages (it also uses 'last', which changes from "
        "message to message): from one message to the next a variable may be summed (+=), "
        "multiplied (*=), or taken the max, min, any or all of, and nothing else",
    ),
    "order: a leaky sum": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                «total = 0.5 * total + m.input»
            self.feedforward(total)
        """,
        "'total' depends on the order of messages: from one message",
    ),
    "order: the difference of all": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                «total = m.input - total»
            self.feedforward(total)
        """,
        "'total' depends on the order of messages: from one message",
    ),
    "order: the weight of the largest": (
        """
        def forward(self, messages):
            best, chosen = -1.0, 0.0
            for m in messages:
                if m.input > best:
                    best = m.input
                    «chosen = m.weight»
            self.feedforward(chosen)
        """,
        "'chosen' depends on the order of messages (it also uses 'best'",
    ),
    "order: the last of equals": (
        """
        def forward(self, messages):
            best = -1.0
            for m in messages:
                if m.input >= best:
                    «best = m.input»
            self.feedforward(best)
        """,
        "'best' keeps the last of equal messages, so its gradient depends on their order; keep "
        "the first: compare with >, or put it first, as in max(best, ...)",
    ),
    "order: min of the new and the old": (
        """
        def forward(self, messages):
            least = 9.0
            for m in messages:
                «least = min(m.input, least)»
            self.feedforward(least)
        """,
        "keep the first: compare with <, or put it first, as in min(least, ...)",
    ),
    "break": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                total += m.input
                if m.input > 0.0:
                    «break»
            self.feedforward(total)
        """,
        "break in a loop: the result would depend on the order of messages; put "
        "the rest of the loop under an if",
    ),
    "continue": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                if m.input > 0.0:
                    «continue»
                total += m.input
            self.feedforward(total)
        """,
        "put the rest of the loop under an if",
    ),
    "return in the loop": (
        """
        def forward(self, messages):
            for m in messages:
                if m.input > 0.0:
                    «return»
            self.feedforward(1.0)
        """,
        "return inside the loop over messages: what is computed would depend on the order of "
        "messages; use an if instead",
    ),
    "while": (
        """
        def forward(self, messages):
            «while True:
                pass
        """,
        "while is not in the neuron language: a neuron loops over its messages (for m in messages)",
    ),
    "nested loops": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                «for n in messages:
                    total += m.input * n.input
            self.feedforward(total)
        """,
        "a loop inside the loop over messages is not in the neuron language: a neuron sees one "
        "message at a time",
    ),
    "a sum in the loop": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                total += m.input / sum«(n.input for n in messages)»
            self.feedforward(total)
        """,
        "compute it before, in a loop of its own",
    ),
    "a loop over numbers": (
        """
        def forward(self, messages):
            for k in «range(len(messages))»:
                pass
            self.feedforward(1.0)
        """,
        "'range(len(messages))': a neuron loops over the messages themselves: for m in messages, "
        "where m.index is the number of each, from 0",
    ),
    "numbered messages": (
        """
        def forward(self, messages):
            for k, m in «enumerate»(messages):
                pass
            self.feedforward(1.0)
        """,
        "enumerate is not in the neuron language; messages have no order: loop over them with "
        "for m in messages",
    ),
    "a range without end": (
        """
        def forward(self, messages):
            self.feedforward(sum(k for k in «range(2, 5, 0)»))
        """,
        "'range(2, 5, 0)': range() arg 3 must not be zero",
    ),
    "sequences of two lengths": (
        """
        def forward(self, messages):
            self.feedforward(sum(a * b for a, b in «zip((1, 2), (3, 4, 5), strict=True)»))
        """,
        "'zip((1, 2), (3, 4, 5), strict=True)': zip() argument 2 is longer than argument 1",
    ),
    "a list of messages": (
        """
        def forward(self, messages):
            values = «[m.input for m in messages]»
            self.feedforward(sum(values))
        """,
        "a neuron keeps no list of its messages; reduce them at once",
    ),
    "unknown function": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                total += «math.gamma»(m.input) * m.weight
            self.feedforward(total)
        """,
        "math.gamma is not in the neuron language (calls allowed: abs, all, any, bool, float, len, "
        f"max, min, pow, sum, of horn.math {', '.join(sorted(math.FUNCTIONS))}, "
        "and your own functions).\n"
        "Write it with those, or put @horn.interpreted on the class, which runs it with all of "
        "Python.",
    ),
    "a yield": (
        """
        def forward(self, messages):
            «yield 1.0»
        """,
        "'(yield 1.0)' is not in the neuron language (numbers, + - * / // % **, comparisons, "
        "if-else, and the functions of horn.math are); yield and await are not for neurons: a "
        "method gives its number with self.feedforward(value) or self.backpropagate(delta), a "
        "helper with return",
    ),
    "the type of a number": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            self.feedforward(z if «isinstance»(z, float) else 0.0)
        """,
        "isinstance is not in the neuron language; all values are numbers here: leave it out",
    ),
    "numpy": (
        """
        def forward(self, messages):
            self.feedforward(«np.tanh»(sum(m.input for m in messages)))
        """,
        "np.tanh is not in the neuron language; write horn.math.tanh",
    ),
    "numpy of messages": (
        """
        def forward(self, messages):
            self.feedforward(«np.sum»(m.input * m.weight for m in messages))
        """,
        "np.sum is not in the neuron language; write  sum(m.input * m.weight for m in messages)",
    ),
    "function looked for in horn": (
        """
        def forward(self, messages):
            self.feedforward(«horn.tanh»(1.0))
        """,
        "horn has no 'tanh'; write horn.math.tanh",
    ),
    "misspelled function": (
        """
        def forward(self, messages):
            self.feedforward(«horn.math.tnah»(1.0))
        """,
        "horn.math has no 'tnah'; did you mean 'tanh'?",
    ),
    "letters in another order, nearer to a shorter name": (
        """
        def forward(self, messages):
            self.feedforward(«horn.math.tahn»(1.0))
        """,
        "horn.math has no 'tahn'; did you mean 'tanh'?",
    ),
    "print": (
        """
        def forward(self, messages):
            self.feedforward(«print»(1.0))
        """,
        "write it on a line of its own, which is left out where neurons are compiled",
    ),
    "super": (
        """
        def forward(self, messages):
            «super»().forward(messages)
        """,
        "call the base class by its name: Base.forward(self, messages)",
    ),
    "super of a helper": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            self.feedforward(«super»().bend(2.0 * z, k=1))
        """,
        "super is not in the neuron language; call the base class by its name: "
        "Base.bend(self, 2.0 * z, k=1)",
    ),
    "super of nothing": (
        """
        def forward(self, messages):
            base = «super»()
        """,
        "call the base class by its name: Base.forward(self, messages)",
    ),
    "round": (
        """
        def forward(self, messages):
            self.feedforward(«round»(2.5))
        """,
        "write horn.math.floor(x + 0.5), which rounds halves up: 2.5 gives 3, not 2",
    ),
    "round to digits": (
        """
        def forward(self, messages):
            self.feedforward(«round»(0.125, 2))
        """,
        "write horn.math.floor(x * 100.0 + 0.5) / 100.0 for 2 digits, which rounds halves up: "
        "0.125 gives 0.13, not 0.12",
    ),
    "the largest of a starred tuple": (
        """
        def forward(self, messages):
            xs = (1.0, 2.0)
            self.feedforward(max(«*xs»))
        """,
        "max takes the values of a tuple at once: max(xs)",
    ),
    "a starred argument": (
        """
        def forward(self, messages):
            xs = (1.0, 2.0)
            self.feedforward(math.pow(«*xs»))
        """,
        "write the values one by one, as values[0], values[1]",
    ),
    "which message is the largest": (
        """
        def forward(self, messages):
            best, arg = -math.inf, 0.0
            for m in messages:
                v = m.input * m.weight
                if v > best:
                    best = v
                    «arg = m.index»
            self.feedforward(arg)
        """,
        "(it also uses 'best', which changes from message to message): from one message to the "
        "next a variable may be summed (+=), multiplied (*=), or taken the max, min, any or all "
        "of, and nothing else. To know which message is the largest write  best = max(messages, "
        "key=lambda m: m.input * m.weight)  (min likewise) and read the fields of best, as "
        "best.index",
    ),
    "a statistic that does not say over what": (
        """
        def forward(self, messages):
            self.feedforward(«self.max(sum(m.input for m in messages))»)
        """,
        'self.max(x) does not say over which numbers: add over="layer"',
    ),
    "a statistic over a variable": (
        """
        def forward(self, messages):
            where = "layer"
            self.feedforward(«self.max(sum(m.input for m in messages), over=where)»)
        """,
        "self.max is over 'where'; there are over=\"layer\": sum, mean",
    ),
    "int": (
        """
        def forward(self, messages):
            self.feedforward(«int»(2.5))
        """,
        "write horn.math.floor(x)",
    ),
    "a draw without its probability": (
        """
        def forward(self, messages):
            self.feedforward(«self.bernoulli()»)
        """,
        "self.bernoulli needs p",
    ),
    "a draw per something else": (
        """
        def forward(self, messages):
            self.feedforward(self.bernoulli(0.5, per=«"epoch"»))
        """,
        "per must be one of 'sample', 'sequence', 'batch', 'run', got 'epoch'",
    ),
    "a draw with another keyword": (
        """
        def forward(self, messages):
            self.feedforward(«self.bernoulli(q=0.5)»)
        """,
        "bernoulli takes p and per; got 'q'",
    ),
    "value set in the loop": (
        """
        def forward(self, messages):
            for m in messages:
                last = m.input
            self.feedforward(«last»)
        """,
        "'last' holds what the last message left, which depends on the order of messages; start "
        "it before the loop and add to it, or use it inside the loop only",
    ),
    "the message after the loop": (
        """
        def forward(self, messages):
            total = 0.0
            for m in messages:
                total += m.input
            self.feedforward(total * «m».weight)
        """,
        "'m' is the message of a loop that is over; read its fields inside the loop",
    ),
    "set on one side only": (
        """
        def forward(self, messages):
            total = sum(m.input for m in messages)
            if total > 0.0:
                k = 1.0
            self.feedforward(total * «k»)
        """,
        "'k' is not set where 'total > 0.0' is false; set it before the if, or on both sides",
    ),
    "a builtin's name that is assigned later": (
        """
        def forward(self, messages):
            z = «sum»(m.input * m.weight for m in messages)
            sum = 2.0 * z
            self.feedforward(sum)
        """,
        "'sum' is assigned in this function, so that Python reads no other 'sum' in it, and it has "
        "no value here; give one of the two another name, or set it before it is used",
    ),
    "a module's name that is assigned under an if": (
        """
        def forward(self, messages):
            if not self.training:
                horn = 2.0
            self.feedforward(«horn» * sum(m.input for m in messages))
        """,
        "'horn' is assigned in this function, so that Python reads no other 'horn' in it",
    ),
    "misspelled variable": (
        """
        def forward(self, messages):
            total = sum(m.input for m in messages)
            self.feedforward(«totl»)
        """,
        "'totl' is not defined here; did you mean 'total'?",
    ),
    "or of messages": (
        """
        def forward(self, messages):
            first = 0.0
            for m in messages:
                first = first or «m.input»
            self.feedforward(first)
        """,
        "'first or m.input' would keep the first of the messages that decides, but they come in "
        "no order; 'm.input' is a number: write m.input != 0",
    ),
    "& of conditions": (
        """
        def forward(self, messages):
            t = sum(m.input for m in messages)
            self.feedforward(1.0 if «(t > 0.0) & (t < 1.0)» else 0.0)
        """,
        "the operator in '(t > 0.0) & (t < 1.0)' is not in the neuron language "
        "(+ - * / // % ** are); write and",
    ),
    "an index that is not known": (
        """
        taps = (1.0, 2.0)
        def forward(self, messages):
            t = sum(m.input for m in messages)
            self.feedforward(self.taps[«t»])
        """,
        "an index takes whole numbers that are known before the run, not 't'",
    ),
    "a slice that is not known": (
        """
        taps = (1.0, 2.0)
        def forward(self, messages):
            t = sum(m.input for m in messages)
            self.feedforward(sum(self.taps[:«t»]))
        """,
        "a slice takes whole numbers that are known before the run, not 't'",
    ),
    "an element of a number": (
        """
        def forward(self, messages):
            t = sum(m.input for m in messages)
            self.feedforward(«t[0]»)
        """,
        "'t[0]': only tuples, lists and arrays have elements here, and 't' is a number",
    ),
    "three values for two names": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            «x, y» = (z, 1, 2)
            self.feedforward(x + y)
        """,
        "these are 2 names, but there are 3 values; write a name for each",
    ),
    "one value for two names": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            «x, y» = z
            self.feedforward(x + y)
        """,
        "these are 2 names, but what is assigned to them is no tuple of 2",
    ),
    "a name for the rest": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            x, «*y» = (z, 1, 2)
            self.feedforward(x)
        """,
        "'*y' is not in the neuron language: write a name for each value, or a slice for the rest, "
        "as rest = values[1:]",
    ),
    "a condition between tuples of two lengths": (
        """
        def forward(self, messages):
            z = sum(m.input for m in messages)
            x, y = «(z, 1) if not z > 0 else (z, 1, 2)»
            self.feedforward(x + y)
        """,
        "this has 2 values where 'not z > 0' is true and 3 where it is false; give it the same "
        "number of values on both sides",
    ),
    "a helper that returns two values or three": (
        """
        def some(self, z):
            if not z > 0:
                return z, 1
            return z, 1, 2
        def forward(self, messages):
            «x, y = self.some(sum(m.input for m in messages))»
            self.feedforward(x + y)
        """,
        "this has 2 values where 'not z > 0' is true and 3 where it is false; give it the same "
        "number of values on both sides",
    ),
    "in": (
        """
        mode = "a"
        def forward(self, messages):
            self.feedforward(1.0 if «self.mode in ("a", "b")» else 0.0)
        """,
        "'in' and 'is' are not in the neuron language (< <= > >= == != are)",
    ),
    "a message as a number": (
        """
        def forward(self, messages):
            self.feedforward(sum(«m» for m in messages))
        """,
        "a message is not a number; read one of its fields: input, weight, index, previous_update",
    ),
    "an activation as a number": (
        """
        def forward(self, messages):
            self.feedforward(«self.activation»)
        """,
        "'self.activation' is not a number; call it: self.activation(...)",
    ),
    "messages as a number": (
        """
        def forward(self, messages):
            self.feedforward(«messages»)
        """,
        "messages can only be looped over: for m in messages, or sum(... for m in messages)",
    ),
    "sum of messages": (
        """
        def forward(self, messages):
            self.feedforward(«sum(messages)»)
        """,
        "sum(messages): say what of each message: sum(m.input * m.weight for m in messages)",
    ),
    "max with a key": (
        """
        def forward(self, messages):
            self.feedforward(«max((m.input for m in messages), key=abs)»)
        """,
        "write  best = max(messages, key=lambda m: m.input * m.weight)  and read the fields",
    ),
    "max that may meet no message": (
        """
        def forward(self, messages):
            self.feedforward(«max(m.input for m in messages if m.input > 0.0)»)
        """,
        "the max of no message at all is no number; say what it is where the if lets none "
        "through: max((... for m in messages if ...), default=0.0)",
    ),
    "feedforward by keyword": (
        """
        def forward(self, messages):
            «self.feedforward(value=1.0)»
        """,
        "self.feedforward takes one number",
    ),
    "too many numbers for a function": (
        """
        def forward(self, messages):
            self.feedforward(«horn.math.exp(1.0, 2.0)»)
        """,
        "exp takes 1 argument, got 2",
    ),
    "too many numbers for a method": (
        """
        def half(self, x):
            return 0.5 * x
        def forward(self, messages):
            self.feedforward(«self.half(1.0, 2.0)»)
        """,
        "N.half takes 1 argument (x), got 2",
    ),
    "forward without messages": (
        """
        «def forward(self):»
            self.feedforward(1.0)
        """,
        "write it as  def forward(self, messages):",
    ),
    "derivative misspelled": (
        """
        def forward(self, messages):
            self.feedforward(«self.activation.derivativ»(1.0))
        """,
        "self.activation has no 'derivativ'; did you mean 'derivative'? it offers derivative(y) "
        "and derivative_at(z)",
    ),
    "try": (
        """
        def forward(self, messages):
            «try:
                self.feedforward(1.0)
            except ValueError:
                pass
        """,
        "try is not in the neuron language (assignments, if, for m in messages and calls are)",
    ),
    "a function in a method": (
        """
        def forward(self, messages):
            «def f(x):
                return x
            self.feedforward(f(1.0))
        """,
        "a function inside a method is not in the neuron language",
    ),
    "Greek letters before the caret": (
        """
        def forward(self, messages):
            Σ = sum(m.input for m in messages)
            self.feedforward(Σ * Σ * «Δ»)
        """,
        "'Δ' is not defined here",
    ),
    "a comment at the margin": (
        """
        def forward(self, messages):
            total = sum(m.input for m in messages)
# a comment at the margin
            self.feedforward(«totl»)
        """,
        "did you mean 'total'?",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    body, problem = REFUSED[name]
    assert problem in refused(tmp_path, body)


OF_MESSAGES = "{}(m.input * m.weight for m in messages)"
OF_NUMBERS = {"abs": "abs(self.learning_rate)", "pow": "pow(self.learning_rate, 2.0)"}
HIDDEN = [name for name in ("sum", "max", "min", "any", "all", "abs", "pow") if hasattr(np, name)]


@pytest.mark.parametrize("name", HIDDEN)  # NumPy 1 has no pow
def test_a_function_of_numpy_that_hides_pythons_is_told_as_such(name, tmp_path):
    call = OF_NUMBERS.get(name, OF_MESSAGES.format(name))
    body = """
        def forward(self, messages):
            self.feedforward({} + 0.0)
        """
    star = f"from numpy import {name}"
    said = refused(tmp_path, body.format(call.replace(name, f"«{name}»", 1)), star)
    assert said == (
        f"{name} here is numpy.{name}, as after  from numpy import *  or %pylab, and a neuron "
        f"calls Python's own: write  from builtins import {name}  below that, or  import numpy as "
        "np  instead of it"
    )
    below = f"{star}\nfrom builtins import {name}"
    forward(module(tmp_path, source(body.format(call), below)).N)


def test_recursion_is_refused_where_it_recurs(tmp_path):
    before = "def deep(x):\n    return «deep(x)» + 1.0\n"
    body = """
    def forward(self, messages):
        self.feedforward(deep(sum(m.input for m in messages)))
    """
    problem = (
        "deep calls itself more than 40 deep: what ends a recursion must be a constant of the "
        "neuron, not a number of its messages"
    )
    assert refused(tmp_path, body, before) == problem


def chained(n, marked):
    """Helpers f0, f1, ...: each calls the one before, none itself; and who calls the last."""
    calls = [f"f{k - 1}(x)" if k else "x" for k in range(n)]
    calls = [f"«{call}»" if k == marked else call for k, call in enumerate(calls)]
    before = "".join(f"def f{k}(x):\n    return {calls[k]} + 1.0\n" for k in range(n))
    body = f"""
    def forward(self, messages):
        self.feedforward(f{n - 1}(sum(m.input * m.weight for m in messages)))
    """
    return body, before


def test_helpers_that_call_helpers_are_no_recursion(tmp_path):
    forward(module(tmp_path, source(*chained(70, None))).N)
    assert refused(tmp_path, *chained(90, 10)) == (
        "f9 is called by a function that another calls, and so on, more than 80 deep; let fewer "
        "functions stand between it and the neuron"
    )


def test_a_helper_that_returns_nothing_on_one_path_is_named(tmp_path):
    before = "def positive(x):\n    if x > 0.0:\n        return x\n"
    body = """
    def forward(self, messages):
        self.feedforward(«positive(sum(m.input for m in messages))»)
    """
    assert refused(tmp_path, body, before) == (
        "positive returns nothing where 'x > 0.0' is false; return a number on every path"
    )


def test_a_helper_that_never_returns(tmp_path):
    before = "def lost(x):\n    y = x\n"
    body = """
    def forward(self, messages):
        self.feedforward(«lost(sum(m.input for m in messages))»)
    """
    assert "gives nothing; a number is needed here" in refused(tmp_path, body, before)


FORWARD = """
    text = "2"
    @property
    def twice(self):
        return 2.0
    @classmethod
    def of_class(cls, z):
        return z
    def bend(self, z, a):
        return z * a
    def bare(z):
        return z
    def forward(self, messages):
        z = sum(m.input * m.weight for m in messages)
"""
REMEDIES = {
    "self.feedforward(«self.bend(z)»)": "N.bend takes 2 arguments (z, a), got 1",
    "self.feedforward(«self.bend(z, 1.0, 2.0)»)": "N.bend takes 2 arguments (z, a), got 3",
    "self.feedforward(«self.bend(z, a=2.0)»)": "write them in their order, without names",
    "self.feedforward(«cached»(z))": "is a function inside a _lru_cache_wrapper; leave its decor",
    "self.feedforward(«horn.math.sum»(z))": "write  sum(m.input * m.weight for m in messages)",
    "self.feedforward(«horn.math.sofplus»(z))": "math has no 'sofplus'; did you mean 'softplus'?",
    "self.feedforward(«self.bare(z)»)": "N.bare is a method, and has no self: def bare(self, z):",
    "self.feedforward(z * «self.twice»)": "self.twice is a property",
    "self.feedforward(«self.of_class»(z))": "self.of_class is a classmethod",
    "self.feedforward(z * «self.text»)": "'self.text' is not a number, but the text '2'",
    "self.feedforward(z * «LOOSE»)": "write  LOOSE = horn.Parameter(...)  in the class",
    "f = «lambda v: v * v»": "write it as a method, or as a function beside the class",
    "for _ in range(«1e400»): z += 1.0": "range takes whole numbers",
    "y = «f'{z}'»": "text is for print(...) on a line of its own",
    "«global LOOSE»": "what a neuron keeps from batch to batch is a horn.State",
    "«assert z > 0.0»": "leave it out",
}


@pytest.mark.parametrize("line", REMEDIES)
def test_what_is_refused_has_a_remedy(tmp_path, line):
    body = f"{FORWARD}        {line}\n"
    before = (
        "import functools\n@functools.lru_cache\ndef cached(x):\n    return x\n"
        "LOOSE = horn.Parameter(1.0)\n"
    )
    assert REMEDIES[line] in refused(tmp_path, body, before)


def test_try_and_match_have_a_remedy(tmp_path):
    tried = "        «try:»\n            y = 1.0 / z\n        except ValueError: pass\n"
    matched = "        «match z:»\n            case _:\n                y = z\n"
    for body, remedy in ((tried, "ask with an if before"), (matched, "write if and elif")):
        assert remedy in refused(tmp_path, FORWARD + body)


def test_a_helper_with_keyword_only_arguments(tmp_path):
    before = "def odd(x, *, k=1.0):\n    return k * x\n"
    made = module(tmp_path, source(SUM.replace("sum(", "odd(sum(").replace(")))", "))))"), before))
    with pytest.raises(CompileError, match="helper functions of a neuron take plain arguments"):
        forward(made.N)


def test_what_a_decorator_does_counts_also_where_it_wraps(tmp_path):
    """functools.wraps leads to the function within, which was compiled in its place."""
    before = """
import functools
def thrice(f):
    @functools.wraps(f)
    def within(x):
        return 3.0 * f(x)
    return within
@thrice
def same(x):
    return x
"""
    wrapped = SUM.replace("self.activation(", "same(")
    plain = SUM.replace("self.activation(", "3.0 * (")
    first = forward(module(tmp_path, source(wrapped, before)).N).output
    assert str(first) == str(forward(module(tmp_path, source(plain)).N).output)


def test_a_decorator_of_any_arguments_is_told_to_name_them(tmp_path):
    before = """
import functools
def passes(f):
    @functools.wraps(f)
    def within(*args):
        return f(*args)
    return within
"""
    body = """
    @passes
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages))
    """
    made = module(tmp_path, source(body, before))
    with pytest.raises(CompileError, match="name in the decorator those of"):
        forward(made.N)


def test_a_neuron_without_source_says_so():
    made = {"horn": horn}
    lines = [
        "class N(horn.Neuron):",
        "    def forward(self, messages):",
        "        self.feedforward(1.0)",
    ]
    exec("\n".join(lines), made)
    with pytest.raises(
        HornError, match=r"the source of N\.forward cannot be read .*define it in a file"
    ):
        forward(made["N"])


def test_forward_must_be_a_plain_method(tmp_path):
    made = module(tmp_path, source("@staticmethod\ndef forward(self, messages):\n    pass\n"))
    with pytest.raises(
        CompileError, match=r"N\.forward must be a plain method: def forward\(self, messages\)"
    ):
        forward(made.N)


def test_a_lambda_is_no_forward(tmp_path):
    made = module(tmp_path, source("forward = lambda self, messages: self.feedforward(1.0)\n"))
    with pytest.raises(CompileError, match="N.forward is a lambda; write  def forward") as caught:
        forward(made.N)
    assert caught.value.line == made.N.forward.__code__.co_firstlineno


def test_a_power_that_is_no_real_number_is_left_to_the_run(tmp_path):
    made = module(
        tmp_path, source("def forward(self, messages):\n    self.feedforward((-2.0) ** 0.5)\n")
    )
    assert forward(made.N).output.op.value == "pow"
