import numpy as np

from portico.mrc.readers.annotations import Span


class ByteOffsets:
    """Tells which character of a text a byte of its UTF-8 form belongs to.

    Args:
        text: The text.

    Attributes:
        num_bytes: Bytes of the text's UTF-8 form.
    """

    def __init__(self, text: str) -> None:
        encoded = np.frombuffer(text.encode(), np.uint8)
        self.num_bytes = len(encoded)
        # Every byte but a continuation byte, 0b10xxxxxx, begins a character.
        self._num_begun = np.concatenate(([0], np.cumsum((encoded & 0xC0) != 0x80)))

    def char(self, byte: int) -> int:
        """Return the number of characters that begin before a byte: -1 stays -1, what is beyond the end is the end.

        A byte inside a character counts as behind it.
        """
        return -1 if byte < 0 else int(self._num_begun[min(byte, self.num_bytes)])

    def span(self, start_byte: int, end_byte: int) -> Span:
        """Return the characters ``[start, end)`` of a span of bytes."""
        return self.char(start_byte), self.char(end_byte)
