"""The states of callbacks (and of the control flags) that checkpoints hold."""

from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerControl

from portico.run_log import logger

if TYPE_CHECKING:
    from portico.contract import Facade


def exportable_callbacks(facade: "Facade") -> list[Any]:
    """Return the callbacks (and the control flags) whose state belongs into a checkpoint."""
    candidates = [*facade.callback_handler.callbacks, facade.control]
    return [candidate for candidate in candidates if isinstance(candidate, ExportableState)]


def export_callbacks(facade: "Facade") -> None:
    """Write the present states into the trainer state, as a list where a class is there more than once."""
    stored: Any = facade.state.stateful_callbacks
    for callback in exportable_callbacks(facade):
        name = type(callback).__name__
        if isinstance(stored.get(name), list):
            stored[name].append(callback.state())
        else:
            stored[name] = callback.state()


def restore_callbacks(facade: "Facade") -> None:
    """Give callbacks the state that the checkpoint holds, where the user asked for it."""
    if not facade.args.restore_callback_states_from_checkpoint:
        return
    stored: Any = facade.state.stateful_callbacks
    known = exportable_callbacks(facade)
    unknown = [name for name in stored if all(type(callback).__name__ != name for callback in known)]
    if unknown:
        logger.warning(
            f"The checkpoint holds states of callbacks that this run has not, and they are left: {', '.join(unknown)}."
        )
    for name, states in stored.items():
        same = [callback for callback in known if type(callback).__name__ == name]
        for callback, state in zip(same, states if isinstance(states, list) else [states], strict=False):
            _replace(facade, callback, type(callback).from_state(state))
        if same:
            logger.info("Callbacks go on with the states that the checkpoint holds.")


def _replace(facade: "Facade", old: Any, new: Any) -> None:
    if isinstance(new, TrainerControl):
        facade.control = new
    else:
        facade.callback_handler.remove_callback(type(old))
        facade.callback_handler.add_callback(new)
