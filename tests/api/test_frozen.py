"""Jobs that leave some arrays as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn
from horn.compiler import lower
from horn.errors import CheckpointError, JobError, ModelError
from horn.neurons import Standard
from horn.program import Matmul, Update
from tests.parity.test_compiled_equals_interpreted import compare, samples
from tests.support.combinations import share


class Gained(horn.Neuron):
    """With a Parameter, and a State that goes on whatever is frozen."""

    gain = horn.Parameter(1.0)
    seen = horn.State(0.0)

    def forward(self, messages):
        self.seen = self.seen + 1.0
        self.feedforward(self.gain * horn.math.tanh(sum(m.input * m.weight for m in messages)))


class Written(horn.Neuron):
    """With a backward of its own."""

    def forward(self, messages):
        self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

    def backward(self, messages):
        gradient = sum(m.delta * m.weight for m in messages)
        self.backpropagate(gradient * self.activation.derivative(self.output))
        for m in messages:
            self.push(m.delta * self.output)


def network(neuron: Any = Gained, sizes: Any = (64, 24, 16, 10)) -> horn.Network:
    net = horn.Network(seed=4)
    net.input(sizes[0])
    net.layer(sizes[1], neuron=neuron, activation="tanh", name="low")
    net.layer(sizes[2], activation="relu", name="middle")
    net.output(sizes[3], activation="softmax", loss="cross_entropy", name="head")
    return net


def job(frozen: Any, neuron: Any = Gained, **more: Any) -> horn.Job:
    settings: dict[str, Any] = {"epochs": 2, "optimizer": horn.SGD(0.1, momentum=0.5)} | more
    return horn.Job(network(neuron), horn.data.digits().take(640), frozen=frozen, **settings)


WAYS: dict[str, dict[str, Any]] = {
    "one process": {},
    "python": {"backend": "python"},
    "2 tasks": {"tasks": 2},
    "2 groups": {"groups": 2},
    "averaging": {"groups": 3, "strategy": "averaging"},
    "easgd": {"groups": 2, "strategy": "easgd"},
    "downpour": {"groups": 2, "strategy": "downpour"},
    "disjoint sub-models": {"strategy": horn.ParallelDropout(2)},
    "sub-models": {"tasks": 2, "strategy": horn.ParallelDropout(2, keep=0.5)},
}


@pytest.mark.parametrize("way", [
    pytest.param(way, marks=() if settings.keys() <= {"backend"} else pytest.mark.cluster)
    for way, settings in WAYS.items()
])  # fmt: skip
def test_what_is_frozen_stays_and_the_rest_learns(way):
    is_plain = "sub-models" not in way
    given = job(["low", "middle.bias"], Gained if is_plain else Standard)
    if way == "python":
        given = given.with_settings(data=given.data.take(8), epochs=1)
    before = given.network.initial_parameters()
    after = horn.train(given, **WAYS[way]).model
    stays = {"low.weight", "low.bias", "low.gain", "middle.bias"}
    for name, array in after.parameters.items():
        assert np.array_equal(array, before[name]) == (name in stays), name
    if is_plain:
        assert (after.states["low.seen"] > 0).all()


@pytest.mark.parametrize(
    "neuron, frozen",
    share(
        2,
        [Gained, Written, Standard],
        [["low"], ["middle"], ["low", "middle"], ["head.weight"], ["low.weight", "head.bias"]],
    ),
)
@pytest.mark.parametrize(
    "optimizer",
    [
        horn.SGD(0.1, momentum=0.5),
        pytest.param(horn.Adam(0.01), marks=pytest.mark.slow),
        horn.SGD(0.1, clip_norm=0.1),
    ],
    ids=["momentum", "adam", "clipped"],
)  # fmt: skip
def test_the_interpreter_and_the_kernels_leave_the_same_arrays(frozen, neuron, optimizer):
    whole = network(neuron, (5, 6, 4, 3))
    data = samples(whole)
    compare(horn.Job(whole, data, frozen=frozen).network, optimizer, 6, data=data)


@pytest.mark.cluster
@pytest.mark.parametrize("way", ["2 tasks", "2 groups", "downpour"])
def test_the_rest_learns_what_it_does_in_one_process(way):
    """Of synchronous strategies, as without anything frozen."""
    given = job(["low", "head.bias"], dtype="float64", optimizer=horn.SGD(0.1))
    alone, more = given, WAYS[way]
    if way == "downpour":  # each group has a batch of its own
        alone = given.with_settings(batch_size=2 * given.batch_size)
        more = {"groups": 2, "strategy": horn.Downpour(max_staleness=0)}
    one, other = horn.train(alone).model, horn.train(given, **more).model
    for name, array in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], array, rtol=1e-9, atol=1e-12)


def statements(frozen: Any) -> list[str]:
    """The matrix products of a training step, by what they make."""
    given = job(frozen, Standard)
    program = lower.training_program(given.network, given.optimizer, "label")
    return [
        str(getattr(s, "out", getattr(s, "array", "")))
        for s in program.statements
        if isinstance(s, (Matmul, Update))
    ]


def test_what_nothing_learns_from_is_not_computed():
    whole, top = statements([]), statements(["low", "middle"])
    assert len(whole) == 8 and len(top) == 4, (whole, top)  # 3 forward and the head's update
    assert len(statements(["low"])) == 6
    assert len(statements(["middle"])) == 7  # its delta is on the way to the lowest


def test_a_layer_may_be_told_by_its_handle_and_settings_keep_it():
    net = network()
    given = horn.Job(net, horn.data.digits(), frozen=[net.layers[1], "head.bias"])
    frozen = {"low.weight", "low.bias", "low.gain", "head.bias"}
    assert given.frozen == ("low", "head.bias") and given.network.frozen == frozen
    assert given.with_settings(epochs=1).network.frozen == frozen
    assert given.with_settings(network=net.rebuilt(seed=9)).network.frozen == frozen
    assert given.with_settings(frozen=()).network.frozen == frozenset()


def test_a_layer_is_frozen_with_the_weights_that_it_is_tied_to():
    net = horn.Network(seed=4)
    net.input(64)
    code = net.layer(8, activation="tanh", name="code")
    net.output(connect=horn.Tied(code), bias=False, loss="squared_error", name="again")
    given = horn.Job(net, horn.data.digits().take(64), target="input", epochs=1, frozen=["again"])
    assert given.network.frozen == {"code.weight"}
    found, drawn = horn.train(given).model.parameters, net.initial_parameters()
    np.testing.assert_array_equal(found["code.weight"], drawn["code.weight"])
    assert (found["code.bias"] != drawn["code.bias"]).all()


@pytest.mark.parametrize(
    "frozen, sentence",
    [
        ("low", r"frozen is a list of layers and arrays.*got \'low\'"),
        ({"low.gain": np.zeros(3, bool)}, r"frozen as a whole, not a dict .*=\['low.gain'\]"),
        (3, "frozen is a list of layers and arrays.*got 3"),
        (["lwo"], "no layer and no array 'lwo'; did you mean low[?] It has low, middle, head"),
        (["low.gian"], "did you mean low.gain[?]"),
        (["layer0"], "no layer and no array 'layer0'"),
        ([7], "no layer and no array 7"),
        (["low", "middle", "head"], "all that the network could learn; leave something out"),
    ],
)
def test_what_cannot_be_frozen_is_said(frozen, sentence):
    with pytest.raises(ModelError, match=sentence):
        job(frozen)


def test_sub_models_cannot_freeze_what_they_scale():
    with pytest.raises(JobError, match="scales middle.weight at the end.*cannot be frozen"):
        horn.train(job(["middle"], Standard), strategy=horn.ParallelDropout(2))


def test_another_choice_is_another_job_to_resume(tmp_path):
    horn.train(job(["low"]), checkpoints=tmp_path, checkpoint_every=10)
    with pytest.raises(CheckpointError, match="frozen"):
        horn.train(job(["middle"], epochs=3), checkpoints=tmp_path, resume=True)


def test_a_written_backward_is_checked_although_it_is_frozen():
    class Wrong(horn.Neuron):
        def forward(self, messages):
            self.feedforward(self.activation(sum(m.input * m.weight for m in messages)))

        def backward(self, messages):
            gradient = 3.0 * sum(m.delta * m.weight for m in messages)
            self.backpropagate(gradient * self.activation.derivative(self.output))
            for m in messages:
                self.push(m.delta * self.output)

    with pytest.raises(ModelError, match="is not the gradient of the loss"):
        horn.train(job(["low"], Wrong))


class Step(horn.Neuron):
    def forward(self, messages):
        self.feedforward(1.0 if sum(m.input * m.weight for m in messages) > 0.0 else 0.0)


@pytest.mark.parametrize("frozen, n_said", [([], 1), (["hidden.weight"], 1), (["hidden"], 0)])
def test_what_is_frozen_is_not_said_to_never_learn(
    caplog: pytest.LogCaptureFixture, frozen: list[str], n_said: int
) -> None:
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Step, name="hidden")
    net.output(2, activation="softmax", loss="cross_entropy")
    data = np.random.default_rng(0).random((6, 3)), np.arange(6) % 2
    horn.train(horn.Job(net, data, epochs=1, frozen=frozen), progress=False)
    assert sum("will never learn" in record.message for record in caplog.records) == n_said
