"""Sums over many groups: every group ends with all of it, and meets few others."""

import pytest

from horn.partition.group_sums import MAX_DIRECT, WIDTH, handing, is_tree, levels


@pytest.mark.parametrize("n_groups", [*range(1, 70), 127, 128, 129, 200, 1000])
def test_every_group_ends_with_the_whole_sum_added_in_one_order(n_groups):
    had = {group: f"{group}" for group in range(n_groups)}
    for circles in levels(n_groups):
        assert sorted(group for circle in circles for group in circle) == [*range(n_groups)]
        sums = {circle: f"({' '.join(had[group] for group in circle)})" for circle in circles}
        had = {g: s if len(c) > 1 else had[g] for c, s in sums.items() for g in c}
    for circle in handing(n_groups):
        had.update(dict.fromkeys(circle, had[circle[0]]))
    assert len(set(had.values())) == 1
    added = had[0].replace("(", " ").replace(")", " ").split()
    assert sorted(map(int, added)) == [*range(n_groups)]


@pytest.mark.parametrize("n_groups", [17, 48, 64, 100, 128, 1000])
def test_a_group_meets_few_others(n_groups):
    assert is_tree(n_groups)
    met = {group: set() for group in range(n_groups)}
    for circles in (*levels(n_groups), handing(n_groups)):
        for circle in circles:
            for group in circle:
                met[group] |= {*circle} - {group}
    most = WIDTH * (n_groups.bit_length() // 2 + 1)
    assert max(map(len, met.values())) <= most < n_groups


def test_few_groups_sum_at_once():
    assert not is_tree(MAX_DIRECT)
