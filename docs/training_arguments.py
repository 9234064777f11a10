"""What every field of the training arguments does; writes the page that lists them, next to this file.

A new field of transformers belongs to one of the groups below; a test names those that are missing. Refused values
and fields without effect are in :mod:`portico.validation`, the arguments of transformers 4 in
:mod:`portico.deprecated`.
"""

from pathlib import Path

from portico.deprecated import RENAMED, retired_treatments
from portico.validation import REFUSALS, WITHOUT_EFFECT

PAGE = Path(__file__).with_suffix(".md")

_HONOURED = {
    "names the folder of the run": "output_dir save_on_each_node",
    "counts the steps of the run": "num_train_epochs max_steps gradient_accumulation_steps",
    "sizes the batches": "per_device_train_batch_size per_device_eval_batch_size",
    "starts again with smaller batches where memory runs out": "auto_find_batch_size",
    "chooses the optimizer; the error names the package that one of them lacks": (
        "optim optim_args optim_target_modules learning_rate weight_decay adam_beta1 adam_beta2 adam_epsilon"
    ),
    "chooses the schedule": "lr_scheduler_type lr_scheduler_kwargs warmup_steps",
    "shapes the loss and its gradients": (
        "average_tokens_across_devices max_grad_norm label_smoothing_factor neftune_noise_alpha"
    ),
    "becomes the precision of the Lightning trainer": "bf16 fp16",
    "casts the model for evaluations outside training, and leaves it so": "bf16_full_eval fp16_full_eval",
    "sets torch's matrix products when the arguments are made": "tf32",
    "makes the model compute activations again in backward": (
        "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs"
    ),
    "compiles the model that is trained; evaluations run it uncompiled": (
        "torch_compile torch_compile_backend torch_compile_mode"
    ),
    "patches the model with liger-kernel, whose kernels need a GPU": "use_liger_kernel liger_kernel_config",
    "is written into the model's configuration": "use_cache",
    "empties the cache of the accelerator": "torch_empty_cache_steps",
    "says when and what to log": (
        "logging_strategy logging_steps logging_first_step logging_nan_inf_filter include_num_input_tokens_seen "
        "log_level log_level_replica log_on_each_node disable_tqdm"
    ),
    "goes to the trackers, which are transformers' own callbacks": (
        "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id"
    ),
    "says when and how to evaluate": (
        "eval_strategy eval_steps eval_delay eval_on_start prediction_loss_only eval_do_concat_batches "
        "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics"
    ),
    "says when and what to save": (
        "save_strategy save_steps save_total_limit save_only_model load_best_model_at_end metric_for_best_model "
        "greater_is_better"
    ),
    "saves a checkpoint on SIGTERM, then ends the run": "enable_jit_checkpoint",
    "is for uploads to the hub": (
        "push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision"
    ),
    "says how a resumed run goes on": "ignore_data_skip restore_callback_states_from_checkpoint",
    "fixes the random numbers": "seed data_seed full_determinism",
    "goes to the data loaders": (
        "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order"
    ),
    "says which columns reach the model; those left out are announced": "remove_unused_columns label_names",
    "orders the training data": "train_sampling_strategy length_column_name",
    "places the run": "use_cpu accelerator strategy devices num_nodes precision",
    "is for runs on several processes": (
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout "
        "accelerator_config fsdp fsdp_config deepspeed parallelism_config"
    ),
    "watches for overflow, or measures memory": "debug skip_memory_metrics",
    "is read by scripts, not by a trainer": "do_train do_eval do_predict resume_from_checkpoint",
    "is for trainers that generate": (
        "predict_with_generate generation_max_length generation_num_beams generation_config"
    ),
}

EFFECTS = {name: clause for clause, names in _HONOURED.items() for name in names.split()}


_HEAD = """\
# Training arguments

What every field of `TrainingArguments` and `Seq2SeqTrainingArguments` does here. Meaning and default are those of
`transformers`, unless the field is Lightning's own (`accelerator`, `strategy`, `devices`, `num_nodes`, `precision`).
A field without effect is announced in the log where it is set; a refused value ends with an error before any work.

This page is generated: `python docs/training_arguments.py`.

| Field | Effect | Refused |
| --- | --- | --- |
"""

_OLD_HEAD = """
## Arguments of transformers 4

Each is accepted with one `FutureWarning` that says what to write instead, and will be removed in portico 2.

| Argument | What becomes of it |
| --- | --- |
"""


def page() -> str:
    """Return the page as Markdown: a table of all fields by name, and one of the arguments of transformers 4."""
    effects = EFFECTS | {name: f"none (announced): {why}" for name, why in WITHOUT_EFFECT.items()}
    present = "".join(
        f"| `{name}` | {effect} | {_refused_values(name)} |\n" for name, effect in sorted(effects.items())
    )
    old = {name: f"renamed to `{new}`" for name, new in RENAMED.items()} | retired_treatments()
    return _HEAD + present + _OLD_HEAD + "".join(f"| `{name}` | {fate} |\n" for name, fate in sorted(old.items()))


def _refused_values(name: str) -> str:
    return ": ".join(REFUSALS.get(name, ()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
