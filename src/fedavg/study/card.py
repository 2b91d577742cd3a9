"""A model card: what a model is, on what it was trained, how it does, and what is promised about privacy."""

from typing import Any

from torch import nn

from fedavg.plan import Plan
from fedavg.runlog.rundir import RunDir
from fedavg.study.compare import read_summary


def model_card(directory: RunDir, plan: Plan, module: nn.Module, round: int, which: str, name: str, digest: str) -> str:
    """Markdown. `name` and `digest` are the model file's."""
    identity, summary = directory.identity(), read_summary(directory.path)
    shown = plan.to_dict(runtime=False)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    facts = [
        ("file", f"`{name}`, sha256 `{digest}`"),
        ("task", str(shown["task"])),
        ("model", f"{type(module).__name__}, {parameters:,} parameters; the {which} model, after round {round}"),
        ("data", f"{shown['data']} (fingerprint `{identity['data']}`), {shown['partition'] or 'own partition'}"),
        ("algorithm", f"{shown['algorithm']}, C={plan.C:g}, E={plan.E}, B={plan.B}, lr={plan.lr}, seed {plan.seed}"),
        ("plan", f"digest `{plan.digest}`"),
        ("made with", ", ".join(f"{name} {version}" for name, version in identity["versions"].items())),
    ]
    return "\n".join(
        [
            f"# {shown['task']}, trained by federated averaging",
            "",
            *(f"- **{name}**: {value}" for name, value in facts),
            "",
            "## How it does",
            *_metrics(summary, which),
            "",
            "## Privacy",
            *_privacy(plan, summary),
            "",
            "## Inputs",
            "The module's inputs are the task's prepared examples (`task.prepare`), in batches; its outputs go to the "
            "task's loss.",
            "",
            "## The plan",
            "```toml",
            plan.to_toml().rstrip(),
            "```",
            "",
        ]
    )


def _metrics(summary: dict[str, Any], which: str) -> list[str]:
    best = summary.get("best_model")
    if which == "best" and best:
        return [f"- {best['metric']}: {best['value']:.4f} (round {best['round']}, chosen by it)"]
    values = {name: each["final"] for name, each in summary.get("metrics", {}).items() if "." not in name}
    return [f"- {name}: {value:.4f}" for name, value in values.items()] or ["Not evaluated, or the run has not ended."]


def _privacy(plan: Plan, summary: dict[str, Any]) -> list[str]:
    entry = summary.get("privacy")
    masked = f"Updates were summed under secure aggregation ({plan.secagg})." if plan.secagg != "none" else ""
    if not entry:
        return [masked] if masked else ["No differential privacy: the model may reveal what it was trained on."]
    seeded = " The noise came from a seed, so this protects nobody outside of a simulation."
    return [
        f"epsilon {entry['epsilon']:.3f} at delta {entry['delta']:.1e} ({entry['relation']})."
        + (seeded if entry["noise"] == "seeded" else ""),
        *([masked] if masked else []),
    ]
