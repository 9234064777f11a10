"""Time of training and evaluation steps on packed batches, beside padded ones of the same features.

Run ``python benchmarks/mrc_packing.py --file squad.json --tokenizer FOLDER``; ``--device cuda`` measures there. Each
round takes the same batches both ways, in alternating order; printed are medians over the rounds and the median of
their ratios. Times are CPU seconds of the process on the CPU, and seconds on other devices.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from record import record
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering, DataCollatorWithPadding

from portico.from_scratch import train_wordpiece_tokenizer
from portico.mrc import Featurizer, read_examples
from portico.mrc.corpus import generate
from portico.mrc.packing import enable_packing


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return the time that `work` takes."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - started


def step(model: Any, batches: list[Any], *, train: bool) -> None:
    """Run the model over some batches, forwards and, to train, backwards."""
    model.train(train)
    with torch.set_grad_enabled(train):
        for batch in batches:
            loss = model(**batch).loss
            if train:
                loss.backward()
                model.zero_grad()


def show_bound(lengths: Any) -> None:
    """Print what padding adds to the tokens: no packing of the same batches can gain more, at a cost per token."""
    for size in (8, 16, 32, len(lengths)):
        batches = torch.as_tensor(lengths)[torch.randperm(len(lengths))].split(size)
        ratio = sum(len(rows) * int(rows.max()) for rows in batches) / int(sum(rows.sum() for rows in batches))
        print(
            f"padded tokens of real ones, {f'batches of {size}' if size < len(lengths) else 'one batch'}: {ratio:.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", help="questions in any format; by default the embedded corpus")
    parser.add_argument("--tokenizer", help="folder or name; by default one trained on the contexts")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    examples = read_examples(options.file) if options.file else generate(num_train=2000, num_validation=1, seed=0)[0]
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
    collators = {
        "padded": DataCollatorWithPadding(tokenizer),
        "packed": enable_packing(model, tokenizer, options.length),
    }
    order = torch.randperm(len(features))[: options.batches * options.batch_size].split(options.batch_size)
    batches = {
        way: [
            {name: values.to(options.device) for name, values in collate([features[int(f)] for f in rows]).items()}
            for rows in order
        ]
        for way, collate in collators.items()
    }
    for way, made in batches.items():
        cells = sum(batch["input_ids"].numel() for batch in made)
        print(f"{way}: {cells} token places for {sum(int(features.lengths[rows].sum()) for rows in order)} tokens")
    for name, train in (("training", True), ("evaluation", False)):
        times: dict[str, list[float]] = {way: [] for way in batches}
        ways = list(batches)
        for way in ways:
            step(model, batches[way], train=train)
        for _ in range(options.rounds):
            for way in ways:
                times[way].append(
                    seconds(lambda made=batches[way], train=train: step(model, made, train=train), options.device)
                )
            ways.reverse()
        medians = {way: statistics.median(measured) for way, measured in times.items()}
        ratio = statistics.median(a / b for a, b in zip(times["padded"], times["packed"], strict=True))
        data = "the embedded corpus" if not options.file else "other questions"
        shares = [b / a for a, b in zip(times["padded"], times["packed"], strict=True)]
        record(f"packed {name} step on {data}, of padded", shares)
        print(f"{name}: padded {medians['padded']:.2f} s, packed {medians['packed']:.2f} s, {ratio:.2f} x faster")


if __name__ == "__main__":
    main()
