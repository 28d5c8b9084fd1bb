"""Settings of optimizers; against their papers they are in tests/contracts/test_optimizer.py."""

import pytest

import horn
from horn.errors import ModelError


def test_nesterov_tells_the_weights_where_the_gradient_is_taken():
    """On the bowl w^2 / 2 the gradient is w: two steps by hand."""
    w, slots = 1.0, {"velocity": 0.0}
    optimizer = horn.SGD(0.1, momentum=0.5, nesterov=True)
    for t in (1, 2):
        w, slots = optimizer.update(w, w, slots, 0.1, t)
    # v1 = -0.1, u1 = 1 - 0.1 - 0.05; v2 = -0.05 - 0.085, u2 = 0.9 + v2 + 0.5 v2
    assert w == pytest.approx(0.9 - 0.135 - 0.0675)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: horn.SGD(-0.1), "SGD: learning_rate must be 0 or more, got -0.1"),
        (lambda: horn.SGD(float("nan")), "learning_rate must be 0 or more"),
        (lambda: horn.SGD(momentum=1.0), "SGD: momentum must be at least 0 and below 1, got 1.0"),
        (lambda: horn.Adam(beta2=-0.1), "Adam: beta2 must be at least 0 and below 1"),
        (lambda: horn.RMSProp(rho=2), "RMSProp: rho must be at least 0 and below 1, got 2"),
        (lambda: horn.Adagrad(clip_norm=0), "Adagrad: clip_norm must be above 0, got 0"),
        (lambda: horn.SGD(clip_value=-1), "SGD: clip_value must be above 0, got -1"),
        (lambda: horn.SGD(weight_decay=-1), "SGD: weight_decay must be 0 or more, got -1"),
        (lambda: horn.Direct(weight_decay=0.1), "Direct adds exactly what is pushed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_schedule_gives_the_rate_of_each_iteration():
    optimizer = horn.SGD(horn.Exponential(1.0, 0.5))
    assert [optimizer.rate(k) for k in range(3)] == [1.0, 0.5, 0.25]
