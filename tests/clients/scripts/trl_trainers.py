"""Trainers of trl, one each time: `trl_trainers.py FOLDER KIND`."""

import sys

from client_models import gpt2, reward_model, saved, tokenizer, words
from datasets import Dataset
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

ARGUMENTS = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "save_steps": 3,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "learning_rate": 1e-3,
}
ONLINE = {"num_generations": 4, "max_completion_length": 8}
TEXTS = {"text": words(24, seed=1)}
PREFERENCES = {name: words(24, seed=number) for number, name in enumerate(("prompt", "chosen", "rejected"))}
JUDGED = {"prompt": words(24, seed=1), "completion": words(24, seed=2), "label": [True, False] * 12}


def variety(completions, **_):
    return [float(len(set(text.split()))) for text in completions]


def scenario(kind):
    """Return the trainer, its configuration with changes of it, the data, and what else the trainer takes."""
    if kind == "sft":
        evaluation = {"eval_strategy": "steps", "eval_steps": 3, "max_length": 16}
        more = {"model": gpt2(), "eval_dataset": Dataset.from_dict({"text": words(8, seed=2)})}
        return SFTTrainer, SFTConfig, evaluation, TEXTS, more
    if kind == "dpo":
        return DPOTrainer, DPOConfig, {}, PREFERENCES, {"model": saved(gpt2())}
    if kind == "cpo":
        return CPOTrainer, CPOConfig, {"max_length": 32}, PREFERENCES, {"model": gpt2()}
    if kind == "orpo":
        return ORPOTrainer, ORPOConfig, {"max_length": 32}, PREFERENCES, {"model": gpt2()}
    if kind == "kto":
        return KTOTrainer, KTOConfig, {}, JUDGED, {"model": gpt2(), "ref_model": gpt2()}
    if kind == "reward":
        pairs = {name: PREFERENCES[name] for name in ("chosen", "rejected")}
        return RewardTrainer, RewardConfig, {}, pairs, {"model": reward_model()}
    trainer, config = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}[kind]
    return trainer, config, ONLINE, {"prompt": words(24, seed=1)}, {"model": saved(gpt2()), "reward_funcs": variety}


trainer_class, config_class, changes, data, more = scenario(sys.argv[2])
args = config_class(output_dir=sys.argv[1], **{**ARGUMENTS, **changes})
trainer_class(args=args, train_dataset=Dataset.from_dict(data), processing_class=tokenizer(), **more).train()
