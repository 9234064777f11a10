"""The rules of transformers' QA example and of PrimeQA, one candidate at a time as in the originals."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

N_BEST = 20
MAX_ANSWER_LENGTH = 30
NULL_THRESHOLD = 0.0

Rows = Sequence[Mapping[str, Any]]


def features_of_examples(examples: Rows, features: Rows) -> dict[int, list[int]]:
    """Return the features of each example, reading whole rows as the QA example does."""
    index = {example_id: e for e, example_id in enumerate(example["id"] for example in examples)}
    found = defaultdict(list)
    for f, feature in enumerate(features):
        found[index[feature["example_id"]]].append(f)
    return found


def best_tokens(logits: Any) -> list[int]:
    """Return the tokens with the largest logits, largest first."""
    return np.argsort(logits)[-1 : -N_BEST - 1 : -1].tolist()


def hf_answers(
    examples: Rows, features: Rows, start_logits: Any, end_logits: Any, *, folder: Path | None = None
) -> dict[str, str]:
    """Answer by the rules of the QA example for SQuAD 2.0; write its three files into ``folder``."""
    features_of = features_of_examples(examples, features)
    predictions, nbest, null_odds = {}, {}, {}
    for e, example in enumerate(examples):
        candidates, null = [], None
        for f in features_of[e]:
            starts, ends, offsets = start_logits[f], end_logits[f], features[f]["offset_mapping"]
            max_context = features[f].get("token_is_max_context")
            null_score = starts[0] + ends[0]
            if null is None or null_score < null["score"]:
                null = _hf_record((0, 0), null_score, starts[0], ends[0])
            ends_of_feature = best_tokens(ends)
            for start in best_tokens(starts):
                for end in ends_of_feature:
                    if start >= len(offsets) or end >= len(offsets) or offsets[start] is None or offsets[end] is None:
                        continue
                    if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                        continue
                    if max_context is not None and not max_context.get(str(start), False):
                        continue
                    chars = (offsets[start][0], offsets[end][1])
                    candidates.append(_hf_record(chars, starts[start] + ends[end], starts[start], ends[end]))
        ranked = sorted([*candidates, null], key=lambda record: record["score"], reverse=True)[:N_BEST]
        if not any(record["offsets"] == (0, 0) for record in ranked):
            ranked.append(null)
        context = example["context"]
        for record in ranked:
            start, end = record.pop("offsets")
            record["text"] = context[start:end]
        if len(ranked) == 1 and not ranked[0]["text"]:
            ranked.insert(0, {"text": "empty", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0})
        scores = np.array([record.pop("score") for record in ranked])
        odds = np.exp(scores - np.max(scores))
        for record, probability in zip(ranked, odds / odds.sum(), strict=True):
            record["probability"] = probability
        best = next(record for record in ranked if record["text"])
        margin = null["start_logit"] + null["end_logit"] - best["start_logit"] - best["end_logit"]
        null_odds[example["id"]] = float(margin)
        predictions[example["id"]] = "" if margin > NULL_THRESHOLD else best["text"]
        nbest[example["id"]] = [_plain(record) for record in ranked]
    if folder is not None:
        contents = {"predictions": predictions, "nbest_predictions": nbest, "null_odds": null_odds}
        for name, content in contents.items():
            (folder / f"{name}.json").write_text(json.dumps(content, indent=4) + "\n")
    return predictions


def _hf_record(offsets: tuple[int, int], score: Any, start_logit: Any, end_logit: Any) -> dict[str, Any]:
    return {"offsets": offsets, "score": score, "start_logit": start_logit, "end_logit": end_logit}


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: float(value) if isinstance(value, np.floating) else value for name, value in record.items()}


def primeqa_records(
    examples: Rows, features: Rows, start_logits: Any, end_logits: Any, type_logits: Any
) -> dict[str, list[dict[str, Any]]]:
    """Rank the spans of documents by PrimeQA's rules, its default scorer and one context of several passages.

    Features are in the order of their examples; their rows are read one at a time, as in PrimeQA.
    """
    rows_of_examples = groupby(enumerate(features), key=lambda row: row[1]["example_idx"])
    records = {}
    for example, (_, rows) in zip(examples, rows_of_examples, strict=True):
        candidates = []
        for f, feature in rows:
            starts, ends, types = start_logits[f].tolist(), end_logits[f].tolist(), type_logits[f].tolist()
            offsets = feature["offset_mapping"]
            null = starts[0] + ends[0]
            starts, ends = starts[: len(offsets)], ends[: len(offsets)]
            ends_of_feature = best_tokens(ends)
            for start in best_tokens(starts):
                for end in ends_of_feature:
                    if offsets[start] is None or offsets[end] is None:
                        continue
                    if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                        continue
                    begin, stop = offsets[start][0], offsets[end][1]
                    difference = starts[start] + ends[end] - null
                    candidates.append(
                        {
                            "example_id": example["id"],
                            "cls_score": null,
                            "start_logit": starts[start],
                            "end_logit": ends[end],
                            "span_answer": {"start_position": begin, "end_position": stop},
                            "span_answer_score": 0.5 * difference + 0.5 * types[1],
                            "start_index": start,
                            "end_index": end,
                            "passage_index": _passage(example["passage_candidates"], begin, stop),
                            "target_type_logits": types,
                            "span_answer_text": example["context"][begin:stop],
                            "yes_no_answer": 0,
                            "start_stdev": 0.0,
                            "end_stdev": 0.0,
                            "query_passage_similarity": 0.0,
                        }
                    )
        kept = sorted(candidates, key=lambda record: record["span_answer_score"], reverse=True)[:N_BEST]
        scores = np.array([record["span_answer_score"] for record in kept])
        odds = np.exp(scores - scores.max())
        for record, probability in zip(kept, (odds / odds.sum()).tolist(), strict=True):
            record["normalized_span_answer_score"] = record["confidence_score"] = probability
        records[example["id"]] = kept
    return records


def _passage(passages: Mapping[str, Sequence[int]], begin: int, stop: int) -> int:
    for index in range(len(passages["start_positions"])):
        if passages["start_positions"][index] <= begin <= stop <= passages["end_positions"][index]:
            return index
    return -1
