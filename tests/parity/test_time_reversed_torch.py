"""Two layers of bidirectional LSTMs over packed sequences are PyTorch's, over 50 updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import horn

torch: Any = pytest.importorskip("torch", reason="PyTorch is what is compared with")

from tests.parity.test_time_torch import LSTM, near  # noqa: E402

FEATURES, SIZE, CLASSES, LAYERS = 3, 5, 4, 2
LENGTHS = [6, 1, 4, 6, 2, 3]


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fifty_updates(dtype, each):
    """Judged at each step; or at the last, where what comes back has heard the first one last."""
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, FEATURES)) for n in LENGTHS]
    y = [rng.integers(0, CLASSES, n) for n in LENGTHS]
    net = horn.Network(seed=1)
    source = net.input(FEATURES, steps=8)
    forth: list[Any] = [source]
    back: list[Any] = [horn.Reversed(source)]
    for k in range(LAYERS):
        ins = dict(zip(("x0", "x1"), forth, strict=False)) | {"h": horn.Delayed()}
        f = net.layer(SIZE, neuron=LSTM, inputs=ins, name=f"f{k}")
        ins = dict(zip(("x0", "x1"), back, strict=False)) | {"h": horn.Delayed()}
        b = net.layer(SIZE, neuron=LSTM, inputs=ins, name=f"b{k}")
        forth, back = [f, horn.Reversed(b)], [horn.Reversed(f), b]
    top = forth if each else [f, b]
    net.output(CLASSES, activation="softmax", loss="cross_entropy", each_step=each, name="out",
               inputs=dict(zip(("f", "b"), top, strict=True)))  # fmt: skip
    kind = getattr(torch, dtype)
    layer = torch.nn.LSTM(FEATURES, SIZE, LAYERS, batch_first=True, bidirectional=True).to(kind)
    out = torch.nn.Linear(2 * SIZE, CLASSES).to(kind)
    arrays = net.initial_parameters(dtype)
    theirs = dict(layer.named_parameters())
    with torch.no_grad():
        for place, name in places():
            target = theirs[place[0]]
            if name is None:
                target[:] = 0.0
            else:
                target[place[1], place[2]] = torch.tensor(arrays[name])
        out.weight[:, :SIZE] = torch.tensor(arrays["out.weight.f"])
        out.weight[:, SIZE:] = torch.tensor(arrays["out.weight.b"])
        out.bias[:] = torch.tensor(arrays["out.bias"])
    optimizer = torch.optim.SGD([*layer.parameters(), *out.parameters()], lr=0.1, momentum=0.9)
    pad = torch.nn.utils.rnn
    inputs = pad.pad_sequence([torch.tensor(one, dtype=kind) for one in x], batch_first=True)
    packed = pad.pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
    labels = torch.tensor(np.concatenate(y) if each else [one[-1] for one in y])
    own = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    last = torch.arange(len(LENGTHS)), torch.tensor(LENGTHS) - 1
    for _ in range(50):
        optimizer.zero_grad()
        sent, _ = pad.pad_packed_sequence(layer(packed)[0], batch_first=True)
        heard = torch.cat([sent[last][:, :SIZE], sent[:, 0, SIZE:]], dim=1)
        said = out(sent[own] if each else heard)
        torch.nn.functional.cross_entropy(said, labels).backward()
        optimizer.step()
    ours = y if each else np.array([one[-1] for one in y])
    job = horn.Job(net, data=(x, ours), batch_size=len(x), iterations=50, dtype=dtype,
                   optimizer=horn.SGD(0.1, momentum=0.9))  # fmt: skip
    found = horn.train(job, progress=False).model.parameters
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    for place, name in places():
        if name is not None:
            near(found[name].reshape(theirs[place[0]][place[1], place[2]].shape),
                 theirs[place[0]][place[1], place[2]], tolerance)  # fmt: skip
    near(found["out.weight.f"], out.weight[:, :SIZE], tolerance)
    near(found["out.weight.b"], out.weight[:, SIZE:], tolerance)


def places() -> Any:
    """Where PyTorch has each of our arrays: the name, rows and columns."""
    for k in range(LAYERS):
        for own, end in ((f"f{k}", ""), (f"b{k}", "_reverse")):
            yield (f"bias_hh_l{k}{end}", ..., ...), None
            for g, gate in enumerate("ifgo"):
                rows = slice(g * SIZE, (g + 1) * SIZE)
                width = SIZE if k else FEATURES
                for i in range(2 if k else 1):
                    columns = slice(i * width, (i + 1) * width)
                    yield (f"weight_ih_l{k}{end}", rows, columns), f"{own}.weight.x{i}.{gate}"
                yield (f"weight_hh_l{k}{end}", rows, slice(None)), f"{own}.weight.h.{gate}"
                yield (f"bias_ih_l{k}{end}", rows, ...), f"{own}.bias.{gate}"
