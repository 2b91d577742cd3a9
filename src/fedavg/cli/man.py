"""`fedavg man`: manual pages, made from the same help texts as `--help`."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from fedavg.cli.groups import EXIT_CODES


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def man(folder: Path) -> None:
    """Write manual pages into FOLDER/man1: one for fedavg, one for each command.

    \b
    fedavg man ~/.local/share/man && man fedavg-run
    """
    root = click.get_current_context().find_root()
    pages = folder / "man1"
    pages.mkdir(parents=True, exist_ok=True)
    for name, context in contexts(root.command):
        (pages / f"{name}.1").write_text(manual_page(name, context), encoding="utf-8")
    click.echo(f"wrote {len(list(pages.glob('fedavg*.1')))} pages to {pages}")


def contexts(
    command: click.Command, word: str = "fedavg", parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """This command and every one below it, by the name of its page (fedavg-data-get)."""
    context = click.Context(command, info_name=word, parent=parent)
    yield context.command_path.replace(" ", "-"), context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            inner = command.get_command(context, below)
            if inner is not None:
                yield from contexts(inner, below, context)


def manual_page(name: str, context: click.Context) -> str:
    """A page in the language of man (roff)."""
    command = context.command
    usage = command.collect_usage_pieces(context)
    lines = [
        f'.TH "{name.upper()}" "1" "" "fedavg {version("fedavg")}" "fedavg"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(command.get_short_help_str(200))}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(" ".join(usage)),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        *_options(command, context),
        *_commands(command, context, name),
        ".SH EXIT STATUS",
    ]
    for code, meaning in EXIT_CODES:
        lines += [".TP", f".B {code}", _text(meaning)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Help texts as click has them: a paragraph that begins with \\b keeps its lines."""
    for paragraph in text.split("\n\n"):
        yield ".PP"
        kept, _, rest = paragraph.strip().partition("\n")
        if kept.strip() == "\b":
            yield from (".nf", *(_text(line) for line in rest.splitlines()), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    if records:
        yield ".SH OPTIONS"
    for flags, help in records:
        yield from (".TP", f".B {_text(flags)}", _text(" ".join(help.split())))


def _commands(command: click.Command, context: click.Context, name: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        return
    yield ".SH COMMANDS"
    for word in command.list_commands(context):
        inner = command.get_command(context, word)
        if inner is not None:
            yield from (".TP", f".BR {_text(f'{name}-{word}')} (1)", _text(inner.get_short_help_str(200)))


def _text(text: str) -> str:
    """Escaped for roff: backslashes, hyphens that stay copyable, what is not ASCII, a dot or quote at the start."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    escaped = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in plain)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
