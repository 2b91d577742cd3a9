"""What `make docs` does beyond Markdown: generated pages of the reference, and links to files outside the site."""

import logging
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

from reference import api_titles, pages  # noqa: E402

log = logging.getLogger("mkdocs.hooks.site")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation gets the pages of the API, and pages that nobody has put into it: none is hidden."""
    sections = {name: pages for part in config.nav or [] for name, pages in part.items()}
    sections["Reference"][-1] = {"Python API": [{title: path} for path, title in api_titles().items()]}
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    docs = Path(config.docs_dir)
    written = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    for path in written:
        if path not in named:
            sections["Results" if path.startswith("results/") else "Guides"].append(path)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Folders, and files of the repository that are not part of the site, are named instead of linked."""
    place = Path(config.docs_dir) / page.file.src_uri

    def replaced(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if target.startswith(("http:", "https:", "mailto:", "#")):
            return found[0]
        path = (place.parent / target.partition("#")[0]).resolve()
        try:
            uri = path.relative_to(Path(config.docs_dir).resolve()).as_posix()
        except ValueError:
            uri = ""
        if files.get_file_from_path(uri):
            return found[0]
        if not path.exists() or not path.is_relative_to(ROOT):
            log.warning("%s: the link '%s' leads nowhere", page.file.src_uri, target)
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        return f"{text} (`{name}`)" if name not in text else text

    return LINK.sub(replaced, markdown)
