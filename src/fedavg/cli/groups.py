"""`fedavg --help` by what a person wants to do, instead of one list by letter."""

from collections.abc import Callable
from typing import Final

import click

#: A function that options are added to, before it is made a command.
Decorated = Callable[..., None]

#: Every command stands in one group; a test holds that none is left out.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Simulate": ("run", "resume", "sweep", "bench", "world", "doctor", "data"),
    "Look at results": ("page", "compare", "plot", "evaluate", "personalise", "export", "export-model"),
    "Studies": ("paper", "study", "privacy"),
    "Deploy": ("serve", "join", "fleet-demo", "certs", "authority"),
    "Operate a server": (
        "status",
        "clients",
        "submit",
        "runs",
        "pause",
        "cancel",
        "extend",
        "rollback",
        "token",
        "approve",
        "revoke",
        "backup",
        "restore",
    ),
    "This program": ("completion", "man"),
}

EXIT_CODES: Final = (
    (0, "success"),
    (1, "an internal error, with a traceback: please report it"),
    (2, "a mistake in the command or the plan, or something that the system refused; the message says what to do"),
    (130, "stopped by Ctrl-C; what was running can be resumed"),
)


class GroupedCommands(click.Group):
    """Lists its commands in GROUPS."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        for title, names in {**GROUPS, "Others": others}.items():
            known = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            width = formatter.width - 6 - max((len(name) for name, _ in known), default=0)
            if known:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in known])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES])
