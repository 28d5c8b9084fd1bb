"""The seeded generator of the kernel tests, their types and threads."""

import os

import numpy as np
import pytest


@pytest.fixture
def kernel_rng():
    return np.random.default_rng(int(os.environ.get("HORN_SEED", "0")))


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[1, 2])
def n_threads(request):
    return request.param
