"""A model and its file: what is saved is what is loaded, from the file alone."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import horn
from horn import backends, modelfile
from horn.connections import Edges
from horn.description import Description, rebuild
from horn.errors import DataError, ModelError, NotFound
from horn.model import Model
from horn.own_lines import OwnLines
from horn.sources import is_user_file
from tests.support.room import no_room

HERE = Path(__file__).parent
X3 = np.random.default_rng(5).normal(size=(20, 3))
INITIALISERS = """
import horn

class Small(horn.Normal):
    pass

def half(z):
    return z / 2

class Scaled:
    def __init__(self, base, change, factors):
        self.base, self.change, self.factors = base, change, factors

    def values(self, shape, fan_in, fan_out, rng):
        return self.change(self.base.values(shape, fan_in, fan_out, rng)) * self.factors.sum()

class Fixed:
    def __init__(self, array):
        self.array = array

    def values(self, shape, fan_in, fan_out, rng):
        return self.array
"""


@pytest.fixture
def userland(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """tests/api/userland.py imported from a folder that the test may remove."""
    folder = tmp_path / "src"
    folder.mkdir()
    shutil.copy(HERE / "userland.py", folder)
    (folder / "helper_of_userland.py").write_text(
        "import horn\n\nFACTOR = 2.0\n\ndef steep(z):\n    return FACTOR * z\n"
    )
    (folder / "this-file-is-removed").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    module = importlib.import_module("userland")
    yield module
    for name in ("userland", "helper_of_userland"):
        sys.modules.pop(name, None)


def of_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, neuron: str
) -> horn.Network:
    """Two neurons of a class in a file, which sum three inputs."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    net = horn.Network(seed=1)
    net.input(3)
    cls = getattr(importlib.import_module(module), neuron)
    net.output(2, neuron=cls, init=1.0, bias=False, loss="squared_error")
    return net


def model_of(network: horn.Network, **options: Any) -> Model:
    parameters = network.initial_parameters(options.get("dtype", "float32"))
    return Model(network, parameters, network.initial_states(), **options)


def dense(seed: int = 1) -> horn.Network:
    net = horn.Network(seed=seed)
    net.input(3)
    net.layer(4, activation="tanh")
    net.output(2, activation="softmax", loss="cross_entropy")
    return net


def test_a_saved_model_is_loaded_as_it_was(tmp_path: Path) -> None:
    net = dense()
    model = model_of(net, dtype="float64", facts={"iteration": 7})
    model.save(tmp_path / "a.horn")
    again = Model.load(tmp_path / "a.horn")
    assert again.dtype == "float64" and again.facts == {"iteration": 7}
    assert [layer.size for layer in again.network.layers] == [3, 4, 2]
    assert again.network.last.activation_name == "softmax"
    assert again.network.last.loss is net.last.loss
    assert again.parameters.keys() == model.parameters.keys()
    for name, value in model.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value)


def test_user_code_works_when_its_file_is_gone(userland: ModuleType, tmp_path: Path) -> None:
    model_of(userland.network()).save(tmp_path / "u.horn")
    shutil.rmtree(tmp_path / "src")
    sys.modules.pop("userland")
    sys.modules.pop("helper_of_userland")

    net = Model.load(tmp_path / "u.horn").network
    first, square, last = net.layers[1:]
    assert first.neuron.__name__ == "Leaky" and first.neuron.slope == 1.0
    assert list(first.parameters) == ["gain"] and list(first.states) == ["trace"]
    assert first.activation(1.0) == pytest.approx(1.0 / (1.0 + np.exp(-2.0)))
    assert square.activation(3.0) == 9.0 and square.activation.derivative_at(3.0) == 6.0
    assert last.interlayer is not None and last.loss is not None
    np.testing.assert_allclose(last.interlayer(np.array([1.0, 3.0])), [0.25, 0.75])
    assert last.loss.name == "halved" and last.loss.f(3.0, 1.0) == 1.0
    # the compiler and the caret of its messages read the source through inspect
    assert "def forward(self, messages):" in inspect.getsource(first.neuron)
    assert inspect.getsource(first.neuron.forward).startswith("    def forward")
    assert inspect.getsource(last.interlayer).startswith("def unit(output):")
    assert inspect.getsourcefile(first.neuron).endswith("u.horn/userland.py")


def test_sparse_connections_are_saved_not_drawn_again(userland: ModuleType, tmp_path: Path) -> None:
    net = userland.network()
    model_of(net).save(tmp_path / "u.horn")
    edges = Model.load(tmp_path / "u.horn").network.layers[2].links[0].edges
    assert edges is not None
    np.testing.assert_array_equal(edges.indices, net.layers[2].links[0].edges.indices)


def test_neurons_defined_in_a_function_are_saved_with_the_numbers_they_read(
    userland: ModuleType, tmp_path: Path
) -> None:
    model_of(userland.nested(3.0)).save(tmp_path / "n.horn")
    shutil.rmtree(tmp_path / "src")
    last = Model.load(tmp_path / "n.horn").network.last
    assert last.activation(2.0) == 6.0
    assert last.neuron.__name__ == "Inner"
    assert "class Inner" in inspect.getsource(last.neuron)


def test_class_constants_are_saved_as_they_were_when_training(
    userland: ModuleType, tmp_path: Path
) -> None:
    userland.Leaky.slope = 0.125
    model_of(userland.network()).save(tmp_path / "a.horn")
    userland.Leaky.slope = 0.5
    model_of(userland.network()).save(tmp_path / "b.horn")
    a, b = (Model.load(tmp_path / name).network.layers[1].neuron for name in ("a.horn", "b.horn"))
    assert (a.slope, b.slope) == (0.125, 0.5)


def test_a_class_constant_may_be_nan(userland: ModuleType, tmp_path: Path) -> None:
    userland.Leaky.slope = math.nan
    model_of(userland.network()).save(tmp_path / "nan.horn")
    assert math.isnan(Model.load(tmp_path / "nan.horn").network.layers[1].neuron.slope)


@pytest.mark.cluster
def test_initialisers_of_the_user_are_kept_and_draw_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They became zeros: a network of the file that began anew never learned."""
    (tmp_path / "initialisers_of_a_test.py").write_text(INITIALISERS)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("initialisers_of_a_test")
    scaled = own.Scaled(own.Small(0.0, 0.1), own.half, np.array([1.0, 2.0]))
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, activation="tanh", init=scaled, bias=own.Small(1.0, 0.1))
    net.output(
        1, loss="squared_error", name="output", init=own.Fixed(np.array([[0.1, 0.2, 0.3, 0.4]]))
    )
    job = horn.Job(net, (X3, X3[:, :1]), epochs=1)
    expected = net.initial_parameters()
    horn.train(job, progress=False).model.save(tmp_path / "m.horn")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "initialisers_of_a_test")
    (tmp_path / "initialisers_of_a_test.py").unlink()
    for path in (tmp_path / "m.horn", tmp_path / "again.horn"):
        model = Model.load(path)
        found = model.network.initial_parameters()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        model.cut("output").save(tmp_path / "again.horn")
    assert expected["layer1.weight"].std() > 0.05


@pytest.mark.parametrize("backend", ["kernels", "python"])
def test_what_an_initialiser_of_a_file_was_is_named_where_it_would_be_drawn(
    backend: str, tmp_path: Path
) -> None:
    class Table:
        def __init__(self) -> None:
            self.source = object()

        def values(self, shape: Any, fan_in: int, fan_out: int, rng: Any) -> Any:
            return np.full(shape, 0.25)

        def __repr__(self) -> str:
            return "Table(a source)"

    net = horn.Network(seed=1)
    net.input(3)
    net.output(1, loss="squared_error", name="output", init=Table())
    job = horn.Job(net, (X3, X3[:, :1]), epochs=1)
    trained = horn.train(job, progress=False, backend=backend).model
    trained.save(tmp_path / "m.horn")
    model = Model.load(tmp_path / "m.horn")
    model.save(tmp_path / "again.horn")
    model = Model.load(tmp_path / "again.horn", backend=backend)
    np.testing.assert_array_equal(model.predict(X3), trained.predict(X3))
    with pytest.raises(ModelError, match=r"^output.weight: its initialiser \(Table, Table\(a sour"):
        horn.train(horn.Job(model.network, (X3, X3[:, :1]), epochs=1), progress=False)
    still = horn.Job(model.network, (X3, X3[:, :1]), horn.SGD(0.0), epochs=1, initial=model)
    found = horn.train(still, progress=False, backend=backend).model.parameters["output.weight"]
    np.testing.assert_array_equal(found, trained.parameters["output.weight"])


def test_files_in_which_initialisers_became_zeros_refuse_to_be_drawn(tmp_path: Path) -> None:
    net = horn.Network(seed=1)
    net.input(3)
    net.output(1, loss="squared_error", name="output")
    manifest = json.loads(json.dumps(Description.of(net).manifest))
    (link,) = manifest["network"]["layers"][1]["links"]
    link["init"] = {"name": "Constant", "value": 0.0, "was": "Small(mean=0.0, std=0.1)"}
    old = rebuild(manifest, {}, "old.horn")
    with pytest.raises(ModelError, match=r"^output.weight: its initialiser \(Small\(mean=0.0, std"):
        old.initial_parameters()
    given = {"output.weight": np.ones((1, 3))}
    np.testing.assert_array_equal(
        old.beginning_with(given, {}).initial_parameters()["output.weight"], np.ones((1, 3))
    )


@pytest.mark.cluster
def test_nothing_is_run_to_read_a_manifest(userland: ModuleType, tmp_path: Path) -> None:
    model_of(userland.network()).save(tmp_path / "u.horn")
    program = (
        "import sys; from horn import modelfile; "
        f"modelfile.read_manifest({str(tmp_path / 'u.horn')!r}); "
        "names = ('numpy', 'safetensors', 'horn.model', 'horn.sources'); "
        "print([name for name in names if name in sys.modules])"
    )
    root = Path(horn.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_neuron_whose_text_is_lost_is_not_saved(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"horn": horn, "__name__": "nowhere"}
    lines = ["class Ghost(horn.Neuron):", "    def forward(self, messages): pass"]
    exec("\n".join(lines), namespace)
    net = horn.Network()
    net.input(2)
    net.output(2, neuron=namespace["Ghost"])
    with pytest.raises(ModelError, match="source of Ghost cannot be read"):
        model_of(net).save(tmp_path / "g.horn")
    assert list(tmp_path.iterdir()) == []


def test_functions_of_math_are_saved_by_name_and_other_callables_are_not(tmp_path: Path) -> None:
    import functools
    import math

    net = horn.Network()
    net.input(2)
    net.output(2, activation=horn.Activation("tanh of math", math.tanh))
    model_of(net).save(tmp_path / "m.horn")
    assert Model.load(tmp_path / "m.horn").network.last.activation.f is math.tanh

    net = horn.Network()
    net.input(2)
    net.output(2, activation=horn.Activation("part", functools.partial(math.pow, 2.0)))
    with pytest.raises(ModelError, match="neither a function nor a class"):
        model_of(net).save(tmp_path / "p.horn")


def test_views_survive_saving(tmp_path: Path) -> None:
    """safetensors 0.8.0 writes a view's memory, not its values."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6)).astype(np.float32)
    views = {"t": w.T, "f": np.asfortranarray(w), "s": w[::2, 1::2], "r": w[::-1], "e": w[:0].T}
    modelfile.write(tmp_path / "v.horn", {"horn": "0"}, views)
    _, arrays = modelfile.read(tmp_path / "v.horn")
    for name, view in views.items():
        np.testing.assert_array_equal(arrays[name], view)


def test_arrays_are_checked_without_numpy_as_they_are_when_they_are_read(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?".split()
    arrays = {f"of {kind}": (100 * rng.random((2, 3))).astype(kind) for kind in kinds}
    arrays |= {"scalar": np.array(2.5), "none": np.zeros((0, 4)), "é": rng.random(7)}
    path = tmp_path / "m.horn"
    modelfile.write(path, {"horn": "0"}, arrays)
    monkeypatch.setattr(modelfile, "PIECE_BYTES", 5)
    modelfile.check_arrays(path)
    whole = path.read_bytes()
    for at in range(1, 1 + sum(array.nbytes for array in arrays.values())):
        path.write_bytes(whole[:-at] + bytes([whole[-at] ^ 1]) + whole[len(whole) - at + 1 :])
        with pytest.raises(ModelError, match="is damaged"):
            modelfile.check_arrays(path)


def test_the_names_of_parameters_show_as_names() -> None:
    keys = model_of(dense()).parameters.keys()
    assert "layer1.bias" in repr(keys) and "array" not in repr(keys)


def test_parameters_cannot_be_changed_behind_the_models_back() -> None:
    model = model_of(dense())
    with pytest.raises(ValueError, match="read-only"):
        model.parameters["layer1.bias"][0] = 1.0
    with pytest.raises(TypeError, match=r"cannot be written; .* model.with_arrays\({'layer1") as e:
        model.parameters["layer1.bias"] = np.zeros(4)  # type: ignore[index]
    assert isinstance(e.value, OwnLines)  # a notebook shows the user's line alone
    with pytest.raises(KeyError, match=r"layer9.bias is not among .*: layer1.weight, layer1.b"):
        model.parameters["layer9.bias"]
    assert "layer9.bias" not in model.parameters and model.parameters.get("layer9.bias") is None


def test_a_model_with_other_arrays_has_all_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was to be made of model.network, which dropped normalization, classes and names."""
    x = np.random.default_rng(0).normal(size=(60, 4)) * [1, 10, 100, 1] + [5, 0, 300, 1]
    net = horn.Network(seed=1)
    net.input(4)
    net.layer(5, neuron=horn.neurons.Standard)
    net.output(2, activation="softmax", loss="cross_entropy")
    job = horn.Job(net, (x, np.array(["cat", "dog"])[(x[:, 0] > 5) * 1]), horn.SGD(0.5), epochs=3,
                   normalize=True, dtype="float64", metrics=["f1"])  # fmt: skip
    model = horn.train(job, progress=False).model
    back = model.with_arrays({**model.parameters, **model.states})
    np.testing.assert_array_equal(back.predict(x), model.predict(x))
    assert back.predict(x[:3], labels=True).tolist() == model.predict(x[:3], labels=True).tolist()
    assert back.metrics == model.metrics and "metrics" not in back.facts
    moved = model.with_arrays({"layer2.bias": model.parameters["layer2.bias"] + [0.0, 50.0]})
    assert set(moved.predict(x, labels=True)) == {"dog"}
    moved.save(tmp_path / "m.horn")
    loaded = Model.load(tmp_path / "m.horn")
    np.testing.assert_array_equal(loaded.predict(x), moved.predict(x))
    np.testing.assert_array_equal(loaded.with_arrays(model.parameters).predict(x), model.predict(x))
    with pytest.raises(ModelError, match="do not fit the network: layer9.bias unknown to it$"):
        model.with_arrays({"layer9.bias": np.zeros(2)})
    with pytest.raises(ModelError, match="with_arrays takes a dict of arrays by name, as"):
        model.with_arrays([np.zeros(2)])  # type: ignore[arg-type]
    with pytest.raises(
        ModelError, match=r"is a horn.Network, got .*; a model with other arrays is"
    ):
        Model(model, model.parameters)  # type: ignore[arg-type]
    assert not caplog.records
    Model(model.network, model.parameters)
    assert "network alone is taken, not its normalization, classes" in caplog.text


def test_arrays_that_a_model_was_given_may_go_on_being_written() -> None:
    """They were shared until the model was first asked."""
    net = horn.Network()
    net.input(2)
    net.output(1, activation="identity", loss="squared_error")
    weight, fixed = np.ones((1, 2), np.float32), np.zeros(1, np.float32)
    fixed.flags.writeable = False
    model = horn.Model(net, {"layer1.weight": weight, "layer1.bias": fixed}, target="values")
    weight[:] = 5.0
    assert model.predict(np.ones((1, 2))).item() == 2.0
    assert np.shares_memory(model.parameters["layer1.bias"], fixed)


def test_nor_are_those_shared_that_others_may_write(tmp_path: Path) -> None:
    net = horn.Network()
    net.input(2)
    net.output(1, activation="identity", loss="squared_error")
    weight = np.ones((1, 2), np.float32)
    view, mapped = weight.view(), np.memmap(tmp_path / "bias", np.float32, "w+", shape=(1,))
    view.flags.writeable = mapped.flags.writeable = False
    model = horn.Model(net, {"layer1.weight": view, "layer1.bias": mapped}, target="values")
    weight[:] = 5.0
    assert model.predict(np.ones((1, 2))).item() == 2.0
    assert model.parameters["layer1.weight"].tolist() == [[1.0, 1.0]]
    assert not np.shares_memory(model.parameters["layer1.bias"], mapped)
    only_read = np.memmap(tmp_path / "bias", np.float32, "r", shape=(1,))
    model = horn.Model(net, {"layer1.weight": weight, "layer1.bias": only_read}, target="values")
    assert np.shares_memory(model.parameters["layer1.bias"], only_read)


def test_what_a_model_has_alone_is_not_copied(tmp_path: Path) -> None:
    trained = horn.train(horn.Job(dense(), (np.ones((4, 3)), np.arange(4) % 2), epochs=1)).model
    trained.save(tmp_path / "m.horn")
    for model in (trained, horn.Model.load(tmp_path / "m.horn")):
        whole = model.parameters["layer1.weight"]
        for other in (model.cut("layer1"), model.with_arrays({})):
            assert np.shares_memory(other.parameters["layer1.weight"], whole)


def test_arrays_that_do_not_fit_the_network_are_refused() -> None:
    net = dense()
    parameters = net.initial_parameters()
    with pytest.raises(ModelError, match="layer1.bias has shape"):
        Model(net, {**parameters, "layer1.bias": np.zeros(9)})
    with pytest.raises(ModelError, match=r"do not fit the network: layer9.bias"):
        Model(net, {**parameters, "layer9.bias": np.zeros(9)})
    size = parameters["layer1.bias"].shape
    for odd, said in (
        (np.full(size, "a"), "parameter layer1.bias holds text"),
        (np.full(size, 1j), "parameter layer1.bias holds complex numbers"),
        (np.ma.masked_array(np.ones(size), True), "parameter layer1.bias is masked at row 0"),
    ):
        with pytest.raises(DataError, match=said):
            Model(net, {**parameters, "layer1.bias": odd})


def with_manifest(path: Path, changes: dict[str, Any]) -> None:
    """Write other fields into the manifest of a model file, with the digest that fits."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(json.loads(header["__metadata__"]["horn"]) | changes)
    digest = hashlib.sha256(text.encode()).hexdigest()
    header["__metadata__"] |= {"horn": text, "horn_sha256": digest}
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + length :])


@pytest.mark.parametrize("form", [1, 2, 3])
def test_files_of_earlier_formats_are_read_and_no_new_one_is_of_them(
    form: int, tmp_path: Path
) -> None:
    """Horns that refuse only other numbers than theirs read format 1, 2 or 3, whatever is in it."""
    path, model = tmp_path / "m.horn", model_of(dense())
    model.save(path)
    assert modelfile.read_manifest(path)["format"] == 4
    with_manifest(path, {"format": form})
    x = np.eye(3)
    np.testing.assert_array_equal(Model.load(path).predict(x), model.predict(x))


def damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    if how == "empty":
        content = bytearray()
    elif how == "foreign":
        content = bytearray(b"PK\x03\x04 this is a zip file, or so it says, and no model at all")
    elif how == "cut":
        content = content[:-5]
    elif how == "cut in the header":
        content = content[: length // 2]
    elif how == "longer":
        content += b"more"
    elif how == "a flipped bit in a weight":
        content[-3] ^= 4
    elif how == "a flipped bit in the source":
        content[content.index(b"softmax")] ^= 1
    elif how == "safetensors of another program":
        header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
        content = bytearray(len(header).to_bytes(8, "little") + header)
    elif how == "another format":
        with_manifest(path, {"format": 99, "horn": "9.0"})
        return
    path.write_bytes(content)


@pytest.mark.parametrize(
    "part, value, said",
    [
        ("indices", 4, "listens to source 4, but the layer below has neurons 0..3"),
        ("indices", -5, "listens to source -5"),
        ("indices", 10**9, "listens to source 1000000000"),
        ("indptr", 7, "indptr must have 4 entries from 0 to 6"),
        ("weight", 2, "a synapse has weight 2"),
    ],
)
def test_synapses_of_a_file_that_are_outside_its_layers_are_refused(
    part: str, value: int, said: str, tmp_path: Path
) -> None:
    """Kernels check no index: they read what lay behind the sources, or were ended by a signal."""

    class Halves:
        def edges(self, n_sources: int, n_receivers: int, rng: Any) -> Edges:
            indices = np.tile([0, n_sources - 1], n_receivers)
            weight = np.tile([0, 1], n_receivers)
            return Edges(2 * np.arange(n_receivers + 1), indices, weight, (2,))

    net = horn.Network(seed=1)
    net.input(4)
    net.layer(3, activation="tanh", connect=Halves())
    net.output(2, activation="identity", loss="squared_error")
    path, data = tmp_path / "m.horn", (np.ones((4, 4)), np.ones((4, 2)))
    horn.train(horn.Job(net, data, epochs=1)).model.save(path)
    manifest, arrays = modelfile.read(path)
    Model.load(path)
    array = arrays[f"layer1.weight/{part}"].copy()
    array[-1] = value
    modelfile.write(path, manifest, {**arrays, f"layer1.weight/{part}": array})
    for read in (Model.load, lambda path: horn.Job(net, data, initial=path)):
        with pytest.raises(ModelError, match=said) as caught:
            read(path)
        assert str(path) in str(caught.value) and "is damaged" in str(caught.value)


def test_a_layer_of_a_file_of_another_size_than_its_windows_is_refused(tmp_path: Path) -> None:
    net = horn.Network(seed=1)
    net.input((4, 4, 1))
    net.layer(connect=horn.Local(channels=1, kernel=2), activation="tanh")
    net.output(2, activation="identity", loss="squared_error")
    path = tmp_path / "m.horn"
    data = np.ones((4, 4, 4, 1)), np.ones((4, 2))
    horn.train(horn.Job(net, data, epochs=1)).model.save(path)
    network = modelfile.read_manifest(path)["network"]
    network["layers"][1] |= {"size": 90, "shape": [9, 10, 1]}
    with_manifest(path, {"network": network})
    with pytest.raises(ModelError, match="has 9 receivers, not 90.*is damaged"):
        Model.load(path)


@pytest.mark.parametrize(
    "how, message",
    [
        ("empty", "is no model file"),
        ("foreign", "is no model file|cut short or no model file"),
        ("cut", "is cut short"),
        ("cut in the header", "is cut short"),
        ("longer", "has bytes too many"),
        ("a flipped bit in a weight", "its numbers are not those that were saved"),
        ("a flipped bit in the source", "its description has changed"),
        ("safetensors of another program", "not one that horn wrote"),
        ("another format", "is of format 99, .* reads formats 1 to 4; .*version 9.0.* newer one"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(how: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.horn"
    model_of(dense()).save(path)
    damaged(path, how)
    with pytest.raises(ModelError, match=message) as caught:
        Model.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        Model.load(tmp_path / "none.horn")
    with pytest.raises(ModelError, match="is a folder"):
        Model.load(tmp_path)


def test_a_save_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.horn"
    model_of(dense(seed=1)).save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ModelError, match="No space left on device.; choose another place"):
        model_of(dense(seed=2)).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.horn"]
    assert path.read_bytes() == before


def test_a_disk_that_is_full_while_the_arrays_are_written_is_named_with_the_file(
    tmp_path: Path,
) -> None:
    """safetensors tells of it with an error of its own, which has no path."""
    model = model_of(dense())
    with (
        no_room(100),
        pytest.raises(ModelError, match=r"m\.horn: cannot be written \(.*too large"),
    ):
        model.save(tmp_path / "m.horn")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_saved_is_kept_and_the_place_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    model = model_of(dense())
    for place, why in {
        tmp_path / "no" / "m.horn": "the folder .*/no does not exist; make it first",
        tmp_path: "is a folder; name a file",
        tmp_path / "pipe": "is a device or a pipe",
        Path("/dev/full"): "is a device or a pipe",
        Path("/proc/m.horn"): "the folder /proc cannot be written to",
        tmp_path / ("m" * 300): "the name is too long for a file; name another",
    }.items():
        with pytest.raises(ModelError, match=why) as caught:
            model.save(place)
        (kept,) = re.findall("the model is kept in (.*): move it from there", str(caught.value))
        np.testing.assert_array_equal(
            Model.load(kept).parameters["layer1.weight"], model.parameters["layer1.weight"]
        )
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_model_is_kept_where_the_current_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost to a FileNotFoundError."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ModelError, match="cannot be written to") as caught:
        model_of(dense()).save("m.horn")
    (kept,) = re.findall("the model is kept in (.*): move it from there", str(caught.value))
    assert Model.load(kept).parameters


def test_the_mask_of_new_files_is_as_it_was_while_a_model_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads make files meanwhile."""
    model, set_mask, masks = model_of(dense()), os.umask, list[int]()
    before = set_mask(0o027)
    monkeypatch.setattr(os, "umask", lambda mask: masks.append(mask) or set_mask(mask))
    try:
        model.save(tmp_path / "m.horn")
    finally:
        set_mask(before)
    assert masks == []
    assert (tmp_path / "m.horn").stat().st_mode & 0o777 == 0o640


def test_a_model_in_the_place_of_another_users_is_refused_before_training(tmp_path, monkeypatch):
    """In a folder such as /tmp: it was not readable, or could not be replaced at the end."""
    path = tmp_path / "m.horn"
    path.touch()
    tmp_path.chmod(0o1777)
    modelfile.check_writable(path)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 54321)
    with pytest.raises(ModelError, match="is another user's"):
        modelfile.check_writable(path)


def test_a_disk_without_room_is_known_before(tmp_path: Path) -> None:
    modelfile.check_writable(tmp_path / "m.horn", 1000)
    with pytest.raises(ModelError, match="bytes left, and the model takes about 1,152,9"):
        modelfile.check_writable(tmp_path / "m.horn", 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link_to_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "m.horn").symlink_to(tmp_path / "store" / "real.horn")
    model_of(dense()).save(tmp_path / "m.horn")
    assert (tmp_path / "m.horn").is_symlink() and Model.load(tmp_path / "store" / "real.horn")


def test_evaluate_checks_the_data() -> None:
    model = model_of(dense())
    with pytest.raises(DataError, match="data: 4 features .* this model learned from 3; x.shape"):
        model.evaluate(np.ones((2, 4)), np.array([0, 1]))
    with pytest.raises(DataError, match="classes 0..1"):
        model.evaluate(np.ones((2, 3)), np.array([0, 2]))
    with pytest.raises(DataError, match="x: 4 features .* Pass the same 3 features"):
        model.predict(np.ones((2, 4)))


def test_a_model_without_a_loss_cannot_be_evaluated() -> None:
    net = horn.Network()
    net.input(3)
    net.layer(2)
    with pytest.raises(
        ModelError, match="has no loss, so there is nothing to evaluate; use predict"
    ):
        model_of(net).evaluate(np.ones((2, 3)))


def test_summary_says_how_each_layer_runs() -> None:
    lines = model_of(dense()).summary().splitlines()
    assert lines[0].split() == ["layer", "neuron", "units", "parameters", "runs", "as"]
    assert lines[2].split() == "layer1 Standard, tanh 4 16 matrix products".split()


@horn.interpreted
class Median(horn.Neuron):
    """No array program."""

    def forward(self, messages: Any) -> None:
        values = sorted((m.input * m.weight for m in messages), key=float)
        self.feedforward(values[len(values) // 2])


def test_summary_of_an_interpreted_network_measures_how_much_slower_it_is() -> None:
    net = horn.Network()
    net.input(3)
    net.layer(4, neuron=Median)
    net.output(2, activation="softmax", loss="cross_entropy")
    said = model_of(net).summary()
    assert re.search(r"^layer1 .* message by message, [\d,]+x slower$", said, re.M), said


@pytest.mark.parametrize("interpreted", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize("asked", ["kernels", "reference", "python"])
def test_a_model_says_which_backend_ran(
    asked: str, interpreted: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One interpreted neuron is enough: the whole network then runs in the interpreter."""
    ran = []
    train = importlib.import_module("horn.train")
    make = train.make

    def noting(backend: str, setup: Any) -> Any:
        engine = make(backend, setup)
        ran.append(type(engine))
        return engine

    monkeypatch.setattr(train, "make", noting)
    net = horn.Network()
    net.input(3)
    net.layer(2, neuron=Median if 1 in interpreted else horn.Standard)
    net.output(1, neuron=Median if 2 in interpreted else horn.Standard, loss="squared_error")
    job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 1))), batch_size=2, iterations=1)
    model = horn.train(job, backend=asked).model
    said = next(name for name in backends.names() if ran[0] is backends.load(name))
    assert said == ("python" if interpreted else asked)
    assert model.backend == said and model.facts["backend"] == said
    model.save(tmp_path / "m.horn")
    loaded = horn.Model.load(tmp_path / "m.horn", backend=asked)
    assert loaded.backend == said and loaded.facts["backend"] == said
    assert type(loaded._engines._ready("answers")) is backends.load(said)


class Noisy(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) + self.normal())


@pytest.mark.parametrize("steps", [None, 3])
def test_rows_of_later_pieces_of_a_prediction_draw_their_own_numbers(monkeypatch, steps) -> None:
    """It was repeated every 1,024 samples, where evaluate went on."""
    net = horn.Network(seed=3)
    net.input(2, steps=steps)
    net.output(1, neuron=Noisy, loss="squared_error")
    x, y = np.zeros((40, *([3] if steps else []), 2)), np.zeros((40, 1))
    parameters = {"layer1.weight": np.zeros((1, 2)), "layer1.bias": np.zeros(1)}
    found = {}
    for backend in ("kernels", "reference", "python"):
        for rows in (1024, 16):
            monkeypatch.setattr("horn.model_engines.CHUNK_ROWS", rows)
            model = horn.Model(net, parameters, dtype="float64", backend=backend)
            found[backend, rows] = answers = model.predict(x)
            assert len(np.unique(answers)) == 40
            loss = model.evaluate(x, y)["loss"]
            np.testing.assert_allclose(loss, (answers**2).mean() / 2, rtol=1e-9)
    for answers in found.values():
        np.testing.assert_allclose(answers, found["kernels", 1024], rtol=1e-12)


def test_predict_and_evaluate_agree_with_each_other_on_every_backend() -> None:
    net = dense()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3000, 3)), rng.integers(0, 2, 3000)
    found = {}
    for backend in ("kernels", "reference"):
        model = model_of(net, dtype="float64", backend=backend)
        outputs = model.predict(x)
        assert outputs.shape == (3000, 2)
        np.testing.assert_array_equal(model.predict(x, labels=True), outputs.argmax(axis=1))
        found[backend] = model.evaluate(x, y)
        assert found[backend]["acc"] == (outputs.argmax(axis=1) == y).mean()
        expected = -np.log(outputs[np.arange(3000), y]).mean()
        assert found[backend]["loss"] == pytest.approx(expected, rel=1e-12)
    assert found["kernels"] == pytest.approx(found["reference"], rel=1e-12)


def test_bytes_are_scaled_as_the_bytes_it_learned_from() -> None:
    digits = horn.data.digits("test").take(50)
    digits = horn.data.Dataset((digits.x * 16).astype(np.uint8), digits.y, 1 / 16)
    net = horn.Network()
    net.input(64)
    net.output(10, activation="softmax", loss="cross_entropy")
    model = horn.train(horn.Job(net, digits, epochs=1)).model
    assert model.facts["scale"] == 1 / 16
    raw = np.array(digits.x)
    np.testing.assert_array_equal(model.predict(raw), model.predict(digits))
    np.testing.assert_allclose(model.predict(raw / 16), model.predict(digits), rtol=1e-5)


def test_a_model_keeps_its_layers() -> None:
    """One that was added made another network of it, whose arrays the model had not."""
    data = np.zeros((4, 2)), np.arange(4) % 2
    net = horn.Network()
    net.input(2)
    net.output(2, activation="softmax", loss="cross_entropy")
    model = horn.train(horn.Job(net, data, epochs=1)).model
    with pytest.raises(ModelError, match=r"layer2: a model's network .*, initial=model\)"):
        model.network.output(3)
    net.output(3)
    assert model.predict(data[0]).shape == (4, 2)


def test_data_in_other_units_than_the_training_data_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The accuracy of one was 0.10 instead of 0.97, without a word; so was that of a file."""
    raw, y = np.array(horn.data.digits("test").take(50).x * 16, np.uint8), np.arange(50) % 10
    net = horn.Network()
    net.input(64)
    net.output(10, activation="softmax", loss="cross_entropy")

    def warned(learned: np.ndarray, *asked: Any) -> list[str]:
        horn.train(horn.Job(net, (learned, y), epochs=1)).model.save(tmp_path / "m.horn")
        model = Model.load(tmp_path / "m.horn")
        caplog.clear()
        for x in asked:
            model.predict(x)
        return [record.getMessage() for record in caplog.records]

    [said] = warned(raw.astype(float), raw, raw)
    assert said == (
        "x: bytes count 0.00392157 each, 1 at most, but the training data have numbers up to 16: "
        "pass x.astype(float), or x in this unit"
    )
    [said] = warned(raw, raw.astype(float), 2.0 * raw)
    assert (
        "has numbers up to 16, but the bytes of the training data" in said
        and "0.00392157 each, 1 at" in said
    )
    assert not warned(raw, raw, raw / 255, np.zeros((0, 64)), -1.0 * raw)
    assert not warned(raw / 255, horn.data.Dataset(raw, None, 1 / 255), raw, 255.0 * raw, raw > 1)
    for name, x in (("bytes", raw), ("numbers", raw.astype(float))):
        np.savez(tmp_path / f"{name}.npz", x=x)
    rows = [",".join(map(str, row)) for row in raw.tolist()]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    small, large = (horn.data.load(str(tmp_path / f"{each}.npz")) for each in ("bytes", "numbers"))
    table = horn.data.load(str(tmp_path / "rows.csv"), labels=False)  # bytes whose unit is 1
    assert (table.x.dtype, table.scale) == (np.uint8, 1.0)
    [said] = warned(raw.astype(float), table, small, small)
    assert said.startswith(
        f"{small.name}: bytes count 0.00392157 each, 1 at most, but the training"
    )
    [said] = warned(raw, table, large, large)
    assert said.startswith(f"{large.name}: has numbers up to 16, but the bytes of the training")
    assert not warned(raw, horn.data.Dataset(raw.astype(float), None, 1 / 255))


def test_a_stream_warns_of_other_units(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    raw = np.arange(0, 120, 5, dtype=np.uint8).reshape(4, 3, 2)
    net = horn.Network()
    net.input(2, steps=3)
    net.output(2, activation="softmax", loss="cross_entropy")
    model = horn.train(horn.Job(net, (raw.astype(float), [0, 1, 0, 1]), epochs=1)).model
    np.savez(tmp_path / "x.npz", x=raw[0])
    for x in (raw[0], raw[0, 0], horn.data.load(str(tmp_path / "x.npz"))):
        stream, _ = Model(net, model.parameters, facts=model.facts).stream(), caplog.clear()
        answers = stream(x), stream(x)
        [said] = [record.getMessage() for record in caplog.records]
        assert "bytes count 0.00392157 each, 1 at most, but the training data have numbers" in said
        assert answers[0].shape == (*np.shape(x)[:-1], 2) or answers[0].shape == (3, 2)


def test_a_model_computes_with_the_numbers_that_it_learned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its file does. A cell that sets another number made another model of it, unless it had
    been asked before.
    """
    (tmp_path / "later.py").write_text(
        "import horn\n\nFACTOR, LIMIT = 2.0, 0.5\n\n\nclass Scaled(horn.Neuron):\n    own = 3.0\n\n"
        "    def forward(self, messages):\n"
        "        self.feedforward(FACTOR * self.own * sum(m.input * m.weight for m in messages))\n"
        "\n\ndef large(y_true, y_pred):\n    return (y_pred > LIMIT).mean()\n"
    )
    net = of_file(tmp_path, monkeypatch, "later", "Scaled")
    later = sys.modules["later"]
    x = np.random.default_rng(0).random((20, 3))
    job = horn.Job(net, (x, x[:, :2]), horn.SGD(0.001), epochs=1, dtype="float64",
                   metrics=[later.large])  # fmt: skip
    models = [horn.train(job).model for _ in range(2)]
    models[0].save(tmp_path / "m.horn")
    expected = models[0].predict(x)
    np.testing.assert_allclose(expected, 6.0 * x @ models[0].parameters["layer1.weight"].T)
    measured = models[0].evaluate(x, x[:, :2])
    later.FACTOR, later.LIMIT, later.Scaled.own = 0.5, 100.0, 7.0
    assert measured["large"] > 0.0
    for model in (models[1], Model.load(tmp_path / "m.horn")):
        np.testing.assert_array_equal(model.predict(x), expected)
        np.testing.assert_array_equal(model.activations(x, "layer1"), expected)
        assert model.evaluate(x, x[:, :2]) == measured
    again = models[1].with_arrays(models[1].parameters)
    np.testing.assert_array_equal(again.predict(x), expected)
    now = Model(net, models[1].parameters, dtype="float64")
    np.testing.assert_allclose(now.predict(x), expected * 3.5 / 6.0)
    sys.modules.pop("later")


def test_state_is_saved_and_read_by_predict(userland: ModuleType, tmp_path: Path) -> None:
    net = userland.network()
    x = np.random.default_rng(0).random((30, 5), np.float32)
    targets = np.random.default_rng(1).random((30, 2), np.float32)
    model = horn.train(horn.Job(net, (x, targets), optimizer=horn.SGD(0.01), epochs=2)).model
    assert not np.array_equal(model.states["first.trace"], np.zeros(4))
    model.save(tmp_path / "m.horn")
    again = Model.load(tmp_path / "m.horn")
    np.testing.assert_array_equal(again.states["first.trace"], model.states["first.trace"])
    np.testing.assert_array_equal(again.predict(x), model.predict(x))


def test_a_table_that_is_filled_at_module_level_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods that change what a neuron reads are part of it; those of other things are not."""
    (tmp_path / "filled.py").write_text(
        "import horn\n"
        "import pathlib\n"
        "FACTORS, seen = [2.0], []\n"
        "for k in (1.5, 4.0):\n"
        "    FACTORS.append(k)\n"
        "FACTORS.reverse()\n"
        "pathlib.Path('ran').touch(exist_ok=False)\n"
        "seen.append(FACTORS.copy())\n"
        "class Filled(horn.Neuron):\n"
        "    def forward(self, messages):\n"
        "        self.feedforward(sum(m.input * m.weight for m in messages) * FACTORS[0])\n"
    )
    net = of_file(tmp_path, monkeypatch, "filled", "Filled")
    model_of(net).save("m.horn")
    x = np.ones((1, 3))
    expected = model_of(net).predict(x)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    (tmp_path / "filled.py").unlink()
    sys.modules.pop("filled")
    np.testing.assert_array_equal(Model.load("m.horn").predict(x), expected)


@pytest.mark.cluster
def test_a_script_may_save_a_model_of_its_own_neuron(tmp_path: Path) -> None:
    """Its module is __main__ while it runs, and its top level is not run again by loading."""
    (tmp_path / "script.py").write_text(
        """
import sys
import numpy as np
import horn

class Scaled(horn.Neuron):
    def forward(self, messages):
        self.feedforward(FACTOR * sum(m.input * m.weight for m in messages))

FACTOR = float(sys.argv[1])
net = horn.Network()
net.input(3)
net.output(2, neuron=Scaled, loss="squared_error", init=1.0, bias=False)
job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 2))), optimizer=horn.SGD(0.0), epochs=1)
horn.train(job).model.save(sys.argv[2])
"""
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), "2.5", str(tmp_path / "m.horn")],
        env={**os.environ, "PYTHONPATH": str(Path(horn.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "script.py").unlink()
    model = Model.load(tmp_path / "m.horn")
    np.testing.assert_allclose(model.predict(np.ones((1, 3))), [[7.5, 7.5]])


SCRIPT = """
import numpy as np
import horn

class Scaled(horn.Neuron):
    def forward(self, messages):
        net = FACTOR * sum(m.input * m.weight for m in messages)
        self.feedforward(net)

class Named(horn.Neuron):
    def forward(self, messages):
        self.feedforward(sum(m.input * m.weight for m in messages) * TABLE[0])

def once(job, name):
    open(name, "x").close()
    return horn.train(job, tasks=2)

FACTOR = 2.5
if __name__ == "__main__":
    TABLE = (1.0, 2.0)
    net = horn.Network(seed=1)
    net.input(3)
    net.layer(4, neuron=Named)
    net.output(2, neuron=Scaled, loss="squared_error")
    job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 2))), epochs=1)
    m = once(job, "first").model
    once(job.with_settings(initial=m, epochs=2), "second").model.save("m.horn")
"""


@pytest.mark.cluster
@pytest.mark.parametrize("main", ["guarded", "bare"])
def test_names_of_a_script_that_are_variables_of_its_neurons(
    main: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``m`` and ``net`` of the script are others than those of the neurons: neither tasks nor who
    loads the model train again.
    """
    text = SCRIPT
    if main == "bare":
        head, tail = SCRIPT.split('if __name__ == "__main__":\n')
        text = head + textwrap.dedent(tail)
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"],
        env={**os.environ, "PYTHONPATH": str(Path(horn.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "script.py").unlink()
    monkeypatch.chdir(tmp_path)
    assert Model.load("m.horn").predict(np.ones((1, 3))).shape == (1, 2)


def test_a_statement_that_trains_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teaches.py").write_text(
        "import horn, types\n"
        "class Taught(horn.Neuron):\n"
        "    def forward(self, messages):\n"
        "        self.feedforward(sum(m.input * m.weight for m in messages) * gain.of)\n"
        "def job(**neuron):\n"
        "    net = horn.Network(seed=1)\n"
        "    net.input(64)\n"
        '    net.output(10, activation="softmax", loss="cross_entropy", **neuron)\n'
        "    return horn.Job(net, horn.data.digits().take(32), epochs=1)\n"
        'gain = types.SimpleNamespace(of=horn.train(job()).history[-1]["loss"])\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    teaches = importlib.import_module("teaches")
    horn.train(teaches.job(neuron=teaches.Taught)).model.save(tmp_path / "m.horn")
    with pytest.raises(ModelError, match=r"teaches.py, line 10, gain = .* horn.train ran in a st"):
        Model.load(tmp_path / "m.horn")


def test_of_statements_that_share_a_line_those_that_are_needed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sharing.py").write_text(
        "import horn, pathlib\n"
        "from types import SimpleNamespace as Of\n"
        "base = Of(n=2.0)\n"
        "small = Of(n=base.n / 4); FACTOR = Of(n=small.n + 0.0); pathlib.Path('ran').mkdir()\n"
        "class Shared(horn.Neuron):\n"
        "    def forward(self, messages):\n"
        "        self.feedforward(sum(m.input * m.weight for m in messages) * FACTOR.n)\n"
    )
    net = of_file(tmp_path, monkeypatch, "sharing", "Shared")
    model_of(net).save("m.horn")
    np.testing.assert_array_equal(Model.load("m.horn").predict(np.ones((1, 3))), [[1.5, 1.5]])


def test_numbers_that_a_loop_sets_are_kept_and_the_loop_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loops.py").write_text(
        "import horn, types\n"
        "import numpy as np\n"
        "shared = types.SimpleNamespace(gain=1.0)\n"
        "class Bent(horn.Neuron):\n"
        "    slope = 1.0\n"
        "    def forward(self, messages):\n"
        "        total = sum(m.input * m.weight for m in messages)\n"
        "        self.feedforward(total * self.slope * shared.gain)\n"
        "for slope, k in ((0.5, 2), (0.25, 4)):\n"
        "    Bent.slope, shared.gain = slope, 8.0 * k\n"
        "    net = horn.Network(seed=1)\n"
        "    net.input(3)\n"
        "    net.output(2, neuron=Bent, init=1.0, bias=False, loss='squared_error')\n"
        "    job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 2))), horn.SGD(0.0), epochs=1)\n"
        "    horn.train(job).model.save(f'{k}.horn')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loops")
    x = np.ones((1, 3))
    np.testing.assert_array_equal(Model.load("2.horn").predict(x), [[24.0, 24.0]])
    np.testing.assert_array_equal(Model.load("4.horn").predict(x), [[24.0, 24.0]])


LATER = """
import types
import horn
import numpy as np

class Bent(horn.Neuron):
    def forward(self, messages):
        total = sum(m.input * m.weight for m in messages)
        self.feedforward(bent(total) * TABLE[0] * OF.gain)

def model():
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, neuron=Bent, init=1.0, bias=False, loss='squared_error')
    job = horn.Job(net, (np.ones((4, 3)), np.ones((4, 2))), horn.SGD(0.0), epochs=1)
    return horn.train(job).model

def bent(z):
    return 2.0 * z

OF = types.SimpleNamespace(gain=0.5)
for value in (3.0, 5.0):
    TABLE = [value]
    model().save(f"{value:.0f}.horn")

def bent(z):
    return 9.0 * z

OF, TABLE = types.SimpleNamespace(gain=7.0), [100.0]
open("ended", "x").close()
"""


def test_what_comes_later_in_a_file_is_not_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statements were run where it was loaded: other numbers, another function."""
    (tmp_path / "later.py").write_text(LATER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("later")
    assert Path("ended").exists()
    for value in (3.0, 5.0):
        found = Model.load(f"{value:.0f}.horn").predict(np.ones((1, 3)))
        np.testing.assert_array_equal(found, [[3.0 * value] * 2])


@pytest.mark.parametrize("steps", [None, 4])
def test_a_prediction_of_nothing_is_empty(steps):
    net = horn.Network(seed=1)
    net.input(2, **({"steps": steps} if steps else {}))
    net.layer(5)
    net.output(3, activation="softmax", loss="cross_entropy")
    shape = (6, steps, 2) if steps else (6, 2)
    x = np.linspace(0, 1, int(np.prod(shape))).reshape(shape)
    model = horn.train(horn.Job(net, (x, np.arange(6) % 3), epochs=1)).model
    nothing, some = x[:0], x[:1]
    for how in ({}, {"labels": True}, {"layer": "layer1"}):
        found, one = model.predict(nothing, **how), model.predict(some, **how)
        assert found.shape == (0, *one.shape[1:]) and found.dtype == one.dtype
    with pytest.raises(DataError, match="this model learned from|2 features at each step"):
        model.predict(np.empty((0, 4, 7) if steps else (0, 7)))
    with pytest.raises(DataError, match=r"evaluate: x has shape \(0, .*nothing to measure"):
        model.evaluate(nothing, np.empty(0, int))


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_is_installed_for_one_person_is_not_captured(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by pip install --user: a model file names such a module, and has its own file's text."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "bought.py").write_text("import no_such_module_here\n")
    monkeypatch.setitem(sys.modules, "no_such_module_here", ModuleType("nothing"))
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    (tmp_path / "own_neurons.py").write_text(
        "import bought\nimport horn\n\n\nclass Own(horn.Neuron):\n"
        "    kind = bought\n\n    def forward(self, messages):\n"
        "        self.feedforward(sum(m.input * m.weight for m in messages))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_neurons", "bought"):  # so that they are gone after the test
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        del sys.modules[name]
    own = importlib.import_module("own_neurons")
    net = horn.Network(seed=1)
    net.input(3)
    net.output(2, neuron=own.Own, loss="squared_error")
    model = horn.Model(net, net.initial_parameters(np.dtype("float32")))
    model.save(tmp_path / "m.horn")
    assert b"no_such_module_here" not in (tmp_path / "m.horn").read_bytes()
    assert not is_user_file(str(tmp_path / folder / "bought.py"))
    assert is_user_file(str(tmp_path / "own_neurons.py"))
    assert is_user_file(f"{os.path.dirname(os.__file__)}-course/neurons.py")
