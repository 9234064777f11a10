"""What the site does to the pages besides Markdown: drawings, and the cross-references of docstrings."""

import os
import re
from pathlib import Path
from typing import Any

import diagrams

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr|exc):<code>(~?)([\w.]+)</code>")
_LONG_CODE = re.compile(r"(?<!</span><code>)(?<=<code>)[^<\n]{12,}(?=</code>)")  # not in a block
_BREAK = re.compile(r"(?<=\w[_./])(?=\w)|(?<=[=,(\[{])(?=\S)|(?<=[a-z])(?=[A-Z])")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<t([dh])([^>]*)>(.*?)</t[dh]>", re.DOTALL)
_LONG_TEXT = 60  # characters in a cell

DOCS = Path(__file__).parent


def on_files(files: Any, config: Any) -> Any:
    """Add the notebooks, which pages link to."""
    from mkdocs.structure.files import File  # the tests import this module without mkdocs

    for path in sorted((DOCS.parent / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in drawings and the changelog, and name files of the repository that the site does not have."""
    folder = (DOCS / page.file.src_uri).parent
    if page.file.src_uri == "changelog.md":
        markdown, folder = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8"), DOCS.parent

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups("")
        path = (folder / target).resolve()
        if path.suffix == ".ipynb":
            path = DOCS / "notebooks" / path.name
        if path.is_relative_to(DOCS) or not path.exists():
            inside = os.path.relpath(path, (DOCS / page.file.src_uri).parent)
            return f"[{text}]({inside}{anchor})"
        name = f"`{path.relative_to(DOCS.parent)}`"
        return name if path.name in text else f"{text} ({name})"

    markdown = re.sub(r"(?<!!)\[([^]]+)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)
    return diagrams.BLOCK.sub(lambda block: f'<div class="drawing">{_svg(block[1])}</div>', markdown)


def _svg(source: str) -> str:
    path = diagrams.drawing(source)
    if not path.exists():
        raise FileNotFoundError(
            f"A Mermaid block has no drawing; run `python docs/diagrams.py mermaid.min.js`:\n{source}"
        )
    return path.read_text(encoding="utf-8").strip()


def on_page_content(html: str, **_: Any) -> str:
    """Link the names in docstrings that Sphinx's roles mark, and fit names and tables to narrow screens."""

    def link(role: re.Match[str]) -> str:
        name = role[2]
        if not name.startswith("portico."):
            return f"<code>{name}</code>"
        return f'<autoref identifier="{name}" optional><code>{name.rpartition(".")[2]}</code></autoref>'

    html = _LONG_CODE.sub(lambda code: _BREAK.sub("<wbr>", code[0]), _ROLE.sub(link, html))
    return _TABLE.sub(_stacked, html)


def _stacked(table: re.Match[str]) -> str:
    """Name the columns in each cell of a wide table with long texts: a phone shows its rows as lists (site.css)."""
    names, *rows = (_CELL.findall(row) for row in _ROW.findall(table[0]))
    texts = [re.sub("<[^>]+>", "", text) for row in rows for _, _, text in row[1:]]
    if len(names) < 3 or max(map(len, texts), default=0) < _LONG_TEXT:
        return table[0]
    labels = [re.sub("<[^>]+>", "", text).strip() for _, _, text in names]

    def label(row: re.Match[str]) -> str:
        cells = iter(labels)
        return _CELL.sub(lambda one: f'<t{one[1]}{one[2]} data-label="{next(cells)}">{one[3]}</t{one[1]}>', row[0])

    return f'<div class="stacked">{_ROW.sub(label, table[0])}</div>'
