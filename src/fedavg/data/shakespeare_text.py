"""Reads the plays of Gutenberg's Complete Works (#100) into the lines of each role. Knows text, not learning.

Two editions are read:

- 1994 (`shaks12.txt`, the one that was there when the paper was written). A work starts with its title above
  "by William Shakespeare". Speeches run in: the role, a full stop and the first line share a line, indented by two
  spaces, and further lines are indented by two more. The Comedy of Errors has the same without the first indent.
- 2018 (`100-0.txt`). Works start with a title of the table of contents. Some plays run in as above; in the others the
  role stands alone on a line, in capitals with a full stop, and its lines follow up to the next role.

The role's indent is counted in each play. What is not spoken by a role (sonnets, poems, lists of persons, the licence)
matches neither form and falls away. In run-in plays a stage direction that is indented like a speech is kept as one
more line of it: the paper's character counts can only be met that way (docs/datasets.md).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

#: Lines by (play, role), both in the order of the text.
PlayRoles = dict[tuple[str, str], list[str]]
#: One line and who speaks it.
Spoken = Iterator[tuple[str, str]]

_LICENCE: Final = re.compile(r"<<THIS ELECTRONIC VERSION.*?>>", re.DOTALL)
_BY_LINE: Final = "by William Shakespeare"
_CONTENTS: Final = "Contents"
#: "  KING. O proper stuff!": an indent, a name of letters and blanks, a full stop, the first line.
_RUN_IN: Final = re.compile(r"^( *)([A-Z][A-Za-z ]*)\. (.*)$")
#: "FIRST LORD." alone; also "1. QUEEN.".
_ALONE: Final = re.compile(r"^ *((?:[0-9]\. ?)?[A-Z][A-Z ’'&,-]*)\.$")
_HEADING: Final = re.compile(r"^ *(ACT|SCENE)\b")
_DIRECTION: Final = re.compile(r"^ *(\[|_|Enter |Re-enter |Exit\b|Exeunt\b|Flourish)")
#: A work with fewer speeches than this is not a play.
_SPEECHES: Final = 100


def read_roles(text: str) -> PlayRoles:
    """The lines of each role of each play, as they stand in the text, without their indent and trailing blanks."""
    roles: PlayRoles = {}
    for play, lines in _works(text.replace("\r\n", "\n")):
        for role, line in _spoken(lines):
            roles.setdefault((play, role), []).append(line)
    return roles


def _works(text: str) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each work."""
    body, notices = _LICENCE.subn("", text)
    lines = [line.rstrip() for line in body.split("\n")]
    # Only the 1994 edition repeats its licence between the works.
    starts = list(_titles_above_by_lines(lines) if notices else _titles_of_contents(lines))
    for (title, start), (_, end) in pairwise([*starts, ("", len(lines))]):
        yield title, lines[start:end]


def _titles_above_by_lines(lines: list[str]) -> Iterator[tuple[str, int]]:
    for at, line in enumerate(lines):
        if line == _BY_LINE:
            yield next(above for above in reversed(lines[:at]) if above), at + 1


def _titles_of_contents(lines: list[str]) -> Iterator[tuple[str, int]]:
    """The first place where each title of the table of contents stands again, in its order."""
    table = next((at + 1 for at, line in enumerate(lines) if line.strip() == _CONTENTS), len(lines))
    titles = _table_of_contents(lines[table:])
    at = table + lines[table:].index(titles[-1]) + 1 if titles else 0
    for title in titles:
        again = next((n for n in range(at, len(lines)) if lines[n].strip().rstrip(":") == title.strip()), None)
        if again is not None:
            at = again + 1
            yield title.strip(), at


def _table_of_contents(lines: list[str]) -> list[str]:
    """The titles of a table: indented lines, up to the first that is not."""
    titles = []
    for line in lines:
        if line and not line.startswith(" "):
            break
        if line:
            titles.append(line)
    return titles


def _spoken(lines: list[str]) -> Spoken:
    run_in = Counter(len(match[1]) for match in map(_RUN_IN.match, lines) if match)
    alone = sum(1 for line in lines if _ALONE.match(line))
    indent, speeches = run_in.most_common(1)[0] if run_in else (0, 0)
    if max(speeches, alone) < _SPEECHES:
        return iter(())
    return _run_in(lines, indent) if speeches > alone else _under_names(lines)


def _run_in(lines: Iterable[str], indent: int) -> Spoken:
    role, deeper = "", " " * (indent + 2)
    for line in lines:
        match = _RUN_IN.match(line)
        if match and len(match[1]) == indent:
            role = "" if _HEADING.match(match[2]) else match[2]
            if role:
                yield role, match[3]
        elif role and line.startswith(deeper):
            yield role, line.removeprefix(deeper)


def _under_names(lines: Iterable[str]) -> Spoken:
    role, direction = "", False
    for line in lines:
        match = _ALONE.match(line)
        if match or _HEADING.match(line):
            role, direction = match[1] if match else "", False
        elif not line:
            direction = False
        elif role:
            direction = direction or _DIRECTION.match(line) is not None
            if not direction:
                yield role, line.strip()
