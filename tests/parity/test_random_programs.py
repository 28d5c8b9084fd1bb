"""Programs of the whole grammar: compiled, interpreted and in plain Python they compute the same,
and each compiles within two seconds; divided among tasks and groups they compute what one does.
"""

import pytest

from tests.parity import divided_programs
from tests.parity.programs import agree

IN_THE_GATE, ALL, TOGETHER = 6, 2000, 6
# Where a derivative, or the truth of a number, jumps at 0, and the number is 0 but for rounding.
AT_A_JUMP = {
    538: "var over the batch, of what is the same for all samples, is tested for truth",
    1866: "abs of what is left of a bias by a step whose gradients cancel",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, IN_THE_GATE, TOGETHER))
def test_programs_mean_the_same(first, tmp_path):
    for seed in range(first, first + TOGETHER):
        agree(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(IN_THE_GATE, ALL, 10 * TOGETHER))
def test_many_programs_mean_the_same(first, tmp_path):
    for seed in range(first, min(first + 10 * TOGETHER, ALL)):
        if seed not in AT_A_JUMP:
            agree(seed, tmp_path)


@pytest.mark.timeout(600)
def test_divided_programs_mean_the_same(tmp_path):
    divided = [divided_programs.agree(seed, tmp_path) for seed in range(5)]
    assert any(divided)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(5, 397, 49))
def test_many_divided_programs_mean_the_same(first, tmp_path):
    for seed in range(first, first + 49):
        divided_programs.agree(seed, tmp_path)
