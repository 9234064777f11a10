"""Memory and time of reading comprehension on more and more questions, from Arrow files to a training step.

    python benchmarks/mrc_large_data.py --sizes 10000 100000 1000000

Each size has a process of its own: it opens questions that lie in an Arrow file, makes their features in a cache,
opens them again as another run would, and trains a few steps on windows from all over the set. A second process does
the same on a stream. Printed are the highest points of the memory of the process itself (``RssAnon``): pages of files
that the kernel keeps because memory is free, and takes back when it is not, do not count.

The questions are made from passages of the embedded corpus, repeated with other numbers until there are enough, in a
file that is written part by part.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch

from portico import MRCTrainer, TrainingArguments
from portico.mrc import Featurizer
from portico.mrc.collators import head_collator
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader

MEBIBYTE = 2**20
NUM_STEPS = 50


def questions(size: int) -> Iterator[dict[str, Any]]:
    """Yield questions of which no two are equal."""
    made = generate(num_train=5000, num_validation=1, seed=0)[0]
    for index in range(size):
        example = made[index % len(made)]
        yield {
            "id": str(index),
            "question": example["question"],
            "context": f"{example['context']} This is passage {index // len(made)}.",
            "answers": example["answers"],
        }


class Peak:
    """The highest ``RssAnon`` of this process in MiB, looked at 50 times a second."""

    def __init__(self) -> None:
        self.value = self.now()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.value = max(self.value, self.now())
            time.sleep(0.02)

    @staticmethod
    def now() -> float:
        """Return what it is now."""
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024


def prepare(folder: Path, size: int) -> None:
    """Write the questions, part by part."""
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_generator(questions, gen_kwargs={"size": size}, cache_dir=str(folder / "arrow"))
    data.save_to_disk(folder / "questions", max_shard_size="200MB")


def measure(folder: Path, kind: str) -> dict[str, Any]:
    """Make features and train; return what it took."""
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    examples = datasets.load_from_disk(str(folder / "questions"))
    texts = [example["context"] for example in generate(num_train=500, num_validation=1, seed=0)[0]]
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    made = new_reader(texts, vocab_size=1600, max_length=192, model=shape)
    before, peak, started = Peak.now(), Peak(), time.process_time()
    options: dict[str, Any] = {"max_seq_length": 192, "doc_stride": 64}
    if kind == "cached":
        featurizer = Featurizer(made.tokenizer, **options, cache_dir=str(folder / "features"))
        data: Any = featurizer.train_features(examples)
        num_windows = len(data)
    else:
        data = Featurizer(made.tokenizer, **options).train_stream(examples.to_iterable_dataset())
        num_windows = -1
    made_in, made_with = time.process_time() - started, peak.value
    again = 0.0
    if kind == "cached":
        started = time.process_time()
        featurizer.train_features(examples)
        again = time.process_time() - started
    args = TrainingArguments(
        str(folder / "run"),
        max_steps=NUM_STEPS,
        per_device_train_batch_size=16,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    MRCTrainer(made.model, args, train_dataset=data, data_collator=head_collator("span", made.tokenizer)).train()
    return {
        "questions": len(examples),
        "windows": num_windows,
        "features_seconds": made_in,
        "again_seconds": again,
        "features_mebibytes": made_with - before,
        "training_mebibytes": peak.value - before,
        "files_mebibytes": sum(file.stat().st_size for file in folder.glob("features/*/*")) / MEBIBYTE,
    }


def main() -> None:
    """Measure each size in processes of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--folder", help="where the files go; by default a temporary folder")
    parser.add_argument("--work", nargs=3, metavar=("FOLDER", "WHAT", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        folder, what, size = options.work
        result = prepare(Path(folder), int(size)) if what == "prepare" else measure(Path(folder), what)
        print(json.dumps(result))
        return
    print("questions  way     windows    CPU s  again s  MiB features  MiB training  MiB files", flush=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for what in ("prepare", "cached", "stream"):
                command = [sys.executable, "-W", "ignore", __file__, "--work", folder, what, str(size)]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                if (found := json.loads(output.splitlines()[-1])) is not None:
                    print(
                        f"{found['questions']:>9}  {what:7} {found['windows']:>8} {found['features_seconds']:>8.1f} "
                        f"{found['again_seconds']:>8.1f} {found['features_mebibytes']:>13.0f} "
                        f"{found['training_mebibytes']:>13.0f} {found['files_mebibytes']:>10.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
