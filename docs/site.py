"""The hook of `mkdocs.yml`: README and files that pages link to become pages of the site, formulas MathML."""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
HOME = "README.md"
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages that lie beside docs/."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|(?<![`$\w])\$(?P<inline>[^\s$`][^$`\n]*)\$(?![\w`])", re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add README, what lies beside it, and every file that a page links to."""
    sources = {HOME: "index.md", **{name: name for name in PAGES}}
    pages = {uri: (ROOT / name).read_text(encoding="utf-8") for name, uri in sources.items()}
    written = [*sources, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for name in sorted({target for page in written for target in linked(page)}):
        pages[f"files/{name}.md"] = shown(ROOT / name)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links and formulas of one page, outside of code."""
    uri = page.file.src_uri
    source = HOME if uri == "index.md" else uri if uri in PAGES else f"docs/{uri}"
    if uri.startswith("files/"):
        return markdown
    parts = CODE.split(markdown)
    parts[::2] = [_formulas(text) for text in parts[::2]]
    return LINK.sub(lambda match: _link(match, source, uri), "".join(parts))


def linked(page: str) -> set[str]:
    """Files of the project, outside of docs/, that a page links to."""
    targets = (_target(match[3], page) for match in LINK.finditer((ROOT / page).read_text(encoding="utf-8")))
    return {name for name in targets if name and not _uri(name) and (ROOT / name).is_file()}


def _target(link: str, source: str) -> str | None:
    """The path in the project that a link of a page leads to; None if it leads out of it."""
    return None if "://" in link else posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _uri(name: str) -> str | None:
    """Where a file of the project is on the site, if it is a page or a picture there by itself."""
    if name == HOME:
        return "index.md"
    return name if name in PAGES else name.removeprefix("docs/") if name.startswith("docs/") else None


def _link(match: re.Match[str], source: str, uri: str) -> str:
    """A link of a page as it is on the site; what is only a folder is named, not linked."""
    picture, text, link, anchor = match.groups()
    name = _target(link, source)
    if name is None:
        return match[0]
    place = _uri(name) or (f"files/{name}.md" if (ROOT / name).is_file() else None)
    if place is None:
        return text if (ROOT / name).is_dir() else match[0]
    return f"{picture}[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor or ''})"


def _formulas(text: str) -> str:
    def formula(match: re.Match[str]) -> str:
        block = match["block"]
        return convert((block or match["inline"]).strip(), display="block" if block else "inline")

    return FORMULA.sub(formula, text)


def shown(path: Path) -> str:
    """A file as a page: a notebook cell by cell, anything else as it is."""
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return f"{title}````{path.suffix.removeprefix('.')}\n{text.rstrip()}\n````\n"
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    return title + "\n\n".join(
        _plain(source) if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells
    )


def _plain(markdown: str) -> str:
    """Text of a notebook one level lower, its links as names: they are relative to another place."""
    lowered = re.sub(r"^#", "##", markdown, flags=re.MULTILINE)
    return LINK.sub(lambda match: match[2], lowered)
