"""Arguments of the trainer that are checked or sorted before anything is built."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from transformers import TrainerCallback

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


def split_callbacks(callbacks: Sequence[Any]) -> dict[str, list[Any]]:
    """Return ``callbacks`` of Hugging Face and ``lightning_callbacks``, each in the order given.

    Raises:
        ConfigurationError: If one is neither.
    """
    sorted_: dict[str, list[Any]] = {"callbacks": [], "lightning_callbacks": []}
    for callback in callbacks:
        is_class = isinstance(callback, type) and issubclass(callback, TrainerCallback)
        if is_class or isinstance(callback, TrainerCallback):
            sorted_["callbacks"].append(callback)
        elif isinstance(callback, pl.Callback):
            sorted_["lightning_callbacks"].append(callback)
        else:
            raise ConfigurationError(
                f"`callbacks` holds {callback!r}, which is a callback neither of Hugging Face nor of Lightning; those "
                "of AllenNLP go to `batch_callbacks`, `epoch_callbacks` and `end_callbacks`."
            )
    return sorted_
