"""The house as a test: imports point down, without cycles, and some libraries live in one place."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Low to high; a module belongs to its longest prefix here. Modules of one home may import each
# other, homes of one layer may not. A new module needs a place: that is the point.
LAYERS = [
    {"horn.errors", "horn.patience", "zk"},
    {"horn.topology", "horn.aggregates"},
    {"horn._kernels", "horn.random", "horn.math", "horn.registry", "horn.cluster",
     "horn.checkpoint"},
    {"horn.data", "horn.activations", "horn.losses", "horn.initializers", "horn.schedules",
     "horn.connections"},
    {"horn.connections.dense", "horn.connections.sparse", "horn.neuron", "horn.optimizers"},
    {"horn.neurons"},
    {"horn.network"},
    {"horn.job"},
    {"horn.backends", "horn.compiler"},
    {"horn.interpreter", "horn.backends.compiled", "horn.backends.choices",
     "horn.backends.passes"},
    {"horn.backends.reference", "horn.backends.kernels", "horn.backends.formulas"},
    {"horn.sources", "horn.progress", "horn.summary", "horn.check", "horn.cursor", "horn.digest"},
    {"horn.modelfile", "horn.identity"},
    {"horn.model"},
    {"horn.loop"},
    {"horn.journals"},
    {"horn.saving"},
    {"horn.strategies"},
    {"horn.runtime.messages", "horn.runtime"},
    {"horn.runtime.costs"},
    {"horn.runtime.assume", "horn.runtime.search"},
    {"horn.runtime.journal", "horn.transport"},
    {"horn.transport._framed"},
    {"horn.transport._zeromq"},
    {"horn.transport.inproc", "horn.transport.ipc", "horn.transport.tcp", "horn.transport.shm",
     "horn.transport._service", "horn.transport._client", "horn.transport._linked",
     "horn.runtime.task"},
    {"horn.transport._hub", "horn.transport._links"},
    {"horn.strategies._pieces", "horn.strategies._updates"},
    {"horn.strategies._server", "horn.strategies._asking"},
    {"horn.strategies._lasting"},
    {"horn.strategies.downpour", "horn.strategies.easgd"},
    {"horn.runtime.group", "horn.runtime.exchange"},
    {"horn.runtime.engine", "horn.runtime.merging", "horn.runtime.control", "horn.runtime.parcel",
     "horn.runtime.wire", "horn.runtime.serving", "horn.runtime.lasting"},
    {"horn.runtime.replica", "horn.runtime.meeting", "horn.runtime.saver"},
    {"horn.runtime.reunion"},
    {"horn.runtime.small"},
    {"horn.runtime.masked"},
    {"horn.runtime.submodels"},
    {"horn.strategies.parallel_dropout"},
    {"horn.runtime.calibration"},
    {"horn.runtime.planning"},
    {"horn.runtime.process", "horn.runtime.family", "horn.runtime.blame", "horn.runtime.trace",
     "horn.runtime.watch"},
    {"horn.runtime.crew", "horn.runtime.hearing", "horn.runtime.keeping"},
    {"horn.runtime.crews"},
    {"horn.runtime.repairs"},
    {"horn.runtime.launch"},
    {"horn.train"},
    {"horn.settings", "horn.target"},
    {"horn.cluster.assignment", "horn.cluster.offer"},
    {"horn.cluster.voices"},
    {"horn.cluster.foreman"},
    {"horn.cluster.desk", "horn.cluster.runs"},
    {"horn.cluster.preparing"},
    {"horn.cluster.worker", "horn.cluster.client"},
    {"horn.cluster.resuming"},
    {"horn.cli"},
    {"horn", "horn.__main__"},
]  # fmt: skip
RANK = {home: rank for rank, layer in enumerate(LAYERS) for home in layer}


def sources() -> dict[str, Path]:
    """Every module of horn and zk by name."""
    found = {}
    for path in sorted([*ROOT.glob("horn/**/*.py"), *ROOT.glob("zk/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()


def home(module: str) -> str:
    """The longest prefix that has a place; the package ``horn`` itself is no prefix."""
    name = module
    while name not in RANK or (name == "horn" and module != "horn"):
        name, _, last = name.rpartition(".")
        assert last, f"{module} has no place in LAYERS"
    return name


@functools.cache
def imported(path: Path, *, deferred: bool = True) -> frozenset[str]:
    """The full names that a file imports; what only type checkers see is left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    nodes = ast.walk(tree) if deferred else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports name the whole module"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in SOURCES else node.module)
    return frozenset(found)


def ours(path: Path, **settings: bool) -> set[str]:
    names = imported(path, **settings)
    return {name for name in names if name.partition(".")[0] in ("horn", "zk")}


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module):
    wrong = [
        f"{module} -> {target}"
        for target in ours(SOURCES[module])
        if target != "horn"  # ``import horn`` alone binds lazily
        and home(target) != home(module)
        and RANK[home(target)] >= RANK[home(module)]
    ]
    assert not wrong


def test_no_module_imports_itself_by_a_detour():
    """Cycles among the imports that run when a module is loaded."""
    graph = {name: ours(path, deferred=False) & SOURCES.keys() for name, path in SOURCES.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"cycle: {' -> '.join([*above[above.index(name) :], name])}"
        if name not in done:
            for target in graph[name] - {name}:
                visit(target, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def users(library: str) -> set[str]:
    return {
        name
        for name, path in SOURCES.items()
        if any(target.partition(".")[0] == library for target in imported(path))
    }


def test_kazoo_is_imported_in_one_file():
    assert users("kazoo") <= {"horn.cluster.coord"}


def test_zmq_is_imported_in_one_package():
    assert all(name.startswith("horn.transport") for name in users("zmq"))


def test_nothing_is_pickled():
    assert users("pickle") == users("cloudpickle") == users("shelve") == set()


def test_zk_imports_nothing_of_horn():
    zk = [name for name in SOURCES if name.partition(".")[0] == "zk"]
    assert zk and all(target.startswith("zk") for name in zk for target in ours(SOURCES[name]))
