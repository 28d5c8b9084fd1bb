"""What people of Keras, PyTorch and scikit-learn type: the exception alone says what to write."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import mistakes, own_lines
from horn.errors import DataError, HornError, ModelError, NotFound
from horn.mistakes import NoSuchArgument

X, Y = np.arange(12.0).reshape(6, 2) / 12, np.array([0, 1] * 3)


def labelled() -> horn.Model:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.train(horn.Job(net, (X, Y), epochs=1), progress=False).model


@pytest.mark.parametrize("call, said", [
    (lambda: horn.data.as_dataset((X, Y)).split(0.5, None), "seed None: it is a whole number"),
    (lambda: horn.data.as_dataset((X, Y)).split(0.5, 1.5), "seed 1.5: it is a whole number"),
    (lambda: horn.data.as_dataset((X, np.array([Decimal(k) for k in "012345"[:5]]
                                               + [Decimal("NaN")]))), "y has no label in row 5"),
    (lambda: horn.data.images(None), "images takes the path of a folder .* got None"),
    (lambda: horn.data.convert(None, "z"), "convert takes the path of a .csv file, got None"),
    (lambda: horn.data.convert("a.csv", None), "convert takes the path of a folder, got None"),
    (lambda: labelled().labels_of([[0.1, 0.9]]), "numpy.asarray makes one; got 0.1"),
    (lambda: labelled().export(None), "an ONNX file has a path, as 'model.onnx'; got None"),
    (lambda: horn.plot.weights(labelled(), path=3), "weights: path is that of a picture, got 3"),
])  # fmt: skip
def test_what_is_no_path_no_seed_and_no_label_is_said(call: Any, said: str) -> None:
    with pytest.raises(HornError, match=said):
        call()


def test_what_follows_the_learning_rate_is_what_it_is_elsewhere() -> None:
    """In Keras: SGD(rate, momentum, nesterov), Adam(rate, beta_1, beta_2)."""
    assert horn.SGD(0.1, 0.9) == horn.SGD(0.1, momentum=0.9)
    assert horn.Adam(0.1, 0.8, 0.9) == horn.Adam(0.1, beta1=0.8, beta2=0.9)
    assert horn.SGD(0.1, 0.9).weight_decay == 0.0
    with pytest.raises(TypeError, match="positional"):
        horn.SGD(0.1, 0.9, False, 1e-4)  # type: ignore[misc]


@pytest.mark.parametrize("name, said", [
    ("manual_seed", "a network has its own: horn.Network(seed=3)"),
    ("Conv2d", "net.layer(connect=horn.Convolution(channels=8, kernel=3))"),
    ("UpSampling2D", "horn.TransposedConvolution(c, 2, stride=2, groups=c)"),
    ("LSTM", "a cell is a neuron with a State"),
    ("no_grad", "gradients are derived"),
    ("DataLoader", "arrays are data as they are"),
    ("ReLU", "an activation has a name: net.layer(100, activation='relu')"),
    ("MaxPool2d", "net.layer(connect=horn.Window(2, stride=2), neuron=...): docs/space.md"),
    ("AvgPool2d", "the sum of m.input over len(messages) looks through"),
    ("ConvTranspose2d", "horn.TransposedConvolution(channels=8, kernel=3, stride=2)"),
    ("Conv2DTranspose", "the weights of a convolution it is horn.Tied(layer, transposed=True)"),
    ("BatchNorm1d", "self.mean(z, over='batch')"),
    ("MSELoss", "the output has the loss: net.output(10, activation='softmax'"),
    ("CosineAnnealingLR", "a schedule: horn.SGD(horn.Cosine(0.1, 1000))"),
    ("layer", "net = horn.Network(); net.input(784)"),
    ("Layer", "class Mine(horn.Neuron)"),
    ("NeuronGroup", "net.layer(100, neuron=Mine) is one"),
    ("Synapses", "connect=horn.Sparse(fan_in=8)"),
    ("SpikeMonitor", "model.record(x, 'layer1') tells what a layer sends at each step"),
])  # fmt: skip
def test_names_of_others(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(said)):
        getattr(horn, name)


def test_modules_offer_their_own_names() -> None:
    assert dir(horn.plot) == ["confusion", "history", "live", "raster", "weights"]
    assert dir(horn.neurons) == ["BatchDropout", "Dropout", "SequenceDropout", "Standard"]
    assert {"atan2", "ceil", "pi", "top_sum"} < set(dir(horn.math))
    assert not {"Any", "OPS", "abs_", "apply"} & set(dir(horn.math))
    assert all(hasattr(horn.math, name) for name in dir(horn.math))
    assert "load" in dir(horn.data) and "check_finite" not in dir(horn.data)
    run = horn.train(job())
    assert "loss" in run.history._ipython_key_completions_()
    names = run.model.parameters._ipython_key_completions_()  # type: ignore[attr-defined]
    assert [*names] == ["layer1.weight", "layer1.bias"]
    with pytest.raises(AttributeError, match="horn.plot has no 'hist': did you mean history"):
        _ = horn.plot.hist


def test_what_is_shown_at_a_prompt_is_short() -> None:
    run = horn.train(job())
    assert re.fullmatch(
        r"<Run state SUCCEEDED, seconds [\d.e-]+, updates 1, training loss [\d.]+, "
        r"training acc [\d.]+, <Model 2-2, 6 parameters>>", repr(run),
    )  # fmt: skip
    assert repr(run.history).startswith("<History of 1 epochs, last: epoch 1, iteration 1, loss 0.")
    assert repr([horn.Parameter(1.0), horn.State(per="sample"), horn.Weight(bias=1.0)]) == (
        "[horn.Parameter(1.0), horn.State(0.0, per='sample'), horn.Weight(bias=1.0)]"
    )
    callbacks = [horn.ReduceOnPlateau("loss", factor=0.5), print]
    metrics, aggregates = ["f1"], {"a": horn.Aggregate("layer1", lambda y: y.mean())}
    assert repr(job(callbacks=callbacks, metrics=metrics, aggregates=aggregates)).endswith(
        "aggregates={'a': Aggregate(layer='layer1', of_layer=<lambda>)}, "
        "metrics=(Metric(name='f1', f=f1, reads='answers', better='max'),), "
        "callbacks=(ReduceOnPlateau(monitor='loss', factor=0.5), EpochFunction(function=print)))"
    )


def test_a_stream_is_shown_with_its_steps() -> None:
    net = horn.Network(seed=1)
    net.input(2, steps=3)
    net.output(2, activation="softmax", loss="cross_entropy")
    model = horn.train(horn.Job(net, (np.zeros((4, 3, 2)), np.zeros(4, int)), epochs=1)).model
    assert repr(stream := model.stream()) == "<ModelStream of 2 features, after 0 steps>"
    stream([[0.0, 0.0]] * 5)
    assert repr(stream) == "<ModelStream of 2 features, after 5 steps>"


class Diary(horn.Callback):
    def __init__(self, path: Any, *lines: str, size: int = 3) -> None:
        self.path, self.lines, self.size = path, lines, size


def test_a_callback_of_ones_own_is_shown_with_what_it_was_given() -> None:
    shown = repr(Diary(X, "a", size=2))
    assert shown == "Diary(path=ndarray of shape (6, 2), lines=('a',), size=2)"


@pytest.mark.parametrize("thing, name, meant", [
    (lambda: horn.train(job()), "modle", "model"), (lambda: job(), "netwrok", "network"),
    (lambda: MODEL, "paramters", "parameters"), (lambda: network(), "seeed", "seed"),
])  # fmt: skip
def test_a_misspelt_attribute_is_answered_with_the_one_that_there_is(
    thing: Callable[[], Any], name: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"has no {name!r}: did you mean {meant}?"):
        getattr(thing(), name)


@pytest.mark.parametrize("thing, name, said", [
    (lambda: network().layers[1], "output", "write it without  net = "),
    (lambda: network().layers[1], "layer", "write it without  net = "),
    (lambda: network().layers[1], "weight", "model.parameters holds them by name"),
    (lambda: network().layers[1], "units", "its neurons are layer.size"),
    (lambda: network().layers[1], "siez", "did you mean size?"),
    (lambda: horn.SGD(0.1), "step", "SGD has no 'step': horn.train makes the steps itself"),
    (lambda: horn.SGD(0.1), "zero_grad", "horn.train makes the steps itself"),
    (lambda: horn.Adam(0.1), "lr", "Adam has no 'lr': it is learning_rate"),
    (lambda: horn.data.digits(), "target", "its labels are data.y"),
    (lambda: horn.data.digits(), "data", "its samples are data.x"),
    (lambda: horn.data.digits(), "shuffle", "every epoch has an order of its own"),
    (lambda: horn.data.digits(), "train", 'horn.data.digits("test")'),
])  # fmt: skip
def test_what_a_layer_an_optimizer_and_data_have_not_is_answered(
    thing: Callable[[], Any], name: str, said: str
) -> None:
    with pytest.raises(mistakes.NoSuchAttribute, match=re.escape(said)):
        getattr(thing(), name)
    assert pickle.loads(pickle.dumps(thing())) is not None
    assert not hasattr(thing(), "__nothing__")


@pytest.mark.parametrize("call, said", [
    (lambda: horn.Parameter(4, 2), "Parameter.__init__() takes from 1 to 2 .*; it takes init"),
    (lambda: horn.State(1, 2, 3), "State.__init__() takes from 1 to 3 .*; it takes initial, per"),
    (lambda: horn.He(1, 2), "He.__init__() takes 1 positional .*; it takes no arguments"),
    (lambda: horn.Model.load(), "'path'; it takes path, backend, threads"),
    (lambda: MODEL.evaluate(X, Y, 32), "Model.evaluate() takes from 2 to 3 .*; it takes x, y, "),
])  # fmt: skip
def test_an_argument_too_many_is_answered_with_those_there_are(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(NoSuchArgument, match=re.escape(said).replace(re.escape(".*"), ".*")):
        call()


def test_a_method_of_a_model_says_what_it_takes() -> None:
    model = horn.train(job()).model
    with pytest.raises(TypeError, match="'path'; it takes path"):
        model.save()
    with pytest.raises(TypeError, match="'layer'; it takes x, layer"):
        model.activations(X)
    with pytest.raises(TypeError, match=r"'x'; model.predict\(x\) gives"):
        model.predict()


def test_a_history_and_data_are_asked_by_name() -> None:
    history = horn.train(job()).history
    with pytest.raises(KeyError, match="write 'acc'; columns: epoch"):
        history["accuracy"]
    with pytest.raises(KeyError, match=r"a column at a time: history\['loss'\]"):
        history["loss", "acc"]
    with pytest.raises(AttributeError, match=r"no 'history'; .* as history\['loss'\], rows by"):
        _ = history.history
    with pytest.raises(AttributeError, match=r"as history\['val_acc'\]"):
        _ = history.val_acc
    assert pickle.loads(pickle.dumps(history)).rows == history.rows
    with pytest.raises(TypeError, match=r"x, y = data.x, data.y"):
        _x, _y = horn.data.digits()


def network() -> horn.Network:
    net = horn.Network(seed=1)
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def job(**more: Any) -> horn.Job:
    return horn.Job(network(), (X, Y), **({"epochs": 1} | more))


MODEL = horn.train(job()).model

SAID: list[tuple[Callable[..., Any], str, str]] = [
    (job, "shuffle", "leave it out: every epoch has an order of its own"),
    (job, "lr", "write learning_rate, of the optimizer: horn.SGD(learning_rate=0.1)"),
    (job, "learning_rate", "write optimizer=horn.SGD(0.1), instead of learning_rate"),
    (job, "loss", "write net.output(..., loss='cross_entropy'), instead of loss"),
    (job, "bs", "write batch_size=32, of horn.Job, instead of bs"),
    (job, "max_iter", "write epochs=10, of horn.Job"),
    (job, "verbose", "write progress=True, of horn.train, instead of verbose"),
    (job, "device", "leave it out: horn computes on processors"),
    (job, "tasks", "horn.train(job, tasks=2)"),
    (job, "validation_data", "write validation=0.1, or validation=(x, y)"),
    (job, "weight_decay", "write it in the optimizer: horn.SGD(0.1, momentum=0.9"),
    (job, "epoch", "did you mean epochs?"),
    (job, "optimiser", "did you mean optimizer?"),
    (job, "batchsize", "did you mean batch_size?"),
    (job, "nothing_like_it", "it takes network, data, optimizer, batch_size, epochs, iterations"),
    (lambda **k: horn.train(job(), **k), "epochs", "write horn.Job(net, (x, y), epochs=10"),
    (lambda **k: horn.train(job(), **k), "metrics", "horn.Job(net, (x, y), metrics=['accuracy']"),
    (lambda **k: horn.train(job(), **k), "task", "did you mean tasks?"),
    (lambda **k: horn.train(MODEL, (X, Y), **k), "epoch", "did you mean epochs?"),
    (horn.SGD, "lr", "write learning_rate, of the optimizer"),
    (horn.Adam, "lr", "write learning_rate, of the optimizer: horn.Adam(learning_rate=0.1)"),
    (horn.Adam, "betas", "write beta1=0.9, beta2=0.999, instead of betas"),
    (horn.RMSProp, "epsilon", "write eps=1e-8, instead of epsilon"),
    (horn.Network, "random_state", "write seed, of horn.Network, instead of random_state"),
    (network().layer, "units", "write size, the first one, instead of units"),
    (network().layer, "kernel_size", "write connect=horn.Convolution(channels=8, kernel=3"),
    (network().output, "losss", "did you mean loss?"),
    (network().layer, "weights", "write init='he', or an initialiser as horn.Normal(0, 0.1), of"),
    (network().layer, "weight", "write init='he', or an initialiser"),
    (network().output, "weights", "write init='he', or an initialiser"),
    (network().output, "bias_initializer", "write bias=0.1, or an initialiser"),
    (network().layer, "trainable", "write frozen=['layer1'], of horn.Job"),
    (horn.Convolution, "weights", "write init='he', or an initialiser"),
    (horn.Convolution, "activation", "write it in the layer: net.layer(connect=horn.Convolution("),
    (horn.Dense, "init", "write init='he', or an initialiser"),
    (horn.Sparse, "weights", "write init='he', or an initialiser"),
    (horn.Convolution, "strides", "write stride, instead of strides"),
    (horn.Window, "strides", "write stride, instead of strides"),
    (horn.Convolution, "pads", "write padding=((top, bottom), (left, right)), or ((before, after)"),
    (horn.Window, "auto_pad", "write padding='same', which is SAME_UPPER, or 'valid', instead"),
    (horn.TransposedConvolution, "output_padding", "write padding=((1, 0), (1, 0)) for padding=1"),
    (lambda **k: horn.data.load("digits", **k), "target", "write label='kind', the column of a"),
    (lambda **k: MODEL.predict(X, **k), "batch_size", "leave it out: a model is asked about all"),
    (lambda **k: MODEL.evaluate(X, Y, **k), "verbose", "leave it out: a model is asked about all"),
]  # fmt: skip


@pytest.mark.parametrize("called, name, said", SAID)
def test_an_argument_of_elsewhere_is_answered_with_horns(
    called: Callable[..., Any], name: str, said: str
) -> None:
    with pytest.raises(NoSuchArgument, match=f"unexpected keyword argument '{name}'; ") as caught:
        called(**{name: 1})
    assert said in str(caught.value)


def test_data_beside_each_other_or_none() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required .* 'data'; a job is horn.Job\(net, "):
        horn.Job(network())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: horn.Job(network(), X, Y, optimizer=horn.SGD(0.1)),
         "values for argument 'optimizer'; data are one argument, a pair: horn.Job(net, (x, y)"),
        (lambda: horn.Job(network(), (X, Y), horn.SGD(0.1), 10),
         "but 5 were given; a job is horn.Job(net, (x, y), optimizer=horn.SGD(0.1), epochs=10)"),
        (lambda: horn.SGD(0.1, learning_rate=0.2),
         "learning_rate has a value by its place, too: its arguments are, in order, learning_rate"),
        (lambda: horn.Weight(1, 2, 3, 4), "positional arguments but 5 were given; it takes init"),
    ],
)  # fmt: skip
def test_a_call_that_gives_too_much_is_told_what_to_give(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(NoSuchArgument) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: MODEL.activations("layer1", X), "a layer is given by its name, got array"),
        (lambda: MODEL.cut(MODEL.network.layers[1]), "(of type Layer); the layers are layer0"),
        (lambda: horn.CSVLogger(3), "CSVLogger: a path is expected, as in CSVLogger('history"),
        (lambda: horn.TensorBoard(None), "as in TensorBoard('runs'), got None"),
        (lambda: horn.ModelCheckpoint(["a"]), "ModelCheckpoint: a path is expected"),
    ],
)  # fmt: skip
def test_layers_and_paths_that_are_none_are_refused_where_they_are_given(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(ModelError) as caught:
        call()
    assert said in str(caught.value)


def test_a_mistake_inside_is_not_taken_for_one_of_the_call() -> None:
    @mistakes.teaches
    def outer(rate: Any) -> Any:
        return rate(epochs=3)

    with pytest.raises(TypeError) as caught:
        outer(lambda: 1)
    assert type(caught.value) is TypeError and "horn.Job" not in str(caught.value)


def test_signatures_and_documentation_are_those_of_before() -> None:
    assert list(inspect.signature(horn.Job).parameters)[:3] == ["network", "data", "optimizer"]
    assert "groups" in inspect.signature(horn.train).parameters
    assert horn.train.__name__ == "train" and "Train a job" in (horn.train.__doc__ or "")


@pytest.mark.parametrize(
    "data, said",
    [
        (list(zip(X, Y, strict=True)), "got a list of 6 pairs, a sample each, but data are the "),
        (list(zip(X, np.eye(2)[Y], strict=True)), "write  x, y = zip(*data)  and then"),
        ([([0.1, 0.2], 0), ([0.3, 0.1], 1)], "got a list of 2 pairs"),
        ([X, Y], "got a list of two arrays, .*write (x, y), not [x, y]"),
        ([{"x": X[0], "y": 0}], "got a list of 1 dicts with 'x', 'y', a sample each"),
        ({"x": X, "y": Y}, "'layer0' missing .* of inputs and targets write the pair (x, y)"),
        (None, "got None, but the pair (x, y), or x alone, is expected"),
        ([[1, 2], [3, 4], [5]], "sample 0 has shape (2,), sample 2 (1,); make every sample the"),
        ([[1, 2], [3]], "sequences of different lengths are horn.data.sequences([...], y)"),
    ],
)  # fmt: skip
def test_data_that_are_no_pair(data: Any, said: str) -> None:
    said = re.escape(said).replace(re.escape(".*"), ".*")
    with pytest.raises(DataError, match=said):
        horn.Job(network(), data)


@pytest.mark.parametrize("x", [[(0, 0), (0, 1), (1, 1)], [[0.0, 1.0], [1.0, 0.0]]])
def test_rows_of_two_numbers_are_rows(x: Any) -> None:
    assert horn.Job(network(), (x, [0, 1, 1][: len(x)])).data.x.shape == (len(x), 2)
    assert horn.data.as_dataset(x).x.shape == (len(x), 2)


def test_one_sample_as_a_list() -> None:
    with pytest.raises(DataError, match=r"x has shape \(2,\), .*; write \[x\] for one sample"):
        MODEL.predict([0.1, 0.2])
    assert MODEL.predict([[0.1, 0.2]]).shape == (1, 2)


def test_a_model_of_another_name(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "best.horn")
    said = r"bets.horn: no such file in .*; did you mean .*best.horn\?"
    with pytest.raises(NotFound, match=said):
        horn.Model.load(tmp_path / "bets.horn")
    with pytest.raises(NotFound, match="zzz: no such file in"):
        horn.Model.load(tmp_path / "zzz")


def test_a_model_of_a_path_and_a_schedule_without_its_length_are_told_what_to_write() -> None:
    with pytest.raises(NoSuchArgument, match=r"read by horn\.Model\.load\('model\.horn'\)"):
        horn.Model("f.horn")  # type: ignore[call-arg, arg-type]
    with pytest.raises(NoSuchArgument, match="it takes initial, iterations, final"):
        horn.Cosine(0.1)  # type: ignore[call-arg]


def test_numbers_of_numpy_are_numbers(tmp_path):
    """As they come from a grid of settings; a model file has no others than Python's."""
    whole, tenth = np.int64(4), np.float32(0.1)
    net = horn.Network(seed=whole)
    net.input((whole, 4, 1), keep=np.float32(0.5))
    net.layer(connect=horn.Convolution(np.int32(2), np.int64(3)), activation="relu", init=tenth)
    net.layer(np.int64(5), activation="tanh")
    net.output(np.int32(3), activation="softmax", loss="cross_entropy")
    x, y = np.ones((6, 4, 4, 1)), np.arange(6) % 3
    rates = []

    def halve(context):
        context.learning_rate = np.float32(0.05)
        rates.append(context.learning_rate)

    job = horn.Job(
        net, (x, y), optimizer=horn.SGD(tenth, momentum=tenth), batch_size=np.int32(2),
        epochs=whole, validation=np.float32(0.5), callbacks=[halve],
        early_stopping=horn.EarlyStopping(patience=np.int64(9)),
    )  # fmt: skip
    model = horn.train(job).model
    model.save(path := tmp_path / "m.horn")
    assert (horn.Model.load(path).predict(x) == model.predict(x)).all()
    assert rates == [float(np.float32(0.05))] * 4
    assert type(job.batch_size) is int and type(net.seed) is int


def test_what_of_numpy_is_no_number_stays_what_it_is():
    for thing in (np.tanh, np.ones(2), np.array(1.0), np.str_("a"), np.datetime64("2024-01-01")):
        assert mistakes.plain(thing) is thing
    assert mistakes.plain((np.int64(3), (np.float32(0.5), None))) == (3, (0.5, None))


def test_a_notebook_shows_no_lines_of_horns_own_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause of an error that horn explains was shown with its frames, of horn alone."""

    class Shell:
        mode = "Context"

        @property
        def InteractiveTB(self) -> Shell:
            return self

        def structured_traceback(self, *error: Any) -> list[str]:
            return traceback.format_exception(*error)

    def own() -> None:
        raise LookupError("of the user")

    monkeypatch.setattr(own_lines, "shell", Shell)
    with pytest.raises(DataError) as caught:
        horn.data.as_dataset([[1.0, 2.0], [3.0]])
    before = caught.value.__cause__, caught.value.__context__
    assert isinstance(before[0], ValueError)
    shown = "".join(caught.value._render_traceback_())
    assert "not a rectangular array" in shown and "ValueError" not in shown
    assert before == (caught.value.__cause__, caught.value.__context__)
    try:  # a cause of the user's own stays, behind one of horn's
        own()
    except LookupError as error:
        before[0].__cause__ = error
    shown = "".join(caught.value._render_traceback_())
    assert "of the user" in shown and "ValueError" not in shown
    assert before[0].__cause__ is not None
    monkeypatch.setattr(Shell, "mode", "Verbose")
    assert "ValueError" in "".join(caught.value._render_traceback_())
