"""The texts of spans.

Shape suffixes: E examples, N spans.
"""

from collections.abc import Sequence

from portico.mrc.arrays import Int32s, Int64s

LITERAL_EMPTY = -1
"""Both characters of the span that stands for the text "empty"."""


def span_texts(
    contexts_E: Sequence[Sequence[str]], example_N: Int64s, context_N: Int64s, chars_N2: Int32s
) -> list[str]:
    """Return the text of every span, ``N`` of them.

    Args:
        contexts_E: The contexts of each example.
        example_N: The example of each span, ``int64 [N]``.
        context_N: Which of its contexts it stands in, ``int64 [N]``.
        chars_N2: Its characters there, ``[start, end)``, ``int32 [N, 2]``.
    """
    starts, ends = chars_N2.T.tolist()
    return [
        "empty" if start == LITERAL_EMPTY else contexts_E[example][context][start:end]
        for example, context, start, end in zip(example_N.tolist(), context_N.tolist(), starts, ends, strict=True)
    ]
