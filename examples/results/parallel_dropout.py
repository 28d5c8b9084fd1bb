"""What parallel dropout is worth: every number and the picture of its chapter in docs/results.md.

    HORN_DATA=folder python examples/results/parallel_dropout.py [STUDY ...] [--minutes 9]
    python examples/results/parallel_dropout.py --tables --picture docs/parallel-dropout.svg

HORN_DATA needs mnist/ and cifar10*.npz. All studies take 34 minutes of a fast core, 6 of them
the first three. A line of parallel_dropout.jsonl beside this file is one
training, with the processor seconds that it took; what is there is not done again, so a run that
was stopped goes on. ``--minutes``: begin nothing new after so long.

All methods of a study have the same layers, batches and learning rates to choose from. The rate is
the best of one run each, by the accuracy on the last sixth of the training images, which it does
not train on; then three seeds train on all of them, and the test images are looked at. Where a
study has ``seconds``, every method gets the same processor time: what an iteration takes is
measured first, and how many there are follows from it.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import horn
from horn.neurons import BatchDropout, Dropout, Standard

FILE = Path(__file__).with_suffix(".jsonl")
SEEDS = (1, 2, 3)
TUNING_SEED = 100
Parallel = horn.ParallelDropout


class _Counting(Parallel):
    """Sub-models whose gradients are divided by something else than how many have a weight."""

    def divide(self, counts, n_sub_models):
        raise NotImplementedError

    def engine(self, seat):
        engine = super().engine(seat)
        count = engine.parent.count

        def counted(members, dropconnect):
            count(members, dropconnect)
            for counts in engine.parent.counts.values():
                self.divide(counts, len(members))

        engine.parent.count = counted
        return engine


class OverAll(_Counting):
    """The sum over the sub-models that have a weight, divided by the number of all."""

    def divide(self, counts, n_sub_models):
        counts[counts > 0] = n_sub_models


class Rolling(_Counting):
    """Momentum also moves the weights that no sub-model had in a batch."""

    def divide(self, counts, n_sub_models):
        np.maximum(counts, 1, out=counts)


@dataclass(frozen=True)
class Method:
    neuron: type = Standard
    strategy: horn.Strategy | str = "allreduce"
    keep_input: float = 0.8


PLAIN = {"no dropout": Method(keep_input=1.0), "dropout": Method(Dropout)}
THREE = PLAIN | {"parallel, 20 of half": Method(strategy=Parallel(20, keep=0.5))}
CHEAP = PLAIN | {
    "dropout per batch": Method(BatchDropout),
    "parallel, 2 disjoint": Method(strategy=Parallel(2)),
    "parallel, 4 disjoint": Method(strategy=Parallel(4)),
}


@dataclass(frozen=True)
class Study:
    """rates : to choose from; always : those that are trained with all seeds in any case.
    n : training images, 0 for all. iterations or seconds : how long each method trains.
    """

    title: str
    hidden: tuple[int, ...]
    methods: dict[str, Method]
    rates: tuple[float, ...]
    iterations: int = 0
    seconds: float = 0.0
    data: str = "mnist"
    n: int = 0
    always: tuple[float, ...] = ()
    optimizer: Callable[[float, int], horn.SGD] = field(
        default=lambda rate, n: horn.SGD(horn.Cosine(rate, n), momentum=0.9)
    )


def papers(rate, iterations):
    """The paper's: 0.3 is what a gradient amounts to in all, as momentum 0.98 repeats it."""
    return horn.SGD(rate * 0.02, momentum=0.98)


RATES, FEW = (0.02, 0.06, 0.2), (0.1, 0.2, 0.4, 0.8)
STUDIES = {
    "few600": Study("784-512-10, 600 images of MNIST", (512,), THREE, FEW, 2000, n=600),
    "few6000": Study("784-512-10, 6,000 images of MNIST", (512,), THREE, FEW, 2000, n=6000),
    "paper": Study(
        "the paper's experiment, 784-512-10, 10,000 batches", (512,), THREE,
        (0.3, 0.6, 1.2), 10_000, always=(0.3,), optimizer=papers,
    ),
    "cifar": Study(
        "3072-512-10, 10,000 images of CIFAR-10", (512,), THREE, RATES, 2000, data="cifar10"
    ),
    "deep": Study(
        "784-2048-2048-10, 6,000 images, equal time", (2048, 2048), CHEAP, RATES, seconds=6.0,
        n=6000,
    ),
    "wide": Study(
        "784-8192-10, 6,000 images, equal time", (8192,), CHEAP, RATES, seconds=6.0, n=6000
    ),
    "narrow": Study("784-512-10, equal time", (512,), CHEAP, RATES, seconds=2.0),
    "merge": Study(
        "how sub-models are merged, 784-512-10, 2,000 batches", (512,),
        {
            "20 of half, mean over those that have it": Method(strategy=Parallel(20, keep=0.5)),
            "20 of half, mean over all": Method(strategy=OverAll(20, keep=0.5)),
            "20 of half, redrawn every 100 batches":
                Method(strategy=Parallel(20, keep=0.5, redraw=100)),
            "2 of half": Method(strategy=Parallel(2, keep=0.5)),
            "2 of half, momentum for all": Method(strategy=Rolling(2, keep=0.5)),
            "dropout": Method(Dropout),
        },
        (0.3, 0.6, 1.2), 2000, optimizer=papers,
    ),
    "literal": Study(
        "dropout neurons inside sub-models, 784-512-10, 10,000 batches", (512,),
        {
            "parallel, 20 disjoint, dropout inside": Method(Dropout, Parallel(20)),
            "parallel, 20 of half, dropout inside": Method(Dropout, Parallel(20, keep=0.5)),
        },
        (0.3, 0.6, 1.2), 10_000, optimizer=papers,
    ),
}  # fmt: skip


def network(study, method, seed, width):
    net = horn.Network(seed=seed)
    net.input(width, keep=method.keep_input)
    for size in study.hidden:
        net.layer(size, neuron=method.neuron, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    return net


def parts(study, is_tuning):
    """(what is trained on, what is measured on)."""
    load = {"mnist": horn.data.mnist, "cifar10": horn.data.cifar10}[study.data]
    train, n = load(), study.n
    held = len(train) // 6
    if is_tuning:
        return (train.take(n) if n else train.take(len(train) - held)), train[len(train) - held :]
    return (train.take(n) if n else train), load("test")


def train(study, method, rate, seed, iterations):
    """(accuracy, processor seconds)."""
    data, test = parts(study, seed == TUNING_SEED)
    job = horn.Job(
        network(study, method, seed, data.n_features), data, test=test, batch_size=100,
        optimizer=study.optimizer(rate, iterations), iterations=iterations, check=False,
    )  # fmt: skip
    began = processor_s()
    try:
        run = horn.train(job, strategy=method.strategy, threads=1)
    except horn.Diverged:
        return 0.0, processor_s() - began
    return run.test["acc"], processor_s() - began


def processor_s():
    """Of this process and of those that it has started, which sub-models are trained in."""
    return sum(os.times()[:4])


class Records:
    """The lines of the file, by what they are about."""

    def __init__(self, path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found = {self.key(line): line for line in map(json.loads, lines)}

    @staticmethod
    def key(line):
        return line["study"], line["method"], line.get("rate"), line.get("seed")

    def add(self, **line):
        self.found[self.key(line)] = line
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    def acc(self, study, method, rate, seed):
        line = self.found.get((study, method, rate, seed))
        return None if line is None else line["acc"]

    def best_rate(self, name, method):
        """By the tuning runs; None if one is missing."""
        found = [(self.acc(name, method, r, TUNING_SEED), r) for r in STUDIES[name].rates]
        return None if any(acc is None for acc, _ in found) else max(found)[1]

    def iterations(self, name, method):
        study = STUDIES[name]
        if not study.seconds:
            return study.iterations
        line = self.found.get((name, method, None, None))
        return None if line is None else max(int(study.seconds / line["pace"]), 1)


def measure_pace(records, name):
    """Processor seconds of an iteration: the methods by turns, and the median of three."""
    study, found = STUDIES[name], {}
    n = 20 if max(study.hidden) > 512 else 200
    for _ in range(3):
        for method, how in study.methods.items():
            short, long = (train(study, how, study.rates[0], 1, k)[1] for k in (n, 4 * n))
            found.setdefault(method, []).append((long - short) / (3 * n))
    for method, paces in found.items():
        records.add(study=name, method=method, pace=round(statistics.median(paces), 7))


def wanted(records, names):
    """What is still to be trained, as (study, method, rate, seed)."""
    for name in names:
        study = STUDIES[name]
        for seed, rates in ((TUNING_SEED, study.rates), *((seed, ()) for seed in SEEDS)):
            for method in study.methods:
                best = (records.best_rate(name, method),) if seed in SEEDS else ()
                for rate in dict.fromkeys((*rates, *best, *(study.always if best else ()))):
                    if records.acc(name, method, rate, seed) is None:
                        yield name, method, rate, seed


def do(records, names, minutes):
    ends = time.monotonic() + 60 * minutes
    for name in names:
        study = STUDIES[name]
        if study.seconds and any(records.iterations(name, m) is None for m in study.methods):
            measure_pace(records, name)
    for name, method, rate, seed in wanted(records, names):
        if time.monotonic() > ends:
            print("not done yet: run it again")
            return
        n = records.iterations(name, method)
        acc, seconds = train(STUDIES[name], STUDIES[name].methods[method], rate, seed, n)
        records.add(study=name, method=method, rate=rate, seed=seed, iterations=n, acc=acc,
                    cpu_s=round(seconds, 2))  # fmt: skip


def rows(records, name):
    """(method, rate, how it was chosen, accuracies of the seeds)."""
    study = STUDIES[name]
    for method in study.methods:
        best = records.best_rate(name, method)
        for rate in sorted({best, *study.always} - {None}):
            found = [records.acc(name, method, rate, seed) for seed in SEEDS]
            if None not in found:
                yield method, rate, "chosen" if rate == best else "", found


def tables(records):
    for name, study in STUDIES.items():
        if not list(rows(records, name)):
            continue
        print(f"\n{study.title}\n\n| method | rate | iterations | accuracy, 3 seeds | range | s |")
        print("|---|---|---|---|---|---|")
        for method, rate, how, acc in rows(records, name):
            lines = [records.found[name, method, rate, seed] for seed in SEEDS]
            took = statistics.mean(line["cpu_s"] for line in lines)
            print(
                f"| {method} | {rate:g}{', ' + how if how else ''} | {lines[0]['iterations']:,} "
                f"| {statistics.mean(acc):.4f} | {min(acc):.4f} to {max(acc):.4f} | {took:.0f} |"
            )
    total = sum(line.get("cpu_s", 0.0) for line in records.found.values())
    print(f"\n{len(records.found)} lines, {total / 60:.0f} minutes of one core")


def picture(records, path):
    """One panel a study: a dot for each seed, a line at their mean; all at the chosen rate."""
    across, left, top, row, gap = 900, 300, 34, 17, 60
    out, y = [], top
    for name, study in STUDIES.items():
        found = [(m, acc) for m, _, how, acc in rows(records, name) if how]
        if not found:
            continue
        low = min(min(acc) for _, acc in found)
        high = max(max(acc) for _, acc in found)
        margin = 0.06 * (high - low) or 0.001

        def at(acc, low=low - margin, high=high + margin):
            return left + (acc - low) / (high - low) * (across - left - 30)

        out.append(f'<text x="8" y="{y}" font-weight="bold">{study.title}</text>')
        for end, acc in (("start", low), ("end", high)):
            out.append(f'<text x="{at(acc):.1f}" y="{y + row * (len(found) + 1)}" fill="#666" '
                       f'text-anchor="{end}">{acc:.4f}</text>')  # fmt: skip
        for k, (method, acc) in enumerate(found):
            line = y + row * (k + 1)
            colour = "#c0392b" if "of half" in method or "disjoint" in method else "#2c5f8a"
            mean = at(statistics.mean(acc))
            out.append(f'<text x="{left - 10}" y="{line}" text-anchor="end">{method}</text>')
            out.append(f'<line x1="{left}" x2="{across - 20}" y1="{line - 4}" y2="{line - 4}" '
                       f'stroke="#ddd"/>')  # fmt: skip
            out.append(f'<line x1="{mean:.1f}" x2="{mean:.1f}" y1="{line - 10}" y2="{line + 2}" '
                       f'stroke="{colour}" stroke-width="2"/>')  # fmt: skip
            out += [f'<circle cx="{at(a):.1f}" cy="{line - 4}" r="3" fill="{colour}" '
                    f'fill-opacity="0.55"/>' for a in acc]  # fmt: skip
        y += row * len(found) + gap
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across} {y - gap + 34}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("studies", nargs="*", default=[], metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--pace", action="store_true", help="only measure what iterations take")
    parser.add_argument("--tables", action="store_true", help="print what is there, as Markdown")
    parser.add_argument("--picture", type=Path, help="write what is there as SVG")
    args = parser.parse_args()
    records = Records(FILE)
    names = args.studies or list(STUDIES)
    if args.pace:
        for name in names:
            if STUDIES[name].seconds:
                measure_pace(records, name)
    elif args.tables or args.picture:
        if args.tables:
            tables(records)
        if args.picture:
            picture(records, args.picture)
    else:
        do(records, names, args.minutes)


if __name__ == "__main__":
    main()
