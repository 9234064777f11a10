import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

import portico
from fresh_process import environment
from models import Line, Points, toy_arguments
from portico.callbacks import find_spike, is_spike


class Jumping(Line):
    """Its loss is multiplied by a thousand in the forward pass of one number."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        self.calls += 1
        return {**outputs, "loss": outputs["loss"] * (1000 if self.calls == self.at else 1)}


class Rooting(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] + (0 * outputs["loss"]).sqrt()}


def trained(tmp_path, action, **options):
    watch = portico.LossSpike(action)
    args = toy_arguments(tmp_path, learning_rate=0.01, lr_scheduler_type="constant", **options)
    trainer = portico.Trainer(Jumping(at=7), args, train_dataset=Points(), callbacks=[watch])
    trainer.train()
    return trainer, watch


def test_find_spike():
    rows = [{"loss": loss, "step": number} for number, loss in enumerate([1.0, 1.1, 0.9, 4.0, 1.0, 2.0], 1)]
    assert find_spike(rows) == (4, 4.0)
    assert find_spike([*rows, {"loss": 0.0, "grad_norm": math.nan, "step": 7}])[0] == 7
    assert find_spike([{"loss": 3.0 - number, "step": number} for number in range(3)]) is None
    assert find_spike([{"eval_loss": 1.0, "step": 1}]) is None
    assert is_spike(math.nan, [], 3)
    assert not is_spike(3.0, [1.0], 3)


def test_report_and_stop(tmp_path, caplog):
    trainer, watch = trained(tmp_path, "report")
    assert [step for step, _ in watch.spikes] == [7]
    assert trainer.state.global_step == 10
    trainer, watch = trained(tmp_path, "stop")
    assert trainer.state.global_step == 7


def test_rollback_restores_weights_and_optimizer(tmp_path):
    trainer, watch = trained(tmp_path, "rollback", save_strategy="steps", save_steps=5)
    assert [step for step, _ in watch.spikes] == [7]
    # Without the two batches between the checkpoint and the spike, the run ends like one that never had them.
    before = torch.load(tmp_path / "checkpoint-5" / "optimizer.pt")["state"][0]["step"]
    assert trainer.optimizer.state_dict()["state"][0]["step"] == before + 3
    assert trainer.state.log_history[-2]["loss"] < 50


def test_a_run_that_was_rolled_back_is_resumable(tmp_path):
    trainer, watch = trained(tmp_path, "rollback", save_strategy="steps", save_steps=2)
    again = portico.LossSpike("rollback")
    args = toy_arguments(tmp_path, learning_rate=0.01, lr_scheduler_type="constant")
    resumed = portico.Trainer(Line(), args, train_dataset=Points(), callbacks=[again])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.spikes == watch.spikes
    assert again._before == watch._before
    assert torch.equal(resumed.model.linear.weight, trainer.model.linear.weight)
    assert [row.get("loss") for row in resumed.state.log_history][:-1] == [
        row.get("loss") for row in trainer.state.log_history
    ][:-1]


def test_rollback_passes_over_a_checkpoint_after_the_spike(tmp_path, caplog):
    # The spike of step 7 is logged with step 9; the checkpoint of step 8 already has its weights.
    trained(tmp_path, "rollback", save_strategy="steps", save_steps=2, logging_steps=3)
    assert "/checkpoint-6.\n" in caplog.text


def test_a_step_that_a_gradient_scaler_skips_is_no_spike(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
    watch = portico.LossSpike("rollback")
    options = {"learning_rate": 0.01, "lr_scheduler_type": "constant"}
    args = toy_arguments(tmp_path, save_strategy="steps", save_steps=2, **options)
    trainer = portico.Trainer(
        Jumping(at=9),
        args,
        train_dataset=Points(),
        callbacks=[watch],
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    skipped = [row["step"] for row in rows if not math.isfinite(row["grad_norm"])]
    assert 1 in skipped
    assert 8 not in skipped
    assert [step for step, _ in watch.spikes] == [9]
    # The scaler is not rolled back: it halves its scale at each step that it skips.
    assert scaler.get_scale() == 2.0 ** (18 - len(skipped))
    again = portico.LossSpike("rollback")
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]
    resumed = portico.Trainer(Line(), args, train_dataset=Points(), callbacks=[again], plugins=plugins)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert again.spikes == watch.spikes
    assert plugins[0].scaler.get_scale() == scaler.get_scale()


def test_a_gradient_norm_that_is_not_finite_is_a_spike(tmp_path):
    watch = portico.LossSpike("stop")
    # Finite losses, and weights that are not: the square root has no gradient at 0.
    args = toy_arguments(tmp_path, logging_nan_inf_filter=False)
    trainer = portico.Trainer(Rooting(), args, train_dataset=Points(), callbacks=[watch])
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["loss"])
    assert [step for step, _ in watch.spikes] == [1]


TWO_PROCESSES = """
import portico, torch
from models import Points, toy_arguments
from test_callbacks import Jumping

watch = portico.LossSpike("rollback")
args = toy_arguments("out", learning_rate=0.01, devices=2, strategy="ddp", save_strategy="steps", save_steps=2)
trainer = portico.Trainer(Jumping(at=7), args, train_dataset=Points(20), callbacks=[watch])
trainer.train()
# Lines of two processes can mix in a common output.
ended = {"steps": [step for step, _ in watch.spikes], "weights": trainer.model.linear.weight.flatten().tolist()}
torch.save(ended, f"ended-{trainer.args.process_index}")
"""


@pytest.mark.slow
def test_rollback_in_two_processes(tmp_path):
    (tmp_path / "script.py").write_text(TWO_PROCESSES)
    here = os.pathsep.join([str(Path(__file__).parent), environment()["PYTHONPATH"]])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=here),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"ended-{rank}") for rank in range(2))
    assert first["steps"] == [7]
    assert first == second
    assert "Weights and optimizer are restored from out/checkpoint-6" in ended.stderr
    # The first process says it, torch and portico one line each.
    assert ended.stderr.count("did not find any unused parameters") == 1
    assert ended.stderr.count("set `ddp_find_unused_parameters=False`") == 1


def test_rollback_without_a_checkpoint_ends_the_training(tmp_path):
    trainer, _ = trained(tmp_path, "rollback")
    assert trainer.state.global_step == 7


def test_unknown_action():
    with pytest.raises(portico.InputError, match="`action='undo'` is unknown; set it to one of 'report', 'stop'"):
        portico.LossSpike("undo")
