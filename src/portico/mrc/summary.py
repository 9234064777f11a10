"""The scores of a run as a table for the terminal."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

_ROWS = (
    ("F1", ("f1",), "{:.1f}"),
    ("Exact match", ("exact", "exact_match"), "{:.1f}"),
    ("F1 where there is an answer", ("HasAns_f1",), "{:.1f}"),
    ("Accuracy where there is none", ("NoAns_exact",), "{:.1f}"),
    ("Questions", ("total", "num_questions"), "{:,.0f}"),
    ("Loss", ("loss",), "{:.3f}"),
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
    for label, names, form in _ROWS:
        value = next((metrics[f"eval_{name}"] for name in names if f"eval_{name}" in metrics), None)
        if value is not None:
            table.add_row(label, form.format(value))
    table.add_row("Time of the whole run", f"{seconds // 60:.0f} min {seconds % 60:.0f} s")
    console = Console()
    console.print(table)
    for what, path in files.items():
        # Long paths must stay whole, so that they can be clicked and copied.
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)
