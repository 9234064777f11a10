"""Time of training and evaluation steps on packed batches, beside padded ones of the same features.

Run ``python benchmarks/mrc_packing.py`` for the embedded corpus, ``--data squad_lengths`` for passages of random words
with the lengths of SQuAD's, or ``--data squad.json`` for questions in any format; ``--device cuda`` measures there.
Features are padded to the longest of their batch and, with ``--to-max-length``, to ``--length``, as transformers'
question answering example does by default. Each round takes the same batches in all ways, collating included, in
alternating order; printed are medians over the rounds and the median of their ratios. Times are CPU seconds of the
process on the CPU, and seconds on other devices.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from mrc_made_data import squad_task
from record import record
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering, DataCollatorWithPadding

from portico.experiments.from_scratch import train_wordpiece_tokenizer
from portico.mrc import Featurizer, read_examples
from portico.mrc.collators import PackingCollator, batch_by_columns
from portico.mrc.corpus import generate
from portico.mrc.packing import enable_packing

DATA = {"corpus": "the embedded corpus", "squad_lengths": "passages of SQuAD's lengths"}


def parsed_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="corpus", help=f"{', '.join(DATA)}, or a file of questions")
    parser.add_argument("--tokenizer", help="folder or name; by default one trained on the contexts")
    parser.add_argument("--to-max-length", action="store_true", help="measure padding to --length too")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pack-all", action="store_true", help="pack batches in which it does not pay too")
    return parser.parse_args()


def examples_of(data: str) -> Any:
    """Return the questions that ``--data`` names."""
    if data == "corpus":
        return generate(num_train=2000, num_validation=1, seed=0)[0]
    return squad_task(1000).examples if data == "squad_lengths" else read_examples(data)


def seconds(model: Any, batches: list[Any], collate: Any, device: str, *, train: bool) -> float:
    """Return the time to collate batches and run the model over them, forwards and, to train, backwards."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    model.train(train)
    started = clock()
    with torch.set_grad_enabled(train):
        for rows in batches:
            loss = model(**{name: values.to(device) for name, values in collate(rows).items()}).loss
            if train:
                loss.backward()
                model.zero_grad()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - started


def show_bound(lengths: Any) -> None:
    """Print what padding adds to the tokens, which is what packing saves at a cost per token."""
    for size in (8, 16, 32):
        batches = torch.as_tensor(lengths)[torch.randperm(len(lengths))].split(size)
        ratio = sum(len(rows) * int(rows.max()) for rows in batches) / int(sum(rows.sum() for rows in batches))
        print(f"padded tokens of real ones, batches of {size}: {ratio:.2f}")


def main() -> None:
    """Measure and print."""
    options = parsed_options()
    torch.manual_seed(0)
    examples = examples_of(options.data)
    texts = [example["context"] for example in examples]
    tokenizer: Any = (
        AutoTokenizer.from_pretrained(options.tokenizer)
        if options.tokenizer
        else train_wordpiece_tokenizer(texts, vocab_size=8000)
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden_size // 32,
        intermediate_size=4 * options.hidden_size,
    )
    model = BertForQuestionAnswering(config).to(options.device)
    features = Featurizer(tokenizer, max_seq_length=options.length, doc_stride=128).train_features(examples)
    show_bound(features.lengths)
    if options.pack_all:
        PackingCollator.worthwhile_padding = PackingCollator.worthwhile_work = 0.0
    collators: dict[str, Any] = {
        "packed": enable_packing(model, tokenizer, options.length),
        "padded": DataCollatorWithPadding(tokenizer),
    }
    if options.to_max_length:
        collators["padded to the maximal length"] = DataCollatorWithPadding(
            tokenizer, padding="max_length", max_length=options.length
        )
    order = torch.randperm(len(features))[: options.batches * options.batch_size].split(options.batch_size)
    ways = {}
    for name, collator in collators.items():
        rows, collate = batch_by_columns(features, collator)
        given = rows.rows if rows is not features else lambda indices: [features[index] for index in indices]
        ways[name] = [given(indices.tolist()) for indices in order], collate
    compare(model, ways, options)


def compare(model: Any, ways: dict[str, Any], options: argparse.Namespace) -> None:
    """Time the ways in turns, and print and record what packing takes of each kind of padding."""
    for step, train in (("training", True), ("evaluation", False)):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds + 1):
            for way in list(ways)[:: -1 if turn % 2 else 1]:
                batches, collate = ways[way]
                taken = seconds(model, batches, collate, options.device, train=train)
                # The first turn warms up.
                if turn:
                    times[way].append(taken)
        packed = times.pop("packed")
        print(f"{step}: packed {statistics.median(packed):.2f} s")
        for way, padded in times.items():
            record(
                f"packed {step} step on {DATA.get(options.data, 'other questions')}, of {way}",
                [one / other for one, other in zip(packed, padded, strict=True)],
            )
            ratio = statistics.median(one / other for one, other in zip(padded, packed, strict=True))
            print(f"{step}: {way} {statistics.median(padded):.2f} s, packed {ratio:.2f} x faster")


if __name__ == "__main__":
    main()
