"""The table covers every operation; what is folded and simplified keeps its value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn import ir
from horn.errors import CompileError
from horn.ir import SPEC, Node, Op, const, leaf, load, make, reduce, select
from horn.ir.nodes import _intern
from tests.language.values import arrays, evaluate, shape

X, W = leaf(Op.INPUT, "bi"), leaf(Op.WEIGHT, "oi")
VARIABLES = {"x": load("x", "bi"), "w": load("w", "oi"), "a": load("a", "bo"), "c": load("c", "o")}
COMPARE = (Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE)


def test_the_table_has_every_operation():
    assert set(SPEC) == set(Op)


@pytest.mark.parametrize("op", ir.ELEMENTWISE, ids=lambda op: op.value)
def test_the_reference_backend_covers_every_elementwise_operation(op):
    names = ("x", "w", "a")[: ir.ELEMENTWISE[op]]
    args = [VARIABLES[n] for n in names]
    node = _intern(op, tuple(args), ir.union(*(a.axes for a in args)), None)
    ir.verify(node)
    env = {
        k: np.abs(v) for k, v in arrays(np.random.default_rng(0), x="bi", w="oi", a="bo").items()
    }
    assert np.isfinite(evaluate(node, env)).all()


# --- simplifications

_numbers = st.sampled_from((0.0, 1.0, -1.0, 2.0, 3.0, 4.0, 0.5, -2.0))


@st.composite
def tree(draw, depth=4):
    """An expression as (operation, arguments...), a name, or a number."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(st.sampled_from(sorted(VARIABLES)), _numbers))
    op = draw(
        st.sampled_from(
            (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.NEG, Op.TANH, Op.RELU, Op.MAXIMUM, Op.MINIMUM)
            + (Op.SELECT, Op.SELECT, Op.POW, Op.MUL, Op.ABS)
        )
    )
    if op is Op.SELECT:
        return (op, draw(condition()), draw(tree(depth - 1)), draw(tree(depth - 1)))
    if op is Op.POW:
        return (op, draw(tree(depth - 1)), draw(st.sampled_from((1.0, 2.0, 3.0, 4.0))))
    return (op, *(draw(tree(depth - 1)) for _ in range(ir.ELEMENTWISE[op])))


@st.composite
def condition(draw, depth=2):
    """A condition whose sides are exact, so that rounding cannot turn it."""
    form = draw(st.sampled_from(("compare", "compare", "chosen", "and", "or", "not")))
    if depth == 0 or form == "compare":
        sides = st.one_of(st.sampled_from(sorted(VARIABLES)), _numbers)
        return (draw(st.sampled_from(COMPARE)), draw(sides), draw(sides))
    if form == "chosen":  # (1 where c, else 0) compared with a number
        pair = (Op.SELECT, draw(condition(depth - 1)), draw(_numbers), draw(_numbers))
        sides = (pair, draw(_numbers)) if draw(st.booleans()) else (draw(_numbers), pair)
        return (draw(st.sampled_from(COMPARE)), *sides)
    if form == "not":
        return (Op.NOT, draw(condition(depth - 1)))
    op = Op.AND if form == "and" else Op.OR
    return (op, draw(condition(depth - 1)), draw(condition(depth - 1)))


def build(t) -> Node:
    if isinstance(t, str):
        return VARIABLES[t]
    if isinstance(t, float):
        return const(t)
    op, *args = t
    nodes = [build(a) for a in args]
    return select(*nodes) if op is Op.SELECT else make(op, *nodes)


def plain(t) -> Node:
    """The same expression, nothing simplified."""
    if isinstance(t, str):
        return VARIABLES[t]
    if isinstance(t, float):
        return const(t)
    nodes = tuple(plain(a) for a in t[1:])
    return _intern(t[0], nodes, ir.union(*(n.axes for n in nodes)), None)


def tame(env):
    """Values with few bits, zeros and ties among them."""
    return {k: np.round(v * 2) / 2 for k, v in env.items()}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tree())
def test_simplified_expressions_keep_their_value(t):
    env = tame(arrays(np.random.default_rng(1), x="bi", w="oi", a="bo", c="o"))
    node = build(t)
    ir.verify(node)
    expected, got = (np.broadcast_to(evaluate(n, env), shape("boi")) for n in (plain(t), node))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-9, atol=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tree(3), condition())
def test_a_known_condition_changes_nothing_where_it_holds(t, c):
    env = tame(arrays(np.random.default_rng(2), x="bi", w="oi", a="bo", c="o"))
    known, node = ir.truth(build(c)), build((Op.SELECT, c, t, 0.0))
    where = np.broadcast_to(evaluate(known, env), shape("boi")).astype(bool)
    for holds, side in ((True, where), (False, ~where)):
        assumed = ir.assume(node, known, holds) if known.op is not Op.CONST else node
        expected, got = (np.broadcast_to(evaluate(n, env), shape("boi")) for n in (node, assumed))
        np.testing.assert_array_equal(got[side], expected[side])


def test_neutral_elements_vanish():
    for node in (X + 0.0, 0.0 + X, X - 0.0, X * 1.0, 1.0 * X, X / 1.0, X**1.0):
        assert node is X


def test_equal_nodes_are_one():
    minus = -X
    assert -minus is X and X * W is W * X and X + W is W + X and X - W is not W - X


def test_whole_powers_are_products():
    assert X**2.0 is X * X and X**4.0 is (X * X) * (X * X)
    assert (X**0.5).op is Op.POW


def test_numbers_gather():
    node = 2.0 * (3.0 * X)
    assert node.op is Op.MUL and {a.op for a in node.args} == {Op.CONST, Op.INPUT}


@pytest.mark.parametrize("node", [1e300 * (1e10 * X), (X * 1e30) * 1e30, 1e-30 * (X * 1e-30)])
def test_numbers_without_a_product_stay_apart(node):
    """Infinity times an input of 0 would be no number."""
    numbers = {n.value for n in (*node.args, *(a for arg in node.args for a in arg.args))}
    assert numbers <= {None, 1e300, 1e10, 1e30, 1e-30}


@pytest.mark.parametrize("node", [make(Op.DIV, const(1.0), const(0.0)), make(Op.LOG, const(-1.0))])
def test_what_python_refuses_is_left_to_the_run(node):
    assert node.op is not Op.CONST


def test_a_condition_is_not_a_truth_value():
    with pytest.raises(CompileError, match="use horn.math.where"):
        bool(X > 0.0)


# --- assume stops at reductions


def test_a_condition_on_one_message_says_nothing_of_all_messages():
    c = X > 0.5
    over_all = reduce("sum", "i", select(c, W, const(0.0)))
    assert ir.assume(over_all, c, True) is over_all
    assert select(c, over_all, const(1.0)).args[1] is over_all


def test_a_condition_of_the_neuron_holds_inside_its_reductions():
    c = leaf(Op.INDEX, "o") > 1.0
    assert ir.assume(reduce("sum", "i", select(c, X, W)), c, True) is reduce("sum", "i", X)
    assert ir.assume(reduce("sum", "i", select(c, X, W)), ir.make(Op.NOT, c), True) is reduce(
        "sum", "i", W
    )


def test_what_does_not_vary_is_counted():
    count = leaf(Op.COUNT, "o")
    a = leaf(Op.OUTPUT, "bo")
    assert reduce("sum", "i", const(2.0)) is const(2.0) * count
    assert reduce("prod", "i", a) is make(Op.POW, a, count)


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "any", "all"])
def test_what_does_not_vary_is_the_identity_of_no_messages(monoid):
    count, a = leaf(Op.COUNT, "o"), leaf(Op.OUTPUT, "bo")
    a = a > 0.0 if monoid in ("any", "all") else a
    found = reduce(monoid, "i", a)
    assert ir.replace(found, {count: const(0.0)}) is const(ir.IDENTITY[monoid])
    assert ir.replace(found, {count: const(3.0)}) is (a * const(3.0) if monoid == "sum" else a)


# --- verify


@pytest.mark.parametrize(
    "wrong",
    [
        _intern(Op.ADD, (X,), "bi", None),
        _intern(Op.MUL, (X, W), "bo", None),
        _intern(Op.REDUCE, (X,), "bo", ("sum", "o")),
        _intern(Op.REDUCE, (X,), "b", ("mean", "i")),
        _intern(Op.INPUT, (), "oi", None),
        _intern(Op.WEIGHT, (X,), "oi", None),
        _intern(Op.MATMUL, (X, leaf(Op.GRADIENT, "boi")), "bo", "i"),
        _intern(Op.SELECT, (X, W), "boi", None),
        _intern(Op.LOAD, (), "bo", 3),
    ],
    ids=lambda n: n.op.value,
)
def test_verify_rejects_what_breaks_the_table(wrong):
    with pytest.raises(AssertionError, match="breaks the rule"):
        ir.verify(make(Op.TANH, wrong) if wrong.op is not Op.LOAD else wrong)


def test_verify_accepts_what_obeys_it():
    ir.verify(reduce("max", "i", make(Op.TANH, X * W)), ir.matmul(X, W, "i"))
