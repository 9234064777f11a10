"""``Seq2SeqTrainer``: a ``Trainer`` that can evaluate by generated tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GenerationConfig, TrainerCallback
from transformers.trainer_utils import PredictionOutput

from portico.seq2seq.arguments import Seq2SeqTrainingArguments
from portico.seq2seq.checks import check_seq2seq_arguments, check_seq2seq_parts
from portico.seq2seq.generating import GeneratingMethods
from portico.seq2seq.generation import generation_options, load_generation_config


class Seq2SeqTrainer(GeneratingMethods):
    """The Hugging Face ``Seq2SeqTrainer``, over Lightning.

    With ``args.predict_with_generate`` the predictions of an evaluation are generated tokens, ``int64 [examples,
    length]``, padded with the padding token within a batch and with -100 between batches.

    Args:
        model: As in :class:`~portico.trainer.Trainer`, like what follows.
        args: ``Seq2SeqTrainingArguments`` of either library.
        data_collator: See there.
        train_dataset: See there.
        eval_dataset: See there.
        processing_class: Its padding token, or else its end token, fills up what is generated.
        model_init: See there; each model it makes gets ``args.generation_config``.
        compute_loss_func: See there.
        compute_metrics: See there; with ``predict_with_generate`` it gets tokens as predictions.
        callbacks: See there.
        optimizers: See there.
        preprocess_logits_for_metrics: See there.
        **options: The further arguments of :class:`~portico.trainer.Trainer`.

    Raises:
        InputError: If the arguments know nothing of generation, or what they ask for cannot be generated.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., Any] | None = None,
        callbacks: list[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        args = Seq2SeqTrainingArguments(output_dir="tmp_trainer") if args is None else args
        check_seq2seq_arguments(args)
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
        self._give_generation_config(self.model)
        check_seq2seq_parts(self, generates=type(self).prediction_step is Seq2SeqTrainer.prediction_step)

    @staticmethod
    def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
        """Return what ``args.generation_config`` names (see the function of that name in ``seq2seq.generation``)."""
        return load_generation_config(gen_config_arg)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Make a new model, which generates as the arguments say."""
        model = super().call_model_init(trial)
        self._give_generation_config(model)
        return model

    def _give_generation_config(self, model: Any) -> None:
        if self.args.generation_config is not None:
            model.generation_config = self.load_generation_config(self.args.generation_config)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate and return the metrics.

        Args:
            eval_dataset: What to evaluate on instead of the trainer's ``eval_dataset``; also a dict of data sets.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            **gen_kwargs: Keywords of ``generate``, for this evaluation; they win over the training arguments.
        """
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        if gen_kwargs and isinstance(datasets, dict):
            # The sets of a dict are evaluated by calls that know nothing of these keywords.
            metrics: dict[str, float] = {}
            for name, dataset in datasets.items():
                chosen = name if eval_dataset is None else dataset
                metrics |= self.evaluate(chosen, ignore_keys, f"{metric_key_prefix}_{name}", **gen_kwargs)
            return metrics
        self._begin_generating(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict on ``test_dataset``, and return predictions, labels and the metrics where there are labels.

        Args:
            test_dataset: Data to predict on.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            **gen_kwargs: Keywords of ``generate``, for this prediction; they win over the training arguments.
        """
        self._begin_generating(gen_kwargs)
        return super().predict(test_dataset, ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix)

    def _begin_generating(self, gen_kwargs: dict[str, Any]) -> None:
        self._gen_kwargs = generation_options(gen_kwargs, self.args)
        # Hugging Face keeps what fills up the last batch here, and the mean loss is weighted accordingly.
        self.gather_function = self.accelerator.gather
