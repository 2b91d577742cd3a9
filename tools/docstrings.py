"""For the API reference: examples of docstrings (`>>>`) become blocks of code, as Markdown knows them."""

import re

from griffe import Extension, Object

#: An example with what it prints: from the first prompt to the next empty line.
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Examples(Extension):
    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
