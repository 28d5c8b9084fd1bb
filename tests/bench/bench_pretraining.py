"""Whether training layer by layer helps examples/denoise.py: the table of docs/results.md.

    python -m tests.bench.bench_pretraining [--epochs 1 1 2] [--seeds 1 2]
    python -m tests.bench.bench_pretraining --table

Both ways make the same number of updates. The learning rate of each is the best of one run each, by
the error on the last 10,000 training images, which these runs do not learn from; then two seeds
learn from all of them. The error is the squared one per pixel, of what is made of the test images
without three tenths of their pixels. A line of examples/results/pretraining.jsonl is one training;
what is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import horn
from examples import denoise

FILE = Path(__file__).parents[2] / "examples" / "results" / "pretraining.jsonl"
WAYS, RATES = ("layer by layer", "from scratch"), (0.001, 0.003)
TUNING_SEED, HELD_OUT = 100, 10_000


def error(model: horn.Model, images: Any) -> float:
    x = images / 255
    made = model.predict(denoise.noisy(x) / denoise.KEEP)
    return float(np.mean((made - x) ** 2))


def train(way: str, epochs: list[int], rate: float, seed: int) -> horn.Model:
    if way == "layer by layer":
        return denoise.pretrained(tuple(epochs), seed, rate, threads=1)
    return horn.train(denoise.job(sum(epochs), seed=seed, rate=rate), threads=1).model


def lines() -> dict[Any, Any]:
    found = map(json.loads, FILE.read_text().splitlines() if FILE.exists() else ())
    return {(line["way"], tuple(line["epochs"]), line["rate"], line["seed"]): line
            for line in found}  # fmt: skip


def best(way: str, epochs: list[int]) -> float:
    known = lines()
    return min(RATES, key=lambda rate: known[way, tuple(epochs), rate, TUNING_SEED]["error"])


def do(epochs: list[int], seeds: list[int]) -> None:
    whole = horn.data.mnist
    for seed in (TUNING_SEED, *seeds):
        for way in WAYS:
            for rate in RATES if seed == TUNING_SEED else (best(way, epochs),):
                if (way, tuple(epochs), rate, seed) in lines():
                    continue
                begun = time.process_time()
                if seed == TUNING_SEED:
                    kept = len(whole()) - HELD_OUT
                    horn.data.mnist = lambda part="train", n=kept: whole(part)[:n]  # type: ignore
                try:
                    model = train(way, epochs, rate, seed)
                finally:
                    horn.data.mnist = whole
                images = whole().x[-HELD_OUT:] if seed == TUNING_SEED else whole("test").x
                line = {"way": way, "epochs": epochs, "rate": rate, "seed": seed,
                        "error": round(error(model, images), 6),
                        "cpu_s": round(time.process_time() - begun, 1)}  # fmt: skip
                with FILE.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


def table(seeds: list[int]) -> None:
    known = lines()
    print("| epochs | | rate | squared error per pixel, each seed | mean | seconds |")
    print("|---|---|---|---|---|---|")
    for epochs in sorted({key[1] for key in known}):
        for way in WAYS:
            rate = best(way, list(epochs))
            mine = [known[way, epochs, rate, seed] for seed in seeds]
            said = ", ".join(f"{line['error']:.5f}" for line in mine)
            mean = statistics.mean(line["error"] for line in mine)
            took = statistics.mean(line["cpu_s"] for line in mine)
            count = " + ".join(map(str, epochs)) if way == WAYS[0] else f"{sum(epochs)}"
            print(f"| {count} | {way} | {rate:g} | {said} | {mean:.5f} | {took:.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, nargs=3, default=[1, 1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        table(asked.seeds)
    else:
        do(asked.epochs, asked.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
