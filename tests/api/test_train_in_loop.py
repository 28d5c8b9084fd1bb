"""Classes that are made in a loop, ``with`` or ``try`` that also trains: their models are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import contextlib
import horn, numpy as np
x = np.random.default_rng(1).normal(size=(8, 4)); y = np.arange(8) % 2
def trained(neuron, **how):
    net = horn.Network(seed=1)
    net.input(4), net.layer(5, neuron=neuron)
    net.output(2, activation="softmax", loss="cross_entropy")
    return horn.train(horn.Job(net, (x, y), epochs=1), progress=False, **how).model
models, factor = {}, 2.0
def bent(z):
    return factor * z
if __name__ == "__main__":
    pass
"""
CLASS = """
    class D(horn.Neuron):
        gain = k
        def forward(self, messages):
            self.feedforward(self.gain * bent(sum(m.input * m.weight for m in messages)))
    models[k] = trained(D)
    models[k].save(f"{k}.horn")
"""
CHECK = """
for k, model in models.items():
    found = horn.Model.load(f"{k}.horn")
    assert found.network.layers[1].neuron.gain == k
    np.testing.assert_array_equal(found.predict(x), model.predict(x))
    assert found.evaluate(x, y) == model.evaluate(x, y)
print(sorted(models))
"""
AROUND = {
    "for": "for k in (0.1, 0.5):",
    "with": "k = 0.5\nwith contextlib.suppress(ZeroDivisionError):",
    "try": "k = 0.5\ntry:{}except ZeroDivisionError: pass\n",
    "while": "k = 0.5\nwhile 0.5 not in models:",
}


def ran(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(text)
    command = [sys.executable, "job.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.cluster
@pytest.mark.parametrize("around", AROUND)
def test_a_class_of_a_statement_that_trains_is_kept(around: str, tmp_path: Path) -> None:
    """Its file ran the statement, and with it the training, again, and so refused to load."""
    head = AROUND[around]
    body = head.format(CLASS) if "{}" in head else head + CLASS
    done = ran(tmp_path, SCRIPT + body + CHECK)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("[0.1, 0.5]\n" if around == "for" else "[0.5]\n")


@pytest.mark.cluster
def test_tasks_make_the_class_of_a_loop(tmp_path: Path) -> None:
    script = SCRIPT.replace("    pass\n", "    for k in (0.1, 0.5):")
    body = CLASS.replace("\n    ", "\n        ") + "        shared = trained(D, tasks=2)\n"
    check = (
        "        for name, array in models[k].parameters.items():\n"
        "            np.testing.assert_allclose(shared.parameters[name], array, 1e-4, 1e-6)\n"
    )
    done = ran(tmp_path, script + body + check)
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
def test_a_function_of_a_statement_that_trains_is_kept_too(tmp_path: Path) -> None:
    """Each model keeps the one that it was trained with, whatever the loop has made since."""
    function = "\n    def bent(z):\n        return k * z"
    kept = CLASS + "    np.save(f'{k}.npy', models[k].predict(x))\n"
    done = ran(tmp_path, SCRIPT + AROUND["for"] + function + kept + CHECK)
    assert done.returncode == 0, done.stderr
    check = "import horn, numpy as np\nx = np.random.default_rng(1).normal(size=(8, 4))\n"
    for k in (0.1, 0.5):
        check += f"found = horn.Model.load('{k}.horn').predict(x)\n"
        check += f"np.testing.assert_array_equal(found, np.load('{k}.npy'))\n"
    done = ran(tmp_path, check)
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
def test_what_else_a_statement_that_trains_makes_is_told_to_move(tmp_path: Path) -> None:
    thing = "class Scale:\n    k = 2.0\n" + AROUND["for"] + "\n    scale = Scale()"
    done = ran(tmp_path, SCRIPT + thing + CLASS.replace("bent(", "scale.k * bent(") + CHECK)
    assert done.returncode == 1
    assert "define the classes in a loop or statement of their own, and train in" in done.stderr
