"""Made-up data for the reading comprehension benchmarks: passages of random words, and logits that peak somewhere.

The lengths are those of SQuAD's passages: 155 tokens in the middle, 284 below the longest twentieth.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portico.experiments.from_scratch import train_wordpiece_tokenizer
from portico.mrc import FeatureSet, Featurizer

MAX_SEQ_LENGTH = 384
DOC_STRIDE = 128
NUM_WORDS = 8_000
QUESTIONS_PER_PASSAGE = 9
LETTERS = np.array(list("etaoinshrdlucmfwypvbgk"))

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """Examples with their features and what a reader might say of them.

    Attributes:
        examples: SQuAD records; those of documents with ``example_id`` and ``passage_candidates`` too.
        features: Windows of the examples.
        start_logits: Score of each token as a start, ``float32 [F, L]``.
        end_logits: Score of each token as an end, ``float32 [F, L]``.
        type_logits: Score of each of PrimeQA's answer types, ``float32 [F, 5]``.
    """

    examples: list[dict[str, Any]]
    features: FeatureSet
    start_logits: Logits
    end_logits: Logits
    type_logits: Logits


def squad_task(num_questions: int, *, seed: int = 0) -> Task:
    """Return a task of the size of SQuAD's passages."""
    rng = np.random.default_rng(seed)
    words = _words(rng)
    num_passages = -(-num_questions // QUESTIONS_PER_PASSAGE)
    lengths = np.clip(rng.lognormal(np.log(145), 0.4, num_passages), 20, 600).astype(int)
    passages = [_text(rng, words, length) for length in lengths]
    examples = [_example(rng, words, i, passages[i // QUESTIONS_PER_PASSAGE]) for i in range(num_questions)]
    return _task(rng, examples, passages)


def document_task(num_questions: int, *, num_passages: int = 40, seed: int = 0) -> Task:
    """Return a task of whole articles, each of many passages, as in TyDi QA."""
    rng = np.random.default_rng(seed)
    words = _words(rng)
    examples = []
    for i in range(num_questions):
        passages = [_text(rng, words, 125) for _ in range(num_passages)]
        ends = np.cumsum([len(passage) + 1 for passage in passages]) - 1
        starts = [0, *(ends[:-1] + 1).tolist()]
        candidates = {"start_positions": starts, "end_positions": ends.tolist()}
        example = _example(rng, words, i, " ".join(passages))
        examples.append({**example, "example_id": example["id"], "passage_candidates": candidates})
    return _task(rng, examples, [example["context"] for example in examples[:20]])


def _words(rng: np.random.Generator) -> list[str]:
    return ["".join(rng.choice(LETTERS, size)) for size in rng.integers(2, 10, NUM_WORDS)]


def _text(rng: np.random.Generator, words: list[str], length: int) -> str:
    # Frequent words and rare ones, as in any language.
    ranks = np.minimum(rng.zipf(1.3, length), NUM_WORDS) - 1
    return " ".join(words[rank] for rank in ranks)


def _example(rng: np.random.Generator, words: list[str], index: int, context: str) -> dict[str, Any]:
    start = int(rng.integers(0, len(context) // 2))
    answers = {"text": [context[start : start + 12]], "answer_start": [start]}
    return {"id": f"q{index}", "question": _text(rng, words, 10), "context": context, "answers": answers}


def _task(rng: np.random.Generator, examples: list[dict[str, Any]], texts: list[str]) -> Task:
    tokenizer = train_wordpiece_tokenizer(texts, vocab_size=6_000)
    featurizer = Featurizer(tokenizer, max_seq_length=MAX_SEQ_LENGTH, doc_stride=DOC_STRIDE, pad_to_max_length=True)
    features = featurizer.eval_features(examples)
    in_context = [
        np.flatnonzero(chars[:, 0] >= 0) for chars in np.split(features.char_offsets, features.row_starts[1:-1])
    ]
    peaks = np.array([rng.choice(tokens) for tokens in in_context])
    ends = peaks + rng.integers(0, 6, len(peaks))
    start_logits, end_logits = (_peaked(rng, peak) for peak in (peaks, ends))
    # In half of the windows "no answer" competes.
    competes = rng.random(len(peaks)) < 0.5
    for logits in (start_logits, end_logits):
        logits[competes, 0] = rng.normal(5, 2, competes.sum())
    return Task(examples, features, start_logits, end_logits, rng.normal(0, 1, (len(peaks), 5)).astype(np.float32))


def _peaked(rng: np.random.Generator, peaks: npt.NDArray[np.int64]) -> Logits:
    logits = rng.normal(-6, 2, (len(peaks), MAX_SEQ_LENGTH))
    distance = np.abs(np.arange(MAX_SEQ_LENGTH) - peaks[:, None])
    return (logits + 12 * np.exp(-distance / 4)).astype(np.float32)
