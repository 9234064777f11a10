"""The page of the documentation that lists every training argument.

``python -m portico.fields.page docs/training_arguments.md`` writes it again.
"""

import sys
from pathlib import Path

from portico.facade.unsupported import REFUSALS
from portico.fields.table import TREATMENTS, Treatment
from portico.old_spellings.renamed import RENAMED
from portico.old_spellings.retired import retired_treatments

_HEAD = """\
# Training arguments

What every field of `TrainingArguments` and `Seq2SeqTrainingArguments` does here. Meaning and default are those of
`transformers`, unless the field is Lightning's own (`accelerator`, `strategy`, `devices`, `num_nodes`, `precision`).
A field without effect is announced in the log where it is set; a refused value ends with an error before any work.

This page is generated: `python -m portico.fields.page docs/training_arguments.md`.

| Field | Effect | Refused |
| --- | --- | --- |
"""

_OLD_HEAD = """
## Arguments of transformers 4

Each is taken with one `FutureWarning` that says what to write today.

| Argument | What becomes of it |
| --- | --- |
"""


def page() -> str:
    """Return the page as Markdown: a table of all fields by name, and one of those of transformers 4."""
    present = "".join(_row(name, treatment) for name, treatment in sorted(TREATMENTS.items()))
    old = {name: f"is called `{new}`" for name, new in RENAMED.items()} | retired_treatments()
    return _HEAD + present + _OLD_HEAD + "".join(f"| `{name}` | {fate} |\n" for name, fate in sorted(old.items()))


def _row(name: str, treatment: Treatment) -> str:
    effect = treatment.clause if treatment.has_effect else f"none (announced): {treatment.clause}"
    refusal = REFUSALS.get(name)
    return f"| `{name}` | {effect} | {f'{refusal.when}: {refusal.instead}' if refusal else ''} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
