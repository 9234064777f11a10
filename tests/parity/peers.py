"""Runs the same training with both libraries and records everything a user could see."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset, IterableDataset
from transformers import BertConfig, BertForSequenceClassification, TrainerCallback

import portico

TIMING_KEYS = ("runtime", "per_second", "model_preparation_time")
EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


class ToyDataset(Dataset):
    """Sentences of random tokens; with ``draws``, each look at one draws from torch's global generator."""

    def __init__(self, size: int = 29, length: int = 6, seed: int = 0, draws: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 50, (size, length), generator=generator)
        self.labels = torch.randint(0, 3, (size,), generator=generator)
        self.draws = draws

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        if self.draws:
            tokens = torch.where(torch.rand(tokens.shape) < 0.2, torch.zeros_like(tokens), tokens)
        return {"input_ids": tokens, "labels": self.labels[index]}


class ToyStream(IterableDataset):
    """The toy sentences without a length; with ``draws``, each look at one draws."""

    def __init__(self, size: int = 29, draws: bool = False) -> None:
        self.data = ToyDataset(size, draws=draws)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self.data[index] for index in range(len(self.data)))


# A run that ends with what it returns: nothing is saved, reported or drawn.
QUIET = {
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "seed": 3,
}


def tiny_bert_config() -> BertConfig:
    """Return the shape of a BERT small enough for a test, with dropout, so that random draws show."""
    return BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )


def tiny_bert() -> BertForSequenceClassification:
    torch.manual_seed(7)
    return BertForSequenceClassification(tiny_bert_config())


class Recorder(TrainerCallback):
    """Writes down every event with what was true when it came."""

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
    """What a run left behind."""

    trainer: Any
    train_output: Any
    events: list[tuple[Any, ...]]
    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    rng: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    """Drop what depends on the clock."""
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

    ``trainer_options`` is a dict, or a function that makes one after the model was made.
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
        **(trainer_options() if callable(trainer_options) else trainer_options or {}),
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


_known_outcomes: dict[str, Outcome] = {}


def compare(tmp_path: Any, *, scenario: str | None = None, **options: Any) -> tuple[Outcome, Outcome]:
    """Run both libraries with the same options and require the same outcome.

    What ``transformers`` makes of a named ``scenario`` is kept for the next comparison of that name.
    """
    theirs = _known_outcomes.get(scenario) if scenario else None
    if theirs is None:
        theirs = run(transformers, tmp_path / "same", **options)
        if (tmp_path / "same").exists():
            (tmp_path / "same").rename(tmp_path / "theirs")
    if scenario:
        _known_outcomes[scenario] = theirs
    ours = run(portico, tmp_path / "same", **options)
    assert_identical(ours, theirs)
    return ours, theirs
