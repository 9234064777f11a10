"""A small BERT to start from nothing."""

from difflib import get_close_matches
from typing import Any

from transformers import BertConfig, PreTrainedTokenizerBase

from portico.errors import InputError
from portico.mrc.models.head_roles import give_heads_roles
from portico.mrc.models.loading import PLAIN_HEAD, new_model

SMALL_BERT = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 192,
    "initializer_range": 0.05,
    # Every name is seen only a few times, so there is little to overfit and dropout only slows the learning down.
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def small_bert_config(tokenizer: PreTrainedTokenizerBase, **overrides: Any) -> BertConfig:
    """Return the configuration of a BERT that learns the embedded corpus on a CPU within minutes.

    Args:
        tokenizer: Gives the size of the vocabulary and the padding token.
        overrides: Fields of ``BertConfig`` to set differently.

    Raises:
        InputError: If ``BertConfig`` has no such field.
    """
    known = BertConfig().to_dict()
    for name in overrides:
        if name not in known:
            nearest = get_close_matches(name, known, cutoff=0)
            raise InputError(f"`{name}` is not a field of BertConfig; the nearest are {', '.join(nearest)}.")
    fields = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **SMALL_BERT, **overrides}
    return BertConfig(**fields)


def build_small_bert(config: BertConfig, head: str = PLAIN_HEAD) -> Any:
    """Build an untrained reader whose attention heads start with the roles of `portico.mrc.models.head_roles`.

    Args:
        config: Its shape, as from `small_bert_config`.
        head: What stands on it, see `portico.mrc.models.loading.new_model`.

    Returns:
        A model in training mode. Its weights come from the global random state of torch: seed it first.
    """
    model = new_model(config, head)
    give_heads_roles(model)
    return model
