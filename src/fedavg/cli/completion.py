"""Completion in the shell: words for the options of a plan, presets, plan files and run directories.

The words are listed here instead of asking the registries, which import PyTorch: completion must not wait for it.
A test holds the list against the registries.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from fedavg.errors import FedAvgError

#: By the name of an option of the plan, or of a command.
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "task": ("mnist-2nn", "mnist-cnn", "shakespeare-lstm", "cifar-cnn", "posts-lstm"),
    "partition": ("iid", "shards", "dirichlet", "labels", "unbalanced", "natural", "zoned"),
    "algorithm": (
        "fedavg",
        "fedsgd",
        "oneshot",
        "sgd",
        "fedprox",
        "fedavgm",
        "fedadagrad",
        "fedadam",
        "fedyogi",
        "fednova",
        "scaffold",
        "feddyn",
        "fedbuff",
        "adaptive",
    ),
    "adapters": ("lora",),
    "optimizer": ("sgd", "adam", "adamw"),
    "metrics": ("accuracy", "topk", "loss", "perplexity", "class_accuracy", "f1", "auc", "mae", "rmse"),
    "codec": ("float32", "float16", "bfloat16", "quantise", "mask", "lowrank", "topk", "stc", "entropy"),
    "downlink": ("float32", "float16", "bfloat16", "quantise", "mask", "lowrank", "topk", "stc", "entropy"),
    "stages": ("clip", "weigh", "noise", "localdp"),
    "sampling": ("fixed", "poisson", "weighted", "turns", "choice", "corrected", "oort"),
    "world": ("always", "diurnal", "markov", "trace"),
    "closing": ("all", "deadline", "quorum"),
    "reducer": (
        "mean",
        "median",
        "trimmed",
        "meamed",
        "geomedian",
        "krum",
        "multikrum",
        "centred",
        "mda",
        "normbound",
        "dnc",
    ),
    "pre": ("nnm", "bucket", "clip", "arc"),
    "attack": (
        "nan",
        "inf",
        "gaussian",
        "signflip",
        "scaled",
        "ipm",
        "optipm",
        "alie",
        "optalie",
        "mimic",
        "labelflip",
        "backdoor",
        "freerider",
        "minmax",
    ),
    "changes": ("arrivals", "deletions", "window", "drift"),
    "data": ("mnist", "cifar10", "shakespeare", "posts", "synthetic-posts"),
    "fleet": ("local", "ray"),
    "evaluate": ("auto", "server", "clients", "server,clients"),
    "secagg": ("none", "complete", "sparse"),
    "noise_source": ("seeded", "os"),
    "engine": ("auto", "graph", "plain"),
    "device": ("cpu", "cuda"),
    "drop_last": ("true", "false"),
    "eval_train": ("true", "false"),
    "start_method": ("auto", "fork", "forkserver", "spawn"),
}  # fmt: skip
#: Options that take several words with commas between.
LISTS: Final = ("metrics", "stages", "pre")
SHELLS: Final = ("bash", "zsh", "fish")


def complete_option(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words that an option of the plan takes; of a list, the last one is completed."""
    words = WORDS.get(str(parameter.name), ())
    done, comma, last = incomplete.rpartition(",") if parameter.name in LISTS else ("", "", incomplete)
    return [CompletionItem(f"{done}{comma}{word}") for word in words if word.startswith(last)]


def complete_source(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Presets and TOML files."""
    from fedavg.plan import PRESETS

    presets = [CompletionItem(name) for name in PRESETS if name.startswith(incomplete)]
    return [*presets, *_paths(incomplete, lambda path: path.suffix == ".toml")]


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run directories, and folders on the way to them."""
    return _paths(incomplete, lambda path: (path / "run.json").exists())


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[CompletionItem]:
    folder, _, start = incomplete.rpartition("/")
    root = Path(folder + "/" if folder or incomplete.startswith("/") else ".")
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    prefix = f"{folder}/" if "/" in incomplete else ""
    chosen = [path for path in entries if path.name.startswith(start) and (start or not path.name.startswith("."))]
    found = [CompletionItem(f"{prefix}{path.name}") for path in chosen if wanted(path)]
    ways = [CompletionItem(f"{prefix}{path.name}/") for path in chosen if path.is_dir() and not wanted(path)]
    return [*found, *ways]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that gives a shell completion of commands, options, presets, parts and run directories.

    \b
    bash: echo 'eval "$(fedavg completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(fedavg completion zsh)"' >> ~/.zshrc
    fish: fedavg completion fish > ~/.config/fish/completions/fedavg.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise FedAvgError(f"completion: got '{shell}'; expected one of {', '.join(SHELLS)}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "fedavg", "_FEDAVG_COMPLETE").source())
