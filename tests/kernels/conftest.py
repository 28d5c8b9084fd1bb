"""The seeded generator of the kernel tests."""

import os

import numpy as np
import pytest


@pytest.fixture
def kernel_rng():
    return np.random.default_rng(int(os.environ.get("HORN_SEED", "0")))
