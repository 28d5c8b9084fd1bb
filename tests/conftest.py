"""Fixtures that every folder may use: a seeded generator, and the backends that exist."""

import importlib.util
import os

import numpy as np
import pytest

from horn.backends import BACKENDS

# A backend joins every test that takes ``backend`` as soon as its module is there.
EXISTING = [name for name, module in BACKENDS.items() if importlib.util.find_spec(module)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """For ``-n auto``: one more than there are cores, as tests of processes often wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """What horn keeps between runs (the figures of the machine) is kept apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def rng():
    """A generator seeded from HORN_SEED."""
    return np.random.default_rng(int(os.environ.get("HORN_SEED", "0")))


@pytest.fixture(params=EXISTING)
def backend(request):
    """The name of each backend in turn."""
    return request.param
