"""The generated pages of the reference are up to date, and every public name is on a page."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from reference_pages import FOLDER, commands, config_keys, events

from portico import Trainer
from portico.experiments.settings import documentation

SOURCES = Path(__file__).parents[2] / "src" / "portico"
FACADES = [f"portico{room}" for room in ("", ".gradient_descent", ".mrc", ".mrc.metrics", ".mrc.primeqa", ".ort")]
RENEW = "run `python docs/reference_pages.py`"


@pytest.mark.pinned
def test_configuration_keys_are_up_to_date():
    page = config_keys()
    assert (FOLDER / "config_keys.md").read_text(encoding="utf-8") == page, RENEW
    assert re.findall(r"^\| `(\w+\.\w+)` .*\|  \|$", page, re.MULTILINE) == [], "document these keys on their class"


def test_commands_are_up_to_date():
    assert (FOLDER / "commands.md").read_text(encoding="utf-8") == commands(), RENEW


def test_event_table_is_up_to_date():
    assert (FOLDER.parent / "concepts" / "events.md").read_text(encoding="utf-8") == events(), RENEW


def test_every_argument_of_the_trainer_is_described():
    assert [name for name in inspect.signature(Trainer).parameters if not documentation(Trainer).get(name)] == []


def homes(facade):
    """Return where each public name of a facade is defined."""
    stub = SOURCES.joinpath(*facade.split(".")[1:], "__init__.pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}


@pytest.mark.parametrize("facade", FACADES)
def test_every_public_name_is_on_a_page(facade):
    pages = "".join(page.read_text(encoding="utf-8") for page in FOLDER.glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))
    shown |= {home for one in FACADES for name, home in homes(one).items() if f"{one}.{name}" in shown}
    # Names of transformers are documented there; a table lists them.
    listed = re.findall(r"`(\w+)`", (FOLDER / "trainers.md").read_text("utf-8"))
    missing = [
        name
        for name, home in homes(facade).items()
        if home not in shown and not (home.startswith("transformers.") and name in listed)
    ]
    assert missing == [], f"no page of docs/reference shows these names of {facade}"
