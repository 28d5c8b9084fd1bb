"""Random expressions, statements and helpers of the neuron language, as source text.

Expressions are bounded, and what decides (comparisons, //, %) looks at numbers that are drawn, so
that rounding decides nothing.
"""

from __future__ import annotations

import random

CONSTANTS = ("0.5", "1.5", "-0.7", "1.9", "0.13", "2", "-1.1")
BOUNDED = (
    "math.tanh({})", "hm.sigmoid({})", "math.sin({})", "math.cos({})", "math.atan({})",
    "math.erf({})", "hm.erfc({})", "hm.tanh({})", "hm.erf({})", "math.asin(0.9 * math.tanh({}))",
    "math.acos(0.9 * hm.tanh({}))", "math.exp(-abs({}))", "hm.stop_gradient(math.tanh({}))",
)  # fmt: skip
UNARY = (
    "abs({})", "(-{})", "hm.softplus({})", "hm.relu({})", "math.sqrt(0.2 + abs({}))",
    "math.log(1.1 + abs({}))", "hm.log1p(abs({}))", "math.tan(0.5 * math.tanh({}))",
    "math.floor({})", "math.ceil({})", "hm.sign({})", "float({})", "(+{})", "hm.stop_gradient({})",
    "hm.expm1(math.tanh({}))", "({}) ** 2", "(1.3 + abs({})) ** -1", "(1.1 + abs({})) ** -2",
    "(0.4 + abs({})) ** 0.5", "({}) ** 3", "(2 + math.tanh({})) ** -1.5",
)  # fmt: skip
BINARY = (
    "({} + {})", "({} - {})", "({} * math.tanh({}))", "(math.tanh({}) * {})",
    "({} / (1.2 + abs({})))", "hm.atan2({}, 1.5 + abs({}))", "math.atan2({}, 0.3 + {})",
    "max({}, {})", "min({}, {})", "hm.maximum({}, {})", "hm.minimum({}, {})",
    "(1.4 + abs({})) ** math.tanh({})", "pow(1.2 + abs({}), math.sin({}))",
)  # fmt: skip


class Writer:
    """Writes one program. ``drawn`` are the names in reach that vary from sample to sample."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.helpers: list[str] = []
        self.n_names = 0

    def one(self, *choices: str) -> str:
        return self.r.choice(choices)

    def name(self) -> str:
        self.n_names += 1
        return f"v{self.n_names}"

    # --- expressions

    def number(self, names: list[str], depth: int, loop: bool = False) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.12:
            return self.one(*names, *names, self.one(*CONSTANTS))
        kind = r.randrange(14)
        sub = lambda: self.number(names, depth - 1, loop)  # noqa: E731
        if kind < 3:
            return self.one(*BOUNDED).format(sub())
        if kind < 5:
            return self.one(*UNARY).format(sub())
        if kind < 8:
            return self.one(*BINARY).format(sub(), sub())
        if kind == 8:
            drawn = self.one(*names)
            step = self.one("0.7", "-0.4", "(1.3 + abs(" + self.one(*names) + "))")
            return f"(({drawn} + 0.171 * {sub()}) {self.one('//', '%')} {step})"
        if kind == 9:
            return f"({sub()} if {self.condition(names, depth - 1)} else {sub()})"
        if kind == 10:
            return f"hm.where({self.condition(names, depth - 1)}, {sub()}, {sub()})"
        if kind == 11 and self.helpers:
            return f"{self.one(*self.helpers)}({sub()}, {sub()})"
        if kind == 12:
            form = self.one("sum({0} * k for k in (1, 2, 0.5))", "max({0} + k for k in TAPS)",
                            "sum({0} ** k for k in range(1, 4))",
                            "sum((TAPS[k] * {0} for k in range(2)))",
                            "min(abs({0} - k) for k in TAPS if k > 0.2)",
                            "math.prod(1.0 + 0.2 * math.tanh({0} * k) for k in range(3))",
                            "sum({0} * a - b for a, b in PAIRS)")  # fmt: skip
            return f"{form}".format(f"math.tanh({self.one(*names)})")
        if kind == 13 and not loop:
            a, b = sub(), sub()
            c, x = self.condition(names, 1), self.one(*names)
            joined = self.one(
                f"({c} and {a})",
                f"({c} or {b})",
                f"(math.floor(0.6 * {x}) or {b})",
                f"({a} and {b} or {self.one(*CONSTANTS)})",
                f"(0.0 or {a})",
                f"(0.3 and {b})",
            )
            return joined
        return self.one(*BINARY).format(sub(), sub())

    def condition(self, names: list[str], depth: int) -> str:
        r = self.r
        a = self.one(*names)
        c = self.one("0.05", "-0.3", "0.41", "1.07")
        kind = r.randrange(9)
        if kind < 3 or depth <= 0:
            return f"{a} {self.one('<', '>', '<=', '>=')} {c}"
        if kind == 3:
            return f"-0.61 < {self.number(names, depth - 1, True)} <= {a} + 0.77"
        if kind == 4:
            first, other = (self.condition(names, depth - 1) for _ in range(2))
            return f"({first} {self.one('and', 'or')} {other})"
        if kind == 5:
            return f"(not {self.condition(names, depth - 1)})"
        if kind == 6:
            return f"math.isfinite({self.number(names, depth - 1, True)})"
        if kind == 7:
            return f"({a} != {c})"
        return f"{self.number(names, depth - 1, True)} > {c}"

    # --- statements

    def statements(
        self, names: list[str], count: int, nested: int = 0, loop: bool = False
    ) -> list[str]:
        """Statements that change or add to ``names``."""
        lines: list[str] = []
        for _ in range(count):
            kind = self.r.randrange(9)
            if kind < 3:
                new = self.name()
                lines.append(f"{new} = {self.number(names, 2, loop)}")
                names.append(new)
            elif kind == 3:
                own = [n for n in names if n.startswith("v")]
                if own:
                    op = self.one("+=", "-=", "+=", "*=", "%=", "//=")
                    right = (
                        "0.83"
                        if op in ("%=", "//=")
                        else f"math.tanh({self.number(names, 1, loop)})"
                    )
                    lines.append(f"{self.one(*own)} {op} {right}")
            elif kind == 4 and nested < 2:
                own = [n for n in names if n.startswith("v")]
                if own:
                    set_ = self.one(*own)
                    lines.append(f"if {self.condition(names, 2)}:")
                    inner = list(names)
                    lines += ["    " + x for x in self.statements(inner, 1, nested + 1, loop)]
                    lines.append(f"    {set_} = {self.number(inner, 2, loop)}")
                    if self.r.random() < 0.4:
                        lines.append(f"elif {self.condition(names, 1)}:")
                        lines.append(f"    {set_} = {self.number(names, 1, loop)}")
                    if self.r.random() < 0.6:
                        lines.append("else:")
                        lines.append(f"    {set_} -= {self.number(names, 1, loop)}")
            elif kind == 5 and nested < 2:
                new, k = self.name(), self.name()
                over = self.one(
                    "range(3)", "range(1, 6, 2)", "TAPS", "(0.3, -0.2)", "range(len(TAPS))"
                )
                lines.append(f"{new} = {self.number(names, 1, loop)}")
                lines.append(f"for {k} in {over}:")
                inner = [*names, new, k]
                body = self.statements(inner, self.r.randrange(2), nested + 1, loop)
                lines += ["    " + x for x in body]
                lines.append(
                    f"    {new} {self.one('+=', '-=')} math.tanh({self.number(inner, 2, loop)})"
                )
                names.append(new)
            elif kind == 6:
                a, b = self.name(), self.name()
                lines.append(
                    f"{a}, {b} = {self.number(names, 1, loop)}, {self.number(names, 1, loop)}"
                )
                names += [a, b]
            else:
                new = self.name()
                lines.append(f"{new} = {self.number(names, 3, loop)}")
                names.append(new)
        return lines

    def helper(self, number: int) -> list[str]:
        """A function with early returns."""
        names = ["x", "y"]
        lines = [f"def h{number}(x, y):"]
        body = self.statements(names, self.r.randrange(2))
        for _ in range(self.r.randrange(3)):
            form = self.r.randrange(3)
            if form == 0:
                body += [f"if {self.condition(names, 2)}:", f"    return {self.number(names, 2)}"]
            elif form == 1:
                body += [f"if {self.condition(names, 1)}:", f"    if {self.condition(names, 1)}:",
                         f"        return {self.number(names, 1)}", "    x = 0.7 * x"]  # fmt: skip
            else:
                body += ["for k in range(3):", f"    if {self.one(*names)} > 0.33 + 0.4 * k:",
                         f"        return {self.number(names, 1)} + k"]  # fmt: skip
        body.append(f"return {self.number(names, 2)}")
        return lines + ["    " + x for x in body] + [""]
