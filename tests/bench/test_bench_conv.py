"""The bench of windows compares answers before it times."""

from tests.bench.bench_conv import is_one_loss


def test_trap_11_sides_whose_losses_differ_are_told(capsys):
    falling = {"horn": [2.3, 2.2, 2.1], "NCHW": [2.3, 2.2, 2.1001], "NHWC": [2.3, 2.2, 2.15]}
    sides = {label: iter(losses).__next__ for label, losses in falling.items()}
    assert not is_one_loss("lenet 16", sides)
    assert capsys.readouterr().out == (
        "lenet 16: losses differ: horn [2.3, 2.2, 2.1], NHWC [2.3, 2.2, 2.15]\n"
    )
    sides = {label: iter(falling["horn"]).__next__ for label in falling}
    assert is_one_loss("lenet 16", sides) and not capsys.readouterr().out
