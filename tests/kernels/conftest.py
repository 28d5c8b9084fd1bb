"""The types and threads of the kernel tests."""

import numpy as np
import pytest


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture(params=[1, 2])
def n_threads(request):
    return request.param
