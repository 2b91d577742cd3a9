"""Gradients that need not be made: a product or a sum of rows can be added to its target directly."""

from dataclasses import dataclass
from typing import Any

import torch

from fedavg.engine.tape import Op, Tape

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """a b, or if `turned`, the transpose of that."""

    a: str
    b: str
    turned: bool


class Folding:
    """Finds them on a tape. `folded` has those that were found: the operators that make them are not needed."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._maker: dict[str, Op] = {name: op for op in tape.ops for name in op.outputs if name}
        self._uses = [name for op in tape.ops for name in op.refs] + [tape.loss, *filter(None, tape.gradients)]
        #: Tensors that a product at the end of the step must not use: parameters may have been stepped by then.
        self._unsafe = {tape.roots[name] for op in tape.ops for name in op.written} | set(tape.parameters)
        self.folded: set[str] = set()

    def product(self, gradient: str) -> Product | None:
        """The factors, if the gradient is a matrix product that nothing else uses."""
        chain = self._chain(gradient, aten.t.default)
        if not self._foldable(chain, aten.mm.default):
            return None
        self.folded.update(chain)
        a, b = (factor.name for factor in self._maker[chain[-1]].args)
        return Product(a, b, turned=len(chain) % 2 == 0)

    def row_sum(self, parameter: str, gradient: str) -> str | None:
        """The matrix, if the gradient is the sum over its rows, as for a bias."""
        chain = self._chain(gradient, aten.view.default)
        if not self._foldable(chain, aten.sum.dim_IntList) or self._maker[chain[-1]].args[1] != [0]:
            return None
        matrix: str = self._maker[chain[-1]].args[0].name
        _, *columns = self._tape.layouts[matrix].shape
        if tuple(columns) != self._tape.layouts[parameter].shape or len(columns) != 1:
            return None
        return matrix

    def fold_row_sum(self, gradient: str) -> None:
        self.folded.update(self._chain(gradient, aten.view.default))

    def _chain(self, name: str, passed: Any) -> list[str]:
        """The gradient and the tensors that it views through one kind of operator, back to where it was computed."""
        chain = [name]
        while name in self._maker and self._maker[name].func is passed:
            name = self._maker[name].args[0].name
            chain.append(name)
        return chain

    def _foldable(self, chain: list[str], computed_by: Any) -> bool:
        """Computed by this operator, only for this update, from tensors that nothing overwrites during the step."""
        maker = self._maker.get(chain[-1])
        return (
            maker is not None
            and maker.func is computed_by
            and all(self._uses.count(name) == 1 for name in chain)
            and not any(self._tape.roots[factor] in self._unsafe for factor in maker.refs)
        )
