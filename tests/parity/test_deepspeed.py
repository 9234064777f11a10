"""Training under DeepSpeed equals transformers' under the same engine, bit for bit, on two processes without a GPU.

``DS_BUILD_OPS=0 pip install 'portico[deepspeed]'`` installs the engine; ``pytest -m slow`` runs these.
"""

from functools import partial

import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file

import portico
from damage import Touch
from forked import run_in_processes
from models import Sequences, tiny_gpt2, tiny_llama, toy_trainer
from portico.checkpoint.manifest import write_manifest

# DeepSpeed calls functions that torch has deprecated.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
OPTIMIZER["params"]["torch_adam"] = True  # compiles nothing
SCHEDULE = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}
OF_ENGINE = {"optimizer": OPTIMIZER, "scheduler": {"type": "WarmupDecayLR", "params": SCHEDULE}}
CASES = {
    "stage 0": (0, {}, {}),
    "stage 1, of the engine": (1, OF_ENGINE, {}),
    "stage 2": (2, {}, {"gradient_accumulation_steps": 2}),
    "stage 2 in bf16": (2, {}, {"bf16": True}),
    "stage 3": (3, {}, {"gradient_accumulation_steps": 2}),
    "stage 3 in bf16, of the engine": (3, OF_ENGINE, {"bf16": True}),
}
ON_HOST = {"offload_optimizer": {"device": "cpu"}}
# DeepSpeed compiles its Adam for this, which takes a minute or more once.
COMPILED = {"states in host memory": (2, {"zero_optimization": {"stage": 2, **ON_HOST}}, {})}
KEPT = ("loss", "grad_norm", "learning_rate", "eval_loss", "epoch", "step")
MORE_OF_PORTICO = {"portico_manifest.json", "portico_position.json"}


@pytest.fixture(autouse=True)
def engine():
    pytest.importorskip("deepspeed", reason="install DeepSpeed with `DS_BUILD_OPS=0 pip install 'portico[deepspeed]'`")


def configuration(stage=2, **sections):
    auto = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
    zero = {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True}
    return {"zero_optimization": zero, **dict.fromkeys(auto, "auto"), **sections}


def trainer_of(library, folder, config, *, model=None, trainer_class=None, **changes):
    settings = {
        "per_device_train_batch_size": 2,
        "max_steps": 6,
        "save_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "warmup_steps": 2,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        **changes,
    }
    args = library.TrainingArguments(str(folder), deepspeed=config, **settings)
    transformers.set_seed(3)
    data, others = Sequences(30), Sequences(7, seed=1)
    return (trainer_class or library.Trainer)(model or tiny_gpt2(), args, train_dataset=data, eval_dataset=others)


def numbers(trainer, folder):
    """Save the model; return what must be equal, once all processes have it."""
    trainer.save_model(folder / "final")
    logits = torch.tensor(trainer.predict(Sequences(5, seed=2)).predictions)
    trainer.accelerator.wait_for_everyone()
    file = folder / "final/model.safetensors"
    weights = load_file(file) if file.exists() else {}
    weights.pop("lm_head.weight", None)  # of a tied pair, transformers writes both
    logs = [{name: value for name, value in log.items() if name in KEPT} for log in trainer.state.log_history]
    return {"logs": logs, "logits": logits, "weights": weights}


def assert_equal(got, expected):
    assert got["logs"] == expected["logs"]
    assert torch.equal(got["logits"], expected["logits"])
    assert got["weights"].keys() == expected["weights"].keys()
    assert all(torch.equal(one, expected["weights"][name]) for name, one in got["weights"].items())


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def under_transformers(folder, cases):
    for name, (stage, sections, changes) in cases.items():
        trainer = trainer_of(transformers, folder / name, configuration(stage, **sections), **changes)
        trainer.train()
        kept = numbers(trainer, folder / name)
        if trainer.is_world_process_zero():
            torch.save(kept, folder / f"{name}.pt")


def under_portico(folder, cases):
    for name, (stage, sections, changes) in cases.items():
        expected = torch.load(folder / f"{name}.pt")
        run = partial(trainer_of, portico, config=configuration(stage, **sections), **changes)
        trainer = run(folder / "portico" / name)
        trainer.train()
        assert type(trainer.model_wrapped).__name__ == "DeepSpeedEngine", name
        assert trainer.accelerator.unwrap_model(trainer.model_wrapped) is trainer.model
        assert_equal(numbers(trainer, folder / "portico" / name), expected)
        of_portico = files_in(folder / "portico" / name / "checkpoint-6")
        assert of_portico - MORE_OF_PORTICO == files_in(folder / name / "checkpoint-6")
        for saver in (folder / name, folder / "portico" / name):
            resumed = run(folder / "resumed")
            resumed.train(resume_from_checkpoint=str(saver / "checkpoint-3"))
            assert_equal(numbers(resumed, folder / "resumed"), expected)


def resumed_by_transformers(folder):
    for name in ("stage 2", "stage 3 in bf16, of the engine"):
        stage, sections, changes = CASES[name]
        trainer = trainer_of(transformers, folder / "theirs", configuration(stage, **sections), **changes)
        trainer.train(resume_from_checkpoint=str(folder / "portico" / name / "checkpoint-3"))
        assert_equal(numbers(trainer, folder / "theirs"), torch.load(folder / f"{name}.pt"))


def test_numbers_and_checkpoints_are_those_of_transformers(tmp_path):
    run_in_processes(2, under_transformers, tmp_path, CASES)
    run_in_processes(2, under_portico, tmp_path, CASES)
    run_in_processes(2, resumed_by_transformers, tmp_path)


def test_states_in_host_memory(tmp_path):
    run_in_processes(2, under_transformers, tmp_path, COMPILED)
    run_in_processes(2, under_portico, tmp_path, COMPILED)


class OwnStep(portico.Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss, scale_wrt_gas=False)
        return loss.detach()


def other_uses(folder):
    # A second training of a trainer ends the first engine, whose hooks would reduce each gradient again.
    again, once = (trainer_of(portico, folder / name, configuration(), model=tiny_llama()) for name in ("a", "b"))
    for trainer in (again, again, once):
        trainer.model.load_state_dict(tiny_llama().state_dict())
        transformers.set_seed(3)
        trainer.train()
    assert_equal(numbers(again, folder / "a"), numbers(once, folder / "b"))

    # A step of the user's own, in which backward runs at once.
    own = trainer_of(portico, folder / "own", configuration(), model=tiny_llama(), trainer_class=OwnStep)
    transformers.set_seed(3)
    own.train()
    assert_equal(numbers(own, folder / "own"), numbers(once, folder / "b"))

    # Evaluations before any training, and the best checkpoint, whose weights are spread and not gathered.
    config = configuration(3)
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    trainer = trainer_of(portico, folder / "best", config, learning_rate=1.0, warmup_steps=0, **best)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    history = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    assert len({before, *history.values()}) == 3
    assert trainer.evaluate()["eval_loss"] == min(history[3], history[6])
    assert not (folder / "best/checkpoint-6/model.safetensors").exists()
    trainer.save_model(str(folder / "states"))
    assert {"config.json", "latest", "zero_to_fp32.py"} <= files_in(folder / "states")

    refusals(folder)


def refusals(folder):
    saved = folder / "best/checkpoint-3"
    for name, text, config in (
        ("a/checkpoint-3", r"holds states of stage 1 or 2 in 2 parts, and the run has stage 3 in 2", configuration(3)),
        ("best/checkpoint-3", r"holds states of stage 3 in 2 parts, and the run has stage 1 or 2", configuration(2)),
        (
            "plain",
            "was not written under `deepspeed`: it has no file 'latest'; leave `deepspeed` out",
            configuration(),
        ),
    ):
        with pytest.raises(portico.InputError, match=text):
            trainer_of(portico, folder / "refused", config).train(resume_from_checkpoint=str(folder / name))
    trainer = trainer_of(portico, folder / "refused", configuration(3))
    for file in saved.glob("global_step3/*rank_*_optim_states.pt") if trainer.is_world_process_zero() else ():
        torch.save({"optimizer_state_dict": Touch(folder / "executed")}, file)
        write_manifest(saved)
    trainer.accelerator.wait_for_everyone()
    with pytest.raises(portico.InputError, match=r"global_step3 cannot be read: .*[wW]eights"):
        trainer.train(resume_from_checkpoint=str(saved))
    assert not (folder / "executed").exists()
    args, callbacks = (
        portico.TrainingArguments(str(folder), deepspeed=configuration(), use_cpu=True),
        [ModelCheckpoint()],
    )
    with pytest.raises(portico.InputError, match="Under `deepspeed` there are no checkpoints of Lightning"):
        portico.Trainer(tiny_gpt2(), args, train_dataset=Sequences(8), lightning_callbacks=callbacks).train()


def test_other_uses_of_the_engine(tmp_path):
    toy_trainer(tmp_path / "one", save_strategy="steps", save_steps=3, max_steps=3).train()
    (tmp_path / "one/checkpoint-3").rename(tmp_path / "plain")
    run_in_processes(2, other_uses, tmp_path)
