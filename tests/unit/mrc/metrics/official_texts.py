"""The official rules for answers' texts, written slowly and plainly, to compare the metrics with."""

import re
import string
import sys
import unicodedata
from collections import Counter

PUNCTUATION = {chr(i) for i in range(sys.maxunicode) if unicodedata.category(chr(i))[0] == "P"} | set(
    string.punctuation
)
MLQA_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "\\s\u0627\u0644^|\u0627\u0644",
}


def squad_normal(text):
    kept = [char for char in text.lower() if char not in set(string.punctuation)]
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", "".join(kept)).split())


def mlqa_normal(language):
    def normal(text):
        text = "".join(char for char in text.lower() if char not in PUNCTUATION)
        if language in MLQA_ARTICLES:
            text = re.sub(MLQA_ARTICLES[language], " ", text)
        return " ".join(chinese_words(text) if language == "zh" else text.split())

    return normal


def chinese_words(text):
    """Each Chinese character is a word, and so is what blanks part between them."""
    words, other = [], ""
    for char in text:
        if "\u4e00" <= char <= "\u9fa5":
            words += [*other.split(), char]
            other = ""
        else:
            other += char
    return words + other.split()


def squad_1(predictions, references, normal=squad_normal, skip=False):
    texts = {record["id"]: record["prediction_text"] for record in predictions}
    exact = f1 = total = 0
    for reference in references:
        if reference["id"] not in texts:
            total += not skip
            continue
        total += 1
        text, golds = texts[reference["id"]], reference["answers"]["text"]
        exact += max(normal(text) == normal(gold) for gold in golds)
        f1 += max(shared_f1(normal(text).split(), normal(gold).split()) for gold in golds)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def shared_f1(words, gold):
    shared = sum((Counter(words) & Counter(gold)).values())
    if shared == 0:
        return 0
    precision, recall = shared / len(words), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def squad_2(predictions, references, threshold=1.0):
    """All that the script prints, where every reference has a prediction with a probability."""
    texts = {record["id"]: record["prediction_text"] for record in predictions}
    null = {record["id"]: record["no_answer_probability"] for record in predictions}
    golds = {record["id"]: record["answers"]["text"] for record in references}
    exact, f1 = {}, {}
    for key, gold in golds.items():
        kept = [text for text in gold if squad_normal(text)] or [""]
        exact[key] = max(int(squad_normal(text) == squad_normal(texts[key])) for text in kept)
        f1[key] = max(either_empty_f1(squad_normal(texts[key]).split(), squad_normal(text).split()) for text in kept)

    def at_threshold(scores):
        return {key: float(not golds[key]) if null[key] > threshold else scores[key] for key in scores}

    out = {}
    groups = {"": list(golds), "HasAns_": [k for k in golds if golds[k]], "NoAns_": [k for k in golds if not golds[k]]}
    for prefix, keys in groups.items():
        if keys:
            for name, scores in (("exact", at_threshold(exact)), ("f1", at_threshold(f1))):
                out[f"{prefix}{name}"] = 100.0 * sum(scores[key] for key in keys) / len(keys)
            out[f"{prefix}total"] = len(keys)
    for name, scores in (("exact", exact), ("f1", f1)):
        out[f"best_{name}"], out[f"best_{name}_thresh"] = best_threshold(texts, scores, null, golds)
    if groups["HasAns_"]:
        oracle = {key: float(bool(golds[key])) for key in golds}
        for name, scores in (("exact", exact), ("f1", f1), ("oracle", oracle)):
            out[f"pr_{name}_ap"] = 100.0 * average_precision(scores, null, golds)
    return out


def either_empty_f1(words, gold):
    return shared_f1(words, gold) if words and gold else int(words == gold)


def best_threshold(texts, scores, null, golds):
    current = best = sum(not gold for gold in golds.values())
    threshold = 0.0
    for key in sorted(null, key=null.__getitem__):
        if key in scores:
            current += scores[key] if golds[key] else -bool(texts[key])
            if current > best:
                best, threshold = current, null[key]
    return 100.0 * best / len(scores), threshold


def average_precision(scores, null, golds):
    keys = [key for key in sorted(null, key=null.__getitem__) if key in golds]
    right = area = recall = 0.0
    for i, key in enumerate(keys):
        right += scores[key] if golds[key] else 0.0
        if i + 1 == len(keys) or null[key] != null[keys[i + 1]]:
            new_recall = right / sum(bool(gold) for gold in golds.values())
            area += right / (i + 1) * (new_recall - recall)
            recall = new_recall
    return area
