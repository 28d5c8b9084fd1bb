"""The house as a test: packages are a DAG, files have no circles, some libraries one place."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Low to high. A room is a package of horn, or a file beside them; each imports of lower ones only,
# and what only type checkers see counts. A new room needs a place: that is the point.
RANKS = [
    {"own_lines", "statements"},
    {"errors", "openblas", "mistakes", "html", "patience", "topology", "math", "random", "_kernels",
     "layer_costs", "version", "prompt", "plain_values", "atomic_write", "defaults",
     "process_stat", "quantities", "host_names"},
    {"texts", "formats"},
    {"module_source"},
    {"registry", "security", "sources", "modelfile", "checkpoint", "data", "connections",
     "activations", "losses", "initializers", "schedules", "aggregates", "sweep",
     "autodiff"},
    {"coordination", "wire", "neuron", "delays", "optimizers", "callbacks"},
    {"transport", "neurons", "layers", "ir", "refusals"},
    {"initial_arrays", "network_checks", "wiring"},
    {"rpc", "network"},
    {"answers", "weight_matrices"},
    {"initial", "language", "metrics", "model_inputs", "program"},
    {"outputs", "weights", "description"},
    {"job_checks", "job_data", "plot"},
    {"job"},
    {"compiler"},
    {"partition"},
    {"scheduling"},
    {"backends", "explain", "readable"},
    {"interpreter", "runtime", "summary", "check", "export", "model_stream",
     "evaluation"},
    {"planner", "parameter_server", "sub_models", "model_engines"},
    {"model_answers"},
    {"model"},
    {"strategies"},
    {"training", "settings"},
    {"process", "run_result", "terminal"},
    {"executor", "contents"},
    {"train"},
    {"target", "sklearn", "doctor"},
    {"cluster"},
    {"cli"},
]  # fmt: skip
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# Where ZeroMQ is: what travels, and who speaks to whom.
ZMQ = ("horn.wire", "horn.transport", "horn.rpc", "horn.parameter_server")


def sources() -> dict[str, Path]:
    """Every module of horn and zk by name."""
    found = {}
    for path in sorted([*ROOT.glob("horn/**/*.py"), *ROOT.glob("zk/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()
HORN = [name for name in SOURCES if name.startswith("horn.") and name != "horn.__main__"]


def room(module: str) -> str:
    """The package or file of horn that a module is in."""
    return module.split(".")[1]


def test_the_map_names_every_package_and_no_file_that_is_not_there():
    """Paths in CONTRIBUTING.md are below horn, or below the repository; NAME is the reader's."""
    named = set(re.findall(r"`([\w./]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    packages = {f"{path.parent.name}/" for path in ROOT.glob("horn/*/__init__.py")}
    assert not packages - named
    files = {name for name in named if re.search(r"\.(py|c|h)$", name) and "NAME" not in name}
    gone = {name for name in files if not (ROOT / name).exists()}
    assert not {name for name in gone if not any((ROOT / "horn").rglob(name))}


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The full names that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports name the whole module"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in SOURCES else node.module)
    return frozenset(found)


def ours(module: str) -> set[str]:
    """What a module imports of horn; ``import horn`` alone binds lazily."""
    return {name for name in imported(SOURCES[module]) if name in SOURCES} - {module, "horn"}


def test_every_room_has_a_rank_and_no_rank_is_for_a_room_that_is_not_there():
    assert {room(module) for module in HORN} == set(RANK)


@pytest.mark.parametrize("module", HORN)
def test_packages_import_only_what_is_below_them(module):
    wrong = [
        target
        for target in ours(module)
        if target.partition(".")[0] == "horn"
        and room(target) != room(module)
        and RANK[room(target)] >= RANK[room(module)]
    ]
    assert not wrong


def test_no_file_imports_itself_by_a_detour():
    """Imports inside functions and those of type checkers are a part of the way."""
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"circle: {' -> '.join([*above[above.index(name) :], name])}"
        if name not in done:
            for target in sorted(ours(name)):
                visit(target, (*above, name))
            done.add(name)

    for name in SOURCES:
        if name not in ("horn", "horn.__main__"):
            visit(name, ())


# Of objects that users hold (Model, Network, Message); the last is Python's.
HELD = {"_judged", "_add", "_identity", "_no_push", "_weights", "_replace"}


def test_private_names_stay_in_their_package():
    """Not those of files: an underscore there says that it is no implementation of a contract."""
    own: dict[str, set[str]] = {}  # what a package defines or assigns, in a class or outside
    used: list[tuple[str, str]] = []
    for name in HORN:
        known = own.setdefault(room(name), set())
        for node in ast.walk(ast.parse(SOURCES[name].read_text())):
            match node:
                case ast.FunctionDef(name=found) | ast.ClassDef(name=found):
                    known.add(found)
                case ast.Name(id=found) | ast.Attribute(attr=found, ctx=ast.Store()):
                    known.add(found)
                case ast.Attribute(value=ast.Name(id="self" | "cls" | "os" | "sys")):
                    pass  # inherited, or of Python
                case ast.Attribute(attr=found):
                    used.append((name, found))
                case ast.ImportFrom(module=str(module)) if module.startswith("horn."):
                    if room(module) != room(name):
                        names = [alias.name for alias in node.names]
                        used += [(name, n) for n in names if f"{module}.{n}" not in SOURCES]
    private = [(at, n) for at, n in used if re.match("_[^_]", n) and n not in HELD]
    assert not [(at, n) for at, n in private if n not in own[room(at)]]


def test_no_base_class_leaves_a_method_to_its_subclasses_and_calls_it():
    """A contract is a Protocol, or says in its error what to write."""
    bare = [
        f"{name}:{node.lineno}"
        for name, path in SOURCES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Name)
        and node.exc.id == "NotImplementedError"
    ]
    assert not bare


def users(library: str) -> set[str]:
    return {
        name
        for name, path in SOURCES.items()
        if any(target.partition(".")[0] == library for target in imported(path))
    }


def test_kazoo_is_imported_in_one_file():
    assert users("kazoo") == {"horn.coordination.kazoo_client"}


def test_zmq_is_imported_where_messages_travel():
    assert all(name.startswith(ZMQ) for name in users("zmq"))


def test_nothing_is_pickled():
    assert users("pickle") == users("cloudpickle") == users("shelve") == set()


def test_files_are_replaced_in_one_place():
    """Each of nine places forgot something else: the disk, permissions, links, what was left."""
    found = {name for name in HORN if "os.replace(" in SOURCES[name].read_text()}
    assert found == {"horn.atomic_write", "horn.cli.sweep"}  # a sweep moves a whole file


def test_zk_imports_nothing_of_horn():
    zk = [name for name in SOURCES if name.partition(".")[0] == "zk"]
    assert zk and not any(
        target.partition(".")[0] == "horn" for name in zk for target in imported(SOURCES[name])
    )


def test_who_sleeps_says_why():
    """A test waits for a condition, with a deadline; for time by itself only with a reason."""
    said = {}
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".sleep"):
                near = lines[node.lineno - 2 : node.lineno]
                said[f"{path.relative_to(ROOT)}:{node.lineno}"] = any("#" in line for line in near)
    assert len(said) > 20 and not [at for at, has_reason in said.items() if not has_reason]


def test_every_file_of_horn_itself_is_in_the_index():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    index = text.partition("## Files of `horn/` itself")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| \S", index, re.M) == sorted(
        path.stem for path in ROOT.glob("horn/*.py")
    )


def test_every_text_file_names_its_encoding():
    """Else names that are no ASCII cannot be written, or are misread, in another locale."""
    missing = []
    for module, path in sources().items():
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or any(k.arg == "encoding" for k in call.keywords):
                continue
            function, place = call.func, len(call.args)
            if isinstance(function, ast.Name) and function.id == "open":
                mode = call.args[1] if place > 1 else None
                is_text = mode is None or isinstance(mode, ast.Constant) and "b" not in mode.value
            elif isinstance(function, ast.Attribute):
                is_text = place < {"read_text": 1, "write_text": 2}.get(function.attr, 0)
            else:
                continue
            missing += [f"{module}, line {call.lineno}"] * is_text
    assert not missing
