"""``ORTSeq2SeqTrainer``: evaluation by generation in ONNX Runtime."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from portico.ort.api import compile as compile_in_ort
from portico.ort.api import get_compiled_call, restore
from portico.ort.arguments import ORTTrainingArguments
from portico.ort.trainer import ORTMixin
from portico.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments


@dataclass
class ORTSeq2SeqTrainingArguments(ORTTrainingArguments, Seq2SeqTrainingArguments):
    """:class:`~portico.ort.arguments.ORTTrainingArguments` with the settings of generation.

    ``predict_with_generate``, ``generation_max_length``, ``generation_num_beams`` and ``generation_config`` are
    Hugging Face's.
    """


class ORTSeq2SeqTrainer(ORTMixin, Seq2SeqTrainer):
    """``Seq2SeqTrainer`` in ONNX Runtime; see :class:`~portico.ort.trainer.ORTMixin` for the arguments.

    The search runs in torch and every forward of the model in ONNX Runtime, with the same key-value cache.
    """

    args: ORTSeq2SeqTrainingArguments
    arguments_class = ORTSeq2SeqTrainingArguments

    @override
    def _generate(self, inputs: dict[str, Any], gen_kwargs: dict[str, Any]) -> Tensor:
        model: Any = self.model
        call = get_compiled_call(model)
        if call is None or not call.is_on or not model.config.is_encoder_decoder:
            return super()._generate(inputs, gen_kwargs)
        # `generate` calls the encoder separately.
        encoder = model.get_encoder()
        settings, strict = call.options
        compile_in_ort(encoder, settings=settings, strict=strict, report=call.report)
        try:
            return super()._generate(inputs, gen_kwargs)
        finally:
            # In a forward of the whole model, the encoder is part of the model's graph.
            restore(encoder)
