"""The outputs of the notebooks; ``python tests/notebook_outputs.py [FILE...]`` executes them and records new ones."""

import ast
import os
import re
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
from nbmake.nb_run import NotebookRun

from fresh_process import environment

FOLDER = Path(__file__).parents[1] / "notebooks"
MOST_BYTES = 500_000
# A path of the machine that executed it; "https://host/tmp/" and "<svg/tmp/" are none.
_PATHS = re.compile(r"""(?<![\w./:<-])/(?:tmp|home|root|work|usr|opt|var|mnt|private|Users)/[\w./-]*|[A-Z]:\\\\\w+""")


def executed(path: Path, seconds: int = 3000) -> Any:
    """Return a notebook with new outputs; what a cell raises is an error here."""
    result = NotebookRun(path, seconds).execute()
    if result.error is not None:
        raise AssertionError(f"{path.name}: {result.error.summary}\n{result.error.trace}")
    return result.nb


def record(path: Path) -> None:
    """Execute a notebook and store its outputs, without what only this execution is about: messages and times."""
    notebook = executed(path)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, str(path))


# ------------------------------------------------------------------------------------ shape


def shape(notebook: Any) -> list[list[Any]]:
    """Return what kinds of outputs each code cell has, the columns of its tables, and what its drawings consist of."""
    return [_shape_of(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def _shape_of(outputs: Any) -> list[Any]:
    found: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            # What one cell prints may come in any number of pieces.
            found += [output.name] if output.name != "stderr" and output.name not in found else []
        elif output.output_type == "error":
            found.append(output.ename)
        else:
            data = output.data
            parts = [sorted(kind for kind in data if kind != "text/plain")]
            parts += [_columns(data["text/html"])] if "text/html" in data else []
            parts += [_drawing(data["image/svg+xml"])] if "image/svg+xml" in data else []
            found.append(parts)
    return found


def _columns(html: str) -> list[str]:
    parser = _TableHeads()
    parser.feed(html)
    return parser.heads


class _TableHeads(HTMLParser):
    """Collects the texts of the cells in the heads of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[str] = []
        self._within: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in ("thead", "th"):
            self._within.append(tag)
            self.heads += [""] if self._within == ["thead", "th"] else []

    def handle_endtag(self, tag: str) -> None:
        if self._within[-1:] == [tag]:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if self._within == ["thead", "th"]:
            self.heads[-1] += data.strip()


def _drawing(svg: str) -> list[dict[str, int]]:
    """Return how many lines and sets of points each axes of a drawing of matplotlib has."""
    groups = ElementTree.fromstring(svg[svg.index("<svg") :]).iter("{http://www.w3.org/2000/svg}g")
    axes = [group for group in groups if group.get("id", "").startswith("axes_")]
    parts = [[re.sub(r"_?\d+$", "", child.get("id", "")) for child in one] for one in axes]
    return [{kind: kinds.count(kind) for kind in ("line2d", "PathCollection")} for kinds in parts]


# ------------------------------------------------------------------------------------ rules


def violations(notebook: Any) -> list[str]:
    """Return a line for each rule of committed notebooks that is not kept."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = []
    counts = [cell.execution_count for cell in cells]
    if counts != [*range(1, len(cells) + 1)]:
        found.append(f"executed in the order {counts}")
    for number, cell in enumerate(cells, 1):
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"cell {number} shows an error or a message: {str(dict(output))[:200]}")
        found += [f"cell {number}: {path} is a path of one machine" for path in _PATHS.findall(str(dict(cell)))]
        found += [f"cell {number}: {name} is private" for name in private_names(cell.source)]
    size = len(nbformat.writes(notebook).encode())
    return [*found, *([f"{size:,} bytes"] if size > MOST_BYTES else [])]


def private_names(source: str) -> list[str]:
    """Return what a cell imports of portico that no package of it exports, and attributes with an underscore."""
    found = []
    for node in ast.walk(ast.parse(re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.M))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            found.append(f".{node.attr}")
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "portico":
            exported = getattr(import_module(str(node.module)), "__all__", ())
            found += [f"{node.module}.{one.name}" for one in node.names if one.name not in exported]
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.startswith("portico.")]
    return found


if __name__ == "__main__":
    # As in the tests; one of the notebooks shows what is compiled, which a cache would change.
    os.environ |= environment(PORTICO_ORT_CACHE_DIR="off", OMP_NUM_THREADS="1")
    for name in sys.argv[1:] or map(str, sorted(FOLDER.glob("*.ipynb"))):
        record(Path(name).resolve())
        print(name)
