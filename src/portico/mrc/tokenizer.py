from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizerFast

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_wordpiece_tokenizer(
    texts: Iterable[str], *, vocab_size: int = 2000, lowercase: bool = True
) -> BertTokenizerFast:
    """Train a BERT tokenizer.

    Every character of the texts becomes a piece of its own, so a word never seen is split into known pieces as long
    as its characters are known; with a small vocabulary such a split is the same wherever the word stands.

    Args:
        texts: Training texts only.
        vocab_size: Largest number of pieces, special tokens and single characters included.
        lowercase: Fold case and strip accents, as uncased BERT does.
    Returns:
        A fast tokenizer that ``AutoTokenizer`` loads after ``save_pretrained``.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BertTokenizerFast(vocab=tokenizer.get_vocab(), do_lower_case=lowercase)
