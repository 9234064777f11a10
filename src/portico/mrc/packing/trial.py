import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from portico.errors import InputError
from portico.mrc.models.loading import PLAIN_HEAD, head_of
from portico.mrc.packing.collator import PackingCollator
from portico.mrc.packing.forward import read_packed

_TOLERANCE = 1e-3


def enable_packing(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> PackingCollator:
    """Let a model read packed batches, once it has answered three features both ways alike.

    Args:
        model: An encoder with a question answering head.
        tokenizer: Its tokenizer.
        max_length: Most tokens of a row.

    Returns:
        The collator that makes the batches.

    Raises:
        InputError: If this model cannot read packed batches.
    """
    _check_head(model)
    read_packed(model)
    uses_types = "token_type_ids" in tokenizer.model_input_names
    # The longest one shows whether tokens see all others, which the mask of blocks lets them.
    lengths = (max_length, 5, 9)
    features = [_feature(length, model.config.vocab_size, types=uses_types) for length in lengths]
    collator = PackingCollator(tokenizer, max_length)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = model(**_on_device(collator(features), model))
            for number, feature in enumerate(features):
                alone = model(**_on_device({name: torch.tensor([ids]) for name, ids in feature.items()}, model))
                for name in ("start_logits", "end_logits"):
                    torch.testing.assert_close(
                        packed[name][number, : lengths[number]], alone[name][0], atol=_TOLERANCE, rtol=_TOLERANCE
                    )
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{type(model).__name__} does not answer packed features as it answers each alone "
            f"({' '.join(str(error).split())[:200]}); set `preprocess.packing=false`, or take an encoder like BERT "
            "with a plain question answering head."
        ) from error
    finally:
        model.train(was_training)
    return collator


def _check_head(model: PreTrainedModel) -> None:
    # The loss of packed features is that of start and end logits alone.
    head = head_of(model)
    if head != PLAIN_HEAD:
        raise InputError(
            f"`preprocess.packing=true` packs features for a plain question answering head, but the model's is "
            f"{head}; set it to false, or `model.head={PLAIN_HEAD}`."
        )


def _feature(length: int, vocab_size: int, *, types: bool) -> dict[str, list[int]]:
    ids = [(7 * token + length) % (vocab_size - 1) + 1 for token in range(length)]
    feature = {"input_ids": ids, "attention_mask": [1] * length}
    return {**feature, "token_type_ids": [int(2 * token > length) for token in range(length)]} if types else feature


def _on_device(batch: dict[str, torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: values.to(model.device) for name, values in batch.items()}
