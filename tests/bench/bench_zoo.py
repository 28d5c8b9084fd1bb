"""How each neuron of examples/zoo runs, and how fast it trains: the table of docs/zoo.md.

    python -m tests.bench.bench_zoo

One thread; whole training steps of the file's own job, in thousands of samples a second, the median
of five epochs after the first. The opponent is the page's first row: weighted sums alone.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from types import ModuleType

import horn
from horn import summary

ZOO = Path(__file__).parents[2] / "examples" / "zoo"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"zoo_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def speed(job: horn.Job) -> float:
    """Thousands of samples a second."""
    run = horn.train(
        job.with_settings(epochs=6, iterations=None, validation=None, test=None, keep_best=False,
                          early_stopping=None, check=False),
        threads=1, progress=False,
    )  # fmt: skip
    return statistics.median(run.history["samples_per_s"][1:]) / 1000.0


def plain() -> horn.Job:
    net = horn.Network(seed=7)
    net.input(64)
    net.layer(40, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, data=horn.data.digits(), optimizer=horn.SGD(0.1, momentum=0.9))


def main() -> None:
    print("| neuron | source | runs as | samples/ms |\n|---|---|---|---|")
    print(f"| `horn.Standard`, 40 units | | matrix product | {speed(plain()):.0f} |")
    for path in sorted(ZOO.glob("*.py")):
        module = load(path)
        job = module.job()
        about, _, source = (module.__doc__ or "").partition("Source: ")
        ways = [row.runs_as for row in summary.layers(job.network) if row.neuron != "input"]
        said = "; ".join(dict.fromkeys(way for way in ways if way))
        paper = " ".join(source.split()).rstrip(".")
        name = f"[{path.stem}](../examples/zoo/{path.name})"
        print(f"| {name}: {' '.join(about.split()).rstrip('.')} | {paper} | {said} "
              f"| {speed(job):.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
