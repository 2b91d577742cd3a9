"""`fedavg export-model`: the model of a run in the forms that other programs take."""

from pathlib import Path

import click

from fedavg.cli.completion import complete_run


@click.command("export-model")
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN", shell_complete=complete_run)
@click.option(
    "--to",
    type=click.Choice(["safetensors", "state-dict", "torchscript", "onnx"]),
    default="safetensors",
    show_default=True,
    help="The format. TorchScript and ONNX models are checked on real examples before they are kept.",
)
@click.option("--which", type=click.Choice(["last", "best"]), default="last", show_default=True, help="Which model.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file [in the run directory].")
def export_model(run_dir: Path, to: str, which: str, out: Path | None) -> None:
    """Write the last or the best model of a run to a file, with a model card (MODEL.md) beside it.

    \b
    fedavg export-model runs/mine --to onnx --which best --out model.onnx
    """
    from fedavg.cli.run import find_own_code
    from fedavg.study.export_model import export_model as export

    find_own_code()
    made = export(run_dir, to, out, which)
    tried = (
        f"; its outputs differ from the module's by {made.difference:.1g} at most"
        if made.difference is not None
        else ""
    )
    click.echo(f"wrote {made.path} and {made.card}{tried}")
