"""LoRA (Hu et al. 2021): beside each frozen W of a layer, a trained change of low rank, (alpha / r) B A.

A has shape (r, inputs) and is drawn at random, B has shape (outputs, r) and starts at zero: so does the change. The
layers are those of `peft`, put in place of the module's own.

Clients' A and B are averaged each for itself, which is not the average of their products. With `fixed_a` all clients
keep the A that the seed drew, and B alone is trained: then the average is exact, half as much travels, and the noise of
differential privacy is not multiplied by itself (FFA-LoRA, Sun et al. 2024).
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedavg.adapters.adapters import Adapters
from fedavg.errors import FedAvgError, PlanError, TaskError


@dataclass(frozen=True)
class LoRA(Adapters):
    """Adds changes of rank `r`, scaled by `alpha` / r, to the layers that `layers` names.

    `layers` are the last words of their names, joined by +, as in "query+value"; "all" is every linear layer but those
    of the task's head. `dropout` applies to a layer's input on its way to A. Needs `peft`, which comes with
    'fedavg[adapters]'.

    >>> import fedavg
    >>> fedavg.Plan(adapters=fedavg.LoRA(r=4, layers="query+value")).adapters
    'lora:4:layers=query+value'
    """

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    layers: str = "all"
    fixed_a: bool = False

    def __post_init__(self) -> None:
        self._require("r", self.r >= 1, "a rank of at least 1")
        self._require("alpha", self.alpha > 0, "a number above 0")
        self._require("dropout", 0 <= self.dropout < 1, "a share from 0 and below 1")
        self._require("layers", bool(self.layers), "all, or names joined by +, as in query+value")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise PlanError(f"adapters lora: {name} is {getattr(self, name)!r}; expected {expected}")

    def adapt(self, module: nn.Module, head: Sequence[str]) -> nn.Module:
        peft = _peft()
        config = peft.LoraConfig(
            r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=self._chosen(module, head)
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of shared weights and the like, which stay frozen here
                peft.inject_adapter_in_model(config, module)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            raise TaskError(f"adapters '{self}': peft cannot adapt the module: {error}") from error
        _leave_fused_forward(module)
        for name, parameter in module.named_parameters():
            if self.fixed_a and ".lora_A." in name:
                parameter.requires_grad_(False)
        return module

    def _chosen(self, module: nn.Module, head: Sequence[str]) -> list[str]:
        able = dict(_adaptable(module, head))
        if self.layers == "all":
            names = [name for name, layer in able.items() if _is_linear(layer)]
            remedy = f"expected one, or names of others: layers={_last_word(able)}" if able else "expected one"
            if not names:
                raise TaskError(f"adapters '{self}': the module has no linear layer outside of its head; {remedy}")
            return names
        found: list[str] = []
        for word in self.layers.split("+"):
            named = [name for name in able if name == word or name.endswith(f".{word}")]
            if not named:
                known = ", ".join(sorted({name.rpartition(".")[2] for name in able})) or "none"
                raise TaskError(f"adapters '{self}': no layer is called '{word}'; expected all, or some of {known}")
            found += named
        return found


def _adaptable(module: nn.Module, head: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """The layers with weights of their own, by name, outside of the head.

    Not within PyTorch's attention: that takes the weights of its layers and never calls them.
    """
    apart = [*head, *(name for name, layer in module.named_modules() if isinstance(layer, nn.MultiheadAttention))]
    for name, layer in module.named_modules():
        within = any(name == each or name.startswith(f"{each}.") for each in apart)
        if name and not within and isinstance(getattr(layer, "weight", None), nn.Parameter) and layer.weight.ndim > 1:
            yield name, layer


def _is_linear(layer: nn.Module) -> bool:
    """PyTorch's, or that of GPT-2, which has its weights transposed."""
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"


def _last_word(names: Any) -> str:
    return str(next(iter(names))).rpartition(".")[2]


def _leave_fused_forward(module: nn.Module) -> None:
    """In evaluation PyTorch's encoder layers run as one operator on the bare weights: adapters would not count there.

    An activation that is neither ReLU nor GELU is what turns that off.
    """
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise FedAvgError(
            f"adapters 'lora' need {error.name}; install it with: pip install 'fedavg[adapters]'"
        ) from None
    return peft
