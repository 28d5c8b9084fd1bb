"""Samples that come one after another: what is taken, in which order, with how much memory."""

from __future__ import annotations

import itertools
import signal
import threading
from array import array as memory
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import pytest

import horn
from horn.data import Dataset, Stream, permutation, stream
from horn.data.stream import AHEAD, JOIN_S, Feed, is_stream
from horn.errors import DataError, JobError, ModelError, Stopped, Timeout
from horn.training import loop

RNG = np.random.default_rng(3)
X = RNG.normal(size=(70, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def network(n: int = 4, last: int = 2, **output: Any) -> horn.Network:
    net = horn.Network(seed=3)
    net.input(n)
    net.layer(5, activation="tanh")
    net.output(last, **({"activation": "softmax", "loss": "cross_entropy"} | output))
    return net


def never() -> bool:
    return False


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "horn-stream"]


def by_order(size: int, epochs: int) -> Iterator[Any]:
    """The samples as an array job of the network's seed visits them, in pieces."""
    order = np.concatenate([permutation(len(X), 3, epoch) for epoch in range(epochs)])
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield X[rows], Y[rows]


@pytest.mark.parametrize("backend", ["kernels", "reference", "python"])
@pytest.mark.parametrize("size", [1, 7, 64, 140])
def test_a_stream_of_the_same_order_gives_the_same_bits(size: int, backend: str) -> None:
    """Whatever its items are: the job cuts them into its batches."""
    expected = horn.train(horn.Job(network(), (X, Y), epochs=2, batch_size=16), backend=backend)
    stream = Stream(by_order(size, 2), samples=len(X))
    run = horn.train(horn.Job(network(), stream, epochs=2, batch_size=16), backend=backend)
    for name, array in expected.model.parameters.items():
        np.testing.assert_array_equal(run.model.parameters[name], array)
    assert run.history["loss"] == expected.history["loss"] and run.iterations == 10
    assert run.history["acc"] == [None, None] and run.metrics == {}
    job = horn.Job(network(), Stream(by_order(size, 1), samples=3000))
    assert job.acc_is_of.startswith("acc is not measured on the training samples of a stream")
    assert not threads()


class ByNumber:
    """A map-style data set: it has no end but its length."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, k: int) -> Any:
        return X[k % len(X)], Y[k % len(Y)]


class RowsByNumber(ByNumber):
    def __getitem__(self, k: int) -> Any:
        return X[k].tolist()


class FailsByNumber(ByNumber):
    def __getitem__(self, k: int) -> Any:
        raise RuntimeError("no disk")


def test_pairs_by_number_are_a_stream_of_so_many_samples() -> None:
    job = horn.Job(network(), ByNumber(), epochs=2, batch_size=16, validation=ByNumber())
    run = horn.train(job, progress=False)
    wanted = horn.Job(network(), Stream(lambda: zip(X, Y, strict=True), samples=len(X)), epochs=2,
                      batch_size=16, validation=(X, Y))  # fmt: skip
    assert run.history["val_loss"] == horn.train(wanted, progress=False).history["val_loss"]
    assert run.iterations == 10 and run.model.evaluate(ByNumber()) == run.model.evaluate(X, Y)
    assert len(Stream(ByNumber(), samples=30)) == 30 and is_stream(ByNumber())


def test_rows_by_number_are_an_array_and_errors_are_quoted() -> None:
    assert not is_stream(RowsByNumber())
    model = horn.Model(network(), network().initial_parameters())
    np.testing.assert_array_equal(model.predict(RowsByNumber()), model.predict(X.astype(float)))
    with pytest.raises(DataError, match="the stream raised RuntimeError: no disk"):
        horn.Job(network(), FailsByNumber())


def test_memory_of_python_is_an_array() -> None:
    model = horn.Model(network(), network().initial_parameters())
    np.testing.assert_array_equal(model.predict(memoryview(X)), model.predict(X))
    whole = horn.Job(network(), (memoryview(X), memoryview(Y))).data
    np.testing.assert_array_equal(whole.y, Y)
    assert not is_stream(bytearray(4)) and not is_stream(memory("d", [1.0]))


def test_samples_one_by_one_and_functions_that_are_called_for_each_pass() -> None:
    passes = itertools.count()

    def samples() -> Iterator[Any]:
        next(passes)
        yield from zip(X, Y, strict=True)

    job = horn.Job(network(), Stream(samples, samples=len(X)), epochs=3, validation=(X, Y))
    run = horn.train(job)
    assert next(passes) == 3 and len(run.history) == 3
    assert run.model.evaluate(X, Y) == run.metrics["validation"]
    again = horn.train(job)  # from its beginning
    np.testing.assert_array_equal(again.model.predict(X), run.model.predict(X))


def test_bare_generators_need_iterations() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield X[:10], Y[:10]

    for source in (endless, endless()):
        run = horn.train(horn.Job(network(), source, iterations=7, batch_size=8))
        assert run.iterations == 7 and len(run.history) == 1
        assert not threads()
    with pytest.raises(ModelError, match="a stream has no length, so give iterations=.* or say how "
                       "many samples are an epoch: horn.data.Stream"):  # fmt: skip
        horn.Job(network(), endless(), epochs=2)


def test_no_more_is_read_ahead_than_the_buffer_has() -> None:
    read = itertools.count()

    def counted() -> Iterator[Any]:
        while True:
            next(read)
            yield X[0], Y[0]

    feed = Feed(Stream(counted()), 8)
    feed.take(8, never)
    with feed._turn:  # the thread waits for room
        assert feed._turn.wait_for(lambda: feed._written == feed.size, 10)
    feed.close()
    assert not threads()
    assert next(read) == AHEAD * 8 + 1 and len(feed.ring) == AHEAD * 8


def test_rows_of_a_batch_stay_until_the_next() -> None:
    numbers = ((np.full(2, k, np.float32), 0) for k in itertools.count())
    feed = Feed(Stream(numbers), 5)
    for k in range(0, 300, 5):
        rows = feed.take(5, never)
        np.testing.assert_array_equal(feed.ring.x[rows, 0], np.arange(k, k + 5))
    feed.close()


@dataclass
class Silent:
    """A source that says no more after some samples, until it is let go."""

    n: int
    more: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> Iterator[Any]:
        yield from zip(X[: self.n], Y[: self.n], strict=True)
        self.more.wait()

    def let_go(self) -> None:
        self.more.set()
        for thread in threads():
            thread.join(10)


@pytest.fixture
def silent() -> Iterator[Callable[[int], Silent]]:
    made: list[Silent] = []

    def make(n: int) -> Silent:
        made.append(Silent(n))
        return made[-1]

    yield make
    for one in made:
        one.let_go()


class At(horn.Callback):
    """Does something after an update, when the loop has not asked for the time again."""

    def __init__(self, iteration: int, do: Callable[[], None]) -> None:
        self.at, self.do = iteration, do

    def on_batch_end(self, context: horn.TrainingContext) -> None:
        if context.iteration == self.at:
            self.do()


def test_what_never_comes_is_waited_for_until_one_gives_up(silent: Any) -> None:
    feed = Feed(Stream(silent(8)), 5)
    said = iter([False, False, True])
    assert feed.take(5, never) is not None and feed.take(5, lambda: next(said)) is None
    assert next(said, None) is None
    begun = monotonic()
    feed.close()  # it does not wait for the source, which may never come back
    assert monotonic() - begun < JOIN_S and len(threads()) == 1


def test_a_reader_that_is_left_behind_is_told(silent: Any, monkeypatch: Any, caplog: Any) -> None:
    """Who trained on with the same stream was told that its generator is executing already."""
    monkeypatch.setattr(stream, "JOIN_S", 0.05)
    feed = Feed(Stream(silent(8), name="clicks"), 5)
    assert feed.take(5, never) is not None
    feed.close()
    assert "clicks: the stream was asked for its next item and has not given it" in caplog.text


def test_a_silent_stream_ends_with_the_time(silent: Any, monkeypatch: Any) -> None:
    late: list[float] = []
    monkeypatch.setattr(loop, "perf_counter", lambda: perf_counter() + sum(late))
    job = horn.Job(network(), silent(10), iterations=9, batch_size=5,
                   callbacks=[At(2, lambda: late.append(1e6))])  # fmt: skip
    with pytest.raises(Timeout, match=r"more than 999 s; stopped at iteration 2 of 9 \(epoch 1\), "
                       "where its stream gave no more samples; raise") as raised:  # fmt: skip
        horn.train(job, timeout=999)
    assert raised.value.iteration == 2
    assert raised.value.model.facts["iteration"] == 2


@pytest.mark.parametrize("n", [0, 2])
def test_ctrl_c_ends_the_wait_for_a_silent_stream(n: int, silent: Any, monkeypatch: Any) -> None:
    """The first one: the run so far comes back, if there is one."""
    due = [] if n else [signal.SIGINT]

    def clock() -> float:
        while due:
            signal.raise_signal(due.pop())
        return perf_counter()

    monkeypatch.setattr(loop, "perf_counter", clock)
    job = horn.Job(network(), silent(5 * n + 3), iterations=9, batch_size=5,
                   callbacks=[At(2, lambda: due.append(signal.SIGINT))])  # fmt: skip
    if not n:
        with pytest.raises(Stopped, match="before the first iteration: there was nothing to save"):
            horn.train(job)
        return
    run = horn.train(job)
    assert run.stopped and run.iterations == 2 and run.model.facts["iteration"] == 2


def test_bytes_are_worth_what_bytes_are() -> None:
    x = RNG.integers(0, 255, (32, 4)).astype(np.uint8)
    order = permutation(32, 3, 0)
    stream = Stream(lambda: iter([(x[order], Y[:32][order])]), samples=32)
    expected = horn.train(horn.Job(network(), (x, Y[:32]), epochs=1)).model
    found = horn.train(horn.Job(network(), stream, epochs=1)).model
    assert found.facts["scale"] == expected.facts["scale"] == 1 / 255
    np.testing.assert_array_equal(found.predict(x), expected.predict(x))


def test_an_autoencoder_and_targets() -> None:
    kinds: list[tuple[Any, dict[str, Any], int]] = [
        (X, {"target": "input"}, 4),
        ((X, X[:, :2]), {}, 2),
    ]
    for data, more, last in kinds:
        net = network(4, last, activation="identity", loss="squared_error")
        run = horn.train(horn.Job(net, lambda d=data: iter([d]), iterations=5, **more))
        assert run.history[-1]["loss"] > 0
        expected = Dataset(X, data[1] if isinstance(data, tuple) else None)
        assert run.model.evaluate(expected)["loss"] > 0


def test_what_is_read_whole() -> None:
    """Validation data, and what a model is asked about."""
    stream = Stream(lambda: by_order(9, 1), samples=60)
    job = horn.Job(network(), (X, Y), epochs=1, validation=stream)
    assert len(job.validation) == 60 and job.validation.y.shape == (60,)
    model = horn.train(job).model
    rows = permutation(len(X), 3, 0)[:60]
    assert model.evaluate(stream) == model.evaluate(X[rows], Y[rows])
    alone = Stream(lambda: ([X[k : k + 20]] for k in range(0, 60, 20)), samples=60)  # of one array
    np.testing.assert_array_equal(model.predict(alone), model.predict(X[:60]))
    with pytest.raises(DataError, match="a stream without a length cannot be read whole; say how"):
        model.predict(by_order(9, 1))


def test_tables_of_a_stream_have_the_columns_of_the_first() -> None:
    """As those of arrays have: they were taken by place, whatever their names."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :3].astype(float), columns=["a", "b", "c"])
    other = frame[["c", "b", "a"]]
    net = network(3)
    stream = Stream(lambda: iter([(frame, Y), (frame.to_numpy(), Y)]), samples=140)
    model = horn.train(horn.Job(net, stream, epochs=1)).model
    assert model.feature_names == ("a", "b", "c")
    order = "another order, 'c' where 'a' was"
    with pytest.raises(DataError, match=f"other columns than the first item.* {order}"):
        horn.train(horn.Job(net, Stream(lambda: iter([(frame, Y), (other, Y)]), samples=140)))
    for given in ((other, Y), Stream(lambda: iter([(other, Y)]), samples=70)):
        with pytest.raises(DataError, match=f"other columns than the training data has: {order}"):
            horn.Job(net, stream, validation=given)
        with pytest.raises(DataError, match=f"other columns than this model has: {order}"):
            model.evaluate(given)
    with pytest.raises(DataError, match=f"other columns than the model that it begins.* {order}"):
        horn.Job(net, Stream(lambda: iter([(other, Y)]), samples=70), initial=model)
    assert not threads()


def test_tables_of_a_stream_are_read_as_other_tables_are() -> None:
    pandas = pytest.importorskip("pandas")
    whole = pandas.array([1, 2], "Int64")
    frame = pandas.DataFrame({"a": [True, False], "b": whole, "c": [0.5, 1]})
    stream = Stream(iter([(frame, pandas.Series([1, 0], dtype="Int64"))]), samples=2)
    np.testing.assert_array_equal(stream.whole().x, [[1, 1, 0.5], [0, 2, 1]])
    np.testing.assert_array_equal(stream.y, [1, 0])
    with pytest.raises(DataError, match="x has columns that hold no numbers: 'd'.*get_dummies"):
        Stream(iter([frame.assign(d=["u", "v"])]))


def test_items_without_samples_are_skipped() -> None:
    def samples() -> Iterator[Any]:
        yield from [(X[:0], Y[:0]), (X[:30], Y[:30]), (X[:0], Y[:0]), ([], []), (X[30:], Y[30:])]

    found = Stream(samples, samples=140).whole()
    np.testing.assert_array_equal(found.x, np.concatenate([X, X]))
    with pytest.raises(DataError, match="the stream gives no samples"):
        Stream(iter([(X[:0], Y[:0])]))


@pytest.mark.parametrize(
    "items, words",
    [
        ([], "data: the stream gives no samples"),
        ([(X, Y), (X[:, :3], Y)], r"x float32 \(70, 3\) and y \('int64', \(70,\)\), other than"),
        ([(X, Y), X], "y None, other than those before; give all items one kind"),
        ([(X, Y, Y)], "the stream gives tuples of 3, but x or .x, y. is expected"),
        ([(X, Y[:3])], "x has 70 samples, but y has 3"),
        ([(X, Y), (X * np.nan, Y)], "data: x has NaN at row 0, column 0"),
        ([(X, Y), (X, Y - 1)], "data: label -1 in row"),
        ([(X, Y), (X, Y + 7)], r"data: labels contain \d+ \(row \d+\), but \w+ has classes 0..1"),
        ([(X, ["a"] * 70)], "labels of a stream are whole numbers, since nobody knows"),
        ([("a", 0)], "data: x holds text, but numbers are expected"),
    ],
)
def test_items_that_are_no_samples(items: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        horn.train(horn.Job(network(), iter(items), iterations=20))
    assert not threads()


@pytest.mark.parametrize("letter", ["x", "y"])
def test_doubles_that_the_type_of_the_first_item_does_not_hold_are_refused(letter: str) -> None:
    """They were infinity, and said to be a training that diverged."""

    def source() -> Iterator[Any]:
        yield np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)
        while True:
            yield tuple(
                np.full((4, n), -1e200 if name == letter else 1.0)
                for name, n in (("x", 4), ("y", 1))
            )

    net = network(last=1, activation="identity", loss="squared_error")
    with pytest.raises(DataError, match=rf"has {letter} up to 1e\+200 in float64, but the first"):
        horn.train(horn.Job(net, Stream(source, samples=16), batch_size=4, epochs=2))


def test_targets_after_the_first_items_are_those_of_the_loss() -> None:
    net = network(4, 1, activation="sigmoid", loss="binary_cross_entropy")
    items = [(X, Y % 2), (X, Y % 2 * 3)]
    with pytest.raises(DataError, match="binary_cross_entropy has targets from 0 to 1, got 0 to 3"):
        horn.train(horn.Job(net, iter(items), iterations=20))
    assert not threads()


def test_what_the_stream_raises_and_its_end_are_said() -> None:
    def broken() -> Iterator[Any]:
        yield X, Y
        raise KeyError("colour")

    with pytest.raises(DataError, match="data: the stream raised KeyError: 'colour'") as caught:
        horn.train(horn.Job(network(), broken(), iterations=20))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(DataError, match="ended after 70 samples; give a function that returns an "
                       "iterator, which is called for each pass, or fewer epochs"):  # fmt: skip
        horn.train(horn.Job(network(), iter([(X, Y)]), iterations=20))
    with pytest.raises(DataError, match=r"gives targets of several outputs by name \(a, b\), but "
                       r"those of a stream are of one; pass arrays, \(x, {'a': ..., 'b': ...}\), "
                       "or one .npz file"):  # fmt: skip
        horn.train(horn.Job(network(), lambda: iter([(X, {"a": Y, "b": Y})]), iterations=2))
    with pytest.raises(DataError, match="samples is how many are an epoch, a whole number from 1"):
        Stream(broken, samples=0)
    with pytest.raises(DataError, match="a stream is a function that returns an iterator, an"):
        Stream(3)
    assert not threads()


@pytest.mark.parametrize(
    "settings, what",
    [
        ({"normalize": True}, "normalize=True"),
        ({"validation": 0.2}, "a validation fraction"),
        ({"sample_weight": Y}, "sample_weight"),
        ({"class_weight": "balanced"}, "class_weight"),
    ],
)
def test_what_needs_all_samples_is_refused(settings: Any, what: str) -> None:
    with pytest.raises(ModelError, match=f"Job: {what} needs all samples before training"):
        horn.Job(network(), iter([(X, Y)]), iterations=1, **settings)


def test_one_process_reads_it(tmp_path: Any) -> None:
    job = horn.Job(network(), lambda: iter([(X, Y)]), iterations=3)
    for settings in ({"tasks": 2}, {"groups": 2}, {"checkpoints": tmp_path, "checkpoint_every": 1}):
        with pytest.raises(JobError, match="a stream is read by one process on this machine, once"):
            horn.train(job, **settings)  # type: ignore[arg-type]


def test_what_is_a_stream() -> None:
    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            return iter([(X, Y)])

    assert all(map(is_stream, (iter([X]), (x for x in X), Epochs(), lambda: iter([X]), open)))
    assert not any(map(is_stream, (X, X.tolist(), (X, Y), "x.npy", {"x": X}, Dataset(X, None), 3)))
    run = horn.train(horn.Job(network(), Epochs(), iterations=10))
    assert run.iterations == 10


def test_weights_that_diverge_are_told_without_repeating() -> None:
    net = network(4, 2, activation="identity", loss="squared_error")
    job = horn.Job(net, lambda: iter([(X * 1e6, X[:, :2])]), iterations=200,
                   optimizer=horn.SGD(1e3))  # fmt: skip
    with pytest.raises(horn.Diverged, match="became"):
        horn.train(job)
    assert not threads()


@pytest.mark.parametrize("n, drop_last, samples", [
    (25, True, 20), (25, False, 25), (70, True, 70), (200, False, 200),
])  # fmt: skip
def test_an_epoch_of_a_loader_is_one_pass_of_its_sampler(
    n: int, drop_last: bool, samples: int
) -> None:
    rows = np.arange(n) % len(X)  # a sampler may take some samples, or some of them twice
    most = n - n % 10 if drop_last else n

    class Loader:
        dataset, sampler, batch_size, batch_sampler = X, rows, 10, object()

        def __iter__(self) -> Iterator[Any]:
            for k in range(0, most, 10):
                yield X[rows[k : k + 10]], Y[rows[k : k + 10]]

    loader = Loader()
    loader.drop_last = drop_last
    stream = horn.data.Stream(loader)
    assert len(stream) == samples == most
    np.testing.assert_array_equal(stream.whole().y, Y[rows[:most]])


def test_a_loader_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    job = horn.Job(network(), DataLoader(data, batch_size=9), epochs=2, batch_size=16,
                   validation=DataLoader(data, batch_size=50))  # fmt: skip
    assert len(job.data) == 70 and len(job.validation) == 70
    np.testing.assert_array_equal(job.validation.x, X)
    run = horn.train(job)
    expected = horn.train(horn.Job(network(), lambda: iter([(X, Y)]), iterations=10, batch_size=16))
    assert run.iterations == 10
    assert run.history[-1]["val_loss"] == run.model.evaluate(X, Y)["loss"]
    np.testing.assert_array_equal(run.model.predict(DataLoader(data)), run.model.predict(X))
    assert expected.iterations == 10
    short = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    assert len(horn.Job(network(), short).data) == 64

    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield X[0], Y[0]

    with pytest.raises(ModelError, match="a stream has no length"):
        horn.Job(network(), DataLoader(Endless(), batch_size=4))
    assert horn.train(horn.Job(network(), DataLoader(Endless()), iterations=3)).iterations == 3
