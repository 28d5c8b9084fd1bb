"""One word for one thing: names of classes, retired words, and lines of Markdown that are read."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(ROOT.glob("horn/**/*.py"))
PAGES = [
    ROOT / "README.md", ROOT / "CHANGES.md", ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]  # fmt: skip
COLUMNS = 120

# Public classes of more than one module, and why.
SHARED = {
    "Engine": "the contract of backends: a class of this name in each",
    "Runner": "the contract of compiled backends: a class of this name in each",
    "View": "horn.strategies.View is what users' strategies see; that of the kernels is an operand",
}
# Images and sayings for which docs/glossary.md has words.
RETIRED = {
    "foreman": "job runner", "foremen": "job runners", "crew": "task pool", "crews": "task pools",
    "depot": "store", "parcel": "payload", "parcels": "payloads", "desk": "file service",
    "reunion": "server discovery", "keeper": "primary host, or checkpoint coordinator",
    "hearing": "monitor", "hub": "root, or server", "knock": "probe", "knocks": "probes",
    "eyes": "directory", "voices": "output relay", "seat": "allocation", "seats": "allocations",
    "seated": "placed", "bridge": "host link",
}  # fmt: skip
# Pages that may say them: they tell what became of the old names, or mean the thing itself.
TELLS = {"0120-packages-that-form-a-dag.md", "0121-one-parameter-server.md", "0123-words.md"}
MEANT = {("reliability.md", "bridge"): "of network namespaces"}


def test_a_public_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    several = {name: found for name, found in places.items() if len(found) > 1}
    assert several.keys() == SHARED.keys(), several


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_retired_words_are_not_said(path):
    if path.name in TELLS:
        return
    words = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
    found = [
        f"{path.name}:{number}: {word!r}, say {RETIRED[word.lower()]!r}"
        for number, line in enumerate(path.read_text().split("\n"), 1)
        for word in words.findall(line)
        if (path.name, word.lower()) not in MEANT
    ]
    assert not found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_markdown_can_be_read(path):
    """Tables, code and addresses that cannot be broken apart."""
    is_code, long = False, []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ")) and len(line) > COLUMNS:
            long += [number] * (len(line.split()[-1]) < COLUMNS - 20)
    assert not long, f"{path.name}: lines of more than {COLUMNS} columns: {long}"


def test_a_term_of_the_glossary_is_explained_once():
    terms = [
        term.strip().lower()
        for bold in re.findall(r"\*\*([^*]+)\*\*", (ROOT / "docs/glossary.md").read_text())
        for term in bold.split(",")
    ]
    assert len(terms) > 50 and len(terms) == len(set(terms)), sorted(terms)
