"""The page of all training arguments; running it writes the page next to this file.

What an argument does is said in the docstrings of the classes, what Lightning does with it below. Refused values and
fields without effect are in :mod:`portico.loop.validation`, arguments of transformers 4 in :mod:`portico.deprecated`.
"""

import dataclasses
import enum
import inspect
import re
from pathlib import Path
from typing import Any, get_args

from portico import IPUTrainingArguments, ORTTrainingArguments, Seq2SeqTrainingArguments, TrainingArguments
from portico.deprecated import REMOVED, RENAMED, Honoured, Ignored, Refused, Sets

PAGE = Path(__file__).with_suffix(".md")

# The first argument of each section, in the order of the docstring.
SECTIONS = {
    "output_dir": "Length of the run and size of its batches",
    "optim": "Optimizer and schedule",
    "average_tokens_across_devices": "Loss and gradients",
    "bf16": "Precision",
    "activation_checkpointing": "Memory, kernels and compilation",
    "logging_strategy": "Logging",
    "eval_strategy": "Evaluation",
    "save_strategy": "Checkpoints",
    "push_to_hub": "Hub",
    "seed": "Random numbers",
    "dataloader_drop_last": "Data",
    "use_cpu": "Placement and processes",
    "debug": "Diagnosis",
    "do_train": "Read by scripts only",
}

# What of Lightning an argument becomes; for the others Lightning has nothing to do.
LIGHTNING = {
    "output_dir": "`default_root_dir`",
    "num_train_epochs": "`max_epochs`, rounded up; `EventBridge` ends the run at the planned step",
    "max_steps": "`max_steps` stays -1: `EventBridge` ends the run at the planned step",
    "per_device_train_batch_size": "batch size of `TrainerDataModule.train_dataloader`",
    "per_device_eval_batch_size": "batch size of the validation and test loaders",
    "gradient_accumulation_steps": "`accumulate_grad_batches`",
    "auto_find_batch_size": "a new `lightning.Trainer` for each attempt",
    "optim": "returned by `configure_optimizers`",
    "learning_rate": "returned by `configure_optimizers`",
    "lr_scheduler_type": "returned by `configure_optimizers`, stepped in `lr_scheduler_step`",
    "average_tokens_across_devices": "a sum over the processes of the strategy",
    "stop_on_nan": "checked in `configure_gradient_clipping`",
    "max_grad_norm": "`configure_gradient_clipping`; `gradient_clip_val` stays unset",
    "neftune_noise_alpha": "a hook on the embeddings, there during the run",
    "bf16": '`precision="bf16-mixed"`, applied to the forward of the model instead of to the step',
    "fp16": '`precision="16-mixed"`, applied to the forward of the model instead of to the step',
    "torch_compile": "the compiled model is what `TrainerModule.training_step` runs",
    "logging_strategy": "`log` also writes to `loggers` and to `callback_metrics`",
    "logging_steps": "`log_every_n_steps`",
    "include_num_input_tokens_seen": "counted in `on_after_backward`",
    "disable_tqdm": "a progress bar among `lightning_callbacks` replaces both",
    "report_to": "nothing; `Trainer(loggers=...)` takes Lightning's loggers",
    "eval_strategy": "`check_val_every_n_epoch` is never reached: `on_train_batch_end` and `on_train_epoch_end` start "
    "the `validate` loop",
    "eval_steps": "the `validate` loop, started in `on_train_batch_end`",
    "eval_on_start": "the `validate` loop, started in `on_train_start`; not `num_sanity_val_steps`",
    "prediction_loss_only": "what `validation_step` and `test_step` return",
    "save_strategy": "written in `on_train_batch_end` or `on_train_epoch_end`; `ModelCheckpoint` works too",
    "enable_jit_checkpoint": "Lightning's handler of SIGTERM is switched off",
    "load_best_model_at_end": "in `on_train_end`",
    "ignore_data_skip": "counts of the loops restored in `on_fit_start`",
    "full_determinism": "nothing: `deterministic=` stays unset",
    "dataloader_drop_last": "of the loaders of `TrainerDataModule`",
    "dataloader_num_workers": "of the loaders of `TrainerDataModule`",
    "train_sampling_strategy": "the sampler of the loader; `use_distributed_sampler=False`",
    "use_cpu": '`accelerator="cpu"`',
    "accelerator": "`accelerator`",
    "strategy": "`strategy`",
    "devices": "`devices`",
    "num_nodes": "`num_nodes`",
    "precision": "`precision`",
    "ddp_find_unused_parameters": "argument of `DDPStrategy`",
    "ddp_bucket_cap_mb": "argument of `DDPStrategy`",
    "ddp_broadcast_buffers": "argument of `DDPStrategy`",
    "ddp_static_graph": "argument of `DDPStrategy`",
    "ddp_backend": "`process_group_backend` of `DDPStrategy`",
    "ddp_timeout": "`timeout` of `DDPStrategy`",
    "accelerator_config": "samplers and loaders of `TrainerDataModule`",
    "fsdp": "`strategy=ShardedStrategy(...)`, a `ModelParallelStrategy`",
    "fsdp_config": "arguments of that strategy",
    "deepspeed": "`strategy=EngineStrategy(...)`; `DeepSpeedStrategy` is Lightning's own",
    "predict_with_generate": "`generate` runs inside `validation_step` and `test_step`",
}

_HEAD = """\
# Training arguments

Every field of `TrainingArguments` and `Seq2SeqTrainingArguments`: type, default, effect, and what Lightning does with
it. Meaning and default are those of `transformers`, except for the Lightning fields `accelerator`, `strategy`,
`devices`, `num_nodes` and `precision`, and for `corrections`, `stop_on_nan` and `async_save`, which are portico's
([corrections](corrections.md), [checkpoints](scale.md#checkpoints)). Trackers have [a page of their own](trackers.md).
Setting a field without effect logs a warning; a refused value raises an error before any work, and what only training
reads is refused by `train()`, so that a trainer which only evaluates may have it.

Whatever `transformers` trains with is accepted, with a warning if the effect is hardly wanted (`max_grad_norm=-1`).
There are four exceptions: a switch given as a word that says no, such as `bf16="False"`, which `transformers` takes
for `True`; `gradient_accumulation_steps` below 1, since a step needs a batch; a part of a step as `max_steps`;
and NaN as a number, with which comparisons have no result and weights become NaN.

This page is generated from the docstrings: `python docs/training_arguments.py`.
"""

_OLD_HEAD = """
## Arguments of transformers 4

Each is accepted with one `FutureWarning` that names the replacement, and will be removed in portico 2.

| Argument | Treatment |
| --- | --- |
"""


def documented(arguments: type) -> dict[str, str]:
    """Return the text of each argument in the docstring of a class, in one line of Markdown."""
    section = re.search(r"Args:\n((?:(?: +.*)?\n)*)", f"{inspect.getdoc(arguments)}\n")
    entries = re.findall(r"^ {4}(\w+): ((?:.|\n {5,})*)", section[1] if section else "", flags=re.MULTILINE)
    plain = {name: " ".join(re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).split()) for name, text in entries}
    return {name: text.replace("``", "`") for name, text in plain.items()}


def page() -> str:
    """Return the page as Markdown: tables of all fields by topic, of the backends' own, and of transformers 4."""
    text, effects = _HEAD, documented(TrainingArguments)
    for name in effects:
        if name in SECTIONS:
            text += _table(SECTIONS[name])
        text += _row(TrainingArguments, name, effects[name])
    generation = documented(Seq2SeqTrainingArguments)
    text += _table("Generation (`Seq2SeqTrainingArguments`)")
    text += "".join(_row(Seq2SeqTrainingArguments, name, effect) for name, effect in generation.items())
    for arguments in (ORTTrainingArguments, IPUTrainingArguments):
        own, known = documented(arguments), set(vars(arguments)["__annotations__"])
        text += _table(f"`{arguments.__name__}`")
        for one in dataclasses.fields(arguments):
            if one.name in known:
                effect = own.get(one.name) or one.metadata["help"]
                text += _row(arguments, one.name, effect, anchor=f"{arguments.__name__}.{one.name}")
    # Of several rows the last is the rule: those before it refuse one value.
    old = {name: fate_of(rows[-1]) for name, rows in REMOVED.items()}
    old |= {name: f"renamed to `{row.new}`" for name, row in RENAMED.items()}
    return text + _OLD_HEAD + "".join(f"| `{name}` | {fate} |\n" for name, fate in sorted(old.items()))


def fate_of(row: Sets | Honoured | Ignored | Refused) -> str:
    """Return what became of an older argument that is gone."""
    match row:
        case Sets(successor):
            return f"passed on as `{successor}`"
        case Honoured(today):
            return f"honoured (today: {today})"
        case Ignored(reason):
            return f"none (announced): {reason}"
        case Refused(replacement):
            return f"refused; {replacement} instead"


def _table(title: str) -> str:
    return f"\n## {title}\n\n| Argument | Effect | In Lightning |\n| --- | --- | --- |\n"


def _row(arguments: type, name: str, effect: str, anchor: str = "") -> str:
    one = next(each for each in dataclasses.fields(arguments) if each.name == name)
    # `HfArgumentParser` changes the `type` of a field.
    annotation = next(vars(base)["__annotations__"][name] for base in arguments.__mro__ if _annotates(base, name))
    kind = f"{kind_of(annotation)}, default `{default_of(one)}`".replace("|", r"\|")
    effect = effect.replace("|", r"\|")
    # A backend's own meaning of an argument is not that of the plain trainer.
    lightning = "" if anchor else LIGHTNING.get(name, "")
    return f'| <a id="{anchor or name}"></a>`{name}`<br>{kind} | {effect} | {lightning} |\n'


def _annotates(base: type, name: str) -> bool:
    return name in vars(base).get("__annotations__", {})


def kind_of(annotation: Any) -> str:
    """Return the type of a field without modules; an enumeration is the string that stands for it."""
    parts = get_args(annotation) if "|" in str(annotation) or "Union" in str(annotation) else (annotation,)
    names = [
        "None" if one is type(None) else one.__name__ if inspect.isclass(one) and not get_args(one) else str(one)
        for one in parts
        if not (inspect.isclass(one) and issubclass(one, enum.Enum))
    ]
    return " or ".join(f"`{re.sub(r'[a-z_]+[.]', '', name)}`" for name in names)


def default_of(one: "dataclasses.Field[Any]") -> str:
    """Return the default of a field as code."""
    value = one.default if one.default is not dataclasses.MISSING else one.default_factory()  # type: ignore[misc]
    return repr(value.value if isinstance(value, enum.Enum) else value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
