"""The same training under both libraries: losses, rates, norms, events, history and weights are equal with ``==``."""

import pytest
import torch

import portico
from parity.peers import compare, run
from parity.scenarios import SCENARIOS, SHRINKING, out_of_memory_beyond

CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * scenario.is_slow, id=name) for name, scenario in SCENARIOS.items()
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Using EarlyStoppingCallback without load_best_model_at_end")
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_same_numbers(name, tmp_path):
    scenario = SCENARIOS[name]
    # A check may look at the files of both runs, so both have to run here.
    cached = name if scenario.check is None else None
    ours, theirs = compare(tmp_path, scenario=cached, **scenario.options)
    if scenario.check is not None:
        scenario.check(ours, theirs, tmp_path)


# ---- portico alone ----


def test_model_does_not_autocast_after_training(tmp_path):
    trainer = run(portico, tmp_path, bf16=True, max_steps=1).trainer
    assert "forward" not in trainer.model.__dict__


def test_model_is_compiled_once(tmp_path):
    def after(trainer):
        before = trainer.model_wrapped
        trainer.train()
        return {"again": trainer.model_wrapped is before}

    ours = run(portico, tmp_path, max_steps=1, torch_compile_backend="eager", after=after)
    assert ours.extra["again"]


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
