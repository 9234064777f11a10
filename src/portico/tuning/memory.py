"""The memory of one trial, given back before the next."""

from typing import TYPE_CHECKING

from portico.memory import release_memory

if TYPE_CHECKING:
    from portico.contract import Facade


def release_model(facade: "Facade") -> None:
    """Forget the model and what was made for it, since the next trial makes its own, and empty the device's cache."""
    handler = facade.callback_handler
    facade.model = facade.model_wrapped = handler.model = None
    facade.optimizer = handler.optimizer = None
    facade.lr_scheduler = handler.lr_scheduler = None
    facade.module.take(None)
    release_memory()
