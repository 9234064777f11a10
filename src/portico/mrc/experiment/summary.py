"""The scores of a run as a table for the terminal."""

from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class _Row(NamedTuple):
    label: str
    names: tuple[str, ...]
    form: str = "{:.1f}"
    factor: float = 1.0


# The headline scores of every metric, all shown in 0..100.
_ROWS = (
    _Row("F1", ("f1",)),
    _Row("Exact match", ("exact", "exact_match")),
    _Row("F1 where there is an answer", ("HasAns_f1",)),
    _Row("Accuracy where there is none", ("NoAns_exact",)),
    _Row("F1 at the best threshold", ("best_f1",)),
    _Row("Average precision of F1", ("pr_f1_ap",)),
    _Row("Passage F1, mean of languages", ("avg_passage_f1",), factor=100.0),
    _Row("Minimal answer F1, mean of languages", ("avg_minimal_f1",), factor=100.0),
    _Row("Long answer F1 at the best threshold", ("long_answer_best_f1",), factor=100.0),
    _Row("Short answer F1 at the best threshold", ("short_answer_best_f1",), factor=100.0),
    _Row("ROUGE-1", ("rouge1",)),
    _Row("ROUGE-2", ("rouge2",)),
    _Row("ROUGE-L", ("rougeL",)),
    _Row("ROUGE-L of sentences", ("rougeLsum",)),
    _Row("ROUGE-L as KILT counts", ("kilt_rougeL",)),
    _Row("Questions", ("total", "num_questions", "long_answer_n"), "{:,.0f}"),
    _Row("Loss", ("loss",), "{:.3f}"),
)


def print_summary(metrics: Mapping[str, float], *, title: str, files: Mapping[str, str], seconds: float) -> None:
    """Print the headline scores and where everything was written.

    Args:
        metrics: Metrics of the final evaluation, with the prefix ``eval_``.
        title: Heading of the table.
        files: Paths by what they are.
        seconds: Wall time of the whole run.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("Held-out questions")
    table.add_column("", justify="right")
    for row in _ROWS:
        value = next((metrics[f"eval_{name}"] for name in row.names if f"eval_{name}" in metrics), None)
        if value is not None:
            table.add_row(row.label, row.form.format(row.factor * value))
    table.add_row("Time of the whole run", f"{seconds // 60:.0f} min {seconds % 60:.0f} s")
    console = Console()
    console.print(table)
    for what, path in files.items():
        # Long paths must stay whole, so that they can be clicked and copied.
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)
