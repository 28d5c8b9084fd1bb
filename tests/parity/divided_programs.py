"""Random programs divided: tasks and groups compute what one task does."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

import horn
from horn.backends import Setup
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS
from tests.parity.programs import load, program
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import compare, is_illegal, labelled, of_group, of_one, place
from tests.transport.groups import good


def agree(seed: int, folder: Path) -> bool:
    """AssertionError, or any other exception, where they do not. False: the placement is refused,
    with a sentence, since what a neuron makes of its messages has no parts.
    """
    r = random.Random(seed)
    network = load(program(seed), seed, folder).network()
    setup = Setup(network, horn.SGD(0.05, momentum=0.5), "labels", 4, "float64", 1)
    data, batches = labelled(network), [np.arange(4), np.arange(5, 8), np.arange(2, 6)]
    links = [r.choice(list(LINK_SPLITS)) for _ in range(9)]
    layers = [r.choice(list(LAYER_SPLITS)) for _ in range(9)]
    placement, backend = place(network, links, layers), r.choice(("reference", "kernels"))
    with np.errstate(all="ignore"):
        one = of_one(backend, setup, data, batches)
        n_tasks = r.choice((2, 3))
        tasks = of_group(backend, setup, data, batches, placement, n_tasks)
        if is_illegal(tasks):
            return False
        compare(good(tasks), one, f"{backend}, {n_tasks} tasks, {links}, {layers}")
        groups = of_groups(backend, setup, data, batches, placement, 2, r.choice((1, 2)))
        compare(good(groups), one, f"{backend}, groups, {links}, {layers}")
    return True
