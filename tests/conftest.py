"""Fixtures that every folder may use: a seeded generator, and the backends that exist."""

import os
import signal
import sys

# Horn has threads of its own. Those of NumPy's library, here and in all processes that tests start,
# would only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A server in Java lives for a test or a file of them: compiling its code as for a long life, and
# collecting garbage in threads, takes more than it saves. (Benchmarks run servers as they come.)
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from horn import backends

# How long an example takes is the machine's business, and no test is about it.
settings.register_profile("horn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("horn")

# A shell that starts pytest in the background has it, and all processes that tests start, ignore
# Ctrl-C, which some tests are about.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A backend joins every test that takes ``backend`` as soon as its file is there.
EXISTING = backends.names()


class NoProcesses:
    """Fails a test that starts Python and is not marked: what runs while editing is to be quick."""

    def __init__(self):
        self.started = 0
        sys.addaudithook(self.hear)

    def hear(self, event, args):
        if event == "subprocess.Popen" and args[0] == sys.executable:
            self.started += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        before = self.started
        result = yield
        if self.started > before:
            pytest.fail("it starts a process: mark it with @pytest.mark.cluster", pytrace=False)
        return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """For ``-n auto``: one more than there are cores, as tests of processes often wait."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config):
    """With ``--dist loadfile`` files start in our order, not by how many tests they have."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if "not cluster" in config.option.markexpr:
        config.pluginmanager.register(NoProcesses())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """In a worker of xdist: first the files whose tests ask for the longest timeouts.

    A long file that starts last leaves the other workers idle, and the longest has one test. Among
    equals the most tests come first; the order inside a file stays.
    """
    if not hasattr(config, "workerinput"):
        return
    weight = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        longest, tests = weight.get(item.path, (0, 0))
        weight[item.path] = max(longest, mark.args[0] if mark else 0), tests + 1
    items.sort(key=lambda item: weight[item.path], reverse=True)


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


@pytest.fixture
def cluster_of(tmp_path):
    """Agents of a cluster on this machine; see tests.cluster.agents."""
    from tests.cluster.agents import agents

    with agents(tmp_path) as made:
        yield made


@pytest.fixture
def client(cluster_of):
    """Who asks that cluster."""
    from horn.cluster.client import ClusterClient

    with ClusterClient(cluster_of.hosts, timeout_s=20.0) as cluster:
        yield cluster
