"""The kinds of answer a window can hold."""

from enum import IntEnum

from portico.errors import InputError


class TargetType(IntEnum):
    """What answers a question in a window; also the classes of an answer-type classifier, in order."""

    NO_ANSWER = 0
    SPAN_ANSWER = 1
    PASSAGE_ANSWER = 2
    YES = 3
    NO = 4

    @classmethod
    def from_bool_label(cls, label: str) -> "TargetType":
        """Return the type of a yes/no annotation: ``"yes"``, ``"no"`` or ``"none"``, in any case.

        Raises:
            InputError: If it is none of them.
        """
        types = {"yes": cls.YES, "no": cls.NO, "none": cls.NO_ANSWER}
        if str(label).lower() not in types:
            raise InputError(f"The yes/no annotation {label!r} is unknown; use YES, NO or NONE.")
        return types[str(label).lower()]
