"""The pages of the reference that are made from the code, so that they cannot go stale."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields

import click

import fedavg
from fedavg import errors, specs
from fedavg.cli import cli
from fedavg.cli.groups import EXIT_CODES, GROUPS
from fedavg.cli.man import contexts
from fedavg.plan import Plan
from fedavg.plan.plan import part_options

#: How options are sorted for a reader; one that is not named here stands under the last heading.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "What is learned, and from whose data": ("task", "data", "partition", "clients", "holdout", "changes"),
    "The algorithm and a client's work": (
        "algorithm", "C", "E", "B", "drop_last", "lr", "lr_decay", "optimizer", "sampling",
    ),
    "How long, and who judges": (
        "rounds", "target", "patience", "metrics", "evaluate", "eval_clients", "eval_every", "eval_train", "seed",
    ),
    "Bytes": ("codec", "downlink", "uplink"),
    "Privacy": ("secagg", "stages", "dp_epsilon", "dp_delta", "noise_source"),
    "Clients that lie": ("reducer", "pre", "attack", "attackers"),
    "A simulated world": ("world", "closing"),
    "How a run goes": (),
}  # fmt: skip

#: One more example where the default shows little. All of them are read by a test.
EXAMPLES: Mapping[str, object] = {
    "partition": "dirichlet:0.3",
    "clients": 1000,
    "holdout": 0.2,
    "changes": "arrivals:0.2:50",
    "algorithm": "fedprox:mu=0.1",
    "E": "20,100:5",
    "B": "inf",
    "lr": "cosine:0.1:end=0.001",
    "lr_decay": 0.99,
    "optimizer": "sgd:momentum=0.9",
    "sampling": "poisson",
    "target": "f1=0.8",
    "patience": "loss=20",
    "metrics": ["f1:10", "topk:5"],
    "evaluate": "server,clients",
    "eval_clients": 100,
    "codec": "entropy:quantise:4",
    "downlink": "stc:0.03",
    "secagg": "complete:0.5:600",
    "stages": ["clip:1.0", "weigh:equal", "noise:1.1"],
    "dp_epsilon": 8.0,
    "dp_delta": 1e-6,
    "noise_source": "os",
    "reducer": "trimmed:0.3",
    "pre": ["clip:2", "nnm:0.2"],
    "attack": "signflip",
    "attackers": [3, 7],
    "world": "diurnal:4",
    "closing": "deadline:600",
    "data_dir": "/data/federated",
    "worker_timeout": 600.0,
}

#: The pages of the API: a title, and the modules of `fedavg._HOMES` whose names it shows.
API: Mapping[str, tuple[str, ...]] = {
    "Plans and runs": ("plan", "plan.options", "plan.rates", "runner", "server", "runlog.stopping"),
    "Studies and export": ("study",),
    "Tasks and data": ("tasks", "data", "ragged", "types"),
    "Algorithms and optimisers": ("algorithms", "client", "optimizers"),
    "Codecs, stages and samplers": ("codecs", "stages", "samplers"),
    "Metrics": ("metrics",),
    "Fleets and devices": ("fleets", "programs"),
    "Reducers and attacks": ("robust", "attacks"),
    "Worlds": ("world",),
    "Errors": ("errors",),
    "More": (),
}

#: What a reader of a page of the API looks for first; other names follow in alphabetical order.
LEADING = (
    "Plan", "run", "resume", "train", "Result", "Task", "FederatedData", "Examples", "load", "Algorithm", "Client",
    "Update", "Codec", "Stage", "Sampler", "Metric", "Fleet", "Device", "Reducer", "Attack", "World", "sweep",
    "FedAvgError",
)  # fmt: skip

MADE = "<!-- made by tools/reference.py -->\n"


def pages() -> dict[str, str]:
    """Each generated page by its path below docs/."""
    return {
        "reference/options.md": options_page(),
        "reference/commands.md": commands_page(),
        "reference/errors.md": errors_page(),
        **dict(api_pages()),
    }


def options_page() -> str:
    specs_of = {spec.name: spec for spec in fields(Plan)}
    listed = {name for names in OPTIONS.values() for name in names}
    last = tuple(name for name in specs_of if name not in listed)
    parts = [
        f"# Every option of a plan\n{MADE}",
        "An option means the same in a TOML file (`lr = 0.1`), on the command line (`--lr 0.1`, `--set lr=0.1`) and in "
        "Python (`fedavg.Plan(lr=0.1)`). Options at their defaults do not count in the plan's digest. Those marked "
        "*runtime* never do: they cannot change the result.\n",
    ]
    for title, names in OPTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_option(specs_of[name]) for name in names or last if name in specs_of]
    return "\n".join(parts)


def _option(spec: "Field[object]") -> str:
    help, default = spec.metadata["help"], spec.default
    flag = spec.metadata["flag"] or f"--{spec.name.replace('_', '-')}"
    shown = "the machine's cores" if spec.name == "workers" else _toml(default)
    lines = [
        f"### {spec.name}\n",
        f"{_linked(help)}\n",
        f"Default: {f'`{shown}`' if shown else 'none'}. Flag: `{flag}`."
        + (" *Runtime.*" if spec.metadata["runtime"] else ""),
        "",
    ]
    if (example := example_of(spec)) is not None:
        lines += ["```toml", f"{spec.name} = {_toml(example)}", "```", ""]
    lines += _choices(spec.name)
    return "\n".join(lines)


def example_of(spec: "Field[object]") -> object:
    return None if spec.name == "workers" else EXAMPLES.get(spec.name, spec.default or None)


def _choices(name: str) -> list[str]:
    """The registered parts that an option takes, each as it is written, with the first sentence of its docstring."""
    parser = part_options().get(name)
    if parser is None:
        return []
    registry = parser.base().registry()
    rows = [
        f"| `{text}` | {_first_line(target)} |"
        for text, target in zip(specs.usage(registry), registry.values(), strict=True)
    ]
    kind = f"fedavg.{parser.base().__name__}"
    return [
        "| written | what it is |",
        "|---|---|",
        *rows,
        "",
        f"Or installed code, `module:Name`; or an object of `{kind}`.\n",
    ]


def _first_line(target: object) -> str:
    source = target if isinstance(target, type) else target.build  # a ready object is a task: what it builds says more
    text = inspect.cleandoc(vars(source).get("__doc__") or source.__doc__ or "").partition("\n\n")[0]
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _toml(value: object) -> str:
    if value in (None, ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')


def _linked(text: str) -> str:
    """docs/world.md, as help texts have it, as a link; what looks like HTML stays as it is."""
    escaped = text.replace("<", "&lt;").replace("*", "\\*")
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](../\1.md)", escaped)


def commands_page() -> str:
    found = dict(contexts(cli))
    parts = [f"# Every command\n{MADE}", "The same as `fedavg COMMAND --help`.\n"]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += [_command(context) for path, context in found.items() if _within(path, f"fedavg-{name}")]
    return "\n".join(parts)


def _within(path: str, name: str) -> bool:
    """Whether a page is a command's, or one of its sub-commands'."""
    return path == name or (path.startswith(f"{name}-") and path[7:] not in cli.commands)


def _command(context: click.Context) -> str:
    command = context.command
    depth = "###" if context.parent is not None and context.parent.parent is None else "####"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [record for item in command.get_params(context) if (record := item.get_help_record(context))]
    return "\n".join([
        f"{depth} {context.command_path}\n",
        f"```text\n{usage}\n```\n",
        *_paragraphs(command.help or ""),
        *(["| option | |", "|---|---|"] if records else []),
        *(f"| `{' '.join(flags.split())}` | {_linked(_cell(help))} |" for flags, help in records),
        "",
    ])  # fmt: skip


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept, _, rest = paragraph.partition("\n")
        yield f"```text\n{rest}\n```\n" if kept.strip() == "\b" else _linked(" ".join(paragraph.split())) + "\n"


def errors_page() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FedAvgError)]
    rows = [f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {_first_line(kind)} |" for kind in kinds]
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    return "\n".join([
        f"# Errors and exit codes\n{MADE}",
        "A message says what was given, what was expected, and what to do. "
        "[Troubleshooting](../troubleshooting.md) explains them one by one.\n",
        "| error | is a | when |", "|---|---|---|", *rows, "",
        "## Exit codes\n", "| code | meaning |", "|---|---|", *codes, "",
    ])  # fmt: skip


def api_titles() -> dict[str, str]:
    """The title of each page of the API by its path, those without a name left out."""
    return {path: text.partition("\n")[0].removeprefix("# ") for path, text in api_pages()}


def api_pages() -> Iterator[tuple[str, str]]:
    yield "reference/api/index.md", _api_index()
    for title, homes in _homes().items():
        names = sorted((name for home in homes for name in fedavg._HOMES[home]), key=_rank)
        blocks = [_api_block(name) for name in names]
        if blocks:
            yield _api_path(title), "\n".join([f"# {title}\n{MADE}", *blocks])
    yield (
        "reference/api/testing.md",
        f"# Checks of your own parts\n{MADE}\n::: fedavg.testing\n    options:\n      show_root_heading: false\n",
    )


def _api_block(name: str) -> str:
    """What mkdocstrings shows of a name. The signature of a plan is its options, which have a page of their own."""
    if name != "Plan":
        return f"::: fedavg.{name}\n"
    above = "[Every option of a plan](../options.md) is one page.\n"
    return f"{above}\n::: fedavg.Plan\n    options:\n      show_signature: false\n"


def _rank(name: str) -> tuple[int, str]:
    return LEADING.index(name) if name in LEADING else len(LEADING), name.lower()


def _api_path(title: str) -> str:
    return f"reference/api/{re.sub(r'[^a-z]+', '-', title.lower())}.md"


def _homes() -> dict[str, list[str]]:
    """The modules of each page: each module stands under the longest name of API that it begins with."""
    known = {f"fedavg.{module}": title for title, modules in API.items() for module in modules}
    found: dict[str, list[str]] = {title: [] for title in API}
    for home in fedavg._HOMES:
        fitting = [module for module in known if home == module or home.startswith(f"{module}.")]
        found[known[max(fitting, key=len)] if fitting else "More"].append(home)
    return found


def _api_index() -> str:
    rows = [
        f"| [{title}]({_api_path(title).rpartition('/')[2]}) | {_names(homes)} |" for title, homes in _homes().items()
    ]
    return "\n".join([
        f"# Python API\n{MADE}",
        "Everything that `import fedavg` gives. Most programs begin with `fedavg.run(plan)` or `fedavg.train(plan)`.\n",
        "| page | names |", "|---|---|", *(row for row in rows if "`" in row),
        "| [Checks of your own parts](testing.md) | `fedavg.testing` |", "",
    ])  # fmt: skip


def _names(homes: list[str]) -> str:
    return ", ".join(f"`{name}`" for home in homes for name in fedavg._HOMES[home])
