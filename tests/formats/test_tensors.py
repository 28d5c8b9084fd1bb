"""Sequences that PyTorch keeps as one object, and tensors that are no arrays."""

import numpy as np
import pytest

import horn
from horn.errors import DataError
from horn.formats.tensors import apart

torch = pytest.importorskip("torch")
LENGTHS = 4, 6, 1


def sequences():
    rng = np.random.default_rng(5)
    return [torch.from_numpy(rng.standard_normal((n, 3))) for n in LENGTHS]


def packed(each):
    return torch.nn.utils.rnn.pack_sequence(each, enforce_sorted=False)


def nested(each):
    return torch.nested.nested_tensor(each, layout=torch.jagged)


def strided(each):
    return torch.nested.nested_tensor(each)  # the default layout, of which nobody may ask sizes


def network(each_step):
    net = horn.Network(seed=3)
    heard = net.input(3, steps=6)
    memory = {"x": heard, "h": horn.Delayed()}
    net.layer(4, activation="tanh", inputs=memory)
    net.output(2, activation="softmax", loss="cross_entropy", each_step=each_step)
    return net


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kept", [packed, nested, strided])
@pytest.mark.parametrize("each_step", [False, True])
def test_packed_and_nested_sequences_are_those_of_a_list(kept, each_step):
    x, y = sequences(), [0, 1, 1]
    target = [torch.tensor([k] * n) for k, n in zip(y, LENGTHS, strict=True)] if each_step else y
    given = kept(target) if each_step else y
    wanted = horn.Job(network(each_step), (x, target), batch_size=3, iterations=2)
    job = horn.Job(network(each_step), (kept(x), given), batch_size=3, iterations=2)
    np.testing.assert_array_equal(job.data.x, wanted.data.x)
    np.testing.assert_array_equal(job.data.y, wanted.data.y)
    np.testing.assert_array_equal(job.data.lengths, LENGTHS)
    model = horn.train(job, progress=False).model
    asked = (
        model.predict,
        lambda x: model.activations(x, "layer1"),
        lambda x: model.record(x, "layer1")["layer1"],
    )
    for ask in asked:
        for one, other in zip(ask(kept(x)), ask(x), strict=True):
            np.testing.assert_array_equal(one, other)
    assert model.evaluate(kept(x), given) == model.evaluate(x, target)
    made = horn.data.sequences(kept(x), given)
    np.testing.assert_array_equal(made.lengths, LENGTHS)
    np.testing.assert_array_equal(made.x, wanted.data.x)


def test_a_packed_sequence_longer_than_the_network_is_heard_in_pieces():
    job = horn.Job(network(False), (sequences(), [0, 1, 1]), batch_size=3, iterations=1)
    model = horn.train(job, progress=False).model
    long = [torch.cat([one, one]) for one in sequences()]
    np.testing.assert_array_equal(model.predict(packed(long)), model.predict(long))


def test_what_is_one_object_comes_apart_in_its_order():
    x = sequences()
    for kept in packed(x), nested(x):
        for one, other in zip(apart(kept), x, strict=True):
            assert torch.equal(one, other)
    assert apart(x) is x


def test_tensors_that_are_no_arrays_are_refused():
    with pytest.raises(DataError, match=r"x is a nested tensor, .*net\.input\(features, steps"):
        horn.data.as_dataset((nested(sequences()), [0, 1, 1]))
    with pytest.raises(DataError, match="data: x cannot be read as an array: .*no data"):
        horn.Job(network(False), (torch.empty(3, 6, 3, device="meta"), [0, 1, 1]))
    with pytest.raises(DataError, match=r"x\[1\] cannot be read as an array: .*Sparse"):
        horn.Job(network(False), ([sequences()[0], sequences()[1].to_sparse()], [0, 1]))
