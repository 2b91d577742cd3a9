"""`fedavg doctor`: what this machine gives a run, and why."""

import json
from dataclasses import asdict
from pathlib import Path

import click


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Folder of the data sets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def doctor(data_dir: Path | None, as_json: bool) -> None:
    """Report what this machine offers a run: processor, cores, memory, PyTorch, compiler, kernels, workers, data.

    Whatever can be improved is marked by '!', with the remedy.
    """
    from fedavg.doctor import examine

    findings = examine(data_dir)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        click.echo(f"{'!' if finding.remedy else ' '} {finding.topic:<{width}}  {finding.found}")
        if finding.remedy:
            click.echo(f"  {'':<{width}}  -> {finding.remedy}")
