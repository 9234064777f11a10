"""Arguments of the trainer that are checked or sorted before anything is built."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning.pytorch as pl
import transformers

from portico.gradient_descent.callbacks import TrainerCallback
from portico.gradient_descent.errors import ConfigurationError


def check_numbers(
    *,
    num_epochs: int,
    num_gradient_accumulation_steps: int,
    grad_norm: float | bool | None,
    grad_clipping: float | None,
) -> None:
    """Refuse counts below 1 and limits that are not positive.

    Raises:
        ConfigurationError: Names the argument, its value and what is allowed.
    """
    counts = {"num_epochs": num_epochs, "num_gradient_accumulation_steps": num_gradient_accumulation_steps}
    for name, count in counts.items():
        if type(count) is not int or count < 1:
            raise ConfigurationError(f"`{name}={count!r}` cannot be used; set it to an int >= 1.")
    for name, limit in {"grad_norm": grad_norm, "grad_clipping": grad_clipping}.items():
        if limit is not None and not isinstance(limit, bool) and not limit > 0:
            raise ConfigurationError(f"`{name}={limit!r}` is no limit; set it to a number above 0, or to None.")


class SortedCallbacks(NamedTuple):
    """Callbacks by the library whose kind they are, each in the order given."""

    hugging_face: list[Any]
    lightning: list[Any]
    allennlp: list[TrainerCallback]


def sort_callbacks(callbacks: Sequence[Any]) -> SortedCallbacks:
    """Sort ``callbacks`` by the library whose kind they are.

    Raises:
        ConfigurationError: If one is of none.
    """
    kinds = SortedCallbacks([], [], [])
    for callback in callbacks:
        is_class = isinstance(callback, type) and issubclass(callback, transformers.TrainerCallback)
        if is_class or isinstance(callback, transformers.TrainerCallback):
            kinds.hugging_face.append(callback)
        elif isinstance(callback, pl.Callback):
            kinds.lightning.append(callback)
        elif isinstance(callback, TrainerCallback):
            kinds.allennlp.append(callback)
        else:
            raise ConfigurationError(
                f"`callbacks` holds {callback!r}, which is a callback neither of Hugging Face nor of Lightning, nor a "
                "`TrainerCallback` of AllenNLP 2; those of AllenNLP 1 go to `batch_callbacks`, `epoch_callbacks` and "
                "`end_callbacks`, and names and dicts to `from_partial_objects`."
            )
    return kinds
