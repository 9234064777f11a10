"""Run one training with transformers and with portico, record what a user could observe, and compare."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DataCollatorForSeq2Seq, TrainerCallback

import portico
from models import Pairs, ToyDataset, tiny_bart, tiny_bert, tiny_bert_to_bert, tiny_t5, tiny_tokenizer
from portico.arguments import LightningPlacement
from portico.checkpoint.manifest import OWN_FILES

OWN_FIELDS = tuple(LightningPlacement.__annotations__)
"""Training arguments that transformers does not have."""
TIMING_KEYS = ("runtime", "per_second", "model_preparation_time")
EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


# Arguments of a run that writes, reports and displays nothing.
QUIET = {
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 3,
}


class Recorder(TrainerCallback):
    """Record every callback event with the state of the run at that moment."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []


def _record(name: str) -> Any:
    def event(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer, model = kwargs.get("optimizer"), kwargs["model"]
        self.events.append(
            (
                name,
                state.global_step,
                state.epoch,
                optimizer.param_groups[0]["lr"] if optimizer is not None else None,
                hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest()[:8],
                (control.should_log, control.should_evaluate, control.should_save),
                model.training,
                any(parameter.grad is not None for parameter in model.parameters()),
            )
        )

    return event


for _name in EVENTS:
    setattr(Recorder, _name, _record(_name))


@dataclass
class Outcome:
    """Everything observable about a finished run."""

    trainer: Any
    train_output: Any
    events: list[tuple[Any, ...]]
    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    rng: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` without those that depend on the clock."""
    return {key: value for key, value in values.items() if not any(mark in key for mark in TIMING_KEYS)}


def run(
    library: Any,
    output_dir: Any,
    *,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    base: Any = None,
    resume: Any = None,
    callbacks: Any = (),
    after: Any = None,
    make_model: Any = tiny_bert,
    trainer_options: Any = None,
    **arguments: Any,
) -> Outcome:
    """Train with ``library`` (``transformers`` or ``portico``) and return the outcome.

    ``trainer_options`` is a dict, or a function that returns one for the model.
    """
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        **QUIET,
    }
    args = library.TrainingArguments(output_dir=str(output_dir), **{**options, **arguments})
    recorder = Recorder()
    trainer_class = library.Trainer if base is None else base(library.Trainer)
    model = make_model()
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=ToyDataset() if train_dataset is None else train_dataset(),
        eval_dataset=ToyDataset(11, seed=1) if eval_dataset is None else eval_dataset(),
        callbacks=[recorder, *(callback() for callback in callbacks)],
        **(trainer_options(model) if callable(trainer_options) else trainer_options or {}),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    output = trainer.train(resume_from_checkpoint=resume)
    extra = after(trainer) if after is not None else {}
    return Outcome(
        trainer,
        output,
        recorder.events,
        {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()},
        [untimed(entry) for entry in trainer.state.log_history],
        torch.get_rng_state(),
        extra,
    )


def assert_identical(ours: Outcome, theirs: Outcome) -> None:
    """Compare two outcomes bit for bit."""
    assert ours.events == theirs.events
    assert ours.history == theirs.history
    assert ours.train_output.global_step == theirs.train_output.global_step
    assert ours.train_output.training_loss == theirs.train_output.training_loss
    assert untimed(ours.train_output.metrics) == untimed(theirs.train_output.metrics)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, tensor in ours.weights.items():
        assert torch.equal(tensor, theirs.weights[name]), name
    assert torch.equal(ours.rng, theirs.rng)
    assert_same_values(ours.extra, theirs.extra)


def assert_same_values(ours: Any, theirs: Any) -> None:
    """Compare nested results whose leaves are arrays or plain values."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same_values(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_values(mine, other)
    elif hasattr(ours, "shape"):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert (ours == theirs).all()
    else:
        assert ours == theirs


_known_outcomes: dict[str, tuple[Outcome, Path]] = {}


def compare(tmp_path: Any, *, scenario: str | None = None, **options: Any) -> tuple[Outcome, Outcome]:
    """Run both libraries with the same options and require the same outcome.

    The outcome and files of ``transformers`` for a named ``scenario`` are cached for the next comparison of that name.
    """
    files = tmp_path / "theirs"
    if scenario in _known_outcomes:
        theirs, known_files = _known_outcomes[scenario]
        files.symlink_to(known_files)
    else:
        theirs = run(transformers, tmp_path / "same", **options)
        if (tmp_path / "same").exists():
            (tmp_path / "same").rename(files)
        if scenario:
            _known_outcomes[scenario] = theirs, files
    ours = run(portico, tmp_path / "same", **options)
    assert_identical(ours, theirs)
    return ours, theirs


# Sequence to sequence ------------------------------------------------------------------------------------------------

SEQ2SEQ_MODELS = {"t5": tiny_t5, "bart": tiny_bart, "encoder-decoder": tiny_bert_to_bert}


@dataclass(frozen=True)
class Seq2Seq:
    """A library whose sequence-to-sequence classes replace the plain ones."""

    library: Any

    @property
    def Trainer(self) -> Any:
        return self.library.Seq2SeqTrainer

    @property
    def TrainingArguments(self) -> Any:
        return self.library.Seq2SeqTrainingArguments


def collating(make_model: Callable[[], Any], *, with_model: bool = False) -> dict[str, Any]:
    """Return the trainer options of a padding collator; with the model it also makes decoder inputs of the labels."""
    tokenizer = tiny_tokenizer()
    model = make_model() if with_model else None
    return {"data_collator": DataCollatorForSeq2Seq(tokenizer, model=model), "processing_class": tokenizer}


def run_seq2seq(library: Any, output_dir: Any, *, make_model: Callable[[], Any] = tiny_t5, **options: Any) -> Outcome:
    """Train an encoder-decoder with ``library`` as :func:`run` does, over :class:`models.Pairs`."""
    defaults = {
        "train_dataset": Pairs,
        "eval_dataset": lambda: Pairs(7, seed=1),
        "trainer_options": lambda model: collating(make_model),
        "num_train_epochs": 1,
    }
    return run(Seq2Seq(library), output_dir, make_model=make_model, **{**defaults, **options})


def compare_seq2seq(tmp_path: Path, **options: Any) -> tuple[Outcome, Outcome]:
    """Run both libraries with the same options and require the same outcome."""
    theirs = run_seq2seq(transformers, tmp_path / "same", **options)
    (tmp_path / "same").rename(tmp_path / "theirs")
    ours = run_seq2seq(portico, tmp_path / "same", **options)
    assert_identical(ours, theirs)
    return ours, theirs


# Checkpoints ---------------------------------------------------------------------------------------------------------


def assert_same_checkpoint(ours: Path, theirs: Path) -> None:
    """Compare two ``checkpoint-N`` folders: weights and configuration byte for byte, the rest by content."""
    assert {file.name for file in ours.iterdir()} - set(OWN_FILES) == {file.name for file in theirs.iterdir()}
    for name in ("model.safetensors", "config.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same_values(torch.load(ours / name), torch.load(theirs / name))
    assert_same_values(trainer_state(ours), trainer_state(theirs))
    mine, other = load_trusted(ours / "rng_state.pth"), load_trusted(theirs / "rng_state.pth")
    assert mine.keys() == other.keys()
    assert torch.equal(mine["cpu"], other["cpu"])
    assert mine["python"] == other["python"]
    assert mine["numpy"][0] == other["numpy"][0]
    assert np.array_equal(mine["numpy"][1], other["numpy"][1])
    assert mine["numpy"][2:] == other["numpy"][2:]


def trainer_state(folder: Path) -> dict[str, Any]:
    """Return the content of ``trainer_state.json`` without values that depend on the clock."""
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"] = [untimed(entry) for entry in state["log_history"]]
    return state


def load_trusted(file: Path) -> Any:
    """Unpickle a file that this test run has written."""
    return torch.load(file, weights_only=False)
