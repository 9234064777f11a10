"""What the site does to the pages besides Markdown: drawings, and the cross-references of docstrings."""

import os
import re
from pathlib import Path
from typing import Any

import diagrams

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr|exc):<code>(~?)([\w.]+)</code>")
_LONG_NAME = re.compile(r"(?<=<code>)[\w.]{12,}(?=</code>)")


DOCS = Path(__file__).parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in drawings and the changelog, and name files of the repository that the site does not have."""
    folder = (DOCS / page.file.src_uri).parent
    if page.file.src_uri == "changelog.md":
        markdown, folder = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8"), DOCS.parent

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.groups("")
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            inside = os.path.relpath(path, (DOCS / page.file.src_uri).parent)
            return f"[{text}]({inside}{anchor})"
        return f"{text} (`{path.relative_to(DOCS.parent)}`)"

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
    """Link the names in docstrings that Sphinx's roles mark, and let long names break after an underscore."""

    def link(role: re.Match[str]) -> str:
        name = role[2]
        if not name.startswith("portico."):
            return f"<code>{name}</code>"
        return f'<autoref identifier="{name}" optional><code>{name.rpartition(".")[2]}</code></autoref>'

    return _LONG_NAME.sub(lambda name: re.sub(r"(?<=\w)([_.])(?=\w)", r"\1<wbr>", name[0]), _ROLE.sub(link, html))
