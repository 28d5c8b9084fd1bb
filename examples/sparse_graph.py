"""A graph that is no chain: small receptive fields beside a dense layer, both read by the output.

horn submit examples/sparse_graph.py, or python examples/sparse_graph.py
"""

import horn

SIDE, WINDOW = 8, 3
PLACES = SIDE - WINDOW + 1  # windows along one side


def window(neuron):
    """Neuron k listens to the pixels of one 3x3 window; four neurons share each window."""
    row, column = divmod(neuron // 4, PLACES)
    return [(row + i) * SIDE + column + j for i in range(WINDOW) for j in range(WINDOW)]


def job():
    net = horn.Network(seed=7)
    pixels = net.input(SIDE * SIDE)
    local = net.layer(
        4 * PLACES * PLACES, activation="relu", connect=horn.Sparse(sources=window), name="local"
    )
    wide = net.layer(32, activation="tanh", inputs=pixels, name="wide")
    net.output(10, inputs=[local, wide], activation="softmax", loss="cross_entropy")
    return horn.Job(
        net,
        data=horn.data.digits(),
        test=horn.data.digits("test"),
        optimizer=horn.SGD(0.05, momentum=0.9),
        epochs=15,
    )


def report(run):
    layer = run.model.network.layers[1]
    print(f"{layer.name}: {layer.size} neurons of {layer.fan_in} synapses each")


if __name__ == "__main__":
    run = horn.train(job(), progress=True)
    print(run.test)
    report(run)
