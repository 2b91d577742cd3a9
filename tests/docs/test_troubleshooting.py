"""Every message that docs/troubleshooting.md explains is one that the code can give."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def literals() -> list[str]:
    """Every text of the source, with … where a value is put in."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_messages_are_those_of_the_code():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
    assert len(messages) > 20
    texts = literals()
    missing = [
        message
        for message in messages
        if not any(re.search(".*".join(map(re.escape, message.split("…"))), text, re.DOTALL) for text in texts)
    ]
    assert not missing
