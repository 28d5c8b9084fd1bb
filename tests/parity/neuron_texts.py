"""Random neuron classes of the whole documented grammar, as source text.

Three kinds: free ones, whose gradients are derived (several weights, memory, draws, statistics of
the layer and the batch, a rule of their own); those that write ``backward``; and output neurons,
which read their target.
"""

from __future__ import annotations

from tests.parity.expressions import Writer

DRAWS = ("bernoulli(0.6{})", "uniform(-1.0, 1.0{})", "normal(0.0, 0.5{})")
OF_LAYER = ("sum", "mean", "var", "max", "min", "argmax", "rank")
OF_BATCH = ("sum", "mean", "var")


def indented(lines: list[str], by: int = 1) -> list[str]:
    return ["    " * by + line for line in lines]


class NeuronWriter(Writer):
    """Writes classes; ``fields`` are what a message of the class at hand has."""

    weights: tuple[str, ...] = ("weight",)
    traces: tuple[str, ...] = ()
    fields: list[str]

    def draw(self) -> str:
        """A draw that is 0.5 at prediction."""
        per = self.one("", "", ', per="batch"', ', per="run"')
        return f"(self.{self.one(*DRAWS).format(per)} if self.training else 0.5)"

    def declare(self, name: str) -> tuple[list[str], list[str]]:
        """The head of a class, and the names that its methods may read."""
        r = self.r
        lines = [f"class {name}(horn.Neuron):", "    slope = 0.3", "    taps = (0.4, -0.9)"]
        names = ["self.slope"]
        for k in range(r.randrange(3)):
            first = self.one("0.6", "-0.4", "horn.Uniform(0.1, 1)")
            lines.append(f"    p{k} = horn.Parameter({first})")
            names.append(f"self.p{k}")
        names.append(self.one("self.index", "self.iteration", "self.layer_index"))
        return lines, names

    def synapses(self) -> list[str]:
        """Declarations of what a synapse has, and with them the fields of a message."""
        r, lines = self.r, []
        self.weights = self.r.choice((("weight",),) * 3 + (("weight", "gate"), ("value", "gate")))
        if len(self.weights) > 1:
            given = self.one("", "", "bias=0.3", "'normal', bias=-0.2")
            lines += [f"    {self.weights[0]} = horn.Weight()", f"    gate = horn.Weight({given})"]
        self.traces = ("trace",) if r.random() < 0.25 else ()
        lines += [f"    {name} = horn.SynapseState(0.15)" for name in self.traces]
        extra = self.one("m.index", "self.slope", "len(messages)", "m.normal(0.0, 0.5)",
                         "m.uniform(-1.0, 1.0)")  # fmt: skip
        own = [f"m.{name}" for name in self.weights]
        products = [f"m.input * {each}" for each in own]
        self.fields = ["m.input", *own, *products, *(f"m.{t}" for t in self.traces), extra]
        return lines

    def element(self) -> str:
        """A number of one message that is no constant."""
        weight = self.one(*self.weights)
        e = f"m.input * m.{weight} + 0.2 * {self.number(self.fields, 2, True)}"
        if self.r.random() < 0.2:
            e = self.one(f"{e} * {self.draw()}", f"{e} + 0.3 * {self.draw()}")
        return f"({e})"

    def gather(self) -> tuple[list[str], list[str]]:
        """Statements that look at the messages, and the names of what they have made."""
        r, v, form = self.r, self.name(), self.r.randrange(16)
        if form < 3:
            return [f"{v} = sum(m.input * m.{self.one(*self.weights)} for m in messages)"], [v]
        if form == 8:
            decided = self.one("any(m.input > 0.37 for m in messages)",
                               "all(m.input < 0.9 for m in messages)")  # fmt: skip
            total = self.name()
            return [
                f"{total} = sum({self.element()} for m in messages)",
                f"{v} = 0.4 * {total} if {decided} else {total}",
            ], [v, total]
        if form in (10, 11):
            w, inner = self.name(), list(self.fields)
            body = [f"{v}, {w} = 0.1, 1.0", "for m in messages:"]
            body += indented(self.statements(inner, r.randrange(3), 1, True))
            body.append(f"    {v} += m.{self.weights[0]} * {self.number(inner, 2, True)}")
            if r.random() < 0.5:
                body += [
                    f"    if {self.condition(self.fields[:3], 1)}:",
                    f"        {w} *= 1.0 + 0.1 * math.tanh({inner[-1]})",
                ]
            else:
                body += ["    for k in range(2):", f"        {w} += math.tanh(k * m.input)"]
            return body, [v, w]
        e = self.element()
        if form == 7:
            return [
                f"{v} = -9.0",
                "for m in messages:",
                f"    u = {e}",
                f"    if u > {v}:",
                f"        {v} = u",
            ], [v]
        low = self.one("m.input > 0.1", "m.index % 2 == 0")
        if form == 14:
            b, field = self.name(), self.one(*self.fields[:2])
            key = f"lambda m: {self.element()}"
            best = f"{b} = {self.one('max', 'min')}(messages, key={key})"
            return [best, f"{v} = {b}.input * {field.replace('m.', b + '.')}"], [v]
        most = self.one("max", "min")
        if form == 9:
            taps = f"sum(math.tanh({self.one(*self.fields[:3])} * k) + m.input"
            return [f"{v} = {taps} * m.{self.weights[-1]} for m in messages for k in TAPS)"], [v]
        text = {
            3: f"sum(math.tanh({e}) for m in messages) / len(messages)",
            4: f"{most}({e} for m in messages)",
            5: f"math.prod(1.0 + 0.3 * math.tanh({e}) for m in messages)",
            6: f"sum({e} for m in messages if {low})",
            12: f"{most}(({e} for m in messages if {low}), default=0.2)",
            15: self.one(
                f"hm.median({e} for m in messages)",
                f"hm.top_sum(2, ({e} for m in messages))",
                f"math.tanh(hm.largest(1, ({e} for m in messages if {low})))",
            ),  # fmt: skip
            13: f"math.log(sum(math.exp(math.tanh({e})) for m in messages))",
        }
        return [f"{v} = {text[form]}"], [v]

    def remember(self) -> list[str]:
        """What synapses remember of this sample."""
        if not self.traces:
            return []
        kept = f"m.trace = 0.7 * m.trace + 0.1 * math.tanh({self.number(self.fields, 1, True)})"
        body = [f"if {self.condition(self.fields[:2], 0)}:", f"    {kept}"]
        return ["for m in messages:", *indented(body if self.r.random() < 0.3 else [kept])]

    def ask(self, names: list[str], gathered: list[str], states: list[str]) -> list[str]:
        """Statements that ask the layer or the batch."""
        v = self.name()
        x = f"{self.one(*gathered)} + 0.3 * math.tanh({self.number(names, 1)})"
        form = self.r.randrange(8)
        names.append(v)
        gathered.append(v)
        if form < 4:
            return [f'{v} = self.{self.one(*OF_LAYER)}({x}, over="layer")']
        if form == 4:
            word = self.one("mean", "var")
            if not states:
                return [f'{v} = self.{word}({x}, "layer")']
            return [f'{v} = self.{word}({x}, over="batch", running="{states.pop()}")']
        if form == 5:
            return [
                f"{v} = 0.2",
                "if self.training:",
                f'    {v} += self.{self.one(*OF_BATCH)}({x}, over="batch")',
            ]
        if form == 6:
            return [
                f"{v} = 0.0",
                "for k in range(2):",
                f'    {v} += self.{self.one("mean", "max", "var")}(k * ({x}), over="layer")',
            ]
        return [f"{v} = self.apart({x})"]

    def free(self, name: str, is_output: bool = False) -> list[str]:
        """A class whose gradients are derived, or with a rule of its own."""
        r = self.r
        lines, names = self.declare(name)
        asks, dropped, local = r.random() < 0.45, r.random() < 0.12, r.random() < 0.1
        states = []
        for state in ("kept", "average"):
            if r.random() < 0.3:
                lines.append(f"    {state} = horn.State(0.21)")
                names.append(f"self.{state}")
                states.append(state)
        lines += self.synapses()
        names.append(self.one("len(messages)", "self.slope"))
        body: list[str] = []
        gathered: list[str] = []
        if dropped and not asks:
            body += ['mask = self.bernoulli(0.6, per="batch") if self.training else 0.6',
                     "if mask == 0:", "    self.feedforward(0.0)", "    return"]  # fmt: skip
            names.append("mask")
        early = r.random() < 0.5
        if early:
            body += self.remember()
        for _ in range(r.randrange(1, 4)):
            statements, made = self.gather()
            body += statements
            gathered += made
        names += [*gathered, *gathered]
        kept = "kept" if "kept" in states else None
        if kept:
            states.remove("kept")
        for _ in range(r.randrange(1, 4) if asks else 0):
            body += self.ask(names, gathered, states)
        body += self.statements(names, r.randrange(4))
        if r.random() < 0.25:
            body.append(f"noise = {self.draw()}")
            names.append("noise")
        if not early:
            body += self.remember()
        y = f"math.tanh({self.number(names, 3)}) + " + " + ".join(
            f"0.3 * math.tanh({g})" for g in gathered
        )
        if kept:
            body.append(f"self.kept = 0.8 * self.kept + 0.1 * math.tanh({self.one(*gathered)})")
        if is_output and r.random() < 0.7:
            body += [f"z = {y}", "if self.training:"]
            body.append(
                f"    z = 0.7 * z + 0.2 * math.tanh({self.number(['self.target', 'z'], 2)})"
            )
            y = "z"
        if r.random() < 0.3 and not local:
            body += [
                f"if {self.condition(gathered, 2)}:",
                f"    self.feedforward(self.bent({y}))",
                "    return",
            ]
        body.append(f"self.feedforward({self.one('self.activation({})', '{}').format(y)})")
        if local:
            body.append("for m in messages:")
            taught = self.weights if r.random() < 0.7 else self.weights[:1]
            for weight in taught:
                to = f', to="{weight}"' if len(self.weights) > 1 else ""
                error = "self.target" if is_output and r.random() < 0.5 else "self.output"
                body.append(
                    f"    self.push(math.tanh({error}) * (m.input - self.output * m.{weight}){to})"
                )
        lines += ["    def forward(self, messages):", *indented(body, 2)]
        lines += ["    def bent(self, z):"]
        inner = ["z", "self.slope"]
        lines += ["        for t in self.taps:", f"            if {self.condition(inner[:1], 1)}:",
                  f"                z = z * t + {self.number(inner, 1)}",
                  f"        return math.tanh({self.number(inner, 2)})",
                  "    def apart(self, z):",
                  f'        return z - self.{self.one("mean", "max", "min")}(z, over="layer")',
                  ""]  # fmt: skip
        return lines

    def written(self, name: str, has_delta: bool, hears: bool) -> list[str]:
        """A weighted sum that writes backward. has_delta : its receivers are weighted sums with
        one weight; hears : so are the output neurons.
        """
        r = self.r
        lines, names = self.declare(name)
        self.weights, self.traces = ("weight",), ()
        parameters = [n for n in names if n.startswith("self.p")]
        states = ["noise"] if r.random() < 0.4 else []
        lines += [f"    {state} = horn.State(0.21)" for state in states]
        if has_delta and r.random() < 0.4:
            self.traces = ("trace",)
            lines.append("    trace = horn.SynapseState(0.15)")
        body = ["z = sum(m.input * m.weight for m in messages)"]
        names += ["z", "z"]
        if states:
            body += [f"self.noise = 0.4 * {self.draw()}", "z += self.noise"]
        body += self.statements(names, r.randrange(3))
        y = f"0.5 * z + math.tanh({self.number(names, 2)})"
        body.append(f"self.feedforward({self.one('self.activation({})', '{}').format(y)})")
        lines += ["    def forward(self, messages):", *indented(body, 2)]
        back, known = ["g = 0.0", "for m in messages:"], ["self.output", "g", "self.slope"]
        field = self.one("m.gradient", "m.delta * m.weight" if has_delta else "m.gradient")
        back.append(f"    g += {self.one('{}', '0.5 * {}', 'hm.tanh({})').format(field)}")
        if self.traces:
            back += ["    m.trace = 0.6 * m.trace + 0.2 * m.delta * self.output"]
        if has_delta and r.random() < 0.7:
            change = f"math.tanh({self.number(['m.weight', 'self.output', 'm.delta'], 1, True)})"
            kept = " + 0.1 * m.trace" if self.traces else ""
            back.append(f"    self.push(m.delta * self.output * (1.0 + 0.2 * {change}){kept})")
        if hears:
            # Not the sum of e.delta alone: of a softmax it is 0 but for rounding.
            e = self.one("e.delta * e.normal(0.0, 0.4)", "e.delta * e.uniform()")
            back.append(f"h = {self.one('sum', 'sum', 'max')}({e} for e in self.error)")
            known += ["h", "h"]
        if r.random() < 0.5:
            known.append("self.loss")
        if states:
            known.append("self.noise")
            back.append(f"self.noise = 0.3 * self.noise + 0.1 * math.tanh({self.one(*known)})")
        back += self.statements(known, r.randrange(2))
        for name in parameters:
            back.append(f'self.push(g * math.tanh({self.number(known, 1)}), to="{name[5:]}")')
        back.append(f"self.backpropagate(0.4 * g + 0.1 * math.tanh({self.number(known, 2)}))")
        return [*lines, "    def backward(self, messages):", *indented(back, 2), ""]
