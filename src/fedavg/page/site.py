"""The files that the browser gets: served as they are, or joined into one file for an export; nothing comes from
elsewhere."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from json import dumps
from typing import Any, Final

TYPES: Final = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
#: The browser may run, show and request only our own files, and no other site may put the page in a frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_IMPORT: Final = re.compile(r"^import \{[^}]*\} from \"\./(\w+)\.js\";\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """A file of the page with its type; None if there is no such file."""
    ending = name.rpartition(".")[2]
    if not re.fullmatch(r"[a-z]+\.[a-z]+", name) or ending not in TYPES:
        return None
    path = files("fedavg.page") / "static" / name
    return (path.read_bytes(), TYPES[ending]) if path.is_file() else None


def whole_page(answers: dict[str, Any]) -> str:
    """The page as one file that needs no server: its scripts, its style, and the answers to all that it asks."""
    style, script = _text("page.css"), bundled("main")
    # Only this could end a script element, and a run may have any name.
    data = dumps(answers).replace("<", "\\u003c")
    allowed = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    return (
        _text("index.html")
        .replace("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{allowed}">')
        .replace('<link rel="stylesheet" href="static/page.css">', f"<style>{style}</style>")
        .replace(
            '<script type="module" src="static/main.js"></script>',
            f'<script type="application/json" id="answers">{data}</script>\n'
            f'<script type="module">{script}</script>',
        )
    )  # fmt: skip


def bundled(main: str) -> str:
    """A module and all of its imports as one script, each module before those that need it."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _text(f"{name}.js")
        for needed in _IMPORT.findall(text):
            add(needed)
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(main)
    return "\n".join(done.values())


def _text(name: str) -> str:
    found = asset(name)
    assert found, name
    return found[0].decode()


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
