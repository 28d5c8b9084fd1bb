"""What a user wants to see of a layer is the same compiled, interpreted, divided among tasks and
under every strategy; and looking changes nothing.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import horn
from horn import math
from horn.aggregates import named
from horn.backends import Setup, make
from horn.cluster.relay import ProgressWriter
from horn.compiler import lower
from horn.errors import CompileError, ModelError
from horn.partition.placement import LAYER_SPLITS, LINK_SPLITS
from horn.partition.rewrite import partition
from horn.program import Post, base
from horn.runtime.engine import GroupEngine
from horn.runtime.group import Group
from horn.training.progress import LineProgress, Progress
from tests.parity.generated import Case, cases
from tests.parity.test_tasks import BACKENDS, labelled, place
from tests.support.runs import bits
from tests.transport.groups import good, run_threads

NAMES = ("active", "spread", "widest", "least", "total", "seen")


def active(output):
    """The share of neurons that say something."""
    return (output > 0).mean()


def spread(output):
    centred = output - output.mean()
    return (centred * centred).mean()


def height(output):
    top = output.max() - output.min()
    if top > 10.0:
        return 10.0
    return math.sqrt(top)


def size(output):
    return (output * output).sum() / len(output)


def every(network) -> tuple[horn.Aggregate, ...]:
    """All kinds, of every layer."""
    kinds = [(active, "mean"), (spread, "sum"), (height, "max"), (height, "min"), (size, "mean")]
    return tuple(
        horn.Aggregate(layer.name, function, over)
        for layer in network.layers
        for function, over in kinds
    )


# one batch of inference after another


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    case=cases(),
    n_tasks=st.sampled_from((2, 3, 5)),
    links=st.lists(st.sampled_from(list(LINK_SPLITS)), min_size=8, max_size=8),
    layers=st.lists(st.sampled_from(list(LAYER_SPLITS)), min_size=5, max_size=5),
)
def test_any_number_of_tasks_sees_what_one_does_and_what_the_interpreter_does(
    case: Case, n_tasks: int, links: list[str], layers: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    note(case.text)
    network = case.module(tmp_path_factory.getbasetemp()).network()
    setup = Setup(network, None, "labels", 5, "float64", 1, every(network))
    data, placement = labelled(network), place(network, links, layers)
    judge = make("python", setup).watch(data)
    assert judge[:2] == pytest.approx(make("python", setup).losses(data))

    def body(transport):
        engine = GroupEngine(setup, placement, Group(transport, timeout_s=60), backend=backend)
        return engine.watch(data)

    for backend in BACKENDS:
        try:
            one = make(backend, setup).watch(data)
        except CompileError:  # what is refused is tested elsewhere
            assume(False)
        group = run_threads("inproc", n_tasks, body)
        assume(not any(isinstance(found, CompileError) for found in group))
        for found in (one, *good(group)):
            assert found[:2] == pytest.approx(judge[:2], rel=1e-9, abs=1e-9)
            np.testing.assert_allclose(found[2], judge[2], rtol=1e-9, atol=1e-9)


def test_tasks_tell_each_other_a_number_per_sample_and_no_outputs():
    net = horn.Network(seed=4)
    net.input(9)
    net.layer(12, activation="relu")
    net.output(4, activation="softmax", loss="cross_entropy")
    placement = place(net, ("receiver", "sender"), ("neurons",) * 3)

    def moved(aggregates):
        program = lower.inference_program(net, "label", aggregates)
        results = [program.loss, *program.outputs, *program.aggregates]
        local = partition(program, placement, results)
        posts = [s for s in local.statements if isinstance(s, Post)]
        return [(m.monoid, local.buffers[m.array].axes) for s in posts for m in s.moves]

    looking = moved([horn.Aggregate("layer1", active), horn.Aggregate("layer1", height)])
    added = sorted(looking)
    for one in moved(()):
        added.remove(one)
    # the numbers of active neurons, the largest and the smallest output of each task's own
    assert [(how, tuple(map(base, axes))) for how, axes in added] == [
        ("max", ("b",)), ("min", ("b",)), ("sum", ("b",)),
    ]  # fmt: skip


# whole trainings


def job(samples: int = 340, **more) -> horn.Job:
    """On its own numbers: 340 samples, of which 85 are measured."""
    net = horn.Network(seed=7)
    net.input(12, keep=0.9)
    hidden = net.layer(9, neuron=horn.Dropout, activation="relu", name="hidden")
    net.output(3, activation="softmax", loss="cross_entropy")
    aggregates = {
        "active": horn.Aggregate(hidden, active),
        "spread": horn.Aggregate("layer2", spread),
        "widest": horn.Aggregate("hidden", height, "max"),
        "least": horn.Aggregate("layer0", height, "min"),
        "total": horn.Aggregate("hidden", size, "sum"),
        "seen": horn.Aggregate("hidden", lambda output: 1.0, "sum"),
    }
    rng = np.random.default_rng(2)
    x = rng.standard_normal((samples, 12))
    y = (x[:, :3] + 0.1 * rng.standard_normal((samples, 3))).argmax(axis=1)
    made = {"aggregates": aggregates, "batch_size": 20, "epochs": 3, "dtype": "float64"} | more
    return horn.Job(net, (x, y), horn.SGD(0.05, momentum=0.5), **made)


def columns(run: horn.Run) -> dict[str, list[float]]:
    return {name: run.history[name] for name in ("acc", *NAMES)}


def close(run: horn.Run, expected: horn.Run) -> None:
    for name, column in columns(run).items():
        assert column == pytest.approx(columns(expected)[name], rel=1e-9), name


@pytest.fixture(scope="module")
def alone() -> horn.Run:
    return horn.train(job())


def by_hand(model: horn.Model) -> dict[str, float]:
    """The aggregates of a model, of the samples that are measured."""
    x = np.asarray(job().data.x)[::4]
    w, b = model.parameters["hidden.weight"], model.parameters["hidden.bias"]
    hidden = np.maximum(x * 0.9 @ w.T + b, 0.0) * 0.5  # dropout, as it is in inference
    span = (x * 0.9).max(axis=1) - (x * 0.9).min(axis=1)
    return {
        "active": (hidden > 0).mean(),
        "spread": model.predict(x).var(axis=1).mean(),
        "widest": np.sqrt(np.ptp(hidden, axis=1).max()),
        "least": np.sqrt(np.minimum(span, 100.0)).min(),
        "total": (hidden**2).mean(axis=1).sum(),
        "seen": 85,
    }


def test_aggregates_are_columns_with_what_they_say(alone):
    last = alone.history[-1]
    assert {name: last[name] for name in NAMES} == pytest.approx(by_hand(alone.model))
    # and a row per epoch has them, after the others
    assert alone.history.columns[-len(NAMES) :] == NAMES
    assert dict(alone.history)["active"] == [row["active"] for row in alone.history]
    assert len(set(alone.history["active"])) == 3


@pytest.mark.parametrize("backend", ["reference", "python"])
def test_every_backend_measures_the_same(backend, alone):
    if backend == "python":  # message by message: two batches, and 13 samples that are measured
        close(horn.train(job(50, epochs=1), backend=backend), horn.train(job(50, epochs=1)))
    else:
        close(horn.train(job(), backend=backend), alone)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 1), (2, 2)])
def test_tasks_and_groups_of_one_update_measure_the_same(shape, alone):
    groups, tasks = shape
    close(horn.train(job(), groups=groups, tasks=tasks), alone)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize(
    "strategy",
    [
        "downpour",
        "parallel-dropout",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("averaging", "easgd")),
    ],
)
def test_every_strategy_measures_the_model_that_it_has(strategy):
    seen = []

    class Watch(horn.Callback):
        def on_epoch_end(self, context):
            seen.append(by_hand(context.model))

    run = horn.train(job(epochs=2, callbacks=[Watch()]), groups=2, tasks=2, strategy=strategy)
    assert len(seen) == 2
    for row, expected in zip(run.history, seen, strict=True):
        assert {name: row[name] for name in NAMES} == pytest.approx(expected)


SUB_MODELS = horn.ParallelDropout(sub_models=4)


@pytest.fixture(scope="module")
def of_sub_models() -> horn.Run:
    return horn.train(job(), strategy=SUB_MODELS)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("tasks", [2, 4])
def test_sub_models_are_seen_whole_by_any_number_of_tasks(tasks, of_sub_models):
    close(horn.train(job(), tasks=tasks, strategy=SUB_MODELS), of_sub_models)


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("options", [
    {}, {"tasks": 2}, {"groups": 2, "tasks": 2}, {"groups": 2, "strategy": "averaging"},
    {"tasks": 2, "strategy": "parallel-dropout"},
], ids=str)  # fmt: skip
def test_who_looks_changes_no_bit(options):
    looking = horn.train(job(dtype="float32"), **options)
    blind = horn.train(job(dtype="float32", aggregates={}), **options)
    assert bits(looking) == bits(blind)
    assert looking.history["loss"] == blind.history["loss"]
    assert looking.history["acc"] == blind.history["acc"]


def test_a_job_without_labels_has_aggregates_too():
    net = horn.Network(seed=3)
    net.input(5)
    net.layer(4, activation="tanh")
    net.output(5)
    x = np.random.default_rng(0).standard_normal((40, 5))
    made = horn.Job(
        net, x, horn.SGD(0.1), batch_size=10, epochs=2, target=None,
        aggregates={"size": horn.Aggregate("layer1", size)},
    )  # fmt: skip
    run = horn.train(made)
    assert run.history["acc"] == run.history["loss"] == [None, None]
    assert all(value > 0.0 for value in run.history["size"])


# going on


@pytest.mark.net
@pytest.mark.cluster
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_training_goes_on_with_other_aggregates(tasks, tmp_path):
    whole = horn.train(job(), tasks=tasks)
    # from iteration 30, in the second epoch of 17 each
    horn.train(job(epochs=2), tasks=tasks, checkpoints=tmp_path, checkpoint_every=10)
    others = {"active": job().aggregates["active"], "new": horn.Aggregate("hidden", spread, "max")}
    rest = horn.train(job(aggregates=others), tasks=tasks, checkpoints=tmp_path, resume=True)
    assert bits(rest) == bits(whole)
    assert rest.history["active"] == whole.history["active"]  # to the bit, before and after
    assert rest.history["total"] == [whole.history["total"][0], None, None]
    assert rest.history["new"][0] is None and all(v > 0.0 for v in rest.history["new"][1:])


# shown


def test_the_line_of_an_epoch_says_them():
    stream = io.StringIO()
    run = horn.train(job(epochs=1), progress=LineProgress(stream))
    row = run.history[-1]
    assert f"acc {row['acc']:.4f}  active {row['active']:#.4g}  spread" in stream.getvalue()
    assert "seen 85.00  " in stream.getvalue()
    assert json.loads(json.dumps(list(run.history)))[0]["seen"] == 85.0


def test_a_cluster_tells_them_apart_from_what_else_it_tells(tmp_path, alone):
    said = []
    told = ProgressWriter(said.append, 1, tmp_path / "progress")
    told.begin(job())
    told.step(1, 3, 0.5, 100.0)
    assert named(said[-1].progress) == {}  # nothing but horn's own so far
    told.epoch(alone.history[0])
    assert tuple(named(said[-1].progress)) == NAMES


# refused


def doubled(output):
    return output * 2.0


def foreign(output):
    return np.log(output.sum())


@pytest.mark.parametrize("given, said", [
    ({"acc": horn.Aggregate("hidden", active)}, "'acc' is a name of horn's own; choose another"),
    ({"at": horn.Aggregate("hidden", active)}, "'at' is a name of horn's own; choose another"),
    ({"my share": horn.Aggregate("hidden", active)}, "'my share' cannot be the name of a column"),
    ({3: horn.Aggregate("hidden", active)}, "3 cannot be the name of a column"),
    ({"x": ("hidden", active)}, r"'x' must be a horn.Aggregate, got \('hidden', .*; write"),
    ({"x": horn.Aggregate("layer1", active)}, "which the network does not have; its layers are "
     "layer0, hidden, layer2"),
    ({"x": horn.Aggregate(horn.Network().input(3), active)}, "of another network"),
    (["x"], "aggregates is a dict"),
])  # fmt: skip
def test_a_wrong_aggregate_says_what_to_write(given, said):
    with pytest.raises(ModelError, match=said):
        job(aggregates=given)


def test_an_aggregate_is_of_a_function_and_a_way_that_samples_combine():
    with pytest.raises(ModelError, match=r"of_layer is a function .* got 'mean'; write  def"):
        horn.Aggregate("hidden", "mean")
    with pytest.raises(ModelError, match='one of "mean", "sum", "min", "max"; got "?\'median'):
        horn.Aggregate("hidden", active, "median")


@pytest.mark.parametrize("backend", ["kernels", "python"])
def test_a_number_per_neuron_is_refused_at_the_users_line(backend):
    wrong = job(30, aggregates={"x": horn.Aggregate("hidden", doubled)}, epochs=1)
    with pytest.raises(CompileError, match="doubled .*one number.*output.mean") as raised:
        horn.train(wrong, backend=backend)
    assert raised.value.file == __file__ and "def doubled" in raised.value.text


def test_what_cannot_be_compiled_is_refused_before_the_first_step():
    begun = []

    class Watcher(Progress):
        def begin(self, job):
            begun.append(job)

    wrong = job(aggregates={"x": horn.Aggregate("hidden", foreign)})
    for options in ({}, {"tasks": 2}):
        with pytest.raises(CompileError, match="write horn.math.log") as raised:
            horn.train(wrong, progress=Watcher(), **options)
        assert "np.log" in raised.value.text
    assert not begun
