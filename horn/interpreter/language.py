"""The user's functions as they are, with ``math.exp`` and the like replaced by functions for the
tape.

A function runs from its own code object, so that its file and line numbers stay; only the names
that it looks up outside of itself go through ``TranslatedGlobals``: the module ``math`` and
its functions become those of ``horn.math``, the user's helper functions and modules are treated
likewise. Assignments to a ``global`` stay among the interpreter's copies.
"""

from __future__ import annotations

import builtins
import copy
import math as python_math
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from horn import math, refusals
from horn.activations import Activation
from horn.autodiff import user_text
from horn.autodiff.tape import Traced, derivative, extreme, foremost, is_number, make
from horn.interpreter.calls import Guard, NoMessage, ReceivedMessages
from horn.neuron import Neuron, of_python
from horn.optimizers import Optimizer


def _log(z: Any, base: Any = None) -> Any:
    return math.log(z) if base is None else math.log(z) / math.log(base)


_MATH: dict[Any, Callable[..., Any]] = {**math.OF_PYTHON, python_math.log: _log}


class _FloatType(type):
    def __call__(cls, value: Any = 0.0) -> Any:
        return value if isinstance(value, Traced) else float(value)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (float, Traced))


class _Float(metaclass=_FloatType):
    """``float`` as a neuron sees it: a traced number stays that number."""


def _extreme(name: str, none: float) -> Callable[..., Any]:
    """``max`` or ``min`` for neurons: of no message the neutral number, an infinity, where Python
    raises; NaN if any number is NaN, and by a key the first message whose key is.
    """
    python = getattr(builtins, name)

    def of(*args: Any, **named: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], ReceivedMessages) and "key" in named:
            if not args[0] or len(named) > 1:
                return python(args[0], **{"default": NoMessage(), **named})
            keyed = [(m, named["key"](m)) for m in args[0]]  # at its message: keys may draw
            return keyed[foremost(python, [key for _, key in keyed])][0]
        if "key" in named or not args or (named and len(args) > 1):
            return python(*args, **named)
        values = list(args[0]) if len(args) == 1 else args
        if not values and not named:
            return Traced(none)
        return extreme(lambda all_: python(all_, **named), values)

    return of


def _length(value: Any) -> Any:
    """``len`` for neurons: 0 messages are a traced 0.0, which may be a divisor."""
    found = len(value)
    return Traced(0.0) if found == 0 and isinstance(value, ReceivedMessages) else found


# The predicate that decides which neuron may print, of a thread's own.
_may_print: ContextVar[Callable[[Any], bool] | None] = ContextVar("may_print", default=None)


@contextmanager
def printing(may: Callable[[Any], bool]) -> Iterator[None]:
    """Let only the neurons print for which ``may`` is true. Walks, which only classify a method,
    print nothing.
    """
    before = _may_print.set(may)
    try:
        yield
    finally:
        _may_print.reset(before)


def _print(*values: Any, **named: Any) -> None:
    frame: Any = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), Neuron):
        frame = frame.f_back
    speaker = None if frame is None else frame.f_locals["self"]
    may = _may_print.get()
    if may is None or may(speaker):
        print(*values, **named)


def _of_numpy(name: str) -> Callable[..., Any]:
    """NumPy's function of this name for neurons: of the numbers of a generator it would make
    nothing, without a word, and an object is true.
    """
    own = getattr(np, name)

    def of(*args: Any, **named: Any) -> Any:
        if args and isinstance(args[0], types.GeneratorType):
            raise user_text.error(refusals.of_generator(name))
        return own(*args, **named)

    return of


_NUMPY = {id(getattr(np, name)): _of_numpy(name) for name in ("any", "all", "max", "min", "prod")}
_BUILTINS: dict[str, Any] = {
    "print": _print, "float": _Float, "max": _extreme("max", -python_math.inf),
    "min": _extreme("min", python_math.inf), "len": _length,
}  # fmt: skip


class _NumPy:
    """NumPy as a neuron sees it."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        return _NUMPY.get(id(value), value)


class _Array(np.ndarray[Any, Any]):
    """An array of constants, whose elements are numbers of Python."""

    def __getitem__(self, place: Any) -> Any:
        return of_python(super().__getitem__(place))

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))


class _Module:
    """A module as it was at first sight: attributes are translated when they are looked up."""

    def __init__(self, module: types.ModuleType, translate: Callable[[Any], Any]) -> None:
        self._module, self._names, self._translate = module, dict(vars(module)), translate

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return self._translate(self._names[name])
        return self._translate(getattr(self._module, name))

    def __dir__(self) -> list[str]:
        return dir(self._module)


class TranslatedGlobals(dict[str, Any]):
    """A function's globals as they were when a run began, read through ``translate``. Python looks
    names up in a dict subclass by ``[]``."""

    def __init__(
        self, outer: dict[str, Any], translate: Callable[[Any], Any], own: Mapping[str, Any]
    ) -> None:
        def import_(name: str, *args: Any, **kwargs: Any) -> Any:
            return translate(builtins.__import__(name, *args, **kwargs))

        super().__init__(__builtins__={**vars(builtins), **own, "__import__": import_})
        self.outer, self.translate = dict(outer), translate
        for name in ("__name__", "__file__", "__package__"):
            if name in outer:
                self[name] = outer[name]

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name in self else self.translate(self.outer[name])


_METHODS = types.FunctionType, staticmethod, classmethod, property
_OF_INSTANCES = types.MemberDescriptorType, types.GetSetDescriptorType  # of slots, and __dict__


class _Running(Guard, Neuron):
    """``Neuron`` as the copies of the user's classes have it."""

    def __init_subclass__(cls, **named: Any) -> None:
        """The user's class was checked when it was made."""


class Translator:
    """Translates each function, module, class and cell of a closure once: a run's constants are
    those of its start, as where it is compiled."""

    builtins: Mapping[str, Any] = _BUILTINS

    def __init__(self) -> None:
        self._functions: dict[types.FunctionType, types.FunctionType] = {}
        self._names: dict[int, TranslatedGlobals] = {}
        self._classes: dict[type, type] = {}
        self._modules: dict[types.ModuleType, _Module] = {}
        self._cells: dict[int, types.CellType] = {}

    def value(self, value: Any) -> Any:
        """The translation of a value that the user's text names."""
        if id(value) in _NUMPY:
            return _NUMPY[id(value)]
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.BuiltinFunctionType):
            return _MATH.get(value, value)
        if value is np:
            return _NumPy()
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, Activation):
            return self.activation(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return value.view(_Array) if value.shape else value
        if isinstance(value, type):
            is_neuron = value is not Neuron and issubclass(value, Neuron)
            return self.neuron(value) if is_neuron else self._classes.get(value, value)
        return of_python(value)

    def _module(self, module: types.ModuleType) -> Any:
        if module.__name__.partition(".")[0] in ("horn", "numpy", "builtins"):
            return module
        if module not in self._modules:
            self._modules[module] = _Module(module, self.value)
        return self._modules[module]

    def function(self, function: types.FunctionType) -> types.FunctionType:
        """The same code with translated globals. Functions of horn itself need no translation."""
        if function.__module__ is not None and function.__module__.startswith("horn."):
            return function
        if function not in self._functions:
            names = self._names.get(id(function.__globals__))
            if names is None:
                names = self._names[id(function.__globals__)] = TranslatedGlobals(
                    function.__globals__, self.value, self.builtins
                )
            cells = tuple(map(self._cell, function.__closure__ or ()))
            defaults = function.__defaults__ and tuple(map(self.value, function.__defaults__))
            new = types.FunctionType(
                function.__code__, names, function.__name__, defaults, cells or None
            )
            named = function.__kwdefaults__
            new.__kwdefaults__ = named and {name: self.value(v) for name, v in named.items()}
            new.__qualname__ = function.__qualname__
            new.__module__, new.__doc__ = function.__module__, function.__doc__
            self._functions[function] = new
        return self._functions[function]

    def _cell(self, cell: types.CellType) -> types.CellType:
        """A cell of its own, with the translated value; one that is not filled yet as it is."""
        if id(cell) not in self._cells:
            try:
                value = cell.cell_contents
            except ValueError:
                return cell
            made = self._cells[id(cell)] = types.CellType()
            made.cell_contents = self.value(value)
        return self._cells[id(cell)]

    def activation(self, activation: Activation) -> Activation:
        """An activation with translated functions, which always has a ``derivative_at``."""
        if isinstance(activation, _Derived):
            return activation
        f, df, df_at = (self.value(g) for g in (activation.f, activation.df, activation.df_at))
        kind = _DerivedOfTwo if activation.n_arguments == 2 else _Derived
        return kind(activation.name, f, df, df_at)

    def neuron(self, cls: type) -> type:
        """A copy of a neuron's class with translated methods, and of the classes it is made of: no
        method of the user's runs when it is made, and inside it the user's name means the copy."""
        if cls is Neuron:
            return _Running
        is_pythons = cls.__module__.partition(".")[0] in sys.stdlib_module_names
        if cls is object or (is_pythons and not issubclass(cls, Neuron)):
            return cls
        return self._classes.get(cls) or self._copied(cls, self.neuron)

    def _copied(self, cls: type, base: Callable[[type], type]) -> type:
        """A copy of a class with translated methods. base : gives that of each of its bases."""
        own = {k: v for k, v in vars(cls).items() if not isinstance(v, _OF_INSTANCES)}
        own.pop("__init_subclass__", None)
        methods = {name: v for name, v in own.items() if isinstance(v, _METHODS)}
        plain = {name: self._constant(v) for name, v in own.items() if name not in methods}
        bases = tuple(map(base, cls.__bases__))
        made = self._classes[cls] = type.__new__(type(cls), cls.__name__, bases, plain)
        for name, value in methods.items():  # their super() means the copy, which is there now
            type.__setattr__(made, name, self._method(value))
        return made

    def _constant(self, value: Any) -> Any:
        """An attribute of a class that is no method, nor becomes one."""
        return self.value(value) if isinstance(value, (np.generic, np.ndarray)) else value

    def _method(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, property):
            return property(*(self.value(f) for f in (value.fget, value.fset, value.fdel)))
        return type(value)(self.value(value.__func__))


class Snapshot(Translator):
    """Keeps the names of an optimizer's methods as they are when the run begins. They are called
    with arrays, so that nothing is translated for the tape.
    """

    builtins: Mapping[str, Any] = {}

    def value(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        return self._classes.get(value, value) if isinstance(value, type) else value

    def optimizer(self, optimizer: Optimizer) -> Optimizer:
        """A copy whose class keeps its names."""
        made = copy.copy(optimizer)
        object.__setattr__(made, "__class__", self._class(type(optimizer)))
        return made

    def _class(self, cls: type) -> type:
        """A copy of a user's class; of horn's own, and of others, the class itself."""
        if f"{cls.__module__}.".startswith("horn.") or not issubclass(cls, Optimizer):
            return cls
        return self._classes.get(cls) or self._copied(cls, self._class)


class _Derived(Activation):
    """An activation under the interpreter: f runs on the tape, so ``derivative_at`` can be derived
    where it is not given."""

    def __call__(self, *z: Any) -> Any:
        return self.f(*(x if isinstance(x, Traced) or not is_number(x) else Traced(x) for x in z))

    def derivative(self, y: Any) -> Any:
        if self.df is None:
            raise user_text.error(refusals.no_derivative(self.name))
        return self.df(y)

    def derivative_at(self, z: Any) -> Any:
        if self.df_at is not None:
            return self.df_at(z)
        return self.df(self(z)) if self.df is not None else derivative(self.f, make("add", z, 0.0))


class _DerivedOfTwo(_Derived):
    n_arguments = 2
