"""A hundred mistakes of new users: each is answered with the place, what was got, the remedy and an
exit code, and nobody sees a traceback.

Each is the job below with a line replaced, run by ``horn submit`` unless it says another command.
A remedy is tried where one line is enough: with it the job runs.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn

JOB = """
import random
import numpy as np
import horn

class Mine(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(self.activation(total))

def job():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    net = horn.Network(seed=3)
    net.input(2)
    net.layer(4, neuron=Mine, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.Job(net, (x, y), optimizer=horn.SGD(0.5), batch_size=10, epochs=3)
"""
TOTAL = "        total = sum(m.input * m.weight for m in messages)"
FEED = "        self.feedforward(self.activation(total))"
RETURN = "    return horn.Job(net, (x, y), optimizer=horn.SGD(0.5), batch_size=10, epochs=3)"
JOB_OF = "    return horn.Job(net, (x, y), %s)"
LAYER = '    net.layer(4, neuron=Mine, activation="tanh")'
OUTPUT = '    net.output(2, activation="softmax", loss="cross_entropy")'
SEED = "    net = horn.Network(seed=3)"
INPUT = "    net.input(2)"
LABELS = "    y = (x[:, 0] > 0).astype(int)"
SAMPLES = '    x = rng.standard_normal((40, 2)).astype("float32")'


@dataclass
class Mistake:
    """What is replaced by what, the line that is named ("" where none is), what is said."""

    line: str
    by: str
    said: tuple[str, ...]
    code: int = 2
    place: bool = True
    remedy: str = ""


M = Mistake
JOBS = {
    # Keras
    "model.fit": M(RETURN, "    net.fit(x, y, epochs=3)",
        ("a horn.Network has no 'fit'", "horn.train(horn.Job(net, (x, y), epochs=10))"), 1),
    "net.add": M(LAYER, "    net.add(4)",
        ("a horn.Network has no 'add'", "layers are added by net.input(n)"), 1, remedy=LAYER),
    "net.compile": M(RETURN, '    net.compile(loss="mse")',
        ("has no 'compile'", "there is nothing to compile: the loss is net.output"), 1),
    "Sequential": M(SEED, "    net = horn.Sequential()",
        ("horn has no 'Sequential'", "net = horn.Network(); net.input(784)"), 1, remedy=SEED),
    "Dense": M(LAYER, "    net.layers += [horn.Dense(4)]",
        ("Dense.__init__() takes 1 positional argument", "horn.Dense is a way to connect"), 1),
    "units=": M(LAYER, "    net.layer(units=4)",
        ("unexpected keyword argument 'units'", "write size, the first one"), 1,
        remedy="    net.layer(size=4)"),
    "input_shape=": M(LAYER, "    net.layer(4, input_shape=(2,))",
        ("unexpected keyword argument 'input_shape'", "write net.input(n_features)"), 1),
    "dropout=": M(INPUT, "    net.input(2, dropout=0.2)",
        ("unexpected keyword argument 'dropout'", "keep=0.8 for the input"), 1,
        remedy="    net.input(2, keep=0.8)"),
    'optimizer="adam"': M(RETURN, '    return horn.Job(net, (x, y), optimizer="adam")',
        ("optimizer must be an optimizer, got 'adam'", "write horn.Adam(learning_rate=0.001)"),
        remedy="    return horn.Job(net, (x, y), optimizer=horn.Adam(learning_rate=0.001))"),
    "the optimizer's class": M(RETURN, "    return horn.Job(net, (x, y), optimizer=horn.SGD)",
        ("horn.optimizers.SGD", "write horn.SGD(learning_rate=0.1)")),
    'loss="mse"': M(OUTPUT, '    net.output(2, loss="mse")',
        ("unknown loss 'mse'", "did you mean 'squared_error'?"),
        remedy='    net.output(2, loss="squared_error")'),
    "categorical_crossentropy": M(OUTPUT,
        '    net.output(2, activation="softmax", loss="categorical_crossentropy")',
        ("unknown loss 'categorical_crossentropy'", "did you mean 'cross_entropy'?"),
        remedy=OUTPUT),
    "an activation misspelt": M(LAYER, '    net.layer(4, activation="sigmiod")',
        ("layer 1 'layer1': unknown activation 'sigmiod'; did you mean 'sigmoid'?",),
        remedy='    net.layer(4, activation="sigmoid")'),
    "an activation that is none": M(LAYER, "    net.layer(4, activation=None)",
        ("layer 1 'layer1': unknown activation None; did you mean 'identity'?",),
        remedy='    net.layer(4, activation="identity")'),
    "NumPy's tanh as activation": M(LAYER, "    net.layer(4, activation=np.tanh)",
        ("unknown activation <ufunc 'tanh'>; did you mean 'tanh'?", "or pass a function f(z), as"),
        remedy='    net.layer(4, activation="tanh")'),
    "validation_split=": M(RETURN, "    return horn.Job(net, (x, y), validation_split=0.1)",
        ("unexpected keyword argument 'validation_split'", "write validation=0.1"), 1,
        remedy="    return horn.Job(net, (x, y), validation=0.1)"),
    "x and y apart": M(RETURN, "    return horn.Job(net, x, y)",
        ("optimizer must be an optimizer", "got ndarray of shape (40,)", "horn.Job(net, (x, y))"),
        remedy="    return horn.Job(net, (x, y))"),
    "no data": M(RETURN, "    return horn.Job(net)",
        ("missing 1 required positional argument: 'data'",), 1),
    "shuffle=": M(RETURN, "    return horn.Job(net, (x, y), shuffle=True)",
        ("unexpected keyword argument 'shuffle'; leave it out: every epoch has an order",), 1,
        remedy="    return horn.Job(net, (x, y))"),
    "metrics of train": M(RETURN,
        '    return horn.train(horn.Job(net, (x, y)), metrics=["accuracy"])',
        ("train() got an unexpected keyword argument 'metrics'", "metrics=['accuracy']"), 1,
        remedy='    return horn.Job(net, (x, y), metrics=["accuracy"])'),
    "device=": M(RETURN, '    return horn.Job(net, (x, y), device="cpu")',
        ("unexpected keyword argument 'device'; leave it out: horn computes on processors",), 1),
    "epoch=": M(RETURN, "    return horn.Job(net, (x, y), epoch=3)",
        ("unexpected keyword argument 'epoch'; did you mean epochs?",), 1,
        remedy="    return horn.Job(net, (x, y), epochs=3)"),
    "a list of samples": M(RETURN, "    return horn.Job(net, list(zip(x, y)))",
        ("got a list of 40 pairs, a sample each", "write  x, y = zip(*data)"),
        remedy="    x, y = zip(*zip(x, y)); return horn.Job(net, (np.array(x), np.array(y)))"),
    "softmax of one neuron": M(OUTPUT,
        '    net.output(1, activation="softmax", loss="cross_entropy")',
        ("softmax of 1 neuron is always 1", 'write output(1, activation="sigmoid"'),
        remedy='    net.output(1, activation="sigmoid", loss="binary_cross_entropy")'),
    "images": M(SAMPLES, "    x = rng.random((40, 28, 28))",
        ("input has 784 features per sample, but the network declares input(2)",
         "Use net.input(784)"), place=False),
    "net.convolution": M(LAYER, "    net.convolution(8, 3)",
        ("a horn.Network has no 'convolution'", "connect=horn.Convolution(channels=8, kernel=3"), 1,
        remedy=LAYER),
    "net.max_pool": M(LAYER, "    net.max_pool(2)",
        ("a horn.Network has no 'max_pool'", "connect=horn.Window(2, stride=2)"), 1, remedy=LAYER),
    "net.batch_norm": M(LAYER, "    net.batch_norm()",
        ("a horn.Network has no 'batch_norm'", "self.mean(z, over='batch')"), 1, remedy=LAYER),
    "net.lstm": M(LAYER, "    net.lstm(4)",
        ("a horn.Network has no 'lstm'", "a cell is a neuron with a State"), 1, remedy=LAYER),
    "net.embedding": M(LAYER, "    net.embedding(4)",
        ("a horn.Network has no 'embedding'", "np.eye(n)[numbers]"), 1, remedy=LAYER),
    "half a neuron": M(LAYER, "    net.layer(4.5)",
        ("must be a whole number from 1, got 4.5",), remedy="    net.layer(4)"),
    # PyTorch
    "nn.Linear": M(LAYER, "    net.layers += [horn.nn.Linear(2, 4)]",
        ("horn has no 'nn'", "net = horn.Network()"), 1),
    "lr=": M(RETURN, "    return horn.Job(net, (x, y), optimizer=horn.Adam(lr=0.1))",
        ("unexpected keyword argument 'lr'", "write learning_rate"), 1,
        remedy="    return horn.Job(net, (x, y), optimizer=horn.Adam(learning_rate=0.001))"),
    "parameters of torch": M(RETURN, "    optimizer = horn.SGD(net.parameters(), lr=0.1)",
        ("a horn.Network has no 'parameters'",), 1),
    "the neuron made": M(LAYER, "    net.layer(4, neuron=Mine())",
        ("neuron must be a subclass of horn.Neuron", "pass the class itself: neuron=Mine"),
        remedy="    net.layer(4, neuron=Mine)"),
    "returning a value": M(FEED, "        return self.activation(total)",
        ("Mine.forward never calls self.feedforward(...)",
         "End forward with self.feedforward(value), not with return"), remedy=FEED),
    "matrices": M(FEED, "        self.feedforward(messages @ self.weight)",
        ("the operator in 'messages @ self.weight' is not in the neuron language",
         "write sum(m.input * m.weight for m in messages)"), remedy=FEED),
    "self.weight": M(TOTAL, "        total = sum(m.input * self.weight for m in messages)",
        ("self.weight is a Weight, of which each synapse has its own: read m.weight",),
        remedy=TOTAL),
    "a bias of its own": M(FEED, "        self.feedforward(total + self.bias)",
        ("a neuron has no 'bias' to add", "leave it out"), remedy=FEED),
    "numpy in forward": M(FEED, "        self.feedforward(np.tanh(total))",
        ("np.tanh is not in the neuron language; write horn.math.tanh",),
        remedy="        self.feedforward(horn.math.tanh(total))"),
    "horn.relu": M(FEED, "        self.feedforward(horn.relu(total))",
        ("horn has no 'relu'; write horn.math.relu",),
        remedy="        self.feedforward(horn.math.relu(total))"),
    "random in forward": M(FEED, "        self.feedforward(total * random.random())",
        ("random.random is not in the neuron language; draw with self.uniform()",),
        remedy="        self.feedforward(total * self.uniform())"),
    "a number kept on self": M(TOTAL, "        self.total = total = 1.0",
        ("self.total is not declared", "total = horn.State(0.0)")),
    "messages unpacked": M(TOTAL, "        total = sum(i * w for i, w in messages)",
        ("the loop variable is one name: for m in messages",), remedy=TOTAL),
    "a misspelt field": M(TOTAL, "        total = sum(m.input * m.wieght for m in messages)",
        ("message has no field 'wieght'. Did you mean 'weight'?",), remedy=TOTAL),
    "no messages argument": M("    def forward(self, messages):", "    def forward(self):",
        ("write it as  def forward(self, messages):",),
        remedy="    def forward(self, messages):"),
    "forward misspelt": M("    def forward(self, messages):", "    def foward(self, messages):",
        ("layer 1 'layer1': Mine has no forward(self, messages); rename 'foward'",), 2),
    "forgotten feedforward": M(FEED, "        pass",
        ("never calls self.feedforward(...)", "End forward with self.feedforward(value)"),
        remedy=FEED),
    # scikit-learn
    "labels from 1": M(LABELS, "    y = (x[:, 0] > 0).astype(int) + 1",
        ("labels contain 2", "classes 0..1", "They begin at 1: give y - 1"), place=False,
        remedy="    y = (x[:, 0] > 0).astype(int)"),
    "float labels": M(LABELS, "    y = (x[:, 0] > 0).astype(float)",
        ("targets have shape (40, 1)", "or labels as whole numbers, y.ravel().astype(int)"),
        place=False, remedy="    y = (x[:, 0] > 0).astype(float).ravel().astype(int)"),
    "a column of labels": M(LABELS, "    y = (x[:, :1] > 0).astype(int)",
        ("targets have shape (40, 1)", "or labels as whole numbers, y.ravel()"), place=False,
        remedy="    y = (x[:, :1] > 0).astype(int).ravel()"),
    "labels of -1 and 1": M(LABELS, "    y = np.where(x[:, 0] > 0, 1, -1)",
        ("label -1 in row", "classes count from 0, so remap y")),
    "y shorter than x": M(LABELS, "    y = (x[:30, 0] > 0).astype(int)",
        ("x has 40 samples, but y has 30", "pass one label or one row of targets per sample")),
    "one sample without its axis": M(SAMPLES, "    x = rng.standard_normal(40)",
        ("IndexError",), 1),
    "missing values": M(LABELS, LABELS + "; x[3, 1] = np.nan",
        ("x has NaN at row 3, column 1", "drop those rows or fill them in")),
    "three arrays": M(RETURN, "    return horn.Job(net, (x, y, y))",
        ("got a tuple of 3, but data are the pair (x, y)",)),
    "a path as data": M(RETURN, '    return horn.Job(net, "digits.csv")',
        ("got the path 'digits.csv'", "read the file with horn.data.load('digits.csv')")),
    # horn itself
    "the network in the place of the job": M(RETURN, "    return net",
        ("job gives a Network, not a horn.Job",), place=False),
    "a number in the place of the job": M(RETURN, "    return 3",
        ("job gives an int, not a horn.Job",), place=False),
    "train before a layer": M(INPUT, "    pass",
        ("the first layer is the input; call net.input(n_features) before",), remedy=INPUT),
    "a layer after the output": M(OUTPUT, OUTPUT + "; net.layer(3)",
        ("layer 3 'layer3': outputs and losses are the last; add it before net.output(...) and",)),
    "train in the file": M(RETURN, "    return horn.train(horn.Job(net, (x, y)))",
        ('put it under if __name__ == "__main__":', "let job() return the horn.Job"),
        remedy=RETURN),
    "epochs of train": M(RETURN, "    return horn.train(horn.Job(net, (x, y)), epochs=3)",
        ("train() got an unexpected keyword argument 'epochs'", "horn.Job(net, (x, y), epochs=10"),
        1),
    "half an epoch": M(RETURN, "    return horn.Job(net, (x, y), epochs=0.5)",
        ("epochs must be a whole number from 1, got 0.5",)),
    "targets beyond 1": M(OUTPUT,
        '    net.output(1, activation="sigmoid", loss="binary_cross_entropy"); y = y * 2',
        ("binary_cross_entropy has targets from 0 to 1, got 0 to 2", "remap y"), place=False),
    # more of Keras
    "early_stopping=True": M(RETURN, JOB_OF % "early_stopping=True, validation=0.2",
        ("early_stopping is a horn.EarlyStopping, got True", "horn.EarlyStopping(patience=3)"),
        remedy=JOB_OF % "early_stopping=horn.EarlyStopping(patience=3), validation=0.2"),
    "EarlyStopping among callbacks": M(RETURN,
        JOB_OF % "callbacks=[horn.EarlyStopping()], validation=0.2",
        ("callbacks has a horn.EarlyStopping", "write Job(..., early_stopping=")),
    "the callback's class": M(RETURN, JOB_OF % "callbacks=[horn.CSVLogger]",
        ("callbacks has the class CSVLogger; write CSVLogger()",)),
    "validation=20": M(RETURN, JOB_OF % "validation=20",
        ("validation=20 must be a fraction between 0 and 1, as 0.1, or data: (x, y)",),
        remedy=JOB_OF % "validation=0.2"),
    "a metric misspelt": M(RETURN, JOB_OF % 'metrics=["acuracy"]',
        ("unknown metric 'acuracy'; did you mean 'accuracy'?",)),
    "Keras's name of a metric": M(RETURN, JOB_OF % 'metrics=["mean_squared_error"]',
        ("unknown metric 'mean_squared_error'; did you mean 'mse'?",)),
    "the mean absolute error": M(OUTPUT, '    net.output(2, loss="mae")',
        ("unknown loss 'mae'; write loss=lambda output, target: abs(output - target)",),
        remedy="    net.output(2, loss=lambda output, target: abs(output - target))"),
    "Huber's loss": M(OUTPUT, '    net.output(2, loss="huber")',
        ("unknown loss 'huber'; write loss=lambda output, target: horn.math.where(abs(output - "
         "target) < 1.0, 0.5 * (output - target) ** 2, abs(output - target) - 0.5)",),
        remedy="    net.output(2, loss=lambda output, target: horn.math.where(abs(output - "
        "target) < 1.0, 0.5 * (output - target) ** 2, abs(output - target) - 0.5))"),
    "a hinge": M(OUTPUT, '    net.output(2, loss="hinge")',
        ("horn.math.relu(1.0 - (2.0 * target - 1.0) * output)",),
        remedy="    net.output(2, loss=lambda output, target: horn.math.relu(1.0 - (2.0 * target "
        "- 1.0) * output))"),
    "a loss that horn has not": M(OUTPUT, '    net.output(2, loss="wasserstein")',
        ("unknown loss 'wasserstein'; known:", "as loss=lambda output, target: abs("),
        remedy="    net.output(2, loss=lambda output, target: abs(output - target))"),
    "glorot_uniform": M(LAYER, '    net.layer(4, init="glorot_uniform")',
        ("unknown initialiser 'glorot_uniform'; did you mean 'glorot'?",),
        remedy='    net.layer(4, init="glorot")'),
    "the functional way": M(LAYER, "    net.layer(4)(net.layers[0])",
        ("'Layer' object is not callable; a layer is told", "inputs=[a, b]"), 1),
    "a layer of Dropout": M(LAYER, "    net.layer(4, neuron=horn.Dropout(0.5))",
        ("Dropout() takes no arguments; if it is a neuron, it is passed as", "keep = 0.5"), 1),
    "the activation second": M(LAYER, '    net.layer(4, "relu")',
        ("all but the size have names: net.layer(100, neuron=Mine, activation='relu')",), 1),
    "a shape of several arguments": M(INPUT, "    net.input(8, 8, 3)",
        ("the shape of a sample is one argument, net.input((8, 8, 3))",), 1),
    "sizes of layers": M(SEED, "    net = horn.Network([2, 4, 2])",
        ("Network: seed is a whole number from 0, got [2, 4, 2]; layers are added by",)),
    "a seed of 65 bits": M(SEED, "    net = horn.Network(2**64)",
        ("Network: seed must be below 2**64, got 18446744073709551616",)),
    "the data as input": M(INPUT, "    net.input(x)",
        ("must be a whole number from 1, got ndarray of shape (40, 2)",)),
    "a name as input": M(LAYER, '    net.layer(4, inputs="layer0")',
        ("layer 1 'layer1': inputs must be layers of this network", "got 'layer0'"),
        remedy="    net.layer(4, inputs=net.layers[0])"),
    "no epoch": M(RETURN, JOB_OF % "epochs=0", ("epochs must be a whole number from 1, got 0",)),
    "no batch": M(RETURN, JOB_OF % "batch_size=0", ("batch_size must be a whole number from 1",)),
    "the output forgotten": M(OUTPUT, "    pass",
        ("the network has no loss, and no neuron learns by a rule of its own",
         "End it with net.output(n, loss=...)", "say horn.Job(..., target=None)"), place=False,
        remedy=OUTPUT),
    "no loss": M(OUTPUT, '    net.output(2, activation="softmax")',
        ("the network has no loss", "nothing would be learned"), place=False, remedy=OUTPUT),
    "messages as arrays": M(TOTAL, "        total = messages.input * messages.weight",
        ("messages.input: ask each message, as sum(m.input * m.weight for m in messages)",),
        remedy=TOTAL),
    "an optimizer of PyTorch": M(RETURN, '    of = type("SGD", (), {"__module__": "torch.optim"})\n'
        + JOB_OF % "optimizer=of()", ("must be one of horn, as horn.SGD(0.1); got one of",)),
    "a loss of PyTorch": M(OUTPUT, '    def cross_entropy(input, target, weight=None): pass\n'
        '    cross_entropy.__module__ = "torch.nn.functional"\n'
        '    net.output(2, activation="softmax", loss=cross_entropy)',
        ("unknown loss <function", "did you mean 'cross_entropy'?")),
    "a column's name as labels": M(RETURN, '    return horn.Job(net, (x, "kind"))',
        ("y holds text, but numbers are expected; pass the array itself, as df['kind'] of",)),
    "integers to be learned": M(LABELS, "    y = np.arange(40) - 20",
        ("label -20 in row 0 is negative", "numbers to be learned are a column, y.reshape(-1, 1)")),
    "a run as initial": M(RETURN, JOB_OF % "initial=type('Run', (), {'model': 3})()",
        ("initial is a horn.Model, the path", "; it has its model: initial=run.model")),
    "a frozen layer that is not there": M(RETURN, JOB_OF % 'frozen=["head"]',
        ("the network has no layer and no array 'head'. It has layer1, layer2, layer1.bias",)),
    # more of PyTorch
    "a rate that is text": M(RETURN, JOB_OF % 'optimizer=horn.SGD("0.1")',
        ("learning_rate is a number, a schedule such as", "got '0.1'")),
    "a Module's __init__": M(FEED, FEED + "\n\n    def __init__(self):\n        self.leak = 0.1",
        ("Mine has an __init__, which nothing calls", "leak = 0.1"), remedy=FEED),
    "a list in a neuron": M(TOTAL, "        parts = []\n        for m in messages:\n"
        "            parts.append(m.input * m.weight)\n        total = sum(parts)",
        ("'parts.append' is not in the neuron language; a neuron keeps numbers, no lists",)),
    "softmax in forward": M(FEED, "        self.feedforward(softmax(total))",
        ("'softmax' is not defined here; it is of a whole layer: net.layer(..., activation=",)),
    "relu in forward": M(FEED, "        self.feedforward(relu(total))",
        ("'relu' is not defined here; write horn.math.relu",),
        remedy="        self.feedforward(horn.math.relu(total))"),
    "a weight set in place": M(TOTAL,
        "        total = 0.0\n        for m in messages:\n            m.weight -= 0.1 * m.input",
        ("m.weight cannot be assigned: a weight changes by self.push(...)",)),
    "None fed forward": M(FEED, "        return None", ("never calls self.feedforward(...)",)),
    "forward of two arguments": M("    def forward(self, messages):",
        "    def forward(self, messages, training):",
        ("write it as  def forward(self, messages):",),
        remedy="    def forward(self, messages):"),
    "no forward": M("    def forward(self, messages):", "    def call(self, messages):",
        ("Mine has no forward(self, messages); write one",)),
    "a loss of NumPy": M(OUTPUT, "    net.output(2, loss=lambda y, t: np.mean((y - t) ** 2))",
        (", in <lambda>", "np.mean is not in", "write it with + - * / **, abs and horn.math"),
        remedy="    net.output(2, loss=lambda y, t: (y - t) ** 2)"),
    "a flat loss": M(OUTPUT, "    net.output(2, loss=lambda y, t: horn.math.sign(y - t))",
        ("the loss reaches nothing that could learn:", "is flat", "check=False"), place=False),
    # more of scikit-learn
    "y as target": M(RETURN, JOB_OF % "target=y",
        ("target must be", "got ndarray of shape (40,); y is of the data, (x, y)")),
    "a column too many": M(RETURN,
        "    return horn.Job(net, (np.column_stack([np.arange(40), x]), y))",
        ("input has 3 features per sample", "labels, or numbers the rows, leave it out"),
        place=False),
    "one-hot rows of three": M(LABELS, "    y = np.eye(3)[(x[:, 0] > 0).astype(int)]",
        ("targets have shape (40, 3), but layer2 has 2 neurons",), place=False),
    "a Bunch": M(RETURN, '    return horn.Job(net, {"data": x, "target": y})',
        ("of inputs and targets write the pair (x, y)", "(bunch.data, bunch.target)")),
    "a data set that is not there": M(RETURN, "    return horn.Job(net, horn.data.cifar100())",
        ("horn.data has no 'cifar100': did you mean cifar10?",), 1),
    "a number as patience": M(RETURN,
        JOB_OF % 'early_stopping=horn.EarlyStopping("val_loss"), validation=0.2',
        ("patience must be a whole number of epochs from 1, got 'val_loss'",)),
    "a name for Tied": M(LAYER, LAYER + '; net.layer(2, connect=horn.Tied("output"))',
        ("Tied takes an earlier layer with weights", "of two layers the later is tied")),
    "the layer in the place of the network": M(LAYER, "    net = net.layer(4)",
        ("a layer has no 'output': net.layer(n) adds a layer to net", "write it without  net = "),
        1, remedy="    net.layer(4)"),
    "a step of the optimizer": M(RETURN, "    horn.SGD(0.1).step()",
        ("SGD has no 'step': horn.train makes the steps itself",), 1),
    "a Parameter's shape": M(FEED, FEED + "\n\n    gain = horn.Parameter(4, 2)",
        ("Parameter.__init__() takes from 1 to 2 positional arguments but 3 were given; it takes",),
        1, remedy=FEED + "\n\n    gain = horn.Parameter(4.0)"),
    "Keras's names imported": M("import random", "from horn import Sequential",
        ("cannot import name 'Sequential'", "net = horn.Network(); net.input(784)"), 1),
    "a misspelt name imported": M("import random", "from horn import Netwrok",
        ("cannot import name 'Netwrok'", "did you mean Network?"), 1,
        remedy="from horn import Network"),
    "no one who answers": M(LABELS, LABELS + "; raise EOFError('EOF when reading a line')",
        ("EOFError: EOF when reading a line",), 1),
    "no bias, as None": M(LAYER, "    net.layer(4, bias=None)",
        ("layer 1 'layer1': bias=False leaves the bias out; got None",),
        remedy="    net.layer(4, bias=False)"),
    "a number as name": M(LAYER, "    net.layer(4, name=3)",
        ("a layer's name is a text that is not empty and has no dot; got 3",)),
    "the network for the optimizer": M(RETURN, JOB_OF % "optimizer=horn.SGD(net, 0.1)",
        ("SGD: learning_rate is a number, a schedule such as", "got <Network 2-4-2, seed 3>")),
    "epochs third": M(RETURN, JOB_OF % "10",
        ("got 10; a number of epochs has a name: horn.Job(net, (x, y), epochs=10)",),
        remedy=JOB_OF % "epochs=10"),
    "the learning rate third": M(RETURN, JOB_OF % "0.1",
        ("got 0.1; a learning rate is the optimizer's: horn.SGD(0.1)",),
        remedy=JOB_OF % "horn.SGD(0.1)"),
    "no optimizer": M(RETURN, JOB_OF % "optimizer=None",
        ("got None; leave it out for the usual one",), remedy=JOB_OF % "epochs=1"),
    "optimizers": M(RETURN, JOB_OF % "optimizer=[horn.SGD(0.1)]",
        ("a job has one: write it without the list",)),
    "y before x": M(RETURN, "    return horn.Job(net, (y, x))",
        ("x has shape (40,) and y (40, 2), but x is (samples, features)", "write (y, x) if"),
        remedy="    return horn.Job(net, (x, y))"),
    "labels as a generator": M(RETURN, "    return horn.Job(net, (x, (k for k in y)))",
        ("y is a generator, which has no length; write a list",),
        remedy="    return horn.Job(net, (x, [k for k in y]))"),
    "a fraction for the test": M(RETURN, JOB_OF % "test=0.2",
        ("test: got the number 0.2, but data are arrays", "a fraction: validation=0.1")),
    "a data set not asked for": M(RETURN, "    return horn.Job(net, horn.data.digits)",
        ("data: digits is a function that gives data; call it: digits()",)),
    "an unknown name": M(LABELS, "    y = (X[:, 0] > 0).astype(int)",
        ("NameError: name 'X' is not defined",), 1),
}  # fmt: skip


def test_they_are_a_hundred() -> None:
    assert len(JOBS) + len(COMMANDS) >= 100


def written(folder: Path, line: str, by: str) -> None:
    """Write the job with the line replaced."""
    assert JOB.count(f"\n{line}\n") == 1, line
    (folder / "job.py").write_text(JOB.replace(f"\n{line}\n", f"\n{by}\n"))


@pytest.mark.parametrize("what", JOBS)
def test_a_mistake_in_a_job(run: Any, folder: Path, what: str) -> None:
    mistake = JOBS[what]
    written(folder, mistake.line, mistake.by)
    done = run("submit", "job.py")
    assert done.code == mistake.code, done.err
    for sentence in mistake.said:
        assert sentence in done.err, done.err
    assert "Traceback" not in done.err and "bug in horn" not in done.err
    assert done.out == "" and done.files == set()
    if mistake.place:
        lines = [f"job.py:{k}" for k in range(1, 25)]
        assert any(f"{line}  " in done.err or f"{line}," in done.err for line in lines), done.err


@pytest.mark.parametrize("what", [name for name, each in JOBS.items() if each.remedy])
def test_the_remedy_helps(run: Any, folder: Path, what: str) -> None:
    mistake = JOBS[what]
    written(folder, mistake.line, mistake.remedy)
    done = run("submit", "job.py", "-q")
    assert done.code == 0, done.err


# What works, though others refuse it.
FINE = {
    "one-hot labels": (LABELS, "    y = np.eye(2)[(x[:, 0] > 0).astype(int)]"),
    "lists": (LABELS, "    y = (x[:, 0] > 0).astype(int).tolist(); x = x.tolist()"),
    "boolean labels": (LABELS, "    y = x[:, 0] > 0"),
    "names as labels": (LABELS, '    y = np.where(x[:, 0] > 0, "yes", "no")'),
    "recursion by constants": (FEED, "        self.feedforward(total * Mine.power(3))\n\n"
        "    @staticmethod\n    def power(n):\n        return 1.0 if n <= 0 else "
        "0.5 * Mine.power(n - 1)"),
}  # fmt: skip


@pytest.mark.parametrize("what", FINE)
def test_what_is_no_mistake(run: Any, folder: Path, what: str) -> None:
    written(folder, *FINE[what])
    assert run("submit", "job.py", "-q").code == 0


COMMANDS = {
    "a file that is not there": (["submit", "jop.py"], 4, "did you mean job.py?"),
    "a name that is not there": (["submit", "job.py:jobb"], 4, "did you mean job.py:job?"),
    "a misspelt setting": (["submit", "job.py", "--set", "batchsize=5"], 2,
                           "did you mean batch_size?"),
    "a misspelt command": (["sumbit", "job.py"], 2, "'sumbit'; did you mean submit?"),
    "a missing folder": (["submit", "job.py", "-o", "no/m.horn"], 2, "make it first"),
    "a device": (["submit", "job.py", "-o", "/dev/null"], 2, "is a device or a pipe"),
    "a program as output": (["submit", "job.py", "-o", "job.py"], 2, "is a program, and would be"),
    "a program as profile": (["submit", "job.py", "--profile", "job.py"], 2, "is a program, and"),
    "a program as trace": (["submit", "job.py", "-n", "2", "--trace", "job.py"], 2,
                           "is a program, and would be replaced; name another file"),
    "a GPU": (["submit", "job.py", "--backend", "cuda"], 2, "known: kernels"),
    "a model that is not there": (["predict", "m.horn", "digits"], 4, "m.horn: no such file"),
    "a model as job": (["explain", "first.horn"], 2, "a model is read by horn show, evaluate"),
    "a job as model": (["evaluate", "job.py", "digits"], 2, "job.py: is no model file (horn "
                       "models are safetensors files); horn submit job.py trains one"),
    "data before the model": (["predict", "x.csv", "first.horn"], 2, "x.csv: is no model file "
                              "(horn models are safetensors files); the model comes first, then "),
    "a trace of no neuron": (["trace", "job.py"], 2, "Missing option '--neuron'. LAYER:NUMBER: "
                             "Such as layer1:17."),
    "a sweep of nothing": (["sweep", "job.py"], 2, "'--set'. KEY=VALUES: What to try: layer1.size"),
    "a run of here resumed": (["resume", "job.py"], 2, "JOB is a job of a cluster, and job.py a "
                              "file or a folder here. A run on this machine goes on with  horn "
                              "submit TARGET --resume DIR"),
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_a_mistake_at_the_prompt(run: Any, folder: Path, what: str) -> None:
    arguments, code, sentence = COMMANDS[what]
    (folder / "first.horn").touch()
    (folder / "x.csv").write_text("a,b\n1,2\n")
    done = run(*arguments)
    assert done.code == code and sentence in done.err, done.err
    assert "Traceback" not in done.err and done.files == set()


def test_a_network_may_be_said_to_learn_nothing(run: Any, folder: Path) -> None:
    written(folder, RETURN, JOB_OF % "target=None")
    text = (folder / "job.py").read_text()
    (folder / "job.py").write_text(text.replace(OUTPUT, "    pass"))
    assert run("submit", "job.py", "-q").code == 0


@pytest.fixture(scope="module")
def trained() -> horn.Run:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.train(horn.Job(net, (np.ones((4, 2)), np.array([0, 1, 0, 1])), epochs=1))


OF_A_MODEL = {
    "fit": "run = horn.train(horn.Job(net, (x, y), epochs=10))",
    "score": "model.evaluate(x, y) measures loss and accuracy",
    "get_weights": "model.parameters holds them by name",
    "state_dict": "model.parameters holds them by name",
    "predict_proba": "model.predict(x) gives the outputs",
    "eval": "there is nothing to switch",
    "layers": "the description has them: model.network.layers",
    "history": "run.history['loss'] is a column",
}


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_of_a_model(trained: horn.Run, name: str) -> None:
    with pytest.raises(AttributeError, match="a horn.Model has no") as caught:
        getattr(trained.model, name)
    assert OF_A_MODEL[name] in str(caught.value)
    assert not hasattr(trained.model, "nothing")


@pytest.mark.parametrize("name", ["predict", "evaluate", "save", "parameters"])
def test_what_a_run_has_not_its_model_has(trained: horn.Run, name: str) -> None:
    with pytest.raises(AttributeError, match=f"a run has no '{name}': its model has, run.model."):
        getattr(trained, name)
    assert not hasattr(trained, "nothing") and pickle.loads(pickle.dumps(trained)).epochs == 1


ASKED: dict[str, tuple[Callable[[horn.Model], Any], str]] = {
    "a column less": (lambda m: m.predict(np.ones((3, 1))),
        "x: 1 feature per sample, but this model learned from 2; x.shape is (3, 1). Pass the same "
        "2 features in the same order"),
    "an index": (lambda m: m.evaluate(np.ones((3, 3)), np.zeros(3, int)),
        "data: 3 features per sample, but this model learned from 2"),
    "one sample": (lambda m: m.predict(np.ones(2)), "write x.reshape(1, -1) for one sample"),
    "a dict": (lambda m: m.predict({"x": np.ones((3, 2))}), "of one input pass the array itself"),
    "no name": (lambda m: m.save(3), "a model file has a path, as 'model.horn'; got 3"),
    "bytes": (lambda m: m.load(b"x"), "a model file has a path, as 'model.horn'; got b'x'"),
    "arrays for load": (lambda m: horn.data.load(np.ones((3, 2))),
        "horn.data.load reads files, got ndarray of shape (3, 2); arrays are data as they are"),
    "data for train": (lambda m: horn.train((np.ones((3, 2)), np.ones(3))),
        "horn.train takes a horn.Job, got (ndarray of shape (3, 2), ndarray of shape (3,))"),
    "a seed of text": (lambda m: horn.train(horn.Job(m.network, (np.ones((2, 2)), [0, 1])),
        seed="a"), "seed is a whole number from 0, got 'a'"),
    "no thread": (lambda m: horn.train(horn.Job(m.network, (np.ones((2, 2)), [0, 1])),
        threads=0), "threads must be a whole number from 1, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_of_what_is_asked(trained: horn.Run, what: str) -> None:
    ask, said = ASKED[what]
    with pytest.raises(horn.HornError) as caught:
        ask(trained.model)
    assert said in str(caught.value)


def test_tensors_that_are_no_arrays() -> None:
    """PyTorch's, which says why; and its Datasets, which give single samples."""

    class Tensor:
        shape = (3, 2)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use detach()")

    of_torch = type("TensorDataset", (), {"__module__": "torch.utils.data.dataset"})
    with pytest.raises(horn.DataError, match=r"data: x cannot be read as an array: .* detach\(\)"):
        horn.data.as_dataset((Tensor(), None))
    with pytest.raises(horn.DataError, match=r"pass torch.utils.data.DataLoader\(it"):
        horn.data.as_dataset(of_torch())


@pytest.mark.cluster
@pytest.mark.parametrize("what", ["model.fit", "returning a value"])
def test_in_a_process_of_its_own(folder: Path, what: str) -> None:
    mistake = JOBS[what]
    written(folder, mistake.line, mistake.by)
    root = str(Path(horn.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "horn", "submit", "job.py"], cwd=folder, capture_output=True,
        text=True, timeout=60, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == mistake.code and done.stdout == ""
    assert all(sentence in done.stderr for sentence in mistake.said), done.stderr
    assert "Traceback" not in done.stderr and "Error: job.py:" in done.stderr
    verbose = subprocess.run(
        [sys.executable, "-m", "horn", "submit", "job.py", "-v"], cwd=folder, capture_output=True,
        text=True, timeout=60, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert "Traceback" in verbose.stderr


def test_what_is_called_and_asked_at_a_prompt_is_answered():
    with pytest.raises(TypeError, match=r"Dropout\(\) takes no arguments; if it is a neuron, .*"
                                        r"class Mine\(Dropout\): keep = 0.5"):  # fmt: skip
        horn.Dropout(0.5)
    net = horn.Network(seed=1)
    net.input(2)
    net.output(1, loss="squared_error")
    xy = [[0.0, 1.0]], [[1.0]]
    run = horn.train(horn.Job(net, data=xy, epochs=1))
    with pytest.raises(TypeError, match=r"its history has, run.history\['loss'\]"):
        run["loss"]
    with pytest.raises(TypeError, match=r"no columns; write run\.best_epoch"):
        run["best_epoch"]
    with pytest.raises(TypeError, match=r"one run: run\.model, run\.history"):
        model, history = run
    with pytest.raises(TypeError, match=r"argument: 'x'; model\.predict\(x\) gives"):
        run.model()
    for job, told in (
        (lambda: horn.Job(net, data=run.model, epochs=1), "x holds Python objects"),
        (lambda: horn.Job(net, data=xy, metrics=[run.model]), 'a metric is a name, as "f1"'),
        (lambda: horn.Job(net, data=xy, callbacks=[run.model]), "a callback is a horn.Callback"),
        (lambda: horn.SGD(run.model), "learning_rate is a number, a schedule"),
        (lambda: horn.train(horn.Job(net, data=xy, epochs=1), progress=run.model), "progress is"),
    ):
        with pytest.raises(horn.errors.HornError, match=told):
            job()
    assert run.model([[0.0, 1.0]]).tolist() == run.model.predict([[0.0, 1.0]]).tolist()
