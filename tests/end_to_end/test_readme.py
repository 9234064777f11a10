"""The README: its code runs, its links exist, and it opens with what a newcomer needs."""

import re
from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from models import ToyDataset, tiny_bert

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokenizer = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3})
    names = {"model": tiny_bert(), "train": ToyDataset(8), "dev": ToyDataset(4), "tokenizer": tokenizer}
    exec(compile(block, "README.md", "exec"), names)


def test_linked_files_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert len(links) > 8
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_first_screen_goes_from_install_to_example_to_commands():
    screen = "\n".join(README.splitlines()[:40])
    steps = ["pip install portico", "from portico import Trainer", "train.py +experiment=mrc", ".venv/bin/pytest"]
    places = [screen.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
