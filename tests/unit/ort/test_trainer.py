import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import portico
from models import toy_arguments
from portico import InputError, ORTTrainer, ORTTrainingArguments
from portico.ort.api import get_compiled_call
from portico.ort.exporting import save_onnx
from unit.ort.families import make_model

LENGTH = 12

EQUAL_TO_PLAIN = {"abs": 2e-5}


class Questions(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ends = torch.randint(0, LENGTH, (2,), generator=generator)
        return {
            "input_ids": torch.randint(3, 50, (LENGTH,), generator=generator),
            "attention_mask": torch.ones(LENGTH, dtype=torch.long),
            "start_positions": ends[0],
            "end_positions": ends[1],
        }


def reader(folder, trainer_class=ORTTrainer, arguments_class=ORTTrainingArguments, model=None, **changes):
    options = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-3, **changes}
    return trainer_class(
        model=make_model("bert-qa", num_hidden_layers=1) if model is None else model,
        args=toy_arguments(folder, arguments_class, **options),
        train_dataset=Questions(),
        eval_dataset=Questions(),
    )


def numbers(trainer):
    keys = ("loss", "eval_loss", "learning_rate")
    return [entry[key] for entry in trainer.state.log_history for key in keys if key in entry]


def plain(folder, **changes):
    return reader(folder, portico.Trainer, portico.TrainingArguments, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = reader(
        folder, eval_strategy="epoch", gradient_accumulation_steps=2, save_onnx=True, onnx_prefix="reader", strict=True
    )
    trainer.train()
    return trainer, folder


def test_it_trains_and_evaluates_as_the_plain_trainer_does(trained, tmp_path):
    trainer, _ = trained
    other = plain(tmp_path, eval_strategy="epoch", gradient_accumulation_steps=2)
    other.train()
    assert numbers(trainer) == pytest.approx(numbers(other), **EQUAL_TO_PLAIN)
    report = get_compiled_call(trainer.model).report
    assert [graph.kind for graph in report.graphs] == ["forward", "backward", "inference"]


def test_a_later_evaluation_builds_nothing(trained):
    trainer, _ = trained
    trainer.evaluate()
    trainer.predict(Questions())
    assert len(trainer.ort_report.graphs) == 3


def test_the_report_is_beside_the_model(trained):
    saved = json.loads((trained[1] / "ort_report.json").read_text())["model"]
    assert saved["fallbacks"] == saved["graph_breaks"] == {}
    assert len(saved["graphs"]) >= 3


def test_the_onnx_file_needs_nothing_but_a_runtime(trained, tmp_path):
    trainer, folder = trained
    inputs = {"input_ids": torch.randint(3, 50, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.long)}
    np.savez(tmp_path / "in.npz", **inputs)
    script = f"""
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession("{folder / "reader.onnx"}")
assert [value.shape for value in session.get_inputs()] == [["batch_size", "sequence_length"]] * 2
names = [value.name for value in session.get_outputs()]
outputs = session.run(None, dict(numpy.load("{tmp_path / "in.npz"}")))
numpy.savez("{tmp_path / "out.npz"}", **dict(zip(names, outputs)))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    found = np.load(tmp_path / "out.npz")
    with torch.no_grad():
        expected = trainer.model.eval()(**inputs)
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(found[name], expected[name].numpy(), atol=1e-6)
    assert (folder / "config.json").is_file()


def test_the_facade_takes_the_strategy_by_name(tmp_path):
    trainer = plain(tmp_path, strategy="ort", max_steps=1)
    trainer.train()
    assert [graph.kind for graph in get_compiled_call(trainer.model).report.graphs] == ["forward", "backward"]


def test_the_optimizer_in_onnxruntime_trains_as_torchs(tmp_path):
    other = plain(tmp_path)
    other.train()
    fused = reader(tmp_path, optim="adamw_ort_fused")
    fused.train()
    assert type(fused.optimizer).__name__ == "FusedAdamW"
    assert numbers(fused) == pytest.approx(numbers(other), **EQUAL_TO_PLAIN)
    assert fused.args.to_dict()["optim"] == "adamw_ort_fused"


@pytest.mark.parametrize(("first", "second"), [pytest.param(reader, plain, marks=pytest.mark.slow), (plain, reader)])
def test_a_run_may_change_to_or_from_onnxruntime_at_resume(first, second, tmp_path):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    whole = plain(tmp_path / "whole", **options)
    whole.train()
    first(tmp_path / "two", **{**options, "max_steps": 3}).train()
    resumed = second(tmp_path / "two", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "two" / "checkpoint-2"))
    assert numbers(resumed) == pytest.approx(numbers(whole), **EQUAL_TO_PLAIN)


def squared_logits(outputs, labels, num_items_in_batch=None):
    return outputs["logits"].square().sum() / num_items_in_batch + labels.sum() * 0


class Scorer(torch.nn.Module):
    """Leaves the loss to others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 2))

    def forward(self, x, labels=None):
        return {"logits": self.layers(x)}


class Classes(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return {"x": torch.randn(3, generator=torch.Generator().manual_seed(index)), "labels": index % 2}


@pytest.mark.parametrize("loss", [{"compute_loss_func": squared_logits}, {"label_smoothing_factor": 0.1}])
def test_a_loss_of_the_users_is_in_the_graph_if_it_is_asked_for(loss, tmp_path):
    parts = {name: value for name, value in loss.items() if callable(value)}
    changes = {name: value for name, value in loss.items() if not callable(value)}
    trainers = []
    for trainer_class, arguments_class, options in (
        (portico.Trainer, portico.TrainingArguments, {}),
        (ORTTrainer, ORTTrainingArguments, {"use_module_with_loss": True, "strict": True}),
    ):
        args = toy_arguments(
            tmp_path, arguments_class, num_train_epochs=1, eval_strategy="epoch", **changes, **options
        )
        data = {"train_dataset": Classes(), "eval_dataset": Classes()}
        trainers.append(trainer_class(Scorer(), args, **data, **parts))
        trainers[-1].train()
    assert numbers(trainers[1]) == pytest.approx(numbers(trainers[0]), **EQUAL_TO_PLAIN)
    # One whole graph for each kind: the model has none of its own.
    assert [graph.kind for graph in trainers[1].ort_report.graphs] == ["forward", "backward", "inference"]
    assert trainers[1]._module_with_loss is not None


def test_the_older_name_of_the_processor_is_taken(tmp_path):
    with pytest.warns(
        FutureWarning, match="`tokenizer` is deprecated and will be removed in portico 2; use `processing_class`"
    ):
        trainer = ORTTrainer(make_model("perceptron"), toy_arguments(tmp_path, ORTTrainingArguments), tokenizer=print)
    assert trainer.processing_class is print


@pytest.mark.parametrize("name", ["feature", "task", "onnx_model_path"])
def test_arguments_of_older_versions_that_told_what_to_export_are_taken(name, tmp_path):
    with pytest.warns(FutureWarning, match=f"`{name}` has no effect any more: ") as warned:
        ORTTrainer(make_model("perceptron"), toy_arguments(tmp_path, ORTTrainingArguments), **{name: "anything"})
    assert len(warned) == 1
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("in_ort", "kinds"), [(True, ["inference"]), (False, [])])
def test_one_evaluation_may_be_said_to_run_elsewhere(in_ort, kinds, tmp_path):
    trainer = reader(tmp_path, evaluate_in_ort=not in_ort)
    with pytest.warns(FutureWarning, match=r"`inference_with_ort` is deprecated and .*; set `evaluate_in_ort` in"):
        trainer.evaluate(inference_with_ort=in_ort)
    assert [graph.kind for graph in trainer.ort_report.graphs] == kinds
    assert trainer.args.evaluate_in_ort is not in_ort


def test_arguments_that_know_nothing_of_onnxruntime_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"`args` is a TrainingArguments; give `portico.ORTTrainingArguments`, or"):
        ORTTrainer(make_model("perceptron"), toy_arguments(tmp_path))


def test_a_model_that_cannot_be_lowered_is_not_saved(tmp_path):
    class Accumulating(torch.nn.Module):
        def forward(self, x):
            return {"logits": torch.logcumsumexp(x, 1)}

    with pytest.raises(InputError, match=r"it uses aten.logcumsumexp.default, which portico cannot lower"):
        save_onnx(Accumulating(), {"x": torch.randn(2, 3)}, tmp_path / "model.onnx")
