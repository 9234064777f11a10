import re
from pathlib import Path

import pytest
from rich.table import Table

import portico
from portico.experiments.experiment import print_scores
from portico.report.terminal import plain_console

AS_THEY_ARE = ["run[v2]", "run[/v2]", "[/data/left]", "[none]", "a:warning:b", "\\[x]"]


@pytest.mark.parametrize("text", AS_THEY_ARE)
def test_strings_are_printed_as_they_are(text, capsys):
    table = Table(text, title=text)
    table.add_row(text)
    plain_console().print(table)
    plain_console().print(text)
    assert capsys.readouterr().out.count(text) == 4


@pytest.mark.parametrize("text", AS_THEY_ARE)
def test_scores_and_paths_are_printed_as_they_are(text, capsys):
    print_scores(text, text, {text: text}, files={"Report": f"/{text}/report.html"}, seconds=1.0)
    shown = capsys.readouterr().out
    assert shown.count(text) == 5
    assert f"Report: /{text}/report.html\n" in shown


def test_every_console_is_a_plain_one():
    sources = [path for path in Path(portico.__file__).parent.rglob("*.py") if path.name != "terminal.py"]
    assert [
        str(path) for path in sources if re.search(r"\b(Console\(|rich\.print|get_console)", path.read_text("utf-8"))
    ] == []
