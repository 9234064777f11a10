"""From the settings of a run to its featurizer and its collator."""

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import DataCollatorWithPadding

from portico.errors import InputError
from portico.mrc.features.featurizer import Featurizer
from portico.mrc.features.labels import Subsampling
from portico.mrc.models.loading import ModelAndTokenizer
from portico.mrc.packing import enable_packing
from portico.value_rules import Rule

_OF_FEATURIZER = (
    "max_seq_length",
    "doc_stride",
    "max_question_length",
    "max_q_char_len",
    "max_contexts",
    "compat_label_bug",
)
_POSITIVE_OR_NULL = Rule((int, type(None)), least=1)

PREPROCESS_RULES: Mapping[str, Rule] = {
    "max_seq_length": Rule((int,), least=1),
    "doc_stride": Rule((int,), least=0),
    "max_question_length": _POSITIVE_OR_NULL,
    "max_q_char_len": _POSITIVE_OR_NULL,
    "max_contexts": _POSITIVE_OR_NULL,
    "compat_label_bug": Rule((bool,)),
    "negative_sampling_prob_when_has_answer": Rule((float,), least=0),
    "negative_sampling_prob_when_no_answer": Rule((float,), least=0),
    "subsampling_seed": Rule((int,), least=0),
    "packing": Rule((bool,)),
    "vocab_size": Rule((int,), least=1),
}
"""What the settings of ``preprocess`` may be, by name."""


def make_featurizer(reader: ModelAndTokenizer, preprocess: Mapping[str, Any]) -> Featurizer:
    """Return the featurizer of a run.

    Args:
        reader: Model and tokenizer; a model whose head classifies the kind of answer gets that label too.
        preprocess: Options of :class:`~portico.mrc.features.featurizer.Featurizer` and of
            :class:`~portico.mrc.features.labels.Subsampling`; what is missing keeps its default.

    Raises:
        InputError: If an option cannot be used.
    """
    options = {name: preprocess[name] for name in _OF_FEATURIZER if name in preprocess}
    subsampling = Subsampling(
        preprocess.get("negative_sampling_prob_when_has_answer", 1.0),
        preprocess.get("negative_sampling_prob_when_no_answer", 1.0),
        preprocess.get("subsampling_seed", 0),
    )
    return Featurizer(
        reader.tokenizer, **options, subsampling=subsampling, target_types=_reads_target_types(reader.model)
    )


def make_collator(reader: ModelAndTokenizer, preprocess: Mapping[str, Any], *, fixed_shapes: bool = False) -> Any:
    """Return the collator of a run: it pads each batch to its longest row, or packs several features into a row.

    Args:
        reader: Model and tokenizer; with packing, the model is made to read packed batches.
        preprocess: ``packing`` and ``max_seq_length``.
        fixed_shapes: Whether all batches must have one shape, as a compiled program needs.

    Raises:
        InputError: If packing is asked for but not possible.
    """
    if not preprocess.get("packing", False):
        return DataCollatorWithPadding(reader.tokenizer)
    if fixed_shapes:
        raise InputError(
            "`preprocess.packing=true` makes batches of varying shapes, but this accelerator runs programs of one "
            "shape; set it to false."
        )
    return enable_packing(reader.model, reader.tokenizer, preprocess["max_seq_length"])


def _reads_target_types(model: Any) -> bool:
    readers = [model, getattr(model, "task_head", None)]
    return any("target_type" in inspect.signature(one.forward).parameters for one in readers if one is not None)
