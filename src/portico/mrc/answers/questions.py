"""What post-processing reads of the examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from portico.errors import InputError
from portico.mrc.answers.passages import Passages
from portico.mrc.datasets.examples import Examples, column


@dataclass(frozen=True)
class Questions:
    """The examples to answer.

    Args:
        examples: With ``id`` (or PrimeQA's ``example_id``), ``context``, a text or a list of texts, and perhaps
            ``passage_candidates``.

    Raises:
        InputError: If two have the same identifier, or there are none.
    """

    examples: Examples

    def __post_init__(self) -> None:
        if not len(self.examples):
            raise InputError("There are no examples to answer; give at least one question with its context.")
        repeated = [example_id for example_id, count in Counter(self.ids).items() if count > 1]
        if repeated:
            raise InputError(
                f"{len(repeated)} example ids occur more than once, {repeated[0]!r} for one; answers are told apart "
                f"by id, so give every example its own."
            )

    @cached_property
    def ids(self) -> list[str]:
        """Identifiers of the examples."""
        return column(self.examples, "id" if self.has("id") else "example_id")

    @cached_property
    def contexts(self) -> list[Sequence[str]]:
        """The contexts of each example."""
        contexts = column(self.examples, "context")
        return [[context] if isinstance(context, str) else context for context in contexts]

    @cached_property
    def passages(self) -> Passages | None:
        """The passages of each example's document; ``None`` if the examples have none."""
        return column(self.examples, "passage_candidates") if self.has("passage_candidates") else None

    def has(self, name: str) -> bool:
        """Return whether the examples have a column."""
        return name in (getattr(self.examples, "column_names", None) or self.examples[0])
