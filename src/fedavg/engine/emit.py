"""Writes a tape as TorchScript source: a whole local epoch, with the optimiser's steps folded into it.

A weight whose gradient is a matrix product is stepped by that product, without a gradient in between: W -= lr A B, or
with momentum V = mu V + A B. All weight steps come at the end, when nothing reads the old weights any more.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

from fedavg.engine.folding import Folding
from fedavg.engine.lengths import PerRow
from fedavg.engine.tape import Op, Ref, Tape

aten = torch.ops.aten
#: Views of a parameter stay valid while it is updated in place, so they are made once, before the loop over batches.
VIEWS: Final = {aten.t.default, aten.transpose.int, aten.view.default, aten.permute.default, aten.unsqueeze.default}
#: Up to this many rows are added to a bias one by one, which rounds each to the bias's last digit. With more rows, as
#: in a language model, they are summed first: the error would grow, and one more operator costs little there.
FEW_ROWS: Final = 64


@dataclass(frozen=True)
class Kind:
    """What is done with the gradients of a batch. The numbers to use are arguments of each call."""

    #: They are returned, for an optimiser that needs them whole; nothing is stepped.
    whole: bool = False
    momentum: bool = False
    nesterov: bool = False
    #: The gradient has a term in w: pull (w - towards), from a correction or weight decay.
    pulled: bool = False
    #: The gradient has a constant term.
    drifted: bool = False

    @property
    def steps_weights(self) -> bool:
        """True if a weight's step depends only on its own gradient, so that it can come anywhere in the step."""
        return not (self.whole or self.momentum or self.pulled)


@dataclass(frozen=True)
class Fold:
    """Where a gradient goes. `scales` are the arguments if it is added as a product; `rest` is for any other."""

    target: str
    scales: str
    rest: str


_STEP: Final = Fold("p", ", alpha=-lr", "{to}.sub_({g}, alpha=lr)")
_MOMENTUM: Final = Fold("t", ", beta=mu", "{to}.mul_(mu).add_({g})")
_WHOLE: Final = Fold("t", ", beta=0.0", "{to}.copy_({g})")


def _fold(kind: Kind) -> Fold:
    return _WHOLE if kind.whole else _MOMENTUM if kind.momentum else _STEP


def _before(kind: Kind) -> list[str]:
    """The operations on the flat vectors before the gradients are folded in."""
    if kind.nesterov:
        return ["earlier = v.clone()"]
    if kind.pulled and not kind.momentum:  # w -= lr pull (w - towards)
        return ["w.lerp_(towards, lr * pull)"]
    return []


def _after(kind: Kind) -> list[str]:
    """The operations on the flat vectors after that."""
    if not kind.momentum:
        return ["w.sub_(drift, alpha=lr)"] if kind.drifted else []
    lines = ["v.add_(w, alpha=pull)"] if kind.pulled else []
    lines += ["v.add_(drift)"] if kind.drifted else []
    if kind.nesterov:  # g = v - mu earlier, so that g + mu v = (1 + mu) v - mu earlier
        return [*lines, "w.sub_(v, alpha=lr * (1 + mu)).add_(earlier, alpha=lr * mu)"]
    return [*lines, "w.sub_(v, alpha=lr)"]


class Emitter:
    """Writes a tape as the TorchScript source of a function `epoch`.

    Its arguments: the tensors of all examples, the batch size, [lr, pull, momentum], the parameters, the rest of the
    module's state, the flat vectors [w, towards, drift, v] and, for each parameter, the tensor that its gradient goes
    to if that is not the parameter itself. Arguments that a kind does not need are empty.
    """

    def __init__(self, tape: Tape, kind: Kind = Kind()) -> None:  # noqa: B008
        self._tape, self._kind, self._fold = tape, kind, _fold(kind)
        self._folding = Folding(tape)
        self._mutated = {tape.roots[name] for op in tape.ops for name in op.written}
        #: By number of rows: vectors of ones to sum rows with.
        self._ones: dict[int | PerRow, str] = {}

    def source(self) -> str:
        given = [(place, gradient) for place, gradient in enumerate(self._tape.gradients) if gradient]
        steps = [line for place, gradient in given for line in self._update(place, gradient)]
        updates = [*_before(self._kind), *steps, *_after(self._kind)]
        before: list[str] = []
        inside: list[str] = []
        fixed = set(self._tape.parameters)
        for op in self._tape.ops:
            if self._folding.folded & set(filter(None, op.outputs)):
                continue
            if self._starts_backward(op):
                before.append(f"{op.outputs[0]} = torch.ones([], device=data[0].device)")
            elif op.func in VIEWS and op.args[0].name in fixed:
                fixed |= set(filter(None, op.outputs))
                before.extend(_lines(op))
            else:
                inside.extend(_lines(op))
        batches = [f"data[{i}].split(batch)" for i in range(len(self._tape.inputs))]
        return "\n".join(
            [
                "def epoch(data: List[Tensor], batch: int, numbers: List[float], params: List[Tensor], "
                "state: List[Tensor], flat: List[Tensor], targets: List[Tensor]):",
                "    lr, pull, mu = numbers[0], numbers[1], numbers[2]",
                "    w, towards, drift, v = flat[0], flat[1], flat[2], flat[3]",
                *(f"    {name} = params[{i}]" for i, name in enumerate(self._tape.parameters)),
                *(f"    {name} = state[{i}]" for i, name in enumerate(self._tape.state)),
                *(f"    t{i} = targets[{i}]" for i in range(len(self._tape.parameters)) if self._fold.target == "t"),
                *(
                    f"    {name} = torch.ones([{_word(n, int)}], device=data[0].device)"
                    for n, name in self._ones.items()
                ),
                *(f"    {line}" for line in before),
                "    total = torch.zeros([], device=data[0].device)",
                f"    for {', '.join(self._tape.inputs)} in zip({', '.join(batches)}):",
                *(f"        {line}" for line in inside),
                *(f"        {line}" for line in updates),
                f"        total.add_({self._tape.loss}, alpha=batch)",
                "    return total\n",
            ]
        )

    def _starts_backward(self, op: Op) -> bool:
        """Whether this makes the gradient of the loss with respect to itself: 1 in every step."""
        is_one = op.func is aten.ones_like.default and op.args[0].name == self._tape.loss
        return is_one and not self._tape.forms[self._tape.loss].shape and op.outputs[0] not in self._mutated

    def _update(self, place: int, gradient: str) -> list[str]:
        """The lines that add the gradient of one parameter to its target."""
        to = f"{self._fold.target}{place}"
        product = self._product(to, gradient)
        folded = [product] if product else self._row_sum(to, self._tape.parameters[place], gradient)
        return folded or [self._fold.rest.format(to=to, g=gradient)]

    def _product(self, to: str, gradient: str) -> str:
        """If the gradient is a matrix product, add it to its target as it is computed."""
        found = self._folding.product(gradient)
        if found is None:
            return ""
        a, b = (f"{found.b}.t()", f"{found.a}.t()") if found.turned else (found.a, found.b)
        return f"{to}.addmm_({a}, {b}{self._fold.scales})"

    def _row_sum(self, to: str, parameter: str, gradient: str) -> list[str]:
        """If it is the sum over a matrix's rows, as for a bias, take it as a product with ones if the rows are few."""
        matrix = self._folding.row_sum(parameter, gradient)
        if matrix is None:
            return []
        rows = self._tape.layouts[matrix].shape[0]
        if isinstance(rows, int) and rows > FEW_ROWS:
            return []
        self._folding.fold_row_sum(gradient)
        ones = self._ones.setdefault(rows, f"ones_{len(self._ones)}")
        few = f"{to}.addmv_({matrix}.t(), {ones}{self._fold.scales})"
        if isinstance(rows, int):
            return [few]
        many = self._fold.rest.format(to=to, g=f"{matrix}.sum(0)")
        return [f"if {_word(rows, int)} <= {FEW_ROWS}:", f"    {few}", "else:", f"    {many}"]


def _lines(op: Op) -> list[str]:
    """The call, and a line for each of several outputs."""
    if len(op.outputs) == 1:
        return [f"{op.outputs[0]} = {call_source(op)}"]
    made = [(place, name) for place, name in enumerate(op.outputs) if name]
    several = f"several_{made[0][1]}"
    return [f"{several} = {call_source(op)}", *(f"{name} = {several}[{place}]" for place, name in made)]


def call_source(op: Op) -> str:
    """An operator call as TorchScript source."""
    schema = op.func._schema
    types = {argument.name: argument.type for argument in schema.arguments}
    words = [_word(value, kind) for value, kind in zip(op.args, types.values(), strict=False)]
    words += [f"{key}={_word(value, types[key])}" for key, value in op.kwargs.items()]
    return f"torch.ops.{schema.name.replace('::', '.')}({', '.join(words)})"


def _word(value: Any, kind: Any) -> str:
    """An argument as TorchScript source; `kind` is its type in the operator's schema."""
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, PerRow):
        return f"float(batch * {value.times})" if value.is_float else f"batch * {value.times}"
    if isinstance(value, list | tuple):
        items = ", ".join(_word(item, kind) for item in value)
        return f"[{items}]" if value and None not in value else f"torch.jit.annotate({_list_type(kind)}, [{items}])"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float):
        return f"float('{value}')"
    return repr(value)


def _list_type(kind: Any) -> str:
    """The TorchScript name of a list type, without the Optional around it."""
    text = str(kind)
    while text.startswith("Optional["):
        text = text[len("Optional[") : -1]
    return text
