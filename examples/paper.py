"""The experiment of the Horn paper: dropout, and parallel dropout with 20 sub-models of 5 samples.

HORN_DATA=folder python examples/paper.py [--only parallel] [--seeds 3] [--iterations 10000]

or horn submit examples/paper.py, where folder/mnist has the four IDX files. docs/results.md has the
table, and what the paper leaves open. Source: Yoon 2016, section 4.
"""

import argparse
import statistics

import horn

MOMENTUM = 0.98
RATE = 0.3 * (1 - MOMENTUM)  # 0.3 is what a gradient amounts to in all, as momentum repeats it
SETTINGS = {  # hidden neurons, neuron, strategy
    "non-parallel": (512, horn.Dropout, "allreduce"),
    # Each sub-model has half of the hidden neurons: that is the dropout.
    "parallel": (512, horn.Standard, horn.ParallelDropout(20, keep=0.5)),
    # Sub-models have no neuron in common, and dropout neurons besides.
    "disjoint": (512, horn.Dropout, horn.ParallelDropout(20)),
    # Fewer and wider ones, and a learning rate that falls to nothing.
    "best": (1024, horn.Standard, horn.ParallelDropout(4, keep=0.5)),
}


def job(name="non-parallel", iterations=10_000, seed=1):
    hidden, neuron, _ = SETTINGS[name]
    net = horn.Network(seed=seed)
    net.input(784, keep=0.8)
    net.layer(hidden, neuron=neuron, activation="relu")
    net.output(10, activation="softmax", loss="cross_entropy")
    rate = horn.Cosine(RATE, iterations) if name == "best" else RATE
    return horn.Job(net, horn.data.mnist(), test=horn.data.mnist("test"),
                    optimizer=horn.SGD(rate, momentum=MOMENTUM), batch_size=100,
                    iterations=iterations)  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1, help="processes that train sub-models")
    args = parser.parse_args()
    for name in [args.only] if args.only else SETTINGS:
        strategy = SETTINGS[name][2]
        groups = 1 if strategy == "allreduce" else args.groups
        runs = [horn.train(job(name, args.iterations, 1 + seed), groups=groups, strategy=strategy)
                for seed in range(args.seeds)]  # fmt: skip
        acc = [run.test["acc"] for run in runs]
        print(f"{name}: acc {statistics.mean(acc):.4f} ({min(acc):.4f} to {max(acc):.4f}), "
              f"{statistics.mean(run.seconds for run in runs):.0f} s each")  # fmt: skip


if __name__ == "__main__":
    main()
