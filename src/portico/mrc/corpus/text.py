from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True)
class Span:
    """A stretch of a passage.

    Args:
        text: Its characters.
        start: Offset of its first character in the passage.
    """

    text: str
    start: int


class Text:
    """A text that grows at its end and knows where everything in it stands."""

    def __init__(self) -> None:
        self.value = ""

    def write(self, words: str) -> Span:
        """Append words and return where they stand."""
        span = Span(words, len(self.value))
        self.value += words
        return span

    def fill(self, template: str, **words: str) -> dict[str, Span]:
        """Append a template with its slots filled, and return where each filling stands.

        Args:
            template: Text with slots such as ``{value}``.
            words: What to write into each slot.
        """
        spans = {}
        for literal, slot, _, _ in Formatter().parse(template):
            self.write(literal)
            if slot is not None:
                spans[slot] = self.write(words[slot])
        return spans
