"""An evaluation whose generated tokens become answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from portico.hf_compat import EvalLoopOutput
from portico.mrc.session import AnswerSession

GENERATIVE_FILES: Mapping[str, str] = {"predictions": "predictions", "references": "label_ids"}


class GeneratedAnswerSession(AnswerSession):
    """An :class:`~portico.mrc.session.AnswerSession` whose post-processing gets the whole output of the evaluation.

    A post-processing that streams gets the tokens batch by batch, ``int64 [B, T]``, as the only array.
    """

    file_parts = GENERATIVE_FILES

    def whole_output(self, logits: Any, labels: Any, losses: Any) -> EvalLoopOutput:
        """Return the generated tokens with what an evaluation has beside them."""
        metrics = {} if losses is None else {f"{self.metric_key_prefix}_loss": float(np.mean(losses))}
        return EvalLoopOutput(predictions=logits, label_ids=labels, metrics=metrics, num_samples=self.num_samples())
