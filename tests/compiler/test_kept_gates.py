"""What backward reads of a sequence's gates was kept when they were computed."""

from __future__ import annotations

import horn
from horn import ir
from horn.compiler import lower
from horn.compiler.storage import COSTLY
from horn.program import Loop, Repeat
from tests.bench.bench_recurrent import GRU, LSTM, MGU


def costly(statements):
    """The outputs of loops that compute something costly."""
    return [
        output.buffer
        for s in statements if isinstance(s, Loop)
        for output in s.outputs if any(node.op in COSTLY for node in ir.walk(output.node))
    ]  # fmt: skip


def test_no_gate_is_computed_again():
    for cell, n_gates in ((LSTM, 5), (GRU, 3), (MGU, 2)):
        net = horn.Network(seed=1)
        x = net.input(3, steps=4)
        net.layer(5, neuron=cell, inputs={"x": x, "h": horn.Delayed()}, name="h")
        net.output(2, loss="squared_error")
        program = lower.training_program(net, horn.SGD(0.1), "values")
        repeats = [s for s in program.statements if isinstance(s, Repeat)]
        back = [s for s in repeats if s.reverse]
        assert back and not any(costly(s.body) for s in back)
        kept = {name for s in repeats if not s.reverse for name in costly(s.body)}
        assert {f"h.part.{k}" for k in range(n_gates)} <= kept
