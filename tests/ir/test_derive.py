"""Derived gradients are the slopes of what they are derived from; untaken branches add nothing."""

import numpy as np
import pytest

from horn import ir
from horn.ir import Op, const, leaf, load, make, mul, reduce, select
from horn.ir.derive import gradient, weighted_sum
from tests.language.values import I, arrays, evaluate, shape

X, Y = load("x", "boi"), load("y", "boi")
INPUT, WEIGHT = leaf(Op.INPUT, "bi"), leaf(Op.WEIGHT, "oi")
FLAT = {
    Op.STOP_GRADIENT, Op.HALFWAY, Op.FLOORDIV, Op.FLOOR, Op.SIGN, Op.LT, Op.LE, Op.GT, Op.GE,
    Op.EQ, Op.NE, Op.AND, Op.OR, Op.NOT,
}  # fmt: skip


def slope(root, env, name, h=1e-6):
    """d (sum of root) / d each element of env[name]."""
    found = np.zeros_like(env[name])
    for place in np.ndindex(found.shape):
        sides = []
        for step in (h, -h):
            moved = {k: v.copy() for k, v in env.items()}
            moved[name][place] += step
            sides.append(evaluate(root, moved).sum())
        found[place] = (sides[0] - sides[1]) / (2 * h)
    return found


def assert_derived(root, env, *names, rtol=1e-5):
    nodes = {n: {"x": X, "y": Y}[n] for n in names}
    found = gradient(root, const(1.0), nodes.values())
    for name, node in nodes.items():
        ir.verify(found[node])
        got = np.broadcast_to(evaluate(found[node], env), env[name].shape)
        np.testing.assert_allclose(got, slope(root, env, name), rtol=rtol, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    "op", [op for op in ir.ELEMENTWISE if op not in FLAT], ids=lambda o: o.value
)
def test_every_operation(op, rng):
    env = {k: np.abs(v) + 0.3 for k, v in arrays(rng, x="boi", y="boi").items()}
    n = ir.ELEMENTWISE[op]
    args = {1: (X,), 2: (X, Y), 3: (X > Y, X * Y, Y - X)}[n]
    assert_derived(
        make(op, *args) if n < 3 else select(*args), env, "x", *(("y",) if n > 1 else ())
    )


@pytest.mark.parametrize("op", sorted(FLAT, key=lambda o: o.value), ids=lambda o: o.value)
def test_what_has_no_slope(op):
    args = (X, Y)[: ir.ELEMENTWISE[op]]
    assert gradient(make(op, *args), const(1.0), [X])[X] is const(0.0)


@pytest.mark.parametrize("monoid", ["sum", "prod", "max", "min"])
def test_every_reduction(monoid, rng):
    env = arrays(rng, x="boi", y="boi")
    assert_derived(make(Op.TANH, reduce(monoid, "i", X * Y)), env, "x", "y")


def test_a_shared_value_gathers_all_its_uses(rng):
    s = reduce("sum", "i", X * Y)
    assert_derived(reduce("sum", "i", make(Op.TANH, X * s) * X), arrays(rng, x="boi", y="boi"), "x")


def test_a_branch_that_is_not_taken_contributes_nothing():
    root = select(X > 0.0, make(Op.LOG, X) + make(Op.SQRT, X) / X, const(0.0))
    env = {"x": np.linspace(-1.0, 1.0, 60).reshape(shape("boi"))}
    found = evaluate(gradient(root, const(1.0), [X])[X], env)
    assert np.isfinite(found).all() and (found[env["x"] <= 0] == 0.0).all()
    assert_derived(root, {"x": env["x"] + 0.003}, "x")


SMOOTH = [op for op in ir.ELEMENTWISE if op not in FLAT and ir.ELEMENTWISE[op] < 3]


@pytest.mark.parametrize("bad", [-1.0, 0.0], ids=["nan", "infinity"])
@pytest.mark.parametrize("op", [*SMOOTH, "prod"], ids=lambda o: getattr(o, "value", o))
def test_a_value_that_no_branch_takes_contributes_nothing_read_twice(op, bad):
    """Its adjoint is a sum of two selects: 0, but none that says so."""
    log = make(Op.LOG, X) if bad else const(1.0) / X
    if op == "prod":
        u = reduce("prod", "i", log)
    else:
        u = make(op, *(log, const(2.5))[: ir.ELEMENTWISE[op]])
    root = select(Y > 0.0, u, const(0.0)) + select(Y > 0.1, 0.3 * u, const(1.0))
    env = {"x": np.full(shape("boi"), bad), "y": np.full(shape("boi"), -1.0)}
    assert (evaluate(gradient(root, const(1.0), [X])[X], env) == 0.0).all()


def test_zero_times_infinity_in_a_branch_that_is_not_taken():
    root = reduce("sum", "i", select(X > 0.0, make(Op.POW, X, const(0.5)), X * 0.0))
    env = {"x": np.zeros(shape("boi"))}
    assert (evaluate(gradient(root, const(1.0), [X])[X], env) == 0.0).all()


@pytest.mark.parametrize("monoid", ["max", "min"])
def test_of_equals_the_first_gets_the_gradient(monoid):
    env = {"x": np.ones(shape("boi"))}
    found = evaluate(gradient(reduce(monoid, "i", X), const(1.0), [X])[X], env)
    assert (found[..., 0] == 1.0).all() and (found[..., 1:] == 0.0).all()
    two = make(Op.MAXIMUM if monoid == "max" else Op.MINIMUM, X, Y)
    both = gradient(two, const(1.0), [X, Y])
    env["y"] = env["x"]
    assert (evaluate(both[X], env) == 1.0).all() and (evaluate(both[Y], env) == 0.0).all()


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros(zeros, rng):
    env = arrays(rng, x="boi")
    env["x"][..., :zeros] = 0.0
    found = np.broadcast_to(
        evaluate(gradient(reduce("prod", "i", X), const(1.0), [X])[X], env), shape("boi")
    )
    for k in range(I):
        others = np.prod(np.delete(env["x"], k, axis=2), axis=2)
        np.testing.assert_allclose(found[..., k], others, rtol=1e-12)


def test_relu_abs_and_sign_at_zero():
    env = {"x": np.zeros(shape("boi"))}
    for op in (Op.RELU, Op.ABS, Op.SIGN):
        assert (evaluate(gradient(make(op, X), const(1.0), [X])[X], env) == 0.0).all()


# --- weighted sums


def test_what_is_a_weighted_sum():
    total = reduce("sum", "i", mul(INPUT, WEIGHT))
    assert weighted_sum(make(Op.TANH, total) * 2.0) == (True, {("", "weight"): total})
    assert weighted_sum(const(1.0)) == (True, {})
    for other in (
        reduce("max", "i", mul(INPUT, WEIGHT)),
        reduce("sum", "i", mul(INPUT, WEIGHT) * 2.0 + 1.0),
        total + reduce("sum", "i", INPUT),
        select(reduce("max", "i", INPUT) > 0.0, total, const(0.0)),
    ):
        assert weighted_sum(other) == (False, {})


def test_a_gate_on_the_messages_is_no_weighted_sum():
    """Its senders may not skip messages of 0: the gate would see fewer of them."""
    total = reduce("sum", "i", mul(INPUT, WEIGHT))
    gate = reduce("min", "i", INPUT) > 0.0
    assert weighted_sum(select(gate, total, const(0.0))) == (False, {})
    assert weighted_sum(select(gate, const(0.0), total)) == (False, {})
