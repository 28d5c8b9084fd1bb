"""Sums of products become matrix products of the same value; what is none does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn import ir
from horn.ir import Op, const, load, make, nodes, select
from horn.ir.contraction import MAX_TERMS, contract, paired
from tests.language.values import I, arrays, evaluate, shape

X, W, A, C = load("x", "bi"), load("w", "oi"), load("a", "bo"), load("c", "o")
COUNT = const(float(I))


def env():
    return arrays(np.random.default_rng(0), x="bi", w="oi", a="bo", c="o")


def products(node):
    return [n for n in ir.walk(node) if n.op is Op.MATMUL]


def check(node, axis="i", count=COUNT):
    """Contracted, it has no value of three axes and the same sum."""
    found = contract(node, axis, count)
    assert found is not None
    ir.verify(found)
    assert all(len(n.axes) < 3 for n in ir.walk(found))
    expected = np.broadcast_to(evaluate(node, env()), shape("boi")).sum(
        "boi".index(axis), keepdims=True
    )
    got = np.broadcast_to(evaluate(found, env()), expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
    return found


def test_a_weighted_sum_is_one_product():
    assert len(products(check(X * W))) == 1


def test_a_product_of_two_sums_is_a_product_for_each_pair():
    found = check((X - W) * (make(Op.TANH, X) + A * make(Op.TANH, W)))
    assert len(products(found)) == 2
    assert len([n for n in ir.walk(found) if n.op is Op.REDUCE]) == 2


def test_powers_of_a_sum_are_no_products_since_they_would_lose_digits():
    check((X * W) ** 4.0)
    check(X**3.0 - W**3.0)
    square, cube = (X - W) * (X - W), (X - W) * (X - W) * (X - W)
    for node in (
        square,
        cube,
        (X - 0.5 * W) ** 2.0,
        (X * W - A) ** 2.0,
        (X - W) * (X + W),
        (X - 0.5 * W) ** 3.0,
        (X - W) ** 4.0,
        ((X - W) ** 2.0 + 1.0) * (X - W),
    ):
        assert contract(node, "i", COUNT) is None


@pytest.mark.parametrize("op", [Op.SIN, Op.COS])
@pytest.mark.parametrize(
    "inside",
    [X - W, W + X, 2.0 * X - 0.5 * W, X + W + 0.3, X - W + C,
     X + X * X - W / 3.0],
)  # fmt: skip
def test_waves_of_a_sum_are_two_products(op, inside):
    found = check(make(op, inside))
    assert len(products(found)) == 2


def test_the_gradient_of_a_wave_is_two_products_over_the_batch():
    found = check(A * make(Op.COS, X - W), "b")
    assert len(products(found)) == 2


@pytest.mark.parametrize("power", [0.5, 1.5, 3.0, 5.0])
def test_powers_of_the_size_of_a_product_are_one_product(power):
    assert len(products(check(abs(X * W * -2.0) ** power))) == 1


def test_the_gradient_of_such_a_power_is_one_product():
    size, sign = abs(X * W), make(Op.SIGN, X * W)
    found = check(X * sign * (A * size * size + A * size * (2.0 * size)), "b")
    assert len(products(found)) == 1


def test_the_sign_of_what_is_there_is_not_computed():
    size, sign = abs(X * W), make(Op.SIGN, X * W)
    for node in (A * size * size * sign, A * X * W * sign):
        assert not any(n.op is Op.SIGN for n in ir.walk(check(node, "b")))


def test_factors_along_one_axis_join_their_side():
    found = check(make(Op.TANH, X) * X * W * make(Op.EXP, W))
    assert len(products(found)) == 1


def test_factors_that_do_not_vary_move_out():
    found = check(A * C * X * W / (1.0 + A * A))
    assert len(products(found)) == 1


def test_the_gradient_is_a_product_over_the_batch():
    node = A * X
    found = contract(node, "b", ir.Scalar("rows"))
    assert found is not None and found.op is Op.MATMUL and found.value == "b" and found.axes == "oi"


def test_a_choice_between_sums_is_a_choice_of_products():
    found = check(select(A > 0.0, X * W, X - W))
    assert found.op is Op.SELECT


@pytest.mark.parametrize(
    "node",
    [
        make(Op.TANH, X * W),
        make(Op.MAXIMUM, X, W),
        make(Op.SIN, X * W),
        make(Op.COS, A + X - W),
        abs(X - W),
        abs(X * W) ** -1.0,
        abs(X * W) ** C,
        (X * W) ** 1.5,
        make(Op.SIGN, X - W),
        select(X > W, X, W),
        make(Op.ABS, X - W),
        make(Op.EXP, X + W),
        X / (1.0 + X * W),
        load("boi", "boi") * X,
    ],
    ids=lambda n: n.op.value,
)
def test_what_is_no_contraction(node):
    assert contract(node, "i", COUNT) is None


def test_too_many_terms_are_left_to_a_loop():
    many = X * W
    for k in range(MAX_TERMS + 1):
        many = many + make(Op.TANH, X * float(k + 2)) * make(Op.TANH, W * float(k + 3))
    assert contract(many, "i", COUNT) is None


_factors = st.lists(
    st.sampled_from((X, W, A, C, make(Op.TANH, X), make(Op.SIGMOID, W), X - 0.3)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from((1.0, -0.5, 2.0)), _factors), min_size=1, max_size=4))
def test_polynomials_keep_their_value(terms):
    node = const(0.0)
    for coefficient, factors in terms:
        product = const(coefficient)
        for f in factors:
            product = product * f
        node = node + product
    if "i" in node.axes:
        check(node)


def test_what_does_not_vary_along_the_axis_is_counted():
    found = contract(A, "i", COUNT)
    assert found is A * COUNT


def test_factors_that_share_axes_are_multiplied_first():
    """c x w (w x): one product over three axes of (c w w) and (x x)."""
    node = make(Op.TANH, const(1.0) - C * X * W * (W * X))
    found = paired(node)
    assert sum(n.op is Op.MUL and len(n.axes) == 3 for n in ir.walk(node)) == 4
    assert sum(n.op is Op.MUL and len(n.axes) == 3 for n in ir.walk(found)) == 1
    given = env()
    np.testing.assert_allclose(evaluate(found, given), evaluate(node, given), rtol=1e-12)


def test_factors_over_all_axes_stay():
    inside = make(Op.TANH, X * W)
    node = A * inside * W
    assert paired(node) is node
    assert paired(X * W) is X * W
    found = paired(make(Op.TANH, C * X * W) * X * X)
    assert sum(n.op is Op.MUL and len(n.axes) == 3 for n in ir.walk(found)) == 2


def test_products_within_products_are_looked_into_once(monkeypatch):
    made, rebuild = [], nodes.rebuild
    monkeypatch.setattr(nodes, "rebuild", lambda *a: made.append(a) or rebuild(*a))
    node = make(Op.TANH, X * W * (W * X))
    total = const(0.0)
    for _ in range(20):
        node = make(Op.TANH, node * W)
        total = total + node * A * A
    paired(total)
    assert len(made) < 100


def test_products_of_very_many_factors():
    node = X * W
    for _ in range(20):
        node = node * node
    whole = [
        sum(n.op is Op.MUL and len(n.axes) == 3 for n in ir.walk(root))
        for root in (node, paired(node))
    ]
    assert whole[1] <= whole[0] == 21
