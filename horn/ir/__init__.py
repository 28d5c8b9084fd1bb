"""The intermediate representation of one neuron: immutable expressions and operations on them.

The modules, each importing only those before it: ``nodes`` (operations, expressions), ``rules``
(the constraints on each node), ``monoids`` (of loops), ``neuron_ir`` (the IR of one class),
``averages`` and ``derive`` (backward from forward), ``contraction`` (sums of products into matrix
products), ``tracing`` (formulas in Python), ``formulas`` (those of an
optimizer). ``ir.make`` and the like are those of ``nodes``.
"""

# Its names are those that it imports: one list of them, not a second in __all__.
# ruff: noqa: F401
# mypy: implicit-reexport

from horn.ir.nodes import (
    AXES,
    BOOLEAN,
    COMBINE,
    COMMUTATIVE,
    ELEMENTWISE,
    IDENTITY,
    LOWERED,
    MONOIDS,
    MOST_COPIED,
    OUTPUT,
    TARGET,
    UPSTREAM,
    ZERO,
    Node,
    Op,
    Scalar,
    add,
    assume,
    at_input,
    channel_sum,
    combine,
    compute,
    const,
    contains,
    drawn,
    is_const,
    is_drawn,
    is_truth,
    leaf,
    lift,
    load,
    make,
    matmul,
    mul,
    of_input,
    rank,
    rebuild,
    reduce,
    replace,
    select,
    truth,
    union,
    walk,
)
from horn.ir.rules import SPEC, verify
