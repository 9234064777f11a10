"""Why portico refuses what it refuses: a proof for every ``raise`` of the package.

A refusal is right if the same input fails in the library that portico stands for, or leads there to a wrong result
(:class:`Fails`; :class:`Says` where a test cannot show it, for want of processes or packages), if the documentation
names the deviation (:class:`Named`), or if no such library takes such input at all (:class:`Ours`). An entry names its
``raise`` by module, function and a part of the message, so that it survives moves of lines.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
import torchmetrics
import transformers
from accelerate.state import AcceleratorState
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader, IterableDataset

from models import Line, Points, tiny_bert
from parity.peers import QUIET

ROWS = [Points(6)[index] for index in range(6)]


@dataclasses.dataclass(frozen=True)
class Entry:
    module: str
    """The file under ``src``, or the folder, if one reason holds for all of it."""
    function: str = ""
    """The function with its classes, or its first letters; empty for all functions."""
    part: str = ""
    """A part of the message, with names for values as in docs/errors.md; empty for all messages."""
    error: str = dataclasses.field(default="", kw_only=True)
    """The error, if functions raise several without a message of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fails(Entry):
    """The input fails in transformers too, or in the library that it is for.

    ``attempt`` gives it to a library in a folder. ``is_wrong`` says of what it returned that the result is wrong.
    """

    attempt: Callable[[Any, Any], Any]
    is_wrong: Callable[[Any], bool] | None = None
    peer: str = "transformers"
    is_slow: bool = False
    requires: str = ""
    """A package without which the attempt is skipped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(Entry):
    """A page of the documentation, below the checkout, has a sentence that names the deviation."""

    page: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ours(Entry):
    """No other library takes such input, for this reason; transformers has none of the ``names``."""

    reason: str
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Says(Entry):
    """The source of a module of the other library has this ``sentence``, in a run that a test cannot make here."""

    peer: str
    sentence: str


# Not about the input: how a run is stopped, how a command ends, and errors that are passed on with another sentence.
CONTROL = (
    "EndOfFit",
    "JobEndedError",
    "JobPruned",
    "KeyboardInterrupt",
    "OnBackwardException",
    "SIGTERMException",
    "StepReplayed",
    "SystemExit",
    "_JobFailed",
    "failed if error is None else error",
    "optuna.TrialPruned",
    "type(error)",
)


def make(library: Any, folder: Any, arguments: Any = (), *, base: Any = None, kind: str = "", **parts: Any) -> Any:
    """Return a trainer of ``library`` with small parts, of which ``parts`` replaces some."""
    options = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, **QUIET, "max_steps": 2}
    args = getattr(library, f"{kind}TrainingArguments")(str(folder), **(options | dict(arguments)))
    given = {"model": Line(), "args": args, "train_dataset": Points(6), "eval_dataset": Points(4, seed=1)}
    trainer_class = getattr(library, f"{kind}Trainer")
    return (base(trainer_class) if base else trainer_class)(**given | parts)


def trains(arguments: Any = (), **options: Any) -> Callable[[Any, Any], Any]:
    """Return an attempt to train; a part that is a function ``lazy`` is made for each library."""

    def attempt(library: Any, folder: Any) -> Any:
        trainer = make(library, folder, arguments, **_made(options))
        trainer.train()
        return trainer

    return attempt


def evaluates(arguments: Any = (), data: Any = None, **options: Any) -> Callable[[Any, Any], Any]:
    def attempt(library: Any, folder: Any) -> Any:
        return make(library, folder, arguments, **_made(options)).evaluate(data)

    return attempt


@dataclasses.dataclass(frozen=True)
class Lazy:
    make: Callable[[], Any]


def _made(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value.make() if isinstance(value, Lazy) else value for name, value in options.items()}


def fits(arguments: Any = (), **options: Any) -> Callable[[Any, Any], Any]:
    """Return an attempt to train under Lightning, or under portico with what Lightning calls otherwise."""
    names = {"callbacks": "lightning_callbacks", "logger": "loggers", "plugins": "plugins"}

    def attempt(library: Any, folder: Any) -> Any:
        if library.__name__ == "portico":
            given = {names[name]: value for name, value in options.items()}
            return make(library, folder, lightning_kwargs=dict(arguments), **given).train()
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        run = {"max_steps": 2, "accelerator": "cpu", "logger": False, "default_root_dir": str(folder)}
        return library.Trainer(**quiet | run | dict(arguments) | options).fit(BoringModel())

    return attempt


def searches(**options: Any) -> Callable[[Any, Any], Any]:
    def attempt(library: Any, folder: Any) -> Any:
        parts = {"model": None, "model_init": Line} | options.get("parts", {})
        space = {"hp_space": lambda trial: {"seed": trial.suggest_int("seed", 1, 1)}, "n_trials": 1}
        return make(library, folder, **parts).hyperparameter_search(
            **space | {name: value for name, value in options.items() if name != "parts"}
        )

    return attempt


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(ROWS)


def step_with(outputs: Callable[[int], Any]) -> Any:
    """Return a subclass whose steps of an evaluation have the ``outputs`` of their number."""

    def base(kind: type) -> type:
        class Own(kind):
            num_steps = 0

            def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
                self.num_steps += 1
                return torch.tensor(1.0), outputs(self.num_steps), torch.ones(2)

        return Own

    return base


def with_loss(loss: Callable[[torch.Tensor], Any]) -> Any:
    def base(kind: type) -> type:
        class Own(kind):
            def compute_loss(
                self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
            ) -> Any:
                return loss(model(**inputs)["loss"])

        return Own

    return base


class WithoutLoss(Line):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x)}


class TwentyEpochs(transformers.TrainerCallback):
    num_epochs = 0

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.num_epochs += 1
        control.should_training_stop = self.num_epochs == 20


def arguments_of(arguments: Any) -> Callable[[Any, Any], Any]:
    return lambda library, folder: library.TrainingArguments(str(folder), **QUIET | arguments).distributed_state


def trains_with_file(name: str, content: str) -> Callable[[Any, Any], Any]:
    def attempt(library: Any, folder: Any) -> Any:
        (folder / "settings.json").write_text(content)
        return make(library, folder, {name: str(folder / "settings.json")}).train()

    return attempt


class Eventless:
    """Not a callback: it lacks the events of one."""


def frozen_line() -> Line:
    return Line().requires_grad_(False)  # type: ignore[return-value]


def quantized_line() -> Line:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = Line()
    quantize_(model, Int8WeightOnlyConfig())
    return model


def line_on_meta() -> Line:
    with torch.device("meta"):
        return Line()


class BertOfSeveralLabels(Line):
    """Its labels are a tuple, which the metrics of torchmetrics do not take."""

    def forward(self, x: Any, start_positions: Any = None, end_positions: Any = None) -> dict[str, torch.Tensor]:
        return {"loss": self.linear(x).mean(), "logits": self.linear(x)}


def resumes_as(model: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    def attempt(library: Any, folder: Any) -> Any:
        make(library, folder, SAVED).train()
        other = make(library, folder, {**SAVED, "max_steps": 3}, model=model())
        return other.train(resume_from_checkpoint=str(folder / "checkpoint-1"))

    return attempt


class Wider(Line):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
SAVED = {"save_strategy": "steps", "save_steps": 1}


def saves_unreadable_results(library: Any, folder: Any) -> None:
    trainer = make(library, folder)
    (folder / "all_results.json").write_text("not JSON")
    trainer.save_metrics("eval", {"loss": 1.0})


def resumes(value: Any) -> Callable[[Any, Any], Any]:
    def attempt(library: Any, folder: Any) -> Any:
        trainer = make(library, folder, SAVED)
        trainer.train()
        return make(library, folder, SAVED).train(resume_from_checkpoint=value)

    return attempt


def resumes_damaged(library: Any, folder: Any) -> Any:
    make(library, folder, SAVED).train()
    (folder / "checkpoint-1" / "trainer_state.json").unlink()
    return make(library, folder, SAVED).train(resume_from_checkpoint=str(folder / "checkpoint-1"))


def resumes_another_optimizer(library: Any, folder: Any) -> Any:
    make(library, folder, {**SAVED, "optim": "sgd"}).train()
    trainer = make(library, folder, {**SAVED, "optim": "adamw_torch", "max_steps": 3})
    return trainer.train(resume_from_checkpoint=str(folder / "checkpoint-1"))


def lacks_learning_rates(library: Any, folder: Any) -> Any:
    return make(library, folder).get_learning_rates()


def with_environment(attempt: Callable[[Any, Any], Any], **variables: str) -> Callable[[Any, Any], Any]:
    def changed(library: Any, folder: Any) -> Any:
        with mock.patch.dict(os.environ, variables):
            return attempt(library, folder)

    return changed


def without_state(attempt: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def changed(library: Any, folder: Any) -> Any:
        AcceleratorState._reset_state(reset_partial_state=True)
        return attempt(library, folder)

    return changed


def imports_unknown_name(library: Any, folder: Any) -> Any:
    return library.TrainerOfMine


def file_as_folder(attempt: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def changed(library: Any, folder: Any) -> Any:
        (folder / "file").write_text("")
        return attempt(library, folder / "file" / "run")

    return changed


CORE = "portico/loop/core.py"
TRAINER, VALIDATION, ARGUMENTS = "portico/trainer.py", "portico/loop/validation.py", "portico/arguments.py"
STRATEGIES = "portico/distributed/strategies.py"
MODEL_PARALLEL = "portico/distributed/model_parallel.py"
DEEPSPEED = "portico/distributed/deepspeed.py"
SEQUENCES = "portico/distributed/sequence.py"

FAILS = (
    # ---- The trainer ----
    Fails(TRAINER, "Trainer.get_train_dataloader", attempt=trains(train_dataset=None)),
    Fails(TRAINER, "Trainer.get_eval_dataloader", "requires an eval_dataset", attempt=evaluates(eval_dataset=None)),
    Fails(TRAINER, "Trainer.get_eval_dataloader", "names a set", attempt=evaluates(data="validation")),
    Fails(
        TRAINER,
        "Trainer.get_test_dataloader",
        attempt=lambda library, folder: make(library, folder).predict(None),
    ),
    Fails(
        CORE,
        "TrainerCore.build_loader",
        # In another order than the default one, transformers trains no step, and says nothing of it.
        attempt=trains({"train_sampling_strategy": "sequential"}, train_dataset=[]),
        is_wrong=lambda trainer: trainer.state.global_step == 0,
    ),
    Fails(CORE, "TrainerCore.require_optimizer", attempt=lacks_learning_rates),
    Fails(TRAINER, "Trainer.training_step", attempt=trains(base=with_loss(lambda loss: None))),
    Fails(TRAINER, "Trainer._prepare_inputs", attempt=trains(data_collator=lambda rows: {})),
    Fails(
        CORE,
        "TrainerCore.metric_for_best_model",
        "not found",
        attempt=trains({**EVALUATED, "metric_for_best_model": "accuracy"}),
    ),
    Fails(
        CORE,
        "TrainerCore.metric_for_best_model",
        "cannot be compared",
        attempt=trains(
            {**EVALUATED, "metric_for_best_model": "a"}, compute_metrics=lambda result: {"a": np.array([0.5, 1])}
        ),
    ),
    Fails(TRAINER, "Trainer.save_metrics", attempt=saves_unreadable_results),
    Fails(
        TRAINER,
        "Trainer.call_model_init",
        "0 or 1 argument",
        attempt=trains(model=None, model_init=lambda trial, more: Line()),
    ),
    Fails(TRAINER, "Trainer.call_model_init", "return None", attempt=trains(model=None, model_init=lambda: None)),
    # ---- Each part by itself ----
    Fails(VALIDATION, "check_part_types", "got neither", attempt=trains(model=None)),
    Fails(VALIDATION, "check_part_types", "but not both", attempt=trains(model_init=Line)),
    Fails(VALIDATION, "check_part_types", "`model_init` is", attempt=trains(model=None, model_init=3)),
    Fails(VALIDATION, "check_part_types", "`optimizers` is", attempt=trains(optimizers=3)),
    Fails(VALIDATION, "check_callback", attempt=trains(callbacks=[Eventless()])),
    Fails(VALIDATION, "_check_model", "the class", attempt=trains(model=Line)),
    Fails(VALIDATION, "_check_model", "not a model", attempt=trains(model="bert-base-cased")),
    Fails(VALIDATION, "_check_list", attempt=trains(callbacks=3)),
    Fails(VALIDATION, "check_examples", "is a string", attempt=trains(train_dataset="train.csv")),
    Fails(
        VALIDATION,
        "check_examples",
        "is a dict of <names>",
        attempt=trains(train_dataset={"a": Points(2), "b": Points(2)}),
    ),
    Fails(
        VALIDATION, "check_examples", "dict of the columns", attempt=trains(train_dataset={"x": [1], "labels": [1]})
    ),
    Fails(
        VALIDATION,
        "check_examples",
        "which <problem>",
        attempt=trains(train_dataset=Lazy(lambda: (row for row in ROWS))),
    ),
    Fails(
        VALIDATION,
        "check_examples",
        "of pandas",
        attempt=trains(train_dataset=Lazy(lambda: __import__("pandas").DataFrame({"x": [1.0], "labels": [1.0]}))),
    ),
    Fails(VALIDATION, "check_examples", "is <data>", attempt=trains(train_dataset=3)),
    Fails(
        VALIDATION,
        "check_collator",
        "is the class",
        attempt=trains(data_collator=transformers.DataCollatorForTokenClassification),
    ),
    Fails(VALIDATION, "check_collator", "simple callable", attempt=trains(data_collator=3)),
    Fails(VALIDATION, "refuse_empty", attempt=trains(model=Lazy(line_on_meta))),
    Fails(
        VALIDATION,
        "refuse_unsavable",
        attempt=trains(SAVED, processing_class="bert-base-cased"),
    ),
    Fails(VALIDATION, "check_optimizers", "`optimizers` is", attempt=trains(optimizers=("adam", None))),
    Fails(VALIDATION, "check_optimizers", "_and_kwargs` is", attempt=trains(optimizer_cls_and_kwargs=("sgd", {}))),
    # ---- The training arguments ----
    Fails(
        ARGUMENTS,
        "TrainingArguments.__post_init__",
        attempt=with_environment(trains(), ACCELERATE_USE_DEEPSPEED="true"),
    ),
    Fails(ARGUMENTS, "refuse_wrong_kinds", attempt=trains({"learning_rate": "2e-5"})),
    Fails(ARGUMENTS, "refuse_none", attempt=trains({"max_grad_norm": None})),
    Fails(
        ARGUMENTS,
        "_showing_values",
        "combined",
        attempt=trains({"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "epoch"}),
    ),
    Fails(ARGUMENTS, "_showing_values", "cannot be used", attempt=trains({"dataloader_prefetch_factor": 2})),
    Fails(
        ARGUMENTS,
        "adopt_arguments",
        attempt=lambda library, folder: library.Trainer(Line(), {"output_dir": str(folder)}).train(),
    ),
    Fails(VALIDATION, "check_numbers", attempt=trains({"adam_beta1": 2.0})),
    Fails(VALIDATION, "check_kernels", attempt=trains({"use_liger_kernel": True})),
    Fails(VALIDATION, "check_compiler", "Unknown compiler", attempt=trains({"torch_compile_backend": "nvcc"})),
    Fails(
        VALIDATION,
        "check_compiler",
        "Unknown mode",
        attempt=trains({"torch_compile": True, "torch_compile_mode": "fast"}),
        is_slow=True,
    ),
    # ---- The parts together ----
    Fails(
        VALIDATION,
        "check_best_metric",
        attempt=trains(
            {**EVALUATED, **SAVED, "load_best_model_at_end": True, "metric_for_best_model": "accuracy"},
            eval_dataset={"a": Points(2), "b": Points(2)},
        ),
    ),
    Fails(VALIDATION, "check_consistency", "didn't pass an", attempt=trains(EVALUATED, eval_dataset=None)),
    Fails(VALIDATION, "check_consistency", "must be provided", attempt=trains({"save_strategy": "best", **EVALUATED})),
    Fails(
        VALIDATION,
        "check_consistency",
        "both `optimizers` and",
        attempt=trains(
            optimizers=Lazy(lambda: (torch.optim.SGD(Line().parameters()), None)),
            optimizer_cls_and_kwargs=(torch.optim.SGD, {}),
        ),
    ),
    Fails(
        VALIDATION,
        "check_consistency",
        "Passing a `model_init`",
        attempt=trains(
            model=None, model_init=Line, optimizers=Lazy(lambda: (torch.optim.SGD(Line().parameters()), None))
        ),
    ),
    Fails(
        VALIDATION,
        "check_consistency",
        "does not implement",
        attempt=trains({"max_steps": -1}, train_dataset=Stream()),
    ),
    # ---- Older spellings ----
    Fails("portico/unknown_arguments.py", "refuse_unknown_arguments", attempt=trains({"learning_rat": 1})),
    Fails(
        "portico/deprecated.py",
        "current_arguments",
        attempt=trains({"eval_strategy": "no", "evaluation_strategy": "steps"}),
    ),
    Fails("portico/deprecated.py", "_warmup_steps", attempt=trains({"warmup_ratio": 2})),
    Fails(
        "portico/deprecated.py",
        "_entry.combine",
        attempt=trains({"accelerator_config": '{"even_batches": true}', "split_batches": True}),
    ),
    Fails("portico/deprecated.py", "OlderArguments._read_removed", attempt=trains({"sharded_ddp": "simple"})),
    Fails(
        "portico/deprecated.py",
        "OlderArguments._set_successor",
        attempt=trains({"optim": "sgd", "adafactor": True}),
    ),
    Fails(
        VALIDATION,
        "refuse_old_order",
        "list of callbacks",
        # Nothing calls them: transformers trains without their events.
        attempt=trains(compute_metrics=[transformers.EarlyStoppingCallback()]),
        is_wrong=lambda trainer: (
            not any(
                isinstance(callback, transformers.EarlyStoppingCallback)
                for callback in trainer.callback_handler.callbacks
            )
        ),
    ),
    Fails(
        "portico/loop/failures.py",
        "explain_call",
        attempt=trains(compute_loss_func=lambda outputs, labels: outputs["loss"]),
    ),
    Fails(
        "portico/loop/validation.py",
        "check_examples",
        "loaders; give",
        attempt=trains(train_dataset=[DataLoader(ROWS), DataLoader(ROWS)]),
    ),
    Fails("portico/loop/validation.py", "check_loss_function", attempt=trains(compute_loss_func=3)),
    Fails(
        "portico/trainer.py",
        "Trainer.create_optimizer_and_scheduler",
        attempt=trains(base=lambda kind: type("Own", (kind,), {"create_optimizer": lambda self, model=None: None})),
    ),
    Fails(
        "portico/deprecated.py",
        "newer_processing_class",
        attempt=trains(processing_class=Lazy(lambda: mock.Mock()), tokenizer=Lazy(lambda: mock.Mock())),
    ),
    # ---- The run ----
    Fails(
        "portico/loop/plan.py",
        "RunPlan.make",
        attempt=trains(
            {"max_steps": -1},
            data_collator=list,
            base=lambda kind: type("Own", (kind,), {"get_train_dataloader": lambda self: DataLoader([])}),
        ),
    ),
    Fails(
        "portico/loop/datamodule.py",
        "TrainerDataModule.build_loader",
        "keeps worker processes",
        attempt=trains({"dataloader_persistent_workers": True}),
    ),
    Fails(
        "portico/loop/datamodule.py",
        "TrainerDataModule.remove_unused_columns",
        attempt=trains(train_dataset=Lazy(lambda: __import__("datasets").Dataset.from_dict({"other": [1, 2]}))),
    ),
    Fails(
        "portico/loop/datamodule.py",
        "_build_rebalancing_sampler",
        attempt=trains({"train_sampling_strategy": "batch_rebalance"}),
    ),
    Fails(
        "portico/loop/failures.py",
        "explain_failure",
        attempt=trains(train_dataset=[{"x": torch.ones(3), "labels": "a"}]),
    ),
    Fails(
        "portico/loop/evaluation.py",
        "EvaluationSession.keep",
        attempt=evaluates({"include_for_metrics": ["inputs"]}, compute_metrics=lambda result: {}),
    ),
    Fails(
        "portico/loop/evaluation.py",
        "EvaluationSession.compute_metrics",
        attempt=evaluates(compute_metrics=lambda result: None),
    ),
    Fails(
        "portico/loop/metrics.py",
        "check_metrics",
        "`preprocess_logits_for_metrics` is",
        attempt=evaluates(compute_metrics=lambda result: {}, preprocess_logits_for_metrics=3),
    ),
    Fails("portico/loop/metrics.py", "check_metrics", "is a dict of", attempt=evaluates(compute_metrics={"a": len})),
    Fails(
        "portico/loop/metrics.py",
        "check_metrics",
        "`compute_metrics` is a <name>",
        attempt=evaluates(compute_metrics=3),
    ),
    Fails(
        "portico/loop/metrics.py",
        "check_metrics",
        "When using `batch_eval_metrics`",
        attempt=evaluates({"batch_eval_metrics": True}, compute_metrics=lambda result: {}),
    ),
    Fails(
        "portico/loop/metrics.py",
        "check_metrics",
        "gives more than logits",
        attempt=evaluates({"include_for_metrics": ["loss"]}, compute_metrics=torchmetrics.MeanSquaredError()),
    ),
    Fails(
        "portico/loop/metrics.py",
        "_check_torch_metric",
        "whose `update",
        attempt=evaluates(compute_metrics=torchmetrics.SumMetric()),
    ),
    Fails(
        "portico/loop/metrics.py",
        "_check_torch_metric",
        "compares strings",
        attempt=evaluates(compute_metrics=Lazy(torchmetrics.text.BLEUScore)),
    ),
    Fails(STRATEGIES, "_normalize_fsdp", "a string of words", attempt=trains({"fsdp": 2.5})),
    Fails("portico/loop/datamodule.py", part="dataloader_drop_last", attempt=trains({"dataloader_drop_last": 2})),
    Fails("portico/loop/model_setup.py", "prepared_for_training", attempt=trains({"neftune_noise_alpha": 5.0})),
    Fails(
        "portico/loop/model_setup.py",
        "refuse_unusable_quantized_weights",
        "and no adapters",
        attempt=trains(SAVED, model=Lazy(quantized_line)),
        requires="torchao",
    ),
    Fails(
        "portico/loop/model_setup.py",
        "enable_activation_checkpointing",
        attempt=trains({"activation_checkpointing": True}),
    ),
    Fails("portico/loop/model_setup.py", "_trackers", attempt=trains({"report_to": "tracker"})),
    Fails("portico/loop/optim.py", "build_optimizer", "no parameter", attempt=trains(model=Lazy(frozen_line))),
    Fails(
        "portico/loop/optim.py",
        "build_optimizer",
        "cannot be made with",
        attempt=trains(optimizer_cls_and_kwargs=(torch.optim.SGD, {"beta": 1})),
    ),
    Fails("portico/loop/optim.py", "resolve_optimizer", "to a string", attempt=trains({"optim_args": 2.5})),
    Fails("portico/loop/optim.py", "resolve_optimizer", "of the form", attempt=trains({"optim_args": "momentum"})),
    Fails("portico/loop/optim.py", "resolve_optimizer", "<given> cannot", attempt=trains({"optim": "galore_adamw"})),
    Fails("portico/loop/optim.py", "make_scheduler", attempt=trains({"lr_scheduler_kwargs": {"cycles": 1}})),
    Fails(
        "portico/loop/outputs.py",
        "GrowingArray._settle_dtype",
        attempt=evaluates(base=step_with(lambda number: torch.ones(2, 3, 4 + number % 2))),
    ),
    Fails(
        "portico/loop/outputs.py",
        "OutputBuffer.add",
        attempt=evaluates(
            base=step_with(lambda number: {"a": torch.ones(2, 3)} | ({"b": torch.ones(2, 3)} if number == 1 else {}))
        ),
    ),
    Fails("portico/loop/core.py", "loss_of", attempt=trains(model=Lazy(WithoutLoss))),
    Fails(
        "portico/compat/tree.py",
        "collect_tensors",
        attempt=evaluates(base=step_with(lambda number: {"a": "text"})),
    ),
    Fails("portico/imports.py", "lazy_exports.get", "module <package>", attempt=imports_unknown_name),
    # ---- Search ----
    Fails("portico/hp_search.py", "check_directions", attempt=searches(direction="up")),
    Fails("portico/hp_search.py", "select_backend", "You picked", attempt=searches(backend="wandb")),
    Fails(
        "portico/hp_search.py",
        "check_search",
        "To use",
        attempt=searches(parts={"model": Line(), "model_init": None}),
    ),
    Fails(
        "portico/hp_search.py",
        "check_search",
        "number of trials",
        attempt=searches(n_trials="many", backend="optuna"),
    ),
    Fails("portico/hp_search.py", "check_search", "give a function", attempt=searches(hp_space=3, backend="optuna")),
    # ---- Generation ----
    Fails(
        "portico/checkpoint/resume.py",
        "refuse_missing_checkpoint",
        error="_no_checkpoint",
        attempt=lambda library, folder: make(library, folder).train(resume_from_checkpoint=True),
    ),
    Fails(
        "portico/distributed/settings.py",
        "read_settings",
        "holds a",
        attempt=trains_with_file("accelerator_config", "[1]"),
    ),
    Fails(
        DEEPSPEED,
        "engine_strategy",
        "not installed",
        attempt=trains({"deepspeed": {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}}),
    ),
    Fails(
        "portico/loop/metrics.py",
        "_check_torch_metric",
        "takes one tensor of labels",
        attempt=evaluates({"label_names": ["labels", "x"]}, compute_metrics=torchmetrics.MeanSquaredError()),
    ),
    Fails(
        "portico/loop/metrics.py",
        "_check_torch_metric",
        "compares scores with labels",
        attempt=evaluates(
            {"predict_with_generate": True}, kind="Seq2Seq", compute_metrics=torchmetrics.MeanSquaredError()
        ),
    ),
    Fails(
        "portico/loop/run.py",
        "TrainingRun._check_progress",
        # transformers iterates such a stream for ever: here a callback ends it.
        attempt=trains(
            {"gradient_accumulation_steps": 8}, train_dataset=Lazy(Stream), callbacks=Lazy(lambda: [TwentyEpochs()])
        ),
        is_wrong=lambda trainer: trainer.state.global_step == 0,
    ),
    Fails(
        STRATEGIES,
        "fsdp_sharding",
        "is not a list of names",
        attempt=arguments_of({"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": 3}}),
    ),
    Fails(
        STRATEGIES,
        "fsdp_sharding",
        "is not a number",
        attempt=arguments_of(
            {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": "many"}}
        ),
    ),
    Fails(STRATEGIES, "_mesh_sizes", "give a dict of sizes", attempt=trains({"parallelism_config": [2, 2]})),
    Fails(
        "portico/seq2seq.py",
        "Seq2SeqTrainer.__init__",
        attempt=lambda library, folder: library.Seq2SeqTrainer(
            Line(), library.TrainingArguments(str(folder), **QUIET)
        ),
    ),
    Fails(
        "portico/seq2seq.py",
        "_check_generation",
        attempt=evaluates({"predict_with_generate": True}, kind="Seq2Seq", compute_metrics=lambda result: {}),
    ),
    Fails(
        "portico/seq2seq.py",
        "Seq2SeqTrainer.load_generation_config",
        "give a `GenerationConfig`",
        attempt=trains({"generation_config": 3}, kind="Seq2Seq", model=Lazy(tiny_bert)),
    ),
    # ---- Checkpoints ----
    Fails(
        "portico/checkpoint/writer.py",
        "make_run_folder",
        "names no folder",
        attempt=lambda library, folder: make(library, ""),
    ),
    Fails("portico/checkpoint/writer.py", "make_run_folder", "cannot be made", attempt=file_as_folder(trains())),
    Fails(
        "portico/checkpoint/resume.py",
        "find_checkpoint",
        error="_no_checkpoint",
        attempt=lambda library, folder: make(library, folder).train(resume_from_checkpoint=True),
    ),
    Fails("portico/checkpoint/resume.py", "refuse_missing_checkpoint", "is a <name>", attempt=resumes(1)),
    Fails("portico/checkpoint/resume.py", "refuse_missing_checkpoint", "is a string", attempt=resumes("true")),
    Fails("portico/checkpoint/resume.py", "refuse_missing_checkpoint", "Can't find", attempt=resumes("checkpoint-7")),
    Fails(
        "portico/checkpoint/resume.py",
        "_check_options",
        "holds the state of another",
        attempt=resumes_another_optimizer,
    ),
    Fails("portico/checkpoint/manifest.py", "refuse_damaged", "so the step at", attempt=resumes_damaged),
    # ---- Settings of accelerate ----
    Fails(
        "portico/distributed/settings.py",
        "read_settings",
        "cannot be read",
        attempt=trains({"accelerator_config": "none.json"}),
    ),
    Fails(
        "portico/distributed/settings.py", "_refuse_unknown", attempt=trains({"accelerator_config": {"batches": 1}})
    ),
    Fails(
        "portico/distributed/settings.py",
        "apply_accelerator_settings",
        "`num_steps` is set",
        attempt=trains(
            {
                "gradient_accumulation_steps": 3,
                "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}},
            }
        ),
    ),
    Fails(
        "portico/distributed/settings.py",
        "refuse_missing_state",
        attempt=without_state(trains({"accelerator_config": {"use_configured_state": True}})),
    ),
    Fails(
        "portico/distributed/model_parallel.py",
        "ShardedStrategy.set_world_ranks",
        "Using fsdp",
        attempt=trains({"fsdp": True}),
    ),
    Fails(
        VALIDATION,
        "check_part_types",
        "`lightning_callbacks` holds",
        peer="lightning",
        attempt=fits(callbacks=[Eventless()]),
    ),
    Fails(VALIDATION, "check_part_types", "`loggers` holds", peer="lightning", attempt=fits(logger=[Eventless()])),
    Fails(VALIDATION, "check_part_types", "`plugins` holds", peer="lightning", attempt=fits(plugins=[Eventless()])),
    Fails(VALIDATION, "check_lightning_kwargs", "does not have", peer="lightning", attempt=fits({"max_epoch": 3})),
    Fails(
        VALIDATION,
        "check_lightning_kwargs",
        "`, which cannot be used",
        peer="lightning",
        attempt=fits({"limit_train_batches": -1}),
    ),
    Fails("portico/loop/run.py", "_naming", peer="lightning", attempt=fits({"max_time": "soon"})),
    Fails(
        "portico/loop/plan.py",
        "limit_batches",
        "leaves none",
        peer="lightning",
        attempt=fits({"limit_train_batches": 0.01}),
    ),
    Fails("portico/checkpoint/weights.py", "_fitting", attempt=resumes_as(Wider)),
)


SCALE, CHECKPOINTS, SECURITY = "docs/scale.md", "docs/concepts/checkpoints.md", "SECURITY.md"
MIGRATION = "docs/guides/from_hugging_face.md"
DAMAGE = "is truncated or cannot be read | damage | is refused"

NAMED = (
    Named(
        "portico/distributed/processes.py",
        "kill_children_on_error",
        page=SCALE,
        sentence="If a process fails or is killed, the others end too",
    ),
    Named(
        CORE,
        "TrainerCore.refuse_uncalled_hooks",
        "never called here",
        page=MIGRATION,
        sentence="Overriding a method that portico does not call is an error",
    ),
    Named(
        VALIDATION,
        "refuse_cast_of_shards",
        page=SCALE,
        sentence="so is an evaluation with `bf16_full_eval` or `fp16_full_eval` after the training",
    ),
    Named(
        STRATEGIES,
        "_fsdp_strategy",
        page=SCALE,
        sentence='`optim="adafactor"` is refused, since it needs full weights',
    ),
    Named(VALIDATION, "check_async_save", page=SCALE, sentence="so uploading each save is refused"),
    Named(
        MODEL_PARALLEL,
        "check_model",
        "says nothing of adapters",
        page=SCALE,
        sentence="with `tp_size` they are refused",
    ),
    Named(MODEL_PARALLEL, "check_model", "does not have", page=SCALE, sentence="models without one are refused"),
    Named(
        MODEL_PARALLEL,
        "ShardedStrategy.set_world_ranks",
        "The mesh of",
        page=SCALE,
        sentence="The product of the sizes must be the number of processes",
    ),
    Named(
        STRATEGIES,
        "_mesh_sizes",
        "both split attention",
        page=SCALE,
        sentence="`sp_size` or `cp_size` together with `tp_size` is refused",
    ),
    Named(
        SEQUENCES,
        "check_sequences",
        page=SCALE,
        sentence="The model must have sdpa or eager attention, and with `sp_size` a number of heads that it divides",
    ),
    Named(
        SEQUENCES,
        "SplitSequences.check",
        page=SCALE,
        sentence="Models whose loss or logits then differ are refused",
    ),
    Named(
        SEQUENCES,
        "_Part.",
        page=SCALE,
        sentence="So are batches with an input that is not a value for each token",
    ),
    Named(DEEPSPEED, "EngineStrategy.check", page=SCALE, sentence="`optimizers=`, `ModelCheckpoint` | refused"),
    Named(
        DEEPSPEED,
        "EngineStrategy.save_checkpoint",
        page=SCALE,
        sentence="`optimizers=`, `ModelCheckpoint` | refused",
    ),
    Named(
        DEEPSPEED,
        "engine_strategy",
        "both set",
        page=SCALE,
        sentence="`async_save`, `auto_find_batch_size`, `torch_compile`, `stop_on_nan`, `parallelism_config`",
    ),
    Named(
        DEEPSPEED,
        "EngineConfig.__init__",
        "not supported here",
        page=SCALE,
        sentence="universal checkpoints and other writers of checkpoints in the configuration | refused",
    ),
    Named(
        "portico/checkpoint/engine_files.py",
        page=SCALE,
        sentence="a run resumes at the same stage and on the same number of processes",
    ),
    Named(
        "portico/distributed/placement.py",
        "_check_launched",
        page=SCALE,
        sentence="Under a launcher, the numbers of devices and machines are those of the launcher",
    ),
    Named(
        "portico/data/loaders.py",
        "StreamShardsLoader",
        page=SCALE,
        sentence="an evaluation refuses files of different lengths",
    ),
    Named("portico/checkpoint/manifest.py", "refuse_damaged", "is damaged", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/manifest.py", "reading", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/manifest.py", "_find_objection", page=CHECKPOINTS, sentence=DAMAGE),
    Named(
        "portico/checkpoint/manifest.py",
        "list_shards",
        page=CHECKPOINTS,
        sentence="the file is refused, or the result is equal",
    ),
    Named("portico/checkpoint/manifest.py", "refuse_oversized_model", page=CHECKPOINTS, sentence="within a minute"),
    Named("portico/checkpoint/resume.py", "_check_state", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/resume.py", "_check_alike", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/resume.py", "_check_options", error="ValueError", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/sharded.py", "_build_state_dict", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/sharded.py", "_open_shards", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/checkpoint/writer.py", "_restore_callback", page=CHECKPOINTS, sentence=DAMAGE),
    Named("portico/trust/", page=SECURITY, sentence="`torch.load(weights_only=True)`, which is refused where"),
    Named(
        "portico/data/sources.py",
        "_refuse_files_elsewhere",
        page=SECURITY,
        sentence="so is a stored dataset that names files elsewhere",
    ),
    Named(
        "portico/data/sources.py",
        "_LimitedGzipFile",
        page=SECURITY,
        sentence="a gzip file that grows more than a hundredfold, beyond 64 MiB, is refused",
    ),
    Named(
        "portico/distributed/settings.py",
        "apply_accelerator_settings",
        "`accelerator_config={'use_conf",
        page=MIGRATION,
        sentence="an `Accelerator` with another device, precision or number of processes is refused",
    ),
    Named(
        DEEPSPEED,
        "engine_strategy",
        "`save_on_each_node=True`",
        page=SCALE,
        sentence="`save_on_each_node` at stage 3 | refused: only the first process gathers the weights",
    ),
    Named(
        "portico/distributed/launchers.py",
        "join_mpi",
        "start as many on each",
        page=SCALE,
        sentence="as many processes on each machine; other numbers are refused",
    ),
    Named(
        MODEL_PARALLEL,
        "check_model",
        "sharded already",
        page=SCALE,
        sentence="A trainer without sharding refuses a model that an earlier trainer has sharded",
    ),
    # In transformers the first forward pass ends in "shape '[2, 6, -1, 8]' is invalid for input of size 48".
    Named(
        MODEL_PARALLEL,
        "_check_heads",
        page=SCALE,
        sentence="so is a `tp_size` that does not divide the number of attention heads",
    ),
    Named(
        "portico/distributed/processes.py",
        "begin_call",
        page=SCALE,
        sentence="Calls that differ between processes, such as `evaluate` on the first process only, raise an error",
    ),
    Named(
        STRATEGIES, "_mesh_sizes", "`pp_size=", page=SCALE, sentence="with a `pp_size` (pipeline parallelism), it is"
    ),
    Named(
        "portico/hp_search.py",
        "check_search",
        "trains each trial on one",
        page=MIGRATION,
        sentence="Ray and Weights & Biases optimise one objective, and train each trial in one process",
    ),
    Named(
        "portico/loop/model_setup.py",
        "refuse_unusable_quantized_weights",
        "cannot be copied",
        page="docs/comparison.md",
        sentence="weights of torchao in several processes, where transformers fails too",
    ),
    Named(
        "portico/distributed/accelerator.py",
        "Accelerator.__getattr__",
        page=MIGRATION,
        sentence="trainer.accelerator",
    ),
)

TRAINING, ARGS = "transformers.trainer", "transformers.training_args"
PARALLELISM = "accelerate.parallelism_config"
OF_DEEPSPEED = "transformers.integrations.deepspeed"

SAYS = (
    Says(
        DEEPSPEED,
        "EngineConfig.__init__",
        "`zero_optimization=",
        peer="accelerate.utils.dataclasses",
        sentence="Please specify the ZeRO optimization config in the DeepSpeed config",
    ),
    Says(
        "portico/distributed/launchers.py",
        "join_mpi",
        "on several machines",
        peer="accelerate.state",
        sentence="`MASTER_ADDR` env was not set",
    ),
    # A list has no first three letters that Ray knows: it fails after all trials.
    Says(
        "portico/hp_search.py",
        "check_search",
        "is a list, but",
        peer="transformers.integrations.integration_utils",
        sentence="mode=direction[:3]",
    ),
    Says(
        "portico/checkpoint/weights.py",
        "load_adapters",
        peer=TRAINING,
        sentence="Can't find a valid checkpoint at",
    ),
    Says(
        STRATEGIES,
        "resolve_sharding",
        "choose a strategy",
        peer=TRAINING,
        sentence="together with --deepspeed is not",
    ),
    Says(
        STRATEGIES,
        "_normalize_fsdp",
        "does not shard",
        peer=ARGS,
        sentence="is only available with FSDP1",
    ),
    Says("portico/distributed/settings.py", "read_number", peer=ARGS, sentence="timedelta(seconds=self.ddp_timeout)"),
    Says(STRATEGIES, "_normalize_fsdp", "has the word", peer=ARGS, sentence="Unknown `fsdp` option"),
    Says(STRATEGIES, "_one_of", peer=ARGS, sentence="`auto_wrap_policy` must be one of"),
    Says(
        STRATEGIES,
        "_parse_sharing",
        peer=PARALLELISM,
        sentence="and Sequence Parallelism (SP) are mutually exclusive",
    ),
    Says(STRATEGIES, "_mesh_sizes", "is not a number of", peer=PARALLELISM, sentence="must be at least 1, but got"),
    Says(STRATEGIES, "refuse_other_replicas", "does not divide", peer=PARALLELISM, sentence="does not match"),
    Says(STRATEGIES, "refuse_other_replicas", "asks for", peer=PARALLELISM, sentence="does not match"),
    Says(
        MODEL_PARALLEL,
        "Sharding.layers",
        peer="accelerate.utils.fsdp_utils",
        sentence="Could not find the transformer layer class",
    ),
    Says(
        DEEPSPEED,
        "EngineConfig.fill",
        peer=OF_DEEPSPEED,
        sentence="Please correct the following DeepSpeed config values that mismatch TrainingArguments",
    ),
    Says(
        DEEPSPEED,
        "engine_strategy",
        "along with `load_best_model_at_end`",
        peer=TRAINING,
        sentence="can't be used with `save_only_model` along with `load_best_model_at_end`",
    ),
    Says(
        "portico/data/loaders.py",
        "prepare_data_loader",
        peer="accelerate.data_loader",
        sentence="needs to be a round multiple of the number of processes",
    ),
    Says(
        "portico/data/loaders.py",
        "_concatenate",
        peer="accelerate.data_loader",
        sentence="You can't use batches of different size with `dispatch_batches=True`",
    ),
    Says(
        "portico/data/loaders.py",
        "DataLoaderDispatcher",
        peer="accelerate.data_loader",
        sentence="Batch does not contain any data",
    ),
    Says(
        "portico/distributed/accelerator.py",
        "Accelerator._part_of",
        peer="accelerate.state",
        sentence="All values in the dictionary must have the same length",
    ),
    Says(
        "portico/distributed/processes.py",
        "count_launched_processes",
        peer="lightning.fabric.plugins.environments.slurm",
        sentence="in your SLURM bash script, but this variable is not supported",
    ),
    Says(
        "portico/hp_search.py",
        "select_backend",
        "No hyperparameter",
        peer="transformers.hyperparameter_search",
        sentence="No hyperparameter search backend available",
    ),
    Says(TRAINER, "Trainer._evaluate", peer=TRAINING, sentence="Evaluation hit an out-of-memory error"),
    Says(
        "portico/loop/model_setup.py",
        "retry_with_smaller_batches",
        peer="accelerate.utils.memory",
        sentence="No executable batch size found, reached zero",
    ),
    Says(
        VALIDATION,
        "refuse_untrainable_quantized",
        peer="transformers.trainer_utils",
        sentence="You cannot perform fine-tuning on purely quantized models",
    ),
    Says(
        "portico/seq2seq.py",
        "find_padding_token",
        peer="transformers.trainer_seq2seq",
        sentence="Pad_token_id must be set in the configuration of the model",
    ),
    Says(
        "portico/seq2seq.py",
        "Seq2SeqTrainer.load_generation_config",
        "cannot be saved",
        peer="transformers.trainer_seq2seq",
        sentence="Fix these issues to train your model",
    ),
    Says(
        "portico/compat/transformers.py",
        "optimizer_cls_and_kwargs",
        peer=TRAINING,
        sentence="Trainer cannot instantiate unsupported optimizer",
    ),
    Says(
        "portico/checkpoint/sharded.py",
        "find_weight_files",
        peer=TRAINING,
        sentence="Can't find a valid checkpoint at",
    ),
    Says(
        "portico/checkpoint/sharded.py",
        "load_weight_slices",
        peer="torch.nn.modules.module",
        sentence="size mismatch for",
    ),
    Says(
        "portico/checkpoint/sharded.py",
        "_check_names",
        peer="torch.optim.optimizer",
        sentence="loaded state dict contains a parameter group that doesn't match the size",
    ),
    Says(
        "portico/checkpoint/sharded.py",
        "shard_optimizer_state",
        peer="torch.optim.optimizer",
        sentence="loaded state dict contains a parameter group that doesn't match the size",
    ),
    Says(
        "portico/checkpoint/resume.py",
        "load_optimizer_and_scheduler",
        peer="torch.optim.optimizer",
        sentence="loaded state dict contains a parameter group that doesn't match the size",
    ),
)

FACADE = "an argument of portico's trainer that names parts of Lightning"
COMMANDS = "a command of portico, its keys and its files"
READING = "files of questions and records, which portico's commands and readers parse themselves"


def ours(module: str, reason: str, *functions: str) -> tuple[Ours, ...]:
    """Return an entry for each of the functions, or for the whole module, that one reason is true of."""
    return tuple(Ours(module, function, reason=reason) for function in functions or ("",))


COMMAND_LINE = (
    *ours("portico/cli/app.py", "the objective of a sweep"),
    *ours("portico/cli/composition.py", "settings that Hydra composes"),
    *ours("portico/cli/errors.py", "names the key of an error of another room"),
    *ours("portico/experiments/experiment.py", "blocks and scores that settings name"),
    *ours("portico/cli/folders.py", "the folder of a run of the command, and the settings recorded in it"),
    *ours("portico/cli/jobs.py", "jobs of a sweep"),
    *ours("portico/experiments/settings.py", "keys of an experiment"),
    *ours("portico/cli/studies.py", "the study file of a sweep"),
    *ours("portico/cli/sweeps.py", "folders of a sweep"),
    *ours("portico/inspection/install.py", "options of `portico.install`"),
    *ours("portico/inspection/recorder.py", "scripts to record, which train with transformers"),
    *ours("portico/commands/replay.py", "the command `portico replay`"),
    *ours("portico/inspection/replay.py", "the command `portico replay`"),
    *ours("portico/commands/run.py", "options of the command `portico run`"),
    *ours("portico/inspection/script.py", "the script that a command names"),
    *ours("portico/inspection/verification.py", "the command `portico verify`"),
    *ours("portico/inspection/records.py", "the folder in which `portico verify` lets a script write"),
    *ours("portico/commands/verify.py", "the command `portico verify`"),
    *ours("portico/commands/preflight.py", "the command `portico preflight`"),
    *ours("portico/inspection/script_rehearsal.py", "the command `portico preflight`"),
    *ours("portico/inspection/rehearsal.py", "ends a script in rehearsal"),
    *ours("portico/inspection/shelter.py", "the view of the disk of a rehearsal"),
    *ours("portico/inspection/data_check.py", "is what Python asks of a container"),
    *ours("portico/report/page.py", "the file that a command names"),
)

# The scripts in `examples/pytorch` of transformers, without keys of a command and without pages.
NO_KEY, LATER = "a key of the command line", "the script fails later, at the record"
OF_TASKS = (
    *ours("portico/tasks/classification.py", NO_KEY, "TextClassification.__post_init__", "TextClassification.adapt"),
    *ours(
        "portico/tasks/classification.py",
        "`run_glue.py` gives the model one label, for which it computes a regression of strings",
        "TextClassification.classes",
    ),
    *ours(
        "portico/tasks/classification.py",
        "`run_ner.py` takes the tag of each word by its number: an IndexError, or tags of other words",
        "TokenClassification.features",
    ),
    *ours("portico/tasks/classification.py", "the loss of `run_swag.py` has no such class", "MultipleChoice._right"),
    *ours("portico/tasks/data.py", "keys of the command line, and files that it reads", "TaskData.load", "records_of"),
    *ours("portico/tasks/experiment.py", LATER, "TaskExperiment._load"),
    *ours("portico/tasks/images.py", "`datasets` finds no pictures there, or cannot decode them"),
    *ours(
        "portico/tasks/language_modeling.py",
        "`group_texts` of `run_clm.py` makes no block of fewer tokens, and training on none fails",
        "LanguageModeling.build_features",
    ),
    *ours("portico/tasks/language_modeling.py", "a mode of the command line", "LanguageModeling.predict"),
    *ours("portico/tasks/task.py", LATER, "Task.classes", "Task.label_id", "value_of", "refuse_missing_label"),
    *ours("portico/tasks/text_to_text.py", "`Seq2SeqTrainer` fails at a model without `generate`", "TextToText.adapt"),
    *ours("portico/tasks/text_to_text.py", "its tokenizer refuses anything but strings", "_string"),
    *ours("portico/tasks/text_to_text.py", "a missing package", "_rouge"),
    *ours("portico/data/sentences.py", "a missing package"),
)

RECORD = "`run_qa` and PrimeQA fail at such a record, or label the wrong words; `skip_invalid` leaves it out"
IN_PRIMEQA = "primeqa.mrc.processors"
OF_READING = (
    *ours("portico/mrc/datasets/base_schema.py", RECORD),
    *ours("portico/mrc/datasets/examples.py", RECORD),
    *ours("portico/mrc/datasets/fid.py", RECORD),
    *ours("portico/mrc/datasets/mrqa.py", RECORD),
    *ours("portico/mrc/datasets/natural_questions.py", RECORD),
    *ours("portico/mrc/datasets/records.py", RECORD),
    *ours("portico/mrc/datasets/squad.py", RECORD),
    *ours("portico/mrc/datasets/values.py", RECORD),
    *ours(
        "portico/mrc/datasets/reader.py",
        "`run_qa` stores one answer for each id, so the others would have none",
        "_UniqueIds.claim",
    ),
    *ours("portico/mrc/datasets/reader.py", "files that only portico reads", "format_named", "_read"),
    *ours("portico/mrc/corpus/generator.py", "a generated corpus"),
    *ours("portico/mrc/config.py", "keys of the command line"),
    *ours("portico/mrc/demo.py", "the command `portico demo`"),
    *ours("portico/mrc/experiment.py", "keys and modes of the command line, and blocks that it names"),
    # ---- Features ----
    *ours(
        "portico/mrc/features/featurizer.py",
        "the embedding of positions has no such row: an IndexError",
        "check_window",
    ),
    *ours("portico/mrc/features/labels.py", "a `KeyError` of `TargetType` in PrimeQA", "TargetType.from_bool_label"),
    Says(
        "portico/mrc/features/labels.py",
        "Subsampling.__init__",
        peer=f"{IN_PRIMEQA}.preprocessors.abstract",
        sentence="Expected 0 <= negative_sampling_prob_when_has_answer <= 1 but got",
    ),
    Says(
        "portico/mrc/features/labels.py",
        "Subsampling.refuse_nothing",
        peer=f"{IN_PRIMEQA}.preprocessors.base",
        sentence="No features remaining after subsampling",
    ),
    *ours("portico/mrc/features/labels.py", "`run_qa` fails at `answers` without a start", "gold_of_example"),
    *ours("portico/mrc/features/storage.py", "stored features, which only portico has"),
    *ours("portico/mrc/features/windows.py", "the end of a sequence, as of any other in Python"),
    *ours(
        "portico/mrc/features/tokenization.py",
        "`run_qa` refuses slow tokenizers, and `tokenizers` a stride that leaves no room or no examples",
    ),
    # ---- Models ----
    *ours("portico/experiments/from_scratch.py", "keys of the command line"),
    *ours("portico/mrc/models/small_bert.py", "the small reader of the command line"),
    *ours("portico/mrc/models/loading.py", "keys of the command line, and folders of models that it reads"),
    *ours("portico/mrc/models/heads.py", "the head would have other shapes, or the standard deviation of one number"),
    *ours("portico/mrc/models/fusion_in_decoder.py", "PrimeQA has one head for it, and T5's decoder needs an input"),
    *ours("portico/mrc/models/task_model.py", "PrimeQA raises a `KeyError` of the head, or fails at the encoder"),
    # ---- Metrics, post-processing ----
    *ours("portico/mrc/metrics/rouge.py", "a choice of the metric, a missing package, or nothing to compare with"),
    Says(
        "portico/mrc/metrics/scores.py",
        "mlqa_normalization",
        peer="primeqa.mrc.metrics.mlqa.mlqa_evaluation_v1",
        sentence="Unknown Language {}",
    ),
    Says(
        "portico/mrc/metrics/spans.py",
        "valid_span",
        peer="primeqa.mrc.metrics.tydi_f1.eval_utils",
        sentence="Inconsistent Null Spans (Byte).",
    ),
    Says(
        "portico/mrc/metrics/spans.py",
        "yes_no_word",
        peer="primeqa.mrc.metrics.nq_f1.eval_utils",
        sentence="Invalid yes_no_answer value in prediction",
    ),
    Says(
        "portico/mrc/metrics/spans.py",
        "SpanRules.outcomes",
        peer="primeqa.mrc.metrics.nq_f1.nq_eval",
        sentence="in the prediction are not equal.",
    ),
    Says(
        "portico/mrc/metrics/spans.py",
        "SpanRules._read_prediction",
        "and with a span",
        peer="primeqa.mrc.metrics.nq_f1.eval_utils",
        sentence="yes/no prediction and short answers cannot coexist.",
    ),
    Ours(
        "portico/mrc/metrics/spans.py",
        "SpanRules._read_prediction",
        "not a number",
        reason="scores without an order have no best threshold",
    ),
    *ours("portico/mrc/metrics/spans.py", "PrimeQA fails at the field of the annotation", "SpanRules._read_reference"),
    *ours(
        "portico/mrc/metrics/squad.py",
        "the official scripts fail: `max` of no gold answer, a `KeyError` of a question without prediction in the "
        "groups of version 2.0, a division by no question",
    ),
    *ours("portico/mrc/postprocess/calibration.py", "calibration, which only portico has"),
    Says(
        "portico/mrc/postprocess/ranking.py",
        "initialize_scorer",
        "Unknown",
        peer=f"{IN_PRIMEQA}.postprocessors.scorers",
        sentence="Unsupported scorer type: %s",
    ),
    Says(
        "portico/mrc/postprocess/ranking.py",
        "initialize_scorer",
        "out of range",
        peer=f"{IN_PRIMEQA}.postprocessors.scorers",
        sentence="How much weight [0-1] to put on target type logits",
    ),
    *ours("portico/mrc/postprocess/ranking.py", "PrimeQA fails at the missing logits", "ScoreDifference."),
    *ours("portico/mrc/postprocess/search.py", "`postprocess_qa_predictions` fails at these arrays, or ranks NaN"),
    *ours("portico/mrc/postprocess/span_postprocessing.py", "keys of the post-processing, which only portico has"),
    *ours(
        "portico/mrc/postprocess/streaming.py",
        "`postprocess_qa_predictions` raises a `ValueError` for a wrong number of arrays or of features",
    ),
    *ours(
        "portico/mrc/postprocess/token_offsets.py",
        "`postprocess_qa_predictions` fails at an example without features, a feature without example or offsets",
    ),
    # ---- PrimeQA's classes ----
    *ours("portico/mrc/primeqa/confidence.py", "joblib fails at a missing file"),
    *ours("portico/mrc/primeqa/metrics.py", "PrimeQA's `compute` with half of its arguments", "CollectingMetric"),
    Says(
        "portico/mrc/primeqa/metrics.py",
        "MLQA._scores",
        peer="primeqa.mrc.metrics.mlqa.mlqa",
        sentence="No dataset config name provided",
    ),
    Says(
        "portico/mrc/primeqa/postprocessors.py",
        "_read_offsets",
        peer=f"{IN_PRIMEQA}.postprocessors.extractive",
        sentence="Example id mismatch between example",
    ),
    Says(
        "portico/mrc/primeqa/postprocessors.py",
        "ExtractivePostProcessor.check_outputs",
        peer=f"{IN_PRIMEQA}.postprocessors.extractive",
        sentence="Size mismatch withing {len(features)} features and predictions",
    ),
    *ours(
        "portico/mrc/primeqa/postprocessors.py",
        "PrimeQA's offsets would name other characters, or an index is out of range",
        "NaturalQuestionsPostProcessor.completed",
        "ELI5FiDPostProcessor.process",
    ),
    *ours("portico/mrc/primeqa/preprocessors.py", "an abstract class", "AbstractPreProcessor._process_batch"),
    Says(
        "portico/mrc/primeqa/preprocessors.py",
        "AbstractPreProcessor._process",
        "examples to process",
        peer=f"{IN_PRIMEQA}.preprocessors.base",
        sentence="No examples to process",
    ),
    Says(
        "portico/mrc/primeqa/preprocessors.py",
        "BasePreProcessor.validate_schema",
        peer=f"{IN_PRIMEQA}.preprocessors.base",
        sentence="Feature type mismatch for feature",
    ),
    Says(
        "portico/mrc/primeqa/preprocessors.py",
        "BasePreProcessor._contexts",
        peer=f"{IN_PRIMEQA}.preprocessors.base",
        sentence="Must have exactly one context for each question",
    ),
    *ours(
        "portico/mrc/primeqa/preprocessors.py",
        "PrimeQA fails at the column, or trains on no example",
        "ELI5FiDPreprocessor.",
    ),
    *ours("portico/mrc/primeqa/reader.py", "PrimeQA needs offsets and a loaded model; other settings are portico's"),
    *ours("portico/mrc/report/command.py", "the command `portico report`"),
    *ours("portico/mrc/report/comparison.py", "the command `portico compare`"),
    *ours("portico/mrc/distillation.py", "distillation, whose settings only portico has"),
    *ours("portico/mrc/inference.py", "`Reader`, whose settings only portico has, and forms that no pipeline took"),
    *ours("portico/mrc/multi_source.py", "PrimeQA's sampler divides by an empty dataset, or fails at the other list"),
    *ours("portico/mrc/packing.py", "packing, which only portico has"),
    *ours("portico/mrc/trainer.py", "the trainers of `run_qa` and PrimeQA fail without examples, features or columns"),
)

IPUS, SIZES = "docs/ipu.md", "batch sizes below 1, a loss scaling that is not positive, a negative `max_grad_norm`"
GRAPHCORE = "optimum.graphcore"


def on_ipus(module: str, sentence: str, *functions: str, part: str = "") -> tuple[Named, ...]:
    """Return an entry for each of the functions, of what the table of docs/ipu.md names as not supported."""
    return tuple(
        Named(f"portico/ipu/{module}.py", one, part, page=IPUS, sentence=sentence) for one in functions or ("",)
    )


OF_IPUS = (
    *ours("portico/ipu/accelerator.py", "Lightning's `accelerator` and `devices`, which chose no IPUs"),
    *on_ipus("arguments", SIZES, "_check", part="`loss_scaling="),
    *on_ipus("arguments", "other values of `accelerator` or `strategy`", "_check", part="does not choose IPUs"),
    *on_ipus("arguments", "`optim`, and optimizers without a counterpart", "_check", part="does not exist on IPUs"),
    *on_ipus("arguments", "| `auto_find_batch_size` |", "_check", part="is not supported on IPUs"),
    Says(
        "portico/ipu/arguments.py",
        "_check",
        "Unknown `dataloader_mode=",
        peer=f"{GRAPHCORE}.training_args",
        sentence="DataLoaderMode(dataloader_mode_mapping[self.dataloader_mode])",
    ),
    Ours(
        "portico/ipu/arguments.py", "resolve_config", "is a <name>", reason="optimum-graphcore asks it for attributes"
    ),
    *on_ipus("arguments", "an error names both numbers", "resolve_config", part="is not a multiple"),
    *ours("portico/ipu/backend.py", "a `poptorch` that cannot be imported, or lacks the name"),
    Says(
        "portico/ipu/config.py",
        "ConfigAttribute.validate",
        "Setting",
        peer=f"{GRAPHCORE}.ipu_configuration",
        sentence="Setting `IPUConfig` attribute: {name}, type: {attr_type}",
    ),
    Says(
        "portico/ipu/config.py",
        "ConfigAttribute.validate",
        "must <allowed>",
        peer=f"{GRAPHCORE}.ipu_configuration",
        sentence="must have all elements >= {floor_value}",
    ),
    *(
        Says("portico/ipu/config.py", function, part, peer=f"{GRAPHCORE}.ipu_configuration", sentence=sentence)
        for function, part, sentence in (
            ("_check_output_mode", "", "`IPUConfig` attribute `output_mode` can only take values in"),
            ("_check_splits", "atleast 1 split", "must have atleast 1 split on 1 IPU."),
            ("_check_splits", "consecutive", "must have its splits on consecutive IPUs."),
            ("_check_combination", "does not match", "same number of IPUs as {ipus_per_replica_mode_str}"),
            ("_check_combination", "Only one of", "Only one of `{mode_layer_serialisation_factor_str}` and"),
            ("IPUConfig.__init__", "", "IPUConfig received unknown arguments"),
            ("IPUConfig.mode", "", "`IPUConfig` mode can only take values in"),
            ("IPUConfig.to_options", "", "This requires an IPU Mk2 system to run."),
        )
    ),
    *ours(
        "portico/ipu/config.py",
        "as an attribute that any object lacks, or a string of overrides that optimum-graphcore cannot read either",
        "ConfigAttribute.parse",
        "_parse",
        "IPUConfig.__getattr__",
        "IPUConfig.update",
    ),
    *ours("portico/ipu/config.py", "no such file, as in optimum-graphcore", "IPUConfig.from_pretrained"),
    *ours("portico/ipu/data.py", "`poptorch.DataLoader` makes its own batches of a dataset", "poptorch_loader"),
    *ours("portico/ipu/gradient_descent.py", "AllenNLP does not train on IPUs", "IPUGradientDescentTrainer", "_check"),
    *ours("portico/ipu/mrc.py", "a program has one shape", "IPUMRCExperiment"),
    Says(
        "portico/ipu/optim.py",
        "OptimizerConversion.counterpart",
        peer=f"{GRAPHCORE}.trainer",
        sentence="Could not find a PopTorch counterpart for optimizer",
    ),
    *on_ipus("optim", "an optimizer of another model's parameters", "OptimizerConversion.find_trained_parameters"),
    *on_ipus("optim", "(`amsgrad`, `maximize`, `nesterov`, Adagrad, LBFGS, ...)", "_check_convertible"),
    *on_ipus("pipelining/placement", "shared layers (ALBERT), or a model without layers", "plan_placement"),
    *on_ipus(
        "pipelining/placement",
        "modules or IPUs in `parallelize_kwargs` that do not exist",
        "_check_options",
        "layer_names",
    ),
    *ours("portico/ipu/pipelining/placement.py", "PopTorch compiles no weight on two IPUs", "_parameters"),
    *(
        Says(
            "portico/ipu/pipelining/placement.py",
            function,
            part,
            peer=f"{GRAPHCORE}.modeling_utils",
            sentence=sentence,
        )
        for function, part, sentence in (
            ("_layer_counts", "non-default value", "has a non-default value set, but its length does not match"),
            ("_layer_counts", "correct number", "does not define the correct number of layers for the current model."),
            ("split_encoder_decoder_ipu_config", "at least 2", "to be at least 2 to split ipu_config into encoder"),
            ("split_encoder_decoder_ipu_config", "Unable", "Unable to find a valid split of ipu_config."),
            ("_part_of", "", "must have all splits placed on the encoder, but"),
        )
    ),
    *ours(
        "portico/ipu/pipelining/serialization.py",
        "tied weights in other pieces, or more pieces than rows, which optimum-graphcore cannot make",
        "serialize",
        "_split",
    ),
    *ours("portico/ipu/precision.py", "Lightning's precision, of which IPUs have two", "IPUPrecision.__init__"),
    *ours("portico/ipu/precision.py", "Lightning's precision, of which IPUs have two", "IPUPrecision.convert"),
    *ours("portico/ipu/precision.py", "a program updates the weights in every call", "IPUPrecision.optimizer_step"),
    Says(
        "portico/ipu/program.py",
        "DeviceProgram.forward",
        peer=f"{GRAPHCORE}.trainer",
        sentence="The model did not return a loss from the inputs, only the following keys",
    ),
    *ours("portico/ipu/program.py", "Lightning's steps inside a program", "TracedStep.forward"),
    *ours("portico/ipu/strategy.py", "Lightning's options and hooks, which a program cannot follow"),
    Says(
        "portico/ipu/trainer.py",
        "IPUMixin.train",
        peer=f"{GRAPHCORE}.trainer",
        sentence="Hyperparameter tuning is not supported by the IPUTrainer.",
    ),
    *on_ipus("trainer", "`model_init`, hyperparameter search", "IPUMixin.hyperparameter_search"),
    Says(
        "portico/ipu/trainer.py",
        "IPUMixin.get_train_dataloader",
        peer=f"{GRAPHCORE}.trainer",
        sentence="Couldn't get first sample from dataloader, please check for warnings",
    ),
    *ours("portico/ipu/trainer.py", "a program was compiled for batches of one size", "IPUMixin.call_model"),
    Ours("portico/ipu/trainer.py", "_check_construction", "`args` is", reason="optimum-graphcore asks it for `n_ipu`"),
    *(
        Says("portico/ipu/trainer.py", "_check_construction", part, peer=f"{GRAPHCORE}.trainer", sentence=sentence)
        for part, sentence in (
            ("`model_init` is", "`model_init` is not supported by `IPUTrainer` yet"),
            ("requires a", "`IPUTrainer` requires either a `model` or `model_init` argument"),
        )
    ),
)

OF_ONNX_RUNTIME = (
    *ours("portico/ort/accelerator.py", "Lightning's `accelerator='ort'`, under which torch would compute"),
    *ours("portico/ort/api.py", "`portico.ort.compile` and its `strict`; the user's own exception, raised again"),
    Ours(
        "portico/ort/arguments.py",
        "ORTTrainingArguments",
        "`optim=",
        reason="optimum: `ORTTrainer cannot instantiate unsupported optimizer`",
    ),
    Ours(
        "portico/ort/arguments.py", "ORTTrainingArguments", "`onnx_log_level=", reason="ONNX Runtime has no such level"
    ),
    Ours("portico/ort/arguments.py", "ORTTrainingArguments", "`onnx_prefix=", reason="an argument that optimum lacks"),
    *ours("portico/ort/compiler/backend.py", "caught by the compiler itself"),
    *ours("portico/ort/compiler/graph.py", "caught by the compiler itself"),
    *ours("portico/ort/compiler/partition.py", "`strict`, which only portico has"),
    *ours("portico/ort/exporting.py", "`save_onnx`: torch's exporter fails at the same operators and lines"),
    *ours("portico/ort/optim.py", "an optimizer that ONNX Runtime computes on the CPU in float32"),
    *ours("portico/ort/runtime.py", "ONNX Runtime's session fails: no such provider, kernel or folder"),
    *ours("portico/ort/settings.py", "missing packages, and settings of portico's sessions"),
    *ours("portico/ort/strategy.py", "Lightning's `strategy='ort'`"),
    *ours("portico/ort/trainer.py", "optimum asks other arguments for `use_module_with_loss`", "ORTMixin.__init__"),
    *ours("portico/ort/trainer.py", "`save_onnx` traces a batch", "ORTMixin._example_inputs"),
)

DESCENT = "portico/gradient_descent/"
IN_ALLENNLP = "allennlp.training"
CONFIGURATION = "AllenNLP raises a `ConfigurationError` of the same entry of a configuration"
NOTHING = "AllenNLP trains nothing, or diverges"
OF_GRADIENT_DESCENT = (
    *ours(f"{DESCENT}arguments.py", "torch: optimizer got an empty parameter list", "construct_parts"),
    *ours(f"{DESCENT}arguments.py", NOTHING, "check_counts", "check_limits", "check_finite"),
    *ours(
        f"{DESCENT}arguments.py",
        "AllenNLP calls methods that it lacks, trains on no batch, or changes an optimizer that trains nothing",
        "check_trainer_parts",
    ),
    *(
        Says(f"{DESCENT}{module}.py", function, part, peer=f"{IN_ALLENNLP}.{peer}", sentence=sentence)
        for module, function, part, peer, sentence in (
            (
                "arguments",
                "resolve_placement",
                "several devices",
                "trainer",
                "only be assigned a single `cuda_device`",
            ),
            ("arguments", "resolve_placement", "with `world_size", "trainer", "only with more than 1 device. Check"),
            (
                "arguments",
                "resolve_precision",
                "on the CPU",
                "gradient_descent_trainer",
                "AMP requires a cuda device",
            ),
            (
                "callbacks",
                "ConfidenceChecksCallback",
                "",
                "callbacks.confidence_checks",
                "NormalizationBiasVerification",
            ),
            (
                "checkpointer",
                "Checkpointer.check_processes",
                "",
                "checkpointer",
                "not supported in distributed training",
            ),
            (
                "metrics",
                "MetricTracker.__init__",
                "patience",
                "gradient_descent_trainer",
                'invalid value for "patience"',
            ),
            (
                "metrics",
                "MetricTracker.combined_score",
                "",
                "metric_tracker",
                "the model did not produce that metric.",
            ),
            ("metrics", "_parse_metric_name", "must start", "metric_tracker", "metric_name must start with + or -"),
            (
                "optimizers",
                "find_groups",
                "two parameter",
                "optimizers",
                "was specified in two separate parameter groups",
            ),
            ("optimizers", "DenseSparseAdam.__init__", "", "optimizers", "Invalid beta parameter at index 0"),
            (
                "optimizers",
                "_shares",
                "but not 'default'",
                "optimizers",
                "No optimizer was provided for the 'default'",
            ),
            ("optimizers", "_shares", "has no parameters", "optimizers", "did not receive any parameters."),
            (
                "run",
                "LoopTrainer.get_eval_dataloader",
                "",
                "gradient_descent_trainer",
                "cannot be calculated without a",
            ),
            ("run", "LoopTrainer.compute_loss", "", "gradient_descent_trainer", "nan loss encountered"),
            ("run", "restore_training", "", "gradient_descent_trainer", "only supports checkpoints of version 1."),
            ("schedulers", "Scheduler.__init__", "", "scheduler", "missing from param_groups[{i}]"),
            (
                "schedulers",
                "refuse_without_metric",
                "",
                "learning_rate_schedulers.learning_rate_scheduler",
                "must be used with a validation dataset.",
            ),
            (
                "schedulers",
                "PolynomialDecay.__post_init__",
                "is required",
                "learning_rate_schedulers.polynomial_decay",
                "'num_steps_per_epoch' is required for this LR scheduler.",
            ),
            (
                "schedulers",
                "CosineWithRestarts.__post_init__",
                "",
                "learning_rate_schedulers.cosine",
                "assert t_initial > 0",
            ),
            (
                "schedulers",
                "SlantedTriangular.__post_init__",
                "default group",
                "learning_rate_schedulers.slanted_triangular",
                "The default group should be empty.",
            ),
            (
                "schedulers",
                "SlantedTriangular.__post_init__",
                "at least 3",
                "learning_rate_schedulers.slanted_triangular",
                "There should be at least 3 param_groups",
            ),
            (
                "trainer",
                "GradientDescentTrainer.batch_outputs",
                "'loss' key",
                "gradient_descent_trainer",
                "'loss' key in",
            ),
        )
    ),
    Ours(f"{DESCENT}arguments.py", "resolve_placement", "is a <name>", reason="AllenNLP makes no device of it"),
    Ours(f"{DESCENT}arguments.py", "resolve_placement", "this machine has", reason="AllenNLP's `check_for_gpu`"),
    *ours(f"{DESCENT}arguments.py", "launched processes, which AllenNLP starts itself", "check_world_size"),
    Ours(f"{DESCENT}arguments.py", "resolve_precision", "grad_scaling", reason="half precision is Lightning's"),
    Ours(f"{DESCENT}arguments.py", "resolve_precision", "Unknown", reason="Apex has no such level"),
    *ours(f"{DESCENT}batches.py", "a process without a batch, for which the others wait"),
    *ours(f"{DESCENT}callbacks.py", "AllenNLP calls it, and fails", "_bind_by_name", "sort_callbacks"),
    *ours(f"{DESCENT}callbacks.py", "a division by zero, or no epoch of that number", "ShouldValidateCallback"),
    *ours(f"{DESCENT}checkpointer.py", "no such number of files or seconds", "Checkpointer.__post_init__"),
    *ours(f"{DESCENT}checkpointer.py", "torch cannot load it", "Checkpointer.load_checkpoint", "BestWeights.load"),
    Says(
        f"{DESCENT}checkpointer.py",
        "check_folder",
        peer=f"{IN_ALLENNLP}.util",
        sentence="not empty. Specify --recover to recover from an existing output folder.",
    ),
    *ours(f"{DESCENT}construction.py", CONFIGURATION),
    *ours(f"{DESCENT}experiment.py", "modes and files of the command line"),
    Ours(f"{DESCENT}metrics.py", "MetricTracker.__init__", "is an empty list", reason="it sums no metric"),
    *ours(f"{DESCENT}metrics.py", "caught by the trainer itself", "_plain"),
    Ours(f"{DESCENT}metrics.py", "_parse_metric_name", "does not name", reason="AllenNLP indexes it: a `TypeError`"),
    *ours(f"{DESCENT}moving_average.py", NOTHING),
    Ours(f"{DESCENT}optimizers.py", "find_groups", "`parameter_groups` holds", reason="AllenNLP unpacks pairs"),
    Ours(f"{DESCENT}optimizers.py", "_shares", "add it there", reason="AllenNLP: a `KeyError` of the name"),
    *ours(f"{DESCENT}optimizers.py", "`re.error` in AllenNLP", "_compile"),
    *ours(f"{DESCENT}run.py", "AllenNLP skips to the end of the epoch, and trains it without a batch", "DescentRun"),
    *ours(f"{DESCENT}schedulers.py", "AllenNLP multiplies None", "_require_rates"),
    *ours(
        f"{DESCENT}schedulers.py",
        "a division by zero, or steps that never come",
        "StepLearningRateScheduler",
        "NoamLR",
        "CombinedLearningRateScheduler",
    ),
    Ours(f"{DESCENT}schedulers.py", "PolynomialDecay.__post_init__", "is negative", reason="steps before the first"),
    Ours(f"{DESCENT}schedulers.py", "SlantedTriangular.__post_init__", "cut_frac", reason="a division by zero"),
    Ours(
        f"{DESCENT}tensorboard.py", "TensorboardWriter", "cannot be used", reason="a remainder of a division by zero"
    ),
    Ours(f"{DESCENT}tensorboard.py", "TensorboardWriter", "not installed", reason="a missing package"),
    *ours(f"{DESCENT}topics.py", "a model of the examples"),
    Ours(f"{DESCENT}trainer.py", "GradientDescentTrainer.batch_outputs", "yielded", reason="`model(**batch)` fails"),
    *ours(f"{DESCENT}trainer.py", "the system's error, before the training", "GradientDescentTrainer._set_folder"),
)

OURS = (
    # ---- The trainer and its run ----
    Ours(ARGUMENTS, "correction_names", reason="names of portico's corrections", names=("corrections",)),
    Ours(VALIDATION, "_check_lightning_callback", reason=FACADE, names=("lightning_callbacks",)),
    Ours(VALIDATION, "check_run_options", reason="options of `portico.install`", names=("install",)),
    Ours(VALIDATION, "refuse_unsupported", reason="choices of portico's own fields", names=("async_save", "strategy")),
    Ours(VALIDATION, "check_lightning_kwargs", "is a <name>", reason=FACADE, names=("lightning_kwargs",)),
    Ours(VALIDATION, "check_lightning_kwargs", "the trainer decides", reason=FACADE, names=("lightning_kwargs",)),
    Ours(VALIDATION, "check_lightning_kwargs", "both limit", reason=FACADE, names=("limit_predict_batches",)),
    Ours(TRAINER, "Trainer.train", "`fast_dev_run`", reason=FACADE, names=("fast_dev_run",)),
    Ours("portico/rules.py", reason="settings of configurations and of portico's own classes"),
    Ours(
        "portico/callbacks.py",
        reason="callbacks that only portico has",
        names=("BatchSizeFinder", "LearningRateFinder", "LossSpike"),
    ),
    Ours("portico/loop/corrections.py", reason="`stop_on_nan` is an argument of portico", names=("stop_on_nan",)),
    Ours(
        "portico/loop/datamodule.py",
        "TrainerDataModule.train_dataloader",
        reason="`trainer.datamodule` is Lightning's",
        names=("datamodule",),
    ),
    Ours(
        "portico/loop/datamodule.py",
        "TrainerDataModule.loaders_of",
        reason="Lightning's data modules as `train_dataset`",
    ),
    Ours(
        "portico/loop/datamodule.py",
        "TrainerDataModule.given_loader",
        "auto_find_batch_size",
        reason="a `DataLoader` as `train_dataset`, which transformers cannot index",
    ),
    Ours(
        "portico/loop/datamodule.py",
        "TrainerDataModule.build_loader",
        "makes its own batches",
        reason="a `DataLoader` as `train_dataset`, which transformers cannot index",
    ),
    Ours(
        "portico/loop/datamodule.py",
        "TrainerDataModule.given_loader",
        "divides its data",
        reason="a `DataLoader` as `train_dataset`, which transformers cannot index",
    ),
    Ours("portico/loop/model_setup.py", "set_attention", reason="a key of configurations"),
    Ours("portico/loop/model_setup.py", "model_like", reason="Lightning's checkpoints of `TrainerModule`"),
    Ours("portico/loop/module.py", "TrainerModule", reason="`TrainerModule` is Lightning's", names=("TrainerModule",)),
    Ours(
        "portico/loop/plain_trainer.py",
        reason="`trainer.module` under a user's `lightning.Trainer`",
        names=("module",),
    ),
    Ours("portico/loop/plan.py", "limit_batches", "have no length", reason=FACADE, names=("limit_train_batches",)),
    Ours("portico/checkpoint/manifest.py", "examine", error="unreadable", reason="the system's error"),
    Ours("portico/checkpoint/manifest.py", "refuse_unreadable", error="unreadable", reason="the system's error"),
    Ours(
        "portico/checkpoint/manifest.py",
        "_refuse_names_elsewhere",
        reason="files of a model that name others outside of its folder: SECURITY.md says that none is read",
    ),
    Ours("portico/compat/lightning.py", "_forbid_steering", reason="the user's own exception, raised again"),
    Ours("portico/loop/evaluation.py", "run_evaluation", reason="the user's own exception, raised again"),
    Ours("portico/loop/run.py", "fit", "", error="error.original", reason="the user's own exception, raised again"),
    Ours("portico/loop/run.py", "fit", "ended before its first step", reason="callbacks of Lightning"),
    Ours(
        "portico/loop/metrics.py",
        "_refuse_scores_of_classes",
        reason="metrics of torchmetrics as `compute_metrics`, which only portico takes",
    ),
    Named(
        "portico/data/loaders.py",
        "iterate_to_end",
        page="docs/concepts/bit_identical.md",
        sentence="A dataset or a collator that raises `StopIteration`",
    ),
    Ours("portico/checkpoint/writer.py", "_refuse_link", reason="the folder in which portico completes checkpoints"),
    Ours(
        "portico/checkpoint/resume.py",
        "find_checkpoint",
        "was not completed",
        reason="the folder in which portico completes checkpoints",
    ),
    Ours(
        "portico/checkpoint/weights.py",
        "materialize",
        reason="models on the meta device, whose parts portico reads from a folder; transformers cannot move them",
    ),
    Ours("portico/checkpoint/writer.py", "refuse_unwritable", reason="the system's error, before the training"),
    Ours("portico/hub.py", reason="the hub's own error, and folders that commands name"),
    Ours("portico/loop/module.py", "BackwardPass", reason="an accelerator that was replaced by one without backward"),
    Ours(
        "portico/loop/model_setup.py",
        "refuse_unusable_quantized_weights",
        "No gradient passes",
        reason="the backward pass of such a layer was tried, and failed",
    ),
    # ---- Processes ----
    Ours(STRATEGIES, "_mesh_sizes", "which is unknown", reason="`parallelism_config` as a dict"),
    Ours(STRATEGIES, "fsdp_sharding", "FSDP2 does not have", reason="FSDP of TPUs, which no strategy here is"),
    Ours(DEEPSPEED, "EngineStrategy._initialize", reason=FACADE, names=("strategy",)),
    Ours(DEEPSPEED, "_on_host", reason="DeepSpeed's own refusal of other optimizers in host memory"),
    Ours(
        "portico/distributed/launchers.py",
        "join_processes_of_script",
        reason="variables that Lightning counts the machines by",
    ),
    Ours("portico/distributed/placement.py", "check_placement", reason=FACADE, names=("devices", "num_nodes")),
    Ours("portico/distributed/placement.py", "_check_name", reason=FACADE, names=("strategy", "precision")),
    Ours("portico/distributed/placement.py", "resolve_strategy", reason=FACADE, names=("strategy", "devices")),
    Ours(
        "portico/distributed/processes.py",
        "_refuse_second_start",
        reason="`strategy='ddp'`, which starts the script again",
        names=("strategy",),
    ),
    Ours(STRATEGIES, "refuse_ddp_arguments", reason="a strategy object of Lightning", names=("strategy",)),
    Ours(STRATEGIES, "refuse_sharded_weights", reason="a strategy object of Lightning", names=("strategy",)),
    Ours(STRATEGIES, "refuse_own_backward", reason="a strategy object of Lightning", names=("strategy",)),
    Ours(STRATEGIES, "refuse_other_replicas", "splits sequences under", reason=FACADE, names=("strategy",)),
    Ours(STRATEGIES, "resolve_sharding", "shards the model, and", reason=FACADE, names=("strategy",)),
    # ---- Rooms without a peer in transformers ----
    Ours("portico/errors.py", reason="names what another error does not: its extra, its folder, the key of a command"),
    Ours("portico/data/defects.py", reason=READING, names=("skip_invalid",)),
    *(
        Ours("portico/data/sources.py", function, reason=READING)
        for function in (
            "import_datasets",
            "load_hub_split",
            "_paths",
            "stored_dataset",
            "open_text",
            "csv_rows",
            "parquet_rows",
            "number_records",
            "entries",
            "_parse",
        )
    ),
    Ours("hydra_plugins/", reason="sweepers and launchers of Hydra, and their keys"),
    Ours("portico/compat/releases.py", reason="an older transformers, which lacks the feature too"),
    Ours("portico/compat/transformers.py", "MissingName", reason="an older transformers, which lacks the name too"),
    Ours("portico/compat/transformers.py", "__getattr__", reason="a name that no module of portico asks for"),
    Ours(
        "portico/imports.py",
        "lazy_exports.get",
        "is a name of",
        reason="names of another library, which portico lacks",
    ),
    Ours("portico/imports.py", "_NeighbourFinder", reason="names of another library, which portico lacks"),
    *COMMAND_LINE,
    *OF_TASKS,
    *OF_READING,
    *OF_IPUS,
    *OF_ONNX_RUNTIME,
    *OF_GRADIENT_DESCENT,
)

ENTRIES: tuple[Entry, ...] = (*FAILS, *SAYS, *NAMED, *OURS)
