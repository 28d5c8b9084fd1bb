"""Every code block of README.md and docs/ runs, and shows what it says it shows.

In a file the Python blocks run one after another in one module whose lines are those of the file,
so that messages point into it. A block that begins with "# name.py" is also saved under that name.
A "python torch" block runs where PyTorch is. A "python error" block must be refused with the text
of the block after it. In a console block every command runs, and its output must be the one shown,
numbers and "..." apart. Shapes in the comment of a line that prints are those that it prints.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

import horn
from horn.cli import horn as commands
from horn.cli._end import ending

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
for words_alone in ("glossary.md", "names.md"):
    FILES.remove(ROOT / "docs" / words_alone)


@dataclass
class Block:
    """A fenced block: its info string, its text, and the line of its first line (from 1)."""

    kind: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    found = []
    for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", path.read_text(), re.M):
        line = path.read_text()[: match.start(2)].count("\n") + 1
        found.append(Block(match[1], match[2], line))
    return found


@pytest.fixture
def module(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A module with the lines of the document, in a folder of its own."""
    path: Path = request.param
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    name = re.sub(r"\W", "_", path.stem.lower())
    found = types.ModuleType(f"doc_{name}")
    found.__file__ = str(tmp_path / path.name)
    code = "\n" * path.read_text().count("\n")
    lines = code.splitlines(keepends=True)
    for block in blocks(path):
        if block.kind.startswith("python"):
            for k, text in enumerate(block.text.splitlines(keepends=True)):
                lines[block.line - 1 + k] = text
    (tmp_path / path.name).write_text("".join(lines))
    sys.modules[found.__name__] = found
    found.__dict__["document"] = path
    yield found
    for added in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[added], "__file__", "")):
            del sys.modules[added]


@pytest.mark.cluster
@pytest.mark.parametrize("module", FILES, indirect=True, ids=lambda path: path.name)
def test_every_block_runs(module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = module.document
    found = blocks(path)
    assert found
    for k, block in enumerate(found):
        if block.kind == "python torch" and importlib.util.find_spec("torch") is None:
            continue  # horn does not install it
        if block.kind in ("python", "python torch"):
            run(module, block)
            if name := re.match(r"# (\w+\.py)\n", block.text):
                (tmp_path / name[1]).write_text(block.text)
        elif block.kind == "python error":
            assert found[k + 1].kind == "text"
            assert refusal(module, block) == found[k + 1].text.strip()
        elif block.kind == "console":
            console(block, capsys)
        else:
            # bash: the two commands of the README, for .ci/run. sh: servers and long programs.
            assert block.kind in ("text", "bash", "sh"), (
                f"{path.name}:{block.line}: nobody runs this block"
            )


def run(module: Any, block: Block) -> None:
    code = compile("\n" * (block.line - 1) + block.text, module.__file__, "exec")
    printed: dict[int, str] = {}
    built_in = print

    def show(*values: Any, **more: Any) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_filename == module.__file__:
            printed[caller.f_lineno] = " ".join(map(str, values))
        built_in(*values, **more)

    with mock.patch("builtins.print", show):
        exec(code, module.__dict__)
    for line, text in enumerate(block.text.splitlines(), block.line):
        for part in promised(text) if line in printed else ():
            assert part in printed[line], f"{module.__file__}:{line} printed {printed[line]!r}"


def promised(line: str) -> list[str]:
    """What a comment says that its line prints: shapes, or words, with "..." for others."""
    comment = re.search(r"print\(.*\)  # (.*)", line)
    if comment is None:
        return []
    if comment[1].startswith("..."):
        return [part.strip() for part in comment[1].split("...") if part.strip()]
    return re.findall(r"\(\d[\d, ]*\)", comment[1])


def refusal(module: Any, block: Block) -> str:
    """What horn says to a job with the block's neuron."""
    run(module, block)
    name = re.search(r"class (\w+)", block.text)
    assert name is not None
    net = horn.Network(seed=1)
    net.input(64)
    net.layer(3, neuron=getattr(module, name[1]))
    net.output(10, activation="softmax", loss="cross_entropy")
    with pytest.raises(horn.HornError) as caught:
        horn.train(horn.Job(net, horn.data.digits().take(40), epochs=1))
    return str(caught.value).replace(str(Path(module.__file__).parent) + "/", "")


def console(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "horn"
        capsys.readouterr()
        code = ending(commands, words[1:])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        compare(shown, captured.err + captured.out, command)


def compare(shown: str, said: str, command: str) -> None:
    """Every line that is shown was said, in this order on its stream, numbers apart."""
    lines = [mask(line) for line in said.splitlines()]
    for line in shown.splitlines():
        if line.strip() not in ("", "..."):
            assert mask(line) in lines, f"{command} did not say {line!r}, but:\n{said}"


def mask(line: str) -> str:
    """A line without its numbers, hashes and the width of its columns."""
    line = re.sub(r"sha256 \w+", "sha256 #", line)
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,.]*(e[+-]\d+)?[kM]?", "#", line)).strip()


def test_the_two_commands_of_the_readme_are_those_that_ci_runs() -> None:
    first, second = (b.text.strip() for b in blocks(ROOT / "README.md") if b.kind == "bash")
    script = (ROOT / ".ci" / "run").read_text()
    assert first.endswith(".venv/bin/horn submit examples/digits.py")
    assert second.endswith(".venv/bin/python -m pytest -n auto --dist loadfile")
    assert second in script and first in script


def test_the_figures_of_the_readme_are_those_that_a_reader_sees() -> None:
    """Those that are the same on every machine, to the digit."""
    shown = (ROOT / "README.md").read_text()
    text = next(b.text for b in blocks(ROOT / "README.md") if "# first.py" in b.text)
    first: dict[str, Any] = {"__name__": "first"}
    exec(text, first)
    job = first["job"]().with_settings(epochs=1)
    assert job.acc_is_of in shown
    [row] = horn.train(job).history
    digits = f"{row['loss']:.4f}"[:-1]  # the fourth is the processor's
    assert f"Epoch  1/20  loss {digits}" in shown


def test_the_functions_of_the_language_are_those_that_compile() -> None:
    """In the rows of what-compiles.md on functions, on messages and on their order of size."""
    page = (ROOT / "docs" / "what-compiles.md").read_text()
    rows = dict(re.findall(r"^\| (functions|messages|order of size) \| (.*) \|$", page, re.M))
    words = {row: set(re.findall(r"\w+", text)) for row, text in rows.items()}
    of_messages = {"prod"} | {"median", "largest", "smallest", "top_sum"}
    listed = re.search(r"`horn.math`: `([\w ]+)`", rows["functions"])
    assert listed is not None
    assert {*listed[1].split()} == {*horn.math.FUNCTIONS} - of_messages
    assert of_messages <= words["messages"] | words["order of size"]


def test_links_lead_somewhere() -> None:
    for path in FILES:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path}: {target}"


def test_named_files_are_there() -> None:
    """Of notes, too: who follows one to the code finds it."""
    named = re.compile(r"\b(?:horn|zk|tests|docs|examples)/[a-z0-9_/.-]+\.(?:py|pyx|pxi|c|h|md)\b")
    for path in [*FILES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "notes").glob("*.md"))]:
        missing = [name for name in named.findall(path.read_text()) if not (ROOT / name).exists()]
        assert not missing, f"{path.name}: {missing}"


def test_named_files_of_a_package_are_there() -> None:
    """As "executor/launch.py" in a note."""
    named = re.compile(r"(?<![\w/.])(?!examples)[a-z_]+/[a-z0-9_/]+\.(?:py|pyx|pxi|c|h)\b")
    places = [ROOT, *(ROOT / name for name in ("horn", "horn/cluster", "tests", "tests/cluster"))]
    for path in sorted((ROOT / "docs" / "notes").glob("*.md")):
        missing = [
            name
            for name in named.findall(path.read_text())
            if not any((place / name).exists() for place in places)
        ]
        assert not missing, f"{path.name}: {missing}"


def test_sources_point_at_pages_that_a_clone_has() -> None:
    pages = re.compile(r"\b(?:docs|reference|shared)/[\w/.-]+\.md\b|\bDESIGN\b")
    for path in [*ROOT.glob("horn/**/*.py"), *ROOT.glob("zk/**/*.py")]:
        missing = [name for name in pages.findall(path.read_text()) if not (ROOT / name).exists()]
        assert not missing, f"{path}: {missing}"


def test_every_option_has_help() -> None:
    context = click.Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None and command.help
        options = [each for each in command.params if isinstance(each, click.Option)]
        assert [each.name for each in options if not each.help] == [], name


def test_variables_of_the_environment_are_in_a_page() -> None:
    own = {"HORN_TASK_PATH", "HORN_SEED"}  # from a process to its child; of the tests
    found = {
        name
        for path in [*ROOT.glob("horn/**/*.py"), *ROOT.glob("zk/**/*.py")]
        for name in re.findall(r"\bHORN_[A-Z_]*[A-Z]\b", path.read_text())
    }
    told = " ".join(path.read_text() for path in [*FILES, ROOT / "CONTRIBUTING.md"])
    assert {name for name in found - own if not re.search(rf"\b{name}\b", told)} == set()


def test_the_table_of_arguments_is_that_of_the_signatures() -> None:
    page = (ROOT / "docs/from-network-to-job.md").read_text()
    for module in ("initializers", "optimizers", "schedules"):
        for name in horn._OF_MODULE[module].split():
            own = inspect.signature(getattr(horn, name)).parameters.values()
            plain = [p.replace(annotation=p.empty) for p in own if p.kind is not p.KEYWORD_ONLY]
            shown = ", ".join(str(p) for p in plain)
            assert f"`{name}({shown})`" in page
