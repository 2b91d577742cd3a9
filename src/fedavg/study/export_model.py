"""The model of a run in formats that other programs read, with a card that says what it is."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedavg import trees
from fedavg.engine.fit import AS_IT_IS, input_form
from fedavg.engine.model import Model
from fedavg.errors import FedAvgError, PlanError, RunDirError
from fedavg.files import checked_path, write_atomically
from fedavg.plan import Plan
from fedavg.runlog.best import read_best
from fedavg.runlog.rundir import RunDir
from fedavg.setup import resolve_data, resolve_task
from fedavg.study.card import model_card
from fedavg.tasks import Task
from fedavg.trees import Tree
from fedavg.types import Examples

#: How many examples compare the exported model with the module: not as many as it was traced with.
TRIED: Final = 5
TRACED: Final = 3
#: Other programs add in another order: outputs agree within this tolerance.
TOLERANCE: Final = 1e-4


@dataclass(frozen=True)
class ExportedModel:
    """Where the model and its card are; `difference` is the largest between its outputs and the module's.

    >>> ExportedModel(Path("model.onnx"), Path("MODEL.md"), 2e-7).path.suffix
    '.onnx'
    """

    path: Path
    card: Path
    difference: float | None


@dataclass(frozen=True)
class _Subject:
    """A module with inputs to try it on."""

    module: nn.Module
    traced: Tree
    tried: Tree


def export_model(
    run_dir: str | Path, to: str = "safetensors", out: str | Path | None = None, which: str = "last", **parts: Any
) -> ExportedModel:
    """Write the last or the best model of a run as `safetensors`, `state-dict`, `torchscript` or `onnx`.

    TorchScript and ONNX models are run on real examples, and refused if they do not give what the module gives. A card
    is written beside the model: MODEL.md with plan, data, metrics and privacy. `parts` are the objects of a run that
    was started from Python with objects of its own, as in `resume`.

    >>> from tempfile import TemporaryDirectory
    >>> from fedavg import Plan, run
    >>> with TemporaryDirectory() as folder:
    ...     _ = run(Plan(data="mnist", C=0.02, rounds=1, workers=1), f"{folder}/run")
    ...     export_model(f"{folder}/run", "torchscript").path.name
    'model.pt'
    """
    if to not in FORMATS:
        raise PlanError(f"export_model: got '{to}'; expected one of {', '.join(FORMATS)}")
    directory = RunDir(checked_path(run_dir, "export_model", RunDirError))
    plan = directory.plan(**parts)
    task = resolve_task(plan)
    module, round = _module(directory, task, plan, which)
    form = FORMATS[to]
    path = Path(out) if out else directory.path / form.name
    path.parent.mkdir(parents=True, exist_ok=True)
    difference = form.write(module, path, lambda: _subject(module, task, plan))
    card = path.parent / "MODEL.md"
    digest = sha256(path.read_bytes()).hexdigest()
    write_atomically(card, model_card(directory, plan, module, round, which, path.name, digest).encode())
    return ExportedModel(path, card, difference)


def _module(directory: RunDir, task: Task, plan: Plan, which: str) -> tuple[nn.Module, int]:
    """The module in evaluation mode, and the round that it is of."""
    model = Model(task, plan.seed)
    directory.check_frozen(model.frozen.fingerprint)
    if which == "last":
        start = directory.newest(directory.identity()["plan"])
        if start is None:
            raise RunDirError(f"{directory.path} has no checkpoint of its plan; expected one: run it first")
        model.load(start.state.weights)
        return model.module.eval(), start.round
    if which != "best":
        raise PlanError(f"export_model: got which='{which}'; expected 'last' or 'best'")
    best = read_best(directory.path)
    if best is None:
        raise RunDirError(f"{directory.path} holds no whole best model; expected one, or export the last: --which last")
    model.load_tensors(best.tensors)
    return model.module.eval(), best.round


def _subject(module: nn.Module, task: Task, plan: Plan) -> _Subject:
    """Some of the run's own examples, as the module sees them."""
    data = resolve_data(plan)
    examples = data.test if data.test else data.client(int(data.sizes.argmax()))
    if len(examples) < 2:
        raise FedAvgError(f"{data.name} has fewer than two examples to try the model on; expected more")
    counts = (min(TRACED, len(examples) - 1), min(TRIED, len(examples)))
    traced, tried = (_prepared(task, trees.take(examples, slice(0, count))) for count in counts)
    return _Subject(module, traced, tried)


def _prepared(task: Task, examples: Examples) -> Tree:
    x = task.collate(examples.x, examples.y)[0] if task.collate else examples.x
    return input_form(task.prepare(x), AS_IT_IS)


def _write_safetensors(module: nn.Module, path: Path, subject: Callable[[], _Subject]) -> None:
    write_atomically(path, save({name: tensor.clone() for name, tensor in module.state_dict().items()}))


def _write_state_dict(module: nn.Module, path: Path, subject: Callable[[], _Subject]) -> None:
    torch.save({name: tensor.clone() for name, tensor in module.state_dict().items()}, path)


def _write_torchscript(module: nn.Module, path: Path, subject: Callable[[], _Subject]) -> float:
    """Traced on some examples, read back from the file, and compared with the module on others."""
    tried = subject()
    inputs = _positional(tried.traced, "torchscript")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.trace(module, inputs, check_trace=False), path)
            output = torch.jit.load(path)(*_positional(tried.tried, "torchscript"))
    except Exception as error:
        raise _refused("torchscript", path, error) from error
    return _compared(path, module, tried.tried, trees.leaves(output))


def _write_onnx(module: nn.Module, path: Path, subject: Callable[[], _Subject]) -> float:
    """Made by PyTorch's exporter, and run by ONNX Runtime on other examples; the number of examples may vary."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  the exporter needs it
    except ImportError:
        raise FedAvgError("ONNX needs onnxscript and onnxruntime: pip install 'fedavg[onnx]'") from None
    tried = subject()
    inputs = _positional(tried.traced, "onnx")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            rows = torch.export.Dim("rows")
            shapes = tuple({0: rows} for _ in inputs)
            torch.onnx.export(
                module, inputs, path, dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False
            )
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        given = dict(zip(names, [leaf.numpy() for leaf in _positional(tried.tried, "onnx")], strict=True))
        output = [torch.from_numpy(each) for each in session.run(None, given)]
    except Exception as error:
        raise _refused("onnx", path, error) from error
    return _compared(path, module, tried.tried, output)


def _positional(x: Tree, to: str) -> tuple[Tensor, ...]:
    if isinstance(x, dict):
        raise FedAvgError(
            f"{to}: the module takes its inputs by name, which this form has no place for; expected a module of one or "
            "several tensors, or another form: safetensors, state-dict"
        )
    return tuple(trees.leaves(x))


def _compared(path: Path, module: nn.Module, x: Tree, output: Sequence[Tensor]) -> float:
    """The largest difference between outputs; a file that gives other outputs is deleted."""
    with torch.no_grad():
        expected = trees.leaves(trees.call(module, x))
    shapes = [tuple(leaf.shape) for leaf in expected]
    same = [tuple(leaf.shape) for leaf in output] == shapes
    scale = max(1.0, *(float(leaf.abs().max()) for leaf in expected))
    difference = max(float((a - b).abs().max()) for a, b in zip(output, expected, strict=True)) if same else torch.inf
    if not difference <= TOLERANCE * scale:
        path.unlink()
        raise FedAvgError(
            f"the exported model gives other outputs than the module (largest difference {difference:g}; expected at "
            f"most {TOLERANCE * scale:g}), so it was not kept; use another form: safetensors, state-dict"
        )
    return difference


def _refused(to: str, path: Path, error: Exception) -> FedAvgError:
    path.unlink(missing_ok=True)
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return FedAvgError(
        f"the module cannot be written as {to}: {first}; expected PyTorch operators that {to} has. Use another form: "
        "safetensors, state-dict"
    )


@dataclass(frozen=True)
class _Form:
    #: What the file is called if no name is given.
    name: str
    write: Callable[[nn.Module, Path, Callable[[], _Subject]], float | None]


FORMATS: Final = {
    "safetensors": _Form("export.safetensors", _write_safetensors),
    "state-dict": _Form("state_dict.pt", _write_state_dict),
    "torchscript": _Form("model.pt", _write_torchscript),
    "onnx": _Form("model.onnx", _write_onnx),
}
