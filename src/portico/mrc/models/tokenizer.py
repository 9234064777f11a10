from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 1600, lowercase: bool = True
) -> BertTokenizer:
    """Train a BERT tokenizer; the same texts give the same pieces in every process.

    Every character of the texts becomes a piece of its own, so a name never seen is split into known pieces, and in
    the same way in a question and in its passage.

    Args:
        texts: Training texts only.
        vocab_size: Largest number of pieces; special tokens and single characters count.
        lowercase: Fold case and strip accents, as uncased BERT does.

    Returns:
        A fast tokenizer that ``AutoTokenizer`` loads after ``save_pretrained``.
    """
    distinct_texts = list(dict.fromkeys(texts))
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *_inner_characters(distinct_texts, normalizer)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(distinct_texts, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=lowercase)


def _inner_characters(texts: list[str], normalizer: normalizers.Normalizer) -> list[str]:
    """Return the pieces of one character that continue a word.

    The trainer would number them in the order of a hash map, and ties between merges fall by number; announced
    beforehand they get fixed numbers. Only the vocabulary outlives the training, so they do not stay special.
    """
    characters = {character for text in texts for character in normalizer.normalize_str(text)}
    return [f"##{character}" for character in sorted(characters) if character.isalnum()]
