"""``Seq2SeqMRCTrainer``: a ``Seq2SeqTrainer`` that evaluates by generated answers."""

from typing import Any

from portico.loop.evaluation import EvaluationSession
from portico.mrc.answering import AnsweringMethods, Examples
from portico.mrc.seq2seq.session import GeneratedAnswerSession
from portico.seq2seq.trainer import Seq2SeqTrainer


class Seq2SeqMRCTrainer(AnsweringMethods, Seq2SeqTrainer):
    """Trains encoder-decoders to answer and evaluates the answers they generate.

    With ``args.predict_with_generate`` an evaluation generates from features, turns the tokens into answers with
    ``post_process_function``, writes them into ``args.output_dir`` (``eval_predictions.json`` and
    ``eval_references.json``) and gives them to ``compute_metrics``. Without it there is no answer, and loss and speed
    are all that is measured.

    Args:
        *args: As in :class:`~portico.seq2seq.trainer.Seq2SeqTrainer`.
        eval_examples: The examples that ``eval_dataset`` holds the features of.
        eval_dataset: Features to evaluate on.
        post_process_function: ``f(examples, features, output)`` or, for predictions, ``f(examples, features, output,
            "predict")``, with the generated tokens in ``output.predictions``; or an object with ``begin(examples,
            features)``, such as :class:`~portico.mrc.seq2seq.post_processing.GeneratedAnswerProcessing`.
        **kwargs: As in :class:`~portico.seq2seq.trainer.Seq2SeqTrainer`.

    Attributes:
        answered: What the last post-processing returned.
    """

    _session_class = GeneratedAnswerSession

    def evaluate(  # type: ignore[override]
        self,
        eval_dataset: Any = None,
        eval_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate the answers to ``eval_examples`` and return loss, speed and metrics.

        Args:
            eval_dataset: As of :meth:`portico.mrc.trainer.MRCTrainer.evaluate`, like what follows.
            eval_examples: See there.
            ignore_keys: See there.
            metric_key_prefix: See there.
            **gen_kwargs: Keywords of ``generate``, for this evaluation; they win over the training arguments.
        """
        return self._evaluated(eval_dataset, eval_examples, ignore_keys, metric_key_prefix, **gen_kwargs)

    def predict(  # type: ignore[override]
        self,
        predict_dataset: Any = None,
        predict_examples: Examples | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        *,
        test_dataset: Any = None,
        **gen_kwargs: Any,
    ) -> Any:
        """Answer the questions of a data set.

        Args:
            predict_dataset: Features; by default the trainer's own, with its examples.
            predict_examples: The examples they are features of; without them the tokens are returned.
            ignore_keys: Model outputs to leave out.
            metric_key_prefix: Prefix of every metric's name.
            test_dataset: Another name of ``predict_dataset``, that of :meth:`portico.Seq2SeqTrainer.predict`.
            **gen_kwargs: Keywords of ``generate``, for this prediction; they win over the training arguments.

        Returns:
            A ``PredictionOutput``; with a post-processing that takes no stage, as PrimeQA's do, what it returns.
        """
        features = test_dataset if predict_dataset is None else predict_dataset
        examples = predict_examples
        if features is None:
            features, examples = self.eval_dataset, self.eval_examples
        return self._predicted(
            examples,
            features,
            lambda: super(Seq2SeqMRCTrainer, self).predict(features, ignore_keys, metric_key_prefix, **gen_kwargs),
            plain=examples is not None and self._returns_plain_answers(),
        )

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        if self._answering_options is None or self.args.predict_with_generate:
            return super()._evaluation_session(dataloader, **options)
        # Logits are no answers: without generation there is a loss alone.
        return EvaluationSession(self, dataloader, **{**options, "prediction_loss_only": True})


# PrimeQA's name.
MRCSeq2SeqTrainer = Seq2SeqMRCTrainer
