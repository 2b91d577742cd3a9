"""`fedavg page`: runs, or a live fleet, in the browser."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedavg.cli.asking import FILE, check_url
from fedavg.errors import FedAvgError, FleetError

if TYPE_CHECKING:
    from fedavg.page.answers import Shown
    from fedavg.page.fleet import LiveFleet


@click.command()
@click.argument("sources", nargs=-1)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to serve on [any that is free].")
@click.option("--open/--no-open", "browse", default=True, help="Open the page in the browser [open].")
@click.option("--export", "exported", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html",
              help="Instead: write the runs to one file that needs no server.")  # fmt: skip
@click.option("--admin-token-file", type=FILE, help="The token of a server's operator, to see more of a live fleet.")
@click.option("--ca", type=FILE, help="The authority of the server's certificate, if it is not a public one.")
def page(
    sources: tuple[str, ...],
    port: int,
    browse: bool,
    exported: Path | None,
    admin_token_file: Path | None,
    ca: Path | None,
) -> None:
    """Show runs or a live fleet in the browser. SOURCES are a folder of runs (or one run), the address of a server, or
    both [runs].

    The page is served to this machine only, and only reads.

    \b
    fedavg page
    fedavg page runs/mnist-2nn-20261118-101500 --export report.html
    fedavg page https://server.example:8443 --admin-token-file runs/fleet/admin-token
    """
    folder, url = _sources(sources)
    if exported:
        _export(folder, url, exported)
        return
    _needs_page_extra()
    from fedavg.page.answers import Shown
    from fedavg.page.library import Library

    if url is None and (admin_token_file or ca):
        raise FleetError("--admin-token-file and --ca are for a server; expected its address as well")
    library = Library(folder) if folder else None
    fleet = _fleet(url, admin_token_file, ca) if url else None
    _serve(Shown(library, fleet), port, browse)


def _sources(given: tuple[str, ...]) -> tuple[Path | None, str | None]:
    """The folder of runs and the address of a server: either, or both."""
    urls = [text for text in given if "://" in text]
    folders = [text for text in given if "://" not in text]
    if len(urls) > 1 or len(folders) > 1:
        raise FedAvgError(
            f"got {' '.join(given)}; expected one folder of runs, one address of a server, or one of each"
        )
    if not given:
        folders = ["runs"]
    return (Path(folders[0]) if folders else None), (urls[0] if urls else None)


def _export(folder: Path | None, url: str | None, file: Path) -> None:
    from fedavg.page.export import export

    if folder is None or url is not None:
        raise FedAvgError("--export writes runs; expected a folder of runs or one run, and no address of a server")
    count = export(folder, file)
    click.echo(f"{count} {'run' if count == 1 else 'runs'} in {file} ({file.stat().st_size / 1e6:.1f} MB)")


def _fleet(url: str, token_file: Path | None, ca: Path | None) -> "LiveFleet":
    from fedavg.cli.asking import needs_server_extra

    needs_server_extra()
    from fedavg.page.fleet import LiveFleet

    check_url(url, insecure=True)
    return LiveFleet(url, token_file.read_text().strip() if token_file else None, ca)


def _serve(shown: "Shown", port: int, browse: bool) -> None:
    import webbrowser

    from fedavg.page.serve import serve

    def ready(address: str) -> None:
        click.echo(f"the page is at {address}")
        click.echo("it is served to this machine only; stop it with Ctrl-C", err=True)
        if browse:
            webbrowser.open(address)

    shown.start()
    try:
        serve(shown, port, ready)
    finally:
        shown.stop()


def _needs_page_extra() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise FedAvgError(f"the page needs {error.name}; install it with: pip install 'fedavg[page]'") from None
