"""The blocks of code of a page of the docs, and how each is tried.

    python   run, all blocks of a page in one process and one namespace, in a new folder
    toml     read as a plan, and kept as plan.toml for the commands that follow
    sh       every command must exist with its options. Those of `CHEAP` are run, a run for one round; any other needs a
             reason in `WHY_NOT_RUN`. A block without a language in which lines begin with `fedavg` is one too.

A comment before a block changes that:

    <!-- no-run: why -->    only read: the syntax of Python, the options of commands
    <!-- slow: why -->      run with -m slow, otherwise only read
    <!-- run -->            every command of the block is run
    <!-- test               Python that a reader need not see, run before the block that follows
    ...
    -->
"""

import linecache
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
from click.testing import CliRunner, Result

from fedavg.cli import cli
from fedavg.plan.plan import make_plan

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?P<before>(?:^<!--(?:(?!-->).)*?-->\n+)*)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
#: What is run where nothing else is said: it ends by itself within seconds.
CHEAP = {"run", "data", "world", "privacy", "certs"}
#: Why a command of a block without a marker is only read.
WHY_NOT_RUN = {
    "fedavg serve": "serves until it is stopped",
    "fedavg page": "serves until it is stopped",
    "fedavg authority": "serves until it is stopped, or needs the key of a device",
    "fedavg join": "needs a server",
    "fedavg submit": "needs a service",
    "fedavg runs": "needs a service",
    "fedavg extend": "needs a service",
    "fedavg pause": "needs a service",
    "fedavg fleet-demo": "starts many processes; tests/cli/test_fleet.py runs it",
    "fedavg resume": "needs a run that was stopped",
    "fedavg export-model": "needs a run",
    "fedavg personalise": "needs a run",
    "fedavg sweep": "takes many runs; tests/study runs sweeps",
    "fedavg paper": "takes hours; tests/cli/test_paper.py runs it on records",
    "fedavg data get": "needs the network",
    "python": "a benchmark takes minutes to hours",
    "pip": "needs the network",
}
#: Commands of `data` that would need a network.
FETCH = {"get"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    hidden: str
    marker: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [_block(path.relative_to(ROOT).as_posix(), text, found) for found in FENCE.finditer(text)]


def _block(page: str, text: str, found: re.Match[str]) -> Block:
    body = "".join(line.removeprefix(found["indent"]) for line in found["text"].splitlines(keepends=True))
    commands = any(line.startswith("fedavg ") for line in body.splitlines())
    language = found["language"] or ("sh" if commands else "text")
    comments = re.findall(r"<!-- *(.*?) *-->", found["before"], re.DOTALL)
    hidden = "\n".join(comment.removeprefix("test\n") for comment in comments if comment.startswith("test\n"))
    markers = [comment for comment in comments if comment.startswith(("no-run:", "slow:", "run"))]
    line = text.count("\n", 0, found.start("text")) + 1
    return Block(page, line, language, body, hidden, markers[-1] if markers else "")


def read(block: Block) -> None:
    """What is asked of every block, also of one that is not run."""
    if block.language == "python":
        compile(block.text, block.place, "exec")
    if block.language == "toml":
        values = tomllib.loads(block.text)
        make_plan({name: value for name, value in values.items() if name != "sweep"}, block.place)
    if block.language == "sh":
        for words in commands(block):
            check_options(words, block.place)


def execute(block: Block, names: dict[str, object], *, slow: bool = False) -> None:
    """Runs a block in the current folder, unless its marker says otherwise."""
    read(block)
    if block.hidden:
        exec(compile(block.hidden, f"{block.place} (hidden)", "exec"), names)
    if block.marker.startswith("no-run:") or (block.marker.startswith("slow:") and not slow):
        return
    if block.language == "python":
        source = "\n" * (block.line - 1) + block.text  # so that tracebacks show the line of the page
        linecache.cache[block.place] = (len(source), None, source.splitlines(keepends=True), block.place)
        exec(compile(source, block.place, "exec"), names)
    if block.language == "toml":
        Path("plan.toml").write_text(block.text, encoding="utf-8")
    if block.language == "sh":
        for words in commands(block):
            if words[0] == "fedavg" and (block.marker or (words[1] in CHEAP and not FETCH & set(words))):
                invoke(words[1:], block.place)
            else:
                assert _excused(words), f"{block.place}: {shlex.join(words)} is not run, and nothing says why"


def _excused(words: list[str]) -> bool:
    return any(shlex.join(words).startswith(command) for command in WHY_NOT_RUN)


def shortened(words: list[str]) -> list[str]:
    """A run of one round in place of as many as the page has."""
    if words[0] != "run" or "--dry-run" in words:
        return words
    without = re.sub(r"--rounds \d+|--set rounds=\d+", "", shlex.join(words))
    return [*shlex.split(without), "--rounds", "1", "--quiet", "--no-plot"]


def invoke(words: list[str], place: str) -> None:
    result = answer(tuple(words)) if words[0] == "privacy" else CliRunner().invoke(cli, shortened(words))
    assert result.exit_code == 0, f"{place}: fedavg {shlex.join(words)}\n{result.output}\n{result.exception!r}"


@cache
def answer(words: tuple[str, ...]) -> Result:
    """Of a command that computes for seconds and leaves nothing behind: once, on however many pages it stands."""
    return CliRunner().invoke(cli, words)


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block as words: comments left out, continued lines joined."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[-1] == "&":
            words.pop()
        if words:
            yield words


def check_options(words: list[str], place: str) -> None:
    """That a command exists and knows its options; that a script exists, and an extra that is to be installed."""
    if words[0] == "fedavg":
        _check_command(words[1:], place)
    if words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), f"{place}: {words[1]} is not there"
    for extra in re.findall(r"fedavg\[(\w+)\]", " ".join(words)):
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert extra in known, f"{place}: there is no extra {extra}"


def _check_command(words: list[str], place: str) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{place}: there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert given <= known | {"--help", "--version", "-h"}, f"{place}: no option {given - known} of {command.name}"
