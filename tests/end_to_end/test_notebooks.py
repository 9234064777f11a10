"""The notebooks, as committed with their outputs, and executed again."""

import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from fresh_process import environment
from notebook_outputs import FOLDER, executed, shape, violations

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SLOW = {
    "lightning": "runs the loops of Lightning and of portico",
    "reading": "trains a reader for minutes",
    "sweep": "trains several models",
    "backends": "compiles models for ONNX Runtime and for the emulator of IPUs",
}
ROOT = FOLDER.parent


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_fit_to_be_read(path):
    assert violations(nbformat.read(path, 4)) == []


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW), id=path.stem) for path in NOTEBOOKS],
)
def test_a_notebook_still_shows_what_was_committed(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    assert shape(executed(path)) == shape(nbformat.read(path, 4))


def test_the_readme_leads_to_every_notebook():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in readme] == []


def notebook(source="x", *outputs, count=1):
    return new_notebook(cells=[new_code_cell(source, outputs=list(outputs), execution_count=count)])


def shown(**data):
    kinds = {"html": "text/html", "svg": "image/svg+xml", "text": "text/plain"}
    return new_output("display_data", {kinds[name]: value for name, value in data.items()})


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (notebook(count=2), "executed in the order [2]"),
        (notebook("x", new_output("error", ename="ValueError")), "cell 1 shows an error"),
        (notebook("x", new_output("stream", name="stderr", text="warning")), "cell 1 shows an error or a message"),
        (notebook("x", new_output("stream", text="in /tmp/tmpx/run")), "/tmp/tmpx/run is a path of one machine"),
        (notebook("open('/home/me/data.json')"), "is a path of one machine"),
        (
            notebook("from portico.mrc.report.command import write_page"),
            "portico.mrc.report.command.write_page is private",
        ),
        (notebook("%matplotlib inline\nimport portico.trainer"), "portico.trainer is private"),
        (notebook("reader._loaded"), "._loaded is private"),
        (notebook("x", shown(text="x" * 600_000)), "bytes"),
    ],
)
def test_a_broken_rule_is_found(broken, rule):
    assert rule in "\n".join(violations(broken))


def test_links_and_public_names_keep_the_rules():
    kept = notebook(
        "from portico.mrc import Reader\nimport portico", shown(html='<a href="https://x.org/tmp/y">y</a>')
    )
    assert violations(kept) == []


TABLE = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tr><th>1</th><td>2</td></tr></table>"
DRAWING = (
    '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><g id="figure_1"><g id="axes_1">'
    '<g id="matplotlib.axis_1"><g id="line2d_1"/></g><g id="line2d_2"/></g></g></svg>'
)


def test_the_shape_of_outputs():
    outputs = [new_output("stream", text="1"), new_output("stream", text="2"), shown(html=TABLE), shown(svg=DRAWING)]
    one_line = {"line2d": 1, "PathCollection": 0}
    assert shape(notebook("x", *outputs)) == [
        ["stdout", [["text/html"], ["a", "b"]], [["image/svg+xml"], [one_line]]],
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda outputs: outputs.pop(),
        lambda outputs: outputs[0].data.update({"text/html": TABLE.replace(">b<", ">c<")}),
        lambda outputs: outputs[1].data.update({"image/svg+xml": DRAWING.replace("line2d_2", "patch_2")}),
        lambda outputs: outputs[1].data.update({"image/svg+xml": DRAWING.replace("axes_1", "legend_1")}),
        lambda outputs: outputs.append(new_output("stream", text="more")),
    ],
)
def test_another_shape_is_told_apart(change):
    first = notebook("x", shown(html=TABLE), shown(svg=DRAWING))
    second = copy.deepcopy(first)
    assert shape(first) == shape(second)
    change(second.cells[0].outputs)
    assert shape(first) != shape(second)
