"""CPU time of turning questions into features, beside the rules of the QA example of transformers.

Run ``python benchmarks/mrc_features.py``; ``--file`` and ``--tokenizer`` measure on real questions. Each round makes
the features both ways, in alternating order; printed are medians over the rounds and the median of their ratios.
Times are CPU seconds of the whole process, so that other processes do not count; with ``--all-cores`` they are seconds
that pass, while both tokenizers use every core. The example's way is its ``Dataset.map``, as it is run; "function"
leaves out what ``datasets`` does around it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import datasets
from record import record
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from portico.experiments.from_scratch import train_wordpiece_tokenizer
from portico.mrc import Featurizer, read_examples
from portico.mrc.corpus import generate

Batch = Mapping[str, Any]


def encode(tokenizer: PreTrainedTokenizerBase, batch: Batch, length: int, stride: int, pad: bool) -> Any:
    """Tokenise a batch of pairs as the example does."""
    return tokenizer(
        [question.lstrip() for question in batch["question"]],
        batch["context"],
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if pad else False,
    )


def train_rows(tokenizer: PreTrainedTokenizerBase, batch: Batch, length: int, stride: int, pad: bool) -> Any:
    """Label the windows of a batch as the example does, one window at a time."""
    rows = encode(tokenizer, batch, length, stride, pad)
    owners, offsets = rows.pop("overflow_to_sample_mapping"), rows.pop("offset_mapping")
    rows["start_positions"], rows["end_positions"] = [], []
    for row, owner in enumerate(owners):
        start, end = label(
            rows["input_ids"][row].index(tokenizer.cls_token_id),
            rows.sequence_ids(row),
            offsets[row],
            batch["answers"][owner],
        )
        rows["start_positions"].append(start)
        rows["end_positions"].append(end)
    return rows


def label(nothing: int, sequences: list[int | None], offsets: Any, answers: Any) -> tuple[int, int]:
    """Return the first and last token of the answer, found by walking."""
    if not answers["answer_start"]:
        return nothing, nothing
    begin = answers["answer_start"][0]
    stop = begin + len(answers["text"][0])
    first, last = 0, len(sequences) - 1
    while sequences[first] != 1:
        first += 1
    while sequences[last] != 1:
        last -= 1
    if offsets[first][0] > begin or offsets[last][1] < stop:
        return nothing, nothing
    while first < len(offsets) and offsets[first][0] <= begin:
        first += 1
    while offsets[last][1] >= stop:
        last -= 1
    return first - 1, last + 1


def eval_rows(tokenizer: PreTrainedTokenizerBase, batch: Batch, length: int, stride: int, pad: bool) -> Any:
    """Keep the offsets of the context only, as the example does, one window at a time."""
    rows = encode(tokenizer, batch, length, stride, pad)
    owners = rows.pop("overflow_to_sample_mapping")
    rows["example_id"] = [batch["id"][owner] for owner in owners]
    for row in range(len(owners)):
        sequences = rows.sequence_ids(row)
        rows["offset_mapping"][row] = [
            offset if sequence == 1 else None
            for offset, sequence in zip(rows["offset_mapping"][row], sequences, strict=True)
        ]
    return rows


def seconds(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Return the seconds that `work` takes."""
    started = clock()
    work()
    return clock() - started


def measure(
    name: str, ways: Mapping[str, Callable[[], Any]], num_rounds: int, num_examples: int, *, all_cores: bool
) -> None:
    """Time all ways in turn and print medians and ratios to the first one, which is ours."""
    clock = time.perf_counter if all_cores else time.process_time
    times: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for _ in range(num_rounds):
        for way in order:
            times[way].append(seconds(ways[way], clock))
        order.reverse()
    ours = next(iter(times.values()))
    print(name)
    for way, measured in times.items():
        median = statistics.median(measured)
        ratio = statistics.median(theirs / mine for theirs, mine in zip(measured, ours, strict=True))
        if way == "the example's map":
            what = f"features for {name}{' on all cores' if all_cores else ''}, of the example's map"
            record(what, [b / a for a, b in zip(measured, ours, strict=True)])
        print(f"  {way:24}{median:7.2f} s {num_examples / median:8.0f} questions/s {ratio:6.1f} x ours")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", help="questions in any format; by default the embedded corpus")
    parser.add_argument("--tokenizer", help="folder or name; by default one trained on the contexts")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--stride", type=int, default=128)
    parser.add_argument("--pad", action="store_true", help="pad every window to the length")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all-cores", action="store_true", help="time that passes, with as many threads as cores")
    options = parser.parse_args()
    examples = read_examples(options.file) if options.file else generate(num_train=6000, num_validation=1, seed=0)[0]
    texts = [example["context"] for example in examples]
    tokenizer: Any = (
        AutoTokenizer.from_pretrained(options.tokenizer)
        if options.tokenizer
        else train_wordpiece_tokenizer(texts, vocab_size=8000)
    )
    fields = ("id", "context", "question", "answers")
    dataset = datasets.Dataset.from_list([{field: example[field] for field in fields} for example in examples])
    datasets.disable_caching()
    datasets.disable_progress_bars()
    shape = {"length": options.length, "stride": options.stride, "pad": options.pad}
    featurizer = Featurizer(
        tokenizer, max_seq_length=options.length, doc_stride=options.stride, pad_to_max_length=options.pad
    )
    for name, make, rows in (
        ("training", featurizer.train_features, train_rows),
        ("evaluation", featurizer.eval_features, eval_rows),
    ):

        def mapped(function: Any = rows) -> Any:
            return dataset.map(
                lambda batch: function(tokenizer, batch, **shape), batched=True, remove_columns=dataset.column_names
            )

        def called(function: Any = rows) -> Any:
            for first in range(0, len(dataset), 1000):
                function(tokenizer, dataset[first : first + 1000], **shape)

        ways = {"portico": lambda make=make: make(examples), "the example's map": mapped, "its function": called}
        measure(name, ways, options.rounds, len(examples), all_cores=options.all_cores)


if __name__ == "__main__":
    main()
