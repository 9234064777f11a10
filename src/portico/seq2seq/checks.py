"""Whether generation can do what the arguments ask for: told before training, not at the first evaluation."""

from typing import Any

import transformers

from portico.errors import InputError
from portico.seq2seq.generation import padding_token


def check_seq2seq_arguments(args: Any) -> None:
    """Refuse training arguments that know nothing of generation.

    Raises:
        InputError: If ``args`` are plain training arguments.
    """
    if isinstance(args, transformers.TrainingArguments) and not hasattr(args, "predict_with_generate"):
        raise InputError(
            f"`args` is a {type(args).__name__}, which has no settings of generation; give "
            "`portico.Seq2SeqTrainingArguments` or `transformers.Seq2SeqTrainingArguments`."
        )


def check_seq2seq_parts(facade: Any, *, generates: bool) -> None:
    """Refuse a model that cannot generate, and generated tokens that cannot be padded.

    Args:
        facade: The trainer.
        generates: Whether its own ``prediction_step`` is in use, which generates and pads.

    Raises:
        InputError: Names what is missing and what to set.
    """
    if not (facade.args.predict_with_generate and generates):
        return
    if not hasattr(facade.model, "generate"):
        raise InputError(
            f"`predict_with_generate=True`, but {type(facade.model).__name__} has no `generate`; give a model that "
            "has it, such as one of `AutoModelForSeq2SeqLM`, or leave `predict_with_generate` out."
        )
    padding_token(facade.processing_class, facade.model)
