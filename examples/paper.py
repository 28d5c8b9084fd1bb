"""The experiment of the Horn paper: dropout, and parallel dropout with 20 sub-models of 5 samples.

HORN_DATA=folder python examples/paper.py [parallel non-parallel disjoint best] [--seeds 3]

or horn submit examples/paper.py, where folder/mnist has the four IDX files. docs/results.md has the
table, and what the paper leaves open. Source: Yoon 2016, section 4.
"""

import argparse
import multiprocessing

import horn


class Milder(horn.Dropout):
    keep = 0.7


HALVES = horn.ParallelDropout(20, keep=0.5)
SETTINGS = {  # hidden layers, keep of the input, neuron, learning rate, momentum, strategy
    # 0.3 is what a gradient amounts to in all, as momentum repeats it.
    "non-parallel": ([512], 0.8, horn.Dropout, 0.3 * 0.02, 0.98, "allreduce"),
    # Each sub-model has half of the hidden neurons: that is the dropout.
    "parallel": ([512], 0.8, horn.Standard, 0.3 * 0.02, 0.98, HALVES),
    # Sub-models have no neuron in common, and dropout neurons besides.
    "disjoint": ([512], 0.8, horn.Dropout, 0.3 * 0.02, 0.98, horn.ParallelDropout(20)),
    "best": ([512, 512], 0.9, Milder, horn.Cosine(0.1, 10_000), 0.9, "allreduce"),
}


def job(name="non-parallel", iterations=10_000, seed=1):
    hidden, keep, neuron, rate, momentum, _ = SETTINGS[name]
    net = horn.Network(seed=seed)
    net.input(784, keep=keep)
    for size in hidden:
        net.layer(size, neuron=neuron, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    return horn.Job(net, horn.data.mnist(), test=horn.data.mnist("test"), batch_size=100,
                    optimizer=horn.SGD(rate, momentum=momentum), iterations=iterations)  # fmt: skip


def accuracy(name, iterations, seed):
    run = horn.train(job(name, iterations, seed), strategy=SETTINGS[name][-1], threads=1)
    return run.test["acc"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=["parallel", "non-parallel"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time, of one thread")
    args = parser.parse_args()
    runs = [(name, args.iterations, 1 + k) for name in args.names for k in range(args.seeds)]
    with multiprocessing.get_context("spawn").Pool(args.at_once) as pool:
        found = pool.starmap(accuracy, runs, chunksize=1)
    for name in args.names:
        acc = [a for a, run in zip(found, runs, strict=True) if run[0] == name]
        print(f"{name}: acc {sum(acc) / len(acc):.4f} ({min(acc):.4f} to {max(acc):.4f})")
