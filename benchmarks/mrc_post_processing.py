"""The cost of turning logits into answers, compared with transformers' QA example and PrimeQA.

`mrc_peers` re-implements the rules of both, one candidate at a time as in the originals; portico must give the same
answers before anything is timed. Each line times the two in alternation and prints the median ratio and its range.

    OMP_NUM_THREADS=1 python benchmarks/mrc_post_processing.py
    OMP_NUM_THREADS=1 python benchmarks/mrc_post_processing.py --questions 1000 --documents 30 --rounds 3
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cpu_ratio import compare, cpu_seconds
from mrc_made_data import Task, document_task, squad_task
from mrc_peers import MAX_ANSWER_LENGTH, N_BEST, hf_answers, primeqa_records

from portico.mrc import SpanPostProcessor, postprocess_qa_predictions, primeqa

BATCH_SIZE = 64
FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")


def as_dataset(rows: list[dict[str, Any]]) -> Any:
    """Return records as a Dataset, as used by the examples of transformers."""
    import datasets

    return datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]})


def squad(num_questions: int, rounds: int) -> Task:
    """Time post-processing of passages of SQuAD's size; return the task."""
    task = squad_task(num_questions)
    logits = (task.start_logits, task.end_logits)
    rows = [task.features[i] for i in range(len(task.features))]
    examples, features = as_dataset(task.examples), as_dataset(rows)

    def ours(examples: Any, features: Any, folder: Path | None = None) -> Callable[[], dict[str, str]]:
        return lambda: postprocess_qa_predictions(
            examples, features, logits, version_2_with_negative=True, output_dir=folder
        )

    def theirs(examples: Any, features: Any, folder: Path | None = None) -> Callable[[], dict[str, str]]:
        return lambda: hf_answers(examples, features, *logits, folder=folder)

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder, name) for name in ("theirs", "ours")]
        for path in folders:
            path.mkdir()
        assert theirs(task.examples, rows, folders[0])() == ours(task.examples, task.features, folders[1])()
        for name in FILES:
            assert folders[0].joinpath(name).read_bytes() == folders[1].joinpath(name).read_bytes(), name
        show(f"{num_questions} questions, {len(rows)} windows: answers, from Datasets")
        print(compare("answers, of transformers' rules", theirs(examples, features), ours(examples, features), rounds))
        show("the same with the three files")
        print(
            compare(
                "answers with files, of transformers' rules",
                theirs(examples, features, folders[0]),
                ours(examples, features, folders[1]),
                rounds,
            )
        )
        show("answers, from lists; ours from arrays")
        print(
            compare(
                "answers from arrays, of transformers' rules on lists",
                theirs(task.examples, rows),
                ours(task.examples, task.features),
                rounds,
            )
        )
    return task


def documents(num_questions: int, rounds: int) -> None:
    """Time post-processing of whole articles."""
    task = document_task(num_questions)
    rows = [{**task.features[i], "example_idx": int(e)} for i, e in enumerate(task.features.example_index)]
    logits = (task.start_logits, task.end_logits, task.type_logits)
    examples, features = as_dataset(task.examples), as_dataset(rows)
    processor = primeqa.ExtractivePostProcessor(
        k=N_BEST, max_answer_length=MAX_ANSWER_LENGTH, n_best_size=N_BEST, single_context_multiple_passages=True
    )
    base_examples = as_dataset([{**example, "context": [example["context"]]} for example in task.examples])
    theirs = primeqa_records(examples, features, *logits)
    ours = processor.process(base_examples, features, logits)
    for key, records in theirs.items():
        for record, other in zip(records, ours[key], strict=True):
            assert {name: other[name] for name in record} == record, key
    show(f"{num_questions} documents, {len(rows)} windows: PrimeQA's records, from Datasets")
    print(
        compare(
            "answers in documents, of PrimeQA's rules",
            lambda: primeqa_records(examples, features, *logits),
            lambda: processor.process(base_examples, features, logits),
            rounds,
        )
    )


def collecting(task: Task) -> None:
    """Show the memory kept for each window, and that twice the windows cost twice as much."""
    num_features = len(task.features)
    for times in (1, 2, 4):
        # A repeated window costs as much as a new one, although only the first is kept in the end.
        post_processor = SpanPostProcessor(task.examples, task.features, version_2_with_negative=True)

        def collect(post_processor: SpanPostProcessor = post_processor, times: int = times) -> None:
            for _ in range(times):
                for first in range(0, num_features, BATCH_SIZE):
                    batch = slice(first, first + BATCH_SIZE)
                    indices = np.arange(num_features)[batch]
                    post_processor.update(task.start_logits[batch], task.end_logits[batch], indices)

        seconds = cpu_seconds(collect)
        show(f"collecting {times * num_features} windows")
        print(f"{seconds:8.2f} s   {1e6 * seconds / (times * num_features):5.1f} us a window")
    show("kept of each window")
    num_bytes = sum(column.nbytes for column in post_processor.candidates().columns())
    print(f"{num_bytes / num_features:8.0f} bytes of {8 * task.start_logits.shape[1]}")


def show(what: str) -> None:
    """Print the beginning of a line."""
    print(f"{what:60}", end="", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=6_000)
    parser.add_argument("--documents", type=int, default=100, help="0 leaves them out")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'':60}  theirs       ours    ratio (range)")
    collecting(squad(options.questions, options.rounds))
    if options.documents:
        documents(options.documents, options.rounds)


if __name__ == "__main__":
    main()
