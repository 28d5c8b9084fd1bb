"""What users of Keras, PyTorch and scikit-learn write at first, and what it is called here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_TRAIN = "a network is trained by  run = horn.train(horn.Job(net, (x, y), epochs=10))"
_PREDICT = "model.predict(x) gives the outputs, predict(x, labels=True) the classes"
_SHOW = "print(model.summary()) shows the layers, net.layers holds them"
_NETWORK = "net = horn.Network(); net.input(784); net.layer(100); net.output(10, ...)"
_ARRAYS = "model.parameters holds them by name, as in model.parameters['layer1.weight']"

# Attributes that are not there, and what to write.
ATTRIBUTES = {
    **dict.fromkeys(("fit", "fit_generator", "train", "train_on_batch", "run", "backward"), _TRAIN),
    "compile": "there is nothing to compile: the loss is net.output(..., loss=), the optimizer "
               "horn.Job(..., optimizer=)",
    **dict.fromkeys(("add", "add_module", "append"), "layers are added by net.input(n), "
                    "net.layer(n) and net.output(n)"),
    **dict.fromkeys(("Sequential", "Model", "Module", "nn", "layers", "models", "keras"), _NETWORK),
    **dict.fromkeys(("Linear", "Conv2d", "Flatten", "MLPClassifier"), _NETWORK),
    **dict.fromkeys(("forward", "predict_proba", "transform", "predict_classes"), _PREDICT),
    "predict": "train first: run = horn.train(job); then run.model.predict(x)",
    **dict.fromkeys(("score", "accuracy"), "model.evaluate(x, y) measures loss and accuracy"),
    "evaluate": "train first: run = horn.train(job); then run.model.evaluate(x, y)",
    **dict.fromkeys(("weights", "get_weights", "coef_", "coefs_", "state_dict", "trainable_weights",
                     "variables"), _ARRAYS),
    **dict.fromkeys(("set_weights", "load_state_dict", "load_weights"), "a job begins with arrays: "
                    "horn.Job(net, (x, y), initial=model, a file or arrays by name)"),
    **dict.fromkeys(("load", "load_model"), "a model is read by horn.Model.load('model.horn')"),
    **dict.fromkeys(("save_model", "save_weights"), "a model is written by run.model.save(path)"),
    "save": "train first: run = horn.train(job); then run.model.save('model.horn')",
    **dict.fromkeys(("summary", "count_params"), _SHOW),
    **dict.fromkeys(("zero_grad", "step", "minimize"), "horn.train makes the steps itself"),
    **dict.fromkeys(("to", "cuda", "cpu", "eval", "half"), "horn computes on processors, and "
                    "predict is inference already; there is nothing to switch"),
    "abs": "abs(x) is Python's own",
    "max": "horn.math.maximum(a, b) is of two numbers, max(...) of messages",
    "min": "horn.math.minimum(a, b) is of two numbers, min(...) of messages",
    "sum": "sum(... for m in messages) is Python's own",
}  # fmt: skip

# Arguments that are not there, and what to write.
ARGUMENTS = {
    **dict.fromkeys(("units", "n", "n_units", "out_features", "n_neurons"), "size, the first one"),
    **dict.fromkeys(("input_shape", "input_dim", "in_features"), "net.input(n_features), a layer "
                    "of its own"),
    **dict.fromkeys(("lr", "eta", "learning_rate_init", "step_size"), "learning_rate, of the "
                    "optimizer: horn.SGD(learning_rate=0.1)"),
    "learning_rate": "optimizer=horn.SGD(0.1)",
    **dict.fromkeys(("dropout", "rate", "p"), "neuron=horn.Dropout for a layer, keep=0.8 for the "
                    "input"),
    **dict.fromkeys(("loss", "criterion", "loss_fn"), "net.output(..., loss='cross_entropy')"),
    **dict.fromkeys(("use_bias",), "bias=False"),
    **dict.fromkeys(("kernel_initializer", "weight_init"), "init='he', or an initialiser"),
    **dict.fromkeys(("kernel_regularizer", "regularizer", "alpha", "l2"), "weight_decay, of the "
                    "optimizer"),
    **dict.fromkeys(("validation_split", "validation_fraction", "validation_data", "val_data"),
                    "validation=0.1, or validation=(x, y)"),
    **dict.fromkeys(("epochs", "iterations", "max_iter", "nb_epoch", "num_epochs", "batch_size",
                     "validation", "optimizer"), "horn.Job(net, (x, y), epochs=10, batch_size=32)"),
    **dict.fromkeys(("x", "y", "X", "inputs", "labels"), "the data as a pair: horn.Job(net, "
                    "(x, y))"),
    **dict.fromkeys(("shuffle",), "nothing: every epoch has an order of its own, by the seed"),
    **dict.fromkeys(("verbose",), "progress=True, of horn.train"),
    **dict.fromkeys(("random_state", "random_seed"), "seed, of horn.Network"),
    **dict.fromkeys(("n_jobs", "workers", "num_workers"), "tasks=2, of horn.train"),
    **dict.fromkeys(("device",), "nothing: horn computes on processors"),
    **dict.fromkeys(("patience",), "early_stopping=horn.EarlyStopping(patience=3)"),
    **dict.fromkeys(("dim", "axis"), "nothing: a neuron has one number"),
}  # fmt: skip

# Losses, optimizers and activations under the names that they have elsewhere.
LOSSES = {
    **dict.fromkeys(("mse", "mean_squared_error", "MSELoss", "l2"), "squared_error"),
    **dict.fromkeys(("categorical_crossentropy", "sparse_categorical_crossentropy", "nll",
                     "crossentropy", "log_loss", "CrossEntropyLoss"), "cross_entropy"),
    **dict.fromkeys(("bce", "binary_crossentropy", "BCELoss", "hinge"), "binary_cross_entropy"),
}  # fmt: skip

# Calls with what they do not take, by the name in Python's message.
_CALLS = {
    "train": _TRAIN,
    "Job": "a job is horn.Job(net, (x, y), optimizer=horn.SGD(0.1), epochs=10)",
    "Dense": f"horn.Dense is a way to connect layers; {_NETWORK}",
    "Model": _PREDICT,
    "Network": _NETWORK,
}


class NoSuchAttribute(AttributeError):
    """Horn has no such name; the line that asks for it is the user's."""


class NoSuchArgument(TypeError):
    """Horn's function has no such argument; the line that calls it is the user's."""


def no_attribute(kind: str, name: str, known: Iterable[str] = ()) -> NoSuchAttribute:
    """Python's error, with the replacement to write where one is known."""
    remedy = ATTRIBUTES.get(name)
    close = difflib.get_close_matches(name, [each for each in known if each[0] != "_"], 1)
    if remedy is None and close:
        remedy = f"did you mean {close[0]}?"
    return NoSuchAttribute(f"{kind} has no {name!r}" + (f": {remedy}" if remedy else ""))


def remedy(message: str) -> str:
    """What to write instead of a call that Python refuses with this message, or ""."""
    called = re.match(r"'?(\w+)", message)
    name = re.search(r"unexpected keyword argument '(\w+)'", message)
    if name is not None:
        said = ARGUMENTS.get(name[1])
        return f"write {said}, instead of {name[1]}" if said else ""
    refused = re.search(r"positional argument|object is not callable", message)
    return _CALLS.get(called[1], "") if called and refused else ""
