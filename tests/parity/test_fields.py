"""The same training with arguments that change precision, batching or the end of a run."""

import os
import signal
import time

import pytest
import torch
import transformers
from torch import nn
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

import portico
from models import ToyDataset, tiny_bert, tiny_gpt2
from parity.peers import assert_identical, assert_same_values, compare, run
from portico.checkpoint.manifest import MANIFEST_FILE

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}


class Ragged(ToyDataset):
    """Token sequences of several lengths, which are also the labels."""

    def __getitem__(self, index):
        tokens = self.tokens[index][: 2 + index % 5]
        return {"input_ids": tokens, "labels": tokens}


def padded(examples):
    columns = {name: [example[name] for example in examples] for name in examples[0]}
    pad = nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(columns["input_ids"], batch_first=True),
        "labels": pad(columns["labels"], batch_first=True, padding_value=-100),
    }


LANGUAGE = {
    "make_model": tiny_gpt2,
    "train_dataset": Ragged,
    "eval_dataset": Ragged,
    "trainer_options": {"data_collator": padded},
}


def matrix_loss(outputs, labels, num_items_in_batch=None):
    """A loss whose matrix product shows whether it is computed in half precision."""
    weights = torch.linspace(-1, 1, 9).view(3, 3)
    return nn.functional.cross_entropy(outputs.logits @ weights, labels, reduction="sum") / num_items_in_batch


def test_same_numbers_in_bfloat16_with_compute_loss_func(tmp_path):
    compare(tmp_path, bf16=True, max_steps=4, trainer_options={"compute_loss_func": matrix_loss}, **EVALUATED)


def shared_layers():
    model = tiny_bert()
    model.bert.encoder.layer[1] = model.bert.encoder.layer[0]
    return model


def test_same_numbers_in_bfloat16_with_reused_weights(tmp_path):
    compare(tmp_path, bf16=True, max_steps=4, make_model=shared_layers)


def test_model_does_not_autocast_after_training(tmp_path):
    trainer = run(portico, tmp_path, bf16=True, max_steps=1).trainer
    assert "forward" not in trainer.model.__dict__


@pytest.mark.parametrize("field", ["bf16_full_eval", "fp16_full_eval"])
def test_same_numbers_of_half_precision_evaluation(field, tmp_path):
    def after(trainer):
        metrics = trainer.evaluate()
        predictions = trainer.predict(ToyDataset(10, seed=5)).predictions
        dtype = str(next(trainer.model.parameters()).dtype)
        return {"loss": metrics["eval_loss"], "predictions": predictions, "dtype": dtype}

    ours, _ = compare(tmp_path, max_steps=3, after=after, **{field: True}, **EVALUATED)
    assert ours.extra["dtype"] == ("torch.bfloat16" if field.startswith("bf16") else "torch.float16")


def test_same_training_after_half_precision_evaluation(tmp_path):
    def base(trainer_class):
        class EvaluatesFirst(trainer_class):
            def train(self, *args, **kwargs):
                self.evaluate()
                return super().train(*args, **kwargs)

        return EvaluatesFirst

    ours, _ = compare(tmp_path, base=base, bf16_full_eval=True, max_steps=3)
    assert {tensor.dtype for name, tensor in ours.weights.items() if tensor.is_floating_point()} == {torch.bfloat16}


def out_of_memory_beyond(num_examples):
    def base(trainer_class):
        class Small(trainer_class):
            def compute_loss(self, model, inputs, *args, **kwargs):
                if model.training and len(inputs["labels"]) > num_examples and self.state.global_step == 1:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return super().compute_loss(model, inputs, *args, **kwargs)

        return Small

    return base


SHRINKING = {"auto_find_batch_size": True, "max_steps": 6, "per_device_train_batch_size": 4, **EVALUATED}


def test_same_numbers_with_auto_find_batch_size(tmp_path):
    ours, _ = compare(tmp_path, base=out_of_memory_beyond(2), **SHRINKING)
    assert ours.trainer.state.train_batch_size == ours.trainer._train_batch_size == 2
    assert [event[0] for event in ours.events].count("on_train_begin") == 3


def test_resumed_run_keeps_reduced_batch_size(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 3}
    theirs = run(transformers, tmp_path / "run", base=out_of_memory_beyond(2), **saving, **SHRINKING)
    resume = str(tmp_path / "run" / "checkpoint-3")
    resumed = [run(library, tmp_path / "run", resume=resume, **SHRINKING) for library in (transformers, portico)]
    assert_identical(*reversed(resumed))
    assert resumed[1].trainer._train_batch_size == 2
    assert all(torch.equal(tensor, theirs.weights[name]) for name, tensor in resumed[1].weights.items())


def test_out_of_memory_at_smallest_batch_size(tmp_path):
    with pytest.raises(RuntimeError, match=r"reached zero\. Even one example does not fit"):
        run(portico, tmp_path, base=out_of_memory_beyond(-1), **SHRINKING)


def test_out_of_memory_in_evaluation_keeps_batch_size(tmp_path):
    def base(trainer_class):
        class Big(trainer_class):
            def prediction_step(self, *args, **kwargs):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        return Big

    with pytest.raises(RuntimeError, match=r"reduce `per_device_eval_batch_size` instead\. It is 4;"):
        run(portico, tmp_path, base=base, **SHRINKING)


@pytest.mark.parametrize("options", [{"torch_compile_backend": "eager"}, {"torch_compile_backend": "aot_eager"}])
def test_same_numbers_of_compiled_model(options, tmp_path):
    def after(trainer):
        trainer.save_model()
        return {"compiled": trainer.model_wrapped is not trainer.model}

    ours, _ = compare(tmp_path, max_steps=3, after=after, make_model=without_dropout, **options, **EVALUATED)
    assert ours.extra["compiled"]
    assert not any(name.startswith("_orig_mod") for name in ours.weights)
    saved = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "same").state_dict()
    assert all(torch.equal(tensor, ours.weights[name]) for name, tensor in saved.items())


def without_dropout():
    model = tiny_bert()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_model_is_compiled_once(tmp_path):
    def after(trainer):
        before = trainer.model_wrapped
        trainer.train()
        return {"again": trainer.model_wrapped is before}

    ours = run(portico, tmp_path, max_steps=1, torch_compile_backend="eager", after=after)
    assert ours.extra["again"]


def terminated(at_step):
    def base(trainer_class):
        class Terminated(trainer_class):
            def compute_loss(self, model, inputs, *args, **kwargs):
                if model.training and self.state.global_step == at_step:
                    callbacks = self.callback_handler.callbacks
                    manager = next(one for one in callbacks if isinstance(one, JITCheckpointCallback)).jit_manager
                    manager.kill_wait = 0
                    os.kill(os.getpid(), signal.SIGTERM)
                    while not manager.is_checkpoint_requested:
                        time.sleep(0.01)
                return super().compute_loss(model, inputs, *args, **kwargs)

        return Terminated

    return base


def test_same_checkpoint_on_sigterm(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    ours, _ = compare(tmp_path, base=terminated(3), enable_jit_checkpoint=True)
    assert ours.train_output.global_step == 4
    assert signal.getsignal(signal.SIGTERM) is before
    files = [{path.name for path in (tmp_path / name / "checkpoint-3").iterdir()} for name in ("same", "theirs")]
    assert files[0] - {MANIFEST_FILE} == files[1]
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same_values(*(torch.load(tmp_path / run / "checkpoint-3" / name) for run in ("same", "theirs")))


@pytest.mark.parametrize("arguments", [{}, {"dataloader_drop_last": True}, {"gradient_accumulation_steps": 2}])
def test_same_numbers_with_batch_rebalancing(arguments, tmp_path):
    compare(tmp_path, train_sampling_strategy="batch_rebalance", **LANGUAGE, **arguments)


def test_same_numbers_after_resume_with_batch_rebalancing(tmp_path):
    options = {"train_sampling_strategy": "batch_rebalance", "save_strategy": "steps", "save_steps": 3, **LANGUAGE}
    run(transformers, tmp_path / "run", **options)
    resume = str(tmp_path / "run" / "checkpoint-3")
    resumed = [run(library, tmp_path / "run", resume=resume, **options) for library in (transformers, portico)]
    assert_identical(*reversed(resumed))


def test_same_numbers_with_gathered_objects(tmp_path):
    def after(trainer):
        return {"predictions": trainer.predict(ToyDataset(10, seed=5)).predictions}

    compare(tmp_path, eval_use_gather_object=True, max_steps=3, after=after, **EVALUATED)
