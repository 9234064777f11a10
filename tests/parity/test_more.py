"""The same training with arguments or parts that change the model, the optimizer or the checkpoints."""

import pytest
import torch
import transformers

import portico
from models import ToyDataset, tiny_bert
from parity.peers import compare, run
from portico.checkpoint.manifest import MANIFEST_FILE

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}


@pytest.mark.parametrize("options", [None, {"use_reentrant": True}, {"every_n_layers": 2}])
def test_same_numbers_with_activation_checkpointing(options, tmp_path):
    ours, _ = compare(
        tmp_path, activation_checkpointing=True, activation_checkpointing_kwargs=options, max_steps=3, **EVALUATED
    )
    assert ours.trainer.model.is_activation_checkpointing


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_same_numbers_with_gradient_checkpointing(tmp_path):
    ours, _ = compare(tmp_path, gradient_checkpointing=True, max_steps=3)
    assert ours.trainer.model.is_activation_checkpointing


def test_same_numbers_with_neftune(tmp_path):
    ours, _ = compare(tmp_path, neftune_noise_alpha=5.0, max_steps=3, **EVALUATED)
    plain = run(portico, tmp_path / "plain", max_steps=3, **EVALUATED)
    assert ours.history[0]["loss"] != plain.history[0]["loss"]
    assert not ours.trainer.model.get_input_embeddings()._forward_hooks


def test_same_memory_metric_names(tmp_path):
    pytest.importorskip("psutil")

    def base(trainer_class):
        class Named(trainer_class):
            def log(self, logs, *args, **kwargs):
                super().log({key: 0 if "_mem_" in key else value for key, value in logs.items()}, *args, **kwargs)

        return Named

    def after(trainer):
        return {"train": sorted(key for key in trainer.state.log_history[-1])}

    theirs = run(transformers, tmp_path / "theirs", base=base, skip_memory_metrics=False, max_steps=2, after=after)
    ours = run(portico, tmp_path / "ours", base=base, skip_memory_metrics=False, max_steps=2, after=after)
    assert ours.extra == theirs.extra
    assert ours.train_output.metrics.keys() == theirs.train_output.metrics.keys()
    assert any("_mem_" in key for key in ours.train_output.metrics)


def adam_and_schedule(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def test_same_numbers_with_given_optimizers(tmp_path):
    models = []

    def make_model():
        models.append(tiny_bert())
        return models[-1]

    def options():
        return {"optimizers": adam_and_schedule(models[-1])}

    compare(tmp_path, make_model=make_model, trainer_options=options, **EVALUATED)


def test_same_numbers_with_optimizer_cls_and_kwargs(tmp_path):
    options = {"optimizer_cls_and_kwargs": (torch.optim.RMSprop, {"lr": 1e-3})}
    compare(tmp_path, trainer_options=options, weight_decay=0.1)


SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 6}


def _files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != MANIFEST_FILE}


@pytest.mark.parametrize(
    "arguments",
    [
        {"save_only_model": True},
        {"save_total_limit": 2},
        {
            "save_total_limit": 2,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "load_best_model_at_end": True,
            "learning_rate": 0.5,
        },
    ],
)
def test_same_checkpoint_files(arguments, tmp_path):
    ours, theirs = compare(tmp_path, **SAVING, **arguments)
    assert _files(tmp_path / "same") == _files(tmp_path / "theirs")
    assert ours.trainer.state.best_model_checkpoint == theirs.trainer.state.best_model_checkpoint


def test_same_numbers_with_model_init(tmp_path):
    def base(trainer_class):
        class Remade(trainer_class):
            def __init__(self, model, **kwargs):
                super().__init__(model_init=tiny_bert, **kwargs)

        return Remade

    def after(trainer):
        return {"second": trainer.train().training_loss}

    compare(tmp_path, base=base, after=after)


def test_same_numbers_in_bfloat16(tmp_path):
    def after(trainer):
        return {"predictions": trainer.predict(ToyDataset(10, seed=5)).predictions}

    compare(tmp_path, bf16=True, gradient_accumulation_steps=3, after=after, **EVALUATED)
