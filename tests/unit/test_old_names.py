"""What scripts for transformers 4 call on a trainer."""

from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch

import portico
from unit.toy import Line, Points, toy_arguments, toy_trainer


class Tokenizer:
    model_input_names = ("x",)


def test_a_tokenizer_is_a_processing_class(tmp_path):
    tokenizer = Tokenizer()
    with pytest.warns(
        FutureWarning, match="`tokenizer` is deprecated and will be removed in portico 2; use `processing_class`"
    ) as caught:
        trainer = toy_trainer(tmp_path, parts={"tokenizer": tokenizer})
    assert len(caught) == 1
    assert trainer.processing_class is tokenizer
    with pytest.warns(
        FutureWarning,
        match=r"`Trainer\.tokenizer` is deprecated and will be removed in portico 2; use `Trainer\.processing_class`",
    ):
        assert trainer.tokenizer is tokenizer
    with pytest.warns(FutureWarning, match=r"Trainer\.tokenizer"):
        trainer.tokenizer = None
    assert trainer.processing_class is None


def test_a_tokenizer_beside_another_processing_class_is_refused(tmp_path):
    parts = {"tokenizer": Tokenizer(), "processing_class": Tokenizer()}
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match="two spellings of one argument, and different objects"),
    ):
        toy_trainer(tmp_path, parts=parts)


def test_the_same_tokenizer_twice_is_taken(tmp_path):
    tokenizer = Tokenizer()
    with pytest.warns(FutureWarning):
        assert toy_trainer(tmp_path, parts={"tokenizer": tokenizer, "processing_class": tokenizer})


def test_the_older_loop_is_the_present_one(tmp_path):
    trainer = toy_trainer(tmp_path)
    loader = trainer.get_eval_dataloader()
    with pytest.warns(FutureWarning, match=r"use `Trainer\.evaluation_loop`"):
        older = trainer.prediction_loop(loader, "Evaluation")
    assert older.metrics == trainer.evaluation_loop(loader, "Evaluation").metrics


def test_a_repository_is_made_under_the_older_name(tmp_path, monkeypatch):
    made = []

    def create_repo(hub, name, **options):
        made.append(name)
        return SimpleNamespace(repo_id=name)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    with pytest.warns(FutureWarning, match="init_hf_repo"):
        toy_trainer(tmp_path / "toy").init_git_repo(at_init=True)
    assert made == ["toy"]


def test_tensors_of_all_processes_are_gathered(tmp_path):
    trainer, tensor = toy_trainer(tmp_path), torch.ones(2, 3)
    assert trainer._nested_gather(None) is None
    assert torch.equal(trainer._nested_gather(tensor), tensor)
    assert torch.equal(trainer._pad_across_processes(tensor), tensor)
    assert trainer._gather_and_numpify(None, "logits") is None
    assert isinstance(trainer._gather_and_numpify(tensor, "logits"), np.ndarray)


def test_checkpoints_are_listed_and_rotated(tmp_path):
    class Keeping(portico.Trainer):
        def _rotate_checkpoints(self, use_mtime=False, output_dir=None):
            self.rotated = output_dir

    saving = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    trainer = toy_trainer(tmp_path, Keeping, **saving)
    trainer.train()
    names = [path.rpartition("-")[2] for path in trainer._sorted_checkpoints()]
    assert names == ["4", "8", "10"]
    assert trainer.rotated == str(tmp_path)
    toy_trainer(tmp_path, **saving)._rotate_checkpoints()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1


def test_a_step_written_for_apex_and_scalers_runs(tmp_path):
    class Older(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            if self.do_grad_scaling:
                self.scaler.scale(loss).backward()
            elif self.use_apex or self.use_cuda_amp or self.use_cpu_amp or self.sharded_ddp:
                raise AssertionError
            else:
                self.accelerator.backward(loss)
            return loss.detach()

    plain = toy_trainer(tmp_path)
    assert toy_trainer(tmp_path, Older).train().training_loss == plain.train().training_loss


def metrics(prediction):
    return {}


@pytest.mark.parametrize(
    ("after", "match"),
    [
        ([metrics], "`compute_loss_func` cannot be called with"),
        ([None, []], "`compute_metrics` is a list, as `callbacks` are"),
    ],
)
def test_the_order_of_older_arguments_is_found_out(after, match, tmp_path):
    args = toy_arguments(tmp_path)
    with pytest.raises(portico.InputError, match=match) as caught:
        portico.Trainer(Line(), args, None, Points(), Points(4), None, None, *after)
    assert isinstance(caught.value, TypeError)
    assert "by keyword" in str(caught.value)


def test_a_loss_function_without_a_signature_passes(tmp_path):
    assert toy_trainer(tmp_path, parts={"compute_loss_func": lambda outputs, labels, **options: outputs["loss"]})
