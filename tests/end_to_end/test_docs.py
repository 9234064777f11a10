"""The pages of the documentation: their code runs as it stands, their links exist, and the site builds.

The blocks of a page run in order, in one folder and, if they are Python, with one set of names. A block with a title
is written to the file of that name instead. Commands that train get overrides that make them short.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import lightning
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification, BertTokenizerFast

from fresh_process import environment
from models import ToyDataset, tiny_bert, tiny_bert_config, toy_arguments
from portico import Trainer, compose
from portico.mrc.corpus import generate

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r'^```(python|bash|jsonnet)(?: title="(\S+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
# A part of each command that is not run, and why.
NOT_RUN = {
    "pip install": "installs packages",
    "nyu-mll/glue": "a dataset of the hub",
    "deepset/roberta-base-squad2": "a model of the hub",
    "/path/to/a/model": "stands for a folder of the reader's",
    "bert-base-uncased": "a model of the hub",
    "my_package": "a class of the reader's; test_own_classes.py has such classes",
    "data.sources=": "files of the reader's; test_command_line.py trains on several sources",
    "mode=evaluate model.name_or_path=outputs": "stands for a folder of the reader's",
    "mode=predict model.name_or_path=outputs": "stands for a folder of the reader's",
    "outputs/mrc/RUN": "stands for a folder of the reader's",
    "train.py --learning_rate": "a script of the reader's; test_user_scripts.py and test_verify.py have such scripts",
    "--logger csv train.py": "a script of the reader's; test_user_scripts.py has such scripts",
    "portico_optuna": "test_sweep_in_processes.py runs searches",
    "+sweep=mrc_optuna": "test_sweep_in_processes.py runs searches",
    "+experiment=mrc_ipu": "takes minutes in the emulator; the experiments have tests of their own",
    "/fast/disk": "stands for a folder of the reader's",
}
SHORT = ("data.num_train=64", "data.num_validation=32", "args.max_steps=2")
OF_TOPICS = ("data.num_train=64", "data.num_validation=32", "trainer.num_epochs=1", "trainer.patience=null")


class Code(NamedTuple):
    """A block of a page."""

    language: str
    title: str
    text: str


def blocks(page):
    """Return the blocks of a page that are Python, commands or configurations of AllenNLP."""
    return [Code(*found) for found in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]


def commands(block, also=()):
    """Return the commands of a block, a continued line as one; of ``NOT_RUN`` those with a part in ``also``."""
    text = re.sub(r"\\\n\s*|&&\n\s*", lambda gap: "" if gap[0][0] == "\\" else "&& ", block.text)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line for line in lines if not any(part in line for part in NOT_RUN if part not in also)]


def shortened(command):
    """Return a command that trains for two steps on a few records, whatever it is about."""
    is_training = re.match(r"(portico train|(\S*/)?python train\.py) ", command) and " mode=" not in command
    if not is_training or "--cfg" in command or "--help" in command:
        return command
    plain, _, _ = command.partition("  #")
    own = OF_TOPICS if "gradient_descent" in plain else SHORT
    keys = {word.partition("=")[0] for word in shlex.split(plain)}
    makes_data = "data.train_file=" not in plain
    added = [one for one in own if one.partition("=")[0] not in keys and (makes_data or "num_" not in one)]
    return " ".join([plain, *added])


# What the pages say that the reader has: a model of three classes, and data of its inputs. Guides define it.
@pytest.fixture
def names(page):
    if page in GUIDES:
        return {"__name__": "page"}
    torch.manual_seed(0)
    tokenizer = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3})
    train, dev = ToyDataset(16), ToyDataset(8)
    parts = {"model": tiny_bert(), "train": train, "dev": dev, "tokenizer": tokenizer}
    return {**parts, "loader": DataLoader(train, 4), "__name__": "page"}


def run_commands(block, folder, also=()):
    """Run the commands of a block as a shell in ``folder`` would."""
    shutil.copy(ROOT / "train.py", folder)
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore "$@"\n')
        (tools / "portico").write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m portico "$@"\n')
        for tool in tools.iterdir():
            tool.chmod(0o755)
    env = environment(PATH=f"{tools}{os.pathsep}{os.environ['PATH']}", OMP_NUM_THREADS="1")
    for command in commands(block, also):
        text = shortened(command.replace(".venv/bin/", ""))
        done = subprocess.run(["bash", "-c", text], cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def run_page(page, folder, names):
    """Run the blocks of a page."""
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            run_commands(block, folder)
        else:
            exec(compile(block.text, page, "exec"), names)


# What a page says that the reader has besides.
def of_reading_comprehension(folder, names):
    options = "data.num_train=64 data.num_validation=32 args.max_steps=2 paths.output_dir=outputs/mrc/RUN"
    run_commands(Code("bash", "", f"portico train +experiment=mrc {options}"), folder, also=("outputs/mrc/RUN",))
    labelled = generate(num_train=1, num_validation=20, seed=1)[1]
    names |= {"labelled": labelled, "document": labelled[0]["context"]}
    names |= {"questions": ["Who?", "When?"], "documents": [labelled[0]["context"], labelled[1]["context"]]}


def of_pipelines(folder, names):
    config = tiny_bert_config()
    config.num_hidden_layers = 12
    parts = {"model": BertForSequenceClassification(config), "train": ToyDataset(128), "module": OneStep(tiny_bert())}
    names |= parts


def of_allennlp(folder, names):
    (one,) = (block for block in blocks("docs/guides/from_allennlp.md") if block.title == "config.jsonnet")
    (folder / one.title).write_text(one.text, encoding="utf-8")


def of_sessions(folder, names):
    names |= {"module": OneStep(tiny_bert())}


def of_scripts(folder, names):
    args = toy_arguments(folder, max_steps=2)
    names |= {"trainer": Trainer(names["model"], args, train_dataset=names["train"])}


class OneStep(lightning.LightningModule):
    """Trains for one batch."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model(**batch)["loss"]

    def on_train_batch_end(self, *args):
        self.trainer.should_stop = True

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


PREPARED = {
    "README.md": of_allennlp,
    "docs/ipu.md": of_pipelines,
    "docs/mrc.md": of_reading_comprehension,
    "docs/ort.md": of_sessions,
    "docs/run.md": of_scripts,
}
QUICK = ("README.md", "docs/corrections.md", "docs/guides/from_lightning.md", "docs/concepts/bit_identical.md")
WITH_CODE = [page for page in PAGES if blocks(page)]
GUIDES = [page for page in WITH_CODE if page.startswith("docs/guides/")]


def test_guides_define_the_names_that_they_use(tmp_path):
    for page in GUIDES:
        code = [block.text for block in blocks(page) if block.language == "python" and not block.title]
        (tmp_path / Path(page).with_suffix(".py").name).write_text("\n".join(code), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_runs_that_the_guide_compares_differ():
    lines = [line for block in blocks("docs/guides/mrc_from_data_to_report.md") for line in commands(block)]
    first, second = (
        compose([word for word in shlex.split(line) if "=" in word and "paths." not in word])
        for line in lines
        for folder in ("first", "second")
        if f"paths.output_dir={folder}" in line
    )
    assert first["args"] != second["args"]


def test_blocks_are_of_the_language_of_their_file():
    titled = [block for page in WITH_CODE for block in blocks(page) if block.title]
    kinds = {"py": "python", "jsonnet": "jsonnet"}
    assert [block.title for block in titled if kinds[block.title.partition(".")[2]] != block.language] == []


# What the libraries below warn about is theirs.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", QUICK)
def test_python_of_page_runs(page, tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, page, "exec"), names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", WITH_CODE)
def test_page_runs(page, tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    if page in PREPARED:
        PREPARED[page](tmp_path, names)
    run_page(page, tmp_path, names)


def test_what_is_not_run_exists():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [part for part in NOT_RUN if part not in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_drawings_are_up_to_date():
    from diagrams import FOLDER, drawing, sources

    drawn = {drawing(source) for source in sources()}
    assert len(drawn) >= 2
    assert drawn == set(FOLDER.glob("*.svg")), "run `python docs/diagrams.py mermaid.min.js`"


def test_names_and_tables_fit_narrow_screens():
    from site_hooks import on_page_content

    assert on_page_content("<code>Seq2SeqTrainingArguments(output_dir)</code>") == (
        "<code>Seq2Seq<wbr>Training<wbr>Arguments(<wbr>output_<wbr>dir)</code>"
    )
    block = "<pre><span></span><code>portico demo outputs/mrc/RUN</code></pre>"
    assert on_page_content(block) == block
    head = "<table><tr><th>key</th><th>default</th><th>meaning</th></tr>"
    row = '<tr><td>seed</td><td align="right">1</td><td>{}</td></tr></table>'
    short, long = (head + row.format("a " * count) for count in (10, 40))
    assert on_page_content(short) == short
    assert '<td align="right" data-label="default">1</td>' in on_page_content(long)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="the site needs `pip install 'portico[docs]'`")
def test_site_builds(tmp_path):
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = environment(NO_MKDOCS_2_WARNING="1")
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.html")}
    pages = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    assert len(pages) > 30
    # Everything that a page loads is on the site: it can be read without a network.
    loaded = (
        r"""<(?:script|img)[^>]* src="?(https?:[^" >]+)|<link rel="?(?:stylesheet|preconnect)[^>]*(https?:[^" >]+)"""
    )
    assert {name: re.findall(loaded, text) for name, text in pages.items() if re.search(loaded, text)} == {}
    trainers = pages["reference/trainers/index.html"]
    assert 'id="portico.Trainer.prediction_step"' in trainers
    assert not re.search(r":(?:class|meth|func|mod|data):", trainers), "roles of Sphinx are shown as they stand"
    assert "<svg" in pages["concepts/batch/index.html"]
    assert 'href="../notebooks/sweep.ipynb"' in pages["sweeps/index.html"]
    assert (tmp_path / "notebooks/sweep.ipynb").is_file()
    heads = re.findall(r"<th[^>]*>(.*?)</th>", pages["comparison/index.html"])
    assert heads[:2] == ["", "portico"], "seen on a phone without scrolling"
