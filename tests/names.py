"""The page docs/names.md: every name that horn offers, in a line of its docstring.

python -m tests.names > docs/names.md
"""

from __future__ import annotations

import inspect
from pathlib import Path

import horn

ROOT = Path(__file__).resolve().parent.parent
# The page that explains a name.
EXPLAINED = {
    "write-a-neuron": "Neuron Parameter State Synapse SynapseState Weight Standard Dropout neurons",
    "what-compiles": "CompileError interpreted math",
    "from-network-to-job": "Activation Aggregate Dense EarlyStopping Job Loss Model ModelError "
    "Network OneToOne Run Sparse plan train SGD Adagrad RMSProp AdaDelta Adam Direct Step "
    "Exponential Cosine Warmup Constant Uniform Normal Glorot He LeCun",
    "data": "DataError data",
    "space": "Convolution TransposedConvolution Local Window Tied",
    "time": "Delayed Reversed",
    "measure": "plot",
    "when-it-goes-wrong": "Diverged HornError",
    "callbacks": "CSVLogger Callback CallbackError ModelCheckpoint ReduceOnPlateau TensorBoard",
    "strategies": "Averaging Downpour EASGD ParallelDropout Strategy",
    "operations": "Cluster JobFailed __version__",
}
PAGES = {name: page for page, names in EXPLAINED.items() for name in names.split()}

HEAD = """\
# Names

What `import horn` offers, each name in a line; `help(horn.NAME)` has its arguments.
The page is made of the docstrings: `python -m tests.names > docs/names.md`.

| `horn.` | what it is | page |
|---|---|---|
"""


def line_of(name: str) -> str:
    """The first sentence of a docstring."""
    if name == "__version__":
        return "The version that is installed."
    first = " ".join((inspect.getdoc(getattr(horn, name)) or "").split("\n\n")[0].split())
    sentence, end, _ = first.partition(". ")
    return (sentence + "." * bool(end)).replace("``", "`")


def page() -> str:
    rows = (
        f"| `{name}` | {line_of(name)} | [{PAGES[name]}]({PAGES[name]}.md) |\n"
        for name in horn.__all__
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
