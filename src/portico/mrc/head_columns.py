"""What a trainer gives to the head of a model with exchangeable heads."""

import inspect
from typing import Any

from portico.trainer import Trainer

_POSITIONS = ("start_positions", "end_positions")


class HeadColumns(Trainer):
    """Looks for labels and columns in the signature of the head in use, where the model has one."""

    def _init_model(self, model: Any, model_init: Any) -> None:
        super()._init_model(model, model_init)
        head = getattr(self.model, "task_head", None)
        # The labels of a head are those of the model, whose own signature does not show them.
        if head is not None and self.args.label_names is None:
            taken = inspect.signature(head.forward).parameters
            self.label_names = [name for name in _POSITIONS if name in taken]

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is not None:
            return
        super()._set_signature_columns_if_needed()
        head = getattr(self.model, "task_head", None)
        if head is not None:
            assert self._signature_columns is not None
            taken = inspect.signature(head.forward).parameters.values()
            of_head = [parameter.name for parameter in taken if parameter.kind is not parameter.VAR_KEYWORD]
            columns = dict.fromkeys([*self._signature_columns, *of_head])
            # What the model itself does not name is for the head, which takes no column of that name.
            self._signature_columns = [name for name in columns if name != "kwargs"]
