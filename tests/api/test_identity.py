"""What of a job must be the same where it goes on: every field of every description, the user's
code with all it calls, the data; and what need not be.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horn
from horn import activations, initializers, losses, optimizers, schedules, strategies
from horn.errors import CheckpointError
from horn.training.describe_job import LEFT_OUT, JobDescriber
from horn.training.digest import digest
from horn.training.identity import check_same, differences, identity, uncompared

DESCRIPTIONS = [
    "horn.job", "horn.network", "horn.layers", "horn.data.dataset", "horn.data.targets",
    "horn.optimizers",
    "horn.schedules", "horn.initializers", "horn.activations", "horn.losses", "horn.connections",
    *(f"horn.strategies.{name.replace('-', '_')}" for name in strategies.names()),
]  # fmt: skip
# Dataclasses in there which are no part of a job's description.
OTHERS = {
    "Accumulate", "AveragingMemory", "DownpourMemory", "EasgdMemory", "Moving", "Optimizer",
    "Placed", "ReplicaOptimizer", "SynapseArray",
}  # fmt: skip


class Mine(horn.Neuron):
    keep = 0.25
    gain = horn.Parameter(1.0)
    seen = horn.State(0.0)

    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.seen = total
        self.feedforward(self.gain * total * self.keep)


def data(n=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 3, n)


def made(optimizer=None, init="he", connect=None):
    net = horn.Network(seed=3)
    first = net.input(6, keep=0.9)
    second = net.layer(8, neuron=Mine, activation="relu", init=init)
    net.layer(7, activation="tanh", inputs=[first, second], connect=connect, bias=0.5)
    net.output(3, activation="softmax", loss="cross_entropy")
    return horn.Job(
        net, data(), optimizer or horn.SGD(0.1, momentum=0.9), batch_size=5, epochs=2,
        validation=data(9, 1), test=data(8, 2), early_stopping=horn.EarlyStopping(), name="one",
    )  # fmt: skip


def several() -> horn.Job:
    net = horn.Network(seed=3)
    net.input(6)
    first, second = net.layer(4, name="first"), net.layer(4, name="second")
    net.output(3, activation="softmax", loss="cross_entropy", name="a")
    net.output(2, loss="squared_error", inputs=first, weight=0.5, name="b")
    net.loss(first, second, "squared_error")
    x, labels = data()
    return horn.Job(net, (x, {"a": labels, "b": x[:, :2]}), batch_size=5, epochs=2)


def variants() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """(job, strategy) by name: together they have every description there is."""
    allreduce = strategies.make("allreduce")
    found: dict[str, Callable[[], tuple[Any, Any]]] = {
        "sparse": lambda: (made(connect=horn.Sparse(fan_in=3)), allreduce),
        "several outputs": lambda: (several(), allreduce),
    }
    for module, kind in ((optimizers, optimizers.Optimizer), (schedules, None)):
        for name, cls in vars(module).items():
            if not dataclasses.is_dataclass(cls) or cls is optimizers.Optimizer:
                continue
            if kind is None:
                few = {"Step": (0.1, 3), "Exponential": (0.1, 0.9), "Cosine": (0.1, 9),
                       "Warmup": (3, horn.Cosine(0.1, 9))}[name]  # fmt: skip
                found[name] = lambda c=cls, f=few: (made(horn.SGD(c(*f))), allreduce)
            else:
                found[name] = lambda c=cls: (made(c(0.1)), allreduce)
    for name, cls in vars(initializers).items():
        if dataclasses.is_dataclass(cls):
            few = {"Unsaved": ("Mine()",)}.get(name, ())
            found[name] = lambda c=cls, f=few: (made(init=c(*f)), allreduce)
    for name in strategies.names():
        found[name] = lambda n=name: (made(), strategies.load(n)())
    return found


VARIANTS = variants()


def parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Every dataclass that a description consists of."""
    if id(thing) in seen:
        return
    if isinstance(thing, (list, tuple)):
        for value in thing:
            yield from parts(value, seen)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        seen.add(id(thing))
        yield thing
        for field in dataclasses.fields(thing):
            if (type(thing), field.name) not in LEFT_OUT:
                yield from parts(getattr(thing, field.name), seen)


def places(name: str) -> list[tuple[int, str, str]]:
    """(which part, its class, field) of a variant: the first part of each class and its last, as
    the first layer is the input.
    """
    found, common = {}, {type(part) for part in parts(list(VARIANTS["sparse"]()), set())}
    for number, part in enumerate(parts(list(VARIANTS[name]()), set())):
        if name != "sparse" and type(part) in common:
            continue  # looked at there
        cls = type(part).__name__
        found.setdefault((cls, "first"), (number, part))
        found[cls, "last"] = (number, part)
    return sorted({
        (number, type(part).__name__, field.name)
        for number, part in found.values() for field in dataclasses.fields(part)
    })  # fmt: skip


def altered(value: Any) -> Any:
    """Another value of much the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case np.ndarray():
            other = value.copy()
            other.flat[-1] += 1
            return other
        case tuple() if value:
            return value[:-1]
        case None | tuple():
            return 7
        case type():
            return horn.Dropout
        case types.FunctionType():
            return horn.math.exp
        case _:
            return horn.Step(0.5, 3)  # any other thing


def test_every_description_is_in_a_variant():
    wanted = {
        cls.__name__
        for module in map(importlib.import_module, DESCRIPTIONS)
        for cls in vars(module).values()
        if isinstance(cls, type) and dataclasses.is_dataclass(cls)
        and cls.__module__ == module.__name__ and cls.__name__ not in OTHERS
    }  # fmt: skip
    got = {type(p).__name__ for make in VARIANTS.values() for p in parts(list(make()), set())}
    assert wanted <= got | {"Dense", "Sparse"}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_field_of_every_description_counts(name):
    """A field that is added to one is compared, or is in LEFT_OUT with the reason."""
    job, strategy = VARIANTS[name]()
    before = json.loads(json.dumps(identity(job, "its words", strategy)))
    assert differences(before, identity(*with_words(VARIANTS[name]()))) == []
    for number, cls, field in places(name):
        job, strategy = copy.deepcopy(VARIANTS[name]())  # activations are everybody's
        part = list(parts([job, strategy], set()))[number]
        if cls == "Network" and field == "layers":
            other = (*job.network.layers[:2], dataclasses.replace(job.network.layers[-1]))
        elif cls == "Link" and field == "source":
            other = next(x for x in job.network.layers if x is not part.source)
        else:
            other = altered(getattr(part, field))
        object.__setattr__(part, field, other)
        try:
            said = differences(before, identity(job, "its words", strategy))
        except (AttributeError, TypeError):  # no job can be so; it is described all the same
            assert described(job) != before["job"], (cls, field)
            continue
        if (type(part), field) in LEFT_OUT:
            assert said == [], (cls, field)
        else:
            assert said, (cls, field)
            assert all(" here " in one for one in said)


def described(job):
    return json.loads(json.dumps(JobDescriber().describe(job)))


def with_words(found):
    return found[0], "its words", found[1]


def test_what_is_left_out_are_fields():
    for cls, field in LEFT_OUT:
        assert field in {f.name for f in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"data": data(seed=5)}, "its data.x is float32 (20, 6)"),
        ({"data": (data()[0], np.roll(data()[1], 1))}, "its data.y is int64 (20,)"),
        ({"data": horn.data.as_dataset(data(), scale=0.5)}, "its data.scale is 1.0, here 0.5"),
        ({"validation": data(9, 7)}, "its validation.x is float32 (9, 6)"),
        ({"validation": None, "early_stopping": None}, "its early_stopping is EarlyStopping"),
        ({"early_stopping": horn.EarlyStopping(4)}, "its early_stopping.patience is 3, here 4"),
        ({"target": "input"}, "its target is labels, here input"),
        ({"keep_best": True}, "its keep_best is False, here True"),
        ({"dtype": "float64"}, "its dtype is float32, here float64"),
        ({"optimizer": horn.SGD(0.1, momentum=0.8)}, "its optimizer is SGD(learning_rate=0.1, mo"),
    ],
)
def test_what_differs_is_named(change, words):
    job, strategy = VARIANTS["sparse"]()
    was = identity(job, "allreduce", strategy)
    said = differences(was, identity(job.with_settings(**change), "allreduce", strategy))
    assert any(words in one for one in said), said


OTHER_TANH = dataclasses.replace(activations.ACTIVATIONS["relu"], name="tanh")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"layer0": {"keep": 0.5}}, "its layer0.keep is 0.9, here 0.5"),
        ({"layer0": {"per": "batch"}}, "its layer0.per is sample, here batch"),
        ({"layer3": {"loss": losses.LOSSES["squared_error"]}}, "its layer3.loss.f is horn.losses"),
        ({"layer2": {"activation": OTHER_TANH}}, "its layer2.activation.f is"),
        ({"layer1": {"interlayer": activations.softmax}}, "its layer1.interlayer is None, here ho"),
        ({"layer1": {"bias": initializers.Constant(1.0)}}, "its layer1.bias.value is 0.0, here 1"),
    ],
)
def test_what_differs_in_a_layer_is_named(changes, words):
    job, strategy = VARIANTS["sparse"]()
    was = identity(job, "allreduce", strategy)
    other = job.with_settings(network=job.network.rebuilt(changes=changes))
    said = differences(was, identity(other, "allreduce", strategy))
    assert any(words in one for one in said), said


def test_long_lists_of_synapses_are_told_by_the_settings_of_their_windows(monkeypatch):
    """Listing them takes gigabytes; lists of synapses that are drawn are there anyway."""

    def of(**windows: Any) -> dict[str, Any]:
        net = horn.Network(seed=1)
        net.input((8, 8, 1))
        net.layer(connect=horn.Convolution(2, 3, **windows))
        net.layer(9, connect=horn.Sparse(fan_in=3))
        net.output(10, activation="softmax", loss="cross_entropy")
        return identity(horn.Job(net, horn.data.digits()), "all")

    listed = of()
    assert "indices" in listed["job"]["network"]["layers"]["layer1"]["links"][0]["edges"]
    monkeypatch.setattr("horn.training.describe_job.MOST_LISTED", 20)
    told = of()
    layers = told["job"]["network"]["layers"]
    assert layers["layer1"]["links"][0]["edges"]["kernel"] == 3
    assert "indices" in layers["layer2"]["links"][0]["edges"]
    assert differences(told, of()) == []
    (said,) = differences(told, of(dilation=1, stride=1, padding=0))
    assert "padding" in said


def test_which_way_a_tie_goes_counts_where_its_sizes_do_not_say_it():
    def of(transposed):
        net = horn.Network(seed=3)
        net.input(6)
        code = net.layer(6, activation="tanh", name="code")
        net.layer(connect=horn.Tied(code, transposed=transposed), name="again")
        net.output(3, loss="squared_error")
        x, _ = data()
        return identity(horn.Job(net, (x, x[:, :3])), "allreduce")

    assert differences(of(True), of(True)) == differences(of(False), of(False)) == []
    said = ["its again.links[0].transposed is True, here None"]
    assert differences(of(True), of(False)) == said


def test_how_long_it_trains_its_name_and_its_test_data_may_change():
    job, strategy = VARIANTS["sparse"]()
    was = identity(job, "allreduce", strategy)
    other = job.with_settings(epochs=None, iterations=90, name="two", test=None, check=False)
    assert differences(was, identity(other, "allreduce", strategy)) == []


# the user's code

FILE = '''
"""A file."""
import math as m_
import horn
from helpers import shifted

SLOPE = 0.25
GAINS = [1.0, 2.0]
UNUSED = 3

def bent(z):
    """A docstring."""
    return z * SLOPE

def unrelated(x):
    return x

class Base(horn.Neuron):
    rate = 0.5
    gain = horn.Parameter(1.0)

class Mine(Base):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(shifted(bent(total)) * self.rate * self.gain)

def loss(output, target):
    return (output - target) ** 2

def steep(z):
    return z * 2.0

def normal(output):
    return output / output.sum()

class Own:
    def __init__(self, first):
        self.first = first
    def at(self, iteration):
        return self.first / (1 + iteration)

class Start:
    def values(self, shape, fan_in, fan_out, rng):
        return rng.random(shape) * 0.1

def scaled(factor):
    def f(z):
        return z * factor
    return f

def job(table=None):
    net = horn.Network()
    net.input(4)
    net.layer(3, neuron=Mine, activation=horn.Activation("steep", steep, lambda y: 2.0))
    net.layer(3, activation=horn.Activation("scaled", scaled(0.5)), init=Start())
    net.output(2, interlayer=normal, loss=loss)
    x = [[1.0, 2.0, 3.0, 4.0]] * 4
    return horn.Job(net, (x, [[0.0, 1.0]] * 4), optimizer=horn.SGD(Own(0.5)))
'''
HELPERS = """
OFFSET = 1.0

def shifted(z):
    return z + OFFSET

def nobody(z):
    return z
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Makes the identity of ``job()`` of a file and its helper, with some text replaced."""
    monkeypatch.syspath_prepend(str(tmp_path))
    count = 0

    def found(old="", new="", then=None):
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
        for name, text in (("helpers", HELPERS), ("mine", FILE)):
            sys.modules.pop(name, None)
            (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
        importlib.invalidate_caches()
        assert not old or old in FILE + HELPERS
        module = importlib.import_module("mine")
        job = module.job()
        if then is not None:
            then(module)
        return json.loads(json.dumps(identity(job, "allreduce", strategies.make("allreduce"))))

    yield found
    for name in ("helpers", "mine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("sum(m.input * m.weight", "sum(m.input + m.weight", "its source of Mine (mine) has"),
        ("z * SLOPE", "z + SLOPE", "'return z * SLOPE', here 'return z + SLOPE'"),
        ("SLOPE = 0.25", "SLOPE = 0.5", "its SLOPE (mine) is 0.25, here 0.5"),
        ("rate = 0.5", "rate = 0.75", "its layer1.neuron.set.rate is 0.5, here 0.75"),
        ("Parameter(1.0)", "Parameter(2.0)", "its layer1.neuron.set.gain.initial is 1.0, here 2"),
        ("z + OFFSET", "z - OFFSET", "its source of shifted (helpers) has"),
        ("OFFSET = 1.0", "OFFSET = 2.0", "its OFFSET (helpers) is 1.0, here 2.0"),
        ("(output - target) ** 2", "(output - target) ** 4", "its source of loss (mine) has"),
        ("return z * 2.0", "return z * 3.0", "its source of steep (mine) has"),
        ("lambda y: 2.0", "lambda y: 3.0", "its layer1.activation.df.text is"),
        ("output / output.sum()", "output / output.max()", "its source of normal (mine) has"),
        ("1 + iteration", "2 + iteration", "its source of Own (mine) has"),
        ("Own(0.5)", "Own(0.25)", "its optimizer"),
        ("rng.random(shape)", "rng.normal(0, 1, shape)", "its source of Start (mine) has"),
        ("scaled(0.5)", "scaled(0.75)", "its layer2.activation.f.free.factor.value is 0.5, here 0"),
        ("net.layer(3, neuron=Mine", "net.layer(3, neuron=Base", "its layers are"),
    ],
)
def test_changed_code_is_named(code, old, new, words):
    if "neuron=Base" in new:
        new = new.replace("Base", "horn.Standard")
    said = differences(code(), code(old, new))
    assert any(words in one for one in said), said


@pytest.mark.parametrize(
    "old, new",
    [
        ('"""A docstring."""', '"""Another one."""'),
        ('    """A docstring."""\n', ""),
        ("def bent(z):", "# a comment\n\n\ndef bent(z):  # and another"),
        ("UNUSED = 3", "UNUSED = 4"),
        ("    return x\n", "    return x + 1\n"),
        ("def nobody(z):\n    return z", "def nobody(z):\n    return 2 * z"),
        ("import math as m_\n", "import sys, math as m_\n"),
        ("[[0.0, 1.0]] * 4", "[[0.0,    1.0]] * 4"),
    ],
)
def test_code_that_does_the_same_is_the_same(code, old, new):
    assert differences(code(), code(old, new)) == []


def test_a_class_constant_that_was_set_later_counts(code):
    def then(module):
        module.Mine.rate = 0.125

    said = differences(code(), code(then=then))
    assert said == ["its layer1.neuron.set.rate is 0.5, here 0.125"]


def test_a_method_that_another_file_gave_a_class_counts(code):
    method = "class Mine(Base):\n    def other(self, messages):\n        self.feedforward(0.0)\n"

    def then(module):
        module.Mine.forward = module.Mine.other

    was, is_ = code("class Mine(Base):\n", method), code("class Mine(Base):\n", method, then)
    assert any("its layer1.neuron is Mine, here Mine(" in one for one in differences(was, is_))
    assert differences(is_, code("class Mine(Base):\n", method, then)) == []


def test_values_that_code_reads_count(code):
    text = "return z * GAINS[0]"
    was, is_ = code("return z * 2.0", text), code("return z * 2.0", text)
    assert differences(was, is_) == []

    def then(module):
        module.GAINS = [5.0, 2.0]

    said = differences(was, code("return z * 2.0", text, then))
    assert "its GAINS (mine) is [1.0, 2.0], here [5.0, 2.0]" in said


def test_a_closure_over_an_array_counts():
    def made_with(table):
        def activation(z):
            return z * float(table[0])

        net = horn.Network()
        net.input(2)
        net.output(1, activation=horn.Activation("own", activation), loss="squared_error")
        return identity(horn.Job(net, (np.ones((3, 2)), np.ones((3, 1)))), "allreduce")

    was, same, other = (made_with(np.full(3, value)) for value in (1.0, 1.0, 2.0))
    assert differences(was, same) == []
    assert "its layer1.activation.f.free.table is float64 (3,)" in differences(was, other)[0]


def test_a_helper_inside_the_same_function_counts(code):
    text = "    def f(z):\n        return z * factor\n    return f"

    def helped(by):
        inner = f"    def helper(z):\n        return z * {by}\n"
        return code(text, f"{inner}    def f(z):\n        return helper(z) * factor\n    return f")

    assert differences(helped(2), helped(2)) == []
    said = differences(helped(2), helped(3))
    assert "its layer2.activation.f.free.helper.text" in said[0]
    moved = code(text, text.replace("    def", "    # a comment\n    def", 1))
    assert differences(code(), moved) == []


def _counting():
    def count(z):
        return z if z < 2.0 else count(z - 1.0)

    return count


def _mutual():
    def even(z):
        return z if z < 1.0 else odd(z - 1.0)

    def odd(z):
        return z if z < 1.0 else even(z - 1.0)

    return even


def _renamed():
    def f(z):
        return z if z < 1.0 else g(z - 1.0)

    g = f
    return f


def _without_value():
    def f(z):
        return z if z < 1.0 else later

    if False:
        later = 0
    return f


def _class_of_itself():
    class Own:
        def again(self):
            return Own()

    return Own


@pytest.mark.parametrize("make", [_counting, _mutual, _renamed, _without_value, _class_of_itself])
def test_code_inside_a_function_may_call_itself(make):
    first = JobDescriber().describe(make())
    assert first == JobDescriber().describe(make())
    assert "text" in first


def test_code_without_a_source_may_call_itself():
    def made_with(less):
        names = {}
        inner = f"    def f(z):\n        return f(z - {less})\n    return f\n"
        own = "class Own(list):\n    def append(self, z):\n        super().append(z)\n"
        exec(f"def make():\n{inner}{own}", names)
        describer = JobDescriber()
        return [describer.describe(one) for one in (names["make"](), names["Own"], names["Own"]())]

    first = made_with(1)
    assert "bytes" in first[0] and "functions" in first[1]
    assert first == made_with(1) != made_with(2)


def test_code_without_a_source_is_compared_as_it_was_compiled():
    def made_of(expression):
        names = {"horn": horn}
        exec(f"def f(z):\n    return {expression}", names)
        net = horn.Network()
        net.input(2)
        net.output(1, activation=horn.Activation("own", names["f"]), loss="squared_error")
        return identity(horn.Job(net, (np.ones((3, 2)), np.ones((3, 1)))), "allreduce")

    assert differences(made_of("z * 2"), made_of("z * 2")) == []
    for other in ("z * 3", "z + 2", "horn.math.exp(z)"):
        assert differences(made_of("z * 2"), made_of(other)), other


@pytest.mark.cluster
def test_two_processes_find_the_same(tmp_path):
    """Nothing in it is a matter of addresses, of an order of hashes, or of the folder."""
    said = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "mine.py").write_text(FILE)
        (folder / "helpers.py").write_text(HELPERS)
        code = (
            "import json, mine, horn; from horn.training.identity import identity; "
            "print(json.dumps(identity(mine.job(), 'allreduce', horn.Downpour())))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True,
            env={"PYTHONPATH": f"{folder}:{Path(horn.__file__).parents[1]}",
                 "PYTHONHASHSEED": str(number)}, timeout=60,
        )  # fmt: skip
        said.append(done.stdout)
    assert differences(json.loads(said[0]), json.loads(said[1])) == []
    found = [json.loads(one)["job"] for one in said]
    assert found[0] == found[1]


# what an earlier horn described


def test_a_field_that_an_earlier_horn_did_not_have_had_its_default():
    job, strategy = VARIANTS["sparse"]()
    mine = json.loads(json.dumps(identity(job, "allreduce", strategy)))
    theirs = copy.deepcopy(mine)
    del theirs["job"]["buckets"], theirs["job"]["data"]["pieces"], theirs["job"]["data"]["targets"]
    for layer in theirs["job"]["network"]["layers"].values():
        del layer["per"]
    assert differences(theirs, mine) == [], "it was refused as another job"
    del theirs["job"]["keep_best"]
    other = identity(job.with_settings(keep_best=True), "allreduce", strategy)
    assert differences(theirs, other) == ["its keep_best is False, here True"]
    del theirs["job"]["optimizer"]["momentum"]
    assert differences(theirs, mine) == ["its optimizer.momentum is 0.0, here 0.9"]


def test_a_field_that_counted_in_an_earlier_horn_does_not_count_now():
    job, strategy = VARIANTS["sparse"]()
    mine = json.loads(json.dumps(identity(job, "allreduce", strategy)))
    theirs = copy.deepcopy(mine)
    theirs["job"]["data"] |= {"scale_is": "assumed", "target_shape": [3, 1]}
    assert differences(theirs, mine) == []


def test_a_field_that_horn_does_not_have_is_a_difference():
    job, strategy = VARIANTS["sparse"]()
    mine = json.loads(json.dumps(identity(job, "allreduce", strategy)))
    theirs = copy.deepcopy(mine)
    theirs["job"]["data"]["of_later"] = 2
    assert differences(theirs, mine) == ["its data.of_later is 2, here None"]


# what cannot be compared


def test_what_cannot_be_described_is_said(caplog):
    class Opaque:
        def __init__(self):
            self.own = memoryview(b"hidden")

        def at(self, iteration):
            return 0.1

    job, strategy = made(horn.SGD(Opaque())), strategies.make("allreduce")
    mine = identity(job, "allreduce", strategy)
    assert uncompared(mine, mine) == ["optimizer.learning_rate.own"]
    check_same("there", mine, mine, False)
    assert "not compared with this job: optimizer.learning_rate.own" in caplog.text


@pytest.mark.parametrize("odd", [7, [], {"class": 7, "network": 3}, None, "job"])
def test_what_horn_did_not_write_is_refused_in_a_sentence(odd):
    job, strategy = VARIANTS["sparse"]()
    mine = identity(job, "allreduce", strategy)
    sources = dict.fromkeys(mine["sources"], odd)
    for theirs in (
        {**mine, "job": odd}, {**mine, "sources": sources},
        *({k: v for k, v in mine.items() if k != key} for key in mine),
    ):  # fmt: skip
        with pytest.raises(CheckpointError):
            check_same("there", theirs, mine, False)


# digests


def test_equal_values_have_equal_digests_wherever_they_lie(tmp_path, rng):
    x = rng.random((700, 33)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    wide = np.zeros((700, 50), np.float32)
    wide[:, 5:38] = x
    same = [x, np.load(tmp_path / "x.npy", mmap_mode="r"), np.asfortranarray(x), wide[:, 5:38],
            x.astype(">f4")]  # fmt: skip
    assert len({digest(array) for array in same}) == 1
    assert digest(x[:0]) != digest(x) and digest(np.float64(2.0).reshape(())) != digest(x)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_any_changed_value_gives_another_digest(dtype, rng):
    x = rng.integers(0, 200, (70_000, 5)).astype(dtype)
    was = digest(x)
    for place in (0, 1, 174_999, 262_144, 349_999):
        x.flat[place] += 1
        assert digest(x) != was
        x.flat[place] -= 1
    x[[0, -1]] = x[[-1, 0]]
    assert digest(x) != was
    assert digest(x.reshape(5, 70_000)) != digest(x) != digest(x.astype("float16"))


def test_of_a_large_file_only_so_much_is_read(tmp_path, rng):
    x = rng.integers(0, 256, (24, 1 << 20), np.uint8)
    np.save(tmp_path / "x.npy", x)
    there = np.load(tmp_path / "x.npy", mmap_mode="r")
    said = digest(there, max_file_bytes=4 << 20)
    assert said.endswith(" of 4 of 24 blocks") and said != digest(x)
    assert digest(x, max_file_bytes=4 << 20) == digest(x)  # what is in memory is read
    assert digest(there, max_file_bytes=24 << 20) == digest(x)
    for row, differs in ((0, True), (23, True), (7, True), (15, True), (3, False)):
        other = x.copy()
        other[row, 9] ^= 1
        np.save(tmp_path / "other.npy", other)
        found = digest(np.load(tmp_path / "other.npy", mmap_mode="r"), max_file_bytes=4 << 20)
        assert (found != said) == differs
