"""Training arguments with the settings of generation."""

from dataclasses import dataclass

import transformers

from portico.arguments import TrainingArguments


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments, transformers.Seq2SeqTrainingArguments):
    """``transformers.Seq2SeqTrainingArguments`` with the fields that choose Lightning's side of a run.

    ``predict_with_generate``, ``generation_max_length``, ``generation_num_beams`` and ``generation_config`` are
    Hugging Face's; the others are those of :class:`~portico.arguments.TrainingArguments`.
    """
