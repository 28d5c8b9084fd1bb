"""Names and attributes: their values, and the assignments that are allowed."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from horn import ir, refusals
from horn import math as horn_math
from horn.activations import INTERLAYERS
from horn.ir import Node, Op, const, leaf
from horn.language.expressions import Expressions
from horn.language.references import (
    ActivationRef,
    AggregateRef,
    ChosenRef,
    ErrorRef,
    ErrorsRef,
    MessageRef,
    MessagesRef,
    MethodRef,
    SelfRef,
    Unset,
    Word,
    elements,
    wrap,
)
from horn.language.scope import Scope
from horn.mistakes import NOT_IN_MATH, suggest
from horn.neuron import (
    DRAWS,
    MESSAGE_FIELDS,
    READABLE,
    STATISTICS,
    WEIGHT,
    Neuron,
    Parameter,
    State,
    SynapseState,
    Weight,
)

_MISSING = object()
ONE_NUMBER = (
    "a neuron has one number here; sum(), max() and the like over a whole layer are for "
    "interlayers and the losses of outputs (net.loss compares neuron by neuron)"
)
LAYER_WORDS = ("sum", "max", "min", "mean", "prod")
_FIELDS = {
    "input": (Op.INPUT, "bi"),
    "weight": (Op.WEIGHT, "oi"),
    "previous_update": (Op.PREVIOUS, "oi"),
    "index": (Op.PLACE, "oi"),
    "delta": (Op.DELTA, "bi"),
    "gradient": (Op.GRADIENT, "boi"),
}

_MODULES = ("np", "numpy", "torch", "nn", "F", "tf", "keras", "jax", "jnp", "scipy")
_OF_TENSORS = ("numpy", "cpu", "cuda", "to", "unsqueeze", "view", "permute", "float", "clone")


@dataclass(frozen=True)
class Names:
    """The values of constants, names and attributes, and assignments."""

    scope: Scope
    expressions: Expressions

    def __post_init__(self) -> None:
        self.expressions.rules |= {
            ast.Constant: self.constant, ast.Name: self.name, ast.Attribute: self.attribute
        }  # fmt: skip

    def constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, complex):
            self.scope.fail(
                node,
                f"{ast.unparse(node)} is no number of the neuron language: a neuron computes with "
                "real numbers; keep the two parts in two variables",
            )
        return wrap(node.value)

    def name(self, node: ast.Name) -> Any:
        if node.id in self.scope.frame.names:
            value = self.scope.frame.names[node.id]
            if isinstance(value, Unset):
                self.scope.fail(node, value.why)
            return value
        function = self.scope.source.function
        if (found := self.outside(node.id)) is not _MISSING:
            if node.id in self.scope.source.variables:
                self.scope.fail(
                    node,
                    f"{node.id!r} is assigned in this function, so that Python reads no other "
                    f"{node.id!r} in it, and it has no value here; give one of the two another "
                    "name, or set it before it is used",
                )
            return wrap(found)
        known = [k for k in (*self.scope.frame.names, *function.__globals__) if k != node.id]
        hint = suggest(node.id, [k for k in known if not k.startswith("__")])
        remedy = f"; {hint.rstrip()}" if hint else ", set it before it is used"
        if hasattr(horn_math, node.id):
            remedy = f"; write horn.math.{node.id}"
        elif node.id in INTERLAYERS:
            remedy = f"; it is of a whole layer: net.layer(..., activation={node.id!r})"
        if node.id in _MODULES:
            remedy = "; a neuron takes its functions from horn.math, as horn.math.tanh(x)"
        first = next(
            (k for k, v in self.scope.frame.names.items() if isinstance(v, MessagesRef)), ""
        )
        if node.id == "messages" and first:
            remedy = f"; its messages are called {first!r}: def {self.scope.kind}(self, messages):"
        if node.id == "activation" and self.scope.context is not None:
            remedy = "; write self.activation"
        if whose := self.scope.owned(node.id):
            remedy = f"; write {whose}"
        self.scope.fail(node, f"{node.id!r} is not defined here{remedy}")

    def outside(self, name: str) -> Any:
        """The value that a name has outside of the function that is run, or _MISSING."""
        function = self.scope.source.function
        if name in function.__code__.co_freevars:
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            return _MISSING if cell == types.CellType() else cell.cell_contents
        spaces = (function.__globals__, vars(builtins))
        return next((space[name] for space in spaces if name in space), _MISSING)

    def is_float(self, node: ast.AST, among: frozenset[str] = frozenset()) -> bool:
        """Whether a constant that the text writes or names is a float, as 3.0, and not the whole
        number 3, which is the same in formulas. among : the variables whose values are looked at.
        """
        if isinstance(node, ast.BinOp):
            sides = self.is_float(node.left, among), self.is_float(node.right, among)
            return isinstance(node.op, ast.Div) or any(sides)
        if isinstance(node, ast.UnaryOp):
            return self.is_float(node.operand, among)
        value: Any = getattr(node, "value", None)
        if isinstance(node, ast.Name):
            if node.id in self.scope.frame.names:
                return node.id not in among and self._is_float_variable(node.id, among)
            value = self.outside(node.id)
        elif isinstance(node, ast.Attribute):
            owner = self.expressions.value(node.value)
            context = self.scope.context
            owner = context.cls if context and isinstance(owner, SelfRef) else owner
            value = inspect.getattr_static(owner, node.attr, None)
        return isinstance(value, (float, np.floating))

    def _is_float_variable(self, name: str, among: frozenset[str]) -> bool:
        """Whether every value that the function gives a variable is a float."""
        nodes = [*ast.walk(self.scope.source.tree)]
        bound = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
        values = [
            n.value
            for n in nodes
            if isinstance(n, ast.Assign) and any(target in bound for target in n.targets)
        ]
        n_given = sum(not isinstance(n.ctx, ast.Load) for n in bound)
        is_argument = any(isinstance(n, ast.arg) and n.arg == name for n in nodes)
        if is_argument or n_given != len(values):
            return False
        return all(self.is_float(value, among | {name}) for value in values)

    def attribute(self, node: ast.Attribute) -> Any:
        value, name = self.expressions.value(node.value), self.in_class(node.attr)
        if isinstance(value, SelfRef):
            return self.self_attribute(node, name)
        if isinstance(value, MessageRef):
            return self.field(node, name)
        if isinstance(value, ChosenRef):
            return self.of_chosen(value, node, name)
        if isinstance(value, ErrorRef):
            if name in ("normal", "uniform"):
                return Word(name, "error")
            if name != "delta":
                self.scope.fail(node, f"of an output neuron e.delta is known, not e.{name}")
            return leaf(Op.ERROR, "bi")
        if isinstance(value, ActivationRef):
            if name in ("derivative", "derivative_at"):
                return ActivationRef(name)
            self.scope.fail(
                node,
                f"self.activation has no {name!r}; "
                f"{suggest(name, ['derivative', 'derivative_at'])}"
                "it offers derivative(y) and derivative_at(z)",
            )
        if isinstance(value, MessagesRef):
            return self.messages_of(value, node, name)
        if isinstance(value, Node):
            if self.scope.context is None and name in LAYER_WORDS:
                return AggregateRef(value, name)
            if value.op is Op.DELTA and value.value is None:
                return self.delta_of(node, name)
            of = f"; {ONE_NUMBER}" if name in LAYER_WORDS else ""
            if not of and (written := self.of_number(node, name)):
                of = f"; {written}"
            self.scope.fail(node, f"a number has no {name!r}{of}")
        has_names = hasattr(value, "__dict__") or hasattr(value, "_fields")  # a namedtuple
        if isinstance(value, (types.ModuleType, type)) or has_names:
            if (found := getattr(value, name, _MISSING)) is not _MISSING:
                return wrap(found)
            is_of_math = name in horn_math.OPS and hasattr(horn_math, name)
            hint = f"write horn.math.{name}" if is_of_math else suggest(name, dir(value))
            if value is horn_math and name in NOT_IN_MATH:
                hint = f"write  {NOT_IN_MATH[name]}"
            problem = f"{ast.unparse(node.value)} has no {name!r}; {hint}"
            self.scope.fail(node, problem.rstrip("; "))
        problem = f"{ast.unparse(node)!r} is not in the neuron language"
        if hasattr(value, "shape"):
            problem += "; compute it where the array is set, and name the number"
        elif hasattr(list, name) or hasattr(dict, name):
            problem += "; a neuron keeps numbers, no lists: add them up as they come, total += ..."
        self.scope.fail(node, problem)

    def of_number(self, node: ast.Attribute, name: str) -> str:
        """What to write instead of an array's attribute, which a number does not have."""
        whose = ast.unparse(node.value)
        if name in horn_math.FUNCTIONS:
            return f"write horn.math.{name}({whose})"
        if name in ("detach", "stop_gradient"):
            return f"write horn.math.stop_gradient({whose})"
        if name == "backward":
            return "leave it out: gradients are derived"
        if hasattr(np.ndarray, name) or name in _OF_TENSORS:
            return f"a neuron has one number here, no array: write {whose}"
        return ""

    def is_called(self, node: ast.AST) -> bool:
        """Whether an attribute is that which a call of the text calls."""
        tree = self.scope.source.tree
        return any(isinstance(each, ast.Call) and each.func is node for each in ast.walk(tree))

    def in_class(self, name: str) -> str:
        """The name as Python has it in a class: that of __k in class N is _N__k."""
        *_, owner, _ = ("<locals>." + self.scope.source.function.__qualname__).split(".")
        is_private = name.startswith("__") and not name.endswith("__") and owner != "<locals>"
        return f"_{owner.lstrip('_')}{name}" if is_private else name

    def self_attribute(self, node: ast.Attribute, name: str) -> Any:
        assert self.scope.context is not None
        cls = self.scope.context.cls
        if name == "__class__":
            return cls
        if name == "activation":
            return ActivationRef()
        if name == "output":
            if self.scope.kind == "backward":
                return leaf(Op.OUTPUT, "bo")
            if isinstance(self.scope.frame.fed, Node):
                return self.scope.frame.fed
            is_called = self.is_called(node)
            self.scope.fail(node, refusals.NOT_SENT if is_called else refusals.NO_OUTPUT)
        if name == "training":
            return const(float(self.scope.of_layer("training")))
        if name in ("iteration", "learning_rate"):
            return ir.Scalar(name)
        if name == "layer_index":
            return const(float(self.scope.of_layer("layer_index")))
        if name == "index":
            return leaf(Op.INDEX, "o")
        if name in ("feedforward", "backpropagate", "push", *DRAWS):
            return Word(name)
        found = inspect.getattr_static(cls, name, _MISSING)
        if name in STATISTICS["layer"] and found is vars(Neuron)[name]:
            return Word(name)
        if name == "target" and found is _MISSING:
            return self.target(node)
        if name in ("error", "loss") and found is _MISSING:
            if self.scope.kind != "backward":
                self.scope.fail(
                    node,
                    f"self.{name} is known in backward, when there is a loss; a rule in "
                    f"{self.scope.kind} hears a reward as messages of an input of its own, "
                    'net.input(1, name="reward")',
                )
            return ErrorsRef() if name == "error" else leaf(Op.LOSS, "b")
        if type(found) is State:
            return self.scope.frame.states.get(name, leaf(Op.STATE, "bo", name))
        if type(found) is Parameter:
            return leaf(Op.PARAM, "o", name)
        if type(found) is SynapseState:
            self.scope.fail(
                node,
                f"self.{name} is a SynapseState, of which each synapse has its own: read m.{name} "
                "of a message, inside the loop; for one number per neuron declare a horn.State",
            )
        if type(found) is Weight or (found is _MISSING and name == WEIGHT):
            self.scope.fail(
                node,
                f"self.{name} is a Weight, of which each synapse has its own: read m.{name} of a "
                "message, inside the loop; for one number per neuron declare a horn.Parameter",
            )
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, types.FunctionType):
            if name == "forward" == self.scope.kind and self.scope.source.function is found:
                self.scope.fail(node, refusals.NOT_SENT)
            return MethodRef(found)
        if isinstance(found, (property, classmethod)):
            kind = type(found).__name__
            self.scope.fail(
                node,
                f"self.{name} is a {kind}, which is not in the neuron language: write a plain "
                "method, without the decorator, and call it",
            )
        if found is None:
            self.scope.fail(node, f"self.{name} is None; give {cls.__name__}.{name} a number")
        if found is not _MISSING:
            return wrap(getattr(cls, name))
        if name == "bias":
            self.scope.fail(
                node,
                "a neuron has no 'bias' to add: it is the weight of the last message, whose input "
                "is 1, and is in the sum over messages already; leave it out",
            )
        if name == "argmin":
            self.scope.fail(node, refusals.NO_ARGMIN)
        known = [k for c in cls.__mro__[:-1] for k in vars(c) if not k.startswith("_")]
        meant = suggest(name, [*known, *READABLE])
        if self.is_called(node):
            meant = meant or f"write a method  def {name}(self, ...)  of it; {refusals.NOT_SENT}"
            self.scope.fail(node, f"{cls.__name__} has no {name!r}; {meant.rstrip()}")
        self.scope.fail(
            node,
            f"{cls.__name__} has no {name!r}; {meant}declare it in "
            f"the class: a constant ({name} = 1.0), horn.Parameter or horn.State",
        )

    def messages_of(self, messages: MessagesRef, node: ast.Attribute, name: str) -> MessagesRef:
        """The messages of one input, as messages.x, where the layer calls the input x."""
        context = self.scope.context
        assert context is not None
        if name in context.inputs and self.scope.kind == "forward" and not messages.input:
            return MessagesRef(name)
        self.scope.fail(
            node, refusals.no_input(name, context.inputs, self.scope.kind, messages.input)
        )

    def target(self, node: ast.Attribute) -> Node:
        context, scope = self.scope.context, self.scope
        assert context is not None
        if not context.is_output:
            scope.fail(node, f"self.target: {refusals.NO_TARGET}")
        if scope.kind != "forward":
            scope.fail(
                node,
                "self.target is read in forward: backward of an output neuron is not called, since "
                "its delta comes from the loss",
            )
        if scope.target_error is None:
            scope.target_error = scope.source.error(
                node,
                refusals.TARGET_AT_PREDICTION,
            )
        return leaf(Op.TARGET, "bo")

    def field(self, node: ast.Attribute, name: str) -> Any:
        fields = self.scope.fields()
        if name in ("normal", "uniform"):
            return Word(name, "message")
        if name in self.weights():
            return leaf(Op.WEIGHT, "oi", None if name == WEIGHT else name)
        if name in self.scope.synapse_states():
            return self.scope.frame.traces.get(name, leaf(Op.TRACE, "oi", name))
        if name == WEIGHT:
            self.no_weight(node)
        if name == "previous_update" and WEIGHT not in self.weights():
            self.scope.fail(node, refusals.NO_PREVIOUS_UPDATE)
        if name not in fields:
            if self.scope.kind == "backward" and name == "input":
                self.scope.fail(
                    node,
                    "in backward a message has no 'input': what this neuron sent is "
                    "self.output. Fields: " + ", ".join(fields),
                )
            if self.scope.kind == "forward" and name in MESSAGE_FIELDS["backward"]:
                self.scope.fail(node, refusals.not_yet(name, ", ".join(fields)))
            self.scope.fail(
                node, refusals.no_field(name, suggest(name, fields, did="Did"), ", ".join(fields))
            )
        return leaf(*_FIELDS[name])

    def weights(self) -> tuple[str, ...]:
        """The weights of the messages that this method reads."""
        assert self.scope.context is not None
        return self.scope.context.weights(self.scope.kind)

    def no_weight(self, node: ast.AST) -> NoReturn:
        """Fail at m.weight, where the messages have weights of other names."""
        assert self.scope.context is not None
        context, names = self.scope.context, self.weights()
        classes = (context.cls,) if self.scope.kind == "forward" else context.receivers
        who = ", ".join(dict.fromkeys(cls.__name__ for cls in classes))
        listed = ", ".join(f"m.{name}" for name in names)
        self.scope.fail(
            node,
            f"{who} declares the weights of its synapses, and m.weight is not one of them: "
            f"read {listed}, or declare  weight = horn.Weight()  too",
        )

    def delta_of(self, node: ast.Attribute, name: str) -> Node:
        """The delta of the sum with this weight, as m.delta.forget."""
        if name not in self.weights():
            known = ", ".join(f"m.delta.{each}" for each in self.weights())
            self.scope.fail(node, refusals.no_delta(name, known))
        return leaf(Op.DELTA, "bi", name)

    def assign(self, target: ast.expr, value: Any, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                given = getattr(node, "value", None)
                if isinstance(given, ast.Constant) and given.value is None:
                    self.scope.fail(
                        given,
                        f"None is no number; start {target.id!r} with one: 0.0 for a sum, "
                        "-math.inf for the largest, math.inf for the smallest",
                    )
                if isinstance(given, ast.Call):
                    self.scope.fail(node, "this call returns nothing")
                self.scope.fail(given or node, f"None is no number, and {target.id!r} is one here")
            self.scope.frame.names[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(
            self.expressions.value(target.value), SelfRef
        ):
            self.assign_attribute(target, value)
        elif isinstance(target, ast.Attribute) and isinstance(
            self.expressions.value(target.value), MessageRef
        ):
            self.assign_field(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.unpack(target, value, node)
        else:
            self.scope.fail(
                target,
                f"{ast.unparse(target)!r} cannot be assigned in a neuron; assign a "
                "variable or a State of self",
            )

    def unpack(self, target: ast.Tuple | ast.List, value: Any, node: ast.AST) -> None:
        """Assign the values of a tuple to as many names, as in low, high = pair."""
        if isinstance(value, Unset):
            self.scope.fail(node, value.why)
        for each in target.elts:
            if isinstance(each, ast.Starred):
                self.scope.fail(
                    each,
                    f"{ast.unparse(each)!r} is not in the neuron language: write a name for each "
                    "value, or a slice for the rest, as rest = values[1:]",
                )
        values, n = elements(value), len(target.elts)
        if values is None:
            self.scope.fail(
                target, f"these are {n} names, but what is assigned to them is no tuple of {n}"
            )
        if len(values) != n:
            self.scope.fail(
                target,
                f"these are {n} name{'s' * (n != 1)}, but there "
                f"{'is 1 value' if len(values) == 1 else f'are {len(values)} values'}; write a "
                "name for each",
            )
        for each, one in zip(target.elts, values, strict=True):
            self.assign(each, one, node)

    def of_chosen(self, chosen: ChosenRef, node: ast.Attribute, name: str) -> Node:
        """A field of the chosen message; 0 where no message was chosen."""
        outer, self.scope.in_loop = self.scope.in_loop, True
        field = self.field(node, name)
        self.scope.in_loop = outer
        if not isinstance(field, Node):
            self.scope.fail(node, f"of a chosen message its fields are read, not {name!r}")
        return ir.reduce("sum", "i", ir.select(chosen.here, field, const(0.0)))

    def assign_field(self, target: ast.Attribute, value: Any) -> None:
        """Assign to a SynapseState of the message, as in m.trace = value."""
        if target.attr not in self.scope.synapse_states():
            self.scope.fail(target, refusals.not_assigned(target.attr))
        self.scope.frame.traces[target.attr] = self.scope.number(value, target)

    def assign_attribute(self, target: ast.Attribute, value: Any) -> None:
        assert self.scope.context is not None
        name, cls = self.in_class(target.attr), self.scope.context.cls
        found = inspect.getattr_static(cls, name, None)
        if type(found) is State:
            if self.scope.in_loop:
                self.scope.fail(target, refusals.state_in_loop(name))
            if found.per == "sample" and name in self.scope.frame.states:
                self.scope.fail(target, refusals.set_twice(name))
            self.scope.frame.states[name] = self.scope.number(value, target)
        elif type(found) is Parameter:
            self.scope.fail(target, refusals.parameter_assigned(name))
        elif type(found) is Weight:
            self.scope.fail(target, refusals.weight_assigned(name))
        elif name in READABLE:
            word = "call self.feedforward(value)" if name == "output" else "it is read-only"
            self.scope.fail(target, f"self.{name} cannot be assigned: {word}")
        else:
            self.scope.fail(target, refusals.not_declared(name, cls))
