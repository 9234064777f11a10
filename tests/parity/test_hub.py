"""Uploads of both libraries, recorded by a fake of the hub's client."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import transformers

import portico
from parity.peers import run
from portico.checkpoint.manifest import OWN_FILES


class FakeHub:
    """A fake client that records each call and the content of the folder at that moment."""

    def __init__(self, root, *, finishes):
        self.root = root
        self.finishes = finishes
        self.calls = []
        self.futures = []

    def create_repo(self, repo_id, **options):
        self.calls.append(("create_repo", repo_id, options))
        return SimpleNamespace(repo_id=f"me/{repo_id.rpartition('/')[2]}")

    def upload_folder(self, *, folder_path, **options):
        folder = Path(folder_path)
        files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name not in OWN_FILES)
        self.calls.append(("upload_folder", str(folder.relative_to(self.root)), files, options))
        if not options["run_as_future"]:
            return "commit"
        self.futures.append(Future())
        if self.finishes:
            self.futures[-1].set_result("commit")
        return self.futures[-1]


@pytest.fixture
def pushed(tmp_path, monkeypatch):
    """Train with a library against a fake hub, and return the fake and the outcome."""

    def push(library, *, finishes=True, **options):
        root = tmp_path / library.__name__
        root.mkdir()
        hub = FakeHub(root, finishes=finishes)
        monkeypatch.setattr(
            huggingface_hub.HfApi, "create_repo", lambda api, *args, **kw: hub.create_repo(*args, **kw)
        )
        monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", lambda api, **kw: hub.upload_folder(**kw))
        outcome = run(library, root / "toy", **{"push_to_hub": True, "num_train_epochs": 1, **options})
        return hub, outcome

    return push


SAVING = {"save_strategy": "steps", "save_steps": 3}
SCENARIOS = {
    "every_save": {"hub_strategy": "every_save", **SAVING},
    "checkpoint": {"hub_strategy": "checkpoint", **SAVING},
    "all_checkpoints": {"hub_strategy": "all_checkpoints", **SAVING},
    "end": {"hub_strategy": "end", **SAVING},
    "epochs": {"save_strategy": "epoch", "eval_strategy": "epoch"},
    "named": {"hub_model_id": "us/model", "hub_token": "secret", "hub_private_repo": True, **SAVING},
    "revision": {"hub_revision": "next", **SAVING},
    "model only": {"save_only_model": True, **SAVING},
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_uploads(scenario, pushed):
    calls, cards, events = [], [], []
    for library in (transformers, portico):
        hub, outcome = pushed(library, **SCENARIOS[scenario])
        outcome.trainer.save_model()
        outcome.trainer.push_to_hub(commit_message="done", tags="toy", dataset="points", language="en")
        calls.append(hub.calls)
        cards.append((Path(outcome.trainer.args.output_dir) / "README.md").read_text())
        events.append([event for event in outcome.events if event[0] == "on_push_begin"])
    assert calls[0] == calls[1]
    assert cards[0] == cards[1]
    assert events[0] == events[1]
    assert [call[0] for call in calls[1]].count("upload_folder") >= 2


@pytest.mark.parametrize("always", [False, True])
def test_running_upload_delays_next(always, pushed, monkeypatch):
    waits = []
    monkeypatch.setattr("concurrent.futures.wait", lambda jobs: waits.append(len(jobs)))
    counts = []
    for library in (transformers, portico):
        hub, outcome = pushed(library, finishes=False, hub_always_push=always, **SAVING)
        counts.append((len(hub.calls), len(outcome.trainer.push_in_progress.jobs)))
    assert counts[0] == counts[1]
    assert counts[1] == ((4, 3) if always else (2, 1))
    # Training waits for the running upload.
    assert waits[0] == waits[1] == counts[1][1]


def test_push_to_hub_creates_repository(pushed):
    calls = []
    for library in (transformers, portico):
        hub, outcome = pushed(library, push_to_hub=False)
        assert not hub.calls
        assert outcome.trainer.push_to_hub(private=True, token="mine", blocking=False).result() == "commit"
        calls.append(hub.calls)
    assert calls[0] == calls[1]
    assert calls[1][0] == ("create_repo", "toy", {"token": "mine", "private": True, "exist_ok": True})


def keep_tags(trainer):
    trainer.create_model_card(tags=["first"], model_name="toy", license="mit", tasks="text-classification")
    trainer.create_model_card(tags="second", finetuned_from="")


def tag_model(trainer):
    trainer.model.add_model_tags(["of-the-model"])
    trainer.push_to_hub(tags="mine")


@pytest.mark.parametrize(("act", "tag"), [(keep_tags, "first"), (tag_model, "of-the-model")])
def test_tags_reach_the_card_and_are_kept(act, tag, pushed):
    cards = []
    for library in (transformers, portico):
        _, outcome = pushed(library, push_to_hub=False)
        act(outcome.trainer)
        cards.append((Path(outcome.trainer.args.output_dir) / "README.md").read_text())
    assert cards[0] == cards[1]
    assert f"- {tag}" in cards[1]
