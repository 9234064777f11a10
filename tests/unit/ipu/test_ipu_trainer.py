"""IPUTrainer: Hugging Face's trainer, with a program for a model."""

import json
import logging

import numpy as np
import pytest
import torch
import transformers

import poptorch_emulator as poptorch
import portico
from ipu_peers import largest_difference, one_free_ipu, weights
from ipu_trainers import Questions, Sentences, classifier, ipu_arguments, ipu_trainer, reader
from portico.ipu.config import IPUConfig

EIGHT_MICRO_BATCHES = {"inference_replication_factor": 2, "inference_device_iterations": 4}
_PARTS = ("train_dataset", "eval_dataset", "compute_metrics")


EIGHT_MICRO_BATCHES = {"inference_replication_factor": 2, "inference_device_iterations": 4}
_PARTS = ("train_dataset", "eval_dataset", "compute_metrics")


def plain_trainer(output_dir, model, batch_size, **changes):
    """Return transformers' own trainer on global batches, of as many rows as a weight update of the program."""
    parts = {name: changes.pop(name) for name in _PARTS if name in changes}
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        **changes,
    }
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(str(output_dir), **options),
        **{"train_dataset": Sentences(), "eval_dataset": Sentences(10, seed=1), **parts},
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class TestTraining:
    @pytest.mark.parametrize(("replicas", "accumulation"), [(1, 1), (2, 4)])
    def test_is_that_of_plain_torch_on_global_batches(self, tmp_path, replicas, accumulation):
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

    def test_leaves_out_a_last_batch_that_is_not_full(self, tmp_path):
        trainer = ipu_trainer(tmp_path, IPUConfig(gradient_accumulation_steps=5))
        assert trainer.train().global_step == 2 * 3

    def test_fills_it_up_if_told(self, tmp_path):
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
        with one_free_ipu():
            trainer.train()
            assert not trainer.training_model.isAttachedToDevice()
            trainer.evaluate()

    def test_again_goes_on_with_a_new_schedule(self, tmp_path):
        trainer = ipu_trainer(tmp_path)
        trainer.train()
        trainer.train()
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
        assert rates[0] == 1e-3
        assert trainer.optimizer.state_dict()["ipu_param"]["num_updates"] == 64


class TestEvaluation:
    def test_of_523_examples_is_exactly_plain_torchs(self, tmp_path):
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
        # Torch rounds a product of three rows, as plain torch computes it, in another order than one of four.
        assert np.allclose(ours.predictions[520:], theirs.predictions[520:], atol=1e-7)
        assert np.array_equal(ours.label_ids, theirs.label_ids)
        assert trainer.evaluate()["eval_accuracy"] == plain.evaluate()["eval_accuracy"]
        assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], abs=1e-7)
        assert trainer.combined_eval_batch_size == 32

    def test_of_answer_spans_is_plain_torchs(self, tmp_path):
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

    def test_has_a_collator_of_its_own(self, tmp_path):
        def collate(rows):
            batch = transformers.default_data_collator(rows)
            batch["labels"] = torch.zeros_like(batch["labels"])
            return batch

        trainer = ipu_trainer(tmp_path, parts={"eval_data_collator": collate, "compute_metrics": accuracy})
        assert trainer.predict(Sentences()).label_ids.sum() == 0
        assert next(iter(trainer.get_train_dataloader()))["labels"].dtype is torch.int64


class TestResuming:
    def test_equals_never_stopping_bit_for_bit(self, tmp_path):
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

    def test_warns_of_no_batch_size_that_stayed_the_same(self, tmp_path, caplog):
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

    def test_the_best_model_is_put_back(self, tmp_path):
        trainer = ipu_trainer(
            tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, learning_rate=0.5
        )
        trainer.train()
        best = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint)
        assert largest_difference(weights(best), weights(trainer.model)) == 0
        assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


class TestOptimizers:
    def test_default_is_adamw(self, tmp_path):
        trainer = ipu_trainer(tmp_path, weight_decay=0.1, loss_scaling=4.0, max_grad_norm=0.5)
        trainer.create_optimizer()
        assert type(trainer.optimizer) is poptorch.optim.AdamW
        assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
        assert trainer.optimizer.loss_scaling == 4.0
        assert trainer.optimizer.max_grad_norm == 0.5
        assert trainer.optimizer.variable_attrs.isConstant("weight_decay")
        assert not trainer.optimizer.variable_attrs.isConstant("lr")

    @pytest.mark.parametrize(("argument", "corrects"), [("lamb", True), ("lamb_no_bias_correction", False)])
    def test_lamb_has_three_groups(self, tmp_path, argument, corrects):
        trainer = ipu_trainer(tmp_path, weight_decay=0.1, **{argument: True})
        trainer.train()
        groups = trainer.optimizer.param_groups
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]
        assert [group["max_weight_norm"] for group in groups] == [65500.0, 0.0, 65500.0]
        assert trainer.optimizer.bias_correction is corrects

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, lr=1e-3),
            lambda p: torch.optim.AdamW(p, lr=1e-3),
            lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
        ],
    )
    def test_of_torch_are_converted_with_their_state(self, tmp_path, make):
        ours, theirs = classifier(), classifier()
        for model in (ours, theirs):
            optimizer = make(model.parameters())
            model(**transformers.default_data_collator([Sentences(seed=9)[0]])).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if model is ours:
                trainer = ipu_trainer(tmp_path, None, model, {"optimizers": (optimizer, None)}, max_steps=4)
        trainer.train()
        plain = plain_trainer(tmp_path, theirs, 2, max_steps=4)
        plain.optimizer = optimizer
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 1e-4

    def test_others_of_torch_are_refused(self, tmp_path):
        model = classifier()
        with pytest.raises(KeyError, match="Could not find a PopTorch counterpart for optimizer Adagrad"):
            ipu_trainer(tmp_path, None, model, {"optimizers": (torch.optim.Adagrad(model.parameters()), None)})

    def test_a_users_schedule_reaches_the_device(self, tmp_path):
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        trainer = ipu_trainer(tmp_path, None, model, {"optimizers": (optimizer, schedule)}, max_steps=3)
        with poptorch.injected(requires_set_optimizer=True):
            trainer.train()
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)

    def test_clip_to_a_norm(self, tmp_path):
        trainer = ipu_trainer(tmp_path, max_grad_norm=1e-3, max_steps=1)
        plain = plain_trainer(tmp_path, classifier(), 2, max_grad_norm=1e-3, max_steps=1)
        for one in (trainer, plain):
            one.create_optimizer()
        trainer.train()
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 1e-5


class TestLosses:
    def test_are_smoothed_inside_the_program(self, tmp_path):
        trainer = ipu_trainer(tmp_path, label_smoothing_factor=0.3)
        plain = plain_trainer(tmp_path, classifier(), 2, label_smoothing_factor=0.3)
        trainer.train()
        plain.train()
        assert largest_difference(weights(plain.model), weights(trainer.model)) < 2e-4

    def test_of_a_user_are_trained_on(self, tmp_path):
        def zero(outputs, labels, num_items_in_batch=None):
            return (outputs["logits"] ** 2).mean()

        trainer = ipu_trainer(tmp_path, parts={"compute_loss_func": zero}, num_train_epochs=5, learning_rate=1e-2)
        trainer.train()
        assert np.abs(trainer.predict(Sentences()).predictions).mean() < 0.05

    def test_that_are_missing_are_named(self, tmp_path):
        class Unlabelled(Sentences):
            def __getitem__(self, index):
                return {"input_ids": self.tokens[index]}

        with pytest.raises(ValueError, match=r"returned no loss, only logits; it received input_ids. Give it labels"):
            ipu_trainer(tmp_path, parts={"train_dataset": Unlabelled()}).train()


class TestConfiguration:
    def test_is_copied_and_overridden(self, tmp_path):
        config = IPUConfig()
        trainer = ipu_trainer(
            tmp_path, config, gradient_accumulation_steps=4, n_ipu=2, ipu_config_overrides="device_iterations=2"
        )
        assert config == IPUConfig()
        found = trainer.ipu_config
        assert (found.gradient_accumulation_steps, found.replication_factor, found.device_iterations) == (4, 2, 2)
        assert found.inference_replication_factor == 2
        assert found.seed == 3
        assert trainer.opts.replication_factor == 2
        assert trainer.eval_opts.output_mode is poptorch.OutputMode.All

    def test_overrides_win_over_n_ipu(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING):
            trainer = ipu_trainer(
                tmp_path, IPUConfig(replication_factor=4), n_ipu=2, ipu_config_overrides="replication_factor=1"
            )
        assert trainer.ipu_config.replication_factor == 1
        assert "`n_ipu=2` overwrites `replication_factor=4` by 2" in caplog.text

    def test_n_ipu_is_a_multiple_of_a_replica(self, tmp_path):
        with pytest.raises(ValueError, match="`n_ipu=2` is no multiple of `ipus_per_replica=4`"):
            ipu_trainer(tmp_path, IPUConfig(layers_per_ipu=[1, 1, 1, 1]), n_ipu=2)

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

    def test_arguments_of_another_kind(self, tmp_path):
        args = portico.TrainingArguments(str(tmp_path), use_cpu=True)
        with pytest.raises(TypeError, match=r"give `portico.IPUTrainingArguments`"):
            portico.IPUTrainer(classifier(), None, args)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"bf16": True}, r"`bf16=True` is not supported on IPUs; leave it out"),
            ({"fp16": True}, r"`fp16=True` is not supported on IPUs"),
            ({"torch_compile": True}, "the model is compiled for IPUs anyway"),
            ({"ddp_backend": "gloo"}, "set `replication_factor` of the IPUConfig"),
            ({"n_ipu": 3}, "`n_ipu=3` is no size of a partition"),
            ({"dataloader_mode": "fast"}, "`dataloader_mode='fast'` is unknown; use one of sync, async"),
        ],
    )
    def test_arguments_without_meaning(self, tmp_path, changes, match):
        with pytest.raises(ValueError, match=match):
            ipu_arguments(tmp_path, **changes)

    def test_trainers_that_know_no_programs(self, tmp_path):
        args = portico.TrainingArguments(
            str(tmp_path), accelerator="ipu", strategy="ipu", report_to="none", disable_tqdm=True
        )
        trainer = portico.Trainer(classifier(), args, train_dataset=Sentences())
        with pytest.raises(ValueError, match="`strategy='ipu'` came to a Trainer, which does not know programs"):
            trainer.train()


@pytest.mark.parametrize("name", ["IPUTrainingArguments", "IPUSeq2SeqTrainingArguments"])
def test_arguments_are_read_from_a_command_line(tmp_path, name):
    parser = transformers.HfArgumentParser(getattr(portico, name))
    line = ["--output_dir", str(tmp_path), "--n_ipu", "4", "--fp32", "--loss_scaling", "8", "--report_to", "none"]
    (args,) = parser.parse_args_into_dataclasses(line)
    assert (args.n_ipu, args.fp32, args.loss_scaling, args.report_to) == (4, True, 8.0, [])


def test_arguments_have_the_defaults_of_ipus(tmp_path):
    args = portico.IPUTrainingArguments(str(tmp_path))
    assert args.per_device_train_batch_size == args.per_device_eval_batch_size == 1
    assert args.train_batch_size == args.eval_batch_size == 1
    assert args.gradient_accumulation_steps == 1
    assert args.report_to == []
    assert args.logging_nan_inf_filter is False
    assert args.ipu_config_overrides is None
    assert args.device.type == "cpu"
    args = portico.IPUTrainingArguments(
        str(tmp_path),
        eval_strategy="steps",
        gradient_checkpointing=True,
        auto_loss_scaling=True,
        gradient_accumulation_steps=3,
        ipu_config_overrides="device_iterations=2",
    )
    assert args.eval_strategy == "steps"
    assert args.ipu_config_overrides == (
        "device_iterations=2,gradient_accumulation_steps=3,recompute_checkpoint_every_layer=True,auto_loss_scaling=True"
    )


class TestLoaders:
    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("mode", ["async", "async_rebatched"])
    def test_ahead_of_calls_give_the_same_batches(self, tmp_path, mode, workers):
        config = IPUConfig(gradient_accumulation_steps=3)
        plain = ipu_trainer(tmp_path, config)
        ahead = ipu_trainer(tmp_path, config, dataloader_mode=mode, dataloader_num_workers=workers)
        expected = [batch["input_ids"].tolist() for batch in plain.get_train_dataloader()]
        loader = ahead.get_train_dataloader()
        assert [batch["input_ids"].tolist() for batch in loader] == expected
        assert len(loader) == len(expected) == 5
        ahead.train()

    def test_give_an_order_that_nothing_else_changes(self, tmp_path):
        orders = []
        for draws in (0, 5):
            trainer = ipu_trainer(tmp_path)
            torch.rand(draws)
            orders.append([batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()])
        assert orders[0] == orders[1]

    def test_leave_columns_out_that_the_model_does_not_take(self, tmp_path):
        class WithNames(Sentences):
            def __getitem__(self, index):
                return {**super().__getitem__(index), "name": "a text"}

        def collate(rows):
            assert all("name" not in row for row in rows)
            return transformers.default_data_collator(rows)

        trainer = ipu_trainer(
            tmp_path, parts={"train_dataset": WithNames(), "eval_dataset": WithNames(), "data_collator": collate}
        )
        trainer.train()
        trainer.evaluate()
