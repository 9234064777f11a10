"""Runs on a CUDA device: ``pytest -m gpu``."""

import json
import os
from importlib.util import find_spec

import pytest
import torch
import transformers
from safetensors.torch import load_file

import portico
from forked import run_in_processes
from models import Pairs, ToyDataset, ToyStream, tiny_bert, tiny_bert_config, tiny_t5
from parity.peers import QUIET, collating, untimed
from portico.distributed.model_parallel import full_tensor, is_sharded
from unit.mrc import small_readers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # What compilers and kernels of torch warn of differs between devices.
    pytest.mark.filterwarnings("default:::torch"),
]


def trained(folder, *, dataset=ToyDataset, resume=None, model=tiny_bert, library=None, **arguments):
    arguments_class, trainer_class = library or (portico.TrainingArguments, portico.Trainer)
    options = {**QUIET, "use_cpu": False, "learning_rate": 1e-2, "num_train_epochs": 2, "optim": "adamw_torch"}
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    args = arguments_class(str(folder), **sizes, **{**options, **arguments})
    trainer = trainer_class(model(), args, train_dataset=dataset(), eval_dataset=ToyDataset(11, seed=1))
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
    # In float64 they differ from these by 1e-6.
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=1e-4)
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
        {"tf32": True, "torch_compile": True, "bf16": True},
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


def test_fastest_arguments_train(tmp_path):
    args = portico.TrainingArguments.fast(str(tmp_path), **{**QUIET, "use_cpu": False, "num_train_epochs": 1})
    assert portico.Trainer(tiny_bert(), args, train_dataset=ToyDataset()).train().global_step > 0


def test_checkpoint_of_the_background_is_that_of_a_pause(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    for name, later in {"paused": False, "later": True}.items():
        trained(tmp_path / name, async_save=later, **saved)
    for file in ("model.safetensors", "optimizer.pt"):
        paths = [tmp_path / name / "checkpoint-3" / file for name in ("paused", "later")]
        contents = [load_file(path) if path.suffix == ".safetensors" else torch.load(path)["state"] for path in paths]
        torch.testing.assert_close(*contents, rtol=1e-4, atol=1e-5)


def in_each_process(folder):
    """Train whole and sharded; with one process a shard is the whole model."""
    number = int(os.environ["WORLD_SIZE"])
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "model": without_dropout}
    whole_one = trained(folder / "whole", **saved, **({"strategy": "ddp"} if number > 1 else {}))
    sharded = trained(folder / "sharded", strategy="fsdp", **saved)
    assert torch.distributed.get_backend() == "nccl"
    assert is_sharded(sharded.model)
    assert next(sharded.model.parameters()).device.type == "cuda"
    assert losses(sharded) == pytest.approx(losses(whole_one), rel=1e-4)
    weights = [
        {name: full_tensor(one).cpu() for name, one in trainer.model.state_dict().items()}
        for trainer in (whole_one, sharded)
    ]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    for config in ({"cpu_offload": True}, {"activation_checkpointing": True}):
        again = trained(folder / "again", strategy="fsdp", bf16=True, fsdp_config=config, max_steps=2)
        assert all(torch.isfinite(torch.tensor(losses(again))))
    resumed = trained(folder / "resumed", resume=folder / "sharded" / "checkpoint-2", strategy="fsdp", **saved)
    assert losses(resumed) == pytest.approx(losses(sharded), rel=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_sharded_training_equals_whole_training(number, tmp_path):
    if torch.cuda.device_count() < number:
        pytest.skip(f"needs {number} CUDA devices")
    run_in_processes(number, in_each_process, tmp_path)


def has_cuda_provider():
    if find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.mark.skipif(not has_cuda_provider(), reason="needs onnxruntime-gpu")
def test_onnx_runtime_computes_on_the_device(tmp_path):
    library = (portico.ORTTrainingArguments, portico.ORTTrainer)
    in_torch = trained(tmp_path / "torch", model=without_dropout)
    in_ort = trained(
        tmp_path / "ort", model=without_dropout, library=library, accelerator="cuda", strategy="ort", strict=True
    )
    assert losses(in_ort) == pytest.approx(losses(in_torch), rel=1e-3)


def test_questions_are_answered_on_the_device(tmp_path):
    sets, features, answers = small_readers.source(num_validation=20), None, []
    for name, use_cpu in {"cpu": True, "gpu": False}.items():
        made = small_readers.reader(sets.train)
        features = features or small_readers.featurized(sets, made.tokenizer)
        trainer = small_readers.make_trainer(
            portico.MRCTrainer,
            made,
            tmp_path / name,
            arguments={"max_steps": 3, "use_cpu": use_cpu},
            train_dataset=features.train,
            eval_dataset=features.validation,
            eval_examples=sets.validation,
        )
        trainer.train()
        trainer.evaluate()
        answers.append(json.loads((tmp_path / name / "eval_predictions.json").read_text()))
    # Scores that are equal but for the last bits may change places.
    assert sum(answers[0][one] == answers[1][one] for one in answers[0]) >= 18
