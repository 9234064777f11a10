"""Errors have the exception types of transformers; ``test_messages.py`` compares others, with their words."""

import pytest
import torch
import transformers

import portico
from models import Line, Points, UnknownColumn, toy_arguments


class Growing(Line):
    """A model whose logits get wider with each batch in a dimension that is not padded."""

    def forward(self, x, labels=None):
        self.width = getattr(self, "width", 1) + 1
        return {"loss": self.linear(x).mean(), "logits": torch.zeros(len(x), 2, self.width)}


def trainer_of(library, folder, parts, arguments):
    options = {"model": Line(), "train_dataset": Points(), "eval_dataset": Points(4), **parts}
    return library.Trainer(args=toy_arguments(folder, library.TrainingArguments, **arguments), **options)


AT_CONSTRUCTION = {
    "tracker": ({}, {"report_to": "paper"}),
    "arguments": ({}, {"eval_strategy": "sometimes"}),
    "saving out of step": ({}, {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "steps"}),
}
LATER = {
    "logits that do not fit": ({"model": Growing()}, {}, lambda trainer: trainer.predict(Points(4))),
    "resuming from nowhere": ({}, {}, lambda trainer: trainer.train(resume_from_checkpoint="nowhere")),
    "unknown metric": (
        {},
        {"eval_strategy": "epoch", "metric_for_best_model": "f1"},
        lambda trainer: trainer.train(),
    ),
    "unknown set": (
        {"eval_dataset": {"a": Points(4)}},
        {},
        lambda trainer: trainer.get_eval_dataloader("b"),
    ),
    "batch without inputs": ({"train_dataset": UnknownColumn()}, {}, lambda trainer: trainer.train()),
    "learning rates before training": ({}, {}, lambda trainer: trainer.get_learning_rates()),
    "groups before training": ({}, {}, lambda trainer: trainer.get_optimizer_group()),
}


def raised(action):
    with pytest.raises(Exception, match=r".") as caught:
        action()
    return caught.value


@pytest.mark.parametrize("mistake", AT_CONSTRUCTION)
def test_same_error_at_construction(mistake, tmp_path):
    parts, arguments = AT_CONSTRUCTION[mistake]
    theirs = raised(lambda: trainer_of(transformers, tmp_path, parts, arguments))
    ours = raised(lambda: trainer_of(portico, tmp_path, parts, arguments))
    assert isinstance(ours, type(theirs)), (ours, theirs)


@pytest.mark.parametrize("mistake", LATER)
def test_same_error_later(mistake, tmp_path):
    parts, arguments, act = LATER[mistake]
    theirs = raised(lambda: act(trainer_of(transformers, tmp_path / "theirs", parts, arguments)))
    ours = raised(lambda: act(trainer_of(portico, tmp_path / "ours", parts, arguments)))
    assert isinstance(ours, type(theirs)), (ours, theirs)


def test_missing_metric_error_has_no_quotes(tmp_path):
    error = raised(lambda: LATER["unknown metric"][2](trainer_of(portico, tmp_path, {}, LATER["unknown metric"][1])))
    assert isinstance(error, portico.InputError)
    assert str(error).startswith("The `metric_for_best_model`")
