"""Names that users of Keras, PyTorch and scikit-learn try first, and their equivalents here."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, TypeGuard, TypeVar

from horn.own_lines import OwnLines

_TRAIN = "a network is trained by  run = horn.train(horn.Job(net, (x, y), epochs=10))"
_PREDICT = "model.predict(x) gives the outputs, predict(x, labels=True) the classes"
_SHOW = "print(model.summary()) shows the layers, net.layers holds them"
_NETWORK = "net = horn.Network(); net.input(784); net.layer(100); net.output(10, ...)"
_ARRAYS = "model.parameters holds them by name, as in model.parameters['layer1.weight']"

# Attributes that do not exist, and their replacements.
ATTRIBUTES = {
    **dict.fromkeys(("fit", "fit_generator", "train", "train_on_batch", "run", "backward"), _TRAIN),
    "compile": "there is nothing to compile: the loss is net.output(..., loss=), the optimizer "
               "horn.Job(..., optimizer=)",
    **dict.fromkeys(("add", "add_module", "append", "hidden"), "layers are added by net.input(n), "
                    "net.layer(n) and net.output(n)"),
    **dict.fromkeys(("Model", "Module", "nn", "layers", "models", "keras"), _NETWORK),
    **dict.fromkeys(("best_model", "best_weights"), "run.model is that of the best epoch where the "
                    "job has keep_best=True or early_stopping="),
    "get_layer": "model.network.layers holds them; what one sends is "
                 "model.activations(x, 'layer1')",
    **dict.fromkeys(("history", "losses", "loss", "val_loss"), "run.history['loss'] is a column"),
    **dict.fromkeys(("sklearn", "HornClassifier", "HornRegressor"),
                    "write  from horn.sklearn import HornClassifier"),
    **dict.fromkeys(("metrics_names", "scores"), "run.metrics has what was measured of the model"),
    **dict.fromkeys(("Linear", "Flatten", "MLPClassifier", "Input", "Sequential", "sequential",
                     "dense", "linear", "flatten"), _NETWORK),
    **dict.fromkeys(("Conv", "Conv1d", "Conv1D", "Conv2d", "Conv2D", "conv", "conv1d",
                     "conv2d", "convolution", "Convolution"),
                    "write net.layer(connect=horn.Convolution(channels=8, kernel=3))"),
    **dict.fromkeys(("ReLU", "Relu", "relu", "Tanh", "tanh", "Sigmoid", "sigmoid", "Softmax",
                     "softmax"), "an activation has a name: net.layer(100, "
                    "activation='relu'); in a neuron write horn.math.relu(z)"),
    **dict.fromkeys(("ConvTranspose1d", "ConvTranspose2d", "Conv2DTranspose", "conv_transpose",
                     "Deconvolution", "deconvolution"), "write net.layer(connect="
                    "horn.TransposedConvolution(channels=8, kernel=3, stride=2)); with the "
                    "weights of a convolution it is horn.Tied(layer, transposed=True)"),
    **dict.fromkeys(("MaxPool", "MaxPool1d", "MaxPool2d", "MaxPooling2D", "pool", "pooling",
                     "maxpool", "max_pool", "max_pool2d", "max_pooling"), "a neuron that takes "
                    "max(m.input for m in messages) "
                    "looks through net.layer(connect=horn.Window(2, stride=2), neuron=...): "
                    "docs/space.md"),
    **dict.fromkeys(("AvgPool1d", "AvgPool2d", "AveragePooling2D", "AdaptiveAvgPool2d",
                     "GlobalAveragePooling2D", "avgpool", "avg_pool", "avg_pool2d",
                     "average_pooling", "mean_pool"), "a neuron that takes the sum of m.input over "
                    "len(messages) looks through net.layer(connect=horn.Window(2, stride=2), "
                    "neuron=...): docs/space.md"),
    **dict.fromkeys(("Upsample", "UpSampling1D", "UpSampling2D", "upsample", "interpolate"),
                    "a neuron that sends sum(m.input for m in messages) through net.layer("
                    "connect=horn.TransposedConvolution(c, 2, stride=2, groups=c), neuron=...), "
                    "over c channels: docs/space.md"),
    "Unfold": "a neuron hears a window as its messages: net.layer(connect=horn.Convolution(8, 3))",
    **dict.fromkeys(("PReLU", "LeakyReLU"), "a neuron declares what it learns: slope = "
                    "horn.Parameter(0.25), and feeds forward horn.math.maximum(z, self.slope * z)"),
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNormalization", "LayerNorm",
                     "LayerNormalization", "GroupNorm", "InstanceNorm2d", "batch_norm",
                     "batchnorm", "batch_normalization", "layer_norm", "layernorm"),
                    "a neuron asks for self.mean(z, over='batch') or over='layer': "
                    "docs/write-a-neuron.md, The layer and the batch"),
    **dict.fromkeys(("CrossEntropyLoss", "MSELoss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss",
                     "L1Loss"), "the output has the loss: net.output(10, activation='softmax', "
                    "loss='cross_entropy')"),
    **dict.fromkeys(("StepLR", "ExponentialLR", "CosineAnnealingLR", "OneCycleLR", "CosineDecay",
                     "ExponentialDecay", "LearningRateScheduler", "lr_scheduler", "schedule"),
                    "the optimizer's learning rate may be a schedule: "
                    "horn.SGD(horn.Cosine(0.1, 1000)), or a function of the update's number"),
    **dict.fromkeys(("Embedding", "embedding"), "a layer that hears a one-hot input is one: "
                    "np.eye(n)[numbers]"),
    "train_test_split": "a job holds out a part itself: horn.Job(net, (x, y), validation=0.2)",
    **dict.fromkeys(("csv", "read_csv"), "write horn.data.load('rows.csv')"),
    "plot": "write horn.plot.history(run)",
    **dict.fromkeys(("dropout", "Dropout2d", "Dropout1d"), "write net.layer(100, "
                    "neuron=horn.Dropout), or keep=0.8 of net.input"),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "SimpleRNN", "lstm", "gru", "rnn", "recurrent"),
                    "a cell is a neuron with a State that a sequence carries on: docs/time.md, "
                    "examples/gru.py"),
    **dict.fromkeys(("manual_seed", "set_seed", "random_seed", "seed"), "a network has its own: "
                    "horn.Network(seed=3)"),
    **dict.fromkeys(("tensor", "Tensor", "no_grad", "device", "jit", "grad"), "data are NumPy "
                    "arrays, gradients are derived and neurons compiled by horn.train"),
    **dict.fromkeys(("optim", "optimizer"), "a job has it: horn.Job(net, (x, y), "
                    "optimizer=horn.SGD(0.1))"),
    **dict.fromkeys(("DataLoader", "TensorDataset"), "arrays are data as they are, and so are "
                    "PyTorch's DataLoaders: horn.Job(net, (x, y))"),
    **dict.fromkeys(("Accuracy", "AUC"), "a job names what is measured: metrics=['accuracy', "
                    "'auc']"),
    **dict.fromkeys(("datasets",), "horn.data.digits(), mnist(), cifar10(), load(path)"),
    **dict.fromkeys(("forward", "predict_proba", "transform", "predict_classes"), _PREDICT),
    "predict": "train first: run = horn.train(job); then run.model.predict(x)",
    **dict.fromkeys(("score", "accuracy"), "model.evaluate(x, y) measures loss and accuracy"),
    "evaluate": "train first: run = horn.train(job); then run.model.evaluate(x, y)",
    **dict.fromkeys(("weights", "get_weights", "coef_", "coefs_", "state_dict", "trainable_weights",
                     "variables"), _ARRAYS),
    **dict.fromkeys(("set_weights", "load_state_dict", "load_weights"), "a job begins with arrays: "
                    "horn.Job(net, (x, y), initial=model, a file or arrays by name); a model with "
                    "others is model.with_arrays({name: array})"),
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

# Attributes of layers, optimizers and data sets, which mean other things elsewhere.
_TO_NETWORK = "net.layer(n) adds a layer to net and returns the layer: write it without  net = "
LAYER_ATTRIBUTES = {
    **dict.fromkeys(("layer", "input", "add"), _TO_NETWORK),
    "output": f"{_TO_NETWORK}; what a layer sends is model.activations(x, 'layer1')",
    **dict.fromkeys(("weight", "kernel", "get_weights", "set_weights"), _ARRAYS),
    **dict.fromkeys(("units", "neurons", "n", "n_units", "n_neurons", "out_features"),
                    "its neurons are layer.size"),
    **dict.fromkeys(("input_shape", "in_features"), "the synapses of a neuron are layer.fan_in"),
    "output_shape": "it is layer.shape",
}  # fmt: skip
OPTIMIZER_ATTRIBUTES = {
    **dict.fromkeys(("lr", "eta", "alpha"), "it is learning_rate"),
    "param_groups": "its learning rate may be a schedule, horn.SGD(horn.Cosine(0.1, 1000)), and "
                    "layers that do not learn are frozen=['layer1'] of horn.Job",
    **dict.fromkeys(("state_dict", "load_state_dict"), "checkpoints keep what it remembers: "
                    "horn.train(job, checkpoints='folder'), and resume=True"),
}  # fmt: skip
DATA_ATTRIBUTES = {
    **dict.fromkeys(("data", "inputs", "features", "samples", "X"), "its samples are data.x"),
    **dict.fromkeys(("target", "labels", "label"), "its labels are data.y"),
    **dict.fromkeys(("train", "test"), 'parts are asked for: horn.data.digits(), and '
                    'horn.data.digits("test")'),
    "shape": "it is data.x.shape",
    "columns": "they are data.feature_names",
    "head": "data.take(5) are the first samples",
    "shuffle": "every epoch has an order of its own, by the seed",
    **dict.fromkeys(("batch", "repeat"), "a job says it: horn.Job(net, data, batch_size=32, "
                    "epochs=10)"),
    **dict.fromkeys(("map", "transform", "normalize"), "compute with data.x, or write "
                    "horn.Job(net, data, normalize=True)"),
}  # fmt: skip

# Arguments that do not exist, and their replacements; "leave it out ..." is the whole remedy.
ARGUMENTS = {
    **dict.fromkeys(("units", "n", "n_units", "out_features", "n_neurons"), "size, the first one"),
    **dict.fromkeys(("input_shape", "input_dim", "in_features"), "net.input(n_features), a layer "
                    "of its own"),
    **dict.fromkeys(("hidden_layer_sizes", "layers", "hidden_size"), "a net.layer(n) for each "
                    "layer"),
    **dict.fromkeys(("lr", "eta", "learning_rate_init", "step_size"), "learning_rate, of the "
                    "optimizer: horn.SGD(learning_rate=0.1)"),
    **dict.fromkeys(("learning_rate", "solver", "optim"), "optimizer=horn.SGD(0.1)"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "the optimizer's learning rate: "
                    "horn.SGD(horn.Cosine(0.1, 1000)), or a function of the update's number"),
    **dict.fromkeys(("momentum", "weight_decay", "clipnorm", "max_grad_norm"), "it in the "
                    "optimizer: horn.SGD(0.1, momentum=0.9, weight_decay=1e-4, clip_norm=1.0)"),
    **dict.fromkeys(("betas", "beta_1"), "beta1=0.9, beta2=0.999"),
    "beta_2": "beta2=0.999",
    **dict.fromkeys(("epsilon",), "eps=1e-8"),
    **dict.fromkeys(("dropout", "rate", "p"), "neuron=horn.Dropout for a layer, keep=0.8 for the "
                    "input"),
    **dict.fromkeys(("loss", "criterion", "loss_fn"), "net.output(..., loss='cross_entropy')"),
    "loss_weights": "net.output(..., weight=0.5)",
    **dict.fromkeys(("use_bias",), "bias=False"),
    **dict.fromkeys(("kernel_regularizer", "regularizer", "alpha", "l2"), "weight_decay, of the "
                    "optimizer"),
    **dict.fromkeys(("filters", "kernel_size", "strides", "out_channels"),
                    "connect=horn.Convolution(channels=8, kernel=3, stride=1)"),
    **dict.fromkeys(("validation_split", "validation_fraction", "validation_data", "val_data"),
                    "validation=0.1, or validation=(x, y)"),
    **dict.fromkeys(("test_data", "x_test"), "test=(x, y)"),
    **dict.fromkeys(("max_iter", "nb_epoch", "num_epochs", "n_epochs", "max_epochs"), "epochs=10, "
                    "of horn.Job"),
    **dict.fromkeys(("steps", "max_steps", "n_steps", "num_steps"), "iterations=1000, of horn.Job"),
    **dict.fromkeys(("batch", "bs", "minibatch_size", "train_batch_size"), "batch_size=32, of "
                    "horn.Job"),
    **dict.fromkeys(("epochs", "iterations", "batch_size", "optimizer"),
                    "horn.Job(net, (x, y), epochs=10, batch_size=32)"),
    "validation": "it in the job: horn.Job(net, (x, y), validation=0.1)",
    **dict.fromkeys(("metrics", "callbacks", "early_stopping", "class_weight", "sample_weight"),
                    "it in the job: horn.Job(net, (x, y), metrics=['accuracy'], callbacks=[...])"),
    **dict.fromkeys(("x", "y", "X", "inputs", "labels", "targets", "train_data", "train_loader",
                     "dataset"), "the data as a pair: horn.Job(net, (x, y))"),
    **dict.fromkeys(("target", "target_column", "label_column", "y_col", "class_column"),
                    "label='kind', the column of a .csv file: horn.data.load(path, label='kind')"),
    "model": "the network first: horn.Job(net, (x, y)); to go on with a model, initial=model",
    **dict.fromkeys(("shuffle",), "leave it out: every epoch has an order of its own, by the seed"),
    **dict.fromkeys(("verbose", "display", "logging"), "progress=True, of horn.train"),
    **{written.partition("=")[0]: f"it where the job is run: horn.train(job, {written})"
       for written in ("tasks=2", "groups=2", "servers=1", "strategy='downpour'", "threads=2",
                       "progress=True", "backend='reference'", "checkpoints='folder'",
                       "resume=True", "profile=True")},
    **dict.fromkeys(("random_state", "random_seed", "seed"), "seed, of horn.Network"),
    **dict.fromkeys(("n_jobs", "workers", "num_workers"), "tasks=2, of horn.train"),
    **dict.fromkeys(("device", "cuda", "gpus", "accelerator", "use_gpu"), "leave it out: horn "
                    "computes on processors"),
    **dict.fromkeys(("precision", "torch_dtype", "amp"), "dtype='float32' or 'float64', of "
                    "horn.Job"),
    **dict.fromkeys(("patience", "n_iter_no_change"), "early_stopping=horn.EarlyStopping("
                    "patience=3), of horn.Job"),
    **dict.fromkeys(("restore_best_weights", "save_best_only"), "keep_best=True, of horn.Job"),
    **dict.fromkeys(("dim", "axis"), "leave it out: a neuron has one number"),
}  # fmt: skip

# Arguments of layers, which mean other things elsewhere.
_INIT = "init='he', or an initialiser as horn.Normal(0, 0.1), of net.layer or net.output"
LAYERS = {
    **dict.fromkeys(("weights", "weight", "initializer", "initializers", "initialization",
                     "weight_init", "weights_init", "init_weights", "weight_initializer",
                     "kernel_init", "kernel_initializer"), _INIT),
    **dict.fromkeys(("bias_init", "bias_initializer"), "bias=0.1, or an initialiser, of net.layer "
                    "or net.output"),
    **dict.fromkeys(("trainable", "requires_grad", "frozen", "freeze"), "frozen=['layer1'], of "
                    "horn.Job"),
    **dict.fromkeys(("act", "activation_fn", "nonlinearity"), "activation='relu'"),
}  # fmt: skip
# Arguments of layers that connections do not take.
CONNECTIONS = LAYERS | {
    "init": _INIT,
    **dict.fromkeys(("activation", "bias", "use_bias", "neuron", "name", "inputs"), "it in the "
                    "layer: net.layer(connect=horn.Convolution(8, 3), activation='relu')"),
}  # fmt: skip
WINDOWS = CONNECTIONS | {
    "strides": "stride",
    "pads": "padding=((top, bottom), (left, right)), or ((before, after),) of a signal",
    "auto_pad": "padding='same', which is SAME_UPPER, or 'valid'",
    "output_padding": "padding=((1, 0), (1, 0)) for padding=1, output_padding=1: what is left out "
                      "before and after",
}  # fmt: skip
_PLACES = {
    **dict.fromkeys(("Network.layer(", "Network.output("), LAYERS),
    "Step.": {"step_size": "every", "gamma": "factor"},
    "Exponential.": {"gamma": "decay"},
    "Cosine.": dict.fromkeys(("T_max", "decay_steps"), "iterations") | {"eta_min": "final"},
    "Warmup.": dict.fromkeys(("steps", "warmup_steps"), "iterations"),
    **dict.fromkeys(("Dense.", "Sparse."), CONNECTIONS),
    **dict.fromkeys(("Convolution.", "TransposedConvolution.", "Window.", "Local."), WINDOWS),
}

# Arguments of training, which predicting and evaluating do not take.
_OF_TRAINING = ("batch_size", "verbose", "device", "steps", "workers", "num_workers", "progress")

# Parameters of scikit-learn's MLPClassifier that differ in horn.sklearn's estimators.
ESTIMATORS = {
    **dict.fromkeys(("max_iter", "n_epochs", "max_epochs"), "epochs=100"),
    **dict.fromkeys(("solver", "optim"), "optimizer='adam'"),
    **dict.fromkeys(("learning_rate_init", "lr", "eta0"), "learning_rate=0.001"),
    **dict.fromkeys(("n_iter_no_change", "tol"), "patience=10, with early_stopping=True"),
    **dict.fromkeys(("alpha", "weight_decay"), "optimizer=horn.Adam(0.001, weight_decay=1e-4)"),
    **dict.fromkeys(("beta_1", "beta_2", "epsilon"), "optimizer=horn.Adam(0.001, beta1=0.9, "
                    "beta2=0.999, eps=1e-8)"),
    **dict.fromkeys(("momentum", "nesterovs_momentum"), "optimizer=horn.SGD(0.1, momentum=0.9, "
                    "nesterov=True)"),
    "power_t": "learning_rate=horn.Exponential(0.1, 0.999), or another schedule",
    **dict.fromkeys(("hidden_layers", "layers", "units"), "hidden_layer_sizes=(100,)"),
    **dict.fromkeys(("seed", "random_seed"), "random_state=0"),
    **dict.fromkeys(("n_jobs", "workers"), "tasks=2"),
    **dict.fromkeys(("dropout", "loss", "metrics", "callbacks", "class_weight", "sample_weight",
                     "normalize"), "leave it out, or write a horn.Network and a horn.Job, which "
                    "have it"),
}  # fmt: skip

# Losses, optimizers and activations under their names in other libraries.
LOSSES = {
    **dict.fromkeys(("mse", "mean_squared_error", "MSELoss", "l2"), "squared_error"),
    **dict.fromkeys(("categorical_crossentropy", "sparse_categorical_crossentropy", "nll",
                     "crossentropy", "log_loss", "CrossEntropyLoss"), "cross_entropy"),
    **dict.fromkeys(("bce", "binary_crossentropy", "BCELoss"), "binary_cross_entropy"),
}  # fmt: skip

NOT_IN_MATH: dict[str, str] = {  # what other modules have, by the words of this one
    **dict.fromkeys(("pow", "power"), "x ** y"),
    **dict.fromkeys(("abs", "fabs"), "abs(x)"),
    **dict.fromkeys(("fmod", "remainder"), "x % y"),
    **dict.fromkeys(("clip", "clamp"), "min(max(x, low), high)"),
    **dict.fromkeys(("round", "rint"), "floor(x + 0.5)"),
    **dict.fromkeys(("step", "heaviside"), "1.0 if x > 0.0 else 0.0"),
    **dict.fromkeys(("silu", "swish"), "x * sigmoid(x)"),
    "sum": "sum(m.input * m.weight for m in messages)",
    "mean": "sum(m.input for m in messages) / len(messages)",
    "max": "max(x, y)",
    "min": "min(x, y)",
    "square": "x ** 2",
    "exp2": "2.0 ** x",
    "log2": "log(x) / log(2.0)",
    "log10": "log(x) / log(10.0)",
    "sinh": "0.5 * (exp(x) - exp(-x))",
    "cosh": "0.5 * (exp(x) + exp(-x))",
    "hypot": "sqrt(x ** 2 + y ** 2)",
    "isclose": "abs(x - y) < 1e-9",
    "gelu": "0.5 * x * (1.0 + erf(x / sqrt(2.0)))",
    "elu": "x if x > 0.0 else exp(x) - 1.0",
    "leaky_relu": "x if x > 0.0 else 0.01 * x",
    "logsumexp": "log(sum(exp(m.input) for m in messages))",
    "softmax": "exp(x) / self.sum(exp(x), over='layer'), or activation='softmax' of the layer",
}
METRICS = {
    **dict.fromkeys(("mean_squared_error", "MSE"), "mse"),
    **dict.fromkeys(("mean_absolute_error", "MAE", "l1"), "mae"),
    **dict.fromkeys(("roc_auc", "roc_auc_score", "AUC"), "auc"),
    **dict.fromkeys(("f1_score", "F1"), "f1"),
    **dict.fromkeys(("r2_score", "R2"), "r2"),
    **dict.fromkeys(("accuracy_score", "categorical_accuracy", "sparse_categorical_accuracy",
                     "binary_accuracy"), "accuracy"),
}  # fmt: skip
INITIALIZERS = {
    **dict.fromkeys(("xavier", "xavier_uniform", "glorot_uniform"), "glorot"),
    **dict.fromkeys(("kaiming", "kaiming_normal", "he_normal", "he_uniform"), "he"),
    **dict.fromkeys(("lecun_normal", "lecun_uniform"), "lecun"),
}  # fmt: skip
ACTIVATIONS = {
    **dict.fromkeys(("linear", "none", "None"), "identity"),
    "logistic": "sigmoid",
    "LeakyReLU": "leaky_relu",
    # missing in horn: no similar name may be suggested
    **dict.fromkeys(("gelu", "GELU", "swish", "silu", "SiLU", "mish", "elu", "selu"), ""),
}  # fmt: skip

# Calls with arguments that they do not take, by the name in Python's message.
_CALLS = {
    "train": _TRAIN,
    "Job": "a job is horn.Job(net, (x, y), optimizer=horn.SGD(0.1), epochs=10)",
    "Dense": f"horn.Dense is a way to connect layers; {_NETWORK}",
    "Model": _PREDICT,
    "Network": _NETWORK,
    "Layer": "a layer is told what it listens to: net.layer(4, inputs=[a, b])",
}


def suggest(
    word: str,
    known: Iterable[str],
    meant: Mapping[str, str] = MappingProxyType({}),
    ratio: float = 0.6,
    did: str = "did",
) -> str:
    """ "did you mean 'tanh'? ", or "": the known name of the same letters ("tahn"), else the most
    similar one. meant : the known name by another library's, "" where there is none. ratio : the
    similarity needed, from 0 to 1. did : "Did" where a sentence begins.
    """
    names = list(known)
    close = [each for each in names if sorted(each) == sorted(word)]
    close = close or difflib.get_close_matches(word, names, 1, ratio)
    name = meant.get(word, close[0] if close else "")
    return f"{did} you mean {name!r}? " if name else ""


def misnamed(cls: type, method: str) -> str:
    """A method of the class's own body with nearly this name that no other one of its methods
    names, as ``foward``: it was meant, and nothing calls it. "" without one.
    """
    for name, f in vars(cls).items():
        match = difflib.SequenceMatcher(None, name.lower(), method)
        is_near = match.real_quick_ratio() > 0.85 and match.ratio() > 0.85  # by length, mostly
        if is_near and _codes(getattr(f, "__func__", f)) and name not in _named(cls):
            return name
    return ""


def _named(cls: type) -> set[str]:
    """The words of a class's methods, each without its own name."""
    return {
        word
        for base in cls.__mro__
        for name, f in vars(base).items()
        for code in _codes(getattr(f, "__func__", f))
        for word in code.co_names
        if word != name
    }


def _codes(function: Any) -> list[CodeType]:
    """The code of a function, and of those inside it; of anything else none."""
    found = [function.__code__] if isinstance(function, FunctionType) else []
    for each in found:
        found += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return found


def is_foreign(given: Any) -> bool:
    """Whether a class, function or object is another library's."""
    return str(getattr(given, "__module__", "")).startswith(("torch.", "keras.", "sklearn."))


def shown(value: Any) -> str:
    """A value formatted for messages: arrays and tables by their shape, long texts cut."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {shape}"
    if isinstance(value, tuple) and len(value) < 4:
        return f"({', '.join(map(shown, value))}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= 200 else reprlib.repr(value)


def constructed(thing: Any) -> str:
    """The call that makes a thing, without what is as usual: the arguments that it keeps under
    their names, functions and classes by theirs.
    """
    given = []
    for name, parameter in inspect.signature(type(thing)).parameters.items():
        value = vars(thing).get(name, parameter.default)
        if repr(value) != repr(parameter.default):
            given.append(f"{name}={getattr(value, '__name__', None) or shown(value)}")
    return f"{type(thing).__name__}({', '.join(given)})"


class NoSuchAttribute(OwnLines, AttributeError):
    """An attribute that horn does not have; the line to blame is the user's."""


class NoSuchKey(OwnLines, KeyError):
    """A key that a mapping of horn does not have; the line to blame is the user's."""

    __str__ = Exception.__str__  # a KeyError's own shows the sentence in quotes


class NoSuchRow(OwnLines, IndexError):
    """A row that a history does not have; the line to blame is the user's."""


class ReadOnly(OwnLines, TypeError):
    """An item of a mapping that is read was to be assigned; the line to blame is the user's."""


class Frozen(OwnLines, FrozenInstanceError):
    """Something that does not change was to be changed; the line to blame is the user's."""


class NoSuchArgument(OwnLines, TypeError):
    """An argument that horn's function does not take; the line to blame is the user's."""


# Names of horn itself that mean something else in other libraries, or are modules here.
_OF_HORN = {
    "explain": "the command  horn explain FILE  shows what neurons are compiled to; print("
               "model.summary()) a table of the layers",
    "summary": "a model has a table of its layers: print(model.summary())",
    "check": "horn.train checks its job; the command  horn check FILE  does nothing else",
    "sweep": "the command  horn sweep FILE --set epochs=1,2  trains with each of the values",
    "submit": "horn.train(job) trains here, horn.Cluster(hosts).submit(job) on a cluster, and the "
              "command  horn submit FILE  either",
    "losses": "an output's loss has a name: net.output(10, activation='softmax', "
              "loss='cross_entropy')",
    "metrics": "metrics have names: horn.Job(net, (x, y), metrics=['f1', 'auc'])",
    **dict.fromkeys(("layer", "layers", "input", "output", "hidden"), _NETWORK),
    "Layer": "net.layer(n) adds one; what its neurons compute is a class of yours:  "
             "class Mine(horn.Neuron)",
    **dict.fromkeys(("NeuronGroup", "Population"), "net.layer(100, neuron=Mine) is one, "
                    "where class Mine(horn.Neuron) computes a step of each: docs/time.md"),
    **dict.fromkeys(("Synapses", "Connection"), "a layer listens through them: net.layer(100, "
                    "connect=horn.Sparse(fan_in=8)), and forward reads m.weight of each"),
    **dict.fromkeys(("SpikeMonitor", "StateMonitor"), "model.record(x, 'layer1') tells what a "
                    "layer sends at each step, and its States"),
    **dict.fromkeys(("ms", "second", "mV"), "numbers have no units here, and time goes in steps"),
    "random": "a neuron draws by self.uniform(), self.normal() or self.bernoulli(p); elsewhere "
              "take numpy.random.default_rng(seed)",
}  # fmt: skip


def no_attribute(
    kind: str,
    name: str,
    known: Iterable[str] = (),
    meant: Mapping[str, str] = MappingProxyType({}),
) -> NoSuchAttribute:
    """Python's error, with the replacement to write where one is known. meant : those of this kind
    that differ from the others.
    """
    if name.startswith("__"):  # Python or a library asks, again and again, and goes on
        return NoSuchAttribute(f"{kind} has no {name!r}")
    remedy = meant.get(name, ATTRIBUTES.get(name))
    if kind == "horn":
        remedy = _OF_HORN.get(name, remedy)
    if kind == "a horn.Model" and name == "layers":
        remedy = "the description has them: model.network.layers"
    close = difflib.get_close_matches(name, [each for each in known if each[0] != "_"], 1)
    close = [each for each in known if each.lower() == name.lower()] or close
    if remedy is None and close:
        remedy = f"did you mean {close[0]}?"
    elif remedy is None and kind.startswith("horn."):
        remedy = f"it has {', '.join(known)}"
    return NoSuchAttribute(f"{kind} has no {name!r}" + (f": {remedy}" if remedy else ""))


def of_module(module: str, names: Sequence[str]) -> tuple[Callable[[str], Any], Any]:
    """A module's ``__getattr__``, with the remedies, and its ``__dir__``: its own names alone."""

    def __getattr__(name: str) -> Any:
        raise no_attribute(module, name, names)

    return __getattr__, lambda: [*names]


def no_module(name: str, own: Iterable[str]) -> NoSuchAttribute:
    """The error for a module of horn that is not imported yet. own : its names that horn offers."""
    if name in _OF_HORN:
        return no_attribute("horn", name)
    if meant := next((each for each in own if each.lower() == name), None):
        return NoSuchAttribute(f"horn.{name} is a module of horn; write horn.{meant}")
    said = f"horn has {name!r} once it is imported: import horn.{name}"
    names = ", ".join(f"horn.{each}" for each in own)
    return NoSuchAttribute(f"{said}; or write {names}, which are here already" if names else said)


def remedy(message: str, function: Callable[..., Any] | None = None) -> str:
    """The remedy for a call that Python refuses with this message, or "". function : the called
    one, whose arguments are listed where nothing better is known.
    """
    called = re.match(r"'?(\w+)", message)
    if re.match(r"Network\.input\(\) takes .* positional", message):
        return "the shape of a sample is one argument, net.input((8, 8, 3)); others have names"
    if re.match(r"Network\.(layer|output)\(\) takes .* positional", message):
        return "all but the size have names: net.layer(100, neuron=Mine, activation='relu')"
    if message.startswith("Network.loss() takes"):
        return (
            "a loss compares two layers, net.loss(a, b, f), and f has a name where it is about "
            "one, net.loss(a, f=f); of more layers a neuron makes one number, which it hears by "
            "the names of its inputs: net.loss(made, f=lambda y: y)"
        )
    if made := re.match(r"(\w+)\(\) takes no arguments", message):
        return (
            f"if it is a neuron, it is passed as its class, neuron={made[1]}, and what differs is "
            f"a number of one of yours:  class Mine({made[1]}): keep = 0.5"
        )
    name = re.search(r"unexpected keyword argument '(\w+)'", message)
    if name is not None:
        known = [] if function is None else _arguments(function)
        if name[1] in _OF_TRAINING and message.startswith("Model."):
            return "leave it out: a model is asked about all samples at once"
        here = ESTIMATORS if message.startswith("Horn") else {}
        for place, meant in _PLACES.items():
            here = meant if message.startswith(place) else here
        if said := here.get(name[1], ARGUMENTS.get(name[1])):
            if called and "learning_rate" in known:  # an optimizer was called: it itself
                said = said.replace("horn.SGD(", f"horn.{called[1]}(")
            if said.startswith("leave it out"):
                return said
            if said.startswith("it "):  # the same argument elsewhere
                return f"write {said}"
            return f"write {said}, instead of {name[1]}"
        if close := difflib.get_close_matches(name[1], known, 1, 0.7):
            return f"did you mean {close[0]}?"
        return f"it takes {', '.join(known)}" if known else ""
    if twice := re.search(r"multiple values for argument '(\w+)'", message):
        if called and (called[1], twice[1]) == ("Job", "optimizer"):
            return "data are one argument, a pair: horn.Job(net, (x, y), optimizer=...)"
        known = [] if function is None else _arguments(function)
        order = f": its arguments are, in order, {', '.join(known)}" if known else ""
        return f"{twice[1]} has a value by its place, too{order}"
    if message.startswith("Model.__init__() missing"):
        return "a model is read by horn.Model.load('model.horn')"
    refused = re.search(r"positional argument|object is not callable", message)
    if re.match(r"Model\.(?!predict|__call__)", message):
        refused = None
    said = _CALLS.get(called[1], "") if called and refused else ""
    if not said and function is not None and re.search(" missing |positional arg", message):
        return f"it takes {', '.join(_arguments(function)) or 'no arguments'}"
    return said


def _arguments(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind in kinds and each.name not in ("self", "cls")]


def no_argument(called: str, name: str, function: Callable[..., Any]) -> NoSuchArgument:
    """Python's error for an unknown argument, with the remedy."""
    said = f"{called}() got an unexpected keyword argument {name!r}"
    return NoSuchArgument(f"{said}; {remedy(said, function)}")


def is_function(thing: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether it can be a user's function. A model is callable, too, but takes samples, and a
    network says when it is called that it is none.
    """
    is_network = type(thing).__module__ == "horn.network"
    return callable(thing) and not is_network and not hasattr(thing, "predict")


def plain(value: Any) -> Any:
    """Convert a NumPy number to one of Python's, which JSON has; also in a tuple, as of a shape."""
    if type(value) is tuple:
        return tuple(map(plain, value))
    if type(value).__module__ != "numpy" or hasattr(value, "__len__"):  # arrays have a length
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", "none")  # a ufunc has no dtype
    return value.item() if kind in "biuf" else value


_F = TypeVar("_F", bound=Callable[..., Any])


def teaches(thing: _F) -> _F:
    """Decorate a function, or a class's ``__init__``, to refuse a wrong call as Python does,
    but with the remedy: at a prompt, in a notebook or a script users see only the exception.
    Numbers of NumPy arrive as Python's, except at estimators, whose arguments scikit-learn wants
    back unchanged.
    """
    function: Callable[..., Any] = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    keeps = thing.__module__ == "horn.sklearn"

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        if not keeps:
            arguments = tuple(map(plain, arguments))
            keywords = {name: plain(value) for name, value in keywords.items()}
        try:
            return function(*arguments, **keywords)
        except TypeError as error:
            at = error.__traceback__
            if at is None or at.tb_next is not None:  # it was called, and failed inside
                raise
            said = str(error).partition(". Did you mean ")[0]  # added by Python 3.13
            if isinstance(thing, type):  # the name of the class, where the method is a base class's
                made = type(arguments[0]).__name__
                said = said.replace(f"{function.__qualname__}(", f"{made}.__init__(")
            hint = remedy(said, function)
            raise NoSuchArgument(f"{said}; {hint}" if hint else said) from None

    if not isinstance(thing, type):
        return called  # type: ignore[return-value]
    thing.__init__ = called  # type: ignore[misc]
    sets: Any = thing.__setattr__
    if sets is not object.__setattr__:
        thing.__setattr__ = _explained(sets)  # type: ignore[method-assign,assignment]
    return thing


def _explained(sets: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
    """The ``__setattr__`` of a frozen dataclass, with what to do instead."""

    @functools.wraps(sets)
    def refuse(self: Any, name: str, value: Any) -> None:
        try:
            sets(self, name, value)
        except FrozenInstanceError:
            kind = type(self).__name__
            other = (
                f"job.with_settings({name}=...) is a copy with another"
                if hasattr(self, "with_settings")
                else f"give it where the {kind} is made: {kind}(..., {name}=...)"
            )
            raise Frozen(f"{kind}.{name} cannot be set: {other}") from None

    return refuse
