"""The buffers of one task's program: the forms in which it holds each content.

A content is a buffer of the whole program. A frame reads it along its own axes; where the task
has another form of it, a Pick or a Move goes before. Contents that any task can make (draws, data,
constants) are made in the requested form.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from horn import ir
from horn.ir import Node, Op, load
from horn.partition import group_sums
from horn.program import (
    Buffer,
    Frame,
    Move,
    Pick,
    Program,
    Statement,
    base,
    in_all_groups,
    letter_axes,
    of_group,
)


@dataclass(frozen=True)
class Form:
    """The form of a content in a buffer: its axes, and whether it is one task's part of a
    reduction, or one group's.
    """

    axes: tuple[str, ...]
    monoid: str = ""
    across: str = ""


class TaskBuffers:
    """The buffers and statements of a task's program, as far as it is written.

    homes : the axes of each learned array and State where they live. n_groups : the number of
    groups that share the rows of a batch.
    """

    def __init__(self, program: Program, homes: dict[str, tuple[str, ...]], n_groups: int) -> None:
        self.program, self.homes, self.n_groups = program, homes, n_groups
        self.network = program.network
        # Whether groups divide updates; else each group makes all of them, with the whole sums.
        self.divides = n_groups > 1 and not group_sums.is_tree(n_groups)
        links = [link for layer in self.network.layers for link in layer.links]
        self.weights = {a for link in links if link.edges is None for a in link.weights.values()}
        self.buffers: dict[str, Buffer] = {}
        self.prologue: list[Statement] = []
        self.statements: list[Statement] = []
        self.sources: dict[str, Statement] = {s.out: s for s in program.prologue}  # type: ignore[attr-defined]
        self.in_prologue = frozenset(self.sources)
        self.forms: dict[str, dict[Form, str]] = {}
        self.scattered: dict[str, str] = {}  # weight -> the group's part of it, updated
        self.late: dict[str, tuple[str, Form]] = {}  # views of other steps, their content and form

    @contextlib.contextmanager
    def apart(self) -> Iterator[list[Statement]]:
        """Write the statements inside to a list of their own."""
        outer, self.statements = self.statements, []
        try:
            yield self.statements
        finally:
            self.statements = outer

    def expression(self, root: Node, frame: Frame) -> Node:
        def find(node: Node) -> Node | None:
            if node.op is Op.LOAD:
                return load(self.operand(node.value, node.axes, frame), node.axes)
            return None if node.args else node

        return ir.replace(root, find)

    def operand(self, name: str, letters: str, frame: Frame) -> str:
        """The buffer that a frame reads under these letters."""
        return self.find(name, Form(letter_axes(self.network, frame, letters)))

    def result(self, name: str, form: Form) -> str:
        """The buffer that a statement writes; other forms of the content are then out of date."""
        forms = self.forms.get(name, {})
        role = self.program.buffers[name].role
        if role not in ("work", "late", "carried") and form != self.home(name):
            assert role == "learned" and all(map(is_group_part, form.axes, self.home(name).axes))
            self.scattered[forms[self.home(name)]] = forms[form]  # a view: the rest comes later
            return forms[form]
        out = forms.get(form) or self.name(name, form, not forms)
        if role == "late":
            self.late[out] = self.program.buffers[name].value[0], form
        self.forms[name] = {
            f: n for f, n in forms.items() if f == form or self.buffers[n].role == "view"
            and self.buffers[n].value[0] == out
        } | {form: out}  # fmt: skip
        return out

    def find(self, name: str, form: Form) -> str:
        """The buffer with this form of a content."""
        forms = self.forms.setdefault(name, {})
        if form in forms:
            return forms[form]
        old = self.program.buffers[name]
        if name in self.sources:
            return self.source(name, form)
        if old.role == "constant":
            forms[form] = self.name(name, form, not forms)
            return forms[form]
        if old.role == "late":
            forms[form] = self.name(name, form, not forms)
            self.late[forms[form]] = old.value[0], form
        elif not forms and old.role == "carried":
            forms[form] = self.name(name, form, True)
        elif not forms:
            assert old.role in ("learned", "state", "slot"), f"{name} is read before it is written"
            home = self.home(name)
            forms[home] = self.name(name, home, True)
        return forms[form] if form in forms else self.converted(name, form)

    def home(self, name: str) -> Form:
        """The form of a learned array, State or slot that this task keeps."""
        array, slot = (name, "") if name in self.homes else name.rsplit("/", 1)
        axes = self.homes[array]
        if slot and self.divides and array in self.weights:
            return Form((of_group(axes[0]), *axes[1:]))
        return Form(axes)

    def source(self, name: str, form: Form) -> str:
        forms, statement = self.forms[name], self.sources[name]
        if forms and self.program.steps and name not in self.in_prologue:
            return self.converted(name, form)  # it is made where it stands
        statements = self.prologue if name in self.in_prologue else self.statements
        easy = all(
            axis == base(axis) or axis.endswith("@own") or axis.startswith("e")
            for axis in form.axes
        )
        made = form if easy else Form(tuple(map(base, form.axes)))
        if made not in forms:
            forms[made] = self.name(name, made, not forms)
            statements.append(dataclasses.replace(statement, out=forms[made]))  # type: ignore[call-arg]
        if form not in forms:
            forms[form] = self.name(name, form, False)
            statements.append(Pick(forms[form], forms[made]))
        return forms[form]

    def converted(self, name: str, form: Form) -> str:
        """Convert from an existing form: by a share of a whole, or by a Move."""
        forms = self.forms[name]
        for have, buffer in forms.items():
            if have.monoid or have.across or not all(map(is_part, form.axes, have.axes)):
                continue
            has_steps = self.program.buffers[name].span is not None
            if not has_steps and all(
                a == b or b.endswith(("@own", "@o")) or in_all_groups(b) != b
                for a, b in zip(have.axes, form.axes, strict=True)
            ):
                self.buffers.setdefault(
                    self.variant(name, form),
                    Buffer(self.variant(name, form), form.axes, "view", True, (buffer,)),
                )
            else:
                self.new(self.variant(name, form), form, name)
                self.statements.append(Pick(self.variant(name, form), buffer))
            forms[form] = self.variant(name, form)
            return forms[form]
        have, buffer = next(iter(forms.items()))
        all_groups = Form(tuple(map(in_all_groups, have.axes)))
        if all_groups.axes != have.axes:  # each group has a range of it
            if all_groups not in forms:
                forms[all_groups] = self.variant(name, all_groups)
                self.new(forms[all_groups], all_groups, name)
                self.statements.append(Move(forms[all_groups], buffer, "", across=True))
                return self.find(name, form)
            have, buffer = all_groups, forms[all_groups]
        if have.across:
            parts = all(map(is_group_part, form.axes, have.axes))
            axes = form.axes if parts and not have.monoid else have.axes
            mine = Form(axes, "", have.across) if have.monoid else Form(axes)
            forms[mine] = self.variant(buffer, mine)
            self.new(forms[mine], mine, name)
            if have.monoid or not group_sums.is_tree(self.n_groups):
                monoid = have.monoid or have.across
                self.statements.append(Move(forms[mine], buffer, monoid, not have.monoid))
            else:
                self.sum_by_levels(forms[mine], buffer, have)
            del forms[have]
            return self.find(name, form)
        self.new(self.variant(name, form), form, name)
        self.statements.append(Move(self.variant(name, form), buffer, have.monoid))
        forms[form] = self.variant(name, form)
        return forms[form]

    def sum_by_levels(self, out: str, buffer: str, have: Form) -> None:
        """Write ``out`` = the sum of ``buffer`` over all groups, combined along the tree."""
        n_levels = len(group_sums.levels(self.n_groups))
        hands_out = bool(group_sums.handing(self.n_groups))
        n_moves = n_levels + hands_out
        for level in range(n_moves):
            got = out if level == n_moves - 1 else f"{out}+{level}"
            self.new(got, Form(have.axes))
            monoid = have.across if level < n_levels else ""
            self.statements.append(Move(got, buffer, monoid, across=True, level=level))
            buffer = got

    def name(self, name: str, form: Form, first: bool) -> str:
        """A buffer for a form: the first has the content's own name."""
        old = self.program.buffers[name]
        called = name if first else self.variant(name, form)
        if called not in self.buffers:
            self.buffers[called] = dataclasses.replace(old, name=called, axes=form.axes, full=True)
        return called

    def new(self, called: str, form: Form, of: str | None = None) -> None:
        """Make a buffer for a content, with the steps of the content ``of``."""
        span = None if of is None else self.program.buffers[of].span
        self.buffers.setdefault(called, Buffer(called, form.axes, "work", True, span=span))

    def variant(self, name: str, form: Form) -> str:
        return f"{name}@{','.join(form.axes) or 'one'}"


def is_part(axis: str, outer: str) -> bool:
    """Whether an axis is contained in another."""
    return outer in (axis, base(axis), in_all_groups(axis))


def is_group_part(axis: str, outer: str) -> bool:
    """Whether an axis is the same, or the group's part of it."""
    return axis == outer or axis == of_group(outer)
