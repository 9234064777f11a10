"""``IPUSeq2SeqTrainer``: evaluation with tokens that are generated on IPUs."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from portico.ipu.arguments import IPUTrainingArguments
from portico.ipu.trainer import IPUMixin
from portico.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments, generation_inputs


@dataclass
class IPUSeq2SeqTrainingArguments(IPUTrainingArguments, Seq2SeqTrainingArguments):
    """:class:`~portico.ipu.arguments.IPUTrainingArguments` with Hugging Face's settings of generation."""


class IPUSeq2SeqTrainer(IPUMixin, Seq2SeqTrainer):
    """``Seq2SeqTrainer`` on IPUs; see :class:`~portico.ipu.trainer.IPUMixin` for the arguments.

    The host searches and the devices compute, encoder and decoder each in a separate program. A program takes one
    shape: let the collator pad inputs and labels to fixed lengths, as in ``DataCollatorForSeq2Seq(tokenizer,
    padding="max_length", max_length=...)``.
    """

    args: IPUSeq2SeqTrainingArguments
    arguments_class = IPUSeq2SeqTrainingArguments

    @override
    def _generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> Tensor:
        unset = [name for name in ("num_beams", "max_length") if gen_kwargs.get(name) is None]
        options = {name: value for name, value in gen_kwargs.items() if name not in unset}
        return self.generate(generation_inputs(inputs), **options)

    @override
    def _begin_generating(self, gen_kwargs: dict[str, Any]) -> None:
        super()._begin_generating(gen_kwargs)
        # transformers counts a shorter last batch as a full one, which here holds the rows of a whole call: the loss
        # would depend on device iterations and replicas.
        self.gather_function = self.accelerator.gather_for_metrics
