"""The page of the documentation that lists every training argument.

``python -m portico.fields.page docs/training_arguments.md`` writes it again.
"""

import sys
from pathlib import Path

from portico.facade.unsupported import REFUSALS
from portico.fields.table import TREATMENTS, Treatment

_HEAD = """\
# Training arguments

What every field of `TrainingArguments` and `Seq2SeqTrainingArguments` does here. Meaning and default are those of
`transformers`, unless the field is Lightning's own (`accelerator`, `strategy`, `devices`, `num_nodes`, `precision`).
A field without effect is announced in the log where it is set; a refused value ends with an error before any work.

This page is generated: `python -m portico.fields.page docs/training_arguments.md`.

| Field | Effect | Refused |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page as Markdown: a table of all fields by name."""
    return _HEAD + "".join(_row(name, treatment) for name, treatment in sorted(TREATMENTS.items()))


def _row(name: str, treatment: Treatment) -> str:
    effect = treatment.clause if treatment.has_effect else f"none (announced): {treatment.clause}"
    refusal = REFUSALS.get(name)
    return f"| `{name}` | {effect} | {f'{refusal.when}: {refusal.instead}' if refusal else ''} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
