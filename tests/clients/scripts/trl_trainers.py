"""Trainers of trl, one each time: `trl_trainers.py FOLDER KIND`.

A kind that starts with `split` splits sequences if there are several processes, and resumes what is in the folder.
"""

import os
import sys
from pathlib import Path

from client_models import gpt2, llama, reward_model, saved, tokenizer, words
from datasets import Dataset
from peft import LoraConfig
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
RAGGED = {"text": words(12, seed=1) + words(12, seed=2, length=3)}
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
    if kind.startswith("split"):
        processes = int(os.environ.get("WORLD_SIZE", 1))
        changes = {
            "gradient_accumulation_steps": 2,
            "parallelism_config": {"sp_size": processes} if processes > 1 else None,
        }
        if kind == "split_dpo":
            return DPOTrainer, DPOConfig, changes, PREFERENCES, {"model": saved(llama())}
        if kind == "split_kto":
            return KTOTrainer, KTOConfig, changes, JUDGED, {"model": llama(), "ref_model": llama()}
        changes |= {"eval_strategy": "steps", "eval_steps": 3, "max_length": 16, "packing": kind == "split_packed"}
        adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        more = {"peft_config": adapter, "eval_dataset": Dataset.from_dict({"text": words(8, seed=2)})}
        return SFTTrainer, SFTConfig, changes, RAGGED, {"model": llama(), **more}
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
is_resumed = Path(sys.argv[1]).is_dir()
args = config_class(output_dir=sys.argv[1], **{**ARGUMENTS, **changes})
trainer_class(args=args, train_dataset=Dataset.from_dict(data), processing_class=tokenizer(), **more).train(
    resume_from_checkpoint=is_resumed
)
