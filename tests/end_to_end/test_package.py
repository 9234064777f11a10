"""What a package index gets: complete distributions, and a page without links that lead nowhere."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
import yaml

import portico

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = SETTINGS["project"]["optional-dependencies"]
# For working on portico, or for trying it with other libraries.
NOT_FOR_USERS = {"all", "clients", "dev", "docs"}
# Its setup imports torch, so pip cannot install both at once.
INSTALLED_ALONE = {"deepspeed"}
RELATIVE_LINK = re.compile(r"\]\((?!\w+://|#)[^)]*\)")


def test_the_extra_all_has_every_extra_for_users():
    (one,) = EXTRAS["all"]
    named = re.fullmatch(r"portico\[(.*)\]", one)[1].split(",")
    assert sorted(named) == named
    assert set(named) == EXTRAS.keys() - NOT_FOR_USERS - INSTALLED_ALONE


def test_the_long_description_has_no_relative_links():
    readme = SETTINGS["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE_LINK.search(text)
    for rule in readme["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert RELATIVE_LINK.findall(text) == []
    assert "`docs/run.md` has the details" in text
    assert "the event table (`src/portico/loop/run.py`)" in text.replace("see the event", "the event")


def test_the_version_stands_in_one_place():
    assert SETTINGS["project"]["dynamic"] == ["readme", "version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", portico.__version__)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{portico.__version__}]" in changes


def test_pages_name_the_pythons_of_the_classifiers():
    named = [one.rpartition(" ")[2] for one in SETTINGS["project"]["classifiers"] if "Python :: 3." in one]
    sentence = f"Python {named[0]} or later; tested on {', '.join(named[:-1])} and {named[-1]}."
    for page in ("README.md", "docs/getting_started.md"):
        assert sentence in (ROOT / page).read_text(encoding="utf-8"), page
    newest = (ROOT / ".github/workflows/newest.yml").read_text(encoding="utf-8")
    # Newer Pythons are tried as far as there are packages for them.
    assert f"python: [{', '.join(map(json.dumps, named))}" in newest


def test_files_that_contributing_names_exist():
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs/contributing").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    paths = {path for path in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if "<" not in path}
    places = (ROOT, ROOT / "src", ROOT / "src/portico", ROOT / "src/portico/mrc", ROOT / "tests")
    made = {"dist/", "ort/", "ipu/"}
    assert len(paths) > 30
    assert sorted(path for path in paths - made if not any((one / path).exists() for one in places)) == []


def test_names_in_recipes_exist():
    sources = [path for folder in ("src", "tests", "docs", "conf") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.suffix in (".py", ".pyi", ".yaml")]
    texts += [(ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "mkdocs.yml")]
    known = {word for text in texts for word in re.findall(r"\w+", text)}
    for page in (ROOT / "docs/contributing").glob("*.md"):
        code = " ".join(re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8")))
        # Words of code, and not parts of paths or placeholders.
        named = set(re.findall(r"(?<![\w./<-])(\w*[a-z]_\w+|_\w+|[A-Z]\w*[a-z]\w*)(?![\w/.>-])", code))
        assert sorted(named - known) == [], page.name


def test_workflows_run_the_test_command():
    names = [json.dumps(one.rpartition(" ")[2]) for one in SETTINGS["project"]["classifiers"] if "Python :: 3." in one]
    for file in sorted((ROOT / ".github/workflows").glob("*.yml")):
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert {"name", "permissions", "jobs"} <= set(workflow), file.name
        assert all("timeout-minutes" in job or "needs" in job for job in workflow["jobs"].values()), file.name
    for name, job in (("tests.yml", "checks"), ("release.yml", "build")):
        text = (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
        steps = yaml.safe_load(text)["jobs"][job]["steps"]
        assert ".ci/run" in [step.get("run") for step in steps], name
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert f"python: [{', '.join(names)}]" in tests


def test_contributing_is_short_and_links_to_every_recipe():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500
    recipes = {f"docs/contributing/{page.name}" for page in (ROOT / "docs/contributing").glob("*.md")}
    assert set(re.findall(r"\]\((docs/contributing/[^)]+)\)", text)) == recipes


@pytest.mark.slow
def test_distributions_are_complete(tmp_path):
    """The tools that build them come from the package index."""
    tools, out = tmp_path / "tools", tmp_path / "out"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools]
    subprocess.run([*install, *SETTINGS["build-system"]["requires"]], check=True)
    builder = [sys.executable, "-W", "ignore", "-m", "hatchling", "build", "-d", out]
    subprocess.run(builder, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tools)}, check=True)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")

    assert wheel.stat().st_size < 1_500_000
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        page = BytesParser().parsebytes(archive.read(metadata))
    assert page["Version"] == portico.__version__
    assert {"portico/py.typed", "portico/__init__.pyi", "portico/conf/config.yaml"} <= names
    assert {"portico/report/assets/page.css", "portico/report/templates/page.html.j2"} <= names
    assert not any(name.startswith(("tests", "docs")) for name in names)
    assert RELATIVE_LINK.findall(page.get_payload()) == []

    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(set(tracked.split()) - packed) == []
