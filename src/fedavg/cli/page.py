"""`fedavg page`: runs, or a live fleet, in the browser."""

from pathlib import Path

import click

from fedavg.errors import FedAvgError


@click.command()
@click.argument("source", default="runs")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port to serve on [any that is free].")
@click.option("--open/--no-open", "browse", default=True, help="Open the page in the browser [open].")
def page(source: str, port: int, browse: bool) -> None:
    """Show the runs below a folder in the browser, live. SOURCE is a folder of runs or one run [runs].

    The page is for this machine alone, needs no network, and only reads.

    \b
    fedavg page
    fedavg page runs/mnist-2nn-20261118-101500
    """
    _needs_page_extra()
    import webbrowser

    from fedavg.page.answers import Shown
    from fedavg.page.library import Library
    from fedavg.page.serve import serve

    library = Library(Path(source))
    library.start()

    def ready(address: str) -> None:
        click.echo(f"the page is at {address}")
        click.echo("it is for this machine alone; stop it with Ctrl-C", err=True)
        if browse:
            webbrowser.open(address)

    try:
        serve(Shown(library), port, ready)
    finally:
        library.stop()


def _needs_page_extra() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise FedAvgError(f"the page needs {error.name}; install it with: pip install 'fedavg[page]'") from None
