"""``Seq2SeqTrainer``: evaluation by generated tokens."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import GenerationConfig

from portico.arguments import TrainingArguments
from portico.compat.transformers import HFTrainingArguments, PredictionOutput
from portico.distributed.deepspeed import EngineStrategy
from portico.errors import InputError
from portico.loop.core import TrainerCore
from portico.trainer import Trainer
from portico.trust.names import data_only, refuse_download

if TYPE_CHECKING:
    from portico.compat import annotations


@data_only
@dataclass
class Seq2SeqTrainingArguments(TrainingArguments, transformers.Seq2SeqTrainingArguments):
    """``transformers.Seq2SeqTrainingArguments`` with additional fields for Lightning.

    Args:
        predict_with_generate: Evaluate and predict with generated tokens instead of logits.
        generation_max_length: ``max_length`` of generation in evaluations; by default the model's.
        generation_num_beams: ``num_beams`` of generation in evaluations; by default the model's.
        generation_config: Generation configuration of the model: an object, a folder or a hub name.
        sortish_sampler: No effect, with a warning, as in transformers 5;
            ``train_sampling_strategy="group_by_length"`` makes batches of similar lengths.

    See :class:`~portico.arguments.TrainingArguments` for the other arguments.
    """


def shards_weights(strategy: Strategy) -> bool:
    """Return whether each process holds only a part of the weights, so that all must run forward passes together."""
    if isinstance(strategy, DeepSpeedStrategy | EngineStrategy):
        return bool(strategy.zero_stage_3)
    return isinstance(strategy, FSDPStrategy | ModelParallelStrategy)


def whole_weights(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return a context that gathers the model's full weights, for code that bypasses the wrapper of the strategy."""
    if isinstance(strategy.model, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(strategy.model)
    return nullcontext()


def generation_options(given: Mapping[str, object], args: Seq2SeqTrainingArguments) -> dict[str, Any]:
    """Return the keywords of ``generate`` for one evaluation; ``given`` keywords override the training arguments."""
    options = dict(given)
    has_length = options.get("max_length") is not None or options.get("max_new_tokens") is not None
    if not has_length and args.generation_max_length is not None:
        options["max_length"] = args.generation_max_length
    if options.get("num_beams") is None and args.generation_num_beams is not None:
        options["num_beams"] = args.generation_num_beams
    return options


def generation_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of ``generate`` without decoder inputs made from labels: it would only continue them."""
    shapes = [getattr(inputs.get(name), "shape", None) for name in ("labels", "decoder_input_ids")]
    from_labels = None not in shapes and shapes[0] == shapes[1]
    left_out = ("decoder_input_ids", "decoder_attention_mask") if from_labels else ()
    return {name: value for name, value in inputs.items() if name not in left_out}


def resolve_generation_config(model: nn.Module) -> GenerationConfig:
    """Return the generation configuration of ``model``, with defaults filled in.

    The configuration is changed in place, so that the model is saved with the settings used for generation.
    """
    config: Any = model.generation_config
    if config._from_model_config:
        # Otherwise `generate` would derive it from the model's configuration again for every batch.
        config._from_model_config = False
    config.update(**config._get_default_generation_params(), defaults_only=True)
    settled: GenerationConfig = config
    return settled


def compute_padded_length(tokens: torch.Tensor, config: GenerationConfig) -> int:
    """Return the length to pad ``tokens`` (``int64 [examples, length]``) to, at least their current length."""
    length = tokens.shape[-1]
    if length < config.max_length:
        return int(config.max_length)
    if config.max_new_tokens is not None:
        # The first token is the decoder's start.
        return max(length, config.max_new_tokens + 1)
    return length


def find_padding_token(processing_class: "annotations.ProcessingClass | None", model: nn.Module) -> int:
    """Return the token that pads generated sequences and labels.

    It is the padding token of ``processing_class``, or else its end token; without a tokenizer it is the padding
    token of the model.
    """
    tokenizer: Any = processing_class
    if hasattr(tokenizer, "pad_token_id"):
        own, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        token = own if own is not None else end
        missing = "`processing_class` has neither a padding token nor an end token"
    else:
        token = getattr(getattr(model, "config", None), "pad_token_id", None)
        missing = "Pad_token_id must be set in the configuration of the model, in order to pad tensors"
    if token is None:
        raise InputError(f"{missing}; set one, or leave `predict_with_generate` out.")
    return int(token)


class Seq2SeqCore(TrainerCore):
    """Checks that a model can generate before a training that does so in its evaluations."""

    def check_training(self) -> None:
        super().check_training()
        trainer = self.trainer
        # An evaluation without metrics computes the loss and generates nothing; a subclass may override the step.
        evaluates = trainer.args.eval_strategy != "no" and not trainer.args.prediction_loss_only
        generates = trainer.args.predict_with_generate and evaluates and trainer.compute_metrics is not None
        if generates and not self.overrides("prediction_step"):
            _check_generation(trainer.model, trainer.processing_class)


def _check_generation(model: nn.Module, processing_class: Any) -> None:
    if not hasattr(model, "generate"):
        raise InputError(
            f"`predict_with_generate=True`, but {type(model).__name__} has no `generate`; give a model that "
            "has it, such as one of `AutoModelForSeq2SeqLM`, or leave `predict_with_generate` out."
        )
    find_padding_token(processing_class, model)


@data_only
class Seq2SeqTrainer(Trainer, core=Seq2SeqCore):
    """The Hugging Face ``Seq2SeqTrainer`` on top of Lightning.

    With ``args.predict_with_generate`` the predictions of an evaluation are generated tokens, ``int64 [examples,
    length]``, padded with the padding token within a batch and with -100 between batches.

    It takes the arguments of :class:`~portico.trainer.Trainer`, with these differences:

    Args:
        args: ``Seq2SeqTrainingArguments`` of either library.
        processing_class: Its padding token, or else its end token, pads generated sequences.
        model_init: Each model it makes gets ``args.generation_config``.
        compute_metrics: With ``predict_with_generate`` it gets tokens as predictions.
    """

    args: Seq2SeqTrainingArguments
    # Keywords of `generate` in the running evaluation.
    _gen_kwargs: dict[str, Any]

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Seq2SeqTrainingArguments | None = None,
        data_collator: "annotations.DataCollator | None" = None,
        train_dataset: "annotations.Examples | None" = None,
        eval_dataset: "annotations.EvalExamples | None" = None,
        processing_class: "annotations.ProcessingClass | None" = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: "annotations.ComputeLoss | None" = None,
        compute_metrics: "annotations.ComputeMetrics | None" = None,
        callbacks: "annotations.Callbacks | None" = None,
        optimizers: "annotations.Optimizers" = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        args = Seq2SeqTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if isinstance(args, HFTrainingArguments) and not hasattr(args, "predict_with_generate"):
            raise InputError(
                f"`args` is a {type(args).__name__}, which has no settings of generation; give "
                "`portico.Seq2SeqTrainingArguments` or `transformers.Seq2SeqTrainingArguments`."
            )
        self._gen_kwargs = {}
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **options,
        )
        self._set_generation_config(self.model)

    @staticmethod
    def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
        """Return a copy of a generation configuration, or load it from a file, a folder or the hub.

        The configuration is validated as strictly as when it is saved.
        """
        if isinstance(gen_config_arg, GenerationConfig):
            config = deepcopy(gen_config_arg)
        elif isinstance(gen_config_arg, str | Path):
            path = Path(gen_config_arg)
            refuse_download("args.generation_config", str(gen_config_arg))
            if path.is_file():
                config = GenerationConfig.from_pretrained(path.parent, path.name)
            else:
                config = GenerationConfig.from_pretrained(gen_config_arg)
        else:
            raise InputError(
                f"`generation_config` is a {type(gen_config_arg).__name__}; give a `GenerationConfig`, the path of a "
                "file or folder that holds one, or the name of a model on the hub."
            )
        try:
            config.validate(strict=True)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"`generation_config` cannot be saved with the model: {reason} Fix these issues to train your model."
            ) from error
        return config

    def call_model_init(self, trial: "annotations.Trial" = None) -> nn.Module:
        """Create a new model with ``args.generation_config``."""
        model = super().call_model_init(trial)
        self._set_generation_config(model)
        return model

    def _set_generation_config(self, model: nn.Module) -> None:
        if self.args.generation_config is not None:
            generating: Any = model
            generating.generation_config = self.load_generation_config(self.args.generation_config)

    def evaluate(
        self,
        eval_dataset: "annotations.EvalExamples | None" = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate as :meth:`portico.trainer.Trainer.evaluate` does, and return the metrics.

        ``gen_kwargs`` are keywords of ``generate`` for this evaluation; they override the training arguments.
        """
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        if gen_kwargs and isinstance(datasets, dict):
            # `Trainer.evaluate` would evaluate the sets of a dict without these keywords.
            metrics: dict[str, float] = {}
            for name, dataset in datasets.items():
                chosen = name if eval_dataset is None else dataset
                metrics |= self.evaluate(chosen, ignore_keys, f"{metric_key_prefix}_{name}", **gen_kwargs)
            return metrics
        self._begin_generating(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: "annotations.Examples",
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict as :meth:`portico.trainer.Trainer.predict` does.

        ``gen_kwargs`` are keywords of ``generate`` for this prediction; they override the training arguments.
        """
        self._begin_generating(gen_kwargs)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: "annotations.Batch",
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Evaluate one batch, and generate from it with ``args.predict_with_generate``.

        ``ignore_keys`` only matter if nothing is generated. ``gen_kwargs`` are keywords of ``generate``, by default
        the keywords of the running evaluation. The other arguments are as in ``Trainer.prediction_step``.

        Returns:
            Loss (a scalar, or ``None`` without labels), generated tokens and labels (``None`` where there are none),
            both ``int64 [examples, length]``, padded to the greatest length that may be generated.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        _check_generation(self.model, self.processing_class)
        inputs = self._prepare_inputs(inputs)
        tokens = self._generate(inputs, gen_kwargs or self._gen_kwargs)
        config = resolve_generation_config(self.model)
        tokens = self._pad_tokens(tokens, config)
        has_labels = inputs.get("labels") is not None
        loss = self._generation_loss(model, inputs) if has_labels else None
        if self.args.prediction_loss_only:
            return loss, None, None
        labels = self._pad_tokens(inputs["labels"], config) if has_labels else None
        return loss, tokens, labels

    def _generate(self, inputs: "annotations.Batch", gen_kwargs: dict[str, Any]) -> torch.Tensor:
        options = {
            name: value
            for name, value in gen_kwargs.items()
            if value is not None or name not in ("num_beams", "max_length")
        }
        strategy = self._portico.lightning_trainer.strategy
        # With sharded weights a process that finishes early must keep running forward passes with the others.
        options.setdefault("synced_gpus", shards_weights(strategy))
        with whole_weights(strategy), self.accelerator.autocast():
            model: Any = self.model
            tokens: torch.Tensor = model.generate(**generation_inputs(inputs), **options)
        return tokens

    def _generation_loss(self, model: nn.Module, inputs: "annotations.Batch") -> torch.Tensor:
        with torch.no_grad(), self.accelerator.autocast():
            with self.compute_loss_context_manager():
                outputs = model(**inputs)
            if self.label_smoother is not None:
                loss = self.label_smoother(outputs, inputs["labels"])
            else:
                loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        return loss.detach().mean()

    def _pad_tokens(self, tokens: torch.Tensor, config: GenerationConfig) -> torch.Tensor:
        length = compute_padded_length(tokens, config)
        return self._pad_tensors_to_max_len(tokens, length) if length > tokens.shape[-1] else tokens

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        token = find_padding_token(self.processing_class, self.model)
        return nn.functional.pad(tensor, (0, max_length - tensor.shape[-1]), value=token)

    def _begin_generating(self, gen_kwargs: dict[str, Any]) -> None:
        self._gen_kwargs = generation_options(gen_kwargs, self.args)
        # transformers' `Seq2SeqTrainer` keeps the duplicates that fill the last batch, and the mean loss is weighted
        # accordingly.
        corrected = "eval_duplicates" in self._portico.corrections
        self.gather_function = self.accelerator.gather_for_metrics if corrected else self.accelerator.gather
