"""Runs on a CUDA device: ``pytest -m gpu``."""

import pytest
import torch
import transformers

import portico
from models import Pairs, ToyDataset, ToyStream, tiny_bert, tiny_bert_config, tiny_t5
from parity.peers import QUIET, collating, untimed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def trained(folder, *, dataset=ToyDataset, resume=None, model=tiny_bert, **arguments):
    options = {**QUIET, "use_cpu": False, "learning_rate": 1e-2, "num_train_epochs": 2, "optim": "adamw_torch"}
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    args = portico.TrainingArguments(str(folder), **sizes, **{**options, **arguments})
    trainer = portico.Trainer(model(), args, train_dataset=dataset(), eval_dataset=ToyDataset(11, seed=1))
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def without_dropout():
    # The generators of the devices differ.
    torch.manual_seed(7)
    config = tiny_bert_config()
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.BertForSequenceClassification(config)


def test_losses_equal_those_of_the_cpu(tmp_path):
    on_gpu = trained(tmp_path / "gpu", model=without_dropout)
    on_cpu = trained(tmp_path / "cpu", model=without_dropout, use_cpu=True)
    assert next(on_gpu.model.parameters()).device.type == on_gpu.args.device.type == "cuda"
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=1e-3)
    evaluated = [untimed(one.evaluate()) for one in (on_gpu, on_cpu)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bf16": True},
        {"fp16": True},
        {"tf32": True},
        {"torch_compile": True},
        {"optim": "adamw_torch_fused"},
        {"activation_checkpointing": True},
        {"accelerator_config": {"non_blocking": True}, "dataloader_num_workers": 1},
        {"corrections": "all", "gradient_accumulation_steps": 3},
    ],
    ids=str,
)
def test_training_learns_with_every_way_to_compute(arguments, tmp_path):
    made = losses(trained(tmp_path, **{"num_train_epochs": 6, **arguments}))
    assert all(torch.isfinite(torch.tensor(made)))
    assert sum(made[-4:]) < sum(made[:4])


@pytest.mark.parametrize("dataset", [ToyDataset, ToyStream])
def test_resumed_run_ends_with_same_losses(dataset, tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    whole = trained(tmp_path / "whole", dataset=dataset, **saved)
    resumed = trained(tmp_path / "rest", dataset=dataset, resume=tmp_path / "whole" / "checkpoint-4", **saved)
    assert losses(resumed) == pytest.approx(losses(whole), rel=1e-6)


def test_sequences_are_generated(tmp_path):
    args = portico.Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, per_device_eval_batch_size=4, **{**QUIET, "use_cpu": False}
    )
    trainer = portico.Seq2SeqTrainer(tiny_t5(), args, **collating(tiny_t5))
    predicted = trainer.predict(Pairs(7, seed=1))
    assert len(predicted.predictions) == 7


def test_peak_memory_is_reported_for_the_device(tmp_path):
    output = trained(tmp_path, skip_memory_metrics=False).state.log_history[-1]
    assert output["train_mem_gpu_peaked_delta"] > 0
