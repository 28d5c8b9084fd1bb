"""Weights of samples: factors of their losses, in what is reported and in what is learned; the same
interpreted, compiled, on tasks and in groups, and nothing at all where there are none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import horn
from horn.backends import Setup, make
from horn.compiler import lower
from horn.data import Dataset
from horn.errors import DataError, ModelError
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS
from horn.program import Target
from horn.weights import weighed
from tests.parity.differences import check_gradients
from tests.parity.generated import Case, cases, optimizer
from tests.parity.test_compiled_equals_interpreted import agree, engine_or_refusal
from tests.parity.test_groups import of_groups
from tests.parity.test_tasks import (
    BACKENDS,
    N_SAMPLES,
    compare,
    is_illegal,
    labelled,
    of_group,
    of_one,
    place,
    steps,
)
from tests.support.runs import bits
from tests.transport.groups import good

ENGINES = ("python", *BACKENDS)
LOSSES = [
    ("softmax", "cross_entropy"), ("softmax", "squared_error"), ("tanh", "squared_error"),
    ("sigmoid", "binary_cross_entropy"), ("sigmoid", "squared_error"),
]  # fmt: skip
WEIGHTS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=N_SAMPLES, max_size=N_SAMPLES)


def heavy(network: Any, weights: list[float]) -> Dataset:
    assume(any(weights))
    return weighed(labelled(network), weights, network)


# the same everywhere


@pytest.mark.timeout(600)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=cases(), weights=WEIGHTS)
def test_weighed_and_compiled_is_weighed_and_interpreted(
    case: Case, weights: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    note(case.text)
    network = case.module(tmp_path_factory.getbasetemp()).network()
    engines = [engine_or_refusal(network, case, b) for b in ENGINES]
    assume(not any(isinstance(e, str) for e in engines))
    agree(engines, ENGINES, heavy(network, weights), case.batch)


@pytest.mark.timeout(600)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    case=cases(),
    shape=st.sampled_from([(1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]),
    links=st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=8, max_size=8),
    layers=st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=5, max_size=5),
    weights=WEIGHTS,
)
def test_any_number_of_tasks_and_groups_weighs_as_one(
    case: Case, shape: tuple[int, int], links: list[str], layers: list[str], weights: list[float],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    note(case.text)
    network = case.module(tmp_path_factory.getbasetemp()).network()
    setup = Setup(network, optimizer(case), "labels", case.batch, "float64", 1)
    data, batches = heavy(network, weights), steps(case.batch, 2)
    placement = place(network, links, layers)
    for backend in BACKENDS:
        try:
            one = of_one(backend, setup, data, batches)
        except horn.HornError:  # what is refused is tested elsewhere
            assume(False)
        if shape[0] == 1:
            found = of_group(backend, setup, data, batches, placement, shape[1])
        else:
            found = of_groups(backend, setup, data, batches, placement, *shape)
        assume(not is_illegal(found))
        compare(good(found), one, backend)


# what they are


def network(activation: str = "softmax", loss: str = "cross_entropy", last: int = 3) -> Any:
    net = horn.Network(seed=4)
    net.input(5)
    net.layer(6, activation="tanh")
    net.output(last, activation=activation, loss=loss)
    return net


@pytest.mark.parametrize("activation, loss", LOSSES)
@pytest.mark.parametrize("backend", ENGINES)
def test_gradients_are_those_of_the_loss_that_is_told(backend, activation, loss) -> None:
    net = network(activation, loss)
    setup = Setup(net, horn.SGD(0.1), "labels", 7, "float64", 1)
    rng = np.random.default_rng(3)
    check_gradients(backend, setup, weighed(labelled(net), rng.random(N_SAMPLES), net))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 3), min_size=6, max_size=6).filter(any),
    loss=st.sampled_from(LOSSES), seed=st.integers(0, 2**32 - 1),
    backend=st.sampled_from(BACKENDS),
)  # fmt: skip
def test_what_a_sample_weighs_is_how_often_it_is_there(counts, loss, seed, backend) -> None:
    """The mean is over samples: of those that are there once, with weights, or so many times."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((6, 5)), rng.integers(0, 3, 6)
    often = np.repeat(np.arange(6), counts)
    factor = len(often) / 6  # of the mean over 6 that are heavier than 1 or lighter
    settings = {"batch_size": 32, "epochs": 1, "dtype": "float64"}
    one = horn.Job(network(*loss), (x, y), horn.SGD(0.1), sample_weight=counts, **settings)
    many = horn.Job(network(*loss), (x[often], y[often]), horn.SGD(0.1 * factor), **settings)
    a, b = (horn.train(job, backend=backend) for job in (one, many))
    assert a.history[0]["loss"] == pytest.approx(b.history[0]["loss"] * factor, abs=1e-12)
    for name, array in a.model.parameters.items():
        np.testing.assert_allclose(array, b.model.parameters[name], atol=1e-12)


@pytest.mark.parametrize("kind", ["values", "value", "input"])
def test_targets_of_every_kind_are_weighed(kind: str) -> None:
    last = {"values": 3, "value": 1, "input": 5}[kind]
    net = network("sigmoid", "squared_error", last)
    rng = np.random.default_rng(0)
    y = None if kind == "input" else rng.random((N_SAMPLES, last))
    data = weighed(Dataset(rng.random((N_SAMPLES, 5)), y), rng.random(N_SAMPLES), net)
    target = "input" if kind == "input" else "labels"
    engines = [make(b, Setup(net, horn.SGD(0.1), target, 5, "float64", 1)) for b in ENGINES]
    agree(engines, ENGINES, data, 5)


def test_balanced_classes_weigh_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((12, 5))
    y = np.array([0] * 8 + [1] * 3 + [2])
    balanced = horn.Job(network(), (x, y), class_weight="balanced").data.weight
    # n / (classes * samples of the class), as scikit-learn's compute_class_weight
    np.testing.assert_allclose(balanced, [0.5] * 8 + [12 / 9] * 3 + [4.0])
    assert balanced.sum() == pytest.approx(12)
    given = horn.Job(network(), (x, y), class_weight={1: 5.0}).data.weight
    np.testing.assert_array_equal(given, [1.0] * 8 + [5.0] * 3 + [1.0])
    both = horn.Job(network(), (x, y), sample_weight=np.arange(12), class_weight={0: 2, 2: 0.5})
    np.testing.assert_array_equal(both.data.weight, [*range(0, 16, 2), 8, 9, 10, 5.5])
    hot = horn.Job(network(), (x, np.eye(3)[y]), class_weight="balanced").data.weight
    np.testing.assert_array_equal(hot, balanced)
    side = horn.Job(network("sigmoid", "binary_cross_entropy", 1), (x, y > 0),
                    class_weight="balanced")  # fmt: skip
    np.testing.assert_allclose(side.data.weight, [0.75] * 8 + [1.5] * 4)
    # one that is absent has no weight, and the others share all
    two = horn.Job(network(), (x[:11], y[:11]), class_weight="balanced").data.weight
    np.testing.assert_allclose(two, [11 / 16] * 8 + [11 / 6] * 3)


def test_classes_are_called_by_what_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((12, 5))
    names = np.array(["dog"] * 8 + ["cat"] * 3 + ["eel"])
    given = horn.Job(network(), (x, names), class_weight={"cat": 5.0}).data.weight
    np.testing.assert_array_equal(given, [1.0] * 8 + [5.0] * 3 + [1.0])
    with pytest.raises(ModelError, match="a weight for 'cow', but the classes are 'cat', 'dog'"):
        horn.Job(network(), (x, names), class_weight={"cow": 5.0})


def rare(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Of two classes that overlap, one is a twentieth."""
    rng = np.random.default_rng(8)
    y = (np.arange(n) % 20 == 0).astype(int)
    return rng.standard_normal((n, 5)) + y[:, None] * 0.8, y


def test_a_rare_class_is_found_where_it_weighs_as_much() -> None:
    def recall(**more: Any) -> float:
        net = network("sigmoid", "binary_cross_entropy", 1)
        job = horn.Job(net, rare(), horn.SGD(0.3), epochs=8, metrics="recall", **more)
        return horn.train(job).metrics["training"]["recall"]

    assert recall() < 0.5 < 0.7 < recall(class_weight="balanced")


def test_what_is_held_out_is_not_weighed_and_keeps_its_part() -> None:
    x, y = rare()
    job = horn.Job(network(last=2), (x, y), validation=0.25, sample_weight=1.0 + np.arange(600))
    whole, rows = (
        np.concatenate([job.data.x, job.validation.x]),
        {tuple(r): k for k, r in enumerate(x)},
    )
    for data in (job.data, job.validation):
        np.testing.assert_array_equal(data.weight, [1.0 + rows[tuple(row)] for row in data.x])
    assert len(whole) == 600
    run = horn.train(job.with_settings(epochs=1))
    plain = run.model.evaluate(job.validation.x, job.validation.y)
    assert run.history[0]["val_loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert run.history[0]["loss"] > 50 * plain["loss"]  # that of training is


# nothing at all


def test_without_weights_the_program_is_the_same_and_with_them_it_reads_one_array_more() -> None:
    net = network()
    plain = lower.training_program(net, horn.SGD(0.1), "label")
    heavy = lower.training_program(net, horn.SGD(0.1), "label", weighs="sample")
    assert len(heavy.statements) == len(plain.statements) + 1
    assert [s.kind for s in heavy.statements if isinstance(s, Target)] == ["label", "weight"]
    assert "weight" not in [s.kind for s in plain.statements if isinstance(s, Target)]


@pytest.mark.parametrize("backend", ENGINES)
def test_weights_of_one_change_nothing(backend: str) -> None:
    x, y = rare(60)
    settings = {"epochs": 1, "dtype": "float64", "batch_size": 20}
    plain, ones = (
        horn.train(horn.Job(network(last=2), (x, y), **settings, sample_weight=w), backend=backend)
        for w in (None, np.ones(60))
    )
    for name, array in plain.model.parameters.items():
        np.testing.assert_allclose(ones.model.parameters[name], array, rtol=1e-13)


# whole trainings


def job(**more: Any) -> horn.Job:
    made: dict[str, Any] = {"batch_size": 30, "epochs": 2, "class_weight": "balanced"} | more
    net = network(last=2)
    return horn.Job(net, rare(300), horn.SGD(0.1, momentum=0.5), dtype="float64", **made)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("options", [
    {"tasks": 2}, {"groups": 2}, {"groups": 2, "tasks": 2}, {"backend": "reference"},
], ids=str)  # fmt: skip
def test_a_training_in_processes_weighs_as_one(options: dict[str, Any]) -> None:
    alone, many = horn.train(job()), horn.train(job(), **options)
    assert many.history["loss"] == pytest.approx(alone.history["loss"], rel=1e-9)
    for name, array in alone.model.parameters.items():
        np.testing.assert_allclose(many.model.parameters[name], array, rtol=1e-9, atol=1e-12)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("options", [
    {"strategy": "downpour"}, {"strategy": "averaging", "groups": 2},
    {"strategy": "parallel-dropout", "tasks": 2}, {"strategy": "parallel-dropout"},
    {"strategy": horn.ParallelDropout(4, keep=0.5)},
], ids=str)  # fmt: skip
def test_every_strategy_learns_from_weighed_losses(options: dict[str, Any]) -> None:
    """Twice the weight is twice the loss of the first batch, whatever made it."""
    losses = []
    for factor in (1.0, 2.0):
        few = job(epochs=None, iterations=1, class_weight={0: factor, 1: factor})
        losses.append(horn.train(few, **options).history[0]["loss"])
    assert losses[1] == pytest.approx(2.0 * losses[0], rel=1e-9)


@pytest.mark.net
@pytest.mark.cluster
def test_a_training_goes_on_with_its_weights_and_not_with_others(tmp_path) -> None:
    whole = horn.train(job())
    horn.train(job(epochs=1), checkpoints=tmp_path, checkpoint_every=5)
    assert bits(horn.train(job(), checkpoints=tmp_path, resume=True)) == bits(whole)
    with pytest.raises(horn.HornError, match="is of another job.*weight"):
        horn.train(job(class_weight=None, epochs=3), checkpoints=tmp_path, resume=True)


def test_a_job_is_made_again_with_the_weights_that_it_has() -> None:
    first = job(validation=0.1)
    again = first.with_settings(epochs=1)
    np.testing.assert_array_equal(again.data.weight, first.data.weight)
    some = first.with_settings(data=first.data.take(8), validation=None)
    np.testing.assert_array_equal(some.data.weight, first.data.weight[:8])


# of each step of a sequence

LENGTHS = (6, 3, 5, 1, 6, 4)
RNG = np.random.default_rng(3)
X_STEPS = [RNG.standard_normal((n, 2)) for n in LENGTHS]
Y_STEPS = [(RNG.random(n) < 0.3).astype(int) for n in LENGTHS]
OF_CLASS = {0: 0.5, 1: 5.0}


def of_steps(x: Any = X_STEPS, y: Any = Y_STEPS, rate: float = 0.5, **more: Any) -> horn.Job:
    net = horn.Network(seed=1)
    heard = net.layer(4, activation="tanh", inputs=[net.input(2, steps=6), horn.Delayed()])
    net.output(2, inputs=heard, activation="softmax", loss="cross_entropy", each_step=True)
    settings = {"batch_size": 3, "epochs": 2, "class_weight": OF_CLASS, **more}
    return horn.Job(net, (x, y), horn.SGD(rate), dtype="float64", **settings)


@pytest.mark.parametrize("backend", ENGINES)
def test_a_step_counts_by_the_weight_of_its_class(backend: str) -> None:
    """The sum of weight times loss over the number of judged steps; also where parts are computed
    again, and of pieces.
    """
    run = horn.train(of_steps(rate=0.0, batch_size=6, epochs=1), backend=backend)
    sent, labels = np.concatenate(run.model.predict(X_STEPS)), np.concatenate(Y_STEPS)
    losses = -np.log(sent[np.arange(len(labels)), labels])
    weights = np.where(labels == 1, 5.0, 0.5)
    assert run.history[0]["loss"] == pytest.approx((weights * losses).mean(), rel=1e-9)
    again = horn.train(of_steps(rate=0.0, batch_size=6, epochs=1, recompute="sqrt"))
    assert again.history[0]["loss"] == pytest.approx(run.history[0]["loss"], rel=1e-9)
    x, y = np.concatenate(X_STEPS)[:24], labels[:24]
    stateful = horn.train(
        of_steps(x, y, rate=0.0, batch_size=2, epochs=1, stateful=True),
        backend=backend,
    )
    sent = np.concatenate([stateful.model.predict(x[:12]), stateful.model.predict(x[12:])])
    losses = -np.log(sent[np.arange(24), y]) * np.where(y == 1, 5.0, 0.5)
    assert stateful.history[0]["loss"] == pytest.approx(losses.mean(), rel=1e-9)


def test_the_gradient_of_a_step_has_the_weight_of_its_class() -> None:
    """A job whose classes weigh k alike learns as one of k times the rate does, and a class of
    weight 0 is not learned from.
    """
    many = horn.train(of_steps(class_weight={0: 3.0, 1: 3.0})).model.parameters
    plain = horn.train(of_steps(class_weight=None, rate=1.5)).model.parameters
    for name, array in plain.items():
        np.testing.assert_allclose(many[name], array, rtol=1e-9, atol=1e-12)
    last = [np.r_[np.zeros(len(y) - 1, int), 1] for y in Y_STEPS]  # no later step hears it
    moved = [x + 9.0 * (y[:, None] == 1) for x, y in zip(X_STEPS, last, strict=True)]
    one, two = (
        horn.train(of_steps(x, last, class_weight={1: 0.0}, batch_size=6)).model.parameters
        for x in (X_STEPS, moved)
    )
    for name, array in one.items():
        np.testing.assert_array_equal(two[name], array)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("options", [{"tasks": 2}, {"groups": 2, "tasks": 2}], ids=str)
def test_steps_weigh_the_same_in_processes(options: dict[str, Any]) -> None:
    alone, many = (horn.train(of_steps(class_weight="balanced"), **how) for how in ({}, options))
    assert many.history["loss"] == pytest.approx(alone.history["loss"], rel=1e-9)
    for name, array in alone.model.parameters.items():
        np.testing.assert_allclose(many.model.parameters[name], array, rtol=1e-9, atol=1e-12)


def test_balanced_classes_of_steps_count_those_that_are_there() -> None:
    weight = of_steps(class_weight="balanced").data.weight
    assert weight is not None and weight.shape == (6, 6)
    own, labels = np.arange(6) < np.array(LENGTHS)[:, None], np.concatenate(Y_STEPS)
    expected = len(labels) / (2 * np.bincount(labels))
    np.testing.assert_allclose(weight[own], expected[labels])
    both = of_steps(sample_weight=np.arange(6.0)).data.weight
    assert both is not None
    np.testing.assert_allclose(
        both[own], np.repeat(np.arange(6.0), LENGTHS) * np.where(labels == 1, 5.0, 0.5)
    )
    hot = of_steps(y=[np.eye(2)[y] for y in Y_STEPS]).data.weight
    assert hot is not None
    np.testing.assert_array_equal(hot[own], np.where(labels == 1, 5.0, 0.5))


def test_a_job_of_the_pieces_of_a_job_has_their_weights() -> None:
    x, y = np.concatenate(X_STEPS)[:24], np.concatenate(Y_STEPS)[:24]
    first = of_steps(x, y, batch_size=2, stateful=True)
    again = horn.Job(first.network, first.data, batch_size=2, stateful=True)
    assert again.data.weight is not None and again.data.weight.shape == (4, 6)
    np.testing.assert_array_equal(again.data.weight, first.data.weight)


LONG = RNG.standard_normal((4, 24, 2))
ANSWERS = (RNG.random((4, 24)) < 0.3).astype(int)
HEAVY = RNG.random((4, 24))


def in_pieces(data: Any, **more: Any) -> horn.Job:
    return of_steps(*data, class_weight=None, stateful=True, batch_size=2, **more)


def test_a_sequence_in_pieces_weighs_in_each_what_it_weighs() -> None:
    rows = LONG.reshape(4, -1), ANSWERS
    weight = np.array([0.0, 1.0, 2.0, 5.0])
    job = in_pieces((LONG, ANSWERS), sample_weight=weight)
    for data in (Dataset(*rows, shape=(24, 2), weight=weight), job.data):
        found = horn.Job(job.network, data, batch_size=2, stateful=True).data
        assert found.weight.tolist() == np.repeat(weight, 4).tolist()
    parts = in_pieces((LONG, ANSWERS), sample_weight=weight, validation=0.25).data
    assert len(parts) == 12 and {*parts.weight} <= {*weight}
    light = in_pieces((LONG[1:], ANSWERS[1:]), rate=0.0, epochs=1, sample_weight=weight[1:])
    heavy = in_pieces((LONG, ANSWERS), rate=0.0, epochs=1, sample_weight=weight)
    losses = [horn.train(each).history[0]["loss"] for each in (light, heavy)]
    assert losses[0] * 3 == pytest.approx(losses[1] * 4)  # the first one weighs nothing


def test_rows_of_a_single_sequence_weigh_what_its_steps_do() -> None:
    one = Dataset(LONG[0], ANSWERS[0], weight=HEAVY[0])
    job = in_pieces((LONG[0], ANSWERS[0]))
    found = horn.Job(job.network, one, batch_size=2, stateful=True).data
    assert found.weight.tolist() == HEAVY[0].reshape(4, 6).tolist()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("shape", ["sequences", "steps", "shorter", "pieces"])
def test_weights_of_a_dataset_are_learned_alike_on_every_backend(shape: str, several: bool) -> None:
    net = horn.Network(seed=1)
    heard = net.layer(4, activation="tanh", inputs=[net.input(2, steps=6), horn.Delayed()])
    for name in ("a", "b")[: 1 + several]:
        net.output(1, inputs=heard, name=name, loss="squared_error", each_step=True)
    steps = {"shorter": 4, "steps": 6}.get(shape, 24)
    x, y = LONG[:, :steps], LONG[:, :steps, :1]
    weight = HEAVY[:, 0] if shape == "sequences" else HEAVY[:, :steps]
    targets = {"a": y, "b": 1.0 - y} if several else y
    data = horn.data.sequences(x, targets).with_fields(weight=weight)
    more = {"batch_size": 2, "epochs": 2, "dtype": "float64", "stateful": steps == 24}
    runs = [horn.train(horn.Job(net, data, **more), backend=b) for b in ENGINES]
    for run in runs[1:]:
        assert run.history["loss"] == pytest.approx(runs[0].history["loss"], rel=1e-9)
    plain = horn.train(horn.Job(net, data.with_fields(weight=None), **more))
    assert plain.history["loss"] != pytest.approx(runs[0].history["loss"], rel=1e-3)
    model = runs[0].model
    assert model.evaluate(data) == model.evaluate(data.with_fields(weight=None))


# refused


@pytest.mark.parametrize("more, said", [
    ({"sample_weight": [1.0, 2.0]}, r"of shape \(2,\), but \(60,\) is expected: one number per"),
    ({"sample_weight": np.ones((60, 1))}, r"of shape \(60, 1\), but \(60,\)"),
    ({"sample_weight": -np.ones(60)}, r"sample_weight\[0\] is -1; weights are finite numbers from"),
    ({"sample_weight": [1.0] * 7 + [np.nan] * 53}, r"sample_weight\[7\] is nan"),
    ({"sample_weight": np.zeros(60)}, "0 for every sample; nothing would be learned"),
    ({"sample_weight": ["a"] * 60}, "sample_weight holds text"),
    ({"class_weight": "balance"}, "\"balanced\" or a dict, as .0: 1.0, 1: 5.0.; got 'balance'"),
    ({"class_weight": {2: 1.0}}, "a weight for 2, but the classes are 0, 1"),
    ({"class_weight": {0: "much"}}, r"class_weight\[0\] is 'much'; give a number"),
    ({"class_weight": {0: -1.0}}, r"class_weight\[0\] is -1.0; weights are finite numbers from 0"),
    ({"class_weight": {1: np.nan}}, r"class_weight\[1\] is nan"),
    ({"class_weight": {0: 0, 1: 0}}, "class_weight is 0 for the class of every sample; nothing"),
    ({"class_weight": {1: 10**400}}, r"class_weight\[1\] is 1000"),
])  # fmt: skip
def test_wrong_weights_say_what_to_write(more: dict[str, Any], said: str) -> None:
    with pytest.raises((DataError, ModelError), match=said):
        horn.Job(network(last=2), rare(60), **more)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"sample_weight": [1.0, 1e39] * 20}, r"the weight in row \d is 1e\+39: above"),
        ({"class_weight": {0: 1e39, 1: 1e39, 2: 1e39}}, r"the weight in row 0 is 1e\+39: above"),
        ({"sample_weight": [1e-50] * 40}, r"all weights are 0 in float32.*st is 1e-50"),
        ({"class_weight": {0: 1e-50, 1: 0, 2: 0}}, "all weights are 0 in float32"),
    ],
)
def test_weights_that_single_precision_does_not_have_are_refused(more: Any, said: str) -> None:
    """They ended as a loss that was NaN, or taught nothing."""
    data = np.ones((40, 5)), np.arange(40) % 3
    for dtype in ("float32", "float64"):
        weighed = horn.Job(network(), data, validation=0.2, dtype=dtype, **more)
        if dtype == "float64":
            weighed.check_data()
            continue
        with pytest.raises(DataError, match=f"^data: {said}"):
            weighed.check_data()
    nothing = [1.0, 0.0, 0.0] * 13 + [1.0]
    neither = horn.Job(network(), data, sample_weight=nothing, class_weight={0: 0}, dtype="float64")
    with pytest.raises(DataError, match="all weights are 0 in float64"):
        neither.check_data()


def test_weights_need_a_loss_and_classes() -> None:
    net = horn.Network()
    net.input(5)
    net.output(2)
    with pytest.raises(ModelError, match="factors of their loss, but layer1 has none; give"):
        horn.Job(net, rare(60), sample_weight=np.ones(60))
    x, _ = rare(60)
    several = network("sigmoid", "binary_cross_entropy", 3)
    rows = np.ones((60, 3))
    with pytest.raises(DataError, match="several labels per sample .output 3, sigmoid.; give samp"):
        horn.Job(several, (x, rows), class_weight="balanced")
    with pytest.raises(DataError, match="here are no classes"):
        horn.Job(network("identity", "squared_error", 3), (x, rows), class_weight="balanced")
