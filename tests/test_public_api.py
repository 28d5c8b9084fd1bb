"""The names that horn offers, exactly, and what importing it costs."""

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import horn
from tests import names

NAMES = {
    # what a user subclasses, and the neurons that are there
    "Neuron", "Synapse", "Parameter", "State", "SynapseState", "Weight", "interpreted",
    "Standard", "Dropout",
    # networks and jobs
    "Network", "Job", "Aggregate", "EarlyStopping", "Dense", "Sparse", "Convolution",
    "TransposedConvolution", "Local", "Window", "OneToOne", "Tied", "Delayed", "Reversed",
    "Activation", "Loss",
    "Constant", "Uniform", "Normal", "Glorot", "He", "LeCun",
    "SGD", "Adagrad", "RMSProp", "AdaDelta", "Adam", "Direct",
    "Step", "Exponential", "Cosine", "Warmup",
    # strategies that have settings
    "ParallelDropout", "Averaging", "EASGD",
    # running and keeping
    "plan", "train", "Run", "Model", "Cluster", "Strategy", "Downpour",
    "Callback", "ModelCheckpoint", "ReduceOnPlateau", "CSVLogger", "TensorBoard",
    # errors
    "HornError", "CallbackError", "JobFailed", "ModelError", "DataError", "CompileError",
    "Diverged",
    "data", "math", "neurons", "plot", "__version__",
}  # fmt: skip


def test_all_is_exact():
    assert set(horn.__all__) == NAMES
    assert sorted(horn.__all__) == list(horn.__all__) and dir(horn) == list(horn.__all__)


def test_the_page_of_names_is_of_their_docstrings():
    """Where it is not: python -m tests.names > docs/names.md."""
    assert names.PAGES.keys() == NAMES
    assert (names.ROOT / "docs/names.md").read_text() == names.page()
    assert all((names.ROOT / f"docs/{page}.md").exists() for page in names.EXPLAINED)


@pytest.mark.cluster
def test_what_data_has_is_listed_before_it_is_imported():
    code = "from horn import data; print({'mnist', 'load'} <= {*dir(data)}, 'mnist' in vars(data))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_every_name_is_there_and_is_what_it_says(name):
    value = getattr(horn, name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


# What classes need that cannot be made of nothing.
MADE_OF = {
    "Activation": ("double", lambda z: 2.0 * z),
    "Aggregate": ("layer1", lambda y: y.mean()),
    "CSVLogger": ("rows.csv",),
    "Cluster": ("127.0.0.1:2181",),
    "Convolution": (8, 3),
    "Cosine": (0.1, 100),
    "Delayed": ("layer1",),
    "Exponential": (0.1, 0.9),
    "Local": (8, 3),
    "Loss": ("mine", lambda y, t: (y - t) ** 2),
    "ModelCheckpoint": ("model.horn",),
    "ParallelDropout": (4,),
    "Reversed": ("layer1",),
    "Sparse": (3,),
    "Step": (0.1, 10),
    "TensorBoard": ("runs",),
    "Tied": ("layer1",),
    "TransposedConvolution": (8, 3),
    "Warmup": (10, 0.1),
    "Window": (2,),
}
# Shown elsewhere (tests/api), or made by horn alone.
OF_DATA = {"Job", "Model", "Run", "Synapse"}


def test_no_object_is_shown_by_its_address():
    for name in sorted(NAMES - OF_DATA):
        value = getattr(horn, name)
        if isinstance(value, type) and not issubclass(value, Exception):
            assert " at 0x" not in repr(value(*MADE_OF.get(name, ()))), name


@pytest.mark.cluster
def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="horn has no 'Netwrok': did you mean Network?"):
        _ = horn.Netwrok
    code = "import horn; print(horn.neurons.Relay.__name__); horn.strategies"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "Relay\n"
    assert "'strategies' once it is imported: import horn.strategies; or write " in done.stderr
    assert "horn.Averaging, horn.Downpour" in done.stderr
    for name, said in (
        ("explain", "horn has no 'explain': the command  horn explain FILE"),
        ("losses", "horn has no 'losses': an output's loss has a name"),
        ("callbacks", "import horn.callbacks; or write horn.CSVLogger, horn.Callback, "),
        ("random.normal(0, 1)", "horn has no 'random': a neuron draws by self.uniform(), "),
        ("submit", "horn has no 'submit': horn.train(job) trains here"),
        ("network", "horn.network is a module of horn; write horn.Network"),
        ("sweep", "horn has no 'sweep': the command  horn sweep FILE"),
        ("sgd", "horn has no 'sgd': did you mean SGD?"),
        ("plot.curves", "horn.plot has no 'curves': it has confusion, history, live"),
    ):
        code = f"import horn; horn.{name}"  # in a process of its own, that has not imported it
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert said in done.stderr


def test_type_checkers_see_every_lazy_name():
    tree = ast.parse(Path(horn.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {a.asname for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == NAMES - {"__version__"} | {"Any"}


def loaded(code: str) -> set[str]:
    """The modules of interest that a fresh Python has loaded after running ``code``."""
    heavy = ("numpy", "zmq", "kazoo", "torch", "rich", "click", "safetensors")
    show = f"import sys; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {show}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.cluster
def test_importing_horn_loads_nothing_heavy():
    assert loaded("import horn") == set()


@pytest.mark.cluster
def test_describing_and_running_a_network_needs_neither_zmq_nor_kazoo():
    assert loaded("import horn; horn.Network; horn.Job; horn.interpreted; horn.math.exp(1.0)") == {
        "numpy"
    }
    assert not loaded("import horn; horn.train; horn.Model") & {"zmq", "kazoo", "torch"}


def test_what_train_is_told_is_what_a_run_has():
    """The keywords of train, their order and defaults, and the fields of RunSettings."""
    from horn.training.run_settings import RunSettings

    said = inspect.signature(importlib.import_module("horn.train").train).parameters
    train = [(p.name, p.default) for p in said.values() if p.kind is p.KEYWORD_ONLY]
    fields = [(f.name, f.default) for f in dataclasses.fields(RunSettings)]
    assert fields == [*train, ("hosts", None)]


def test_submit_has_the_defaults_of_train():
    """``Cluster.submit`` and ``horn submit``, which write them once more each."""
    from horn import terminal
    from horn.cli.submit import command
    from horn.training.run_settings import RunSettings

    train = {f.name: f.default for f in dataclasses.fields(RunSettings)}
    own = inspect.signature(horn.Cluster.submit).parameters
    submit = {name: own[name].default for name in own if name in train}
    # A worker has its own folder for checkpoints and its own log; ``horn resume`` goes on.
    left_out = {"progress", "profile", "checkpoints", "keep_checkpoints", "resume", "changed"}
    assert submit.keys() == train.keys() - left_out - {"hosts"}
    assert submit.pop("trace") is False  # whether, not where
    assert submit == {name: train[name] for name in submit}
    options = command.make_context("submit", ["net.py"]).params
    said = {name: options[name] or None for name in options if name in train}
    for name in ("superstep_timeout", "start_timeout"):
        said[name] = terminal.duration(said[name], name)
    assert said == {name: train[name] or None for name in said} and len(said) > 15


def explained(doc: str | None) -> set[str]:
    """The arguments that a docstring explains: ``a, b : ...`` or in double backquotes."""
    text = " ".join((doc or "").split())
    lists = re.findall(r"((?:\w+, )*\w+) :", text)
    return {name for each in lists for name in each.split(", ")} | {*re.findall(r"``(\w+)``", text)}


def test_every_setting_of_a_job_and_of_train_is_explained():
    assert not {field.name for field in dataclasses.fields(horn.Job)} - explained(horn.Job.__doc__)
    train = inspect.signature(horn.train).parameters.values()
    keywords = {each.name for each in train if each.kind is each.KEYWORD_ONLY}
    assert len(keywords) > 20 and not keywords - explained(horn.train.__doc__)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_users_call_or_override_has_a_docstring(name):
    thing = getattr(horn, name)
    if not isinstance(thing, type):
        return
    bare = [
        method
        for method, value in vars(thing).items()
        if method[0] != "_" and (callable(value) or isinstance(value, (property, classmethod)))
        if not inspect.getdoc(getattr(thing, method))
    ]
    assert inspect.getdoc(thing) and not bare


TAUGHT = [getattr(horn, name) for name in sorted(NAMES) if isinstance(getattr(horn, name), type)]
METHODS = [horn.Model.cut, horn.Model.activations, horn.Model.labels_of, horn.Model.generate,
           horn.Model.save, horn.Model.load, horn.Model.export, horn.Network.layer,
           horn.data.load]  # fmt: skip


NOT_MADE = (BaseException, horn.Neuron, horn.Synapse, horn.Run)  # by users, of numbers


@pytest.mark.parametrize("thing", [*TAUGHT, *METHODS], ids=lambda thing: thing.__qualname__)
def test_an_argument_that_is_spelled_wrongly_is_answered_with_its_name(thing):
    if isinstance(thing, type) and (issubclass(thing, NOT_MADE) or "__init__" not in vars(thing)):
        return
    kinds = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    for each in inspect.signature(thing).parameters.values():
        name = each.name
        if each.kind in kinds and name != "self" and len(name) > 3:
            with pytest.raises(TypeError, match=rf"'{name}x'.*\b{name}\b"):
                thing(**{f"{name}x": 1})


@pytest.mark.cluster
def test_a_stop_while_the_first_names_are_loaded_leaves_horn_in_use():
    code = """
import os, signal, sys
import horn

def stop(event, found):
    if event == "import" and found[0] == "numpy.dtypes" and not stopped:
        stopped.append(True)
        os.kill(os.getpid(), signal.SIGINT)

stopped = []
sys.addaudithook(stop)
try:
    horn.Job
except KeyboardInterrupt:
    print("stopped")
print(horn.Job.__name__, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "stopped\nJob True\n"
