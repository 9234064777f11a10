"""The effect of every field of the training arguments; running it writes the page next to this file.

A test fails if a field of transformers is missing below. Refused values and fields without effect are in
:mod:`portico.validation`, the arguments of transformers 4 in :mod:`portico.deprecated`.
"""

from pathlib import Path

from portico.deprecated import RENAMED, retired_treatments
from portico.validation import REFUSALS, WITHOUT_EFFECT

PAGE = Path(__file__).with_suffix(".md")

EFFECTS = {
    # Length of the run and size of its batches
    "output_dir": "folder of the run: checkpoints, model, state",
    "num_train_epochs": "length of the run in epochs; may be fractional",
    "max_steps": "length of the run in optimizer steps; overrides `num_train_epochs`",
    "gradient_accumulation_steps": "batches per optimizer step; the last step of an epoch may have fewer",
    "per_device_train_batch_size": "examples per training batch and process",
    "per_device_eval_batch_size": "examples per evaluation batch and process",
    "auto_find_batch_size": "restart with training batches a tenth smaller when memory runs out",
    # Optimizer and schedule
    "optim": "name of the optimizer; if its package is missing, the error names it",
    "optim_args": "options of the optimizer, as in `momentum=0.9,nesterov=True`",
    "optim_target_modules": "modules that GaLore, APOLLO and the like train in low rank",
    "learning_rate": "peak learning rate",
    "weight_decay": "weight decay, of all parameters except biases and normalization layers",
    "adam_beta1": "Adam's decay rate of the first moment",
    "adam_beta2": "Adam's decay rate of the second moment",
    "adam_epsilon": "Adam's epsilon",
    "lr_scheduler_type": "name of the learning rate schedule",
    "lr_scheduler_kwargs": "options of the schedule",
    "warmup_steps": "steps of linear warmup; below 1: a fraction of all steps",
    # Loss and gradients
    "average_tokens_across_devices": "divide a token loss by the labels of all processes instead of one process",
    "corrections": "names of [deviations of transformers](corrections.md) to correct, or `all`; default: none",
    "async_save": "write checkpoints while training goes on, from a copy of the state in host memory",
    "stop_on_nan": "end training with an error at a loss that is NaN or infinite",
    "max_grad_norm": "clip the total gradient norm to this value; 0: no clipping",
    "label_smoothing_factor": "smooth the labels; the loss is computed from the logits by the trainer",
    "neftune_noise_alpha": "add NEFTune noise of this size to the input embeddings during training",
    # Precision
    "bf16": 'mixed precision: `precision="bf16-mixed"`',
    "fp16": 'mixed precision with loss scaling: `precision="16-mixed"`; not on the CPU',
    "bf16_full_eval": "cast the model to bfloat16 for evaluations outside training; it stays in bfloat16",
    "fp16_full_eval": "cast the model to float16 for evaluations outside training; it stays in float16",
    "tf32": "allow or forbid TF32 in matrix products, from the moment the arguments are created",
    # Memory, kernels and compilation
    "activation_checkpointing": "recompute activations in the backward pass instead of storing them",
    "activation_checkpointing_kwargs": (
        "`every_n_layers`, `offload`, and options of `torch.utils.checkpoint.checkpoint`"
    ),
    "gradient_checkpointing": "older name of `activation_checkpointing`",
    "gradient_checkpointing_kwargs": "older name of `activation_checkpointing_kwargs`",
    "torch_compile": "train a model compiled by `torch.compile`; evaluations run the uncompiled one",
    "torch_compile_backend": "backend of `torch.compile`; setting it implies `torch_compile`",
    "torch_compile_mode": "mode of `torch.compile`; setting it implies `torch_compile`",
    "use_liger_kernel": "replace layers of the model by Liger kernels; needs liger-kernel and a GPU",
    "liger_kernel_config": "kernels to apply, by name",
    "use_cache": "written to `model.config.use_cache`",
    "torch_empty_cache_steps": "empty the accelerator's memory cache every this many steps",
    # Logging
    "logging_strategy": "log every `logging_steps`, at the end of each epoch, or never",
    "logging_steps": "steps between two logs; below 1: a fraction of all steps",
    "logging_first_step": "also log the first step",
    "logging_nan_inf_filter": "leave NaN and infinite losses out of logged losses and of evaluation losses",
    "include_num_input_tokens_seen": "count and log input tokens: `all`, `non_padding` or `no`",
    "log_level": "log level of the first process; `passive` changes nothing",
    "log_level_replica": "log level of the other processes",
    "log_on_each_node": "apply `log_level` to the first process of every machine, not only of the first machine",
    "disable_tqdm": "print logs as lines instead of showing a progress bar",
    "report_to": "experiment trackers; see [trackers](trackers.md)",
    "run_name": "name of the run in the trackers",
    "project": "project in Trackio",
    "trackio_space_id": "Space that shows the run in Trackio",
    "trackio_bucket_id": "bucket in which Trackio stores the run",
    "trackio_static_space_id": "static Space that Trackio creates after training",
    # Evaluation
    "eval_strategy": "evaluate every `eval_steps`, at the end of each epoch, or never",
    "eval_steps": "steps between two evaluations; default: `logging_steps`; below 1: a fraction of all steps",
    "eval_delay": "epochs, or steps with `eval_strategy='steps'`, before the first evaluation",
    "eval_on_start": "evaluate before the first step",
    "prediction_loss_only": "compute only the loss in evaluations, no predictions or metrics",
    "eval_do_concat_batches": "`False`: predictions and labels are lists with one entry per batch",
    "eval_use_gather_object": (
        "gather outputs as Python objects; as in transformers 5.23, in the first evaluation of a trainer only"
    ),
    "eval_accumulation_steps": "move outputs to the CPU every this many batches; default: at the end",
    "include_for_metrics": "also pass `inputs` or `loss` to `compute_metrics`",
    "batch_eval_metrics": "call `compute_metrics` for every batch, with `compute_result=True` for the last",
    # Checkpoints
    "save_strategy": "save every `save_steps`, at the end of each epoch, at each new best metric, or never",
    "save_steps": "steps between two checkpoints; below 1: a fraction of all steps",
    "save_total_limit": "number of checkpoints kept; the best one is never deleted",
    "save_only_model": "leave optimizer, schedule and random states out of checkpoints",
    "save_on_each_node": "write files on every machine, not only on the first",
    "enable_jit_checkpoint": "on SIGTERM, save a checkpoint and end the run",
    "load_best_model_at_end": "load the best checkpoint after training",
    "metric_for_best_model": "metric that decides which checkpoint is best",
    "greater_is_better": "direction of that metric; default: lower is better for names that end in `loss`",
    "ignore_data_skip": "a resumed run starts at the beginning of the data instead of skipping what was seen",
    "restore_callback_states_from_checkpoint": "a resumed run restores the callbacks saved in the checkpoint",
    # Hub
    "push_to_hub": "upload the model whenever it is saved",
    "hub_model_id": "repository; default: the name of `output_dir` in the user's namespace",
    "hub_strategy": "upload at the end, at every save, with the last checkpoint, or with all checkpoints",
    "hub_token": "access token; default: that of `hf auth login`",
    "hub_private_repo": "create the repository as private",
    "hub_always_push": "start an upload even while the previous one is running",
    "hub_revision": "branch to upload to",
    # Random numbers
    "seed": "seed of Python, NumPy and torch",
    "data_seed": "seed of the order of the training data; default: follows `seed`",
    "full_determinism": "deterministic algorithms only; slower",
    # Data
    "dataloader_drop_last": "drop the last batch if it is incomplete",
    "dataloader_num_workers": "worker processes per data loader; 0: load in the main process",
    "dataloader_pin_memory": "load batches into pinned memory; no effect on the CPU",
    "dataloader_persistent_workers": "keep the workers alive between epochs",
    "dataloader_prefetch_factor": "batches that each worker loads ahead",
    "dataloader_multiprocessing_context": "start method of the workers: `fork`, `spawn` or `forkserver`",
    "dataloader_in_order": "`False`: return batches as soon as a worker has one, in any order",
    "remove_unused_columns": "remove columns that the model's `forward` does not take, and log which",
    "label_names": "keys of a batch that are labels; default: those of the model's `forward`",
    "train_sampling_strategy": (
        "order of the training data: `random`, `sequential`, `group_by_length` (evaluations too) or `batch_rebalance`"
    ),
    "length_column_name": "column with the lengths of the examples, used by `group_by_length` and `batch_rebalance`",
    # Placement and processes
    "use_cpu": 'same as `accelerator="cpu"`',
    "accelerator": "Lightning accelerator: `cpu`, `cuda`, `ipu`, `ort`, ...; default: the best one available",
    "strategy": "Lightning strategy, by name or as an object; default: `ddp` on several devices",
    "devices": "devices of this machine, one process each; default: 1, or what `torchrun` started",
    "num_nodes": "number of machines; default: 1, or what `torchrun` started",
    "precision": "Lightning precision; default: what `bf16` and `fp16` say",
    "ddp_find_unused_parameters": "option of DDP; default: `True` unless activations are recomputed",
    "ddp_bucket_cap_mb": "option of DDP: size of a gradient bucket",
    "ddp_broadcast_buffers": "option of DDP: synchronize buffers in every forward pass",
    "ddp_static_graph": "option of DDP: the graph is the same in every step",
    "ddp_backend": "communication backend: `nccl`, `gloo`, ...",
    "ddp_timeout": "seconds before a collective operation fails",
    "accelerator_config": (
        "how processes share data (`split_batches`, `dispatch_batches`, `even_batches`, `use_seedable_sampler`, "
        "`non_blocking`) and when they average gradients (`gradient_accumulation_kwargs`)"
    ),
    "fsdp": "shard the model over the processes with torch's FSDP2, on GPUs or CPUs ([scale](scale.md))",
    "fsdp_config": "which layers are gathered one at a time, when their weights are freed, offloading, recomputation",
    "deepspeed": "train with Lightning's `DeepSpeedStrategy` and this configuration; needs CUDA and DeepSpeed",
    "parallelism_config": (
        "sizes of the mesh of processes: `dp_replicate_size`, `dp_shard_size`, `tp_size`, in an object or a dict; "
        "`cp_size` and `sp_size` are refused"
    ),
    # Diagnosis
    "debug": "`underflow_overflow`: stop at the first value that is NaN or infinite, and report where",
    "skip_memory_metrics": "`False`: add memory use to the metrics",
    # Read by scripts only
    "do_train": "none in a trainer; scripts read it",
    "do_eval": "none in a trainer; scripts read it",
    "do_predict": "none in a trainer; scripts read it",
    "resume_from_checkpoint": "none in a trainer; scripts pass it to `train()`",
    # Generation (`Seq2SeqTrainingArguments`)
    "predict_with_generate": "evaluate and predict with generated tokens",
    "generation_max_length": "`max_length` of generation in evaluations",
    "generation_num_beams": "`num_beams` of generation in evaluations",
    "generation_config": "generation configuration of the model: an object, a folder or a hub name",
}


_HEAD = """\
# Training arguments

The effect of every field of `TrainingArguments` and `Seq2SeqTrainingArguments`. Meaning and default are those of
`transformers`, except for the Lightning fields `accelerator`, `strategy`, `devices`, `num_nodes` and `precision`, and
for `corrections`, `stop_on_nan` and `async_save`, which are portico's own.
Setting a field without effect logs a warning; a refused value raises an error before any work.

This page is generated: `python docs/training_arguments.py`.

| Field | Effect | Refused |
| --- | --- | --- |
"""

_OLD_HEAD = """
## Arguments of transformers 4

Each is accepted with one `FutureWarning` that names the replacement, and will be removed in portico 2.

| Argument | Treatment |
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
