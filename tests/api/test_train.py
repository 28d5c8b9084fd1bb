"""The training loop, over an engine whose losses are written down before."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import io
import itertools
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import horn
from horn.data import permutation
from horn.errors import DataError, Diverged, HornError, JobError, ModelError, Timeout
from horn.training.progress import LineProgress, Progress, line
from horn.training.run_settings import RunSettings
from tests.api.fake import Scripted

training: Any = importlib.import_module("horn.train")  # the attribute of horn is the function


def network(seed: int = 5) -> horn.Network:
    net = horn.Network(seed=seed)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def data(n: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((n, 3), np.float32), np.arange(n) % 2


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(losses: Any, scores: Any = ()) -> Scripted:
        engine = Scripted(losses, itertools.chain(scores, itertools.repeat((0.5, 5))))
        monkeypatch.setattr(training, "make", engine)
        return engine

    return use


def test_every_epoch_visits_every_sample_once_in_the_order_of_seed_and_epoch(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    horn.train(horn.Job(network(seed=9), data(10), batch_size=4, epochs=2))
    rows = [row for batch, _, _ in engine.calls for row in batch]
    assert rows[:10] == permutation(10, 9, 0).tolist()
    assert rows[10:] == permutation(10, 9, 1).tolist()
    assert [len(batch) for batch, _, _ in engine.calls] == [4, 4, 2, 4, 4, 2]
    assert [iteration for _, iteration, _ in engine.calls] == list(range(6))


def test_first_sample_counts_the_samples_since_the_start_of_the_job(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    horn.train(horn.Job(network(), data(10), batch_size=4, epochs=2))
    assert [sample for _, _, sample in engine.calls] == [0, 4, 8, 10, 14, 18]


def test_loss_of_an_epoch_is_the_mean_over_its_samples(use: Any) -> None:
    use([1.0, 2.0, 6.0])
    run = horn.train(horn.Job(network(), data(10), batch_size=4, epochs=1))
    assert run.history[0]["loss"] == pytest.approx((4 * 1 + 4 * 2 + 2 * 6) / 10)


def test_accuracy_of_an_epoch_is_that_of_a_twentieth_of_the_samples_after_it(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    seen = []
    losses = engine.losses
    engine.losses = lambda found: (seen.append(found.x.copy()), losses(found))[1]
    x, y = data(4000)
    run = horn.train(horn.Job(network(), (x, y), batch_size=500, epochs=1))
    assert run.history[0]["acc"] == 0.5
    np.testing.assert_array_equal(seen[0], x[::20])


def test_iterations_that_end_inside_an_epoch_report_the_partial_epoch(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    run = horn.train(horn.Job(network(), data(10), batch_size=4, iterations=5))
    assert len(engine.calls) == 5
    assert run.history["iteration"] == [3, 5]
    assert run.iterations == 5


def test_history_is_a_dict_of_columns_and_a_list_of_rows(use: Any) -> None:
    use(itertools.count(3.0, -1.0))
    run = horn.train(horn.Job(network(), data(10), batch_size=10, epochs=3))
    assert run.history["loss"] == [3.0, 2.0, 1.0]
    assert run.history[-1]["epoch"] == 3
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert dict(run.history)["loss"] == [3.0, 2.0, 1.0]
    assert len(run.history) == 3
    with pytest.raises(KeyError, match="columns: epoch, iteration"):
        run.history["los"]
    assert "loss" in run.history and "los" not in run.history
    assert run.history[1] in run.history
    assert run.history[1:]["loss"] == [2.0, 1.0] and len(run.history[5:]) == 0
    with pytest.raises(IndexError, match=r"history\[3\]: .* 3 epochs; its rows are 0 to 2"):
        run.history[3]
    with pytest.raises(AttributeError, match="run.model is that of the best epoch where"):
        run.best_model  # noqa: B018


def test_learning_rate_of_the_history_is_that_of_the_last_update(use: Any) -> None:
    use(itertools.repeat(1.0))
    job = horn.Job(
        network(), data(10), optimizer=horn.SGD(horn.Step(0.8, 2, 0.5)), batch_size=5, epochs=2
    )
    assert horn.train(job).history["learning_rate"] == [0.8, 0.4]


def test_early_stopping_keeps_the_best_and_restores_it(use: Any) -> None:
    engine = use(itertools.repeat(1.0), [(0.9, 1), (0.4, 2), (0.6, 1), (0.5, 1)])
    job = horn.Job(
        network(), data(10), batch_size=10, epochs=20, validation=data(4),
        early_stopping=horn.EarlyStopping(patience=2),
    )  # fmt: skip
    start = job.network.initial_parameters()
    run = horn.train(job)
    assert run.stopped_early and run.best_epoch == 2 and run.epochs == 4
    assert engine.loaded_updates == 2
    np.testing.assert_allclose(run.model.parameters["layer1.bias"], start["layer1.bias"] + 2)
    assert run.metrics == {"validation": {"loss": 0.4, "acc": 0.5}}
    assert run.model.facts["iteration"] == 2


def test_early_stopping_can_watch_accuracy(use: Any) -> None:
    use(itertools.repeat(1.0), [(0.9, 1), (0.4, 3), (0.3, 2), (0.2, 3)])
    stopping = horn.EarlyStopping(patience=1, monitor="val_acc")
    job = horn.Job(
        network(), data(10), batch_size=10, epochs=9, validation=data(4), early_stopping=stopping
    )
    assert horn.train(job).best_epoch == 2


def test_keep_best_alone_trains_to_the_end(use: Any) -> None:
    use(itertools.repeat(1.0), [(0.4, 2), (0.6, 1), (0.5, 1)])
    job = horn.Job(network(), data(10), batch_size=10, epochs=3, validation=data(4), keep_best=True)
    run = horn.train(job)
    assert run.epochs == 3 and run.best_epoch == 1 and not run.stopped_early


def test_validation_fraction_is_the_part_held_out(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    run = horn.train(horn.Job(network(), data(10), batch_size=10, epochs=1, validation=0.2))
    assert len(engine.data) == 8
    assert run.history[0]["val_loss"] == 0.5


def test_test_data_are_measured_once_at_the_end(use: Any) -> None:
    use(itertools.repeat(1.0), [(0.25, 3)])
    run = horn.train(horn.Job(network(), data(10), epochs=2, test=data(4)))
    assert run.test == {"loss": 0.25, "acc": 0.75}
    assert run.metrics == {"test": run.test}


def test_loss_that_is_not_finite_names_the_place_and_the_remedy(use: Any) -> None:
    engine = use([1.0, float("nan")])
    engine_make = engine.__call__

    def broken(backend: str, setup: Any) -> Scripted:
        made = engine_make(backend, setup)
        made.arrays["layer1.weight"][1:3, 0] = np.nan
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "make", broken)
        with pytest.raises(Diverged) as caught:
            horn.train(horn.Job(network(), data(10), optimizer=horn.SGD(0.5), batch_size=5))
    text = str(caught.value)
    assert "became nan at iteration 1 (epoch 1)" in text
    assert "it is not the learning rate" in text
    assert caught.value.exit_code == 7 and caught.value.iteration == 0


def test_weights_that_are_not_finite_after_the_last_update_are_seen(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    engine.step = lambda rows, **_: engine.arrays["layer2.bias"].fill(np.inf) or 1.0
    said = r"A weight is not finite(.|\n)*update of layer2.bias is not"
    with pytest.raises(Diverged, match=said):
        horn.train(horn.Job(network(), data(10), batch_size=10, epochs=1))


class Grows(horn.Neuron):
    """It has no loss, and a weight of 1 is infinite in float32 after the second update."""

    def forward(self, messages):
        y = sum(m.input * m.weight for m in messages)
        for m in messages:
            self.push(m.weight * 1e25)
        self.feedforward(y)


def test_weights_without_a_loss_that_are_not_finite_name_their_epoch() -> None:
    """It was the epoch before."""
    net = horn.Network()
    net.input(4)
    net.layer(1, neuron=Grows, bias=False)
    job = horn.Job(
        net, (np.ones((10, 4)), None), optimizer=horn.Direct(1.0), batch_size=5, epochs=3
    )
    with pytest.raises(Diverged, match=r"at iteration \d \(epoch 1\)"):
        horn.train(job)
    job = dataclasses.replace(job, batch_size=10)
    with pytest.raises(Diverged, match=r"at iteration 1 \(epoch 2\)"):
        horn.train(job)


def test_timeout_stops_the_training(use: Any) -> None:
    use(itertools.repeat(1.0))
    with pytest.raises(Timeout, match=r"more than 0 s; stopped at iteration 1 of 1000"):
        horn.train(horn.Job(network(), data(10), batch_size=10, iterations=1000), timeout=0)


def test_what_ends_training_in_the_middle_has_the_model_so_far() -> None:
    def breaks(iteration: int) -> float:
        if iteration == 7:
            raise ValueError("what now?")
        return 0.1

    def dries_up() -> Any:
        x, y = data(10)
        yield from (zip(x, y, strict=True) if not read else ())
        read.append(True)
        raise OSError("the cable is out")

    read: list[bool] = []
    stream = horn.data.Stream(dries_up, samples=10)
    failing = [
        (horn.Job(network(), data(10), optimizer=horn.SGD(breaks), batch_size=4, epochs=9), 7),
        (horn.Job(network(), stream, optimizer=horn.SGD(0.1), batch_size=5, epochs=3), 2),
    ]
    for job, n in failing:
        with pytest.raises(HornError) as raised:
            horn.train(job)
        error = raised.value
        assert error.iteration == n
        assert error.__notes__ == [
            f"Training ended there; the model after {n} updates is in the error's .model"
        ]
        if job is failing[0][0]:
            whole = horn.Job(network(), data(10), horn.SGD(0.1), batch_size=4, iterations=n)
            expected = horn.train(whole).model.parameters
            for name, found in error.model.parameters.items():
                np.testing.assert_array_equal(found, expected[name])
        assert error.model.predict(data(10)[0]).shape == (10, 2)


def test_what_fails_before_the_first_update_has_no_model() -> None:
    def breaks(iteration: int) -> float:
        raise ValueError("what now?")

    with pytest.raises(HornError, match="what now") as raised:
        horn.train(horn.Job(network(), data(10), optimizer=horn.SGD(breaks), epochs=1))
    assert raised.value.model is None and not hasattr(raised.value, "__notes__")


def test_seed_replaces_the_networks(use: Any) -> None:
    engine = use(itertools.repeat(1.0))
    horn.train(horn.Job(network(seed=1), data(10), batch_size=10, epochs=1), seed=2)
    other = network(seed=2).initial_parameters()
    np.testing.assert_array_equal(engine.arrays["layer1.weight"], other["layer1.weight"] + 1)
    assert engine.calls[0][0] == permutation(10, 2, 0).tolist()


def test_another_seed_draws_random_connections_anew() -> None:
    net = horn.Network(seed=1)
    net.input(50)
    net.layer(8, connect=horn.Sparse(fan_in=5))
    net.output(2, activation="softmax", loss="cross_entropy")
    again, other = net.rebuilt(seed=1), net.rebuilt(seed=2)
    edges = [n.layers[1].links[0].edges.indices for n in (net, again, other)]
    np.testing.assert_array_equal(edges[0], edges[1])
    assert not np.array_equal(edges[0], edges[2])
    assert other.layers[2].links[0].source is other.layers[1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"groups": 1000}, "asked for 1000 groups, but a batch has"),
        ({"tasks": 0}, "tasks must be a whole number from 1, got 0"),
        ({"pins": {"layer1": "sender"}}, "pins is for several tasks"),
        ({"trace": "t.json"}, "trace is for several tasks"),
        ({"barrier": "zoo"}, "barrier is 'zoo'; choose one of message, zookeeper"),
        ({"checkpoint_every": "1m"}, "got '1m'; a time is in seconds: checkpoint_seconds=60"),
        ({"transport": "udp"}, "no transport is called 'udp'; known: inproc"),
        ({"transport": "inproc"}, "transport inproc carries nothing between processes"),
        ({"start_timeout": -1}, "start_timeout must be a number of seconds above 0, got -1"),
        ({"tasks": 2, "barrier": "magic"}, "barrier is 'magic'; choose one of message, zookeeper"),
        ({"tasks": 2, "transport": "pigeon"}, "no transport is called 'pigeon'; known: inproc"),
        ({"tasks": 2, "transport": 3}, "no transport is called 3; known: inproc"),
        (
            {"tasks": 2, "superstep_timeout": 0},
            "superstep_timeout must be a number .* above 0, got 0",
        ),
        ({"tasks": 2, "superstep_timeout": "5"}, "must be a number of seconds above 0, got '5'"),
        ({"tasks": 2, "start_timeout": math.inf}, "must be a number of seconds above 0, got inf"),
        ({"superstep_timeout": 1e10}, "above 0, got 10000000000.0; 1e[+]06 are the most"),
        ({"timeout": 1e10}, "got 10000000000.0; 1e[+]09 are the most, and None is no end"),
        ({"timeout": math.nan}, "timeout must be a number of seconds, got nan"),
        ({"tasks": 2, "pins": "layer1=sender"}, "pins say of layers where .*; got 'layer1=sender'"),
        ({"tasks": 2, "backend": "python"}, "a network that is interpreted runs on one"),
        ({"tasks": 2, "backend": "magic"}, "no backend is called 'magic'"),
        ({"groups": 0}, "groups must be a whole number from 1, got 0"),
        ({"strategy": "downpur"}, "no strategy is called .downpur.; did you mean downpour[?]"),
        ({"servers": 2}, "strategy allreduce has no servers, but 2 were asked for"),
        ({"strategy": 3}, "strategy must be a name or a horn.Strategy, got 3"),
    ],
)
def test_what_no_group_can_do_is_said_at_once(options: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        horn.train(horn.Job(network(), data()), **options)


def test_train_wants_a_job() -> None:
    with pytest.raises(
        JobError, match="takes a horn.Job, got <horn.network.Network|takes a horn.Job"
    ):
        horn.train(network())  # type: ignore[arg-type]


def test_unknown_backend_is_named() -> None:
    with pytest.raises(JobError, match="no backend is called 'kernel'; did you mean kernels"):
        horn.train(horn.Job(network(), data()), backend="kernel")


def test_data_are_checked_before_the_engine_is_made(use: Any) -> None:
    use([])
    with pytest.raises(DataError, match="features"):
        horn.train(horn.Job(network(), (np.ones((4, 2)), np.zeros(4, int))))
    with pytest.raises(DataError, match="classes 0..1"):
        horn.train(horn.Job(network(), (np.ones((4, 3)), np.array([0, 1, 2, 1]))))


@pytest.mark.parametrize(
    ("change", "got"), [(lambda t: 255.0 * t, "0 to 255"), (lambda t: 2.0 * t - 1.0, "-1 to 1")]
)
def test_targets_of_cross_entropy_are_shares(change: Any, got: str) -> None:
    """A negative loss was SUCCEEDED, and one of 255 was told to lower its rate."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)), np.eye(3)[rng.integers(0, 3, 40)]
    said = rf"cross_entropy has targets from 0 to 1, got {got}; remap y, as y / 255, pass labels"

    def net(**steps: Any) -> horn.Network:
        made = horn.Network(seed=1)
        made.input(4, **steps)
        made.output(3, activation="softmax", loss="cross_entropy", name="c",
                    **dict.fromkeys(("each_step",) if steps else (), True))  # fmt: skip
        return made

    for of, data in ((net(), (x, y)), (net(steps=5), (x.reshape(8, 5, 4), y.reshape(8, 5, 3)))):
        with pytest.raises(DataError, match=f"data: {said}"):
            horn.train(horn.Job(of, (data[0], change(data[1])), epochs=1))
        with pytest.raises(DataError, match=f"validation: {said}"):
            validation = data[0], change(data[1])
            horn.train(horn.Job(of, data, epochs=1, validation=validation))
    with pytest.raises(DataError, match=f"data: {said}"):
        horn.train(horn.Job(net(), iter([(x, y), (x, change(y))]), iterations=20))
    smooth = 0.9 * y + 0.1 / 3
    smooth[:3] = 0.0, 0.0, 0.0  # which says nothing of these samples
    smooth[3] = 1.0 + 1e-7, 0.0, 0.0
    horn.train(horn.Job(net(), (x, smooth), epochs=1), progress=False)


def test_early_stopping_without_validation_is_refused() -> None:
    with pytest.raises(ModelError, match="add validation=0.1"):
        horn.Job(network(), data(), early_stopping=horn.EarlyStopping())


def test_accuracy_cannot_be_watched_where_there_is_none() -> None:
    net = horn.Network()
    net.input(3)
    net.output(3, activation="sigmoid", loss="squared_error")
    stopping = horn.EarlyStopping(monitor="val_acc")
    job = horn.Job(net, data(), target="input", validation=0.2, early_stopping=stopping)
    with pytest.raises(JobError, match='accuracy needs class labels.*watch "val_loss"'):
        horn.train(job)


def test_progress_sees_begin_epochs_and_end_also_when_training_fails(use: Any) -> None:
    class Seen(Progress):
        interval_s = 0.0

        def __init__(self) -> None:
            self.events: list[Any] = []

        def begin(self, job: Any) -> None:
            self.events.append("begin")

        def step(self, epoch: int, iteration: int, loss: float, samples_per_s: float) -> None:
            self.events.append(iteration)

        def epoch(self, row: Any) -> None:
            self.events.append(f"epoch {row['epoch']}")

        def end(self) -> None:
            self.events.append("end")

    use([1.0, 1.0, float("inf")])
    seen = Seen()
    with pytest.raises(Diverged):
        horn.train(horn.Job(network(), data(10), batch_size=5, epochs=2), progress=seen)
    assert seen.events == ["begin", 1, 2, "epoch 1", "end"]


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_lines_that_a_full_disk_does_not_take_cost_no_run() -> None:
    job = horn.Job(network(), data(), epochs=2)
    assert len(horn.train(job, progress=LineProgress(FullDisk())).history) == 2


@pytest.mark.parametrize("progress", ["tqdm", 3, object(), LineProgress])
def test_what_cannot_show_progress_is_refused(progress: Any) -> None:
    with pytest.raises(JobError, match="progress is True, False, .* or a function of an epoch's"):
        horn.train(horn.Job(network(), data()), progress=progress)


def test_a_function_that_takes_no_row_is_refused_before_training() -> None:
    with pytest.raises(JobError, match=r"progress=<lambda>: too many pos.* one argument, the row"):
        horn.train(horn.Job(network(), data()), progress=lambda: 3)  # type: ignore[arg-type]


def test_progress_true_is_a_line_per_epoch_on_stderr(
    use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use(itertools.repeat(0.25))
    horn.train(horn.Job(network(), data(10), batch_size=5, epochs=2), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [text.split("  ")[0] for text in captured.err.splitlines()] == ["Epoch 1/2", "Epoch 2/2"]
    assert "loss 0.2500  acc " in captured.err


def test_line_leaves_out_what_was_not_measured() -> None:
    row = {"epoch": 2, "loss": None, "acc": None, "val_loss": 0.5, "val_acc": None}
    text = line({**row, "samples_per_s": 4900.0}, 20)
    assert text == "Epoch  2/20  val_loss 0.5000  4.9k samples/s"


def test_train_is_the_function_whoever_imported_the_module_first() -> None:
    importlib.import_module("horn.train")
    with pytest.raises(JobError, match="takes a horn.Job"):
        horn.train(None)  # type: ignore[arg-type]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "first", ["import horn.train", "import horn.sklearn", "from horn.train import Run, train"]
)
def test_its_documentation_is_that_of_the_function(first: str) -> None:
    code = (
        f"{first}\nimport horn, types; assert type(horn.train) is types.FunctionType; "
        "from horn import train; assert train is horn.train; print(horn.train.__doc__[:11])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.returncode) == ("Train a job\n", 0), found.stderr


def test_an_infinite_timeout_is_none() -> None:
    """A thread that waited for its end ended at once, with a traceback."""
    assert RunSettings(timeout=math.inf).timeout is None
    assert RunSettings(timeout=1e9).timeout == 1e9
