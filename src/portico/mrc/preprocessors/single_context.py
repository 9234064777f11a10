from typing import Any

from portico.mrc.preprocessors.base import BasePreProcessor


class SingleContextPreProcessor(BasePreProcessor):
    """Makes features of data sets whose questions have one context, of which passages are parts.

    Args:
        *args: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`;
            ``single_context_multiple_passages`` is True whatever is given.
        **kwargs: As in :class:`~portico.mrc.preprocessors.abstract.AbstractPreProcessor`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._single_context_multiple_passages = True
