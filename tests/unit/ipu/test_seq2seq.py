"""Sequence-to-sequence runs on IPUs, compared with those on the host."""

import math

import pytest
import torch
import transformers
from torch.utils.data import Dataset

import portico
from ipu_trainers import ipu_arguments
from models import tiny_t5, tiny_tokenizer
from portico.ipu.config import IPUConfig


class Sums(Dataset):
    """Sources of 5 tokens, of which some are padding, and targets of 4."""

    def __init__(self, size=7):
        generator = torch.Generator().manual_seed(size)
        self.sources = torch.randint(5, 50, (size, 5), generator=generator)
        self.targets = torch.randint(5, 50, (size, 4), generator=generator)

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, index):
        mask = torch.ones(5, dtype=torch.int64)
        mask[5 - index % 3 :] = 0
        target = self.targets[index].clone()
        target[4 - index % 2 :] = -100
        return {"input_ids": self.sources[index], "attention_mask": mask, "labels": target}


DEFAULTS = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "save_strategy": "no",
    "disable_tqdm": True,
    "fp32": True,
}


def mean_tokens(prediction):
    return {"mean": float(prediction.predictions.mean()), "labels": float(prediction.label_ids.mean())}


def settings(**changes):
    return {"predict_with_generate": True, "generation_max_length": 6, **changes}


def ipu_seq2seq_trainer(output_dir, config=None, trainer_class=portico.IPUSeq2SeqTrainer, parts=None, **changes):
    args = portico.IPUSeq2SeqTrainingArguments(str(output_dir), **{**DEFAULTS, **settings(**changes)})
    options = {
        "train_dataset": Sums(8),
        "eval_dataset": Sums(),
        "tokenizer": tiny_tokenizer(),
        "data_collator": transformers.default_data_collator,
        "compute_metrics": mean_tokens,
        **(parts or {}),
    }
    return trainer_class(tiny_t5(), config, args, **options)


def on_the_host(output_dir, **changes):
    args = portico.Seq2SeqTrainingArguments(
        str(output_dir), per_device_eval_batch_size=7, report_to="none", use_cpu=True, **settings(**changes)
    )
    return portico.Seq2SeqTrainer(
        model=tiny_t5(), args=args, processing_class=tiny_tokenizer(), compute_metrics=mean_tokens
    )


@pytest.mark.parametrize("changes", [{}, {"generation_num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("config", [None, {"inference_replication_factor": 2}, {"layers_per_ipu": [2, 2]}])
def test_predictions_equal_those_of_the_host(tmp_path, config, changes):
    host = on_the_host(tmp_path / "host", **changes)
    host.data_collator = transformers.default_data_collator
    expected = host.predict(Sums())
    trainer = ipu_seq2seq_trainer(tmp_path, None if config is None else IPUConfig(**config), **changes)
    found = trainer.predict(Sums())
    assert (found.predictions == expected.predictions).all()
    assert (found.label_ids == expected.label_ids).all()
    assert found.metrics["test_mean"] == expected.metrics["test_mean"]


def labels_of_one_length(size):
    rows = [Sums(size)[index] for index in range(size)]
    return [{**row, "labels": row["labels"].where(row["labels"] != -100, 7)} for row in rows]


@pytest.mark.parametrize("generates", [False, True])
@pytest.mark.parametrize(("iterations", "replicas", "accumulation"), [(1, 1, 1), (3, 1, 4), (2, 2, 4)])
def test_the_loss_is_the_mean_over_rows(tmp_path, iterations, replicas, accumulation, generates):
    config = IPUConfig(
        inference_device_iterations=iterations,
        inference_replication_factor=replicas,
        gradient_accumulation_steps=accumulation,
    )
    rows = labels_of_one_length(7)
    host = on_the_host(tmp_path / "host", predict_with_generate=generates)
    host.data_collator = transformers.default_data_collator
    host.compute_metrics = None
    expected = host.predict(rows).metrics["test_loss"]
    parts = {"compute_metrics": None}
    trainer = ipu_seq2seq_trainer(tmp_path, config, parts=parts, predict_with_generate=generates)
    assert trainer.evaluate(rows)["eval_loss"] == pytest.approx(expected, abs=1e-5)
    assert trainer.predict(rows).metrics["test_loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_corrected_loss_is_the_mean_over_labels(tmp_path, iterations):
    rows = labels_of_one_length(7)
    for index, row in enumerate(rows):
        row["labels"][1 + index // 2 :] = -100  # as many in both rows of a micro-batch
    host = on_the_host(tmp_path / "host", predict_with_generate=False)
    host.data_collator = transformers.default_data_collator
    host.compute_metrics = None
    changes = {"predict_with_generate": False, "corrections": "eval_batch_means"}
    config = IPUConfig(inference_device_iterations=iterations)
    trainer = ipu_seq2seq_trainer(tmp_path, config, parts={"compute_metrics": None}, **changes)
    # One batch of all rows.
    assert trainer.evaluate(rows)["eval_loss"] == pytest.approx(host.evaluate(rows)["eval_loss"], abs=1e-5)


@pytest.mark.parametrize("iterations", [1, 2])
def test_micro_batch_of_ignored_labels_leaves_only_itself_out(tmp_path, caplog, iterations):
    rows = labels_of_one_length(8)
    for row in rows[2:4]:
        row["labels"][:] = -100
    host = on_the_host(tmp_path / "host", predict_with_generate=False)
    host.data_collator = transformers.default_data_collator
    host.compute_metrics = None
    expected = host.evaluate(rows[:2] + rows[4:])["eval_loss"]
    losses = {}
    for changes in ({}, {"logging_nan_inf_filter": True}, {"corrections": "eval_batch_means"}):
        config = IPUConfig(inference_device_iterations=iterations)
        parts = {"compute_metrics": None}
        trainer = ipu_seq2seq_trainer(tmp_path, config, parts=parts, predict_with_generate=False, **changes)
        losses[(*changes, "")[0]] = trainer.evaluate(rows)["eval_loss"]
    assert math.isnan(losses[""])
    assert losses["corrections"] == pytest.approx(expected, abs=1e-5)
    is_whole = losses["logging_nan_inf_filter"] == pytest.approx(expected, abs=1e-5)
    assert is_whole == (iterations == 1)
    assert ("leaves out all micro-batches of its call; set `corrections=['eval_batch_means']`" in caplog.text) == (
        not is_whole
    )


def test_keywords_of_evaluate_take_precedence(tmp_path):
    trainer = ipu_seq2seq_trainer(tmp_path)
    assert trainer.predict(Sums(2), max_length=9).predictions.shape[1] > 6
    assert trainer.evaluate(max_length=9, num_beams=2)["eval_loss"] > 0


def test_without_generation_the_programs_predict(tmp_path):
    trainer = ipu_seq2seq_trainer(tmp_path, parts={"compute_metrics": None}, predict_with_generate=False)
    assert trainer.predict(Sums()).predictions[0].shape == (7, 4, 50)
    assert trainer.inference_model.isCompiled()


def test_trains_and_generates_in_turn(tmp_path):
    config = IPUConfig(layers_per_ipu=[2, 2], gradient_accumulation_steps=9)
    trainer = ipu_seq2seq_trainer(tmp_path, config, parts={"train_dataset": Sums(36)}, eval_strategy="epoch")
    trainer.train()
    assert trainer.state.global_step == 2
    assert "eval_mean" in trainer.state.log_history[-2]


def test_half_precision_generates(tmp_path):
    trainer = ipu_seq2seq_trainer(tmp_path, fp32=False)
    prediction = trainer.predict(Sums())
    assert next(trainer.model.parameters()).dtype is torch.float16
    assert len(prediction.predictions) == 7
    assert prediction.metrics["test_loss"] > 0


def test_can_be_subclassed(tmp_path):
    class Own(portico.IPUSeq2SeqTrainer):
        def compute_loss(self, *args, **kwargs):
            self.was_asked = True
            return super().compute_loss(*args, **kwargs)

    trainer = ipu_seq2seq_trainer(tmp_path, trainer_class=Own)
    trainer.train()
    assert trainer.was_asked


def test_arguments_have_both_kinds_of_settings(tmp_path):
    args = portico.IPUSeq2SeqTrainingArguments(str(tmp_path), gradient_accumulation_steps=4, generation_num_beams=2)
    assert (args.per_device_train_batch_size, args.generation_num_beams, args.predict_with_generate) == (1, 2, False)
    assert args.ipu_config_overrides == "gradient_accumulation_steps=4"
    assert isinstance(args, portico.IPUTrainingArguments)


def test_arguments_without_generation_are_refused(tmp_path):
    args = ipu_arguments(tmp_path)
    with pytest.raises(TypeError, match=r"is a IPUTrainingArguments; give `portico.IPUSeq2SeqTrainingArguments`"):
        portico.IPUSeq2SeqTrainer(tiny_t5(), None, args)
