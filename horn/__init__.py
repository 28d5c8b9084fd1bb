"""Horn: write what one neuron does in plain Python, run it at the speed of matrix code.

The public names, loaded when first used: ``import horn`` imports neither NumPy, ZeroMQ nor kazoo.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from horn import openblas as _openblas

_openblas.prepare()  # any of the names below may load NumPy

# The names of each module.
_OF_MODULE = {
    "activations": "Activation",
    "aggregates": "Aggregate",
    "callbacks": "CSVLogger Callback ModelCheckpoint ReduceOnPlateau TensorBoard",
    "cluster.handles": "Cluster",
    "connections.convolution": "Convolution",
    "connections.dense": "Dense",
    "connections.local": "Local",
    "connections.one_to_one": "OneToOne",
    "connections.sparse": "Sparse",
    "connections.tied": "Tied",
    "connections.transposed_convolution": "TransposedConvolution",
    "connections.window": "Window",
    "delays": "Delayed Reversed",
    "errors": "CallbackError CompileError DataError Diverged HornError JobFailed ModelError",
    "initializers": "Constant Glorot He LeCun Normal Uniform",
    "job": "EarlyStopping Job",
    "losses": "Loss",
    "model": "Model",
    "network": "Network",
    "neuron": "Neuron Parameter State Synapse SynapseState Weight interpreted",
    "neurons": "Dropout Standard",
    "optimizers": "AdaDelta Adagrad Adam Direct RMSProp SGD",
    "planner.plan": "plan",
    "schedules": "Cosine Exponential Step Warmup",
    "strategies": "Strategy",
    "strategies.averaging": "Averaging",
    "strategies.downpour": "Downpour",
    "strategies.easgd": "EASGD",
    "strategies.parallel_dropout": "ParallelDropout",
    "run_result": "Run",
    "train": "train",
}
_HOME = {name: module for module, names in _OF_MODULE.items() for name in names.split()}
_MODULES = ("data", "math", "neurons", "plot")

__all__ = sorted([*_HOME, *_MODULES, "__version__"])

TYPE_CHECKING = False  # typing takes long to import, and no command answers Ctrl-C before
if TYPE_CHECKING:
    from typing import Any as Any

    from horn import data as data
    from horn import math as math
    from horn import neurons as neurons
    from horn import plot as plot
    from horn.activations import Activation as Activation
    from horn.aggregates import Aggregate as Aggregate
    from horn.callbacks import Callback as Callback
    from horn.callbacks import CSVLogger as CSVLogger
    from horn.callbacks import ModelCheckpoint as ModelCheckpoint
    from horn.callbacks import ReduceOnPlateau as ReduceOnPlateau
    from horn.callbacks import TensorBoard as TensorBoard
    from horn.cluster.handles import Cluster as Cluster
    from horn.connections.convolution import Convolution as Convolution
    from horn.connections.dense import Dense as Dense
    from horn.connections.local import Local as Local
    from horn.connections.one_to_one import OneToOne as OneToOne
    from horn.connections.sparse import Sparse as Sparse
    from horn.connections.tied import Tied as Tied
    from horn.connections.transposed_convolution import (
        TransposedConvolution as TransposedConvolution,
    )
    from horn.connections.window import Window as Window
    from horn.delays import Delayed as Delayed
    from horn.delays import Reversed as Reversed
    from horn.errors import CallbackError as CallbackError
    from horn.errors import CompileError as CompileError
    from horn.errors import DataError as DataError
    from horn.errors import Diverged as Diverged
    from horn.errors import HornError as HornError
    from horn.errors import JobFailed as JobFailed
    from horn.errors import ModelError as ModelError
    from horn.initializers import Constant as Constant
    from horn.initializers import Glorot as Glorot
    from horn.initializers import He as He
    from horn.initializers import LeCun as LeCun
    from horn.initializers import Normal as Normal
    from horn.initializers import Uniform as Uniform
    from horn.job import EarlyStopping as EarlyStopping
    from horn.job import Job as Job
    from horn.losses import Loss as Loss
    from horn.model import Model as Model
    from horn.network import Network as Network
    from horn.neuron import Neuron as Neuron
    from horn.neuron import Parameter as Parameter
    from horn.neuron import State as State
    from horn.neuron import Synapse as Synapse
    from horn.neuron import SynapseState as SynapseState
    from horn.neuron import Weight as Weight
    from horn.neuron import interpreted as interpreted
    from horn.neurons import Dropout as Dropout
    from horn.neurons import Standard as Standard
    from horn.optimizers import SGD as SGD
    from horn.optimizers import AdaDelta as AdaDelta
    from horn.optimizers import Adagrad as Adagrad
    from horn.optimizers import Adam as Adam
    from horn.optimizers import Direct as Direct
    from horn.optimizers import RMSProp as RMSProp
    from horn.planner.plan import plan as plan
    from horn.run_result import Run as Run
    from horn.schedules import Cosine as Cosine
    from horn.schedules import Exponential as Exponential
    from horn.schedules import Step as Step
    from horn.schedules import Warmup as Warmup
    from horn.strategies import Strategy as Strategy
    from horn.strategies.averaging import Averaging as Averaging
    from horn.strategies.downpour import Downpour as Downpour
    from horn.strategies.easgd import EASGD as EASGD
    from horn.strategies.parallel_dropout import ParallelDropout as ParallelDropout
    from horn.train import train as train

if "readline" in sys.modules:  # at a prompt: text typed from here on may define neurons
    importlib.import_module("horn.prompt")


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        """Keep ``horn.train`` the function, whoever imports the module of that name, and when."""
        if name in _HOME and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as cloudpickle sends other modules that a function of a script uses."""
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Package


def _imported(module: str) -> ModuleType:
    """A module; Ctrl-C waits for it: NumPy left half imported cannot be imported again."""
    import signal

    before = signal.getsignal(signal.SIGINT)
    came: list[int] = []
    try:
        if callable(before):
            signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    except ValueError:  # a thread, which hears of no Ctrl-C
        before = None
    try:
        return importlib.import_module(module)
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from horn.version import installed

        return installed()
    if name in _MODULES:
        return _imported(f"horn.{name}")
    if name not in _HOME:
        # ``from horn import texts`` asks here before it imports, and ignores the answer.
        if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise AttributeError(name)
        from importlib.util import find_spec

        from horn.mistakes import no_attribute, no_module

        if find_spec(f"horn.{name}") is None:
            raise no_attribute("horn", name, __all__)
        raise no_module(
            name, [each for each, home in _HOME.items() if f"{home}.".startswith(f"{name}.")]
        )
    value = getattr(_imported(f"horn.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
