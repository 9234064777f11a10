"""Each program lies where its own configuration says, whichever was made last."""

import torch

from ipu_trainers import Sentences, classifier, ipu_trainer
from portico.ipu.config import IPUConfig

SPREAD = IPUConfig(
    layers_per_ipu=[1, 1],
    gradient_accumulation_steps=4,
    inference_layers_per_ipu=[0, 2],
    inference_matmul_proportion=0.1,
)
LAYER = "model.model.bert.encoder.layer.0.output.dense.weight"


def batch(rows):
    data = Sentences(rows)
    return {name: torch.stack([data[row][name] for row in range(rows)]) for name in data[0]}


def made_one_after_the_other(output_dir, **changes):
    trainer = ipu_trainer(output_dir, SPREAD, classifier(dropout=0.5), **changes)
    trainer.create_optimizer()
    training = trainer.wrap_model(trainer.model, training=True, sample_batch=batch(8))
    inference = trainer.wrap_model(trainer.model, training=False, sample_batch=batch(2))
    return trainer, training, inference


def test_programs_are_compiled_as_they_were_made(tmp_path):
    trainer, training, inference = made_one_after_the_other(tmp_path)
    trainer.compile_model(training, batch(8))
    trainer.compile_model(inference, batch(2))
    name = LAYER.removeprefix("model.")
    assert training.compiled.ipu_of_parameter[name] == 0
    assert inference.compiled.ipu_of_parameter[name] == 1


def test_programs_are_called_as_they_were_made(tmp_path):
    trainer, training, inference = made_one_after_the_other(tmp_path)
    first, second = (trainer.call_model(trainer.model, batch(8), is_training=True)["loss"] for _ in range(2))
    assert training.compiled.ipu_of_parameter[LAYER.removeprefix("model.")] == 0
    losses = [trainer.call_model(trainer.model, batch(2))["loss"] for _ in range(2)]
    assert inference.compiled.ipu_of_parameter[LAYER.removeprefix("model.")] == 1
    # Dropout belongs to the one and not to the other.
    assert first != second
    assert losses[0] == losses[1]


def test_the_report_is_that_of_training_and_printed_once(tmp_path, capsys):
    trainer, training, _ = made_one_after_the_other(tmp_path)
    trainer.compile_model(training, batch(8))
    assert capsys.readouterr().out.count("Placement\n") == 1
    assert trainer.placement_report.stages[0][0] == 0
