"""The interpreter: the specification of what a network means, slow and obvious.

``horn.train(job, backend="python")`` runs the user's own methods, neuron by neuron, sample by
sample, message by message, with real ``Neuron`` and ``Synapse`` objects, so that ``print`` and the
debugger work. docs/notes/0001 says what they mean.

    calls         one run of forward or backward, and the rules that it must keep
    language      the user's functions, with math.exp and the like seen by the tape
    neuron_kinds  weighted sum or not, local rule or not
    layers        a layer made ready: neurons and wires
    passes        one sample forward and back
    engine        batches and updates
"""

from horn.interpreter.engine import Engine

__all__ = ["Engine"]
