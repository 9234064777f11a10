from portico.mrc.readers.defects import InvalidRecord
from portico.mrc.readers.records import Example


class UniqueIds:
    """Sees to it that every example has an id of its own.

    Args:
        with_language: Whether the language goes in front of every id.
    """

    def __init__(self, *, with_language: bool = False) -> None:
        self._with_language = with_language
        self._places: dict[str, str] = {}

    def claim(self, example: Example, place: str) -> Example:
        """Return the example with its id; one without gets its number.

        Raises:
            InvalidRecord: If another example has the same id.
        """
        identifier = example.get("id", str(len(self._places)))
        if self._with_language and "language" in example:
            identifier = f"{example['language']}:{identifier}"
        first = self._places.setdefault(identifier, place)
        if first is not place:
            raise InvalidRecord(
                f"the id was used before ({first}); predictions are stored by id, so each must be unique."
            )
        return {**example, "id": identifier} if "id" in example else {"id": identifier, **example}
