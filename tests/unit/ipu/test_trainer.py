"""IPUTrainer, compared with Hugging Face's trainer."""

import json

import numpy as np
import pytest
import torch
import transformers
from transformers import AlbertConfig, AlbertForSequenceClassification

import portico
from emulator_peers import free_ipus, largest_difference, weights
from ipu_trainers import (
    Questions,
    Sentences,
    classifier,
    ipu_arguments,
    ipu_trainer,
    plain_trainer,
    reader,
    scaled_classifier,
)
from portico.ipu.config import IPUConfig

EIGHT_MICRO_BATCHES = {"inference_replication_factor": 2, "inference_device_iterations": 4}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class TestTraining:
    @pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (2, 4)])
    def test_equals_plain_torch_on_global_batches(self, tmp_path, replicas, accumulation):
        config = IPUConfig(replication_factor=replicas, gradient_accumulation_steps=accumulation, output_mode="all")
        model = classifier()
        trainer = ipu_trainer(tmp_path, config, model)
        before = weights(model)
        output = trainer.train()
        plain = plain_trainer(tmp_path, classifier(), 2 * replicas * accumulation)
        expected = plain.train()
        assert output.global_step == expected.global_step
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 2e-4
        assert largest_difference(before, weights(model)) == 0, "the model that was given stays as it was"
        assert trainer.original_model is model
        ours = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        theirs = [entry["loss"] for entry in plain.state.log_history if "loss" in entry]
        assert np.allclose(ours, theirs, atol=1e-5)
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
        assert rates == [entry["learning_rate"] for entry in plain.state.log_history if "loss" in entry]

    def test_counts_a_call_as_a_step(self, tmp_path):
        config = IPUConfig(device_iterations=2, gradient_accumulation_steps=2, replication_factor=2)
        trainer = ipu_trainer(tmp_path, config)
        assert trainer.get_train_dataloader().total_batch_size == 16
        assert trainer.train().global_step == 2 * 2
        assert trainer.optimizer.state_dict()["ipu_param"]["num_updates"] == 2 * 2 * 2

    def test_drops_an_incomplete_last_batch(self, tmp_path):
        trainer = ipu_trainer(tmp_path, IPUConfig(gradient_accumulation_steps=5))
        assert trainer.train().global_step == 2 * 3

    def test_pads_the_last_batch_on_request(self, tmp_path):
        trainer = ipu_trainer(tmp_path, IPUConfig(gradient_accumulation_steps=5), pad_on_batch_axis=True)
        assert trainer.train().global_step == 2 * 4

    def test_needs_data_for_one_call(self, tmp_path):
        trainer = ipu_trainer(tmp_path, IPUConfig(gradient_accumulation_steps=50))
        with pytest.raises(ValueError, match=r"Couldn't get first sample from dataloader.*one call takes 100"):
            trainer.train()

    def test_in_half_precision(self, tmp_path):
        trainer = ipu_trainer(tmp_path, fp32=False, loss_scaling=16.0)
        trainer.train()
        assert trainer.model.classifier.weight.dtype is torch.float16
        assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
        assert trainer.optimizer.accum_type is torch.float16

    def test_frees_the_ipus(self, tmp_path):
        trainer = ipu_trainer(tmp_path, eval_strategy="epoch")
        with free_ipus(1):
            trainer.train()
            assert not trainer.training_model.isAttachedToDevice()
            trainer.evaluate()

    def test_second_run_gets_a_new_schedule(self, tmp_path):
        trainer = ipu_trainer(tmp_path)
        trainer.train()
        trainer.train()
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
        assert rates[0] == 1e-3
        assert trainer.optimizer.state_dict()["ipu_param"]["num_updates"] == 64


class TestEvaluation:
    def test_of_523_examples_equals_plain_torch(self, tmp_path):
        data = Sentences(523, seed=4)
        changes = {"per_device_eval_batch_size": 4}
        trainer = ipu_trainer(
            tmp_path,
            IPUConfig(**EIGHT_MICRO_BATCHES),
            parts={"eval_dataset": data, "compute_metrics": accuracy},
            **changes,
        )
        plain = plain_trainer(tmp_path, classifier(), 2, eval_dataset=data, compute_metrics=accuracy, **changes)
        ours, theirs = trainer.predict(data), plain.predict(data)
        assert np.array_equal(ours.predictions[:520], theirs.predictions[:520])
        # The plain trainer's last batch has three rows, for which torch sums in a different order than for four.
        assert np.allclose(ours.predictions[520:], theirs.predictions[520:], atol=1e-7)
        assert np.array_equal(ours.label_ids, theirs.label_ids)
        assert trainer.evaluate()["eval_accuracy"] == plain.evaluate()["eval_accuracy"]
        assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], abs=1e-7)
        assert trainer.combined_eval_batch_size == 32

    def test_of_answer_spans_equals_plain_torch(self, tmp_path):
        data = Questions(13, seed=4)
        parts = {"eval_dataset": data, "compute_metrics": lambda prediction: {}}
        trainer = ipu_trainer(tmp_path, IPUConfig(**EIGHT_MICRO_BATCHES), reader(), parts, label_names=None)
        plain = plain_trainer(tmp_path, reader(), 2, **parts)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], abs=1e-6)

    def test_runs_on_the_devices_alone(self, tmp_path):
        trainer = ipu_trainer(tmp_path)
        trainer.evaluate()
        calls = []
        trainer.model.register_forward_pre_hook(lambda *_: calls.append(1))
        trainer.evaluate()
        assert not calls, "a hook that was added after compilation cannot have run on the device"

    def test_sees_what_was_trained(self, tmp_path):
        trainer = ipu_trainer(tmp_path, num_train_epochs=6, eval_strategy="epoch")
        trainer.train()
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        assert losses[-1] < losses[0]

    def test_uses_eval_data_collator(self, tmp_path):
        def collate(rows):
            batch = transformers.default_data_collator(rows)
            batch["labels"] = torch.zeros_like(batch["labels"])
            return batch

        trainer = ipu_trainer(tmp_path, parts={"eval_data_collator": collate, "compute_metrics": accuracy})
        assert trainer.predict(Sentences()).label_ids.sum() == 0
        assert next(iter(trainer.get_train_dataloader()))["labels"].dtype is torch.int64


class TestResuming:
    def test_is_bit_identical(self, tmp_path):
        config = IPUConfig(replication_factor=2, device_iterations=2)
        changes = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 3, "fp32": False}
        whole = ipu_trainer(tmp_path / "whole", config, classifier(dropout=0.1), **changes)
        whole.train()
        stopped = ipu_trainer(tmp_path / "part", config, classifier(dropout=0.1), **changes)

        class Stop(transformers.TrainerCallback):
            def on_save(self, args, state, control, **kwargs):
                control.should_training_stop = True

        stopped.add_callback(Stop())
        stopped.train()
        resumed = ipu_trainer(tmp_path / "part", config, classifier(dropout=0.1), **changes)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == whole.state.global_step == 12
        assert largest_difference(weights(whole.model), weights(resumed.model)) == 0
        assert whole.training_model.rng_state == resumed.training_model.rng_state

    def test_is_bit_identical_with_a_scalar_parameter(self, tmp_path):
        changes = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        whole = ipu_trainer(tmp_path, None, scaled_classifier(), **changes)
        whole.train()
        resumed = ipu_trainer(tmp_path, None, scaled_classifier(), **changes)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert resumed.model.logit_scale != 0.5
        assert largest_difference(weights(whole.model), weights(resumed.model)) == 0

    def test_unchanged_batch_size_does_not_warn(self, tmp_path, caplog):
        config = IPUConfig(replication_factor=2, device_iterations=2)
        changes = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        stopped = ipu_trainer(tmp_path, config, **changes)
        stopped.train()
        saved = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
        assert saved["train_batch_size"] == 2
        transformers.utils.logging.enable_propagation()
        try:
            ipu_trainer(tmp_path, config, **changes).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        finally:
            transformers.utils.logging.disable_propagation()
        assert "per_device_train_batch_size" not in caplog.text

    @pytest.mark.parametrize("corrections", [None, "resume_by_examples"])
    def test_the_end_of_an_epoch_that_drops_rows_is_no_position_within_it(self, tmp_path, corrections, caplog):
        config = IPUConfig(gradient_accumulation_steps=2)
        changes = {"save_strategy": "epoch", "num_train_epochs": 3, "corrections": corrections}
        parts = {"train_dataset": Sentences(15)}
        whole = ipu_trainer(tmp_path, config, parts=parts, **changes)
        whole.train()
        resumed = ipu_trainer(tmp_path / "resumed", config, parts=parts, **changes)
        transformers.utils.logging.enable_propagation()
        try:
            resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        finally:
            transformers.utils.logging.disable_propagation()
        assert "resume_by_examples" not in caplog.text
        assert resumed.state.global_step == whole.state.global_step == 9
        assert largest_difference(weights(whole.model), weights(resumed.model)) == 0

    def test_checkpoints_load_with_plain_from_pretrained(self, tmp_path):
        trainer = ipu_trainer(tmp_path, save_strategy="epoch")
        trainer.train()
        folder = tmp_path / "checkpoint-32"
        assert {"ipu_config.json", "ipu_rng_state.json", "optimizer.pt", "model.safetensors"} <= {
            file.name for file in folder.iterdir()
        }
        loaded = type(trainer.model).from_pretrained(folder)
        assert largest_difference(weights(loaded), weights(trainer.model)) == 0
        assert IPUConfig.from_pretrained(folder) == trainer.ipu_config

    def test_best_model_is_restored(self, tmp_path):
        trainer = ipu_trainer(
            tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, learning_rate=0.5
        )
        trainer.train()
        best = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint)
        assert largest_difference(weights(best), weights(trainer.model)) == 0
        assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


class TestLosses:
    def test_are_smoothed_inside_the_program(self, tmp_path):
        trainer = ipu_trainer(tmp_path, label_smoothing_factor=0.3)
        plain = plain_trainer(tmp_path, classifier(), 2, label_smoothing_factor=0.3)
        trainer.train()
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 2e-4

    def test_of_the_user_are_trained_on(self, tmp_path):
        def zero(outputs, labels, num_items_in_batch=None):
            return (outputs["logits"] ** 2).mean()

        trainer = ipu_trainer(tmp_path, parts={"compute_loss_func": zero}, num_train_epochs=5, learning_rate=1e-2)
        trainer.train()
        assert np.abs(trainer.predict(Sentences()).predictions).mean() < 0.05

    def test_that_are_missing_are_reported(self, tmp_path):
        class Unlabelled(Sentences):
            def __getitem__(self, index):
                return {"input_ids": self.tokens[index]}

        with pytest.raises(ValueError, match=r"keys: logits\. .* received are input_ids\. Give it labels"):
            ipu_trainer(tmp_path, parts={"train_dataset": Unlabelled()}).train()


class TestConfiguration:
    def test_compile_only_ends_the_program(self, tmp_path):
        with pytest.raises(SystemExit) as caught:
            ipu_trainer(tmp_path, compile_only=True, do_train=True, do_eval=True)
        assert caught.value.code == 0


class TestRefusals:
    def test_model_init(self, tmp_path):
        with pytest.raises(RuntimeError, match="`model_init` is not supported by `IPUTrainer` yet"):
            portico.IPUTrainer(model_init=classifier, args=ipu_arguments(tmp_path))
        with pytest.raises(RuntimeError, match="`IPUTrainer` requires a `model`"):
            portico.IPUTrainer(args=ipu_arguments(tmp_path))
        with pytest.warns(FutureWarning, match="`model_init` has no effect"):
            portico.IPUTrainer(classifier(), args=ipu_arguments(tmp_path), model_init=classifier)

    def test_trials_and_searches(self, tmp_path):
        trainer = ipu_trainer(tmp_path)
        with pytest.raises(ValueError, match=r"Hyperparameter tuning is not supported by the IPUTrainer\."):
            trainer.train(trial={"learning_rate": 1})
        with pytest.raises(ValueError, match="Hyperparameter search is not supported on IPUs"):
            trainer.hyperparameter_search()

    def test_arguments_of_the_wrong_class(self, tmp_path):
        args = portico.TrainingArguments(str(tmp_path), use_cpu=True)
        with pytest.raises(TypeError, match=r"give `portico.IPUTrainingArguments`"):
            portico.IPUTrainer(classifier(), None, args)

    def test_plain_trainer_with_the_ipu_strategy(self, tmp_path):
        args = portico.TrainingArguments(
            str(tmp_path), accelerator="ipu", strategy="ipu", report_to="none", disable_tqdm=True
        )
        trainer = portico.Trainer(classifier(), args, train_dataset=Sentences())
        with pytest.raises(ValueError, match="`strategy='ipu'` does not work with Trainer; use `IPUTrainer`"):
            trainer.train()


SPREAD = IPUConfig(
    layers_per_ipu=[1, 1],
    gradient_accumulation_steps=4,
    inference_layers_per_ipu=[0, 2],
    inference_matmul_proportion=0.1,
)


LAYER = "model.bert.encoder.layer.0.output.dense.weight"


def batch(rows):
    data = Sentences(rows)
    return {name: torch.stack([data[row][name] for row in range(rows)]) for name in data[0]}


class Bag(torch.nn.Module):
    """A classifier whose modules are no layers by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words = torch.nn.EmbeddingBag(50, 8)
        self.hidden = torch.nn.Linear(8, 8)
        self.scores = torch.nn.Linear(8, 2)

    def forward(self, input_ids, labels=None):
        logits = self.scores(torch.tanh(self.hidden(self.words(input_ids))))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def albert():
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "hidden_size": 16, "embedding_size": 8, "intermediate_size": 32}
    return AlbertForSequenceClassification(AlbertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2))


class TestForcedPipelines:
    """A model that cannot be spread runs on one of the IPUs if it is forced."""

    @pytest.mark.parametrize("make", [Bag, albert])
    def test_run_on_one_ipu(self, tmp_path, make, caplog):
        made = {}
        for num_ipus in (1, 2):
            config = IPUConfig(layers_per_ipu=[1] * num_ipus, gradient_accumulation_steps=4)
            made[num_ipus] = ipu_trainer(tmp_path, config, make(), {"force_to_pipelined": num_ipus == 2})
            made[num_ipus].train()
        assert "`force_to_pipelined=True` leaves the layers of the model on IPU 0" in caplog.text
        assert made[2].training_model.compiled.num_ipus == 1
        assert largest_difference(weights(made[1].model), weights(made[2].model)) == 0
        assert made[1].evaluate()["eval_loss"] == made[2].evaluate()["eval_loss"]

    @pytest.mark.parametrize(("make", "message"), [(Bag, "No layers were found in Bag"), (albert, "2 times with the")])
    def test_must_be_asked_for(self, tmp_path, make, message):
        with pytest.raises(ValueError, match=rf"{message}.*set `force_to_pipelined=True`: it runs on one IPU"):
            ipu_trainer(tmp_path, IPUConfig(layers_per_ipu=[1, 1]), make()).train()

    def test_are_not_needed_where_modules_are_placed(self, tmp_path):
        modules = {"modules": {"hidden": 1, "scores": 2}}
        config = IPUConfig(
            layers_per_ipu=[-1, -1, -1],
            gradient_accumulation_steps=5,
            parallelize_kwargs=modules,
            inference_parallelize_kwargs=modules,
        )
        trainer = ipu_trainer(tmp_path, config, Bag())
        trainer.train()
        assert trainer.training_model.compiled.num_stages == 3
        trainer.evaluate()

    def test_change_nothing_for_other_models(self, tmp_path):
        config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=3)
        trainer = ipu_trainer(tmp_path, config, parts={"force_to_pipelined": True})
        trainer.train()
        assert trainer.training_model.compiled.num_stages == 2


def made_one_after_the_other(output_dir, **changes):
    trainer = ipu_trainer(output_dir, SPREAD, classifier(dropout=0.5), **changes)
    trainer.create_optimizer()
    training = trainer.wrap_model(trainer.model, training=True, sample_batch=batch(8))
    inference = trainer.wrap_model(trainer.model, training=False, sample_batch=batch(2))
    return trainer, training, inference


def test_programs_are_called_with_their_own_placement(tmp_path):
    trainer, training, inference = made_one_after_the_other(tmp_path)
    first, second = (trainer.call_model(trainer.model, batch(8), is_training=True)["loss"] for _ in range(2))
    assert training.compiled.ipu_of_parameter[LAYER] == 0
    losses = [trainer.call_model(trainer.model, batch(2))["loss"] for _ in range(2)]
    assert inference.compiled.ipu_of_parameter[LAYER] == 1
    # Only the training program has dropout.
    assert first != second
    assert losses[0] == losses[1]


def test_training_report_is_printed_once(tmp_path, capsys):
    trainer, training, _ = made_one_after_the_other(tmp_path)
    trainer.compile_model(training, batch(8))
    assert capsys.readouterr().out.count("Placement\n") == 1
    assert trainer.placement_report.stages[0][0] == 0
