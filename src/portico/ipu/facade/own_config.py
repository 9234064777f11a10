"""What a trainer is given, checked, and the configuration that follows from it."""

import copy
import logging
import os
import warnings
from typing import Any

from portico.errors import InputError
from portico.ipu.config import IPUConfig

logger = logging.getLogger(__name__)


def check_given(model: Any, model_init: Any, args: Any, arguments_class: type) -> None:
    """Refuse what no trainer on IPUs takes.

    Raises:
        RuntimeError: If there is no model.
        TypeError: If ``args`` is of another class.
    """
    if not isinstance(args, arguments_class):
        raise TypeError(f"`args` is a {type(args).__name__}; give `portico.{arguments_class.__name__}`.")
    if model is None and model_init is not None:
        raise RuntimeError(
            "`model_init` is not supported by `IPUTrainer` yet: a program belongs to one model; give `model`."
        )
    if model is None:
        raise RuntimeError("`IPUTrainer` requires a `model`; give one.")
    if model_init is not None:
        warnings.warn(
            "`IPUTrainer` got both `model` and `model_init`; `model_init` has no effect.", FutureWarning, stacklevel=3
        )


def own_config(ipu_config: IPUConfig | None, args: Any) -> IPUConfig:
    """Return a copy of the configuration, with what the arguments say about it.

    Raises:
        TypeError: If it is no configuration.
        InputError: If ``n_ipu`` is no multiple of the IPUs of a replica.
    """
    if not isinstance(ipu_config, IPUConfig | None):
        raise TypeError(
            f"`ipu_config` is a {type(ipu_config).__name__}; give a `portico.IPUConfig`, which stands before `args`."
        )
    config = IPUConfig() if ipu_config is None else copy.deepcopy(ipu_config)
    if args.n_ipu is not None:
        factors = {}
        for prefix in ("", "inference_"):
            each = getattr(config, f"{prefix}ipus_per_replica")
            if args.n_ipu % each:
                raise InputError(
                    f"`n_ipu={args.n_ipu}` is no multiple of `{prefix}ipus_per_replica={each}`, so replicas do not "
                    "fit; change one of them."
                )
            factors[f"{prefix}replication_factor"] = args.n_ipu // each
            before = getattr(config, f"{prefix}replication_factor")
            if before not in (1, args.n_ipu // each):
                logger.warning(
                    "`n_ipu=%d` overwrites `%sreplication_factor=%d` by %d.",
                    args.n_ipu,
                    prefix,
                    before,
                    args.n_ipu // each,
                )
        config.update(**factors)
    if args.ipu_config_overrides:
        config.update_from_string(args.ipu_config_overrides)
    config.seed = args.seed
    if config.replication_factor > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return config
