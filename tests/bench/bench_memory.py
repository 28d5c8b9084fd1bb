"""Peak memory of training 784-512-10 on MNIST: horn against two PyTorch scripts, whole processes.

python -m tests.bench.bench_memory [--json FILE]

Each script runs alone in a process of its own, for one epoch, and must reach a test accuracy of
0.94; its peak resident size is what the kernel says when it ends. The plain PyTorch script keeps
its images as floating point, as tutorials do; the thrifty one keeps bytes and converts batch by
batch, as horn does. Needs torch, and MNIST in HORN_DATA.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 0.40  # of the plain PyTorch script's

HORN = """
import horn

net = horn.Network(seed=7)
net.input(784)
net.layer(512, activation="relu")
net.output(10, activation="softmax", loss="cross_entropy")
job = horn.Job(net, horn.data.mnist(), test=horn.data.mnist("test"),
               optimizer=horn.SGD(0.1, momentum=0.9), batch_size=100, epochs=1)
print(horn.train(job).test["acc"])
"""

TORCH = """
import os, sys
from pathlib import Path
import torch
from torch import nn

sys.path.insert(0, os.environ["HORN_ROOT"])
from horn.data import mnist  # the reader only: NumPy arrays of bytes

def tensors(part):
    found = mnist(part)
    x = torch.from_numpy(found.x[:])
    return (x if THRIFTY else x.float() / 255), torch.from_numpy(found.y)

def floats(x):
    return x.float() / 255 if THRIFTY else x

torch.manual_seed(7)
x, y = tensors("train")
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
order = torch.randperm(len(x))
for k in range(0, len(x), 100):
    rows = order[k : k + 100]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(floats(x[rows])), y[rows])
    loss.backward()
    optimizer.step()
x, y = tensors("test")
with torch.no_grad():
    print((model(floats(x)).argmax(1) == y).float().mean().item())
"""

SCRIPTS = {
    "horn": HORN,
    "torch": "THRIFTY = False\n" + TORCH,
    "torch, bytes": "THRIFTY = True\n" + TORCH,
}


def peak_bytes(script: str) -> tuple[int, float]:
    """(peak resident size, test accuracy) of a script in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script)
        # pip's or a user's own horn must not be measured instead of this one
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HORN_ROOT": str(ROOT)}
        out = Path(folder) / "out"
        with open(out, "wb") as file:
            process = subprocess.Popen([sys.executable, str(path)], stdout=file, env=env)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"a script ended with {process.returncode}")
        return usage.ru_maxrss * 1024, float(out.read_text())


def main(arguments: list[str]) -> int:
    found: dict[str, float] = {}
    for name, script in SCRIPTS.items():
        found[name], accuracy = peak_bytes(script)
        assert accuracy >= 0.94, f"{name}: test accuracy {accuracy}"
        print(f"{name:<14} {found[name] / 1e6:7.1f} MB   test accuracy {accuracy:.4f}")
    share = found["horn"] / found["torch"]
    print(f"horn / torch   {share:7.1%}      (limit {LIMIT:.0%})")
    print(f"horn / torch, bytes {found['horn'] / found['torch, bytes']:.1%}")
    if "--json" in arguments:
        record = {"peak_bytes": found, "share": share, "python": platform.python_version()}
        record["machine"] = platform.platform()
        Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps(record))
    return 0 if share <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
